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

impl<T: Float, F: Formula> Kernel for Slopes<'_, F, T> {
    /// Whether the sums are known to be right.
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        let Slopes { formula, pairs, side, shared, sums, by_shared } = self;
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let dim = shared.len();
        let width = padded::<T>(dim);
        let (mut least, mut lowest, mut greatest) = (one, one, one);
        let of_shared = sums.len() - width;
        for (k, pair) in pairs.iter().enumerate() {
            if pair.weight.to_f64() == 0.0 {
                continue;
            }
            let weight = V::<S, T>::splat(pair.weight);
            for first in (0..width).step_by(2 * PAIR * T::LANES) {
                let mut a = [Item { mean: zero, var: one, own: [zero; OWN] }; 2 * PAIR];
                let (mut b, mut priors, mut divisors) = (a, [[one; 2]; 2 * PAIR], [[one; PAIR]; 2]);
                for n in 0..2 * PAIR {
                    let from = (first + n * T::LANES).min(dim);
                    if F::ROW {
                        priors[n][0] = rest::<S, T>(shared, from, 1.0);
                        priors[n][1] = one / priors[n][0];
                        lowest = priors[n][0].min(lowest);
                    }
                    let (mean, var) = (rest::<S, T>(pair.query.0, from, 0.0), rest::<S, T>(pair.query.1, from, 1.0));
                    a[n] = Item { mean, var, own: formula.own::<S, T>(Side::Query, mean, var, priors[n][0]) };
                    let (mean, var) =
                        (rest::<S, T>(pair.gallery.0, from, 0.0), rest::<S, T>(pair.gallery.1, from, 1.0));
                    b[n] = Item { mean, var, own: formula.own::<S, T>(Side::Gallery, mean, var, priors[n][0]) };
                    let divisor = formula.divisor::<S, T>(&a[n], &b[n]);
                    lowest = a[n].var.min(b[n].var.min(lowest));
                    least = divisor.min(least);
                    greatest = divisor.max(greatest);
                    divisors[n / PAIR][n % PAIR] = divisor;
                }
                let inverses = together::<S, T>(divisors);
                for n in 0..2 * PAIR {
                    let slopes = formula.pair_slopes::<S, T>(&a[n], &b[n], inverses[n / PAIR][n % PAIR], priors[n]);
                    let at = first + n * T::LANES;
                    if side != Some(Side::Gallery) {
                        let out = if side.is_none() { &mut sums[4 * k * width..][..2 * width] } else { &mut *sums };
                        add::<S, T>(out, at, weight, slopes.means[0]);
                        add::<S, T>(out, width + at, weight, slopes.vars[0]);
                    }
                    if side != Some(Side::Query) {
                        let out = if side.is_none() { &mut sums[(4 * k + 2) * width..] } else { &mut *sums };
                        add::<S, T>(out, at, weight, slopes.means[1]);
                        add::<S, T>(out, width + at, weight, slopes.vars[1]);
                    }
                    if by_shared {
                        add::<S, T>(sums, of_shared + at, weight, slopes.shared);
                    }
                }
            }
        }
        let range = V::<S, T>::splat(T::from_f64(1.0 / T::QUARTER_RANGE));
        let low = least.not_less_bits(range) & lowest.not_less_bits(zero);
        let known = low & V::<S, T>::splat(T::from_f64(T::QUARTER_RANGE)).not_less_bits(greatest);
        known == (1 << T::LANES) - 1 && finite::<S, T>(sums)
    }
}

/// Adds a weighted vector.
#[inline(always)]
fn add<S: Simd, T: Float>(sums: &mut [T], at: usize, weight: V<S, T>, slope: V<S, T>) {
    let sums = &mut sums[at..at + T::LANES];
    weight.mul_add(slope, V::<S, T>::load(sums)).store(sums);
}
