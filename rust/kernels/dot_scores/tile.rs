//! Tiles of all pairs: rows are loaded once for several pairs, and what belongs to an item is made once.
//!
//! A pair's sum has its own lanes and its own order, that of [`reduce`], so its score has the same bits. Gradients are sums of
//! differences of rows, weighted by slopes: a product of matrices of |a - b| would cost a little less, and lose the digits of rows
//! that are near each other.

use super::formulas::Formula;
use super::{reduce, sq_norm, term, Block, DotScore, Own, Values, NO_NUMBERS};
use crate::shapes::{by_items, ItemGradients, Side, Tile, TileGradient, BLOCK};
use crate::simd::{dispatch, Float, Kernel, Lanes, Simd, V};
use crate::view::View;

/// A number for each pair of a tile, a row for each query.
type Square<T> = [[T; BLOCK]; BLOCK];

/// The rows of a side of a tile, and what belongs to each.
struct Items<'a, T> {
    rows: Vec<&'a [T]>,
    norms: [f64; BLOCK],
    extras: [f64; BLOCK],
    own: Own,
}

/// Squared distances or inner products of all pairs. Dispatches of their own, as are those below, so that they are compiled once
/// for all formulas.
struct Products<'a, T, const DIFFERENCE: bool> {
    queries: &'a [&'a [T]],
    gallery: &'a [&'a [T]],
    out: &'a mut Square<T>,
}
impl<T: Float, const DIFFERENCE: bool> Kernel for Products<'_, T, DIFFERENCE> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Products { queries, gallery, out } = self;
        // As many rows of the gallery as stay in the first-level cache while queries pass over them.
        let near = (NEAR / queries[0].len()).clamp(2, BLOCK) / 2 * 2;
        for (part, gallery) in gallery.chunks(near).enumerate() {
            for (queries, out) in queries.chunks(2).zip(out.chunks_mut(2)) {
                for (first, gallery) in (part * near..).step_by(2).zip(gallery.chunks(2)) {
                    match (queries, gallery) {
                        (&[a, b], &[c, d]) if S::PAIRS == 4 => {
                            let [ac, ad, bc, bd] = V::<S, T>::sum_four(reduce_four::<S, T, DIFFERENCE>([a, b], [c, d]));
                            (out[0][first], out[0][first + 1]) = (ac, ad);
                            (out[1][first], out[1][first + 1]) = (bc, bd);
                        }
                        _ => {
                            for (a, out) in queries.iter().zip(&mut *out) {
                                for (b, out) in gallery.iter().zip(&mut out[first..]) {
                                    *out = reduce::<S, T, DIFFERENCE>(a, b);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Numbers that leave half of the first-level cache to others.
const NEAR: usize = 4096;

/// What [`reduce`] sums of the pairs (0, 0), (0, 1), (1, 0), (1, 1), to the same bits.
#[inline(always)]
fn reduce_four<S: Simd, T: Float, const DIFFERENCE: bool>(a: [&[T]; 2], b: [&[T]; 2]) -> [V<S, T>; 4] {
    let zero = V::<S, T>::splat(T::default());
    let (mut sums, dim) = ([[zero; 4]; 4], a[0].len());
    assert!(a[1].len() == dim && b[0].len() == dim && b[1].len() == dim);
    let whole = dim / (4 * T::LANES) * (4 * T::LANES);
    for from in (0..whole).step_by(4 * T::LANES) {
        for n in 0..4 {
            let at = from + n * T::LANES..from + (n + 1) * T::LANES;
            let x = [V::<S, T>::load(&a[0][at.clone()]), V::<S, T>::load(&a[1][at.clone()])];
            let y = [V::<S, T>::load(&b[0][at.clone()]), V::<S, T>::load(&b[1][at])];
            for pair in 0..4 {
                sums[pair][n] = term::<S, T, DIFFERENCE>(x[pair / 2], y[pair % 2], sums[pair][n]);
            }
        }
    }
    for n in 0..4 {
        let from = whole + n * T::LANES;
        if from < dim {
            let (at, none) = (from..dim.min(from + T::LANES), T::default());
            let part = [a[0], a[1], b[0], b[1]].map(|row| &row[at.clone()]);
            let x = [V::<S, T>::load_partial(part[0], none), V::<S, T>::load_partial(part[1], none)];
            let y = [V::<S, T>::load_partial(part[2], none), V::<S, T>::load_partial(part[3], none)];
            for pair in 0..4 {
                sums[pair][n] = term::<S, T, DIFFERENCE>(x[pair / 2], y[pair % 2], sums[pair][n]);
            }
        }
    }
    let mut out = [zero; 4];
    for pair in 0..4 {
        let [s0, s1, s2, s3] = sums[pair];
        out[pair] = (s0 + s1) + (s2 + s3);
    }
    out
}

/// Adds to the gradient of each own row what all other rows pull at it: `slope (own - other)`, or `slope other`. The own rows are
/// those of the queries (QUERY) or of the gallery.
struct Pull<'a, T, const DIFFERENCE: bool, const QUERY: bool> {
    own: &'a [&'a [T]],
    others: &'a [&'a [T]],
    slopes: &'a Square<T>,
    out: &'a mut [T],
}
impl<T: Float, const DIFFERENCE: bool, const QUERY: bool> Kernel for Pull<'_, T, DIFFERENCE, QUERY> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (dim, rows) = (self.own[0].len(), self.own.len());
        let mut from = 0;
        // So many rows times so many vectors as there are registers for; the vectors of all other rows stay in the cache.
        while from < dim {
            let vectors = if S::PAIRS == 4 && from + 2 * T::LANES <= dim { 2 } else { 1 };
            let mut first = 0;
            while first < rows {
                let count = if rows - first >= 4 { 4 } else { 1 };
                match (vectors, count, from + T::LANES <= dim) {
                    (2, 4, _) => self.add::<S, 4, 2, true>(first, from),
                    (2, _, _) => self.add::<S, 1, 2, true>(first, from),
                    (_, 4, true) => self.add::<S, 4, 1, true>(first, from),
                    (_, 4, false) => self.add::<S, 4, 1, false>(first, from),
                    (_, _, true) => self.add::<S, 1, 1, true>(first, from),
                    _ => self.add::<S, 1, 1, false>(first, from),
                }
                first += count;
            }
            from += vectors * T::LANES;
        }
    }
}

impl<T: Float, const DIFFERENCE: bool, const QUERY: bool> Pull<'_, T, DIFFERENCE, QUERY> {
    /// A rows, N vectors of each; the last may be short unless they are known to be whole.
    #[inline(always)]
    fn add<S: Simd, const A: usize, const N: usize, const WHOLE: bool>(&mut self, first: usize, from: usize) {
        let zero = V::<S, T>::splat(T::default());
        let (dim, mut x, mut sums) = (self.own[0].len(), [[zero; N]; A], [[zero; N]; A]);
        let to = if WHOLE { from + N * T::LANES } else { dim };
        for i in 0..A {
            x[i] = vectors::<S, T, N, WHOLE>(&self.own[first + i][from..to]);
            sums[i] = vectors::<S, T, N, WHOLE>(&self.out[(first + i) * dim..][from..to]);
        }
        assert!(self.others.len() <= BLOCK && first + A <= BLOCK);
        for (k, other) in self.others.iter().enumerate() {
            let y = vectors::<S, T, N, WHOLE>(&other[from..to]);
            for i in 0..A {
                let slope = if QUERY { self.slopes[first + i][k] } else { self.slopes[k][first + i] };
                let slope = V::<S, T>::splat(slope);
                for n in 0..N {
                    let pull = if DIFFERENCE { x[i][n] - y[n] } else { y[n] };
                    sums[i][n] = slope.mul_add(pull, sums[i][n]);
                }
            }
        }
        for i in 0..A {
            let out = &mut self.out[(first + i) * dim..][from..to];
            for (out, sum) in out.chunks_mut(T::LANES).zip(sums[i]) {
                if WHOLE {
                    sum.store(out);
                } else {
                    out.copy_from_slice(&sum.to_array()[..out.len()]);
                }
            }
        }
    }
}

/// The vectors of a slice.
#[inline(always)]
fn vectors<S: Simd, T: Float, const N: usize, const WHOLE: bool>(x: &[T]) -> [V<S, T>; N] {
    let mut out = [V::<S, T>::splat(T::default()); N];
    for n in 0..N {
        out[n] = if WHOLE {
            V::<S, T>::load(&x[n * T::LANES..(n + 1) * T::LANES])
        } else {
            V::<S, T>::load_partial(&x[n * T::LANES..], T::default())
        };
    }
    out
}

impl<T: Float, F: Formula> DotScore<'_, T, F> {
    #[inline(always)]
    fn items<'a>(&self, rows: Vec<&'a [T]>, extras: impl Iterator<Item = f64>, slopes: bool) -> Items<'a, T> {
        let (mut norms, mut numbers) = (NO_NUMBERS, NO_NUMBERS);
        if F::NORMS {
            dispatch(Norms { rows: &rows, out: &mut norms });
        }
        numbers.iter_mut().zip(extras).for_each(|(number, extra)| *number = extra);
        let own = self.own(&numbers, rows.len(), false, slopes);
        Items { rows, norms, extras: numbers, own }
    }

    /// Both sides of a tile. Rows that are kept in half precision are widened into `wide`.
    #[inline(always)]
    fn sides<'a>(&'a self, tile: &Tile, wide: &'a mut Vec<T>, slopes: bool) -> (Items<'a, T>, Items<'a, T>) {
        let inputs = &self.inputs;
        let queries = tile.queries.clone().map(|i| inputs.mu1.row(i)).collect();
        let query_extras = tile.queries.clone().map(|i| inputs.extra1.row(i)[0].to_f64());
        let gallery_extras = tile.gallery.clone().map(|j| inputs.extra2.first(j));
        let gallery = inputs.mu2.rows_of(tile.gallery.clone(), wide);
        (self.items(queries, query_extras, slopes), self.items(gallery, gallery_extras, slopes))
    }

    /// A block of pairs for each query.
    fn products(&self, (queries, gallery): (&Items<T>, &Items<T>), out: &mut Square<T>) {
        let (queries, gallery) = (&queries.rows[..], &gallery.rows[..]);
        if F::DIFFERENCE {
            dispatch(Products::<T, true> { queries, gallery, out });
        } else {
            dispatch(Products::<T, false> { queries, gallery, out });
        }
    }

    /// Its scores.
    #[inline(always)]
    pub fn score_tile<S: Simd>(&self, tile: Tile, out: &mut [&mut [T]]) {
        let mut wide = Vec::new();
        let (queries, gallery) = self.sides(&tile, &mut wide, false);
        let mut x = [[T::default(); BLOCK]; BLOCK];
        self.products((&queries, &gallery), &mut x);
        let (mut block, n) = (Block::new(), tile.gallery.len());
        (block.norms.1, block.extras.1, block.own.1) = (gallery.norms, gallery.extras, gallery.own);
        for (i, (out, x)) in out.iter_mut().zip(&x).enumerate() {
            block.set(&queries, i, &x[..n]);
            dispatch(Values { formula: &self.formula, block: &mut block, n });
            for (out, value) in out.iter_mut().zip(&block.x) {
                *out = T::from_f64(*value);
            }
        }
    }

    /// Adds its gradients.
    #[inline(always)]
    pub fn add_gradients<S: Simd>(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        let mut wide = Vec::new();
        let (queries, gallery) = self.sides(&tile, &mut wide, true);
        let (mut x, n) = ([[T::default(); BLOCK]; BLOCK], tile.gallery.len());
        self.products((&queries, &gallery), &mut x);
        // A pair that does not count must not spread the NaN or infinity of its rows.
        for (i, x) in tile.queries.clone().zip(&x) {
            let row = &weights.row(i)[tile.gallery.clone()];
            if row.iter().zip(x).any(|(w, x)| w.to_f64() == 0.0 && !x.to_f64().is_finite()) {
                return by_items(self, tile, weights, out);
            }
        }
        let mut sums = Sums { query: [[0.0; BLOCK]; 2], gallery: [[0.0; BLOCK]; 2], shared: [0.0; 2] };
        let mut block = Block::new();
        (block.norms.1, block.extras.1, block.own.1) = (gallery.norms, gallery.extras, gallery.own.clone());
        for (k, (i, x)) in tile.queries.clone().zip(&mut x).enumerate() {
            block.set(&queries, k, &x[..n]);
            let mut by_pair = [0.0; BLOCK];
            for (weight, x) in by_pair.iter_mut().zip(&weights.row(i)[tile.gallery.clone()]) {
                *weight = x.to_f64();
            }
            let (formula, sums, gallery) = (&self.formula, &mut sums, out.gallery.is_some());
            dispatch(AddSlopes { formula, block: &block, k, n, gallery, by_pair: &mut by_pair, sums });
            for (x, slope) in x.iter_mut().zip(by_pair) {
                *x = T::from_f64(slope);
            }
        }
        for (shared, sum) in out.shared.iter_mut().zip(sums.shared) {
            *shared = *shared + T::from_f64(sum);
        }
        if let Some(out) = &mut out.query {
            self.pull(Side::Query, (&queries, &gallery), &x, &sums.query, out);
        }
        if let Some(out) = &mut out.gallery {
            self.pull(Side::Gallery, (&gallery, &queries), &x, &sums.gallery, out);
        }
    }

    /// Adds the gradients of one side: own items and others, slopes by the product of a pair, and by own norms and extras.
    fn pull(
        &self,
        side: Side,
        (own, others): (&Items<T>, &Items<T>),
        slopes: &Square<T>,
        [norms, extras]: &[[f64; BLOCK]; 2],
        out: &mut ItemGradients<T>,
    ) {
        let (rows, others, mu) = (&own.rows[..], &others.rows[..], &mut *out.mu);
        match (F::DIFFERENCE, side) {
            (true, Side::Query) => dispatch(Pull::<T, true, true> { own: rows, others, slopes, out: mu }),
            (true, Side::Gallery) => dispatch(Pull::<T, true, false> { own: rows, others, slopes, out: mu }),
            (false, Side::Query) => dispatch(Pull::<T, false, true> { own: rows, others, slopes, out: mu }),
            (false, Side::Gallery) => dispatch(Pull::<T, false, false> { own: rows, others, slopes, out: mu }),
        }
        for (k, (mu, extra)) in out.items(rows.len()).enumerate() {
            extra[0] = extra[0] + T::from_f64(extras[k]);
            if F::NORMS {
                let slope = T::from_f64(2.0 * norms[k]);
                mu.iter_mut().zip(rows[k]).for_each(|(mu, &x)| *mu = *mu + slope * x);
            }
        }
    }
}

