//! Modified Bessel functions of the first kind in log space, their ratio, and derivatives in x, for real orders v >= 0.
//!
//! One formula for all x, without regimes in x. With w = v + m, r = sqrt(x^2 + w^2), t = w / r:
//! - Debye expansion (DLMF 10.41.3) in log form,
//!   log(I_w(x) e^-x) = w^2/(r + x) + w log(x/(w + r)) - log(2 pi r)/2 + P(t),
//!   P(t) = sum_k D_k(t) / w^k collapsed to one polynomial per order; r - x is never formed as a difference.
//! - m = 0 from order [`BORDER`] up. Below it m downward steps of the recurrence (DLMF 10.29.1) lead from w to v:
//!   rho_k = I_k / I_(k-1) = x / d_k, d_(k-1) = 2 (k - 1) + x rho_k, and
//!   log(I_v e^-x) = w^2/(r + x) + v log(x/(w + r)) + log prod_(k = v+1..w) d_k/(w + r) - log(2 pi r)/2 + P(t),
//!   where no factor overflows and no sum cancels.
//! - Derivatives come from d and from mu = x L', bend = x^2 L'', L = log(I_v e^-x): closed forms of the expansion,
//!   and recurrences below it, neither with I_(v+1)/I_v - 1 or its kin. theta is x d/dx throughout.
//!
//! Callers see [`Order`] and functions of (order, x) only: what an `Order` holds is free to change.
//!
//! Domain: 0 <= v <= 1e140, 0 <= x <= inf; NaN outside.
//!
//! Largest errors measured against arb in float64, v up to 1e5, on tests/golden/bessel.csv and on 18000 random points
//! (relative to what: tests/oracle/golden.py):
//!
//! | | log_ive | log_hyp0f1e | iv_ratio | log_ive_dx | log_ive_dxx | iv_ratio_dx | iv_ratio_dxx |
//! |---|---|---|---|---|---|---|---|
//! | v >= 20 | 7e-16 | 2e-15 | 5e-16 | 5e-16 | 6e-16 | 8e-16 | 3e-15 |
//! | v < 20 | 2e-14 | 1e-14 | 8e-16 | 5e-15 | 2e-13 | 5e-13 | 5e-13 |

use super::log::ln_normal;
use super::tables::{DEBYE, DEBYE_BORDERS};
use crate::simd::{Lanes, Simd, V};
use std::f64::consts::{LN_2, PI};

/// The order from which the Debye expansion is used directly.
const BORDER: f64 = 20.0;
/// Pairs of coefficients of P: t and t^2, t^3 and t^4, ...
const PAIRS: usize = (3 * DEBYE_BORDERS.len()).div_ceil(2);
type Series = [[f64; 2]; PAIRS];

/// Everything that depends on the order alone; takes about half a microsecond to make.
#[derive(Clone, Debug)]
pub struct Order {
    v: f64,
    /// v + steps >= BORDER.
    w: f64,
    steps: usize,
    /// Pairs in use in each series.
    pairs: usize,
    /// Coefficients of P, theta P, theta^2 P and theta^3 P with theta = t d/dt.
    series: [Series; 4],
    /// `Point::tail` at x = 0.
    tail_at_zero: f64,
}

