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
//! each. Means are moved by a centre and scaled by powers of two, W by their squares, so that nothing is large. Rows are visited
//! by the sum of their variances, in buckets, each with its low and high; r is the queries' geometric mean.
//!
//! Rounding, with unit roundoff u. Each of the 3 D terms is off by less than 24 u of itself (one rounding of b - centre, twice in
//! a square; two in W; two more in W b^2; those of a and c in float64, and to T; two of the move, in which a - b is that of the
//! moved means), and their sum, with the row's number s, by (3 D + 1) u (|s| + sum of the terms' sizes). By Cauchy-Schwarz the
//! sizes sum up to |f| |g|, f and g what is multiplied. Logarithms: D sums of variances and D products, 2 D u, the last steps 4 u of
//! the result. Where numbers are subnormal, each of 6 D roundings errs by the smallest number instead, times what it is multiplied
//! by. What the pair function makes of a true X = R + L, L >= `least`, is at least X - (D / 16 + 40) u (|X| + |least|) - (60 D +
//! 200) u (see `scan`). All of it is taken off the bound; NaN, overflow and a bucket with a negative variance rule nothing out.

use super::formulas::{Formula, Product};
use super::scan::Scan;
use super::DiagScore;
use crate::panels::{self, Epilogue, QueryTiles};
use crate::shapes::{self, Best, PairScore, Rows};
use crate::simd::{dispatch, Float, Kernel, Lanes, Simd, V};
use crate::special::log::ln;
use crate::topk::TopK;
use crate::view::View;
use std::f64::consts::{LN_2, PI};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a search goes about the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prune {
    /// As long as it rules out enough.
    Auto,
    /// Not at all.
    Never,
    /// All along.
    Always,
}

/// Rows that share their least and greatest variances.
const BUCKET: usize = 4096;
/// Rows that are scanned before there is anything to compare a bound with.
const SEED: usize = 1024;
/// Fewer queries do not pay for making the rows' numbers.
const QUERIES: usize = 64;
/// Pairs left of 100 where the bound no longer pays: an exact score costs some ten times as much.
const PERCENT: usize = 10;
/// Rows after which that is looked at.
const TRIAL: usize = 2048;

/// The best `k` rows of every query.
pub fn search<T: Float, F: Formula>(score: &DiagScore<T, F>, best: Best<T>) -> Result<usize, crate::error::Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    let Ok(last) = u32::try_from(gallery) else { return shapes::search(score, best) };
    // Few queries do not pay for laying the rows side by side.
    if !F::SCANNED || dim == 0 || queries < 8 {
        return shapes::search(score, best);
    }
    let pruned = match score.prune {
        Prune::Never => false,
        Prune::Auto => queries >= QUERIES && gallery > BUCKET,
        Prune::Always => true,
    };
    let mut order: Vec<u32> = (0..last).collect();
    let reference = pruned.then(|| {
        let (mut room, mut keys) = (Vec::new(), vec![0.0_f32; gallery]);
        for (j, key) in keys.iter_mut().enumerate() {
            let mut sums = [T::default(); 16];
            for vars in score.inputs.extra2.row(j, &mut room).chunks(16) {
                sums.iter_mut().zip(vars).for_each(|(sum, &w)| *sum = *sum + w);
            }
            *key = sums.iter().map(|sum| sum.to_f64() as f32).sum();
        }
        order.sort_unstable_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
        Reference::new(score)
    });
    let (group, k, pays) = (shapes::segment(dim), best.k, AtomicBool::new(true));
    shapes::search_by_shards(queries, gallery, 256, group, best, &|queries, places, floors, tops| {
        let mut task = Task { score, order: &order, queries, floors, tops, pays: &pays };
        match &reference {
            None => task.scan(places),
            Some(reference) => task.prune(reference, places, SEED.max(4 * k)),
        }
    })
}

/// What the numbers of queries and rows refer to, dimension by dimension.
struct Reference {
    /// Taken off all means.
    centre: Vec<f64>,
    /// By which they are multiplied then; a power of two.
    scale: Vec<f64>,
    /// r
    var: Vec<f64>,
}

