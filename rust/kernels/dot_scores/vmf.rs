//! Scores of von Mises-Fisher distributions.
//!
//! With x = |mu1 - mu2|^2 nothing large cancels: for R = |k1 mu1 + k2 mu2|, k1 + k2 - R = k1 k2 x / (k1 + k2 + R) and
//! R^2 = (k1 + k2)^2 - k1 k2 x. With H(k) = log(0F1(; D/2; k^2/4) e^-k), 0 at k = 0, log C(k) = log C(0) - H(k) - k, so all
//! log C are taken relative to log C(0) = -log |S^(D-1)|.
//!
//! Sources: vMF overlap, "Probabilistic Embeddings Revisited" sec. 3; products of powers as for normals.

use super::formulas::{valid, Formula, Group, Pair, Query, Slopes, OWN, SPARE};
use super::{facts, pair_function};
use crate::kernels::score::{score, Score};
use crate::simd::{Float, Simd, V};
use crate::special::bessel::{self, Orders};
use crate::special::dual::Dual;

/// Log of the integral of `p1^alpha p2^beta`, plus an offset:
/// `alpha log C(k1) + beta log C(k2) - log C(|alpha k1 mu1 + beta k2 mu2|) + offset`.
///
/// Alpha = beta = 1 is the mutual likelihood score, alpha = beta = rho the probability product kernel.
#[derive(Clone, Copy)]
pub struct OverlapVmf<'a> {
    /// Of D.
    pub orders: Orders<'a>,
    /// alpha and beta.
    pub powers: (f64, f64),
    /// Added to the score.
    pub offset: f64,
}

/// R and k1 + k2 - R.
#[inline(always)]
fn resultant<S: Simd>((k1, k2): (V<S, f64>, V<S, f64>), x: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
    let (sum, product) = (k1 + k2, k1 * k2 * x);
    // Rounding of the rows can bring the square of a tiny R below 0; a tiny floor also keeps 0 / 0 out.
    let r = (sum * sum - product).max(f64::MIN_POSITIVE).sqrt();
    (r, product / (sum + r))
}

impl OverlapVmf<'_> {
    /// G(k) = H(k) + k, which rises and is convex in k, but concave in k^2.
    #[inline(always)]
    fn g<S: Simd>(&self, k: V<S, f64>) -> V<S, f64> {
        k + bessel::log_hyp0f1e::<S>(self.orders.normaliser, k)
    }

    fn dim(&self) -> f64 {
        2.0 * self.orders.normaliser.order() + 2.0
    }

    /// The derivative by the power of k, where R grows with k by `along`, and `h` is H(k). No closure: what is not inlined is
    /// compiled for no level.
    #[inline(always)]
    fn by_power<S: Simd>(&self, pair: &Pair<V<S, f64>>, k: V<S, f64>, h: V<S, f64>, along: V<S, f64>) -> V<S, f64> {
        valid::<S>(pair.extras, self.orders.normaliser.log_norm_at_zero() - h - k + along * k)
    }

    /// beta k2 at the least k2 of a group, or at the greatest.
    fn end(&self, group: &Group, end: usize) -> f64 {
        self.powers.1 * if end == 0 { group.extras.0 } else { group.extras.1 }
    }

    /// What G(R) must reach at an end of a group for a row to reach the threshold.
    fn needed(&self, threshold: f64, query: &Query, group: &Group, end: usize) -> f64 {
        let ((alpha, beta), dim) = (self.powers, self.dim());
        let most = alpha * query.extra + beta * group.extras.1;
        let spare = 12e-15 * dim.max(2.0) + SPARE * (most + threshold.abs()) + 4.0 * f64::EPSILON / dim * most * most;
        let constant = self.offset + (alpha + beta - 1.0) * self.orders.normaliser.log_norm_at_zero();
        threshold - constant + query.own.k1 + group.own[end] - spare - SPARE * constant.abs()
    }

    /// Tangents of G(sqrt y), lane by lane, point, value and slope (0: none yet), moved near to where they reach what is
    /// needed; and these y.
    #[inline(always)]
    fn tangent<S: Simd>(
        &self,
        mut tangent: [V<S, f64>; 3],
        needed: V<S, f64>,
        k1: V<S, f64>,
        k2: f64,
    ) -> ([V<S, f64>; 3], V<S, f64>) {
        // The first time, and where the point would move by more than a part in 64.
        for _ in 0..3 {
            let [at, value, slope] = tangent;
            let y = at + (needed - value) / slope;
            let far = (y - at).abs().if_greater(at * (1.0 / 64.0), 1.0, 0.0);
            if far.not_less_bits(0.5) == 0 {
                return (tangent, y);
            }
            let first = k1.mul_add(k1, k2 * k2);
            let to = slope.if_greater(0.0, y.max(at * (1.0 / 16.0)), first);
            let r = to.sqrt();
            let ratio = bessel::iv_ratio::<S>(self.orders.ratio, r);
            let slope = r.if_greater(0.0, 0.5 * ratio / r, 0.5 / self.dim());
            let moved = [to, self.g::<S>(r), slope];
            for (old, new) in tangent.iter_mut().zip(moved) {
                *old = far.if_greater(0.0, new, *old);
            }
        }
        let [at, value, slope] = tangent;
        (tangent, at + (needed - value) / slope)
    }

    #[inline(always)]
    fn scaled<S: Simd>(&self, (k1, k2): (V<S, f64>, V<S, f64>)) -> (V<S, f64>, V<S, f64>) {
        (self.powers.0 * k1, self.powers.1 * k2)
    }
}

