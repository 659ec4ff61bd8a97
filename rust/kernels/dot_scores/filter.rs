//! Exact search that computes few exact scores: inner products of register tiles rule out the rest.

use super::{sq_norm, DotScore, Formula, Pair};
use crate::error::Error;
use crate::panels::{self, Epilogue, QueryTiles};
use crate::shapes::{self, PairScore, Rows};
use crate::simd::{dispatch, Float, Kernel, Lanes, Simd, V};
use crate::topk::TopK;
use std::ops::Range;

/// The best `k` rows of every query, found by inner products of panels and scored by the pair function.
pub fn search<T: Float, F: Formula>(
    score: &DotScore<T, F>,
    k: usize,
    scores: &mut [T],
    ids: &mut [i64],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    // Few queries do not pay for packing the rows.
    if dim == 0 || (queries < 4 && score.packed.is_none()) {
        return shapes::search(score, k, scores, ids, interrupted);
    }
    let group = panels::padded::<T>(shapes::segment(dim));
    shapes::search_by_shards(queries, gallery, 1024, group, k, scores, ids, interrupted, |queries, rows, tops| {
        dispatch(Scan { score, queries, rows, group, tops });
    })
}

/// One task of a search: a block of queries over a shard of the gallery, a group of rows at a time.
struct Scan<'a, 'b, T, F> {
    score: &'a DotScore<'b, T, F>,
    queries: Range<usize>,
    rows: Range<usize>,
    group: usize,
    tops: &'a mut [TopK<T>],
}

impl<T: Float, F: Formula> Kernel for Scan<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let inputs = &self.score.inputs;
        let dim = inputs.mu1.stored();
        let tiles = QueryTiles::new::<S>(&inputs.mu1, self.queries.clone());
        let of_query = |i| (sq_norm::<S, T>(inputs.mu1.row(i)).to_f64(), inputs.extra1.row(i)[0].to_f64());
        let mut filter = Filter {
            score: self.score,
            first_query: self.queries.start,
            queries: self.queries.map(of_query).collect(),
            thresholds: vec![f64::NEG_INFINITY; self.tops.len()],
            tops: self.tops,
            slack: slack::<T>(dim),
            smallest: (6 * dim + 20) as f64 * T::SMALLEST,
            first_row: 0,
            rows: 0,
            norms: vec![0.0; self.group],
            extras: vec![0.0; self.group],
        };
        let mut buffer = Vec::new();
        for first in self.rows.clone().step_by(self.group) {
            let rows = first..(first + self.group).min(self.rows.end);
            let packed = match &self.score.packed {
                Some(packed) => &packed.panels[first * dim..][..panels::padded::<T>(rows.len()) * dim],
                None => {
                    buffer.resize(panels::padded::<T>(rows.len()) * dim, T::default());
                    panels::pack(&inputs.mu2, rows.clone(), &mut buffer);
                    &buffer
                }
            };
            (filter.first_row, filter.rows) = (first, rows.len());
            for (place, j) in rows.enumerate() {
                filter.norms[place] = self.score.norm_of_gallery::<S>(j);
                filter.extras[place] = inputs.extra2.row(j)[0].to_f64();
            }
            panels::products::<S, T>(&tiles, packed, &mut filter);
        }
    }
}

/// Bound, relative to |a|^2 + |b|^2, on how far the squared distance (twice the inner product) that the pair function finds
/// may lie from the one got by the panels' inner products.
///
/// With unit roundoff u and n = |a|^2 + |b|^2 (so |a| |b| <= n/2): the panels' sum of D products errs by at most D u |a||b|,
/// twice that is D u n; a norm is summed over at most D/L + log2 L + 3 roundings of a relative u each (fewer, as four chains
/// share them); the pair function's sum errs by at most (D/L + log2 L + 5) u x with x <= 2 n, or (D/L + log2 L + 3) u |a||b|. Together below (D + 3 D/L + 20) u n for
/// L = 8 or 16; the factor 1.01 covers the terms in u^2 (D u < 0.01) and the norms' own rounding. Where products are subnormal,
/// each of the at most 6 D + 20 roundings errs by up to half the smallest number instead, which [`Filter`] takes off as well.
fn slack<T: Float>(dim: usize) -> f64 {
    let (dim, lanes) = (dim as f64, T::LANES as f64);
    1.01 * (dim + 3.0 * dim / lanes + 20.0) * T::ROUNDOFF
}

