//! Scores of draws: each item is drawn n times, and the draws of two items are compared.
//!
//! Draws are made inside, by the samplers and from the addresses of `rng`: key the seed, row the item's number in its
//! distribution, stream its side. So a pair has the same draws in every verb. What a comparison makes of an item's draws, a mean
//! direction or the draws themselves, is made once for a call and kept while there is memory for it ([`KEPT`]). Gradients are those
//! of the drawn function: by what was made of the draws, by each draw, then through the sampler. How draws are compared is in
//! `distances` and `densities`.
//!
//! Sources: mean cosine and distance of draws, "Probabilistic Embeddings Revisited" eq. 7; match probability, Oh et al. 2019
//! (HIB) eq. 2 and 5; expected likelihood of non-isotropic von Mises-Fisher, Kirchhof et al. 2022 eq. 5.

use crate::kernels::samplers::{add_gradient, draw, Items, Normals, Sampler, Slope, LANES};
use crate::rng::Stream;
use crate::shapes::{Gradient, Inputs, PairKernel, Rows, Side};
use crate::simd::{dispatch, Kernel, Simd};
use crate::view::View;
use per_row::{Kept, PerRow};
use std::marker::PhantomData;

mod densities;
mod distances;
mod per_row;

pub use densities::Density;
pub use distances::{ByDistances, MatchProbability, MeanCosine, MeanDistance};

/// How the draws of two items are compared.
pub trait Comparison<T>: Sync {
    /// What it makes of the draws of a query, once for all pairs.
    type Query: Send + Sync;
    /// What it makes of those of a gallery item, and of its variance, concentrations ...
    type Gallery: Send + Sync;
    /// From draws, rows of `dim`.
    fn query<S: Simd>(&self, dim: usize, draws: Vec<T>) -> Self::Query;
    /// The same of a gallery item.
    fn gallery<S: Simd>(&self, dim: usize, draws: Vec<T>, extra: &[T]) -> Self::Gallery;
    /// The score.
    fn value<S: Simd>(&self, dim: usize, query: &Self::Query, gallery: &Self::Gallery) -> f64;
    /// Adds `weight` times its gradient by one side to `by_item`, and what does not go through draws: by the extra of a gallery
    /// item that is not drawn, by the shared row (empty where not wanted).
    fn backward<S: Simd>(
        &self,
        side: Side,
        pair: &Pair<'_, Self::Query, Self::Gallery>,
        weight: f64,
        by_item: &mut [T],
        extra: &mut [T],
        shared: &mut [T],
    );
    /// How many numbers `by_item` has, for so many draws.
    fn width(&self, dim: usize, draws: usize) -> usize {
        dim * draws
    }
    /// Makes the gradient by the draws of an item of that by the item.
    fn to_draws<S: Simd>(&self, _dim: usize, _draws: &[T], by_item: Vec<T>) -> Vec<T> {
        by_item
    }
}

/// What is made of the items of a pair.
pub struct Pair<'a, Q, G> {
    /// D.
    pub dim: usize,
    /// Of the query.
    pub query: &'a Q,
    /// Of the gallery item.
    pub gallery: &'a G,
}

/// Methods of a [`Comparison`] on the level in use; dispatches of their own, so that they are not compiled again for other
/// samplers.
struct MakeQuery<'a, C, T>(&'a C, usize, Vec<T>);
impl<T, C: Comparison<T>> Kernel for MakeQuery<'_, C, T> {
    type Output = C::Query;
    #[inline(always)]
    fn run<S: Simd>(self) -> C::Query {
        self.0.query::<S>(self.1, self.2)
    }
}

struct MakeGallery<'a, C, T>(&'a C, usize, Vec<T>, &'a [T]);
impl<T, C: Comparison<T>> Kernel for MakeGallery<'_, C, T> {
    type Output = C::Gallery;
    #[inline(always)]
    fn run<S: Simd>(self) -> C::Gallery {
        self.0.gallery::<S>(self.1, self.2, self.3)
    }
}

