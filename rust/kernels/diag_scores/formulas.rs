//! The maths of the scores of diagonal normals: a [`Formula`] each.
//!
//! Sources: Shi & Jain 2019 (PFE) eq. 3, with its 1/2 and 2 pi; likelihood ratio, PLDA with a variance per item; products of
//! powers, Jebara et al. 2004 (probability product kernels) and ProLIP's inclusion.

use super::sums::{Loaded, OwnSums, Sums, GROUP, LOGS};
use crate::shapes::Side;
use crate::simd::{Float, Lanes, Simd, V};
use std::f64::consts::PI;

/// One dimension of a pair in float64: means, variances and the shared number.
#[derive(Clone, Copy)]
pub struct Dimension {
    pub a: f64,
    pub b: f64,
    pub v: f64,
    pub w: f64,
    pub shared: f64,
}

/// The maths of a score: `constant * D + rational weight * sum of rationals + sum over logarithms of weight * sum of logarithms`.
pub trait Formula: Copy + Sync {
    /// How many logarithms it takes.
    const LOGS: usize;
    /// What must stay in the range in which the products above are safe.
    const RANGE: Range;
    /// Whether the shared row holds a number per dimension; else it holds the formula's own parameters, if any.
    const ROW: bool;
    /// The weights of the rational part and of the logarithms.
    fn weights(&self) -> (f64, [f64; LOGS]);
    /// The constant per dimension.
    fn constant(&self) -> f64;
    /// The rational part and the numbers under the logarithms of one dimension: definition, slow path.
    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]);
    /// Derivatives of the score by the formula's own parameters.
    fn by_shared(&self, _x: Dimension) -> [f64; 2] {
        [0.0; 2]
    }
    /// Adds a vector of dimensions: means `a`, `b`, variances `v`, `w`, shared numbers.
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>);
    /// Adds four vectors of dimensions.
    #[inline(always)]
    fn add_group<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        for x in x {
            self.add::<S, T>(sums, x);
        }
    }
    /// How many numbers [`Formula::own`] makes.
    const OWN: usize = 0;
    /// What the slopes take of an item alone, given its side: made once for an item of many pairs.
    #[inline(always)]
    fn own<S: Simd, T: Float>(&self, _side: Side, _mean: V<S, T>, _var: V<S, T>, _shared: V<S, T>) -> [V<S, T>; OWN] {
        [V::<S, T>::splat(T::default()); OWN]
    }
    /// What the slopes are divided by, which rises with the variances and falls with the shared number; 1 where there is nothing.
    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, _a: &Item<V<S, T>>, _b: &Item<V<S, T>>) -> V<S, T> {
        V::<S, T>::splat(T::from_f64(1.0))
    }
    /// The derivatives of the score by one dimension of both items, whose product with the weight of a pair is summed. `inverse` is
    /// 1 by the divisor; `shared` the shared number and 1 by it.
    fn pair_slopes<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        shared: [V<S, T>; 2],
    ) -> PairSlopes<V<S, T>>;
    /// The formula that gives the score when the two items change places.
    fn transposed(self) -> Self {
        self
    }
    /// Minus what divergence it is, by the share of that from the query. Any other score is the MLS of other numbers (see `mls`),
    /// which the methods below give.
    fn kl_share(&self) -> Option<f64> {
        None
    }
    /// The mean and the variance of a query in that MLS, and its part of what `mls` calls E.
    fn query_of_mls(&self, x: Dimension) -> (f64, f64, f64) {
        (x.a, x.v, 0.0)
    }
    /// By what a row's variance is multiplied in it.
    fn var_scale(&self) -> f64 {
        1.0
    }
    /// The weight of the logarithm in what an item of a side adds to the MLS; none where it adds nothing.
    fn own_log(&self, _side: Side) -> Option<f64> {
        None
    }
    /// Adds a vector of an item's dimensions to that.
    #[inline(always)]
    fn add_own<S: Simd, T: Float>(
        &self,
        _sums: &mut OwnSums<V<S, T>>,
        _mean: V<S, T>,
        _var: V<S, T>,
        _shared: V<S, T>,
    ) {
    }
}

/// A vector of one item's dimensions: means, variances, and what [`Formula::own`] makes of them.
#[derive(Clone, Copy)]
pub struct Item<X> {
    pub mean: X,
    pub var: X,
    pub own: [X; OWN],
}

/// Numbers that a formula makes of an item at most.
pub const OWN: usize = 4;

/// Derivatives by both means, both variances, and the shared number of a dimension (0 where it is none).
pub struct PairSlopes<X> {
    pub means: [X; 2],
    pub vars: [X; 2],
    pub shared: X,
}

