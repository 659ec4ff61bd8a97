//! Panels of 8-bit integers: a gallery's rows as a search reads them first. A quarter of the bytes of float32, and products in
//! exact integers.
//!
//! A row b is `m + s c + r`: a vector m that all rows share, near which they lie, a scale s, integers c from -127 to 127, and what is
//! left out, r. A query a is `t e + f` likewise, without m. By Cauchy and Schwarz
//!
//! ```text
//! a.b = a.m + t s (e.c) + s (f.c) + a.r <= a.m + t s (e.c + K),    K >= (|f| |c| + |a| |r| / s) / t
//! ```
//!
//! where K holds for all rows of a group. It does not matter what m is; near the mean of the rows, r is small. The integer e.c is
//! exact ([`crate::simd::bytes`]), and begins at K.

use crate::simd::bytes::{Bytes, Sums, Tile, OFFSET, ROWS};
use crate::simd::{dispatch, Float, Kernel, Simd};
use crate::view::{Matrix, View};
use std::ops::Range;

/// Rows whose codes lie side by side.
pub const TOGETHER: usize = ROWS;

/// The float32 numbers of [`TOGETHER`] rows: a scale of each, the largest |c| and the largest |r| / s.
const NUMBERS: usize = TOGETHER + 2;

/// Dimensions with which no sum of products leaves 32 bits.
const DIMENSIONS: usize = 1 << 16;

/// The sum of a small number with it is an integer, which is in the last bits.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0; // 3 * 2^51

/// Rows that are looked at for the vector that all rows share.
const SAMPLE: usize = 1024;

/// The panels of a gallery.
#[derive(Clone, Copy)]
pub struct CodedPanels<'a> {
    /// The integers, of [`TOGETHER`] rows in each row.
    bytes: View<'a, u8>,
    /// Their numbers.
    numbers: View<'a, f32>,
    /// The vector m.
    middle: &'a [f64],
}

impl<'a> CodedPanels<'a> {
    /// Panels of so many rows as [`encode`] writes them; None where the arrays do not fit these.
    pub fn new(bytes: View<'a, u8>, numbers: View<'a, f32>, middle: &'a [f64], rows: usize) -> Option<Self> {
        let shapes = ((bytes.rows(), bytes.stored()), (numbers.rows(), numbers.stored()));
        (shapes == shape(rows, middle.len())).then_some(CodedPanels { bytes, numbers, middle })
    }

    /// The vector m.
    pub fn middle(&self) -> &'a [f64] {
        self.middle
    }

    /// The codes of [`TOGETHER`] rows.
    pub fn part(&self, part: usize) -> Part<'a> {
        Part { bytes: self.bytes.row(part), numbers: self.numbers.row(part) }
    }
}

/// The shapes of the bytes and of the numbers of so many rows of D elements.
pub fn shape(rows: usize, dim: usize) -> ((usize, usize), (usize, usize)) {
    let parts = rows.div_ceil(TOGETHER);
    ((parts, width(dim)), (parts, NUMBERS))
}

/// The bytes of [`TOGETHER`] rows.
fn width(dim: usize) -> usize {
    dim.div_ceil(4) * 4 * TOGETHER
}

/// Whether this processor multiplies codes of so many dimensions faster than float32.
pub fn pays(dim: usize) -> Option<Bytes> {
    Bytes::of_level().filter(|_| (1..DIMENSIONS).contains(&dim))
}

/// The codes of [`TOGETHER`] rows.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    bytes: &'a [u8],
    numbers: &'a [f32],
}

impl<'a> Part<'a> {
    /// The scales of the rows; NaN of a row that has no codes.
    pub fn scales(&self) -> &'a [f32; TOGETHER] {
        self.numbers.first_chunk().unwrap_or(&[f32::NAN; TOGETHER])
    }

    /// The largest |c| and the largest |r| / s.
    fn largest(&self) -> (f64, f64) {
        (f64::from(self.numbers[TOGETHER]), f64::from(self.numbers[TOGETHER + 1]))
    }
}

/// Memory for the codes of some rows.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

