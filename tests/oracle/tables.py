"""Coefficient tables of elementary and modified Bessel functions and quadrature, as Rust's and CUDA's source text."""

import functools
import textwrap
from collections.abc import Callable, Iterable

import mpmath
from flint import arb, arb_mat, arb_poly, ctx

# The remainder of log I (rust/special/bessel.rs): the nodes of its Chebyshev expansions, and the smallest coefficient
# in them. This shift keeps them small, at order 0 too; a smaller one needs more coefficients, a larger one a larger P.
SHIFT = arb(3.25)
NODES = {"order": 24, "t": 80}
SMALLEST = 1e-18
GAUSS = (16, 32, 48, 64)


def remainder(s: arb, t: arb) -> arb:
    """P of log(I_v(x) e^-x) = w^2/(r + x) + v log(x/(w + r)) - log(2 pi r)/2 + P, w = v + SHIFT = 1/s, r = w/t."""
    w = 1 / s
    v, r = w - SHIFT, w / t
    x = (r * r - w * w).sqrt()
    log_ive = x.bessel_i(v, scaled=True).log()
    return log_ive - w * w / (r + x) - v * (x / (w + r)).log() + (2 * arb.pi() * r).log() / 2


def chebyshev(n: int) -> tuple[list[arb], list[list[arb]]]:
    """The n nodes in (-1, 1), and the matrix that makes coefficients of the values there."""
    angles = [(2 * i + 1) * arb.pi() / (2 * n) for i in range(n)]
    matrix = [[(k * angle).cos() * (2 if k else 1) / n for angle in angles] for k in range(n)]
    return [angle.cos() for angle in angles], matrix


def powers(coefficients: list[arb]) -> list[arb]:
    """The coefficients of the same polynomial by powers."""
    total, here, after = arb_poly([]), arb_poly([1]), arb_poly([0, 1])
    for c in coefficients:
        total += c * here
        here, after = after, arb_poly([0, 2]) * after - here
    return [total[i] for i in range(len(coefficients))]


@functools.cache
def remainder_piece(piece: int) -> list[list[float]]:
    """P for 9.75 s in [piece, piece + 1]: for each power of u = 2 t - 1 a polynomial in 19.5 s - 1 - 2 piece."""
    (s_nodes, s_matrix), (t_nodes, t_matrix) = chebyshev(NODES["order"]), chebyshev(NODES["t"])
    values = arb_mat([[remainder((a + 1 + 2 * piece) / (6 * SHIFT), (b + 1) / 2) for b in t_nodes] for a in s_nodes])
    coefficients = (arb_mat(s_matrix) * values * arb_mat(t_matrix).transpose()).tolist()
    kept = [[c if abs(float(c.mid())) > SMALLEST else arb(0) for c in row] for row in coefficients]
    rows = [powers([row[k] for row in kept]) for k in range(NODES["t"])]
    columns = [powers(list(column)) for column in zip(*rows, strict=True)]
    return trimmed([trimmed([float(c.mid()) for c in row]) for row in zip(*columns, strict=True)])


def trimmed(row: list) -> list:
    """The coefficients without trailing zeros."""
    return row[: max((i + 1 for i, c in enumerate(row) if c), default=0)]


def log_series(degree: int) -> list[mpmath.mpf]:
    """Near-minimax R(z) of log((1 + s) / (1 - s)) = s (2 + z R(z)), z = s^2, for logarithms within log(2) / 2 of 0."""
    largest = (3 - 2 * mpmath.sqrt(2)) ** 2
    return mpmath.chebyfit(
        lambda z: 2 * (mpmath.atanh(mpmath.sqrt(z)) / mpmath.sqrt(z) - 1) / z, [0, largest], degree + 1
    )[::-1]


def exponential(degree: int) -> list[mpmath.mpf]:
    """Near-minimax p of e^r = 1 + r + r^2 p(r), |r| <= log(2) / 2."""
    half = mpmath.log(2) / 2
    return mpmath.chebyfit(lambda r: taylor(lambda k: 1 / mpmath.factorial(k + 2), r), [-half, half], degree - 1)[::-1]


def sine(degree: int) -> list[mpmath.mpf]:
    """Near-minimax S of sin(pi x / 2) = x S(x^2), |x| <= 1/2."""
    half_pi = mpmath.pi / 2

    def term(k: int) -> mpmath.mpf:
        return (-1) ** k * half_pi ** (2 * k + 1) / mpmath.factorial(2 * k + 1)

    return mpmath.chebyfit(lambda z: taylor(term, z), [0, 0.25], degree + 1)[::-1]


def cosine(degree: int) -> list[mpmath.mpf]:
    """Near-minimax C of cos(pi x / 2) = C(x^2), |x| <= 1/2."""
    return mpmath.chebyfit(lambda z: mpmath.cos(mpmath.pi / 2 * mpmath.sqrt(z)), [0, 0.25], degree + 1)[::-1]


def hazard(degree: int) -> list[mpmath.mpf]:
    """Near-minimax p of phi(a) / Phi(-a) - a = p(t) / (a + 2), a = 7/2 (1 + t) / (1 - t) >= 0."""

    def p(t: mpmath.mpf) -> mpmath.mpf:
        if t == 1:
            return mpmath.mpf(1)
        a = mpmath.mpf(7) / 2 * (1 + t) / (1 - t)
        rate = mpmath.sqrt(2 / mpmath.pi) / (mpmath.exp(a * a / 2) * mpmath.erfc(a / mpmath.sqrt(2)))
        return (rate - a) * (a + 2)

    return mpmath.chebyfit(p, [-1, 1], degree + 1)[::-1]