impl Order {
    /// The plan for order v; all its values are NaN where v is outside the domain.
    pub fn new(v: f64) -> Self {
        let v = if (0.0..=1e140).contains(&v) { v } else { f64::NAN };
        let steps = (BORDER - v).max(0.0).ceil() as usize;
        let w = v + steps as f64;
        let terms = 1 + DEBYE_BORDERS.iter().filter(|&&border| w < border).count();

        let mut series = [[[0.0; 2]; PAIRS]; 4];
        let (mut coefficients, mut scale) = (DEBYE.iter(), 1.0);
        for k in 1..=terms {
            scale /= w;
            for (power, c) in (k..).step_by(2).zip(coefficients.by_ref().take(k + 1)) {
                series[0][(power - 1) / 2][(power - 1) % 2] += c * scale;
            }
        }
        for i in 0..3 {
            for j in 0..PAIRS {
                let [odd, even] = series[i][j];
                series[i + 1][j] = [(2 * j + 1) as f64 * odd, (2 * j + 2) as f64 * even];
            }
        }

        let shrink: f64 = (1..=steps).map(|i| w / (v + i as f64)).product();
        let p: f64 = series[0].iter().flatten().sum();
        let tail_at_zero = p - 0.5 * (0.5 * w * shrink * shrink).ln();
        Order { v, w, steps, pairs: (3 * terms).div_ceil(2), series, tail_at_zero }
    }

    /// The limit of log C(kappa) at kappa = 0 for v = dim/2 - 1: minus the log surface of the unit sphere.
    pub fn log_norm_at_zero(&self) -> f64 {
        // log(I_v(x) / x^v) at x = 0.
        let log_iv = self.w - self.v * (2.0 * self.w).ln() + self.tail_at_zero - 0.5 * (4.0 * PI).ln();
        -(self.v + 1.0) * (2.0 * PI).ln() - log_iv
    }

    /// The series number `i` at t.
    #[inline(always)]
    fn series<S: Simd>(&self, i: usize, t: V<S, f64>) -> V<S, f64> {
        let square = t * t;
        let (mut odd, mut even) = (splat::<S>(0.0), splat::<S>(0.0));
        for &[a, b] in self.series[i][..self.pairs].iter().rev() {
            odd = odd.mul_add(square, splat::<S>(a));
            even = even.mul_add(square, splat::<S>(b));
        }
        even.mul_add(t, odd) * t
    }
}

#[inline(always)]
fn splat<S: Simd>(x: f64) -> V<S, f64> {
    V::<S, f64>::splat(x)
}

/// x where it is in the domain, else NaN.
#[inline(always)]
fn nonnegative<S: Simd>(x: V<S, f64>) -> V<S, f64> {
    x.if_less(splat::<S>(0.0), splat::<S>(f64::NAN), x)
}

/// Outside these bounds each derivative is its limit times a power of x, to the last bit; inside, nothing underflows or
/// overflows where that would matter.
const BOUNDS: (f64, f64) = (1e-100, 1e300);

/// x within [`BOUNDS`].
#[inline(always)]
fn bounded<S: Simd>(x: V<S, f64>) -> V<S, f64> {
    splat::<S>(BOUNDS.1).min(splat::<S>(BOUNDS.0).max(x))
}

