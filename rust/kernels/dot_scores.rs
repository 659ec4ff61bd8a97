//! Scores that are functions of one inner product (or one squared distance) and a few numbers per item.
//!
//! A pair costs one pass over its two rows; the rest, the [`Formula`], is evaluated for eight pairs at once in float64, whatever
//! the rows' type. Squared distances are sums of squared differences, not `|a|^2 + |b|^2 - 2 a.b`, which loses all digits
//! for near-duplicates; all pairs of many items are found so in `all_pairs`, but for rows that are near each other. A search rules
//! pairs out by inner products of register tiles and scores the others; `filter` has the proof that no result is lost. The maths of each score
//! is in `formulas`, `normals`, `vmf` and `match_probability`.

use crate::codes::Codes;
use crate::drivers::{
    segment, Best, Gradient, Inputs, PairKernel, Prune, Rows, Side, Tile, TileGradient, AHEAD, BLOCK, QUERIES,
};
use crate::error::Error;
use crate::kernels::pair_op::{BoxedKernel, Facts, Family, PairOp, Purpose, Request, Sieve};
use crate::kernels::samplers::Normals;
use crate::panels::Packed;
use crate::rows::{self, reduce, DIFFERENCES, PRODUCTS};
use crate::simd::{dispatch, prefetch, Float, Kernel, Simd, V};
use crate::topk::TopK;
use crate::view::{Matrix, View};
use std::ops::Range;
use std::sync::OnceLock;

mod all_pairs;
mod coded;
mod filter;
mod formulas;
pub mod lengths;
mod match_probability;
mod normals;
mod pool;
mod tile;
mod vmf;
mod weighted;

use formulas::{differentiated, scored, Partials, PER_ITEM};
pub use formulas::{Formula, Pair};

/// A formula with its input arrays: the family's pair function.
pub struct DotKernel<'a, T, F> {
    /// The arrays; the shared row holds the formula's parameters that all pairs share, if any.
    pub inputs: Inputs<'a, T>,
    /// The maths of the score.
    pub formula: F,
    /// The gallery as panels with squared norms, if it was prepared.
    pub packed: Option<Packed<'a, T>>,
    /// The codes of the gallery's rows, if candidates are to be ruled out by these.
    pub codes: Option<Codes<'a>>,
    /// Whether a search may rule rows out by codes.
    pub prune: Prune,
    /// The squared distances or inner products of the pairs, if scoring wrote them down for the gradients.
    pub saved: Option<&'a [T]>,
    /// The squared norms of all queries and of all gallery rows, once a gradient asks for them.
    norms: OnceLock<[Vec<T>; 2]>,
}

/// The kernels of the family.
pub const KERNELS: [&[PairOp]; 4] = [formulas::KERNELS, normals::KERNELS, vmf::KERNELS, match_probability::KERNELS];

/// The facts of a kernel of this formula.
const fn facts<F: Formula>(name: &'static str, uncertainty: &'static str, shared: &'static str) -> Facts {
    let sieve = if F::SIEVED { Sieve::Product } else { Sieve::None };
    let (saves, symmetric) = (F::BY_X || F::DIFFERENCE, F::SYMMETRIC);
    let by_distance = F::DIFFERENCE && !F::NORMS;
    Facts { sieve, saves, symmetric, by_distance, ..Facts::new(name, Family::Dot, uncertainty, shared) }
}

