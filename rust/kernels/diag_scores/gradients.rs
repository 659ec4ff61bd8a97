//! Gradients of the scores of diagonal normals, summed over all pairs of some rows of one side with some of the other.
//!
//! Rows are packed with what the formula makes of each item alone, two vectors of dimensions at a time, so that a vector of a
//! pair's dimensions costs loads, a quarter of a division, and the arithmetic of its partial derivatives, which are computed for
//! both items at once. The sums are computed in the rows' type, if all divisors lie in a range in which a product of four is safe
//! and no sum overflows. Otherwise they are computed again by the careful path: in float64, with one division for each divisor,
//! pairs of weight 0 left out, and NaN outside the domain.

use super::formulas::{Dimension, Formula, Item, PairPartials, PER_ITEM};
use super::{at, DiagKernel};
use crate::drivers::{Inputs, ItemGradients, Side};
use crate::simd::{dispatch, Float, Kernel, Simd, V};

/// The rows of both sides whose pairs a gradient sums up, and the weights of these pairs.
pub struct AllPairs<'a, T> {
    /// The side of the items.
    pub side: Side,
    /// The rows of that side.
    pub items: &'a [usize],
    /// The rows of the other side.
    pub others: &'a [usize],
    /// The weights of the pairs, [items, others].
    pub weights: &'a [T],
}

/// Where gradients are added up: of the items, of the others, and of the shared row (empty where it is not wanted).
pub struct Out<'a, T> {
    pub items: Option<ItemGradients<'a, T>>,
    pub others: Option<ItemGradients<'a, T>>,
    pub shared: &'a mut [T],
}

/// Which path a sum takes: the fast one, or the careful one.
const FAST: bool = false;
const CAREFUL: bool = true;
/// Whether the gradient with respect to the shared row is added up too.
const ALONE: bool = false;
const SHARED: bool = true;

/// Vectors of dimensions that are packed together.
pub const PAIR: usize = 2;

/// The number of others that all items pass over before the next ones: few enough for the first-level cache.
const NEAR: usize = 16;

/// Rows as `[pair of vectors][row][field]`, the fields being means, variances and the formula's numbers per item.
struct Packed<C> {
    data: Vec<C>,
    rows: usize,
    fields: usize,
}

impl<C: Float> Packed<C> {
    /// Packs the means and variances of `rows` rows with space for `per_item` numbers of each; the padding has means 0 and
    /// variances 1.
    /// `row(k, field, take)` calls `take` with the means (field 0) or variances (field 1) of row `k`.
    fn new<T: Float>(
        dim: usize,
        rows: usize,
        per_item: usize,
        mut row: impl FnMut(usize, usize, &mut dyn FnMut(&[T])),
    ) -> Self {
        let (width, fields) = (PAIR * C::LANES, 2 + per_item);
        let mut data = vec![C::default(); dim.div_ceil(width) * rows * fields * width];
        for k in 0..rows {
            for field in 0..2 {
                row(k, field, &mut |x| {
                    for from in (0..dim).step_by(width) {
                        let out = &mut data[((from / width * rows + k) * fields + field) * width..][..width];
                        out.fill(C::from_f64(field as f64));
                        let count = width.min(dim - from);
                        if x.len() == dim {
                            for (out, x) in out.iter_mut().zip(&x[from..from + count]) {
                                *out = C::from_f64(x.to_f64());
                            }
                        } else {
                            out[..count].fill(C::from_f64(x[0].to_f64()));
                        }
                    }
                });
            }
        }
        Packed { data, rows, fields }
    }

    /// The fields of row `k` for the pair of vectors `part`.
    #[inline(always)]
    fn row(&self, part: usize, k: usize) -> &[C] {
        let width = PAIR * C::LANES * self.fields;
        &self.data[(part * self.rows + k) * width..][..width]
    }

