//! Draws compared by their cosines or distances, all of one side with all of the other.
//!
//! - Mean cosine: the mean over all pairs is the inner product of the two means of unit draws.
//! - Mean distance (of length, not squared: the mean square has a closed form) and match probability, the log of the mean
//!   sigmoid(b - a d): functions of the matrix of distances, [`OfDistances`].

use super::{ByItems, Comparison, Items};
use crate::kernels::samplers::Normals;
use crate::rows::{self, reduce, ROWS};
use crate::simd::{Float, Lanes, Simd, V};
use crate::special::exp::exp;
use crate::special::log::ln;

/// Mean cosine of all pairs of draws.
pub struct MeanCosine;

/// The mean of the directions of draws.
#[inline(always)]
fn mean_direction<S: Simd, T: Normals>(draws: &[T], dim: usize) -> Vec<T> {
    let mut mean = vec![T::default(); dim];
    let share = 1.0 / (draws.len() / dim) as f64;
    for draw in draws.chunks_exact(dim) {
        let by_length = T::from_f64(share) / T::sqrt(reduce::<S, T, false>(draw, draw));
        for (mean, &x) in mean.iter_mut().zip(draw) {
            *mean = *mean + by_length * x;
        }
    }
    mean
}

/// The gradient by draws, given that by the mean of their directions.
#[inline(always)]
fn by_draws<S: Simd, T: Normals>(dim: usize, draws: &[T], by_mean: &[T]) -> Vec<T> {
    let mut out = Vec::with_capacity(draws.len());
    let share = T::from_f64(1.0 / (draws.len() / dim) as f64);
    for draw in draws.chunks_exact(dim) {
        let square = reduce::<S, T, false>(draw, draw);
        let (scale, along) = (share / T::sqrt(square), reduce::<S, T, false>(draw, by_mean) / square);
        out.extend(draw.iter().zip(by_mean).map(|(&x, &y)| scale * (y - along * x)));
    }
    out
}

/// An item is the mean direction of its draws.
impl<T: Normals> Comparison<T> for MeanCosine {
    type Query = Vec<T>;
    type Gallery = Vec<T>;

    #[inline(always)]
    fn query<S: Simd>(&self, dim: usize, draws: Vec<T>) -> Vec<T> {
        mean_direction::<S, T>(&draws, dim)
    }

    #[inline(always)]
    fn gallery<S: Simd>(&self, dim: usize, draws: Vec<T>, _: &[T]) -> Vec<T> {
        mean_direction::<S, T>(&draws, dim)
    }

    #[inline(always)]
    fn values<S: Simd>(&self, items: &Items<'_, Vec<T>, Vec<T>>, out: &mut [&mut [T]]) {
        let (queries, gallery) = (slices(items.queries), slices(items.gallery));
        let mut products = [[T::default(); ROWS]; ROWS];
        rows::products::<T, false>(&queries, &gallery, &mut products);
        for (out, products) in out.iter_mut().zip(&products) {
            out.copy_from_slice(&products[..gallery.len()]);
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, items: &Items<'_, Vec<T>, Vec<T>>, weights: &[&[T]], out: &mut ByItems<'_, T>) {
        let (queries, gallery) = (slices(items.queries), slices(items.gallery));
        let mut square = [[T::default(); ROWS]; ROWS];
        square.iter_mut().zip(weights).for_each(|(out, weights)| out[..weights.len()].copy_from_slice(weights));
        if let Some(out) = &mut out.queries {
            rows::pull::<T, false, true>(&queries, &gallery, &square, out);
        }
        if let Some(out) = &mut out.gallery {
            rows::pull::<T, false, false>(&gallery, &queries, &square, out);
        }
    }

    fn finite(&self, items: &Items<'_, Vec<T>, Vec<T>>) -> bool {
        rows::finite(slices(items.queries).into_iter().chain(slices(items.gallery)))
    }

    fn widths(&self, dim: usize, _: (usize, usize)) -> (usize, usize) {
        (dim, dim)
    }

    #[inline(always)]
    fn to_draws<S: Simd>(&self, dim: usize, _: &Vec<T>, draws: &dyn Fn() -> Vec<T>, by_query: &[T]) -> Vec<T> {
        by_draws::<S, T>(dim, &draws(), by_query)
    }

    #[inline(always)]
    fn gallery_to_draws<S: Simd>(
        &self,
        dim: usize,
        _: &Vec<T>,
        draws: &dyn Fn() -> Vec<T>,
        by_gallery: &[T],
        _: &mut [T],
    ) -> Vec<T> {
        by_draws::<S, T>(dim, &draws(), by_gallery)
    }
}

/// Items as slices.
fn slices<'a, T>(items: &[&'a Vec<T>]) -> Vec<&'a [T]> {
    items.iter().map(|item| &item[..]).collect()
}

