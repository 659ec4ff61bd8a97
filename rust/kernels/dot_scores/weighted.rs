//! Sums of the rows of a tile, weighted by partial derivatives: what scores add to the gradients of means.
//!
//! For squared distances they are sums of differences. For row a, sum_j w_j (a - b_j) = (sum_j w_j) a - sum_j w_j b_j is a product
//! of matrices, in which an error of a rounding of |a| + |b| is at most sqrt(32) roundings of |a - b|, unless the rows are near each
//! other ([`NEAR`]): of such pairs the differences are summed.

use super::all_pairs::near_of;
use super::formulas::{Formula, Pair, PER_ITEM};
use super::{sq_norms, DotKernel};
use crate::drivers::{Tile, TileGradient, BLOCK};
use crate::memory;
use crate::panels::{add_weighted, pack_columns};
use crate::rows::{self, Square, DIFFERENCES, OTHERS_FIRST, ROWS_FIRST};
use crate::simd::{AllLanes, Float, Kernel, Simd, V};
use crate::view::{Matrix, View};

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

impl<T: Float, F: Formula> DotKernel<'_, T, F> {
    /// The pairs of a tile whose rows are near each other, given squared distances; none of inner products.
    pub fn near(&self, tile: &Tile, x: &Square<T>) -> Near {
        let mut near = Near([0; BLOCK]);
        if F::DIFFERENCE {
            let (norms, others) = self.norms_of(tile);
            for ((near, x), &norm) in near.0.iter_mut().zip(x).zip(norms) {
                *near = near_of(norm, others, x);
            }
        }
        near
    }

    /// The squared norms of the queries and of the gallery rows of a tile.
    pub fn norms_of(&self, tile: &Tile) -> (&[T], &[T]) {
        let [queries, gallery] = self.norms.get_or_init(|| {
            [Matrix::Full(self.inputs.mu1), self.inputs.mu2].map(|rows| {
                let mut norms = memory::filled(T::default(), rows.rows());
                sq_norms(&rows, 0..rows.rows(), &mut norms);
                norms
            })
        });
        (&queries[tile.queries.clone()], &gallery[tile.gallery.clone()])
    }
}

