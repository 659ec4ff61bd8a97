"""Every quantity by its definition, in at most ten plain numpy lines: what the kernels' forms are held against.

A score takes two items' means (or directions) and what goes with them, broadcast to [..., D] and [..., 1] or [..., D],
and returns (value, size): size is the sum of the absolute values of the terms, the yardstick of rounding. Arrays are
longdouble, so that the reference's own rounding does not count; what needs Bessel or Kummer functions goes through arb,
whose balls cannot be wrong.
"""

import numpy as np
from flint import arb, ctx

ctx.prec = 512
WIDE = np.longdouble
LOG_2PI = np.log(2 * WIDE("3.14159265358979323846264338327950288"))


def total(*terms):
    """Value and size of a sum of terms [..., n]."""
    lead = np.broadcast_shapes(*(t.shape[:-1] for t in terms))
    terms = np.concatenate([np.broadcast_to(t, (*lead, t.shape[-1])) for t in terms], -1)
    return terms.sum(-1), np.abs(terms).sum(-1)


def precise(function):
    """A function of arb balls as a function of arrays that broadcast; NaN where an argument is not finite."""

    def ball(x):
        return arb(float(x)) + arb(float(x - WIDE(float(x))))

    def one(*xs):
        if not np.isfinite(xs).all():
            return WIDE("nan")
        y = function(*map(ball, xs))
        return WIDE(float(y.mid())) + WIDE(float((y - float(y.mid())).mid()))

    return np.vectorize(one, otypes=[WIDE])


# -- special functions -------------------------------------------------------------------------------------------------


@precise
def scaled_log_norm(dim, k):
    """log C_D(k) + k: the normaliser of the density exp(k mu.z - k) on the unit sphere."""
    v = dim / 2 - 1
    if k == 0:  # the uniform distribution: minus the log of the sphere's surface
        return (v + 1).lgamma() - arb(2).log() - (v + 1) * arb.pi().log()
    return v * k.log() - (v + 1) * (2 * arb.pi()).log() - k.bessel_i(v, scaled=True).log()


@precise
def resultant_length(dim, k):
    """A_D(k) = I_(D/2)(k) / I_(D/2 - 1)(k): the length of the mean of a von Mises-Fisher draw."""
    return k.bessel_i(dim / 2, scaled=True) / k.bessel_i(dim / 2 - 1, scaled=True) if k != 0 else arb(0)


@precise
def projected_length(dim, sq_norm, var):
    """Length of the mean of z / |z|, z ~ N(mu, var I)."""
    if var == 0:
        return arb(1)
    x = sq_norm / (2 * var)
    gammas = ((dim + 1) / 2).gamma() / (dim / 2 + 1).gamma()
    return x.sqrt() * gammas * (-x).hypgeom_1f1(arb(0.5), dim / 2 + 1)


@precise
def resultant(kappa1, kappa2, sq_distance):
    """|kappa1 mu1 + kappa2 mu2| for unit rows: their cosine is 1 - |mu1 - mu2|^2 / 2."""
    square = (kappa1 + kappa2) ** 2 - kappa1 * kappa2 * sq_distance
    return square.sqrt() if square > 0 else arb(0)


@precise
def lost_length(kappa1, kappa2, sq_distance):
    """kappa1 + kappa2 - |kappa1 mu1 + kappa2 mu2|, for unit rows."""
    square = (kappa1 + kappa2) ** 2 - kappa1 * kappa2 * sq_distance
    return kappa1 + kappa2 - (square.sqrt() if square > 0 else 0)


# -- scores ------------------------------------------------------------------------------------------------------------

NORMALS = "normal_isotropic normal_diagonal"
EVERY = f"{NORMALS} vmf nivmf scaled point"
KINDS = {}
"""The kinds that each score takes: "query kinds x gallery kinds", several such separated by "|"; all others raise."""


KINDS["mls"] = f"{NORMALS} x {NORMALS} point | vmf x vmf | point x {NORMALS}"


def mls(a, v, b, w):
    """log of the integral of N(z; a, v) N(z; b, w) over z."""
    s = v + w + 0 * a
    return total(-((a - b) ** 2) / s / 2, -np.log(s) / 2, 0 * s - LOG_2PI / 2)


KINDS["neg_mahalanobis"] = f"{NORMALS} x {NORMALS} point | point x {NORMALS}"


def neg_mahalanobis(a, v, b, w):
    """Minus the squared distance over the summed variances: mls without its logarithm."""
    return total(-((a - b) ** 2) / (v + w + 0 * a))


KINDS["llr"] = f"{NORMALS} x {NORMALS} point | vmf x vmf | point x {NORMALS}"