/// A function of the distances of all pairs of draws.
pub trait OfDistances: Sync {
    /// The value; leaves anything in `distances`.
    fn value<S: Simd>(&self, distances: &mut [f64]) -> f64;
    /// Makes derivatives by the distances of them; returns those by the shared numbers.
    fn slopes<S: Simd>(&self, distances: &mut [f64]) -> [f64; 2];
}

/// The comparison of draws by their distances.
pub struct ByDistances<F>(pub F);

/// Some queries and some gallery items, whose draws make a tile, or a query and an item of many draws.
struct Group<'a, T> {
    /// Their numbers among the items.
    first: (usize, usize),
    /// How many draws each has.
    draws: (usize, usize),
    /// The draws.
    queries: Vec<&'a [T]>,
    gallery: Vec<&'a [T]>,
}

impl<'a, T: Float> Group<'a, T> {
    /// All groups that pairs fall into.
    fn all(items: &Items<'a, Vec<T>, Vec<T>>) -> Vec<Self> {
        let (Some(query), Some(item)) = (items.queries.first(), items.gallery.first()) else { return Vec::new() };
        let draws = (query.len() / items.dim, item.len() / items.dim);
        let (wide, high) = ((ROWS / draws.0).max(1), (ROWS / draws.1).max(1));
        let rows = |items_of: &[&'a Vec<T>]| items_of.iter().flat_map(|item| item.chunks_exact(items.dim)).collect();
        let mut out = Vec::new();
        for (a, queries) in items.queries.chunks(wide).enumerate() {
            for (b, gallery) in items.gallery.chunks(high).enumerate() {
                let (queries, gallery) = (rows(queries), rows(gallery));
                out.push(Group { first: (a * wide, b * high), draws, queries, gallery });
            }
        }
        out
    }

    /// How many queries and gallery items.
    fn size(&self) -> (usize, usize) {
        (self.queries.len() / self.draws.0, self.gallery.len() / self.draws.1)
    }

    /// Where the distance of two draws stands: pair after pair, a row for each draw of the query.
    #[inline(always)]
    fn place(&self, i: usize, j: usize) -> usize {
        let ((n, m), (_, items)) = (self.draws, self.size());
        ((i / n * items + j / m) * n + i % n) * m + j % m
    }

    /// All tiles of the draws: their first rows and their rows.
    #[inline(always)]
    fn tiles(&self) -> impl Iterator<Item = ((usize, &[&'a [T]]), (usize, &[&'a [T]]))> {
        let chunks = |rows| std::iter::zip((0..).step_by(ROWS), <[&'a [T]]>::chunks(rows, ROWS));
        chunks(&self.queries).flat_map(move |queries| chunks(&self.gallery).map(move |gallery| (queries, gallery)))
    }

    /// The distances of all draws.
    #[inline(always)]
    fn distances<S: Simd>(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.queries.len() * self.gallery.len()];
        for ((i, queries), (j, gallery)) in self.tiles() {
            let mut square = [[T::default(); ROWS]; ROWS];
            rows::products::<T, true>(queries, gallery, &mut square);
            for (a, row) in square.iter().enumerate().take(queries.len()) {
                for (b, x) in row.iter().enumerate().take(gallery.len()) {
                    out[self.place(i + a, j + b)] = x.to_f64();
                }
            }
        }
        for part in out.chunks_mut(f64::LANES) {
            let roots = V::<S, f64>::load_partial(part, 0.0).sqrt().to_array();
            part.copy_from_slice(&roots[..part.len()]);
        }
        out
    }
}

/// An item is its draws.
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
        for group in Group::all(items) {
            let (mut distances, (_, gallery)) = (group.distances::<S>(), group.size());
            for (pair, distances) in distances.chunks_mut(group.draws.0 * group.draws.1).enumerate() {
                let value = self.0.value::<S>(distances);
                out[group.first.0 + pair / gallery][group.first.1 + pair % gallery] = T::from_f64(value);
            }
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, items: &Items<'_, Vec<T>, Vec<T>>, weights: &[&[T]], out: &mut ByItems<'_, T>) {
        for group in Group::all(items) {
            let (distances, (_, gallery)) = (group.distances::<S>(), group.size());
            let mut slopes = distances.clone();
            let pairs = slopes.chunks_mut(group.draws.0 * group.draws.1);
            for ((pair, slopes), distances) in pairs.enumerate().zip(distances.chunks(group.draws.0 * group.draws.1)) {
                let weight = weights[group.first.0 + pair / gallery][group.first.1 + pair % gallery].to_f64();
                let by_shared = self.0.slopes::<S>(slopes);
                for (shared, slope) in out.shared.iter_mut().zip(by_shared).filter(|_| weight != 0.0) {
                    *shared = *shared + T::from_f64(weight * slope);
                }
                for (slope, &distance) in slopes.iter_mut().zip(distances) {
                    // Draws that coincide have no direction to move in.
                    *slope = if weight == 0.0 || distance == 0.0 { 0.0 } else { weight * *slope / distance };
                }
            }
            for ((i, queries), (j, gallery)) in group.tiles() {
                let mut square = [[T::default(); ROWS]; ROWS];
                for (a, row) in square.iter_mut().enumerate().take(queries.len()) {
                    for (b, slope) in row.iter_mut().enumerate().take(gallery.len()) {
                        *slope = T::from_f64(slopes[group.place(i + a, j + b)]);
                    }
                }
                let rows = (group.first.0 * group.draws.0 + i, group.first.1 * group.draws.1 + j);
                if let Some(out) = &mut out.queries {
                    rows::pull::<T, true, true>(queries, gallery, &square, &mut out[rows.0 * items.dim..]);
                }
                if let Some(out) = &mut out.gallery {
                    rows::pull::<T, true, false>(gallery, queries, &square, &mut out[rows.1 * items.dim..]);
                }
            }
        }
    }

    fn finite(&self, items: &Items<'_, Vec<T>, Vec<T>>) -> bool {
        rows::finite(slices(items.queries).into_iter().chain(slices(items.gallery)))
    }

    #[inline(always)]
    fn to_draws<S: Simd>(&self, _: usize, _: &Vec<T>, _: &dyn Fn() -> Vec<T>, by_query: &[T]) -> Vec<T> {
        by_query.to_vec()
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
        by_gallery.to_vec()
    }
}

/// Minus the mean distance.
pub struct MeanDistance;

impl OfDistances for MeanDistance {
    #[inline(always)]
    fn value<S: Simd>(&self, distances: &mut [f64]) -> f64 {
        -sum::<S>(distances) / distances.len() as f64
    }

