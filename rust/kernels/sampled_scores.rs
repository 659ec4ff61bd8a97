//! Scores of draws: each item is drawn n times, and the draws of two items are compared.
//!
//! Draws are made inside, by the samplers and from the addresses of `rng`: key the seed, row the item's number in its
//! distribution, stream its side. So a pair has the same draws in every verb, and nothing of the size of n galleries is ever
//! kept; an item that several pairs in a row share is drawn once for them. Gradients are those of the drawn function: by each
//! draw, then through the sampler. How draws are compared is in `distances` and `densities`.
//!
//! Sources: mean cosine and distance of draws, "Probabilistic Embeddings Revisited" eq. 7; match probability, Oh et al. 2019
//! (HIB) eq. 2 and 5; expected likelihood of non-isotropic von Mises-Fisher, Kirchhof et al. 2022 eq. 5.

use crate::kernels::samplers::{add_gradient, draw, Items, Normals, Sampler, Slope, LANES};
use crate::rng::Stream;
use crate::shapes::{Gradient, Inputs, PairKernel, Rows, Side};
use crate::simd::{dispatch, Kernel, Simd};
use crate::view::View;
use std::marker::PhantomData;

mod densities;
mod distances;

pub use densities::Density;
pub use distances::{ByDistances, MatchProbability, MeanCosine, MeanDistance};

/// The draws of a pair, rows of D, and the gallery item's extra.
pub struct Pair<'a, T> {
    /// D.
    pub dim: usize,
    /// Of the query.
    pub query: &'a [T],
    /// Of the gallery item.
    pub gallery: &'a [T],
    /// Its variance, concentrations ...
    pub extra: &'a [T],
}

/// How the draws of two items are compared.
pub trait Comparison<T>: Sync {
    /// The score.
    fn value<S: Simd>(&self, pair: &Pair<T>) -> f64;
    /// Adds `weight` times its gradient by the draws of one side to `draws`, and what does not go through them: by the extra of
    /// a gallery item that is not drawn, by the shared row (empty where not wanted).
    fn backward<S: Simd>(
        &self,
        side: Side,
        pair: &Pair<T>,
        weight: f64,
        draws: &mut [T],
        extra: &mut [T],
        shared: &mut [T],
    );
}

/// [`Comparison::value`]; a dispatch of its own, as is [`Slopes`], so that it is not compiled again for other samplers.
struct Value<'a, C, T> {
    comparison: &'a C,
    pair: &'a Pair<'a, T>,
}
impl<T, C: Comparison<T>> Kernel for Value<'_, C, T> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self) -> f64 {
        self.comparison.value::<S>(self.pair)
    }
}

/// [`Comparison::backward`].
struct Slopes<'a, C, T> {
    comparison: &'a C,
    side: Side,
    pair: &'a Pair<'a, T>,
    weight: f64,
    draws: &'a mut [T],
    extra: &'a mut [T],
    shared: &'a mut [T],
}
impl<T, C: Comparison<T>> Kernel for Slopes<'_, C, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.comparison.backward::<S>(self.side, self.pair, self.weight, self.draws, self.extra, self.shared);
    }
}

/// A comparison of draws from the sampler `P` with draws from `R`: the family's pair function.
pub struct SampledScore<'a, T, C, P, R> {
    inputs: Inputs<'a, T>,
    gallery: (View<'a, T>, View<'a, T>),
    seed: u64,
    draws: usize,
    comparison: C,
    samplers: PhantomData<(P, R)>,
}

impl<'a, T: Normals, C, P: Sampler, R: Sampler> SampledScore<'a, T, C, P, R> {
    /// From its parts, of which `gallery` is that of the inputs; so many draws of each item.
    pub fn new(
        inputs: Inputs<'a, T>,
        gallery: (View<'a, T>, View<'a, T>),
        (seed, draws): (u64, usize),
        comparison: C,
    ) -> Self {
        SampledScore { inputs, gallery, seed, draws, comparison, samplers: PhantomData }
    }

    fn queries(&self) -> Drawn<'a, T, P> {
        let Inputs { mu1: mu, extra1: extra, .. } = self.inputs;
        let items = Items { mu, extra, seed: self.seed, first_row: 0, stream: Stream::Query };
        Drawn::new(items, self.draws)
    }

    fn gallery(&self) -> Drawn<'a, T, R> {
        let (mu, extra) = self.gallery;
        let items = Items { mu, extra, seed: self.seed, first_row: 0, stream: Stream::Gallery };
        Drawn::new(items, self.draws)
    }
}

/// The draws of one item of a side.
struct Drawn<'a, T, P> {
    items: Items<'a, T>,
    row: Option<usize>,
    draws: Vec<T>,
    sampler: PhantomData<P>,
}

