//! Scores of isotropic normal distributions.
//!
//! Sources: MLS, Shi & Jain 2019 (PFE) eq. 3, here for isotropic variances; likelihood ratio, PLDA with a variance per item;
//! products of powers, Jebara et al. 2004 (probability product kernels) and ProLIP's inclusion.

use super::formulas::{
    concave_maximum, growing, in_domain, valid, Formula, Group, Pair, Partials, Query, PER_ITEM, SPARE,
};
use super::{facts, pair_function};
use crate::kernels::pair_op::{pair_op, PairOp};
use crate::simd::{Float, Simd, V};
use crate::special::dual::Dual;
use crate::special::log::ln;
use std::f64::consts::PI;

/// Mutual likelihood score of isotropic normals: with s = v1 + v2, `-(|mu1 - mu2|^2 / s + D log s + D log 2 pi) / 2`.
#[derive(Clone, Copy)]
pub struct MlsIsotropic {
    /// The dimension D.
    pub dim: f64,
}

impl Formula for MlsIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const BY_SUM: bool = true;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let (var1, var2) = pair.uncertainties;
        let s = var1 + var2;
        let twice = pair.x / s + s.ln().mul_add(self.dim, self.dim * (2.0 * PI).ln());
        in_domain(pair.uncertainties, -0.5 * twice)
    }
    const PLAIN: bool = true;
    #[inline(always)]
    fn plain<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> V<S, T> {
        let (v, w) = pair.uncertainties;
        let twice = pair.x / (v + w) + ln::<S, T>(v + w).mul_add(self.dim, self.dim * (2.0 * PI).ln());
        v.min(w).if_less(0.0, f64::NAN, -0.5 * twice)
    }
    const PLAIN_PARTIALS: bool = true;
    #[inline(always)]
    fn plain_partials<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> [V<S, T>; 2] {
        let (v, w) = pair.uncertainties;
        let inverse = v.min(w).if_less(0.0, f64::NAN, 1.0 / (v + w));
        [-0.5 * inverse, 0.5 * inverse * (pair.x * inverse - self.dim)]
    }

    /// Two variances of 0.
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let (v, w) = pair.uncertainties;
        if v + w == 0.0 {
            pair.if_equal(f64::INFINITY)
        } else {
            f64::NAN
        }
    }

    /// A score that reaches the threshold has x <= -s (2 threshold + D log 2 pi s), which is concave in s, and 0 at 0.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let reach = |s: f64| {
            if s == 0.0 {
                return (0.0, f64::INFINITY);
            }
            let logs = self.dim * (2.0 * PI * s).ln();
            let twice = 2.0 * threshold + logs;
            (SPARE.mul_add(s * (2.0 * threshold.abs() + logs.abs()), -s * twice), -twice - self.dim)
        };
        concave_maximum((query.uncertainty + group.uncertainties.0, query.uncertainty + group.uncertainties.1), reach)
    }
}

/// Minus the squared Mahalanobis distance under both variances: `-|mu1 - mu2|^2 / (v1 + v2)`.
#[derive(Clone, Copy)]
pub struct NegMahalanobisIsotropic;

impl Formula for NegMahalanobisIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const BY_SUM: bool = true;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let (var1, var2) = pair.uncertainties;
        in_domain(pair.uncertainties, -(pair.x / (var1 + var2)))
    }
    /// Two variances of 0 and equal means.
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let (v, w) = pair.uncertainties;
        if v + w == 0.0 {
            pair.if_equal(0.0)
        } else {
            f64::NAN
        }
    }

    /// A score that reaches the threshold has x <= -s threshold; there is no bound for an infinite s and a threshold of 0.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let s = query.uncertainty + if threshold < 0.0 { group.uncertainties.1 } else { group.uncertainties.0 };
        let farthest = SPARE.mul_add((s * threshold).abs(), -s * threshold);
        if farthest.is_nan() {
            f64::INFINITY
        } else {
            farthest
        }
    }
}

