//! Scores of normals with a variance per dimension (on one side at least; a constant row stands for an isotropic variance).
//!
//! The cost of the textbook forms is one division and one logarithm per dimension. Here four vectors of dimensions share one
//! division, and a pair takes one logarithm in all: the variances' product is kept as significand and exponent.
//!
//! Range: with every s in [2^-31, 2^31] (float32; 2^+-255 for float64) products of two lie within 2^+-62 and of four within
//! 2^+-124, so nothing overflows and nothing loses digits to subnormals; a numerator that underflows errs by 2^-150, at most
//! 2^-26 after the division, where the logarithms alone are above 80. Pairs outside that range, with a negative variance or a
//! sum that is not finite are done again, slowly, by [`Formula::by_dimension`] in float64.
//!
//! Sources: Shi & Jain 2019 (PFE) eq. 3, with its 1/2 and 2 pi; likelihood ratio, PLDA with a variance per item.

use crate::shapes::{Gradient, Inputs, PairScore, Rows, Side, AHEAD, BLOCK};
use crate::simd::{prefetch, Float, Lanes, Simd, V};
use crate::special::log::ln;
use std::f64::consts::LN_2;

/// One dimension of a pair in float64: means, variances and the shared number.
#[derive(Clone, Copy)]
pub struct Dimension {
    a: f64,
    b: f64,
    v: f64,
    w: f64,
    shared: f64,
}

/// Derivatives of a score by one dimension's first mean and variance and by the shared number.
pub struct Slopes {
    mean: f64,
    var: f64,
    shared: f64,
}

/// Running sums over the dimensions of a pair.
pub struct Sums<X> {
    /// The rational part.
    rational: X,
    /// The part under the logarithm: the product's significand and exponent.
    significand: X,
    exponent: X,
    /// Least variances of the two rows, greatest number under the logarithm.
    least: (X, X),
    greatest: X,
}

/// The maths of a score. All of them are symmetric in the two items.
pub trait Formula: Copy + Sync {
    /// What a score is made of: `constant * D + rational_weight * sum of rationals + log_weight * sum of logarithms`.
    const WEIGHTS: (f64, f64);
    /// Whether the numbers under the logarithms are sums of the two variances, so that their least is known from those.
    const SUMS: bool;
    /// The constant per dimension.
    const CONSTANT: f64;
    /// The rational part and the number under the logarithm of one dimension: definition, slow path.
    fn by_dimension(x: Dimension) -> (f64, f64);
    /// Derivatives of the score, weights included.
    fn slopes(x: Dimension) -> Slopes;
    /// Adds four vectors of dimensions: differences or means `a`, `b`, variances `v`, `w`, shared numbers `p`.
    fn add<S: Simd, T: Float>(sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]);
}

/// A vector of dimensions.
#[derive(Clone, Copy)]
pub struct Loaded<X> {
    a: X,
    b: X,
    v: X,
    w: X,
    shared: X,
}

/// Mutual likelihood score: with s = v + w, `-1/2 sum [ (a - b)^2 / s + log s + log 2 pi ]`.
#[derive(Clone, Copy)]
pub struct Mls;

impl Formula for Mls {
    const WEIGHTS: (f64, f64) = (-0.5, -0.5);
    const SUMS: bool = true;
    const CONSTANT: f64 = -0.918_938_533_204_672_8; // -log(2 pi) / 2

    fn by_dimension(x: Dimension) -> (f64, f64) {
        let s = x.v + x.w;
        ((x.a - x.b) / s * (x.a - x.b), s)
    }

