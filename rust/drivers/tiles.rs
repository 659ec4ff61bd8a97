//! All pairs of queries and gallery rows, a tile at a time: scores and gradients.

use super::{pieces, DynKernel, Gradient, Gradients, Inputs, Rows, Side, BLOCK};
use crate::error::Error;
use crate::memory;
use crate::parallel;
use crate::rows;
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
    /// Gradients with respect to mu [n, D], or to the numbers per item where `DynKernel::per_item_width` says that there are
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

/// Queries in one part of the work, unless more of them pay.
pub const QUERIES: usize = 16;

/// All scores: `out[i * G + j]` is that of query `i` and gallery row `j`. `saved`, unless it is empty, is written likewise with
/// what the gradient of each pair needs again.
pub fn pairwise<T: Float>(
    pair: &dyn DynKernel<T>,
    out: &mut [T],
    saved: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Inputs { mu1, mu2, .. } = pair.inputs();
    let (queries, gallery, (most, segment)) = (mu1.rows(), mu2.rows(), pair.largest_part());
    if gallery == 0 {
        return Ok(());
    }
    let together = queries_of_part(queries, gallery.div_ceil(segment), most);
    let mut parts = memory::room(queries.div_ceil(together) * gallery.div_ceil(segment));
    let mut saved = pieces(saved, together * gallery);
    for (block, rows) in out.chunks_mut(together * gallery).enumerate() {
        let (mut rows, mut saved) = (cut(rows, gallery, segment), cut(saved(), gallery, segment));
        for first in (0..gallery).step_by(segment) {
            let (scores, saved) = (next(&mut rows), next(&mut saved));
            parts.push(ScorePart { first, query: block * together, scores, saved });
        }
    }
    // All queries pass over one segment of the gallery before the next.
    parts.sort_by_key(|part| (part.first, part.query));
    parallel::for_each(parts, interrupted, |part: ScorePart<T>| {
        let ScorePart { first, query, mut scores, mut saved } = part;
        let tile = Tile { queries: query..query + scores.len(), gallery: first..first + scores[0].len() };
        pair.pairwise(tile, &mut scores, &mut saved);
    })
}

/// Blocks on either side into which a set is cut that is scored with itself, unless they would be smaller than [`BLOCK`] or larger
/// than [`LARGEST_BLOCK`]: of 8 x 8 blocks 36 are scored.
const BLOCKS: usize = 8;

/// The rows of a block of a set that is scored with itself, at most: its scores are mirrored while they are in the cache.
const LARGEST_BLOCK: usize = 256;

/// [`pairwise`] of a set with itself, by a score that is the same when the two items change places: blocks of scores below the
/// diagonal are copies of those above it.
pub fn pairwise_of_one_set<T: Float>(
    pair: &dyn DynKernel<T>,
    out: &mut [T],
    saved: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let rows = pair.inputs().mu1.rows();
    if rows == 0 {
        return Ok(());
    }
    let size = rows.div_ceil(BLOCKS).next_multiple_of(BLOCK).min(LARGEST_BLOCK);
    let (mut scores, mut saved) = (blocks_of(out, rows, size), blocks_of(saved, rows, size));
    let count = rows.div_ceil(size);
    let mut parts = memory::room(count * (count + 1) / 2);
    for a in 0..count {
        for b in a..count {
            let block = |n: usize| n * size..rows.min((n + 1) * size);
            let [scores, saved] = [&mut scores, &mut saved].map(|blocks| {
                let mut take =
                    |a: usize, b: usize| blocks.get_mut(a).map_or_else(Vec::new, |row| std::mem::take(&mut row[b]));
                [take(a, b), if a < b { take(b, a) } else { Vec::new() }]
            });
            parts.push(MirroredPart { tile: Tile { queries: block(a), gallery: block(b) }, scores, saved });
        }
    }
    parallel::for_each(parts, interrupted, |part: MirroredPart<T>| {
        let MirroredPart { tile, scores: [mut scores, mirrored], saved: [mut saved, mirrored_saved] } = part;
        pair.pairwise(tile, &mut scores, &mut saved);
        for (from, mut to) in [(scores, mirrored), (saved, mirrored_saved)] {
            let from: Vec<_> = from.iter().map(|row| &**row).collect();
            rows::transpose(&from, &mut to);
        }
    })
}