def llr(a, v, b, w, p):
    """PLDA: log of the density of (a, b) with one centre drawn from N(0, p), over that with two centres."""
    s, t = p + v + 0 * b, p + w + 0 * a
    det = p * (v + w) + v * w + 0 * a * b  # s t - p^2, and below t a^2 - 2 p a b + s b^2, multiplied out
    joint = [-p * (a - b) ** 2 / det / 2, -w * a**2 / det / 2, -v * b**2 / det / 2, -np.log(det) / 2]
    return total(*joint, a**2 / s / 2, b**2 / t / 2, np.log(s) / 2, np.log(t) / 2)


KINDS["ppk"] = f"{NORMALS} x {NORMALS} | vmf x vmf"
KINDS["inclusion"] = f"{NORMALS} x {NORMALS} | vmf x vmf"


def overlap(a, v, b, w, alpha, beta):
    """log of the integral of N(z; a, v)^alpha N(z; b, w)^beta over z."""
    v, w = v + 0 * a + 0 * b, w + 0 * a + 0 * b
    s = v / alpha + w / beta
    own = [(1 - power) * (LOG_2PI + np.log(x)) / 2 for power, x in ((alpha, v), (beta, w)) if power != 1]
    constant = [-np.log(WIDE(power)) / 2 + 0 * v for power in (alpha, beta)]
    return total(-((a - b) ** 2) / s / 2, -np.log(s) / 2, 0 * s - LOG_2PI / 2, *own, *constant)


KINDS["neg_kl"] = f"{NORMALS} x {NORMALS} | vmf x vmf"


def neg_kl(a, v, b, w, share):
    """- share KL(first || second) - (1 - share) KL(second || first) of normals."""
    v, w, terms = v + 0 * a + 0 * b, w + 0 * a + 0 * b, []
    for weight, x, y in ((share, v, w), (1 - share, w, v)):
        if weight:
            terms += [weight * t / 2 for t in (-((a - b) ** 2) / y, -x / y, 1 + 0 * x, np.log(x), -np.log(y))]
    value, size = total(*terms)
    return np.where(((v == 0) | (w == 0)).any(-1), -np.inf, value), size


def mls_vmf(a, kappa1, b, kappa2):
    """log of the integral of vMF(z; a, kappa1) vMF(z; b, kappa2), log C(kappa1) + log C(kappa2) - log C(R)."""
    dim = WIDE(a.shape[-1])
    x = ((a - b) ** 2).sum(-1, keepdims=True)
    r, lost = resultant(kappa1, kappa2, x), lost_length(kappa1, kappa2, x)
    return total(scaled_log_norm(dim, kappa1), scaled_log_norm(dim, kappa2), -scaled_log_norm(dim, r), -lost)


def overlap_vmf(a, kappa1, b, kappa2, alpha, beta):
    """log of the integral of vMF(z; a, kappa1)^alpha vMF(z; b, kappa2)^beta over the sphere."""
    dim, x = WIDE(a.shape[-1]), ((a - b) ** 2).sum(-1, keepdims=True)
    r, lost = resultant(alpha * kappa1, beta * kappa2, x), lost_length(alpha * kappa1, beta * kappa2, x)
    own = alpha * scaled_log_norm(dim, kappa1), beta * scaled_log_norm(dim, kappa2)
    return total(*own, -scaled_log_norm(dim, r), -lost)


def neg_kl_vmf(a, kappa1, b, kappa2, share):
    """- share KL(1 || 2) - (1 - share) KL(2 || 1), as log C(kappa1) - log C(kappa2) + A(kappa1) (kappa1 - c kappa2)."""
    dim, x = WIDE(a.shape[-1]), ((a - b) ** 2).sum(-1, keepdims=True)
    terms = []
    for weight, k, m in ((share, kappa1, kappa2), (1 - share, kappa2, kappa1)):
        norms = scaled_log_norm(dim, k), -scaled_log_norm(dim, m), m - k + 0 * x
        moved = resultant_length(dim, k) * (k - m), resultant_length(dim, k) * m * x / 2
        terms += [-weight * t for t in (*norms, *moved)]
    return total(*terms)


def llr_vmf(a, kappa1, b, kappa2):
    """mls_vmf over the uniform density: + log of the sphere's surface."""
    value, size = mls_vmf(a, kappa1, b, kappa2)
    surface = -scaled_log_norm(WIDE(a.shape[-1]), WIDE(0))
    return value + surface, size + abs(surface)


KINDS["cosine"] = f"{EVERY} x {EVERY}"
KINDS["expected_cosine"] = "normal_isotropic point x normal_isotropic point | vmf x vmf"


def cosine(a, length1, b, length2):
    """Cosine; with the lengths of the expected directions, the expected cosine."""
    norms = np.sqrt((a * a).sum(-1, keepdims=True)) * np.sqrt((b * b).sum(-1, keepdims=True))
    return total(length1 * length2 * a * b / norms)


