//! Exact search by the Kullback-Leibler divergence, which is an inner product plus a constant of each item.
//!
//! A query has means a and variances v, a row means b and variances w; W = 1 / w, V = 1 / v. With the share s of KL(query || row)
//! and 1 - s of KL(row || query),
//!
//!   -2 score = sum [ s (a^2 + v) W - 2 s a W b - 2 (1 - s) a V b + (1 - s) V (b^2 + w) ]
//!            + sum s W b^2 - (1 - 2 s) sum log w  +  sum (1 - s) V a^2 + (1 - 2 s) sum log v  -  D.
//!
//! The first line is an inner product; the row's features in it are [W, W b] where s > 0 and [b, b^2 + w] where s < 1. The second
//! line is a constant of the row, one of the query, and D. Means are shifted and scaled as in `bound`.
//!
//! Rounding, with unit roundoff u. Each term of the inner product is off by at most 12 u of itself; their sum, which begins with
//! the row's constant, by (4 D + 1) u of that and of the sum of the terms' sizes, by Cauchy-Schwarz at most |f| |g| for features
//! f and g. The row's constant is off by (D + 8) u of sum s W b^2, by 2 D u in the product under the logarithm, and by 4 u of the
//! logarithm. What the pair function makes of a true X = -2 score is off by at most (D/8 + 40) u of the sizes of its terms,
//!
//!   sum [ s ((a - b)^2 + v + w) W + ... ] = X - logarithms + 2 D,
//!
//! by 4 D u in the products under the logarithms, and by its last roundings.

use super::bound::Frame;
use super::formulas::Formula;
use super::sieve::{column, score_survivors, Pairs, PanelRows, ProductBound, Widened};
use super::sums::OffsetSums;
use super::{at, DiagKernel};
use crate::drivers::{self, Best, Inputs};
use crate::error::Error;
use crate::memory;
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use std::ops::Range;

/// Finds the best `k` rows of every query by minus the divergence with this share; returns how many pairs were scored.
pub fn search<T: Float, F: Formula>(score: &DiagKernel<T, F>, share: f64, best: Best<T>) -> Result<usize, Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    let Ok(last) = u32::try_from(gallery) else { return drivers::search(score, best) };
    // Few queries do not pay for computing the rows' features.
    if dim == 0 || queries < 6 {
        return drivers::search(score, best);
    }
    let (order, frame) = (memory::collected(0..last), Frame::new(&score.inputs));
    let group = drivers::segment(dim);
    drivers::search_by_shards(queries, gallery, 256, (group, usize::MAX), best, &|queries, places, floors, tops| {
        let (mut divergence, features) = Divergence::new(&score.inputs, &frame, share, queries.clone());
        let width = features.len() / queries.len();
        score_survivors(Pairs { score, queries, rows: &order[places], floors, tops }, &features, width, &mut divergence)
    })
}

/// The bound, which is the score but for rounding.
struct Divergence<'a, 'b, T> {
    inputs: &'a Inputs<'b, T>,
    frame: &'a Frame,
    share: f64,
    queries: Vec<DivergenceQuery>,
    group: DivergenceGroup,
}

/// A query: the norm of its features, its constant, and the size of the logarithms in that.
struct DivergenceQuery {
    norm: f64,
    constant: f64,
    log: f64,
}

/// A group of rows: the greatest norm of their features; the middle of their constants, which is subtracted from them; the
/// greatest distance of a constant from it; the greatest sizes of their rational parts and of their logarithms.
#[derive(Default)]
struct DivergenceGroup {
    norm: f64,
    middle: f64,
    apart: f64,
    rational: f64,
    log: f64,
}

impl<'a, 'b, T: Float> Divergence<'a, 'b, T> {
    /// The bound for some queries, and their features, negated.
    fn new(inputs: &'a Inputs<'b, T>, frame: &'a Frame, share: f64, queries: Range<usize>) -> (Self, Vec<T>) {
        let (rest, mut features) = (1.0 - share, Vec::new());
        let of_query = |i: usize| {
            let (mut square, mut constant, mut log) = (0.0, 0.0, 0.0);
            for (d, mean) in inputs.mu1.row(i).iter().enumerate() {
                let (scale, v) = (frame.scale[d], at(inputs.uncertainty1.row(i), d));
                let a = (mean.to_f64() - frame.centre[d]) * scale;
                let v = if v >= 0.0 { v * scale * scale } else { f64::NAN };
                let forth = [-share * (a * a + v), 2.0 * share * a];
                let back = [2.0 * rest * a / v, -rest / v];
                let parts = [(share > 0.0, forth), (rest > 0.0, back)];
                for x in parts.into_iter().filter(|part| part.0).flat_map(|part| part.1) {
                    features.push(T::from_f64(x));
                    square += x * x;
                }
                constant += if rest > 0.0 { rest * a * a / v } else { 0.0 };
                log += v.ln();
            }
            let log = if rest == share { 0.0 * log } else { (rest - share) * log };
            DivergenceQuery {
                norm: f64::sqrt(square),
                constant: constant + log - inputs.mu1.stored() as f64,
                log: log.abs(),
            }
        };
        let queries = queries.map(of_query).collect();
        (Divergence { inputs, frame, share, queries, group: DivergenceGroup::default() }, features)
    }
}

