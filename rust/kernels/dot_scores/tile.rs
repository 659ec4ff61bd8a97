//! Tiles of all pairs of some queries and gallery rows: rows are loaded, and numbers per item made, once for several pairs.
//!
//! A pair's sum has the lanes and the order of [`rows::reduce`], so its score has the same bits. Gradients are sums of other rows,
//! or of differences of rows, weighted by partial derivatives, which are products of matrices unless rows are near each other:
//! `weighted` has them.

use super::formulas::{differentiated, Formula};
use super::lengths::{self, has_lengths, in_range, of_pairs, scaled_norm, WriteScaled};
use super::weighted::{
    add_differences, add_products, those, weighted, AddPlainPartials, Near, Sides, WeightedPartials,
};
use super::{accumulate_pair, sq_norm, Block, BlockPartials, DotKernel, Facing, Numbers, Pairs, Values, NO_NUMBERS};
use crate::drivers::{by_items, Rows, Side, Tile, TileGradient, BLOCK};
use crate::rows::{self, Square, DIFFERENCES, PRODUCTS};
use crate::simd::{dispatch, AllLanes, Float, Kernel, Simd, V};
use crate::view::View;
use std::ops::Range;

impl<T: Float, F: Formula> DotKernel<'_, T, F> {
    /// The rows of both sides of a tile. Those that are stored in half precision are widened into `wide`.
    fn rows<'a>(&'a self, tile: &Tile, wide: &'a mut Vec<T>) -> [Vec<&'a [T]>; 2] {
        let queries = tile.queries.clone().map(|i| self.inputs.mu1.row(i)).collect();
        [queries, self.inputs.mu2.rows_of(tile.gallery.clone(), wide)]
    }

    /// The uncertainties of the items of both sides of a tile, with fillers at the end.
    fn uncertainties(&self, tile: &Tile) -> [[f64; BLOCK]; 2] {
        let mut both = [NO_NUMBERS; 2];
        both[0]
            .iter_mut()
            .zip(tile.queries.clone())
            .for_each(|(x, i)| *x = self.inputs.uncertainty1.row(i)[0].to_f64());
        both[1].iter_mut().zip(tile.gallery.clone()).for_each(|(x, j)| *x = self.inputs.uncertainty2.first(j));
        both
    }

    /// The inputs of a formula that are of one item alone, for both sides: squared norms, uncertainties and numbers per item.
    fn numbers(&self, tile: &Tile, (queries, gallery): Sides<T>, partials: bool) -> [Numbers; 2] {
        let [of_queries, of_gallery] = self.uncertainties(tile);
        [(queries, of_queries), (gallery, of_gallery)].map(|(rows, uncertainties)| {
            let (mut norms, mut scaled) = (NO_NUMBERS, 0);
            if F::NORMS {
                dispatch(Norms { rows, out: &mut norms });
            }
            if has_lengths::<F>() {
                for (k, (norm, row)) in norms.iter_mut().zip(rows).enumerate().filter(|x| !in_range::<T>(*x.1 .0)) {
                    (*norm, scaled) = (scaled_norm(row, *norm), scaled | 1 << k);
                }
            }
            let per_item = self.per_item((&uncertainties, &norms), rows.len(), false, partials);
            Numbers { norms, scaled, uncertainties, per_item }
        })
    }

    /// The squared distances or inner products of all pairs of a tile.
    fn products(&self, (queries, gallery): Sides<T>, out: &mut Square<T>) {
        if F::DIFFERENCE {
            rows::products::<T, DIFFERENCES>(queries, gallery, out);
        } else {
            rows::products::<T, PRODUCTS>(queries, gallery, out);
        }
    }

    /// Scores a tile; `saved` takes the squared distances or inner products of its pairs.
    #[inline(always)]
    pub fn score_tile<S: Simd>(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        let mut wide = Vec::new();
        let [queries, gallery] = self.rows(&tile, &mut wide);
        let (sides, mut x) = ((&queries[..], &gallery[..]), [[T::default(); BLOCK]; BLOCK]);
        self.products(sides, &mut x);
        let (n, [of_queries, of_gallery]) = (tile.gallery.len(), self.numbers(&tile, sides, false));
        saved.iter_mut().zip(&x).for_each(|(saved, x)| saved.copy_from_slice(&x[..n]));
        for (k, (out, x)) in out.iter_mut().zip(&x).enumerate() {
            let mut x = widened(&x[..n]);
            let scaled = of_pairs(of_queries.scaled >> k & 1 == 1, of_gallery.scaled);
            if scaled != 0 {
                dispatch(WriteScaled { scaled, query: queries[k], gallery: &gallery, x: &mut x });
            }
            let mut pairs = Facing { x: &mut x, queries: &of_queries, k, gallery: &of_gallery };
            dispatch(Values { formula: &self.formula, pairs: &mut pairs, n });
            rows::convert(&x, out);
        }
    }

    /// Adds the gradients of a tile's items.
    #[inline(always)]
    pub fn add_gradients<S: Simd>(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        let mut wide = Vec::new();
        let [queries, gallery] = self.rows(&tile, &mut wide);
        let (sides, known) = ((&queries[..], &gallery[..]), F::BY_X || F::DIFFERENCE);
        let (mut x, n) = ([[T::default(); BLOCK]; BLOCK], tile.gallery.len());
        match self.saved {
            _ if !F::BY_X && !F::DIFFERENCE => {}
            None if self.in_panels() => self.x_of_tile(&tile, &mut x),
            None => self.products(sides, &mut x),
            Some(saved) => {
                for (i, x) in tile.queries.clone().zip(&mut x) {
                    x[..n].copy_from_slice(&saved[i * self.inputs.mu2.rows()..][tile.gallery.clone()]);
                }
            }
        }
        let numbers = (!F::PLAIN_PARTIALS).then(|| self.numbers(&tile, sides, true));
        let scaled = numbers.as_ref().is_some_and(|sides| sides.iter().any(|side| side.scaled != 0));
        if scaled || !S::call(WeightlessAreFinite { sides, weights, x: &x, known }) {
            return by_items(self, tile, weights, out);
        }
        let near = self.near(&tile, &x);
        let apart = F::DIFFERENCE && near.are_many(sides);
        let mut sums = WeightedPartials { query: [[0.0; BLOCK]; 2], gallery: [[0.0; BLOCK]; 2], shared: [0.0; 2] };
        // The pairs of which the row itself is multiplied by the derivative by x, too: those that are not differences.
        let whole = near.0.map(|near| if F::DIFFERENCE && !apart { !near } else { 0 });
        if let Some(numbers) = &numbers {
            self.add_partials(weights, (numbers, &whole), &mut x, &mut sums, out);
        } else {
            let uncertainties = self.uncertainties(&tile).map(|side| side.map(T::from_f64));
            let (formula, sums, x) = (&self.formula, &mut sums, &mut x);
            dispatch(AddPlainPartials { formula, uncertainties, whole: &whole, weights, x, sums });
        }
        let (difference, by_rows) = (F::DIFFERENCE, F::NORMS || F::DIFFERENCE);
        S::call(AddItems { sides, x: &x, difference, near: &near, apart, sums: &sums, by_rows, out });
    }

    /// Adds the weighted partial derivatives of a tile's pairs to the sums, and replaces their squared distances or inner products
    /// by those that the rows are multiplied by.
    #[inline(always)]
    fn add_partials(
        &self,
        weights: &View<T>,
        ([queries, gallery], whole): (&[Numbers; 2], &[u64; BLOCK]),
        x: &mut Square<T>,
        sums: &mut WeightedPartials,
        out: &mut TileGradient<T>,
    ) {
        let n = weights.stored();
        for (k, x) in x.iter_mut().enumerate().take(weights.rows()) {
            let mut wide = widened(&x[..n]);
            let pairs = Facing { x: &mut wide, queries, k, gallery };
            let mut by_pair = [0.0; BLOCK];
            rows::convert(weights.row(k), &mut by_pair);
            let (formula, sums, gallery) = (&self.formula, &mut *sums, out.gallery.is_some());
            dispatch(AddPartials { formula, pairs: &pairs, n, gallery, whole: whole[k], by_pair: &mut by_pair, sums });
            rows::convert(&by_pair, x);
        }
        for (shared, sum) in out.shared.iter_mut().zip(sums.shared) {
            *shared = *shared + T::from_f64(sum);
        }
    }

    /// Adds the gradients of pairs of equal rows.
    #[inline(always)]
    pub fn add_paired<S: Simd>(&self, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
        let (first, n) = (Rows::From(rows.start), rows.len());
        let mut block = Block::new();
        self.fill(&mut block, (first, first), n, true, self.saved.map(|saved| &saved[rows.clone()]));
        let of = |side| dispatch(BlockPartials { formula: &self.formula, block: &block, side, n });
        let mut wide = Vec::new();
        for (side, items) in [(Side::Query, &mut out.query), (Side::Gallery, &mut out.gallery)] {
            let Some(items) = items else { continue };
            let partials = of(side);
            for (k, (i, (mu, uncertainty))) in rows.clone().zip(items.items(n)).enumerate() {
                let weight = weights[k].to_f64();
                // A pair of weight 0 must not spread the NaN or infinity of its partial derivatives.
                if weight == 0.0 {
                    continue;
                }
                let (a, b) = (self.inputs.mu1.row(i), self.inputs.mu2.row(i, &mut wide));
                let (row, other) = if side == Side::Query { (a, b) } else { (b, a) };
                let (by_x, by_norm) = (weight * partials.x[k], weight * partials.norm[k]);
                if block.scaled >> k & 1 == 1 {
                    let (own, of_other) = (lengths::power::<S, T>(row), lengths::power::<S, T>(other));
                    lengths::accumulate(mu, (row, own), (other, of_other), by_x, by_norm);
                } else {
                    accumulate_pair::<T, F>(mu, row, other, by_x, by_norm);
                }
                uncertainty[0] = uncertainty[0] + T::from_f64(weight * partials.uncertainty[k]);
                if side == Side::Query {
                    for (shared, partial) in out.shared.iter_mut().zip(&partials.shared) {
                        *shared = *shared + T::from_f64(weight * partial[k]);
                    }
                }
            }
        }
    }
}

