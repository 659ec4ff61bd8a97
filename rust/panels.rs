//! Inner products in register tiles. The gallery lies in panels of `T::LANES` rows, one row per lane: no sum crosses lanes.
//!
//! Two panels lie together, element by element: `[d][panel][lane]`. The sums of a tile of queries times panels stay in
//! registers while `d` runs once over both. A sum adds one fused multiply-add per dimension to what it starts with, so with
//! unit roundoff u an inner product errs by at most `(D u + O(u^2)) (|a| |b| + |start|)`.

use crate::coded_panels::CodedPanels;
use crate::memory;
#[cfg(doc)]
use crate::rows::ROWS_FIRST;
use crate::rows::{Square, ROWS};
use crate::simd::{dispatch, prefetch_beyond, Float, Kernel, Simd, V};
use crate::view::{Matrix, View};
use std::ops::Range;

/// A prepared gallery: its rows as panels, sorted so that rows of similar uncertainties are neighbours.
#[derive(Clone, Copy)]
pub struct Packed<'a, T> {
    /// All rows as panels, in the order of `order` and in the gallery's own type: a pair of panels in each row.
    pub panels: Matrix<'a, T>,
    /// The squared norm of the row at each position of the panels, as the pair function computes it [G].
    pub norms: &'a [T],
    /// The row at each position, sorted by uncertainty, NaN last [G].
    pub order: &'a [i64],
    /// The codes of the rows in that order, if there are any.
    pub coded: Option<CodedPanels<'a>>,
}

/// The number of rows, rounded up to whole pairs of panels.
pub fn padded<T: Float>(rows: usize) -> usize {
    rows.div_ceil(2 * T::LANES) * 2 * T::LANES
}

/// The shape of packed rows of D elements: pairs of panels, and the elements of each.
pub fn shape<T: Float>(rows: usize, dim: usize) -> (usize, usize) {
    (rows.div_ceil(2 * T::LANES), 2 * T::LANES * dim)
}

/// Packed rows of at least one element as a matrix that has a pair of panels in each row.
pub fn pairs<T: Float>(panels: &[T], dim: usize) -> Matrix<'_, T> {
    let length = 2 * T::LANES * dim;
    Matrix::Full(View::new(panels, panels.len() / length, length))
}

/// Packs the rows `row(position)` for all positions in `range` as panels: `padded(range.len()) * D` elements, with zeros for
/// the missing rows.
pub fn pack<T: Float>(rows: &Matrix<T>, range: Range<usize>, row: &dyn Fn(usize) -> usize, panels: &mut [T]) {
    let (dim, width) = (rows.stored(), 2 * T::LANES);
    let (zeros, mut buffers) = (vec![T::default(); dim], [const { Vec::new() }; 32]);
    for (pair, first) in panels.chunks_mut((width * dim).max(1)).zip((range.start..).step_by(width)) {
        let mut sources = [&zeros[..]; 32];
        for ((place, source), buffer) in (first..range.end).zip(&mut sources[..width]).zip(&mut buffers) {
            *source = rows.row(row(place), buffer);
        }
        dispatch(Pack { rows: &sources[..width], pair });
    }
}

/// Transposes the rows of a pair of panels.
struct Pack<'a, T> {
    rows: &'a [&'a [T]],
    pair: &'a mut [T],
}
impl<T: Float> Kernel for Pack<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (dim, width) = (self.rows[0].len(), self.rows.len());
        let whole = dim / T::LANES * T::LANES;
        for from in (0..whole).step_by(T::LANES) {
            for (panel, rows) in self.rows.chunks_exact(T::LANES).enumerate() {
                V::<S, T>::transpose(rows, from, &mut self.pair[from * width + panel * T::LANES..], width);
            }
        }
        for (column, out) in (whole..dim).zip(self.pair[whole * width..].chunks_exact_mut(width)) {
            out.iter_mut().zip(self.rows).for_each(|(out, row)| *out = row[column]);
        }
    }
}

