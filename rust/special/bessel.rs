//! Modified Bessel functions of the first kind in log space, their ratio, and derivatives in x, for real orders v >= 0.
//!
//! One formula for all orders and all x, without regimes. With w = v + 3.25, r = sqrt(x^2 + w^2), t = w/r:
//!
//!   log(I_v(x) e^-x) = w^2/(r + x) + v log(x/(w + r)) - log(2 pi r)/2 + P(v, t),
//!
//! the leading terms of Debye's expansion (DLMF 10.41.3), taken at a shifted order so that the remainder P is smooth down to
//! v = 0. P is a polynomial in u = 2 t - 1 whose coefficients, polynomials in 1/w, come from [`REMAINDER`], fitted to arb
//! with an error below 2e-16. r - x is never formed as a difference.
//!
//! Derivatives are those of this form: with theta = x d/dx, z = x^2/r^2 = 1 - t^2, theta t = -t z, h = 1/2 + t P', L = log(I_v
//! e^-x), they follow from d = x I_(v-1)/I_v = v + x^2/r + v t - z h, mu = x L', bend = x^2 L''. None of these subtracts nearly
//! equal numbers, as I_(v+1)/I_v - 1 and its kin do.
//!
//! Callers see [`Order`] and functions of (order, x) only: what an `Order` holds is free to change.
//!
//! Domain: 0 <= v <= 1e60, 0 <= x <= inf; NaN outside.
//!
//! Largest errors measured against arb in float64, v up to 1e5, on tests/golden/bessel.csv and on random points
//! (tests/oracle/golden.py says what they are relative to; `python -m benches.accuracy` measures them):
//!
//! | | log_ive | log_hyp0f1e | iv_ratio | log_ive_dx | log_ive_dxx | iv_ratio_dx | iv_ratio_dxx |
//! |---|---|---|---|---|---|---|---|
//! | v >= 3 | 7e-16 | 2e-15 | 5e-16 | 2e-15 | 2e-15 | 1e-15 | 6e-15 |
//! | v < 3 | 1e-15 | 1e-15 | 4e-16 | 2e-15 | 6e-15 | 4e-15 | 5e-14 |

use super::log::ln_normal;
use crate::simd::{Simd, V};
use std::f64::consts::LN_2;

mod order;
mod orders;

pub use orders::{BothOrders, Orders};

use order::SHIFT;
pub use order::{piece, AnyOrder, LaneOrders, Order, ORDER_PIECES};

/// Orders below which the head of log_ive is taken relative to its limit at x = 0.
const NEAR: f64 = 3.0;

/// x where it is in the domain, else NaN.
#[inline(always)]
fn nonnegative<S: Simd>(x: V<S, f64>) -> V<S, f64> {
    x.if_less(0.0, f64::NAN, x)
}

/// Outside these bounds each derivative is its limit times a power of x, to the last bit; inside, nothing underflows or
/// overflows where that would matter.
const BOUNDS: (f64, f64) = (1e-100, 1e300);

/// x within [`BOUNDS`].
#[inline(always)]
fn bounded<S: Simd>(x: V<S, f64>) -> V<S, f64> {
    let (least, most) = (V::<S, f64>::from(BOUNDS.0), V::<S, f64>::from(BOUNDS.1));
    most.min(least.max(x))
}

/// From here on r = d = x to the last bit, and the other numbers are at their limits. The product of two such x stays finite.
const FAR: f64 = f64::from_bits((1023 + 510) << 52); // 2^510

/// The numbers that the functions need at one x; the compiler leaves out those that are not used.
struct Point<S: Simd> {
    /// x, at most [`FAR`].
    x: V<S, f64>,
    /// w + r and its reciprocal
    sum: V<S, f64>,
    by_sum: V<S, f64>,
    /// r - w, r - x and r - w - x
    over_w: V<S, f64>,
    over_x: V<S, f64>,
    over_both: V<S, f64>,
    /// P - log(r/w)/2, less its limit at x = 0
    tail: V<S, f64>,
    /// d = x I_(v-1) / I_v
    d: V<S, f64>,
    /// theta d
    d1: V<S, f64>,
    /// x L' and x^2 L'', where L = log(I_v e^-x)
    mu: V<S, f64>,
    bend: V<S, f64>,
    /// theta n, where n = d - theta d = v - bend = d^2 (I_v / I_(v-1))'
    n1: V<S, f64>,
}

