//! Exact search by a bound that is an inner product: matrix products rule most pairs out, and the rest is scored.
//!
//! A query has means a and variances v, a row means b and variances w. Rows are visited in buckets, in the order of the sum of
//! their variances; low and high are the least and the greatest w of a bucket, dimension by dimension. For any variance r > 0,
//!
//!   1 / (v + w) >= c / (r + w),    c the least of (r + w) / (v + w): at low where v > r, else at high;
//!   log(v + w) >= log(r + w) + l,  l the least of log((v + w) / (r + w)): at high where v > r, else at low.
//!
//! So X = -2 MLS - D log 2 pi = sum (a - b)^2 / (v + w) + log(v + w) is at least
//!
//!   sum c W a^2 - 2 c a W b + c W b^2  +  sum log(r + w)  +  sum l,    W = 1 / (r + w):
//!
//! the inner product of 3 D features of the query, [c a^2, -2 c a, c], with as many of the row, [W, W b, W b^2], and a constant
//! of each, sum l and sum log(r + w). Where a score is the MLS of other numbers (see `mls`), a row's offset, times -2, is part of
//! its constant. A centre is subtracted from means, which are then scaled by powers of two, and W by their squares, so that
//! nothing is large; r is the geometric mean of the queries' variances.
//!
//! Rounding, with unit roundoff u. Each of the 3 D terms is off by less than 24 u of itself: one rounding of b - centre, which
//! counts twice in a square; two in W; two more in W b^2; those of a and c in float64, and to T; two of the shift, as a - b is
//! the difference of the shifted means. Their sum, which begins with the row's constant s, is off by (3 D + 1) u (|s| + sum of
//! the terms' sizes). By Cauchy-Schwarz the sizes sum up to at most |f| |g|, f and g the features of query and row. The
//! logarithms, of D sums of variances in D products, are off by 2 D u, and by 4 u of the result in the last steps. Where numbers
//! are subnormal, each of 6 D roundings errs by the smallest number instead, times what it is multiplied by. What the pair
//! function makes of a true X = R + L, with R its rational part and L >= `least` its logarithms, is at least X - (D / 16 + 40) u
//! (|X| + |least|) - (60 D + 200) u (see `scan`). All of this is subtracted from the bound; NaN, overflow and a bucket with a
//! negative variance rule nothing out.

use super::bound::{query_features, Bounds, Reference, RowFeatures};
use super::formulas::Formula;
use super::mls::{self, EquivalentMls, Offset};
use super::scan::Scan;
use super::sieve::{score_survivors, Pairs, ProductBound};
use super::DiagKernel;
use crate::drivers::{self, Best, Inputs, Prune};
use crate::memory;
use crate::simd::{ascending, dispatch, prefetch, Float};
use crate::topk::TopK;
use std::f64::consts::PI;
use std::ops::Range;

/// Rows in a bucket, which share their least and greatest variances.
const BUCKET: usize = 4096;
/// Rows that are scanned before the first bucket, so that there are thresholds to compare bounds with.
const FIRST_ROWS: usize = 1024;
/// Queries that are searched together, for which the features of a row are computed once.
const QUERIES: usize = 256;
/// Fewer queries than this do not pay for laying the rows side by side.
const FEW: usize = 6;
/// Pairs from which on a trial pays.
const PAIRS: usize = 1 << 19;
/// The share of a scan's time below which the bound is taken.
const WORTH: f64 = 0.95;
/// Queries of a trial, rows from which they have their thresholds, and rows to which the bound is applied.
const TRIAL: (usize, usize, usize) = (16, 1024, 256);