/// [`pack`] for rows of halves, which stay halves.
pub fn pack_halves<T: Float>(rows: &View<u16>, range: Range<usize>, row: &dyn Fn(usize) -> usize, panels: &mut [u16]) {
    let (dim, width) = (rows.stored(), 2 * T::LANES);
    panels.fill(0);
    for (pair, first) in panels.chunks_mut((width * dim).max(1)).zip((range.start..).step_by(width)) {
        for (lane, place) in (first..range.end).take(width).enumerate() {
            for (column, &x) in rows.row(row(place)).iter().enumerate() {
                pair[column * width + lane] = x;
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
        let mut data = memory::filled(T::default(), padded * dim);
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

/// A consumer of the inner products of one query with the rows of one panel, both counted from the first packed one.
pub trait Epilogue<T: Float> {
    /// A limit for each query, padding included: a panel whose products are all below it is not visited.
    fn limits(&self) -> &[T];
    /// Takes the products of a query and a panel, of which those in `lanes`, a bit for each, are not below the
    /// limit (or NaN).
    fn visit(&mut self, query: usize, panel: usize, lanes: u32, products: &[T; 16]);
}

/// Computes the inner products of all packed queries with some pairs of panels; each row's sum begins with that row's number in
/// `starts`. Halves are widened once for all queries.
pub fn products<T: Float>(
    queries: &QueryTiles<T>,
    (panels, pairs): (&Matrix<T>, Range<usize>),
    starts: &[T],
    epilogue: &mut dyn Epilogue<T>,
) {
    dispatch(Products { queries, panels, pairs, starts, epilogue });
}

struct Products<'a, T> {
    queries: &'a QueryTiles<T>,
    panels: &'a Matrix<'a, T>,
    pairs: Range<usize>,
    starts: &'a [T],
    epilogue: &'a mut dyn Epilogue<T>,
}
impl<T: Float> Kernel for Products<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Products { queries, panels, pairs, starts, epilogue } = self;
        let QueryTiles { data, dim, width, last } = queries;
        let mut buffer = Vec::new();
        for (number, (pair, starts)) in pairs.zip(starts.chunks_exact(2 * T::LANES)).enumerate() {
            let pair = panels.row(pair, &mut buffer);
            for (t, tile) in data.chunks(dim * width).enumerate() {
                let few = tile.len() < dim * width;
                let work = Tile { first: t * width, queries: tile, pair, number, starts, epilogue: &mut *epilogue };
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
}

/// Terms that a sum of [`strips`] runs over before it is added to the sums of the terms before: runs shorten the chain of
/// roundings, and the terms of a run stay in the first-level cache.
pub const RUN: usize = 128;

/// A consumer of the inner products of a row with all packed rows.
pub trait Strip<T> {
    /// Takes the inner products of row `row`; those beyond the last packed row are to be passed over.
    fn take(&mut self, row: usize, products: &mut [T]);
}

/// Rows in tiles as tall as the SIMD level takes, run by run: `[tile][run][row]`. The factors of a step lie at constant distances, so
/// that one register holds the address of all. The last tile is less tall where few rows remain.
#[derive(Default)]
pub struct RowTiles<T> {
    runs: Vec<[T; RUN]>,
    rows: usize,
    dim: usize,
}

impl<T: Float> RowTiles<T> {
    /// Takes these rows in place of those that it holds.
    pub fn fill(&mut self, rows: &[&[T]]) {
        (self.rows, self.dim) = (rows.len(), rows.first().map_or(0, |row| row.len()));
        let (most, count) = (tile_queries(), self.dim.div_ceil(RUN));
        memory::resize(&mut self.runs, count * (rows.len() + most), [T::default(); RUN]);
        for (t, tile) in rows.chunks(most).enumerate() {
            let (runs, tall) = (&mut self.runs[t * most * count..], height(most, tile.len()));
            for (q, row) in tile.iter().enumerate() {
                for (run, terms) in row.chunks(RUN).enumerate() {
                    runs[run * tall + q][..terms.len()].copy_from_slice(terms);
                }
            }
        }
    }
}

/// The height of a tile of some rows, given that of a whole one.
fn height(most: usize, rows: usize) -> usize {
    match (most, rows) {
        (_, 1) => 1,
        (2, _) => 2,
        _ if rows > most / 3 => most,
        _ => most / 3,
    }
}

/// Computes the inner products of each of the rows with all `packed` rows, [`RUN`] by `RUN` terms, in order: a pair's inner product
/// has the same bits in every strip. With unit roundoff u it errs by at most [`strip_roundings`] u sum |a_d b_d|, to first order.
pub fn strips<T: Float>(rows: &RowTiles<T>, panels: &[T], packed: usize, strip: &mut dyn Strip<T>) {
    dispatch(Strips { rows, panels, packed, strip });
}

/// The roundings that each term of an inner product of [`strips`] goes through, at most.
pub fn strip_roundings(dim: usize) -> usize {
    dim.min(RUN) + dim.div_ceil(RUN) - 1
}

struct Strips<'a, T> {
    rows: &'a RowTiles<T>,
    panels: &'a [T],
    packed: usize,
    strip: &'a mut dyn Strip<T>,
}
impl<T: Float> Kernel for Strips<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Strips { rows: &RowTiles { ref runs, rows, dim }, panels, packed, strip } = self;
        let (most, width) = (S::TILE.1, padded::<T>(packed));
        let mut products = vec![T::default(); most * width];
        for first in (0..rows).step_by(most) {
            let (runs, left, out) = (&runs[first * dim.div_ceil(RUN)..], most.min(rows - first), &mut products[..]);
            match (S::TILE, height(most, left)) {
                ((2, 12), 12) => strips_of::<S, T, 2, 12>(runs, panels, (dim, packed), out),
                ((2, 12), 4) => strips_of::<S, T, 2, 4>(runs, panels, (dim, packed), out),
                ((2, 12), _) => strips_of::<S, T, 2, 1>(runs, panels, (dim, packed), out),
                ((1, 6), 6) => strips_of::<S, T, 1, 6>(runs, panels, (dim, packed), out),
                (_, 2) => strips_of::<S, T, 1, 2>(runs, panels, (dim, packed), out),
                _ => strips_of::<S, T, 1, 1>(runs, panels, (dim, packed), out),
            }
            for (row, products) in (first..first + left).zip(products.chunks_exact_mut(width)) {
                strip.take(row, products);
            }
        }
    }
}

/// Writes the inner products of a tile of Q rows with all packed rows, a strip for each row.
#[inline(always)]
fn strips_of<S: Simd, T: Float, const P: usize, const Q: usize>(
    runs: &[[T; RUN]],
    panels: &[T],
    (dim, packed): (usize, usize),
    out: &mut [T],
) {
    let (width, strip) = (2 * T::LANES, padded::<T>(packed));
    let (runs, _) = runs.as_chunks::<Q>();
    for (g, pair) in panels.chunks_exact(dim * width).enumerate() {
        for first in (0..2).step_by(P) {
            let at = g * width + first * T::LANES;
            if at >= packed {
                continue;
            }
            let mut totals = [[V::<S, T>::from(0.0); P]; Q];
            for (terms, pair) in runs.iter().zip(pair.chunks(RUN * width)) {
                let sums = run_of::<S, T, _, _, P, Q>(&ByRow(terms), pair, first);
                for q in 0..Q {
                    for p in 0..P {
                        totals[q][p] = totals[q][p] + sums[q][p];
                    }
                }
            }
            for q in 0..Q {
                for p in 0..P {
                    let at = q * strip + at + p * T::LANES;
                    totals[q][p].store(&mut out[at..at + T::LANES]);
                }
            }
        }
    }
}

/// Packs the columns of rows, times `factor`, as panels, one column in each lane: `padded(D) * rows.len()` elements, with zeros for
/// missing columns.
pub fn pack_columns<T: Float>(rows: &[&[T]], factor: f64, panels: &mut Vec<T>) {
    panels.resize(rows.first().map_or(0, |row| padded::<T>(row.len()) * rows.len()), T::default());
    dispatch(PackColumns { rows, factor, panels });
}

struct PackColumns<'a, T> {
    rows: &'a [&'a [T]],
    factor: f64,
    panels: &'a mut [T],
}
impl<T: Float> Kernel for PackColumns<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = 2 * T::LANES;
        for (pair, panels) in self.panels.chunks_exact_mut(self.rows.len() * width).enumerate() {
            for (row, out) in self.rows.iter().zip(panels.chunks_exact_mut(width)) {
                for (half, out) in out.chunks_exact_mut(T::LANES).enumerate() {
                    let from = row.len().min(pair * width + half * T::LANES);
                    let columns = &row[from..row.len().min(from + T::LANES)];
                    let x = if columns.len() == T::LANES {
                        V::<S, T>::load(columns)
                    } else {
                        V::<S, T>::load_partial(columns, T::default())
                    };
                    (x * self.factor).store(out);
                }
            }
        }
    }
}

