//! Rows as 8-bit integers. A row b is `scale * c + r` with integers c from -127 to 127; its codes are c, the scale and the length of
//! r, which bounds how far an inner product with `scale * c` lies from that with b. They take a quarter of the memory of float32.

use crate::rows::{reduce, PRODUCTS};
use crate::simd::{dispatch, prefetch, Float, Kernel, Simd, V};
use crate::view::{Matrix, View};
use std::ops::Range;

/// The bytes before the integers of a row: the scale and the length of r as float32, the squared norm of b and the number beside it,
/// its uncertainty, as float64. All that is read of a row lies together.
const HEADER: usize = 24;

/// Integers of a row come in whole numbers of this, the last ones zeros.
const TOGETHER: usize = 16;

/// Codes that lie anywhere are prefetched so many bytes ahead, of 4 rows at least and of 32 at most: with short rows, more of them are
/// on their way at once.
const AHEAD: usize = 1 << 14;

/// The bytes that a row of D elements takes.
pub fn width(dim: usize) -> usize {
    HEADER + dim.next_multiple_of(TOGETHER)
}

/// Writes the codes of the rows `range` of a matrix, [`width`] bytes for each, with the first number of each row of another one.
pub fn encode<T: Float>(rows: &Matrix<T>, numbers: &Matrix<T>, range: Range<usize>, out: &mut [u8]) {
    let mut buffer = Vec::new();
    for (row, out) in range.zip(out.chunks_exact_mut(width(rows.stored()))) {
        dispatch(Encode { row: rows.row(row, &mut buffer), number: numbers.first(row), out });
    }
}

struct Encode<'a, T> {
    row: &'a [T],
    number: f64,
    out: &'a mut [u8],
}
impl<T: Float> Kernel for Encode<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Encode { row, number, out } = self;
        let most = row.iter().fold(0.0, |most: f64, x| most.max(x.to_f64().abs()));
        let (scale, mut squares) = ((most / 127.0) as f32, 0.0);
        let (header, codes) = out.split_at_mut(HEADER);
        codes.fill(0);
        for (code, x) in codes.iter_mut().zip(row) {
            // The conversion ends at the largest integers, and makes 0 of what is no number.
            let integer = (x.to_f64() / f64::from(scale)).round_ties_even() as i8;
            let rest = x.to_f64() - f64::from(scale) * f64::from(integer);
            squares += rest * rest;
            *code = integer as u8;
        }
        // Rounded up, also where squares vanish. NaN where an element is not finite.
        let rest = ((squares.sqrt() * (1.0 + 1e-9)) as f32).next_up();
        header[..4].copy_from_slice(&scale.to_le_bytes());
        header[4..8].copy_from_slice(&rest.to_le_bytes());
        header[8..16].copy_from_slice(&reduce::<S, T, PRODUCTS>(row, row).to_f64().to_le_bytes());
        header[16..].copy_from_slice(&number.to_le_bytes());
    }
}

/// The codes of the rows of a gallery, as [`encode`] writes them.
#[derive(Clone, Copy)]
pub struct Codes<'a>(View<'a, u8>);

impl<'a> Codes<'a> {
    /// Codes of rows of D elements; None where the bytes do not fit these.
    pub fn new(bytes: View<'a, u8>, dim: usize) -> Option<Self> {
        (bytes.stored() == width(dim)).then_some(Codes(bytes))
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.0.rows()
    }
}

/// A row that codes are multiplied by.
pub struct Query<T> {
    /// The elements, with zeros up to a whole number of [`TOGETHER`].
    elements: Vec<T>,
    /// The length, not less than it is.
    length: f64,
}

impl<T: Float> Query<T> {
    /// Takes a row.
    pub fn new(row: &[T]) -> Self {
        let mut elements = row.to_vec();
        elements.resize(row.len().next_multiple_of(TOGETHER), T::default());
        // Divided by the largest element, so that no square vanishes.
        let most = row.iter().fold(0.0, |most: f64, x| most.max(x.to_f64().abs()));
        let squares: f64 = row.iter().map(|x| (x.to_f64() / most).powi(2)).sum();
        let length = if most == 0.0 { 0.0 } else { most * squares.sqrt() * (1.0 + 1e-9) };
        Query { elements, length }
    }
}

