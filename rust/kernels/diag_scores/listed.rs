//! Gradients of the scores of diagonal normals, of pairs whose rows are used once or few times: without packing, four vectors of
//! dimensions of a pair share a division.

use super::formulas::{Formula, Item, OWN};
use super::rest;
use super::slopes::{finite, together, PAIR};
use crate::shapes::Side;
use crate::simd::{Float, Kernel, Lanes, Simd, V};

/// The means and variances of a pair, all of D numbers, and how much it counts.
pub struct Listed<'a, T> {
    pub query: (&'a [T], &'a [T]),
    pub gallery: (&'a [T], &'a [T]),
    pub weight: T,
}

/// Where gradients by mean and variance are added up, and by the shared row, in whole groups of vectors: those of one item of all
/// pairs, or of both items of each pair in turn.
pub struct Slopes<'a, F, T> {
    pub formula: &'a F,
    pub pairs: &'a [Listed<'a, T>],
    /// The one item's side; none: pairs have no item in common.
    pub side: Option<Side>,
    /// The shared numbers; 1 where there are none.
    pub shared: &'a [T],
    /// Of the one item: [mean, variance, shared][D]; else for each pair [mean, variance of the query, of the gallery item][D], and in
    /// the end the shared.
    pub sums: &'a mut [T],
    pub by_shared: bool,
}

/// Numbers of whole groups that a row of `dim` takes.
pub fn padded<T: Float>(dim: usize) -> usize {
    dim.next_multiple_of(2 * PAIR * T::LANES)
}

/// The least divisor, the least variance or shared number, and the greatest divisor.
#[derive(Clone, Copy)]
struct Bounds<X> {
    least: X,
    lowest: X,
    greatest: X,
}

impl<T: Float, F: Formula> Kernel for Slopes<'_, F, T> {
    /// Whether the sums are known to be right.
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(mut self) -> bool {
        let one = V::<S, T>::splat(T::from_f64(1.0));
        let (dim, step) = (self.shared.len(), 2 * PAIR * T::LANES);
        let mut bounds = Bounds { least: one, lowest: one, greatest: one };
        for k in 0..self.pairs.len() {
            if self.pairs[k].weight.to_f64() == 0.0 {
                continue;
            }
            for first in (0..dim / step * step).step_by(step) {
                self.add::<S, true>(k, first, &mut bounds);
            }
            if dim % step > 0 {
                self.add::<S, false>(k, dim / step * step, &mut bounds);
            }
        }
        let (zero, range) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0 / T::QUARTER_RANGE)));
        let low = bounds.least.not_less_bits(range) & bounds.lowest.not_less_bits(zero);
        let known = low & V::<S, T>::splat(T::from_f64(T::QUARTER_RANGE)).not_less_bits(bounds.greatest);
        known == (1 << T::LANES) - 1 && finite::<S, T>(self.sums)
    }
}

/// A vector of a row; of its end, filled up, unless it is known to be whole.
#[inline(always)]
fn vector<S: Simd, T: Float, const WHOLE: bool>(row: &[T], from: usize, fill: f64) -> V<S, T> {
    if WHOLE {
        V::<S, T>::load(&row[from..from + T::LANES])
    } else {
        rest::<S, T>(row, from.min(row.len()), fill)
    }
}

impl<T: Float, F: Formula> Slopes<'_, F, T> {
    /// Adds a group of vectors of a pair.
    #[inline(always)]
    fn add<S: Simd, const WHOLE: bool>(&mut self, k: usize, first: usize, bounds: &mut Bounds<V<S, T>>) {
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let (formula, pair, width) = (self.formula, &self.pairs[k], padded::<T>(self.shared.len()));
        let weight = V::<S, T>::splat(pair.weight);
        let mut a = [Item { mean: zero, var: one, own: [zero; OWN] }; 2 * PAIR];
        let (mut b, mut priors, mut divisors) = (a, [[one; 2]; 2 * PAIR], [[one; PAIR]; 2]);
        for n in 0..2 * PAIR {
            let from = first + n * T::LANES;
            if F::ROW {
                priors[n][0] = vector::<S, T, WHOLE>(self.shared, from, 1.0);
                priors[n][1] = one / priors[n][0];
                bounds.lowest = priors[n][0].min(bounds.lowest);
            }
            let mean = vector::<S, T, WHOLE>(pair.query.0, from, 0.0);
            let var = vector::<S, T, WHOLE>(pair.query.1, from, 1.0);
            a[n] = Item { mean, var, own: formula.own::<S, T>(Side::Query, mean, var, priors[n]) };
            let mean = vector::<S, T, WHOLE>(pair.gallery.0, from, 0.0);
            let var = vector::<S, T, WHOLE>(pair.gallery.1, from, 1.0);
            b[n] = Item { mean, var, own: formula.own::<S, T>(Side::Gallery, mean, var, priors[n]) };
            let divisor = formula.divisor::<S, T>(&a[n], &b[n]);
            bounds.lowest = a[n].var.min(b[n].var.min(bounds.lowest));
            bounds.least = divisor.min(bounds.least);
            bounds.greatest = divisor.max(bounds.greatest);
            divisors[n / PAIR][n % PAIR] = divisor;
        }
        let (inverses, of_shared) = (together::<S, T>(divisors), self.sums.len() - width);
        let (of_query, of_gallery) = if self.side.is_none() { (4 * k * width, (4 * k + 2) * width) } else { (0, 0) };
        for n in 0..2 * PAIR {
            let slopes = formula.pair_slopes::<S, T>(&a[n], &b[n], inverses[n / PAIR][n % PAIR], priors[n]);
            let at = first + n * T::LANES;
            if self.side != Some(Side::Gallery) {
                add::<S, T>(self.sums, of_query + at, weight, slopes.means[0]);
                add::<S, T>(self.sums, of_query + width + at, weight, slopes.vars[0]);
            }
            if self.side != Some(Side::Query) {
                add::<S, T>(self.sums, of_gallery + at, weight, slopes.means[1]);
                add::<S, T>(self.sums, of_gallery + width + at, weight, slopes.vars[1]);
            }
            if self.by_shared {
                add::<S, T>(self.sums, of_shared + at, weight, slopes.shared);
            }
        }
    }
}

/// Adds a weighted vector.
#[inline(always)]
fn add<S: Simd, T: Float>(sums: &mut [T], at: usize, weight: V<S, T>, slope: V<S, T>) {
    let sums = &mut sums[at..at + T::LANES];
    weight.mul_add(slope, V::<S, T>::load(sums)).store(sums);
}
