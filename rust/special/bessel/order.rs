//! Constants of an order for the functions of this family, above all the remainder's coefficients; of one order for all lanes,
//! or of one for each.

use crate::layout::shared_with_cuda;
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use crate::special::tables::REMAINDER;
use std::f64::consts::PI;

/// log(2 pi) / 2 in two parts.
const HALF_LOG_2_PI: (f64, f64) = (0.9189385332046728, -3.878294158067242e-17);
/// The shift w - v.
pub const SHIFT: f64 = 3.25;
/// Pairs of coefficients of P: u^0 and u^1, u^2 and u^3, ...
const PAIRS: usize = REMAINDER[2].len().div_ceil(2);
type Series = [[f64; 2]; PAIRS];
/// Trailing coefficients are dropped as long as the sum of their sizes is below this.
const DISPENSABLE: f64 = 2.8e-17; // 2^-55

/// A polynomial at u, by lanes, given as `pairs` of coefficients from the last one on.
#[inline(always)]
fn horner<S: Simd>(pairs: impl Iterator<Item = [impl Into<V<S, f64>>; 2]>, u: V<S, f64>) -> V<S, f64> {
    let (square, zero) = (u * u, V::<S, f64>::from(0.0));
    let (mut even, mut odd) = (zero, zero);
    for [a, b] in pairs {
        even = even.mul_add(square, a);
        odd = odd.mul_add(square, b);
    }
    odd.mul_add(u, even)
}

/// The constants of an order: the same for all lanes ([`Order`]) or one for each ([`LanesFrom`]), to the same bits.
pub trait AnyOrder<S: Simd> {
    /// The order v.
    fn v(&self) -> V<S, f64>;
    /// The shifted order w.
    fn w(&self) -> V<S, f64>;
    /// The reciprocal 1/w.
    fn inverse(&self) -> V<S, f64>;
    /// The constants of the logarithm, [`Order`]'s `constant` and `limit`.
    fn constants(&self) -> (V<S, f64>, V<S, f64>);
    /// Series number `i` of [`Order`] at u = 2 t - 1.
    fn series(&self, i: usize, u: V<S, f64>) -> V<S, f64>;
    /// See [`Order::log_norm_at_zero`].
    fn log_norm_at_zero(&self) -> V<S, f64>;
}

shared_with_cuda! {
    /// Everything that depends on the order v alone; takes most of a microsecond to make.
    pub struct Order {
        /// v, or NaN outside the domain.
        v: f64,
        /// v + 3.25.
        w: f64,
        /// Pairs in use in each series.
        pairs: usize as "int64_t",
        /// Coefficients, by powers of u, of (P - P at x = 0) / (u - 1) and of the first three derivatives of P in t.
        series: [Series; 4],
        /// 1/w.
        inverse: f64,
        /// P at x = 0 - log(2 pi w)/2.
        constant: f64,
        /// w + constant: the limit of log(I_v(x) e^-x) - v log(x/2w) at x = 0.
        limit: f64,
    }
}

impl Order {
    /// The numbers of order v; all are NaN where v is outside the domain.
    pub fn new(v: f64) -> Self {
        let mut all = LaneOrders::none();
        all.set(&[v; f64::LANES], piece(v), 4);
        let mut series = [[[0.0; 2]; PAIRS]; 4];
        for (series, all) in series.iter_mut().zip(&all.series) {
            for (pair, all) in series.iter_mut().zip(&all[..]) {
                *pair = [all[0][0], all[1][0]];
            }
        }
        // Pairs that are 0 in all series need not be added.
        let used = |k: &usize| series.iter().any(|series| series[*k] != [0.0; 2]);
        let pairs = (0..all.pairs).rev().find(used).map_or(0, |last| last + 1);
        let (inverse, constant, limit) = (all.inverse[0], all.constant[0], all.limit[0]);
        Order { v: all.v[0], w: all.w[0], pairs, series, inverse, constant, limit }
    }

    /// The order v.
    pub fn order(&self) -> f64 {
        self.v
    }

