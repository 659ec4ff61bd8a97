//! Scores of isotropic normals.
//!
//! Sources: MLS, Shi & Jain 2019 (PFE) eq. 3, here for isotropic variances; likelihood ratio, PLDA with a variance per item;
//! products of powers, Jebara et al. 2004 (probability product kernels) and ProLIP's inclusion.

use super::formulas::{concave_maximum, valid, Formula, Group, Pair, Query, Slopes, SPARE};
use super::{facts, pair_function};
use crate::kernels::score::{score, Score};
use crate::simd::{Simd, V};
use crate::special::log::ln;
use std::f64::consts::PI;

/// Mutual likelihood score of isotropic normals: with s = v1 + v2, `-(|mu1 - mu2|^2 / s + D log s + D log 2 pi) / 2`.
#[derive(Clone, Copy)]
pub struct MlsIsotropic {
    /// D.
    pub dim: f64,
}

impl Formula for MlsIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const BY_SUM: bool = true;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let s = pair.extras.0 + pair.extras.1;
        let constant = V::<S, f64>::splat(self.dim * (2.0 * PI).ln());
        let twice = pair.x / s + V::<S, f64>::splat(self.dim).mul_add(ln::<S, f64>(s), constant);
        valid::<S>(pair.extras, twice * V::<S, f64>::splat(-0.5))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let zero = V::<S, f64>::splat(0.0);
        let half = V::<S, f64>::splat(0.5);
        let inverse = V::<S, f64>::splat(1.0) / (pair.extras.0 + pair.extras.1);
        let extra = half * inverse * (pair.x * inverse - V::<S, f64>::splat(self.dim));
        Slopes {
            x: valid::<S>(pair.extras, -half * inverse),
            norm: zero,
            extra: valid::<S>(pair.extras, extra),
            shared: [zero; 2],
        }
    }

    /// x <= -s (2 threshold + D log 2 pi s), which is concave in s.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let reach = |s: f64| {
            let logs = self.dim * (2.0 * PI * s).ln();
            let twice = 2.0 * threshold + logs;
            (SPARE.mul_add(s * (2.0 * threshold.abs() + logs.abs()), -s * twice), -twice - self.dim)
        };
        concave_maximum((query.extra + group.extras.0, query.extra + group.extras.1), reach)
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
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        valid::<S>(pair.extras, -(pair.x / (pair.extras.0 + pair.extras.1)))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let zero = V::<S, f64>::splat(0.0);
        let inverse = V::<S, f64>::splat(1.0) / (pair.extras.0 + pair.extras.1);
        let extra = valid::<S>(pair.extras, pair.x * inverse * inverse);
        Slopes { x: valid::<S>(pair.extras, -inverse), norm: zero, extra, shared: [zero; 2] }
    }

    /// x <= -s threshold; no bound at an infinite s and a threshold of 0.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let s = query.extra + if threshold < 0.0 { group.extras.1 } else { group.extras.0 };
        let farthest = SPARE.mul_add((s * threshold).abs(), -s * threshold);
        if farthest.is_nan() {
            f64::INFINITY
        } else {
            farthest
        }
    }
}

/// Log-likelihood ratio of "same" against "different" for isotropic normals whose means are drawn from N(0, p I).
///
/// With A = p + v1, B = p + v2, det = AB - p^2 = p (v1 + v2) + v1 v2, the textbook form
/// `1/2 [ |a|^2/A + |b|^2/B + D log AB - (B|a|^2 - 2p a.b + A|b|^2)/det - D log det ]`, whose terms cancel, becomes
/// `1/2 [ p (|a|^2 v1/A + |b|^2 v2/B - |a - b|^2) / det + D log(AB / det) ]`.
#[derive(Clone, Copy)]
pub struct LlrIsotropic {
    /// D.
    pub dim: f64,
    /// p.
    pub prior_var: f64,
}

