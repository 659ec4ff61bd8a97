"""Golden values of the Bessel family by arb (ball arithmetic): tests/golden/bessel.csv.

Columns are the quantities at order v and argument x (vmf_log_norm: dimension 2 v + 2, kappa = x); an empty field has no
representable value. Errors are relative to max(|value|, floor), floor = 1 for log_ive and log_hyp0f1e, max(1, v) for
vmf_log_norm, min(1, 1/x) and min(1, 1/x^2) for the derivatives of log_ive, 0 for the rest, and at most tol for log_ive,
log_hyp0f1e, vmf_log_norm, iv_ratio and log_ive_dx, at most tol_bend for the others.
"""

from flint import arb, ctx

ORDERS = "0 0.5 1 1.5 2 3.3 7 12.5 14.999 15 19.99 20 31 63 127 255 511 1023 2047 10000 99999.5 100000"
COLUMNS = "v x log_ive log_hyp0f1e vmf_log_norm iv_ratio log_ive_dx log_ive_dxx iv_ratio_dx iv_ratio_dxx tol tol_bend"


def arguments(v: float) -> list[float]:
    """x over all magnitudes, denser where it matters in practice, at x near v, and where log I_v crosses zero."""
    tiny, huge = (-300, -200, -155, -100, -30, -10), (9, 10, 11, 12, 13, 15, 17, 30, 100, 153, 154, 155, 200, 300)
    wide = [10.0**e for e in (*tiny, *huge)]
    usual = [float(f"{10.0 ** (e / 4):.4g}") for e in range(-24, 33)]
    near = [v * i / 8 for i in range(4, 17)]
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
    # Below order 20 the recurrences add roundings, and second derivatives cancel for x >> v.
    tolerances = ["3e-15", "3e-15"] if v >= 20 else ["2e-14", "6e-13"]
    return ",".join([repr(v), repr(x), *shown, *tolerances])


def bessel() -> str:
    """The text of tests/golden/bessel.csv."""
    rows = [row(v, x) for v in map(float, ORDERS.split()) for x in arguments(v)]
    return "\n".join([COLUMNS.replace(" ", ","), *rows, ""])
