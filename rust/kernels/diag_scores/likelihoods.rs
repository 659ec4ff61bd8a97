//! The mutual likelihood score, the Mahalanobis distance and the likelihood ratio of diagonal normals.
//!
//! Sources: Shi & Jain 2019 (PFE) eq. 3, with its 1/2 and 2 pi; likelihood ratio, PLDA with a variance per item.

use super::formulas::{Dimension, Formula, Item, PairPartials, Range, PER_ITEM};
use super::sums::{Loaded, OffsetSums, Sums, GROUP, LOGS};
use super::{facts, pair_function};
use crate::drivers::Side;
use crate::kernels::pair_op::{pair_op, PairOp};
use crate::simd::{Float, Simd, V};

/// Mutual likelihood score: with s = v + w, `-1/2 sum [ (a - b)^2 / s + log s + log 2 pi ]`.
#[derive(Clone, Copy)]
pub struct Mls;

impl Formula for Mls {
    const LOGS: usize = 1;
    const RANGE: Range = Range::Sums;
    const ROW: bool = false;

    fn weights(&self) -> (f64, [f64; LOGS]) {
        (-0.5, [-0.5, 0.0, 0.0])
    }

    fn constant(&self) -> f64 {
        -0.918_938_533_204_672_8 // -log(2 pi) / 2
    }

    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]) {
        let s = x.v + x.w;
        (x.square_over(s), [s, 1.0, 1.0])
    }

    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.var + b.var
    }

    #[inline(always)]
    fn pair_partials<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        _: [V<S, T>; 2],
    ) -> PairPartials<V<S, T>> {
        let by_mean = (a.mean - b.mean) * inverse;
        let var = 0.5 * (by_mean * by_mean - inverse);
        PairPartials { means: [-by_mean, by_mean], vars: [var; 2], shared: 0.0.into() }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        let s = add_quotient::<S, T>(sums, x);
        sums.products[0].times(s);
    }

    #[inline(always)]
    fn add_group<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        let product = add_quotients::<S, T>(sums, x);
        sums.products[0].times(product);
    }
}

/// Adds a vector of (a - b)^2 / (v + w) to the rational part, and returns v + w.
#[inline(always)]
fn add_quotient<S: Simd, T: Float>(sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) -> V<S, T> {
    let (difference, s) = (x.a - x.b, x.v + x.w);
    sums.least.0 = x.v.min(sums.least.0);
    sums.least.1 = x.w.min(sums.least.1);
    sums.greatest = s.max(sums.greatest);
    sums.rational = sums.rational + difference * difference / s;
    s
}

/// Adds four vectors of (a - b)^2 / (v + w) to the rational part, over their common denominator, which it returns: the product
/// of the four v + w.
#[inline(always)]
fn add_quotients<S: Simd, T: Float>(sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) -> V<S, T> {
    let mut square = [x[0].a; 4];
    let mut s = [x[0].v; 4];
    for i in 0..4 {
        let difference = x[i].a - x[i].b;
        square[i] = difference * difference;
        s[i] = x[i].v + x[i].w;
        sums.least.0 = x[i].v.min(sums.least.0);
        sums.least.1 = x[i].w.min(sums.least.1);
        sums.greatest = s[i].max(sums.greatest);
    }
    let (p01, p23) = (s[0] * s[1], s[2] * s[3]);
    let n01 = square[0].mul_add(s[1], square[1] * s[0]);
    let n23 = square[2].mul_add(s[3], square[3] * s[2]);
    let product = p01 * p23;
    sums.rational = sums.rational + n01.mul_add(p23, n23 * p01) / product;
    product
}

/// Minus the squared Mahalanobis distance under both variances: `-sum (a - b)^2 / (v + w)`.
#[derive(Clone, Copy)]
pub struct NegMahalanobis;

impl Formula for NegMahalanobis {
    const LOGS: usize = 0;
    const RANGE: Range = Range::Sums;
    const ROW: bool = false;

    fn weights(&self) -> (f64, [f64; LOGS]) {
        (-1.0, [0.0; LOGS])
    }

    fn constant(&self) -> f64 {
        0.0
    }

    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]) {
        (x.square_over(x.v + x.w), [1.0; LOGS])
    }

    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.var + b.var
    }

    #[inline(always)]
    fn pair_partials<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        _: [V<S, T>; 2],
    ) -> PairPartials<V<S, T>> {
        let by_mean = (a.mean - b.mean) * inverse;
        PairPartials {
            means: [-(by_mean + by_mean), by_mean + by_mean],
            vars: [by_mean * by_mean; 2],
            shared: 0.0.into(),
        }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        add_quotient::<S, T>(sums, x);
    }

    #[inline(always)]
    fn add_group<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        add_quotients::<S, T>(sums, x);
    }
}

/// Log-likelihood ratio of one common mean against two independent means, which are drawn from N(0, diag(p)): with A = p + v,
/// B = p + w and det = p (v + w) + v w, `1/2 sum [ p (a^2 v/A + b^2 w/B - (a - b)^2) / det + log(AB / det) ]`. `LlrIsotropic` in
/// `dot_scores` says how this form, in which no terms nearly cancel, follows from the textbook form.
#[derive(Clone, Copy)]
pub struct Llr;

impl Formula for Llr {
    const LOGS: usize = 1;
    const RANGE: Range = Range::None;
    const ROW: bool = true;