/// Keeps the rows whose score may reach the query's threshold and scores them by the pair function.
///
/// Proof that no row is lost: let x be what the pair function finds and y what the panels find, moved by the slack to the side
/// of higher scores, so y <= x (y >= x for inner products). The pair function's score is `T(value(x, ...))`; the filter
/// compares with `value(y, ...)`, the same float64 operations on the same other numbers. Each of them is monotone in x as
/// rounded (see [`Formula::search`]) and so is the rounding to T, hence `T(value(y)) >= T(value(x))`, and a row whose `T(value(y))` is
/// below the threshold cannot be among the best. A NaN is kept.
struct Filter<'a, 'b, T, F> {
    score: &'a DotScore<'b, T, F>,
    first_query: usize,
    /// Squared norm and extra of each query.
    queries: Vec<(f64, f64)>,
    thresholds: Vec<f64>,
    tops: &'a mut [TopK<T>],
    slack: f64,
    smallest: f64,
    first_row: usize,
    rows: usize,
    norms: Vec<f64>,
    extras: Vec<f64>,
}

impl<S: Simd, T: Float, F: Formula> Epilogue<S, T> for Filter<'_, '_, T, F> {
    #[inline(always)]
    fn visit(&mut self, query: usize, panel: usize, dots: V<S, T>) {
        let dots = dots.to_array();
        let (norm, extra) = self.queries[query];
        let threshold = V::<S, f64>::splat(self.thresholds[query]);
        let mut bits = 0;
        for half in 0..T::LANES / f64::LANES {
            let mut dot = [0.0; f64::LANES];
            for lane in 0..f64::LANES {
                dot[lane] = dots[half * f64::LANES + lane].to_f64();
            }
            let at = panel * T::LANES + half * f64::LANES;
            let norms = (V::<S, f64>::splat(norm), V::<S, f64>::load(&self.norms[at..at + f64::LANES]));
            let extras = (V::<S, f64>::splat(extra), V::<S, f64>::load(&self.extras[at..at + f64::LANES]));
            let dot = V::<S, f64>::load(&dot);
            let both = norms.0 + norms.1;
            let (slack, smallest) = (V::<S, f64>::splat(self.slack), V::<S, f64>::splat(self.smallest));
            let x = if F::DIFFERENCE {
                // A squared distance is never negative, so neither need its lower bound be.
                (both - slack * both - (dot + dot) - smallest).max(V::<S, f64>::splat(0.0))
            } else {
                (V::<S, f64>::splat(0.5) * slack).mul_add(both, dot + smallest)
            };
            let value = self.score.formula.value::<S>(Pair { x, norms, extras });
            bits |= value.not_less_bits(threshold) << (half * f64::LANES);
        }
        if bits != 0 {
            self.keep(query, panel, bits);
        }
    }
}

impl<T: Float, F: Formula> Filter<'_, '_, T, F> {
    #[inline(never)]
    fn keep(&mut self, query: usize, panel: usize, bits: u32) {
        let mut rows = [0; 16];
        let mut n = 0;
        for lane in 0..T::LANES {
            if bits >> lane & 1 == 1 && panel * T::LANES + lane < self.rows {
                rows[n] = self.first_row + panel * T::LANES + lane;
                n += 1;
            }
        }
        let mut scores = [T::default(); 16];
        dispatch(Exact { score: self.score, query: self.first_query + query, rows: &rows[..n], out: &mut scores[..n] });
        let top = &mut self.tops[query];
        for (&row, &score) in rows[..n].iter().zip(&scores) {
            top.push(score, row as i64);
        }
        // One rounding below: a score may have been rounded up to the threshold and win a tie there.
        self.thresholds[query] = top.threshold() - 2.0 * T::ROUNDOFF * top.threshold().abs();
    }
}

/// Scores of the rows that a filter kept.
struct Exact<'a, 'b, T, F> {
    score: &'a DotScore<'b, T, F>,
    query: usize,
    rows: &'a [usize],
    out: &'a mut [T],
}
impl<T: Float, F: Formula> Kernel for Exact<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.score.score::<S>(Rows::Same(self.query), Rows::List(self.rows), self.out);
    }
}