/// Two blocks of the scores of a set with itself that mirror each other; the second has no rows where that would be the same block.
struct MirroredPart<'a, T> {
    tile: Tile,
    scores: [Vec<&'a mut [T]>; 2],
    /// The saved numbers; none where nothing is saved.
    saved: [Vec<&'a mut [T]>; 2],
}

/// The blocks of `size` x `size` numbers of a square matrix, of which each is a list of rows; no blocks of an empty one.
fn blocks_of<T>(matrix: &mut [T], rows: usize, size: usize) -> Vec<Vec<Vec<&mut [T]>>> {
    memory::collected(matrix.chunks_mut(rows * size).map(|block| {
        let mut pieces = cut(block, rows, size);
        memory::collected((0..rows.div_ceil(size)).map(|_| next(&mut pieces)))
    }))
}

/// How many queries meet a segment in one part of the work: as many as pay, unless fewer keep all threads busy; parts are equal.
fn queries_of_part(queries: usize, segments: usize, most: usize) -> usize {
    let blocks = (4 * parallel::num_threads()).div_ceil(segments).max(queries.div_ceil(most));
    queries.div_ceil(blocks).next_multiple_of(QUERIES).clamp(QUERIES.min(most), most)
}

/// Scores any number of queries and gallery rows tile by tile, by [`DynKernel::tile`].
pub fn by_tiles<T: Float>(pair: &dyn DynKernel<T>, all: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let first = all.queries.start + block * BLOCK;
        let queries = first..first + out.len();
        let mut saved: Vec<_> = saved.iter_mut().skip(block * BLOCK).take(out.len()).collect();
        for from in (0..all.gallery.len()).step_by(BLOCK) {
            let to = all.gallery.len().min(from + BLOCK);
            let mut out: Vec<_> = out.iter_mut().map(|row| &mut row[from..to]).collect();
            let mut saved: Vec<_> = saved.iter_mut().map(|row| &mut row[from..to]).collect();
            let gallery = all.gallery.start + from..all.gallery.start + to;
            pair.tile(Tile { queries: queries.clone(), gallery }, &mut out, &mut saved);
        }
    }
}

/// Rows of `width` numbers, each cut into pieces of `size`.
fn cut<T>(rows: &mut [T], width: usize, size: usize) -> Vec<ChunksMut<'_, T>> {
    memory::collected(rows.chunks_mut(width).map(|row| row.chunks_mut(size)))
}

/// The next piece of each row.
fn next<'a, T>(rows: &mut [ChunksMut<'a, T>]) -> Vec<&'a mut [T]> {
    let mut pieces = memory::room(rows.len());
    pieces.extend(rows.iter_mut().filter_map(Iterator::next));
    pieces
}

/// The scores of a block of queries with a segment of the gallery.
struct ScorePart<'a, T> {
    /// The first row of the segment.
    first: usize,
    /// The first query of the block.
    query: usize,
    /// A row of scores for each query.
    scores: Vec<&'a mut [T]>,
    /// A row of saved numbers for each query; none where nothing is saved.
    saved: Vec<&'a mut [T]>,
}

/// Adds the gradients of a tile, item by item; `weights` are those of its pairs.
pub fn by_items<T: Float>(pair: &dyn DynKernel<T>, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
    let Tile { queries, gallery } = tile;
    if let Some(items) = &mut out.query {
        for (k, (mu, uncertainty)) in items.items(queries.len()).enumerate() {
            let mut out = Gradient { mu, uncertainty, shared: &mut *out.shared };
            let pairs = (Rows::Same(queries.start + k), Rows::From(gallery.start));
            pair.backward(Side::Query, pairs, &[], weights.row(k), &mut out);
        }
    }
    if let Some(items) = &mut out.gallery {
        for (k, (mu, uncertainty)) in items.items(gallery.len()).enumerate() {
            let mut out = Gradient { mu, uncertainty, shared: &mut [] };
            let weights: Vec<T> = (0..queries.len()).map(|i| weights.row(i)[k]).collect();
            let pairs = (Rows::From(queries.start), Rows::Same(gallery.start + k));
            pair.backward(Side::Gallery, pairs, &[], &weights, &mut out);
        }
    }
}