    /// The limit of log C(kappa) at kappa = 0 for v = dim/2 - 1: minus the log surface of the unit sphere.
    pub fn log_norm_at_zero(&self) -> f64 {
        norm_at_zero(self.v, self.w, self.limit)
    }
}

/// The limit of log C(kappa) at kappa = 0, from v, w and [`Order::limit`].
fn norm_at_zero(v: f64, w: f64, limit: f64) -> f64 {
    // log(I_v(x) / x^v) at x = 0.
    -(v + 1.0) * (2.0 * PI).ln() - (limit - v * (2.0 * w).ln())
}

/// The number of pieces that the orders are cut into, each of which has its own coefficients.
pub const ORDER_PIECES: usize = REMAINDER.len();
/// The piece on which order v lies.
pub fn piece(v: f64) -> usize {
    ((3.0 * SHIFT / (v + SHIFT)) as usize).min(ORDER_PIECES - 1)
}

impl<S: Simd> AnyOrder<S> for Order {
    #[inline(always)]
    fn v(&self) -> V<S, f64> {
        self.v.into()
    }
    #[inline(always)]
    fn w(&self) -> V<S, f64> {
        self.w.into()
    }
    #[inline(always)]
    fn inverse(&self) -> V<S, f64> {
        self.inverse.into()
    }
    #[inline(always)]
    fn constants(&self) -> (V<S, f64>, V<S, f64>) {
        (self.constant.into(), self.limit.into())
    }
    #[inline(always)]
    fn series(&self, i: usize, u: V<S, f64>) -> V<S, f64> {
        horner::<S>(self.series[i][..self.pairs].iter().rev().copied(), u)
    }
    #[inline(always)]
    fn log_norm_at_zero(&self) -> V<S, f64> {
        Order::log_norm_at_zero(self).into()
    }
}

/// A number for each lane.
type Each = [f64; f64::LANES];

/// An [`Order`] for each lane; each takes a few tens of nanoseconds.
pub struct LaneOrders {
    v: Each,
    w: Each,
    inverse: Each,
    constant: Each,
    limit: Each,
    /// Pairs of coefficients on the orders' piece.
    pairs: usize,
    /// The series of [`Order`], as many as were asked for; 0 beyond the coefficients in use.
    series: [[[Each; 2]; PAIRS]; 4],
}

impl LaneOrders {
    /// No orders yet.
    pub fn none() -> Self {
        let each = [0.0; f64::LANES];
        LaneOrders {
            v: each,
            w: each,
            inverse: each,
            constant: each,
            limit: each,
            pairs: 0,
            series: [[[each; 2]; PAIRS]; 4],
        }
    }

    /// Sets the orders to `v`, which lie on one piece, with the first `series` of the four series; NaN as in [`Order::new`].
    pub fn set(&mut self, v: &Each, piece: usize, series: usize) {
        dispatch(MakeOrders { v, piece, series, orders: self });
    }

    /// The orders from lane `first` on.
    pub fn from(&self, first: usize) -> LanesFrom<'_> {
        LanesFrom { orders: self, first }
    }
}

/// Some of [`LaneOrders`]: those from one lane on, of which as many are taken as a level has lanes.
pub struct LanesFrom<'a> {
    orders: &'a LaneOrders,
    first: usize,
}

impl LanesFrom<'_> {
    #[inline(always)]
    fn load<S: Simd>(&self, each: &Each) -> V<S, f64> {
        V::<S, f64>::load(&each[self.first..])
    }
}

struct MakeOrders<'a> {
    v: &'a Each,
    piece: usize,
    series: usize,
    orders: &'a mut LaneOrders,
}

