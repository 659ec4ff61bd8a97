//! Scores of von Mises-Fisher distributions.
//!
//! Scores are computed from x = |mu1 - mu2|^2, so that no large terms cancel: for R = |kappa1 mu1 + kappa2 mu2|,
//! R^2 = (kappa1 + kappa2)^2 - kappa1 kappa2 x and kappa1 + kappa2 - R = kappa1 kappa2 x / (kappa1 + kappa2 + R). The normaliser
//! C(kappa) is taken relative to log C(0) = -log |S^(D-1)|: log C(kappa) = log C(0) - H(kappa) - kappa with H(kappa) = log(0F1(;
//! D/2; kappa^2/4) e^-kappa), which is 0 at kappa = 0. A(kappa) = I_(D/2)(kappa) / I_(D/2-1)(kappa) is the mean resultant length,
//! A(kappa) = H'(kappa) + 1.
//!
//! Sources: vMF overlap, "Probabilistic Embeddings Revisited" sec. 3; products of powers as for normals.

use super::formulas::{growing, valid, Formula, Group, Pair, Partials, Query, PER_ITEM, SPARE};
use super::{facts, pair_function};
use crate::kernels::pair_op::{pair_op, PairOp};
use crate::simd::{Float, Simd, V};
use crate::special::bessel::{self, Orders};
use crate::special::dual::Dual;

/// Log of the integral of `p1^alpha p2^beta`, plus an offset:
/// `alpha log C(kappa1) + beta log C(kappa2) - log C(|alpha kappa1 mu1 + beta kappa2 mu2|) + offset`.
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

/// The length R of the resultant, and kappa1 + kappa2 - R.
#[inline(always)]
fn resultant<S: Simd>((kappa1, kappa2): (V<S, f64>, V<S, f64>), x: V<S, f64>) -> (V<S, f64>, V<S, f64>) {
    let (sum, product) = (kappa1 + kappa2, kappa1 * kappa2 * x);
    // The rounding of the rows can bring the square of a tiny R below 0; the tiny floor also avoids 0 / 0.
    let r = (sum * sum - product).max(f64::MIN_POSITIVE).sqrt();
    (r, product / (sum + r))
}

