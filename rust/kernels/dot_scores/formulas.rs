//! The trait [`Formula`], which the maths of a score implements, and the simplest formulas: cosines, squared distances and inner products.

use super::{facts, pair_function};
use crate::kernels::pair_op::{pair_op, PairOp};
use crate::simd::{Float, Simd, V};
use crate::special::dual::Dual;

/// The inputs of a formula for eight pairs. Partial derivatives are with respect to the numbers of the first item.
#[derive(Clone, Copy)]
pub struct Pair<X> {
    /// The squared distance or inner product of the two rows.
    pub x: X,
    /// The squared norms of the two rows; meaningless unless [`Formula::NORMS`].
    pub norms: (X, X),
    /// The uncertainties of the two items: variances, concentrations, weights ...
    pub uncertainties: (X, X),
    /// The numbers of each of the two items alone: [`Formula::per_item`] or, for partial derivatives,
    /// [`Formula::per_item_for_partials`].
    pub per_item: ([X; PER_ITEM], [X; PER_ITEM]),
}

impl<S: Simd> Pair<Dual<S>> {
    /// The numbers of a pair as constants.
    #[inline(always)]
    fn constants(pair: Pair<V<S, f64>>) -> Self {
        let dual = Dual::<S>::constant;
        let ([a, b, c], [d, e, f]) = pair.per_item;
        Pair {
            x: dual(pair.x),
            norms: (dual(pair.norms.0), dual(pair.norms.1)),
            uncertainties: (dual(pair.uncertainties.0), dual(pair.uncertainties.1)),
            per_item: ([dual(a), dual(b), dual(c)], [dual(d), dual(e), dual(f)]),
        }
    }

    /// The numbers without derivatives.
    #[inline(always)]
    pub fn values(self) -> Pair<V<S, f64>> {
        let ([a, b, c], [d, e, f]) = self.per_item;
        Pair {
            x: self.x.value,
            norms: (self.norms.0.value, self.norms.1.value),
            uncertainties: (self.uncertainties.0.value, self.uncertainties.1.value),
            per_item: ([a.value, b.value, c.value], [d.value, e.value, f.value]),
        }
    }
}

/// The numbers of pairs, one in each place.
#[inline(always)]
fn lanes<S: Simd>(pair: Pair<V<S, f64>>) -> Pair<[f64; 16]> {
    let ([a, b, c], [d, e, f]) = pair.per_item;
    Pair {
        x: pair.x.to_array(),
        norms: (pair.norms.0.to_array(), pair.norms.1.to_array()),
        uncertainties: (pair.uncertainties.0.to_array(), pair.uncertainties.1.to_array()),
        per_item: ([a.to_array(), b.to_array(), c.to_array()], [d.to_array(), e.to_array(), f.to_array()]),
    }
}

impl Pair<[f64; 16]> {
    /// The numbers of one pair.
    fn lane(&self, lane: usize) -> Pair<f64> {
        let of = |(first, second): ([f64; 16], [f64; 16])| (first[lane], second[lane]);
        let (first, second) = self.per_item;
        Pair {
            x: self.x[lane],
            norms: of(self.norms),
            uncertainties: of(self.uncertainties),
            per_item: (first.map(|x| x[lane]), second.map(|x| x[lane])),
        }
    }
}

impl Pair<f64> {
    /// Whether the score of the pair is defined, if only as a limit: no number is NaN, and no uncertainty negative that must not be.
    fn in_domain<F: Formula>(&self) -> bool {
        let (v, w) = self.uncertainties;
        let valid = if F::SIGNED { !(v + w).is_nan() } else { v >= 0.0 && w >= 0.0 };
        valid && !(self.x + self.norms.0 + self.norms.1).is_nan()
    }

    /// A limit that is reached where the means are equal; where they differ, the score falls to -infinity.
    pub fn if_equal(&self, limit: f64) -> f64 {
        if self.x > 0.0 {
            f64::NEG_INFINITY
        } else {
            limit
        }
    }
}

