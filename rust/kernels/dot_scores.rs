//! Scores that are functions of one inner product (or one squared distance) and a few numbers per item.
//!
//! A pair costs one pass over its two rows; the rest, the [`Formula`], is done for eight pairs at once in float64, whatever
//! the rows' type. Squared distances are sums of squared differences, never `|a|^2 + |b|^2 - 2 a.b`, which loses all digits
//! for near-duplicates. Search filters by inner products of register tiles and keeps what they cannot rule out; `filter`
//! has the proof that nothing is lost.
//!
//! Sources: MLS, Shi & Jain 2019 (PFE) eq. 3, here for isotropic variances; likelihood ratio, PLDA with a variance per item;
//! vMF overlap, "Probabilistic Embeddings Revisited" sec. 3; expected cosine and distance, moments of the distributions.

use crate::error::Error;
use crate::shapes::{self, Gradient, Inputs, PairScore, Rows, Side, AHEAD, BLOCK};
use crate::simd::{dispatch, prefetch, Float, Kernel, Lanes, Simd, V};
use crate::special::bessel::{self, Order};
use crate::special::log::ln;
use crate::view::View;
use std::f64::consts::PI;

mod filter;

/// What a formula sees of eight pairs: the first item is the one that gradients are asked for.
#[derive(Clone, Copy)]
pub struct Pair<X> {
    /// Squared distance or inner product of the two rows.
    pub x: X,
    /// Squared norms; meaningless unless the formula asks for them.
    pub norms: (X, X),
    /// Variances, concentrations, weights ...
    pub extras: (X, X),
}

impl<X: Copy> Pair<X> {
    fn swapped(self) -> Self {
        Pair { x: self.x, norms: (self.norms.1, self.norms.0), extras: (self.extras.1, self.extras.0) }
    }
}

/// Partial derivatives of a score.
pub struct Slopes<X> {
    /// By the squared distance or inner product.
    pub x: X,
    /// By the first item's squared norm.
    pub norm: X,
    /// By the first item's extra.
    pub extra: X,
    /// By the shared number.
    pub shared: X,
}

/// The maths of a score, on eight pairs. All of them are symmetric in the two items.
///
pub trait Formula: Copy + Sync {
    /// Whether `x` is the squared distance (the score falls with it) or the inner product (the score rises with it).
    const DIFFERENCE: bool;
    /// Whether the norms are used.
    const NORMS: bool;
    /// The score.
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64>;
    /// Its derivatives.
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>>;

    /// Exact top-k. [`filter::search`] is the faster way for a `value` that is monotone in `x` *as computed*: one that only
    /// adds to `x`, and multiplies and divides by what does not depend on it.
    fn search<T: Float>(
        score: &DotScore<T, Self>,
        k: usize,
        scores: &mut [T],
        ids: &mut [i64],
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        shapes::search(score, k, scores, ids, interrupted)
    }
}

/// The search of formulas that are monotone as computed.
macro_rules! monotone {
    () => {
        fn search<T: Float>(
            score: &DotScore<T, Self>,
            k: usize,
            scores: &mut [T],
            ids: &mut [i64],
            interrupted: &dyn Fn() -> bool,
        ) -> Result<(), Error> {
            filter::search(score, k, scores, ids, interrupted)
        }
    };
}

/// `yes` where both extras are >= 0, else NaN: the answer to variances and concentrations outside their domain.
#[inline(always)]
fn valid<S: Simd>(extras: (V<S, f64>, V<S, f64>), yes: V<S, f64>) -> V<S, f64> {
    let zero = V::<S, f64>::splat(0.0);
    extras.0.min(extras.1).if_less(zero, V::<S, f64>::splat(f64::NAN), yes)
}

/// `w1 w2 cos(mu1, mu2)`: cosine with weights 1; the expected cosine with each item's expected resultant length as weight.
#[derive(Clone, Copy)]
pub struct Cosine;

