//! Draws compared by their distances, all draws of one item with all of the other.
//!
//! Minus the mean distance (of lengths, not squares: the mean square has a closed form) and match probability, the log of the
//! mean of sigmoid(b - a distance), are functions of the matrix of distances, [`OfDistances`].

use super::{slices, ByItems, Comparison, Items};
use crate::kernels::samplers::Normals;
use crate::memory;
use crate::rows::{self, DIFFERENCES, OTHERS_FIRST, ROWS, ROWS_FIRST};
use crate::simd::{AllLanes, Float, Kernel, Simd, V};
use crate::special::exp::exp;
use crate::special::log::ln;
use std::ops::Range;

/// A function of the distances of all pairs of draws.
pub trait OfDistances: Sync {
    /// The value; overwrites `distances`.
    fn value<S: Simd>(&self, distances: &mut [f64]) -> f64;
    /// Writes the derivatives with respect to the distances; returns those with respect to the shared numbers.
    fn partials<S: Simd>(&self, distances: &[f64], partials: &mut [f64]) -> [f64; 2];
}

/// The comparison of draws by their distances.
pub struct ByDistances<F>(pub F);

/// Some queries and some gallery items whose draws make a tile, or a query and an item of many draws.
struct DrawTile<'a, T> {
    /// The numbers of the first query and of the first gallery item.
    first: (usize, usize),
    /// How many draws a query has, and a gallery item.
    draws: (usize, usize),
    /// The draws of the queries.
    queries: Vec<&'a [T]>,
    /// The draws of the gallery items.
    gallery: Vec<&'a [T]>,
}

/// The number of the first of some rows, and these rows.
type Rows<'b, 'a, T> = (usize, &'b [&'a [T]]);