/// The pair function of this formula.
fn pair_function<'a, T: Normals, F: Formula + 'a>(request: &Request<'a, T>, formula: F) -> BoxedKernel<'a, T> {
    let (mut packed, mut codes, mut prune, mut saved) = (None, None, Prune::Never, None);
    match request.purpose {
        Purpose::Scores(_) => {}
        Purpose::Rerank(_, of_rows) => codes = of_rows.filter(|_| F::SIEVED),
        Purpose::Search(panels, way) => (packed, prune) = (panels, way),
        Purpose::Gradients(numbers) => saved = numbers,
    }
    Ok(Box::new(DotKernel { inputs: request.inputs, formula, packed, codes, prune, saved, norms: OnceLock::new() }))
}

/// The inputs of a formula for a block of pairs, as float64 arrays from which pairs are loaded into lanes.
struct Block {
    x: [f64; BLOCK],
    norms: ([f64; BLOCK], [f64; BLOCK]),
    uncertainties: ([f64; BLOCK], [f64; BLOCK]),
    per_item: (PerItem, PerItem),
    /// Bit k says that the rows of pair k are scaled (see `lengths`).
    scaled: u64,
}

/// Numbers per item of one side of a block, an array for each; empty for a formula without any.
type PerItem = Vec<[f64; BLOCK]>;

/// A filler for unused pairs and inputs: 1 is a valid uncertainty of any kind.
const NO_NUMBERS: [f64; BLOCK] = [1.0; BLOCK];

impl Block {
    fn new() -> Self {
        let (none, empty) = (NO_NUMBERS, Vec::new);
        Block { x: none, norms: (none, none), uncertainties: (none, none), per_item: (empty(), empty()), scaled: 0 }
    }
}

impl Pairs for Block {
    #[inline(always)]
    fn pair<S: Simd>(&self, k: usize, per_item: usize) -> Pair<V<S, f64>> {
        let mut pair = Pair {
            x: V::<S, f64>::load(&self.x[k..]),
            norms: (V::<S, f64>::load(&self.norms.0[k..]), V::<S, f64>::load(&self.norms.1[k..])),
            uncertainties: (
                V::<S, f64>::load(&self.uncertainties.0[k..]),
                V::<S, f64>::load(&self.uncertainties.1[k..]),
            ),
            per_item: ([0.0.into(); PER_ITEM], [0.0.into(); PER_ITEM]),
        };
        for n in 0..per_item {
            pair.per_item.0[n] = V::<S, f64>::load(&self.per_item.0[n][k..]);
            pair.per_item.1[n] = V::<S, f64>::load(&self.per_item.1[n][k..]);
        }
        pair
    }

    #[inline(always)]
    fn x(&mut self) -> &mut [f64; BLOCK] {
        &mut self.x
    }
}

/// Pairs from which a kernel loads as many at a time as a level has lanes.
trait Pairs {
    /// The pairs from `k` on, one in each lane, each side with its first `per_item` numbers per item.
    fn pair<S: Simd>(&self, k: usize, per_item: usize) -> Pair<V<S, f64>>;
    /// The squared distances or inner products of all pairs, which scores may overwrite.
    fn x(&mut self) -> &mut [f64; BLOCK];
}

/// The numbers of up to [`BLOCK`] items of one side.
struct Numbers {
    norms: [f64; BLOCK],
    /// Bit k says that the row of item k is scaled (see `lengths`).
    scaled: u64,
    uncertainties: [f64; BLOCK],
    per_item: PerItem,
}

/// The pairs of one query, item `k` of the first side, with the items of the second side.
struct Facing<'a> {
    x: &'a mut [f64; BLOCK],
    queries: &'a Numbers,
    k: usize,
    gallery: &'a Numbers,
}

impl Pairs for Facing<'_> {
    #[inline(always)]
    fn pair<S: Simd>(&self, k: usize, per_item: usize) -> Pair<V<S, f64>> {
        let Facing { x, queries, k: query, gallery } = self;
        let mut pair = Pair {
            x: V::<S, f64>::load(&x[k..]),
            norms: (queries.norms[*query].into(), V::<S, f64>::load(&gallery.norms[k..])),
            uncertainties: (queries.uncertainties[*query].into(), V::<S, f64>::load(&gallery.uncertainties[k..])),
            per_item: ([0.0.into(); PER_ITEM], [0.0.into(); PER_ITEM]),
        };
        for n in 0..per_item {
            pair.per_item.0[n] = queries.per_item[n][*query].into();
            pair.per_item.1[n] = V::<S, f64>::load(&gallery.per_item[n][k..]);
        }
        pair
    }

    #[inline(always)]
    fn x(&mut self) -> &mut [f64; BLOCK] {
        self.x
    }
}

/// Computes [`Formula::per_item`] or [`Formula::per_item_for_partials`] of the first `n` items. This and the kernels below are
/// dispatched separately, so that they are not compiled again for each type of row.
struct MakePerItem<'a, F> {
    formula: &'a F,
    partials: bool,
    uncertainties: &'a [f64; BLOCK],
    norms: &'a [f64; BLOCK],
    n: usize,
}
impl<F: Formula> Kernel for MakePerItem<'_, F> {
    const LANES_MEET: bool = false;
    type Output = PerItem;
    #[inline(always)]
    fn run<S: Simd>(self) -> PerItem {
        let count = if self.partials { F::PER_ITEM.1 } else { F::PER_ITEM.0 };
        let mut out = vec![[0.0; BLOCK]; count];
        for k in (0..if count == 0 { 0 } else { self.n }).step_by(V::<S, f64>::LANES) {
            let uncertainty = V::<S, f64>::load(&self.uncertainties[k..]);
            let norm = V::<S, f64>::load(&self.norms[k..]);
            let made = if self.partials {
                self.formula.per_item_for_partials::<S>(uncertainty, norm)
            } else {
                self.formula.per_item::<S>(uncertainty, norm)
            };
            for (out, made) in out.iter_mut().zip(made) {
                made.store(&mut out[k..]);
            }
        }
        out
    }
}