/// All functions at one x, of which the compiler keeps those that are used.
struct Point<S: Simd> {
    x: V<S, f64>,
    r: V<S, f64>,
    /// P(t) - log(r/2)/2 + log prod_k d_k/(w + r)
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
    /// At x in the domain (or NaN); infinity counts as the largest number.
    #[inline(always)]
    fn new(order: &Order, x: V<S, f64>) -> Self {
        let (half, one, two) = (splat::<S>(0.5), splat::<S>(1.0), splat::<S>(2.0));
        let w = splat::<S>(order.w);
        let x = splat::<S>(f64::MAX).min(x);
        // From 2^511 on squares overflow, and r = x to the last bit.
        let r = x.if_less(splat::<S>(f64::powi(2.0, 511)), x.mul_add(x, w * w).sqrt(), x);
        let inverse = one / r;
        let (t, c) = (w * inverse, x * inverse);
        let (tt, z) = (t * t, c * c); // t^2 + z = 1; theta t = -t z, theta z = 2 z t^2

        let h = order.series::<S>(1, t) + half;
        let (h1, h2) = (order.series::<S>(2, t), order.series::<S>(3, t));
        let q = (one - two * tt).mul_add(h, z * h1);
        let four = two * two * tt;
        let q1 = z * (four * h - (one - four) * h1 - z * h2); // theta q
        let d_w = r + w - z * h;

        let (mut d, mut shrink) = (d_w, one); // shrink = prod (w + r) / d_k
        if order.steps > 0 {
            // The three-term recurrence of I_k, times (x / (w + r))^(w - k) / I_w: positive terms only, no overflow.
            let inverse = one / (w + r);
            let (y, twice) = (x * inverse, two * inverse);
            let (mut here, mut below) = (one, d_w * inverse);
            for i in (0..order.steps).rev() {
                let next = (y * y).mul_add(here, splat::<S>(order.v + i as f64) * twice * below);
                (here, below) = (below, next);
            }
            shrink = one / here;
            d = (w + r) * below * shrink;
        }

        let mut d1 = z * (r - two * tt * h + z * h1);
        let mut mu = w * w / (r + x) - z * h;
        let mut bend = z * q - w * t;
        let mut n1 = -z * (w * t + two * tt * q + q1);
        let mut d_k = d_w;
        for i in (0..order.steps).rev() {
            let below = splat::<S>(order.v + i as f64);
            let k = below + one;
            let n = k - bend;
            let inverse = one / d_k;
            let rho = x * inverse;
            n1 = -rho * rho * (two * n * n * inverse + n1);
            bend = (rho * rho).mul_add(n, -below);
            mu = below * (mu + k) * inverse - rho * (mu + one);
            d1 = x * rho * (two - d1 * inverse);
            d_k = x.mul_add(rho, two * below);
        }
        let tail = order.series::<S>(0, t) - half * ln_normal::<S, f64>(half * r * shrink * shrink);
        Point { x, r, tail, d, d1, mu, bend, n1 }
    }
}

/// log(I_v(x) e^-x): -inf at x = 0 (0 for v = 0) and at infinity.
#[inline(always)]
pub fn log_ive<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let (zero, half, one) = (splat::<S>(0.0), splat::<S>(0.5), splat::<S>(1.0));
    let (v, w) = (splat::<S>(order.v), splat::<S>(order.w));
    let x = nonnegative::<S>(x);
    let p = Point::<S>::new(order, x);

    // log(x / (w + r)): x that could make the quotient y subnormal is scaled; y near 1 is corrected by what rounding
    // lost, as 1 - y = (w + r - x) / (w + r) is known to full relative accuracy.
    let tiny = splat::<S>(f64::powi(2.0, -500));
    let inverse = one / (w + p.r);
    let small = w * w / (p.r + p.x);
    let y = p.x.if_less(tiny, p.x * splat::<S>(f64::powi(2.0, 600)), p.x) * inverse;
    let lost = y.if_less(half, zero, one - y - (w + small) * inverse);
    let scaling = p.x.if_less(tiny, splat::<S>(-600.0 * LN_2), lost);
    let log_y = ln_normal::<S, f64>(y) + scaling;

    let value = v.mul_add(log_y, small) + (p.tail - splat::<S>(0.5 * (4.0 * PI).ln()));
    let at_zero = splat::<S>(if order.v > 0.0 { f64::NEG_INFINITY } else { 0.0 * order.v });
    // The last selection makes -inf of +inf and passes NaN.
    x.if_less(splat::<S>(f64::INFINITY), zero.if_less(x, value, at_zero), -x)
}

