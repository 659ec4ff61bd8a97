//! Log of the probability that two draws match (Oh et al. 2019, "Modeling uncertainty with hedged instance embeddings"),
//! `log E sigmoid(b - a |z1 - z2|)`, for isotropic normals: without draws.
//!
//! With s = v1 + v2, d = |mu1 - mu2| and L = d / sqrt s, the radius t = |z1 - z2| / sqrt s is non-central chi with D degrees,
//!
//!   f(t) = t^(D-1) exp(-(t - L)^2/2) H(L t) |S^(D-1)| (2 pi)^(-D/2), H(x) = 0F1(; D/2; x^2/4) e^-x,
//!
//! so one integral is left, of f(t) sigmoid(y), y = b - a d - A (t - L), A = a sqrt s. The logarithm of what is integrated is
//! concave (for D > 1): its peak is found by Newton steps and bisection, and from outside, without overshooting, the two
//! places where it has fallen by [`DEPTH`]. Between them the sigmoid may turn within a width 1/A far below that of f; at
//! its turn, y = 0, or, where that is far, at the peak, the interval is cut, and on each part Gauss-Legendre with 64 nodes runs over
//! u, t = cut + width u^4, whose nodes crowd where the sigmoid turns. All runs on t - L, since t itself loses digits for
//! large L.
//!
//! Where that is smooth, `smooth` has a faster rule.
//!
//! Derivatives, with P the density f sigmoid / E, q = sigmoid(-y), R(x) = I_(D/2)(x) / I_(D/2-1)(x) the mean cosine of
//! z1 - z2 with mu1 - mu2 given its length:
//!   by b: P[q]; by a: -sqrt s P[q t]; by d^2: -a/2 P[q R(L t) / d]; by s: -a/(2 sqrt s) P[q (t - L R(L t))], or, as the heat
//!   equation has it and without cancellation where L is large, 1/2 P[a^2 q (2 q - 1) - a q (D - 1) / (sqrt s t)].
//!
//! Error relative to max(1, |score|) in float64, D 1 .. 2048, L 0 .. 1e3, A -300 .. 1e4, b that puts the turn anywhere:
//! below 4e-10 (one place at D = 1: 2e-9) against composite quadrature, at 4655 places; where A is 1e8 .. 1e16 and b = 0, below
//! 1e-12 against the limit, D 1 .. 512.

use super::formulas::{valid, Formula, Pair, Slopes};
use super::{facts, pair_function};
use crate::kernels::score::{score, Score};
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use crate::special::bessel;
use crate::special::bessel::Orders;
use crate::special::dual::Dual;
use crate::special::exp::exp;
use crate::special::log::ln;
use crate::special::tables::GAUSS_64;
use std::f64::consts::{LN_2, PI};

mod smooth;

use smooth::Smooth;

/// By so much the logarithm falls to the ends of the interval.
const DEPTH: f64 = 28.0;
/// Steps towards the peak and towards the ends.
const STEPS: (usize, usize) = (32, 8);
/// Between L and this, and A, the derivative by s changes form.
const FAR: f64 = 40.0;

/// `log E sigmoid(b - a |z1 - z2|)` of isotropic normals.
#[derive(Clone, Copy)]
pub struct MatchProbability<'a> {
    /// D
    pub dim: f64,
    /// For the Bessel functions.
    pub orders: Orders<'a>,
    /// a and b
    pub line: (f64, f64),
}

impl MatchProbability<'_> {
    /// log |S^(D-1)| (2 pi)^(-D/2)
    fn constant(&self) -> f64 {
        let surface = if self.dim == 1.0 { LN_2 } else { -self.orders.normaliser.log_norm_at_zero() };
        surface - 0.5 * self.dim * (2.0 * PI).ln()
    }

    /// log H(x)
    #[inline(always)]
    fn log_hyp0f1e<S: Simd>(&self, x: V<S, f64>) -> V<S, f64> {
        if self.dim == 1.0 {
            let decay = exp::<S>(-2.0 * x);
            return ln::<S, f64>(0.5 * (1.0 + decay));
        }
        bessel::log_hyp0f1e::<S>(self.orders.normaliser, x)
    }

    /// R(x) and its derivative.
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

