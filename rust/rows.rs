//! Tiles of rows against rows, all with all: sums over the products of their elements, or over the squares of their
//! differences, and weighted sums of rows. Rows are loaded once for several pairs. Lanes run along a row, so that a pair's sum
//! has the lanes and the order of [`reduce`], whichever function computes it.

use crate::simd::{dispatch, AllLanes, Float, Kernel, Simd, V};
use std::ops::Range;

/// The largest number of rows on either side of a tile.
pub const ROWS: usize = 64;

/// Meaning of `DIFFERENCE`: sums run over differences of rows, or over the rows or the products of their elements.
pub const DIFFERENCES: bool = true;
/// The other value of `DIFFERENCE`, see [`DIFFERENCES`].
pub const PRODUCTS: bool = false;
/// Meaning of `FIRST` for weights: their first index is that of the rows which are added to.
pub const ROWS_FIRST: bool = true;
/// The other value of `FIRST`: the first index is that of the others.
pub const OTHERS_FIRST: bool = false;

/// A number for each pair of a tile; the first index is the row of the first side.
pub type Square<T> = [[T; ROWS]; ROWS];

/// Writes the squared distances (DIFFERENCE) or inner products of all pairs of rows.
pub fn products<T: Float, const DIFFERENCE: bool>(first: &[&[T]], second: &[&[T]], out: &mut Square<T>) {
    assert!(first.len() <= ROWS && second.len() <= ROWS, "a tile has at most {ROWS} rows");
    if !first.is_empty() {
        dispatch(Products::<T, DIFFERENCE> { first, second, out });
    }
}

/// Adds to each of the rows `out` the sum over all others of `weight (row - other)` (DIFFERENCE), or of `weight other`. The first
/// index of `weights` is that of the row ([`ROWS_FIRST`]) or of the other ([`OTHERS_FIRST`]).
pub fn accumulate<T: Float, const DIFFERENCE: bool, const FIRST: bool>(
    rows: &[&[T]],
    others: &[&[T]],
    weights: &Square<T>,
    out: &mut [T],
) {
    assert!(rows.len() <= ROWS && others.len() <= ROWS, "a tile has at most {ROWS} rows");
    if !rows.is_empty() {
        dispatch(Accumulate::<T, DIFFERENCE, FIRST> { rows, others, weights, out });
    }
}

/// Adds to each row of either side the sum over the other side of `weight (row - other)`; each difference is computed once.
pub fn accumulate_both<T: Float>(first: &[&[T]], second: &[&[T]], weights: &Square<T>, out: (&mut [T], &mut [T])) {
    assert!(first.len() <= ROWS && second.len() <= ROWS, "a tile has at most {ROWS} rows");
    if !first.is_empty() {
        dispatch(AccumulateBoth { first, second, weights, out });
    }
}

/// Adds to one row the sum over `others`, each with its weight, of `weight (row - other)` (DIFFERENCE), or of `weight other`.
pub fn accumulate_one<T: Float, const DIFFERENCE: bool>(row: &[T], others: &[(&[T], T)], out: &mut [T]) {
    dispatch(AccumulateOne::<T, DIFFERENCE> { row, others, out });
}

/// Writes the columns of some rows as rows: `out[j][i]` is `rows[i][j]`, for as many columns as there are rows of `out`.
pub fn transpose<T: Float>(rows: &[&[T]], out: &mut [&mut [T]]) {
    dispatch(Transpose { rows, out });
}

/// Converts numbers to another type. A dispatch, so that it takes whole registers.
pub fn convert<A: Float, B: Float>(from: &[A], to: &mut [B]) {
    struct Convert<'a, A, B>(&'a [A], &'a mut [B]);
    impl<A: Float, B: Float> Kernel for Convert<'_, A, B> {
        const LANES_MEET: bool = false;
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self) {
            for (to, from) in self.1.iter_mut().zip(self.0) {
                *to = B::from_f64(from.to_f64());
            }
        }
    }
    dispatch(Convert(from, to));
}