impl Kernel for MakeOrders<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (zero, load) = (V::<S, f64>::from(0.0), V::<S, f64>::load);
        let LaneOrders { v, w, inverse, constant, limit, pairs, series } = self.orders;
        *v = self.v.map(|v| if (0.0..=1e60).contains(&v) { v } else { f64::NAN });
        *w = v.map(|v| v + SHIFT);
        *inverse = w.map(|w| 1.0 / w);
        let place = load(&w.map(|w| 6.0 * SHIFT / w - (1 + 2 * self.piece) as f64));

        let rows = REMAINDER[self.piece];
        *pairs = rows.len().div_ceil(2);
        let pairs = *pairs;
        zero.store(&mut series[0][pairs - 1][1]); // where rows are odd in number
        for (k, row) in rows.iter().enumerate() {
            let mut sum = zero;
            for &c in row.iter().rev() {
                sum = sum.mul_add(place, c);
            }
            sum.store(&mut series[0][k / 2][k % 2]);
        }
        for i in 0..self.series - 1 {
            for k in 1..2 * pairs {
                let derivative = (2 * k) as f64 * load(&series[i][k / 2][k % 2]);
                derivative.store(&mut series[i + 1][(k - 1) / 2][(k - 1) % 2]);
            }
            zero.store(&mut series[i + 1][pairs - 1][1]);
        }
        let mut dropped = zero;
        let mut sums = ExactSum::<S>::new();
        for pair in &series[0][..pairs] {
            sums.add(load(&pair[0]));
            sums.add(load(&pair[1]));
        }
        let at_zero = sums.parts();
        let mut above = zero;
        for k in (0..pairs).rev() {
            let [even, odd] = series[0][k].map(|c| load(&c));
            dropped = dropped + (even.abs() + odd.abs());
            let trimmed = |c: V<S, f64>| dropped.if_less(DISPENSABLE, 0.0, c);
            trimmed(above).store(&mut series[0][k][1]);
            above = above + odd;
            trimmed(above).store(&mut series[0][k][0]);
            above = above + even;
            for derivatives in &mut series[1..self.series] {
                for c in &mut derivatives[k] {
                    trimmed(load(c)).store(c);
                }
            }
        }
        let mut sums = ExactSum::<S>::new();
        let half_logs = load(&w.map(|w| -0.5 * w.ln()));
        let (high, low) = HALF_LOG_2_PI;
        for term in [at_zero.0, at_zero.1, half_logs, (-high).into(), (-low).into()] {
            sums.add(term);
        }
        sums.parts().0.store(constant);
        sums.add(load(w));
        sums.parts().0.store(limit);
    }
}

impl<S: Simd> AnyOrder<S> for LanesFrom<'_> {
    #[inline(always)]
    fn v(&self) -> V<S, f64> {
        self.load::<S>(&self.orders.v)
    }
    #[inline(always)]
    fn w(&self) -> V<S, f64> {
        self.load::<S>(&self.orders.w)
    }
    #[inline(always)]
    fn inverse(&self) -> V<S, f64> {
        self.load::<S>(&self.orders.inverse)
    }
    #[inline(always)]
    fn constants(&self) -> (V<S, f64>, V<S, f64>) {
        (self.load::<S>(&self.orders.constant), self.load::<S>(&self.orders.limit))
    }
    #[inline(always)]
    fn series(&self, i: usize, u: V<S, f64>) -> V<S, f64> {
        let pairs = &self.orders.series[i][..self.orders.pairs];
        horner::<S>(pairs.iter().rev().map(|[a, b]| [self.load::<S>(a), self.load::<S>(b)]), u)
    }
    #[inline(always)]
    fn log_norm_at_zero(&self) -> V<S, f64> {
        let LaneOrders { v, w, limit, .. } = self.orders;
        let at = |lane: usize| norm_at_zero(v[lane], w[lane], limit[lane]);
        self.load::<S>(&std::array::from_fn::<f64, { f64::LANES }, _>(at))
    }
}

/// A sum, and what its roundings lost.
struct ExactSum<S: Simd> {
    sum: V<S, f64>,
    lost: V<S, f64>,
}

impl<S: Simd> ExactSum<S> {
    #[inline(always)]
    fn new() -> Self {
        ExactSum { sum: 0.0.into(), lost: 0.0.into() }
    }
    #[inline(always)]
    fn add(&mut self, term: V<S, f64>) {
        let next = self.sum + term;
        let part = next - self.sum;
        self.lost = self.lost + ((self.sum - (next - part)) + (term - part));
        self.sum = next;
    }
    #[inline(always)]
    fn parts(&self) -> (V<S, f64>, V<S, f64>) {
        let whole = self.sum + self.lost;
        (whole, self.lost - (whole - self.sum))
    }
}
