//! Reranking that reads few rows: codes rule the other candidates out.

use super::filter::{slack, smallest};
use super::formulas::{Formula, Query};
use super::lengths::in_range;
use super::pool::{Passed, Pool, Weigh, WEIGHED};
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

/// A row as the second sieve takes it; None where its codes say nothing, or its length and that of the query are not those that
/// the score divides by.
fn passed<T: Float, F: Formula>(query: &Query, product: &Product, row: usize) -> Option<Passed> {
    let Product { x, within, norm, number: uncertainty } = *product;
    if !(within < f64::INFINITY) {
        return None;
    }
    if F::DIFFERENCE {
        return Some(Passed { x: query.norm + norm - 2.0 * x, within: 2.0 * within, norm, uncertainty, row });
    }
    if !(in_range::<T>(query.norm) && in_range::<T>(norm)) {
        return None;
    }
    let largest = query.norm.sqrt() * norm.sqrt(); // the product of the squares could leave the range
    let (least, most) = ((x - within).max(-largest), (x + within).min(largest));
    Some(Passed { x: 0.5 * (least + most), within: 0.5 * (most - least), norm, uncertainty, row })
}