/// The limit of `growth * log(1 / y)` as y goes to 0.
pub fn growing(growth: f64) -> f64 {
    if growth == 0.0 {
        0.0
    } else {
        growth * f64::INFINITY
    }
}

impl<X: Copy> Pair<X> {
    /// The same pair, seen from the other item.
    pub fn swapped(self) -> Self {
        let (norms, uncertainties) = ((self.norms.1, self.norms.0), (self.uncertainties.1, self.uncertainties.0));
        Pair { x: self.x, norms, uncertainties, per_item: (self.per_item.1, self.per_item.0) }
    }
}

/// How many numbers a formula makes of one item alone, at most.
pub const PER_ITEM: usize = 3;

/// The partial derivatives of a score.
pub struct Partials<X> {
    /// The derivative with respect to the squared distance or inner product.
    pub x: X,
    /// The derivative with respect to the first item's squared norm.
    pub norm: X,
    /// The derivative with respect to the first item's uncertainty.
    pub uncertainty: X,
    /// The derivatives with respect to the shared numbers, of which there are at most two; 0 for the others.
    pub shared: [X; 2],
}

impl Partials<f64> {
    /// The same with 0 in place of what is not finite.
    pub fn finite(self) -> Self {
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        let [a, b] = self.shared;
        Partials {
            x: finite(self.x),
            norm: finite(self.norm),
            uncertainty: finite(self.uncertainty),
            shared: [finite(a), finite(b)],
        }
    }
}

