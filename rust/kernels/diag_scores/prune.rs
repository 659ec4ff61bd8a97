//! Exact search by a bound that is an inner product: most pairs are ruled out by matrix products, the rest scored.
//!
//! For a query with variances v and rows whose variances w lie in [low, high], dimension by dimension, and any variance r > 0:
//!
//!   1 / (v + w) >= c / (r + w),    c the least of (r + w) / (v + w): at low where v > r, else at high;
//!   log(v + w) >= log(r + w) + l,  l the least of log((v + w) / (r + w)): at high where v > r, else at low.
//!
//! So -2 MLS - D log 2 pi = sum (a - b)^2 / (v + w) + log(v + w) is at least
//!
//!   sum c W a^2 - 2 c a W b + c W b^2  +  sum log(r + w)  +  sum l,    W = 1 / (r + w):
//!
//! an inner product of 3 D numbers of the query, [c a^2, -2 c a, c], with as many of the row, [W, W b, W b^2], and a number of
//! each; of a score that is the MLS of other numbers (see `mls`), what rows add is part of theirs. Means are moved by a centre
//! and scaled by powers of two, W by their squares, so that nothing is large. Rows are visited by the sum of their variances, in
//! buckets, each with its low and high; r is the queries' geometric mean.
//!
//! Rounding, with unit roundoff u. Each of the 3 D terms is off by less than 24 u of itself (one rounding of b - centre, twice in
//! a square; two in W; two more in W b^2; those of a and c in float64, and to T; two of the move, in which a - b is that of the
//! moved means), and their sum, with the row's number s, by (3 D + 1) u (|s| + sum of the terms' sizes). By Cauchy-Schwarz the
//! sizes sum up to |f| |g|, f and g what is multiplied. Logarithms: D sums of variances and D products, 2 D u, the last steps 4 u of
//! the result. Where numbers are subnormal, each of 6 D roundings errs by the smallest number instead, times what it is multiplied
//! by. What the pair function makes of a true X = R + L, L >= `least`, is at least X - (D / 16 + 40) u (|X| + |least|) - (60 D +
//! 200) u (see `scan`). All of it is taken off the bound; NaN, overflow and a bucket with a negative variance rule nothing out.

use super::bound::{numbers, Bounds, Numbers, Reference};
use super::formulas::Formula;
use super::mls::{self, AsMls, Own};
use super::scan::Scan;
use super::sieve::{sift, Bound, Pairs};
use super::DiagScore;
use crate::shapes::{self, Best, Inputs, Prune};
use crate::simd::{dispatch, Float};
use crate::topk::TopK;
use std::f64::consts::PI;
use std::ops::Range;
use std::time::Instant;

/// Rows that share their least and greatest variances.
const BUCKET: usize = 4096;
/// Rows that are scored before the first bounds, so that there are thresholds to compare them with.
const FIRST_ROWS: usize = 1024;
/// Fewer queries do not pay for making the rows' numbers.
const QUERIES: usize = 64;
/// Nor do fewer rows pay for a trial.
const ROWS: usize = 1 << 15;
/// Rows of each part of a trial, and of those among which they are chosen.
const TRIAL: (usize, usize) = (512, 8192);

/// The best `k` rows of every query.
pub fn search<T: Float, F: Formula>(score: &DiagScore<T, F>, best: Best<T>) -> Result<usize, crate::error::Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    let Ok(last) = u32::try_from(gallery) else { return shapes::search(score, best) };
    // Few queries do not pay for laying the rows side by side.
    if dim == 0 || queries < 8 {
        return shapes::search(score, best);
    }
    let (k, own) = (best.k, mls::of_rows(&score.inputs, score.formula, best.interrupted)?);
    let pruned = match score.prune {
        Prune::Never => false,
        Prune::Auto => queries >= QUERIES && gallery >= ROWS && pays(score, &own, k),
        Prune::Always => true,
    };
    let order = if pruned { by_variance(&score.inputs, (0..last).collect()) } else { (0..last).collect() };
    let group = shapes::segment(dim);
    shapes::search_by_shards(queries, gallery, 256, group, best, &|queries, places, floors, tops| {
        let mls = AsMls::new(&score.inputs, score.formula, &own, queries.clone());
        let mut task = Task { score, mls: &mls, order: &order, queries, floors, tops };
        if pruned {
            task.prune(&Reference::new(&score.inputs, &mls), places, FIRST_ROWS.max(4 * k))
        } else {
            task.scan(places)
        }
    })
}

