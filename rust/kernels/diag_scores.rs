//! Scores of normals with a variance per dimension (on one side at least; a constant row stands for an isotropic variance).
//!
//! The textbook forms cost one division and one logarithm per dimension. Here four vectors of dimensions share one division where
//! that was worth writing out (MLS), and a pair takes one logarithm of each kind: the product of the numbers under it is
//! accumulated as significand and exponent. The maths of each score is in `likelihoods` and `overlaps`.
//!
//! Range: while the sums s of two variances (or the variances, see [`Formula::RANGE`]) are in [2^-31, 2^31] (float32; 2^+-255 for
//! float64), products of two lie within 2^+-62 and of four within 2^+-124, so nothing overflows and no digits are lost to
//! subnormals. A numerator that underflows errs by 2^-150, at most 2^-26 after the division, where the logarithms alone are above
//! 80. Pairs outside that range, with a negative variance or with a sum that is not finite are scored again, slowly, by
//! [`Formula::by_dimension`] in float64.

use crate::drivers::{
    pairs_by_items, Best, DynKernel, Gradient, Inputs, ItemGradients, PairKernel, Prune, Rows, Side, Tile,
    TileGradient, AHEAD, BLOCK,
};
use crate::error::Error;
use crate::kernels::pair_op::{BoxedKernel, Facts, Family, PairOp, Purpose, Request};
use crate::kernels::samplers::Normals;
use crate::simd::{dispatch, prefetch, AllLanes, Float, Simd, V};
use crate::special::log::ln;
use crate::view::View;
use std::f64::consts::LN_2;
use std::{array, ops};

mod bound;
mod divergence;
mod formulas;
mod gradients;
mod likelihoods;
mod listed;
mod mls;
mod overlaps;
mod prune;
mod scan;
mod sieve;
mod sums;

pub use formulas::Formula;
use formulas::{Dimension, Range};
use gradients::{AllPairs, Out};
use listed::Listed;
use sums::{Loaded, Product, Sums, GROUP, LOGS};

/// A formula over its inputs: the family's pair function.
pub struct DiagKernel<'a, T, F> {
    /// The arrays; uncertainties are variances [N, D] or, constant, [N, 1]; the shared row is dense [1, D] or empty.
    pub inputs: Inputs<'a, T>,
    /// The maths of the score.
    pub formula: F,
    /// Whether a search takes bounds by matrix products.
    pub prune: Prune,
}

/// The kernels of the family.
pub const KERNELS: [&[PairOp]; 2] = [likelihoods::KERNELS, overlaps::KERNELS];

/// The facts of a kernel of the family.
const fn facts<F: Formula>(name: &'static str, shared: &'static str) -> Facts {
    Facts { symmetric: F::SYMMETRIC, ..Facts::new(name, Family::Diagonal, "var", shared) }
}

