//! Gradients of the scores of diagonal normals, of pairs whose rows are used once or few times: without packing, four vectors of
//! dimensions of a pair share a division.

use super::formulas::{Formula, Item, OWN};
use super::rest;
use super::slopes::{together, PAIR};
use crate::shapes::Side;
use crate::simd::{Float, Kernel, Lanes, Simd, V};

/// The means and variances of a pair, all of D numbers, and how much it counts.
pub struct Listed<'a, T> {
    pub own: (&'a [T], &'a [T]),
    pub other: (&'a [T], &'a [T]),
    pub weight: T,
}

/// Where gradients by mean and variance go, and by the shared row.
pub struct Slopes<'a, 'b, F, T> {
    /// As seen from the own items.
    pub formula: &'a F,
    pub pairs: &'a [Listed<'a, T>],
    /// Whether pairs have no item in common; else the own one.
    pub both: bool,
    /// The shared numbers; 1 where there are none.
    pub shared: &'a [T],
    /// Rows of D numbers by mean and variance: of the own item, to which is added; or, written, of the own and of the other item of
    /// each pair in turn.
    pub rows: &'a mut [[&'b mut [T]; 2]],
    /// Of D numbers, to which is added; empty where it is not wanted.
    pub by_shared: &'a mut [T],
}

/// What the pairs of a call share, a vector after the other: 1 by each shared number, and what the formula makes of the common item.
struct Common<X> {
    inverses: Vec<X>,
    own: Vec<[X; OWN]>,
}

/// What is seen of all pairs; apart from all that lies in memory, so that it stays in registers.
#[derive(Clone, Copy)]
struct Seen<X> {
    /// The least divisor, the least variance or shared number, and the greatest divisor.
    least: X,
    lowest: X,
    greatest: X,
    /// 0 as long as all gradients are finite.
    finite: X,
}

impl<T: Float, F: Formula> Kernel for Slopes<'_, '_, F, T> {
    /// Whether what was found is known to be right.
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(mut self) -> bool {
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let (dim, step) = (self.shared.len(), 2 * PAIR * T::LANES);
        let mut common = Common { inverses: Vec::new(), own: Vec::new() };
        let mut seen = Seen { least: one, lowest: one, greatest: one, finite: zero };
        for from in (0..dim.next_multiple_of(step)).step_by(T::LANES) {
            let prior = vector::<S, T, false>(self.shared, from, 1.0);
            seen.lowest = prior.min(seen.lowest);
            common.inverses.push(one / prior);
            if let (false, Some(Listed { own: (mean, var), .. })) = (self.both, self.pairs.first()) {
                let (mean, var) = (vector::<S, T, false>(mean, from, 0.0), vector::<S, T, false>(var, from, 1.0));
                common.own.push(self.formula.own::<S, T>(Side::Query, mean, var, [prior, one / prior]));
            }
        }
        let whole = dim / step * step;
        for k in 0..self.pairs.len() {
            if self.pairs[k].weight.to_f64() == 0.0 {
                continue;
            }
            for first in (0..whole).step_by(step) {
                if self.both {
                    seen = self.add::<S, true, true>(k, first, &common, seen);
                } else {
                    seen = self.add::<S, false, true>(k, first, &common, seen);
                }
            }
            if whole < dim {
                if self.both {
                    seen = self.add::<S, true, false>(k, whole, &common, seen);
                } else {
                    seen = self.add::<S, false, false>(k, whole, &common, seen);
                }
            }
        }
        let range = V::<S, T>::splat(T::from_f64(1.0 / T::QUARTER_RANGE));
        let low = seen.least.not_less_bits(range) & seen.lowest.not_less_bits(zero);
        let known = low & V::<S, T>::splat(T::from_f64(T::QUARTER_RANGE)).not_less_bits(seen.greatest);
        known == (1 << T::LANES) - 1 && seen.finite.sum().to_f64() == 0.0
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

impl<T: Float, F: Formula> Slopes<'_, '_, F, T> {
    /// Adds a group of vectors of a pair.
    #[inline(always)]
    fn add<S: Simd, const BOTH: bool, const WHOLE: bool>(
        &mut self,
        k: usize,
        first: usize,
        common: &Common<V<S, T>>,
        mut seen: Seen<V<S, T>>,
    ) -> Seen<V<S, T>> {
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let (formula, pair) = (self.formula, &self.pairs[k]);
        let weight = V::<S, T>::splat(pair.weight);
        let mut a = [Item { mean: zero, var: one, own: [zero; OWN] }; 2 * PAIR];
        let (mut b, mut priors, mut divisors) = (a, [[one; 2]; 2 * PAIR], [[one; PAIR]; 2]);
        for n in 0..2 * PAIR {
            let from = first + n * T::LANES;
            if F::ROW {
                priors[n] = [vector::<S, T, WHOLE>(self.shared, from, 1.0), common.inverses[from / T::LANES]];
            }
            let mean = vector::<S, T, WHOLE>(pair.own.0, from, 0.0);
            let var = vector::<S, T, WHOLE>(pair.own.1, from, 1.0);
            let own =
                if BOTH { formula.own::<S, T>(Side::Query, mean, var, priors[n]) } else { common.own[from / T::LANES] };
            a[n] = Item { mean, var, own };
            let mean = vector::<S, T, WHOLE>(pair.other.0, from, 0.0);
            let var = vector::<S, T, WHOLE>(pair.other.1, from, 1.0);
            b[n] = Item { mean, var, own: formula.own::<S, T>(Side::Gallery, mean, var, priors[n]) };
            let divisor = formula.divisor::<S, T>(&a[n], &b[n]);
            seen.lowest = a[n].var.min(b[n].var.min(seen.lowest));
            seen.least = divisor.min(seen.least);
            seen.greatest = divisor.max(seen.greatest);
            divisors[n / PAIR][n % PAIR] = divisor;
        }
        let inverses = together::<S, T>(divisors);
        for n in 0..2 * PAIR {
            let slopes = formula.pair_slopes::<S, T>(&a[n], &b[n], inverses[n / PAIR][n % PAIR], priors[n]);
            let from = first + n * T::LANES;
            for field in 0..2 {
                let slope = [slopes.means, slopes.vars][field];
                if BOTH {
                    for item in 0..2 {
                        let found = weight * slope[item];
                        seen.finite = found.mul_add(zero, seen.finite);
                        put::<S, T, WHOLE>(found, self.rows[2 * k + item][field], from);
                    }
                } else {
                    let row = &mut self.rows[0][field];
                    let found = weight.mul_add(slope[0], vector::<S, T, WHOLE>(row, from, 0.0));
                    seen.finite = found.mul_add(zero, seen.finite);
                    put::<S, T, WHOLE>(found, row, from);
                }
            }
            if !self.by_shared.is_empty() {
                let found = weight.mul_add(slopes.shared, vector::<S, T, WHOLE>(self.by_shared, from, 0.0));
                seen.finite = found.mul_add(zero, seen.finite);
                put::<S, T, WHOLE>(found, self.by_shared, from);
            }
        }
        seen
    }
}

/// Writes a vector of a row; of its end what there is of it.
#[inline(always)]
fn put<S: Simd, T: Float, const WHOLE: bool>(x: V<S, T>, row: &mut [T], from: usize) {
    if WHOLE {
        x.store(&mut row[from..from + T::LANES]);
    } else {
        let from = from.min(row.len());
        let row = &mut row[from..];
        let count = row.len().min(T::LANES);
        row[..count].copy_from_slice(&x.to_array()[..count]);
    }
}