/// Adds the gradients of pairs of equal rows, item by item.
pub fn pairs_by_items<T: Float>(pair: &dyn DynKernel<T>, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
    let n = rows.len();
    if let Some(items) = &mut out.query {
        for ((i, weight), (mu, uncertainty)) in rows.clone().zip(weights.chunks(1)).zip(items.items(n)) {
            let mut out = Gradient { mu, uncertainty, shared: &mut *out.shared };
            pair.backward(Side::Query, (Rows::Same(i), Rows::Same(i)), &[], weight, &mut out);
        }
    }
    if let Some(items) = &mut out.gallery {
        for ((i, weight), (mu, uncertainty)) in rows.zip(weights.chunks(1)).zip(items.items(n)) {
            let mut out = Gradient { mu, uncertainty, shared: &mut [] };
            pair.backward(Side::Gallery, (Rows::Same(i), Rows::Same(i)), &[], weight, &mut out);
        }
    }
}

/// A block of pairs of equal rows.
struct PairedPart<'a, T> {
    rows: Range<usize>,
    weights: &'a [T],
    /// The gradients of the queries, with respect to mu and uncertainty.
    query: (&'a mut [T], &'a mut [T]),
    /// Those of the gallery rows.
    gallery: (&'a mut [T], &'a mut [T]),
    /// The block's share of the shared row's gradient.
    shared: &'a mut [T],
}

/// Gradients of sum(weights * scores) over pairs of equal rows. Blocks have a fixed size, which fixes the order of summation.
pub fn backward_paired<T: Float>(
    pair: &dyn DynKernel<T>,
    weights: &[T],
    out: Gradients<T>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Inputs { mu1, uncertainty1, mu2, uncertainty2, .. } = pair.inputs();
    let shared = if out.wanted.shared { out.shared.len() } else { 0 };
    let (with_query, with_gallery) = (out.wanted.query || shared > 0, out.wanted.gallery);
    let mut shares = memory::filled(T::default(), shared * weights.len().div_ceil(BLOCK));
    let mut share = pieces(&mut shares, shared);
    let query = blocks(out.query, (mu1.stored(), uncertainty1.stored()));
    let gallery = blocks(out.gallery, (mu2.stored(), uncertainty2.stored()));
    let parts = weights.chunks(BLOCK).zip(query.zip(gallery)).enumerate();
    let parts = parts.map(move |(block, (weights, (query, gallery)))| {
        let rows = block * BLOCK..block * BLOCK + weights.len();
        PairedPart { rows, weights, query, gallery, shared: share() }
    });
    parallel::for_each(parts, interrupted, |part| {
        let PairedPart { rows, weights, query, gallery, shared } = part;
        for x in [&mut *query.0, &mut *query.1, &mut *gallery.0, &mut *gallery.1] {
            x.fill(T::default());
        }
        let items = |(mu, uncertainty)| ItemGradients { mu, uncertainty };
        let (query, gallery) = (with_query.then(|| items(query)), with_gallery.then(|| items(gallery)));
        pair.backward_paired(rows, weights, &mut TileGradient { query, gallery, shared });
    })?;
    shares.chunks(shared.max(1)).for_each(|share| add(&mut out.shared[..shared], share));
    Ok(())
}

/// The gradients of some items, by mu and by uncertainty, in blocks of rows of these widths.
fn blocks<'a, T>(
    (mu, uncertainty): (&'a mut [T], &'a mut [T]),
    widths: (usize, usize),
) -> impl ExactSizeIterator<Item = (&'a mut [T], &'a mut [T])> {
    mu.chunks_mut(BLOCK * widths.0).zip(uncertainty.chunks_mut(BLOCK * widths.1))
}