/// Whether all rows are finite that are in a pair of weight 0, which must not spread their NaN or infinity. This and the next are
/// functions of their own, the same for all formulas.
struct WeightlessAreFinite<'a, T> {
    sides: Sides<'a, T>,
    weights: &'a View<'a, T>,
    /// The squared distances or inner products of the pairs, and whether they are given: a pair's is finite only if its rows are.
    x: &'a Square<T>,
    known: bool,
}
impl<T: Float> Kernel for WeightlessAreFinite<'_, T> {
    const LANES_MEET: bool = false;
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        let WeightlessAreFinite { sides: (queries, gallery), weights, x, mut known } = self;
        for (k, x) in x.iter().enumerate().take(weights.rows()) {
            let weights = weights.row(k);
            // Counted, not searched, which takes whole registers.
            if weights.iter().map(|&weight| u32::from(weight == T::default())).sum::<u32>() == 0 {
                continue;
            }
            for (&weight, x) in weights.iter().zip(x) {
                if weight != T::default() {
                    continue;
                }
                let all = || rows::finite(queries.iter().chain(gallery).copied());
                if !x.to_f64().is_finite() || !(known || all()) {
                    return false;
                }
                known = true;
            }
        }
        true
    }
}

/// Adds the gradients of the items of both sides of a tile.
struct AddItems<'a, 'b, T> {
    sides: Sides<'a, T>,
    /// The weighted partial derivatives of each pair by its squared distance (`difference`) or inner product.
    x: &'a Square<T>,
    difference: bool,
    /// The pairs whose rows are near each other, and whether the differences of all pairs are taken.
    near: &'a Near,
    apart: bool,
    /// The weighted partial derivatives by the items' numbers, and whether those by a row's norm or the row itself are among them.
    sums: &'a WeightedPartials,
    by_rows: bool,
    out: &'a mut TileGradient<'b, T>,
}
impl<T: Float> Kernel for AddItems<'_, '_, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddItems { sides: (queries, gallery), x, difference, near, apart, sums, by_rows, out } = self;
        if apart {
            add_differences((queries, gallery), x, out);
        } else {
            add_products((queries, gallery), x, difference, near, out);
        }
        for (items, [by_row, uncertainties], out) in
            [(queries, &sums.query, &mut out.query), (gallery, &sums.gallery, &mut out.gallery)]
        {
            let Some(out) = out else { continue };
            for (k, (mu, uncertainty)) in out.items(items.len()).enumerate() {
                uncertainty[0] = uncertainty[0] + T::from_f64(uncertainties[k]);
                if by_rows {
                    let partial = T::from_f64(2.0 * by_row[k]);
                    mu.iter_mut().zip(items[k]).for_each(|(mu, &x)| *mu = *mu + partial * x);
                }
            }
        }
    }
}

