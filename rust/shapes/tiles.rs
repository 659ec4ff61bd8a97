//! All pairs of queries and gallery rows, a tile at a time: scores and gradients.

use super::{segment, Gradient, Gradients, Inputs, PairScore, Rows, Side, BLOCK};
use crate::error::Error;
use crate::parallel;
use crate::simd::Float;
use crate::view::View;
use std::ops::Range;
use std::slice::ChunksMut;

/// All pairs of consecutive queries and consecutive gallery rows, at most [`BLOCK`] of each.
#[derive(Clone)]
pub struct Tile {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Rows of the gallery.
    pub gallery: Range<usize>,
}

/// Where the gradients of a tile's items are added up.
pub struct TileGradient<'a, T> {
    /// Gradients of the queries of the tile, where they are wanted.
    pub query: Option<ItemGradients<'a, T>>,
    /// Gradients of the gallery rows of the tile, where they are wanted.
    pub gallery: Option<ItemGradients<'a, T>>,
    /// Gradient with respect to the shared row, which is found along with that of the queries; empty where it is not wanted.
    pub shared: &'a mut [T],
}

/// Gradients of consecutive items, row after row.
pub struct ItemGradients<'a, T> {
    /// Gradients with respect to mu [n, D], or to the intermediates where `PairKernel::intermediate_width` says that there are
    /// any.
    pub mu: &'a mut [T],
    /// Gradients with respect to the uncertainty input, [n, 1] or [n, D].
    pub uncertainty: &'a mut [T],
}

impl<'a, T> ItemGradients<'a, T> {
    /// The gradients of the items `range`, given the widths of rows of mu and of the uncertainty.
    pub fn part(&mut self, range: Range<usize>, (dim, stored): (usize, usize)) -> ItemGradients<'_, T> {
        ItemGradients {
            mu: &mut self.mu[range.start * dim..range.end * dim],
            uncertainty: &mut self.uncertainty[range.start * stored..range.end * stored],
        }
    }

    /// The gradients of each of the `n` items, in order.
    pub fn items(&mut self, n: usize) -> impl Iterator<Item = (&mut [T], &mut [T])> {
        let (dim, stored) = (self.mu.len() / n, self.uncertainty.len() / n);
        self.mu.chunks_mut(dim).zip(self.uncertainty.chunks_mut(stored))
    }
}

/// Queries in one part of the work.
const QUERIES: usize = 16;

/// All scores: `out[i * G + j]` is that of query `i` and gallery row `j`. `kept`, unless it is empty, is written likewise with
/// what the gradient of each pair needs again.
pub fn pairwise<T: Float>(
    pair: &dyn PairScore<T>,
    out: &mut [T],
    kept: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let gallery = pair.inputs().mu2.rows();
    if gallery == 0 {
        return Ok(());
    }
    let segment = segment(pair.inputs().dim());
    let mut parts = Vec::new();
    let mut kept = kept.chunks_mut(QUERIES * gallery);
    for (block, rows) in out.chunks_mut(QUERIES * gallery).enumerate() {
        let (mut rows, mut kept) =
            (cut(rows, gallery, segment), kept.next().map_or_else(Vec::new, |kept| cut(kept, gallery, segment)));
        for first in (0..gallery).step_by(segment) {
            parts.push((first, block * QUERIES, next(&mut rows), next(&mut kept)));
        }
    }
    // All queries pass over one segment of the gallery before the next.
    parts.sort_by_key(|part| (part.0, part.1));
    parallel::for_each(parts, interrupted, |(first, query, mut rows, mut kept): ScorePart<T>| {
        let (queries, width) = (query..query + rows.len(), rows[0].len());
        for from in (0..width).step_by(BLOCK) {
            let to = width.min(from + BLOCK);
            let mut out: Vec<_> = rows.iter_mut().map(|row| &mut row[from..to]).collect();
            let mut kept: Vec<_> = kept.iter_mut().map(|row| &mut row[from..to]).collect();
            pair.tile(Tile { queries: queries.clone(), gallery: first + from..first + to }, &mut out, &mut kept);
        }
    })
}