/// Adds to each of some rows `out`, of D elements, the sum over packed rows, `others` of them, of `weight * other`. The first index
/// of the weights is that of the row ([`ROWS_FIRST`]) or of the other ([`OTHERS_FIRST`](crate::rows::OTHERS_FIRST)).
pub fn add_weighted<T: Float, const FIRST: bool>(
    weights: &Square<T>,
    others: usize,
    panels: &[T],
    dim: usize,
    out: &mut [T],
) {
    dispatch(AddWeighted::<T, FIRST> { weights, others, panels, dim, out });
}

struct AddWeighted<'a, T, const FIRST: bool> {
    weights: &'a Square<T>,
    others: usize,
    panels: &'a [T],
    dim: usize,
    out: &'a mut [T],
}
impl<T: Float, const FIRST: bool> Kernel for AddWeighted<'_, T, FIRST> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let rows = self.out.len() / self.dim;
        let mut first = 0;
        while first < rows {
            let left = rows - first;
            first += match S::TILE {
                (2, 12) if left > 4 && first + 12 <= ROWS => self.add::<S, 2, 12>(first),
                (2, 12) => self.add::<S, 2, 4>(first),
                (1, 6) if left > 2 && first + 6 <= ROWS => self.add::<S, 1, 6>(first),
                _ => self.add::<S, 1, 2>(first),
            };
        }
    }
}
impl<T: Float, const FIRST: bool> AddWeighted<'_, T, FIRST> {
    /// Adds to at most Q rows from `first` on, and returns Q.
    #[inline(always)]
    fn add<S: Simd, const P: usize, const Q: usize>(&mut self, first: usize) -> usize {
        let (dim, width, others) = (self.dim, 2 * T::LANES, self.others);
        let rows = (self.out.len() / dim - first).min(Q);
        for (g, pair) in self.panels.chunks_exact(others * width).enumerate() {
            for half in (0..2).step_by(P) {
                let from = g * width + half * T::LANES;
                if from >= dim {
                    continue;
                }
                let sums = if FIRST {
                    let (terms, _) = self.weights[first..].as_chunks::<Q>();
                    run_of::<S, T, _, _, P, Q>(&ByRow(&terms[0]), pair, half)
                } else {
                    run_of::<S, T, _, _, P, Q>(&ByColumn { weights: self.weights, first }, pair, half)
                };
                for q in 0..Q {
                    for p in 0..P {
                        let from = from + p * T::LANES;
                        if q < rows && from < dim {
                            let row = (first + q) * dim;
                            add_to::<S, T>(sums[q][p], &mut self.out[row + from..row + dim]);
                        }
                    }
                }
            }
        }
        Q
    }
}