struct Transpose<'a, 'b, T> {
    rows: &'a [&'a [T]],
    out: &'a mut [&'b mut [T]],
}
impl<T: Float> Kernel for Transpose<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Transpose { rows, out } = self;
        let mut square = [T::default(); 256];
        for (from, out) in (0..).step_by(T::LANES).zip(out.chunks_mut(T::LANES)) {
            for (first, rows) in (0..).step_by(T::LANES).zip(rows.chunks(T::LANES)) {
                if rows.len() == T::LANES && out.len() == T::LANES {
                    V::<S, T>::transpose(rows, from, &mut square, T::LANES);
                    for (out, column) in out.iter_mut().zip(square.chunks_exact(T::LANES)) {
                        out[first..first + T::LANES].copy_from_slice(column);
                    }
                    continue;
                }
                for (column, out) in (from..).zip(out.iter_mut()) {
                    out[first..].iter_mut().zip(rows).for_each(|(out, row)| *out = row[column]);
                }
            }
        }
    }
}

/// Whether all elements of all rows are finite.
pub fn finite<'a, T: Float>(rows: impl Iterator<Item = &'a [T]>) -> bool {
    struct Finite<'a, T>(&'a [T]);
    impl<T: Float> Kernel for Finite<'_, T> {
        const LANES_MEET: bool = false;
        type Output = bool;
        #[inline(always)]
        fn run<S: Simd>(self) -> bool {
            let mut sum = V::<S, T>::from(0.0);
            for x in self.0.chunks(V::<S, T>::LANES) {
                sum = V::<S, T>::load_partial(x, T::default()).mul_add(0.0, sum);
            }
            sum.sum().to_f64() == 0.0
        }
    }
    let mut rows = rows;
    rows.all(|row| dispatch(Finite(row)))
}

/// Sum over the elements of two rows of `(a - b)^2` or `a b`, in four chains: a quarter of the latency and of the rounding.
#[inline(always)]
pub fn reduce<S: Simd, T: Float, const DIFFERENCE: bool>(a: &[T], b: &[T]) -> T {
    let mut sums = AllLanes::<S, T>::zeros();
    for lane in (0..T::LANES).step_by(V::<S, T>::LANES) {
        *sums.at(lane) = reduce_lanes::<S, T, DIFFERENCE>(a, b, lane);
    }
    sums.sum()
}

