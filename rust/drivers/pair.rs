//! The interface between a family of scores and the drivers.

use super::{search, segment, tiles, Best, Gradient, Inputs, Rows, Side, Tile, TileGradient};
use crate::error::Error;
use crate::simd::{dispatch, Float, Kernel, Simd};
use crate::topk::TopK;
use crate::view::View;
use std::ops::Range;

/// A family's pair function that is compiled for each SIMD level. Its methods that are generic over the level must be
/// `#[inline(always)]`.
pub trait PairKernel: Sync + Sized {
    /// The type of the rows.
    type Elem: Float;

    /// The arrays that it reads.
    fn inputs(&self) -> &Inputs<'_, Self::Elem>;

    /// Writes the scores of the pairs (`q.at(k)`, `g.at(k)`) to `out[k]`, at most [`BLOCK`] of them.
    fn score<S: Simd>(&self, q: Rows, g: Rows, out: &mut [Self::Elem]);

    /// [`PairKernel::score`]; `saved`, unless it is empty, takes a number of each pair that saves work to the pair's gradient.
    #[inline(always)]
    fn score_saving<S: Simd>(&self, q: Rows, g: Rows, out: &mut [Self::Elem], _saved: &mut [Self::Elem]) {
        self.score::<S>(q, g, out);
    }

    /// Adds `weights[k]` times the gradient of the score of the pair (`q.at(k)`, `g.at(k)`), for all k in order, to the
    /// gradient of the one item that they share: the query `q` of [`Side::Query`], the gallery row `g` of [`Side::Gallery`].
    /// `places` are the positions of the pairs among the scores, and so among their saved numbers; empty where these are not used.
    fn backward<S: Simd>(
        &self,
        side: Side,
        pairs: (Rows, Rows),
        places: &[usize],
        weights: &[Self::Elem],
        out: &mut Gradient<Self::Elem>,
    );

    /// The scores of a tile, a row of `out` for each query, and what is saved of them, unless `saved` has no rows. Overridden
    /// where a family has a faster way to the same bits; the default saves nothing.
    #[inline(always)]
    fn tile<S: Simd>(&self, tile: Tile, out: &mut [&mut [Self::Elem]], _saved: &mut [&mut [Self::Elem]]) {
        for (i, out) in tile.queries.zip(out) {
            DynKernel::score(self, Rows::Same(i), Rows::From(tile.gallery.start), out, &mut []);
        }
    }

    /// The queries and the gallery rows of one part of the work of [`PairKernel::pairwise`], at most: more where parts are packed.
    fn largest_part(&self) -> (usize, usize) {
        (tiles::QUERIES, segment(self.inputs().dim()))
    }

    /// The scores of any number of queries and of gallery rows, as [`PairKernel::tile`]. Overridden where a family has a faster way
    /// to scores that need not have the same bits, but are the same in whichever part of the work.
    #[inline(always)]
    fn pairwise<S: Simd>(&self, tile: Tile, out: &mut [&mut [Self::Elem]], saved: &mut [&mut [Self::Elem]]) {
        tiles::by_tiles(self, tile, out, saved);
    }

    /// Adds the gradients of the items of a tile; `weights` are those of its pairs.
    fn backward_tile<S: Simd>(&self, tile: Tile, weights: &View<Self::Elem>, out: &mut TileGradient<Self::Elem>);

    /// Adds the gradients of the items `rows` of both sides over pairs of equal rows.
    fn backward_paired<S: Simd>(&self, rows: Range<usize>, weights: &[Self::Elem], out: &mut TileGradient<Self::Elem>);

    /// The best k of a query's candidates, found sooner than by scoring all of them; None where the family has no such way.
    fn best_listed(&self, _query: usize, _rows: &[usize], _k: usize) -> Option<TopK<Self::Elem>> {
        None
    }

    /// Exact top-k of all queries over the whole gallery; overridden where a family has a faster way to the same result. Returns
    /// how many pairs were scored by the pair function: the others cannot be among the best.
    fn search(&self, best: Best<Self::Elem>) -> Result<usize, Error> {
        search(self, best)
    }
}

