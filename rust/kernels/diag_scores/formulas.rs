//! The trait [`Formula`], which the maths of a score of diagonal normals implements.

use super::sums::{Loaded, OffsetSums, Sums, GROUP, LOGS};
use crate::drivers::Side;
use crate::simd::{Float, Simd, V};

/// One dimension of a pair in float64: means `a` and `b`, variances `v` and `w` of the query and of the row, and the number of
/// the shared row (0 for a score without one).
#[derive(Clone, Copy)]
pub struct Dimension {
    pub a: f64,
    pub b: f64,
    pub v: f64,
    pub w: f64,
    pub shared: f64,
}

impl Dimension {
    /// `(a - b)^2 / s`; 0 for equal means, however small s is.
    pub fn square_over(&self, s: f64) -> f64 {
        let difference = self.a - self.b;
        if difference == 0.0 {
            0.0
        } else {
            difference / s * difference
        }
    }
}

/// The maths of a score: `constant * D + rational weight * sum of rationals + sum over logarithms of weight * sum of logarithms`.
pub trait Formula: Copy + Sync {
    /// How many sums of logarithms the score has; each costs one logarithm per pair.
    const LOGS: usize;
    /// Which numbers must lie in the range in which products of four neither overflow nor become subnormal.
    const RANGE: Range;
    /// Whether the shared row holds a number per dimension; otherwise it holds the formula's parameters, if any.
    const ROW: bool;
    /// The weights of the rational part and of the logarithms.
    fn weights(&self) -> (f64, [f64; LOGS]);
    /// The constant that each dimension adds to the score.
    fn constant(&self) -> f64;
    /// The rational part and the numbers under the logarithms of one dimension: the definition, which the slow path uses. Where a
    /// number under a logarithm is 0, the rational part is that of variances that go to 0 together.
    fn by_dimension(&self, x: Dimension) -> (f64, [f64; LOGS]);
    /// The derivatives of one dimension's part of the score with respect to the formula's parameters.
    fn by_shared(&self, _x: Dimension) -> [f64; 2] {
        [0.0; 2]
    }
    /// Adds one vector of dimensions to the sums of a pair.
    fn add<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &Loaded<V<S, T>>);
    /// Adds four vectors of dimensions to the sums of a pair.
    #[inline(always)]
    fn add_group<S: Simd, T: Float>(&self, sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        for x in x {
            self.add::<S, T>(sums, x);
        }
    }
    /// How many numbers [`Formula::per_item`] makes.
    const PER_ITEM: usize = 0;
    /// The numbers of one item that the partial derivatives read, made once for all of its pairs; `shared` holds the
    /// shared numbers and their reciprocals.
    #[inline(always)]
    fn per_item<S: Simd, T: Float>(
        &self,
        _side: Side,
        _mean: V<S, T>,
        _var: V<S, T>,
        _shared: [V<S, T>; 2],
    ) -> [V<S, T>; PER_ITEM] {
        [0.0.into(); PER_ITEM]
    }
    /// The denominator of the partial derivatives, which must rise with both variances and fall with the shared number; 1 where
    /// they have none.
    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, _a: &Item<V<S, T>>, _b: &Item<V<S, T>>) -> V<S, T> {
        1.0.into()
    }
    /// The derivatives of the score with respect to one dimension of both items. `inverse` is the reciprocal of the divisor;
    /// `shared` holds the shared numbers and their reciprocals. They are written out for each score, as they are the whole inner
    /// loop of a gradient: with dual numbers instead, MLS takes 1.2 times as long (AVX2).
    fn pair_partials<S: Simd, T: Float>(
        &self,
        a: &Item<V<S, T>>,
        b: &Item<V<S, T>>,
        inverse: V<S, T>,
        shared: [V<S, T>; 2],
    ) -> PairPartials<V<S, T>>;
    /// Whether the score is the same, to the last bit, when the two items change places.
    const SYMMETRIC: bool = true;
    /// The formula that gives the same score when the two items change places.
    fn transposed(self) -> Self {
        self
    }
    /// For minus a divergence, the weight of KL(query || row) in it. None for any other score, which is the MLS of other numbers
    /// (see `mls`) that the methods below give.
    fn kl_share(&self) -> Option<f64> {
        None
    }
    /// The mean and the variance of one dimension of a query in that MLS, and the dimension's part of what `mls` calls E.
    fn query_of_mls(&self, x: Dimension) -> (f64, f64, f64) {
        (x.a, x.v, 0.0)
    }
    /// The factor of a row's variances in that MLS.
    fn var_scale(&self) -> f64 {
        1.0
    }
    /// The weight of the logarithms in the offsets of a side's items (see `mls`); None where a side has no offsets.
    fn offset_log_weight(&self, _side: Side) -> Option<f64> {
        None
    }
    /// Adds one vector of an item's dimensions to the sums of its offset.
    #[inline(always)]
    fn add_offset<S: Simd, T: Float>(
        &self,
        _sums: &mut OffsetSums<V<S, T>>,
        _mean: V<S, T>,
        _var: V<S, T>,
        _shared: V<S, T>,
    ) {
    }
}

/// A vector of one item's dimensions: means, variances, and what [`Formula::per_item`] makes of them.
#[derive(Clone, Copy)]
pub struct Item<X> {
    pub mean: X,
    pub var: X,
    pub per_item: [X; PER_ITEM],
}

/// How many numbers a formula makes of one item alone, at most.
pub const PER_ITEM: usize = 4;

/// The derivatives of a score with respect to both means, both variances and the shared number of a dimension (0 without one).
pub struct PairPartials<X> {
    pub means: [X; 2],
    pub vars: [X; 2],
    pub shared: X,
}

/// Which numbers must be at least the lower end of the range for the fast path to be safe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// The sums of the two variances.
    Sums,
    /// Each variance.
    Each,
    /// None: the numbers under the logarithms are ratios >= 1, whose product is kept less 1.
    None,
}
