//! Inner products in register tiles. The gallery lies in panels of `T::LANES` rows, one row per lane: no sum crosses lanes.
//!
//! Two panels lie together, element by element: `[d][panel][lane]`. The sums of a tile of queries times panels stay in
//! registers while `d` runs once over both. A sum adds one fused multiply-add per dimension to what it starts with, so with
//! unit roundoff u an inner product errs by at most `(D u + O(u^2)) (|a| |b| + |start|)`.

use crate::simd::{dispatch, Float, Kernel, Simd, V};
use crate::view::{Matrix, View};
use std::ops::Range;

/// A prepared gallery: its rows as panels, sorted so that rows of similar uncertainties are neighbours.
#[derive(Clone, Copy)]
pub struct Packed<'a, T> {
    /// All rows as panels, in the order of `order`.
    pub panels: &'a [T],
    /// The squared norm of the row at each position of the panels, as the pair function computes it [G].
    pub norms: &'a [T],
    /// The row at each position, sorted by uncertainty, NaN last [G].
    pub order: &'a [i64],
}

/// The number of rows, rounded up to whole pairs of panels.
pub fn padded<T: Float>(rows: usize) -> usize {
    rows.div_ceil(2 * T::LANES) * 2 * T::LANES
}

/// Packs the rows `row(position)` for all positions in `range` as panels: `padded(range.len()) * D` elements, with zeros for
/// the missing rows.
pub fn pack<T: Float>(rows: &Matrix<T>, range: Range<usize>, row: impl Fn(usize) -> usize, panels: &mut [T]) {
    /// Columns that are transposed at once: a square of them stays in the first-level cache, and is written in whole lines.
    const COLUMNS: usize = 16;
    let (dim, width) = (rows.stored(), 2 * T::LANES);
    let mut buffers = [const { Vec::new() }; 32];
    for (pair, first) in panels.chunks_mut((width * dim).max(1)).zip((range.start..).step_by(width)) {
        let mut sources: [&[T]; 32] = [&[]; 32];
        for ((place, source), buffer) in (first..range.end).zip(&mut sources[..width]).zip(&mut buffers) {
            *source = rows.row(row(place), buffer);
        }
        for (block, out) in pair.chunks_mut(COLUMNS * width).enumerate() {
            let (from, columns) = (block * COLUMNS, out.len() / width);
            let mut square = [[T::default(); COLUMNS]; 32];
            for (square, source) in square.iter_mut().zip(&sources).filter(|(_, source)| !source.is_empty()) {
                square[..columns].copy_from_slice(&source[from..from + columns]);
            }
            for (column, out) in out.chunks_exact_mut(width).enumerate() {
                for (out, square) in out.iter_mut().zip(&square) {
                    *out = square[column];
                }
            }
        }
    }
}

/// Queries in tiles as wide as the SIMD level takes, element by element: `[tile][d][query]`, padded with zeros; the last tile
/// is narrower where few queries remain.
pub struct QueryTiles<T> {
    data: Vec<T>,
    dim: usize,
    width: usize,
    /// The width of the last tile.
    last: usize,
}

impl<T: Float> QueryTiles<T> {
    /// Packs the rows `range` of a view with at least one column.
    pub fn new(view: &View<T>, range: Range<usize>) -> Self {
        let (width, dim) = (tile_queries(), view.stored());
        let last = match range.len() % width {
            1 => 1,
            left if (2..=width / 3).contains(&left) => width / 3,
            _ => width,
        };
        let whole = range.len() / width * width;
        let padded = whole + if range.len() > whole { last } else { 0 };
        let mut data = vec![T::default(); padded * dim];
        for (k, i) in range.enumerate() {
            let tile = if k < whole { width } else { last };
            for (d, &x) in view.row(i).iter().enumerate() {
                data[k / width * width * dim + d * tile + k % width] = x;
            }
        }
        QueryTiles { data, dim, width, last }
    }

    /// The number of queries with padding.
    pub fn padded(&self) -> usize {
        self.data.len() / self.dim
    }
}

/// The number of queries in a tile on the SIMD level in use.
fn tile_queries() -> usize {
    struct Width;
    impl Kernel for Width {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd>(self) -> usize {
            S::TILE.1
        }
    }
    dispatch(Width)
}

