//! The trapezoidal rule for the integral where the integrand is smooth: where D >= 24 and |A| < 4.
//!
//! There the trapezoidal rule converges exponentially. With step h, and a normal of standard deviation sigma in the place of the
//! peak, its error consists of exp(-2 (pi sigma / h)^2), from the normal, and exp((pi / (A sigma))^2 / 2 - 2 pi^2 / (A h)), from
//! the poles of the sigmoid, which lie i pi / A from its turn. For h = [`Smooth::step`] both together are below 3e-11. The 20 to
//! 80 nodes are taken from near the peak outwards until they add nothing.

use super::{lanes, Integral, MatchProbability, Node, Numbers, Terms};
use crate::simd::{Kernel, Simd, V};
use crate::special::exp::exp;
use crate::special::log::ln;
use std::f64::consts::PI;

/// Computes sigmoid(y), sigmoid(-y) and log(t^(D-1) H(L t)) from t, L t and y.
struct SmoothLog<'a> {
    formula: &'a MatchProbability<'a>,
    numbers: [Numbers; 3],
}
impl Kernel for SmoothLog<'_> {
    const LANES_MEET: bool = false;
    type Output = [Numbers; 3];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let [t, x, y] = self.numbers.map(|x| V::<S, f64>::load(&x));
        let decay = exp::<S>(-y.abs());
        let large = 1.0 / (1.0 + decay);
        let small = decay * large;
        let powers = (self.formula.dim - 1.0) * ln::<S, f64>(t);
        let log = powers + self.formula.log_hyp0f1e::<S>(x);
        [y.if_less(0.0, small, large), y.if_less(0.0, large, small), log].map(lanes::<S>)
    }
}

/// The least |A| that is too steep for the trapezoidal rule, and the least D that is large enough for it.
const SMOOTH: (f64, f64) = (4.0, 24.0);

/// The integrals of eight pairs by the trapezoidal rule.
pub struct Smooth<'a, S: Simd> {
    integral: Integral<'a, S>,
    /// The first node, near the peak.
    start: V<S, f64>,
    /// The step h between nodes.
    step: V<S, f64>,
    /// 1 for the pairs whose integral this rule computes accurately, else 0.
    pub fits: V<S, f64>,
}

impl<'a, S: Simd> Smooth<'a, S> {
    #[inline(always)]
    pub fn new(formula: &'a MatchProbability<'a>, distance: V<S, f64>, root: V<S, f64>) -> Self {
        let (zero, (a, b)) = (V::<S, f64>::from(0.0), formula.line);
        let (length, steep) = (distance / root, a * root);
        let middle = b - a * distance;
        let integral = Integral { formula, length, steep, middle, cut: zero, widths: [zero; 2], top: zero };
        // The iteration begins at t^2 = L^2 + D - 1, near the mean of t^2 under f, L^2 + D.
        let around = formula.dim - 1.0;
        let mut start = around / (length.mul_add(length, around).sqrt() + length);
        for _ in 0..4 {
            let (slope, bend) = integral.derivatives(start);
            start = (start - slope / bend).max(0.5 * (start - length));
        }
        let (slope, bend) = integral.derivatives(start);
        let (square, steep) = (-1.0 / bend, steep.abs());
        let poles = (steep * steep).mul_add(25.0, 0.5 * PI * PI / square);
        let by_poles = 2.0 * PI * PI * steep / poles;
        let by_width = 0.8 * square.sqrt();
        // For small A sigma the poles are so far away that their error is negligible.
        let far = (steep * square.sqrt()).if_greater(0.4, 0.0, 1.0);
        let step = far.if_greater(0.0, by_width, by_poles.min(by_width));
        // The rule fits only if the start is near the peak and the sigmoid is a normal number there.
        let near = (slope * slope * square).if_less(1.0, 1.0, 0.0);
        let smooth = steep.if_less(SMOOTH.0, near, 0.0);
        let fits = integral.y(start).if_greater(-600.0, smooth, 0.0);
        let fits = if formula.dim < SMOOTH.1 { zero } else { fits };
        Smooth { integral, start, step, fits }
    }

    /// A node and the logarithm of f there, without f's constant. The node's weight is relative to exp(`top`).
    #[inline(always)]
    fn node(&self, tau: V<S, f64>, top: V<S, f64>) -> (Node<S>, V<S, f64>) {
        let at = &self.integral;
        let t = at.t(tau);
        let numbers = [t, at.length * t, at.y(tau)].map(lanes::<S>);
        let [p, q, log] = S::call(SmoothLog { formula: at.formula, numbers }).map(|x| V::<S, f64>::load(&x));
        let log = log - 0.5 * tau * tau;
        (Node { tau, t, q, weight: p * exp::<S>(log - top) }, log)
    }

    /// The sums of `terms` over all nodes, and the logarithm of the factor that they are relative to.
    #[inline(always)]
    pub fn sums<const N: usize>(&self, terms: &impl Terms<N>) -> ([V<S, f64>; N], V<S, f64>) {
        let zero = V::<S, f64>::from(0.0);
        let (_, top) = self.node(self.start, zero);
        let (node, _) = self.node(self.start, top);
        let mut sums = terms.of::<S>(&self.integral, &node);
        for sum in &mut sums {
            *sum = *sum * node.weight;
        }
        for direction in [1.0, -1.0] {
            let mut active = self.fits;
            for k in 1..=NODES {
                let tau = self.step.mul_add(direction * k as f64, self.start);
                let (node, _) = self.node(tau, top);
                // Each pair stops by itself, so that its sums do not depend on the other pairs of its vector.
                active = node.weight.if_greater(NOTHING * sums[0], active, 0.0);
                active = tau.if_greater(-self.integral.length, active, 0.0);
                if zero.not_less_bits(active) == (1 << V::<S, f64>::LANES) - 1 {
                    break;
                }
                let weight = active.if_greater(0.0, node.weight, 0.0);
                for (sum, term) in sums.iter_mut().zip(terms.of::<S>(&self.integral, &node)) {
                    *sum = active.if_greater(0.0, term.mul_add(weight, *sum), *sum);
                }
            }
        }
        let scale = self.fits.if_greater(0.0, self.step, 1.0);
        for sum in &mut sums {
            *sum = *sum * scale;
        }
        (sums, top)
    }
}

/// The largest number of nodes on either side of the first.
const NODES: usize = 200;
/// The weight, relative to the sum of the weights so far, up to which further nodes add nothing.
const NOTHING: f64 = 1e-14;
