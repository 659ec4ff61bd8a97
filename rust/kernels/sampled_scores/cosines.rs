//! The mean cosine of all pairs of two items' draws: the inner product of the two means of unit draws.

use super::{ByItems, Comparison, Items};
use crate::kernels::dot_scores::lengths::{in_range, product, Power};
use crate::kernels::samplers::Normals;
use crate::memory;
use crate::rows::{self, reduce, OTHERS_FIRST, PRODUCTS, ROWS, ROWS_FIRST};
use crate::simd::{Float, Simd};

/// Mean cosine of all pairs of draws.
pub struct MeanCosine {
    /// Whether an item stores its draws, which its gradient would otherwise make again.
    pub save: bool,
}

/// The mean direction of an item's draws, and the draws if they are stored.
pub struct Mean<T> {
    direction: Vec<T>,
    draws: Vec<T>,
}

fn directions<'a, T>(items: &[&'a Mean<T>]) -> Vec<&'a [T]> {
    items.iter().map(|item| &item.direction[..]).collect()
}

/// The mean of the directions of draws [n, dim].
#[inline(always)]
fn mean_direction<S: Simd, T: Normals>(draws: &[T], dim: usize) -> Vec<T> {
    let mut mean = memory::filled(T::default(), dim);
    let share = 1.0 / (draws.len() / dim) as f64;
    for draw in draws.chunks_exact(dim) {
        let square = reduce::<S, T, PRODUCTS>(draw, draw);
        if in_range::<T>(square.to_f64()) {
            let by_length = T::from_f64(share) / T::sqrt(square);
            for (mean, &x) in mean.iter_mut().zip(draw) {
                *mean = *mean + by_length * x;
            }
        } else {
            add_direction(&mut mean, draw, square.to_f64(), share);
        }
    }
    mean
}

/// Adds the share of a direction whose squared length is not in range; a draw of zeros has none.
#[cold]
#[inline(never)]
fn add_direction<T: Float>(mean: &mut [T], draw: &[T], square: f64, share: f64) {
    let power = Power::of(draw, square);
    let length = product((draw, power), (draw, power)).sqrt();
    for (mean, &x) in mean.iter_mut().zip(draw).filter(|_| length != 0.0) {
        *mean = *mean + T::from_f64(share * (power.times(x.to_f64()) / length));
    }
}

/// The gradient with respect to such a draw; 0 for zeros.
#[cold]
#[inline(never)]
fn by_far_draw<T: Float>(draw: &[T], square: f64, share: f64, by_mean: &[T]) -> Vec<T> {
    let power = Power::of(draw, square);
    let length = product((draw, power), (draw, power)).sqrt();
    if length == 0.0 {
        return memory::filled(T::default(), draw.len());
    }
    let unit = |x: &T| power.times(x.to_f64()) / length;
    let along: f64 = draw.iter().zip(by_mean).map(|(x, y)| unit(x) * y.to_f64()).sum();
    let by_unit = |(x, y): (&T, &T)| share / length * (y.to_f64() - along * unit(x));
    memory::collected(draw.iter().zip(by_mean).map(|pair| T::from_f64(power.times(by_unit(pair)))))
}

/// The gradient with respect to draws, given that with respect to their mean direction; draws not stored are made again.
#[inline(always)]
fn by_draws<S: Simd, T: Normals>(dim: usize, item: &Mean<T>, draws: &dyn Fn() -> Vec<T>, by_mean: &[T]) -> Vec<T> {
    let again = if item.draws.is_empty() { draws() } else { Vec::new() };
    let draws = if item.draws.is_empty() { &again } else { &item.draws };
    let mut out = memory::room(draws.len());
    let share = T::from_f64(1.0 / (draws.len() / dim) as f64);
    for draw in draws.chunks_exact(dim) {
        let square = reduce::<S, T, PRODUCTS>(draw, draw);
        if !in_range::<T>(square.to_f64()) {
            out.extend(by_far_draw(draw, square.to_f64(), share.to_f64(), by_mean));
            continue;
        }
        let (scale, along) = (share / T::sqrt(square), reduce::<S, T, PRODUCTS>(draw, by_mean) / square);
        out.extend(draw.iter().zip(by_mean).map(|(&x, &y)| scale * (y - along * x)));
    }
    out
}

/// The numbers per item are the mean direction of its draws.
impl<T: Normals> Comparison<T> for MeanCosine {
    type Query = Mean<T>;
    type Gallery = Mean<T>;

    #[inline(always)]
    fn query<S: Simd>(&self, dim: usize, draws: Vec<T>) -> Mean<T> {
        let direction = mean_direction::<S, T>(&draws, dim);
        Mean { direction, draws: if self.save { draws } else { Vec::new() } }
    }

    #[inline(always)]
    fn gallery<S: Simd>(&self, dim: usize, draws: Vec<T>, _: &[T]) -> Mean<T> {
        Comparison::<T>::query::<S>(self, dim, draws)
    }

    #[inline(always)]
    fn values<S: Simd>(&self, items: &Items<'_, Mean<T>, Mean<T>>, out: &mut [&mut [T]]) {
        let (queries, gallery) = (directions(items.queries), directions(items.gallery));
        let mut products = [[T::default(); ROWS]; ROWS];
        rows::products::<T, PRODUCTS>(&queries, &gallery, &mut products);
        for (out, products) in out.iter_mut().zip(&products) {
            let within = |x: T| if x.to_f64().abs() > 1.0 { T::from_f64(x.to_f64().signum()) } else { x };
            out.iter_mut().zip(products).for_each(|(out, &x)| *out = within(x));
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, items: &Items<'_, Mean<T>, Mean<T>>, weights: &[&[T]], out: &mut ByItems<'_, T>) {
        let (queries, gallery) = (directions(items.queries), directions(items.gallery));
        let mut square = [[T::default(); ROWS]; ROWS];
        square.iter_mut().zip(weights).for_each(|(out, weights)| out[..weights.len()].copy_from_slice(weights));
        if let Some(out) = &mut out.queries {
            rows::accumulate::<T, PRODUCTS, ROWS_FIRST>(&queries, &gallery, &square, out);
        }
        if let Some(out) = &mut out.gallery {
            rows::accumulate::<T, PRODUCTS, OTHERS_FIRST>(&gallery, &queries, &square, out);
        }
    }

    fn finite(&self, items: &Items<'_, Mean<T>, Mean<T>>) -> bool {
        rows::finite(directions(items.queries).into_iter().chain(directions(items.gallery)))
    }

    fn widths(&self, dim: usize, _: (usize, usize)) -> (usize, usize) {
        (dim, dim)
    }

    fn sizes(&self, dim: usize, draws: (usize, usize)) -> (usize, usize) {
        let stored = if self.save { draws } else { (0, 0) };
        (dim * (1 + stored.0), dim * (1 + stored.1))
    }

    #[inline(always)]
    fn to_draws<S: Simd>(&self, dim: usize, query: &Mean<T>, draws: &dyn Fn() -> Vec<T>, by_query: &[T]) -> Vec<T> {
        by_draws::<S, T>(dim, query, draws, by_query)
    }

    #[inline(always)]
    fn gallery_to_draws<S: Simd>(
        &self,
        dim: usize,
        item: &Mean<T>,
        draws: &dyn Fn() -> Vec<T>,
        by_gallery: &[T],
        _: &mut [T],
    ) -> Vec<T> {
        by_draws::<S, T>(dim, item, draws, by_gallery)
    }
}