/// Rows of `width` numbers, each cut into pieces of `size`.
fn cut<T>(rows: &mut [T], width: usize, size: usize) -> Vec<ChunksMut<'_, T>> {
    rows.chunks_mut(width).map(|row| row.chunks_mut(size)).collect()
}

/// The next piece of each row.
fn next<'a, T>(rows: &mut [ChunksMut<'a, T>]) -> Vec<&'a mut [T]> {
    rows.iter_mut().filter_map(Iterator::next).collect()
}

/// First gallery row of a segment, first query of a block, their rows of scores and of kept numbers.
type ScorePart<'a, T> = (usize, usize, Vec<&'a mut [T]>, Vec<&'a mut [T]>);

/// Adds the gradients of a tile, item by item.
pub fn by_items<T: Float>(pair: &dyn PairScore<T>, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
    let Tile { queries, gallery } = tile;
    if let Some(items) = &mut out.query {
        for (i, (mu, uncertainty)) in queries.clone().zip(items.items(queries.len())) {
            let mut out = Gradient { mu, uncertainty, shared: &mut *out.shared };
            let (others, weights) = (Rows::From(gallery.start), &weights.row(i)[gallery.clone()]);
            pair.backward(Side::Query, Rows::Same(i), others, weights, &mut out);
        }
    }
    if let Some(items) = &mut out.gallery {
        for (j, (mu, uncertainty)) in gallery.clone().zip(items.items(gallery.len())) {
            let mut out = Gradient { mu, uncertainty, shared: &mut [] };
            let weights: Vec<T> = queries.clone().map(|i| weights.row(i)[j]).collect();
            pair.backward(Side::Gallery, Rows::From(queries.start), Rows::Same(j), &weights, &mut out);
        }
    }
}

/// Adds the gradients of pairs of equal rows, item by item.
pub fn pairs_by_items<T: Float>(pair: &dyn PairScore<T>, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
    let n = rows.len();
    if let Some(items) = &mut out.query {
        for ((i, weight), (mu, uncertainty)) in rows.clone().zip(weights.chunks(1)).zip(items.items(n)) {
            let mut out = Gradient { mu, uncertainty, shared: &mut *out.shared };
            pair.backward(Side::Query, Rows::Same(i), Rows::Same(i), weight, &mut out);
        }
    }
    if let Some(items) = &mut out.gallery {
        for ((i, weight), (mu, uncertainty)) in rows.zip(weights.chunks(1)).zip(items.items(n)) {
            let mut out = Gradient { mu, uncertainty, shared: &mut [] };
            pair.backward(Side::Gallery, Rows::Same(i), Rows::Same(i), weight, &mut out);
        }
    }
}

/// Gradients of sum(weights * scores) over pairs of equal rows. Blocks have a fixed size, which fixes the order of summation.
pub fn backward_paired<T: Float>(
    pair: &dyn PairScore<T>,
    weights: &[T],
    out: Gradients<T>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Inputs { mu1, uncertainty1, mu2, uncertainty2, .. } = pair.inputs();
    let shared = if out.wanted.shared { out.shared.len() } else { 0 };
    let (with_query, with_gallery) = (out.wanted.query || shared > 0, out.wanted.gallery);
    let parts = weights.len().div_ceil(BLOCK);
    let mut shares = vec![vec![T::default(); shared]; parts];
    let query = out.query.0.chunks_mut(BLOCK * mu1.stored()).zip(out.query.1.chunks_mut(BLOCK * uncertainty1.stored()));
    let gallery =
        out.gallery.0.chunks_mut(BLOCK * mu2.stored()).zip(out.gallery.1.chunks_mut(BLOCK * uncertainty2.stored()));
    let work = weights.chunks(BLOCK).zip(query.zip(gallery)).zip(&mut shares).enumerate().collect();
    parallel::for_each(work, interrupted, |(part, ((weights, (query, gallery)), shared)): PairedWork<T>| {
        for x in [&mut *query.0, &mut *query.1, &mut *gallery.0, &mut *gallery.1] {
            x.fill(T::default());
        }
        let items = |(mu, uncertainty)| ItemGradients { mu, uncertainty };
        let (query, gallery) = (with_query.then(|| items(query)), with_gallery.then(|| items(gallery)));
        let rows = part * BLOCK..part * BLOCK + weights.len();
        pair.backward_paired(rows, weights, &mut TileGradient { query, gallery, shared });
    })?;
    shares.iter().for_each(|share| add(&mut out.shared[..shared], share));
    Ok(())
}