/// The maths of a score, evaluated for eight pairs at once.
pub trait Formula: Copy + Sync {
    /// Whether `x` is the squared distance (the score falls with it) or the inner product (the score rises with it).
    const DIFFERENCE: bool;
    /// Whether the score depends on the squared norms of the rows.
    const NORMS: bool;
    /// Whether a search may rule pairs out by the values at a lower and an upper bound of `x`; otherwise it scores every pair.
    const SIEVED: bool = true;
    /// Whether the score depends on the sum of the uncertainties alone (and on no norm), so that its partial derivatives with
    /// respect to both uncertainties are equal.
    const BY_SUM: bool = false;
    /// Whether uncertainties may be negative; else a score with a negative one is NaN.
    const SIGNED: bool = false;
    /// Whether any partial derivative depends on `x`.
    const BY_X: bool = true;
    /// How many numbers [`Formula::per_item`] and [`Formula::per_item_for_partials`] make.
    const PER_ITEM: (usize, usize) = (0, 0);
    /// The numbers of one item that `value` reads, from its uncertainty and squared norm, once for all pairs of the item.
    #[inline(always)]
    fn per_item<S: Simd>(&self, _uncertainty: V<S, f64>, _norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [0.0.into(); PER_ITEM]
    }
    /// The numbers of one item that `partials` reads.
    #[inline(always)]
    fn per_item_for_partials<S: Simd>(&self, _uncertainty: V<S, f64>, _norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [0.0.into(); PER_ITEM]
    }
    /// The definition of the score, which `partials` differentiates. The result need not have derivatives if `partials` is
    /// written out.
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S>;
    /// The score without derivatives.
    #[inline(always)]
    fn score<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        self.value::<S>(Pair::constants(pair)).value
    }
    /// Whether the score of all pairs is [`Formula::plain`]: computed in the rows' own type, where a few roundings of each term are
    /// no more than what x has lost.
    const PLAIN: bool = false;
    /// The score in the rows' own type; `pair` holds [`Formula::per_item`], rounded.
    #[inline(always)]
    fn plain<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> V<S, T> {
        pair.x
    }
    /// Whether the gradients of all pairs take [`Formula::plain_partials`]; only of a score [`Formula::BY_SUM`].
    const PLAIN_PARTIALS: bool = false;
    /// The derivatives of the score by x and by either uncertainty, in the rows' own type.
    #[inline(always)]
    fn plain_partials<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> [V<S, T>; 2] {
        [pair.x; 2]
    }
    /// The derivatives of `value` with respect to the numbers of the pair. A formula writes them out where that keeps more
    /// digits, where they need numbers per item that scoring does not need, or where shared numbers have derivatives too.
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let mut numbers = Pair::constants(pair);
        numbers.x = Dual::variable(pair.x, 0);
        if Self::NORMS {
            numbers.norms.0 = Dual::variable(pair.norms.0, 1);
        }
        numbers.uncertainties.0 = Dual::variable(pair.uncertainties.0, 2);
        let [x, norm, uncertainty] = self.value::<S>(numbers).partials();
        Partials { x, norm, uncertainty, shared: self.by_shared::<S>(pair) }
    }
    /// The score at an edge of its domain, a variance of 0 or an infinite concentration, where `value` is NaN: its limit, for which
    /// all variances of 0 go to 0 together. NaN where there is no limit.
    fn at_edge(&self, _pair: &Pair<f64>) -> f64 {
        f64::NAN
    }
    /// The partial derivatives where one of them is not finite. One without a finite limit counts as 0.
    fn partials_at_edge(&self, _pair: &Pair<f64>, partials: Partials<f64>) -> Partials<f64> {
        partials.finite()
    }
    /// The derivatives of the score with respect to the shared numbers.
    #[inline(always)]
    fn by_shared<S: Simd>(&self, _pair: Pair<V<S, f64>>) -> [V<S, f64>; 2] {
        [0.0.into(); 2]
    }

    /// Whether the score is the same, to the last bit, when the two items change places.
    const SYMMETRIC: bool = true;
    /// The formula that gives the same score when the two items change places.
    fn transposed(self) -> Self {
        self
    }

    /// By how much `value` *as computed* may fail to be monotone in `x`: how far it may lie below its value at an x that is no
    /// better. This is 0 for a formula that only adds to x, and multiplies and divides by numbers that do not depend on it.
    #[inline(always)]
    fn tolerance<S: Simd>(&self, _pair: &Pair<V<S, f64>>) -> V<S, f64> {
        0.0.into()
    }

    /// Called once for each group of rows whose ranges of norms and uncertainties are known: sets the share, and the numbers that
    /// [`Formula::bound`] needs of the group.
    #[inline(always)]
    fn group<S: Simd>(&self, _group: &mut Group) {}

    /// Called for a new group before `bound` is called for each of the queries, with their thresholds (-infinity: none yet).
    #[inline(always)]
    fn enter<S: Simd>(&self, _thresholds: &[f64], _queries: &mut [Query], _group: &Group) {}

    /// The worst x at which a row of the group can reach the threshold (a number): for squared distances the greatest
    /// `x - (1 - group.share) |b|^2`, for inner products the least x. The formula allows for the rounding of its own operations.
    #[inline(always)]
    fn bound<S: Simd>(&self, _threshold: f64, _query: &mut Query, _group: &Group) -> f64 {
        if Self::DIFFERENCE {
            f64::INFINITY
        } else {
            f64::NEG_INFINITY
        }
    }
}

/// The score of pairs, with its limits at the edges of its domain.
#[inline(always)]
pub fn scored<S: Simd, F: Formula>(formula: &F, pair: Pair<V<S, f64>>) -> V<S, f64> {
    let value = formula.score::<S>(pair);
    if value.not_less_bits(f64::INFINITY) == 0 {
        return value;
    }
    let mut values = value.to_array();
    scores_at_edges(formula, &lanes::<S>(pair), &mut values);
    V::<S, f64>::load(&values)
}

