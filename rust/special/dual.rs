//! Dual numbers: values with their derivatives with respect to up to three variables, so that evaluating a formula also gives
//! its gradient (automatic differentiation in forward mode).
//!
//! A derivative that is known to be 0 is `None`, which the compiler knows once a formula is inlined: constants cost no operations
//! for derivatives, and a formula of constants alone compiles like one of lanes. A quotient with derivatives is a product with
//! a reciprocal, which the derivatives use as well.
//!
//! The compiler leaves the value out where only derivatives are used, but not at the baseline level of x86-64, whose operations
//! are calls: there a gradient of `mls` takes up to 1.15 times the instructions of derivatives written out, `overlap` 1.33 times
//! (`make counts`).

use super::log::ln;
use crate::simd::{Simd, V};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Derivatives with respect to three variables; `None` where they are 0 whatever the numbers are.
type Derivatives<S> = [Option<V<S, f64>>; 3];

/// Lanes of float64 numbers and their derivatives.
#[derive(Clone, Copy)]
pub struct Dual<S: Simd> {
    /// The values.
    pub value: V<S, f64>,
    /// The derivatives.
    partials: Derivatives<S>,
}

impl<S: Simd> Dual<S> {
    /// Numbers that do not depend on any variable.
    #[inline(always)]
    pub fn constant(value: V<S, f64>) -> Self {
        Dual { value, partials: [None; 3] }
    }

    /// The variable with this index, 0 to 2.
    #[inline(always)]
    pub fn variable(value: V<S, f64>, index: usize) -> Self {
        let mut partials = [None; 3];
        partials[index] = Some(1.0.into());
        Dual { value, partials }
    }

    /// The derivatives with respect to the three variables.
    #[inline(always)]
    pub fn partials(self) -> [V<S, f64>; 3] {
        let [a, b, c] = self.partials;
        [or_zero::<S>(a), or_zero::<S>(b), or_zero::<S>(c)]
    }

    /// The chain rule: a function of `self` with this value and with `factor` as its derivative.
    #[inline(always)]
    fn chain(self, value: V<S, f64>, factor: V<S, f64>) -> Self {
        Dual { value, partials: times::<S>(self.partials, factor) }
    }

    /// The natural logarithm.
    #[inline(always)]
    pub fn ln(self) -> Self {
        self.chain(ln::<S, f64>(self.value), 1.0 / self.value)
    }

    /// `self * b + c`; the value is rounded once.
    #[inline(always)]
    pub fn mul_add(self, b: f64, c: impl Into<Self>) -> Self {
        let c = c.into();
        Dual {
            value: self.value.mul_add(b, c.value),
            partials: plus::<S>(times::<S>(self.partials, b.into()), c.partials),
        }
    }

    /// The number itself; its value and derivatives are NaN where `x < 0`.
    #[inline(always)]
    pub fn or_nan_below_zero(self, x: V<S, f64>) -> Self {
        let [a, b, c] = self.partials;
        let partials = [nan_below_zero::<S>(a, x), nan_below_zero::<S>(b, x), nan_below_zero::<S>(c, x)];
        Dual { value: x.if_less(0.0, f64::NAN, self.value), partials }
    }
}

impl<S: Simd> From<f64> for Dual<S> {
    #[inline(always)]
    fn from(x: f64) -> Self {
        Dual::constant(x.into())
    }
}

// The functions on derivatives are not closures, which would not be compiled for the level.

/// A derivative as lanes.
#[inline(always)]
fn or_zero<S: Simd>(partial: Option<V<S, f64>>) -> V<S, f64> {
    match partial {
        Some(partial) => partial,
        None => 0.0.into(),
    }
}

/// A derivative, NaN where `x < 0`.
#[inline(always)]
#[allow(clippy::manual_map)]
fn nan_below_zero<S: Simd>(partial: Option<V<S, f64>>, x: V<S, f64>) -> Option<V<S, f64>> {
    match partial {
        Some(partial) => Some(x.if_less(0.0, f64::NAN, partial)),
        None => None,
    }
}

/// Derivatives times a number.
#[inline(always)]
fn times<S: Simd>([a, b, c]: Derivatives<S>, factor: V<S, f64>) -> Derivatives<S> {
    [product::<S>(a, factor), product::<S>(b, factor), product::<S>(c, factor)]
}

/// The sums of derivatives.
#[inline(always)]
fn plus<S: Simd>([a, b, c]: Derivatives<S>, [d, e, f]: Derivatives<S>) -> Derivatives<S> {
    [sum::<S>(a, d), sum::<S>(b, e), sum::<S>(c, f)]
}

/// A derivative times a number.
#[inline(always)]
#[allow(clippy::manual_map)]
fn product<S: Simd>(partial: Option<V<S, f64>>, factor: V<S, f64>) -> Option<V<S, f64>> {
    match partial {
        Some(partial) => Some(partial * factor),
        None => None,
    }
}

/// The sum of two derivatives.
#[inline(always)]
fn sum<S: Simd>(a: Option<V<S, f64>>, b: Option<V<S, f64>>) -> Option<V<S, f64>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (Some(a), None) => Some(a),
        (None, b) => b,
    }
}