/// What is done with the inner products of one query and the rows of one panel, both counted from the first packed one.
pub trait Epilogue<T: Float> {
    /// A limit for each query, padding included: a panel whose products are all below it is not visited.
    fn limits(&self) -> &[T];
    /// Takes the products of a query and a panel, of which one is not below the limit (or NaN); the first `T::LANES` count.
    fn visit(&mut self, query: usize, panel: usize, products: &[T; 16]);
}

/// Computes the inner products of all packed queries with all panels; each row's sum begins with that row's number in `starts`.
pub fn products<T: Float>(queries: &QueryTiles<T>, panels: &[T], starts: &[T], epilogue: &mut dyn Epilogue<T>) {
    dispatch(Products { queries, panels, starts, epilogue });
}

struct Products<'a, T> {
    queries: &'a QueryTiles<T>,
    panels: &'a [T],
    starts: &'a [T],
    epilogue: &'a mut dyn Epilogue<T>,
}
impl<T: Float> Kernel for Products<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Products { queries, panels, starts, epilogue } = self;
        let QueryTiles { data, dim, width, last } = queries;
        for (t, tile) in data.chunks(dim * width).enumerate() {
            let few = tile.len() < dim * width;
            let work = Tile { first: t * width, queries: tile, dim: *dim, panels, starts, epilogue: &mut *epilogue };
            match (S::TILE, if few { *last } else { *width }) {
                ((2, 12), 12) => tiles::<S, T, 2, 12>(work),
                ((2, 12), 4) => tiles::<S, T, 2, 4>(work),
                ((2, 12), _) => tiles::<S, T, 2, 1>(work),
                ((1, 6), 6) => tiles::<S, T, 1, 6>(work),
                ((1, 6), 2) | (_, 2) => tiles::<S, T, 1, 2>(work),
                _ => tiles::<S, T, 1, 1>(work),
            }
        }
    }
}

/// One tile of queries and all panels.
struct Tile<'a, T> {
    first: usize,
    queries: &'a [T],
    dim: usize,
    panels: &'a [T],
    starts: &'a [T],
    epilogue: &'a mut dyn Epilogue<T>,
}

#[inline(always)]
fn tiles<S: Simd, T: Float, const P: usize, const Q: usize>(work: Tile<T>) {
    let Tile { first: first_query, queries: tile, dim, panels, starts, epilogue } = work;
    let width = 2 * T::LANES;
    for (g, (pair, starts)) in panels.chunks_exact(dim * width).zip(starts.chunks_exact(width)).enumerate() {
        for first in (0..2).step_by(P) {
            let mut sums = [[V::<S, T>::from(0.0); P]; Q];
            for p in 0..P {
                let start = V::<S, T>::load(&starts[(first + p) * T::LANES..(first + p + 1) * T::LANES]);
                for q in 0..Q {
                    sums[q][p] = start;
                }
            }
            for (y, x) in tile.chunks_exact(Q).zip(pair.chunks_exact(width)) {
                let mut rows = [V::<S, T>::from(0.0); P];
                for p in 0..P {
                    rows[p] = V::<S, T>::load(&x[(first + p) * T::LANES..(first + p + 1) * T::LANES]);
                }
                for q in 0..Q {
                    let y = V::<S, T>::splat(y[q]);
                    for p in 0..P {
                        sums[q][p] = y.mul_add(rows[p], sums[q][p]);
                    }
                }
            }
            // Only loops of constant length over little code may access the sums: if a variable index or a function that is not
            // inlined reached them, they would live in memory and be stored there at each step.
            let limits = &epilogue.limits()[first_query..first_query + Q];
            let mut visits = 0_u32;
            for q in 0..Q {
                for p in 0..P {
                    let below = sums[q][p].not_less_bits(V::<S, T>::splat(limits[q])) == 0;
                    visits |= u32::from(!below) << (q * P + p);
                }
            }
            if visits != 0 {
                let mut products = [[[T::default(); 16]; P]; Q];
                for q in 0..Q {
                    for p in 0..P {
                        products[q][p] = sums[q][p].to_array();
                    }
                }
                for visit in (0..P * Q).filter(|visit| visits >> visit & 1 == 1) {
                    let (q, p) = (visit / P, visit % P);
                    epilogue.visit(first_query + q, g * 2 + first + p, &products[q][p]);
                }
            }
        }
    }
}