KINDS["inner_product"] = f"{EVERY} x {EVERY}"


def inner_product(a, bias1, b, bias2):
    """Inner product, and a number of each item."""
    return total(a * b, bias1 + 0 * b[..., :1], bias2 + 0 * a[..., :1])


KINDS["scale_cosine"] = "scaled x scaled"
KINDS["norm_cosine"] = f"{NORMALS} point x {NORMALS} point"


def scale_cosine(a, scale1, b, scale2, mu, sides):
    """ScaleFace eq. 4: the scales' geometric mean, or the query's own, times (cosine - mu)."""
    weight = np.sqrt(scale1 * scale2) if sides == "both" else scale1 + 0 * scale2
    value, size = cosine(a, WIDE(1), b, WIDE(1))
    return weight[..., 0] * (value - mu), weight[..., 0] * (size + abs(mu))


KINDS["neg_w2"] = f"{NORMALS} point x {NORMALS} point"


def neg_w2(a, v, b, w):
    """Minus the squared 2-Wasserstein distance, |a - b|^2 + tr(V + W - 2 (V W)^(1/2))."""
    return total(-((a - b) ** 2), *(t + 0 * a * b for t in (-v, -w, 2 * np.sqrt(v) * np.sqrt(w))))


KINDS["neg_sq_l2"] = f"{EVERY} x {EVERY}"
KINDS["neg_expected_sq_l2"] = f"{NORMALS} point x {NORMALS} point | vmf x vmf"
KINDS["neg_csd"] = f"{NORMALS} point x {NORMALS} point | vmf x vmf"


def neg_sq_l2(a, trace1, b, trace2):
    """Minus the squared distance; with the covariances' traces, its expectation over two draws."""
    return total(-((a - b) ** 2), -trace1 + 0 * b[..., :1], -trace2 + 0 * a[..., :1])


# -- scores of draws [n, ..., D] ---------------------------------------------------------------------------------------


def every_pair(z1, z2):
    """Squared distances and cosines of all pairs of draws [n, n, ...]."""
    z1, z2 = z1[:, None].astype(WIDE), z2[None].astype(WIDE)
    norms = np.sqrt((z1 * z1).sum(-1) * (z2 * z2).sum(-1))
    return ((z1 - z2) ** 2).sum(-1), (z1 * z2).sum(-1) / norms


def log_sigmoid(y):
    return np.minimum(y, 0) - np.log1p(np.exp(-abs(y)))


def log_mean_exp(x):
    top = x.max(0)
    return top + np.log(np.exp(x - top).mean(0))


KINDS["hib"] = f"{NORMALS} point x {NORMALS} point"


def match_probability(dim, square, s, a, b):
    """log E sigmoid(b - a sqrt(s) t), t non-central chi with dim degrees: the trapezoidal rule, for dim > 2."""
    far = np.sqrt(square / np.where(s > 0, s, 1))
    t = np.linspace(0, np.sqrt(far**2 + dim) + 12, 400)[1:]
    log_f = (dim - 1) * np.log(t) - scaled_log_norm(dim, far * t) - (t - far) ** 2 / 2
    log_match = log_sigmoid(b - a * np.sqrt(s) * t)
    exact = log_sigmoid(b - a * np.sqrt(square))
    return np.where(s > 0, log_mean_exp(log_f + log_match) - log_mean_exp(log_f), exact)


def log_density(z, mu, kappa, form="", stretched=True):
    """(value, size) of the log density of a non-isotropic von Mises-Fisher distribution at z.

    det K over |K z|^D makes it integrate to 1; over |K mu|^D is the paper's eq. 4, over |K mu| is its code.
    """
    z, dim = z.astype(WIDE), WIDE(mu.shape[-1])
    x, y = (kappa * z if stretched else z), kappa * mu
    length, n = np.sqrt((x * x).sum(-1)), np.sqrt((y * y).sum(-1))
    apart = ((x / length[..., None] - y / n[..., None]) ** 2).sum(-1)
    last = {"": -dim * np.log(length), "_paper": -dim * np.log(n), "_published": -np.log(n)}[form]
    return total(scaled_log_norm(dim, n)[..., None], (-n * apart / 2)[..., None], np.log(kappa), last[..., None])


KINDS["sampled_cosine"] = f"{NORMALS} x {NORMALS} point | vmf x vmf point | point x {NORMALS} vmf point"
KINDS["neg_sampled_l2"] = f"{NORMALS} x {NORMALS} point | vmf x vmf point | point x {NORMALS} vmf point"
KINDS["el_nivmf"] = "vmf x nivmf"
KINDS["nivmf"] = "vmf point x nivmf"