/// Finds the best `k` rows of every query; returns how many pairs were scored.
pub fn search<T: Float, F: Formula>(score: &DiagKernel<T, F>, best: Best<T>) -> Result<usize, crate::error::Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    let Ok(last) = u32::try_from(gallery) else { return drivers::search(score, best) };
    if dim == 0 || queries < FEW {
        return drivers::search(score, best);
    }
    let (k, offset) = (best.k, mls::row_offsets(&score.inputs, score.formula, best.interrupted)?);
    let pruned = match score.prune {
        _ if F::LOGS == 0 => false,
        Prune::Never => false,
        Prune::Auto => {
            let may = queries * gallery >= PAIRS && time_by_bound(dim, queries, 0.0) < WORTH;
            may && time_by_bound(dim, queries, share_left(score, &offset, k)) < WORTH
        }
        Prune::Always => true,
    };
    let order = if pruned { by_variance(&score.inputs, 0..last) } else { memory::collected(0..last) };
    let group = drivers::segment(dim);
    drivers::search_by_shards(queries, gallery, QUERIES, (group, usize::MAX), best, &|queries, places, floors, tops| {
        let mls = EquivalentMls::new(&score.inputs, score.formula, &offset, queries.clone());
        let mut task = Task { score, mls: &mls, order: &order, queries, floors, tops };
        if pruned {
            task.prune(&Reference::new(&score.inputs, &mls), places, FIRST_ROWS.max(4 * k))
        } else {
            task.scan(places)
        }
    })
}

/// Sorts rows by the sums of their variances.
fn by_variance<T: Float>(inputs: &Inputs<T>, rows: impl ExactSizeIterator<Item = u32>) -> Vec<u32> {
    let mut buffer = Vec::new();
    let mut key = |row: u32| {
        let mut sums = [T::default(); 16];
        for vars in inputs.uncertainty2.row(row as usize, &mut buffer).chunks(16) {
            sums.iter_mut().zip(vars).for_each(|(sum, &w)| *sum = *sum + w);
        }
        let sum: f32 = sums.iter().map(|sum| sum.to_f64() as f32).sum();
        u64::from(ascending(sum)) << 32 | u64::from(row)
    };
    let mut keys: Vec<u64> = memory::collected(rows.map(&mut key));
    keys.sort_unstable();
    memory::collected(keys.into_iter().map(|key| key as u32))
}

/// The time that a search by the bound takes of that of a scan, where some share of the pairs is left. In units of what a pair takes
/// in a scan, a pair takes 0.58 by the bound and, if it is left, 2 more, both a little more where there are few dimensions; a row takes
/// as much as 20 pairs, and as 11 to 13 where there are many.
fn time_by_bound(dim: usize, queries: usize, left: f64) -> f64 {
    let dim = dim as f64;
    let row = (10.0 + 1280.0 / dim).min(20.0);
    0.58 + 4.0 / dim + (2.0 + 512.0 / dim) * left + row / queries.min(QUERIES) as f64
}

/// The share of pairs that the bound leaves, by a trial with some of the queries and rows.
///
/// A trial's thresholds are scores that about k rows of the gallery reach; its rows are as similar as those of a bucket. A search
/// begins with lower thresholds, and leaves about twice as many pairs.
fn share_left<T: Float, F: Formula>(score: &DiagKernel<T, F>, offset: &[Offset], k: usize) -> f64 {
    let (inputs, (queries, seeds, rows)) = (&score.inputs, TRIAL);
    let (gallery, queries) = (inputs.mu2.rows(), 0..queries.min(inputs.mu1.rows()));
    let sample = |count: usize| (0..count).map(move |place| (place * (gallery / count)) as u32);
    let seeds = memory::collected(sample(seeds.min(gallery)));
    let some = by_variance(inputs, sample((gallery * rows / BUCKET).clamp(rows, 32 * rows).min(gallery)));
    let floors = vec![f64::NEG_INFINITY; queries.len()];
    let mut tops = Vec::new();
    tops.resize_with(queries.len(), || TopK::new((k * seeds.len()).div_ceil(gallery)));
    let mls = EquivalentMls::new(inputs, score.formula, offset, queries.clone());
    let mut task = Task { score, mls: &mls, order: &seeds, queries: queries.clone(), floors: &floors, tops: &mut tops };
    task.scan(0..seeds.len());
    let rows = rows.min(some.len());
    let first = (some.len() - rows) / 2;
    let mut task = Task { score, mls: &mls, order: &some, queries: queries.clone(), floors: &floors, tops: &mut tops };
    let left = task.bucket(&Reference::new(inputs, &mls), first..first + rows);
    2.0 * left as f64 / (queries.len() * rows) as f64
}

