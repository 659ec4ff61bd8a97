//! Log of the probability that samples z1 and z2 of two isotropic normals match (Oh et al. 2019, "Modeling uncertainty with
//! hedged instance embeddings"), `log E sigmoid(b - a |z1 - z2|)`, by quadrature instead of sampling.
//!
//! With s = v1 + v2, d = |mu1 - mu2| and L = d / sqrt s, the radius t = |z1 - z2| / sqrt s is non-central chi with D degrees,
//!
//!   f(t) = t^(D-1) exp(-(t - L)^2/2) H(L t) |S^(D-1)| (2 pi)^(-D/2), H(x) = 0F1(; D/2; x^2/4) e^-x,
//!
//! so the expectation is one integral, of f(t) sigmoid(y) with y = b - a d - A (t - L) and A = a sqrt s. The logarithm of the
//! integrand is concave (for D > 1). Its peak is found by Newton steps and bisection, and so are, by Newton steps from outside,
//! which do not overshoot, the two points where it has fallen by [`DEPTH`]. Between these the sigmoid may turn within a width 1/A
//! far below the width of f. The interval is cut at the turn, y = 0, or at the peak if the turn is far from the interval. On each
//! part a Gauss-Legendre rule of 64 nodes runs over u with t = cut + width u^4, so that nodes crowd where the sigmoid turns. All
//! of this uses t - L, since t itself loses digits for large L.
//!
//! `smooth` has a faster rule for smooth integrands.
//!
//! Derivatives, with P the mean under the density f sigmoid / E, q = sigmoid(-y), and R(x) = I_(D/2)(x) / I_(D/2-1)(x), the mean
//! cosine of the angle between z1 - z2 and mu1 - mu2 given the length of z1 - z2:
//!
//!   with respect to b:    P[q];
//!   with respect to a:    -sqrt s P[q t];
//!   with respect to d^2:  -a/2 P[q R(L t) / d];
//!   with respect to s:    -a/(2 sqrt s) P[q (t - L R(L t))] or, by the heat equation and without cancellation where L is large,
//!                         1/2 P[a^2 q (2 q - 1) - a q (D - 1) / (sqrt s t)].
//!
//! Errors are relative to max(1, |score|), in float64. With D 1 .. 2048, L 0 .. 1e3, A -300 .. 1e4 and b such that the turn lies
//! anywhere, they are below 4e-10 against composite quadrature at 4655 points (at one point with D = 1: 2e-9). With b = 0,
//! A 1e8 .. 1e16 and D 1 .. 512, they are below 1e-12 against the limit.

use super::formulas::{valid, Formula, Pair, Partials};
use super::{facts, pair_function};
use crate::kernels::pair_op::{pair_op, PairOp};
use crate::simd::{Float, Kernel, Simd, V};
use crate::special::bessel;
use crate::special::bessel::Orders;
use crate::special::dual::Dual;
use crate::special::exp::exp;
use crate::special::log::ln;
use crate::special::tables::GAUSS_64;
use std::f64::consts::{LN_2, PI};

mod smooth;

use smooth::Smooth;

/// How far the logarithm of the integrand falls from its peak to the ends of the interval.
const DEPTH: f64 = 28.0;
/// The numbers of iterations for the peak and for the ends of the interval.
const STEPS: (usize, usize) = (32, 8);
/// The derivative with respect to s takes its second form where L exceeds both this and A.
const FAR: f64 = 40.0;

/// `log E sigmoid(b - a |z1 - z2|)` of isotropic normals.
#[derive(Clone, Copy)]
pub struct MatchProbability<'a> {
    /// The dimension D.
    pub dim: f64,
    /// The orders of the Bessel functions for dimension D.
    pub orders: Orders<'a>,
    /// The parameters a and b of the sigmoid.
    pub line: (f64, f64),
}