/// The pair function of this formula.
fn pair_function<'a, T: Normals, F: Formula + 'a>(request: &Request<'a, T>, formula: F) -> BoxedKernel<'a, T> {
    let prune = if let Purpose::Search(_, prune) = request.purpose { prune } else { Prune::Auto };
    Ok(Box::new(DiagKernel { inputs: request.inputs, formula, prune }))
}

/// The numbers beyond the end of a row, where its last vector is padded: v + w is 1, whose logarithm MLS takes, and a - b is 0.
const BEYOND: Dimension = Dimension { a: 0.0, b: 0.0, v: 0.5, w: 0.5, shared: 0.0 };

/// The elements of a row from `from` on as a vector, padded with `fill`.
#[inline(always)]
fn rest<S: Simd, T: Float>(row: &[T], from: usize, fill: f64) -> V<S, T> {
    V::<S, T>::load_partial(&row[from..row.len().min(from + V::<S, T>::LANES)], T::from_f64(fill))
}

/// Element `d` of a row, or the only one of a constant row.
#[inline(always)]
fn at<T: Float>(row: &[T], d: usize) -> f64 {
    row[d.min(row.len() - 1)].to_f64()
}

/// A row as `dim` elements: the row itself, or the one element of a constant row, repeated in `buffer`.
#[inline(always)]
fn whole<'a, T: Float>(row: &'a [T], dim: usize, buffer: &'a mut Vec<T>) -> &'a [T] {
    if row.len() == dim {
        return row;
    }
    buffer.clear();
    buffer.resize(dim, row[0]);
    buffer
}

/// The vectors of a group from each of the five rows, from one lane on.
#[inline(always)]
fn loaded<S: Simd, T: Float>(
    (a, b): (&[T], &[T]),
    (v, w): (&[T], &[T]),
    shared: &[T],
    lane: usize,
) -> [Loaded<V<S, T>>; GROUP] {
    let zero = V::<S, T>::from(0.0);
    let mut x = [Loaded { a: zero, b: zero, v: zero, w: zero, shared: zero }; GROUP];
    for n in 0..GROUP {
        let at = n * T::LANES + lane;
        x[n].a = V::<S, T>::load(&a[at..]);
        x[n].b = V::<S, T>::load(&b[at..]);
        x[n].v = V::<S, T>::load(&v[at..]);
        x[n].w = V::<S, T>::load(&w[at..]);
        x[n].shared = V::<S, T>::load(&shared[at..]);
    }
    x
}

/// The rational part of a pair's score, and exponents and significands of the products under its logarithms.
struct Parts {
    rational: f64,
    exponents: [f64; LOGS],
    significands: [f64; LOGS],
}

impl<T: Float, F: Formula> DiagKernel<'_, T, F> {
    /// The share of the padding beyond the end of a row in the base-2 logarithms of the products.
    fn beyond(&self) -> [f64; LOGS] {
        let (_, under_logs) = self.formula.by_dimension(BEYOND);
        let places = self.inputs.mu1.stored().next_multiple_of(T::LANES) - self.inputs.mu1.stored();
        under_logs.map(|x| places as f64 * x.log2())
    }

    #[inline(always)]
    fn sums<S: Simd>(
        &self,
        (i, j): (usize, usize),
        query: (&[T], &[T]),
        gallery: (&[T], &[T]),
        mut ahead: [&[u8]; 2],
        beyond: &[f64; LOGS],
    ) -> Parts {
        let none = AllLanes::<S, T>::zeros();
        let (mut rational, mut exponents, mut significands) = (none, [none; LOGS], [none; LOGS]);
        let mut in_range = true;
        for lane in (0..T::LANES).step_by(V::<S, T>::LANES) {
            let sums = self.sums_of_lanes::<S>(lane, query, gallery, ahead);
            ahead = [&[]; 2];
            *rational.at(lane) = sums.rational;
            for n in 0..F::LOGS {
                *exponents[n].at(lane) = sums.products[n].exponent;
                *significands[n].at(lane) = sums.products[n].significand;
            }
            let (v, w) = sums.least;
            let range = T::QUARTER_RANGE;
            let bound = |kind| if F::RANGE == kind { 1.0 / range } else { 0.0 };
            // A NaN passes here, and makes the rational part NaN.
            let bits = v.not_less_bits(bound(Range::Each))
                & w.not_less_bits(bound(Range::Each))
                & (v + w).not_less_bits(bound(Range::Sums))
                & V::<S, T>::from(range).not_less_bits(sums.greatest);
            in_range &= bits == (1 << V::<S, T>::LANES) - 1;
        }
        let mut parts = Parts { rational: rational.sum().to_f64(), exponents: [0.0; LOGS], significands: [1.0; LOGS] };
        for n in 0..F::LOGS {
            parts.exponents[n] = exponents[n].sum().to_f64() - beyond[n];
            if F::RANGE == Range::None {
                let excess = significands[n].product_less_one();
                let product = 1.0 + excess;
                parts.significands[n] = product;
                // The digits of the logarithm that the sum lost are added to the rational part.
                let (weight, weights) = self.formula.weights();
                parts.rational += weights[n] / weight * (excess - (product - 1.0)) / product;
            } else {
                parts.significands[n] = significands[n].product().to_f64();
            }
        }
        if in_range && parts.rational.is_finite() {
            parts
        } else {
            self.by_dimension(i, j)
        }
    }

    /// The sums of a pair in each of the lanes from one on; rows that come later are prefetched.
    #[inline(always)]
    fn sums_of_lanes<S: Simd>(
        &self,
        lane: usize,
        (a, v): (&[T], &[T]),
        (b, w): (&[T], &[T]),
        ahead: [&[u8]; 2],
    ) -> Sums<V<S, T>> {
        let dim = a.len();
        let shared = if F::ROW { self.inputs.shared.row(0) } else { a };
        let (zero, one) = (V::<S, T>::from(0.0), V::<S, T>::from(1.0));
        let significand = if F::RANGE == Range::None { zero } else { one };
        let products = [Product { significand, exponent: zero }; LOGS];
        let mut sums = Sums { rational: zero, products, least: (one, one), greatest: one };
        let width = GROUP * T::LANES;
        let groups = <[T]>::chunks_exact;
        let rows = groups(a, width).zip(groups(b, width)).zip(groups(v, width).zip(groups(w, width)));
        // Rows to come are prefetched in parts along the way: more cache lines at once than the processor has fill buffers for
        // would stall it.
        let mut ahead = ahead.map(|row| row.chunks((row.len() * width).div_ceil(dim).max(64)));
        for ((means, vars), shared) in rows.zip(groups(shared, width)) {
            for row in &mut ahead {
                if let Some(part) = row.next() {
                    prefetch(part);
                }
            }
            self.formula.add_group::<S, T>(&mut sums, &loaded::<S, T>(means, vars, shared, lane));
        }
        ahead.into_iter().flatten().for_each(prefetch);
        // The rest of the row, a vector at a time. Padding adds 0 to the rational part; what it adds to logarithms is `beyond`.
        for from in (dim / width * width..dim).step_by(T::LANES) {
            let from = (from + lane).min(dim);
            let (a, b, shared) =
                (rest::<S, T>(a, from, 0.0), rest::<S, T>(b, from, 0.0), rest::<S, T>(shared, from, 0.0));
            let (v, w) = (rest::<S, T>(v, from, BEYOND.v), rest::<S, T>(w, from, BEYOND.w));
            self.formula.add::<S, T>(&mut sums, &Loaded { a, b, v, w, shared });
        }
        sums
    }

    /// The slow path: any input, one dimension at a time. Variances of 0 go to 0 together: dimensions whose means then differ more
    /// and more beside them rule a pair out, else the sign of the logarithms' weights decides, if they do not cancel.
    #[cold]
    #[inline(never)]
    fn by_dimension(&self, i: usize, j: usize) -> Parts {
        let mut parts = Parts { rational: 0.0, exponents: [0.0; LOGS], significands: [1.0; LOGS] };
        let (rational_weight, weights) = self.formula.weights();
        let Inputs { mu1, uncertainty1: var1, mu2, uncertainty2: var2, shared } = &self.inputs;
        let (mut means, mut vars) = (Vec::new(), Vec::new());
        let (a, v, b, w) = (mu1.row(i), var1.row(i), mu2.row(j, &mut means), var2.row(j, &mut vars));
        // Sixteen sums: the rounding error of each grows with its own number of dimensions only.
        let (mut rationals, mut zeros) = ([0.0; 16], [0.0; LOGS]);
        for d in 0..a.len() {
            let shared = if F::ROW { at(shared.row(0), d) } else { 0.0 };
            let x = Dimension { a: at(a, d), b: at(b, d), v: at(v, d), w: at(w, d), shared };
            let (rational, under_logs) =
                if x.valid() { self.formula.by_dimension(x) } else { (f64::NAN, [f64::NAN; LOGS]) };
            rationals[d % 16] += rational;
            for n in (0..F::LOGS).filter(|&n| weights[n] != 0.0) {
                let both = x.v + x.w == 0.0;
                match under_logs[n] {
                    0.0 => zeros[n] += 1.0,
                    f64::INFINITY if both => zeros[n] -= 1.0,
                    under_log => parts.exponents[n] += under_log.log2(),
                }
            }
        }
        parts.rational = rationals.iter().sum();
        // The growth of the score where the logarithm of a vanishing variance falls.
        let growth: f64 = -zeros.iter().zip(weights).map(|(zeros, weight)| zeros * weight).sum::<f64>();
        if growth != 0.0 && parts.rational.is_finite() {
            parts.rational = growth / rational_weight * f64::INFINITY;
        }
        parts
    }
}

