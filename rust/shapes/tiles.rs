//! All pairs of queries and gallery rows, a tile at a time: scores and gradients.

use super::{segment, Gradient, Gradients, Inputs, PairScore, Rows, Side, BLOCK};
use crate::error::Error;
use crate::parallel;
use crate::simd::Float;
use crate::view::View;
use std::ops::Range;

/// All pairs of consecutive queries and consecutive gallery rows, at most [`BLOCK`] of each.
#[derive(Clone)]
pub struct Tile {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Rows of the gallery.
    pub gallery: Range<usize>,
}

/// Where the gradients of a tile are added up.
pub struct TileGradient<'a, T> {
    /// By the queries of the tile, where they are wanted.
    pub query: Option<ItemGradients<'a, T>>,
    /// By the gallery rows of the tile, where they are wanted.
    pub gallery: Option<ItemGradients<'a, T>>,
    /// With respect to the shared row; empty where it is not wanted, as it may be with the queries only.
    pub shared: &'a mut [T],
}

/// Gradients of consecutive items, row after row.
pub struct ItemGradients<'a, T> {
    /// With respect to their mu.
    pub mu: &'a mut [T],
    /// With respect to their extra input.
    pub extra: &'a mut [T],
}

impl<'a, T> ItemGradients<'a, T> {
    /// Those of the items `range`, given the widths of their rows.
    fn part(&mut self, range: Range<usize>, (dim, stored): (usize, usize)) -> ItemGradients<'_, T> {
        ItemGradients {
            mu: &mut self.mu[range.start * dim..range.end * dim],
            extra: &mut self.extra[range.start * stored..range.end * stored],
        }
    }

    /// Each item's, in order.
    pub fn items(&mut self, n: usize) -> impl Iterator<Item = (&mut [T], &mut [T])> {
        let (dim, stored) = (self.mu.len() / n, self.extra.len() / n);
        self.mu.chunks_mut(dim).zip(self.extra.chunks_mut(stored))
    }
}

/// Queries whose scores are one part of the work.
const QUERIES: usize = 16;

/// All scores: `out[i * G + j]` is that of query `i` with gallery row `j`.
pub fn pairwise<T: Float>(pair: &dyn PairScore<T>, out: &mut [T], interrupted: &dyn Fn() -> bool) -> Result<(), Error> {
    let gallery = pair.inputs().mu2.rows();
    if gallery == 0 {
        return Ok(());
    }
    let segment = segment(pair.inputs().dim());
    let mut parts = Vec::new();
    for (block, rows) in out.chunks_mut(QUERIES * gallery).enumerate() {
        let mut rows: Vec<_> = rows.chunks_mut(gallery).map(|row| row.chunks_mut(segment)).collect();
        for first in (0..gallery).step_by(segment) {
            let rows: Vec<_> = rows.iter_mut().filter_map(Iterator::next).collect();
            parts.push((first, block * QUERIES, rows));
        }
    }
    // All queries pass over one segment of the gallery before the next.
    parts.sort_by_key(|part| (part.0, part.1));
    parallel::for_each(parts, interrupted, |(first, query, mut rows): (usize, usize, Vec<&mut [T]>)| {
        let (queries, width) = (query..query + rows.len(), rows[0].len());
        for from in (0..width).step_by(BLOCK) {
            let to = width.min(from + BLOCK);
            let mut out: Vec<_> = rows.iter_mut().map(|row| &mut row[from..to]).collect();
            pair.tile(Tile { queries: queries.clone(), gallery: first + from..first + to }, &mut out);
        }
    })
}

/// The gradients of a tile, item by item.
pub fn by_items<T: Float>(pair: &dyn PairScore<T>, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
    let Tile { queries, gallery } = tile;
    if let Some(items) = &mut out.query {
        for (i, (mu, extra)) in queries.clone().zip(items.items(queries.len())) {
            let mut out = Gradient { mu, extra, shared: &mut *out.shared };
            let (others, weights) = (Rows::From(gallery.start), &weights.row(i)[gallery.clone()]);
            pair.backward(Side::Query, Rows::Same(i), others, weights, &mut out);
        }
    }
    if let Some(items) = &mut out.gallery {
        for (j, (mu, extra)) in gallery.clone().zip(items.items(gallery.len())) {
            let mut out = Gradient { mu, extra, shared: &mut [] };
            let weights: Vec<T> = queries.clone().map(|i| weights.row(i)[j]).collect();
            pair.backward(Side::Gallery, Rows::From(queries.start), Rows::Same(j), &weights, &mut out);
        }
    }
}