impl<'a, T: Normals, P: Sampler> Drawn<'a, T, P> {
    fn new(items: Items<'a, T>, draws: usize) -> Self {
        let n = if P::RANDOM { draws } else { 1 };
        Drawn { items, row: None, draws: vec![T::default(); n * items.mu.stored()], sampler: PhantomData }
    }

    /// Places of the draws from number `first` on, and how many they are.
    fn places(&self, row: usize, first: usize) -> ([(usize, usize); LANES], usize) {
        let n = self.draws.len() / self.items.mu.stored();
        let mut at = [(row, 0); LANES];
        for (i, place) in at.iter_mut().enumerate() {
            place.1 = first + i;
        }
        (at, LANES.min(n - first))
    }

    /// Makes the draws those of a row.
    fn set(&mut self, row: usize) {
        if self.row == Some(row) {
            return;
        }
        let width = LANES * self.items.mu.stored();
        for part in 0..self.draws.len().div_ceil(width) {
            let (at, count) = self.places(row, part * LANES);
            let end = self.draws.len().min((part + 1) * width);
            draw::<P, T>(&self.items, &at[..count], &mut self.draws[part * width..end]);
        }
        self.row = Some(row);
    }

    /// Takes the gradient by the draws of a row to its mean and extra.
    fn backward(&self, row: usize, by_draws: &[T], out: &mut Gradient<T>) {
        for (part, by_draws) in by_draws.chunks(LANES * self.items.mu.stored()).enumerate() {
            let (at, count) = self.places(row, part * LANES);
            add_gradient::<P, T>(&self.items, &at[..count], by_draws, out.mu, out.extra);
        }
    }
}

impl<T, C, P, R> PairKernel<T> for SampledScore<'_, T, C, P, R>
where
    T: Normals,
    C: Comparison<T>,
    P: Sampler,
    R: Sampler,
{
    fn inputs(&self) -> &Inputs<'_, T> {
        &self.inputs
    }

    #[inline(always)]
    fn score<S: Simd>(&self, q: Rows, g: Rows, out: &mut [T]) {
        let (mut query, mut gallery) = (self.queries(), self.gallery());
        for (k, out) in out.iter_mut().enumerate() {
            query.set(q.at(k));
            gallery.set(g.at(k));
            let (dim, extra) = (self.inputs.mu1.stored(), self.gallery.1.row(g.at(k)));
            let pair = Pair { dim, query: &query.draws, gallery: &gallery.draws, extra };
            *out = T::from_f64(dispatch(Value { comparison: &self.comparison, pair: &pair }));
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, side: Side, q: Rows, g: Rows, weights: &[T], out: &mut Gradient<T>) {
        let (mut query, mut gallery) = (self.queries(), self.gallery());
        let mut by_draws = vec![T::default(); if side == Side::Query { &query.draws } else { &gallery.draws }.len()];
        // A pair that does not count must not spread the NaN of its draws.
        let counts = |(_, weight): &(usize, f64)| *weight != 0.0;
        for (k, weight) in weights.iter().map(|weight| weight.to_f64()).enumerate().filter(counts) {
            query.set(q.at(k));
            gallery.set(g.at(k));
            let (dim, extra) = (self.inputs.mu1.stored(), self.gallery.1.row(g.at(k)));
            let pair = Pair { dim, query: &query.draws, gallery: &gallery.draws, extra };
            let (draws, extra, shared) = (&mut by_draws[..], &mut *out.extra, &mut *out.shared);
            dispatch(Slopes { comparison: &self.comparison, side, pair: &pair, weight, draws, extra, shared });
        }
        match (side, query.row, gallery.row) {
            (Side::Query, Some(row), _) => query.backward(row, &by_draws, out),
            (Side::Gallery, _, Some(row)) => gallery.backward(row, &by_draws, out),
            _ => {}
        }
    }
}

/// An item that is its own one draw.
pub struct Itself;

impl Sampler for Itself {
    const RANDOM: bool = false;

    #[inline(always)]
    fn forward<S: Simd, T: Normals>(items: &Items<T>, at: &[(usize, usize)], out: &mut [T]) {
        for (&(row, _), out) in at.iter().zip(out.chunks_mut(items.mu.stored())) {
            out.copy_from_slice(items.mu.row(row));
        }
    }

    #[inline(always)]
    fn slopes<S: Simd, T: Normals>(_: &Items<T>, _: &[(usize, usize)]) -> [Slope; LANES] {
        [Slope::default(); LANES]
    }

    #[inline(always)]
    fn backward<S: Simd, T: Normals>(
        _: &Items<T>,
        _: (usize, usize),
        _: &Slope,
        weights: &[T],
        mu: &mut [T],
        _: &mut [T],
    ) {
        for (mu, &weight) in mu.iter_mut().zip(weights) {
            *mu = *mu + weight;
        }
    }
}