impl Buffer {
    /// The codes of the rows `order`.
    pub fn encode<'a, T: Float>(&'a mut self, rows: &Matrix<T>, order: &[i64], middle: &'a [f64]) -> CodedPanels<'a> {
        let (bytes, numbers) = shape(order.len(), middle.len());
        self.bytes.resize(bytes.0 * bytes.1, 0);
        self.numbers.resize(numbers.0 * numbers.1, 0.0);
        encode(rows, order, middle, &mut self.bytes, &mut self.numbers);
        let (bytes, numbers) =
            (View::new(&self.bytes, bytes.0, bytes.1), View::new(&self.numbers, numbers.0, numbers.1));
        CodedPanels { bytes, numbers, middle }
    }
}

/// A vector near which rows lie: the mean of the directions of a sample, of the length at which half of the sample is as long.
pub fn middle<T: Float>(rows: &Matrix<T>) -> Vec<f64> {
    let (dim, step) = (rows.stored(), rows.rows().div_ceil(SAMPLE).max(1));
    let (mut sum, mut lengths, mut buffer) = (vec![0.0; dim], Vec::new(), Vec::new());
    for row in (0..rows.rows()).step_by(step) {
        let row = rows.row(row, &mut buffer);
        let length = row.iter().map(|x| x.to_f64().powi(2)).sum::<f64>().sqrt();
        if length.is_normal() {
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f64() / length);
            lengths.push(length);
        }
    }
    let half = lengths.len() / 2;
    if !lengths.is_empty() {
        let factor = *lengths.select_nth_unstable_by(half, f64::total_cmp).1 / lengths.len() as f64;
        sum.iter_mut().for_each(|x| *x *= factor);
    }
    sum
}

/// Writes the codes of the rows `order`, to as much as [`shape`] says.
pub fn encode<T: Float>(rows: &Matrix<T>, order: &[i64], middle: &[f64], bytes: &mut [u8], numbers: &mut [f32]) {
    let mut buffer = Vec::new();
    let mut apart = vec![0.0; middle.len().next_multiple_of(8)];
    let parts = bytes.chunks_exact_mut(width(middle.len()).max(1)).zip(numbers.chunks_exact_mut(NUMBERS));
    for ((bytes, numbers), order) in parts.zip(order.chunks(TOGETHER)) {
        let (scales, largest) = numbers.split_at_mut(TOGETHER);
        scales.fill(0.0);
        largest.fill(0.0);
        for (lane, &row) in order.iter().enumerate() {
            let row = rows.row(row as usize, &mut buffer);
            let (scale, integers, rest) = dispatch(Encode { row, middle, apart: &mut apart, bytes, lane });
            scales[lane] = scale;
            largest[0] = largest[0].max(integers);
            largest[1] = largest[1].max(rest);
        }
    }
}

