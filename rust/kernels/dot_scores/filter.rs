//! Exact search that scores few pairs: inner products of register tiles rule the others out.

use super::formulas::{Group, Query};
use super::lengths::{has_lengths, in_range};
use super::pool::{Passed, Pool, Weigh};
use super::{sq_norms, DotKernel, Formula};
use crate::drivers::{self, Best};
use crate::error::Error;
use crate::panels::{self, Epilogue, QueryTiles};
use crate::parallel;
use crate::simd::{ascending, dispatch, set_bits, Float, Kernel, Simd};
use crate::view::Matrix;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Finds the best `k` rows of every query: panels rule rows out, the pair function scores the others, or all if k is much of the
/// gallery. Returns how many it scored.
pub fn search<T: Float, F: Formula>(score: &DotKernel<T, F>, best: Best<T>) -> Result<usize, Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    let long = best.k.saturating_mul(if dim < 256 { LONG.0 } else { LONG.1 }) >= gallery;
    if !F::SIEVED || dim == 0 || long || (queries < FEW && score.packed.is_none()) {
        return drivers::search(score, best);
    }
    let group = panels::padded::<T>(drivers::segment(dim));
    let sorted;
    let order = match &score.packed {
        Some(packed) => packed.order,
        None => {
            sorted = in_order(&score.inputs.uncertainty2)?;
            &sorted[..]
        }
    };
    let groups = scattered(gallery.div_ceil(group));
    let block = (POOLED / best.k.max(1)).clamp((dim / 2).clamp(64, 1024), 1024);
    let Best { k, scores, ids, interrupted } = best;
    let scan: &drivers::Scan<Pool<T>> = &|queries, places, floors, pools| {
        // A shard that begins beyond the last row is empty.
        let groups = &groups[places.start.div_ceil(group)..places.end.div_ceil(group)];
        scan(score, queries, order, (groups, group), floors, pools)
    };
    let (pools, scored) = drivers::shards((queries, gallery, k), block, (group, usize::MAX), interrupted, scan)?;
    let (scored, parts) = (AtomicUsize::new(scored), scores.chunks_mut(k).zip(ids.chunks_mut(k)).zip(pools));
    parallel::for_each(parts.enumerate().collect(), interrupted, |(query, ((scores, ids), mut pool))| {
        scored.fetch_add(pool.settle(score, query), Ordering::Relaxed);
        pool.top.write(scores, ids);
    })?;
    Ok(scored.into_inner())
}

/// The share of the gallery, one in so many rows, from which on k best are found sooner by scoring all pairs: with few dimensions, and
/// with many, in which a score takes longer.
const LONG: (usize, usize) = (14, 10);

/// Fewer queries than this do not pay for packing the rows of a gallery that is not prepared.
const FEW: usize = 6;

/// Rows that are sorted together: few enough for the second-level cache.
const STRETCH: usize = 1 << 16;

/// The product of k and the queries of a block, for each of which up to 2 k rows of 24 bytes wait to be scored: as many rows as the
/// second-level cache holds. A block has no fewer queries than half the dimensions, since its panels are read for it alone.
const POOLED: usize = 1 << 16;

/// The order in which rows are visited: by their uncertainties, stretch by stretch. A row takes some 20 ns, and saves 2 to 40 ns
/// for each query.
fn in_order<T: Float>(uncertainties: &Matrix<T>) -> Result<Vec<i64>, Error> {
    let mut order = vec![0; uncertainties.rows()];
    parallel::for_each(order.chunks_mut(STRETCH).enumerate().collect(), &|| false, |(stretch, rows)| {
        let first = stretch * STRETCH;
        // In float32: the order need not be right to the last digit.
        let key = |row: usize| u64::from(ascending(uncertainties.first(first + row) as f32)) << 32 | row as u64;
        let mut keys: Vec<u64> = (0..rows.len()).map(key).collect();
        keys.sort_unstable();
        rows.iter_mut().zip(keys).for_each(|(row, key)| *row = (first + (key as u32) as usize) as i64);
    })?;
    Ok(order)
}

/// The numbers below n, neighbours far apart: what comes first is a sample of all, so that thresholds are soon near their final
/// values. If groups were visited in the order of their uncertainties, rows could get better up to the last one.
fn scattered(n: usize) -> Vec<usize> {
    let bits = usize::BITS - n.saturating_sub(1).leading_zeros();
    let reversed = |i: usize| if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) };
    (0..1 << bits).map(reversed).filter(|&i| i < n).collect()
}

