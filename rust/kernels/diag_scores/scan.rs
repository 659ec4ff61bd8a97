//! Exact search that scores few pairs: a rough score of each pair, lane by lane, rules most pairs out.
//!
//! Sixteen (float64: eight) rows of the gallery lie side by side, one per lane, so that nothing is summed over lanes and a pair
//! takes no logarithm at all; eight dimensions share one division. Pairs that are not ruled out are scored by the pair function.
//!
//! With s the sums of two variances, -2 MLS - D log 2 pi is the rational part R = sum (a - b)^2 / s plus sum log s. The rough
//! score is R plus a lower bound of the logarithms: the product of all s is m 2^e with 1 <= m < 2, and log2 m is at least m - 1,
//! so sum log s is at least log 2 (e + m - 1), at most 0.06 too low.
//!
//! Of minus the Mahalanobis distance, -R, it is R alone.
//!
//! Range. Means and variances of a group of rows, and of the queries, are scaled by exact powers, 2^-k and 4^-k, which moves MLS
//! by a constant, so that all s lie around 1. While they are in [2^-15, 2^15], products of eight lie in [2^-120, 2^120] and such
//! a product times a significand below 2^121. A numerator overflows only where a squared difference exceeds 2^19; R is then
//! infinite or NaN, and such pairs are scored, as are all pairs of a query and a group whose s leave the range. Numerators that
//! underflow err by 2^-149, at most 2^-29 after the division.
//!
//! Scores that are the MLS of other numbers (see `mls`) are searched by that MLS; a row's offset is added to its rough scores.
//!
//! Rounding, with unit roundoff u: a quotient of eight dimensions has a relative error of at most 36 u (a term of the numerator:
//! 3 for the squared difference, 14 for seven s and their products, 3 for the sums; 15 in the denominator, 1 for the division),
//! and that of the pair function, of four dimensions, 20 u. R sums D/8 quotients, all positive; the pair function sums D/4L and
//! up to 3 vectors' own in each of L lanes. So both R agree to (D/8 + D/32 + 70) u R, and those of `mls` to (D/4 + 120) u (R + 2
//! E). The products of D sums of variances, the rough one and the pair function's, are both off by 2 D u, the multiplication of e
//! (at most 15 D + 16) by log 2 and the last sums by 4 u of log 2 (15 D + 16), below 42 D u + 45 u. The pair function's own last
//! roundings, to float64 and to T, are 2 u of the score. Where rows' variances are multiplied by no power of two, each s has up to 5 u
//! more (the factor may be subnormal; one that overflows makes rough scores NaN), which moves R by 5 u R and the logarithms by 5 D u.

use super::mls::{EquivalentMls, Offset};
use super::sieve::{column, PanelRows, Widened};
use super::sums::GROUP;
use crate::drivers::{self, DynKernel, Inputs, Rows, AHEAD};
use crate::simd::{prefetch, Float, Kernel, Simd, V};
use crate::topk::TopK;
use std::f64::consts::{LN_2, PI};
use std::ops::Range;

/// Dimensions that share a division.
const SHARING: usize = 2 * GROUP;
/// The largest s in range; the smallest is its reciprocal.
const RANGE: f64 = 32_768.0; // 2^15

/// The scan of a block of queries over some positions of `order`, a group of rows at a time; the same for all scores with logarithms,
/// and for all without.
pub struct Scan<'a, T, const LOGS: bool> {
    pub score: &'a dyn DynKernel<T>,
    pub mls: &'a EquivalentMls<'a>,
    pub queries: Range<usize>,
    /// The row at each position.
    pub order: &'a [u32],
    pub places: Range<usize>,
    pub floors: &'a [f64],
    pub tops: &'a mut [TopK<T>],
}

/// The empty interval `(least, greatest)`, which is to be widened.
const EMPTY: (f64, f64) = (f64::INFINITY, f64::NEG_INFINITY);

/// The smallest interval that holds two intervals `(least, greatest)`.
fn hull(a: (f64, f64), b: &(f64, f64)) -> (f64, f64) {
    (a.0.min(b.0), a.1.max(b.1))
}

/// The least and the greatest variance of a row, NaN left out.
#[inline(always)]
fn extremes<S: Simd, T: Float>(row: &[T]) -> (f64, f64) {
    let (mut least, mut greatest) = (V::<S, T>::from(EMPTY.0), V::<S, T>::from(EMPTY.1));
    for part in row.chunks(T::LANES) {
        let x = V::<S, T>::load_partial(part, T::from_f64(f64::NAN));
        (least, greatest) = (x.min(least), x.max(greatest));
    }
    let (least, greatest) = (least.to_array(), greatest.to_array());
    let lanes = least.iter().zip(&greatest).take(T::LANES);
    lanes.fold(EMPTY, |all, (least, greatest)| hull(all, &(least.to_f64(), greatest.to_f64())))
}

