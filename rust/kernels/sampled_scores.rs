//! Scores of draws: each item is drawn n times, and the draws of two items are compared.
//!
//! Draws are made inside, by the samplers, at the addresses of `rng`: the seed is the key, the row is the item's number in its
//! distribution, the stream is the item's side. So a pair has the same draws in every verb. What a comparison makes of an item's
//! draws alone, its numbers per item (a mean direction, or the draws themselves), is made once per call while there is memory for
//! it ([`CACHED`]). Gradients are those for given random numbers: with respect to numbers per item, then to draws, then through
//! the sampler, once per item. How draws are compared, by tiles of rows, is in `cosines`, `distances` and `densities`.
//!
//! Sources: mean cosine and distance of draws, "Probabilistic Embeddings Revisited" eq. 7; match probability, Oh et al. 2019
//! (HIB) eq. 2 and 5; expected likelihood of non-isotropic von Mises-Fisher, Kirchhof et al. 2022 eq. 5.

use crate::drivers::{
    by_tiles, pairs_by_items, pairs_of_part, search, segment, Best, DynKernel, Gradient, Inputs, Rows, Side, Tile,
    TileGradient, BLOCK, QUERIES,
};
use crate::error::Error;
use crate::kernels::samplers::{self, add_gradient, draw, HeightPartials, Normals, Sampler, LANES};
use crate::memory;
use crate::rng::Stream;
use crate::simd::{dispatch, Float, Kernel, Simd};
use crate::special::bessel::Order;
use crate::view::View;
use cosines::MeanCosine;
use densities::{Density, LastFactor};
use distances::{ByDistances, MatchProbability, MeanDistance};
use per_row::{Cached, PerRow};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

mod cosines;
mod densities;
mod distances;
mod kernels;
mod per_row;

pub use kernels::KERNELS;

/// How the draws of two items are compared.
pub trait Comparison<T: Float>: Sync {
    /// The numbers of a query that all of its pairs share.
    type Query: Send + Sync;
    /// The numbers of a gallery item that all of its pairs share.
    type Gallery: Send + Sync;
    /// Makes the numbers of a query from its draws [n, dim].
    fn query<S: Simd>(&self, dim: usize, draws: Vec<T>) -> Self::Query;
    /// Makes the numbers of a gallery item from its draws [n, dim] and its uncertainty (variance, concentrations ...).
    fn gallery<S: Simd>(&self, dim: usize, draws: Vec<T>, uncertainty: &[T]) -> Self::Gallery;
    /// The scores of all pairs of a few items, a row for each query.
    fn values<S: Simd>(&self, items: &Items<'_, Self::Query, Self::Gallery>, out: &mut [&mut [T]]);
    /// Adds the gradients of all pairs' scores, times `weights` [queries, gallery], to those of numbers per item and shared ones.
    fn backward<S: Simd>(
        &self,
        items: &Items<'_, Self::Query, Self::Gallery>,
        weights: &[&[T]],
        out: &mut ByItems<'_, T>,
    );
    /// Whether all numbers of the items are finite.
    fn finite(&self, items: &Items<'_, Self::Query, Self::Gallery>) -> bool;
    /// The size of the gradient with respect to an item's numbers, given how many draws there are: of a query, of a gallery item.
    fn widths(&self, dim: usize, draws: (usize, usize)) -> (usize, usize) {
        (dim * draws.0, dim * draws.1)
    }
    /// How many numbers an item has at most: a query, a gallery item.
    fn sizes(&self, dim: usize, draws: (usize, usize)) -> (usize, usize) {
        let (query, gallery) = self.widths(dim, draws);
        (2 * query, 2 * gallery)
    }
    /// Makes of the gradient with respect to a query's numbers that with respect to its draws, which `draws` makes again.
    fn to_draws<S: Simd>(&self, dim: usize, query: &Self::Query, draws: &dyn Fn() -> Vec<T>, by_query: &[T]) -> Vec<T>;
    /// [`Comparison::to_draws`] for a gallery item; adds to `uncertainty` the part of its gradient that does not go through
    /// draws.
    fn gallery_to_draws<S: Simd>(
        &self,
        dim: usize,
        gallery: &Self::Gallery,
        draws: &dyn Fn() -> Vec<T>,
        by_gallery: &[T],
        uncertainty: &mut [T],
    ) -> Vec<T>;
}

/// The numbers per item of some items of both sides, at most [`crate::rows::ROWS`] of each.
pub struct Items<'a, Q, G> {
    /// The dimension D.
    pub dim: usize,
    /// Those of the queries.
    pub queries: &'a [&'a Q],
    /// Those of the gallery items.
    pub gallery: &'a [&'a G],
}