impl Formula for LlrIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = true;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let (p, (v, w)) = (V::<S, f64>::splat(self.prior_var), pair.extras);
        let (a, b) = (p + v, p + w);
        let det = p.mul_add(v + w, v * w);
        let spread = (pair.norms.0 * v / a + pair.norms.1 * w / b) - pair.x;
        let twice = spread * (p / det) + V::<S, f64>::splat(self.dim) * ln::<S, f64>(a * b / det);
        valid::<S>((v.min(w), p), twice * V::<S, f64>::splat(0.5))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (p, (v, w)) = (V::<S, f64>::splat(self.prior_var), pair.extras);
        let (one, half, dim) = (V::<S, f64>::splat(1.0), V::<S, f64>::splat(0.5), V::<S, f64>::splat(self.dim));
        let (a, b, inverse) = (p + v, p + w, one / p.mul_add(v + w, v * w));
        let (n, m) = pair.norms;
        let spread = (n * v / a + m * w / b) - pair.x;
        let own = p * p * n / (a * a) - p * b * spread * inverse - dim * p * p / a;
        let prior = spread - p * (n * v / (a * a) + m * w / (b * b)) - p * (v + w) * spread * inverse;
        let logs = dim * (one / a + one / b - (v + w) * inverse);
        let domain = (v.min(w), p);
        Slopes {
            x: valid::<S>(domain, -half * p * inverse),
            norm: valid::<S>(domain, half * p * v / a * inverse),
            extra: valid::<S>(domain, half * own * inverse),
            shared: [valid::<S>(domain, half * (prior * inverse + logs)), V::<S, f64>::splat(0.0)],
        }
    }

    #[inline(always)]
    fn group<S: Simd>(&self, group: &mut Group) {
        group.share = (1.0 - SPARE) * self.prior_var / (self.prior_var + group.extras.1);
    }

    /// x - |b|^2 w/B <= |a|^2 v/A + det/p (D log(AB/det) - 2 threshold), whose last term is concave in w: with y = det, linear
    /// in w with slope A, and B, its second derivative is -D/p (A / sqrt(y) - sqrt(y) / B)^2.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let (p, v) = (self.prior_var, query.extra);
        let a = p + v;
        let reach = |w: f64| {
            let (b, det) = (p + w, p * v + a * w);
            let logs = self.dim * (a * b / det).ln();
            let rest = logs - 2.0 * threshold;
            let spare = SPARE * det * (logs.abs() + 2.0 * threshold.abs() + self.dim);
            ((det * rest + spare) / p, (a * rest + self.dim * (det / b - a)) / p)
        };
        (1.0 + SPARE) * (query.norm * v / a) + concave_maximum(group.extras, reach)
    }
}

/// Log of the integral of `p1^alpha p2^beta`: with s = v/alpha + w/beta,
/// `-(|mu1 - mu2|^2 / s + D [log s - (1 - alpha) log v - (1 - beta) log w + log alpha + log beta + (alpha + beta - 1) log 2 pi]) / 2`.
///
/// Alpha = beta = rho is the probability product kernel, alpha = 2, beta = 1 the inclusion.
#[derive(Clone, Copy)]
pub struct OverlapIsotropic {
    /// D.
    pub dim: f64,
    /// alpha and beta.
    pub powers: (f64, f64),
}

/// `factor * log x`, 0 for a factor of 0 whatever x.
#[inline(always)]
fn times_ln<S: Simd>(factor: f64, x: V<S, f64>) -> V<S, f64> {
    if factor == 0.0 {
        V::<S, f64>::splat(0.0)
    } else {
        V::<S, f64>::splat(factor) * ln::<S, f64>(x)
    }
}

impl OverlapIsotropic {
    fn constant(&self) -> f64 {
        let (alpha, beta) = self.powers;
        alpha.ln() + beta.ln() + (alpha + beta - 1.0) * (2.0 * PI).ln()
    }
}

impl OverlapIsotropic {
    /// The derivative by a power. No closure: what is not inlined is compiled for no level.
    #[inline(always)]
    fn by_power<S: Simd>(&self, by_s: V<S, f64>, power: V<S, f64>, var: V<S, f64>) -> V<S, f64> {
        let logs = ln::<S, f64>(var) + V::<S, f64>::splat((2.0 * PI).ln());
        let half_dim = V::<S, f64>::splat(0.5 * self.dim);
        -(by_s * var / (power * power)) - half_dim * (logs + V::<S, f64>::splat(1.0) / power)
    }
}