    /// The range of the variances and 1: the least and the greatest of them.
    #[inline(always)]
    fn range<S: Simd>(&self) -> (f64, f64) {
        let (one, width) = (V::<S, C>::from(1.0), PAIR * C::LANES);
        let (mut least, mut most) = (one, one);
        for row in self.data.chunks_exact(width * self.fields) {
            for from in (0..width).step_by(V::<S, C>::LANES) {
                let var = V::<S, C>::load(&row[width + from..]);
                (least, most) = (var.min(least), var.max(most));
            }
        }
        let ends = |x: V<S, C>| x.to_array()[..V::<S, C>::LANES].iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        (ends(least).into_iter().fold(1.0, f64::min), ends(most).into_iter().fold(1.0, f64::max))
    }

    /// Makes the formula's numbers per item. With `careful`, makes means NaN where a variance or a shared number is negative.
    #[inline(always)]
    fn make_per_item<S: Simd, F: Formula>(&mut self, formula: &F, side: Side, shared: &[C], careful: bool) {
        let (width, fields, rows) = (PAIR * C::LANES, self.fields, self.rows);
        for (part, out) in self.data.chunks_exact_mut(width * fields * rows).enumerate() {
            for out in out.chunks_exact_mut(width * fields) {
                for from in (0..width).step_by(V::<S, C>::LANES) {
                    let place = |field: usize| field * width + from..(field + 1) * width;
                    let shared = V::<S, C>::load(&shared[part * width..][place(0)]);
                    let mut mean = V::<S, C>::load(&out[place(0)]);
                    let var = V::<S, C>::load(&out[place(1)]);
                    if careful {
                        mean = var.min(shared).if_less(0.0, f64::NAN, mean);
                        mean.store(&mut out[place(0)]);
                    }
                    let made = formula.per_item::<S, C>(side, mean, var, [shared, 1.0 / shared]);
                    for m in 0..F::PER_ITEM {
                        made[m].store(&mut out[place(2 + m)]);
                    }
                }
            }
        }
    }
}

/// The fields of a packed row from number `from` of their pair of vectors on.
#[inline(always)]
fn item<S: Simd, C: Float, F: Formula>(row: &[C], from: usize) -> Item<V<S, C>> {
    let width = PAIR * C::LANES;
    let (mean, var) = (V::<S, C>::load(&row[from..]), V::<S, C>::load(&row[width + from..]));
    let mut per_item = [mean; PER_ITEM];
    for m in 0..F::PER_ITEM {
        per_item[m] = V::<S, C>::load(&row[(2 + m) * width + from..]);
    }
    Item { mean, var, per_item }
}

/// Two vectors of dimensions of A items and of the shared row (with its reciprocals), and the sums of their gradients.
struct InRegisters<X, const A: usize> {
    a: [[Item<X>; PAIR]; A],
    by_a: [[[X; 2]; PAIR]; A],
    shared: [[X; 2]; PAIR],
    by_shared: [X; PAIR],
}

/// Where the numbers at hand are in each of two vectors of dimensions: the pair of vectors, and the first lane.
#[derive(Clone, Copy)]
struct Part {
    pair: usize,
    lane: usize,
}

/// Sums the weighted partial derivatives over all pairs of two packed sides.
struct TileGradients<'a, F, C> {
    formula: &'a F,
    items: Packed<C>,
    others: Packed<C>,
    weights: Vec<C>,
    /// The shared numbers, 1 where there are none and in the padding.
    shared: Vec<C>,
    /// Whether the gradient with respect to the shared numbers is wanted.
    by_shared: bool,
    /// Whether this is the careful path.
    careful: bool,
}

/// The sums of [`TileGradients`]: gradients with respect to the rows of both sides, packed with two fields, means and variances,
/// and with respect to the shared numbers.
struct GradientSums<C> {
    items: Vec<C>,
    others: Vec<C>,
    shared: Vec<C>,
}