struct Value<'a, T, C: Comparison<T>>(&'a C, Pair<'a, C::Query, C::Gallery>);
impl<T, C: Comparison<T>> Kernel for Value<'_, T, C> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self) -> f64 {
        self.0.value::<S>(self.1.dim, self.1.query, self.1.gallery)
    }
}

struct Slopes<'a, T, C: Comparison<T>> {
    comparison: &'a C,
    side: Side,
    pair: Pair<'a, C::Query, C::Gallery>,
    weight: f64,
    by_item: &'a mut [T],
    extra: &'a mut [T],
    shared: &'a mut [T],
}
impl<T, C: Comparison<T>> Kernel for Slopes<'_, T, C> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.comparison.backward::<S>(self.side, &self.pair, self.weight, self.by_item, self.extra, self.shared);
    }
}

struct ToDraws<'a, C, T>(&'a C, usize, &'a [T], Vec<T>);
impl<T, C: Comparison<T>> Kernel for ToDraws<'_, C, T> {
    type Output = Vec<T>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<T> {
        self.0.to_draws::<S>(self.1, self.2, self.3)
    }
}

/// Bytes of a side's items that a call keeps; those beyond are made for each block of pairs.
const KEPT: usize = 1 << 28;

/// A comparison of draws from the sampler `P` with draws from `R`: the family's pair function.
pub struct SampledScore<'a, T, C: Comparison<T>, P, R> {
    inputs: Inputs<'a, T>,
    comparison: C,
    queries: Drawn<'a, T, P>,
    gallery: Drawn<'a, T, R>,
    of_queries: PerRow<C::Query>,
    of_gallery: PerRow<C::Gallery>,
}

impl<'a, T: Normals, C: Comparison<T>, P: Sampler, R: Sampler> SampledScore<'a, T, C, P, R> {
    /// From its parts, of which `gallery` is that of the inputs; so many draws of each item.
    pub fn new(
        inputs: Inputs<'a, T>,
        gallery: (View<'a, T>, View<'a, T>),
        (seed, n): (u64, usize),
        comparison: C,
    ) -> Self {
        let dim = inputs.mu1.stored();
        let side = |mu: View<'a, T>, extra, stream| Items { mu, extra, seed, first_row: 0, stream };
        let queries = Drawn::<T, P>::new(side(inputs.mu1, inputs.extra1, Stream::Query), n);
        let gallery = Drawn::<T, R>::new(side(gallery.0, gallery.1, Stream::Gallery), n);
        // What one item of the other side alone asks for is asked for once.
        let most = |others: usize, draws| {
            let bytes = 2 * comparison.width(dim, draws).max(1) * size_of::<T>();
            if others > 1 {
                KEPT / bytes
            } else {
                0
            }
        };
        let of_queries = PerRow::new(queries.items.mu.rows(), most(gallery.items.mu.rows(), queries.n));
        let of_gallery = PerRow::new(gallery.items.mu.rows(), most(queries.items.mu.rows(), gallery.n));
        SampledScore { inputs, comparison, queries, gallery, of_queries, of_gallery }
    }

    fn query(&self, row: usize) -> Kept<'_, C::Query> {
        let dim = self.inputs.mu1.stored();
        self.of_queries.get(row, || dispatch(MakeQuery(&self.comparison, dim, self.queries.draws(row))))
    }

    fn gallery(&self, row: usize) -> Kept<'_, C::Gallery> {
        let (dim, extra) = (self.inputs.mu1.stored(), self.gallery.items.extra.row(row));
        self.of_gallery.get(row, || dispatch(MakeGallery(&self.comparison, dim, self.gallery.draws(row), extra)))
    }
}

/// The draws of the items of a side.
struct Drawn<'a, T, P> {
    items: Items<'a, T>,
    /// Of each item.
    n: usize,
    sampler: PhantomData<P>,
}

