//! The maths of the scores that are functions of one inner product: a [`Formula`] each.
//!
//! Sources: MLS, Shi & Jain 2019 (PFE) eq. 3, here for isotropic variances; likelihood ratio, PLDA with a variance per item;
//! vMF overlap, "Probabilistic Embeddings Revisited" sec. 3; expected cosine and distance, moments of the distributions.

use super::{filter, DotScore};
use crate::error::Error;
use crate::shapes;
use crate::simd::{Float, Lanes, Simd, V};
use crate::special::bessel::{self, Order};
use crate::special::log::ln;
use std::f64::consts::PI;

/// What a formula sees of eight pairs: the first item is the one that gradients are asked for.
#[derive(Clone, Copy)]
pub struct Pair<X> {
    /// Squared distance or inner product of the two rows.
    pub x: X,
    /// Squared norms; meaningless unless the formula asks for them.
    pub norms: (X, X),
    /// Variances, concentrations, weights ...
    pub extras: (X, X),
}

impl<X: Copy> Pair<X> {
    /// The same pair, seen from the other item.
    pub fn swapped(self) -> Self {
        Pair { x: self.x, norms: (self.norms.1, self.norms.0), extras: (self.extras.1, self.extras.0) }
    }
}

/// Partial derivatives of a score.
pub struct Slopes<X> {
    /// By the squared distance or inner product.
    pub x: X,
    /// By the first item's squared norm.
    pub norm: X,
    /// By the first item's extra.
    pub extra: X,
    /// By the shared numbers, of which there are at most two.
    pub shared: [X; 2],
}

/// The maths of a score, on eight pairs. All of them are symmetric in the two items.
pub trait Formula: Copy + Sync {
    /// Whether `x` is the squared distance (the score falls with it) or the inner product (the score rises with it).
    const DIFFERENCE: bool;
    /// Whether the norms are used.
    const NORMS: bool;
    /// The score.
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64>;
    /// Its derivatives.
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>>;

    /// Exact top-k. [`filter::search`] is the faster way for a `value` that is monotone in `x` *as computed*: one that only
    /// adds to `x`, and multiplies and divides by what does not depend on it.
    fn search<T: Float>(
        score: &DotScore<T, Self>,
        k: usize,
        scores: &mut [T],
        ids: &mut [i64],
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        shapes::search(score, k, scores, ids, interrupted)
    }
}

/// The search of formulas that are monotone as computed.
macro_rules! monotone {
    () => {
        fn search<T: Float>(
            score: &DotScore<T, Self>,
            k: usize,
            scores: &mut [T],
            ids: &mut [i64],
            interrupted: &dyn Fn() -> bool,
        ) -> Result<(), Error> {
            filter::search(score, k, scores, ids, interrupted)
        }
    };
}

/// `yes` where both extras are >= 0, else NaN: the answer to variances and concentrations outside their domain.
#[inline(always)]
pub(super) fn valid<S: Simd>(extras: (V<S, f64>, V<S, f64>), yes: V<S, f64>) -> V<S, f64> {
    let zero = V::<S, f64>::splat(0.0);
    extras.0.min(extras.1).if_less(zero, V::<S, f64>::splat(f64::NAN), yes)
}

/// `w1 w2 cos(mu1, mu2)`: cosine with weights 1; the expected cosine with each item's expected resultant length as weight.
#[derive(Clone, Copy)]
pub struct Cosine;

impl Formula for Cosine {
    const DIFFERENCE: bool = false;
    const NORMS: bool = true;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        // Two roots: the product of the squares could leave the range.
        pair.x * (pair.extras.0 * pair.extras.1 / (pair.norms.0.sqrt() * pair.norms.1.sqrt()))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let inverse = V::<S, f64>::splat(1.0) / (pair.norms.0.sqrt() * pair.norms.1.sqrt());
        let x = pair.extras.0 * pair.extras.1 * inverse;
        Slopes {
            x,
            norm: V::<S, f64>::splat(-0.5) * x * pair.x / pair.norms.0,
            extra: pair.extras.1 * inverse * pair.x,
            shared: [V::<S, f64>::splat(0.0); 2],
        }
    }
}