/// Where gradients with respect to numbers per item are added up, item after item; None where they are not wanted.
pub struct ByItems<'a, T> {
    /// Gradients of the queries.
    pub queries: Option<&'a mut [T]>,
    /// Gradients of the gallery items.
    pub gallery: Option<&'a mut [T]>,
    /// Gradient with respect to the shared row; empty where it is not wanted.
    pub shared: &'a mut [T],
}

/// Calls [`Comparison::query`] on the level in use. This call and those below are dispatches of their own, so that they are not
/// compiled again for other samplers.
struct MakeQuery<'a, C, T>(&'a C, usize, Vec<T>);
impl<T: Float, C: Comparison<T>> Kernel for MakeQuery<'_, C, T> {
    const LANES_MEET: bool = false;
    type Output = C::Query;
    #[inline(always)]
    fn run<S: Simd>(self) -> C::Query {
        self.0.query::<S>(self.1, self.2)
    }
}

struct MakeGallery<'a, C, T>(&'a C, usize, Vec<T>, &'a [T]);
impl<T: Float, C: Comparison<T>> Kernel for MakeGallery<'_, C, T> {
    const LANES_MEET: bool = false;
    type Output = C::Gallery;
    #[inline(always)]
    fn run<S: Simd>(self) -> C::Gallery {
        self.0.gallery::<S>(self.1, self.2, self.3)
    }
}

struct Values<'a, 'b, T: Float, C: Comparison<T>> {
    comparison: &'a C,
    items: Items<'a, C::Query, C::Gallery>,
    out: &'a mut [&'b mut [T]],
}
impl<T: Float, C: Comparison<T>> Kernel for Values<'_, '_, T, C> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.comparison.values::<S>(&self.items, self.out);
    }
}

struct AddGradients<'a, 'b, T: Float, C: Comparison<T>> {
    comparison: &'a C,
    items: Items<'a, C::Query, C::Gallery>,
    weights: &'a [&'a [T]],
    out: &'a mut ByItems<'b, T>,
}
impl<T: Float, C: Comparison<T>> Kernel for AddGradients<'_, '_, T, C> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.comparison.backward::<S>(&self.items, self.weights, self.out);
    }
}

struct ToDraws<'a, T: Float, C: Comparison<T>>(&'a C, usize, &'a C::Query, &'a dyn Fn() -> Vec<T>, &'a [T]);
impl<T: Float, C: Comparison<T>> Kernel for ToDraws<'_, T, C> {
    const LANES_MEET: bool = false;
    type Output = Vec<T>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<T> {
        self.0.to_draws::<S>(self.1, self.2, self.3, self.4)
    }
}

struct GalleryToDraws<'a, T: Float, C: Comparison<T>>(
    &'a C,
    usize,
    &'a C::Gallery,
    &'a dyn Fn() -> Vec<T>,
    &'a [T],
    &'a mut [T],
);
impl<T: Float, C: Comparison<T>> Kernel for GalleryToDraws<'_, T, C> {
    const LANES_MEET: bool = false;
    type Output = Vec<T>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<T> {
        self.0.gallery_to_draws::<S>(self.1, self.2, self.3, self.4, self.5)
    }
}

/// The largest number of draws per item: the memory that a pair takes grows with its square.
pub const DRAWS: usize = 1024;
/// Bytes that the numbers per item of a side may take; those beyond are made for each block of pairs.
const CACHED: usize = 1 << 28;

/// A comparison of draws from the sampler `P` with draws from `R`: the family's pair function.
pub struct SampledScore<'a, T: Float, C: Comparison<T>, P, R> {
    inputs: Inputs<'a, T>,
    comparison: C,
    queries: Drawn<'a, T, P>,
    gallery: Drawn<'a, T, R>,
    of_queries: PerRow<C::Query>,
    of_gallery: PerRow<C::Gallery>,
}

