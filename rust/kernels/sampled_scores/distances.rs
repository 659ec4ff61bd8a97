//! Draws compared by their cosines or distances, all of one side with all of the other.
//!
//! - Mean cosine: the mean over all pairs is the inner product of the two means of unit draws.
//! - Mean distance (of length, not squared: the mean square has a closed form) and match probability, the log of the mean
//!   sigmoid(b - a d): functions of the matrix of distances, [`OfDistances`].

use super::{Comparison, Pair};
use crate::kernels::samplers::Normals;
use crate::rows::reduce;
use crate::shapes::Side;
use crate::simd::{Float, Lanes, Simd, V};
use crate::special::exp::exp;
use crate::special::log::ln;

impl<I> Pair<'_, I, I> {
    /// One side and the other.
    fn seen_from(&self, side: Side) -> (&I, &I) {
        if side == Side::Query {
            (self.query, self.gallery)
        } else {
            (self.gallery, self.query)
        }
    }
}

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
    fn value<S: Simd>(&self, _: usize, query: &Vec<T>, gallery: &Vec<T>) -> f64 {
        reduce::<S, T, false>(query, gallery).to_f64()
    }

    #[inline(always)]
    fn backward<S: Simd>(
        &self,
        side: Side,
        pair: &Pair<'_, Vec<T>, Vec<T>>,
        weight: f64,
        by_item: &mut [T],
        _: &mut [T],
        _: &mut [T],
    ) {
        let (_, other) = pair.seen_from(side);
        let weight = T::from_f64(weight);
        for (out, &y) in by_item.iter_mut().zip(other) {
            *out = *out + weight * y;
        }
    }

    fn width(&self, dim: usize, _: usize) -> usize {
        dim
    }

    #[inline(always)]
    fn to_draws<S: Simd>(&self, dim: usize, draws: &[T], by_item: Vec<T>) -> Vec<T> {
        let mut out = Vec::with_capacity(draws.len());
        let share = T::from_f64(1.0 / (draws.len() / dim) as f64);
        for draw in draws.chunks_exact(dim) {
            let square = reduce::<S, T, false>(draw, draw);
            let (scale, along) = (share / T::sqrt(square), reduce::<S, T, false>(draw, &by_item) / square);
            out.extend(draw.iter().zip(&by_item).map(|(&x, &y)| scale * (y - along * x)));
        }
        out
    }
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

/// [number of own draws, number of other draws]
#[inline(always)]
fn distances<S: Simd, T: Float>(own: &[T], other: &[T], dim: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(own.len() / dim * (other.len() / dim));
    for a in own.chunks_exact(dim) {
        for b in other.chunks_exact(dim) {
            out.push(reduce::<S, T, true>(a, b).to_f64());
        }
    }
    for part in out.chunks_mut(f64::LANES) {
        let roots = V::<S, f64>::load_partial(part, 0.0).sqrt().to_array();
        part.copy_from_slice(&roots[..part.len()]);
    }
    out
}

/// Adds `sum over b of weights[b] (a - b)` to `out`, b the rows of `others`.
#[inline(always)]
fn add_differences<S: Simd, T: Float>(a: &[T], others: &[T], weights: &[T], out: &mut [T]) {
    let dim = a.len();
    for from in (0..dim).step_by(T::LANES) {
        let to = dim.min(from + T::LANES);
        let (x, zero) = (V::<S, T>::load_partial(&a[from..to], T::default()), T::default());
        let mut sum = V::<S, T>::load_partial(&out[from..to], zero);
        for (b, &weight) in others.chunks_exact(dim).zip(weights) {
            let y = V::<S, T>::load_partial(&b[from..to], zero);
            sum = V::<S, T>::splat(weight).mul_add(x - y, sum);
        }
        out[from..to].copy_from_slice(&sum.to_array()[..to - from]);
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
    fn value<S: Simd>(&self, dim: usize, query: &Vec<T>, gallery: &Vec<T>) -> f64 {
        self.0.value::<S>(&mut distances::<S, T>(query, gallery, dim))
    }

    #[inline(always)]
    fn backward<S: Simd>(
        &self,
        side: Side,
        pair: &Pair<'_, Vec<T>, Vec<T>>,
        weight: f64,
        by_item: &mut [T],
        _: &mut [T],
        shared: &mut [T],
    ) {
        let (own, other) = pair.seen_from(side);
        let distances = distances::<S, T>(own, other, pair.dim);
        let mut slopes = distances.clone();
        let by_shared = self.0.slopes::<S>(&mut slopes);
        for (shared, slope) in shared.iter_mut().zip(by_shared) {
            *shared = *shared + T::from_f64(weight * slope);
        }
        let pairs = own.chunks_exact(pair.dim).zip(by_item.chunks_exact_mut(pair.dim));
        let matrix = distances.chunks(other.len() / pair.dim).zip(slopes.chunks(other.len() / pair.dim));
        let mut weights = Vec::with_capacity(other.len() / pair.dim);
        for ((a, out), (distances, slopes)) in pairs.zip(matrix) {
            weights.clear();
            // Draws that coincide have no direction to move in.
            weights.extend(
                distances.iter().zip(slopes).map(|(&distance, &slope)| {
                    T::from_f64(if distance == 0.0 { 0.0 } else { weight * slope / distance })
                }),
            );
            add_differences::<S, T>(a, other, &weights, out);
        }
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

impl MatchProbability {
    /// log sigmoid(y), y = b - a distance, in the place of the distances.
    #[inline(always)]
    fn logs<S: Simd>(&self, distances: &mut [f64]) {
        for part in distances.chunks_mut(f64::LANES) {
            let (y, rest) = self.rest::<S>(part);
            let logs = y.min(V::<S, f64>::splat(0.0)) - rest;
            part.copy_from_slice(&logs.to_array()[..part.len()]);
        }
    }

    /// y and log(1 + exp(-|y|)).
    #[inline(always)]
    fn rest<S: Simd>(&self, distances: &[f64]) -> (V<S, f64>, V<S, f64>) {
        let (a, b) = (V::<S, f64>::splat(self.line.0), V::<S, f64>::splat(self.line.1));
        let y = b - a * V::<S, f64>::load_partial(distances, 0.0);
        (y, ln::<S, f64>(V::<S, f64>::splat(1.0) + exp::<S>(-y.abs())))
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
        self.logs::<S>(distances);
        log_mean_exp::<S>(distances)
    }

    #[inline(always)]
    fn slopes<S: Simd>(&self, distances: &mut [f64]) -> [f64; 2] {
        let zero = V::<S, f64>::splat(0.0);
        let (mut shares, mut opposite) = (distances.to_vec(), distances.to_vec());
        for (shares, opposite) in shares.chunks_mut(f64::LANES).zip(opposite.chunks_mut(f64::LANES)) {
            let (y, rest) = self.rest::<S>(shares);
            // sigmoid(-y) = 1 - sigmoid(y)
            let away = exp::<S>((-y).min(zero) - rest);
            shares.copy_from_slice(&(y.min(zero) - rest).to_array()[..shares.len()]);
            opposite.copy_from_slice(&away.to_array()[..opposite.len()]);
        }
        let (_, sum) = relative::<S>(&mut shares);
        let (mut by_a, mut by_b) = (0.0, 0.0);
        for ((distance, share), away) in distances.iter_mut().zip(shares).zip(opposite) {
            let rest = share / sum * away;
            by_a -= rest * *distance;
            by_b += rest;
            *distance = -self.line.0 * rest;
        }
        [by_a, by_b]
    }
}