impl OverlapVmf<'_> {
    /// G(kappa) = H(kappa) + kappa = log C(0) - log C(kappa), which rises and is convex in kappa, but is concave in kappa^2.
    #[inline(always)]
    fn g<S: Simd>(&self, kappa: V<S, f64>) -> V<S, f64> {
        kappa + bessel::log_hyp0f1e::<S>(self.orders.normaliser, kappa)
    }

    fn dim(&self) -> f64 {
        2.0 * self.orders.normaliser.order() + 2.0
    }

    /// The derivative with respect to the power of the item with concentration `kappa`. `h` is H(kappa), and `along` the
    /// derivative of G(R) with respect to the item's concentration times its power. This is not a closure, since closures do not
    /// inherit the instruction set of the function around them.
    #[inline(always)]
    fn by_power<S: Simd>(&self, pair: &Pair<V<S, f64>>, kappa: V<S, f64>, h: V<S, f64>, along: V<S, f64>) -> V<S, f64> {
        valid::<S>(pair.uncertainties, self.orders.normaliser.log_norm_at_zero() - h - kappa + along * kappa)
    }

    /// beta kappa2 for the least (`end` 0) or the greatest kappa2 of a group.
    fn end(&self, group: &Group, end: usize) -> f64 {
        self.powers.1 * if end == 0 { group.uncertainties.0 } else { group.uncertainties.1 }
    }

    /// The value that G(R) must reach for a score at the least or greatest kappa2 of a group (`end`) to reach the threshold.
    fn needed(&self, threshold: f64, query: &Query, group: &Group, end: usize) -> f64 {
        let ((alpha, beta), dim) = (self.powers, self.dim());
        let most = alpha * query.uncertainty + beta * group.uncertainties.1;
        let spare = 12e-15 * dim.max(2.0) + SPARE * (most + threshold.abs()) + 4.0 * f64::EPSILON / dim * most * most;
        let constant = self.offset + (alpha + beta - 1.0) * self.orders.normaliser.log_norm_at_zero();
        threshold - constant + query.tangents.alpha_g_kappa1 + group.tangent_at_ends[end]
            - spare
            - SPARE * constant.abs()
    }

    /// Moves tangents of G(sqrt y), one in each lane, towards the y at which they reach the value `needed`, and returns them with
    /// these y. A tangent is a point, a value and a slope; a slope of 0 marks a tangent that does not exist yet.
    #[inline(always)]
    fn tangent<S: Simd>(
        &self,
        mut tangent: [V<S, f64>; 3],
        needed: V<S, f64>,
        kappa1: V<S, f64>,
        kappa2: f64,
    ) -> ([V<S, f64>; 3], V<S, f64>) {
        // A tangent is renewed if it does not exist yet, or if its point would move by more than 1/64 of itself.
        for _ in 0..3 {
            let [at, value, slope] = tangent;
            let y = at + (needed - value) / slope;
            let far = (y - at).abs().if_greater(at * (1.0 / 64.0), 1.0, 0.0);
            if far.not_less_bits(0.5) == 0 {
                return (tangent, y);
            }
            let first = kappa1.mul_add(kappa1, kappa2 * kappa2);
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
    fn scaled<S: Simd>(&self, (kappa1, kappa2): (V<S, f64>, V<S, f64>)) -> (V<S, f64>, V<S, f64>) {
        (self.powers.0 * kappa1, self.powers.1 * kappa2)
    }
}

impl Formula for OverlapVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const PER_ITEM: (usize, usize) = (1, 2);
    /// The number per item H(kappa).
    #[inline(always)]
    fn per_item<S: Simd>(&self, kappa: V<S, f64>, _: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [bessel::log_hyp0f1e::<S>(self.orders.normaliser, kappa), 0.0.into(), 0.0.into()]
    }
    /// The numbers per item A(kappa) and H(kappa).
    #[inline(always)]
    fn per_item_for_partials<S: Simd>(&self, kappa: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        [bessel::iv_ratio::<S>(self.orders.ratio, kappa), self.per_item::<S>(kappa, norm)[0], 0.0.into()]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let (pair, (alpha, beta)) = (pair.values(), self.powers);
        let (r, lost) = resultant::<S>(self.scaled::<S>(pair.uncertainties), pair.x);
        let constant = self.offset + (alpha + beta - 1.0) * self.orders.normaliser.log_norm_at_zero();
        let normalisers = alpha * pair.per_item.0[0] + beta * pair.per_item.1[0];
        let value = bessel::log_hyp0f1e::<S>(self.orders.normaliser, r) - normalisers - lost;
        Dual::constant(valid::<S>(pair.uncertainties, value + constant))
    }
    /// Written out in terms of A(R): H'(R) = A(R) - 1 would cancel where R is small (for D = 128 and kappa = 0.01 with a relative
    /// error of 6e-13 instead of 6e-17). The A(kappa) of an item is computed once for all of its pairs.
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let (kappa1, kappa2) = self.scaled::<S>(pair.uncertainties);
        let (r, _) = resultant::<S>((kappa1, kappa2), pair.x);
        let a_over_r = bessel::iv_ratio::<S>(self.orders.ratio, r) / r;
        let cosine = 1.0 - 0.5 * pair.x;
        let along = a_over_r * kappa2.mul_add(cosine, kappa1);
        let uncertainty = along - pair.per_item.0[0];
        Partials {
            x: valid::<S>(pair.uncertainties, -0.5 * kappa1 * kappa2 * a_over_r),
            norm: 0.0.into(),
            uncertainty: valid::<S>(pair.uncertainties, self.powers.0 * uncertainty),
            shared: [
                self.by_power::<S>(&pair, pair.uncertainties.0, pair.per_item.0[1], along),
                self.by_power::<S>(
                    &pair,
                    pair.uncertainties.1,
                    pair.per_item.1[1],
                    a_over_r * kappa1.mul_add(cosine, kappa2),
                ),
            ],
        }
    }
    /// Infinite concentrations, for which H(kappa) falls as -(D - 1)/2 log kappa. Beside a finite kappa2, R - alpha kappa1 goes to
    /// beta kappa2 cos, and where alpha is 1 the score is the log density beta at mu1.
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let ((alpha, beta), (kappa1, kappa2)) = (self.powers, pair.uncertainties);
        let constant = self.offset + (alpha + beta - 1.0) * self.orders.normaliser.log_norm_at_zero();
        let density = |power: f64, h: f64, kappa: f64| constant - power * (h + 0.5 * kappa * pair.x);
        match (kappa1 == f64::INFINITY, kappa2 == f64::INFINITY) {
            (true, true) => pair.if_equal(growing(alpha + beta - 1.0) + constant),
            (true, false) => growing(alpha - 1.0) + density(beta, pair.per_item.1[0], kappa2),
            (false, true) => growing(beta - 1.0) + density(alpha, pair.per_item.0[0], kappa1),
            (false, false) => f64::NAN,
        }
    }
    /// The derivatives of the log density at a point; the other derivatives at infinite concentrations count as 0.
    fn partials_at_edge(&self, pair: &Pair<f64>, _: Partials<f64>) -> Partials<f64> {
        let ((alpha, beta), (kappa1, kappa2)) = (self.powers, pair.uncertainties);
        let mut partials = Partials { x: 0.0, norm: 0.0, uncertainty: 0.0, shared: [0.0; 2] };
        // The derivative with respect to the power of the density, which is that density's logarithm.
        let by_power = |h: f64, kappa: f64| self.orders.normaliser.log_norm_at_zero() - h - 0.5 * kappa * pair.x;
        if kappa1 == f64::INFINITY && kappa2 < f64::INFINITY && alpha == 1.0 {
            partials.x = -0.5 * beta * kappa2;
            partials.shared[1] = by_power(pair.per_item.1[1], kappa2);
        } else if kappa2 == f64::INFINITY && kappa1 < f64::INFINITY && beta == 1.0 {
            partials.x = -0.5 * alpha * kappa1;
            partials.uncertainty = alpha * (1.0 - pair.per_item.0[0] - 0.5 * pair.x);
            partials.shared[0] = by_power(pair.per_item.0[1], kappa1);
        }
        partials
    }
    /// The errors of two evaluations of H, 2e-15 relative to max(1, order) each, and of R^2, four roundings of (kappa1 +
    /// kappa2)^2 times G'(R) / 2R <= 1 / 2D.
    #[inline(always)]
    fn tolerance<S: Simd>(&self, pair: &Pair<V<S, f64>>) -> V<S, f64> {
        let (kappa1, kappa2) = self.scaled::<S>(pair.uncertainties);
        // Beside an infinite one, a score is that of a finite concentration alone.
        let (kappa1, kappa2) = (kappa1.if_less(f64::INFINITY, kappa1, 0.0), kappa2.if_less(f64::INFINITY, kappa2, 0.0));
        let dim = self.dim();
        let spare = 12e-15 * dim.max(2.0) + SPARE * (kappa1 + kappa2);
        ((kappa1 + kappa2) * (kappa1 + kappa2)).mul_add(4.0 * f64::EPSILON / dim, spare)
    }

    /// The values at the least and the greatest kappa2 of a tangent of beta G(kappa2), whose point is midway between them.
    #[inline(always)]
    fn group<S: Simd>(&self, group: &mut Group) {
        let (least, greatest) = group.uncertainties;
        let middle = 0.5 * (least + greatest);
        let slope = bessel::iv_ratio::<S>(self.orders.ratio, middle.into()).to_array()[0];
        let value = self.g::<S>(middle.into()).to_array()[0];
        group.tangent_at_ends = [least, greatest].map(|kappa2| self.powers.1 * (value + slope * (kappa2 - middle)));
    }

    /// Moves the tangents of some queries at once: the latency of their Bessel functions would add up one by one.
    #[inline(always)]
    fn enter<S: Simd>(&self, thresholds: &[f64], queries: &mut [Query], group: &Group) {
        let width = V::<S, f64>::LANES;
        for (thresholds, queries) in thresholds.chunks(width).zip(queries.chunks_mut(width)) {
            let count = queries.len();
            let numbers = |of: &dyn Fn(usize) -> f64| {
                let mut x = [1.0; f64::LANES];
                x.iter_mut().take(count).enumerate().for_each(|(i, x)| *x = of(i));
                x
            };
            if queries[0].tangents.alpha_g_kappa1 == 0.0 {
                let kappa1 = V::<S, f64>::load(&numbers(&|i| queries[i].uncertainty));
                let alpha_g = (self.powers.0 * self.g::<S>(kappa1)).to_array();
                queries.iter_mut().zip(alpha_g).for_each(|(query, alpha_g)| query.tangents.alpha_g_kappa1 = alpha_g);
            }
            for end in 0..2 {
                // A query without a threshold has no needed value: the NaN leaves its tangents unmoved.
                let any = |i: usize| if thresholds[i] == f64::NEG_INFINITY { f64::NAN } else { thresholds[i] };
                let needed = |i: usize| self.needed(any(i), &queries[i], group, end);
                let mut tangent = [V::<S, f64>::from(0.0); 3];
                for (n, tangent) in tangent.iter_mut().enumerate() {
                    *tangent = V::<S, f64>::load(&numbers(&|i| queries[i].tangents.at_ends[end][n]));
                }
                let kappa1 = self.powers.0 * V::<S, f64>::load(&numbers(&|i| queries[i].uncertainty));
                let needed = V::<S, f64>::load(&numbers(&needed));
                let (tangent, _) = self.tangent::<S>(tangent, needed, kappa1, self.end(group, end));
                for (n, tangent) in tangent.into_iter().enumerate() {
                    let lanes = tangent.to_array();
                    queries.iter_mut().zip(lanes).for_each(|(query, x)| query.tangents.at_ends[end][n] = x);
                }
            }
        }
    }

    /// The score is G(R) - alpha G(kappa1) - beta G(kappa2) + constant. At any x, G(R) is convex in kappa2 (R is the length of a
    /// sum), so it lies below its chord, and G(kappa2) lies above its tangent: the score lies below a line in kappa2, whose
    /// maximum is at the least or at the greatest kappa2. There G(R) must reach the needed value, so R^2 a least y. As G is
    /// concave in R^2, the y at which a tangent reaches that value is a lower bound of it, and costs one division; [`Tangents`]
    /// holds one tangent for each end. Unless it is near already, the point of a tangent moves to the last bound, which is a
    /// Newton step.
    #[inline(always)]
    fn bound<S: Simd>(&self, threshold: f64, query: &mut Query, group: &Group) -> f64 {
        let kappa1 = self.powers.0 * query.uncertainty;
        let mut bound = f64::NEG_INFINITY;
        for end in 0..2 {
            let (kappa2, needed) = (self.end(group, end), self.needed(threshold, query, group, end));
            let tangent = query.tangents.at_ends[end].map(V::<S, f64>::splat);
            let (tangent, y) = self.tangent::<S>(tangent, needed.into(), kappa1.into(), kappa2);
            query.tangents.at_ends[end] = tangent.map(|x| x.to_array()[0]);
            let x = ((1.0 + SPARE) * (kappa1 + kappa2) * (kappa1 + kappa2) - y.to_array()[0]) / (kappa1 * kappa2);
            // A NaN in either bound makes the result NaN.
            bound = if bound.is_nan() || x <= bound { bound } else { x };
        }
        // R is the length of a sum, hence convex in kappa2, only for x <= 4; rounded unit rows may be a little further apart.
        if bound > 3.99 {
            f64::INFINITY
        } else {
            bound
        }
    }

    const SYMMETRIC: bool = false;
    fn transposed(self) -> Self {
        OverlapVmf { powers: (self.powers.1, self.powers.0), ..self }
    }
}