impl Formula for Cosine {
    const DIFFERENCE: bool = false;
    const NORMS: bool = true;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        // Two roots: the product of the squares could leave the range.
        pair.x * (pair.extras.0 * pair.extras.1 / (pair.norms.0.sqrt() * pair.norms.1.sqrt()))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let inverse = V::<S, f64>::splat(1.0) / (pair.norms.0.sqrt() * pair.norms.1.sqrt());
        let x = pair.extras.0 * pair.extras.1 * inverse;
        Slopes {
            x,
            norm: V::<S, f64>::splat(-0.5) * x * pair.x / pair.norms.0,
            extra: pair.extras.1 * inverse * pair.x,
            shared: V::<S, f64>::splat(0.0),
        }
    }
}

/// `-(|mu1 - mu2|^2 + t1 + t2)`: minus the squared distance, expected where `t` is the trace of the covariance.
#[derive(Clone, Copy)]
pub struct NegSqL2;

impl Formula for NegSqL2 {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        valid::<S>(pair.extras, -(pair.x + (pair.extras.0 + pair.extras.1)))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let zero = V::<S, f64>::splat(0.0);
        let minus = valid::<S>(pair.extras, V::<S, f64>::splat(-1.0));
        Slopes { x: minus, norm: zero, extra: minus, shared: zero }
    }
}

/// Mutual likelihood score of isotropic normals: with s = v1 + v2, `-(|mu1 - mu2|^2 / s + D log s + D log 2 pi) / 2`.
#[derive(Clone, Copy)]
pub struct MlsIsotropic {
    /// D.
    pub dim: f64,
}

impl Formula for MlsIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let s = pair.extras.0 + pair.extras.1;
        let constant = V::<S, f64>::splat(self.dim * (2.0 * PI).ln());
        let twice = pair.x / s + V::<S, f64>::splat(self.dim).mul_add(ln::<S, f64>(s), constant);
        valid::<S>(pair.extras, twice * V::<S, f64>::splat(-0.5))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let zero = V::<S, f64>::splat(0.0);
        let half = V::<S, f64>::splat(0.5);
        let inverse = V::<S, f64>::splat(1.0) / (pair.extras.0 + pair.extras.1);
        let extra = half * inverse * (pair.x * inverse - V::<S, f64>::splat(self.dim));
        Slopes {
            x: valid::<S>(pair.extras, -half * inverse),
            norm: zero,
            extra: valid::<S>(pair.extras, extra),
            shared: zero,
        }
    }
}

/// Log-likelihood ratio of "same" against "different" for isotropic normals whose means are drawn from N(0, p I).
///
/// With A = p + v1, B = p + v2, det = AB - p^2 = p (v1 + v2) + v1 v2, the textbook form
/// `1/2 [ |a|^2/A + |b|^2/B + D log AB - (B|a|^2 - 2p a.b + A|b|^2)/det - D log det ]`, whose terms cancel, becomes
/// `1/2 [ p (|a|^2 v1/A + |b|^2 v2/B - |a - b|^2) / det + D log(AB / det) ]`.
#[derive(Clone, Copy)]
pub struct LlrIsotropic {
    /// D.
    pub dim: f64,
    /// p.
    pub prior_var: f64,
}

impl Formula for LlrIsotropic {
    const DIFFERENCE: bool = true;
    const NORMS: bool = true;
    monotone!();
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let (p, (v, w)) = (V::<S, f64>::splat(self.prior_var), pair.extras);
        let (a, b) = (p + v, p + w);
        let det = p.mul_add(v + w, v * w);
        let spread = (pair.norms.0 * v / a + pair.norms.1 * w / b) - pair.x;
        let twice = spread * (p / det) + V::<S, f64>::splat(self.dim) * ln::<S, f64>(a * b / det);
        valid::<S>((v.min(w), p), twice * V::<S, f64>::splat(0.5))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let (p, (v, w)) = (V::<S, f64>::splat(self.prior_var), pair.extras);
        let (one, half, dim) = (V::<S, f64>::splat(1.0), V::<S, f64>::splat(0.5), V::<S, f64>::splat(self.dim));
        let (a, b, inverse) = (p + v, p + w, one / p.mul_add(v + w, v * w));
        let (n, m) = pair.norms;
        let spread = (n * v / a + m * w / b) - pair.x;
        let own = p * p * n / (a * a) - p * b * spread * inverse - dim * p * p / a;
        let prior = spread - p * (n * v / (a * a) + m * w / (b * b)) - p * (v + w) * spread * inverse;
        let logs = dim * (one / a + one / b - (v + w) * inverse);
        let domain = (v.min(w), p);
        Slopes {
            x: valid::<S>(domain, -half * p * inverse),
            norm: valid::<S>(domain, half * p * v / a * inverse),
            extra: valid::<S>(domain, half * own * inverse),
            shared: valid::<S>(domain, half * (prior * inverse + logs)),
        }
    }
}

