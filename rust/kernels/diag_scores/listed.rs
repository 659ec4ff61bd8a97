//! Gradients of the scores of diagonal normals over pairs whose rows are used once or a few times: nothing is packed, and four
//! vectors of dimensions of a pair share a division.

use super::formulas::{Formula, Item, PER_ITEM};
use super::gradients::{together, PAIR};
use super::{rest, whole};
use crate::drivers::{Inputs, Rows, Side, AHEAD};
use crate::simd::{prefetch, Float, Kernel, Simd, V};

/// Pairs (`q.at(k)`, `g.at(k)`) and their weights; the items are those of `side`.
pub struct Listed<'a, T> {
    pub inputs: &'a Inputs<'a, T>,
    pub side: Side,
    pub q: Rows<'a>,
    pub g: Rows<'a>,
    pub weights: &'a [T],
}

/// An item's means and variances, D numbers each.
type NormalRows<'a, T> = (&'a [T], &'a [T]);

impl<T: Float> Listed<'_, T> {
    /// Prefetches the candidate that a query takes some pairs after pair `k`, as candidates lie anywhere.
    #[inline(always)]
    fn prefetch(&self, k: usize) {
        if let (Rows::List(rows), Side::Query) = (self.g, self.side) {
            if let Some(&row) = rows.get(k + AHEAD) {
                prefetch(self.inputs.mu2.bytes(row));
                prefetch(self.inputs.uncertainty2.bytes(row));
            }
        }
    }

    /// The item of `side` and the other one of pair `k`; rows that are constant or stored in half precision are written to
    /// `buffers`.
    #[inline(always)]
    fn items<'b>(&'b self, k: usize, buffers: &'b mut [Vec<T>; 4]) -> [NormalRows<'b, T>; 2] {
        let (i, j, Inputs { mu1, uncertainty1: var1, mu2, uncertainty2: var2, .. }) =
            (self.q.at(k), self.g.at(k), self.inputs);
        let [first, means, vars, second] = buffers;
        let query = (mu1.row(i), whole(var1.row(i), mu1.stored(), first));
        let gallery = (mu2.row(j, means), whole(var2.row(j, vars), mu1.stored(), second));
        if self.side == Side::Query {
            [query, gallery]
        } else {
            [gallery, query]
        }
    }
}

/// Computes gradients over listed pairs, with respect to means, variances and the shared row.
pub struct ListedGradients<'a, 'b, F, T> {
    /// The formula whose first item is that of `side`.
    pub formula: &'a F,
    pub pairs: Listed<'a, T>,
    /// Whether every pair has its own two items, and the gradients of both are wanted; else all pairs share the item of `side`.
    pub both: bool,
    /// Rows of D numbers, the gradients with respect to mean and variance: of the common item, to which is added; or of the
    /// item of `side` and of the other one of each pair by turns, which are written.
    pub rows: &'a mut [[&'b mut [T]; 2]],
    /// The gradient with respect to the shared row [D], to which is added; empty where it is not wanted.
    pub by_shared: &'a mut [T],
}

/// The numbers that all pairs of a call share: the shared row, and, padded to whole groups of vectors, its reciprocals and what
/// the formula makes of the common item. Each is empty where the formula does not take it.
struct SharedByPairs<'a, T> {
    shared: &'a [T],
    inverses: &'a [T],
    per_item: [&'a [T]; PER_ITEM],
}

/// The extremes over all pairs; apart from what lies in memory, so that they stay in registers.
#[derive(Clone, Copy)]
struct Extremes<X> {
    /// The least divisor.
    least: X,
    /// The least variance or shared number.
    lowest: X,
    /// The greatest divisor.
    greatest: X,
    /// 0 while all gradients are finite.
    finite: X,
}

