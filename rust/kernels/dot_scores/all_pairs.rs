//! All pairs of many queries and gallery rows: inner products of register tiles, as in a search, in place of the pair function.
//!
//! A squared distance x is n - 2 a.b with n = |a|^2 + |b|^2, unless the rows are near each other, where that would lose digits:
//! below [`NEAR`] n it is the pair function's sum of squared differences. Let u be the unit roundoff, m the roundings that
//! [`strip_roundings`] counts, and r = ceil(D / 4 L) + 2 + log2 L those of a squared norm, for L lanes. To first order in u, twice
//! the inner product errs by m u n at most, n by (r + 1) u n, and the last operation by u x <= 2 u n; so a squared distance that is
//! not near errs by at most (m + r + 3) u n, and relative to itself by (m + r + 3) u / [`NEAR`]. An inner product errs by at most
//! m u sum |a_d b_d|. Where squares are subnormal, each of the at most 6 D + 20 roundings errs by up to half the smallest number
//! instead, which is no more than the same share of a distance above 16 smallest numbers over u.
//!
//! The sums of a pair are the same in whichever part of the work, so its score does not depend on the number of threads.

use super::formulas::{Formula, Pair, PER_ITEM};
use super::lengths::{has_lengths, in_range, of_pairs, scaled_norm, WriteScaled};
use super::{sq_norms, DotKernel, Facing, Numbers, Values, NO_NUMBERS};
use crate::drivers::{by_tiles, Tile, BLOCK};
use crate::memory;
use crate::panels::{self, RowTiles, Strip};
use crate::rows::{convert, reduce, Square, DIFFERENCES};
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use crate::view::Matrix;
use std::ops::Range;

#[cfg(doc)]
use crate::panels::strip_roundings;

/// Squared distances below this share of |a|^2 + |b|^2 are sums of squared differences.
pub const NEAR: f64 = 1.0 / 16.0;

/// The queries and the gallery rows of one part of the work, at most: rows are packed for that many queries, and the numbers of
/// queries made for that many rows.
pub const PART: (usize, usize) = (1024, 1024);

/// Gallery rows that are packed together, at most: their inner products with a tile of queries stay in the first-level cache.
const PACKED: usize = 512;

/// Elements that are packed together, at most: they stay in the second-level cache.
const PACKED_ELEMENTS: usize = 1 << 17;

/// The queries up to which they are packed in place of the gallery's rows, which then are read once from where they lie.
const FEW: usize = 16;

/// Gallery rows that meet few queries together: they stay in the first-level cache.
const TOGETHER: usize = 24;

/// With fewer queries or gallery rows than this, panels are so empty that the pair function is faster.
const FEWEST: usize = 8;

/// The numbers per item of one side, in blocks of items with fillers at the end.
struct Side<T> {
    norms: Vec<T>,
    /// The uncertainties, and each of the numbers per item, in the rows' own type, where scores are plain.
    plain: Vec<Vec<T>>,
    /// The numbers of each [`BLOCK`] items.
    numbers: Vec<Numbers>,
}

/// Rows of either side: the queries are in tiles and each chunk of the gallery in panels, or, where they are few, the other way round.
struct Buffers<T> {
    tiles: RowTiles<T>,
    panels: Vec<T>,
}