/// log(0F1(; v + 1; x^2/4) e^-x), that is log(I_v(x) e^-x / x^v) less its limit at x = 0; falls from 0 to -inf. The log
/// normaliser of von Mises-Fisher is `log_norm_at_zero` - this - x.
#[inline(always)]
pub fn log_hyp0f1e<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let (zero, half, one) = (splat::<S>(0.0), splat::<S>(0.5), splat::<S>(1.0));
    let (v, w) = (splat::<S>(order.v), splat::<S>(order.w));
    let x = nonnegative::<S>(x);
    let p = Point::<S>::new(order, x);

    let excess = p.x * (p.x / (w + p.r)); // r - w
                                          // r - w - x; halves, because the sums of huge numbers would overflow.
    let linear = -w * ((half * excess + half * p.x) / (half * p.r + half * p.x));
    // log1p(excess / 2w), corrected by what the rounding of the sum lost where that matters.
    let u = excess * splat::<S>(0.5 / order.w);
    let sum = one + u;
    let lost = u.if_less(one, u - (sum - one), zero);
    let log_sum = ln_normal::<S, f64>(sum) + lost;

    let value = linear - v * log_sum + (p.tail - splat::<S>(order.tail_at_zero));
    let at_zero = splat::<S>(0.0 * order.v);
    x.if_less(splat::<S>(f64::INFINITY), zero.if_less(x, value, at_zero), -x)
}

/// I_v(x) / I_(v-1)(x) for v >= 1, in [0, 1].
#[inline(always)]
pub fn iv_ratio<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let p = Point::<S>::new(order, ratio_domain::<S>(order, x));
    splat::<S>(1.0).min(p.x / p.d)
}

/// The first derivative of [`iv_ratio`] in x.
#[inline(always)]
pub fn iv_ratio_dx<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let p = Point::<S>::new(order, ratio_domain::<S>(order, x));
    (splat::<S>(order.v) - p.bend) / p.d / p.d
}

/// 1 - A^2 for A = [`iv_ratio`], as A' + (2 v - 1) A / x, whose terms are positive.
#[inline(always)]
pub fn iv_ratio_complement<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    // Where x is tiny A / x is constant, and A is accurate down to subnormal numbers.
    let tiny = V::<S, f64>::splat(1e-300);
    let x = x.if_less(V::<S, f64>::splat(0.0), x, x.if_less(tiny, tiny, x));
    iv_ratio_dx::<S>(order, x) + V::<S, f64>::splat(2.0 * order.v - 1.0) * iv_ratio::<S>(order, x) / x
}

/// The second derivative of [`iv_ratio`] in x.
#[inline(always)]
pub fn iv_ratio_dxx<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let x = ratio_domain::<S>(order, x);
    let p = Point::<S>::new(order, bounded::<S>(x));
    let n = splat::<S>(order.v) - p.bend;
    // (theta n - 2 n theta d / d) / (x d^2): both terms are negative.
    let at_bound = (p.n1 - splat::<S>(2.0) * n * (p.d1 / p.d)) / p.d / p.d / p.x;
    at_bound * splat::<S>(1.0).min(x * splat::<S>(1.0 / BOUNDS.0)) // proportional to x below the lower bound
}

#[inline(always)]
fn ratio_domain<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    if order.v < 1.0 {
        splat::<S>(f64::NAN)
    } else {
        nonnegative::<S>(x)
    }
}

/// The first derivative of [`log_ive`] in x: +inf at x = 0 (-1 for v = 0), 0 at infinity.
#[inline(always)]
pub fn log_ive_dx<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let x = nonnegative::<S>(x);
    let p = Point::<S>::new(order, bounded::<S>(x));
    p.mu / slope_divisor::<S>(order, x, p.x)
}

/// The second derivative of [`log_ive`] in x: -inf at x = 0 (1/2 for v = 0), 0 at infinity.
#[inline(always)]
pub fn log_ive_dxx<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
    let x = nonnegative::<S>(x);
    let p = Point::<S>::new(order, bounded::<S>(x));
    let divisor = slope_divisor::<S>(order, x, p.x);
    p.bend / divisor / divisor
}

/// What turns theta into d/dx: near 0 derivatives of log_ive go as powers of v/x, but are constant for v = 0.
#[inline(always)]
fn slope_divisor<S: Simd>(order: &Order, x: V<S, f64>, bounded: V<S, f64>) -> V<S, f64> {
    if order.v > 0.0 {
        x
    } else {
        bounded.max(x)
    }
}