impl Formula for OverlapIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let ((alpha, beta), (v, w)) = (self.powers, pair.extras);
        let s = v / V::<S, f64>::splat(alpha) + w / V::<S, f64>::splat(beta);
        let logs = ln::<S, f64>(s) - times_ln::<S>(1.0 - alpha, v) - times_ln::<S>(1.0 - beta, w);
        let all = logs + V::<S, f64>::splat(self.constant());
        valid::<S>(pair.extras, (pair.x / s + V::<S, f64>::splat(self.dim) * all) * V::<S, f64>::splat(-0.5))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (zero, one, half) = (V::<S, f64>::splat(0.0), V::<S, f64>::splat(1.0), V::<S, f64>::splat(0.5));
        let (alpha, beta) = (V::<S, f64>::splat(self.powers.0), V::<S, f64>::splat(self.powers.1));
        let dim = V::<S, f64>::splat(self.dim);
        let (v, w) = pair.extras;
        let inverse = one / (v / alpha + w / beta);
        let by_s = half * inverse * (pair.x * inverse - dim);
        let own = if self.powers.0 == 1.0 { zero } else { half * dim * (one - alpha) / v };
        Slopes {
            x: valid::<S>(pair.extras, -half * inverse),
            norm: zero,
            extra: valid::<S>(pair.extras, by_s / alpha + own),
            shared: [
                valid::<S>(pair.extras, self.by_power::<S>(by_s, alpha, v)),
                valid::<S>(pair.extras, self.by_power::<S>(by_s, beta, w)),
            ],
        }
    }
    fn transposed(self) -> Self {
        OverlapIsotropic { powers: (self.powers.1, self.powers.0), ..self }
    }
}

/// Minus `share KL(p1 || p2) + (1 - share) KL(p2 || p1)`, `KL(p1 || p2) = (|mu1 - mu2|^2 / w + D [v/w - 1 - log(v/w)]) / 2`.
#[derive(Clone, Copy)]
pub struct NegKlIsotropic {
    /// D.
    pub dim: f64,
    /// 1 from the first item to the second, 0 the other way, 1/2 the mean of both.
    pub share: f64,
}

impl Formula for NegKlIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let (v, w) = pair.extras;
        let (zero, one, dim) = (V::<S, f64>::splat(0.0), V::<S, f64>::splat(1.0), V::<S, f64>::splat(self.dim));
        let divergence = |v: V<S, f64>, w: V<S, f64>| pair.x / w + dim * ((v - w) / w);
        let mut twice = times_ln::<S>((1.0 - 2.0 * self.share) * self.dim, v / w);
        for (share, v, w) in [(self.share, v, w), (1.0 - self.share, w, v)] {
            if share != 0.0 {
                twice = V::<S, f64>::splat(share).mul_add(divergence(v, w), twice);
            }
        }
        // A certain item and another one are infinitely far apart, whichever way.
        let certain = zero.if_less(v.min(w), one, zero);
        let value = V::<S, f64>::splat(-0.5) * twice;
        // NaN for what is not finite.
        let apart = zero * (v + w) + V::<S, f64>::splat(f64::NEG_INFINITY);
        valid::<S>(pair.extras, zero.if_less(certain, value, apart))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (v, w) = pair.extras;
        let zero = V::<S, f64>::splat(0.0);
        let (one, half, dim) = (V::<S, f64>::splat(1.0), V::<S, f64>::splat(0.5), V::<S, f64>::splat(self.dim));
        let (share, rest) = (V::<S, f64>::splat(self.share), V::<S, f64>::splat(1.0 - self.share));
        // KL(1 || 2) and KL(2 || 1), doubled, by v.
        let forth = dim * (one / w - one / v);
        let back = dim * (v - w) / (v * v) - pair.x / (v * v);
        let (first, second) = (
            pair.x / w + dim * ((v - w) / w - ln::<S, f64>(v / w)),
            pair.x / v + dim * ((w - v) / v + ln::<S, f64>(v / w)),
        );
        Slopes {
            x: valid::<S>(pair.extras, -half * (share / w + rest / v)),
            norm: zero,
            extra: valid::<S>(pair.extras, -half * (share * forth + rest * back)),
            shared: [valid::<S>(pair.extras, half * (second - first)), zero],
        }
    }
    fn transposed(self) -> Self {
        NegKlIsotropic { share: 1.0 - self.share, ..self }
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // a line for each
pub const KERNELS: &[Score] = &[
    score!(facts::<MlsIsotropic>("mls_isotropic", "var", "none"), |r| MlsIsotropic { dim: r.dim() }),
    score!(facts::<NegMahalanobisIsotropic>("neg_mahalanobis_isotropic", "var", "none"), |r| NegMahalanobisIsotropic),
    score!(facts::<LlrIsotropic>("llr_isotropic", "var", "prior_var"), |r| LlrIsotropic { dim: r.dim(), prior_var: r.shared(0) }),
    score!(facts::<OverlapIsotropic>("overlap_isotropic", "var", "powers"), |r| OverlapIsotropic { dim: r.dim(), powers: r.both() }),
    score!(facts::<NegKlIsotropic>("neg_kl_isotropic", "var", "share"), |r| NegKlIsotropic { dim: r.dim(), share: r.shared(0) }),
];