impl<'a, T: Float> DrawTile<'a, T> {
    /// All groups that the pairs of some items fall into.
    fn all(items: &Items<'a, Vec<T>, Vec<T>>) -> Vec<Self> {
        let (Some(query), Some(item)) = (items.queries.first(), items.gallery.first()) else { return Vec::new() };
        let draws = (query.len() / items.dim, item.len() / items.dim);
        let (wide, high) = ((ROWS / draws.0).max(1), (ROWS / draws.1).max(1));
        let rows = |items_of: &[&'a Vec<T>]| items_of.iter().flat_map(|item| item.chunks_exact(items.dim)).collect();
        let mut out = Vec::new();
        for (a, queries) in items.queries.chunks(wide).enumerate() {
            for (b, gallery) in items.gallery.chunks(high).enumerate() {
                let (queries, gallery) = (rows(queries), rows(gallery));
                out.push(DrawTile { first: (a * wide, b * high), draws, queries, gallery });
            }
        }
        out
    }

    /// The number of queries and of gallery items.
    fn size(&self) -> (usize, usize) {
        (self.queries.len() / self.draws.0, self.gallery.len() / self.draws.1)
    }

    /// Where distances are stored: pair after pair, in a pair a row for each draw of the query. For draw `i` of the queries and
    /// `count` draws of the gallery from `first` on, gives for each gallery item the columns, among these, of its draws, and
    /// where they begin.
    #[inline(always)]
    fn places(&self, i: usize, first: usize, count: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let ((n, m), (_, items)) = (self.draws, self.size());
        (first / m..(first + count).div_ceil(m)).map(move |item| {
            let (from, to) = (first.max(item * m), (first + count).min((item + 1) * m));
            (from - first..to - first, ((i / n * items + item) * n + i % n) * m + from % m)
        })
    }

    /// All tiles of the draws: for both sides, the number of the first row, and the rows.
    #[inline(always)]
    fn tiles(&self) -> impl Iterator<Item = (Rows<'_, 'a, T>, Rows<'_, 'a, T>)> {
        let chunks = |rows| std::iter::zip((0..).step_by(ROWS), <[&'a [T]]>::chunks(rows, ROWS));
        chunks(&self.queries).flat_map(move |queries| chunks(&self.gallery).map(move |gallery| (queries, gallery)))
    }
}

/// Computes the distances of all draws, stored as in [`DrawTile::places`]. This and the next are functions of their own, the same
/// for all functions of the distances.
struct Distances<'a, 'b, T>(&'a DrawTile<'b, T>);
impl<T: Float> Kernel for Distances<'_, '_, T> {
    const LANES_MEET: bool = false;
    type Output = Vec<f64>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<f64> {
        let tile = self.0;
        let mut out = memory::filled(0.0, tile.queries.len() * tile.gallery.len());
        for ((i, queries), (j, gallery)) in tile.tiles() {
            let mut square = [[T::default(); ROWS]; ROWS];
            rows::products::<T, DIFFERENCES>(queries, gallery, &mut square);
            for (a, row) in square.iter_mut().enumerate().take(queries.len()) {
                for part in row.chunks_exact_mut(V::<S, T>::LANES) {
                    V::<S, T>::load(part).sqrt().store(part);
                }
                for (columns, place) in tile.places(i + a, j, gallery.len()) {
                    for (out, x) in out[place..].iter_mut().zip(&row[columns]) {
                        *out = x.to_f64();
                    }
                }
            }
        }
        out
    }
}

/// Adds the gradients of the draws of a tile, given the weighted derivatives by their distances.
struct AddByDistances<'a, 'b, 'c, T> {
    tile: &'a DrawTile<'b, T>,
    dim: usize,
    distances: &'a [f64],
    partials: &'a [f64],
    out: &'a mut ByItems<'c, T>,
}
impl<T: Float> Kernel for AddByDistances<'_, '_, '_, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let AddByDistances { tile, dim, distances, partials, out } = self;
        for ((i, queries), (j, gallery)) in tile.tiles() {
            let mut square = [[T::default(); ROWS]; ROWS];
            for (a, row) in square.iter_mut().enumerate().take(queries.len()) {
                for (columns, place) in tile.places(i + a, j, gallery.len()) {
                    let found = partials[place..].iter().zip(&distances[place..]);
                    for (partial, (&by_distance, &distance)) in row[columns].iter_mut().zip(found) {
                        // Draws that coincide have no direction to move in.
                        let none = distance == 0.0;
                        let by_length = T::from_f64(by_distance) / T::from_f64(if none { 1.0 } else { distance });
                        *partial = if none { T::default() } else { by_length };
                    }
                }
            }
            let rows = (tile.first.0 * tile.draws.0 + i, tile.first.1 * tile.draws.1 + j);
            let (first, second) = (rows.0 * dim, rows.1 * dim);
            match (&mut out.queries, &mut out.gallery) {
                (Some(a), Some(b)) => {
                    rows::accumulate_both(queries, gallery, &square, (&mut a[first..], &mut b[second..]));
                }
                (Some(out), None) => {
                    rows::accumulate::<T, DIFFERENCES, ROWS_FIRST>(queries, gallery, &square, &mut out[first..]);
                }
                (None, Some(out)) => {
                    rows::accumulate::<T, DIFFERENCES, OTHERS_FIRST>(gallery, queries, &square, &mut out[second..]);
                }
                (None, None) => {}
            }
        }
    }
}

/// The numbers per item are its draws.
impl<T: Normals, F: OfDistances> Comparison<T> for ByDistances<F> {
    type Query = Vec<T>;
    type Gallery = Vec<T>;

    #[inline(always)]
    fn query<S: Simd>(&self, _: usize, draws: Vec<T>) -> Vec<T> {
        draws
    }

    #[inline(always)]
    fn gallery<S: Simd>(&self, _: usize, draws: Vec<T>, _: &[T]) -> Vec<T> {
        draws
    }

