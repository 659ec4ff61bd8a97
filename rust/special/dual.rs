//! Dual numbers: values with their derivative with respect to one variable, so that evaluating a formula also gives its slope
//! (automatic differentiation in forward mode).
//!
//! A derivative that is known to be 0 is `None`, which the compiler knows once a formula is inlined: constants cost no operations
//! for derivatives, and a formula of constants alone compiles like one of lanes. A quotient with a derivative is a product with
//! a reciprocal, which the derivative uses as well.

use super::log::ln;
use crate::simd::{Simd, V};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Lanes of float64 numbers and their derivatives.
#[derive(Clone, Copy)]
pub struct Dual<S: Simd> {
    /// The values.
    pub value: V<S, f64>,
    /// The derivatives with respect to the variable; `None` if the values do not depend on it.
    slope: Option<V<S, f64>>,
}

impl<S: Simd> Dual<S> {
    /// Numbers that do not depend on the variable.
    #[inline(always)]
    pub fn constant(value: V<S, f64>) -> Self {
        Dual { value, slope: None }
    }

    /// The variable itself.
    #[inline(always)]
    pub fn variable(value: V<S, f64>) -> Self {
        Dual { value, slope: Some(1.0.into()) }
    }

    /// The derivative, 0 for a constant.
    #[inline(always)]
    pub fn slope(self) -> V<S, f64> {
        match self.slope {
            Some(slope) => slope,
            None => 0.0.into(),
        }
    }

    /// The chain rule: a function of `self` with this value and with `factor` as its derivative.
    #[inline(always)]
    fn chain(self, value: V<S, f64>, factor: V<S, f64>) -> Self {
        Dual { value, slope: times::<S>(self.slope, factor) }
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
        Dual { value: self.value.mul_add(b, c.value), slope: plus::<S>(times::<S>(self.slope, b.into()), c.slope) }
    }

    /// The number itself; its value and derivative are NaN where `x < 0`.
    #[inline(always)]
    pub fn or_nan_below_zero(self, x: V<S, f64>) -> Self {
        let value = x.if_less(0.0, f64::NAN, self.value);
        match self.slope {
            Some(slope) => Dual { value, slope: Some(x.if_less(0.0, f64::NAN, slope)) },
            None => Dual { value, slope: None },
        }
    }
}

impl<S: Simd> From<f64> for Dual<S> {
    #[inline(always)]
    fn from(x: f64) -> Self {
        Dual::constant(x.into())
    }
}

/// A derivative times a number.
#[inline(always)]
#[allow(clippy::manual_map)] // A closure would not be compiled for the level.
fn times<S: Simd>(slope: Option<V<S, f64>>, factor: V<S, f64>) -> Option<V<S, f64>> {
    match slope {
        Some(slope) => Some(slope * factor),
        None => None,
    }
}

/// The sum of two derivatives.
#[inline(always)]
fn plus<S: Simd>(a: Option<V<S, f64>>, b: Option<V<S, f64>>) -> Option<V<S, f64>> {
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
        Dual { value: self.value + b.value, slope: plus::<S>(self.slope, b.slope) }
    }
}

impl<S: Simd> Sub for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Dual { value: self.value - b.value, slope: plus::<S>(self.slope, (-b).slope) }
    }
}

impl<S: Simd> Mul for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        let slope = plus::<S>(times::<S>(self.slope, b.value), times::<S>(b.slope, self.value));
        Dual { value: self.value * b.value, slope }
    }
}

impl<S: Simd> Div for Dual<S> {
    type Output = Self;
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        if self.slope.is_none() && b.slope.is_none() {
            return Dual::constant(self.value / b.value);
        }
        let inverse = 1.0 / b.value;
        let value = self.value * inverse;
        Dual { value, slope: times::<S>(plus::<S>(self.slope, times::<S>(b.slope, -value)), inverse) }
    }
}

/// Operators with a number on either side.
macro_rules! with_numbers {
    ($($trait:ident::$op:ident),+) => {
        $(
            impl<S: Simd> $trait<f64> for Dual<S> {
                type Output = Self;
                #[inline(always)]
                fn $op(self, b: f64) -> Self {
                    $trait::$op(self, Dual::from(b))
                }
            }
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
with_numbers!(Add::add, Sub::sub, Mul::mul, Div::div);

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
            let f = example(Dual::<S>::variable(x));
            f.value.store(&mut out[0]);
            f.slope().store(&mut out[1]);
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
        let [values, slopes, plain] = dispatch(Example(x));
        for (i, &x) in x[..7].iter().enumerate() {
            let (over, under) = ((3.0 - x) * x.ln(), x + x * x);
            let value = over / under - 12.0 * x;
            let slope = ((3.0 - x) / x - x.ln()) / under - over * (1.0 + 2.0 * x) / (under * under) - 12.0;
            assert!((values[i] - value).abs() <= 4e-16 * value.abs(), "f({x}) is {}, expected {value}", values[i]);
            assert!((plain[i] - value).abs() <= 4e-16 * value.abs(), "f({x}) is {}, expected {value}", plain[i]);
            assert!((slopes[i] - slope).abs() <= 4e-15 * slope.abs(), "f'({x}) is {}, expected {slope}", slopes[i]);
        }
        assert!(values[7].is_nan() && slopes[7].is_nan() && plain[7].is_nan());
    }

    #[test]
    fn a_constant_has_no_derivative() {
        struct Constant;
        impl Kernel for Constant {
            type Output = f64;
            #[inline(always)]
            fn run<S: Simd>(self) -> f64 {
                let c = Dual::<S>::constant(f64::INFINITY.into());
                (c * 2.0 / c).slope().to_array()[0]
            }
        }
        assert_eq!(dispatch(Constant), 0.0);
    }
}