/// Bytes that may be taken by the shares of the shorter side's gradients, one for each part of the work.
const SHARES_BYTES: usize = 1 << 26;

/// Bytes that gradients with respect to numbers per item may take; where they would take more, `backward` goes item by item.
const PER_ITEM_BYTES: usize = 1 << 30;

/// The largest number of parts.
const PARTS: usize = 64;

/// The rows of the longer side that a part has at least, unless there would be fewer than [`FEW_PARTS`]: each adds up the gradients of
/// the whole shorter side anew.
const LEAST_ROWS: usize = 2 * BLOCK;

/// Parts that are made whatever their size, where there are as many blocks of rows.
const FEW_PARTS: usize = 4;

/// One side of the work.
#[derive(Clone, Copy)]
struct WorkSide {
    side: Side,
    rows: usize,
    /// The widths of what is added up for each item: by its mu, or by its numbers per item; and by its uncertainty.
    widths: (usize, usize),
    /// The width of mu.
    dim: usize,
    /// Whether gradients are added up with respect to numbers per item.
    per_item: bool,
}

/// Gradients of all items of a side: by mu, or by numbers per item; and by the uncertainty.
struct SideSums<T> {
    mu: Vec<T>,
    uncertainty: Vec<T>,
}

impl<T: Float> SideSums<T> {
    fn zeros(side: WorkSide) -> Self {
        let zeros = |width| memory::filled(T::default(), side.rows * width);
        SideSums { mu: zeros(side.widths.0), uncertainty: zeros(side.widths.1) }
    }
}

/// Some rows of the longer side.
struct LongPart<'a, T> {
    rows: Range<usize>,
    /// The gradients of these rows, if they are wanted.
    mu: &'a mut [T],
    uncertainty: &'a mut [T],
    wanted: bool,
    /// The part's share of the shorter side's gradients, if they are wanted.
    short: Option<&'a mut SideSums<T>>,
    /// Its share of the shared row's gradient.
    shared: &'a mut [T],
}

/// Consecutive items whose gradients with respect to numbers per item are known, and where those of the items go.
struct FinishPart<'a, T> {
    first: usize,
    by_per_item: &'a [T],
    mu: &'a mut [T],
    uncertainty: &'a mut [T],
}

/// Gradients of sum(weights * scores) over all pairs; see [`super::Wanted::together`] for those of a set with itself.
///
/// The longer side is cut into parts, each of which adds up the gradients of its items and its share of the other side's; shares
/// are added in order. The number of parts depends on sizes alone, and so do the bits.
pub fn backward<T: Float>(
    pair: &dyn DynKernel<T>,
    weights: &[T],
    out: Gradients<T>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let together = out.wanted.together;
    let all = AllPairs::new(pair, weights, together);
    let (long, short, rows) = (all.long, all.short, all.rows_of_part());
    let shared = if out.wanted.shared { out.shared.len() } else { 0 };
    let with_query = out.wanted.query || shared > 0;
    let (of_query, of_gallery) = ((out.query, with_query), (out.gallery, out.wanted.gallery || together));
    let gallery_is_longer = long.side == Side::Gallery;
    let (of_long, of_short) = if gallery_is_longer { (of_gallery, of_query) } else { (of_query, of_gallery) };
    let ((of_long, wanted), (of_short, short_wanted)) = (of_long, of_short);

    let parts = long.rows.div_ceil(rows);
    let mut shares: Vec<_> = (0..if short_wanted { parts } else { 0 }).map(|_| SideSums::zeros(short)).collect();
    let mut shared_shares = vec![vec![T::default(); shared]; parts];
    let (mu, uncertainty) = (&mut *of_long.0, &mut *of_long.1);
    let longs = mu.chunks_mut(rows * long.dim).zip(uncertainty.chunks_mut((rows * long.widths.1).max(1)));
    let mut shorts = shares.iter_mut();
    let parts = (0..long.rows).step_by(rows).zip(longs).zip(&mut shared_shares);
    let parts = parts.map(|((first, (mu, uncertainty)), shared)| {
        let rows = first..long.rows.min(first + rows);
        LongPart { rows, mu, uncertainty, wanted, short: shorts.next(), shared }
    });
    parallel::for_each(parts, interrupted, |part| all.add(part))?;
    shared_shares.iter().for_each(|share| add(&mut out.shared[..shared], share));
    if together {
        return all.add_short(shares, of_long, interrupted);
    }
    if short_wanted {
        of_short.0.fill(T::default());
        of_short.1.fill(T::default());
    }
    all.add_short(shares, of_short, interrupted)
}