    fn weights(&self) -> (f64, [f64; LOGS]) {
        (0.5, [0.5, 0.0, 0.0])
    }

    fn constant(&self) -> f64 {
        0.0
    }

    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]) {
        let Dimension { a, b, v, w, shared: p } = x;
        if v + w == 0.0 && p > 0.0 {
            // AB / det is p / (v + w); its logarithm is minus that of what is 0, but for the finite parts of the score.
            return (-x.square_over(0.0), [f64::INFINITY, 1.0, 1.0]);
        }
        // det / p^2 could leave the range where det does; the ratio v / (p + v) cannot.
        let (f, g) = (v / (p + v), w / (p + w));
        // AB / det = 1 / (1 - (p/A)(p/B)), and 1 - (1 - f)(1 - g) = f + g - f g.
        let apart = f + g - f * g;
        let spread = a * a * f + b * b * g - (a - b) * (a - b);
        // p / (A B); the greater of both orders, so that the score is the same from either side.
        let share = (p / (p + v) / (p + w)).max(p / (p + w) / (p + v));
        (spread * share / apart, [1.0 / apart, 1.0, 1.0])
    }

    const PER_ITEM: usize = 4;

    /// The numbers per item a v/A, a/A, p/A and v/p.
    #[inline(always)]
    fn per_item<S: Simd, T: Float>(
        &self,
        _: Side,
        mean: V<S, T>,
        var: V<S, T>,
        shared: [V<S, T>; 2],
    ) -> [V<S, T>; PER_ITEM] {
        let [prior, by_prior] = shared;
        let inverse = 1.0 / (prior + var);
        let by_both = mean * inverse;
        [by_both * var, by_both, prior * inverse, var * by_prior]
    }

    /// The divisor det / p = v + w + v w / p.
    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.var.mul_add(b.per_item[3], a.var + b.var)
    }

    /// The covariance of (a, b) is diag(A, B) for independent means and [[A, p], [p, B]] for a common mean. Let (y, y') be the
    /// inverse of the latter times (a, b), so that y + y' = (a w + b v) / det. The derivatives are
    ///
    ///   with respect to a:  m = a/A - y = (a v/A - (a - b)) p/det, likewise to b;
    ///   with respect to v:  -1/2 [m (2 a/A - m) + p^2 / (A det)], likewise to w;
    ///   with respect to p:  1/2 [(y + y')^2 - (a/A)^2 - (b/B)^2 + (p/A) (p/B) (1 + v w / det) / p].
    ///
    /// No terms nearly cancel.
    #[inline(always)]
    fn pair_partials<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        [_, by_prior]: [V<S, T>; 2],
    ) -> PairPartials<V<S, T>> {
        let ([spread_a, by_a, share_a, _], [spread_b, by_b, share_b, ratio]) = (a.per_item, b.per_item);
        let difference = a.mean - b.mean;
        let (m, n) = ((spread_a - difference) * inverse, (spread_b + difference) * inverse);
        let by_v = m.mul_add(by_a + by_a - m, share_a * inverse);
        let by_w = n.mul_add(by_b + by_b - n, share_b * inverse);
        let cross = a.mean.mul_add(b.var, b.mean * a.var) * inverse * by_prior;
        let logs = share_a * share_b * (a.var * ratio).mul_add(inverse, 1.0) * by_prior;
        let shared = cross.mul_add(cross, logs) - by_a.mul_add(by_a, by_b * by_b);
        PairPartials { means: [m, n], vars: [-(0.5 * by_v), -(0.5 * by_w)], shared: 0.5 * shared }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        let Loaded { a, b, v, w, shared: p } = *x;
        let (s, t) = (p + v, p + w);
        let both = s * t;
        let by_det = p * (1.0 / p.mul_add(v + w, v * w));
        let apart = (a * a * v * t + b * b * w * s) / both;
        let spread = apart - (a - b) * (a - b);
        sums.rational = spread.mul_add(by_det, sums.rational);
        // AB / det - 1, which keeps its digits where the variances are far greater than the prior's.
        let excess = p * by_det;
        // This adds 0; where a number is not finite it makes the sum NaN, so that the pair takes the slow path.
        sums.rational = (both * excess).mul_add(0.0, sums.rational);
        sums.least.0 = v.min(p.min(sums.least.0));
        sums.least.1 = w.min(sums.least.1);
        sums.greatest = excess.max(sums.greatest);
        sums.products[0].times_one_plus(excess);
    }

    fn query_of_mls(&self, x: Dimension) -> (f64, f64, f64) {
        let both = x.shared + x.v;
        let share = x.shared / both;
        (share * x.a, share * x.v, x.a * x.a / both)
    }

    fn offset_log_weight(&self, side: Side) -> Option<f64> {
        (side == Side::Gallery).then_some(0.5)
    }

    #[inline(always)]
    fn add_offset<S: Simd, T: Float>(
        &self,
        sums: &mut OffsetSums<V<S, T>>,
        mean: V<S, T>,
        var: V<S, T>,
        shared: V<S, T>,
    ) {
        let t = shared + var;
        sums.rational = sums.rational + mean * mean / t;
        sums.times(t);
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts::<Mls>("mls_diagonal", "none").with_bounds_of_tiles(), |r| Mls),
    pair_op!(facts::<NegMahalanobis>("neg_mahalanobis_diagonal", "none"), |r| NegMahalanobis),
    pair_op!(facts::<Llr>("llr_diagonal", "prior_var"), |r| Llr),
];