/// Log of the integrated product of two von Mises-Fisher densities, plus a shared offset:
/// `log C(k1) + log C(k2) - log C(R) + offset`, R = |k1 mu1 + k2 mu2|, log C(k) = log C(0) - H(k) - k.
///
/// With x = |mu1 - mu2|^2 nothing large cancels: k1 + k2 - R = k1 k2 x / (k1 + k2 + R), R^2 = (k1 + k2)^2 - k1 k2 x, and
/// H(k) = log(0F1(; D/2; k^2/4) e^-k) is 0 at k = 0, so all log C are taken relative to log C(0) = -log |S^(D-1)|.
#[derive(Clone, Copy)]
pub struct MlsVmf<'a> {
    normaliser: &'a Order,
    ratio: &'a Order,
    offset: f64,
}

impl<'a> MlsVmf<'a> {
    /// From the orders D/2 - 1 and D/2.
    pub fn new(normaliser: &'a Order, ratio: &'a Order, offset: f64) -> Self {
        MlsVmf { normaliser, ratio, offset: offset + normaliser.log_norm_at_zero() }
    }

    #[inline(always)]
    fn resultant<S: Simd>(pair: &Pair<V<S, f64>>) -> (V<S, f64>, V<S, f64>) {
        let (k1, k2) = pair.extras;
        let (sum, product) = (k1 + k2, k1 * k2 * pair.x);
        // Rounding of the rows can bring the square of a tiny R below 0; a tiny floor also keeps 0 / 0 out.
        let tiny = V::<S, f64>::splat(f64::MIN_POSITIVE);
        let r = (sum * sum - product).max(tiny).sqrt();
        (r, product / (sum + r))
    }
}

impl Formula for MlsVmf<'_> {
    const DIFFERENCE: bool = true;
    const NORMS: bool = false;
    #[inline(always)]
    fn value<S: Simd>(&self, pair: Pair<V<S, f64>>) -> V<S, f64> {
        let (r, lost) = Self::resultant::<S>(&pair);
        let first = bessel::log_hyp0f1e::<S>(self.normaliser, pair.extras.0);
        let second = bessel::log_hyp0f1e::<S>(self.normaliser, pair.extras.1);
        let both = bessel::log_hyp0f1e::<S>(self.normaliser, r);
        valid::<S>(pair.extras, both - (first + second) - lost + V::<S, f64>::splat(self.offset))
    }
    #[inline(always)]
    fn slopes<S: Simd>(&self, pair: Pair<V<S, f64>>) -> Slopes<V<S, f64>> {
        let half = V::<S, f64>::splat(0.5);
        let (r, _) = Self::resultant::<S>(&pair);
        let pull = bessel::iv_ratio::<S>(self.ratio, r) / r;
        let (k1, k2) = pair.extras;
        let cosine = V::<S, f64>::splat(1.0) - half * pair.x;
        let extra = pull * k2.mul_add(cosine, k1) - bessel::iv_ratio::<S>(self.ratio, k1);
        Slopes {
            x: valid::<S>(pair.extras, -half * k1 * k2 * pull),
            norm: V::<S, f64>::splat(0.0),
            extra: valid::<S>(pair.extras, extra),
            shared: V::<S, f64>::splat(1.0),
        }
    }
}

/// A formula over its inputs: the family's pair function.
pub struct DotScore<'a, T, F> {
    /// The arrays; the shared row holds the formula's own shared number, if any.
    pub inputs: Inputs<'a, T>,
    /// The maths.
    pub formula: F,
    /// The gallery as panels with squared norms, where it was prepared.
    pub packed: Option<Packed<'a, T>>,
}