/// Rows of both sides of a tile.
pub type Sides<'a, T> = (&'a [&'a [T]], &'a [&'a [T]]);

/// Adds sums of weighted differences to the gradients of mu, pair by pair; each difference is computed once for both sides.
pub fn add_differences<T: Float>((queries, gallery): Sides<T>, weights: &Square<T>, out: &mut TileGradient<T>) {
    match (&mut out.query, &mut out.gallery) {
        (Some(query), Some(of_gallery)) => {
            rows::accumulate_both(queries, gallery, weights, (&mut *query.mu, &mut *of_gallery.mu));
        }
        (Some(out), None) => rows::accumulate::<T, DIFFERENCES, ROWS_FIRST>(queries, gallery, weights, out.mu),
        (None, Some(out)) => rows::accumulate::<T, DIFFERENCES, OTHERS_FIRST>(gallery, queries, weights, out.mu),
        (None, None) => {}
    }
}

/// Adds sums of weighted rows to the gradients of mu by products of matrices, and those of the differences of near rows. For a
/// `difference`, what each row itself is to be multiplied by is left out.
pub fn add_products<T: Float>(
    (queries, gallery): Sides<T>,
    weights: &Square<T>,
    difference: bool,
    near: &Near,
    out: &mut TileGradient<T>,
) {
    let (dim, sign) = (queries[0].len(), if difference { -1.0 } else { 1.0 });
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

/// Weighted partial derivatives of a tile: by the norm, with those by the row itself, and by the uncertainty, summed over the pairs of each item; by the shared
/// numbers, over all.
pub struct WeightedPartials {
    pub query: [[f64; BLOCK]; 2],
    pub gallery: [[f64; BLOCK]; 2],
    pub shared: [f64; 2],
}

/// Adds the partial derivatives of a tile's pairs to the sums, and replaces their squared distances by weighted partial derivatives,
/// all in the rows' own type: see [`Formula::PLAIN_PARTIALS`].
pub struct AddPlainPartials<'a, T, F> {
    pub formula: &'a F,
    /// The uncertainties of the queries and of the gallery rows, with fillers.
    pub uncertainties: [[T; BLOCK]; 2],
    /// Bit j of number i says that the derivative by x of the pair is added to those by both norms.
    pub whole: &'a [u64; BLOCK],
    /// The weights of the pairs.
    pub weights: &'a View<'a, T>,
    pub x: &'a mut Square<T>,
    pub sums: &'a mut WeightedPartials,
}
impl<T: Float, F: Formula> Kernel for AddPlainPartials<'_, T, F> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddPlainPartials { formula, uncertainties: [queries, gallery], whole, weights, x, sums } = self;
        let (zero, twice) = (V::<S, T>::from(0.0), if F::DIFFERENCE { 2.0 } else { 1.0 });
        let (n, mut of_gallery) = (weights.stored(), [[T::default(); BLOCK]; 2]);
        for (k, x) in x.iter_mut().enumerate().take(weights.rows()) {
            let (weights, own) = (weights.row(k), V::<S, T>::splat(queries[k]));
            let mut of_query = [AllLanes::<S, T>::zeros(); 2];
            for (first, weights) in (0..n).step_by(V::<S, T>::LANES).zip(weights.chunks(V::<S, T>::LANES)) {
                let weight = V::<S, T>::load_partial(weights, T::default());
                let pair = Pair {
                    x: V::<S, T>::load(&x[first..]),
                    norms: (zero, zero),
                    uncertainties: (own, V::<S, T>::load(&gallery[first..])),
                    per_item: ([zero; PER_ITEM], [zero; PER_ITEM]),
                };
                let mut found = formula.plain_partials::<S, T>(pair);
                if found[1].mul_add(0.0, 0.0 * found[0]).not_less_bits(f64::INFINITY) != 0 {
                    found = without_certain::<S, T>(found, &pair);
                }
                let [by_x, by_uncertainty] = found;
                let by_x = weighted::<S, T>(weight, by_x);
                let added = [those::<S, T>(by_x, whole[k] >> first), weighted::<S, T>(weight, by_uncertainty)];
                for m in 0..2 {
                    let sum = of_query[m].at(first);
                    *sum = *sum + added[m];
                    let sum = V::<S, T>::load(&of_gallery[m][first..]) + added[m];
                    sum.store(&mut of_gallery[m][first..]);
                }
                (twice * by_x).store(&mut x[first..]);
            }
            (sums.query[0][k], sums.query[1][k]) = (of_query[0].sum().to_f64(), of_query[1].sum().to_f64());
        }
        sums.gallery = of_gallery.map(|sums| sums.map(T::to_f64));
    }
}

/// The partial derivatives with 0 for pairs whose uncertainties are 0, where they have no finite limit.
#[inline(always)]
fn without_certain<S: Simd, T: Float>(partials: [V<S, T>; 2], pair: &Pair<V<S, T>>) -> [V<S, T>; 2] {
    let (v, w) = pair.uncertainties;
    let (zero, sum) = (V::<S, T>::from(0.0), v.abs() + w.abs());
    let infinite = V::<S, T>::from(f64::INFINITY);
    // NaN passes, in the uncertainties and in x.
    let keep = pair.x.abs().if_less(infinite, sum, infinite);
    let [a, b] = partials;
    [keep.if_greater(0.0, a, keep.if_less(infinite, zero, a)), keep.if_greater(0.0, b, keep.if_less(infinite, zero, b))]
}

/// The lanes whose bits are set; 0 in the others.
#[inline(always)]
pub fn those<S: Simd, T: Float>(x: V<S, T>, bits: u64) -> V<S, T> {
    let every = (1 << V::<S, T>::LANES) - 1;
    match bits & every {
        0 => 0.0.into(),
        bits if bits == every => x,
        bits => {
            let mut lanes = x.to_array();
            for lane in 0..V::<S, T>::LANES {
                if bits >> lane & 1 == 0 {
                    lanes[lane] = T::default();
                }
            }
            V::<S, T>::load(&lanes)
        }
    }
}

/// `weight * partial`, 0 where the weight is 0 whatever the partial derivative.
#[inline(always)]
pub fn weighted<S: Simd, T: Float>(weight: V<S, T>, partial: V<S, T>) -> V<S, T> {
    weight.abs().if_less(T::SMALLEST, 0.0, weight * partial)
}