    #[inline(always)]
    fn slopes(x: Dimension) -> Slopes {
        let inverse = 1.0 / (x.v + x.w);
        let pull = (x.a - x.b) * inverse;
        Slopes { mean: -pull, var: 0.5 * (pull * pull - inverse), shared: 0.0 }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        let mut square = [x[0].a; 4];
        let mut s = [x[0].v; 4];
        for i in 0..4 {
            let difference = x[i].a - x[i].b;
            square[i] = difference * difference;
            s[i] = x[i].v + x[i].w;
            sums.least.0 = x[i].v.min(sums.least.0);
            sums.least.1 = x[i].w.min(sums.least.1);
            sums.greatest = s[i].max(sums.greatest);
        }
        // q0/s0 + q1/s1 + q2/s2 + q3/s3 over one denominator.
        let (p01, p23) = (s[0] * s[1], s[2] * s[3]);
        let n01 = square[0].mul_add(s[1], square[1] * s[0]);
        let n23 = square[2].mul_add(s[3], square[3] * s[2]);
        let product = p01 * p23;
        sums.rational = sums.rational + n01.mul_add(p23, n23 * p01) / product;
        let product = sums.significand * product;
        sums.exponent = sums.exponent + product.exponent();
        sums.significand = product.significand();
    }
}

/// Log-likelihood ratio of "same" against "different" when centres are drawn from N(0, diag(p)): with A = p + v, B = p + w,
/// det = p (v + w) + v w, `1/2 sum [ p (a^2 v/A + b^2 w/B - (a - b)^2) / det + log(AB / det) ]`; see `dot_scores` for the
/// form in which nothing cancels.
#[derive(Clone, Copy)]
pub struct Llr;

impl Formula for Llr {
    const WEIGHTS: (f64, f64) = (0.5, 0.5);
    const SUMS: bool = false; // they are ratios >= 1
    const CONSTANT: f64 = 0.0;

    fn by_dimension(x: Dimension) -> (f64, f64) {
        let Dimension { a, b, v, w, shared: p } = x;
        // det / p^2 could leave the range where det does; the ratio v / (p + v) cannot.
        let (f, g) = (v / (p + v), w / (p + w));
        // AB / det = 1 / (1 - (p/A)(p/B)), and 1 - (1 - f)(1 - g) = f + g - f g.
        let apart = f + g - f * g;
        let spread = a * a * f + b * b * g - (a - b) * (a - b);
        (spread * ((1.0 - f) / (p + w)) / apart, 1.0 / apart)
    }

    #[inline(always)]
    fn slopes(x: Dimension) -> Slopes {
        let Dimension { a, b, v, w, shared: p } = x;
        let (s, t) = (p + v, p + w);
        let inverse = 1.0 / (p * (v + w) + v * w);
        let spread = a * a * v / s + b * b * w / t - (a - b) * (a - b);
        let var = p * p * a * a / (s * s) - p * t * spread * inverse - p * p / s;
        let prior = spread - p * (a * a * v / (s * s) + b * b * w / (t * t)) - p * (v + w) * spread * inverse;
        let logs = 1.0 / s + 1.0 / t - (v + w) * inverse;
        Slopes {
            mean: p * inverse * (a * v / s - (a - b)),
            var: 0.5 * var * inverse,
            shared: 0.5 * (prior * inverse + logs),
        }
    }

    #[inline(always)]
    fn add<S: Simd, T: Float>(sums: &mut Sums<V<S, T>>, x: &[Loaded<V<S, T>>; GROUP]) {
        for i in 0..4 {
            let Loaded { a, b, v, w, shared: p } = x[i];
            let (s, t) = (p + v, p + w);
            let both = s * t;
            let inverse = V::<S, T>::splat(T::from_f64(1.0)) / p.mul_add(v + w, v * w);
            let own = (a * a * v).mul_add(t, b * b * w * s) / both;
            let spread = own - (a - b) * (a - b);
            sums.rational = spread.mul_add(p * inverse, sums.rational);
            let ratio = both * inverse;
            // Adds 0 unless the ratio is not finite, which then shows in the sum.
            sums.rational = V::<S, T>::splat(T::default()).mul_add(ratio, sums.rational);
            sums.least.0 = v.min(p.min(sums.least.0));
            sums.least.1 = w.min(sums.least.1);
            sums.greatest = ratio.max(sums.greatest);
            let product = sums.significand * ratio;
            sums.exponent = sums.exponent + product.exponent();
            sums.significand = product.significand();
        }
    }
}