/// [`extremes`] of the variances of all these rows, whose means are brought into the cache as well.
#[inline(always)]
fn extremes_of<S: Simd, T: Float>(
    inputs: &Inputs<T>,
    rows: impl Iterator<Item = usize> + Clone,
    buffer: &mut Vec<T>,
) -> (f64, f64) {
    let (mut all, mut ahead) = (EMPTY, rows.clone().skip(AHEAD));
    // A loop: what iterators call may be compiled without the level's instructions.
    for j in rows {
        if let Some(next) = ahead.next() {
            prefetch(inputs.mu2.bytes(next));
            prefetch(inputs.uncertainty2.bytes(next));
        }
        all = hull(all, &extremes::<S, T>(inputs.uncertainty2.row(j, buffer)));
    }
    all
}

/// The mean and variance of padding, which add nothing.
const PADDING: (f64, f64) = (0.0, 0.5);

/// Writes a query's means times 2^-k and variances times 4^-k, by turns, and padding.
fn lay_query<T: Float>((mean, var): (&[f64], &[f64]), k: i32, out: &mut [T]) {
    let (by_mean, by_var) = (2f64.powi(-k), 4f64.powi(-k));
    let scaled = mean.iter().zip(var).map(|(m, v)| (by_mean * m, by_var * v)).chain(std::iter::repeat(PADDING));
    for (places, (m, v)) in out.chunks_exact_mut(2).zip(scaled) {
        (places[0], places[1]) = (T::from_f64(m), T::from_f64(v));
    }
}

/// Writes rows as panels: the means of a panel's rows times 2^-k and their variances times `by_var` side by side, by turns, and
/// padding.
#[inline(always)]
fn lay_rows<S: Simd, T: Float>(inputs: &Inputs<T>, rows: &[u32], (k, by_var): (i32, f64), panels: &mut [T]) {
    let (dim, by_mean) = (inputs.mu1.stored(), 2f64.powi(-k));
    let padded = dim.next_multiple_of(SHARING);
    let (mut widened, mut columns) = (Widened::<T>::default(), [[T::default(); 256]; 2]);
    for (rows, out) in rows.chunks(T::LANES).zip(panels.chunks_mut(2 * padded * T::LANES)) {
        let rows = PanelRows::new(inputs, rows, &mut widened);
        for first in (0..dim).step_by(T::LANES) {
            for d in rows.columns::<S>(first, &mut columns) {
                let [mean, var] = column::<S, T>(&columns, d - first);
                store_turns::<S, T>(mean * by_mean, var * by_var, d, out);
            }
        }
        for d in dim..padded {
            store_turns::<S, T>(PADDING.0.into(), PADDING.1.into(), d, out);
        }
    }
}

/// Writes the means and variances of a panel's rows in dimension `d` side by side.
#[inline(always)]
fn store_turns<S: Simd, T: Float>(mean: V<S, T>, var: V<S, T>, d: usize, out: &mut [T]) {
    let (means, vars) = out[2 * d * T::LANES..2 * (d + 1) * T::LANES].split_at_mut(T::LANES);
    mean.store(means);
    var.store(vars);
}