/// Makes the codes of one row: returns s, |c| and |r| / s, the last two not less than they are; s is NaN, and the others are 0, of
/// a row that has no codes.
struct Encode<'a, T> {
    row: &'a [T],
    middle: &'a [f64],
    /// Memory for b - m, and for zeros up to a whole number of eight.
    apart: &'a mut [f64],
    bytes: &'a mut [u8],
    lane: usize,
}
impl<T: Float> Kernel for Encode<'_, T> {
    const LANES_MEET: bool = false;
    type Output = (f32, f32, f32);
    #[inline(always)]
    fn run<S: Simd>(self) -> (f32, f32, f32) {
        let Encode { row, middle, apart, bytes, lane } = self;
        for ((apart, x), m) in apart.iter_mut().zip(row).zip(middle) {
            *apart = x.to_f64() - m;
        }
        let (groups, _) = apart.as_chunks::<8>();
        let mut most = [0.0; 8];
        for group in groups {
            for n in 0..8 {
                let size = group[n].abs();
                most[n] = if size > most[n] { size } else { most[n] };
            }
        }
        let most = most.iter().fold(0.0, |a: f64, &b| a.max(b));
        let scale = (most / 127.0) as f32;
        let (wide, inverse) = (f64::from(scale), if scale == 0.0 { 0.0 } else { 1.0 / f64::from(scale) });
        let (mut squares, mut rests) = ([0.0; 8], [0.0; 8]);
        for (first, group) in groups.iter().enumerate() {
            let mut codes = [0; 8];
            for n in 0..8 {
                let shifted = group[n] * inverse + TO_INTEGER;
                let integer = shifted - TO_INTEGER;
                let rest = group[n] - wide * integer;
                squares[n] += integer * integer;
                rests[n] += rest * rest;
                codes[n] = (shifted.to_bits() as u8).wrapping_add(OFFSET as u8);
            }
            for (half, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
                let at = ((2 * first + half) * TOGETHER + lane) * 4;
                if let Some(out) = bytes.get_mut(at..at + 4) {
                    out.copy_from_slice(codes);
                }
            }
        }
        let (squares, rests): (f64, f64) = (squares.iter().sum(), rests.iter().sum());
        // b - m and its products were rounded to 53 bits.
        let rest = 1.000_001 * rests.sqrt() * inverse + 1e-14 * squares.sqrt();
        // A NaN is in the rest alone. Zeros have a scale of 0, and leave nothing out.
        let coded = (scale.is_normal() || most == 0.0) && rest.is_finite();
        if coded {
            (scale, ((1.000_001 * squares.sqrt()) as f32).next_up(), (rest as f32).next_up())
        } else {
            (f32::NAN, 0.0, 0.0)
        }
    }
}

/// A query as codes.
#[derive(Clone, Copy)]
struct Query {
    /// The scale t; NaN of a query that has no codes.
    scale: f64,
    /// The lengths of a and of f, over t, not less than they are, and of e.
    lengths: [f64; 3],
    /// The inner product with m.
    with_middle: f64,
    /// The sum of the integers.
    sum: i32,
    /// K.
    spare: i32,
}

/// The queries of a block, in tiles as wide as the level takes: `[tile][D/4][query]`, padded with zeros.
pub struct CodedQueries {
    bytes: Bytes,
    words: Vec<i32>,
    /// The words of a query.
    count: usize,
    queries: Vec<Query>,
    starts: Vec<i32>,
    factors: Vec<f32>,
    limits: Vec<f32>,
    /// The length of m.
    middle: f64,
}

impl CodedQueries {
    /// The codes of the rows `range`.
    pub fn new<T: Float>(view: &View<T>, range: Range<usize>, middle: &[f64], bytes: Bytes) -> Self {
        let (count, width) = (view.stored().div_ceil(4), bytes.queries);
        let whole = range.len() / width * width;
        let padded = whole + if range.len() > whole { bytes.wide(range.len() - whole) } else { 0 };
        let (mut words, mut queries) = (vec![0; padded * count], Vec::with_capacity(range.len()));
        for (k, row) in range.map(|row| view.row(row)).enumerate() {
            let (tile, wide) = (k / width * width, if k < whole { width } else { padded - whole });
            let mut put = |word: usize, integers| words[(tile * count) + word * wide + k - tile] = integers;
            queries.push(Query::new(row, middle, f64::from(bytes.largest), &mut put));
        }
        // Queries of the padding have a limit that nothing reaches.
        let (starts, factors, limits) = (vec![0; padded], vec![0.0; padded], vec![f32::INFINITY; padded]);
        let middle = middle.iter().map(|m| m * m).sum::<f64>().sqrt();
        let mut all = CodedQueries { bytes, words, count, queries, starts, factors, limits, middle };
        for (factor, query) in all.factors.iter_mut().zip(&all.queries) {
            *factor = (1.0 / query.scale) as f32;
        }
        all
    }