/// Mutual likelihood score plus an offset, which is the shared number of its kernel.
#[derive(Clone, Copy)]
pub struct MlsVmf<'a>(OverlapVmf<'a>);

impl<'a> MlsVmf<'a> {
    /// `log C(kappa1) + log C(kappa2) - log C(R) + offset`.
    pub fn new(orders: Orders<'a>, offset: f64) -> Self {
        MlsVmf(OverlapVmf { orders, powers: (1.0, 1.0), offset })
    }
}

impl Formula for MlsVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const PER_ITEM: (usize, usize) = <OverlapVmf as Formula>::PER_ITEM;
    #[inline(always)]
    fn per_item<S: Simd>(&self, kappa: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        self.0.per_item::<S>(kappa, norm)
    }
    #[inline(always)]
    fn per_item_for_partials<S: Simd>(&self, kappa: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        self.0.per_item_for_partials::<S>(kappa, norm)
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        self.0.value::<S>(pair)
    }
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        Partials { shared: [1.0.into(), 0.0.into()], ..self.0.partials::<S>(pair) }
    }
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        self.0.at_edge(pair)
    }
    fn partials_at_edge(&self, pair: &Pair<f64>, partials: Partials<f64>) -> Partials<f64> {
        Partials { shared: [1.0, 0.0], ..self.0.partials_at_edge(pair, partials) }
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
/// `KL(p1 || p2) = log C(kappa1) - log C(kappa2) + A(kappa1) (kappa1 - kappa2 c)
/// = H(kappa2) - H(kappa1) + (kappa2 - kappa1) (1 - A(kappa1)) + A(kappa1) kappa2 x / 2`.
#[derive(Clone, Copy)]
pub struct NegKlVmf<'a> {
    /// The orders of the Bessel functions for dimension D.
    pub orders: Orders<'a>,
    /// The weight of KL(p1 || p2), between 0 and 1; 1/2 gives the mean of both divergences.
    pub share: f64,
}

