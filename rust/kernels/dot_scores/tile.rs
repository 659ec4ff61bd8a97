//! Tiles of all pairs of some queries and gallery rows: rows are loaded, and numbers per item made, once for several pairs.
//!
//! A pair's sum has the lanes and the order of [`rows::reduce`], so its score has the same bits. Gradients are sums of
//! differences of rows, weighted by partial derivatives: products of matrices instead of differences would cost a little less,
//! and lose the digits of rows that are near each other.

use super::formulas::Formula;
use super::{accumulate_pair, sq_norm, Block, BlockPartials, DotScore, PerItem, Values, NO_NUMBERS};
use crate::drivers::{by_items, Rows, Side, Tile, TileGradient, BLOCK};
use crate::rows::{self, Square, DIFFERENCES, OTHERS_FIRST, PRODUCTS, ROWS_FIRST};
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use crate::view::View;
use std::ops::Range;

/// The rows of a side of a tile, with their squared norms, uncertainties and numbers per item.
struct TileSide<'a, T> {
    rows: Vec<&'a [T]>,
    norms: [f64; BLOCK],
    uncertainties: [f64; BLOCK],
    per_item: PerItem,
}

impl<T: Float, F: Formula> DotScore<'_, T, F> {
    #[inline(always)]
    fn items<'a>(
        &self,
        rows: Vec<&'a [T]>,
        uncertainties: impl Iterator<Item = f64>,
        partials: bool,
    ) -> TileSide<'a, T> {
        let (mut norms, mut numbers) = (NO_NUMBERS, NO_NUMBERS);
        if F::NORMS {
            dispatch(Norms { rows: &rows, out: &mut norms });
        }
        numbers.iter_mut().zip(uncertainties).for_each(|(number, uncertainty)| *number = uncertainty);
        let per_item = self.per_item((&numbers, &norms), rows.len(), false, partials);
        TileSide { rows, norms, uncertainties: numbers, per_item }
    }

    /// Both sides of a tile. Rows that are stored in half precision are widened into `wide`.
    #[inline(always)]
    fn sides<'a>(&'a self, tile: &Tile, wide: &'a mut Vec<T>, partials: bool) -> (TileSide<'a, T>, TileSide<'a, T>) {
        let inputs = &self.inputs;
        let queries = tile.queries.clone().map(|i| inputs.mu1.row(i)).collect();
        let query_uncertainties = tile.queries.clone().map(|i| inputs.uncertainty1.row(i)[0].to_f64());
        let gallery_uncertainties = tile.gallery.clone().map(|j| inputs.uncertainty2.first(j));
        let gallery = inputs.mu2.rows_of(tile.gallery.clone(), wide);
        (self.items(queries, query_uncertainties, partials), self.items(gallery, gallery_uncertainties, partials))
    }

    /// The squared distances or inner products of all pairs of a tile.
    fn products(&self, (queries, gallery): (&TileSide<T>, &TileSide<T>), out: &mut Square<T>) {
        if F::DIFFERENCE {
            rows::products::<T, DIFFERENCES>(&queries.rows, &gallery.rows, out);
        } else {
            rows::products::<T, PRODUCTS>(&queries.rows, &gallery.rows, out);
        }
    }

    /// Scores a tile; `saved` takes the squared distances or inner products of its pairs.
    #[inline(always)]
    pub fn score_tile<S: Simd>(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        let mut wide = Vec::new();
        let (queries, gallery) = self.sides(&tile, &mut wide, false);
        let mut x = [[T::default(); BLOCK]; BLOCK];
        self.products((&queries, &gallery), &mut x);
        let (mut block, n) = (Block::new(), tile.gallery.len());
        saved.iter_mut().zip(&x).for_each(|(saved, x)| saved.copy_from_slice(&x[..n]));
        (block.norms.1, block.uncertainties.1, block.per_item.1) =
            (gallery.norms, gallery.uncertainties, gallery.per_item);
        for (i, (out, x)) in out.iter_mut().zip(&x).enumerate() {
            block.set(&queries, i, &x[..n]);
            dispatch(Values { formula: &self.formula, block: &mut block, n });
            for (out, value) in out.iter_mut().zip(&block.x) {
                *out = T::from_f64(*value);
            }
        }
    }

    /// Adds the gradients of a tile's items.
    #[inline(always)]
    pub fn add_gradients<S: Simd>(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        let mut wide = Vec::new();
        let (queries, gallery) = self.sides(&tile, &mut wide, true);
        let (mut x, n) = ([[T::default(); BLOCK]; BLOCK], tile.gallery.len());
        match self.saved {
            _ if !F::BY_X => {}
            None => self.products((&queries, &gallery), &mut x),
            Some(saved) => {
                for (i, x) in tile.queries.clone().zip(&mut x) {
                    x[..n].copy_from_slice(&saved[i * self.inputs.mu2.rows()..][tile.gallery.clone()]);
                }
            }
        }
        if !self.weightless_pairs_are_finite((&queries, &gallery), &tile, weights, &x) {
            return by_items(self, tile, weights, out);
        }
        let mut sums = WeightedPartials { query: [[0.0; BLOCK]; 2], gallery: [[0.0; BLOCK]; 2], shared: [0.0; 2] };
        let mut block = Block::new();
        (block.norms.1, block.uncertainties.1, block.per_item.1) =
            (gallery.norms, gallery.uncertainties, gallery.per_item.clone());
        for (k, (i, x)) in tile.queries.clone().zip(&mut x).enumerate() {
            block.set(&queries, k, &x[..n]);
            let mut by_pair = [0.0; BLOCK];
            for (weight, x) in by_pair.iter_mut().zip(&weights.row(i)[tile.gallery.clone()]) {
                *weight = x.to_f64();
            }
            let (formula, sums, gallery) = (&self.formula, &mut sums, out.gallery.is_some());
            dispatch(AddPartials { formula, block: &block, k, n, gallery, by_pair: &mut by_pair, sums });
            for (x, partial) in x.iter_mut().zip(by_pair) {
                *x = T::from_f64(partial);
            }
        }
        for (shared, sum) in out.shared.iter_mut().zip(sums.shared) {
            *shared = *shared + T::from_f64(sum);
        }
        self.add_items((&queries, &gallery), &x, &sums, out);
    }

    /// Whether all rows are finite that are in a pair of weight 0, which must not spread their NaN or infinity; `x` are the
    /// squared distances or inner products.
    #[inline(always)]
    fn weightless_pairs_are_finite(
        &self,
        (queries, gallery): (&TileSide<T>, &TileSide<T>),
        tile: &Tile,
        weights: &View<T>,
        x: &Square<T>,
    ) -> bool {
        let mut known = F::BY_X;
        for (i, x) in tile.queries.clone().zip(x) {
            for (weight, x) in weights.row(i)[tile.gallery.clone()].iter().zip(x) {
                if weight.to_f64() != 0.0 {
                    continue;
                }
                let all = || rows::finite(queries.rows.iter().chain(&gallery.rows).copied());
                if !x.to_f64().is_finite() || !(known || all()) {
                    return false;
                }
                known = true;
            }
        }
        true
    }

    /// Adds the gradients of the items of both sides: `x` are the weighted partial derivatives of each pair by its squared
    /// distance or inner product, `sums` those by the items' numbers.
    #[inline(always)]
    fn add_items(
        &self,
        (queries, gallery): (&TileSide<T>, &TileSide<T>),
        x: &Square<T>,
        sums: &WeightedPartials,
        out: &mut TileGradient<T>,
    ) {
        match (&mut out.query, &mut out.gallery) {
            (Some(of_queries), Some(of_gallery)) if F::DIFFERENCE => {
                rows::accumulate_both(&queries.rows, &gallery.rows, x, (&mut *of_queries.mu, &mut *of_gallery.mu));
            }
            (of_queries, of_gallery) => {
                if let Some(out) = of_queries {
                    self.accumulate(Side::Query, (queries, gallery), x, &mut *out.mu);
                }
                if let Some(out) = of_gallery {
                    self.accumulate(Side::Gallery, (gallery, queries), x, &mut *out.mu);
                }
            }
        }
        for (items, [norms, uncertainties], out) in
            [(queries, &sums.query, &mut out.query), (gallery, &sums.gallery, &mut out.gallery)]
        {
            let Some(out) = out else { continue };
            for (k, (mu, uncertainty)) in out.items(items.rows.len()).enumerate() {
                uncertainty[0] = uncertainty[0] + T::from_f64(uncertainties[k]);
                if F::NORMS {
                    let partial = T::from_f64(2.0 * norms[k]);
                    mu.iter_mut().zip(items.rows[k]).for_each(|(mu, &x)| *mu = *mu + partial * x);
                }
            }
        }
    }

    /// Adds the gradients of pairs of equal rows.
    #[inline(always)]
    pub fn add_paired<S: Simd>(&self, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
        let (first, n) = (Rows::From(rows.start), rows.len());
        let block = self.block::<S>(first, first, n, true, self.saved.map(|saved| &saved[rows.clone()]));
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
                accumulate_pair::<T, F>(mu, row, other, weight * partials.x[k], weight * partials.norm[k]);
                uncertainty[0] = uncertainty[0] + T::from_f64(weight * partials.uncertainty[k]);
                if side == Side::Query {
                    for (shared, partial) in out.shared.iter_mut().zip(&partials.shared) {
                        *shared = *shared + T::from_f64(weight * partial[k]);
                    }
                }
            }
        }
    }

    /// Adds to the gradients of one side's mu (`items`) the sums over the other side, given each pair's partial derivative by its
    /// product.
    fn accumulate(
        &self,
        side: Side,
        (items, others): (&TileSide<T>, &TileSide<T>),
        partials: &Square<T>,
        mu: &mut [T],
    ) {
        let (rows, others) = (&items.rows[..], &others.rows[..]);
        match (F::DIFFERENCE, side) {
            (true, Side::Query) => rows::accumulate::<T, DIFFERENCES, ROWS_FIRST>(rows, others, partials, mu),
            (true, Side::Gallery) => rows::accumulate::<T, DIFFERENCES, OTHERS_FIRST>(rows, others, partials, mu),
            (false, Side::Query) => rows::accumulate::<T, PRODUCTS, ROWS_FIRST>(rows, others, partials, mu),
            (false, Side::Gallery) => rows::accumulate::<T, PRODUCTS, OTHERS_FIRST>(rows, others, partials, mu),
        }
    }
}