impl Reference {
    fn new<T: Float, F: Formula>(score: &DiagScore<T, F>) -> Self {
        let inputs = &score.inputs;
        let (rows, dim) = (inputs.mu2.rows(), inputs.mu1.stored());
        // Some of the rows are enough: nothing here need be right, only near.
        let some = || (0..rows).step_by((rows / 1024).max(1));
        let mut room = Vec::new();
        let (mut sums, mut squares) = (vec![0.0; dim], vec![0.0; dim]);
        for j in some() {
            for (d, b) in inputs.mu2.row(j, &mut room).iter().enumerate() {
                sums[d] += b.to_f64();
                squares[d] += b.to_f64() * b.to_f64();
            }
        }
        let count = some().count().max(1) as f64;
        let rounded = |x: f64| T::from_f64(x).to_f64();
        let centre: Vec<f64> = sums.iter().map(|sum| rounded(sum / count)).collect();
        let scale = centre.iter().zip(&squares).map(|(centre, square)| {
            let power = (0.5 * (square / count - centre * centre).max(0.0).log2()).round();
            if power.abs() < 40.0 {
                2f64.powi(-power as i32)
            } else {
                1.0
            }
        });
        let mut logs = vec![0.0; dim];
        for i in 0..inputs.mu1.rows() {
            let row = inputs.extra1.row(i);
            for (d, log) in logs.iter_mut().enumerate() {
                *log += super::at(row, d).ln();
            }
        }
        let var = logs.iter().map(|log| (log / inputs.mu1.rows() as f64).exp());
        let var = var.map(|var| if var > 1e-30 && var < 1e30 { rounded(var) } else { 1.0 });
        Reference { scale: scale.collect(), var: var.collect(), centre }
    }
}

/// A block of queries over a shard of the gallery.
struct Task<'a, 'b, T, F> {
    score: &'a DiagScore<'b, T, F>,
    order: &'a [u32],
    queries: Range<usize>,
    floors: &'a [f64],
    tops: &'a mut [TopK<T>],
    /// Whether the bound has ruled out enough, here and in other tasks.
    pays: &'a AtomicBool,
}

impl<T: Float, F: Formula> Task<'_, '_, T, F> {
    fn scan(&mut self, places: Range<usize>) -> usize {
        let Task { score, order, queries, floors, tops, .. } = self;
        dispatch(Scan { score, order, queries: queries.clone(), places, floors, tops })
    }

    /// Scans `seed` rows if there are no thresholds yet, then goes on bucket after bucket as long as that pays.
    fn prune(&mut self, reference: &Reference, places: Range<usize>, seed: usize) -> usize {
        let (mut first, mut scored) = (places.start, 0);
        let mut thresholds = self.tops.iter().zip(self.floors).map(|(top, floor)| top.threshold().max(*floor));
        if thresholds.any(|threshold| threshold == f64::NEG_INFINITY) {
            first = places.end.min(first + seed);
            scored += self.scan(places.start..first);
        }
        while first < places.end && self.pays.load(Ordering::Relaxed) {
            let (end, left) = self.bucket(reference, first..places.end.min(first + BUCKET));
            (first, scored) = (end, scored + left);
        }
        scored + self.scan(first..places.end)
    }