/// Rows by the sums of their variances.
fn by_variance<T: Float>(inputs: &Inputs<T>, rows: Vec<u32>) -> Vec<u32> {
    let mut buffer = Vec::new();
    let sum = |row: u32| {
        let mut sums = [T::default(); 16];
        for vars in inputs.extra2.row(row as usize, &mut buffer).chunks(16) {
            sums.iter_mut().zip(vars).for_each(|(sum, &w)| *sum = *sum + w);
        }
        sums.iter().map(|sum| sum.to_f64() as f32).sum()
    };
    let keys: Vec<f32> = rows.iter().copied().map(sum).collect();
    let mut places: Vec<u32> = (0..rows.len() as u32).collect();
    places.sort_unstable_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
    places.into_iter().map(|place| rows[place as usize]).collect()
}

/// Whether the bound saves time, by a trial: as many rows of much the same variances are bounded, and scanned.
fn pays<T: Float, F: Formula>(score: &DiagScore<T, F>, own: &[Own], k: usize) -> bool {
    let (inputs, queries) = (&score.inputs, score.inputs.mu1.rows().min(256));
    let (rows, sample) = TRIAL;
    let step = inputs.mu2.rows() / sample;
    let some = by_variance(inputs, (0..sample).map(|place| (place * step) as u32).collect());
    let (floors, mut tops) = (vec![f64::NEG_INFINITY; queries], Vec::new());
    tops.resize_with(queries, || TopK::new(k));
    let first = sample / 2;
    let mls = AsMls::new(inputs, score.formula, own, 0..queries);
    let mut task = Task { score, mls: &mls, order: &some, queries: 0..queries, floors: &floors, tops: &mut tops };
    task.scan(first - rows..first);
    let reference = Reference::new(inputs, &mls);
    let begun = Instant::now();
    task.bucket(&reference, first..first + rows);
    let bounded = begun.elapsed();
    task.scan(first + rows..first + 2 * rows);
    bounded < begun.elapsed() - bounded
}

/// A block of queries over a shard of the gallery.
struct Task<'a, 'b, T, F> {
    score: &'a DiagScore<'b, T, F>,
    mls: &'a AsMls<'a>,
    order: &'a [u32],
    queries: Range<usize>,
    floors: &'a [f64],
    tops: &'a mut [TopK<T>],
}

impl<T: Float, F: Formula> Task<'_, '_, T, F> {
    fn scan(&mut self, places: Range<usize>) -> usize {
        let Task { score, mls, order, queries, floors, tops } = self;
        dispatch(Scan { score, mls, order, queries: queries.clone(), places, floors, tops })
    }

    /// Scores the first rows if there are no thresholds yet, then goes on bucket after bucket.
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

    /// How many pairs were scored.
    fn bucket(&mut self, reference: &Reference, places: Range<usize>) -> usize {
        let (inputs, mls, rows) = (&self.score.inputs, self.mls, &self.order[places]);
        let dim = inputs.mu1.stored();
        let bounds = Bounds::new(inputs, mls, rows);
        let mut features = vec![T::default(); self.queries.len() * 3 * dim];
        let queries = self.queries.clone().zip(features.chunks_exact_mut(3 * dim)).map(|(i, out)| {
            let (norm, log) = numbers(reference, &bounds, mls.query(i), out);
            // What is ruled out by a bucket without sense.
            Query { norm, log: if bounds.sound { log } else { f64::NAN }, own: mls.of_query(i) }
        });
        let mut bound = MlsBound { inputs, mls, reference, queries: queries.collect(), group: Group::default() };
        let queries = self.queries.clone();
        let pairs = Pairs { score: self.score, queries, rows, floors: self.floors, tops: &mut *self.tops };
        sift(pairs, &features, 3 * dim, &mut bound)
    }
}

