//! Exact search that scores few pairs: inner products of register tiles, or of codes, rule the others out.

use super::formulas::{Group, Query};
use super::lengths::{has_lengths, in_range};
use super::pool::{passed, Passed, Pool, Weigh};
use super::{sq_norms, DotKernel, Formula};
use crate::coded_panels::{self, Buffer, CodedPanels, CodedQueries, TOGETHER};
use crate::codes::Product;
use crate::drivers::{self, Best, Prune};
use crate::error::Error;
use crate::memory;
use crate::panels::{self, Epilogue, QueryTiles};
use crate::parallel;
use crate::simd::bytes::{Bytes, Sums};
use crate::simd::{ascending, dispatch, set_bits, Float, Kernel, Simd};
use crate::view::Matrix;
use std::borrow::Cow;
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
    let sorted;
    let order = match &score.packed {
        Some(packed) => packed.order,
        None => {
            sorted = in_order(&score.inputs.uncertainty2)?;
            &sorted[..]
        }
    };
    let codes = Codes::of(score, best.k);
    let segment = panels::padded::<T>(drivers::segment(dim));
    let group = segment * if codes.is_some() { (gallery / (GROUPS * segment)).clamp(1, 4) } else { 1 };
    let groups = scattered(gallery.div_ceil(group));
    let block = (POOLED / best.k.max(1)).clamp((dim / 2).clamp(64, 1024), 1024);
    let Best { k, scores, ids, interrupted } = best;
    let scan: &drivers::Scan<Pool<T>> = &|queries, places, floors, pools| {
        // A shard that begins beyond the last row is empty.
        let groups = &groups[places.start.div_ceil(group)..places.end.div_ceil(group)];
        scan(score, queries, order, (groups, group), (codes.as_ref(), k), floors, pools)
    };
    let (pools, scored) = drivers::shards((queries, gallery, k), block, (group, usize::MAX), interrupted, scan)?;
    let (scored, parts) = (AtomicUsize::new(scored), scores.chunks_mut(k).zip(ids.chunks_mut(k)).zip(pools));
    parallel::for_each(parts.enumerate(), interrupted, |(query, ((scores, ids), mut pool))| {
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

/// Groups that a large gallery has at least: the products of codes take little time, beside which limits of many would take much.
const GROUPS: usize = 128;

/// The fewest queries that pay for the codes of a gallery that is not prepared.
const MANY: usize = 64;

/// The elements of a gallery for each of the best k that pay for its codes: some rows are among the best for a while only.
const PASSED: usize = 1 << 15;

/// Rows that are sorted together: few enough for the second-level cache.
const STRETCH: usize = 1 << 16;

/// The product of k and the queries of a block, for each of which up to 2 k rows of 24 bytes wait to be scored: as many rows as the
/// second-level cache holds. A block has no fewer queries than half the dimensions, since its panels are read for it alone.
const POOLED: usize = 1 << 16;

/// The order in which rows are visited: by their uncertainties, stretch by stretch. A row takes some 20 ns, and saves 2 to 40 ns
/// for each query.
fn in_order<T: Float>(uncertainties: &Matrix<T>) -> Result<Vec<i64>, Error> {
    let mut order = memory::filled(0, uncertainties.rows());
    parallel::for_each(order.chunks_mut(STRETCH).enumerate(), &|| false, |(stretch, rows)| {
        let first = stretch * STRETCH;
        // In float32: the order need not be right to the last digit.
        let key = |row: usize| u64::from(ascending(uncertainties.first(first + row) as f32)) << 32 | row as u64;
        let mut keys: Vec<u64> = memory::collected((0..rows.len()).map(key));
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

/// The codes by which a search rules rows out.
struct Codes<'a> {
    /// How they are multiplied.
    bytes: Bytes,
    /// Those of a prepared gallery; else they are made group by group.
    panels: Option<CodedPanels<'a>>,
    /// The vector that rows share.
    middle: Cow<'a, [f64]>,
}

impl<'a> Codes<'a> {
    /// None where they gain nothing, or are not wanted.
    fn of<T: Float, F: Formula>(score: &DotKernel<'a, T, F>, k: usize) -> Option<Self> {
        let (queries, dim, always) = (score.inputs.mu1.rows(), score.inputs.mu1.stored(), score.prune == Prune::Always);
        let short = always || score.inputs.mu2.rows().saturating_mul(dim) / PASSED >= k;
        let bytes = coded_panels::pays(dim).filter(|_| short && score.prune != Prune::Never)?;
        if let Some(packed) = &score.packed {
            return packed.coded.map(|panels| Codes { bytes, panels: Some(panels), middle: panels.middle().into() });
        }
        (queries >= MANY || always).then(|| Codes {
            bytes,
            panels: None,
            middle: coded_panels::middle(&score.inputs.mu2).into(),
        })
    }
}

/// One task of a search: a block of queries over a shard of the gallery, given by the numbers of its groups and a group's rows.
fn scan<T: Float, F: Formula>(
    score: &DotKernel<T, F>,
    queries: Range<usize>,
    order: &[i64],
    (groups, group): (&[usize], usize),
    (codes, k): (Option<&Codes>, usize),
    floors: &[f64],
    pools: &mut [Pool<T>],
) -> usize {
    let inputs = &score.inputs;
    let tiles = QueryTiles::new(&inputs.mu1, queries.clone());
    let mut norms = vec![T::default(); group.max(queries.len())];
    sq_norms(&Matrix::Full(inputs.mu1), queries.clone(), &mut norms[..queries.len()]);
    pools.iter_mut().zip(floors).for_each(|(pool, &floor)| pool.threshold = floor);
    let mut filter = Filter::new(score, (queries, &norms), tiles.padded(), codes, pools);
    let mut trials = Trials::new(k, floors, score.prune);
    let (mut buffer, mut starts, mut coded_buffer) = (Vec::new(), vec![T::default(); group], Buffer::default());
    for first in groups.iter().map(|number| number * group) {
        let order = &order[first..order.len().min(first + group)];
        let norms = match &score.packed {
            Some(packed) => &packed.norms[first..first + order.len()],
            None => {
                sq_norms(&inputs.mu2, order.iter().map(|&row| row as usize), &mut norms[..order.len()]);
                &norms[..order.len()]
            }
        };
        let coded = codes.filter(|_| trials.next(order.len())).map(|codes| match codes.panels {
            Some(panels) => (panels, first / TOGETHER),
            None => (coded_buffer.encode(&inputs.mu2, order, &codes.middle), 0),
        });
        if coded.is_some() && trials.passed == 0 {
            filter.catch_up();
        }
        filter.enter(order, norms, coded);
        filter.passed_over = coded.map_or(0, |coded| filter.sieve(coded, &mut trials));
        if filter.passed_over < order.len() {
            filter.start(norms, &mut starts);
            products(score, &tiles, (first, order), &starts, &mut buffer, &mut filter);
        }
    }
    filter.catch_up();
    filter.scored
}

/// The choice between codes and panels, group by group. Pairs that codes do not rule out cost more than what codes save on others.
struct Trials {
    prune: Prune,
    /// Rows that are left to panels at first, until thresholds are worth something.
    early: usize,
    /// Groups that are left to panels until the next trial, and those that are after it if it fails.
    wait: (usize, usize),
    /// Pairs that may pass since the last trial failed, and those that have passed.
    most: f64,
    passed: usize,
}

/// Groups that are left to panels after the first trial in which codes ruled too few pairs out; after the next, so many times more.
const WAIT: (usize, usize) = (4, 4);

/// The share of pairs that may pass.
const SHARE: f64 = 1.0 / 64.0;

/// So many times k, rows of a query may pass beside that share: those that are among its best for a while.
const BEST: usize = 8;

impl Trials {
    fn new(k: usize, floors: &[f64], prune: Prune) -> Self {
        let known = floors.iter().all(|&floor| floor > f64::NEG_INFINITY) || prune == Prune::Always;
        let most = (BEST * k * floors.len()) as f64;
        Trials { prune, early: if known { 0 } else { BEST * k }, wait: (0, WAIT.0), most, passed: 0 }
    }

    /// Whether codes are tried for the next group, of so many rows.
    fn next(&mut self, rows: usize) -> bool {
        let tried = self.early == 0 && self.wait.0 == 0;
        (self.early, self.wait.0) = (self.early.saturating_sub(rows), self.wait.0.saturating_sub(1));
        tried
    }

    /// Whether more pairs have passed than may, of so many more pairs.
    fn too_many(&mut self, pairs: usize) -> bool {
        self.most += SHARE * pairs as f64;
        if self.passed as f64 <= self.most || self.prune == Prune::Always {
            return false;
        }
        (self.most, self.passed) = (0.0, 0);
        self.wait = (self.wait.1, self.wait.1.saturating_mul(WAIT.1));
        true
    }
}

/// Shows the filter the inner products of the rows of a group, from position `first` on, but for those that it has passed over; they
/// are packed into `buffer` unless the gallery is prepared.
fn products<T: Float, F: Formula>(
    score: &DotKernel<T, F>,
    tiles: &QueryTiles<T>,
    (first, order): (usize, &[i64]),
    starts: &[T],
    buffer: &mut Vec<T>,
    filter: &mut Filter<T, F>,
) {
    let (order, starts, first) =
        (&order[filter.passed_over..], &starts[filter.passed_over..], first + filter.passed_over);
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
///
/// Codes take the place of panels in the first sieve, group by group, while they rule enough pairs out ([`Trials`]). The same limit
/// holds for the inner product of the rows as real numbers, which lies nearer to that of the pair function than that of the panels
/// may. [`coded_panels`] has the proof that codes find no less than that. What they leave out of a pair widens its bounds in the second
/// sieve ([`Passed::within`]). A row or query that has no codes passes both.
struct Filter<'a, 'b, T, F> {
    score: &'a DotKernel<'b, T, F>,
    first_query: usize,
    queries: Vec<Query>,
    /// The least inner product that passes in the group at hand, for each query.
    limits: Vec<T>,
    /// The queries as codes, if there are codes.
    coded: Option<CodedQueries>,
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
    /// How many of the first rows codes have looked at.
    passed_over: usize,
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

impl<'a, 'b, T: Float, F: Formula> Filter<'a, 'b, T, F> {
    /// A filter of a block of queries with these squared norms, and padding.
    fn new(
        score: &'a DotKernel<'b, T, F>,
        (queries, norms): (Range<usize>, &[T]),
        padded: usize,
        codes: Option<&Codes>,
        pools: &'a mut [Pool<T>],
    ) -> Self {
        let (inputs, dim) = (&score.inputs, score.inputs.mu1.stored());
        let query = |(i, norm): (usize, &T)| {
            let uncertainty = inputs.uncertainty1.row(i)[0].to_f64();
            Query { norm: norm.to_f64(), uncertainty, ..Query::default() }
        };
        Filter {
            score,
            first_query: queries.start,
            queries: queries.clone().zip(norms).map(query).collect(),
            // Queries of the padding have a limit that nothing reaches.
            limits: vec![T::from_f64(f64::INFINITY); padded],
            coded: codes.map(|codes| CodedQueries::new(&inputs.mu1, queries, &codes.middle, codes.bytes)),
            pools,
            slack: slack::<T>(dim),
            smallest: smallest::<T>(dim),
            scored: 0,
            group: NO_ROWS,
            rows: &[],
            norms: Vec::new(),
            passed_over: 0,
        }
    }

    /// Makes these rows, with these squared norms, the group at hand; codes of them are in panels from the numbered one on.
    fn enter(&mut self, rows: &'a [i64], norms: &[T], coded: Option<(CodedPanels, usize)>) {
        (self.rows, self.group) = (rows, NO_ROWS);
        self.norms.clear();
        self.norms.extend_from_slice(norms);
        self.group.norms = dispatch(Span(norms));
        if let (Some(queries), Some((panels, first))) = (&mut self.coded, coded) {
            queries.enter((first..first + rows.len().div_ceil(TOGETHER)).map(|part| panels.part(part)));
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

    /// Rules pairs out by the codes of the group at hand; returns how many of its rows were looked at before too many passed.
    #[inline(never)]
    fn sieve(&mut self, (panels, first): (CodedPanels, usize), trials: &mut Trials) -> usize {
        let mut sums = Sums::default();
        for start in (0..self.rows.len()).step_by(TOGETHER) {
            let part = panels.part(first + start / TOGETHER);
            // Rows of the padding reach no limit.
            let mut shares = [f32::NEG_INFINITY; TOGETHER];
            for (share, norm) in shares.iter_mut().zip(&self.norms[start..]) {
                let exact = if F::DIFFERENCE { -0.5 * self.group.share * norm.to_f64() } else { 0.0 };
                // Nothing is known of a row whose share overflows.
                *share = if (exact as f32).is_finite() { exact as f32 } else { f32::NAN };
            }
            let Some(tiles) = self.coded.as_ref().map(CodedQueries::tiles) else { return 0 };
            for query in tiles {
                if self.coded.as_ref().is_some_and(|coded| coded.multiply(query, &part, &shares, &mut sums)) {
                    // Queries of the padding are passed over: no number that is NaN is below their limit.
                    for (query, (&reach, sums)) in (query..self.queries.len()).zip(sums.reach.iter().zip(&sums.sums)) {
                        if reach != 0 {
                            trials.passed += reach.count_ones() as usize;
                            self.sift_codes(query, start, reach, sums, (part.scales(), &shares));
                        }
                    }
                }
            }
            if trials.too_many(TOGETHER * self.queries.len()) {
                return (start + TOGETHER).min(self.rows.len());
            }
        }
        self.rows.len()
    }

    /// The first sieve by codes: takes the rows from position `start` on whose sums reach the limit.
    #[inline(never)]
    fn sift_codes(
        &mut self,
        query: usize,
        start: usize,
        reach: u32,
        sums: &[i32; TOGETHER],
        (scales, shares): (&[f32; TOGETHER], &[f32; TOGETHER]),
    ) {
        for lane in set_bits(reach) {
            let (place, sum, scale) = (start + lane, sums[lane], scales[lane]);
            // The limit rises from row to row.
            let coded = self.coded.as_ref().filter(|coded| coded.reaches(query, sum, scale, shares[lane]));
            let (Some(coded), Some(&row)) = (coded, self.rows.get(place)) else { continue };
            let (x, within) = coded.product(query, sum, scale);
            let (norm, row) = (self.norms[place].to_f64(), row as usize);
            let product = Product { x, within, norm, number: self.score.inputs.uncertainty2.first(row) };
            match passed::<T, F>(&self.queries[query], &product, row) {
                Some(passed) => {
                    if self.pools[query].push(passed) {
                        self.weigh(query);
                    }
                }
                None => self.pools[query].keep(row),
            }
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
        if let Some(coded) = &mut self.coded {
            let most = self.group.norms.1 + self.smallest;
            coded.set_limit(query, limit, most.sqrt(), if F::DIFFERENCE { most } else { 0.0 });
        }
    }

    /// The first sieve: takes the rows of a panel whose inner products reach the limit.
    #[inline(never)]
    fn sift(&mut self, query: usize, panel: usize, lanes: u32, dots: &[T; 16]) {
        for lane in set_bits(lanes) {
            let (place, dot) = (self.passed_over + panel * T::LANES + lane, dots[lane]);
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

    /// Raises all thresholds to what the rows give that wait for the second sieve, too.
    fn catch_up(&mut self) {
        for query in 0..self.queries.len() {
            self.weigh(query);
            self.pools[query].narrow();
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

/// The range of numbers, without those that are NaN.
struct Span<'a, T>(&'a [T]);
impl<T: Float> Kernel for Span<'_, T> {
    const LANES_MEET: bool = false;
    type Output = (f64, f64);
    #[inline(always)]
    fn run<S: Simd>(self) -> (f64, f64) {
        let (whole, rest) = self.0.as_chunks::<16>();
        let (mut least, mut most) = ([T::from_f64(f64::INFINITY); 16], [T::from_f64(f64::NEG_INFINITY); 16]);
        // A comparison with a NaN is false.
        for numbers in whole {
            for n in 0..16 {
                least[n] = if numbers[n] < least[n] { numbers[n] } else { least[n] };
                most[n] = if numbers[n] > most[n] { numbers[n] } else { most[n] };
            }
        }
        let least = least.iter().chain(rest).map(|x| x.to_f64()).fold(f64::INFINITY, f64::min);
        (least, most.iter().chain(rest).map(|x| x.to_f64()).fold(f64::NEG_INFINITY, f64::max))
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