impl Dimension {
    /// Whether the dimension is in the domain: variances and the shared number are >= 0.
    fn valid(&self) -> bool {
        self.v >= 0.0 && self.w >= 0.0 && self.shared >= 0.0
    }
}

impl<T: Float, F: Formula> PairKernel for DiagKernel<'_, T, F> {
    type Elem = T;

    fn inputs(&self) -> &Inputs<'_, T> {
        &self.inputs
    }

    #[inline(always)]
    fn score<S: Simd>(&self, q: Rows, g: Rows, out: &mut [T]) {
        let (beyond, dim) = (self.beyond(), self.inputs.mu1.stored());
        let Inputs { mu1, uncertainty1: var1, mu2, uncertainty2: var2, .. } = &self.inputs;
        let mut buffers = [const { Vec::new() }; 4];
        let mut rational = [0.0; BLOCK];
        let (mut exponents, mut significands) = ([[0.0; BLOCK]; LOGS], [[1.0; BLOCK]; LOGS]);
        for k in 0..out.len() {
            let (i, j) = (q.at(k), g.at(k));
            let [first, means, vars, second] = &mut buffers;
            let query = (mu1.row(i), whole(var1.row(i), dim, first));
            let gallery = (mu2.row(j, means), whole(var2.row(j, vars), dim, second));
            let ahead = match g {
                Rows::List(rows) if k + AHEAD < rows.len() => [mu2.bytes(rows[k + AHEAD]), var2.bytes(rows[k + AHEAD])],
                _ => [&[] as &[u8]; 2],
            };
            let parts = self.sums::<S>((i, j), query, gallery, ahead, &beyond);
            rational[k] = parts.rational;
            for n in 0..F::LOGS {
                (exponents[n][k], significands[n][k]) = (parts.exponents[n], parts.significands[n]);
            }
        }
        let constant = self.formula.constant() * self.inputs.mu1.stored() as f64;
        let (rational_weight, log_weights) = self.formula.weights();
        for (first, out) in (0..).step_by(V::<S, f64>::LANES).zip(out.chunks_mut(V::<S, f64>::LANES)) {
            let mut sum = V::<S, f64>::from(constant);
            for n in (0..F::LOGS).filter(|&n| log_weights[n] != 0.0) {
                let significand = ln::<S, f64>(V::<S, f64>::load(&significands[n][first..]));
                let logs = V::<S, f64>::load(&exponents[n][first..]).mul_add(LN_2, significand);
                sum = logs.mul_add(log_weights[n], sum);
            }
            let rationals = V::<S, f64>::load(&rational[first..]);
            let values = rationals.mul_add(rational_weight, sum).to_array();
            for (out, value) in out.iter_mut().zip(values) {
                *out = T::from_f64(value);
            }
        }
    }

    /// Rows that lie apart, as means beside variances do, are listed for the first query, which has them prefetched: processors foresee
    /// only rows that follow each other.
    #[inline(always)]
    fn tile<S: Simd>(&self, tile: Tile, out: &mut [&mut [T]], _: &mut [&mut [T]]) {
        let (first, rows) = (tile.gallery.start, self.inputs.mu2.rows());
        let listed: [usize; BLOCK + AHEAD] = array::from_fn(|k| (first + k).min(rows - 1));
        let mut gallery = if self.inputs.mu2.is_whole() { Rows::From(first) } else { Rows::List(&listed) };
        for (i, out) in tile.queries.zip(out) {
            DynKernel::score(self, Rows::Same(i), gallery, out, &mut []);
            gallery = Rows::From(first);
        }
    }

    fn search(&self, best: Best<T>) -> Result<usize, Error> {
        match self.formula.kl_share() {
            Some(share) => divergence::search(self, share, best),
            None => prune::search(self, best),
        }
    }

    #[inline(always)]
    fn backward<S: Simd>(&self, side: Side, (q, g): (Rows, Rows), _: &[usize], weights: &[T], out: &mut Gradient<T>) {
        if self.added_to_item(side, (q, g), weights, out) {
            return;
        }
        // The items of `AllPairs` are those of which there are many.
        let (one, many) = if side == Side::Query { (q, g) } else { (g, q) };
        let rows: Vec<usize> = (0..weights.len()).map(|k| many.at(k)).collect();
        let item = ItemGradients { mu: &mut *out.mu, uncertainty: &mut *out.uncertainty };
        let other = if side == Side::Query { Side::Gallery } else { Side::Query };
        let pairs = AllPairs { side: other, items: &rows, others: &[one.at(0)], weights };
        let out = &mut Out { items: None, others: Some(item), shared: &mut *out.shared };
        self.add_gradients(&pairs, out, true);
    }

    #[inline(always)]
    fn backward_paired<S: Simd>(&self, rows: ops::Range<usize>, weights: &[T], out: &mut TileGradient<T>) {
        if !self.added_paired(rows.clone(), weights, out) {
            pairs_by_items(self, rows, weights, out);
        }
    }

    #[inline(always)]
    fn backward_tile<S: Simd>(&self, tile: Tile, weights: &View<T>, out: &mut TileGradient<T>) {
        let (items, others): (Vec<_>, Vec<_>) = (tile.queries.clone().collect(), tile.gallery.clone().collect());
        let mut of_tile = Vec::with_capacity(items.len() * others.len());
        (0..weights.rows()).for_each(|k| of_tile.extend_from_slice(weights.row(k)));
        let pairs = AllPairs { side: Side::Query, items: &items, others: &others, weights: &of_tile };
        let (items, others) = (out.query.take(), out.gallery.take());
        self.add_gradients(&pairs, &mut Out { items, others, shared: &mut *out.shared }, false);
    }
}

