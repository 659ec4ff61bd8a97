//! Natural logarithm on lanes.
//!
//! x = 2^k (1 + f) with 1 + f in [1/sqrt 2, sqrt 2); s = f / (2 + f), z = s^2;
//! log(1 + f) = f - f^2/2 + s (f^2/2 + z R(z)), R near-minimax (`tables`), of degree 6 in float64 and 2 in float32.
//! f stands alone as the leading term, so the result has full relative accuracy near x = 1 too.
//!
//! Largest error measured: 0.86 ulp in float32 (over all positive numbers), 0.80 ulp in float64 (2e5 arguments of all
//! magnitudes, most of them near 1).

use super::tables::{LOG_F32, LOG_F64};
use crate::simd::{Float, Simd, V};
use std::f64::consts::SQRT_2;

/// log 2 in two parts: the product of the first with any exponent is exact.
const LN2_F32: (f64, f64) = (0.693145751953125, 1.428606820309417e-6);
const LN2_F64: (f64, f64) = (0.6931471803691238, 1.9082149292705877e-10);

/// Natural logarithm: log 0 = -inf, log inf = inf, NaN for negative x and NaN.
#[inline(always)]
pub fn ln<S: Simd, T: Float>(x: V<S, T>) -> V<S, T> {
    // Subnormal numbers are scaled by a power of two that makes the largest of them normal and stays exact.
    let (smallest, lift) = if single::<T>() { (f64::from(f32::MIN_POSITIVE), 24) } else { (f64::MIN_POSITIVE, 53) };
    let lifted = x * (1_u64 << lift) as f64;
    let offset = x.if_less(smallest, -f64::from(lift), 0.0);
    let normal = x.if_less(smallest, lifted, x);
    let finite = log_of::<S, T>(normal.exponent() + offset, normal.significand());
    let not_positive = x.if_less(0.0, f64::NAN, f64::NEG_INFINITY);
    // The last selection passes +inf and NaN through.
    x.if_less(f64::INFINITY, x.if_greater(0.0, finite, not_positive), x)
}

/// Natural logarithm of x known to be positive, finite and normal.
#[inline(always)]
pub fn ln_normal<S: Simd, T: Float>(x: V<S, T>) -> V<S, T> {
    log_of::<S, T>(x.exponent(), x.significand())
}

/// log(2^exponent significand) for a significand in [1, 2).
#[inline(always)]
fn log_of<S: Simd, T: Float>(exponent: V<S, T>, significand: V<S, T>) -> V<S, T> {
    let k = significand.if_less(SQRT_2, exponent, exponent + 1.0);
    let centred = significand.if_less(SQRT_2, significand, significand * 0.5);
    let f = centred - 1.0;

    let table: &[f64] = if single::<T>() { &LOG_F32 } else { &LOG_F64 };
    let s = f / (centred + 1.0);
    let z = s * s;
    let mut r = V::<S, T>::from(table[table.len() - 1]);
    for &c in table[..table.len() - 1].iter().rev() {
        r = r.mul_add(z, c);
    }
    let half_square = 0.5 * f * f;
    let (upper, lower) = if single::<T>() { LN2_F32 } else { LN2_F64 };
    let small = s.mul_add(r.mul_add(z, half_square), k * lower) - half_square;
    k.mul_add(upper, f + small)
}

/// Whether T is float32; a constant after compilation.
#[inline(always)]
fn single<T: Float>() -> bool {
    T::ROUNDOFF > f64::EPSILON
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{dispatch, Kernel};

    struct Ln<'a, T: Float>(&'a [T], &'a mut [T]);

    impl<T: Float> Kernel for Ln<'_, T> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self) {
            for (x, out) in self.0.chunks_exact(T::LANES).zip(self.1.chunks_exact_mut(T::LANES)) {
                ln::<S, T>(V::<S, T>::load(x)).store(out);
            }
        }
    }

    /// Arguments of every magnitude, and dense around 1.
    fn arguments() -> impl Iterator<Item = f64> {
        let everywhere = (-1022 * 16..1024 * 16).map(|i| f64::from(i) / 16.0).map(f64::exp2);
        everywhere
            .chain((-2000..2000).map(|i| 1.0 + f64::from(i) / 4001.0))
            .chain((1..4000).map(|i| f64::from(i) * 1e-312))
    }

    fn check<T: Float>(smallest_subnormal: f64, largest: f64) {
        let mut x: Vec<T> =
            arguments().filter(|&x| (smallest_subnormal..=largest).contains(&x)).map(T::from_f64).collect();
        x.resize(x.len().next_multiple_of(T::LANES), T::from_f64(1.0));
        let mut out = vec![T::default(); x.len()];
        dispatch(Ln(&x, &mut out));
        for (x, got) in x.iter().zip(&out) {
            let (want, got) = (x.to_f64().ln(), got.to_f64());
            assert!((got - want).abs() <= 2.0 * T::ROUNDOFF * want.abs(), "ln {x:?}: got {got:e}, expected {want:e}");
        }
    }

    #[test]
    fn ln_is_accurate_over_the_whole_range() {
        check::<f64>(5e-324, f64::MAX);
        check::<f32>(1e-42, f64::from(f32::MAX));
    }

    #[test]
    fn ln_at_the_edges() {
        let mut x = [1.0_f64; 8];
        x[..6].copy_from_slice(&[0.0, -0.0, f64::INFINITY, -1e-320, f64::NEG_INFINITY, f64::NAN]);
        let mut out = [0.0; 8];
        dispatch(Ln(&x, &mut out));
        assert_eq!(out[..3], [f64::NEG_INFINITY, f64::NEG_INFINITY, f64::INFINITY]);
        assert!(out[3..6].iter().all(|y| y.is_nan()));
        assert_eq!(out[6..], [0.0; 2]);
    }
}