/// A prepared gallery.
#[derive(Clone, Copy)]
pub struct Packed<'a, T> {
    /// All rows as [`panels`].
    pub panels: &'a [T],
    /// The squared norm of each row, as [`sq_norm`] computes it.
    pub norms: &'a [T],
}

/// Numbers of a block of pairs, as float64 arrays to be loaded eight at a time.
struct Block {
    x: [f64; BLOCK],
    norms: ([f64; BLOCK], [f64; BLOCK]),
    extras: ([f64; BLOCK], [f64; BLOCK]),
}

impl Block {
    #[inline(always)]
    fn pair<S: Simd>(&self, k: usize) -> Pair<V<S, f64>> {
        let at = k..k + f64::LANES;
        Pair {
            x: V::<S, f64>::load(&self.x[at.clone()]),
            norms: (V::<S, f64>::load(&self.norms.0[at.clone()]), V::<S, f64>::load(&self.norms.1[at.clone()])),
            extras: (V::<S, f64>::load(&self.extras.0[at.clone()]), V::<S, f64>::load(&self.extras.1[at])),
        }
    }
}

/// The scores of a block, in the place of `x`. A dispatch of its own, so that it is not compiled again for each type of row.
struct Values<'a, F> {
    formula: &'a F,
    block: &'a mut Block,
    n: usize,
}
impl<F: Formula> Kernel for Values<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for k in (0..self.n).step_by(f64::LANES) {
            let value = self.formula.value::<S>(self.block.pair::<S>(k));
            value.store(&mut self.block.x[k..k + f64::LANES]);
        }
    }
}

/// The slopes of a block: by x, norm, extra and the shared number.
struct BlockSlopes<'a, F> {
    formula: &'a F,
    block: &'a Block,
    side: Side,
    n: usize,
}
impl<F: Formula> Kernel for BlockSlopes<'_, F> {
    type Output = [[f64; BLOCK]; 4];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let mut out = [[0.0; BLOCK]; 4];
        for k in (0..self.n).step_by(f64::LANES) {
            let pair = self.block.pair::<S>(k);
            let slopes = self.formula.slopes::<S>(if self.side == Side::Query { pair } else { pair.swapped() });
            for (out, slope) in out.iter_mut().zip([slopes.x, slopes.norm, slopes.extra, slopes.shared]) {
                slope.store(&mut out[k..k + f64::LANES]);
            }
        }
        out
    }
}

/// Sum over the elements of two rows of `(a - b)^2` or `a b`.
#[inline(always)]
fn reduce<S: Simd, T: Float, const DIFFERENCE: bool>(a: &[T], b: &[T]) -> T {
    let zero = V::<S, T>::splat(T::default());
    let mut sum = zero;
    let (a_chunks, b_chunks) = (a.chunks_exact(T::LANES), b.chunks_exact(T::LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        let (a, b) = (V::<S, T>::load(a), V::<S, T>::load(b));
        sum = if DIFFERENCE { (a - b).mul_add(a - b, sum) } else { a.mul_add(b, sum) };
    }
    if !a_rest.is_empty() {
        let (a, b) = (V::<S, T>::load_partial(a_rest, T::default()), V::<S, T>::load_partial(b_rest, T::default()));
        sum = if DIFFERENCE { (a - b).mul_add(a - b, sum) } else { a.mul_add(b, sum) };
    }
    sum.sum()
}

/// The squared norm of a row.
#[inline(always)]
fn sq_norm<S: Simd, T: Float>(row: &[T]) -> T {
    reduce::<S, T, false>(row, row)
}

impl<T: Float, F: Formula> DotScore<'_, T, F> {
    #[inline(always)]
    fn norm_of_gallery<S: Simd>(&self, j: usize) -> f64 {
        match &self.packed {
            Some(packed) => packed.norms[j].to_f64(),
            None => sq_norm::<S, T>(self.inputs.mu2.row(j)).to_f64(),
        }
    }

    #[inline(always)]
    fn block<S: Simd>(&self, q: Rows, g: Rows, n: usize) -> Block {
        let empty = [1.0; BLOCK];
        let mut block = Block { x: empty, norms: (empty, empty), extras: (empty, empty) };
        let Inputs { mu1, extra1, mu2, extra2, .. } = &self.inputs;
        let once = matches!(q, Rows::Same(_));
        for k in 0..n {
            let (i, j) = (q.at(k), g.at(k));
            if k + AHEAD < n && matches!(g, Rows::List(_)) {
                prefetch(mu2.row(g.at(k + AHEAD)));
                prefetch(extra2.row(g.at(k + AHEAD)));
            }
            let (a, b) = (mu1.row(i), mu2.row(j));
            block.x[k] = if F::DIFFERENCE { reduce::<S, T, true>(a, b) } else { reduce::<S, T, false>(a, b) }.to_f64();
            if F::NORMS {
                block.norms.0[k] = if once && k > 0 { block.norms.0[0] } else { sq_norm::<S, T>(a).to_f64() };
                block.norms.1[k] = self.norm_of_gallery::<S>(j);
            }
            block.extras.0[k] = extra1.row(i)[0].to_f64();
            block.extras.1[k] = extra2.row(j)[0].to_f64();
        }
        block
    }
}