/// Log-likelihood ratio of one common mean against two independent means, for isotropic normals whose means are drawn from
/// N(0, p I).
///
/// With A = p + v1, B = p + v2, det = AB - p^2 = p (v1 + v2) + v1 v2, the textbook form
/// `1/2 [ |a|^2/A + |b|^2/B + D log AB - (B|a|^2 - 2p a.b + A|b|^2)/det - D log det ]`, whose terms cancel, becomes
/// `1/2 [ p (|a|^2 v1/A + |b|^2 v2/B - |a - b|^2) / det + D log(AB / det) ]`.
#[derive(Clone, Copy)]
pub struct LlrIsotropic {
    /// The dimension D.
    pub dim: f64,
    /// The prior variance p of the means.
    pub prior_var: f64,
}

impl Formula for LlrIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = true;
    const PER_ITEM: (usize, usize) = (2, 0);
    /// The numbers per item |a|^2 v / A and, for [`Formula::plain`], v / sqrt p.
    #[inline(always)]
    fn per_item<S: Simd>(&self, var: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [norm * var / (self.prior_var + var), var / self.prior_var.sqrt(), 0.0.into()]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let (p, (v, w)) = (self.prior_var, pair.uncertainties);
        let (a, b) = (p + v, p + w);
        let det = (v + w).mul_add(p, v * w);
        let spread = (pair.per_item.0[0] + pair.per_item.1[0]) - pair.x;
        let twice = spread * (p / det) + self.dim * (a * b / det).ln();
        in_domain(pair.uncertainties, 0.5 * twice).or_nan_below_zero(p.into())
    }
    const PLAIN: bool = true;
    /// With s = det / p = v1 + v2 + v1 v2 / p and y = p / s, AB / det = 1 + y: `1/2 [ (|a|^2 v1/A + |b|^2 v2/B - |a - b|^2) / s +
    /// D log (1 + y) ]`, in which neither a product of variances nor a small y is lost in float32.
    #[inline(always)]
    fn plain<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> V<S, T> {
        let (p, (v, w)) = (self.prior_var, pair.uncertainties);
        if p == 0.0 {
            return v.min(w).if_less(0.0, f64::NAN, 0.0 * (pair.x / (v * w)));
        }
        let (own, other) = pair.per_item;
        let inverse = 1.0 / own[1].mul_add(other[1], v + w);
        let y = p * inverse;
        let sum = y + 1.0;
        // The part of a y below 1 that the sum has lost; above 1 it is a rounding of the logarithm.
        let log = ln::<S, T>(sum) + y.if_less(1.0, y - (sum - 1.0), 0.0);
        let twice = ((own[0] + other[0]) - pair.x).mul_add(inverse, log * self.dim);
        v.min(w).if_less(if p < 0.0 { f64::INFINITY } else { 0.0 }, f64::NAN, 0.5 * twice)
    }
    /// Written out: the derivatives of the logarithm, 1/A - B/det, and of the spread, 1 - v/A, would cancel where p is below v.
    /// Their relative error would be 1e-13 at p/v = 1e-2 and 1e-7 at p/v = 1e-8, instead of 2e-16.
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let (p, dim, (v, w), (n, m)) = (self.prior_var, self.dim, pair.uncertainties, pair.norms);
        let (a, b, inverse) = (p + v, p + w, 1.0 / (v + w).mul_add(p, v * w));
        let spread = (n * v / a + m * w / b) - pair.x;
        let by_var = p * p * n / (a * a) - p * b * spread * inverse - dim * p * p / a;
        let prior = spread - p * (n * v / (a * a) + m * w / (b * b)) - p * (v + w) * spread * inverse;
        let logs = dim * (1.0 / a + 1.0 / b - (v + w) * inverse);
        let domain = (v.min(w), p.into());
        Partials {
            x: valid::<S>(domain, -0.5 * p * inverse),
            norm: valid::<S>(domain, 0.5 * p * v / a * inverse),
            uncertainty: valid::<S>(domain, 0.5 * by_var * inverse),
            shared: [valid::<S>(domain, 0.5 * (prior * inverse + logs)), 0.0.into()],
        }
    }

    /// Two variances of 0, or such that the reciprocal of det leaves the range.
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let (p, (v, w)) = (self.prior_var, pair.uncertainties);
        if !(p > 0.0 && v + w < f64::INFINITY) {
            return f64::NAN;
        }
        if v + w == 0.0 {
            return pair.if_equal(f64::INFINITY);
        }
        let det = (v + w).mul_add(p, v * w);
        let spread = (pair.per_item.0[0] + pair.per_item.1[0]) - pair.x;
        0.5 * (spread / det * p + self.dim * ((p + v).ln() + (p + w).ln() - det.ln()))
    }

    #[inline(always)]
    fn group<S: Simd>(&self, group: &mut Group) {
        group.share = (1.0 - SPARE) * self.prior_var / (self.prior_var + group.uncertainties.1);
    }

    /// A score that reaches the threshold has x - |b|^2 w/B <= |a|^2 v/A + det/p (D log(AB/det) - 2 threshold). The last term is
    /// concave in w: det = y is linear in w with slope A, and the second derivative is -D/p (A / sqrt(y) - sqrt(y) / B)^2.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let (p, v) = (self.prior_var, query.uncertainty);
        let a = p + v;
        let reach = |w: f64| {
            let (b, det) = (p + w, p * v + a * w);
            let logs = self.dim * (a * b / det).ln();
            let rest = logs - 2.0 * threshold;
            let spare = SPARE * det * (logs.abs() + 2.0 * threshold.abs() + self.dim);
            ((det * rest + spare) / p, (a * rest + self.dim * (det / b - a)) / p)
        };
        (1.0 + SPARE) * (query.norm * v / a) + concave_maximum(group.uncertainties, reach)
    }
}