/// [`reduce`] in each of the lanes from one on.
#[inline(always)]
fn reduce_lanes<S: Simd, T: Float, const DIFFERENCE: bool>(a: &[T], b: &[T], lane: usize) -> V<S, T> {
    let zero = V::<S, T>::from(0.0);
    let mut sums = [zero; 4];
    let (a_groups, b_groups) = (a.chunks_exact(4 * T::LANES), b.chunks_exact(4 * T::LANES));
    let (a_rest, b_rest) = (a_groups.remainder(), b_groups.remainder());
    for (a, b) in a_groups.zip(b_groups) {
        for n in 0..4 {
            let at = n * T::LANES + lane;
            sums[n] = term::<S, T, DIFFERENCE>(V::<S, T>::load(&a[at..]), V::<S, T>::load(&b[at..]), sums[n]);
        }
    }
    // Constant indices only: sums that a variable index reaches would not stay in registers.
    for n in 0..4 {
        let from = n * T::LANES + lane;
        if from < a_rest.len() {
            let at = from..(from + V::<S, T>::LANES).min(a_rest.len());
            let a = V::<S, T>::load_partial(&a_rest[at.clone()], T::default());
            let b = V::<S, T>::load_partial(&b_rest[at], T::default());
            sums[n] = term::<S, T, DIFFERENCE>(a, b, sums[n]);
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

#[inline(always)]
fn term<S: Simd, T: Float, const DIFFERENCE: bool>(a: V<S, T>, b: V<S, T>, sum: V<S, T>) -> V<S, T> {
    if DIFFERENCE {
        (a - b).mul_add(a - b, sum)
    } else {
        a.mul_add(b, sum)
    }
}

struct Products<'a, T, const DIFFERENCE: bool> {
    first: &'a [&'a [T]],
    second: &'a [&'a [T]],
    out: &'a mut Square<T>,
}
impl<T: Float, const DIFFERENCE: bool> Kernel for Products<'_, T, DIFFERENCE> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Products { first, second, out } = self;
        // As many rows of the second side as stay in the first-level cache while the rows of the first side pass over them.
        let near = (NEAR / first[0].len().max(1)).clamp(2, ROWS) / 2 * 2;
        for (part, second) in second.chunks(near).enumerate() {
            for (rows, out) in first.chunks(2).zip(out.chunks_mut(2)) {
                for (at, others) in (part * near..).step_by(2).zip(second.chunks(2)) {
                    match (rows, others) {
                        (&[a, b], &[c, d]) if S::PAIRS == 4 => {
                            let [ac, ad, bc, bd] = V::<S, T>::sum_four(reduce_four::<S, T, DIFFERENCE>([a, b], [c, d]));
                            (out[0][at], out[0][at + 1]) = (ac, ad);
                            (out[1][at], out[1][at + 1]) = (bc, bd);
                        }
                        _ => {
                            for (a, out) in rows.iter().zip(&mut *out) {
                                for (b, out) in others.iter().zip(&mut out[at..]) {
                                    *out = reduce::<S, T, DIFFERENCE>(a, b);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Elements of the second side that are near: float32 numbers that take half of the first-level cache.
const NEAR: usize = 4096;

/// The vectors whose lanes [`reduce`] sums last, for the pairs (0, 0), (0, 1), (1, 0) and (1, 1), to the same bits.
#[inline(always)]
fn reduce_four<S: Simd, T: Float, const DIFFERENCE: bool>(a: [&[T]; 2], b: [&[T]; 2]) -> [V<S, T>; 4] {
    let zero = V::<S, T>::from(0.0);
    let (mut sums, dim) = ([[zero; 4]; 4], a[0].len());
    assert!(a[1].len() == dim && b[0].len() == dim && b[1].len() == dim);
    let whole = dim / (4 * T::LANES) * (4 * T::LANES);
    for from in (0..whole).step_by(4 * T::LANES) {
        for n in 0..4 {
            let at = from + n * T::LANES..from + (n + 1) * T::LANES;
            let x = [V::<S, T>::load(&a[0][at.clone()]), V::<S, T>::load(&a[1][at.clone()])];
            let y = [V::<S, T>::load(&b[0][at.clone()]), V::<S, T>::load(&b[1][at])];
            for pair in 0..4 {
                sums[pair][n] = term::<S, T, DIFFERENCE>(x[pair / 2], y[pair % 2], sums[pair][n]);
            }
        }
    }
    for n in 0..4 {
        let from = whole + n * T::LANES;
        if from < dim {
            let (at, none) = (from..dim.min(from + T::LANES), T::default());
            let part = [a[0], a[1], b[0], b[1]].map(|row| &row[at.clone()]);
            let x = [V::<S, T>::load_partial(part[0], none), V::<S, T>::load_partial(part[1], none)];
            let y = [V::<S, T>::load_partial(part[2], none), V::<S, T>::load_partial(part[3], none)];
            for pair in 0..4 {
                sums[pair][n] = term::<S, T, DIFFERENCE>(x[pair / 2], y[pair % 2], sums[pair][n]);
            }
        }
    }
    let mut out = [zero; 4];
    for pair in 0..4 {
        let [s0, s1, s2, s3] = sums[pair];
        out[pair] = (s0 + s1) + (s2 + s3);
    }
    out
}

/// Sums that are added up a tile at a time: some vectors of some rows.
trait Tiles<T: Float>: Sized {
    /// Whether a tile may have eight rows; otherwise it has four at most.
    const EIGHT: bool;
    /// How many rows there are, and the number of their elements.
    fn shape(&self) -> (usize, usize);
    /// Adds to A rows from `first` on, in N vectors from element `from` on; WHOLE: all of them lie inside the rows.
    fn add<S: Simd, const A: usize, const N: usize, const WHOLE: bool>(&mut self, first: usize, from: usize);

    /// Adds all tiles: as many rows and as many vectors of each as there are registers for; the other rows' vectors stay in the
    /// cache.
    #[inline(always)]
    fn add_all<S: Simd>(mut self) {
        let (rows, dim) = self.shape();
        let mut from = 0;
        while from < dim {
            let vectors = if S::PAIRS == 4 && from + 2 * V::<S, T>::LANES <= dim { 2 } else { 1 };
            let mut first = 0;
            while first < rows {
                let count = if Self::EIGHT && vectors == 2 && rows - first >= 8 {
                    8
                } else if rows - first >= 4 {
                    4
                } else {
                    1
                };
                match (vectors, count, from + V::<S, T>::LANES <= dim) {
                    (2, 8, _) if Self::EIGHT => self.add::<S, 8, 2, true>(first, from),
                    (2, 4, _) => self.add::<S, 4, 2, true>(first, from),
                    (2, _, _) => self.add::<S, 1, 2, true>(first, from),
                    (_, 4, true) => self.add::<S, 4, 1, true>(first, from),
                    (_, 4, false) => self.add::<S, 4, 1, false>(first, from),
                    (_, _, true) => self.add::<S, 1, 1, true>(first, from),
                    _ => self.add::<S, 1, 1, false>(first, from),
                }
                first += count;
            }
            from += vectors * V::<S, T>::LANES;
        }
    }
}

struct Accumulate<'a, T, const DIFFERENCE: bool, const FIRST: bool> {
    rows: &'a [&'a [T]],
    others: &'a [&'a [T]],
    weights: &'a Square<T>,
    out: &'a mut [T],
}
impl<T: Float, const DIFFERENCE: bool, const FIRST: bool> Kernel for Accumulate<'_, T, DIFFERENCE, FIRST> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.add_all::<S>();
    }
}
impl<T: Float, const DIFFERENCE: bool, const FIRST: bool> Tiles<T> for Accumulate<'_, T, DIFFERENCE, FIRST> {
    const EIGHT: bool = !DIFFERENCE;

    #[inline(always)]
    fn shape(&self) -> (usize, usize) {
        (self.rows.len(), self.rows[0].len())
    }

    #[inline(always)]
    fn add<S: Simd, const A: usize, const N: usize, const WHOLE: bool>(&mut self, first: usize, from: usize) {
        let zero = V::<S, T>::from(0.0);
        let (dim, mut x, mut sums) = (self.rows[0].len(), [[zero; N]; A], [[zero; N]; A]);
        let to = if WHOLE { from + N * V::<S, T>::LANES } else { dim };
        for i in 0..A {
            x[i] = vectors::<S, T, N, WHOLE>(&self.rows[first + i][from..to]);
            sums[i] = vectors::<S, T, N, WHOLE>(&self.out[(first + i) * dim..][from..to]);
        }
        assert!(self.others.len() <= ROWS && first + A <= ROWS);
        for (k, other) in self.others.iter().enumerate() {
            let y = vectors::<S, T, N, WHOLE>(&other[from..to]);
            for i in 0..A {
                let weight = if FIRST { self.weights[first + i][k] } else { self.weights[k][first + i] };
                let weight = V::<S, T>::splat(weight);
                for n in 0..N {
                    let term = if DIFFERENCE { x[i][n] - y[n] } else { y[n] };
                    sums[i][n] = weight.mul_add(term, sums[i][n]);
                }
            }
        }
        for i in 0..A {
            put::<S, T, N, WHOLE>(sums[i], &mut self.out[(first + i) * dim..][from..to]);
        }
    }
}

struct AccumulateBoth<'a, T> {
    first: &'a [&'a [T]],
    second: &'a [&'a [T]],
    weights: &'a Square<T>,
    out: (&'a mut [T], &'a mut [T]),
}
impl<T: Float> Kernel for AccumulateBoth<'_, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.add_all::<S>();
    }
}
impl<T: Float> Tiles<T> for AccumulateBoth<'_, T> {
    const EIGHT: bool = false;

    #[inline(always)]
    fn shape(&self) -> (usize, usize) {
        (self.first.len(), self.first[0].len())
    }

    /// Takes A rows of the first side, N vectors of each in registers, against all rows of the second side.
    #[inline(always)]
    fn add<S: Simd, const A: usize, const N: usize, const WHOLE: bool>(&mut self, first: usize, from: usize) {
        let zero = V::<S, T>::from(0.0);
        let (dim, mut x, mut sums) = (self.first[0].len(), [[zero; N]; A], [[zero; N]; A]);
        let to = if WHOLE { from + N * V::<S, T>::LANES } else { dim };
        for i in 0..A {
            x[i] = vectors::<S, T, N, WHOLE>(&self.first[first + i][from..to]);
            sums[i] = vectors::<S, T, N, WHOLE>(&self.out.0[(first + i) * dim..][from..to]);
        }
        assert!(self.second.len() <= ROWS && first + A <= ROWS);
        for (k, (other, out)) in self.second.iter().zip(self.out.1.chunks_exact_mut(dim)).enumerate() {
            let out = &mut out[from..to];
            let (y, mut against) = (vectors::<S, T, N, WHOLE>(&other[from..to]), vectors::<S, T, N, WHOLE>(out));
            // Minus the sum of minus the differences has the same bits as the sum in [`Accumulate`].
            for n in 0..N {
                against[n] = -against[n];
            }
            for i in 0..A {
                let weight = V::<S, T>::splat(self.weights[first + i][k]);
                for n in 0..N {
                    let difference = x[i][n] - y[n];
                    sums[i][n] = weight.mul_add(difference, sums[i][n]);
                    against[n] = weight.mul_add(difference, against[n]);
                }
            }
            for n in 0..N {
                against[n] = -against[n];
            }
            put::<S, T, N, WHOLE>(against, out);
        }
        for i in 0..A {
            put::<S, T, N, WHOLE>(sums[i], &mut self.out.0[(first + i) * dim..][from..to]);
        }
    }
}