/// Adds lanes to the first elements of a slice, as many as there are.
#[inline(always)]
fn add_to<S: Simd, T: Float>(x: V<S, T>, out: &mut [T]) {
    if out.len() >= T::LANES {
        let out = &mut out[..T::LANES];
        (V::<S, T>::load(out) + x).store(out);
    } else {
        let sum = V::<S, T>::load_partial(out, T::default()) + x;
        sum.store_partial(out);
    }
}

/// The multipliers of the rows of panels, for each of Q sums: at most N rows.
trait Terms<T, const N: usize> {
    /// The factor of row `d` of the panels in sum `q`.
    fn at(&self, q: usize, d: usize) -> T;
}

/// A row of factors for each sum.
struct ByRow<'a, T, const N: usize, const Q: usize>(&'a [[T; N]; Q]);
impl<T: Float, const N: usize, const Q: usize> Terms<T, N> for ByRow<'_, T, N, Q> {
    #[inline(always)]
    fn at(&self, q: usize, d: usize) -> T {
        self.0[q][d]
    }
}

/// A row of factors for each row of the panels, of which the sums take those from `first` on.
struct ByColumn<'a, T> {
    weights: &'a Square<T>,
    first: usize,
}
impl<T: Float> Terms<T, ROWS> for ByColumn<'_, T> {
    #[inline(always)]
    fn at(&self, q: usize, d: usize) -> T {
        self.weights[d][self.first + q]
    }
}