impl<'a, T: Normals, C: Comparison<T>, P: Sampler, R: Sampler> SampledScore<'a, T, C, P, R> {
    /// Makes the pair function: `gallery` is the gallery's mu and uncertainty, `n` the draws per item, `first` the number of the
    /// gallery's first row, `pairs` how many are scored.
    pub fn new(
        inputs: Inputs<'a, T>,
        gallery: (View<'a, T>, View<'a, T>),
        (seed, n, first): (u64, usize, u64),
        comparison: C,
        pairs: usize,
    ) -> Self {
        let dim = inputs.mu1.stored();
        let side = |mu: View<'a, T>, uncertainty, first_row, stream| samplers::Items {
            mu,
            uncertainty,
            seed,
            first_row,
            stream,
        };
        let queries = Drawn::<T, P>::new(side(inputs.mu1, inputs.uncertainty1, 0, Stream::Query), n);
        let gallery = Drawn::<T, R>::new(side(gallery.0, gallery.1, first, Stream::Gallery), n);
        // Draws that are used less than twice, on average, cost less to be made again than to be stored.
        let sizes = comparison.sizes(dim, (queries.n, gallery.n));
        let most = |rows: usize, size: usize| {
            let bytes = size.max(1) * size_of::<T>();
            if pairs / 2 >= rows {
                CACHED / bytes
            } else {
                0
            }
        };
        let rows = (queries.items.mu.rows(), gallery.items.mu.rows());
        let of_queries = PerRow::new(rows.0, most(rows.0, sizes.0));
        let of_gallery = PerRow::new(rows.1, most(rows.1, sizes.1));
        SampledScore { inputs, comparison, queries, gallery, of_queries, of_gallery }
    }

    fn query(&self, row: usize) -> Cached<'_, C::Query> {
        let dim = self.inputs.mu1.stored();
        self.of_queries.get(row, || dispatch(MakeQuery(&self.comparison, dim, self.queries.draws(row))))
    }

    fn gallery(&self, row: usize) -> Cached<'_, C::Gallery> {
        let (dim, uncertainty) = (self.inputs.mu1.stored(), self.gallery.items.uncertainty.row(row));
        self.of_gallery.get(row, || dispatch(MakeGallery(&self.comparison, dim, self.gallery.draws(row), uncertainty)))
    }

    fn values(&self, queries: &[&C::Query], gallery: &[&C::Gallery], out: &mut [&mut [T]]) {
        let items = Items { dim: self.inputs.mu1.stored(), queries, gallery };
        dispatch(Values { comparison: &self.comparison, items, out });
    }

    fn add_gradients(&self, queries: &[&C::Query], gallery: &[&C::Gallery], weights: &[&[T]], out: &mut ByItems<T>) {
        let (dim, comparison) = (self.inputs.mu1.stored(), &self.comparison);
        let items = Items { dim, queries, gallery };
        let every = weights.iter().all(|row| row.iter().all(|weight| weight.to_f64() != 0.0));
        if every || comparison.finite(&items) {
            return dispatch(AddGradients { comparison, items, weights, out });
        }
        // A pair of weight 0 must not spread the NaN of its draws.
        let widths = comparison.widths(dim, (self.queries.n, self.gallery.n));
        for (i, query) in queries.iter().enumerate() {
            for (j, item) in gallery.iter().enumerate().filter(|(j, _)| weights[i][*j].to_f64() != 0.0) {
                let mut out = ByItems {
                    queries: out.queries.as_mut().map(|out| &mut out[i * widths.0..(i + 1) * widths.0]),
                    gallery: out.gallery.as_mut().map(|out| &mut out[j * widths.1..(j + 1) * widths.1]),
                    shared: &mut *out.shared,
                };
                let items = Items { dim, queries: &[*query], gallery: &[*item] };
                dispatch(AddGradients { comparison, items, weights: &[&weights[i][j..j + 1]], out: &mut out });
            }
        }
    }
}