/// Which numbers are known to be no less than the least of the range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// The sums of the two variances.
    Sums,
    /// Each variance.
    Each,
    /// None need be: they are ratios >= 1.
    None,
}

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
        ((x.a - x.b) / s * (x.a - x.b), [s, 1.0, 1.0])
    }

    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.var + b.var
    }

    #[inline(always)]
    fn pair_slopes<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        _: [V<S, T>; 2],
    ) -> PairSlopes<V<S, T>> {
        let pull = (a.mean - b.mean) * inverse;
        let var = V::<S, T>::splat(T::from_f64(0.5)) * (pull * pull - inverse);
        PairSlopes { means: [-pull, pull], vars: [var; 2], shared: V::<S, T>::splat(T::default()) }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        let (difference, s) = (x.a - x.b, x.v + x.w);
        sums.least.0 = x.v.min(sums.least.0);
        sums.least.1 = x.w.min(sums.least.1);
        sums.greatest = s.max(sums.greatest);
        sums.rational = sums.rational + difference * difference / s;
        sums.products[0].times(s);
    }

    #[inline(always)]
    fn add_group<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
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
        // q0/s0 + q1/s1 + q2/s2 + q3/s3 over one denominator.
        let (p01, p23) = (s[0] * s[1], s[2] * s[3]);
        let n01 = square[0].mul_add(s[1], square[1] * s[0]);
        let n23 = square[2].mul_add(s[3], square[3] * s[2]);
        let product = p01 * p23;
        sums.rational = sums.rational + n01.mul_add(p23, n23 * p01) / product;
        sums.products[0].times(product);
    }
}

/// Log-likelihood ratio of "same" against "different" when centres are drawn from N(0, diag(p)): with A = p + v, B = p + w,
/// det = p (v + w) + v w, `1/2 sum [ p (a^2 v/A + b^2 w/B - (a - b)^2) / det + log(AB / det) ]`; see `dot_scores` for the
/// form in which nothing cancels.
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
        // det / p^2 could leave the range where det does; the ratio v / (p + v) cannot.
        let (f, g) = (v / (p + v), w / (p + w));
        // AB / det = 1 / (1 - (p/A)(p/B)), and 1 - (1 - f)(1 - g) = f + g - f g.
        let apart = f + g - f * g;
        let spread = a * a * f + b * b * g - (a - b) * (a - b);
        (spread * ((1.0 - f) / (p + w)) / apart, [1.0 / apart, 1.0, 1.0])
    }

    const OWN: usize = 4;

    /// a v/A, a/A, p/A and v/p.
    #[inline(always)]
    fn own<S: Simd, T: Float>(&self, _: Side, mean: V<S, T>, var: V<S, T>, shared: V<S, T>) -> [V<S, T>; OWN] {
        let by_both = mean / (shared + var);
        [by_both * var, by_both, shared / (shared + var), var / shared]
    }

    /// det / p
    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.var.mul_add(b.own[3], a.var + b.var)
    }

    /// With the covariances diag(A, B) and [[A, p], [p, B]] of (a, b), the slope by a mean is m = a/A - y, where y, the mean times
    /// the second inverse, is a/A - m too: by a variance -((m + y)(y - m) ... ) becomes -1/2 [m (2 a/A - m) + p^2 / (A det)], and
    /// by p 1/2 [((a w + b v) / det)^2 - (a/A)^2 - (b/B)^2 + (p/A) (p/B) (1 + v w / det) / p]: no terms that nearly cancel.
    #[inline(always)]
    fn pair_slopes<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        [_, by_prior]: [V<S, T>; 2],
    ) -> PairSlopes<V<S, T>> {
        let (half, one) = (V::<S, T>::splat(T::from_f64(0.5)), V::<S, T>::splat(T::from_f64(1.0)));
        let ([spread_a, by_a, share_a, _], [spread_b, by_b, share_b, ratio]) = (a.own, b.own);
        let difference = a.mean - b.mean;
        let (m, n) = ((spread_a - difference) * inverse, (spread_b + difference) * inverse);
        let by_v = m.mul_add(by_a + by_a - m, share_a * inverse);
        let by_w = n.mul_add(by_b + by_b - n, share_b * inverse);
        let cross = a.mean.mul_add(b.var, b.mean * a.var) * inverse * by_prior;
        let logs = share_a * share_b * (a.var * ratio).mul_add(inverse, one) * by_prior;
        let shared = cross.mul_add(cross, logs) - by_a.mul_add(by_a, by_b * by_b);
        PairSlopes { means: [m, n], vars: [-(half * by_v), -(half * by_w)], shared: half * shared }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        let Loaded { a, b, v, w, shared: p } = *x;
        let (s, t) = (p + v, p + w);
        let both = s * t;
        let inverse = V::<S, T>::splat(T::from_f64(1.0)) / p.mul_add(v + w, v * w);
        let own = (a * a * v).mul_add(t, b * b * w * s) / both;
        let spread = own - (a - b) * (a - b);
        sums.rational = spread.mul_add(p * inverse, sums.rational);
        let ratio = both * inverse;
        // Adds 0 unless the ratio is not finite, which then shows in the sum.
        sums.rational = V::<S, T>::splat(T::default()).mul_add(ratio, sums.rational);
        sums.least.0 = v.min(p.min(sums.least.0));
        sums.least.1 = w.min(sums.least.1);
        sums.greatest = ratio.max(sums.greatest);
        sums.products[0].times(ratio);
    }

    fn query_of_mls(&self, x: Dimension) -> (f64, f64, f64) {
        let both = x.shared + x.v;
        let share = x.shared / both;
        (share * x.a, share * x.v, x.a * x.a / both)
    }

    fn own_log(&self, side: Side) -> Option<f64> {
        (side == Side::Gallery).then_some(0.5)
    }

    #[inline(always)]
    fn add_own<S: Simd, T: Float>(&self, sums: &mut OwnSums<V<S, T>>, mean: V<S, T>, var: V<S, T>, shared: V<S, T>) {
        let t = shared + var;
        sums.rational = sums.rational + mean * mean / t;
        sums.times(t);
    }
}