    /// How far it came while that paid, and how many pairs were scored.
    fn bucket(&mut self, reference: &Reference, places: Range<usize>) -> (usize, usize) {
        let inputs = &self.score.inputs;
        let (dim, group) = (inputs.mu1.stored(), panels::padded::<T>(shapes::segment(inputs.mu1.stored())));
        let bounds = self.bounds(&self.order[places.clone()]);
        let mut features = vec![T::default(); self.queries.len() * 3 * dim];
        let queries = self.queries.clone().zip(features.chunks_exact_mut(3 * dim)).map(|(i, out)| {
            let (norm, log) = numbers(reference, &bounds, inputs.mu1.row(i), inputs.extra1.row(i), out);
            // What is ruled out by a bucket without sense.
            Query { norm, log: if bounds.sound { log } else { f64::NAN } }
        });
        let queries: Vec<_> = queries.collect();
        let tiles = QueryTiles::new(&View::new(&features, self.queries.len(), 3 * dim), 0..self.queries.len());
        let mut sieve = Sieve {
            score: self.score,
            first_query: self.queries.start,
            floors: self.floors,
            limits: vec![T::from_f64(f64::INFINITY); tiles.padded()],
            pending: vec![Vec::new(); queries.len()],
            queries,
            tops: &mut *self.tops,
            rows: &[],
            group: Group::default(),
            scored: 0,
        };
        let (mut packed, mut starts) = (vec![T::default(); group * 3 * dim], vec![T::default(); group]);
        let (mut logs, mut norms) = (vec![0.0; group], vec![0.0; group]);
        for first in places.clone().step_by(group) {
            let before = sieve.scored;
            sieve.rows = &self.order[first..places.end.min(first + group)];
            let n = panels::padded::<T>(sieve.rows.len());
            let pairs = packed.chunks_exact_mut(2 * T::LANES * 3 * dim).zip(sieve.rows.chunks(2 * T::LANES));
            for (p, (out, rows)) in pairs.enumerate() {
                let at = p * 2 * T::LANES..(p + 1) * 2 * T::LANES;
                let (logs, norms) = (&mut logs[at.clone()], &mut norms[at]);
                dispatch(Numbers { score: self.score, reference, rows, out, logs, norms });
            }
            sieve.group = Group::new(&logs[..sieve.rows.len()], &norms[..sieve.rows.len()]);
            for (start, log) in starts.iter_mut().zip(&logs) {
                *start = T::from_f64(sieve.group.middle - log);
            }
            for query in 0..sieve.queries.len() {
                sieve.set_limit(query);
            }
            panels::products(&tiles, &packed[..n * 3 * dim], &starts[..n], &mut sieve);
            for query in 0..sieve.queries.len() {
                sieve.flush(query);
            }
            // Thresholds rise at first, so the last group tells, and not at once.
            let (done, pairs) = (first + sieve.rows.len(), sieve.rows.len() * sieve.queries.len());
            let allowed = if done - places.start < TRIAL { 5 * PERCENT } else { PERCENT };
            if self.score.prune == Prune::Auto && 100 * (sieve.scored - before) > allowed * pairs {
                self.pays.store(false, Ordering::Relaxed);
                return (done, sieve.scored);
            }
        }
        (places.end, sieve.scored)
    }

    /// The least and greatest variances of rows, dimension by dimension.
    fn bounds(&self, rows: &[u32]) -> Bounds {
        let inputs = &self.score.inputs;
        let dim = inputs.mu1.stored();
        let (mut low, mut high) = (vec![T::from_f64(f64::INFINITY); dim], vec![T::from_f64(f64::NEG_INFINITY); dim]);
        let mut room = Vec::new();
        for &row in rows {
            let vars = inputs.extra2.row(row as usize, &mut room);
            if vars.len() == dim {
                for ((low, high), &w) in low.iter_mut().zip(&mut high).zip(vars) {
                    // Of a NaN these know nothing: a row that has one is never ruled out.
                    *low = if w < *low { w } else { *low };
                    *high = if w > *high { w } else { *high };
                }
            } else {
                low.iter_mut().for_each(|low| *low = if vars[0] < *low { vars[0] } else { *low });
                high.iter_mut().for_each(|high| *high = if vars[0] > *high { vars[0] } else { *high });
            }
        }
        let wide = |x: Vec<T>| x.into_iter().map(T::to_f64).collect::<Vec<_>>();
        let (low, high) = (wide(low), wide(high));
        let sound = low.iter().all(|&low| low >= 0.0) && high.iter().all(|&high| high < f64::INFINITY);
        Bounds { low, high, sound }
    }
}

/// The least and greatest variances of the rows of a bucket; whether all are numbers >= 0.
struct Bounds {
    low: Vec<f64>,
    high: Vec<f64>,
    sound: bool,
}