/// `-(|mu1 - mu2|^2 + t1 + t2)`: minus the squared distance, expected where `t` is the trace of the covariance.
#[derive(Clone, Copy)]
pub struct NegSqL2;

impl Formula for NegSqL2 {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        valid::<S>(pair.extras, -(pair.x + (pair.extras.0 + pair.extras.1)))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let zero = V::<S, f64>::splat(0.0);
        let minus = valid::<S>(pair.extras, V::<S, f64>::splat(-1.0));
        Slopes { x: minus, norm: zero, extra: minus, shared: [zero; 2] }
    }
}

/// Mutual likelihood score of isotropic normals: with s = v1 + v2, `-(|mu1 - mu2|^2 / s + D log s + D log 2 pi) / 2`.
#[derive(Clone, Copy)]
pub struct MlsIsotropic {
    /// D.
    pub dim: f64,
}

impl Formula for MlsIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    monotone!();
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
    monotone!();
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
}

/// Log of the integrated product of two von Mises-Fisher densities, plus a shared offset:
/// `log C(k1) + log C(k2) - log C(R) + offset`, R = |k1 mu1 + k2 mu2|, log C(k) = log C(0) - H(k) - k.
///
/// With x = |mu1 - mu2|^2 nothing large cancels: k1 + k2 - R = k1 k2 x / (k1 + k2 + R), R^2 = (k1 + k2)^2 - k1 k2 x, and
/// H(k) = log(0F1(; D/2; k^2/4) e^-k) is 0 at k = 0, so all log C are taken relative to log C(0) = -log |S^(D-1)|.
#[derive(Clone, Copy)]
pub struct MlsVmf<'a> {
    normaliser: &'a Order,
    ratio: &'a Order,
    offset: f64,
}

impl<'a> MlsVmf<'a> {
    /// From the orders D/2 - 1 and D/2.
    pub fn new(normaliser: &'a Order, ratio: &'a Order, offset: f64) -> Self {
        MlsVmf { normaliser, ratio, offset: offset + normaliser.log_norm_at_zero() }
    }

    #[inline(always)]
    fn resultant<S: Simd>(pair: &Pair<V<S, f64>>) -> (V<S, f64>, V<S, f64>) {
        let (k1, k2) = pair.extras;
        let (sum, product) = (k1 + k2, k1 * k2 * pair.x);
        // Rounding of the rows can bring the square of a tiny R below 0; a tiny floor also keeps 0 / 0 out.
        let tiny = V::<S, f64>::splat(f64::MIN_POSITIVE);
        let r = (sum * sum - product).max(tiny).sqrt();
        (r, product / (sum + r))
    }
}

impl Formula for MlsVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let (r, lost) = Self::resultant::<S>(&pair);
        let first = bessel::log_hyp0f1e::<S>(self.normaliser, pair.extras.0);
        let second = bessel::log_hyp0f1e::<S>(self.normaliser, pair.extras.1);
        let both = bessel::log_hyp0f1e::<S>(self.normaliser, r);
        valid::<S>(pair.extras, both - (first + second) - lost + V::<S, f64>::splat(self.offset))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let half = V::<S, f64>::splat(0.5);
        let (r, _) = Self::resultant::<S>(&pair);
        let pull = bessel::iv_ratio::<S>(self.ratio, r) / r;
        let (k1, k2) = pair.extras;
        let cosine = V::<S, f64>::splat(1.0) - half * pair.x;
        let extra = pull * k2.mul_add(cosine, k1) - bessel::iv_ratio::<S>(self.ratio, k1);
        Slopes {
            x: valid::<S>(pair.extras, -half * k1 * k2 * pull),
            norm: V::<S, f64>::splat(0.0),
            extra: valid::<S>(pair.extras, extra),
            shared: [V::<S, f64>::splat(1.0), V::<S, f64>::splat(0.0)],
        }
    }
}