/// sigmoid(-y) and log sigmoid(y)
#[inline(always)]
fn sigmoid<S: Simd>(y: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
    let decay = exp::<S>(-y.abs());
    let by = 1.0 / (1.0 + decay);
    (y.if_less(0.0, by, decay * by), y.min(0.0) - ln::<S, f64>(1.0 + decay))
}

/// Eight numbers of eight pairs.
type Numbers = [f64; f64::LANES];

#[inline(always)]
fn lanes<S: Simd>(x: V<S, f64>) -> Numbers {
    let mut out = [0.0; f64::LANES];
    x.store(&mut out);
    out
}

/// From t, L t and y: sigmoid(-y) and log(t^(D-1) H(L t) sigmoid(y)). A dispatch of its own, as is [`Ratio`], so that it is
/// not compiled again in each of its many places.
struct Log<'a> {
    formula: &'a MatchProbability<'a>,
    numbers: [Numbers; 3],
}
impl Kernel for Log<'_> {
    type Output = [Numbers; 2];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let [t, x, y] = self.numbers.map(|x| V::<S, f64>::load(&x));
        let (q, log_sigmoid) = sigmoid::<S>(y);
        let powers = (self.formula.dim - 1.0) * ln::<S, f64>(t);
        [q, powers + self.formula.log_hyp0f1e::<S>(x) + log_sigmoid].map(lanes::<S>)
    }
}

/// R(x) and its derivative.
struct Ratio<'a> {
    formula: &'a MatchProbability<'a>,
    x: Numbers,
}
impl Kernel for Ratio<'_> {
    type Output = [Numbers; 2];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let (ratio, slope) = self.formula.ratio::<S>(V::<S, f64>::load(&self.x));
        [ratio, slope].map(lanes::<S>)
    }
}

/// The integral of eight pairs. Places are tau = t - L.
struct Integral<'a, S: Simd> {
    formula: &'a MatchProbability<'a>,
    /// L, A and b - a d
    length: V<S, f64>,
    steep: V<S, f64>,
    middle: V<S, f64>,
    /// Where the interval is cut, and how far it reaches from there to the left (< 0) and to the right.
    cut: V<S, f64>,
    widths: [V<S, f64>; 2],
    /// The logarithm of what is integrated, at its peak.
    top: V<S, f64>,
}

/// What is integrated, at a node.
struct Node<S: Simd> {
    tau: V<S, f64>,
    t: V<S, f64>,
    /// sigmoid(-y)
    q: V<S, f64>,
    /// f sigmoid du, relative to the peak
    weight: V<S, f64>,
}

impl<'a, S: Simd> Integral<'a, S> {
    #[inline(always)]
    fn new(formula: &'a MatchProbability<'a>, distance: V<S, f64>, root: V<S, f64>) -> Self {
        let (zero, (a, b)) = (V::<S, f64>::from(0.0), formula.line);
        let (length, steep) = (distance / root, a * root);
        let middle = b - a * distance;
        let mut at = Integral { formula, length, steep, middle, cut: zero, widths: [zero; 2], top: zero };

        // At the peak (D-1)/t balances tau and A q, and q is above 1/2 beyond the turn.
        let highest = formula.dim.sqrt() + zero.max(-steep);
        let balanced = (2.0 * (formula.dim - 1.0) / steep - length).max(middle / steep).max(0.0);
        let (mut low, mut high) = (-length, steep.if_greater(0.0, highest.min(balanced), highest));
        let mut peak = high;
        for step in 0..STEPS.0 {
            let (slope, bend) = at.slopes(peak);
            low = slope.if_greater(0.0, peak, low);
            high = slope.if_greater(0.0, high, peak);
            let next = peak - slope / bend;
            // Newton alone can go to and fro between two slopes; half of the first half of the steps bisect.
            let newton = if step % 2 == 0 || step > STEPS.0 / 2 { 1.0 } else { 0.0 };
            let within = low.if_less(next, next.if_less(high, newton, 0.0), 0.0);
            peak = within.if_greater(0.0, next, 0.5 * (low + high));
        }
        at.top = at.log(peak).1;

        // The logarithm bends by more than -1 (D > 1), and at the left falls below (D - 1) (log r + 1 - r) at r = t / t peak.
        let reach = (2.0 * DEPTH).sqrt() + 0.5;
        let fraction = (-DEPTH / (formula.dim - 1.0) - 1.0).max(-60.0).exp();
        let left = (fraction * (length + peak) - length).max(peak - reach);
        let ends = [if formula.dim == 1.0 { (peak - reach).max(-length) } else { left }, peak + reach];
        let ends = ends.map(|start| {
            let mut end = start;
            for _ in 0..STEPS.1 {
                let above = at.log(end).1 - at.top + DEPTH;
                let next = end - above / at.slopes(end).0;
                // Within its bounds also where the logarithm is not concave: D = 1 near t = 0.
                let next = next.max(start.min(peak)).min(start.max(peak));
                end = above.if_less(0.0, next, end);
            }
            end
        });
        let turn = middle / steep;
        // A turn just outside still bends what is inside.
        let near = 8.0 / steep.abs();
        let inside = (ends[0] - near).if_less(turn, turn.if_less(ends[1] + near, 1.0, 0.0), 0.0);
        at.cut = inside.if_greater(0.0, turn.max(ends[0]).min(ends[1]), peak);
        at.widths = ends.map(|end| end - at.cut);
        at
    }