impl<S: Simd> Neg for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        self.chain(-self.value, (-1.0).into())
    }
}

impl<S: Simd> Add for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Dual { value: self.value + b.value, partials: plus::<S>(self.partials, b.partials) }
    }
}

impl<S: Simd> Sub for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Dual { value: self.value - b.value, partials: plus::<S>(self.partials, (-b).partials) }
    }
}

impl<S: Simd> Mul for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        let partials = plus::<S>(times::<S>(self.partials, b.value), times::<S>(b.partials, self.value));
        Dual { value: self.value * b.value, partials }
    }
}

impl<S: Simd> Div for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        if let ([None, None, None], [None, None, None]) = (self.partials, b.partials) {
            return Dual::constant(self.value / b.value);
        }
        let inverse = 1.0 / b.value;
        let value = self.value * inverse;
        Dual { value, partials: times::<S>(plus::<S>(self.partials, times::<S>(b.partials, -value)), inverse) }
    }
}

/// Operators with a number on the left.
macro_rules! number_on_the_left {
    ($($trait:ident::$op:ident),+) => {
        $(
            impl<S: Simd> $trait<Dual<S>> for f64 {
                type Output = Dual<S>;
                #[inline(always)]
                fn $op(self, b: Dual<S>) -> Dual<S> {
                    $trait::$op(Dual::from(self), b)
                }
            }
        )+
    };
}
number_on_the_left!(Add::add, Sub::sub, Mul::mul, Div::div);

/// Operators with a number on the right.
macro_rules! number_on_the_right {
    ($($trait:ident::$op:ident),+) => {
        $(
            impl<S: Simd> $trait<f64> for Dual<S> {
                type Output = Self;
                #[inline(always)]
                fn $op(self, b: f64) -> Self {
                    $trait::$op(self, Dual::from(b))
                }
            }
        )+
    };
}
number_on_the_right!(Add::add, Sub::sub, Mul::mul);

impl<S: Simd> Div<f64> for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn div(self, b: f64) -> Self {
        self.chain(self.value / b, (1.0 / b).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{dispatch, Kernel};

    /// f(x) = (3 - x) log x / (x + x^2) - 2 fma(x, 5, x), NaN below 0, and its derivative.
    struct Example([f64; 8]);
    impl Kernel for Example {
        type Output = [[f64; 8]; 3];
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            let x = V::<S, f64>::load(&self.0);
            let mut out = [[0.0; 8]; 3];
            let f = example(Dual::<S>::variable(x, 1));
            f.value.store(&mut out[0]);
            f.partials()[1].store(&mut out[1]);
            example(Dual::<S>::constant(x)).value.store(&mut out[2]);
            out
        }
    }

    #[inline(always)]
    fn example<S: Simd>(x: Dual<S>) -> Dual<S> {
        ((3.0 - x) * x.ln() / (x + x * x) - 2.0 * x.mul_add(5.0, x)).or_nan_below_zero(x.value)
    }

    #[test]
    fn derivatives_follow_the_rules() {
        let x = [0.25, 0.5, 1.0, 2.0, 3.0, 10.0, 1e6, -1.0];
        let [values, partials, plain] = dispatch(Example(x));
        for (i, &x) in x[..7].iter().enumerate() {
            let (over, under) = ((3.0 - x) * x.ln(), x + x * x);
            let value = over / under - 12.0 * x;
            let partial = ((3.0 - x) / x - x.ln()) / under - over * (1.0 + 2.0 * x) / (under * under) - 12.0;
            assert!((values[i] - value).abs() <= 4e-16 * value.abs(), "f({x}) is {}, expected {value}", values[i]);
            assert!((plain[i] - value).abs() <= 4e-16 * value.abs(), "f({x}) is {}, expected {value}", plain[i]);
            assert!(
                (partials[i] - partial).abs() <= 4e-15 * partial.abs(),
                "f'({x}) is {}, expected {partial}",
                partials[i]
            );
        }
        assert!(values[7].is_nan() && partials[7].is_nan() && plain[7].is_nan());
    }

    #[test]
    fn variables_have_derivatives_of_their_own() {
        struct Two;
        impl Kernel for Two {
            type Output = [f64; 3];
            #[inline(always)]
            fn run<S: Simd>(self) -> [f64; 3] {
                let (x, y) = (Dual::<S>::variable(2.0.into(), 0), Dual::<S>::variable(4.0.into(), 2));
                let [a, b, c] = ((x - y) / (x * y) / 8.0 + 3.0).partials();
                [a.to_array()[0], b.to_array()[0], c.to_array()[0]]
            }
        }
        // (x - y) / (8 x y) = (1/y - 1/x) / 8
        assert_eq!(dispatch(Two), [1.0 / 32.0, 0.0, -1.0 / 128.0]);
    }

    #[test]
    fn a_constant_has_no_derivative() {
        struct Constant;
        impl Kernel for Constant {
            type Output = f64;
            #[inline(always)]
            fn run<S: Simd>(self) -> f64 {
                let c = Dual::<S>::constant(f64::INFINITY.into());
                (c * 2.0 / c).partials()[0].to_array()[0]
            }
        }
        assert_eq!(dispatch(Constant), 0.0);
    }
}