impl<C: Float, F: Formula> Kernel for TileGradients<'_, F, C> {
    const LANES_MEET: bool = false;
    /// None where the fast path may be wrong: divisors out of range, or sums that are not finite.
    type Output = Option<GradientSums<C>>;
    #[inline(always)]
    fn run<S: Simd>(mut self) -> Option<GradientSums<C>> {
        if !self.careful && !self.in_range::<S>() {
            return None;
        }
        self.items.make_per_item::<S, F>(self.formula, Side::Query, &self.shared, self.careful);
        self.others.make_per_item::<S, F>(self.formula, Side::Gallery, &self.shared, self.careful);
        let width = PAIR * C::LANES;
        let parts = self.shared.len() / width;
        let zeros = |rows: usize| vec![C::default(); parts * rows * 2 * width];
        let mut sums = GradientSums {
            items: zeros(self.items.rows),
            others: zeros(self.others.rows),
            shared: vec![C::default(); self.shared.len()],
        };
        for pair in 0..parts {
            for lane in (0..C::LANES).step_by(V::<S, C>::LANES) {
                self.add_part::<S>(&mut sums, Part { pair, lane });
            }
        }
        let known = finite::<S, C>(&sums.items) && finite::<S, C>(&sums.others) && finite::<S, C>(&sums.shared);
        (self.careful || known).then_some(sums)
    }
}

/// Whether all numbers are finite; their count must be a multiple of the lanes.
#[inline(always)]
pub fn finite<S: Simd, C: Float>(x: &[C]) -> bool {
    let mut sum = V::<S, C>::from(0.0);
    for x in x.chunks_exact(V::<S, C>::LANES) {
        sum = V::<S, C>::load(x).mul_add(0.0, sum);
    }
    sum.sum().to_f64() == 0.0
}