/// Computes the scores of `n` pairs, which overwrite their `x`.
struct Values<'a, F, P> {
    formula: &'a F,
    pairs: &'a mut P,
    n: usize,
}
impl<F: Formula, P: Pairs> Kernel for Values<'_, F, P> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for k in (0..self.n).step_by(V::<S, f64>::LANES) {
            let value = scored::<S, F>(self.formula, self.pairs.pair::<S>(k, F::PER_ITEM.0));
            value.store(&mut self.pairs.x()[k..]);
        }
    }
}

/// Computes the partial derivatives of a block for the items of one side.
struct BlockPartials<'a, F> {
    formula: &'a F,
    block: &'a Block,
    side: Side,
    n: usize,
}
impl<F: Formula> Kernel for BlockPartials<'_, F> {
    const LANES_MEET: bool = false;
    type Output = Partials<[f64; BLOCK]>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let none = [0.0; BLOCK];
        let mut out = Partials { x: none, norm: none, uncertainty: none, shared: [none; 2] };
        let formula = if self.side == Side::Query { *self.formula } else { self.formula.transposed() };
        for k in (0..self.n).step_by(V::<S, f64>::LANES) {
            let pair = self.block.pair::<S>(k, F::PER_ITEM.1);
            let pair = if self.side == Side::Query { pair } else { pair.swapped() };
            let partials = differentiated::<S, F>(&formula, pair);
            partials.x.store(&mut out.x[k..]);
            partials.norm.store(&mut out.norm[k..]);
            partials.uncertainty.store(&mut out.uncertainty[k..]);
            for (out, partial) in out.shared.iter_mut().zip(partials.shared) {
                partial.store(&mut out[k..]);
            }
        }
        out
    }
}

/// The squared norm of a row.
#[inline(always)]
fn sq_norm<S: Simd, T: Float>(row: &[T]) -> T {
    reduce::<S, T, PRODUCTS>(row, row)
}

/// Computes a block of pairs but for the numbers per item, with squared distances (DIFFERENCE) or inner products, and with
/// squared norms (NORMS) or without. A function of its own: it is the same for all formulas.
struct MakeBlock<'a, T, const DIFFERENCE: bool, const NORMS: bool> {
    inputs: &'a Inputs<'a, T>,
    q: Rows<'a>,
    g: Rows<'a>,
    n: usize,
    /// The squared distances or inner products, where they are known, and whether they are to be computed.
    known: &'a [T],
    needed: bool,
    block: &'a mut Block,
}
impl<T: Float, const DIFFERENCE: bool, const NORMS: bool> Kernel for MakeBlock<'_, T, DIFFERENCE, NORMS> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let MakeBlock { q, g, n, known, needed, block, .. } = self;
        // Copies, which no store to the block can change.
        let Inputs { mu1, uncertainty1, mu2, uncertainty2, .. } = *self.inputs;
        let mut buffer = Vec::new();
        let once = matches!(q, Rows::Same(_));
        for k in 0..n {
            let (i, j) = (q.at(k), g.at(k));
            if let Rows::List(rows) = g {
                if let Some(&next) = rows.get(k + AHEAD) {
                    prefetch(mu2.bytes(next));
                    prefetch(uncertainty2.bytes(next));
                }
            }
            let (a, b) = (mu1.row(i), mu2.row(j, &mut buffer));
            if needed {
                block.x[k] = reduce::<S, T, DIFFERENCE>(a, b).to_f64();
            }
            if NORMS {
                block.norms.0[k] = if once && k > 0 { block.norms.0[0] } else { sq_norm::<S, T>(a).to_f64() };
                block.norms.1[k] = sq_norm::<S, T>(b).to_f64();
            }
            block.uncertainties.0[k] = uncertainty1.row(i)[0].to_f64();
            block.uncertainties.1[k] = uncertainty2.first(j);
        }
        for (x, known) in block.x.iter_mut().zip(known) {
            *x = known.to_f64();
        }
    }
}

