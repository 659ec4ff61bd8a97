//! Drivers: they turn one pair function into paired, pairwise, listed and top-k scores, and into the gradients of these.
//!
//! A pair's score is computed by the same lane operations whichever driver calls for it and in whichever block, so it has the
//! same bits from every verb, but for [`pairwise`], where a family may sum in another order ([`PairKernel::pairwise`]). Gradients are
//! sums over pairs in a fixed order, so they do not depend on the number of threads.

use crate::error::Error;
use crate::memory;
use crate::parallel;
use crate::rows;
use crate::simd::Float;
use crate::topk::TopK;
use crate::view::{Matrix, View};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

mod backward;
mod pair;
mod tiles;
pub use backward::{backward, Gradients, Wanted};
pub use pair::{DynKernel, PairKernel};
pub use tiles::{
    by_items, by_tiles, pairs_by_items, pairwise, pairwise_of_one_set, ItemGradients, Tile, TileGradient, QUERIES,
};

/// Pairs that a pair function scores at once: enough to fill the lanes of its epilogue several times. Also the rows on a side
/// of a tile.
pub const BLOCK: usize = rows::ROWS;

/// Candidates of one query above which they are scored as several parts.
const LONG: usize = 2048;

/// How many pairs ahead scattered rows are prefetched: loading a row from memory takes as long as scoring several pairs.
pub const AHEAD: usize = 4;

/// Whether a search rules pairs out by bounds that cost matrix products of their own, where the score has such bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prune {
    /// Where that should save time: decided by sizes, or by a trial.
    Auto,
    /// Never; cheaper sieves may still rule pairs out.
    Never,
    /// Always, where the score has such bounds.
    Always,
}

/// The inputs of a pair score: one row of each matrix per item, and one row that all pairs share.
#[derive(Clone, Copy)]
pub struct Inputs<'a, T> {
    /// Queries: means or directions [Q, D].
    pub mu1: View<'a, T>,
    /// Queries: variance, concentration, weight ... [Q, 1] or [Q, D].
    pub uncertainty1: View<'a, T>,
    /// Gallery: means or directions [G, D].
    pub mu2: Matrix<'a, T>,
    /// Gallery: variance, concentration, weight ... [G, 1] or [G, D].
    pub uncertainty2: Matrix<'a, T>,
    /// One row that all pairs share, such as a prior variance: [1, n], n = 0 (a score that shares nothing), 1, 2 or D.
    pub shared: View<'a, T>,
}

impl<T> Inputs<'_, T> {
    fn dim(&self) -> usize {
        self.mu1.stored()
    }

    /// Whether the gallery is the queries themselves.
    pub fn of_one_set(&self) -> bool {
        let same = |a: &View<T>, b: &Matrix<T>| matches!(b, Matrix::Full(b) if a.is(b));
        same(&self.mu1, &self.mu2) && same(&self.uncertainty1, &self.uncertainty2)
    }
}

/// The row of one side in each pair of a block.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// The same row for all pairs.
    Same(usize),
    /// Consecutive rows from this one on.
    From(usize),
    /// The listed rows; those beyond the pairs at hand are prefetched, as they come next.
    List(&'a [usize]),
}

impl Rows<'_> {
    /// The row of pair `k`.
    #[inline(always)]
    pub fn at(&self, k: usize) -> usize {
        match self {
            Rows::Same(i) => *i,
            Rows::From(i) => i + k,
            Rows::List(rows) => rows[k],
        }
    }

    /// The rows of the `n` pairs from `first` on.
    fn part(&self, first: usize, n: usize) -> Self {
        match *self {
            Rows::Same(i) => Rows::Same(i),
            Rows::From(i) => Rows::From(i + first),
            Rows::List(rows) => Rows::List(&rows[first..first + n]),
        }
    }
}

/// One of the two sides of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first argument.
    Query,
    /// The second argument.
    Gallery,
}

/// Where the gradient of one item is added up.
pub struct Gradient<'a, T> {
    /// Gradient with respect to the item's row of mu [D].
    pub mu: &'a mut [T],
    /// Gradient with respect to the item's row of the uncertainty input [1] or [D].
    pub uncertainty: &'a mut [T],
    /// Gradient with respect to the shared row; empty where it is not wanted.
    pub shared: &'a mut [T],
}

/// Rows of the gallery whose means and variances (float32) stay in the second-level cache while queries pass over them.
pub fn segment(dim: usize) -> usize {
    (65_536 / dim.max(1)).clamp(BLOCK, 4096) / BLOCK * BLOCK
}