impl<C: Float, F: Formula> TileGradients<'_, F, C> {
    /// Whether all variances and shared numbers are valid, and all divisors lie in the range in which a product of four is safe.
    #[inline(always)]
    fn in_range<S: Simd>(&self) -> bool {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for x in &self.shared {
            (least, most) = (least.min(x.to_f64()), most.max(x.to_f64()));
        }
        let zero = V::<S, f64>::from(0.0);
        let (items, others, mut ends) = (self.items.range::<S>(), self.others.range::<S>(), [0.0; 2]);
        let extremes = [(items.0, others.0, most), (items.1, others.1, least)];
        for (end, (item, other, shared)) in ends.iter_mut().zip(extremes) {
            let (v, w) = (V::<S, f64>::from(item), V::<S, f64>::from(other));
            let shared = [V::<S, f64>::from(shared), V::<S, f64>::from(1.0 / shared)];
            let a =
                Item { mean: zero, var: v, per_item: self.formula.per_item::<S, f64>(Side::Query, zero, v, shared) };
            let b =
                Item { mean: zero, var: w, per_item: self.formula.per_item::<S, f64>(Side::Gallery, zero, w, shared) };
            *end = self.formula.divisor::<S, f64>(&a, &b).to_array()[0];
        }
        let valid = items.0 >= 0.0 && others.0 >= 0.0 && least > 0.0;
        valid && ends[0] >= 1.0 / C::QUARTER_RANGE && ends[1] <= C::QUARTER_RANGE
    }

    /// Adds the weighted partial derivatives of all pairs in one place of the dimensions.
    #[inline(always)]
    fn add_part<S: Simd>(&self, sums: &mut GradientSums<C>, part: Part) {
        for first in (0..self.others.rows).step_by(NEAR) {
            let others = first..self.others.rows.min(first + NEAR);
            let mut item = 0;
            while item < self.items.rows {
                item += match (self.careful, self.items.rows - item, F::ROW && self.by_shared) {
                    (true, ..) => self.add::<S, 1, CAREFUL, SHARED>(sums, part, item, others.clone()),
                    (_, 1, false) => self.add::<S, 1, FAST, ALONE>(sums, part, item, others.clone()),
                    (_, 1, true) => self.add::<S, 1, FAST, SHARED>(sums, part, item, others.clone()),
                    (_, _, false) => self.add::<S, 2, FAST, ALONE>(sums, part, item, others.clone()),
                    (_, _, true) => self.add::<S, 2, FAST, SHARED>(sums, part, item, others.clone()),
                };
            }
        }
    }

    /// Adds the weighted partial derivatives of the pairs of `A` items, from `first` on, with some of the others; returns A.
    #[inline(always)]
    fn add<S: Simd, const A: usize, const PATH: bool, const ROW: bool>(
        &self,
        sums: &mut GradientSums<C>,
        part: Part,
        first: usize,
        others: std::ops::Range<usize>,
    ) -> usize {
        let (Part { pair, lane }, width) = (part, PAIR * C::LANES);
        let (zero, one) = (V::<S, C>::from(0.0), V::<S, C>::from(1.0));
        let InRegisters { a, mut by_a, shared, mut by_shared } = self.load::<S, A>(sums, part, first);
        for j in others {
            let row = self.others.row(pair, j);
            let out = &mut sums.others[(pair * self.others.rows + j) * 2 * width..][..2 * width];
            if PATH == CAREFUL && self.weights[first * self.others.rows + j].to_f64() == 0.0 {
                continue;
            }
            let (mut b, mut divisors) = ([a[0][0]; PAIR], [[one; PAIR]; 2]);
            for n in 0..PAIR {
                b[n] = item::<S, C, F>(row, n * C::LANES + lane);
                for i in 0..A {
                    divisors[i][n] = self.formula.divisor::<S, C>(&a[i][n], &b[n]);
                }
            }
            let inverses = if PATH == CAREFUL { each::<S, C>(divisors) } else { together::<S, C>(divisors) };
            for n in 0..PAIR {
                let mut by_b = [zero; 2];
                for m in 0..2 {
                    by_b[m] = V::<S, C>::load(&out[m * width + n * C::LANES + lane..]);
                }
                for i in 0..A {
                    let weight = V::<S, C>::splat(self.weights[(first + i) * self.others.rows + j]);
                    let mut partials = self.formula.pair_partials::<S, C>(&a[i][n], &b[n], inverses[i][n], shared[n]);
                    if PATH == CAREFUL {
                        partials = finite_partials::<S, C>(partials, &a[i][n], &b[n], shared[n][0]);
                    }
                    let PairPartials { means, vars, shared } = partials;
                    by_a[i][n] = [weight.mul_add(means[0], by_a[i][n][0]), weight.mul_add(vars[0], by_a[i][n][1])];
                    by_b = [weight.mul_add(means[1], by_b[0]), weight.mul_add(vars[1], by_b[1])];
                    if ROW == SHARED {
                        by_shared[n] = weight.mul_add(shared, by_shared[n]);
                    }
                }
                for m in 0..2 {
                    by_b[m].store(&mut out[m * width + n * C::LANES + lane..]);
                }
            }
        }
        self.store::<S, A, ROW>(sums, part, first, &InRegisters { a, by_a, shared, by_shared });
        A
    }

    /// Some items, and the sums of their gradients.
    #[inline(always)]
    fn load<S: Simd, const A: usize>(
        &self,
        sums: &GradientSums<C>,
        part: Part,
        first: usize,
    ) -> InRegisters<V<S, C>, A> {
        let (Part { pair, lane }, width) = (part, PAIR * C::LANES);
        let zero = V::<S, C>::from(0.0);
        let mut a = [[Item { mean: zero, var: zero, per_item: [zero; PER_ITEM] }; PAIR]; A];
        let mut by_a = [[[zero; 2]; PAIR]; A];
        let (mut shared, mut by_shared) = ([[zero; 2]; PAIR], [zero; PAIR]);
        let of_items = (pair * self.items.rows + first) * 2 * width;
        for n in 0..PAIR {
            shared[n][0] = V::<S, C>::load(&self.shared[pair * width + n * C::LANES + lane..]);
            shared[n][1] = 1.0 / shared[n][0];
            by_shared[n] = V::<S, C>::load(&sums.shared[pair * width + n * C::LANES + lane..]);
            for i in 0..A {
                a[i][n] = item::<S, C, F>(self.items.row(pair, first + i), n * C::LANES + lane);
                for m in 0..2 {
                    let from = of_items + (2 * i + m) * width + n * C::LANES + lane;
                    by_a[i][n][m] = V::<S, C>::load(&sums.items[from..]);
                }
            }
        }
        InRegisters { a, by_a, shared, by_shared }
    }

    /// Writes the sums of the gradients of some items.
    #[inline(always)]
    fn store<S: Simd, const A: usize, const ROW: bool>(
        &self,
        sums: &mut GradientSums<C>,
        part: Part,
        first: usize,
        held: &InRegisters<V<S, C>, A>,
    ) {
        let (Part { pair, lane }, width) = (part, PAIR * C::LANES);
        let of_items = (pair * self.items.rows + first) * 2 * width;
        for n in 0..PAIR {
            if ROW == SHARED {
                held.by_shared[n].store(&mut sums.shared[pair * width + n * C::LANES + lane..]);
            }
            for i in 0..A {
                for m in 0..2 {
                    let from = of_items + (2 * i + m) * width + n * C::LANES + lane;
                    held.by_a[i][n][m].store(&mut sums.items[from..]);
                }
            }
        }
    }
}

