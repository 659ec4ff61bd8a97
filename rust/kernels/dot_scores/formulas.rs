//! What the maths of a score looks like, a [`Formula`], and the plainest ones: cosines and distances.

use super::{filter, DotScore};
use crate::error::Error;
use crate::shapes;
use crate::simd::{Float, Lanes, Simd, V};

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

/// The maths of a score, on eight pairs.
pub trait Formula: Copy + Sync {
    /// Whether `x` is the squared distance (the score falls with it) or the inner product (the score rises with it).
    const DIFFERENCE: bool;
    /// Whether the norms are used.
    const NORMS: bool;
    /// The score.
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64>;
    /// Its derivatives.
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>>;

    /// The formula that gives the score when the two items change places.
    fn transposed(self) -> Self {
        self
    }

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
pub fn valid<S: Simd>(extras: (V<S, f64>, V<S, f64>), yes: V<S, f64>) -> V<S, f64> {
    let zero = V::<S, f64>::splat(0.0);
    extras.0.min(extras.1).if_less(zero, V::<S, f64>::splat(f64::NAN), yes)
}

/// `w1 w2 (cos(mu1, mu2) - shift)`: cosine with weights 1 and no shift; the expected cosine with each item's expected
/// resultant length as weight; ScaleFace's score (eq. 4) with roots of scales as weights.
#[derive(Clone, Copy)]
pub struct Cosine {
    /// The cosine that scores 0.
    pub shift: f64,
}

impl Formula for Cosine {
    const DIFFERENCE: bool = false;
    const NORMS: bool = true;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        // Two roots: the product of the squares could leave the range.
        let (weight, shift) = (pair.extras.0 * pair.extras.1, V::<S, f64>::splat(self.shift));
        pair.x * (weight / (pair.norms.0.sqrt() * pair.norms.1.sqrt())) - shift * weight
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let inverse = V::<S, f64>::splat(1.0) / (pair.norms.0.sqrt() * pair.norms.1.sqrt());
        let x = pair.extras.0 * pair.extras.1 * inverse;
        let shift = V::<S, f64>::splat(self.shift);
        Slopes {
            x,
            norm: V::<S, f64>::splat(-0.5) * x * pair.x / pair.norms.0,
            extra: pair.extras.1 * (inverse * pair.x - shift),
            shared: [-(pair.extras.0 * pair.extras.1), V::<S, f64>::splat(0.0)],
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

pub(super) use monotone;