impl<S: Simd> Point<S> {
    /// The numbers at x in the domain (or NaN); infinity counts as the largest number.
    #[inline(always)]
    fn new(order: &impl AnyOrder<S>, any: V<S, f64>) -> Self {
        let (v, w) = (order.v(), order.w());
        let any = any.at_most(f64::MAX);
        let x = any.at_most(FAR);
        let r = x.mul_add(x, w * w).sqrt();
        let by_r = 1.0 / r;
        let (t, c) = (w * by_r, x * by_r);
        let (tt, z) = (t * t, c * c); // t^2 + z = 1; theta t = -t z, theta z = 2 z t^2

        let sum = w + r;
        let (by_sum, by_other) = (1.0 / sum, 1.0 / (r + x));
        let (over_w, over_x) = (x * (x * by_sum), w * w * by_other);

        let u = t.mul_add(2.0, -1.0);
        let (p1, p2, p3) = (order.series(1, u), order.series(2, u), order.series(3, u));
        let h = t.mul_add(p1, 0.5);
        let h1 = t * t.mul_add(p2, p1); // theta h = -z h1
        let h2 = t * tt.mul_add(p3, t.mul_add(3.0 * p2, p1)); // theta h1 = -z h2
        let q = (1.0 - 2.0 * tt).mul_add(h, z * h1);
        let q1 = z * (4.0 * tt * h - (1.0 - 4.0 * tt) * h1 - z * h2); // theta q
        let st = SHIFT * t;

        let far_r = x.if_less(FAR, r, any);
        let log_r = ln_normal::<S, f64>(far_r * order.inverse());
        let d = v + (x.mul_add(c, v * t) - z * h);
        Point {
            x,
            sum,
            by_sum,
            over_w,
            over_x,
            over_both: -w * ((over_w + x) * by_other),
            tail: -2.0 * (over_w * by_r) * order.series(0, u) - 0.5 * log_r,
            d: x.if_less(FAR, d, any + 0.0 * d), // keeps a NaN
            d1: z * (r + st - 2.0 * tt * h + z * h1),
            mu: x.if_less(w, x.mul_add(c, v * t) - x, over_x - st) - z * h,
            bend: z * (st + q) - v * t,
            n1: -z * (v * t + st * (2.0 * tt - z) + 2.0 * tt * q + q1),
        }
    }
}

/// log(I_v(x) e^-x): -inf at x = 0 (0 for v = 0) and at infinity.
#[inline(always)]
pub fn log_ive<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    let (v, w) = (order.v(), order.w());
    let x = nonnegative::<S>(x);
    let p = Point::<S>::new(order, x);

    // log(x / (w + r)): an x that could make the quotient y subnormal is scaled; a y near 1 is corrected by what rounding lost,
    // as 1 - y = (w + r - x) / (w + r) is known to full relative accuracy.
    let tiny = f64::powi(2.0, -500);
    let scaled = p.x.if_less(tiny, p.x * f64::powi(2.0, 600), p.x);
    let y = scaled * p.by_sum;
    let y = (-y).mul_add(p.sum, scaled).mul_add(p.by_sum, y); // rounded as a division
    let lost = y.if_less(0.5, 0.0, 1.0 - y - (w + p.over_x) * p.by_sum);
    let scaling = p.x.if_less(tiny, -600.0 * LN_2, lost);
    let log_y = ln_normal::<S, f64>(y) + scaling;

    // At small orders and small x, w is far larger than the value: there the head is r - x less its limit w.
    let (near, (constant, limit)) = (p.x.if_less(w, v, NEAR), order.constants());
    let (head, constant) = (near.if_less(NEAR, p.over_both, p.over_x), near.if_less(NEAR, limit, constant));
    let value = v.mul_add(log_y, head) + (p.tail + constant);
    let at_zero = v.if_greater(0.0, f64::NEG_INFINITY, 0.0 * v);
    // The last selection makes -inf of +inf and passes NaN.
    x.if_less(f64::INFINITY, x.if_greater(0.0, value, at_zero), -x)
}