    #[inline(always)]
    fn y(&self, tau: V<S, f64>) -> V<S, f64> {
        self.middle - self.steep * tau
    }

    /// sigmoid(-y), and the logarithm of f sigmoid without its constant.
    #[inline(always)]
    fn log(&self, tau: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
        let t = self.t(tau);
        let numbers = [t, self.length * t, self.y(tau)].map(lanes::<S>);
        let [q, log] = dispatch(Log { formula: self.formula, numbers });
        (V::<S, f64>::load(&q), V::<S, f64>::load(&log) - 0.5 * tau * tau)
    }

    #[inline(always)]
    fn t(&self, tau: V<S, f64>) -> V<S, f64> {
        (self.length + tau).max(f64::MIN_POSITIVE)
    }

    /// L (1 - R(x)), R(x) / x and the derivative of R, x = L t.
    #[inline(always)]
    fn pull(&self, t: V<S, f64>) -> (V<S, f64>, V<S, f64>, V<S, f64>) {
        let x = (self.length * t).max(1e-100); // R(x) / x is constant there
        let [ratio, slope] = dispatch(Ratio { formula: self.formula, x: lanes::<S>(x) });
        let (ratio, slope) = (V::<S, f64>::load(&ratio), V::<S, f64>::load(&slope));
        let by_x = ratio / x;
        // 1 - R^2 = R' + (D - 1) R / x
        let square = by_x.mul_add(self.formula.dim - 1.0, slope);
        (self.length * square / (1.0 + ratio), by_x, slope)
    }

    /// The first two derivatives of that logarithm.
    #[inline(always)]
    fn slopes(&self, tau: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
        let t = self.t(tau);
        let (short, _, slope) = self.pull(t);
        let (q, _) = sigmoid::<S>(self.y(tau));
        let powers = (self.formula.dim - 1.0) / t;
        let first = powers - short - tau - self.steep * q;
        let second = self.length * self.length * slope - powers / t - 1.0 - self.steep * self.steep * q * (1.0 - q);
        (first, second.if_less(-1.0, second, -1.0))
    }

    /// Node `i` of a part.
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

/// What is summed over nodes, the first of which is 1.
trait Terms<const N: usize> {
    fn of<S: Simd>(&self, integral: &Integral<S>, node: &Node<S>) -> [V<S, f64>; N];
}

/// 1 alone.
struct Mass;
impl Terms<1> for Mass {
    #[inline(always)]
    fn of<S: Simd>(&self, _: &Integral<S>, _: &Node<S>) -> [V<S, f64>; 1] {
        [1.0.into()]
    }
}

/// 1, q, q t, q R / d, q (t - L R) and a^2 q (2 q - 1) - a q (D - 1) / (sqrt s t), given a and sqrt s of each pair.
struct Derivatives<'a> {
    formula: &'a MatchProbability<'a>,
    root: Numbers,
}
impl Terms<6> for Derivatives<'_> {
    #[inline(always)]
    fn of<S: Simd>(&self, integral: &Integral<S>, node: &Node<S>) -> [V<S, f64>; 6] {
        let &Node { tau, t, q, .. } = node;
        let (short, by_x, _) = integral.pull(t);
        let bend = self.formula.bend::<S>(q, V::<S, f64>::load(&self.root) * t);
        [1.0.into(), q, q * t, q * t * by_x, q * (tau + short), bend]
    }
}