/// Bytes that gradients may take which parts of the work find for the same items.
const PARTIAL: usize = 1 << 26;

/// Parts of a work at most.
const PARTS: usize = 64;

/// Gradients of sum(weights * scores) over all pairs.
///
/// The longer side is cut into parts, each of which adds up its own items' gradients and its share of the other side's; shares
/// are added in order. How many there are depends on sizes alone: so do the bits.
pub fn backward<T: Float>(
    pair: &dyn PairScore<T>,
    weights: &[T],
    out: Gradients<T>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Inputs { mu1, extra1, mu2, extra2, .. } = pair.inputs();
    let weights = View::new(weights, mu1.rows(), mu2.rows());
    let gallery_is_longer = mu2.rows() > mu1.rows();
    let (queries, gallery) =
        ((mu1.rows(), (mu1.stored(), extra1.stored())), (mu2.rows(), (mu2.stored(), extra2.stored())));
    let ((long, wide), (short, narrow)) = if gallery_is_longer { (gallery, queries) } else { (queries, gallery) };
    if short == 0 {
        return Ok(());
    }
    let share = short * (narrow.0 + narrow.1);
    let most = (PARTIAL / (share * size_of::<T>())).max(long / wide.0).clamp(1, PARTS);
    let rows = long.div_ceil(most).next_multiple_of(BLOCK);

    let shared = if out.wanted.shared { out.shared.len() } else { 0 };
    let with_query = out.wanted.query || shared > 0;
    let wanted = if gallery_is_longer { (out.wanted.gallery, with_query) } else { (with_query, out.wanted.gallery) };
    let (of_long, of_short) = if gallery_is_longer { (out.gallery, out.query) } else { (out.query, out.gallery) };

    let parts = long.div_ceil(rows);
    let short_parts = if wanted.1 { parts } else { 0 };
    let mut shares: Vec<(Vec<T>, Vec<T>)> = (0..short_parts)
        .map(|_| (vec![T::default(); short * narrow.0], vec![T::default(); short * narrow.1]))
        .collect();
    let mut shared_shares = vec![vec![T::default(); shared]; parts];
    let longs = of_long.0.chunks_mut(rows * wide.0).zip(of_long.1.chunks_mut((rows * wide.1).max(1)));
    let shorts = shares.iter_mut().map(Some).chain(std::iter::repeat_with(|| None));
    let work = (0..long).step_by(rows).zip(longs).zip(shorts).zip(&mut shared_shares).collect();
    parallel::for_each(work, interrupted, |(((first, own), other), shared): Work<T>| {
        let mut own = wanted.0.then_some(ItemGradients { mu: own.0, extra: own.1 });
        let mut other = other.map(|(mu, extra)| ItemGradients { mu, extra });
        let last = long.min(first + rows);
        for b in (0..short).step_by(BLOCK) {
            let b = b..short.min(b + BLOCK);
            for a in (first..last).step_by(BLOCK) {
                let a = a..last.min(a + BLOCK);
                let of_a = own.as_mut().map(|own| own.part(a.start - first..a.end - first, wide));
                let of_b = other.as_mut().map(|other| other.part(b.clone(), narrow));
                let (tile, query, gallery) = if gallery_is_longer {
                    (Tile { queries: b.clone(), gallery: a }, of_b, of_a)
                } else {
                    (Tile { queries: a, gallery: b.clone() }, of_a, of_b)
                };
                pair.backward_tile(tile, &weights, &mut TileGradient { query, gallery, shared: &mut *shared });
            }
        }
    })?;
    for (mu, extra) in &shares {
        add(of_short.0, mu);
        add(of_short.1, extra);
    }
    shared_shares.iter().for_each(|share| add(&mut out.shared[..shared], share));
    Ok(())
}

/// First row of a part, the gradients of its items, its share of the other side's and of the shared row's.
type Work<'a, T> = (((usize, (&'a mut [T], &'a mut [T])), Option<&'a mut (Vec<T>, Vec<T>)>), &'a mut Vec<T>);

fn add<T: Float>(sums: &mut [T], terms: &[T]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum = *sum + *term);
}