/// Number of a block, its weights, the gradients of its items on both sides and its share of the gradient of the shared row.
type PairedWork<'a, T> = (usize, ((&'a [T], ((&'a mut [T], &'a mut [T]), (&'a mut [T], &'a mut [T]))), &'a mut Vec<T>));

/// Bytes that may be taken by the shares of the shorter side's gradients, one for each part of the work.
const PARTIAL: usize = 1 << 26;

/// Bytes that gradients with respect to intermediates may take; where they would take more, `backward` goes item by item.
const INTERMEDIATE_BYTES: usize = 1 << 30;

/// The largest number of parts.
const PARTS: usize = 64;

/// One side of the work: its rows, the widths of what is added up for each (by mu or by its intermediate; by the uncertainty),
/// the width of mu, and whether the items have intermediates.
#[derive(Clone, Copy)]
struct WorkSide {
    side: Side,
    rows: usize,
    widths: (usize, usize),
    dim: usize,
    intermediate: bool,
}

/// Gradients of sum(weights * scores) over all pairs.
///
/// The longer side is cut into parts, each of which adds up its own items' gradients and its share of the other side's; shares
/// are added in order. The number of parts depends on sizes alone, and so do the bits.
pub fn backward<T: Float>(
    pair: &dyn PairScore<T>,
    weights: &[T],
    out: Gradients<T>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Inputs { mu1, uncertainty1, mu2, uncertainty2, .. } = pair.inputs();
    let weights = View::new(weights, mu1.rows(), mu2.rows());
    let bytes = |side, rows: usize| {
        pair.intermediate_width(side).map_or(0, |width| rows.saturating_mul(width * size_of::<T>()))
    };
    let by_item = bytes(Side::Query, mu1.rows()).saturating_add(bytes(Side::Gallery, mu2.rows())) > INTERMEDIATE_BYTES;
    let half = |side, rows, dim, stored| {
        let width = pair.intermediate_width(side).filter(|_| !by_item);
        WorkSide { side, rows, widths: (width.unwrap_or(dim), stored), dim, intermediate: width.is_some() }
    };
    let queries = half(Side::Query, mu1.rows(), mu1.stored(), uncertainty1.stored());
    let gallery = half(Side::Gallery, mu2.rows(), mu2.stored(), uncertainty2.stored());
    let gallery_is_longer = gallery.rows > queries.rows;
    let (long, short) = if gallery_is_longer { (gallery, queries) } else { (queries, gallery) };
    let share = short.rows * (short.widths.0 + short.widths.1);
    let most = (PARTIAL / (share * size_of::<T>())).max(long.rows / long.widths.0).clamp(1, PARTS);
    let rows = long.rows.div_ceil(most).next_multiple_of(BLOCK);

    let shared = if out.wanted.shared { out.shared.len() } else { 0 };
    let with_query = out.wanted.query || shared > 0;
    let wanted = if gallery_is_longer { (out.wanted.gallery, with_query) } else { (with_query, out.wanted.gallery) };
    let (of_long, of_short) = if gallery_is_longer { (out.gallery, out.query) } else { (out.query, out.gallery) };

    let parts = long.rows.div_ceil(rows);
    let zeros = |n: usize| vec![T::default(); n];
    let mut shares: Vec<_> = (0..if wanted.1 { parts } else { 0 })
        .map(|_| (zeros(short.rows * short.widths.0), zeros(short.rows * short.widths.1)))
        .collect();
    let mut shared_shares = vec![zeros(shared); parts];
    let longs = of_long.0.chunks_mut(rows * long.dim).zip(of_long.1.chunks_mut((rows * long.widths.1).max(1)));
    let shorts = shares.iter_mut().map(Some).chain(std::iter::repeat_with(|| None));
    let work = (0..long.rows).step_by(rows).zip(longs).zip(shorts).zip(&mut shared_shares).collect();
    parallel::for_each(work, interrupted, |(((first, (mu, uncertainty)), other), shared): Work<T>| {
        let last = long.rows.min(first + rows);
        mu.fill(T::default());
        uncertainty.fill(T::default());
        let mut by_intermediate = zeros(if long.intermediate && wanted.0 { (last - first) * long.widths.0 } else { 0 });
        let own_mu = if long.intermediate { &mut by_intermediate[..] } else { &mut *mu };
        let mut own = wanted.0.then_some(ItemGradients { mu: own_mu, uncertainty: &mut *uncertainty });
        let mut other = other.map(|(mu, uncertainty)| ItemGradients { mu, uncertainty });
        for b in (0..short.rows).step_by(BLOCK) {
            let b = b..short.rows.min(b + BLOCK);
            for a in (first..last).step_by(BLOCK) {
                let a = a..last.min(a + BLOCK);
                let of_a = own.as_mut().map(|own| own.part(a.start - first..a.end - first, long.widths));
                let of_b = other.as_mut().map(|other| other.part(b.clone(), short.widths));
                let (tile, query, gallery) = if gallery_is_longer {
                    (Tile { queries: b.clone(), gallery: a }, of_b, of_a)
                } else {
                    (Tile { queries: a, gallery: b.clone() }, of_a, of_b)
                };
                let mut out = TileGradient { query, gallery, shared: &mut *shared };
                if by_item {
                    by_items(pair, tile, &weights, &mut out);
                } else {
                    pair.backward_tile(tile, &weights, &mut out);
                }
            }
        }
        finish(pair, long, first, &by_intermediate, mu, uncertainty);
    })?;
    shared_shares.iter().for_each(|share| add(&mut out.shared[..shared], share));
    let mut shares = shares.into_iter();
    let Some((mut by_intermediate, mut uncertainties)) = shares.next() else { return Ok(()) };
    of_short.0.fill(T::default());
    of_short.1.fill(T::default());
    for (mu, uncertainty) in shares {
        add(&mut by_intermediate, &mu);
        add(&mut uncertainties, &uncertainty);
    }
    add(of_short.1, &uncertainties);
    if !short.intermediate {
        add(of_short.0, &by_intermediate);
        return Ok(());
    }
    let blocks = by_intermediate.chunks(BLOCK * short.widths.0).zip(of_short.0.chunks_mut(BLOCK * short.dim));
    let blocks = blocks.zip(of_short.1.chunks_mut(BLOCK * short.widths.1));
    let work = (0..short.rows).step_by(BLOCK).zip(blocks).collect();
    parallel::for_each(work, interrupted, |(first, ((by_intermediate, mu), uncertainty)): FinishWork<T>| {
        finish(pair, short, first, by_intermediate, mu, uncertainty);
    })
}