/// Partial derivatives with 0 in place of what has no finite limit, at variances of 0; NaN and infinity stay where the items have
/// them.
#[inline(always)]
fn finite_partials<S: Simd, C: Float>(
    partials: PairPartials<V<S, C>>,
    a: &Item<V<S, C>>,
    b: &Item<V<S, C>>,
    shared: V<S, C>,
) -> PairPartials<V<S, C>> {
    let ([of_a, of_b], [of_v, of_w], zero) = (partials.means, partials.vars, V::<S, C>::from(0.0));
    let valid = zero * (a.mean + b.mean) + zero * (a.var + b.var + shared);
    let infinite = V::<S, C>::from(f64::INFINITY);
    PairPartials {
        means: [of_a.abs().if_less(infinite, of_a, valid), of_b.abs().if_less(infinite, of_b, valid)],
        vars: [of_v.abs().if_less(infinite, of_v, valid), of_w.abs().if_less(infinite, of_w, valid)],
        shared: partials.shared.abs().if_less(infinite, partials.shared, valid),
    }
}

/// The reciprocals of all vectors, by one division each.
#[inline(always)]
fn each<S: Simd, C: Float>(x: [[V<S, C>; PAIR]; 2]) -> [[V<S, C>; PAIR]; 2] {
    [[1.0 / x[0][0], 1.0 / x[0][1]], [1.0 / x[1][0], 1.0 / x[1][1]]]
}

/// The reciprocals of four vectors by one division, where their product is in range.
#[inline(always)]
pub fn together<S: Simd, C: Float>(x: [[V<S, C>; PAIR]; 2]) -> [[V<S, C>; PAIR]; 2] {
    let (first, second) = (x[0][0] * x[0][1], x[1][0] * x[1][1]);
    let inverse = 1.0 / (first * second);
    let (first, second) = (inverse * second, inverse * first);
    [[first * x[0][1], first * x[0][0]], [second * x[1][1], second * x[1][0]]]
}

