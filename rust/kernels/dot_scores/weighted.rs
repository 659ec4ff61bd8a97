//! Sums of the rows of a tile, weighted by partial derivatives: what scores add to the gradients of means.
//!
//! For squared distances they are sums of differences. For row a, sum_j w_j (a - b_j) = (sum_j w_j) a - sum_j w_j b_j is a product
//! of matrices, in which an error of a rounding of |a| + |b| is at most sqrt(32) roundings of |a - b|, unless the rows are near each
//! other ([`NEAR`]): of such pairs the differences are summed.

use super::all_pairs::near_of;
use super::formulas::Formula;
use super::{sq_norms, DotScore};
use crate::drivers::{Tile, TileGradient, BLOCK};
use crate::panels::{add_weighted, pack_columns};
use crate::rows::{self, Square, DIFFERENCES, OTHERS_FIRST, ROWS_FIRST};
use crate::simd::Float;
use crate::view::Matrix;

#[cfg(doc)]
use super::all_pairs::NEAR;

/// Which pairs of a tile have rows that are near each other: bit j of number i says it of query i and gallery row j.
pub struct Near(pub [u64; BLOCK]);

const _: () = assert!(BLOCK == u64::BITS as usize);

impl Near {
    /// Whether there are so many that all pairs are treated alike.
    pub fn are_many<T>(&self, (queries, gallery): (&[&[T]], &[&[T]])) -> bool {
        let count: usize = self.0.iter().map(|row| row.count_ones() as usize).sum();
        4 * count > queries.len() * gallery.len()
    }
}

impl<T: Float, F: Formula> DotScore<'_, T, F> {
    /// The pairs of a tile whose rows are near each other, given squared distances; none of inner products.
    pub fn near(&self, tile: &Tile, x: &Square<T>) -> Near {
        let mut near = Near([0; BLOCK]);
        if F::DIFFERENCE {
            let mut norms = [[T::from_f64(1.0); BLOCK]; 2];
            sq_norms(&Matrix::Full(self.inputs.mu1), tile.queries.clone(), &mut norms[0]);
            sq_norms(&self.inputs.mu2, tile.gallery.clone(), &mut norms[1]);
            let others = &norms[1][..tile.gallery.len()];
            for ((near, x), norm) in near.0.iter_mut().zip(x).zip(norms[0]).take(tile.queries.len()) {
                *near = near_of(norm, others, x);
            }
        }
        near
    }
}

/// Rows of both sides of a tile.
type Rows<'a, T> = (&'a [&'a [T]], &'a [&'a [T]]);

/// Adds sums of weighted differences to the gradients of mu, pair by pair; each difference is computed once for both sides.
pub fn add_differences<T: Float>((queries, gallery): Rows<T>, weights: &Square<T>, out: &mut TileGradient<T>) {
    match (&mut out.query, &mut out.gallery) {
        (Some(query), Some(of_gallery)) => {
            rows::accumulate_both(queries, gallery, weights, (&mut *query.mu, &mut *of_gallery.mu));
        }
        (Some(out), None) => rows::accumulate::<T, DIFFERENCES, ROWS_FIRST>(queries, gallery, weights, out.mu),
        (None, Some(out)) => rows::accumulate::<T, DIFFERENCES, OTHERS_FIRST>(gallery, queries, weights, out.mu),
        (None, None) => {}
    }
}

/// Adds sums of weighted rows to the gradients of mu by products of matrices, and those of the differences of near rows. For
/// differences, what each row itself is to be multiplied by is left out.
pub fn add_products<T: Float, F: Formula>(
    (queries, gallery): Rows<T>,
    weights: &Square<T>,
    near: &Near,
    out: &mut TileGradient<T>,
) {
    let (dim, sign) = (queries[0].len(), if F::DIFFERENCE { -1.0 } else { 1.0 });
    let mut far = None;
    for (i, &bits) in near.0.iter().enumerate().filter(|(_, &bits)| bits != 0) {
        add_near((queries[i], i), gallery, bits, weights, out);
        let row = &mut far.get_or_insert(*weights)[i];
        row.iter_mut().enumerate().filter(|(j, _)| bits >> j & 1 == 1).for_each(|(_, x)| *x = T::default());
    }
    let (far, mut panels) = (far.as_ref().unwrap_or(weights), Vec::new());
    if let Some(out) = &mut out.query {
        pack_columns(gallery, sign, &mut panels);
        add_weighted::<T, ROWS_FIRST>(far, gallery.len(), &panels, dim, out.mu);
    }
    if let Some(out) = &mut out.gallery {
        pack_columns(queries, sign, &mut panels);
        add_weighted::<T, OTHERS_FIRST>(far, queries.len(), &panels, dim, out.mu);
    }
}

/// Adds the weighted differences of query `i` and the gallery rows that are near it.
fn add_near<T: Float>(
    (row, i): (&[T], usize),
    gallery: &[&[T]],
    bits: u64,
    weights: &Square<T>,
    out: &mut TileGradient<T>,
) {
    let dim = row.len();
    let others: Vec<_> = (0..gallery.len()).filter(|j| bits >> j & 1 == 1).collect();
    if let Some(out) = &mut out.query {
        let others: Vec<_> = others.iter().map(|&j| (gallery[j], weights[i][j])).collect();
        rows::accumulate_one::<T, DIFFERENCES>(row, &others, &mut out.mu[i * dim..(i + 1) * dim]);
    }
    if let Some(out) = &mut out.gallery {
        for j in others {
            let mu = &mut out.mu[j * dim..(j + 1) * dim];
            rows::accumulate_one::<T, DIFFERENCES>(gallery[j], &[(row, weights[i][j])], mu);
        }
    }
}