/// The partial derivatives of pairs, with their limits at the edges of the domain.
#[inline(always)]
pub fn differentiated<S: Simd, F: Formula>(formula: &F, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
    let found = formula.partials::<S>(pair);
    let sum = found.norm.mul_add(0.0, 0.0 * found.x) + found.uncertainty.mul_add(0.0, 0.0 * found.shared[0]);
    if found.shared[1].mul_add(0.0, sum).not_less_bits(f64::INFINITY) == 0 {
        return found;
    }
    let mut partials = Partials {
        x: found.x.to_array(),
        norm: found.norm.to_array(),
        uncertainty: found.uncertainty.to_array(),
        shared: [found.shared[0].to_array(), found.shared[1].to_array()],
    };
    partials_at_edges(formula, &lanes::<S>(pair), &mut partials);
    Partials {
        x: V::<S, f64>::load(&partials.x),
        norm: V::<S, f64>::load(&partials.norm),
        uncertainty: V::<S, f64>::load(&partials.uncertainty),
        shared: [V::<S, f64>::load(&partials.shared[0]), V::<S, f64>::load(&partials.shared[1])],
    }
}

/// Replaces the scores that are NaN, though the numbers of their pairs are in the domain.
#[cold]
#[inline(never)]
fn scores_at_edges<F: Formula>(formula: &F, pairs: &Pair<[f64; 16]>, scores: &mut [f64; 16]) {
    for (lane, score) in scores.iter_mut().enumerate().filter(|(_, score)| score.is_nan()) {
        let pair = pairs.lane(lane);
        if pair.in_domain::<F>() {
            *score = formula.at_edge(&pair);
        }
    }
}

/// Replaces the partial derivatives that are not finite, though the numbers of their pairs are in the domain.
#[cold]
#[inline(never)]
fn partials_at_edges<F: Formula>(formula: &F, pairs: &Pair<[f64; 16]>, partials: &mut Partials<[f64; 16]>) {
    for lane in 0..16 {
        let Partials { x, norm, uncertainty, shared: [first, second] } = &mut *partials;
        let all = [&mut x[lane], &mut norm[lane], &mut uncertainty[lane], &mut first[lane], &mut second[lane]];
        let (pair, [x, norm, uncertainty, first, second]) = (pairs.lane(lane), all);
        let found = Partials { x: *x, norm: *norm, uncertainty: *uncertainty, shared: [*first, *second] };
        let finite = found.x + found.norm + found.uncertainty + found.shared[0] + found.shared[1];
        if finite.is_finite() || !(pair.in_domain::<F>() && pair.x.is_finite()) {
            continue;
        }
        let limits = formula.partials_at_edge(&pair, found);
        (*x, *norm, *uncertainty, [*first, *second]) = (limits.x, limits.norm, limits.uncertainty, limits.shared);
    }
}

/// A query of a search, as bounds need it.
#[derive(Clone, Copy, Default)]
pub struct Query {
    /// The squared norm of its mean or direction.
    pub norm: f64,
    /// Its variance, concentration, weight ...
    pub uncertainty: f64,
    /// The state of the formula from one group to the next; zeros at first.
    pub tangents: Tangents,
}

/// The state of a query in the bounds of von Mises-Fisher scores.
#[derive(Clone, Copy, Default)]
pub struct Tangents {
    /// alpha G(kappa1), 0 before it is computed; G is defined in `vmf`.
    pub alpha_g_kappa1: f64,
    /// A tangent of G(sqrt y) for the least and for the greatest kappa2 of a group: its point, value and slope.
    pub at_ends: [[f64; 3]; 2],
}

/// The ranges (least, greatest) of the numbers of a group of gallery rows; NaN are left out.
#[derive(Clone, Copy)]
pub struct Group {
    /// The range of the squared norms.
    pub norms: (f64, f64),
    /// The range of the uncertainties.
    pub uncertainties: (f64, f64),
    /// The share of a row's squared norm, halved, that panels subtract from its inner product; 1 unless the formula sets less.
    pub share: f64,
    /// The result of [`Formula::group`] for [`Formula::bound`]: the values of a tangent at the least and greatest uncertainty.
    pub tangent_at_ends: [f64; 2],
}