impl<T: Float, F: Formula> DotKernel<'_, T, F> {
    /// Whether all pairs of the call are scored in panels.
    pub fn in_panels(&self) -> bool {
        let (queries, gallery) = (self.inputs.mu1.rows(), self.inputs.mu2.rows());
        self.inputs.mu1.stored() > 0 && queries.min(gallery) >= FEWEST
    }

    /// The squared norms of rows, where they matter, and the numbers of items.
    fn side(&self, rows: &Matrix<T>, uncertainties: &Matrix<T>, range: Range<usize>) -> Side<T> {
        let mut norms = vec![T::from_f64(1.0); range.len().next_multiple_of(BLOCK)];
        if F::DIFFERENCE || F::NORMS {
            sq_norms(rows, range.clone(), &mut norms);
        }
        let numbers = range.clone().step_by(BLOCK).zip(norms.chunks(BLOCK)).map(|(first, norms)| {
            let (mut numbers, items) = ((NO_NUMBERS, NO_NUMBERS), first..range.end.min(first + BLOCK));
            let (n, mut scaled, mut buffer) = (items.len(), 0, Vec::new());
            numbers.0.iter_mut().zip(norms).for_each(|(number, norm)| *number = norm.to_f64());
            if has_lengths::<F>() {
                let norms = numbers.0.iter_mut().zip(items.clone()).enumerate();
                for (k, (norm, item)) in norms.filter(|x| !in_range::<T>(*x.1 .0)) {
                    (*norm, scaled) = (scaled_norm(rows.row(item, &mut buffer), *norm), scaled | 1 << k);
                }
            }
            numbers.1.iter_mut().zip(items).for_each(|(number, item)| *number = uncertainties.first(item));
            let per_item = self.per_item((&numbers.1, &numbers.0), n, false, false);
            Numbers { norms: numbers.0, scaled, uncertainties: numbers.1, per_item }
        });
        let (numbers, mut plain): (Vec<_>, _) = (numbers.collect(), Vec::new());
        let count = if F::PLAIN { 1 + F::PER_ITEM.0 } else { 0 };
        plain.resize_with(count, || Vec::with_capacity(norms.len()));
        for Numbers { uncertainties, per_item, .. } in &numbers {
            for (plain, of_block) in plain.iter_mut().zip(std::iter::once(uncertainties).chain(per_item)) {
                plain.extend(of_block.iter().map(|&x| T::from_f64(x)));
            }
        }
        Side { norms, plain, numbers }
    }

    /// Scores all pairs of a part of the work; `saved` takes their squared distances or inner products.
    #[inline(always)]
    pub fn score_all<S: Simd>(&self, part: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        if !self.in_panels() {
            return by_tiles(self, part, out, saved);
        }
        let inputs = &self.inputs;
        let mut buffers = self.buffers(part.queries.clone());
        let queries = self.side(&Matrix::Full(inputs.mu1), &Matrix::Full(inputs.uncertainty1), part.queries.clone());
        let packed = (PACKED_ELEMENTS / inputs.mu1.stored() / BLOCK * BLOCK).clamp(BLOCK, PACKED);
        for first in part.gallery.clone().step_by(packed) {
            let rows = first..part.gallery.end.min(first + packed);
            let gallery = self.side(&inputs.mu2, &inputs.uncertainty2, rows.clone());
            let at = rows.start - part.gallery.start..rows.end - part.gallery.start;
            let take: &mut dyn FnMut(usize, &mut [T]) = &mut |k, x| {
                if let Some(saved) = saved.get_mut(k) {
                    saved[at.clone()].copy_from_slice(&x[..at.len()]);
                }
                let first = (part.queries.start + k, rows.start);
                self.values((&queries, k), &gallery, first, x, &mut out[k][at.clone()]);
            };
            let tile = Tile { queries: part.queries.clone(), gallery: rows.clone() };
            self.x_of_all(tile, &mut buffers, (&queries.norms, &gallery.norms), take);
        }
    }

    /// The squared distances or inner products of all pairs of a tile, as [`DotKernel::score_all`] finds them.
    pub fn x_of_tile(&self, tile: &Tile, out: &mut Square<T>) {
        let norms = if F::DIFFERENCE { self.norms_of(tile) } else { (&[][..], &[][..]) };
        let n = tile.gallery.len();
        let mut buffers = self.buffers(tile.queries.clone());
        let take: &mut dyn FnMut(usize, &mut [T]) = &mut |k, x| out[k][..n].copy_from_slice(&x[..n]);
        self.x_of_all(tile.clone(), &mut buffers, norms, take);
    }

    /// The buffers of all pairs with these queries, which are laid out in one of them.
    fn buffers(&self, queries: Range<usize>) -> Buffers<T> {
        let (mut tiles, mut panels) = (RowTiles::default(), Vec::new());
        if queries.len() > FEW {
            let rows: Vec<_> = queries.map(|i| self.inputs.mu1.row(i)).collect();
            tiles.fill(&rows);
        } else {
            memory::resize(&mut panels, panels::padded::<T>(queries.len()) * self.inputs.mu1.stored(), T::default());
            panels::pack(&Matrix::Full(self.inputs.mu1), queries, &|row| row, &mut panels);
        }
        Buffers { tiles, panels }
    }

    /// Calls `take(k, x)` for query `k` of a tile of any size with its squared distances or inner products, which it may
    /// overwrite. The queries are those of the buffers.
    fn x_of_all(
        &self,
        tile: Tile,
        buffers: &mut Buffers<T>,
        norms: (&[T], &[T]),
        take: &mut dyn FnMut(usize, &mut [T]),
    ) {
        let (Tile { queries, gallery }, Buffers { tiles, panels }) = (tile, buffers);
        let (mu2, n) = (&self.inputs.mu2, gallery.len());
        let mut pairs = AllPairs { score: self, first: (queries.start, gallery.start), n, norms, take };
        if queries.len() > FEW {
            memory::resize(panels, panels::padded::<T>(n) * mu2.stored(), T::default());
            panels::pack(mu2, gallery, &|row| row, panels);
            return panels::strips(tiles, panels, n, &mut pairs);
        }
        let (mut wide, stride) = (Vec::new(), panels::padded::<T>(n));
        let mut columns = Columns { stride, first: 0, x: vec![T::default(); queries.len() * stride] };
        for rows in mu2.rows_of(gallery, &mut wide).chunks(TOGETHER) {
            tiles.fill(rows);
            panels::strips(tiles, panels, queries.len(), &mut columns);
            columns.first += rows.len();
        }
        for (k, x) in columns.x.chunks_exact_mut(stride).enumerate() {
            pairs.take(k, x);
        }
    }

    /// The scores of query `k` of one side with the items of the other, given their squared distances or inner products; `first` are
    /// the rows of the query and of the first of these items.
    fn values(
        &self,
        (queries, k): (&Side<T>, usize),
        gallery: &Side<T>,
        first: (usize, usize),
        x: &[T],
        out: &mut [T],
    ) {
        let query = queries.numbers[k / BLOCK].scaled >> (k % BLOCK) & 1 == 1;
        let scaled = query || gallery.numbers.iter().any(|numbers| numbers.scaled != 0);
        let known =
            F::PLAIN && dispatch(PlainValues { formula: &self.formula, queries, k, gallery, x, out: &mut *out });
        if known && !scaled {
            return;
        }
        let (mut wide, mut buffer) = ([[0.0; BLOCK]; PACKED / BLOCK], Vec::new());
        convert(&x[..out.len()], wide.as_flattened_mut());
        for ((block, numbers), x) in gallery.numbers.iter().enumerate().zip(&mut wide) {
            if scaled {
                let items = first.1 + block * BLOCK..first.1 + out.len().min((block + 1) * BLOCK);
                let rows = self.inputs.mu2.rows_of(items, &mut buffer);
                let (scaled, query) = (of_pairs(query, numbers.scaled), self.inputs.mu1.row(first.0));
                dispatch(WriteScaled { scaled, query, gallery: &rows, x: &mut *x });
            }
            let mut pairs = Facing { x, queries: &queries.numbers[k / BLOCK], k: k % BLOCK, gallery: numbers };
            dispatch(Values { formula: &self.formula, pairs: &mut pairs, n: BLOCK });
        }
        if !F::PLAIN {
            return convert(wide.as_flattened(), out);
        }
        // Only what is not known otherwise: a pair's score does not depend on the pairs beside it.
        for (j, (out, wide)) in out.iter_mut().zip(wide.as_flattened()).enumerate() {
            let scaled = of_pairs(query, gallery.numbers[j / BLOCK].scaled) >> (j % BLOCK) & 1 == 1;
            if scaled || !(out.to_f64() < f64::INFINITY) {
                *out = T::from_f64(*wide);
            }
        }
    }
}