impl<T: Float, F: Formula> DotKernel<'_, T, F> {
    /// Writes `n` pairs to an empty block; `known` are their squared distances or inner products, if these were written down.
    fn fill(&self, block: &mut Block, (q, g): (Rows, Rows), n: usize, partials: bool, known: Option<&[T]>) {
        let (inputs, needed) = (&self.inputs, known.is_none() && (!partials || F::BY_X));
        let known = known.unwrap_or(&[]);
        match (F::DIFFERENCE, F::NORMS) {
            (true, true) => dispatch(MakeBlock::<T, DIFFERENCES, true> { inputs, q, g, n, known, needed, block }),
            (true, false) => dispatch(MakeBlock::<T, DIFFERENCES, false> { inputs, q, g, n, known, needed, block }),
            (false, true) => dispatch(MakeBlock::<T, PRODUCTS, true> { inputs, q, g, n, known, needed, block }),
            (false, false) => dispatch(MakeBlock::<T, PRODUCTS, false> { inputs, q, g, n, known, needed, block }),
        }
        if lengths::has_lengths::<F>() {
            block.scale(inputs, (q, g), n);
        }
        let Block { uncertainties, norms, .. } = &*block;
        let queries = self.per_item((&uncertainties.0, &norms.0), n, matches!(q, Rows::Same(_)), partials);
        block.per_item = (queries, self.per_item((&uncertainties.1, &norms.1), n, false, partials));
    }

    /// The numbers of each of `n` items alone, from its uncertainty and norm. With `same`, all are one item, computed once.
    fn per_item(
        &self,
        (uncertainties, norms): (&[f64; BLOCK], &[f64; BLOCK]),
        n: usize,
        same: bool,
        partials: bool,
    ) -> PerItem {
        if (if partials { F::PER_ITEM.1 } else { F::PER_ITEM.0 }) == 0 {
            return PerItem::new();
        }
        let n = if same { n.min(1) } else { n };
        let mut made = dispatch(MakePerItem { formula: &self.formula, partials, uncertainties, norms, n });
        if same {
            made.iter_mut().for_each(|lanes| *lanes = [lanes[0]; BLOCK]);
        }
        made
    }
}

/// Adds the gradient of a pair with respect to `row`, given the partial derivatives with respect to x (`by_x`) and to
/// that row's squared norm (`by_norm`).
#[inline(always)]
fn accumulate_pair<T: Float, F: Formula>(mu: &mut [T], row: &[T], other: &[T], by_x: f64, by_norm: f64) {
    let (by_row, n) = (T::from_f64(2.0 * by_norm), mu.len());
    let (row, other) = (&row[..n], &other[..n]);
    if F::DIFFERENCE && !F::NORMS {
        let by_difference = T::from_f64(2.0 * by_x);
        for d in 0..n {
            mu[d] = mu[d] + by_difference * (row[d] - other[d]);
        }
    } else if F::DIFFERENCE {
        let by_difference = T::from_f64(2.0 * by_x);
        for d in 0..n {
            mu[d] = mu[d] + by_difference * (row[d] - other[d]) + by_row * row[d];
        }
    } else {
        let by_other = T::from_f64(by_x);
        for d in 0..n {
            mu[d] = mu[d] + by_other * other[d] + by_row * row[d];
        }
    }
}

impl<T: Float, F: Formula> PairKernel for DotKernel<'_, T, F> {
    type Elem = T;

    fn inputs(&self) -> &Inputs<'_, T> {
        &self.inputs
    }

    #[inline(always)]
    fn score<S: Simd>(&self, q: Rows, g: Rows, out: &mut [T]) {
        self.score_saving::<S>(q, g, out, &mut []);
    }

    #[inline(always)]
    fn score_saving<S: Simd>(&self, q: Rows, g: Rows, out: &mut [T], saved: &mut [T]) {
        let mut block = Block::new();
        self.fill(&mut block, (q, g), out.len(), false, None);
        for (saved, x) in saved.iter_mut().zip(&block.x) {
            *saved = T::from_f64(*x);
        }
        dispatch(Values { formula: &self.formula, pairs: &mut block, n: out.len() });
        rows::convert(&block.x, out);
    }

    #[inline(always)]
    fn backward<S: Simd>(
        &self,
        side: Side,
        (q, g): (Rows, Rows),
        places: &[usize],
        weights: &[T],
        out: &mut Gradient<T>,
    ) {
        let of = |saved: &[T]| places.iter().map(|&place| saved[place]).collect::<Vec<_>>();
        let known = self.saved.filter(|_| !places.is_empty()).map(of);
        self.add_listed::<S>(side, (q, g), weights, known.as_deref(), out);
    }

    #[inline(always)]
    fn tile<S: Simd>(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        self.score_tile::<S>(tile, out, saved);
    }

    fn largest_part(&self) -> (usize, usize) {
        if F::SIEVED {
            all_pairs::PART
        } else {
            (QUERIES, segment(self.inputs.mu1.stored())) // a pair takes long
        }
    }

    #[inline(always)]
    fn pairwise<S: Simd>(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        self.score_all::<S>(tile, out, saved);
    }

    #[inline(always)]
    fn backward_tile<S: Simd>(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        self.add_gradients::<S>(tile, weights, out);
    }

    #[inline(always)]
    fn backward_paired<S: Simd>(&self, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
        self.add_paired::<S>(rows, weights, out);
    }

    fn search(&self, best: Best<T>) -> Result<usize, Error> {
        filter::search(self, best)
    }

    fn best_listed(&self, query: usize, rows: &[usize], k: usize) -> Option<TopK<T>> {
        self.codes
            .filter(|_| rows.len() >= k.saturating_mul(coded::LONG))
            .map(|codes| coded::best(self, &codes, query, rows, k))
    }
}