/// A query's numbers, negated, for the means and variances of its row; their norm, and sum l.
fn numbers<T: Float>(reference: &Reference, bounds: &Bounds, mu: &[T], vars: &[T], out: &mut [T]) -> (f64, f64) {
    let (mut square, mut log, mut ratio) = (0.0, 0.0, 1.0_f64);
    for (d, (mean, out)) in mu.iter().zip(out.chunks_exact_mut(3)).enumerate() {
        let (v, r) = (super::at(vars, d), reference.var[d]);
        let (near, far) = if v > r { (bounds.low[d], bounds.high[d]) } else { (bounds.high[d], bounds.low[d]) };
        let a = (mean.to_f64() - reference.centre[d]) * reference.scale[d];
        let c = (r + near) / (v + near);
        ratio *= (v + far) / (r + far);
        // One logarithm for many, while their product is far from the ends of the range.
        if !(1e-100..1e100).contains(&ratio) {
            log += ratio.ln();
            ratio = 1.0;
        }
        for (out, x) in out.iter_mut().zip([-c * a * a, 2.0 * c * a, -c]) {
            *out = T::from_f64(x);
            square += x * x;
        }
    }
    (square.sqrt(), log + ratio.ln())
}

/// The numbers of the rows of two panels, as panels; sum log(r + w) and the norm of the others, row by row.
struct Numbers<'a, 'b, T, F> {
    score: &'a DiagScore<'b, T, F>,
    reference: &'a Reference,
    rows: &'a [u32],
    out: &'a mut [T],
    logs: &'a mut [f64],
    norms: &'a mut [f64],
}
impl<T: Float, F: Formula> Kernel for Numbers<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let inputs = &self.score.inputs;
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let mut rooms = [const { (Vec::new(), Vec::new()) }; 16];
        for panel in 0..2 {
            let mut rows: [(&[T], &[T]); 16] = [(&[], &[]); 16];
            // Places beyond the last row repeat it; nobody asks for them.
            for (lane, (row, room)) in rows.iter_mut().zip(&mut rooms).enumerate().take(T::LANES) {
                let j = self.rows[(panel * T::LANES + lane).min(self.rows.len() - 1)] as usize;
                *row = (inputs.mu2.row(j, &mut room.0), inputs.extra2.row(j, &mut room.1));
            }
            let (mut product, mut norm) = (Product { significand: one, exponent: zero }, zero);
            let mut square = ([[T::default(); 16]; 16], [[T::default(); 16]; 16]);
            for (d, out) in self.out.chunks_exact_mut(3 * 2 * T::LANES).enumerate() {
                if d % 16 == 0 {
                    for (lane, (mean, var)) in rows.iter().enumerate().take(T::LANES) {
                        let end = mean.len().min(d + 16);
                        square.0[lane][..end - d].copy_from_slice(&mean[d..end]);
                        if var.len() == 1 {
                            square.1[lane] = [var[0]; 16];
                        } else {
                            square.1[lane][..end - d].copy_from_slice(&var[d..end]);
                        }
                    }
                }
                let (mut means, mut vars) = ([T::default(); 16], [T::default(); 16]);
                for lane in 0..T::LANES {
                    (means[lane], vars[lane]) = (square.0[lane][d % 16], square.1[lane][d % 16]);
                }
                let splat = |x: f64| V::<S, T>::splat(T::from_f64(x));
                let scale = self.reference.scale[d];
                let b = (V::<S, T>::load(&means[..T::LANES]) - splat(self.reference.centre[d])) * splat(scale);
                let s = V::<S, T>::load(&vars[..T::LANES]) + splat(self.reference.var[d]);
                let weight = splat(1.0 / (scale * scale)) / s;
                let (linear, square) = (weight * b, weight * b * b);
                for (part, x) in [weight, linear, square].into_iter().enumerate() {
                    x.store(&mut out[(2 * part + panel) * T::LANES..(2 * part + panel + 1) * T::LANES]);
                    norm = x.mul_add(x, norm);
                }
                product.times(s);
            }
            let (exponents, significands, norm) =
                (product.exponent.to_array(), ln::<S, T>(product.significand).to_array(), norm.to_array());
            for lane in 0..T::LANES {
                let at = panel * T::LANES + lane;
                self.logs[at] = exponents[lane].to_f64() * LN_2 + significands[lane].to_f64();
                self.norms[at] = norm[lane].to_f64().sqrt();
            }
        }
    }
}