/// The search of a block of queries over a shard of the gallery.
struct Task<'a, 'b, T, F> {
    score: &'a DiagKernel<'b, T, F>,
    mls: &'a EquivalentMls<'a>,
    order: &'a [u32],
    queries: Range<usize>,
    floors: &'a [f64],
    tops: &'a mut [TopK<T>],
}

impl<T: Float, F: Formula> Task<'_, '_, T, F> {
    fn scan(&mut self, places: Range<usize>) -> usize {
        let Task { score, mls, order, queries, floors, tops } = self;
        let (score, queries) = (*score, queries.clone());
        if F::LOGS > 0 {
            dispatch(Scan::<T, true> { score, mls, order, queries, places, floors, tops })
        } else {
            dispatch(Scan::<T, false> { score, mls, order, queries, places, floors, tops })
        }
    }

    /// Scans the first rows if there are no thresholds yet, then goes on bucket after bucket.
    fn prune(&mut self, reference: &Reference, places: Range<usize>, first_rows: usize) -> usize {
        let (mut first, mut scored) = (places.start, 0);
        let mut thresholds = self.tops.iter().zip(self.floors).map(|(top, floor)| top.threshold().max(*floor));
        if thresholds.any(|threshold| threshold == f64::NEG_INFINITY) {
            first = places.end.min(first + first_rows);
            scored += self.scan(places.start..first);
        }
        for first in (first..places.end).step_by(BUCKET) {
            scored += self.bucket(reference, first..places.end.min(first + BUCKET));
        }
        scored
    }

    /// Searches a bucket; returns how many pairs were scored.
    fn bucket(&mut self, reference: &Reference, places: Range<usize>) -> usize {
        let (inputs, mls, rows) = (&self.score.inputs, self.mls, &self.order[places]);
        let dim = inputs.mu1.stored();
        let bounds = Bounds::new(inputs, mls, rows);
        let mut features = vec![T::default(); self.queries.len() * 3 * dim];
        let queries = self.queries.clone().zip(features.chunks_exact_mut(3 * dim)).map(|(i, out)| {
            let (norm, log) = query_features(reference, &bounds, mls.query(i), out);
            // A limit of NaN rules nothing out where variances are not valid.
            BucketQuery { norm, log: if bounds.sound { log } else { f64::NAN }, offset: mls.query_offset(i) }
        });
        let mut bound = MlsBound { inputs, mls, reference, queries: queries.collect(), group: GroupRange::default() };
        let queries = self.queries.clone();
        let pairs = Pairs { score: self.score, queries, rows, floors: self.floors, tops: &mut *self.tops };
        score_survivors(pairs, &features, 3 * dim, &mut bound)
    }
}

/// The bound for the rows of a bucket.
struct MlsBound<'a, 'b, T> {
    inputs: &'a Inputs<'b, T>,
    mls: &'a EquivalentMls<'a>,
    reference: &'a Reference,
    queries: Vec<BucketQuery>,
    group: GroupRange,
}

/// A query as a bucket sees it: the norm of its features, its constant sum l, and its offset.
struct BucketQuery {
    norm: f64,
    log: f64,
    offset: Offset,
}

/// The numbers of a group of rows that the bound reads.
#[derive(Default)]
struct GroupRange {
    /// The least of the sums of logarithms.
    least: f64,
    /// The middle of the rows' constants, which is subtracted from them.
    middle: f64,
    /// The greatest size of a sum of logarithms.
    log: f64,
    /// The greatest distance of a constant from the middle.
    apart: f64,
    /// The greatest norm of a row's features.
    norm: f64,
    /// The greatest sizes of the rows' offsets.
    offset: Offset,
}