    /// Begins with a group of rows: their K.
    pub fn enter<'a>(&mut self, parts: impl Iterator<Item = Part<'a>>) {
        let (integers, rest) = parts.fold((0.0, 0.0), |(a, b): (f64, f64), part| {
            let (c, d) = part.largest();
            (a.max(c), b.max(d))
        });
        for (start, query) in self.starts.iter_mut().zip(&mut self.queries) {
            let [length, left_out, _] = query.lengths;
            // The conversion makes 0 of NaN; at most 2 D 127, but for queries and rows that have no codes.
            query.spare = (1.000_001 * (left_out * integers + length * rest) + 1.0).ceil() as i32;
            *start = query.spare.wrapping_sub(OFFSET.wrapping_mul(query.sum));
        }
    }

    /// Sets the limit of a query: rows pass whose `a.b + share` may be as large as this. `longest` is not less than the length of
    /// any row, nor `share` than that of any share.
    ///
    /// With unit roundoff u of float32, `s (e.c + K) + share / t` is computed with at most three roundings of either term, of which
    /// the first is at most s |c| |e| + s K; s |c| <= 2 |b - m|, since no |r| is more than |b - m|, and 126 s <= |b - m|. A share, or
    /// the sum, may be subnormal.
    pub fn set_limit(&mut self, query: usize, least: f64, longest: f64, share: f64) {
        let Query { scale, lengths: [length, _, integers], with_middle, spare, .. } = self.queries[query];
        let apart = longest + self.middle;
        let roundings = 5e-7 * (2.0 * apart * integers + apart * f64::from(spare) / 64.0 + share / scale);
        let subnormal = f32::SMALLEST * (1.0 + 1.0 / scale);
        let products = 1e-15 * (8 + 4 * self.count) as f64 * (length * self.middle + (least / scale).abs());
        let limit = (least - with_middle) / scale - roundings - products - subnormal;
        let limit = (limit - 2e-7 * limit.abs()) as f32;
        // Sums that would be smaller may have overflowed.
        self.limits[query] = if limit > -1e38 { limit } else { f32::NEG_INFINITY };
    }

    /// The first queries of all tiles.
    pub fn tiles(&self) -> impl Iterator<Item = usize> {
        (0..self.starts.len()).step_by(self.bytes.queries)
    }

    /// The sums of the tile that begins with this query and of the rows of a part that reach their limits; whether there are any.
    #[inline]
    pub fn multiply(&self, first: usize, part: &Part, shares: &[f32; TOGETHER], out: &mut Sums) -> bool {
        let range = first..self.starts.len().min(first + self.bytes.queries);
        let tile = Tile {
            rows: part.bytes,
            queries: &self.words[range.start * self.count..range.end * self.count],
            starts: &self.starts[range.clone()],
            factors: &self.factors[range.clone()],
            limits: &self.limits[range],
            scales: part.scales(),
            shares,
        };
        self.bytes.multiply(&tile, out)
    }

    /// An inner product as codes find it, from its sum, and how far it may lie from that of the rows; NaN where the row or the query
    /// has no codes.
    #[inline]
    pub fn product(&self, query: usize, sum: i32, scale: f32) -> (f64, f64) {
        let Query { scale: t, lengths: [length, ..], with_middle, spare, .. } = self.queries[query];
        let unit = t * f64::from(scale);
        let roundings = 1e-15 * (8 + 4 * self.count) as f64 * length * t * self.middle;
        (with_middle + unit * f64::from(sum - spare), unit * f64::from(spare) + roundings)
    }

    /// Whether a sum reaches the limit of its query, which may have risen.
    #[inline]
    pub fn reaches(&self, query: usize, sum: i32, scale: f32, share: f32) -> bool {
        let [share, factor, limit] = [share, self.factors[query], self.limits[query]].map(f64::from);
        !(share * factor + f64::from(sum) * f64::from(scale) < limit)
    }
}