impl Block {
    /// Sets the block to the pairs of query `k` of a tile, whose squared distances or inner products are `x`.
    #[inline(always)]
    fn set<T: Float>(&mut self, queries: &TileSide<T>, k: usize, x: &[T]) {
        for (number, x) in self.x.iter_mut().zip(x) {
            *number = x.to_f64();
        }
        self.norms.0 = [queries.norms[k]; BLOCK];
        self.uncertainties.0 = [queries.uncertainties[k]; BLOCK];
        self.per_item.0.clear();
        self.per_item.0.extend(queries.per_item.iter().map(|numbers| [numbers[k]; BLOCK]));
    }
}

/// Weighted partial derivatives of a tile: by the norm and by the uncertainty, summed over the pairs of each item; by the shared
/// numbers, over all.
struct WeightedPartials {
    query: [[f64; BLOCK]; 2],
    gallery: [[f64; BLOCK]; 2],
    shared: [f64; 2],
}

/// Adds the partial derivatives of query `k` of a tile to the sums. Replaces the weights of its pairs by weighted partial
/// derivatives: what the difference of a pair's rows, or the other row, is multiplied by in the gradient of mu.
struct AddPartials<'a, F> {
    formula: &'a F,
    block: &'a Block,
    k: usize,
    n: usize,
    gallery: bool,
    by_pair: &'a mut [f64; BLOCK],
    sums: &'a mut WeightedPartials,
}
impl<F: Formula> Kernel for AddPartials<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddPartials { formula, block, k, n, gallery, by_pair, sums } = self;
        let (transposed, twice) = (formula.transposed(), if F::DIFFERENCE { 2.0 } else { 1.0 });
        let mut of_query = [V::<S, f64>::from(0.0); 4];
        for first in (0..n).step_by(f64::LANES) {
            let at = first..first + f64::LANES;
            let (pair, weight) = (block.pair::<S>(first, F::PER_ITEM.1), V::<S, f64>::load(&by_pair[at.clone()]));
            let partials = formula.partials::<S>(pair);
            let by_query = [partials.norm, partials.uncertainty, partials.shared[0], partials.shared[1]];
            for m in 0..4 {
                of_query[m] = of_query[m] + weighted::<S>(weight, by_query[m]);
            }
            if gallery {
                let by_gallery = if F::BY_SUM {
                    [partials.norm, partials.uncertainty]
                } else {
                    let partials = transposed.partials::<S>(pair.swapped());
                    [partials.norm, partials.uncertainty]
                };
                for m in 0..2 {
                    let sum = V::<S, f64>::load(&sums.gallery[m][at.clone()]) + weighted::<S>(weight, by_gallery[m]);
                    sum.store(&mut sums.gallery[m][at.clone()]);
                }
            }
            (twice * weighted::<S>(weight, partials.x)).store(&mut by_pair[at]);
        }
        sums.query[0][k] = of_query[0].sum();
        sums.query[1][k] = of_query[1].sum();
        sums.shared[0] += of_query[2].sum();
        sums.shared[1] += of_query[3].sum();
    }
}

/// `weight * partial`, 0 where the weight is 0 whatever the partial derivative.
#[inline(always)]
fn weighted<S: Simd>(weight: V<S, f64>, partial: V<S, f64>) -> V<S, f64> {
    weight.abs().if_less(f64::SMALLEST, 0.0, weight * partial)
}

/// Computes squared norms of rows.
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