/// Scores of equal rows: `out[i]` is that of query `i` and gallery row `i`. Unless `saved` is empty, `saved[i]` becomes what the
/// gradient of that pair needs again.
pub fn paired<T: Float>(
    pair: &dyn DynKernel<T>,
    out: &mut [T],
    saved: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let mut saved = pieces(saved, 16 * BLOCK);
    let parts = out.chunks_mut(16 * BLOCK).map(move |out| (out, saved())).enumerate();
    parallel::for_each(parts, interrupted, |(part, (out, saved))| {
        let mut saved = pieces(saved, BLOCK);
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let rows = Rows::From(part * 16 * BLOCK + block * BLOCK);
            pair.score(rows, rows, out, saved());
        }
    })
}

/// Hands `data` out in pieces of `size`, and empty ones after the last.
fn pieces<'a, T>(mut data: &'a mut [T], size: usize) -> impl FnMut() -> &'a mut [T] {
    move || {
        let n = size.min(data.len());
        let (piece, rest) = std::mem::take(&mut data).split_at_mut(n);
        data = rest;
        piece
    }
}

/// The candidates [Q, K] of all queries: -1 for none, or rows of a gallery of so many. They lie in memory of the caller, whose other
/// threads may write to it meanwhile.
pub struct Lists<'a> {
    op: &'a str,
    ids: View<'a, i64>,
    gallery: usize,
    changed: AtomicBool,
}

impl<'a> Lists<'a> {
    /// The candidates after checks.
    fn new(op: &'a str, ids: View<'a, i64>, gallery: usize) -> Result<Self, Error> {
        for i in 0..ids.rows() {
            if let Some(id) = ids.row(i).iter().find(|&&id| id < -1 || id >= gallery as i64) {
                let what = format!(
                    "of query {i} hold id {id}, expected -1 (none) or a row of the gallery, which has {gallery}"
                );
                return Err(Error::value(op, "candidates", what));
            }
        }
        Ok(Lists { op, ids, gallery, changed: AtomicBool::new(false) })
    }

    /// The gallery rows that some candidates of a query name, and their positions among these; -1 names no row.
    fn rows(&self, query: usize, places: Range<usize>) -> (Vec<usize>, Vec<usize>) {
        let candidates = &self.ids.row(query)[places];
        // All memory at once: growing takes a lock of the allocator, at which threads would queue up.
        let (mut rows, mut places) = (memory::room(candidates.len()), memory::room(candidates.len()));
        for (place, &id) in candidates.iter().enumerate().filter(|(_, &id)| id >= 0) {
            if id as usize >= self.gallery {
                self.changed.store(true, Ordering::Relaxed);
                continue;
            }
            rows.push(id as usize);
            places.push(place);
        }
        (rows, places)
    }

    /// All that [`Lists::rows`] finds of a query.
    fn of_query(&self, query: usize) -> (Vec<usize>, Vec<usize>) {
        self.rows(query, 0..self.ids.stored())
    }

    /// Returns an error where another thread was seen to change the candidates.
    fn unchanged(self) -> Result<(), Error> {
        let what = "were changed by another thread during the call";
        if self.changed.into_inner() {
            return Err(Error::value(self.op, "candidates", what));
        }
        Ok(())
    }
}

/// Scores of listed pairs: `out[i * K + c]` is that of query `i` and gallery row `candidates[i, c]`, -infinity for id -1.
/// `saved` is written likewise, as in [`paired`].
pub fn candidates<T: Float>(
    pair: &dyn DynKernel<T>,
    op: &str,
    candidates: View<i64>,
    out: &mut [T],
    saved: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let lists = Lists::new(op, candidates, pair.inputs().mu2.rows())?;
    let (count, long) = (candidates.stored().max(1), LONG.min(pairs_of_part(pair)));
    let mut parts = memory::room(candidates.rows() * count.div_ceil(long));
    let mut saved = pieces(saved, count);
    for (i, out) in out.chunks_mut(count).enumerate() {
        let mut saved = pieces(saved(), long);
        parts.extend(out.chunks_mut(long).enumerate().map(|(part, out)| (i, part * long, out, saved())));
    }
    parallel::for_each(parts, interrupted, |(i, first, out, saved)| {
        out.fill(T::from_f64(f64::NEG_INFINITY));
        let (save, (rows, places)) = (!saved.is_empty(), lists.rows(i, first..first + out.len()));
        scores_of(pair, i, &rows, save, |at, score, number| {
            out[places[at]] = score;
            if save {
                saved[places[at]] = number;
            }
        });
    })?;
    lists.unchanged()
}