impl<T: Float, F: Formula> DotKernel<'_, T, F> {
    /// Adds the gradients of one item over its listed pairs; `known` holds their squared distances or inner products, if these
    /// were written down.
    #[inline(always)]
    fn add_listed<S: Simd>(
        &self,
        side: Side,
        (q, g): (Rows, Rows),
        weights: &[T],
        known: Option<&[T]>,
        out: &mut Gradient<T>,
    ) {
        let mut block = Block::new();
        self.fill(&mut block, (q, g), weights.len(), true, known);
        let partials = dispatch(BlockPartials { formula: &self.formula, block: &block, side, n: weights.len() });
        let (mut buffers, mut by_row) = (vec![Vec::new(); weights.len()], 0.0);
        let (mut row, mut others) = (&[][..], Vec::with_capacity(weights.len()));
        for ((k, weight), buffer) in weights.iter().enumerate().zip(&mut buffers) {
            let weight = weight.to_f64();
            // A pair that does not count must not spread the NaN or infinity of its partial derivatives.
            if weight == 0.0 {
                continue;
            }
            let (a, b) = (self.inputs.mu1.row(q.at(k)), self.inputs.mu2.row(g.at(k), buffer));
            let (one, other) = if side == Side::Query { (a, b) } else { (b, a) };
            row = one;
            if block.scaled >> k & 1 == 1 {
                let (own, of_other) = (lengths::power::<S, T>(one), lengths::power::<S, T>(other));
                let (by_x, by_norm) = (weight * partials.x[k], weight * partials.norm[k]);
                lengths::accumulate(out.mu, (one, own), (other, of_other), by_x, by_norm);
            } else {
                by_row += weight * partials.norm[k];
                others.push((other, T::from_f64(if F::DIFFERENCE { 2.0 * weight } else { weight } * partials.x[k])));
            }
            out.uncertainty[0] = out.uncertainty[0] + T::from_f64(weight * partials.uncertainty[k]);
            for (shared, partial) in out.shared.iter_mut().zip(&partials.shared) {
                *shared = *shared + T::from_f64(weight * partial[k]);
            }
        }
        if F::DIFFERENCE {
            rows::accumulate_one::<T, DIFFERENCES>(row, &others, out.mu);
        } else {
            rows::accumulate_one::<T, PRODUCTS>(row, &others, out.mu);
        }
        if F::NORMS {
            let by_row = T::from_f64(2.0 * by_row);
            out.mu.iter_mut().zip(row).for_each(|(mu, &x)| *mu = *mu + by_row * x);
        }
    }
}

/// Writes the squared norms of the given rows, computed as the pair function computes them.
pub fn sq_norms<T: Float>(matrix: &Matrix<T>, rows: impl Iterator<Item = usize> + Clone, out: &mut [T]) {
    struct Norms<'a, 'b, T, I>(&'a Matrix<'b, T>, I, &'a mut [T]);
    impl<T: Float, I: Iterator<Item = usize> + Clone> Kernel for Norms<'_, '_, T, I> {
        const LANES_MEET: bool = false;
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self) {
            let (mut buffer, mut ahead) = (Vec::new(), self.1.clone().skip(AHEAD));
            for (i, out) in self.1.zip(self.2) {
                if let Some(next) = ahead.next() {
                    prefetch(self.0.bytes(next));
                }
                *out = sq_norm::<S, T>(self.0.row(i, &mut buffer));
            }
        }
    }
    dispatch(Norms(matrix, rows, out));
}