impl<T: Float, F: Formula> Kernel for ListedGradients<'_, '_, F, T> {
    const LANES_MEET: bool = false;
    /// Whether the gradients are known to be right: in range, and finite.
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        let (zero, one) = (V::<S, T>::from(0.0), V::<S, T>::from(1.0));
        let (dim, step) = (self.pairs.inputs.mu1.stored(), 2 * PAIR * T::LANES);
        let padded = dim.next_multiple_of(step);
        let mut buffers = [const { Vec::new() }; 4];
        let mut seen = Extremes { least: one, lowest: one, greatest: one, finite: zero };
        let shared = if F::ROW { self.pairs.inputs.shared.row(0) } else { &[] };
        let made_of_item = if self.both { 0 } else { F::PER_ITEM };
        let mut made = vec![T::default(); padded * (usize::from(F::ROW) + made_of_item)];
        let (inverses, per_item) = made.split_at_mut(if F::ROW { padded } else { 0 });
        if F::ROW || made_of_item > 0 {
            let [(mean, var), _] = self.pairs.items(0, &mut buffers);
            for from in (0..padded).step_by(V::<S, T>::LANES) {
                let prior = vector::<S, T, REST>(shared, from, 1.0);
                let inverse = 1.0 / prior;
                if F::ROW {
                    seen.lowest = prior.min(seen.lowest);
                    inverse.store(&mut inverses[from..]);
                }
                if made_of_item > 0 {
                    let (mean, var) = (vector::<S, T, REST>(mean, from, 0.0), vector::<S, T, REST>(var, from, 1.0));
                    let made = self.formula.per_item::<S, T>(Side::Query, mean, var, [prior, inverse]);
                    for (row, made) in per_item.chunks_exact_mut(padded).zip(made) {
                        made.store(&mut row[from..]);
                    }
                }
            }
        }
        let mut common = SharedByPairs { shared, inverses, per_item: [&[]; PER_ITEM] };
        common.per_item.iter_mut().zip(per_item.chunks_exact(padded)).for_each(|(row, made)| *row = made);
        for (k, weight) in self.pairs.weights.iter().enumerate() {
            self.pairs.prefetch(k);
            if weight.to_f64() == 0.0 {
                continue;
            }
            let (items, rows) = (self.pairs.items(k, &mut buffers), if self.both { 2 * k } else { 0 });
            let pair = ListedPair { formula: self.formula, items, weight: *weight, common: &common };
            let rows = &mut self.rows[rows..];
            seen = pair.add_all::<S>(self.both, rows, self.by_shared, seen);
        }
        let low = seen.least.not_less_bits(1.0 / T::QUARTER_RANGE) & seen.lowest.not_less_bits(0.0);
        let known = low & V::<S, T>::from(T::QUARTER_RANGE).not_less_bits(seen.greatest);
        known == (1 << V::<S, T>::LANES) - 1 && seen.finite.sum().to_f64() == 0.0
    }
}

/// Which gradients a call of [`ListedPair::add`] adds: of the item of `side` alone, or of both items of the pair.
const ONE: bool = false;
const BOTH: bool = true;
/// Whether it adds that of the shared row too.
const ALONE: bool = false;
const SHARED: bool = true;
/// Whether its vectors lie inside of the rows, or may reach beyond their end.
const REST: bool = false;
const WHOLE: bool = true;

/// The vector of a row from `from` on; padded with `fill` where it may reach beyond the end ([`REST`]).
#[inline(always)]
fn vector<S: Simd, T: Float, const END: bool>(row: &[T], from: usize, fill: f64) -> V<S, T> {
    if END == WHOLE {
        V::<S, T>::load(&row[from..from + V::<S, T>::LANES])
    } else {
        rest::<S, T>(row, from.min(row.len()), fill)
    }
}

/// A pair whose gradient is added, a group of vectors after the other.
struct ListedPair<'a, F, T> {
    formula: &'a F,
    items: [NormalRows<'a, T>; 2],
    weight: T,
    common: &'a SharedByPairs<'a, T>,
}