impl<T: Float, F: Formula> PairScore<T> for DotScore<'_, T, F> {
    fn inputs(&self) -> &Inputs<'_, T> {
        &self.inputs
    }

    #[inline(always)]
    fn score<S: Simd>(&self, q: Rows, g: Rows, out: &mut [T]) {
        let mut block = self.block::<S>(q, g, out.len());
        dispatch(Values { formula: &self.formula, block: &mut block, n: out.len() });
        for (out, value) in out.iter_mut().zip(&block.x) {
            *out = T::from_f64(*value);
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, side: Side, q: Rows, g: Rows, weights: &[T], out: &mut Gradient<T>) {
        let block = self.block::<S>(q, g, weights.len());
        let [by_x, by_norm, by_extra, by_shared] =
            dispatch(BlockSlopes { formula: &self.formula, block: &block, side, n: weights.len() });
        for (k, weight) in weights.iter().enumerate() {
            let weight = weight.to_f64();
            // A pair that does not count must not spread the NaN or infinity of its slopes.
            if weight == 0.0 {
                continue;
            }
            let (a, b) = (self.inputs.mu1.row(q.at(k)), self.inputs.mu2.row(g.at(k)));
            let (own, other) = if side == Side::Query { (a, b) } else { (b, a) };
            let by_own = T::from_f64(2.0 * weight * by_norm[k]);
            if F::DIFFERENCE {
                let by_difference = T::from_f64(2.0 * weight * by_x[k]);
                for ((sum, &x), &y) in out.mu.iter_mut().zip(own).zip(other) {
                    *sum = *sum + by_difference * (x - y) + by_own * x;
                }
            } else {
                let by_other = T::from_f64(weight * by_x[k]);
                for ((sum, &x), &y) in out.mu.iter_mut().zip(own).zip(other) {
                    *sum = *sum + by_other * y + by_own * x;
                }
            }
            out.extra[0] = out.extra[0] + T::from_f64(weight * by_extra[k]);
            if let [shared] = out.shared {
                *shared = *shared + T::from_f64(weight * by_shared[k]);
            }
        }
    }

    fn search(&self, k: usize, scores: &mut [T], ids: &mut [i64], interrupted: &dyn Fn() -> bool) -> Result<(), Error> {
        F::search(self, k, scores, ids, interrupted)
    }
}

/// Squared norms of all rows, as the pair function computes them.
pub fn sq_norms<T: Float>(view: &View<T>, out: &mut [T]) {
    struct Norms<'a, 'b, T>(&'a View<'b, T>, &'a mut [T]);
    impl<T: Float> Kernel for Norms<'_, '_, T> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self) {
            for (i, out) in self.1.iter_mut().enumerate() {
                *out = sq_norm::<S, T>(self.0.row(i));
            }
        }
    }
    dispatch(Norms(view, out));
}