impl Formula for OverlapVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const OWN: (usize, usize) = (1, 2);
    /// H(k).
    #[inline(always)]
    fn own<S: Simd>(&self, k: V<S, f64>, _: V<S, f64>) -> [V<S, f64>; OWN] {
        [bessel::log_hyp0f1e::<S>(self.orders.normaliser, k), 0.0.into(), 0.0.into()]
    }
    /// A(k) and H(k).
    #[inline(always)]
    fn own_slopes<S: Simd>(&self, k: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; OWN] {
        [bessel::iv_ratio::<S>(self.orders.ratio, k), self.own::<S>(k, norm)[0], 0.0.into()]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let (pair, (alpha, beta)) = (pair.values(), self.powers);
        let (r, lost) = resultant::<S>(self.scaled::<S>(pair.extras), pair.x);
        let constant = self.offset + (alpha + beta - 1.0) * self.orders.normaliser.log_norm_at_zero();
        let own = alpha * pair.own.0[0] + beta * pair.own.1[0];
        let value = bessel::log_hyp0f1e::<S>(self.orders.normaliser, r) - own - lost;
        Dual::constant(valid::<S>(pair.extras, value + constant))
    }
    /// Written out, by A(R): H'(R) = A(R) - 1 would cancel where R is small (D = 128: a relative error of 6e-13 at k = 0.01 in the
    /// place of 6e-17), and the items' own A(k) are made once for all of their pairs.
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (k1, k2) = self.scaled::<S>(pair.extras);
        let (r, _) = resultant::<S>((k1, k2), pair.x);
        let pull = bessel::iv_ratio::<S>(self.orders.ratio, r) / r;
        let cosine = 1.0 - 0.5 * pair.x;
        let along = pull * k2.mul_add(cosine, k1);
        let extra = along - pair.own.0[0];
        Slopes {
            x: valid::<S>(pair.extras, -0.5 * k1 * k2 * pull),
            norm: 0.0.into(),
            extra: valid::<S>(pair.extras, self.powers.0 * extra),
            shared: [
                self.by_power::<S>(&pair, pair.extras.0, pair.own.0[1], along),
                self.by_power::<S>(&pair, pair.extras.1, pair.own.1[1], pull * k1.mul_add(cosine, k2)),
            ],
        }
    }
    /// Two evaluations of log norms, 2e-15 relative to max(1, order) each, and R^2, four roundings of (k1 + k2)^2 off, times
    /// G' / 2R <= 1/2D.
    #[inline(always)]
    fn tolerance<S: Simd>(&self, pair: &Pair<V<S, f64>>) -> V<S, f64> {
        let (k1, k2) = self.scaled::<S>(pair.extras);
        let dim = self.dim();
        let spare = 12e-15 * dim.max(2.0) + SPARE * (k1 + k2);
        ((k1 + k2) * (k1 + k2)).mul_add(4.0 * f64::EPSILON / dim, spare)
    }

    /// A tangent of beta G(k2), at the least and the greatest k2.
    #[inline(always)]
    fn group<S: Simd>(&self, group: &mut Group) {
        let (least, greatest) = group.extras;
        let middle = 0.5 * (least + greatest);
        let slope = bessel::iv_ratio::<S>(self.orders.ratio, middle.into()).to_array()[0];
        let value = self.g::<S>(middle.into()).to_array()[0];
        group.own = [least, greatest].map(|k2| self.powers.1 * (value + slope * (k2 - middle)));
    }

    /// Of eight queries at once: alone they would wait for each other's Bessel functions.
    #[inline(always)]
    fn enter<S: Simd>(&self, thresholds: &[f64], queries: &mut [Query], group: &Group) {
        for (thresholds, queries) in thresholds.chunks(f64::LANES).zip(queries.chunks_mut(f64::LANES)) {
            let count = queries.len();
            let lanes = |of: &dyn Fn(usize) -> f64| {
                let mut x = [1.0; f64::LANES];
                x.iter_mut().take(count).enumerate().for_each(|(i, x)| *x = of(i));
                V::<S, f64>::load(&x)
            };
            if queries[0].own.k1 == 0.0 {
                let k1 = lanes(&|i| queries[i].extra);
                let k1 = (self.powers.0 * self.g::<S>(k1)).to_array();
                queries.iter_mut().zip(k1).for_each(|(query, k1)| query.own.k1 = k1);
            }
            for end in 0..2 {
                // Without a threshold nothing is needed, and no tangent moves.
                let any = |i: usize| if thresholds[i] == f64::NEG_INFINITY { f64::NAN } else { thresholds[i] };
                let needed = |i: usize| self.needed(any(i), &queries[i], group, end);
                let tangent = [0, 1, 2].map(|n| lanes(&|i| queries[i].own.tangents[end][n]));
                let k1 = self.powers.0 * lanes(&|i| queries[i].extra);
                let (tangent, _) = self.tangent::<S>(tangent, lanes(&needed), k1, self.end(group, end));
                let tangent = tangent.map(|x| x.to_array());
                for (i, query) in queries.iter_mut().enumerate() {
                    query.own.tangents[end] = [0, 1, 2].map(|n| tangent[n][i]);
                }
            }
        }
    }

    /// The score is G(R) - alpha G(k1) - beta G(k2) + constant. At any x, G(R) is convex in k2 (R is the length of a sum), so
    /// it lies below its chord, and G(k2) above a tangent: the score lies below a line, which is highest at the least k2 or at
    /// the greatest. There R^2 must reach a least y. A tangent in R^2, concave, bounds it from below at the price of a
    /// division: `tangents` holds one for each end, point, value and slope. The point moves to where the last bound was, a Newton
    /// step, unless it is there already.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let k1 = self.powers.0 * query.extra;
        let mut bound = f64::NEG_INFINITY;
        for end in 0..2 {
            let (k2, needed) = (self.end(group, end), self.needed(threshold, query, group, end));
            let tangent = query.own.tangents[end].map(V::<S, f64>::splat);
            let (tangent, y) = self.tangent::<S>(tangent, needed.into(), k1.into(), k2);
            query.own.tangents[end] = tangent.map(|x| x.to_array()[0]);
            let x = ((1.0 + SPARE) * (k1 + k2) * (k1 + k2) - y.to_array()[0]) / (k1 * k2);
            // A NaN must show.
            bound = if bound.is_nan() || x <= bound { bound } else { x };
        }
        // R is a length, and convex, where x is at most 4; rows that are rounded may be a little further apart.
        if bound > 3.99 {
            f64::INFINITY
        } else {
            bound
        }
    }

    fn transposed(self) -> Self {
        OverlapVmf { powers: (self.powers.1, self.powers.0), ..self }
    }
}