/// A formula over its inputs: the family's pair function.
pub struct DiagScore<'a, T, F> {
    /// The arrays; extras are variances [N, D] or, constant, [N, 1]; the shared row is dense [1, D] or empty.
    pub inputs: Inputs<'a, T>,
    /// The maths.
    pub formula: std::marker::PhantomData<F>,
}

/// Vectors that share a division.
const GROUP: usize = 4;
/// Room for a group of either type.
const WIDEST: usize = GROUP * 16;

/// Vector `n` of a group of a row; a constant row is one element, whatever the group.
#[inline(always)]
fn load<S: Simd, T: Float, const CONSTANT: bool>(row: &[T], group: &[T], n: usize) -> V<S, T> {
    if CONSTANT {
        V::<S, T>::splat(row[0])
    } else {
        V::<S, T>::load(&group[n * T::LANES..(n + 1) * T::LANES])
    }
}

/// The elements of a row from `from` to `dim`, then `fill`.
#[inline(always)]
fn tail<T: Float, const CONSTANT: bool>(row: &[T], from: usize, dim: usize, fill: f64) -> [T; WIDEST] {
    let mut group = [T::from_f64(fill); WIDEST];
    if CONSTANT {
        group[..dim - from].fill(row[0]);
    } else {
        group[..dim - from].copy_from_slice(&row[from..]);
    }
    group
}

/// The rational and the logarithmic part of a pair's score.
struct Parts {
    rational: f64,
    exponent: f64,
    significand: f64,
}