impl<T: Float, F: Formula> DiagKernel<'_, T, F> {
    /// Adds the gradients of all pairs, by the careful path if `careful` or if the fast path may be wrong.
    pub fn add_gradients(&self, pairs: &AllPairs<T>, out: &mut Out<T>, careful: bool) {
        if careful || !self.added::<T>(pairs, out, false) {
            self.added::<f64>(pairs, out, true);
        }
        if !out.shared.is_empty() && !F::ROW {
            self.add_shared(pairs, out.shared);
        }
    }

    /// Adds the gradients of all pairs, computed in the type C; returns false, with nothing added, if they may be wrong.
    fn added<C: Float>(&self, pairs: &AllPairs<T>, out: &mut Out<T>, careful: bool) -> bool {
        let Inputs { mu1, uncertainty1: var1, mu2, uncertainty2: var2, shared } = &self.inputs;
        let (dim, width) = (mu1.stored(), PAIR * C::LANES);
        let mut buffer = Vec::new();
        let mut packed = |side: Side, rows: &[usize]| {
            Packed::<C>::new::<T>(dim, rows.len(), F::PER_ITEM, |k, field, take| match (side, field) {
                (Side::Query, 0) => take(mu1.row(rows[k])),
                (Side::Query, _) => take(var1.row(rows[k])),
                (Side::Gallery, 0) => take(mu2.row(rows[k], &mut buffer)),
                (Side::Gallery, _) => take(var2.row(rows[k], &mut buffer)),
            })
        };
        let other = if pairs.side == Side::Query { Side::Gallery } else { Side::Query };
        let (items, others) = (packed(pairs.side, pairs.items), packed(other, pairs.others));
        let formula = if pairs.side == Side::Query { self.formula } else { self.formula.transposed() };
        let mut numbers = vec![C::from_f64(1.0); dim.next_multiple_of(width)];
        if F::ROW {
            // A prior variance of 0 would be divided by: in its place stands one so small that the partial derivatives have their
            // limit.
            let least = if careful { 1e-150 } else { 0.0 };
            for (d, number) in numbers.iter_mut().enumerate().take(dim) {
                let x = at(shared.row(0), d);
                *number = C::from_f64(if x >= 0.0 && x < least { least } else { x });
            }
        }
        let weights = pairs.weights.iter().map(|weight| C::from_f64(weight.to_f64())).collect();
        let by_shared = F::ROW && !out.shared.is_empty();
        let partials = TileGradients { formula: &formula, items, others, weights, shared: numbers, by_shared, careful };
        let Some(sums) = dispatch(partials) else { return false };
        for (out, sums, rows) in
            [(&mut out.items, &sums.items, pairs.items.len()), (&mut out.others, &sums.others, pairs.others.len())]
        {
            let Some(out) = out else { continue };
            for (k, (mu, uncertainty)) in out.items(rows).enumerate() {
                for from in (0..dim).step_by(width) {
                    let sums = &sums[(from / width * rows + k) * 2 * width..][..2 * width];
                    let to = dim.min(from + width);
                    add(&mut mu[from..to], &sums[..to - from]);
                    if uncertainty.len() == dim {
                        add(&mut uncertainty[from..to], &sums[width..width + to - from]);
                    } else {
                        let sum: f64 = sums[width..width + to - from].iter().map(|x| x.to_f64()).sum();
                        uncertainty[0] = uncertainty[0] + T::from_f64(sum);
                    }
                }
            }
        }
        if by_shared {
            add_shared_row(out.shared, &sums.shared[..dim]);
        }
        true
    }

    /// Adds the gradient with respect to the formula's parameters, one dimension at a time.
    #[cold]
    #[inline(never)]
    fn add_shared(&self, pairs: &AllPairs<T>, shared: &mut [T]) {
        let Inputs { mu1, uncertainty1: var1, mu2, uncertainty2: var2, .. } = &self.inputs;
        let (mut means, mut vars) = (Vec::new(), Vec::new());
        let mut sums = [0.0; 2];
        for (item, weights) in pairs.items.iter().zip(pairs.weights.chunks(pairs.others.len())) {
            for (other, weight) in pairs.others.iter().zip(weights).filter(|(_, weight)| weight.to_f64() != 0.0) {
                let (&i, &j) = if pairs.side == Side::Query { (item, other) } else { (other, item) };
                let (a, v, b, w) = (mu1.row(i), var1.row(i), mu2.row(j, &mut means), var2.row(j, &mut vars));
                for d in 0..a.len() {
                    let x = Dimension { a: at(a, d), b: at(b, d), v: at(v, d), w: at(w, d), shared: 0.0 };
                    let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
                    let partials = if x.valid() { self.formula.by_shared(x).map(finite) } else { [f64::NAN; 2] };
                    for (sum, partial) in sums.iter_mut().zip(partials) {
                        *sum += weight.to_f64() * partial;
                    }
                }
            }
        }
        for (shared, sum) in shared.iter_mut().zip(sums) {
            *shared = *shared + T::from_f64(sum);
        }
    }
}

/// Adds numbers to sums, element by element.
pub fn add<T: Float, C: Float>(sums: &mut [T], terms: &[C]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum = *sum + T::from_f64(term.to_f64());
    }
}

/// Adds a gradient per dimension to that of the shared row; sums it up if one shared number stands for all dimensions.
pub fn add_shared_row<T: Float, C: Float>(shared: &mut [T], terms: &[C]) {
    if shared.len() == terms.len() {
        add(shared, terms);
    } else {
        let sum: f64 = terms.iter().map(|x| x.to_f64()).sum();
        shared[0] = shared[0] + T::from_f64(sum);
    }
}