impl MatchProbability<'_> {
    /// The logarithm of f's constant, `log(|S^(D-1)| (2 pi)^(-D/2))`.
    fn constant(&self) -> f64 {
        let surface = if self.dim == 1.0 { LN_2 } else { -self.orders.normaliser.log_norm_at_zero() };
        surface - 0.5 * self.dim * (2.0 * PI).ln()
    }

    /// `log H(x)`; for D = 1, H(x) = (1 + e^(-2x)) / 2.
    #[inline(always)]
    fn log_hyp0f1e<S: Simd>(&self, x: V<S, f64>) -> V<S, f64> {
        if self.dim == 1.0 {
            let decay = exp::<S>(-2.0 * x);
            return ln::<S, f64>(0.5 * (1.0 + decay));
        }
        bessel::log_hyp0f1e::<S>(self.orders.normaliser, x)
    }

    /// R(x) and its derivative; for D = 1, R(x) = tanh x.
    #[inline(always)]
    fn ratio<S: Simd>(&self, x: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
        if self.dim == 1.0 {
            let decay = exp::<S>(-2.0 * x);
            let by = 1.0 / (1.0 + decay);
            return ((1.0 - decay) * by, 4.0 * decay * by * by);
        }
        (bessel::iv_ratio::<S>(self.orders.ratio, x), bessel::iv_ratio_dx::<S>(self.orders.ratio, x))
    }
}

/// Returns sigmoid(-y) and log sigmoid(y).
#[inline(always)]
fn sigmoid<S: Simd>(y: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
    let decay = exp::<S>(-y.abs());
    let by = 1.0 / (1.0 + decay);
    (y.if_less(0.0, by, decay * by), y.min(0.0) - ln::<S, f64>(1.0 + decay))
}

/// One number for each of eight pairs.
type Numbers = [f64; f64::LANES];

#[inline(always)]
fn lanes<S: Simd>(x: V<S, f64>) -> Numbers {
    let mut out = [0.0; f64::LANES];
    x.store(&mut out);
    out
}

/// Computes sigmoid(-y) and log(t^(D-1) H(L t) sigmoid(y)) from t, L t and y. This kernel and [`Ratio`] are functions
/// of their own, so that they are not compiled again in each of their many callers.
struct Log<'a> {
    formula: &'a MatchProbability<'a>,
    numbers: [Numbers; 3],
}
impl Kernel for Log<'_> {
    const LANES_MEET: bool = false;
    type Output = [Numbers; 2];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let [t, x, y] = self.numbers.map(|x| V::<S, f64>::load(&x));
        let (q, log_sigmoid) = sigmoid::<S>(y);
        let powers = (self.formula.dim - 1.0) * ln::<S, f64>(t);
        [q, powers + self.formula.log_hyp0f1e::<S>(x) + log_sigmoid].map(lanes::<S>)
    }
}

/// Computes R(x) and its derivative.
struct Ratio<'a> {
    formula: &'a MatchProbability<'a>,
    x: Numbers,
}
impl Kernel for Ratio<'_> {
    const LANES_MEET: bool = false;
    type Output = [Numbers; 2];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let (ratio, derivative) = self.formula.ratio::<S>(V::<S, f64>::load(&self.x));
        [ratio, derivative].map(lanes::<S>)
    }
}

/// The integrals of eight pairs. The variable of integration is tau = t - L.
struct Integral<'a, S: Simd> {
    formula: &'a MatchProbability<'a>,
    /// L, the distance of the means in units of sqrt s.
    length: V<S, f64>,
    /// A, the steepness of the sigmoid in tau.
    steep: V<S, f64>,
    /// y at tau = 0: b - a d.
    middle: V<S, f64>,
    /// The tau at which the interval is cut.
    cut: V<S, f64>,
    /// How far the interval reaches from the cut to the left (<= 0) and to the right (>= 0).
    widths: [V<S, f64>; 2],
    /// The logarithm of the integrand at its peak, without f's constant.
    top: V<S, f64>,
}

/// The integrand at a node of a quadrature rule.
struct Node<S: Simd> {
    tau: V<S, f64>,
    t: V<S, f64>,
    /// The value of sigmoid(-y).
    q: V<S, f64>,
    /// The weight of the rule times f sigmoid, relative to its value at the peak.
    weight: V<S, f64>,
}

