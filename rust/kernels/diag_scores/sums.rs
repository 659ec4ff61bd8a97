//! Sums of formulas in lanes: rational parts, and products under logarithms as significands and exponents.

use crate::simd::{Float, Lanes, Register, Simd};
use crate::special::log::ln;
use std::f64::consts::LN_2;

/// The largest number of logarithms that a formula takes.
pub const LOGS: usize = 3;

/// Vectors of dimensions that share a division.
pub const GROUP: usize = 4;

/// A product of many numbers, as significand (for some formulas less 1) and exponent.
#[derive(Clone, Copy)]
pub struct Product<X> {
    pub significand: X,
    pub exponent: X,
}

/// Running sums over the dimensions of a pair.
pub struct Sums<X> {
    /// The rational part.
    pub rational: X,
    /// The products under the logarithms.
    pub products: [Product<X>; LOGS],
    /// The least variances of the two rows.
    pub least: (X, X),
    /// The greatest number under a logarithm.
    pub greatest: X,
}

impl<R: Register> Product<Lanes<R>> {
    #[inline(always)]
    pub fn times(&mut self, x: Lanes<R>) {
        let product = self.significand * x;
        self.exponent = self.exponent + product.exponent();
        self.significand = product.significand();
    }

    /// Multiplies a product whose significand is kept less 1 by 1 + x, x >= 0. Near 1 such a product has all digits of its
    /// logarithm, as nothing is rounded to the digits of 1.
    #[inline(always)]
    pub fn times_one_plus(&mut self, x: Lanes<R>) {
        let excess = self.significand.mul_add(x, self.significand + x);
        let product = excess + 1.0;
        self.exponent = self.exponent + product.exponent();
        self.significand = product.if_less(2.0, excess, product.significand() - 1.0);
    }
}

/// A vector of dimensions of a pair: means `a` and `b`, variances `v` and `w`, the shared row.
#[derive(Clone, Copy)]
pub struct Loaded<X> {
    pub a: X,
    pub b: X,
    pub v: X,
    pub w: X,
    pub shared: X,
}

/// Running sums over the dimensions of one item.
pub struct OffsetSums<X> {
    /// The rational part, which callers weight.
    pub rational: X,
    /// The product under the logarithm, which callers weight.
    pub product: Product<X>,
    /// The least and the greatest factor of the product.
    pub range: (X, X),
}

impl<R: Register> OffsetSums<Lanes<R>> {
    /// Sums over no dimensions.
    #[inline(always)]
    pub fn new() -> Self {
        let (zero, one) = (Lanes::from(0.0), Lanes::from(1.0));
        OffsetSums { rational: zero, product: Product { significand: one, exponent: zero }, range: (one, one) }
    }

    /// Multiplies the product under the logarithm by a factor.
    #[inline(always)]
    pub fn times(&mut self, x: Lanes<R>) {
        self.product.times(x);
        self.range = (x.min(self.range.0), x.max(self.range.1));
    }

    /// The logarithm of the product, lane by lane; NaN where a factor is out of range.
    #[inline(always)]
    pub fn logs<S: Simd, T: Float<Register<S> = R>>(&self) -> [f64; 16]
    where
        R: Register<Elem = T>,
    {
        // A product of a number in this range and one in [1, 2) is neither subnormal nor infinite.
        let (least, greatest) = (T::QUARTER_RANGE.powi(-3), T::QUARTER_RANGE.powi(3));
        let (low, high) = (self.range.0.to_array(), self.range.1.to_array());
        let (exponent, log) = (self.product.exponent.to_array(), ln::<S, T>(self.product.significand).to_array());
        std::array::from_fn(|lane| {
            let known = low[lane].to_f64() >= least && high[lane].to_f64() <= greatest;
            let log = exponent[lane].to_f64() * LN_2 + log[lane].to_f64();
            if known {
                log
            } else {
                f64::NAN
            }
        })
    }
}
