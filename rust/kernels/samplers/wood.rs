//! The height w = x.mu of a von Mises-Fisher sample, and its derivative with respect to kappa. Eight at a time, in float64.
//!
//! Wood's rejection sampler (Comm. Statist. Simul. 23, 1994) with k = kappa, m = D - 1 and the exact b = m/(2k + sqrt(4k^2 +
//! m^2)), rewritten so that nothing cancels at any kappa. With x0 = (1 - b)/(1 + b) and X a coordinate of a uniform point on the
//! sphere (kappa = 0),
//!
//!   w = (x0 - X)/e, e = 1 - x0 X, 1 - w = (1 - x0)(1 + X)/e, 1 + w = (1 + x0)(1 - X)/e,
//!
//! and since k (1 - x0^2) = m x0, the log of the acceptance is m (1 - 1/e - log e), at most 0: a valid envelope by itself.
//! X needs no gamma variates (Ulrich, Appl. Statist. 33, 1984): X = R cos V with 1 - R^2 = U^(2/(D-2)), V uniform, for every
//! D >= 2; then 1 - X^2 = (1 - R^2) + (R sin V)^2.
//!
//! With F, f and A the distribution function, density and mean of w, dw/dk = -(dF/dk)/f(w) = int_w^1 (t - A) f(t) dt / f(w), or
//! the same over [-1, w] with A - t where w < A: an integral of positive terms. With t = tanh(y), |T| = tanh of the distance in
//! y, u = w on the upper side and -w on the lower one:
//!
//!   |t - w| = (1 - w^2)|T|/g, g = 1 + u|T|, f(t) dt/f(w) = (1 - w^2) exp(E) dy,
//!   E = +-k |t - w| + m/2 log((1 - T^2)/g^2).
//!
//! Gauss-Legendre quadrature from 0 to where E falls to -25 (-20 and half the nodes for float32). Largest error against
//! quadrature by the angle, relative to the root mean square of dw/dk, D from 2 to 2048, kappa from 1e-3 to 1e6, out to one draw
//! in 2000: 3e-9 (tests/ops/test_samplers.py).

use crate::rng::{proposals, Address};
use crate::simd::{Kernel, Lanes, Register, Simd, V};
use crate::special::bessel::{self, Order};
use crate::special::exp::exp;
use crate::special::log::ln;
use crate::special::tables::{GAUSS_16, GAUSS_32, GAUSS_48, GAUSS_64};
use crate::special::trig::sin_cos;

use super::normals::{doubles, joined};
use super::LANES;

/// The height w, as its distances from both ends.
#[derive(Clone, Copy)]
pub struct Height<X> {
    /// 1 - w
    below: X,
    /// 1 + w
    above: X,
}

impl<R: Register<Elem = f64>> Height<Lanes<R>> {
    /// The height w.
    #[inline(always)]
    pub fn w(&self) -> Lanes<R> {
        self.below.if_less(1.0, 1.0 - self.below, self.above - 1.0)
    }

    /// sqrt(1 - w^2)
    #[inline(always)]
    pub fn tangent(&self) -> Lanes<R> {
        (self.above * self.below).sqrt()
    }
}

impl Height<[f64; LANES]> {
    /// The heights from number `first` on.
    #[inline(always)]
    pub fn from<S: Simd>(&self, first: usize) -> Height<V<S, f64>> {
        Height { below: V::<S, f64>::load(&self.below[first..]), above: V::<S, f64>::load(&self.above[first..]) }
    }

    /// The heights w and sqrt(1 - w^2).
    #[inline(always)]
    pub fn parts<S: Simd>(&self) -> [[f64; LANES]; 2] {
        let mut out = [[0.0; LANES]; 2];
        for first in (0..LANES).step_by(V::<S, f64>::LANES) {
            let height = self.from::<S>(first);
            height.w().store(&mut out[0][first..]);
            height.tangent().store(&mut out[1][first..]);
        }
        out
    }
}