impl Block {
    /// The pairs of query `k` of a tile.
    #[inline(always)]
    fn set<T: Float>(&mut self, queries: &Items<T>, k: usize, x: &[T]) {
        for (own, x) in self.x.iter_mut().zip(x) {
            *own = x.to_f64();
        }
        self.norms.0 = [queries.norms[k]; BLOCK];
        self.extras.0 = [queries.extras[k]; BLOCK];
        self.own.0.clear();
        self.own.0.extend(queries.own.iter().map(|own| [own[k]; BLOCK]));
    }
}

/// Weighted slopes of a tile, summed over the pairs of each item: by its norm and by its extra; and by the shared numbers.
struct Sums {
    query: [[f64; BLOCK]; 2],
    gallery: [[f64; BLOCK]; 2],
    shared: [f64; 2],
}

/// Adds the slopes of query `k` of a tile, and makes of the weights of its pairs the slopes by the differences of their rows, or by
/// the other row.
struct AddSlopes<'a, F> {
    formula: &'a F,
    block: &'a Block,
    k: usize,
    n: usize,
    gallery: bool,
    by_pair: &'a mut [f64; BLOCK],
    sums: &'a mut Sums,
}
impl<F: Formula> Kernel for AddSlopes<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddSlopes { formula, block, k, n, gallery, by_pair, sums } = self;
        let zero = V::<S, f64>::splat(0.0);
        let (transposed, twice) = (formula.transposed(), V::<S, f64>::splat(if F::DIFFERENCE { 2.0 } else { 1.0 }));
        let mut of_query = [zero; 4];
        for first in (0..n).step_by(f64::LANES) {
            let at = first..first + f64::LANES;
            let (pair, weight) = (block.pair::<S>(first, F::OWN.1), V::<S, f64>::load(&by_pair[at.clone()]));
            let slopes = formula.slopes::<S>(pair);
            let by_query = [slopes.norm, slopes.extra, slopes.shared[0], slopes.shared[1]];
            for m in 0..4 {
                of_query[m] = of_query[m] + weighted::<S>(weight, by_query[m]);
            }
            if gallery {
                let slopes = transposed.slopes::<S>(pair.swapped());
                let by_gallery = [slopes.norm, slopes.extra];
                for m in 0..2 {
                    let sum = V::<S, f64>::load(&sums.gallery[m][at.clone()]) + weighted::<S>(weight, by_gallery[m]);
                    sum.store(&mut sums.gallery[m][at.clone()]);
                }
            }
            (twice * weighted::<S>(weight, slopes.x)).store(&mut by_pair[at]);
        }
        sums.query[0][k] = of_query[0].sum();
        sums.query[1][k] = of_query[1].sum();
        sums.shared[0] += of_query[2].sum();
        sums.shared[1] += of_query[3].sum();
    }
}

/// `weight * slope`, 0 where the weight is 0 whatever the slope.
#[inline(always)]
fn weighted<S: Simd>(weight: V<S, f64>, slope: V<S, f64>) -> V<S, f64> {
    weight.abs().if_less(V::<S, f64>::splat(f64::SMALLEST), V::<S, f64>::splat(0.0), weight * slope)
}

/// Squared norms of rows.
struct Norms<'a, T> {
    rows: &'a [&'a [T]],
    out: &'a mut [f64; BLOCK],
}
impl<T: Float> Kernel for Norms<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, out) in self.rows.iter().zip(self.out) {
            *out = sq_norm::<S, T>(row).to_f64();
        }
    }
}