impl<T: Float, F: Formula> ListedPair<'_, F, T> {
    /// Adds the gradients of all dimensions, of both items or of the first, to the first of `rows`, and to `by_shared`.
    #[inline(always)]
    fn add_all<S: Simd>(
        &self,
        both: bool,
        rows: &mut [[&mut [T]; 2]],
        by_shared: &mut [T],
        mut seen: Extremes<V<S, T>>,
    ) -> Extremes<V<S, T>> {
        let (dim, step) = (self.items[0].0.len(), 2 * PAIR * T::LANES);
        let whole = dim / step * step;
        for group in (0..whole).step_by(step) {
            for lane in (0..T::LANES).step_by(V::<S, T>::LANES) {
                let first = group + lane;
                // A formula without a shared row takes half of the ways.
                seen = match (both, F::ROW && !by_shared.is_empty()) {
                    (true, false) => self.add::<S, BOTH, ALONE, WHOLE>(first, rows, by_shared, seen),
                    (true, true) => self.add::<S, BOTH, SHARED, WHOLE>(first, rows, by_shared, seen),
                    (false, false) => self.add::<S, ONE, ALONE, WHOLE>(first, rows, by_shared, seen),
                    (false, true) => self.add::<S, ONE, SHARED, WHOLE>(first, rows, by_shared, seen),
                };
            }
        }
        if whole < dim {
            for lane in (0..T::LANES).step_by(V::<S, T>::LANES) {
                let first = whole + lane;
                seen = match both {
                    true => self.add::<S, BOTH, SHARED, REST>(first, rows, by_shared, seen),
                    false => self.add::<S, ONE, SHARED, REST>(first, rows, by_shared, seen),
                };
            }
        }
        seen
    }

    /// Adds the gradients of a group of vectors from dimension `first` on to the first of `rows`, and to `by_shared`.
    #[inline(always)]
    fn add<S: Simd, const ITEMS: bool, const ROW: bool, const END: bool>(
        &self,
        first: usize,
        rows: &mut [[&mut [T]; 2]],
        by_shared: &mut [T],
        mut seen: Extremes<V<S, T>>,
    ) -> Extremes<V<S, T>> {
        let weight = V::<S, T>::splat(self.weight);
        let (zero, one) = (V::<S, T>::from(0.0), V::<S, T>::from(1.0));
        let (formula, common, [of_item, of_other]) = (self.formula, self.common, self.items);
        let mut a = [Item { mean: zero, var: one, per_item: [zero; PER_ITEM] }; 2 * PAIR];
        let (mut b, mut priors, mut divisors) = (a, [[one; 2]; 2 * PAIR], [[one; PAIR]; 2]);
        for n in 0..2 * PAIR {
            let from = first + n * T::LANES;
            if F::ROW {
                let inverse = V::<S, T>::load(&common.inverses[from..from + V::<S, T>::LANES]);
                priors[n] = [vector::<S, T, END>(common.shared, from, 1.0), inverse];
            }
            let mean = vector::<S, T, END>(of_item.0, from, 0.0);
            let var = vector::<S, T, END>(of_item.1, from, 1.0);
            let mut per_item = [zero; PER_ITEM];
            if ITEMS == BOTH {
                per_item = formula.per_item::<S, T>(Side::Query, mean, var, priors[n]);
            } else {
                for m in 0..F::PER_ITEM {
                    per_item[m] = V::<S, T>::load(&common.per_item[m][from..from + V::<S, T>::LANES]);
                }
            }
            a[n] = Item { mean, var, per_item };
            let mean = vector::<S, T, END>(of_other.0, from, 0.0);
            let var = vector::<S, T, END>(of_other.1, from, 1.0);
            b[n] = Item { mean, var, per_item: formula.per_item::<S, T>(Side::Gallery, mean, var, priors[n]) };
            let divisor = formula.divisor::<S, T>(&a[n], &b[n]);
            seen.lowest = a[n].var.min(b[n].var.min(seen.lowest));
            seen.least = divisor.min(seen.least);
            seen.greatest = divisor.max(seen.greatest);
            divisors[n / PAIR][n % PAIR] = divisor;
        }
        let inverses = together::<S, T>(divisors);
        for n in 0..2 * PAIR {
            let partials = formula.pair_partials::<S, T>(&a[n], &b[n], inverses[n / PAIR][n % PAIR], priors[n]);
            let from = first + n * T::LANES;
            for field in 0..2 {
                let partial = [partials.means, partials.vars][field];
                if ITEMS == BOTH {
                    for item in 0..2 {
                        let found = weight * partial[item];
                        seen.finite = found.mul_add(0.0, seen.finite);
                        put::<S, T, END>(found, rows[item][field], from);
                    }
                } else {
                    let row = &mut *rows[0][field];
                    let found = weight.mul_add(partial[0], vector::<S, T, END>(row, from, 0.0));
                    seen.finite = found.mul_add(0.0, seen.finite);
                    put::<S, T, END>(found, row, from);
                }
            }
            if ROW == SHARED && F::ROW && !by_shared.is_empty() {
                let found = weight.mul_add(partials.shared, vector::<S, T, END>(by_shared, from, 0.0));
                seen.finite = found.mul_add(0.0, seen.finite);
                put::<S, T, END>(found, by_shared, from);
            }
        }
        seen
    }
}

/// Writes a vector to a row; where it may reach beyond the end ([`REST`]), what lies before the end.
#[inline(always)]
fn put<S: Simd, T: Float, const END: bool>(x: V<S, T>, row: &mut [T], from: usize) {
    if END == WHOLE {
        x.store(&mut row[from..from + V::<S, T>::LANES]);
    } else {
        let from = from.min(row.len());
        let row = &mut row[from..];
        let count = row.len().min(V::<S, T>::LANES);
        x.store_partial(&mut row[..count]);
    }
}
