//! What the maths of a score looks like, a [`Formula`], and the plainest ones: cosines and distances.

use super::{facts, pair_function};
use crate::kernels::score::{score, Score};
use crate::simd::{Simd, V};
use crate::special::dual::Dual;

/// What a formula sees of eight pairs: the first item is the one that gradients are asked for.
#[derive(Clone, Copy)]
pub struct Pair<X> {
    /// Squared distance or inner product of the two rows.
    pub x: X,
    /// Squared norms; meaningless unless the formula asks for them.
    pub norms: (X, X),
    /// Variances, concentrations, weights ...
    pub extras: (X, X),
    /// What [`Formula::own`] makes of each item, or, for slopes, [`Formula::own_slopes`].
    pub own: ([X; OWN], [X; OWN]),
}

impl<S: Simd> Pair<Dual<S>> {
    /// Given numbers as constants, of which one may be replaced by a variable.
    #[inline(always)]
    fn constants(pair: Pair<V<S, f64>>) -> Self {
        let dual = Dual::<S>::constant;
        let ([a, b, c], [d, e, f]) = pair.own;
        Pair {
            x: dual(pair.x),
            norms: (dual(pair.norms.0), dual(pair.norms.1)),
            extras: (dual(pair.extras.0), dual(pair.extras.1)),
            own: ([dual(a), dual(b), dual(c)], [dual(d), dual(e), dual(f)]),
        }
    }

    /// The numbers without derivatives.
    #[inline(always)]
    pub fn values(self) -> Pair<V<S, f64>> {
        let ([a, b, c], [d, e, f]) = self.own;
        Pair {
            x: self.x.value,
            norms: (self.norms.0.value, self.norms.1.value),
            extras: (self.extras.0.value, self.extras.1.value),
            own: ([a.value, b.value, c.value], [d.value, e.value, f.value]),
        }
    }
}

impl<X: Copy> Pair<X> {
    /// The same pair, seen from the other item.
    pub fn swapped(self) -> Self {
        let (norms, extras) = ((self.norms.1, self.norms.0), (self.extras.1, self.extras.0));
        Pair { x: self.x, norms, extras, own: (self.own.1, self.own.0) }
    }
}

/// Numbers that a formula makes of one item at most.
pub const OWN: usize = 3;

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
    /// Whether a search may compare values at moved `x` with a threshold; else it scores every pair.
    const SIEVED: bool = true;
    /// Whether the score depends on the sum of the extras alone (and on no norm), so that its slope by either is the same.
    const BY_SUM: bool = false;
    /// Whether slopes depend on `x`.
    const BY_X: bool = true;
    /// How many numbers [`Formula::own`] and [`Formula::own_slopes`] make.
    const OWN: (usize, usize) = (0, 0);
    /// What `value` takes of the extra and the squared norm of either item alone: made once for an item of many pairs.
    #[inline(always)]
    fn own<S: Simd>(&self, _extra: V<S, f64>, _norm: V<S, f64>) -> [V<S, f64>; OWN] {
        [0.0.into(); OWN]
    }
    /// What `slopes` takes of it.
    #[inline(always)]
    fn own_slopes<S: Simd>(&self, _extra: V<S, f64>, _norm: V<S, f64>) -> [V<S, f64>; OWN] {
        [0.0.into(); OWN]
    }
    /// The score: the definition, of which `slopes` is made. Where that is written out, `value` need have no derivatives.
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S>;
    /// The score of given numbers.
    #[inline(always)]
    fn score<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        self.value::<S>(Pair::constants(pair)).value
    }
    /// Its derivatives by the numbers of the pair, those of `value`. A formula writes them out where that keeps more digits, where
    /// they are made of numbers that scoring does not need, or where shared numbers have derivatives too.
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let numbers = Pair::constants(pair);
        let (norms, extras) = (numbers.norms, numbers.extras);
        let by_x = Pair { x: Dual::variable(pair.x), ..numbers };
        let by_norm = Pair { norms: (Dual::variable(pair.norms.0), norms.1), ..numbers };
        let by_extra = Pair { extras: (Dual::variable(pair.extras.0), extras.1), ..numbers };
        Slopes {
            x: self.value::<S>(by_x).slope(),
            norm: if Self::NORMS { self.value::<S>(by_norm).slope() } else { 0.0.into() },
            extra: self.value::<S>(by_extra).slope(),
            shared: self.by_shared::<S>(pair),
        }
    }
    /// Its derivatives by the shared numbers.
    #[inline(always)]
    fn by_shared<S: Simd>(&self, _pair: Pair<V<S, f64>>) -> [V<S, f64>; 2] {
        [0.0.into(); 2]
    }

    /// The formula that gives the score when the two items change places.
    fn transposed(self) -> Self {
        self
    }

    /// How far the value of an x may lie below that of another x which gives no higher a score: 0 where `value` is monotone
    /// in `x` *as computed*, as it is where it only adds to x, and multiplies and divides by what does not depend on it.
    #[inline(always)]
    fn tolerance<S: Simd>(&self, _pair: &Pair<V<S, f64>>) -> V<S, f64> {
        0.0.into()
    }

    /// What a search knows of a group of rows before it looks at them; sets what [`Formula::bound`] needs.
    #[inline(always)]
    fn group<S: Simd>(&self, _group: &mut Group) {}

    /// Told before `bound` is asked for each of the queries, their thresholds (-infinity: none yet) being these.
    #[inline(always)]
    fn enter<S: Simd>(&self, _thresholds: &[f64], _queries: &mut [Query], _group: &Group) {}

    /// The worst x at which a row of the group can reach the threshold (a number): for squared distances the greatest
    /// `x - (1 - group.share) |b|^2`, for inner products the least x. Rounding to spare is the formula's business.
    #[inline(always)]
    fn bound<S: Simd>(&self, _threshold: f64, _query: &mut Query, _group: &Group) -> f64 {
        if Self::DIFFERENCE {
            f64::INFINITY
        } else {
            f64::NEG_INFINITY
        }
    }
}