impl MatchProbability<'_> {
    /// a^2 q (2 q - 1) - a q (D - 1) / r
    #[inline(always)]
    fn bend<S: Simd>(&self, q: V<S, f64>, r: V<S, f64>) -> V<S, f64> {
        let a = self.line.0;
        a * q * (a * (q + q - 1.0) - (self.dim - 1.0) / r)
    }

    /// Sums over the nodes that suit each pair, and the logarithm that they are relative to.
    #[inline(always)]
    fn sums<S: Simd, const N: usize>(
        &self,
        distance: V<S, f64>,
        root: V<S, f64>,
        terms: &impl Terms<N>,
    ) -> ([V<S, f64>; N], V<S, f64>) {
        let smooth = Smooth::<S>::new(self, distance, root);
        let trapezoidal = smooth.sums(terms);
        if smooth.fits.not_less_bits(0.5) == (1 << f64::LANES) - 1 {
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

    /// The distance, sqrt s, and whether (> 0) s is so small that the sigmoid at the distance is the answer.
    #[inline(always)]
    fn scales<S: Simd>(&self, pair: &Pair<V<S, f64>>) -> [V<S, f64>; 3] {
        let s = pair.extras.0 + pair.extras.1;
        let least = (1e-200 * pair.x).max(f64::MIN_POSITIVE);
        let exact = s.if_less(least, 1.0, 0.0);
        [pair.x.sqrt(), exact.if_greater(0.0, 1.0, s.sqrt()), exact]
    }
}

impl Formula for MatchProbability<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const BY_SUM: bool = true;
    const SIEVED: bool = false; // the quadrature is not monotone in x

    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let pair = pair.values();
        let [distance, root, exact] = self.scales::<S>(&pair);
        let ([total], top) = self.sums::<S, 1>(distance, root, &Mass);
        let value = top + ln::<S, f64>(total) + self.constant();
        let (_, at_distance) = sigmoid::<S>(self.line.1 - self.line.0 * distance);
        let value = exact.if_greater(0.0, at_distance, value.if_greater(0.0, 0.0, value));
        Dual::constant(valid::<S>(pair.extras, value))
    }

    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (a, b) = self.line;
        let [distance, root, exact] = self.scales::<S>(&pair);
        let terms = Derivatives { formula: self, root: lanes::<S>(root) };
        let ([total, by_b, by_a, by_d, near, far], _) = self.sums::<S, 6>(distance, root, &terms);
        let means = [by_b, root * by_a, by_d / root].map(|x| x / total);
        let near = -a * (near / total) / root;
        let is_far = (a * root).max(FAR).if_less(distance / root, 1.0, 0.0);
        let by_s = is_far.if_greater(0.0, far / total, near);

        // At s = 0; where the distance is 0 too, it has no direction to move in.
        let (q, _) = sigmoid::<S>(b - a * distance);
        let apart = distance.if_greater(0.0, q / distance, 0.0);
        let choose = |at_zero: V<S, f64>, x: V<S, f64>| valid::<S>(pair.extras, exact.if_greater(0.0, at_zero, x));
        Slopes {
            x: -0.5 * a * choose(apart, means[2]),
            norm: 0.0.into(),
            extra: 0.5 * choose(self.bend::<S>(q, distance), by_s),
            shared: [-choose(q * distance, means[1]), choose(q, means[0])],
        }
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // a line for each
pub const KERNELS: &[Score] = &[
    score!(facts::<MatchProbability>("hib_isotropic", "var", "line").with_orders(), |r| MatchProbability { dim: r.dim(), orders: r.orders(), line: r.both() }),
];