/// Mutual likelihood score, plus an offset that is what its shared number means.
#[derive(Clone, Copy)]
pub struct MlsVmf<'a>(OverlapVmf<'a>);

impl<'a> MlsVmf<'a> {
    /// `log C(k1) + log C(k2) - log C(R) + offset`.
    pub fn new(orders: Orders<'a>, offset: f64) -> Self {
        MlsVmf(OverlapVmf { orders, powers: (1.0, 1.0), offset })
    }
}

impl Formula for MlsVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const OWN: (usize, usize) = <OverlapVmf as Formula>::OWN;
    #[inline(always)]
    fn own<S: Simd>(&self, k: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; OWN] {
        self.0.own::<S>(k, norm)
    }
    #[inline(always)]
    fn own_slopes<S: Simd>(&self, k: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; OWN] {
        self.0.own_slopes::<S>(k, norm)
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        self.0.value::<S>(pair)
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        Slopes { shared: [1.0.into(), 0.0.into()], ..self.0.slopes::<S>(pair) }
    }
    #[inline(always)]
    fn tolerance<S: Simd>(&self, pair: &Pair<V<S, f64>>) -> V<S, f64> {
        self.0.tolerance::<S>(pair)
    }
    #[inline(always)]
    fn group<S: Simd>(&self, group: &mut Group) {
        self.0.group::<S>(group);
    }
    #[inline(always)]
    fn enter<S: Simd>(&self, thresholds: &[f64], queries: &mut [Query], group: &Group) {
        self.0.enter::<S>(thresholds, queries, group);
    }
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        self.0.bound::<S>(threshold, query, group)
    }
}

