//! Overlaps (integrals of products of powers) and divergences of diagonal normals.
//!
//! Sources: Jebara et al. 2004 (probability product kernels); ProLIP's inclusion.

use super::formulas::{Dimension, Formula, Item, PairPartials, Range, PER_ITEM};
use super::sums::{Loaded, OffsetSums, Sums, LOGS};
use super::{facts, pair_function};
use crate::drivers::Side;
use crate::kernels::pair_op::{pair_op, PairOp};
use crate::simd::{Float, Simd, V};
use std::f64::consts::PI;

/// Log of the integral of `p1^alpha p2^beta` for diagonal normals: with s = v/alpha + w/beta,
/// `-1/2 sum [ (a - b)^2 / s + log s - (1 - alpha) log v - (1 - beta) log w + log alpha + log beta +
/// (alpha + beta - 1) log 2 pi ]`.
///
/// With alpha = beta = rho it is the log of the probability product kernel, with alpha = 2 and beta = 1 ProLIP's inclusion.
#[derive(Clone, Copy)]
pub struct Overlap {
    /// The powers alpha and beta.
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
        let (alpha, beta) = self.powers;
        if x.v + x.w == 0.0 {
            // For variances y: s = (1 / alpha + 1 / beta) y. What remains without y is an offset, as log s.
            return (x.square_over(0.0) + (1.0 / alpha + 1.0 / beta).ln(), [0.0; LOGS]);
        }
        let s = x.v / alpha + x.w / beta;
        (x.square_over(s), [s, x.v, x.w])
    }

    fn by_shared(&self, x: Dimension) -> [f64; 2] {
        let (alpha, beta) = self.powers;
        let inverse = 1.0 / (x.v / alpha + x.w / beta);
        let by_mean = (x.a - x.b) * inverse;
        let by_s = 0.5 * (by_mean * by_mean - inverse);
        let by_power =
            |power: f64, var: f64| -by_s * var / (power * power) - 0.5 * (var.ln() + 1.0 / power + (2.0 * PI).ln());
        [by_power(alpha, x.v), by_power(beta, x.w)]
    }

    const PER_ITEM: usize = 2;

    /// The numbers per item v/alpha and (1 - alpha) / (2 v), with beta and w for a row.
    #[inline(always)]
    fn per_item<S: Simd, T: Float>(
        &self,
        side: Side,
        _: V<S, T>,
        var: V<S, T>,
        _: [V<S, T>; 2],
    ) -> [V<S, T>; PER_ITEM] {
        let power = if side == Side::Query { self.powers.0 } else { self.powers.1 };
        let zero = V::<S, T>::from(0.0);
        let logs = if power == 1.0 { zero } else { 0.5 * (1.0 - power) / var };
        [var / power, logs, zero, zero]
    }

    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, a: &Item<V<S, T>>, b: &Item<V<S, T>>) -> V<S, T> {
        a.per_item[0] + b.per_item[0]
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
        let by_s = by_mean * by_mean - inverse;
        let v = by_s.mul_add(0.5 / self.powers.0, a.per_item[1]);
        let w = by_s.mul_add(0.5 / self.powers.1, b.per_item[1]);
        PairPartials { means: [-by_mean, by_mean], vars: [v, w], shared: 0.0.into() }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        // Divisions, not products with reciprocals: s must be rounded as the slow path rounds it.
        let (alpha, beta) = self.powers;
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

    const SYMMETRIC: bool = false;
    fn transposed(self) -> Self {
        Overlap { powers: (self.powers.1, self.powers.0) }
    }

    fn query_of_mls(&self, x: Dimension) -> (f64, f64, f64) {
        (x.a, x.v / self.powers.0, 0.0)
    }

    fn var_scale(&self) -> f64 {
        1.0 / self.powers.1
    }

    fn offset_log_weight(&self, side: Side) -> Option<f64> {
        let power = if side == Side::Query { self.powers.0 } else { self.powers.1 };
        (power != 1.0).then_some(0.5 * (1.0 - power))
    }

    #[inline(always)]
    fn add_offset<S: Simd, T: Float>(
        &self,
        sums: &mut OffsetSums<V<S, T>>,
        _mean: V<S, T>,
        var: V<S, T>,
        _shared: V<S, T>,
    ) {
        sums.times(var);
    }
}

/// Minus `share KL(p1 || p2) + (1 - share) KL(p2 || p1)`, where
/// `KL(p1 || p2) = 1/2 sum [ ((a - b)^2 + v - w) / w - log(v/w) ]`.
#[derive(Clone, Copy)]
pub struct NegKl {
    /// The weight of KL(p1 || p2), between 0 and 1; 1/2 gives the mean of both divergences.
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
        let Dimension { v, w, .. } = x;
        if v + w == 0.0 {
            return (x.square_over(0.0), [1.0; LOGS]);
        }
        // Where one variance is 0, both divergences are infinite.
        if v == 0.0 || w == 0.0 {
            return (f64::INFINITY, [1.0; LOGS]);
        }
        let term = |share: f64, v: f64, w: f64| {
            if share == 0.0 {
                0.0
            } else {
                share * (x.square_over(w) + (v - w) / w)
            }
        };
        (term(self.share, v, w) + term(1.0 - self.share, w, v), [v, w, 1.0])
    }

    fn by_shared(&self, x: Dimension) -> [f64; 2] {
        let square = (x.a - x.b) * (x.a - x.b);
        let apart = (square + x.v - x.w) / x.w - (square + x.w - x.v) / x.v - 2.0 * (x.v / x.w).ln();
        [-0.5 * apart, 0.0]
    }

    const PER_ITEM: usize = 1;

    /// The number per item 1/v.
    #[inline(always)]
    fn per_item<S: Simd, T: Float>(&self, _: Side, _: V<S, T>, var: V<S, T>, _: [V<S, T>; 2]) -> [V<S, T>; PER_ITEM] {
        let zero = V::<S, T>::from(0.0);
        [1.0 / var, zero, zero, zero]
    }

    #[inline(always)]
    fn pair_partials<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        _: V<S, T>,
        _: [V<S, T>; 2],
    ) -> PairPartials<V<S, T>> {
        let (share, rest) = (self.share, 1.0 - self.share);
        let (difference, apart, by_v, by_w) = (a.mean - b.mean, a.var - b.var, a.per_item[0], b.per_item[0]);
        let (square, both) = (difference * difference, apart * by_v * by_w);
        let mean = difference * by_w.mul_add(share, rest * by_v);
        // `v` is twice the derivative of the divergence with respect to v, `w` minus twice the one with respect to w.
        let v = both.mul_add(share, rest * ((apart - square) * by_v * by_v));
        let w = ((apart + square) * by_w * by_w).mul_add(share, rest * both);
        PairPartials { means: [-mean, mean], vars: [-(0.5 * v), 0.5 * w], shared: 0.0.into() }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>) {
        let (share, rest) = (self.share, 1.0 - self.share);
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

    const SYMMETRIC: bool = false;
    fn transposed(self) -> Self {
        NegKl { share: 1.0 - self.share }
    }

    fn kl_share(&self) -> Option<f64> {
        Some(self.share)
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts::<Overlap>("overlap_diagonal", "powers"), |r| Overlap { powers: r.both() }),
    pair_op!(facts::<NegKl>("neg_kl_diagonal", "share"), |r| NegKl { share: r.shared(0) }),
];