/// The sums of Q rows of terms times P of two panels, in one run.
#[inline(always)]
fn run_of<S: Simd, T: Float, F: Terms<T, N>, const N: usize, const P: usize, const Q: usize>(
    terms: &F,
    pair: &[T],
    first: usize,
) -> [[V<S, T>; P]; Q] {
    let (zero, width) = (V::<S, T>::from(0.0), 2 * T::LANES);
    let mut sums = [[zero; P]; Q];
    for (d, x) in (0..N).zip(pair.chunks_exact(width)) {
        let mut columns = [zero; P];
        for p in 0..P {
            let x = &x[(first + p) * T::LANES..(first + p + 1) * T::LANES];
            columns[p] = V::<S, T>::load(x);
            prefetch_beyond(x, FETCHED);
        }
        for q in 0..Q {
            let y = V::<S, T>::splat(terms.at(q, d));
            for p in 0..P {
                sums[q][p] = y.mul_add(columns[p], sums[q][p]);
            }
        }
    }
    sums
}

/// The bytes by which panels are brought into the cache ahead of the products: what the processor itself fetches ahead comes too
/// late for few queries, whose products take less time than the rows take from memory.
const FETCHED: usize = 2048;

/// One tile of queries and a pair of panels, the first query and the number of the pair.
struct Tile<'a, T> {
    first: usize,
    queries: &'a [T],
    pair: &'a [T],
    number: usize,
    starts: &'a [T],
    epilogue: &'a mut dyn Epilogue<T>,
}

#[inline(always)]
fn tiles<S: Simd, T: Float, const P: usize, const Q: usize>(work: Tile<T>) {
    let Tile { first: first_query, queries: tile, pair, number, starts, epilogue } = work;
    for first in (0..2).step_by(P) {
        let mut sums = [[V::<S, T>::from(0.0); P]; Q];
        for p in 0..P {
            let start = V::<S, T>::load(&starts[(first + p) * T::LANES..(first + p + 1) * T::LANES]);
            for q in 0..Q {
                sums[q][p] = start;
            }
        }
        for (y, x) in tile.chunks_exact(Q).zip(pair.chunks_exact(2 * T::LANES)) {
            let mut rows = [V::<S, T>::from(0.0); P];
            for p in 0..P {
                let x = &x[(first + p) * T::LANES..(first + p + 1) * T::LANES];
                rows[p] = V::<S, T>::load(x);
                prefetch_beyond(x, FETCHED);
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
                let (query, products) = (first_query + q, &products[q][p]);
                let lanes = V::<S, T>::load(products).not_less_bits(V::<S, T>::splat(epilogue.limits()[query]));
                epilogue.visit(query, number * 2 + first + p, lanes, products);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{pack, pack_halves, padded, pairs, shape};
    use crate::simd::Float;
    use crate::view::{Matrix, View};

    /// Every element lies at its place, and zeros where there is no row.
    fn hold<T: Float>(rows: usize, dim: usize) {
        let numbers: Vec<T> = (1..=rows * dim).map(|x| T::from_f64(x as f64)).collect();
        let words: Vec<u16> = (1..=rows * dim).map(|x| x as u16).collect();
        let row = |place: usize| rows - 1 - place;
        let (range, width) = (rows / 3..rows, 2 * T::LANES);
        let size = padded::<T>(range.len()) * dim;
        let (mut panels, mut halves) = (vec![T::from_f64(-1.0); size], vec![u16::MAX; size]);
        pack(&Matrix::Full(View::new(&numbers, rows, dim)), range.clone(), &row, &mut panels);
        pack_halves::<T>(&View::new(&words, rows, dim), range.clone(), &row, &mut halves);
        for (at, (&x, &word)) in panels.iter().zip(&halves).enumerate() {
            let (place, column) = (range.start + at / (width * dim) * width + at % width, at / width % dim);
            let expected = if place < rows { row(place) * dim + column + 1 } else { 0 };
            assert_eq!((x.to_f64(), usize::from(word)), (expected as f64, expected), "{rows} x {dim} at {at}");
        }
        let matrix = pairs(&panels, dim);
        assert_eq!((matrix.rows(), matrix.stored()), shape::<T>(range.len(), dim));
    }

    #[test]
    fn packed_rows_lie_side_by_side() {
        for rows in [1, 2, 15, 16, 17, 48, 49, 150] {
            for dim in [1, 2, 7, 8, 9, 15, 16, 17, 33, 100] {
                hold::<f32>(rows, dim);
                hold::<f64>(rows, dim);
            }
        }
    }
}