impl<T: Float> ProductBound<T> for Divergence<'_, '_, T> {
    fn pack_features(&mut self, rows: &[u32], packed: &mut [T], starts: &mut [T]) {
        let width = packed.len() / starts.len();
        let mut group = DivergenceGroup { middle: f64::NAN, ..DivergenceGroup::default() };
        let mut numbers = vec![RowConstant::default(); starts.len()];
        for (n, rows) in rows.chunks(T::LANES).enumerate() {
            let pair = &mut packed[n / 2 * 2 * T::LANES * width..][..2 * T::LANES * width];
            let numbers = &mut numbers[n * T::LANES..(n + 1) * T::LANES];
            dispatch(PackFeatures {
                inputs: self.inputs,
                frame: self.frame,
                share: self.share,
                rows,
                place: n % 2,
                pair,
                numbers,
            });
        }
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        // A row whose constant is NaN does not count: nothing rules it out.
        for number in &numbers[..rows.len()] {
            (least, most) = (least.min(number.value), most.max(number.value));
            group.norm = group.norm.max(number.norm);
            group.rational = group.rational.max(number.rational);
            group.log = group.log.max(number.log);
        }
        group.middle = 0.5 * (least + most);
        group.apart = most - group.middle;
        for (start, number) in starts.iter_mut().zip(&numbers) {
            *start = T::from_f64(group.middle - number.value);
        }
        self.group = group;
    }

    fn limit(&self, query: usize, threshold: f64) -> f64 {
        let (DivergenceQuery { norm, constant, log }, group) = (&self.queries[query], &self.group);
        let (dim, u, exact) = (self.inputs.mu1.stored() as f64, T::ROUNDOFF, -2.0 * threshold);
        let sizes = exact.abs() + log + group.log + 3.0 * dim;
        let reached = exact + u * ((dim / 8.0 + 50.0) * sizes + 10.0 * dim);
        let slack = u
            * ((4.0 * dim + 20.0) * (norm * group.norm + group.rational + group.apart)
                + 10.0 * dim
                + 8.0 * (group.log + log)
                + 4.0 * (constant.abs() + group.middle.abs()))
            + (6.0 * dim + 20.0) * T::SMALLEST * (1.0 + norm + group.norm);
        // Below this nothing overflows.
        let safe = norm * group.norm + group.rational + group.apart + group.log < T::QUARTER_RANGE.powi(3);
        if safe {
            group.middle + constant - reached - 1.01 * slack
        } else {
            f64::NAN
        }
    }
}

/// The constant of a row, NaN where it is not known; its rational part and the size of its logarithm; the norm of the features.
#[derive(Clone, Copy, Default)]
struct RowConstant {
    value: f64,
    rational: f64,
    log: f64,
    norm: f64,
}

/// Writes the features of the rows of one panel, the first or the second of a pair of panels, and finds the rows' constants.
struct PackFeatures<'a, 'b, T> {
    inputs: &'a Inputs<'b, T>,
    frame: &'a Frame,
    share: f64,
    rows: &'a [u32],
    place: usize,
    pair: &'a mut [T],
    numbers: &'a mut [RowConstant],
}
impl<T: Float> Kernel for PackFeatures<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (forth, back) = (self.share > 0.0, self.share < 1.0);
        let width = 2 * (usize::from(forth) + usize::from(back));
        let mut sums = OffsetSums::<V<S, T>>::new();
        let (mut norm, mut valid) = (V::<S, T>::from(0.0), V::<S, T>::from(0.0));
        let (pair, place, frame) = (self.pair, self.place, self.frame);
        let (mut widened, mut columns) = (Widened::<T>::default(), [[T::default(); 256]; 2]);
        let rows = PanelRows::new(self.inputs, self.rows, &mut widened);
        for first in (0..frame.scale.len()).step_by(T::LANES) {
            for d in rows.columns::<S>(first, &mut columns) {
                let [mean, var] = column::<S, T>(&columns, d - first);
                let b = (mean - frame.centre[d]) * frame.scale[d];
                let w = var * (frame.scale[d] * frame.scale[d]);
                let mut features = [V::<S, T>::from(0.0); 4];
                if forth {
                    let weight = 1.0 / w;
                    features[..2].copy_from_slice(&[weight, weight * b]);
                    sums.rational = sums.rational + weight * b * b;
                }
                if back {
                    features[width - 2..width].copy_from_slice(&[b, b.mul_add(b, w)]);
                }
                for (n, x) in features.into_iter().enumerate().take(width) {
                    let at = 2 * (d * width + n) + place;
                    x.store(&mut pair[at * T::LANES..(at + 1) * T::LANES]);
                    norm = x.mul_add(x, norm);
                }
                sums.times(w);
                valid = var.if_less(0.0, f64::NAN, valid);
            }
        }
        let logs = sums.logs::<S, T>();
        let (rational, norm, valid) = (sums.rational.to_array(), norm.to_array(), valid.to_array());
        for (lane, number) in self.numbers.iter_mut().enumerate() {
            let rational = self.share * rational[lane].to_f64();
            let log = if self.share == 0.5 { 0.0 } else { (1.0 - 2.0 * self.share) * logs[lane] };
            let value = rational - log + valid[lane].to_f64();
            *number = RowConstant { value, rational, log: log.abs(), norm: norm[lane].to_f64().sqrt() };
        }
    }
}