impl<'a, T: Normals, P: Sampler> Drawn<'a, T, P> {
    fn new(items: Items<'a, T>, n: usize) -> Self {
        Drawn { items, n: if P::RANDOM { n } else { 1 }, sampler: PhantomData }
    }

    /// Places of the draws from number `first` on, and how many they are.
    fn places(&self, row: usize, first: usize) -> ([(usize, usize); LANES], usize) {
        let mut at = [(row, 0); LANES];
        for (i, place) in at.iter_mut().enumerate() {
            place.1 = first + i;
        }
        (at, LANES.min(self.n - first))
    }

    /// Those of a row.
    fn draws(&self, row: usize) -> Vec<T> {
        let dim = self.items.mu.stored();
        let mut draws = vec![T::default(); self.n * dim];
        for (part, out) in draws.chunks_mut((LANES * dim).max(1)).enumerate() {
            let (at, count) = self.places(row, part * LANES);
            draw::<P, T>(&self.items, &at[..count], out);
        }
        draws
    }

    /// Takes the gradient by the draws of a row to its mean and extra.
    fn backward(&self, row: usize, by_draws: &[T], out: &mut Gradient<T>) {
        for (part, by_draws) in by_draws.chunks(LANES * self.items.mu.stored()).enumerate() {
            let (at, count) = self.places(row, part * LANES);
            add_gradient::<P, T>(&self.items, &at[..count], by_draws, out.mu, out.extra);
        }
    }
}

/// The last value that was asked for, by its row.
struct Last<'a, I>(Option<(usize, Kept<'a, I>)>);

impl<'a, I> Last<'a, I> {
    #[inline(always)]
    fn set(&mut self, row: usize, get: impl FnOnce() -> Kept<'a, I>) -> &I {
        if self.0.as_ref().is_none_or(|(last, _)| *last != row) {
            self.0 = None;
        }
        &self.0.get_or_insert_with(|| (row, get())).1
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
        let (dim, mut query, mut gallery) = (self.inputs.mu1.stored(), Last(None), Last(None));
        for (k, out) in out.iter_mut().enumerate() {
            let (i, j) = (q.at(k), g.at(k));
            let (query, gallery) = (query.set(i, || self.query(i)), gallery.set(j, || self.gallery(j)));
            *out = T::from_f64(dispatch(Value(&self.comparison, Pair { dim, query, gallery })));
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, side: Side, q: Rows, g: Rows, weights: &[T], out: &mut Gradient<T>) {
        let (dim, mut query, mut gallery) = (self.inputs.mu1.stored(), Last(None), Last(None));
        let n = if side == Side::Query { self.queries.n } else { self.gallery.n };
        let mut by_item = vec![T::default(); self.comparison.width(dim, n)];
        let mut row = None;
        // A pair that does not count must not spread the NaN of its draws.
        let counts = |(_, weight): &(usize, f64)| *weight != 0.0;
        for (k, weight) in weights.iter().map(|weight| weight.to_f64()).enumerate().filter(counts) {
            let (i, j) = (q.at(k), g.at(k));
            row = Some(if side == Side::Query { i } else { j });
            let (query, gallery) = (query.set(i, || self.query(i)), gallery.set(j, || self.gallery(j)));
            let (by_item, extra, shared) = (&mut by_item[..], &mut *out.extra, &mut *out.shared);
            let pair = Pair { dim, query, gallery };
            dispatch(Slopes { comparison: &self.comparison, side, pair, weight, by_item, extra, shared });
        }
        let Some(row) = row else { return };
        let draws = if side == Side::Query { self.queries.draws(row) } else { self.gallery.draws(row) };
        let by_draws = dispatch(ToDraws(&self.comparison, dim, &draws, by_item));
        if side == Side::Query {
            self.queries.backward(row, &by_draws, out);
        } else {
            self.gallery.backward(row, &by_draws, out);
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
