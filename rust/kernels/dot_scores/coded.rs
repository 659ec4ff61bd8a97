//! Reranking that reads few rows: codes rule the other candidates out.

use super::filter::{slack, smallest};
use super::formulas::{Formula, Query};
use super::pool::{passed, Pool, Weigh, WEIGHED};
use super::{sq_norms, DotKernel};
use crate::codes::{self, Codes, Product};
use crate::drivers::Found;
use crate::simd::{dispatch, Float};
use crate::topk::TopK;
use crate::view::Matrix;

/// Fewer candidates than so many times k are all scored.
pub const LONG: usize = 8;

/// The best k of a query's rows: the codes of all of them are read, and the rows themselves of those that may be among the best.
///
/// The proof that none is lost is that of the second sieve of `filter`: what codes find is moved by the length of what they leave
/// out of a row, too. By Cauchy and Schwarz, no inner product is larger than the product of the lengths, so that bounds never
/// reach beyond what a formula takes.
pub fn best<T: Float, F: Formula>(
    score: &DotKernel<T, F>,
    codes: &Codes,
    query: usize,
    rows: &[usize],
    k: usize,
) -> TopK<T> {
    let (inputs, mut norm) = (&score.inputs, [T::default()]);
    sq_norms(&Matrix::Full(inputs.mu1), query..query + 1, &mut norm);
    let uncertainty = inputs.uncertainty1.row(query)[0].to_f64();
    let own = Query { norm: norm[0].to_f64(), uncertainty, ..Query::default() };
    let (dim, factor) = (inputs.mu1.stored(), codes::Query::new(inputs.mu1.row(query)));
    let (slack, smallest) = (slack::<T>(dim), smallest::<T>(dim));
    let (mut pool, mut products) = (Pool::new(k), [Product::default(); WEIGHED]);
    let mut many = 4 * k + WEIGHED;
    for first in (0..rows.len()).step_by(WEIGHED) {
        let (rows, products) = (&rows[first..], &mut products[..WEIGHED.min(rows.len() - first)]);
        codes::products(&factor, codes, rows, products);
        for (&row, product) in rows.iter().zip(&*products) {
            match passed::<T, F>(&own, product, row) {
                Some(passed) => _ = pool.push(passed),
                None => pool.keep(row),
            }
        }
        dispatch(Weigh { formula: &score.formula, query: own, pool: &mut pool, slack, smallest });
        if pool.len() >= many {
            pool.narrow();
            many = 2 * pool.len().max(2 * k + WEIGHED);
        }
    }
    pool.narrow();
    pool.settle(score, query);
    pool.top
}