impl<T: Float, F: Formula> DiagScore<'_, T, F> {
    #[inline(always)]
    fn dimension(&self, i: usize, j: usize, d: usize) -> Dimension {
        let Inputs { mu1, extra1, mu2, extra2, shared } = &self.inputs;
        let at = |row: &[T]| row[d.min(row.len() - 1)].to_f64();
        let shared = if shared.stored() == 0 { 0.0 } else { at(shared.row(0)) };
        Dimension { a: at(mu1.row(i)), b: at(mu2.row(j)), v: at(extra1.row(i)), w: at(extra2.row(j)), shared }
    }

    #[inline(always)]
    fn sums<S: Simd, const C: bool, const K: bool>(&self, i: usize, j: usize) -> Parts {
        let Inputs { mu1, extra1, mu2, extra2, shared } = &self.inputs;
        let (a, b, v, w) = (mu1.row(i), mu2.row(j), extra1.row(i), extra2.row(j));
        let dim = a.len();
        let shared = if shared.stored() == 0 { a } else { shared.row(0) };
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let mut sums = Sums { rational: zero, significand: one, exponent: zero, least: (one, one), greatest: one };
        let width = GROUP * T::LANES;
        // The groups of a constant row are never looked at: any row of the right length stands in for them.
        let groups = |row, constant| <[T]>::chunks_exact(if constant { a } else { row }, width);
        let means = groups(a, false).zip(groups(b, false)).zip(groups(shared, false));
        for (((a, b), shared), (v_group, w_group)) in means.zip(groups(v, C).zip(groups(w, K))) {
            let mut x = [Loaded { a: zero, b: zero, v: zero, w: zero, shared: zero }; GROUP];
            for n in 0..GROUP {
                x[n].a = load::<S, T, false>(a, a, n);
                x[n].b = load::<S, T, false>(b, b, n);
                x[n].v = load::<S, T, C>(v, v_group, n);
                x[n].w = load::<S, T, K>(w, w_group, n);
                x[n].shared = load::<S, T, false>(shared, shared, n);
            }
            F::add::<S, T>(&mut sums, &x);
        }
        let whole = dim / width * width;
        if whole < dim {
            // Places beyond the end hold equal means, variances 1/2 and prior 0: they add 0 / 1 and log 1.
            let (a, b) = (tail::<T, false>(a, whole, dim, 0.0), tail::<T, false>(b, whole, dim, 0.0));
            let (v, w) = (tail::<T, C>(v, whole, dim, 0.5), tail::<T, K>(w, whole, dim, 0.5));
            let shared = tail::<T, false>(shared, whole, dim, 0.0);
            let mut x = [Loaded { a: zero, b: zero, v: zero, w: zero, shared: zero }; GROUP];
            for n in 0..GROUP {
                x[n].a = load::<S, T, false>(&a, &a, n);
                x[n].b = load::<S, T, false>(&b, &b, n);
                x[n].v = load::<S, T, false>(&v, &v, n);
                x[n].w = load::<S, T, false>(&w, &w, n);
                x[n].shared = load::<S, T, false>(&shared, &shared, n);
            }
            F::add::<S, T>(&mut sums, &x);
        }
        let parts = Parts {
            rational: sums.rational.sum().to_f64(),
            exponent: sums.exponent.sum().to_f64(),
            significand: sums.significand.product().to_f64(),
        };
        let (zero, (v, w)) = (V::<S, T>::splat(T::default()), sums.least);
        let range = T::QUARTER_RANGE;
        let enough = V::<S, T>::splat(T::from_f64(if F::SUMS { 1.0 / range } else { 0.0 }));
        // A NaN passes here and shows in the sum.
        let in_range = v.not_less_bits(zero)
            & w.not_less_bits(zero)
            & (v + w).not_less_bits(enough)
            & V::<S, T>::splat(T::from_f64(range)).not_less_bits(sums.greatest);
        if in_range == (1 << T::LANES) - 1 && parts.rational.is_finite() {
            parts
        } else {
            self.by_dimension(i, j)
        }
    }

    /// The slow path: any input, one dimension at a time.
    #[cold]
    #[inline(never)]
    fn by_dimension(&self, i: usize, j: usize) -> Parts {
        let mut parts = Parts { rational: 0.0, exponent: 0.0, significand: 1.0 };
        for d in 0..self.inputs.mu1.stored() {
            let x = self.dimension(i, j, d);
            let (rational, under_log) = if x.valid() { F::by_dimension(x) } else { (f64::NAN, f64::NAN) };
            parts.rational += rational;
            parts.exponent += under_log.log2();
        }
        parts
    }

    #[inline(always)]
    fn score_as<S: Simd, const C: bool, const K: bool>(&self, q: Rows, g: Rows, out: &mut [T]) {
        let (mut rational, mut exponent, mut significand) = ([0.0; BLOCK], [0.0; BLOCK], [1.0; BLOCK]);
        for k in 0..out.len() {
            if k + AHEAD < out.len() && matches!(g, Rows::List(_)) {
                prefetch(self.inputs.mu2.row(g.at(k + AHEAD)));
                prefetch(self.inputs.extra2.row(g.at(k + AHEAD)));
            }
            let parts = self.sums::<S, C, K>(q.at(k), g.at(k));
            (rational[k], exponent[k], significand[k]) = (parts.rational, parts.exponent, parts.significand);
        }
        let constant = V::<S, f64>::splat(F::CONSTANT * self.inputs.mu1.stored() as f64);
        let (rational_weight, log_weight) = (V::<S, f64>::splat(F::WEIGHTS.0), V::<S, f64>::splat(F::WEIGHTS.1));
        for (c, out) in out.chunks_mut(f64::LANES).enumerate() {
            let at = c * f64::LANES..(c + 1) * f64::LANES;
            let logs = V::<S, f64>::load(&exponent[at.clone()])
                .mul_add(V::<S, f64>::splat(LN_2), ln::<S, f64>(V::<S, f64>::load(&significand[at.clone()])));
            let rationals = V::<S, f64>::load(&rational[at]);
            let values = rationals.mul_add(rational_weight, logs.mul_add(log_weight, constant)).to_array();
            for (out, value) in out.iter_mut().zip(values) {
                *out = T::from_f64(value);
            }
        }
    }
}

impl Dimension {
    /// Variances below 0 have no score.
    fn valid(&self) -> bool {
        self.v >= 0.0 && self.w >= 0.0 && self.shared >= 0.0
    }
}