/// Log of the integral of `p1^alpha p2^beta`: with s = v/alpha + w/beta,
/// `-1/2 sum [ (a - b)^2 / s + log s - (1 - alpha) log v - (1 - beta) log w + log alpha + log beta + (alpha + beta - 1) log 2 pi ]`.
///
/// Alpha = beta = rho is the probability product kernel, alpha = 2, beta = 1 the inclusion.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// alpha and beta.
    pub powers: (f64, f64),
}

impl Formula for Overlap {
    const LOGS: usize = 3;
    const RANGE: Range = Range::Each;
    const ROW: bool = false;

    fn weights(&self) -> (f64, [f64; LOGS]) {
        let (alpha, beta) = self.powers;
        (-0.5, [-0.5, 0.5 * (1.0 - alpha), 0.5 * (1.0 - beta)])
    }

    fn constant(&self) -> f64 {
        let (alpha, beta) = self.powers;
        -0.5 * (alpha.ln() + beta.ln() + (alpha + beta - 1.0) * (2.0 * PI).ln())
    }

    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]) {
        let s = x.v / self.powers.0 + x.w / self.powers.1;
        ((x.a - x.b) / s * (x.a - x.b), [s, x.v, x.w])
    }

    fn by_shared(&self, x: Dimension) -> [f64; 2] {
        let (alpha, beta) = self.powers;
        let inverse = 1.0 / (x.v / alpha + x.w / beta);
        let pull = (x.a - x.b) * inverse;
        let by_s = 0.5 * (pull * pull - inverse);
        let by_power =
            |power: f64, var: f64| -by_s * var / (power * power) - 0.5 * (var.ln() + 1.0 / power + (2.0 * PI).ln());
        [by_power(alpha, x.v), by_power(beta, x.w)]
    }

    const OWN: usize = 2;

    /// v/alpha and (1 - alpha) / 2v.
    #[inline(always)]
    fn own<S: Simd, T: Float>(&self, side: Side, _: V<S, T>, var: V<S, T>, _: V<S, T>) -> [V<S, T>; OWN] {
        let power = if side == Side::Query { self.powers.0 } else { self.powers.1 };
        let zero = V::<S, T>::splat(T::default());
        let logs = if power == 1.0 { zero } else { V::<S, T>::splat(T::from_f64(0.5 * (1.0 - power))) / var };
        [var / V::<S, T>::splat(T::from_f64(power)), logs, zero, zero]
    }

    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.own[0] + b.own[0]
    }

    #[inline(always)]
    fn pair_slopes<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        _: [V<S, T>; 2],
    ) -> PairSlopes<V<S, T>> {
        let pull = (a.mean - b.mean) * inverse;
        let by_s = pull * pull - inverse;
        let v = V::<S, T>::splat(T::from_f64(0.5 / self.powers.0)).mul_add(by_s, a.own[1]);
        let w = V::<S, T>::splat(T::from_f64(0.5 / self.powers.1)).mul_add(by_s, b.own[1]);
        PairSlopes { means: [-pull, pull], vars: [v, w], shared: V::<S, T>::splat(T::default()) }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        // Quotients, so that s is rounded as the slow path rounds it.
        let (alpha, beta) =
            (V::<S, T>::splat(T::from_f64(self.powers.0)), V::<S, T>::splat(T::from_f64(self.powers.1)));
        let Loaded { a, b, v, w, .. } = *x;
        let s = v / alpha + w / beta;
        sums.rational = sums.rational + (a - b) * (a - b) / s;
        sums.least.0 = v.min(sums.least.0);
        sums.least.1 = w.min(sums.least.1);
        sums.greatest = s.max(v.max(w.max(sums.greatest)));
        for (product, x) in sums.products.iter_mut().zip([s, v, w]) {
            product.times(x);
        }
    }

    fn transposed(self) -> Self {
        Overlap { powers: (self.powers.1, self.powers.0) }
    }

    fn query_of_mls(&self, x: Dimension) -> (f64, f64, f64) {
        (x.a, x.v / self.powers.0, 0.0)
    }

    fn var_scale(&self) -> f64 {
        1.0 / self.powers.1
    }

    fn own_log(&self, side: Side) -> Option<f64> {
        let power = if side == Side::Query { self.powers.0 } else { self.powers.1 };
        (power != 1.0).then_some(0.5 * (1.0 - power))
    }

    #[inline(always)]
    fn add_own<S: Simd, T: Float>(&self, sums: &mut OwnSums<V<S, T>>, _mean: V<S, T>, var: V<S, T>, _shared: V<S, T>) {
        sums.times(var);
    }
}