/// The bound, for the rows of a bucket.
struct MlsBound<'a, 'b, T> {
    inputs: &'a Inputs<'b, T>,
    mls: &'a AsMls<'a>,
    reference: &'a Reference,
    queries: Vec<Query>,
    group: Group,
}

/// Of a query: the norm of its numbers, sum l, and what it adds to the MLS.
struct Query {
    norm: f64,
    log: f64,
    own: Own,
}

/// Of a group of rows.
#[derive(Default)]
struct Group {
    /// The least of the sums of logarithms, and what is taken off the rows' numbers.
    least: f64,
    middle: f64,
    /// The greatest of their sizes, of their distances from the middle, and of the norms.
    log: f64,
    apart: f64,
    norm: f64,
    /// The greatest sizes of what the rows add.
    own: Own,
}

impl Group {
    /// Of sums of logarithms, from which twice what the rows add is taken, and norms. A row that holds a NaN does not count:
    /// nothing rules it out.
    fn new(logs: &mut [f64], norms: &[f64], owns: &[Own]) -> Self {
        let range = |x: &[f64]| {
            let least = x.iter().copied().fold(f64::INFINITY, f64::min);
            (least, x.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        };
        let (least, most) = range(logs);
        let log = least.abs().max(most.abs());
        let mut own = Own::default();
        for (log, row) in logs.iter_mut().zip(owns) {
            *log -= 2.0 * row.value;
            own.size = own.size.max(row.size);
            own.rational = own.rational.max(row.rational);
        }
        let (low, high) = range(logs);
        let middle = 0.5 * (low + high);
        let norm = norms.iter().copied().fold(0.0, f64::max);
        Group { least, middle, log, apart: high - middle, norm, own }
    }
}

impl<T: Float> Bound<T> for MlsBound<'_, '_, T> {
    fn lay(&mut self, rows: &[u32], packed: &mut [T], starts: &mut [T]) {
        let MlsBound { inputs, mls, reference, .. } = *self;
        let (mut logs, mut norms) = (vec![0.0; starts.len()], vec![0.0; starts.len()]);
        let length = 2 * T::LANES * (packed.len() / starts.len());
        for (n, rows) in rows.chunks(T::LANES).enumerate() {
            let (pair, at) = (&mut packed[n / 2 * length..][..length], n * T::LANES..(n + 1) * T::LANES);
            let (logs, norms) = (&mut logs[at.clone()], &mut norms[at]);
            dispatch(Numbers { inputs, mls, reference, rows, place: n % 2, pair, logs, norms });
        }
        let owns: Vec<_> = rows.iter().map(|&row| mls.of_row(row as usize)).collect();
        self.group = Group::new(&mut logs[..owns.len()], &norms[..owns.len()], &owns);
        for (start, log) in starts.iter_mut().zip(&logs) {
            *start = T::from_f64(self.group.middle - log);
        }
    }

    fn limit(&self, query: usize, threshold: f64) -> f64 {
        let (Query { norm, log, own }, group) = (&self.queries[query], &self.group);
        let (dim, u) = (self.inputs.mu1.stored() as f64, T::ROUNDOFF);
        // What the true X, less twice what the row adds, must not exceed for the pair function's score to reach the threshold,
        // rounded.
        let exact = -2.0 * (threshold - own.value) - dim * (2.0 * PI).ln() + 4.0 * u * threshold.abs();
        let least = group.least + log;
        let size = own.value.abs() + f64::from(own.size + group.own.size);
        let rational = f64::from(own.rational + group.own.rational);
        let reached = exact
            + 2.0 * u * (dim / 16.0 + 40.0) * (exact.abs() + least.abs() + 2.0 * f64::from(group.own.size))
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
