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

/// Derivatives of a score by one dimension's first mean and variance, and by the shared numbers (those of the dimension, or of
/// all dimensions).
pub struct Slopes {
    pub mean: f64,
    pub var: f64,
    pub shared: [f64; 2],
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
    /// Derivatives of the score, weights included.
    fn slopes(&self, x: Dimension) -> Slopes;
    /// Adds a vector of dimensions: means `a`, `b`, variances `v`, `w`, shared numbers.
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>);
    /// Adds four vectors of dimensions.
    #[inline(always)]
    fn add_group<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        for x in x {
            self.add::<S, T>(sums, x);
        }
    }
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
    fn slopes(&self, x: Dimension) -> Slopes {
        let inverse = 1.0 / (x.v + x.w);
        let pull = (x.a - x.b) * inverse;
        Slopes { mean: -pull, var: 0.5 * (pull * pull - inverse), shared: [0.0; 2] }
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

    #[inline(always)]
    fn slopes(&self, x: Dimension) -> Slopes {
        let Dimension { a, b, v, w, shared: p } = x;
        let (s, t) = (p + v, p + w);
        let inverse = 1.0 / (p * (v + w) + v * w);
        let spread = a * a * v / s + b * b * w / t - (a - b) * (a - b);
        let var = p * p * a * a / (s * s) - p * t * spread * inverse - p * p / s;
        let prior = spread - p * (a * a * v / (s * s) + b * b * w / (t * t)) - p * (v + w) * spread * inverse;
        let logs = 1.0 / s + 1.0 / t - (v + w) * inverse;
        Slopes {
            mean: p * inverse * (a * v / s - (a - b)),
            var: 0.5 * var * inverse,
            shared: [0.5 * (prior * inverse + logs), 0.0],
        }
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

    #[inline(always)]
    fn slopes(&self, x: Dimension) -> Slopes {
        let (alpha, beta) = self.powers;
        let inverse = 1.0 / (x.v / alpha + x.w / beta);
        let pull = (x.a - x.b) * inverse;
        let by_s = 0.5 * (pull * pull - inverse);
        let own = if alpha == 1.0 { 0.0 } else { 0.5 * (1.0 - alpha) / x.v };
        let by_power =
            |power: f64, var: f64| -by_s * var / (power * power) - 0.5 * (var.ln() + 1.0 / power + (2.0 * PI).ln());
        Slopes { mean: -pull, var: by_s / alpha + own, shared: [by_power(alpha, x.v), by_power(beta, x.w)] }
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

    #[inline(always)]
    fn slopes(&self, x: Dimension) -> Slopes {
        let (difference, (share, rest)) = (x.a - x.b, (self.share, 1.0 - self.share));
        let (by_v, by_w) = (1.0 / x.v, 1.0 / x.w);
        let (forth, back) = (by_w - by_v, (x.v - x.w - difference * difference) * by_v * by_v);
        let square = difference * difference;
        let log = (x.v / x.w).ln();
        let apart = (square + x.v - x.w) * by_w - (square + x.w - x.v) * by_v - 2.0 * log;
        Slopes {
            mean: -difference * (share * by_w + rest * by_v),
            var: -0.5 * (share * forth + rest * back),
            shared: [-0.5 * apart, 0.0],
        }
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