impl<T: Float, const LOGS: bool> Kernel for Scan<'_, T, LOGS> {
    /// How many pairs were scored by the pair function.
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        let inputs = self.score.inputs();
        let (dim, padded) = (inputs.mu1.stored(), inputs.mu1.stored().next_multiple_of(SHARING));
        let (group, mut buffer) = (drivers::segment(dim), Vec::new());
        let mut ranges = vec![EMPTY; self.queries.len()];
        for (i, range) in self.queries.clone().zip(&mut ranges) {
            *range = extremes::<S, f64>(self.mls.query(i).1);
        }
        let all = ranges.iter().fold(EMPTY, hull);
        let (mut laid, mut scaled_by) = (vec![T::default(); 2 * padded * ranges.len()], None);
        let mut panels = vec![T::default(); 2 * padded * group.next_multiple_of(T::LANES)];
        let mut starts = vec![T::default(); group.next_multiple_of(T::LANES)];
        let mut sieve = RoughSieve {
            score: self.score,
            first_query: self.queries.start,
            queries: self.queries.clone().map(|i| self.mls.query_offset(i)).collect(),
            tops: self.tops,
            floors: self.floors,
            thresholds: self.floors.to_vec(),
            limits: vec![T::default(); ranges.len()],
            in_range: vec![false; ranges.len()],
            moved: vec![0.0; ranges.len()],
            logs: LOGS,
            constant: 0.0,
            group: Offset::default(),
            scored: 0,
        };
        for first in self.places.clone().step_by(group) {
            let places = first..(first + group).min(self.places.end);
            let rows = || self.order[places.clone()].iter().map(|&row| row as usize);
            let group = extremes_of::<S, T>(inputs, rows(), &mut buffer);
            let group = (group.0 * self.mls.var_scale, group.1 * self.mls.var_scale);
            sieve.group = start(self.mls, rows(), &mut starts);
            let k = power_of_scale(all, group);
            if scaled_by != Some(k) {
                for (i, place) in self.queries.clone().zip(laid.chunks_mut(2 * padded)) {
                    lay_query(self.mls.query(i), k, place);
                }
                scaled_by = Some(k);
                let constant = dim as f64 * ((2.0 * PI).ln() + 2.0 * LN_2 * f64::from(k));
                sieve.constant = if LOGS { constant } else { 0.0 };
            }
            let by_var = self.mls.var_scale * 4f64.powi(-k);
            lay_rows::<S, T>(inputs, &self.order[places.clone()], (k, by_var), &mut panels);
            sieve.enter(self.mls, &ranges, group, 4f64.powi(-k));
            for (p, panel) in panels.chunks(T::LANES * 2 * padded).enumerate().take(places.len().div_ceil(T::LANES)) {
                let from = first + p * T::LANES;
                let rows = &self.order[from..(from + T::LANES).min(places.end)];
                let start = V::<S, T>::load(&starts[p * T::LANES..(p + 1) * T::LANES]);
                for (query, laid) in laid.chunks_exact(2 * padded).enumerate() {
                    let rough = rough::<S, T, LOGS>(laid, panel) + start;
                    // A NaN is not less than the limit.
                    let passed = (-rough).not_less_bits(V::<S, T>::splat(sieve.limits[query]));
                    if passed != 0 {
                        sieve.pass(query, rows, passed);
                    }
                }
            }
        }
        sieve.scored
    }
}

/// The k by whose power of 4 the sums of variances in these two ranges are divided, which brings them near 1.
fn power_of_scale(queries: (f64, f64), group: (f64, f64)) -> i32 {
    let middle = ((queries.0 + group.0) * (queries.1 + group.1)).sqrt();
    let k = if middle > 0.0 && middle < f64::INFINITY { (0.5 * middle.log2()).round() as i32 } else { 0 };
    k.clamp(-60, 60)
}

/// Writes -2 times the offsets of rows, relative to the middle of these offsets. Returns that middle, and the greatest sizes.
fn start<T: Float>(mls: &EquivalentMls, rows: impl Iterator<Item = usize> + Clone, starts: &mut [T]) -> Offset {
    let values = || rows.clone().map(|row| mls.row_offset(row).value);
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(f64::NEG_INFINITY, f64::max);
    let value = if least <= most { 0.5 * (least + most) } else { 0.0 };
    let mut all = Offset { value, size: 0.0, rational: 0.0 };
    for (row, start) in rows.zip(starts) {
        let offset = mls.row_offset(row);
        *start = T::from_f64(-2.0 * (offset.value - value));
        // A row whose offset is NaN has a rough score of NaN, and is scored.
        all.size = offset.size.max(all.size);
        all.rational = offset.rational.max(all.rational);
    }
    all
}

/// The rough scores of a query and the rows of a panel, without offsets, with logarithms or without; NaN where the rational part
/// overflows.
#[inline(always)]
fn rough<S: Simd, T: Float, const LOGS: bool>(query: &[T], panel: &[T]) -> V<S, T> {
    let (zero, one) = (V::<S, T>::from(0.0), V::<S, T>::from(1.0));
    let (mut rational, mut exponent, mut significand) = (zero, zero, one);
    for (query, panel) in query.chunks_exact(2 * SHARING).zip(panel.chunks_exact(2 * SHARING * T::LANES)) {
        let mut halves = [(zero, one); 2];
        for h in 0..2 {
            let (mut square, mut s) = ([zero; GROUP], [one; GROUP]);
            for i in 0..GROUP {
                let d = h * GROUP + i;
                let row = &panel[d * 2 * T::LANES..(d + 1) * 2 * T::LANES];
                let difference = V::<S, T>::splat(query[2 * d]) - V::<S, T>::load(&row[..T::LANES]);
                square[i] = difference * difference;
                s[i] = V::<S, T>::splat(query[2 * d + 1]) + V::<S, T>::load(&row[T::LANES..]);
            }
            // As in the pair function, with squared differences q: q0/s0 + q1/s1 + q2/s2 + q3/s3 over one denominator.
            let (p01, p23) = (s[0] * s[1], s[2] * s[3]);
            let n01 = square[0].mul_add(s[1], square[1] * s[0]);
            let n23 = square[2].mul_add(s[3], square[3] * s[2]);
            halves[h] = (n01.mul_add(p23, n23 * p01), p01 * p23);
        }
        let [(n0, p0), (n1, p1)] = halves;
        let product = p0 * p1;
        rational = rational + n0.mul_add(p1, n1 * p0) / product;
        if LOGS {
            let product = significand * product;
            exponent = exponent + product.exponent();
            significand = product.significand();
        }
    }
    let dim = (query.len() / 2) as f64;
    let shrunk = 1.0 - (dim / 4.0 + 120.0) * T::ROUNDOFF;
    let logs = LN_2 * (exponent + (significand - 1.0));
    // An infinity becomes NaN.
    rational.mul_add(shrunk, logs) + 0.0 * rational
}