    #[inline(always)]
    fn slopes<S: Simd>(&self, distances: &mut [f64]) -> [f64; 2] {
        let slope = -1.0 / distances.len() as f64;
        distances.fill(slope);
        [0.0; 2]
    }
}

/// Log of the mean of sigmoid(b - a distance).
pub struct MatchProbability {
    /// a and b
    pub line: (f64, f64),
}

/// A sum of probabilities below which some may have lost digits to subnormal numbers.
const LEAST: f64 = 1e-280;

impl MatchProbability {
    /// log sigmoid(y), y = b - a distance, in the place of the distances.
    #[inline(always)]
    fn logs<S: Simd>(&self, distances: &mut [f64]) {
        let (zero, one) = (V::<S, f64>::splat(0.0), V::<S, f64>::splat(1.0));
        for part in distances.chunks_mut(f64::LANES) {
            let y = self.y::<S>(part);
            let logs = y.min(zero) - ln::<S, f64>(one + exp::<S>(-y.abs()));
            part.copy_from_slice(&logs.to_array()[..part.len()]);
        }
    }

    #[inline(always)]
    fn y<S: Simd>(&self, distances: &[f64]) -> V<S, f64> {
        let (a, b) = (V::<S, f64>::splat(self.line.0), V::<S, f64>::splat(self.line.1));
        b - a * V::<S, f64>::load_partial(distances, 0.0)
    }