/// The margin that bounds leave for the rounding of a few float64 operations, relative to the size of their terms.
pub const SPARE: f64 = 1e-14;

/// An upper bound of a concave function `f`, which returns (value, slope), between two points: the lesser of the maxima of the
/// tangents at both.
pub fn concave_maximum((from, to): (f64, f64), f: impl Fn(f64) -> (f64, f64)) -> f64 {
    let ((left, rise), (right, fall)) = (f(from), f(to));
    let width = to - from;
    (left + rise.max(0.0) * width).min(right - fall.min(0.0) * width)
}

/// `yes` where both uncertainties are >= 0, else NaN: variances and concentrations must not be negative.
#[inline(always)]
pub fn valid<S: Simd>(uncertainties: (V<S, f64>, V<S, f64>), yes: V<S, f64>) -> V<S, f64> {
    uncertainties.0.min(uncertainties.1).if_less(0.0, f64::NAN, yes)
}

/// [`valid`] for dual numbers: makes the score and its derivative NaN where an uncertainty is negative.
#[inline(always)]
pub fn in_domain<S: Simd>(uncertainties: (Dual<S>, Dual<S>), score: Dual<S>) -> Dual<S> {
    score.or_nan_below_zero(uncertainties.0.value.min(uncertainties.1.value))
}

/// `w1 w2 (cos(mu1, mu2) - shift)`: cosine with weights 1 and no shift; the expected cosine with each item's expected
/// resultant length as weight; ScaleFace's score (eq. 4) with roots of scales as weights.
#[derive(Clone, Copy)]
pub struct Cosine {
    /// The shift: the cosine whose score is 0.
    pub shift: f64,
}

impl Formula for Cosine {
    const DIFFERENCE: bool = false;
    const NORMS: bool = true;
    const PER_ITEM: (usize, usize) = (1, 2);
    /// The reciprocal of the row's length; 0 for zeros, whose cosine and its derivatives so are 0.
    #[inline(always)]
    fn per_item<S: Simd>(&self, _: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [norm.if_greater(0.0, 1.0 / norm.sqrt(), norm), 0.0.into(), 0.0.into()]
    }
    /// The reciprocals of the row's length and of its square; 0 for zeros.
    #[inline(always)]
    fn per_item_for_partials<S: Simd>(&self, _: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [norm.if_greater(0.0, 1.0 / norm.sqrt(), norm), norm.if_greater(0.0, 1.0 / norm, norm), 0.0.into()]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        // Each length has a root of its own: the product of the squared lengths could leave the range.
        let weight = pair.uncertainties.0 * pair.uncertainties.1;
        pair.x * (weight * (pair.per_item.0[0] * pair.per_item.1[0])) - self.shift * weight
    }
    /// The value, in which roundings do not bring the cosine beyond 1.
    #[inline(always)]
    fn score<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let weight = pair.uncertainties.0 * pair.uncertainties.1;
        let (cosine, most) = (pair.x * (weight * (pair.per_item.0[0] * pair.per_item.1[0])), weight.abs());
        cosine.at_most(most).at_least(-most) - self.shift * weight
    }
    const PLAIN: bool = true;
    #[inline(always)]
    fn plain<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> V<S, T> {
        // One length after the other, for the same reason; the order is that of the lengths, the same from either side.
        let (a, b) = (pair.per_item.0[0], pair.per_item.1[0]);
        let cosine = (pair.x * a.max(b) * a.min(b)).at_most(1.0).at_least(-1.0);
        (cosine - self.shift) * (pair.uncertainties.0 * pair.uncertainties.1)
    }
    /// Written out, since the derivative of a length needs only numbers that are made once for all pairs of the item.
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let inverse = pair.per_item.0[0] * pair.per_item.1[0];
        let x = pair.uncertainties.0 * pair.uncertainties.1 * inverse;
        Partials {
            x,
            norm: -0.5 * x * pair.x * pair.per_item.0[1],
            uncertainty: pair.uncertainties.1 * (inverse * pair.x - self.shift),
            shared: [-(pair.uncertainties.0 * pair.uncertainties.1), 0.0.into()],
        }
    }
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let ((least, greatest), (shortest, longest)) = (group.uncertainties, group.norms);
        if !(query.uncertainty > 0.0 && least >= 0.0) {
            return f64::NEG_INFINITY;
        }
        // Weights or their product may be subnormal; each of the seven roundings of a score then errs by at most half the
        // smallest positive number.
        let threshold = threshold - 4.0 * f64::from_bits(1);
        let weight = if threshold < 0.0 { least } else { greatest };
        let cosine = threshold / (query.uncertainty * weight) + self.shift;
        let length = query.norm.sqrt() * if cosine < 0.0 { longest } else { shortest }.sqrt();
        cosine * length - SPARE * (self.shift.abs() + cosine.abs()) * length
    }
}