/// The draws of the items of a side.
struct Drawn<'a, T, P> {
    items: samplers::Items<'a, T>,
    /// The number of draws of each item.
    n: usize,
    /// The Bessel order D/2 of the ratio that gradients of von Mises-Fisher draws take.
    order: OnceLock<Order>,
    sampler: PhantomData<P>,
}

impl<'a, T: Normals, P: Sampler> Drawn<'a, T, P> {
    fn new(items: samplers::Items<'a, T>, n: usize) -> Self {
        Drawn { items, n: if P::RANDOM { n } else { 1 }, order: OnceLock::new(), sampler: PhantomData }
    }

    /// The (row, draw) of a row's draws from number `first` on, and how many there are, at most [`LANES`].
    fn places(&self, row: usize, first: usize) -> ([(usize, usize); LANES], usize) {
        let mut at = [(row, 0); LANES];
        for (i, place) in at.iter_mut().enumerate() {
            place.1 = first + i;
        }
        (at, LANES.min(self.n - first))
    }

    /// All draws of a row, [n, D].
    fn draws(&self, row: usize) -> Vec<T> {
        let dim = self.items.mu.stored();
        let mut draws = memory::filled(T::default(), self.n * dim);
        for (part, out) in draws.chunks_mut((LANES * dim).max(1)).enumerate() {
            let (at, count) = self.places(row, part * LANES);
            draw::<P, T>(&self.items, &at[..count], out);
        }
        draws
    }

    /// Adds the gradient with respect to mean and uncertainty of a row, given that with respect to its draws.
    fn backward(&self, row: usize, by_draws: &[T], out: &mut Gradient<T>) {
        let order = self.order.get_or_init(|| Order::new(self.items.mu.stored() as f64 / 2.0));
        for (part, by_draws) in by_draws.chunks(LANES * self.items.mu.stored()).enumerate() {
            let (at, count) = self.places(row, part * LANES);
            add_gradient::<P, T>(&self.items, order, &at[..count], by_draws, out.mu, out.uncertainty);
        }
    }
}