/// Minus `share KL(p1 || p2) + (1 - share) KL(p2 || p1)`, with c = cos(mu1, mu2) and
/// `KL(p1 || p2) = log C(k1) - log C(k2) + A(k1) (k1 - k2 c) = H(k2) - H(k1) + (k2 - k1) (1 - A(k1)) + A(k1) k2 x / 2`.
#[derive(Clone, Copy)]
pub struct NegKlVmf<'a> {
    /// Of D.
    pub orders: Orders<'a>,
    /// 1 from the first item to the second, 0 the other way, 1/2 the mean of both.
    pub share: f64,
}

impl NegKlVmf<'_> {
    /// KL(p1 || p2) without H(k2) - H(k1); `ratio` is A(k1).
    #[inline(always)]
    fn moved<S: Simd>(&self, ratio: V<S, f64>, k1: V<S, f64>, k2: V<S, f64>, x: V<S, f64>) -> V<S, f64> {
        (k2 - k1) * (1.0 - ratio) + 0.5 * ratio * k2 * x
    }
}

impl Formula for NegKlVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const OWN: (usize, usize) = (2, 3);
    /// A(k) and H(k).
    #[inline(always)]
    fn own<S: Simd>(&self, k: V<S, f64>, _: V<S, f64>) -> [V<S, f64>; OWN] {
        let ratio = bessel::iv_ratio::<S>(self.orders.ratio, k);
        [ratio, bessel::log_hyp0f1e::<S>(self.orders.normaliser, k), 0.0.into()]
    }
    /// A(k), H(k) and A'(k).
    #[inline(always)]
    fn own_slopes<S: Simd>(&self, k: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; OWN] {
        let [ratio, h, _] = self.own::<S>(k, norm);
        [ratio, h, bessel::iv_ratio_dx::<S>(self.orders.ratio, k)]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let pair = pair.values();
        let (k1, k2) = pair.extras;
        let ([a1, h1, _], [a2, h2, _]) = pair.own;
        let mut sum = (2.0 * self.share - 1.0) * (h2 - h1);
        for (share, ratio, k1, k2) in [(self.share, a1, k1, k2), (1.0 - self.share, a2, k2, k1)] {
            if share != 0.0 {
                sum = self.moved::<S>(ratio, k1, k2, pair.x).mul_add(share, sum);
            }
        }
        Dual::constant(valid::<S>(pair.extras, -sum))
    }
    /// Written out, of A'(k), which is made once for an item.
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (k1, k2) = pair.extras;
        let (share, rest) = (self.share, 1.0 - self.share);
        let cosine = 1.0 - 0.5 * pair.x;
        let ([a1, h1, slope], [a2, h2, _]) = pair.own;
        let (forth, back) = (self.moved::<S>(a1, k1, k2, pair.x), self.moved::<S>(a2, k2, k1, pair.x));
        // KL(p1 || p2) and KL(p2 || p1) by k1.
        let by_first = slope * (k1 - k2 * cosine);
        let by_second = a1 - a2 * cosine;
        let apart = forth - back + 2.0 * (h2 - h1);
        Slopes {
            x: valid::<S>(pair.extras, -0.5 * (share * a1 * k2 + rest * a2 * k1)),
            norm: 0.0.into(),
            extra: valid::<S>(pair.extras, -(share * by_first + rest * by_second)),
            shared: [valid::<S>(pair.extras, -apart), 0.0.into()],
        }
    }
    fn transposed(self) -> Self {
        NegKlVmf { share: 1.0 - self.share, ..self }
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // a line for each
pub const KERNELS: &[Score] = &[
    score!(facts::<MlsVmf>("mls_vmf", "kappa", "offset").with_own_orders(), |r| MlsVmf::new(r.orders(), r.shared(0))),
    score!(facts::<OverlapVmf>("overlap_vmf", "kappa", "powers").with_own_orders(), |r| OverlapVmf { orders: r.orders(), powers: r.both(), offset: 0.0 }),
    score!(facts::<NegKlVmf>("neg_kl_vmf", "kappa", "share").with_own_orders(), |r| NegKlVmf { orders: r.orders(), share: r.shared(0) }),
];