/// First row of a block, the gradients with respect to its items' intermediates, and those of the items.
type FinishWork<'a, T> = (usize, ((&'a [T], &'a mut [T]), &'a mut [T]));

/// Applies the chain rule from the intermediates of the items from `first` on to their mu and uncertainty.
fn finish<T: Float>(
    pair: &dyn PairScore<T>,
    half: WorkSide,
    first: usize,
    by_intermediate: &[T],
    mu: &mut [T],
    uncertainty: &mut [T],
) {
    if half.intermediate {
        let items = mu.chunks_mut(half.dim).zip(uncertainty.chunks_mut(half.widths.1));
        for ((row, by_intermediate), (mu, uncertainty)) in
            (first..).zip(by_intermediate.chunks(half.widths.0)).zip(items)
        {
            pair.finish(half.side, row, by_intermediate, &mut Gradient { mu, uncertainty, shared: &mut [] });
        }
    }
}

/// First row of a part, the gradients of its items, its share of the other side's and of the shared row's gradients.
type Work<'a, T> = (((usize, (&'a mut [T], &'a mut [T])), Option<&'a mut (Vec<T>, Vec<T>)>), &'a mut Vec<T>);

fn add<T: Float>(sums: &mut [T], terms: &[T]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum = *sum + *term);
}