/// Computes the scores of a query's pairs in the rows' own type.
struct PlainValues<'a, T, F> {
    formula: &'a F,
    queries: &'a Side<T>,
    k: usize,
    gallery: &'a Side<T>,
    x: &'a [T],
    out: &'a mut [T],
}
impl<T: Float, F: Formula> Kernel for PlainValues<'_, T, F> {
    const LANES_MEET: bool = false;
    /// Whether no score is NaN or infinity, which may come of numbers that leave the range of the rows' type.
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        let PlainValues { formula, queries, k, gallery, x, out } = self;
        let zero = V::<S, T>::from(0.0);
        let mut own = [zero; 1 + PER_ITEM];
        for n in 0..=F::PER_ITEM.0 {
            own[n] = V::<S, T>::splat(queries.plain[n][k]);
        }
        let (width, mut beyond) = (V::<S, T>::LANES, 0);
        for (first, out) in (0..).step_by(width).zip(out.chunks_mut(width)) {
            let (at, mut other) = (first..first + width, [zero; 1 + PER_ITEM]);
            for n in 0..=F::PER_ITEM.0 {
                other[n] = V::<S, T>::load(&gallery.plain[n][at.clone()]);
            }
            let ([v, own @ ..], [w, other @ ..]) = (own, other);
            let pair =
                Pair { x: V::<S, T>::load(&x[at]), norms: (zero, zero), uncertainties: (v, w), per_item: (own, other) };
            let value = formula.plain::<S, T>(pair);
            beyond |= value.not_less_bits(f64::INFINITY);
            if out.len() == width {
                value.store(out);
            } else {
                value.store_partial(out);
            }
        }
        beyond == 0
    }
}