/// One task of a search: a block of queries over a shard of the gallery, given by the numbers of its groups and a group's rows.
fn scan<T: Float, F: Formula>(
    score: &DotKernel<T, F>,
    queries: Range<usize>,
    order: &[i64],
    (groups, group): (&[usize], usize),
    floors: &[f64],
    pools: &mut [Pool<T>],
) -> usize {
    let inputs = &score.inputs;
    let dim = inputs.mu1.stored();
    let tiles = QueryTiles::new(&inputs.mu1, queries.clone());
    let mut norms = vec![T::default(); group.max(queries.len())];
    sq_norms(&Matrix::Full(inputs.mu1), queries.clone(), &mut norms[..queries.len()]);
    let query = |(i, norm): (usize, &T)| {
        let uncertainty = inputs.uncertainty1.row(i)[0].to_f64();
        Query { norm: norm.to_f64(), uncertainty, ..Query::default() }
    };
    pools.iter_mut().zip(floors).for_each(|(pool, &floor)| pool.threshold = floor);
    let mut filter = Filter {
        score,
        first_query: queries.start,
        queries: queries.clone().zip(&norms).map(query).collect(),
        // Queries of the padding have a limit that nothing reaches.
        limits: vec![T::from_f64(f64::INFINITY); tiles.padded()],
        pools,
        slack: slack::<T>(dim),
        smallest: smallest::<T>(dim),
        scored: 0,
        group: NO_ROWS,
        rows: &[],
        norms: Vec::with_capacity(group),
    };
    let (mut buffer, mut starts) = (Vec::new(), vec![T::default(); group]);
    for first in groups.iter().map(|number| number * group) {
        let order = &order[first..order.len().min(first + group)];
        let norms = match &score.packed {
            Some(packed) => &packed.norms[first..first + order.len()],
            None => {
                sq_norms(&inputs.mu2, order.iter().map(|&row| row as usize), &mut norms[..order.len()]);
                &norms[..order.len()]
            }
        };
        filter.enter(order, norms);
        filter.start(norms, &mut starts);
        products(score, &tiles, (first, order), &starts, &mut buffer, &mut filter);
    }
    for query in 0..filter.queries.len() {
        filter.weigh(query);
        filter.pools[query].narrow();
    }
    filter.scored
}

/// Shows the filter the inner products of the rows of a group, from position `first` on; they are packed into `buffer` unless the
/// gallery is prepared.
fn products<T: Float, F: Formula>(
    score: &DotKernel<T, F>,
    tiles: &QueryTiles<T>,
    (first, order): (usize, &[i64]),
    starts: &[T],
    buffer: &mut Vec<T>,
    filter: &mut Filter<T, F>,
) {
    let (padded, width, dim) = (panels::padded::<T>(order.len()), 2 * T::LANES, score.inputs.mu1.stored());
    if let Some(packed) = &score.packed {
        let pairs = first / width..(first + padded) / width;
        return panels::products(tiles, (&packed.panels, pairs), starts, filter);
    }
    buffer.resize(padded * dim, T::default());
    panels::pack(&score.inputs.mu2, 0..order.len(), &|place| order[place] as usize, buffer);
    let packed = panels::pairs(buffer, dim);
    panels::products(tiles, (&packed, 0..packed.rows()), starts, filter);
}

/// A bound, relative to |a|^2 + |b|^2, on how far the squared distance (or twice the inner product) x that the pair function
/// computes may lie from the one that follows from the panels' inner product.
///
/// With unit roundoff u, L lanes and n = |a|^2 + |b|^2 (so |a| |b| <= n/2): the panels' sum of D products and a start of at most
/// |b|^2/2 errs by at most (D + 1) u (|a||b| + |b|^2/2) <= (D + 1) u n, and twice that is (2 D + 2) u n. A norm is summed over at
/// most D/L + log2 L + 3 roundings of a relative u each (fewer, as four chains share them). The pair function's sum errs by at
/// most (D/L + log2 L + 5) u x with x <= 2 n, or, of an inner product, by (D/L + log2 L + 3) u |a||b|. Together this is below (2
/// D + 3 D/L + 26) u n for L = 8 or 16; the factor 1.01 covers the terms in u^2 (D u < 0.01) and the norms' own rounding. Where
/// products are subnormal, each of the at most 6 D + 20 roundings errs by up to half the smallest number instead ([`smallest`]).
pub fn slack<T: Float>(dim: usize) -> f64 {
    let (dim, lanes) = (dim as f64, T::LANES as f64);
    1.01 * (2.0 * dim + 3.0 * dim / lanes + 26.0) * T::ROUNDOFF
}