/// Log of the integral of `p1^alpha p2^beta` for isotropic normals: with s = v/alpha + w/beta,
/// `-(|mu1 - mu2|^2 / s + D [log s - (1 - alpha) log v - (1 - beta) log w + log alpha + log beta +
/// (alpha + beta - 1) log 2 pi]) / 2`.
///
/// With alpha = beta = rho it is the log of the probability product kernel, with alpha = 2 and beta = 1 ProLIP's inclusion.
#[derive(Clone, Copy)]
pub struct OverlapIsotropic {
    /// The dimension D.
    pub dim: f64,
    /// The powers alpha and beta.
    pub powers: (f64, f64),
}

/// `factor * log x`; 0 where the factor is 0, even if the logarithm is not finite.
#[inline(always)]
fn times_ln<S: Simd>(factor: f64, x: Dual<S>) -> Dual<S> {
    if factor == 0.0 {
        0.0.into()
    } else {
        factor * x.ln()
    }
}

impl OverlapIsotropic {
    fn constant(&self) -> f64 {
        let (alpha, beta) = self.powers;
        alpha.ln() + beta.ln() + (alpha + beta - 1.0) * (2.0 * PI).ln()
    }

    /// The derivative with respect to a power; `by_s` is the derivative with respect to s, `var` the variance of the item with
    /// that power. This is not a closure, since closures do not inherit the instruction set of the function around them.
    #[inline(always)]
    fn by_power<S: Simd>(&self, by_s: V<S, f64>, power: f64, var: V<S, f64>) -> V<S, f64> {
        let logs = ln::<S, f64>(var) + (2.0 * PI).ln();
        -(by_s * var / (power * power)) - 0.5 * self.dim * (logs + 1.0 / power)
    }
}

impl Formula for OverlapIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let ((alpha, beta), (v, w)) = (self.powers, pair.uncertainties);
        let s = v / alpha + w / beta;
        let logs = s.ln() - times_ln(1.0 - alpha, v) - times_ln(1.0 - beta, w);
        in_domain(pair.uncertainties, -0.5 * (pair.x / s + self.dim * (logs + self.constant())))
    }
    /// Two variances of 0: with both equal to y, the logarithms are (alpha + beta - 1) log y + log(1 / alpha + 1 / beta).
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let ((alpha, beta), (v, w)) = (self.powers, pair.uncertainties);
        if v + w != 0.0 {
            return f64::NAN;
        }
        let rest = (1.0 / alpha + 1.0 / beta).ln() + self.constant();
        pair.if_equal(growing(alpha + beta - 1.0) - 0.5 * self.dim * rest)
    }
    #[inline(always)]
    fn by_shared<S: Simd>(&self, pair: Pair<V<S, f64>>) -> [V<S, f64>; 2] {
        let ((alpha, beta), (v, w)) = (self.powers, pair.uncertainties);
        let inverse = 1.0 / (v / alpha + w / beta);
        let by_s = 0.5 * inverse * (pair.x * inverse - self.dim);
        [
            valid::<S>(pair.uncertainties, self.by_power::<S>(by_s, alpha, v)),
            valid::<S>(pair.uncertainties, self.by_power::<S>(by_s, beta, w)),
        ]
    }
    const SYMMETRIC: bool = false;
    fn transposed(self) -> Self {
        OverlapIsotropic { powers: (self.powers.1, self.powers.0), ..self }
    }
}