/// Nothing here takes lanes but by the dispatches above: all of it is compiled for no level.
impl<T, C, P, R> DynKernel<T> for SampledScore<'_, T, C, P, R>
where
    T: Normals,
    C: Comparison<T>,
    P: Sampler,
    R: Sampler,
{
    fn inputs(&self) -> &Inputs<'_, T> {
        &self.inputs
    }

    fn score(&self, q: Rows, g: Rows, out: &mut [T], _: &mut [T]) {
        if let Rows::Same(i) = q {
            let (query, gallery) = (self.query(i), (0..out.len()).map(|k| self.gallery(g.at(k))).collect::<Vec<_>>());
            self.values(&[&*query], &references(&gallery), &mut [out]);
            return;
        }
        for (k, out) in out.iter_mut().enumerate() {
            let (query, gallery) = (self.query(q.at(k)), self.gallery(g.at(k)));
            self.values(&[&*query], &[&*gallery], &mut [std::slice::from_mut(out)]);
        }
    }

    fn tile(&self, tile: Tile, out: &mut [&mut [T]], _: &mut [&mut [T]]) {
        let (queries, gallery): (Vec<_>, Vec<_>) =
            (tile.queries.map(|i| self.query(i)).collect(), tile.gallery.map(|j| self.gallery(j)).collect());
        self.values(&references(&queries), &references(&gallery), out);
    }

    fn largest_part(&self) -> (usize, usize) {
        let most = pairs_of_part(self);
        let queries = (most / BLOCK).min(QUERIES);
        (queries, segment(self.inputs.mu1.stored()).min(most / queries / BLOCK * BLOCK))
    }

    fn pairwise(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        by_tiles(self, tile, out, saved);
    }

    fn backward(&self, side: Side, (q, g): (Rows, Rows), _: &[usize], weights: &[T], out: &mut Gradient<T>) {
        let (item, others) = if side == Side::Query { (q, g) } else { (g, q) };
        let row = item.at(0);
        let mut by_per_item = memory::filled(T::default(), self.per_item_width(side).unwrap_or(0));
        let places = 0..weights.len();
        if side == Side::Query {
            let (query, gallery) = (self.query(row), places.map(|k| self.gallery(others.at(k))).collect::<Vec<_>>());
            let mut by_items = ByItems { queries: Some(&mut by_per_item), gallery: None, shared: &mut *out.shared };
            self.add_gradients(&[&*query], &references(&gallery), &[weights], &mut by_items);
        } else {
            let (queries, gallery) = (places.map(|k| self.query(others.at(k))).collect::<Vec<_>>(), self.gallery(row));
            let mut by_items = ByItems { queries: None, gallery: Some(&mut by_per_item), shared: &mut *out.shared };
            let weights: Vec<_> = weights.chunks(1).collect();
            self.add_gradients(&references(&queries), &[&*gallery], &weights, &mut by_items);
        }
        self.finish(side, row, &by_per_item, out);
    }

    fn backward_tile(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        let weights: Vec<_> = (0..weights.rows()).map(|k| weights.row(k)).collect();
        let (queries, gallery): (Vec<_>, Vec<_>) =
            (tile.queries.map(|i| self.query(i)).collect(), tile.gallery.map(|j| self.gallery(j)).collect());
        let mut by_items = ByItems {
            queries: out.query.as_mut().map(|out| &mut *out.mu),
            gallery: out.gallery.as_mut().map(|out| &mut *out.mu),
            shared: &mut *out.shared,
        };
        self.add_gradients(&references(&queries), &references(&gallery), &weights, &mut by_items);
    }

    fn backward_paired(&self, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
        pairs_by_items(self, rows, weights, out);
    }

    fn per_item_width(&self, side: Side) -> Option<usize> {
        let widths = self.comparison.widths(self.inputs.mu1.stored(), (self.queries.n, self.gallery.n));
        Some(if side == Side::Query { widths.0 } else { widths.1 })
    }

    fn finish(&self, side: Side, row: usize, by_per_item: &[T], out: &mut Gradient<T>) {
        // An item of which no pair has a weight may have draws that are not finite.
        if by_per_item.iter().all(|x| x.to_f64() == 0.0) {
            return;
        }
        let dim = self.inputs.mu1.stored();
        if side == Side::Query {
            let (query, draws) = (self.query(row), || self.queries.draws(row));
            let by_draws = dispatch(ToDraws(&self.comparison, dim, &*query, &draws, by_per_item));
            self.queries.backward(row, &by_draws, out);
        } else {
            let (gallery, draws) = (self.gallery(row), || self.gallery.draws(row));
            let by_draws =
                dispatch(GalleryToDraws(&self.comparison, dim, &*gallery, &draws, by_per_item, &mut *out.uncertainty));
            self.gallery.backward(row, &by_draws, out);
        }
    }

    fn search(&self, best: Best<T>) -> Result<usize, Error> {
        search(self, best)
    }
}

/// References to the numbers of items.
fn references<'a, I>(items: &'a [Cached<'_, I>]) -> Vec<&'a I> {
    items.iter().map(|item| &**item).collect()
}

/// The numbers of items as slices.
fn slices<'a, T>(items: &[&'a Vec<T>]) -> Vec<&'a [T]> {
    items.iter().map(|item| &item[..]).collect()
}

/// The sampler of an item that is its own only draw.
pub struct Itself;

impl Sampler for Itself {
    const RANDOM: bool = false;

    #[inline(always)]
    fn forward<S: Simd, T: Normals>(items: &samplers::Items<T>, at: &[(usize, usize)], out: &mut [T]) {
        for (&(row, _), out) in at.iter().zip(out.chunks_mut(items.mu.stored())) {
            out.copy_from_slice(items.mu.row(row));
        }
    }

    #[inline(always)]
    fn partials<S: Simd, T: Normals>(
        _: &samplers::Items<T>,
        _: &Order,
        _: &[(usize, usize)],
    ) -> [HeightPartials; LANES] {
        [HeightPartials::default(); LANES]
    }

    #[inline(always)]
    fn backward<S: Simd, T: Normals>(
        _: &samplers::Items<T>,
        _: (usize, usize),
        _: &HeightPartials,
        weights: &[T],
        mu: &mut [T],
        _: &mut [T],
    ) {
        for (mu, &weight) in mu.iter_mut().zip(weights) {
            *mu = *mu + weight;
        }
    }
}