/// log(0F1(; v + 1; x^2/4) e^-x), that is log(I_v(x) e^-x / x^v) less its limit at x = 0; falls from 0 to -inf. The log
/// normaliser of von Mises-Fisher is `log_norm_at_zero` - this - x.
#[inline(always)]
pub fn log_hyp0f1e<S: Simd>(order: &impl AnyOrder<S>, any: V<S, f64>) -> V<S, f64> {
    let any = nonnegative::<S>(any);
    let p = Point::<S>::new(order, any);

    // log1p((r - w) / 2w), corrected by what the rounding of the sum lost where that matters.
    let over_w = p.x.if_less(FAR, p.over_w, any.at_most(f64::MAX));
    let u = over_w * 0.5 * order.inverse();
    let sum = 1.0 + u;
    let lost = u.if_less(1.0, u - (sum - 1.0), 0.0);
    let log_sum = ln_normal::<S, f64>(sum) + lost;

    let value = p.over_both - order.v() * log_sum + p.tail;
    let at_zero = 0.0 * order.v();
    any.if_less(f64::INFINITY, any.if_greater(0.0, value, at_zero), -any)
}

/// I_v(x) / I_(v-1)(x) for v >= 1, in [0, 1].
#[inline(always)]
pub fn iv_ratio<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    let x = ratio_domain::<S>(order, x);
    let p = Point::<S>::new(order, x);
    let (one, most) = (V::<S, f64>::from(1.0), V::<S, f64>::from(f64::MAX));
    one.min(most.min(x) / p.d)
}

/// The first derivative of [`iv_ratio`] in x.
#[inline(always)]
pub fn iv_ratio_dx<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    let p = Point::<S>::new(order, ratio_domain::<S>(order, x));
    (order.v() - p.bend) / p.d / p.d
}

/// 1 - A^2 for A = [`iv_ratio`], as A' + (2 v - 1) A / x, whose terms are positive.
#[inline(always)]
pub fn iv_ratio_complement<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    // Where x is tiny A / x is constant, and A is accurate down to subnormal numbers.
    let x = x.if_less(0.0, x, x.if_less(1e-300, 1e-300, x));
    iv_ratio_dx::<S>(order, x) + (2.0 * order.v() - 1.0) * iv_ratio::<S>(order, x) / x
}

/// The second derivative of [`iv_ratio`] in x.
#[inline(always)]
pub fn iv_ratio_dxx<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    let x = ratio_domain::<S>(order, x);
    let within = bounded::<S>(x);
    let p = Point::<S>::new(order, within);
    let n = order.v() - p.bend;
    // (theta n - 2 n theta d / d) / (x d^2): both terms are negative.
    let at_bound = (p.n1 - 2.0 * n * (p.d1 / p.d)) / p.d / p.d / within;
    at_bound * (x * (1.0 / BOUNDS.0)).at_most(1.0) // proportional to x below the lower bound
}

#[inline(always)]
fn ratio_domain<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    order.v().if_less(1.0, f64::NAN, nonnegative::<S>(x))
}

/// The first derivative of [`log_ive`] in x: +inf at x = 0 (-1 for v = 0), 0 at infinity.
#[inline(always)]
pub fn log_ive_dx<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    let x = nonnegative::<S>(x);
    let within = bounded::<S>(x);
    Point::<S>::new(order, within).mu / theta_divisor::<S>(order, x, within)
}

/// The second derivative of [`log_ive`] in x: -inf at x = 0 (1/2 for v = 0), 0 at infinity.
#[inline(always)]
pub fn log_ive_dxx<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
    let x = nonnegative::<S>(x);
    let within = bounded::<S>(x);
    let p = Point::<S>::new(order, within);
    let divisor = theta_divisor::<S>(order, x, within);
    p.bend / divisor / divisor
}

/// The factor from theta to d/dx: near 0 derivatives of log_ive go as powers of v/x, but are constant for v = 0.
#[inline(always)]
fn theta_divisor<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>, bounded: V<S, f64>) -> V<S, f64> {
    order.v().if_greater(0.0, x, bounded.max(x))
}