impl Query {
    /// The codes of a row, of which each word of four is put in its place.
    fn new<T: Float>(row: &[T], middle: &[f64], largest: f64, put: &mut dyn FnMut(usize, i32)) -> Self {
        let most = row.iter().fold(0.0, |most: f64, x| most.max(x.to_f64().abs()));
        // A query of zeros has integers of any scale.
        let scale = if most == 0.0 { 1.0 } else { most / largest };
        let (inverse, mut sum, mut squares, mut with_middle) = (1.0 / scale, 0, [0.0; 3], 0.0);
        for (word, (row, middle)) in row.chunks(4).zip(middle.chunks(4)).enumerate() {
            let mut integers = [0; 4];
            for ((x, m), integer) in row.iter().zip(middle).zip(&mut integers) {
                let x = x.to_f64();
                let (units, shifted) = (x * inverse, x * inverse + TO_INTEGER);
                let (code, rest) = (shifted - TO_INTEGER, units - (shifted - TO_INTEGER));
                squares = [squares[0] + units * units, squares[1] + rest * rest, squares[2] + code * code];
                with_middle += x * m;
                *integer = shifted.to_bits() as i8;
                sum += i32::from(*integer);
            }
            put(word, i32::from_ne_bytes(integers.map(|x| x as u8)));
        }
        let [length, left_out, integers] = squares.map(|x: f64| 1.000_001 * x.sqrt());
        // x times the inverse was rounded three times.
        let lengths = [length, left_out + 1e-15 * length, integers];
        let coded = (1e-30..1e30).contains(&scale) && length < f64::INFINITY && with_middle.is_finite();
        Query { scale: if coded { scale } else { f64::NAN }, lengths, with_middle, sum, spare: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::{middle, pays, Buffer, CodedQueries, TOGETHER};
    use crate::simd::bytes::Sums;
    use crate::simd::Float;
    use crate::view::{Matrix, View};
    use proptest::prelude::*;

    /// Numbers of one row, small integers times a power of two so that float64 sums their products exactly: of any size, those of codes
    /// that leave nothing out, nearly all alike, few that are large, or zeros.
    fn row(dim: usize) -> impl Strategy<Value = Vec<f64>> {
        let small = -4000i32..4001;
        let sparse = prop_oneof![9 => Just(0i32), 1 => -4000i32..4001];
        let alike = prop_oneof![Just(2001i32), Just(-2000)];
        let exact = prop::collection::vec(-127i32..128, dim).prop_map(|mut row| {
            row[0] = 127;
            row
        });
        let numbers = prop_oneof![
            prop::collection::vec(small, dim),
            exact,
            prop::collection::vec(sparse, dim),
            prop::collection::vec(alike, dim),
            Just(vec![0; dim]),
        ];
        (numbers, -6i32..7).prop_map(|(row, power)| row.iter().map(|&x| f64::from(x) * 2f64.powi(2 * power)).collect())
    }

    /// A query, and rows of which the codes leave out as much as they can on its side, or the query's codes on theirs: hardly any less
    /// than the bound allows for.
    fn aligned(dim: usize) -> impl Strategy<Value = (Vec<f64>, Vec<Vec<f64>>)> {
        let signs = prop::collection::vec(prop::bool::ANY, dim);
        (signs, 1i32..100, any::<bool>()).prop_map(|(signs, code, of_query)| {
            let plain: Vec<f64> = signs.iter().map(|&up| if up { 127.0 } else { -127.0 }).collect();
            let left_out = |up: f64| -> Vec<f64> {
                let mut row: Vec<f64> =
                    plain.iter().map(|&sign| f64::from(code) + up * 0.484_375 * sign.signum()).collect();
                row[0] = 127.0;
                row
            };
            if of_query {
                (left_out(1.0), vec![plain.clone(), plain.iter().map(|x| -x).collect()])
            } else {
                (plain.clone(), vec![left_out(1.0), left_out(-1.0)])
            }
        })
    }

    fn pairs() -> impl Strategy<Value = (Vec<Vec<f64>>, Vec<Vec<f64>>)> {
        let any = (1usize..70)
            .prop_flat_map(|dim| (prop::collection::vec(row(dim), 1..6), prop::collection::vec(row(dim), 1..40)));
        let hard = (1usize..300).prop_flat_map(aligned).prop_map(|(query, rows)| (vec![query], rows));
        prop_oneof![any, hard]
    }

    /// No inner product lies farther from that of the codes than they say, and none that reaches a limit is ruled out; returns the
    /// largest share of what the codes allow for that was needed.
    fn hold<T: Float>(queries: &[Vec<f64>], rows: &[Vec<f64>], size: i32, near: bool) -> Result<f64, TestCaseError> {
        let sized = |rows: &[Vec<f64>]| -> Vec<Vec<f64>> {
            rows.iter().map(|row| row.iter().map(|x| x * 2f64.powi(size)).collect()).collect()
        };
        let (queries, rows) = (&sized(queries)[..], &sized(rows)[..]);
        let (dim, plain) =
            (rows[0].len(), |rows: &[Vec<f64>]| -> Vec<T> { rows.iter().flatten().map(|&x| T::from_f64(x)).collect() });
        let Some(bytes) = pays(dim) else { return Ok(1.0) };
        let (of_queries, of_rows) = (plain(queries), plain(rows));
        let (matrix, view) =
            (Matrix::Full(View::new(&of_rows, rows.len(), dim)), View::new(&of_queries, queries.len(), dim));
        let (middle, order) =
            (if near { middle(&matrix) } else { vec![0.0; dim] }, (0..rows.len() as i64).collect::<Vec<_>>());
        let mut buffer = Buffer::default();
        let panels = buffer.encode(&matrix, &order, &middle);
        let mut coded = CodedQueries::new(&view, 0..queries.len(), &middle, bytes);
        let parts = rows.len().div_ceil(TOGETHER);
        coded.enter((0..parts).map(|part| panels.part(part)));
        let longest = rows.iter().map(|row| row.iter().map(|x| x * x).sum::<f64>()).fold(0.0, f64::max);
        let (mut sums, mut needed) = (Sums::default(), 0.0);
        for (place, row) in rows.iter().enumerate() {
            let (part, lane) = (panels.part(place / TOGETHER), place % TOGETHER);
            let share = -0.5 * row.iter().map(|x| x * x).sum::<f64>();
            for (i, query) in queries.iter().enumerate() {
                let exact: f64 = query.iter().zip(row).map(|(a, b)| a * b).sum();
                coded.set_limit(i, exact + share, longest.sqrt(), longest);
                let tile = coded.tiles().filter(|&first| first <= i).last().unwrap_or(0);
                let mut shares = [f32::NEG_INFINITY; TOGETHER];
                shares[lane] = if (share as f32).is_finite() { share as f32 } else { f32::NAN };
                prop_assert!(coded.multiply(tile, &part, &shares, &mut sums), "query {} and row {}", i, place);
                prop_assert!(sums.reach[i - tile] >> lane & 1 == 1, "query {} and row {}", i, place);
                let (sum, scale) = (sums.sums[i - tile][lane], part.scales()[lane]);
                prop_assert!(coded.reaches(i, sum, scale, shares[lane]));
                let (x, within) = coded.product(i, sum, scale);
                if within.is_nan() {
                    continue; // no codes
                }
                prop_assert!((x - exact).abs() <= within, "{} is {} from {}, not {}", x, x - exact, exact, within);
                needed = f64::max(needed, (x - exact).abs() / within);
            }
        }
        Ok(needed)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
        #[test]
        fn products_lie_within_what_codes_leave_out(
            (queries, rows) in pairs(),
            size in prop::sample::select(vec![-500i32, -160, -110, -80, -40, 0, 0, 40, 80, 110, 160, 450]),
            near in any::<bool>(),
        ) {
            if size.abs() <= 80 {
                hold::<f32>(&queries, &rows, size, near)?;
            }
            hold::<f64>(&queries, &rows, size, near)?;
        }

        /// Products and shares that cancel, of rows that codes leave nothing of, so that roundings alone are allowed for.
        #[test]
        fn no_row_is_lost_by_roundings(dim in 1000usize..5000, bits in 0u32..1 << 20) {
            let row = vec![127.0 * f64::from(f32::from_bits(0x3F80_0000 | bits)); dim];
            let half: Vec<f64> = row.iter().map(|x| 0.5 * x).collect();
            hold::<f64>(&[half], &[row], 0, false)?;
        }

        /// Nothing that is allowed for is more than is needed: with half of it, rows would be lost.
        #[test]
        fn no_bound_is_twice_what_is_needed((query, rows) in (64usize..300).prop_flat_map(aligned)) {
            if pays(1).is_some_and(|bytes| bytes.largest == 127) {
                prop_assert!(hold::<f32>(&[query], &rows, 0, false)? > 0.5);
            }
        }
    }
}