/// A bound on what roundings of subnormal numbers add to that, not relative to anything.
pub fn smallest<T: Float>(dim: usize) -> f64 {
    (6 * dim + 20) as f64 * T::SMALLEST
}

/// Two sieves: they find the rows whose score may reach the query's threshold, and of these the rows that may be among the best
/// in the end, which the pair function scores.
///
/// The first sieve compares a panel's inner products, less each row's share of its squared norm, with one limit per query and
/// group of rows, which [`Formula::bound`] gives: where the rows of a group have much the same uncertainty, hardly any pair
/// passes that is not among the best. The second sieve applies the formula to what is left, and finds a lower and an upper bound
/// of each score. The k-th greatest of the lower bounds is a threshold; a row whose upper bound is below it is dropped.
///
/// Proof that no row is lost by the second sieve: let x be the squared distance (or inner product) that the pair function finds,
/// and y the one that the panels find, moved by the slack to the side of higher scores, so y <= x (y >= x for inner products).
/// The pair function's score is `T(value(x, ...))`; the sieve compares with `value(y, ...)`, the same float64 operations on the
/// same other numbers. As rounded, value is monotone in x, but for [`Formula::tolerance`], and so is the rounding to T, hence
/// `T(value(y)) >= T(value(x))`; with y moved to the other side, `T(value(y)) <= T(value(x))`. Where k rows have a lower bound of
/// at least t, their scores are at least T(t), and a row whose upper bound is below t by more than a rounding to T scores less
/// than each of them.
///
/// No row is lost by the first sieve: a row that can reach the threshold has x within the bound, so y too, and the limit is the
/// inner product at which y is the bound, rounded down. Where products may overflow there is no lower bound. A NaN passes both
/// sieves, but rows whose norm or uncertainty is NaN do not count in a group: a NaN is not among the best while there is a
/// threshold.
struct Filter<'a, 'b, T, F> {
    score: &'a DotKernel<'b, T, F>,
    first_query: usize,
    queries: Vec<Query>,
    /// The least inner product that passes in the group at hand, for each query.
    limits: Vec<T>,
    pools: &'a mut [Pool<T>],
    slack: f64,
    smallest: f64,
    /// Pairs scored so far.
    scored: usize,
    /// The ranges of norms and uncertainties in the group at hand.
    group: Group,
    /// The rows of that group.
    rows: &'a [i64],
    /// The squared norms of these rows.
    norms: Vec<T>,
}

/// The ranges of no rows, which are to be widened.
const NO_ROWS: Group = Group {
    norms: (f64::INFINITY, f64::NEG_INFINITY),
    uncertainties: (f64::INFINITY, f64::NEG_INFINITY),
    share: 1.0,
    tangent_at_ends: [0.0; 2],
};

impl<T: Float, F: Formula> Epilogue<T> for Filter<'_, '_, T, F> {
    #[inline(always)]
    fn limits(&self) -> &[T] {
        &self.limits
    }

    fn visit(&mut self, query: usize, panel: usize, lanes: u32, dots: &[T; 16]) {
        // Queries of the padding are zeros, whose product with a NaN is not below any limit.
        if query < self.queries.len() {
            self.sift(query, panel, lanes, dots);
        }
    }
}