impl<'a, S: Simd> Integral<'a, S> {
    #[inline(always)]
    fn new(formula: &'a MatchProbability<'a>, distance: V<S, f64>, root: V<S, f64>) -> Self {
        let (zero, (a, b)) = (V::<S, f64>::from(0.0), formula.line);
        let (length, steep) = (distance / root, a * root);
        let middle = b - a * distance;
        let mut at = Integral { formula, length, steep, middle, cut: zero, widths: [zero; 2], top: zero };

        // At the peak (D-1)/t balances tau + A q, and q is above 1/2 beyond the turn: upper bounds of the peak.
        let highest = formula.dim.sqrt() + zero.max(-steep);
        let balanced = (2.0 * (formula.dim - 1.0) / steep - length).max(middle / steep).max(0.0);
        let (mut low, mut high) = (-length, steep.if_greater(0.0, highest.min(balanced), highest));
        let mut peak = high;
        for step in 0..STEPS.0 {
            let (slope, bend) = at.derivatives(peak);
            low = slope.if_greater(0.0, peak, low);
            high = slope.if_greater(0.0, high, peak);
            let next = peak - slope / bend;
            // Newton steps alone can alternate between the two sides of the turn; so every other step bisects in the first half.
            let newton = if step % 2 == 0 || step > STEPS.0 / 2 { 1.0 } else { 0.0 };
            let within = low.if_less(next, next.if_less(high, newton, 0.0), 0.0);
            peak = within.if_greater(0.0, next, 0.5 * (low + high));
        }
        at.top = at.log(peak).1;

        // For D > 1 the second derivative of the logarithm is at most -1. To the left of the peak, at t = r t_peak, the
        // logarithm has fallen by at least -(D - 1) (log r + 1 - r).
        let reach = (2.0 * DEPTH).sqrt() + 0.5;
        let fraction = (-DEPTH / (formula.dim - 1.0) - 1.0).max(-60.0).exp();
        let left = (fraction * (length + peak) - length).max(peak - reach);
        let mut ends = [if formula.dim == 1.0 { (peak - reach).max(-length) } else { left }, peak + reach];
        // A loop, as a closure may be compiled without the level's instructions.
        for end in &mut ends {
            let start = *end;
            for _ in 0..STEPS.1 {
                let above = at.log(*end).1 - at.top + DEPTH;
                let next = *end - above / at.derivatives(*end).0;
                // The bounds hold where the logarithm is not concave as well: for D = 1 near t = 0.
                let next = next.max(start.min(peak)).min(start.max(peak));
                *end = above.if_less(0.0, next, *end);
            }
        }
        let turn = middle / steep;
        // A turn just outside the interval still makes the integrand turn inside.
        let near = 8.0 / steep.abs();
        let inside = (ends[0] - near).if_less(turn, turn.if_less(ends[1] + near, 1.0, 0.0), 0.0);
        at.cut = inside.if_greater(0.0, turn.max(ends[0]).min(ends[1]), peak);
        at.widths = [ends[0] - at.cut, ends[1] - at.cut];
        at
    }

    #[inline(always)]
    fn y(&self, tau: V<S, f64>) -> V<S, f64> {
        self.middle - self.steep * tau
    }

    /// Returns sigmoid(-y) and the logarithm of the integrand, f sigmoid, without f's constant.
    #[inline(always)]
    fn log(&self, tau: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
        let t = self.t(tau);
        let numbers = [t, self.length * t, self.y(tau)].map(lanes::<S>);
        let [q, log] = S::call(Log { formula: self.formula, numbers });
        (V::<S, f64>::load(&q), V::<S, f64>::load(&log) - 0.5 * tau * tau)
    }

    #[inline(always)]
    fn t(&self, tau: V<S, f64>) -> V<S, f64> {
        (self.length + tau).max(f64::MIN_POSITIVE)
    }