/// Draws heights at eight addresses; NaN for kappa < 0. This kernel and the next are functions of their own, so that they are not
/// compiled again for each type of row and way.
pub struct Draw<'a> {
    /// The dimension D.
    pub dim: usize,
    /// The concentrations.
    pub kappa: &'a [f64; LANES],
    /// Where the random numbers come from.
    pub addresses: &'a [Address; LANES],
}
impl Kernel for Draw<'_> {
    type Output = Height<[f64; LANES]>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let drawn = draw::<S>(self.dim, V::<S, f64>::load(self.kappa), self.addresses);
        let mut out = Height { below: [0.0; LANES], above: [0.0; LANES] };
        drawn.below.store(&mut out.below);
        drawn.above.store(&mut out.above);
        out
    }
}

/// Computes dw/dkappa of drawn heights.
pub struct ByKappa<'a> {
    /// The dimension D.
    pub dim: usize,
    /// Whether the digits of float32 are enough.
    pub single: bool,
    /// The Bessel order D/2.
    pub order: &'a Order,
    /// The concentrations.
    pub kappa: &'a [f64; LANES],
    /// The heights.
    pub heights: &'a Height<[f64; LANES]>,
}
impl Kernel for ByKappa<'_> {
    const LANES_MEET: bool = false;
    type Output = [f64; LANES];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let mut out = [0.0; LANES];
        for first in (0..LANES).step_by(V::<S, f64>::LANES) {
            let kappa = V::<S, f64>::load(&self.kappa[first..]);
            let mean = bessel::iv_ratio::<S>(self.order, kappa);
            let below_one = bessel::iv_ratio_complement::<S>(self.order, kappa) / (1.0 + mean);
            let height = self.heights.from::<S>(first);
            dw_dkappa::<S>(self.dim, self.single, kappa, mean, below_one, &height).store(&mut out[first..]);
        }
        out
    }
}

#[inline(always)]
fn draw<S: Simd>(dim: usize, kappa: V<S, f64>, addresses: &[Address; LANES]) -> Height<V<S, f64>> {
    let m = dim as f64 - 1.0;
    let kappa = kappa.if_less(0.0, f64::NAN, kappa);
    let twice = 2.0 * kappa;
    let b = m / (twice + twice.mul_add(twice, m * m).sqrt());
    let (x0, below_x0) = ((1.0 - b) / (1.0 + b), 2.0 * b / (1.0 + b));

    let zero = V::<S, f64>::from(0.0);
    let (mut below, mut above) = (zero, zero);
    let mut waiting = zero; // < 0 in lanes that have their height
    for attempt in 0.. {
        let words = proposals::<S>(addresses, attempt);
        let (mut radius, mut angle, mut chance) = ([0; LANES], [0; LANES], [0; LANES]);
        for i in 0..LANES {
            radius[i] = joined(&words, 0, i);
            angle[i] = joined(&words, 2, i);
            chance[i] = joined(&words, 0, i + LANES);
        }
        let [u, x, sign, swap] = doubles(&radius, &angle);
        let [limit, ..] = doubles(&chance, &chance);

        let rest = exp::<S>(ln::<S, f64>(V::<S, f64>::load(&u)) * (2.0 / (dim as f64 - 2.0)));
        let r = (1.0 - rest).sqrt();
        let (sine, cosine) = sin_cos::<S, f64>(V::<S, f64>::load(&x));
        let (sine, cosine) = (r * sine, r * cosine * V::<S, f64>::load(&sign));
        let swap = V::<S, f64>::load(&swap);
        let (x, other) = (swap.if_less(0.0, sine, cosine), swap.if_less(0.0, cosine, sine));
        // 1 - |X| from 1 - X^2.
        let long = 1.0 + x.abs();
        let short = other.mul_add(other, rest) / long;
        let (less, more) = (x.if_less(0.0, long, short), x.if_less(0.0, short, long)); // 1 - X, 1 + X

        let e = below_x0 + x0 * less;
        let by_e = 1.0 / e;
        let accept = m * (1.0 - by_e - ln::<S, f64>(e));
        // A NaN is accepted, and stays one.
        let fits = accept.if_less(ln::<S, f64>(V::<S, f64>::load(&limit)), 0.0, 1.0);
        let now = waiting.if_less(0.0, 0.0, fits); // > 0 in lanes that take this proposal
        below = now.if_greater(0.0, below_x0 * more * by_e, below);
        above = now.if_greater(0.0, (1.0 + x0) * less * by_e, above);
        waiting = now.if_greater(0.0, -1.0, waiting);
        if waiting.not_less_bits(0.0) == 0 {
            break;
        }
    }
    Height { below, above }
}

