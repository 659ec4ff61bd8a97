//! What the maths of a score of diagonal normals looks like: a [`Formula`].

use super::sums::{Loaded, OffsetSums, Sums, GROUP, LOGS};
use crate::shapes::Side;
use crate::simd::{Float, Simd, V};

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
    /// Whether it is a divergence or the MLS of other numbers, by which a search passes over pairs; else it scores them all.
    const SIEVED: bool = true;
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
    /// What the slopes take of an item alone, given its side, and the shared number and 1 by it: made once for an item of many pairs.
    #[inline(always)]
    fn own<S: Simd, T: Float>(
        &self,
        _side: Side,
        _mean: V<S, T>,
        _var: V<S, T>,
        _shared: [V<S, T>; 2],
    ) -> [V<S, T>; OWN] {
        [0.0.into(); OWN]
    }
    /// What the slopes are divided by, which rises with the variances and falls with the shared number; 1 where there is nothing.
    #[inline(always)]
    fn divisor<S: Simd, T: Float>(&self, _a: &Item<V<S, T>>, _b: &Item<V<S, T>>) -> V<S, T> {
        1.0.into()
    }
    /// The derivatives of the score by one dimension of both items, whose product with the weight of a pair is summed. `inverse` is
    /// 1 by the divisor; `shared` the shared number and 1 by it. Written out for each score: they are the whole inner loop of a
    /// gradient, which takes 1.2 times as long where those of MLS are dual numbers of a dimension's value (AVX2).
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
    fn offset_log_weight(&self, _side: Side) -> Option<f64> {
        None
    }
    /// Adds a vector of an item's dimensions to that.
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