/// Numbers in float64, with fillers at the end.
fn widened<T: Float>(x: &[T]) -> [f64; BLOCK] {
    let mut out = NO_NUMBERS;
    rows::convert(x, &mut out);
    out
}

/// Adds the partial derivatives of a query's pairs to the sums. Replaces the weights of its pairs by weighted partial
/// derivatives: what the difference of a pair's rows, or the other row, is multiplied by in the gradient of mu.
struct AddPartials<'a, F> {
    formula: &'a F,
    pairs: &'a Facing<'a>,
    n: usize,
    gallery: bool,
    /// Bit j says that the derivative by x of the j-th pair is added to those by both norms.
    whole: u64,
    by_pair: &'a mut [f64; BLOCK],
    sums: &'a mut WeightedPartials,
}
impl<F: Formula> Kernel for AddPartials<'_, F> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddPartials { formula, pairs, n, gallery, whole, by_pair, sums } = self;
        let (transposed, twice) = (formula.transposed(), if F::DIFFERENCE { 2.0 } else { 1.0 });
        let mut of_query = [AllLanes::<S, f64>::zeros(); 4];
        for first in (0..n).step_by(V::<S, f64>::LANES) {
            let (pair, weight) = (pairs.pair::<S>(first, F::PER_ITEM.1), V::<S, f64>::load(&by_pair[first..]));
            let partials = differentiated::<S, F>(formula, pair);
            let by_x = weighted::<S, f64>(weight, partials.x);
            let by_rows = those::<S, f64>(by_x, whole >> first);
            let by_query = [partials.norm, partials.uncertainty, partials.shared[0], partials.shared[1]];
            for m in 0..4 {
                let added = weighted::<S, f64>(weight, by_query[m]);
                let sum = of_query[m].at(first);
                *sum = *sum + if m == 0 { added + by_rows } else { added };
            }
            if gallery {
                let by_gallery = if F::BY_SUM {
                    [partials.norm, partials.uncertainty]
                } else {
                    let partials = differentiated::<S, F>(&transposed, pair.swapped());
                    [partials.norm, partials.uncertainty]
                };
                let added =
                    [weighted::<S, f64>(weight, by_gallery[0]) + by_rows, weighted::<S, f64>(weight, by_gallery[1])];
                for m in 0..2 {
                    let sum = V::<S, f64>::load(&sums.gallery[m][first..]) + added[m];
                    sum.store(&mut sums.gallery[m][first..]);
                }
            }
            (twice * by_x).store(&mut by_pair[first..]);
        }
        sums.query[0][pairs.k] = of_query[0].sum();
        sums.query[1][pairs.k] = of_query[1].sum();
        sums.shared[0] += of_query[2].sum();
        sums.shared[1] += of_query[3].sum();
    }
}

/// Computes squared norms of rows.
struct Norms<'a, T> {
    rows: &'a [&'a [T]],
    out: &'a mut [f64; BLOCK],
}
impl<T: Float> Kernel for Norms<'_, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, out) in self.rows.iter().zip(self.out) {
            *out = sq_norm::<S, T>(row).to_f64();
        }
    }
}
