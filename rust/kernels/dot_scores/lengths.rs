//! Cosines of rows whose squared lengths leave the range of their type, or lose digits there: lengths below 5e-10 or above 2e9 in
//! float32. Such rows are scaled by a power of two, and their inner products summed in float64; a cosine does not change by that.

use super::formulas::Formula;
use super::{sq_norm, Block};
use crate::drivers::{Inputs, Rows};
use crate::simd::{Float, Kernel, Simd};

/// Whether a score is one of cosines.
pub const fn has_lengths<F: Formula>() -> bool {
    F::NORMS && !F::DIFFERENCE
}

/// Whether a squared norm has all its digits, and the inner products of rows whose norms have them. No NaN has.
#[inline(always)]
pub fn in_range<T: Float>(norm: f64) -> bool {
    let most = T::QUARTER_RANGE * T::QUARTER_RANGE;
    norm >= 1.0 / most && norm <= most
}

/// A power of two by which a row is multiplied, as two factors, since it may leave the range.
#[derive(Clone, Copy)]
pub struct Power([f64; 2]);

impl Power {
    /// The power that brings a row with this squared norm near length 1; 1 for a norm in range, for zeros and for what is not finite.
    pub fn of<T: Float>(row: &[T], norm: f64) -> Self {
        let largest = row.iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max);
        if in_range::<T>(norm) || largest == 0.0 || !largest.is_finite() {
            return Power([1.0; 2]);
        }
        let exponent = -(largest.log2().floor() as i32);
        Power([2f64.powi(exponent / 2), 2f64.powi(exponent - exponent / 2)])
    }

    /// A number times the power.
    #[inline(always)]
    pub fn times(self, x: f64) -> f64 {
        x * self.0[0] * self.0[1]
    }
}

/// The inner product of two rows times their powers.
#[cold]
#[inline(never)]
pub fn product<T: Float>((a, of_a): (&[T], Power), (b, of_b): (&[T], Power)) -> f64 {
    a.iter().zip(b).map(|(a, b)| of_a.times(a.to_f64()) * of_b.times(b.to_f64())).sum()
}

/// The squared norm of a row, scaled unless it is in range.
#[inline(always)]
pub fn scaled_norm<T: Float>(row: &[T], norm: f64) -> f64 {
    if in_range::<T>(norm) {
        return norm;
    }
    let power = Power::of(row, norm);
    product((row, power), (row, power))
}

/// The power of a row whose norm is not at hand.
#[inline(always)]
pub fn power<S: Simd, T: Float>(row: &[T]) -> Power {
    Power::of(row, sq_norm::<S, T>(row).to_f64())
}

/// Which of a query's pairs are of scaled rows: all if the query is, else those with such rows of the gallery.
pub fn of_pairs(query: bool, gallery: u64) -> u64 {
    if query {
        u64::MAX
    } else {
        gallery
    }
}

/// Writes the inner products of a query and gallery rows where one of both is scaled.
pub struct WriteScaled<'a, T> {
    /// A bit for each gallery row whose inner product is written.
    pub scaled: u64,
    /// The query.
    pub query: &'a [T],
    /// The gallery rows.
    pub gallery: &'a [&'a [T]],
    /// The inner products.
    pub x: &'a mut [f64],
}

impl<T: Float> Kernel for WriteScaled<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let of_query = power::<S, T>(self.query);
        for (j, row) in self.gallery.iter().enumerate() {
            if self.scaled >> j & 1 == 1 {
                self.x[j] = product((self.query, of_query), (row, power::<S, T>(row)));
            }
        }
    }
}

impl Block {
    /// Replaces the norms and inner products of the pairs of which one norm is not in range by those of scaled rows, and notes which
    /// these are.
    pub fn scale<T: Float>(&mut self, inputs: &Inputs<T>, (q, g): (Rows, Rows), n: usize) {
        self.scaled = 0;
        for k in 0..n {
            if !(in_range::<T>(self.norms.0[k]) && in_range::<T>(self.norms.1[k])) {
                self.scaled |= 1 << k;
            }
        }
        let mut buffer = Vec::new();
        for k in (0..n).filter(|k| self.scaled >> k & 1 == 1) {
            let (a, b) = (inputs.mu1.row(q.at(k)), inputs.mu2.row(g.at(k), &mut buffer));
            let (of_a, of_b) = (Power::of(a, self.norms.0[k]), Power::of(b, self.norms.1[k]));
            self.x[k] = product((a, of_a), (b, of_b));
            (self.norms.0[k], self.norms.1[k]) = (scaled_norm(a, self.norms.0[k]), scaled_norm(b, self.norms.1[k]));
        }
    }
}

/// Adds the gradient of a pair with respect to `row`, given the partial derivatives with respect to the scaled rows' inner product
/// (`by_x`) and to that row's squared norm (`by_norm`).
#[cold]
#[inline(never)]
pub fn accumulate<T: Float>(
    mu: &mut [T],
    (row, own): (&[T], Power),
    (other, of_other): (&[T], Power),
    by_x: f64,
    by_norm: f64,
) {
    for ((mu, row), other) in mu.iter_mut().zip(row).zip(other) {
        let by_row = by_x * of_other.times(other.to_f64()) + 2.0 * by_norm * own.times(row.to_f64());
        *mu = *mu + T::from_f64(own.times(by_row));
    }
}