/// `-(|mu1 - mu2|^2 + t1 + t2)`: minus the squared distance; minus its expectation if `t` are the traces of the covariances; with
/// `t` of any sign, whatever is a weighted squared distance and a number of each item.
#[derive(Clone, Copy)]
pub struct NegSqL2;

impl Formula for NegSqL2 {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const SIGNED: bool = true;
    const BY_SUM: bool = true;
    const BY_X: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        -(pair.x + (pair.uncertainties.0 + pair.uncertainties.1))
    }
    const PLAIN: bool = true;
    #[inline(always)]
    fn plain<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> V<S, T> {
        -(pair.x + (pair.uncertainties.0 + pair.uncertainties.1))
    }
    const PLAIN_PARTIALS: bool = true;
    #[inline(always)]
    fn plain_partials<S: Simd, T: Float>(&self, _pair: Pair<V<S, T>>) -> [V<S, T>; 2] {
        [(-1.0).into(); 2]
    }
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let (own, least) = (query.uncertainty, group.uncertainties.0);
        SPARE.mul_add(own.abs() + least.abs() + threshold.abs(), -threshold - (own + least))
    }
}

/// `mu1 . mu2 + b1 + b2`: the inner product, and a number of each item of any sign.
#[derive(Clone, Copy)]
pub struct InnerProduct;

impl Formula for InnerProduct {
    const DIFFERENCE: bool = false;
    const NORMS: bool = false;
    const SIGNED: bool = true;
    const BY_SUM: bool = true;
    const BY_X: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        pair.x + (pair.uncertainties.0 + pair.uncertainties.1)
    }
    const PLAIN: bool = true;
    #[inline(always)]
    fn plain<S: Simd, T: Float>(&self, pair: Pair<V<S, T>>) -> V<S, T> {
        pair.x + (pair.uncertainties.0 + pair.uncertainties.1)
    }
    const PLAIN_PARTIALS: bool = true;
    #[inline(always)]
    fn plain_partials<S: Simd, T: Float>(&self, _pair: Pair<V<S, T>>) -> [V<S, T>; 2] {
        [1.0.into(); 2]
    }
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let (own, most) = (query.uncertainty, group.uncertainties.1);
        (-SPARE).mul_add(own.abs() + most.abs() + threshold.abs(), threshold - (own + most))
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts::<Cosine>("cosine", "weight", "none"), |r| Cosine { shift: 0.0 }),
    pair_op!(facts::<Cosine>("shifted_cosine", "weight", "shift"), |r| Cosine { shift: r.shared(0) }),
    pair_op!(facts::<NegSqL2>("neg_sq_l2", "trace", "none"), |r| NegSqL2),
    pair_op!(facts::<InnerProduct>("inner_product", "bias", "none"), |r| InnerProduct),
];