/// Of a query: the norm of its numbers, and sum l.
struct Query {
    norm: f64,
    log: f64,
}

/// Of a group of rows.
#[derive(Default)]
struct Group {
    /// The least of the sums of logarithms, and what is taken off them.
    least: f64,
    middle: f64,
    /// The greatest of their sizes, of their distances from the middle, and of the norms.
    log: f64,
    apart: f64,
    norm: f64,
}

impl Group {
    /// A row that holds a NaN does not count: nothing rules it out.
    fn new(logs: &[f64], norms: &[f64]) -> Self {
        let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let norm = norms.iter().copied().fold(0.0, f64::max);
        let middle = 0.5 * (least + most);
        Group { least, middle, log: least.abs().max(most.abs()), apart: most - middle, norm }
    }
}

/// What becomes of the pairs that the bound does not rule out.
struct Sieve<'a, 'b, T, F> {
    score: &'a DiagScore<'b, T, F>,
    first_query: usize,
    queries: Vec<Query>,
    floors: &'a [f64],
    tops: &'a mut [TopK<T>],
    /// What a product must reach.
    limits: Vec<T>,
    /// The rows of each query that wait to be scored together.
    pending: Vec<Vec<usize>>,
    /// The rows at hand.
    rows: &'a [u32],
    group: Group,
    scored: usize,
}

impl<T: Float, F: Formula> Sieve<'_, '_, T, F> {
    fn set_limit(&mut self, query: usize) {
        let threshold = self.tops[query].threshold().max(self.floors[query]);
        let (Query { norm, log }, group) = (&self.queries[query], &self.group);
        let (dim, u) = (self.score.inputs.mu1.stored() as f64, T::ROUNDOFF);
        // What the true X must not exceed for the pair function's score to reach the threshold, rounded.
        let exact = -2.0 * threshold - dim * (2.0 * PI).ln() + 4.0 * u * threshold.abs();
        let least = group.least + log;
        let reached = exact + 2.0 * u * (dim / 16.0 + 40.0) * (exact.abs() + least.abs()) + u * (60.0 * dim + 200.0);
        let slack = u * ((3.0 * dim + 26.0) * (norm * group.norm + group.apart) + 8.0 * dim + 8.0 * group.log)
            + (6.0 * dim + 20.0) * T::SMALLEST * (1.0 + norm + group.norm);
        let limit = group.middle + log - reached - 1.01 * slack;
        let limit = limit - 4.0 * u * limit.abs();
        // Below this nothing overflows.
        let safe = norm * group.norm + group.apart + group.log < T::QUARTER_RANGE.powi(3) && limit > f64::NEG_INFINITY;
        self.limits[query] = T::from_f64(if safe { limit } else { f64::NEG_INFINITY });
    }

    /// Scores the rows that wait.
    #[inline(never)]
    fn flush(&mut self, query: usize) {
        let mut scores = [T::default(); shapes::BLOCK];
        let (rows, scores) = (&self.pending[query], &mut scores[..self.pending[query].len()]);
        if rows.is_empty() {
            return;
        }
        PairScore::score(self.score, Rows::Same(self.first_query + query), Rows::List(rows), scores);
        self.scored += rows.len();
        for (&row, &score) in rows.iter().zip(scores.iter()) {
            self.tops[query].push(score, row as i64);
        }
        self.pending[query].clear();
        self.set_limit(query);
    }
}

impl<T: Float, F: Formula> Epilogue<T> for Sieve<'_, '_, T, F> {
    fn limits(&self) -> &[T] {
        &self.limits
    }

    fn visit(&mut self, query: usize, panel: usize, products: &[T; 16]) {
        // Beyond the last query stand zeros, whose product with a NaN is not below anything.
        if query >= self.queries.len() {
            return;
        }
        for (place, &product) in (panel * T::LANES..).zip(&products[..T::LANES]) {
            // A NaN is not less than anything.
            if place < self.rows.len() && !(product < self.limits[query]) {
                self.pending[query].push(self.rows[place] as usize);
            }
        }
        if self.pending[query].len() + T::LANES > shapes::BLOCK {
            self.flush(query);
        }
    }
}