    #[inline(always)]
    fn values<S: Simd>(&self, items: &Items<'_, Vec<T>, Vec<T>>, out: &mut [&mut [T]]) {
        for group in DrawTile::all(items) {
            let (mut distances, (_, gallery)) = (S::call(Distances(&group)), group.size());
            for (pair, distances) in distances.chunks_mut(group.draws.0 * group.draws.1).enumerate() {
                let value = self.0.value::<S>(distances);
                out[group.first.0 + pair / gallery][group.first.1 + pair % gallery] = T::from_f64(value);
            }
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, items: &Items<'_, Vec<T>, Vec<T>>, weights: &[&[T]], out: &mut ByItems<'_, T>) {
        for group in DrawTile::all(items) {
            let (distances, (_, gallery)) = (S::call(Distances(&group)), group.size());
            let (mut partials, size) = (memory::filled(0.0, distances.len()), group.draws.0 * group.draws.1);
            for (pair, (distances, partials)) in distances.chunks(size).zip(partials.chunks_mut(size)).enumerate() {
                let weight = weights[group.first.0 + pair / gallery][group.first.1 + pair % gallery].to_f64();
                if weight == 0.0 {
                    continue;
                }
                let by_shared = self.0.partials::<S>(distances, partials);
                for (shared, partial) in out.shared.iter_mut().zip(by_shared) {
                    *shared = *shared + T::from_f64(weight * partial);
                }
                partials.iter_mut().for_each(|partial| *partial *= weight);
            }
            let (tile, dim) = (&group, items.dim);
            S::call(AddByDistances { tile, dim, distances: &distances, partials: &partials, out });
        }
    }

    fn finite(&self, items: &Items<'_, Vec<T>, Vec<T>>) -> bool {
        rows::finite(slices(items.queries).into_iter().chain(slices(items.gallery)))
    }

    #[inline(always)]
    fn to_draws<S: Simd>(&self, _: usize, _: &Vec<T>, _: &dyn Fn() -> Vec<T>, by_query: &[T]) -> Vec<T> {
        memory::collected(by_query.iter().copied())
    }

    #[inline(always)]
    fn gallery_to_draws<S: Simd>(
        &self,
        _: usize,
        _: &Vec<T>,
        _: &dyn Fn() -> Vec<T>,
        by_gallery: &[T],
        _: &mut [T],
    ) -> Vec<T> {
        memory::collected(by_gallery.iter().copied())
    }
}

/// Minus the mean distance of draws.
pub struct MeanDistance;

impl OfDistances for MeanDistance {
    #[inline(always)]
    fn value<S: Simd>(&self, distances: &mut [f64]) -> f64 {
        -sum::<S>(distances) / distances.len() as f64
    }

    #[inline(always)]
    fn partials<S: Simd>(&self, distances: &[f64], partials: &mut [f64]) -> [f64; 2] {
        partials.fill(-1.0 / distances.len() as f64);
        [0.0; 2]
    }
}

/// The log of the mean of sigmoid(b - a distance).
pub struct MatchProbability {
    /// The slope a and the intercept b.
    pub line: (f64, f64),
}

/// Where a sum or a mean of probabilities is smaller, some of them may have lost digits to subnormal numbers.
const LEAST: f64 = 1e-280;

impl MatchProbability {
    /// Replaces distances by log sigmoid(y), y = b - a distance.
    #[inline(always)]
    fn logs<S: Simd>(&self, distances: &mut [f64]) {
        for part in distances.chunks_mut(V::<S, f64>::LANES) {
            let y = self.y::<S>(part);
            let logs = y.min(0.0) - ln::<S, f64>(1.0 + exp::<S>(-y.abs()));
            logs.store_partial(part);
        }
    }

    #[inline(always)]
    fn y<S: Simd>(&self, distances: &[f64]) -> V<S, f64> {
        let (a, b) = self.line;
        b - a * V::<S, f64>::load_partial(distances, 0.0)
    }