    /// Returns L (1 - R(x)), R(x) / x and R'(x) at x = L t.
    #[inline(always)]
    fn ratio_terms(&self, t: V<S, f64>) -> (V<S, f64>, V<S, f64>, V<S, f64>) {
        let x = (self.length * t).max(1e-100); // R(x) / x is constant below this
        let [ratio, derivative] = S::call(Ratio { formula: self.formula, x: lanes::<S>(x) });
        let (ratio, derivative) = (V::<S, f64>::load(&ratio), V::<S, f64>::load(&derivative));
        let by_x = ratio / x;
        // 1 - R^2 = R' + (D - 1) R / x
        let square = by_x.mul_add(self.formula.dim - 1.0, derivative);
        (self.length * square / (1.0 + ratio), by_x, derivative)
    }

    /// The first two derivatives with respect to tau of the logarithm of the integrand; the second is limited to at most -1.
    #[inline(always)]
    fn derivatives(&self, tau: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
        let t = self.t(tau);
        let (short, _, derivative) = self.ratio_terms(t);
        let (q, _) = sigmoid::<S>(self.y(tau));
        let powers = (self.formula.dim - 1.0) / t;
        let first = powers - short - tau - self.steep * q;
        let second =
            self.length * self.length * derivative - powers / t - 1.0 - self.steep * self.steep * q * (1.0 - q);
        (first, second.if_less(-1.0, second, -1.0))
    }

    /// Node `i` of the left (`part` 0) or the right part of the interval.
    #[inline(always)]
    fn node(&self, part: usize, i: usize) -> Node<S> {
        let (u, weight) = GAUSS_64[i];
        let width = self.widths[part];
        let tau = width.mul_add(u * u * u * u, self.cut);
        let (q, log) = self.log(tau);
        let weight = width.abs() * (4.0 * u * u * u * weight) * exp::<S>(log - self.top);
        Node { tau, t: self.t(tau), q, weight }
    }
}

/// The terms that are summed over the nodes, weighted by the integrand; the first of them is 1.
trait Terms<const N: usize> {
    fn of<S: Simd>(&self, integral: &Integral<S>, node: &Node<S>) -> [V<S, f64>; N];
}

/// The term 1 alone, whose sum is the integral.
struct Mass;
impl Terms<1> for Mass {
    #[inline(always)]
    fn of<S: Simd>(&self, _: &Integral<S>, _: &Node<S>) -> [V<S, f64>; 1] {
        [1.0.into()]
    }
}

/// The terms of the derivatives: 1, q, q t, q R(L t) / L, q (t - L R(L t)) and a^2 q (2 q - 1) - a q (D - 1) / (sqrt s t); `root`
/// is sqrt s of each pair.
struct Derivatives<'a> {
    formula: &'a MatchProbability<'a>,
    root: Numbers,
}
impl Terms<6> for Derivatives<'_> {
    #[inline(always)]
    fn of<S: Simd>(&self, integral: &Integral<S>, node: &Node<S>) -> [V<S, f64>; 6] {
        let &Node { tau, t, q, .. } = node;
        let (short, by_x, _) = integral.ratio_terms(t);
        let bend = self.formula.bend::<S>(q, V::<S, f64>::load(&self.root) * t);
        [1.0.into(), q, q * t, q * t * by_x, q * (tau + short), bend]
    }
}

