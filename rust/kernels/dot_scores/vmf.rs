//! Scores of von Mises-Fisher distributions.
//!
//! Scores are computed from x = |mu1 - mu2|^2, so that no large terms cancel: for R = |k1 mu1 + k2 mu2|,
//! R^2 = (k1 + k2)^2 - k1 k2 x and k1 + k2 - R = k1 k2 x / (k1 + k2 + R). The normaliser C(k) is taken relative to
//! log C(0) = -log |S^(D-1)|: log C(k) = log C(0) - H(k) - k with H(k) = log(0F1(; D/2; k^2/4) e^-k), which is 0 at k = 0.
//! A(k) = I_(D/2)(k) / I_(D/2-1)(k) is the mean resultant length, A(k) = H'(k) + 1.
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
/// With alpha = beta = 1 it is the mutual likelihood score, with alpha = beta = rho the log of the probability product kernel.
#[derive(Clone, Copy)]
pub struct OverlapVmf<'a> {
    /// The orders of the Bessel functions for dimension D.
    pub orders: Orders<'a>,
    /// The powers alpha and beta.
    pub powers: (f64, f64),
    /// A constant that is added to the score.
    pub offset: f64,
}

/// The length R of the resultant, and k1 + k2 - R.
#[inline(always)]
fn resultant<S: Simd>((k1, k2): (V<S, f64>, V<S, f64>), x: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
    let (sum, product) = (k1 + k2, k1 * k2 * x);
    // The rounding of the rows can bring the square of a tiny R below 0; the tiny floor also avoids 0 / 0.
    let r = (sum * sum - product).max(f64::MIN_POSITIVE).sqrt();
    (r, product / (sum + r))
}

impl OverlapVmf<'_> {
    /// G(k) = H(k) + k = log C(0) - log C(k), which rises and is convex in k, but is concave in k^2.
    #[inline(always)]
    fn g<S: Simd>(&self, k: V<S, f64>) -> V<S, f64> {
        k + bessel::log_hyp0f1e::<S>(self.orders.normaliser, k)
    }

    fn dim(&self) -> f64 {
        2.0 * self.orders.normaliser.order() + 2.0
    }

    /// The derivative with respect to the power of the item with concentration `k`. `h` is H(k), and `along` the derivative of
    /// G(R) with respect to the item's concentration times its power. This is not a closure, since closures do not inherit the
    /// instruction set of the function around them.
    #[inline(always)]
    fn by_power<S: Simd>(&self, pair: &Pair<V<S, f64>>, k: V<S, f64>, h: V<S, f64>, along: V<S, f64>) -> V<S, f64> {
        valid::<S>(pair.extras, self.orders.normaliser.log_norm_at_zero() - h - k + along * k)
    }

    /// beta k2 for the least (`end` 0) or the greatest k2 of a group.
    fn end(&self, group: &Group, end: usize) -> f64 {
        self.powers.1 * if end == 0 { group.extras.0 } else { group.extras.1 }
    }

    /// The value that G(R) must reach for a score at the least or greatest k2 of a group (`end`) to reach the threshold.
    fn needed(&self, threshold: f64, query: &Query, group: &Group, end: usize) -> f64 {
        let ((alpha, beta), dim) = (self.powers, self.dim());
        let most = alpha * query.extra + beta * group.extras.1;
        let spare = 12e-15 * dim.max(2.0) + SPARE * (most + threshold.abs()) + 4.0 * f64::EPSILON / dim * most * most;
        let constant = self.offset + (alpha + beta - 1.0) * self.orders.normaliser.log_norm_at_zero();
        threshold - constant + query.own.k1 + group.own[end] - spare - SPARE * constant.abs()
    }

    /// Moves tangents of G(sqrt y), one in each lane, towards the y at which they reach the value `needed`, and returns them with
    /// these y. A tangent is a point, a value and a slope; a slope of 0 marks a tangent that does not exist yet.
    #[inline(always)]
    fn tangent<S: Simd>(
        &self,
        mut tangent: [V<S, f64>; 3],
        needed: V<S, f64>,
        k1: V<S, f64>,
        k2: f64,
    ) -> ([V<S, f64>; 3], V<S, f64>) {
        // A tangent is renewed if it does not exist yet, or if its point would move by more than 1/64 of itself.
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
    /// The intermediate H(k).
    #[inline(always)]
    fn own<S: Simd>(&self, k: V<S, f64>, _: V<S, f64>) -> [V<S, f64>; OWN] {
        [bessel::log_hyp0f1e::<S>(self.orders.normaliser, k), 0.0.into(), 0.0.into()]
    }
    /// The intermediates A(k) and H(k).
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
    /// Written out in terms of A(R): H'(R) = A(R) - 1 would cancel where R is small (for D = 128 and k = 0.01 with a relative
    /// error of 6e-13 instead of 6e-17). The A(k) of an item is computed once for all of its pairs.
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
    /// The errors of two evaluations of H, 2e-15 relative to max(1, order) each, and of R^2, four roundings of (k1 + k2)^2 times
    /// G'(R) / 2R <= 1 / 2D.
    #[inline(always)]
    fn tolerance<S: Simd>(&self, pair: &Pair<V<S, f64>>) -> V<S, f64> {
        let (k1, k2) = self.scaled::<S>(pair.extras);
        let dim = self.dim();
        let spare = 12e-15 * dim.max(2.0) + SPARE * (k1 + k2);
        ((k1 + k2) * (k1 + k2)).mul_add(4.0 * f64::EPSILON / dim, spare)
    }

    /// The values at the least and the greatest k2 of a tangent of beta G(k2), whose point is midway between them.
    #[inline(always)]
    fn group<S: Simd>(&self, group: &mut Group) {
        let (least, greatest) = group.extras;
        let middle = 0.5 * (least + greatest);
        let slope = bessel::iv_ratio::<S>(self.orders.ratio, middle.into()).to_array()[0];
        let value = self.g::<S>(middle.into()).to_array()[0];
        group.own = [least, greatest].map(|k2| self.powers.1 * (value + slope * (k2 - middle)));
    }

    /// Moves the tangents of eight queries at once: the latency of their Bessel functions would add up one by one.
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
                // A query without a threshold has no needed value: the NaN leaves its tangents unmoved.
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

    /// The score is G(R) - alpha G(k1) - beta G(k2) + constant. At any x, G(R) is convex in k2 (R is the length of a sum), so it
    /// lies below its chord, and G(k2) lies above its tangent: the score lies below a line in k2, whose maximum is at the least
    /// or at the greatest k2. There G(R) must reach the needed value, so R^2 a least y. As G is concave in R^2, the y at which a
    /// tangent reaches that value is a lower bound of it, and costs one division; [`Tangents`] holds one tangent for each end.
    /// Unless it is near already, the point of a tangent moves to the last bound, which is a Newton step.
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
            // A NaN in either bound makes the result NaN.
            bound = if bound.is_nan() || x <= bound { bound } else { x };
        }
        // R is the length of a sum, hence convex in k2, only for x <= 4; rounded unit rows may be a little further apart.
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