    /// sigmoid(y) and sigmoid(-y).
    #[inline(always)]
    fn sigmoids<S: Simd>(&self, distances: &[f64]) -> (V<S, f64>, V<S, f64>) {
        let y = self.y::<S>(distances);
        let decay = exp::<S>(-y.abs());
        let large = 1.0 / (1.0 + decay);
        let small = decay * large;
        (y.if_less(0.0, small, large), y.if_less(0.0, large, small))
    }
}

#[inline(always)]
fn sum<S: Simd>(x: &[f64]) -> f64 {
    let mut sum = AllLanes::<S, f64>::zeros();
    for (first, part) in (0..).step_by(V::<S, f64>::LANES).zip(x.chunks(V::<S, f64>::LANES)) {
        let sum = sum.at(first);
        *sum = *sum + V::<S, f64>::load_partial(part, 0.0);
    }
    sum.sum()
}

/// Replaces x by exp(x - top), where top is the greatest x; returns top and the sum.
#[inline(always)]
pub fn relative<S: Simd>(x: &mut [f64]) -> (f64, f64) {
    let top = x.iter().fold(f64::NEG_INFINITY, |top, &x| if x > top || x.is_nan() { x } else { top });
    for part in x.chunks_mut(V::<S, f64>::LANES) {
        let powers = exp::<S>(V::<S, f64>::load_partial(part, top) - top);
        powers.store_partial(part);
    }
    (top, sum::<S>(x))
}

/// The log of the mean of e^x; overwrites x.
#[inline(always)]
pub fn log_mean_exp<S: Simd>(x: &mut [f64]) -> f64 {
    if let [x] = x {
        return *x;
    }
    let (top, sum) = relative::<S>(x);
    let mean = V::<S, f64>::from(sum / x.len() as f64);
    // All x are -inf, or one is inf: there are no differences to take.
    if top.is_infinite() {
        top
    } else {
        top + ln::<S, f64>(mean).to_array()[0]
    }
}

impl OfDistances for MatchProbability {
    #[inline(always)]
    fn value<S: Simd>(&self, distances: &mut [f64]) -> f64 {
        let mut total = AllLanes::<S, f64>::zeros();
        for (first, part) in (0..).step_by(V::<S, f64>::LANES).zip(distances.chunks(V::<S, f64>::LANES)) {
            let (match_probability, _) = self.sigmoids::<S>(part);
            let total = total.at(first);
            *total = match_probability.mul_add(V::<S, f64>::load_partial(&ONES[..part.len()], 0.0), *total);
        }
        let mean = total.sum() / distances.len() as f64;
        if mean > LEAST {
            return ln::<S, f64>(V::<S, f64>::from(mean)).to_array()[0];
        }
        self.logs::<S>(distances);
        log_mean_exp::<S>(distances)
    }

    #[inline(always)]
    fn partials<S: Simd>(&self, distances: &[f64], partials: &mut [f64]) -> [f64; 2] {
        let (width, zeros) = (V::<S, f64>::LANES, AllLanes::<S, f64>::zeros());
        let (mut total, mut by_a, mut by_b) = (zeros, zeros, zeros);
        let parts = distances.chunks(width).zip(partials.chunks_mut(width));
        for (first, (distances, partials)) in (0..).step_by(width).zip(parts) {
            let (match_probability, rest) = self.sigmoids::<S>(distances);
            let beyond = V::<S, f64>::load_partial(&ONES[..distances.len()], 0.0);
            let partial = match_probability * rest * beyond;
            let (total, by_a, by_b) = (total.at(first), by_a.at(first), by_b.at(first));
            *total = match_probability.mul_add(beyond, *total);
            *by_a = partial.mul_add(V::<S, f64>::load_partial(distances, 0.0), *by_a);
            *by_b = *by_b + partial;
            partial.store_partial(partials);
        }
        let total = total.sum();
        if total > LEAST {
            partials.iter_mut().for_each(|partial| *partial *= -self.line.0 / total);
            return [-by_a.sum() / total, by_b.sum() / total];
        }
        // The probabilities are tiny: they are taken relative to the greatest, from their logs.
        partials.copy_from_slice(distances);
        self.logs::<S>(partials);
        let (_, total) = relative::<S>(partials);
        let (mut by_a, mut by_b) = (0.0, 0.0);
        for (distances, partials) in distances.chunks(width).zip(partials.chunks_mut(width)) {
            let (_, rest) = self.sigmoids::<S>(distances);
            for ((partial, rest), distance) in partials.iter_mut().zip(rest.to_array()).zip(distances) {
                let share = *partial / total * rest;
                by_a -= share * distance;
                by_b += share;
                *partial = -self.line.0 * share;
            }
        }
        [by_a, by_b]
    }
}

/// A one for each lane.
const ONES: [f64; f64::LANES] = [1.0; f64::LANES];
