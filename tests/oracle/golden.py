"""Golden values of the Bessel family by arb (ball arithmetic): tests/golden/bessel.csv.

Columns are the quantities at order v and argument x (vmf_log_norm: dimension 2 v + 2, kappa = x); an empty field has no
representable value. Errors are relative to max(|value|, floor), floor = 1 for log_ive and log_hyp0f1e, max(1, v) for
vmf_log_norm, min(1, 1/x) and min(1, 1/x^2) for the derivatives of log_ive, 0 for the rest; at most tol for log_ive,
tol_ratio for iv_ratio, tol_bend for second derivatives and those of iv_ratio, tol_rest for the rest.
"""

from flint import arb, ctx

# The fit changes pieces at 1.625 and 6.5.
ORDERS = """0 0.1 0.25 0.5 0.75 1 1.25 1.5 1.624 1.625 2 2.5 3 3.3 3.5 4.5 5 6.499 6.5 7 8.5 10.7 12.5 15 17.5 20 24.3
    31 38.5 47.7 63 80.1 100.5 127 191 255 384.4 511 767 1023 1535.5 2047 4095 8191.25 10000 16384 31415.9 65535
    99999.5 100000"""
QUANTITIES = "log_ive log_hyp0f1e vmf_log_norm iv_ratio log_ive_dx log_ive_dxx iv_ratio_dx iv_ratio_dxx"


def arguments(v: float) -> list[float]:
    """x over all magnitudes, denser where it matters in practice, at x near v, and where log I_v crosses zero."""
    tiny, huge = (-300, -200, -155, -100, -30, -10), (9, 10, 11, 12, 13, 15, 17, 30, 100, 153, 154, 155, 200, 300)
    wide = [10.0**e for e in (*tiny, *huge)]
    usual = [float(f"{10.0 ** (e / 4):.4g}") for e in range(-24, 33)]
    near = [v * i / 16 for i in range(8, 33)]
    return sorted({*wide, *usual, *near, *crossing(v)} - {0.0})


def crossing(v: float) -> list[float]:
    """Seven points around the zero of log I_v (found by bisection of I_v = 1)."""
    ctx.prec = 128
    low, high = 1e-3, 2.0 * v + 4.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if arb(middle).bessel_i(arb(v)) < 1 else (low, middle)
    return [low * (1.0 + e) for e in (-1e-2, -1e-4, -1e-8, 0.0, 1e-8, 1e-4, 1e-2)]


def values(v: float, x: float) -> list[arb | None] | None:
    """The columns between x and tol, or None where the working precision is too low."""
    order, z = arb(v), arb(x)
    i = z.bessel_i(order, scaled=True)
    log_ive = i.log()
    log_hyp0f1e = (i * (order + 1).gamma()).log() - order * (z / 2).log()
    vmf_log_norm = order * z.log() - (order + 1) * (2 * arb.pi()).log() - log_ive - z
    above = z.bessel_i(order + 1, scaled=True) / i  # I_(v+1) / I_v
    dx = above + order / z - 1
    dxx = 1 - above**2 - (2 * order + 1) * above / z - order / z**2
    a = a_dx = a_dxx = None
    if v >= 1:
        a = 1 / (above + 2 * order / z)
        a_dx = 1 - a**2 - (2 * order - 1) * a / z
        a_dxx = -2 * a * a_dx - (2 * order - 1) * (a_dx / z - a / z**2)
    out = [log_ive, log_hyp0f1e, vmf_log_norm, a, dx, dxx, a_dx, a_dxx]
    return out if all(y is None or y.rel_accuracy_bits() > 80 for y in out) else None


def row(v: float, x: float) -> str:
    ctx.prec = 192
    while (columns := values(v, x)) is None:
        ctx.prec *= 2
    numbers = [None if y is None else float(y.str(25, radius=False)) for y in columns]
    shown = ["" if y is None or not 1e-300 < abs(y) < 1e300 else repr(y) for y in numbers]
    return ",".join([repr(v), repr(x), *shown, "1e-15", "5e-16", "1e-14" if v >= 3 else "6e-14", "2e-15"])


def bessel() -> str:
    """The text of tests/golden/bessel.csv."""
    rows = [row(v, x) for v in map(float, ORDERS.split()) for x in arguments(v)]
    return "\n".join([",".join(["v", "x", *QUANTITIES.split(), "tol", "tol_ratio", "tol_bend", "tol_rest"]), *rows, ""])