def drawn(name, z1, z2, mu2, uncertainty2, params):
    """(value, size) of a score by name from the draws of both sides; nivmf has one draw, the query's direction."""
    of_draws, nivmf, form = name.partition("nivmf")
    if nivmf:
        value, size = log_density(z1, mu2, uncertainty2, form, not of_draws or form != "_published")
        return log_mean_exp(value), size.max(0)
    square, cosine = every_pair(z1, z2)
    mean = {"sampled_cosine": cosine, "neg_sampled_l2": -np.sqrt(square)}
    if name in mean:
        return mean[name].mean((0, 1)), np.maximum(1, np.sqrt(square).max((0, 1)))
    y = params["b"] - params["a"] * np.sqrt(square)
    return log_mean_exp(log_sigmoid(y).reshape(-1, *y.shape[2:])), abs(y).max((0, 1)) + 1


# -- measures ----------------------------------------------------------------------------------------------------------


def confidence(kind, uncertainty):
    """Minus the mean log variance, the mean log concentration, the scale."""
    if kind == "scaled":
        return uncertainty[..., 0]
    return np.log(uncertainty).mean(-1) * (-1 if kind.startswith("normal") else 1)


def fit_prior(mu, labels):
    """One-way analysis of variance per dimension, by loops: mean of the class means, and variance between classes,
    which may come out below 0."""
    classes = sorted(set(labels))
    groups = [np.array([x for x, label in zip(mu, labels, strict=True) if label == c]) for c in classes]
    grand, n, c = sum(mu) / len(mu), len(mu), len(classes)
    within = sum((x - g.mean(0)) ** 2 for g in groups for x in g) / (n - c)
    between = sum(len(g) * (g.mean(0) - grand) ** 2 for g in groups) / (c - 1)
    typical = (n - sum(len(g) ** 2 for g in groups) / n) / (c - 1)
    return sum(g.mean(0) for g in groups) / c, (between - within) / typical


# -- scores by name and kind -------------------------------------------------------------------------------------------


def moments(kind, mu, uncertainty):
    """The mean and the trace of the covariance [..., 1]."""
    if kind == "vmf":
        length = resultant_length(WIDE(mu.shape[-1]), uncertainty)
        return length * mu, 1 - length**2
    return mu, (uncertainty + 0 * mu).sum(-1, keepdims=True)


def direction_length(kind, mu, uncertainty):
    """The length of the expected direction [..., 1]."""
    if kind == "vmf":
        return resultant_length(WIDE(mu.shape[-1]), uncertainty)
    return projected_length(WIDE(mu.shape[-1]), (mu * mu).sum(-1, keepdims=True), uncertainty)


SHARES = {"query_to_gallery": WIDE(1), "gallery_to_query": WIDE(0), "symmetric": WIDE(0.5)}


def score(name, kinds, first, second, params):
    """(value, size) of a score by name, for items (mean, uncertainty) of these kinds; a Point's uncertainty is 0."""
    (a, x), (b, y) = first, second
    vmf = kinds == ("vmf", "vmf")
    if name == "mls":
        return (mls_vmf if vmf else mls)(a, x, b, y)
    if name == "hib":
        dim, square = WIDE(a.shape[-1]), ((a - b) ** 2).sum(-1)
        return match_probability(dim, square, (x + y)[..., 0], 1, 0), 1 + np.sqrt(square + dim * (x + y)[..., 0])
    if name == "llr":
        return llr_vmf(a, x, b, y) if vmf else llr(a, x, b, y, params["prior_var"])
    if name in ("ppk", "inclusion"):
        powers = (WIDE(params["rho"]),) * 2 if name == "ppk" else (WIDE(2), WIDE(1))
        return (overlap_vmf if vmf else overlap)(a, x, b, y, *powers)
    if name == "neg_kl":
        return (neg_kl_vmf if vmf else neg_kl)(a, x, b, y, SHARES[params["direction"]])
    if name in ("scale_cosine", "norm_cosine"):
        norms = [np.sqrt((m * m).sum(-1, keepdims=True)) for m in (a, b)]
        x, y = (x, y) if name == "scale_cosine" else norms
        return scale_cosine(a, x, b, y, params["mu"], params["sides"])
    if name == "expected_cosine":
        return cosine(a, direction_length(kinds[0], a, x), b, direction_length(kinds[1], b, y))
    if name in ("neg_expected_sq_l2", "neg_csd"):
        return neg_sq_l2(*moments(kinds[0], a, x), *moments(kinds[1], b, y))
    if name in ("cosine", "inner_product", "neg_sq_l2"):  # scores of means alone: weights are 1, biases and traces 0
        x = y = WIDE(name == "cosine")
    return globals()[name](a, x, b, y)