/// The best k candidates of each query.
pub fn rerank<T: Float>(pair: &dyn DynKernel<T>, op: &str, candidates: View<i64>, best: Best<T>) -> Result<(), Error> {
    let lists = Lists::new(op, candidates, pair.inputs().mu2.rows())?;
    let (queries, count, k) = (candidates.rows(), candidates.stored(), best.k);
    let find = |query: usize, places: Range<usize>, top: &mut TopK<T>| {
        let (rows, _) = lists.rows(query, places);
        match pair.best_listed(query, &rows, k) {
            Some(found) => found.drain_into(top),
            None => scores_of(pair, query, &rows, false, |place, score, _| top.push(score, rows[place] as i64)),
        }
    };
    let most = pairs_of_part(pair);
    if count > LONG.min(most) {
        let scan: &Scan<TopK<T>> = &|query, places, _, tops| {
            find(query.start, places.clone(), &mut tops[0]);
            places.len()
        };
        search_by_shards(queries, count, 1, (1, most), best, scan)?;
        return lists.unchanged();
    }
    let parts = best.scores.chunks_mut(k).zip(best.ids.chunks_mut(k)).enumerate();
    parallel::for_each(parts, best.interrupted, |(i, (scores, ids))| {
        let mut top = TopK::new(k);
        find(i, 0..count, &mut top);
        top.write(scores, ids);
    })?;
    lists.unchanged()
}

/// Products of numbers of which a part of the work takes about so many at most, a tenth of a second: in which an interrupt waits.
const PART: usize = 1 << 30;

/// The pairs of which a part of the work consists at most. A pair of draws takes the products of all numbers of one item with
/// those of each draw of the other.
pub fn pairs_of_part<T>(pair: &dyn DynKernel<T>) -> usize {
    let dim = pair.inputs().dim().max(1);
    let [query, gallery] = [Side::Query, Side::Gallery].map(|side| pair.per_item_width(side).unwrap_or(0).max(dim));
    (PART / query.saturating_mul(gallery / dim)).max(BLOCK)
}

/// Calls `take(position, score, saved)` for each of a query's rows.
fn scores_of<T: Float>(
    pair: &dyn DynKernel<T>,
    query: usize,
    rows: &[usize],
    save: bool,
    mut take: impl FnMut(usize, T, T),
) {
    let (mut scores, mut saved) = ([T::default(); BLOCK], [T::default(); BLOCK]);
    for first in (0..rows.len()).step_by(BLOCK) {
        let scores = &mut scores[..BLOCK.min(rows.len() - first)];
        let numbers = if save { &mut saved[..] } else { &mut [] };
        pair.score(Rows::Same(query), Rows::List(&rows[first..]), scores, numbers);
        for ((place, &score), &saved) in (first..).zip(scores.iter()).zip(&saved) {
            take(place, score, saved);
        }
    }
}

/// The results of a search for the best rows, and how it is stopped.
pub struct Best<'a, T> {
    /// How many rows to find for each query.
    pub k: usize,
    /// The scores of these rows, best first, [Q, k].
    pub scores: &'a mut [T],
    /// The rows themselves, [Q, k]; -1 where there are fewer than k.
    pub ids: &'a mut [i64],
    /// Called now and then: whether to give up.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// The results that the tasks of a search find for one query.
pub trait Found: Send {
    /// Nothing found yet, of the best k.
    fn new(k: usize) -> Self;
    /// A score that k of the rows found reach; -infinity where fewer were found.
    fn threshold(&self) -> f64;
    /// Moves all of `self` into `other`.
    fn merge_into(self, other: &mut Self);
}

impl<T: Float> Found for TopK<T> {
    fn new(k: usize) -> Self {
        TopK::new(k)
    }
    fn threshold(&self) -> f64 {
        TopK::threshold(self)
    }
    fn merge_into(self, other: &mut Self) {
        self.drain_into(other);
    }
}

/// `scan(queries, rows, floors, found)` adds the rows of one shard to what was found for one block of queries, and returns how
/// many pairs it scored. A row that scores below a query's floor is not among its best, as k rows of other shards reach it.
pub type Scan<'a, C> = dyn Fn(Range<usize>, Range<usize>, &[f64], &mut [C]) -> usize + Sync + 'a;