/// The inner products of a few packed queries with rows, as rows of numbers for each query.
struct Columns<T> {
    /// The numbers of a query, with padding.
    stride: usize,
    /// The place of the first of the rows at hand.
    first: usize,
    x: Vec<T>,
}
impl<T: Float> Strip<T> for Columns<T> {
    fn take(&mut self, row: usize, products: &mut [T]) {
        for (x, product) in self.x.chunks_exact_mut(self.stride).zip(products) {
            x[self.first + row] = *product;
        }
    }
}

/// All pairs of some queries with packed gallery rows.
struct AllPairs<'a, 'b, T, F> {
    score: &'a DotKernel<'b, T, F>,
    /// The first query and the first gallery row.
    first: (usize, usize),
    /// How many gallery rows there are.
    n: usize,
    norms: (&'a [T], &'a [T]),
    take: &'a mut dyn FnMut(usize, &mut [T]),
}
impl<T: Float, F: Formula> Strip<T> for AllPairs<'_, '_, T, F> {
    fn take(&mut self, query: usize, products: &mut [T]) {
        if F::DIFFERENCE {
            let (norm, norms) = (self.norms.0[query], &self.norms.1[..self.n]);
            let near = dispatch(Distances { norm, norms, x: &mut *products });
            if !near.is_empty() {
                let inputs = &self.score.inputs;
                let (row, first) = (inputs.mu1.row(self.first.0 + query), self.first.1);
                dispatch(Near { row, gallery: &inputs.mu2, first, near: &near, x: &mut *products });
            }
        }
        (self.take)(query, products);
    }
}

/// Which of at most 64 squared distances of a row and others are near: bit j says it of the j-th.
pub fn near_of<T: Float>(norm: T, norms: &[T], x: &[T]) -> u64 {
    dispatch(NearOf { norm, norms, x })
}

struct NearOf<'a, T> {
    norm: T,
    norms: &'a [T],
    x: &'a [T],
}
impl<T: Float> Kernel for NearOf<'_, T> {
    const LANES_MEET: bool = false;
    type Output = u64;
    #[inline(always)]
    fn run<S: Simd>(self) -> u64 {
        let (own, mut near, width) = (V::<S, T>::splat(self.norm), 0, V::<S, T>::LANES);
        for (block, (norms, x)) in self.norms.chunks(width).zip(self.x.chunks(width)).enumerate() {
            let both = own + V::<S, T>::load_partial(norms, T::default());
            let bits = near_bits::<S, T>(both, V::<S, T>::load_partial(&x[..norms.len()], T::default()));
            near |= (u64::from(bits) & ((1 << norms.len()) - 1)) << (block * width);
        }
        near
    }
}

/// A mask of the lanes whose squared distance is near, given the sum of both squared norms. Infinite norms and NaN are near too: no
/// product says what the distance is.
#[inline(always)]
fn near_bits<S: Simd, T: Float>(both: V<S, T>, distance: V<S, T>) -> u32 {
    both.mul_add(NEAR, 16.0 * T::SMALLEST / T::ROUNDOFF).not_less_bits(distance)
}

/// Replaces the inner products of a row with others by squared distances, and returns the places of those that are near.
struct Distances<'a, T> {
    norm: T,
    norms: &'a [T],
    x: &'a mut [T],
}
impl<T: Float> Kernel for Distances<'_, T> {
    const LANES_MEET: bool = false;
    type Output = Vec<usize>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<usize> {
        let (mut near, own, width) = (Vec::new(), V::<S, T>::splat(self.norm), V::<S, T>::LANES);
        for (block, (norms, x)) in self.norms.chunks(width).zip(self.x.chunks_exact_mut(width)).enumerate() {
            let both = own + V::<S, T>::load_partial(norms, T::from_f64(1.0));
            let distance = V::<S, T>::load(x).mul_add(-2.0, both);
            let bits = near_bits::<S, T>(both, distance);
            distance.store(x);
            if bits != 0 {
                near.extend((0..norms.len()).filter(|lane| bits >> lane & 1 == 1).map(|lane| block * width + lane));
            }
        }
        near
    }
}

/// Writes the squared distances of a row and the rows at some places of the gallery from `first` on, as the pair function
/// computes them.
struct Near<'a, 'b, T> {
    row: &'a [T],
    gallery: &'a Matrix<'b, T>,
    first: usize,
    near: &'a [usize],
    x: &'a mut [T],
}
impl<T: Float> Kernel for Near<'_, '_, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut buffer = Vec::new();
        for &place in self.near {
            let other = self.gallery.row(self.first + place, &mut buffer);
            self.x[place] = reduce::<S, T, DIFFERENCES>(self.row, other);
        }
    }
}