/// Minus `share KL(p1 || p2) + (1 - share) KL(p2 || p1)`, where
/// `KL(p1 || p2) = (|mu1 - mu2|^2 / w + D [v/w - 1 - log(v/w)]) / 2`.
#[derive(Clone, Copy)]
pub struct NegKlIsotropic {
    /// The dimension D.
    pub dim: f64,
    /// The weight of KL(p1 || p2), between 0 and 1; 1/2 gives the mean of both divergences.
    pub share: f64,
}

impl Formula for NegKlIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let (v, w) = pair.uncertainties;
        let mut twice = times_ln((1.0 - 2.0 * self.share) * self.dim, v / w);
        for (share, v, w) in [(self.share, v, w), (1.0 - self.share, w, v)] {
            if share != 0.0 {
                twice = (pair.x / w + self.dim * ((v - w) / w)).mul_add(share, twice);
            }
        }
        // Where one variance is 0, both divergences are infinite: -infinity, or NaN if the other variance is not finite.
        let sum = v.value + w.value;
        let apart = sum.if_greater(0.0, 0.0 * sum + f64::NEG_INFINITY, f64::NAN);
        let finite = v.value.min(w.value).if_greater(0.0, (-0.5 * twice).value, apart);
        Dual::constant(valid::<S>((v.value, w.value), finite))
    }
    /// Two variances of 0, which are equal ones; or quotients that leave the range.
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let (v, w) = pair.uncertainties;
        if v == w && v < f64::INFINITY {
            pair.if_equal(0.0)
        } else if v + w < f64::INFINITY {
            f64::NEG_INFINITY
        } else {
            f64::NAN
        }
    }
    /// Written out: the derivatives D/v of the logarithm and D/w of the quotient would cancel where the variances are near each
    /// other. The relative error would be 2e-14 where the variances differ by 1 %, instead of 5e-17.
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let ((v, w), dim, share, rest) = (pair.uncertainties, self.dim, self.share, 1.0 - self.share);
        // The derivatives of 2 KL(p1 || p2) and of 2 KL(p2 || p1) with respect to v, and these divergences themselves.
        let forth = dim * (1.0 / w - 1.0 / v);
        let back = dim * (v - w) / (v * v) - pair.x / (v * v);
        let logs = ln::<S, f64>(v / w);
        let first = pair.x / w + dim * ((v - w) / w - logs);
        let second = pair.x / v + dim * ((w - v) / v + logs);
        Partials {
            x: valid::<S>(pair.uncertainties, -0.5 * (share / w + rest / v)),
            norm: 0.0.into(),
            uncertainty: valid::<S>(pair.uncertainties, -0.5 * (share * forth + rest * back)),
            shared: [valid::<S>(pair.uncertainties, 0.5 * (second - first)), 0.0.into()],
        }
    }
    const SYMMETRIC: bool = false;
    fn transposed(self) -> Self {
        NegKlIsotropic { share: 1.0 - self.share, ..self }
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts::<MlsIsotropic>("mls_isotropic", "var", "none"), |r| MlsIsotropic { dim: r.dim() }),
    pair_op!(facts::<NegMahalanobisIsotropic>("neg_mahalanobis_isotropic", "var", "none"), |r| NegMahalanobisIsotropic),
    pair_op!(facts::<LlrIsotropic>("llr_isotropic", "var", "prior_var"), |r| LlrIsotropic { dim: r.dim(), prior_var: r.shared(0) }),
    pair_op!(facts::<OverlapIsotropic>("overlap_isotropic", "var", "powers"), |r| OverlapIsotropic { dim: r.dim(), powers: r.both() }),
    pair_op!(facts::<NegKlIsotropic>("neg_kl_isotropic", "var", "share"), |r| NegKlIsotropic { dim: r.dim(), share: r.shared(0) }),
];
