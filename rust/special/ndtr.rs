//! Logarithm of the normal distribution function and its first two derivatives, on float64 lanes.
//!
//! All three come from one function of a = |z|, the excess of the hazard rate over a, h(a) = phi(a) / Phi(-a) - a, which falls
//! from sqrt(2/pi) like 1/a: h(a) = p(t) / (a + 2) with t = (a - 7/2) / (a + 7/2) and p near-minimax of degree 28 (`tables`).
//! Below 0, with the hazard rate d = a + h,
//!
//!   log Phi(z) = -a^2/2 - log(sqrt(2 pi) d),   its derivatives d and -d h;
//!
//! from 0 on, with q = Phi(-z) = phi(z) / d and f = phi(z) / (1 - q),
//!
//!   log Phi(z) = log(1 - q),   its derivatives f and -f (z + f).
//!
//! No terms nearly cancel. phi keeps its digits where z^2 does not: what the rounding of z^2 lost is put back. Largest relative
//! error measured against arb (tests/ops/test_special_log_ndtr.py), where the result is a normal number: 7e-16, of the second derivative.

use super::exp::exp;
use super::log::ln;
use super::tables::HAZARD_F64;
use crate::simd::{Simd, V};

/// 1 / sqrt(2 pi).
const INV_SQRT_2PI: f64 = 0.398_942_280_401_432_7;
const EXP_MINUS_64: f64 = 1.603_810_890_548_638e-28;
/// Beyond this phi(z) and Phi(-z) are 0.
const FAR: f64 = 60.0;

/// The terms of the function and of its derivatives.
struct Parts<X> {
    /// |z|.
    a: X,
    /// p(t), and h(a) = p(t) / (a + 2).
    p: X,
    excess: X,
    /// phi(z), and |z|, at most [`FAR`].
    density: X,
    near: X,
}

#[inline(always)]
fn parts<S: Simd>(z: V<S, f64>) -> Parts<V<S, f64>> {
    let a = z.abs();
    let t = 1.0 - 7.0 / (a + 3.5);
    let mut p = V::<S, f64>::from(HAZARD_F64[HAZARD_F64.len() - 1]);
    for &c in HAZARD_F64[..HAZARD_F64.len() - 1].iter().rev() {
        p = p.mul_add(t, c);
    }
    let near = a.at_most(FAR);
    let square = near * near;
    let lost = near.mul_add(near, -square);
    // Below e^-700, where `exp` ends, phi is e^-64 times that of an exponent 64 above; this sum has no rounding error.
    let exponent = -(0.5 * square);
    let scaled = exp::<S>(exponent + exponent.if_less(-600.0, 64.0, 0.0));
    let scale = exponent.if_less(-600.0, INV_SQRT_2PI * EXP_MINUS_64, INV_SQRT_2PI);
    let density = scale * (scaled * (1.0 - 0.5 * lost));
    Parts { a, p, excess: p / (a + 2.0), density, near }
}

/// log(1 - q), for q in [0, 1/2].
#[inline(always)]
fn log_of_rest<S: Simd>(q: V<S, f64>) -> V<S, f64> {
    let rest = 1.0 - q;
    // The rounding error of 1 - q is put back, times the logarithm's slope.
    ln::<S, f64>(rest) - (q - (1.0 - rest)) / rest
}

/// log Phi(z).
#[inline(always)]
pub fn log_ndtr<S: Simd>(z: V<S, f64>) -> V<S, f64> {
    let Parts { a, excess, density, .. } = parts::<S>(z);
    let hazard = a + excess;
    let below = -(0.5 * a * a) - ln::<S, f64>(hazard * (1.0 / INV_SQRT_2PI));
    z.if_less(0.0, below, log_of_rest::<S>(density / hazard))
}

/// The derivative of log Phi(z), phi(z) / Phi(z).
#[inline(always)]
pub fn log_ndtr_dx<S: Simd>(z: V<S, f64>) -> V<S, f64> {
    let Parts { a, excess, density, .. } = parts::<S>(z);
    let hazard = a + excess;
    z.if_less(0.0, hazard, density / (1.0 - density / hazard))
}

/// The second derivative of log Phi(z).
#[inline(always)]
pub fn log_ndtr_dxx<S: Simd>(z: V<S, f64>) -> V<S, f64> {
    let Parts { a, p, excess, density, near } = parts::<S>(z);
    let slope = density / (1.0 - density / (a + excess));
    // a h = p - 2 h: a itself may be infinite.
    let below = -excess.mul_add(excess - 2.0, p);
    z.if_less(0.0, below, -slope * (near + slope))
}