impl NegKlVmf<'_> {
    /// KL(p1 || p2) without its term H(kappa2) - H(kappa1); `ratio` is A(kappa1).
    #[inline(always)]
    fn moved<S: Simd>(&self, ratio: V<S, f64>, kappa1: V<S, f64>, kappa2: V<S, f64>, x: V<S, f64>) -> V<S, f64> {
        (kappa2 - kappa1) * (1.0 - ratio) + 0.5 * ratio * kappa2 * x
    }
}

impl Formula for NegKlVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    const PER_ITEM: (usize, usize) = (2, 3);
    /// The numbers per item A(kappa) and H(kappa).
    #[inline(always)]
    fn per_item<S: Simd>(&self, kappa: V<S, f64>, _: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        let ratio = bessel::iv_ratio::<S>(self.orders.ratio, kappa);
        [ratio, bessel::log_hyp0f1e::<S>(self.orders.normaliser, kappa), 0.0.into()]
    }
    /// The numbers per item A(kappa), H(kappa) and A'(kappa).
    #[inline(always)]
    fn per_item_for_partials<S: Simd>(&self, kappa: V<S, f64>, norm: V<S, f64>) -> [V<S, f64>; PER_ITEM] {
        let [ratio, h, _] = self.per_item::<S>(kappa, norm);
        [ratio, h, bessel::iv_ratio_dx::<S>(self.orders.ratio, kappa)]
    }
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<Dual<S>>) -> Dual<S> {
        let pair = pair.values();
        let (kappa1, kappa2) = pair.uncertainties;
        let ([a1, h1, _], [a2, h2, _]) = pair.per_item;
        let mut sum = (2.0 * self.share - 1.0) * (h2 - h1);
        for (share, ratio, kappa1, kappa2) in [(self.share, a1, kappa1, kappa2), (1.0 - self.share, a2, kappa2, kappa1)]
        {
            if share != 0.0 {
                sum = self.moved::<S>(ratio, kappa1, kappa2, pair.x).mul_add(share, sum);
            }
        }
        Dual::constant(valid::<S>(pair.uncertainties, -sum))
    }
    /// An infinite concentration: the divergence of equal items is 0, that from or to any other item infinite.
    fn at_edge(&self, pair: &Pair<f64>) -> f64 {
        let (kappa1, kappa2) = pair.uncertainties;
        if kappa1 == kappa2 {
            pair.if_equal(0.0)
        } else {
            f64::NEG_INFINITY
        }
    }
    /// Written out in terms of A'(kappa), which is computed once for all pairs of an item.
    #[inline(always)]
    fn partials<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Partials<V<S, f64>> {
        let (kappa1, kappa2) = pair.uncertainties;
        let (share, rest) = (self.share, 1.0 - self.share);
        let cosine = 1.0 - 0.5 * pair.x;
        let ([a1, h1, derivative], [a2, h2, _]) = pair.per_item;
        let (forth, back) = (self.moved::<S>(a1, kappa1, kappa2, pair.x), self.moved::<S>(a2, kappa2, kappa1, pair.x));
        // The derivatives of KL(p1 || p2) and of KL(p2 || p1) with respect to kappa1.
        let by_first = derivative * (kappa1 - kappa2 * cosine);
        let by_second = a1 - a2 * cosine;
        let apart = forth - back + 2.0 * (h2 - h1);
        Partials {
            x: valid::<S>(pair.uncertainties, -0.5 * (share * a1 * kappa2 + rest * a2 * kappa1)),
            norm: 0.0.into(),
            uncertainty: valid::<S>(pair.uncertainties, -(share * by_first + rest * by_second)),
            shared: [valid::<S>(pair.uncertainties, -apart), 0.0.into()],
        }
    }
    const SYMMETRIC: bool = false;
    fn transposed(self) -> Self {
        NegKlVmf { share: 1.0 - self.share, ..self }
    }
}

/// The scores of these formulas.
#[rustfmt::skip] // one line for each score
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts::<MlsVmf>("mls_vmf", "kappa", "offset").with_per_item_orders(), |r| MlsVmf::new(r.orders(), r.shared(0))),
    pair_op!(facts::<OverlapVmf>("overlap_vmf", "kappa", "powers").with_per_item_orders(), |r| OverlapVmf { orders: r.orders(), powers: r.both(), offset: 0.0 }),
    pair_op!(facts::<NegKlVmf>("neg_kl_vmf", "kappa", "share").with_per_item_orders(), |r| NegKlVmf { orders: r.orders(), share: r.shared(0) }),
];