impl<T: Float, F: Formula> PairScore<T> for DiagScore<'_, T, F> {
    fn inputs(&self) -> &Inputs<'_, T> {
        &self.inputs
    }

    #[inline(always)]
    fn score<S: Simd>(&self, q: Rows, g: Rows, out: &mut [T]) {
        let dim = self.inputs.mu1.stored();
        // A row of one element in more than one dimension is constant.
        match (self.inputs.extra1.stored() < dim, self.inputs.extra2.stored() < dim) {
            (false, false) => self.score_as::<S, false, false>(q, g, out),
            (true, false) => self.score_as::<S, true, false>(q, g, out),
            (false, true) => self.score_as::<S, false, true>(q, g, out),
            (true, true) => self.score_as::<S, true, true>(q, g, out),
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, side: Side, q: Rows, g: Rows, weights: &[T], out: &mut Gradient<T>) {
        for (k, weight) in weights.iter().enumerate() {
            // A pair that does not count must not spread the NaN or infinity of its slopes.
            if weight.to_f64() != 0.0 {
                self.add_gradient(side, q.at(k), g.at(k), weight.to_f64(), out);
            }
        }
    }
}

/// A row, or as many times its one element.
#[inline(always)]
fn repeated<T: Float>(row: &[T], dim: usize) -> impl Iterator<Item = f64> + '_ {
    let last = row.len() - 1;
    (0..dim).map(move |d| row[d.min(last)].to_f64())
}

impl<T: Float, F: Formula> DiagScore<'_, T, F> {
    /// Adds one pair's gradient. Plain loops over slices of one length, which the compiler vectorises.
    #[inline(always)]
    fn add_gradient(&self, side: Side, i: usize, j: usize, weight: f64, out: &mut Gradient<T>) {
        let Inputs { mu1, extra1, mu2, extra2, shared } = &self.inputs;
        let (query, gallery) = ((mu1.row(i), extra1.row(i)), (mu2.row(j), extra2.row(j)));
        let ((a, v), (b, w)) = if side == Side::Query { (query, gallery) } else { (gallery, query) };
        let dim = a.len();
        let dense = v.len() == dim && w.len() == dim && out.extra.len() == dim;
        if dense && out.shared.is_empty() && shared.stored() == 0 {
            let (b, v, w, mu, extra) = (&b[..dim], &v[..dim], &w[..dim], &mut out.mu[..dim], &mut out.extra[..dim]);
            for d in 0..dim {
                let (a, b, v, w) = (a[d].to_f64(), b[d].to_f64(), v[d].to_f64(), w[d].to_f64());
                let slopes = slopes::<F>(Dimension { a, b, v, w, shared: 0.0 });
                mu[d] = mu[d] + T::from_f64(weight * slopes.mean);
                extra[d] = extra[d] + T::from_f64(weight * slopes.var);
            }
            return;
        }
        let none = [T::default()];
        let shared = if shared.stored() == 0 { &none } else { shared.row(0) };
        let pairs = a.iter().zip(b).zip(repeated(v, dim).zip(repeated(w, dim)).zip(repeated(shared, dim)));
        let last = out.extra.len() - 1;
        for (d, ((a, b), ((v, w), shared))) in pairs.enumerate() {
            let slopes = slopes::<F>(Dimension { a: a.to_f64(), b: b.to_f64(), v, w, shared });
            out.mu[d] = out.mu[d] + T::from_f64(weight * slopes.mean);
            out.extra[d.min(last)] = out.extra[d.min(last)] + T::from_f64(weight * slopes.var);
            if let Some(sum) = out.shared.get_mut(d) {
                *sum = *sum + T::from_f64(weight * slopes.shared);
            }
        }
    }
}

/// The formula's slopes, NaN outside its domain.
#[inline(always)]
fn slopes<F: Formula>(x: Dimension) -> Slopes {
    let slopes = F::slopes(x);
    let (v, w, shared) = (x.v, x.w, x.shared);
    let outside = if v >= 0.0 && w >= 0.0 && shared >= 0.0 { 0.0 } else { f64::NAN };
    Slopes { mean: slopes.mean + outside, var: slopes.var + outside, shared: slopes.shared + outside }
}