/// A query of a search.
#[derive(Clone, Copy, Default)]
pub struct Query {
    /// Squared norm and extra.
    pub norm: f64,
    pub extra: f64,
    /// What the formula keeps for itself from one group to the next; zeros at first.
    pub own: Tangents,
}

/// What bounds of von Mises-Fisher scores keep of a query: alpha G(k1), and for both ends of a group a tangent of G, its point,
/// value and slope.
#[derive(Clone, Copy, Default)]
pub struct Tangents {
    pub k1: f64,
    pub tangents: [[f64; 3]; 2],
}

/// A group of gallery rows: from the least to the greatest, NaN left out.
#[derive(Clone, Copy)]
pub struct Group {
    /// Squared norms and extras.
    pub norms: (f64, f64),
    pub extras: (f64, f64),
    /// The share of a row's squared norm that is subtracted in its inner product; 1 unless the formula says less.
    pub share: f64,
    /// The formula's own.
    pub own: [f64; 2],
}

/// What bounds leave to the roundings of a few float64 operations, relative to their terms.
pub const SPARE: f64 = 1e-14;

/// The greatest value that a concave function takes between two points, from its (value, slope) at both: the lower of the two
/// tangents' best.
pub fn concave_maximum((from, to): (f64, f64), f: impl Fn(f64) -> (f64, f64)) -> f64 {
    let ((left, rise), (right, fall)) = (f(from), f(to));
    let width = to - from;
    (left + rise.max(0.0) * width).min(right - fall.min(0.0) * width)
}

/// `yes` where both extras are >= 0, else NaN: the answer to variances and concentrations outside their domain.
#[inline(always)]
pub fn valid<S: Simd>(extras: (V<S, f64>, V<S, f64>), yes: V<S, f64>) -> V<S, f64> {
    extras.0.min(extras.1).if_less(0.0, f64::NAN, yes)
}

/// The same of a score and its derivative.
#[inline(always)]
pub fn in_domain<S: Simd>(extras: (Dual<S>, Dual<S>), score: Dual<S>) -> Dual<S> {
    score.or_nan_below_zero(extras.0.value.min(extras.1.value))
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
    const OWN: (usize, usize) = (1, 2);
    /// 1 by the length.
    #[inline(always)]
    fn own<S: Simd>(&self, _: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; OWN] {
        [1.0 / norm.sqrt(), 0.0.into(), 0.0.into()]
    }
    /// 1 by the length and by its square.
    #[inline(always)]
    fn own_slopes<S: Simd>(&self, _: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; OWN] {
        [1.0 / norm.sqrt(), 1.0 / norm, 0.0.into()]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        // Two roots: the product of the squares could leave the range.
        let weight = pair.extras.0 * pair.extras.1;
        pair.x * (weight * (pair.own.0[0] * pair.own.1[0])) - self.shift * weight
    }
    /// Written out, since the lengths' derivatives are made with them, once for an item.
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let inverse = pair.own.0[0] * pair.own.1[0];
        let x = pair.extras.0 * pair.extras.1 * inverse;
        Slopes {
            x,
            norm: -0.5 * x * pair.x * pair.own.0[1],
            extra: pair.extras.1 * (inverse * pair.x - self.shift),
            shared: [-(pair.extras.0 * pair.extras.1), 0.0.into()],
        }
    }
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let ((least, greatest), (shortest, longest)) = (group.extras, group.norms);
        if !(query.extra > 0.0 && least >= 0.0) {
            return f64::NEG_INFINITY;
        }
        // Weights may be subnormal, or their product; each of seven roundings of a score errs by half the smallest number.
        let threshold = threshold - 4.0 * f64::from_bits(1);
        let weight = if threshold < 0.0 { least } else { greatest };
        let cosine = threshold / (query.extra * weight) + self.shift;
        let length = query.norm.sqrt() * if cosine < 0.0 { longest } else { shortest }.sqrt();
        cosine * length - SPARE * (self.shift.abs() + cosine.abs()) * length
    }
}

/// `-(|mu1 - mu2|^2 + t1 + t2)`: minus the squared distance, expected where `t` is the trace of the covariance.
#[derive(Clone, Copy)]
pub struct NegSqL2;

impl Formula for NegSqL2 {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const BY_SUM: bool = true;
    const BY_X: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        in_domain(pair.extras, -(pair.x + (pair.extras.0 + pair.extras.1)))
    }
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let traces = query.extra + group.extras.0;
        SPARE.mul_add(traces + threshold.abs(), -threshold - traces)
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // a line for each
pub const KERNELS: &[Score] = &[
    score!(facts::<Cosine>("cosine", "weight", "none"), |r| Cosine { shift: 0.0 }),
    score!(facts::<Cosine>("shifted_cosine", "weight", "shift"), |r| Cosine { shift: r.shared(0) }),
    score!(facts::<NegSqL2>("neg_sq_l2", "trace", "none"), |r| NegSqL2),
];