/// A score of pairs as the drivers see it: a [`PairKernel`] on the SIMD level in use, or a family that takes lanes by dispatches
/// of its own alone. Drivers take it as `dyn`, so that they are compiled once for all scores.
pub trait DynKernel<T>: Sync {
    /// See [`PairKernel::inputs`].
    fn inputs(&self) -> &Inputs<'_, T>;
    /// See [`PairKernel::score_saving`].
    fn score(&self, q: Rows, g: Rows, out: &mut [T], saved: &mut [T]);
    /// See [`PairKernel::backward`].
    fn backward(&self, side: Side, pairs: (Rows, Rows), places: &[usize], weights: &[T], out: &mut Gradient<T>);
    /// See [`PairKernel::tile`].
    fn tile(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]);
    /// See [`PairKernel::largest_part`].
    fn largest_part(&self) -> (usize, usize);
    /// See [`PairKernel::pairwise`].
    fn pairwise(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]);
    /// See [`PairKernel::backward_tile`].
    fn backward_tile(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>);
    /// See [`PairKernel::backward_paired`].
    fn backward_paired(&self, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>);
    /// Where a family finds gradients with respect to numbers that it makes of each item alone, such as its draws: how many
    /// there are per item. `backward_tile` then adds these gradients up in place of those with respect to mu, and
    /// [`DynKernel::finish`] applies the chain rule.
    fn per_item_width(&self, _side: Side) -> Option<usize> {
        None
    }
    /// Adds the gradient of an item, given the gradient `by_per_item` with respect to its numbers per item.
    fn finish(&self, _side: Side, _row: usize, _by_per_item: &[T], _out: &mut Gradient<T>) {}
    /// See [`PairKernel::best_listed`].
    fn best_listed(&self, _query: usize, _rows: &[usize], _k: usize) -> Option<TopK<T>> {
        None
    }
    /// See [`PairKernel::search`].
    fn search(&self, best: Best<T>) -> Result<usize, Error>;
}

impl<T: Float, P: PairKernel<Elem = T>> DynKernel<T> for P {
    fn inputs(&self) -> &Inputs<'_, T> {
        PairKernel::inputs(self)
    }
    fn score(&self, q: Rows, g: Rows, out: &mut [T], saved: &mut [T]) {
        dispatch(Score(self, (q, g, out, saved)));
    }
    fn backward(&self, side: Side, pairs: (Rows, Rows), places: &[usize], weights: &[T], out: &mut Gradient<T>) {
        dispatch(Backward(self, (side, pairs, places, weights, out)));
    }
    fn tile(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        dispatch(ScoreTile(self, (tile, out, saved)));
    }
    fn largest_part(&self) -> (usize, usize) {
        PairKernel::largest_part(self)
    }
    fn pairwise(&self, tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]) {
        dispatch(Pairwise(self, (tile, out, saved)));
    }
    fn backward_tile(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        dispatch(BackwardTile(self, (tile, weights, out)));
    }
    fn backward_paired(&self, rows: Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
        dispatch(BackwardPaired(self, (rows, weights, out)));
    }
    fn best_listed(&self, query: usize, rows: &[usize], k: usize) -> Option<TopK<T>> {
        PairKernel::best_listed(self, query, rows, k)
    }
    fn search(&self, best: Best<T>) -> Result<usize, Error> {
        PairKernel::search(self, best)
    }
}

/// Defines a kernel that calls a method of a pair function on the level in use, with these arguments.
macro_rules! call_on_level {
    ($name:ident, $method:ident, LANES_MEET = $meet:literal, ($($argument:ident: $type:ty),+)) => {
        struct $name<'a, P, A>(&'a P, A);
        impl<T: Float, P: PairKernel<Elem = T>> Kernel for $name<'_, P, ($($type),+)> {
            const LANES_MEET: bool = $meet;
            type Output = ();
            #[inline(always)]
            fn run<S: Simd>(self) {
                let ($($argument),+) = self.1;
                self.0.$method::<S>($($argument),+);
            }
        }
    };
}

call_on_level!(Score, score_saving, LANES_MEET = false, (q: Rows<'_>, g: Rows<'_>, out: &mut [T], saved: &mut [T]));
call_on_level!(Backward, backward, LANES_MEET = true,
    (side: Side, pairs: (Rows<'_>, Rows<'_>), places: &[usize], weights: &[T], out: &mut Gradient<'_, T>));
call_on_level!(ScoreTile, tile, LANES_MEET = true, (tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]));
call_on_level!(Pairwise, pairwise, LANES_MEET = true, (tile: Tile, out: &mut [&mut [T]], saved: &mut [&mut [T]]));
call_on_level!(BackwardTile, backward_tile, LANES_MEET = true,
    (tile: Tile, weights: &View<'_, T>, out: &mut TileGradient<'_, T>));
call_on_level!(BackwardPaired, backward_paired, LANES_MEET = true,
    (rows: Range<usize>, weights: &[T], out: &mut TileGradient<'_, T>));