/// The greatest rough score that passes, and what becomes of the pairs that pass.
struct RoughSieve<'a, T> {
    score: &'a dyn DynKernel<T>,
    first_query: usize,
    /// The offsets of the queries.
    queries: Vec<Offset>,
    tops: &'a mut [TopK<T>],
    floors: &'a [f64],
    thresholds: Vec<f64>,
    /// For each query, minus the greatest rough score with which a row can reach the threshold.
    limits: Vec<T>,
    /// For each query, whether all its s with the group at hand are in range.
    in_range: Vec<bool>,
    /// For each query, the sum of m^2 / s (see `mls`) where its means were rounded, else 0.
    moved: Vec<f64>,
    /// Whether the score has logarithms; without them it is -R, and not half of it.
    logs: bool,
    /// The terms of -2 MLS that the rough scores of the group at hand leave out, D (log 2 pi + 2 k log 2); 0 without
    /// logarithms.
    constant: f64,
    /// The offsets of the group's rows: the middle of their values, and the greatest of their sizes and rational parts.
    group: Offset,
    /// Pairs scored so far.
    scored: usize,
}

impl<T: Float> RoughSieve<'_, T> {
    fn set_limit(&mut self, query: usize) {
        let (threshold, offset) = (self.thresholds[query], &self.queries[query]);
        let threshold = if self.logs { threshold } else { 0.5 * threshold };
        let rough = -2.0 * (threshold - offset.value - self.group.value) - self.constant;
        let dim = self.score.inputs().mu1.stored() as f64;
        let sizes = threshold.abs() + offset.value.abs() + f64::from(offset.size + self.group.size);
        let sizes = 8.0 * sizes + 4.0 * self.constant.abs();
        let rationals = f64::from(offset.rational + self.group.rational);
        let spare = T::ROUNDOFF
            * (70.0 * dim + 100.0 + sizes + 4.0 * (rough.abs() + self.moved[query]) + (dim + 480.0) * rationals);
        let limit = if self.in_range[query] { -(rough + spare) } else { f64::NEG_INFINITY };
        self.limits[query] = T::from_f64(limit);
    }

    /// Takes note of the ranges of variances of the queries and of a new group of rows, which are scaled.
    #[inline(always)]
    fn enter(&mut self, mls: &EquivalentMls, ranges: &[(f64, f64)], group: (f64, f64), scale: f64) {
        for query in 0..ranges.len() {
            let (least, greatest) = ((ranges[query].0 + group.0) * scale, (ranges[query].1 + group.1) * scale);
            let in_range = ranges[query].0 >= 0.0 && group.0 >= 0.0 && least >= 1.0 / RANGE && greatest <= RANGE;
            self.in_range[query] = in_range;
            if mls.moved {
                let (means, vars) = mls.query(self.first_query + query);
                self.moved[query] = means.iter().zip(vars).map(|(m, t)| m * m / (t + group.0)).sum();
            }
            self.set_limit(query);
        }
    }

    #[inline(never)]
    fn pass(&mut self, query: usize, rows: &[u32], passed: u32) {
        let (mut list, mut scores) = ([0; 16], [T::default(); 16]);
        let mut n = 0;
        for (_, &row) in rows.iter().enumerate().filter(|(lane, _)| passed >> lane & 1 == 1) {
            list[n] = row as usize;
            n += 1;
        }
        let (passed, scores) = (&list[..n], &mut scores[..n]);
        self.score.score(Rows::Same(self.first_query + query), Rows::List(passed), scores, &mut []);
        self.scored += n;
        let top = &mut self.tops[query];
        for (&row, &score) in passed.iter().zip(scores.iter()) {
            top.push(score, row as i64);
        }
        let threshold = top.threshold().max(self.floors[query]);
        if threshold != self.thresholds[query] {
            self.thresholds[query] = threshold;
            self.set_limit(query);
        }
    }
}