struct AccumulateOne<'a, T, const DIFFERENCE: bool> {
    row: &'a [T],
    others: &'a [(&'a [T], T)],
    out: &'a mut [T],
}
impl<T: Float, const DIFFERENCE: bool> Kernel for AccumulateOne<'_, T, DIFFERENCE> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (dim, step) = (self.row.len(), 4 * V::<S, T>::LANES);
        for from in (0..dim / step * step).step_by(step) {
            self.add::<S, 4, true>(from..from + step);
        }
        for from in (dim / step * step..dim).step_by(V::<S, T>::LANES) {
            self.add::<S, 1, false>(from..dim.min(from + V::<S, T>::LANES));
        }
    }
}

impl<T: Float, const DIFFERENCE: bool> AccumulateOne<'_, T, DIFFERENCE> {
    /// Adds all other rows to N vectors of the row, which stay in registers.
    #[inline(always)]
    fn add<S: Simd, const N: usize, const WHOLE: bool>(&mut self, at: Range<usize>) {
        let x = vectors::<S, T, N, WHOLE>(&self.row[at.clone()]);
        let mut sums = vectors::<S, T, N, WHOLE>(&self.out[at.clone()]);
        for &(other, weight) in self.others {
            let (y, weight) = (vectors::<S, T, N, WHOLE>(&other[at.clone()]), V::<S, T>::splat(weight));
            for n in 0..N {
                sums[n] = weight.mul_add(if DIFFERENCE { x[n] - y[n] } else { y[n] }, sums[n]);
            }
        }
        put::<S, T, N, WHOLE>(sums, &mut self.out[at]);
    }
}

/// Writes N vectors to a slice, without what lies beyond its end.
#[inline(always)]
fn put<S: Simd, T: Float, const N: usize, const WHOLE: bool>(x: [V<S, T>; N], out: &mut [T]) {
    for n in 0..N {
        if WHOLE {
            x[n].store(&mut out[n * V::<S, T>::LANES..(n + 1) * V::<S, T>::LANES]);
        } else {
            let out = &mut out[n * V::<S, T>::LANES..];
            x[n].store_partial(out);
        }
    }
}

/// Reads N vectors of a slice, with zeros beyond its end.
#[inline(always)]
fn vectors<S: Simd, T: Float, const N: usize, const WHOLE: bool>(x: &[T]) -> [V<S, T>; N] {
    let mut out = [V::<S, T>::from(0.0); N];
    for n in 0..N {
        out[n] = if WHOLE {
            V::<S, T>::load(&x[n * V::<S, T>::LANES..(n + 1) * V::<S, T>::LANES])
        } else {
            V::<S, T>::load_partial(&x[n * V::<S, T>::LANES..], T::default())
        };
    }
    out
}