/// Mutual likelihood score plus an offset, which is the shared number of its kernel.
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

/// Minus `share KL(p1 || p2) + (1 - share) KL(p2 || p1)`, where, with c = cos(mu1, mu2),
/// `KL(p1 || p2) = log C(k1) - log C(k2) + A(k1) (k1 - k2 c) = H(k2) - H(k1) + (k2 - k1) (1 - A(k1)) + A(k1) k2 x / 2`.
#[derive(Clone, Copy)]
pub struct NegKlVmf<'a> {
    /// The orders of the Bessel functions for dimension D.
    pub orders: Orders<'a>,
    /// The weight of KL(p1 || p2), between 0 and 1; 1/2 gives the mean of both divergences.
    pub share: f64,
}

impl NegKlVmf<'_> {
    /// KL(p1 || p2) without its term H(k2) - H(k1); `ratio` is A(k1).
    #[inline(always)]
    fn moved<S: Simd>(&self, ratio: V<S, f64>, k1: V<S, f64>, k2: V<S, f64>, x: V<S, f64>) -> V<S, f64> {
        (k2 - k1) * (1.0 - ratio) + 0.5 * ratio * k2 * x
    }
}

impl Formula for NegKlVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const OWN: (usize, usize) = (2, 3);
    /// The intermediates A(k) and H(k).
    #[inline(always)]
    fn own<S: Simd>(&self, k: V<S, f64>, _: V<S, f64>) -> [V<S, f64>; OWN] {
        let ratio = bessel::iv_ratio::<S>(self.orders.ratio, k);
        [ratio, bessel::log_hyp0f1e::<S>(self.orders.normaliser, k), 0.0.into()]
    }
    /// The intermediates A(k), H(k) and A'(k).
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
    /// Written out in terms of A'(k), which is computed once for all pairs of an item.
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (k1, k2) = pair.extras;
        let (share, rest) = (self.share, 1.0 - self.share);
        let cosine = 1.0 - 0.5 * pair.x;
        let ([a1, h1, slope], [a2, h2, _]) = pair.own;
        let (forth, back) = (self.moved::<S>(a1, k1, k2, pair.x), self.moved::<S>(a2, k2, k1, pair.x));
        // The derivatives of KL(p1 || p2) and of KL(p2 || p1) with respect to k1.
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
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[Score] = &[
    score!(facts::<MlsVmf>("mls_vmf", "kappa", "offset").with_own_orders(), |r| MlsVmf::new(r.orders(), r.shared(0))),
    score!(facts::<OverlapVmf>("overlap_vmf", "kappa", "powers").with_own_orders(), |r| OverlapVmf { orders: r.orders(), powers: r.both(), offset: 0.0 }),
    score!(facts::<NegKlVmf>("neg_kl_vmf", "kappa", "share").with_own_orders(), |r| NegKlVmf { orders: r.orders(), share: r.shared(0) }),
];
