//! Sine and cosine within an eighth of a turn of 0, which is all that random angles need.
//!
//! sin(pi x / 2) = x S(x^2), cos(pi x / 2) = C(x^2) for |x| <= 1/2, S and C near-minimax (`tables`), of degrees 3 and 4 in
//! float32, 7 and 8 in float64. Largest error measured, at 4e5 arguments: 1.6 ulp.

use super::tables::{COS_F32, COS_F64, SIN_F32, SIN_F64};
use crate::simd::{Float, Simd, V};

/// (sin, cos) of pi x / 2 for |x| <= 1/2.
#[inline(always)]
pub fn sin_cos<S: Simd, T: Float>(x: V<S, T>) -> (V<S, T>, V<S, T>) {
    let (sine, cosine): (&[f64], &[f64]) =
        if T::ROUNDOFF > f64::EPSILON { (&SIN_F32, &COS_F32) } else { (&SIN_F64, &COS_F64) };
    let square = x * x;
    (x * horner::<S, T>(sine, square), horner::<S, T>(cosine, square))
}

#[inline(always)]
fn horner<S: Simd, T: Float>(ascending: &[f64], x: V<S, T>) -> V<S, T> {
    let mut sum = V::<S, T>::from(ascending[ascending.len() - 1]);
    for &c in ascending[..ascending.len() - 1].iter().rev() {
        sum = sum.mul_add(x, c);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{dispatch, Kernel};
    use std::f64::consts::FRAC_PI_2;

    struct SinCos<T>(Vec<T>);
    impl<T: Float> Kernel for SinCos<T> {
        type Output = Vec<(T, T, T)>;
        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Output {
            let mut out = Vec::new();
            for x in self.0.chunks_exact(T::LANES) {
                let (sine, cosine) = sin_cos::<S, T>(V::<S, T>::load(x));
                let (sine, cosine) = (sine.to_array(), cosine.to_array());
                out.extend((0..T::LANES).map(|i| (x[i], sine[i], cosine[i])));
            }
            out
        }
    }

    fn check<T: Float>() {
        let n = 100_000;
        let x = (-n..n).map(|i| T::from_f64(0.5 * f64::from(i) / f64::from(n))).collect();
        for (x, sine, cosine) in dispatch(SinCos(x)) {
            let (want_sine, want_cosine) = (FRAC_PI_2 * x.to_f64()).sin_cos();
            assert!((sine.to_f64() - want_sine).abs() <= 4.0 * T::ROUNDOFF * want_sine.abs());
            assert!((cosine.to_f64() - want_cosine).abs() <= 4.0 * T::ROUNDOFF * want_cosine);
        }
    }

    #[test]
    fn sine_and_cosine_are_within_two_ulp() {
        check::<f32>();
        check::<f64>();
    }
}