/// dw/dkappa at a fixed quantile, to the digits of float64 or of float32 (`single`); `mean` is A, `below_mean` 1 - A.
#[inline(always)]
fn dw_dkappa<S: Simd>(
    dim: usize,
    single: bool,
    kappa: V<S, f64>,
    mean: V<S, f64>,
    below_mean: V<S, f64>,
    height: &Height<V<S, f64>>,
) -> V<S, f64> {
    let m = dim as f64 - 1.0;
    let (w, square) = (height.w(), height.below * height.above);
    // w - A, whose size and sign are needed.
    let distance = w.if_less(0.0, w - mean, below_mean - height.below);
    let upper = distance.if_less(0.0, -1.0, 1.0);
    let side = Tail::<S> {
        half_m: 0.5 * m,
        u: upper * w,
        ahead: distance.if_less(0.0, height.below, height.above),
        kappa_square: upper * kappa * square,
    };
    // The width of the integral: where a parabola with the slope and curvature of E at w reaches the end, then Newton steps.
    let (nodes, depth, steps): (&[(f64, f64)], f64, usize) = match dim {
        2 => (&GAUSS_64, DEPTH, 6),
        3..=8 => (&GAUSS_48, DEPTH, 6),
        _ if single => (&GAUSS_16, SINGLE_DEPTH, 3),
        _ => (&GAUSS_32, DEPTH, 6),
    };
    let steep = side.kappa_square - m * side.u;
    let bend = (square * (2.0 * kappa * w + m)).max(0.05 * m * square);
    let mut width = 2.0 * depth / ((steep * steep + 2.0 * depth * bend).sqrt() - steep);
    for _ in 0..steps {
        let at = side.at(width);
        let step = (at.depth + depth) / (-at.steep).max(1e-3 * m);
        width = (width + step).min(2.0 * width).max(0.5 * width);
    }
    let mut total = V::<S, f64>::from(0.0);
    for &(node, weight) in nodes {
        let at = side.at(width * node);
        let beyond = square * at.moved + distance.abs();
        total = (beyond * exp::<S>(at.depth)).mul_add(weight, total);
    }
    let derivative = square * width * total;
    // At an infinite kappa w does not move.
    kappa.if_less(f64::INFINITY, derivative, 0.0 * height.below)
}

/// How far E falls to the end of the integral; what is left out is of the size of exp(E), 1e-11.
const DEPTH: f64 = 25.0;
/// How far E falls to the end for float32: with 16 nodes the error is 1e-8, less than the roundoff.
const SINGLE_DEPTH: f64 = 20.0;

/// The side of w that is integrated over.
struct Tail<S: Simd> {
    half_m: f64,
    /// +-w
    u: V<S, f64>,
    /// 1 + u
    ahead: V<S, f64>,
    /// +-kappa (1 - w^2)
    kappa_square: V<S, f64>,
}

/// The integrand at a point of that side.
struct TailPoint<S: Simd> {
    /// E
    depth: V<S, f64>,
    /// The derivative of E with respect to the distance in y.
    steep: V<S, f64>,
    /// |t - w|/(1 - w^2)
    moved: V<S, f64>,
}

impl<S: Simd> Tail<S> {
    /// The integrand at distance y from w, in the variable y of the header.
    #[inline(always)]
    fn at(&self, y: V<S, f64>) -> TailPoint<S> {
        let decay = exp::<S>(-2.0 * y);
        let by = 1.0 / (1.0 + decay);
        let tanh = (1.0 - decay) * by;
        let by_g = 1.0 / (self.ahead - self.u * (2.0 * decay * by)); // 1 - |T| = 2 decay by
        let root = 2.0 * by * by_g; // (1 - T^2)/g^2 = decay root^2
        let moved = tanh * by_g;
        let logs = 2.0 * (ln::<S, f64>(root) - y);
        let steep = self.kappa_square * (decay * root * root) - 2.0 * self.half_m * (self.u + tanh) * by_g;
        TailPoint { depth: self.kappa_square.mul_add(moved, self.half_m * logs), steep, moved }
    }
}