/// All pairs of two sides, whose gradients are added up part by part.
struct AllPairs<'a, T> {
    pair: &'a dyn DynKernel<T>,
    weights: View<'a, T>,
    /// Whether both sides are one set, whose gradients by both are added up together, by a score that is the same when the two items
    /// change places: a tile then stands for its mirror image, too.
    together: bool,
    long: WorkSide,
    short: WorkSide,
    /// Whether gradients are found item by item, as those with respect to numbers per item would take too much memory.
    by_item: bool,
}

impl<'a, T: Float> AllPairs<'a, T> {
    fn new(pair: &'a dyn DynKernel<T>, weights: &'a [T], together: bool) -> Self {
        let Inputs { mu1, uncertainty1, mu2, uncertainty2, .. } = pair.inputs();
        let bytes = |side, rows: usize| {
            pair.per_item_width(side).map_or(0, |width| rows.saturating_mul(width * size_of::<T>()))
        };
        let both = bytes(Side::Query, mu1.rows()).saturating_add(bytes(Side::Gallery, mu2.rows()));
        let by_item = both > PER_ITEM_BYTES;
        let work = |side, rows, dim, stored| {
            let width = pair.per_item_width(side).filter(|_| !by_item);
            WorkSide { side, rows, widths: (width.unwrap_or(dim), stored), dim, per_item: width.is_some() }
        };
        let queries = work(Side::Query, mu1.rows(), mu1.stored(), uncertainty1.stored());
        let gallery = work(Side::Gallery, mu2.rows(), mu2.stored(), uncertainty2.stored());
        let (long, short) = if gallery.rows > queries.rows { (gallery, queries) } else { (queries, gallery) };
        AllPairs { pair, weights: View::new(weights, mu1.rows(), mu2.rows()), together, long, short, by_item }
    }

    /// How many rows of the longer side a part has.
    fn rows_of_part(&self) -> usize {
        let (long, short) = (self.long, self.short);
        let share = short.rows * (short.widths.0 + short.widths.1);
        let most = (SHARES_BYTES / (share * size_of::<T>())).max(long.rows / long.widths.0).clamp(1, PARTS);
        let most = most.min((long.rows / LEAST_ROWS).max(FEW_PARTS));
        long.rows.div_ceil(most).next_multiple_of(BLOCK)
    }

    /// Adds the gradients of a part's pairs, tile by tile.
    fn add(&self, part: LongPart<T>) {
        let (long, short) = (self.long, self.short);
        let LongPart { rows, mu, uncertainty, wanted, short: share, shared } = part;
        mu.fill(T::default());
        uncertainty.fill(T::default());
        let by_item = if long.per_item && wanted { rows.len() * long.widths.0 } else { 0 };
        let mut by_per_item = memory::filled(T::default(), by_item);
        let sums = if long.per_item { &mut by_per_item[..] } else { &mut *mu };
        let mut of_long = wanted.then_some(ItemGradients { mu: sums, uncertainty: &mut *uncertainty });
        let mut of_short = share.map(|share| ItemGradients { mu: &mut share.mu, uncertainty: &mut share.uncertainty });
        let mut both = Vec::new();
        for b in (0..short.rows).step_by(BLOCK) {
            let b = b..short.rows.min(b + BLOCK);
            for a in rows.clone().step_by(BLOCK) {
                let a = a..rows.end.min(a + BLOCK);
                if self.together && !is_first(a.start / BLOCK, b.start / BLOCK) {
                    continue;
                }
                let of_a =
                    of_long.as_mut().map(|items| items.part(a.start - rows.start..a.end - rows.start, long.widths));
                let of_b = of_short.as_mut().map(|items| items.part(b.clone(), short.widths));
                let (tile, query, gallery) = if long.side == Side::Gallery {
                    (Tile { queries: b.clone(), gallery: a }, of_b, of_a)
                } else {
                    (Tile { queries: a, gallery: b.clone() }, of_a, of_b)
                };
                let weights = self.weights_of(&tile, &mut both);
                let mut out = TileGradient { query, gallery, shared: &mut *shared };
                if self.by_item {
                    by_items(self.pair, tile, &weights, &mut out);
                } else {
                    self.pair.backward_tile(tile, &weights, &mut out);
                }
            }
        }
        self.finish(long, FinishPart { first: rows.start, by_per_item: &by_per_item, mu, uncertainty });
    }