/// Minus `share KL(p1 || p2) + (1 - share) KL(p2 || p1)`, `KL(p1 || p2) = 1/2 sum [ ((a - b)^2 + v - w) / w - log(v/w) ]`.
#[derive(Clone, Copy)]
pub struct NegKl {
    /// 1 from the first item to the second, 0 the other way, 1/2 the mean of both.
    pub share: f64,
}

impl Formula for NegKl {
    const LOGS: usize = 2;
    const RANGE: Range = Range::Each;
    const ROW: bool = false;

    fn weights(&self) -> (f64, [f64; LOGS]) {
        (-0.5, [self.share - 0.5, 0.5 - self.share, 0.0])
    }

    fn constant(&self) -> f64 {
        0.0
    }

    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]) {
        let Dimension { a, b, v, w, .. } = x;
        // A certain item and another one are infinitely far apart, whichever way.
        if v == 0.0 || w == 0.0 {
            return (f64::INFINITY, [1.0; LOGS]);
        }
        let term = |share: f64, v: f64, w: f64| {
            if share == 0.0 {
                0.0
            } else {
                share * ((a - b) / w * (a - b) + (v - w) / w)
            }
        };
        (term(self.share, v, w) + term(1.0 - self.share, w, v), [v, w, 1.0])
    }

    fn by_shared(&self, x: Dimension) -> [f64; 2] {
        let square = (x.a - x.b) * (x.a - x.b);
        let apart = (square + x.v - x.w) / x.w - (square + x.w - x.v) / x.v - 2.0 * (x.v / x.w).ln();
        [-0.5 * apart, 0.0]
    }

    const OWN: usize = 1;

    /// 1/v
    #[inline(always)]
    fn own<S: Simd, T: Float>(&self, _: Side, _: V<S, T>, var: V<S, T>, _: V<S, T>) -> [V<S, T>; OWN] {
        let zero = V::<S, T>::splat(T::default());
        [V::<S, T>::splat(T::from_f64(1.0)) / var, zero, zero, zero]
    }

    #[inline(always)]
    fn pair_slopes<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        _: V<S, T>,
        _: [V<S, T>; 2],
    ) -> PairSlopes<V<S, T>> {
        let half = V::<S, T>::splat(T::from_f64(0.5));
        let share = V::<S, T>::splat(T::from_f64(self.share));
        let rest = V::<S, T>::splat(T::from_f64(1.0 - self.share));
        let (difference, apart, by_v, by_w) = (a.mean - b.mean, a.var - b.var, a.own[0], b.own[0]);
        let (square, both) = (difference * difference, apart * by_v * by_w);
        let mean = difference * share.mul_add(by_w, rest * by_v);
        // Minus, doubled: KL(1 || 2) and KL(2 || 1) by v, and by w.
        let v = share.mul_add(both, rest * ((apart - square) * by_v * by_v));
        let w = share.mul_add((apart + square) * by_w * by_w, rest * both);
        PairSlopes { means: [-mean, mean], vars: [-(half * v), half * w], shared: V::<S, T>::splat(T::default()) }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        let (share, rest) =
            (V::<S, T>::splat(T::from_f64(self.share)), V::<S, T>::splat(T::from_f64(1.0 - self.share)));
        let Loaded { a, b, v, w, .. } = *x;
        let (square, apart) = ((a - b) * (a - b), v - w);
        sums.rational = sums.rational + (share * ((square + apart) / w) + rest * ((square - apart) / v));
        sums.least.0 = v.min(sums.least.0);
        sums.least.1 = w.min(sums.least.1);
        sums.greatest = v.max(w.max(sums.greatest));
        for (product, x) in sums.products.iter_mut().zip([v, w]) {
            product.times(x);
        }
    }

    fn transposed(self) -> Self {
        NegKl { share: 1.0 - self.share }
    }

    fn kl_share(&self) -> Option<f64> {
        Some(self.share)
    }
}