impl GroupRange {
    /// A group of rows with these sums of logarithms, norms of features and offsets. Twice the offsets are subtracted from the
    /// logarithms, which makes them the rows' constants. NaN is left out: nothing rules out a row that has one.
    fn new(logs: &mut [f64], norms: &[f64], offsets: &[Offset]) -> Self {
        let range = |x: &[f64]| {
            let least = x.iter().copied().fold(f64::INFINITY, f64::min);
            (least, x.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        };
        let (least, most) = range(logs);
        let log = least.abs().max(most.abs());
        let mut offset = Offset::default();
        for (log, row) in logs.iter_mut().zip(offsets) {
            *log -= 2.0 * row.value;
            offset.size = offset.size.max(row.size);
            offset.rational = offset.rational.max(row.rational);
        }
        let (low, high) = range(logs);
        let middle = 0.5 * (low + high);
        let norm = norms.iter().copied().fold(0.0, f64::max);
        GroupRange { least, middle, log, apart: high - middle, norm, offset }
    }
}

impl<T: Float> ProductBound<T> for MlsBound<'_, '_, T> {
    fn pack_features(&mut self, rows: &[u32], packed: &mut [T], starts: &mut [T]) {
        let MlsBound { inputs, mls, reference, .. } = *self;
        let (mut logs, mut norms) = (vec![0.0; starts.len()], vec![0.0; starts.len()]);
        let length = 2 * T::LANES * (packed.len() / starts.len());
        for (n, panel) in rows.chunks(T::LANES).enumerate() {
            for &next in rows.iter().skip((n + 1) * T::LANES).take(T::LANES) {
                prefetch(inputs.mu2.bytes(next as usize));
                prefetch(inputs.uncertainty2.bytes(next as usize));
            }
            let (pair, at) = (&mut packed[n / 2 * length..][..length], n * T::LANES..(n + 1) * T::LANES);
            let (logs, norms) = (&mut logs[at.clone()], &mut norms[at]);
            dispatch(RowFeatures { inputs, mls, reference, rows: panel, place: n % 2, pair, logs, norms });
        }
        let offsets: Vec<_> = rows.iter().map(|&row| mls.row_offset(row as usize)).collect();
        self.group = GroupRange::new(&mut logs[..offsets.len()], &norms[..offsets.len()], &offsets);
        for (start, log) in starts.iter_mut().zip(&logs) {
            *start = T::from_f64(self.group.middle - log);
        }
    }

    fn limit(&self, query: usize, threshold: f64) -> f64 {
        let (BucketQuery { norm, log, offset }, group) = (&self.queries[query], &self.group);
        let (dim, u) = (self.inputs.mu1.stored() as f64, T::ROUNDOFF);
        // The greatest true X, less twice the row's offset, with which the pair function's rounded score can reach the threshold.
        let exact = -2.0 * (threshold - offset.value) - dim * (2.0 * PI).ln() + 4.0 * u * threshold.abs();
        let least = group.least + log;
        let size = offset.value.abs() + f64::from(offset.size + group.offset.size);
        let rational = f64::from(offset.rational + group.offset.rational);
        let reached = exact
            + 2.0 * u * (dim / 16.0 + 40.0) * (exact.abs() + least.abs() + 2.0 * f64::from(group.offset.size))
            + u * (70.0 * dim + 200.0 + 8.0 * size + (dim + 480.0) * rational);
        let slack = u * ((3.0 * dim + 26.0) * (norm * group.norm + group.apart) + 8.0 * dim + 8.0 * group.log)
            + (6.0 * dim + 20.0) * T::SMALLEST * (1.0 + norm + group.norm);
        let limit = group.middle + log - reached - 1.01 * slack;
        // Below this nothing overflows.
        let safe = norm * group.norm + group.apart + group.log < T::QUARTER_RANGE.powi(3);
        if safe {
            limit
        } else {
            f64::NAN
        }
    }
}
