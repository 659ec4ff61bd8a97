//! Search by an inner product that bounds a score: matrix products rule most pairs out, the rest are scored.

use super::formulas::Formula;
use super::DiagKernel;
use crate::drivers::{self, DynKernel, Rows};
use crate::memory;
use crate::panels::{self, Epilogue, QueryTiles};
use crate::simd::{set_bits, Float, Simd, V};
use crate::topk::TopK;
use crate::view::View;
use std::ops::Range;

/// A bound on the scores of some queries: an inner product of features of query and row, and a constant of each.
pub trait ProductBound<T> {
    /// Writes the features of `rows` as panels, padded with anything, and what each row's inner products start with.
    fn pack_features(&mut self, rows: &[u32], packed: &mut [T], starts: &mut [T]);
    /// The least inner product of a query, counted from the first of the block, with one of these rows for the pair
    /// function's score to reach a threshold; NaN or -infinity where that is not known.
    fn limit(&self, query: usize, threshold: f64) -> f64;
}

/// The pairs of a block of queries and the rows at some positions.
pub struct Pairs<'a, 'b, T, F> {
    pub score: &'a DiagKernel<'b, T, F>,
    pub queries: Range<usize>,
    /// Rows in the order in which they are visited.
    pub rows: &'a [u32],
    /// The scores that rows must reach.
    pub floors: &'a [f64],
    /// The best rows found so far.
    pub tops: &'a mut [TopK<T>],
}

/// Scores the pairs that the bound does not rule out; returns how many. `features` [queries, width] are those of the queries.
pub fn score_survivors<T: Float, F: Formula>(
    pairs: Pairs<T, F>,
    features: &[T],
    width: usize,
    bound: &mut dyn ProductBound<T>,
) -> usize {
    let Pairs { score, queries, rows, floors, tops } = pairs;
    let group = panels::padded::<T>(drivers::segment(score.inputs.mu1.stored()));
    let tiles = QueryTiles::new(&View::new(features, queries.len(), width), 0..queries.len());
    let limits = vec![T::from_f64(f64::INFINITY); tiles.padded()];
    let pending = vec![Vec::new(); queries.len()];
    let mut sieve =
        BoundSieve { score, first_query: queries.start, floors, tops, limits, pending, rows: &[], bound, scored: 0 };
    let (mut packed, mut starts) = (vec![T::default(); group * width], vec![T::default(); group]);
    for rows in rows.chunks(group) {
        sieve.rows = rows;
        let n = panels::padded::<T>(rows.len());
        sieve.bound.pack_features(rows, &mut packed[..n * width], &mut starts[..n]);
        for query in 0..queries.len() {
            sieve.set_limit(query);
        }
        let panels = panels::pairs(&packed[..n * width], width);
        panels::products(&tiles, (&panels, 0..panels.rows()), &starts[..n], &mut sieve);
        for query in 0..queries.len() {
            sieve.flush(query);
        }
    }
    sieve.scored
}

/// The buffer into which [`PanelRows`] widens rows of halves.
pub type Widened<T> = [(Vec<T>, Vec<T>); 16];