/// Runs a search for the best k as tasks over (block of queries, shard of the gallery) and merges what the shards find. Shards
/// are multiples of `row_multiple` rows and have about `most_rows` at most. Returns what was found for each query, and how many
/// pairs were scored.
pub fn shards<C: Found>(
    (queries, gallery, k): (usize, usize, usize),
    query_block: usize,
    (row_multiple, most_rows): (usize, usize),
    interrupted: &dyn Fn() -> bool,
    scan: &Scan<C>,
) -> Result<(Vec<C>, usize), Error> {
    let blocks = queries.div_ceil(query_block);
    // Enough tasks to keep the threads busy and an interrupt prompt; shards of about 4096 rows or more make merging cheap.
    let shards = (4 * parallel::num_threads()).div_ceil(blocks.max(1)).clamp(1, gallery.div_ceil(4096).max(1));
    let shards = shards.max(gallery.div_ceil(most_rows));
    let shard_rows = gallery.div_ceil(shards).div_ceil(row_multiple) * row_multiple;
    let found: Vec<Mutex<C>> = memory::collected((0..queries).map(|_| Mutex::new(C::new(k))));
    let scored = AtomicUsize::new(0);
    parallel::for_each_long(0..blocks * shards, interrupted, |part| {
        let (block, shard) = (part / shards, part % shards);
        let range = block * query_block..((block + 1) * query_block).min(queries);
        let rows = (shard * shard_rows).min(gallery)..((shard + 1) * shard_rows).min(gallery);
        let mut local: Vec<_> = memory::collected(range.clone().map(|_| C::new(k)));
        let floor = |i: usize| found[i].lock().map_or(f64::NEG_INFINITY, |found| found.threshold());
        let floors: Vec<_> = range.clone().map(floor).collect();
        scored.fetch_add(scan(range.clone(), rows, &floors, &mut local), Ordering::Relaxed);
        for (i, local) in range.zip(local) {
            // The order of merging does not matter: the best k of a set are the same however it is cut.
            if let Ok(mut all) = found[i].lock() {
                local.merge_into(&mut all);
            }
        }
    })?;
    let found = found.into_iter().map(|found| found.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok((memory::collected(found), scored.into_inner()))
}

/// [`shards`] whose scans find scores: writes the best of each query to `best`, and returns how many pairs were scored.
pub fn search_by_shards<T: Float>(
    queries: usize,
    gallery: usize,
    query_block: usize,
    rows: (usize, usize),
    best: Best<T>,
    scan: &Scan<TopK<T>>,
) -> Result<usize, Error> {
    let Best { k, scores, ids, interrupted } = best;
    let (tops, scored) = shards((queries, gallery, k), query_block, rows, interrupted, scan)?;
    for (top, (scores, ids)) in tops.into_iter().zip(scores.chunks_mut(k).zip(ids.chunks_mut(k))) {
        top.write(scores, ids);
    }
    Ok(scored)
}

/// Exact top-k by scoring every pair.
pub fn search<T: Float>(pair: &dyn DynKernel<T>, best: Best<T>) -> Result<usize, Error> {
    let (queries, gallery) = (pair.inputs().mu1.rows(), pair.inputs().mu2.rows());
    let most = pairs_of_part(pair);
    let block = (most / BLOCK).min(16);
    let segment = segment(pair.inputs().dim()).min(most / block / BLOCK * BLOCK);
    search_by_shards(queries, gallery, block, (segment, most / block), best, &|queries, rows, floors, tops| {
        let mut scores = vec![T::default(); queries.len() * BLOCK];
        for start in rows.clone().step_by(BLOCK) {
            let tile = Tile { queries: queries.clone(), gallery: start..rows.end.min(start + BLOCK) };
            let width = tile.gallery.len();
            let mut out: Vec<_> = scores.chunks_mut(BLOCK).map(|out| &mut out[..width]).collect();
            pair.tile(tile, &mut out, &mut []);
            for ((top, &floor), scores) in tops.iter_mut().zip(floors).zip(&out) {
                top.offer(scores, start as i64, floor);
            }
        }
        queries.len() * rows.len()
    })
}

/// The pairs whose scores a gradient sums up.
#[derive(Clone, Copy)]
pub enum Pairs<'a> {
    /// Query `i` and gallery row `i`.
    Paired,
    /// Every query and every gallery row.
    Pairwise,
    /// Query `i` and each gallery row `candidates[i, c]`.
    Candidates(View<'a, i64>),
}