    /// The weights of a tile's pairs, plus those of its mirror image where it stands for that, which are added up in `both`.
    fn weights_of<'b>(&self, tile: &Tile, both: &'b mut Vec<T>) -> View<'b, T>
    where
        'a: 'b,
    {
        let Tile { queries, gallery } = tile;
        let own = self.weights.part(queries.clone(), gallery.clone());
        if !self.together || queries.start == gallery.start {
            return own;
        }
        let mirrored = self.weights.part(gallery.clone(), queries.clone());
        both.resize(queries.len() * gallery.len(), T::default());
        rows::transpose(
            &(0..gallery.len()).map(|j| mirrored.row(j)).collect::<Vec<_>>(),
            &mut both.chunks_mut(gallery.len()).collect::<Vec<_>>(),
        );
        both.chunks_mut(gallery.len()).enumerate().for_each(|(i, sums)| add(sums, own.row(i)));
        View::new(both, queries.len(), gallery.len())
    }

    /// Adds the gradients of the shorter side: the sums of all parts' shares.
    fn add_short(
        &self,
        shares: Vec<SideSums<T>>,
        (mu, uncertainty): (&mut [T], &mut [T]),
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let (short, mut shares) = (self.short, shares.into_iter());
        let Some(mut sums) = shares.next() else { return Ok(()) };
        for share in shares {
            add(&mut sums.mu, &share.mu);
            add(&mut sums.uncertainty, &share.uncertainty);
        }
        add(uncertainty, &sums.uncertainty);
        if !short.per_item {
            add(mu, &sums.mu);
            return Ok(());
        }
        let by_per_item = sums.mu.chunks(BLOCK * short.widths.0);
        let items = blocks((mu, uncertainty), (short.dim, short.widths.1));
        let parts = (0..short.rows).step_by(BLOCK).zip(by_per_item).zip(items).map(|((first, by_per_item), items)| {
            let (mu, uncertainty) = items;
            FinishPart { first, by_per_item, mu, uncertainty }
        });
        parallel::for_each(parts, interrupted, |part| self.finish(short, part))
    }

    /// Applies the chain rule from the numbers per item of some items to their mu and uncertainty.
    fn finish(&self, side: WorkSide, part: FinishPart<T>) {
        if side.per_item {
            let items = part.mu.chunks_mut(side.dim).zip(part.uncertainty.chunks_mut(side.widths.1));
            let rows = (part.first..).zip(part.by_per_item.chunks(side.widths.0));
            for ((row, by_per_item), (mu, uncertainty)) in rows.zip(items) {
                let out = &mut Gradient { mu, uncertainty, shared: &mut [] };
                self.pair.finish(side.side, row, by_per_item, out);
            }
        }
    }
}

/// Whether of two tiles that mirror each other that of blocks `a` and `b`, counted along each side, is the one that stands for both:
/// about every second tile of a row is.
fn is_first(a: usize, b: usize) -> bool {
    a == b || (a > b) == (a + b).is_multiple_of(2)
}

fn add<T: Float>(sums: &mut [T], terms: &[T]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum = *sum + *term);
}