impl<T: Float, F: Formula> DiagKernel<'_, T, F> {
    /// The number of elements of the gradient with respect to the shared row, 0 where it is not wanted. None where the row holds
    /// the formula's own parameters: their gradient is found by the slow path, dimension by dimension.
    fn shared_numbers(&self, wanted: &[T]) -> Option<usize> {
        (wanted.is_empty() || F::ROW).then_some(if wanted.is_empty() { 0 } else { self.inputs.mu1.stored() })
    }

    /// Adds the gradients of one item; returns false, with nothing added, where numbers out of range may make them wrong.
    fn added_to_item(&self, side: Side, (q, g): (Rows, Rows), weights: &[T], out: &mut Gradient<T>) -> bool {
        let Some(of_shared) = self.shared_numbers(out.shared) else { return false };
        let dim = self.inputs.mu1.stored();
        let mut sums = vec![T::default(); 2 * dim + of_shared];
        let ((mean, rest), formula) = (sums.split_at_mut(dim), self.formula);
        let (var, by_shared) = rest.split_at_mut(dim);
        let formula = if side == Side::Query { formula } else { formula.transposed() };
        let (pairs, rows) = (Listed { inputs: &self.inputs, side, q, g, weights }, &mut [[&mut *mean, &mut *var]]);
        let partials =
            listed::ListedGradients { formula: &formula, pairs, both: false, rows, by_shared: &mut *by_shared };
        if !dispatch(partials) {
            return false;
        }
        gradients::add(out.mu, mean);
        gradients::add_shared_row(out.uncertainty, var);
        if !by_shared.is_empty() {
            gradients::add_shared_row(out.shared, by_shared);
        }
        true
    }

    /// Writes the gradients of pairs of equal rows over zeros; returns false, with zeros left, where numbers out of range may
    /// make them wrong.
    fn added_paired(&self, rows: ops::Range<usize>, weights: &[T], out: &mut TileGradient<T>) -> bool {
        let Some(of_shared) = self.shared_numbers(out.shared) else { return false };
        let (n, dim, all) = (weights.len(), self.inputs.mu1.stored(), Rows::From(rows.start));
        let pairs = Listed { inputs: &self.inputs, side: Side::Query, q: all, g: all, weights };
        let mut by_shared = vec![T::default(); of_shared];
        // Rows of D numbers for gradients that are not wanted, or that have one number per item.
        let mut spare = [const { Vec::new() }; 4];
        let [a, b, c, d] = &mut spare;
        let of_query = whole_rows(&mut out.query, (n, dim), (a, b));
        let of_gallery = whole_rows(&mut out.gallery, (n, dim), (c, d));
        let mut rows: Vec<_> = of_query.into_iter().zip(of_gallery).flat_map(|(a, b)| [a, b]).collect();
        let (formula, rows) = (&self.formula, &mut rows[..]);
        let known = dispatch(listed::ListedGradients { formula, pairs, both: true, rows, by_shared: &mut by_shared });
        for (items, vars) in [(&mut out.query, &spare[1]), (&mut out.gallery, &spare[3])] {
            let Some(items) = items else { continue };
            if !known {
                items.mu.fill(T::default());
                items.uncertainty.fill(T::default());
            } else if !vars.is_empty() {
                for (uncertainty, vars) in items.uncertainty.chunks_mut(1).zip(vars.chunks(dim)) {
                    gradients::add_shared_row(uncertainty, vars);
                }
            }
        }
        if known && !by_shared.is_empty() {
            gradients::add_shared_row(&mut *out.shared, &by_shared);
        }
        known
    }
}

/// Rows [n, D] for the gradients of n items with respect to mean and variance: those of `items` of this shape, else buffers.
fn whole_rows<'a, T: Float>(
    items: &'a mut Option<ItemGradients<'_, T>>,
    (n, dim): (usize, usize),
    (mu, uncertainty): (&'a mut Vec<T>, &'a mut Vec<T>),
) -> Vec<[&'a mut [T]; 2]> {
    let buffer = |spare: &'a mut Vec<T>| {
        spare.resize(n * dim, T::default());
        &mut spare[..]
    };
    let (mu, uncertainty) = match items {
        Some(items) => (
            &mut *items.mu,
            if items.uncertainty.len() == n * dim { &mut *items.uncertainty } else { buffer(uncertainty) },
        ),
        None => (buffer(mu), buffer(uncertainty)),
    };
    mu.chunks_mut(dim).zip(uncertainty.chunks_mut(dim)).map(|(mu, uncertainty)| [mu, uncertainty]).collect()
}