/// Means and variances of a panel's rows, one row per lane; lanes without one repeat the last.
pub struct PanelRows<'a, T> {
    means: [&'a [T]; 16],
    vars: [&'a [T]; 16],
    dim: usize,
}

impl<'a, T: Float> PanelRows<'a, T> {
    /// The rows of a panel; halves are widened into `widened`.
    pub fn new(inputs: &'a drivers::Inputs<T>, panel: &[u32], widened: &'a mut Widened<T>) -> Self {
        let (mut means, mut vars): ([&[T]; 16], [&[T]; 16]) = ([&[]; 16], [&[]; 16]);
        for (lane, (mean, var)) in widened.iter_mut().enumerate() {
            let row = panel[lane.min(panel.len() - 1)] as usize;
            (means[lane], vars[lane]) = (inputs.mu2.row(row, mean), inputs.uncertainty2.row(row, var));
        }
        PanelRows { means, vars, dim: inputs.mu1.stored() }
    }

    /// The dimensions from `first` on, as many as there are lanes or as remain: their numbers, and one vector after the other of
    /// means and of variances in `columns`.
    #[inline(always)]
    pub fn columns<S: Simd>(&self, first: usize, columns: &mut [[T; 256]; 2]) -> Range<usize> {
        let range = first..self.dim.min(first + T::LANES);
        let [means, vars] = columns;
        transpose::<S, T>(&self.means[..T::LANES], range.clone(), means);
        transpose::<S, T>(&self.vars[..T::LANES], range.clone(), vars);
        range
    }
}

/// Mean and variance of each row in one dimension, the `place`-th of the columns.
#[inline(always)]
pub fn column<S: Simd, T: Float>(columns: &[[T; 256]; 2], place: usize) -> [V<S, T>; 2] {
    let at = place * T::LANES..(place + 1) * T::LANES;
    [V::<S, T>::load(&columns[0][at.clone()]), V::<S, T>::load(&columns[1][at])]
}

/// Writes some columns, at most as many as there are lanes, of as many rows as there are lanes, one after the other. A row of one
/// element has it in all columns.
#[inline(always)]
fn transpose<S: Simd, T: Float>(rows: &[&[T]], range: Range<usize>, columns: &mut [T; 256]) {
    if range.len() == T::LANES && rows[0].len() >= range.end {
        return V::<S, T>::transpose(rows, range.start, columns, T::LANES);
    }
    for (d, column) in range.zip(columns.chunks_mut(T::LANES)) {
        column.iter_mut().zip(rows).for_each(|(x, row)| *x = row[d.min(row.len() - 1)]);
    }
}

/// The pairs that the bound does not rule out, on their way to being scored.
struct BoundSieve<'a, 'b, T, F> {
    score: &'a DiagKernel<'b, T, F>,
    first_query: usize,
    floors: &'a [f64],
    tops: &'a mut [TopK<T>],
    /// The least inner product that passes, for each query.
    limits: Vec<T>,
    /// The rows of each query that wait to be scored together.
    pending: Vec<Vec<usize>>,
    /// The rows of the group at hand.
    rows: &'a [u32],
    bound: &'a mut dyn ProductBound<T>,
    scored: usize,
}

impl<T: Float, F: Formula> BoundSieve<'_, '_, T, F> {
    fn set_limit(&mut self, query: usize) {
        let limit = self.bound.limit(query, self.tops[query].threshold().max(self.floors[query]));
        let limit = limit - 4.0 * T::ROUNDOFF * limit.abs();
        self.limits[query] = T::from_f64(if limit > f64::NEG_INFINITY { limit } else { f64::NEG_INFINITY });
    }

    /// Scores the waiting rows of a query.
    #[inline(never)]
    fn flush(&mut self, query: usize) {
        let mut scores = [T::default(); drivers::BLOCK];
        let (rows, scores) = (&self.pending[query], &mut scores[..self.pending[query].len()]);
        if rows.is_empty() {
            return;
        }
        DynKernel::score(self.score, Rows::Same(self.first_query + query), Rows::List(rows), scores, &mut []);
        self.scored += rows.len();
        for (&row, &score) in rows.iter().zip(scores.iter()) {
            self.tops[query].push(score, row as i64);
        }
        self.pending[query].clear();
        self.set_limit(query);
    }
}

impl<T: Float, F: Formula> Epilogue<T> for BoundSieve<'_, '_, T, F> {
    fn limits(&self) -> &[T] {
        &self.limits
    }

    fn visit(&mut self, query: usize, panel: usize, lanes: u32, _: &[T; 16]) {
        // Queries of the padding are zeros, whose product with a NaN is not below any limit.
        if query >= self.pending.len() {
            return;
        }
        for place in set_bits(lanes).map(|lane| panel * T::LANES + lane) {
            if place < self.rows.len() {
                memory::push(&mut self.pending[query], self.rows[place] as usize);
            }
        }
        if self.pending[query].len() + T::LANES > drivers::BLOCK {
            self.flush(query);
        }
    }
}