impl<'a, T: Float, F: Formula> Filter<'a, '_, T, F> {
    /// Makes these rows, with these squared norms, the group at hand.
    fn enter(&mut self, rows: &'a [i64], norms: &[T]) {
        (self.rows, self.group) = (rows, NO_ROWS);
        self.norms.clear();
        self.norms.extend_from_slice(norms);
        // A minimum or maximum with a NaN is the other number.
        for norm in norms.iter().map(|norm| norm.to_f64()) {
            self.group.norms = (self.group.norms.0.min(norm), self.group.norms.1.max(norm));
        }
        let uncertainties = &self.score.inputs.uncertainty2;
        let uncertainty = |&row: &i64| uncertainties.first(row as usize);
        let mut take = |uncertainty: f64| {
            let least = if F::SIGNED { uncertainty } else { uncertainty.max(0.0) };
            self.group.uncertainties =
                (self.group.uncertainties.0.min(least), self.group.uncertainties.1.max(uncertainty));
        };
        if self.score.packed.is_some() {
            // The rows of a prepared gallery are sorted by uncertainty, NaN at the ends by their signs.
            let number = |uncertainty: &f64| !uncertainty.is_nan();
            rows.iter().map(uncertainty).find(number).into_iter().for_each(&mut take);
            rows.iter().rev().map(uncertainty).find(number).into_iter().for_each(take);
        } else {
            rows.iter().map(uncertainty).for_each(take);
        }
        dispatch(Enter { formula: &self.score.formula, group: &mut self.group });
        let thresholds: Vec<_> = self.pools.iter().map(|pool| pool.threshold).collect();
        let (formula, queries, group) = (&self.score.formula, &mut self.queries, &self.group);
        dispatch(EnterQueries { formula, thresholds: &thresholds, queries, group });
        for query in 0..self.queries.len() {
            self.set_limit(query);
        }
    }

    /// Writes what the sums of a panel start with: what is subtracted from the inner products of each row of the group.
    fn start(&self, norms: &[T], starts: &mut [T]) {
        // Rows of the padding reach no limit.
        starts.fill(T::from_f64(f64::NEG_INFINITY));
        for (start, norm) in starts.iter_mut().zip(norms) {
            let share = -0.5 * self.group.share * norm.to_f64();
            *start = T::from_f64(if F::DIFFERENCE { share } else { 0.0 });
        }
    }

    fn set_limit(&mut self, query: usize) {
        let threshold = self.pools[query].threshold;
        let limit = if threshold == f64::NEG_INFINITY {
            f64::NEG_INFINITY
        } else {
            let (query, group) = (&mut self.queries[query], &self.group);
            let bound = dispatch(Bound { formula: &self.score.formula, threshold, query: &mut *query, group });
            let both = query.norm + self.group.norms.1;
            let limit = if F::DIFFERENCE {
                0.5 * (query.norm - bound - self.slack * both - self.smallest)
            } else {
                bound - 0.5 * self.slack * both - self.smallest
            };
            // Less the rounding errors up to here, and that of the conversion to T.
            limit - 2.0 * T::ROUNDOFF * limit.abs() - 1e-15 * (both + bound.abs())
        };
        self.limits[query] = T::from_f64(if limit.is_nan() { f64::NEG_INFINITY } else { limit });
    }

    /// The first sieve: takes the rows of a panel whose inner products reach the limit.
    #[inline(never)]
    fn sift(&mut self, query: usize, panel: usize, lanes: u32, dots: &[T; 16]) {
        for lane in set_bits(lanes) {
            let (place, dot) = (panel * T::LANES + lane, dots[lane]);
            // The limit rises from row to row.
            if place >= self.rows.len() || dot < self.limits[query] {
                continue;
            }
            let (norm, row) = (self.norms[place].to_f64(), self.rows[place] as usize);
            if has_lengths::<F>() && !(in_range::<T>(norm) && in_range::<T>(self.queries[query].norm)) {
                self.pools[query].keep(row);
                continue;
            }
            let x = if F::DIFFERENCE {
                self.queries[query].norm + (1.0 - self.group.share) * norm - 2.0 * dot.to_f64()
            } else {
                dot.to_f64()
            };
            let uncertainty = self.score.inputs.uncertainty2.first(row);
            if self.pools[query].push(Passed { x, within: 0.0, norm, uncertainty, row }) {
                self.weigh(query);
            }
        }
    }

    /// The second sieve, on those rows of a query that wait for it.
    fn weigh(&mut self, query: usize) {
        let (slack, smallest, formula) = (self.slack, self.smallest, &self.score.formula);
        let pool = &mut self.pools[query];
        let before = pool.threshold;
        dispatch(Weigh { formula, query: self.queries[query], pool: &mut *pool, slack, smallest });
        self.scored += pool.tidy(self.score, self.first_query + query);
        if self.pools[query].threshold > before {
            self.set_limit(query);
        }
    }
}

/// Calls [`Formula::enter`]; a dispatch of its own, as are the next two, so that it is compiled once for all types of rows.
struct EnterQueries<'a, F> {
    formula: &'a F,
    thresholds: &'a [f64],
    queries: &'a mut [Query],
    group: &'a Group,
}
impl<F: Formula> Kernel for EnterQueries<'_, F> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.formula.enter::<S>(self.thresholds, self.queries, self.group);
    }
}

/// Calls [`Formula::group`].
struct Enter<'a, F> {
    formula: &'a F,
    group: &'a mut Group,
}
impl<F: Formula> Kernel for Enter<'_, F> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.formula.group::<S>(self.group);
    }
}

/// Calls [`Formula::bound`].
struct Bound<'a, F> {
    formula: &'a F,
    threshold: f64,
    query: &'a mut Query,
    group: &'a Group,
}
impl<F: Formula> Kernel for Bound<'_, F> {
    const LANES_MEET: bool = false;
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self) -> f64 {
        self.formula.bound::<S>(self.threshold, self.query, self.group)
    }
}