def taylor(coefficient: Callable[[int], mpmath.mpf], x: mpmath.mpf) -> mpmath.mpf:
    """The sum of a power series that converges within 40 terms."""
    return mpmath.fsum(coefficient(k) * x**k for k in range(40))


def gauss_rule(n: int) -> list[tuple[float, float]]:
    """The nodes and weights of Gauss-Legendre quadrature on [0, 1]."""
    nodes = [arb.legendre_p_root(n, k, weight=True) for k in range(n)]
    return [(float((1 - x).mid()) / 2, float(w.mid()) / 2) for x, w in nodes]


def gauss(n: int) -> str:
    """The same nodes and weights as Rust source."""
    rows = [f"    ({x!r}, {w!r}),\n" for x, w in gauss_rule(n)]
    doc = f"/// Nodes and weights of {n}-point Gauss-Legendre quadrature on [0, 1]."
    return f"{doc}\npub static GAUSS_{n}: [(f64, f64); {n}] = [\n{''.join(rows)}];\n"


def array(doc: str, name: str, values: Iterable[float], visibility: str = "pub const") -> str:
    """One Rust array as rustfmt would set it."""
    numbers = [repr(float(v)) for v in values]
    head, row = f"/// {doc}\n{visibility} {name}: [f64; {len(numbers)}] =", f"[{', '.join(numbers)}];"
    if len(head.splitlines()[-1]) + 1 + len(row) <= 120:
        return f"{head} {row}\n"
    if len(row) + 4 <= 120:
        return f"{head}\n    {row}\n"
    return f"{head} [" + "".join(f"\n    {n}," for n in numbers) + "\n];\n"


def pieces() -> str:
    """The remainder of log I as Rust source, a line per power of u."""
    lines = []
    for piece in range(3):
        rows = (f"        &[{', '.join(map(repr, row))}]," for row in remainder_piece(piece))
        lines += ["    &[", *rows, "    ],"]
    doc = "/// P of `bessel`, 9.75/w in [i, i + 1]: per power of 2 t - 1 its coefficient by powers of 19.5/w - 1 - 2 i."
    return "\n".join([doc, "#[rustfmt::skip]", "pub static REMAINDER: [&[&[f64]]; 3] = [", *lines, "];\n"])


def short_tables() -> list[tuple[str, str, list[mpmath.mpf]]]:
    """The tables of a few lines at most: description, name, coefficients."""
    return [
        ("R of `log`, ascending, for float64.", "LOG_F64", log_series(6)),
        ("R of `log`, ascending, for float32.", "LOG_F32", log_series(2)),
        ("p of `exp`, ascending.", "EXP_F64", exponential(11)),
        ("p of `ndtr`, ascending.", "HAZARD_F64", hazard(28)),
        ("S of `trig`, ascending, for float64.", "SIN_F64", sine(7)),
        ("C of `trig`, ascending, for float64.", "COS_F64", cosine(8)),
        ("S of `trig`, ascending, for float32.", "SIN_F32", sine(3)),
        ("C of `trig`, ascending, for float32.", "COS_F32", cosine(4)),
    ]


def set_precision() -> None:
    mpmath.mp.dps = 50
    ctx.prec = 256


def source() -> str:
    """The text of rust/special/tables.rs."""
    set_precision()
    return "\n".join(
        [
            "//! GENERATED by `python -m tests.oracle`; do not edit.\n",
            *(array(*table) for table in short_tables()),
            *map(gauss, GAUSS),
            pieces(),
        ]
    )


def initialiser(numbers: Iterable[float]) -> str:
    """Numbers between braces, in lines of at most 120 columns."""
    lines = textwrap.wrap(", ".join(map(repr, numbers)), 116, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["{", *lines, "}"])


def cuda_source() -> str:
    """The text of cuda/numerics/tables.cuh: of the tables of rust/special/tables.rs those that kernels need."""
    set_precision()
    text = [
        "// GENERATED by `python -m tests.oracle`; do not edit.\n#pragma once\n",
        "// Short series are lists, for arrays that the compiler takes apart.\n",
    ]
    for doc, name, values in short_tables():
        if name != "EXP_F64":  # CUDA's own exponential is as accurate
            listed = textwrap.fill(", ".join(repr(float(v)) for v in values), 112).replace("\n", " \\\n    ")
            text.append(f"// {doc}\n#define {name} \\\n    {listed}\n")
    for n in GAUSS:
        doc = f"// Nodes and weights, one after the other, of {n}-point Gauss-Legendre quadrature on [0, 1]."
        flat = [number for pair in gauss_rule(n) for number in pair]
        text.append(f"{doc}\n__device__ const double GAUSS_{n}[{2 * n}] = {initialiser(flat)};\n")
    flat, starts = [], []
    most = max(len(remainder_piece(piece)) for piece in range(3))
    for piece in range(3):
        for k in range(most + 1):
            starts.append(len(flat))
            flat += remainder_piece(piece)[k] if k < len(remainder_piece(piece)) else []
    text += [
        "// P of `special`, 9.75/w in [i, i + 1]: per power of 2 t - 1 its coefficients by powers of 19.5/w - 1 - 2 i.",
        f"__device__ const double REMAINDER[{len(flat)}] = {initialiser(flat)};\n",
        "// Powers of 2 t - 1, and where those of piece i, power k begin: at i * (REMAINDER_POWERS + 1) + k.",
        f"constexpr int REMAINDER_POWERS = {most};",
        f"__device__ const short REMAINDER_STARTS[{len(starts)}] = {initialiser(starts)};\n",
    ]
    return "\n".join(text)