/// A bound of the inner product of a row with a query, from the row's codes.
#[derive(Clone, Copy, Default)]
pub struct Product {
    /// The inner product with `scale * c`.
    pub x: f64,
    /// How far the inner product with the row itself may lie from it, but for roundings relative to |a| |b| as those of a sum of D
    /// products in another order. Infinite or NaN where nothing is known.
    pub within: f64,
    /// The squared norm of the row, as scores take it.
    pub norm: f64,
    /// The number beside the row.
    pub number: f64,
}

/// The bounds from the codes of the first `out.len()` rows; those beyond are prefetched, as they come next.
///
/// With a query a and unit roundoff u, the sum over integers errs by at most D u |a| |c|, hence, times the scale, by D u |a| (|b| +
/// |r|), of which the share of |r| is within 1 % of |a| |r| (D u < 0.01); where products are subnormal, by half the smallest number
/// each instead, times the scale.
pub fn products<T: Float>(query: &Query<T>, codes: &Codes, rows: &[usize], out: &mut [Product]) {
    dispatch(Products { query, codes, rows, out });
}

struct Products<'a, T> {
    query: &'a Query<T>,
    codes: &'a Codes<'a>,
    rows: &'a [usize],
    out: &'a mut [Product],
}
impl<T: Float> Kernel for Products<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Products { query: Query { elements, length }, codes: &Codes(bytes), rows, out } = self;
        let (smallest, ahead) = (elements.len() as f64 * T::SMALLEST, (AHEAD / bytes.stored()).clamp(4, 32));
        for (k, out) in out.iter_mut().enumerate() {
            if let Some(&next) = rows.get(k + ahead) {
                prefetch(bytes.row(next));
            }
            let Some((header, integers)) = bytes.row(rows[k]).split_first_chunk::<HEADER>() else { continue };
            let [scale, rest, numbers @ ..] = header.as_chunks::<4>().0 else { continue };
            let (scale, rest) = (f64::from(f32::from_le_bytes(*scale)), f64::from(f32::from_le_bytes(*rest)));
            let [norm, number] = numbers.as_flattened().as_chunks::<8>().0 else { continue };
            *out = Product {
                x: scale * sum::<S, T>(elements, integers).to_f64(),
                within: 1.02 * length * rest + smallest * scale,
                norm: f64::from_le_bytes(*norm),
                number: f64::from_le_bytes(*number),
            };
        }
    }
}

/// The sum of the products of elements and integers.
#[inline(always)]
fn sum<S: Simd, T: Float>(elements: &[T], integers: &[u8]) -> T {
    let add = |sum: &mut V<S, T>, elements: &[T], integers: &[u8; TOGETHER]| {
        let wide = integers.map(|byte| T::from_f32(f32::from(byte as i8)));
        for at in (0..TOGETHER).step_by(T::LANES) {
            *sum = V::<S, T>::load(&wide[at..]).mul_add(V::<S, T>::load(&elements[at..]), *sum);
        }
    };
    let (mut sums, (integers, _)) = ([V::<S, T>::from(0.0); 4], integers.as_chunks::<TOGETHER>());
    let (groups, elements_of_groups) = (integers.chunks_exact(4), elements.chunks_exact(4 * TOGETHER));
    let rest = groups.remainder().iter().zip(elements_of_groups.remainder().chunks_exact(TOGETHER));
    for (integers, elements) in groups.zip(elements_of_groups) {
        for n in 0..4 {
            add(&mut sums[n], &elements[n * TOGETHER..], &integers[n]);
        }
    }
    for (integers, elements) in rest {
        add(&mut sums[0], elements, integers);
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum()
}