impl MatchProbability<'_> {
    /// Returns a^2 q (2 q - 1) - a q (D - 1) / r, where r is the length of z1 - z2.
    #[inline(always)]
    fn bend<S: Simd>(&self, q: V<S, f64>, r: V<S, f64>) -> V<S, f64> {
        let a = self.line.0;
        a * q * (a * (q + q - 1.0) - (self.dim - 1.0) / r)
    }

    /// The sums of `terms` for each pair, by the rule that suits the pair, and the logarithm of the factor that they are relative
    /// to.
    #[inline(always)]
    fn sums<S: Simd, const N: usize>(
        &self,
        distance: V<S, f64>,
        root: V<S, f64>,
        terms: &impl Terms<N>,
    ) -> ([V<S, f64>; N], V<S, f64>) {
        let smooth = Smooth::<S>::new(self, distance, root);
        let trapezoidal = smooth.sums(terms);
        if smooth.fits.not_less_bits(0.5) == (1 << V::<S, f64>::LANES) - 1 {
            return trapezoidal;
        }
        let integral = Integral::<S>::new(self, distance, root);
        let mut sums = [V::<S, f64>::from(0.0); N];
        for i in 0..2 * GAUSS_64.len() {
            let node = integral.node(i % 2, i / 2);
            for (sum, term) in sums.iter_mut().zip(terms.of::<S>(&integral, &node)) {
                *sum = term.mul_add(node.weight, *sum);
            }
        }
        let choose = |a: V<S, f64>, b: V<S, f64>| smooth.fits.if_greater(0.0, a, b);
        for (sum, other) in sums.iter_mut().zip(trapezoidal.0) {
            *sum = choose(other, *sum);
        }
        (sums, choose(trapezoidal.1, integral.top))
    }

    /// The distance of the means, sqrt s, and 1 where s is so small that the score is log sigmoid(b - a d), else 0.
    #[inline(always)]
    fn scales<S: Simd>(&self, pair: &Pair<V<S, f64>>) -> [V<S, f64>; 3] {
        let s = pair.uncertainties.0 + pair.uncertainties.1;
        let least = (1e-200 * pair.x).max(f64::MIN_POSITIVE);
        let exact = s.if_less(least, 1.0, 0.0);
        [pair.x.sqrt(), exact.if_greater(0.0, 1.0, s.sqrt()), exact]
    }
}

impl Formula for MatchProbability<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const BY_SUM: bool = true;
    const SIEVED: bool = false; // as computed by quadrature, the score is not monotone in x

    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let pair = pair.values();
        let [distance, root, exact] = self.scales::<S>(&pair);
        let ([total], top) = self.sums::<S, 1>(distance, root, &Mass);
        let value = top + ln::<S, f64>(total) + self.constant();
        let (_, at_distance) = sigmoid::<S>(self.line.1 - self.line.0 * distance);
        let value = exact.if_greater(0.0, at_distance, value.if_greater(0.0, 0.0, value));
        Dual::constant(valid::<S>(pair.uncertainties, value))
    }

    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let (a, b) = self.line;
        let [distance, root, exact] = self.scales::<S>(&pair);
        let terms = Derivatives { formula: self, root: lanes::<S>(root) };
        let ([total, by_b, by_a, by_d, near, far], _) = self.sums::<S, 6>(distance, root, &terms);
        let (by_b, by_a, by_d) = (by_b / total, root * by_a / total, by_d / root / total);
        let near = -a * (near / total) / root;
        let is_far = (a * root).max(FAR).if_less(distance / root, 1.0, 0.0);
        let by_s = is_far.if_greater(0.0, far / total, near);

        // The partial derivatives at s = 0. Where the distance is 0 as well, the one with respect to the squared distance counts
        // as 0.
        let (q, _) = sigmoid::<S>(b - a * distance);
        let apart = distance.if_greater(0.0, q / distance, 0.0);
        let at_zero = [apart, self.bend::<S>(q, distance), q * distance, q];
        let mut partials = [by_d, by_s, by_a, by_b];
        for (x, at_zero) in partials.iter_mut().zip(at_zero) {
            *x = valid::<S>(pair.uncertainties, exact.if_greater(0.0, at_zero, *x));
        }
        let [by_d, by_s, by_a, by_b] = partials;
        Partials { x: -0.5 * a * by_d, norm: 0.0.into(), uncertainty: 0.5 * by_s, shared: [-by_a, by_b] }
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts::<MatchProbability>("hib_isotropic", "var", "line").with_orders(), |r| MatchProbability { dim: r.dim(), orders: r.orders(), line: r.both() }),
];