    /// sigmoid(y) and sigmoid(-y).
    #[inline(always)]
    fn sigmoids<S: Simd>(&self, distances: &[f64]) -> (V<S, f64>, V<S, f64>) {
        let (zero, one, y) = (V::<S, f64>::splat(0.0), V::<S, f64>::splat(1.0), self.y::<S>(distances));
        let decay = exp::<S>(-y.abs());
        let large = one / (one + decay);
        let small = decay * large;
        (y.if_less(zero, small, large), y.if_less(zero, large, small))
    }
}

#[inline(always)]
fn sum<S: Simd>(x: &[f64]) -> f64 {
    let mut sum = V::<S, f64>::splat(0.0);
    for part in x.chunks(f64::LANES) {
        sum = sum + V::<S, f64>::load_partial(part, 0.0);
    }
    sum.sum()
}

/// exp(x - the largest x) in the place of x; returns the largest and the sum.
#[inline(always)]
pub fn relative<S: Simd>(x: &mut [f64]) -> (f64, f64) {
    let top = x.iter().fold(f64::NEG_INFINITY, |top, &x| if x > top || x.is_nan() { x } else { top });
    for part in x.chunks_mut(f64::LANES) {
        let powers = exp::<S>(V::<S, f64>::load_partial(part, top) - V::<S, f64>::splat(top));
        part.copy_from_slice(&powers.to_array()[..part.len()]);
    }
    (top, sum::<S>(x))
}

/// log of the mean of e^x
#[inline(always)]
pub fn log_mean_exp<S: Simd>(x: &mut [f64]) -> f64 {
    if let [x] = x {
        return *x;
    }
    let (top, sum) = relative::<S>(x);
    let mean = V::<S, f64>::splat(sum / x.len() as f64);
    // All -inf, or one inf: no differences to take.
    if top.is_infinite() {
        top
    } else {
        top + ln::<S, f64>(mean).to_array()[0]
    }
}

impl OfDistances for MatchProbability {
    #[inline(always)]
    fn value<S: Simd>(&self, distances: &mut [f64]) -> f64 {
        let mut total = V::<S, f64>::splat(0.0);
        for part in distances.chunks(f64::LANES) {
            let (match_probability, _) = self.sigmoids::<S>(part);
            total = total + V::<S, f64>::load_partial(&match_probability.to_array()[..part.len()], 0.0);
        }
        let mean = total.sum() / distances.len() as f64;
        if mean > LEAST {
            return ln::<S, f64>(V::<S, f64>::splat(mean)).to_array()[0];
        }
        self.logs::<S>(distances);
        log_mean_exp::<S>(distances)
    }

    #[inline(always)]
    fn slopes<S: Simd>(&self, distances: &mut [f64]) -> [f64; 2] {
        let (mut shares, mut opposite) = (distances.to_vec(), distances.to_vec());
        for (shares, opposite) in shares.chunks_mut(f64::LANES).zip(opposite.chunks_mut(f64::LANES)) {
            let (match_probability, rest) = self.sigmoids::<S>(shares);
            shares.copy_from_slice(&match_probability.to_array()[..shares.len()]);
            opposite.copy_from_slice(&rest.to_array()[..opposite.len()]);
        }
        let mut total = sum::<S>(&shares);
        if !(total > LEAST) {
            shares.copy_from_slice(distances);
            self.logs::<S>(&mut shares);
            total = relative::<S>(&mut shares).1;
        }
        let (mut by_a, mut by_b) = (0.0, 0.0);
        for ((distance, share), away) in distances.iter_mut().zip(shares).zip(opposite) {
            let rest = share / total * away;
            by_a -= rest * *distance;
            by_b += rest;
            *distance = -self.line.0 * rest;
        }
        [by_a, by_b]
    }
}
