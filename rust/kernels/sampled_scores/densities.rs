//! The density of a non-isotropic von Mises-Fisher distribution at draws.
//!
//! For z on the unit sphere, mean direction mu, K = diag(kappa), x = K z, y = K mu, n = |y| and C_D the normaliser of the von
//! Mises-Fisher distribution, the density is (Kirchhof et al. 2022, eq. 4)
//!
//!   rho(z) = C_D(n) exp(n cos(x, y)) det K / |x|^D.
//!
//! The last factor is the Jacobian of z -> K z / |K z|: with it rho integrates to 1. The paper's own depends on K alone and is
//! det K / n^D in our reading; its code takes det K / n, and in the expected likelihood cos(z, y) for cos(K z, y).
//!
//! A draw and a class (a gallery item) take two inner products, x . y = z . (K^2 mu) and |x|^2 = z^2 . K^2, as log C(n) + n cos =
//! log C(0) - log H(n) - n (1 - cos) with H(n) = 0F1(; D/2; n^2/4) e^-n. Where n (1 - cos) is small beside n, digits would be
//! lost, and it is found as n |x/|x| - y/n|^2 / 2 instead.

use super::{ByItems, Comparison, Items};
use crate::kernels::samplers::Normals;
use crate::memory;
use crate::rows::{self, reduce, DIFFERENCES, OTHERS_FIRST, PRODUCTS, ROWS, ROWS_FIRST};
use crate::simd::{dispatch, AllLanes, Float, Kernel, Simd, V};
use crate::special::bessel;
use crate::special::bessel::Orders;
use crate::special::exp::exp;
use crate::special::log::ln;

/// The log of the mean density of the gallery item at the query's draws.
pub struct Density<'a> {
    /// The orders of the Bessel functions.
    pub orders: Orders<'a>,
    /// Whether x is K z, or else z.
    pub stretched: bool,
    /// The last factor.
    pub factor: LastFactor,
}

/// The last factor of rho, which tells its variants apart.
#[derive(Clone, Copy, PartialEq)]
pub enum LastFactor {
    /// det K / |x|^D.
    Exact,
    /// det K / n^D.
    Paper,
    /// det K / n.
    Published,
}

impl LastFactor {
    /// The power of 1/n in it.
    fn power_of_n(self, dim: usize) -> f64 {
        match self {
            LastFactor::Exact => 0.0,
            LastFactor::Paper => dim as f64,
            LastFactor::Published => 1.0,
        }
    }

    /// The power of 1/|x| in it.
    fn power_of_x(self, dim: usize) -> f64 {
        if self == LastFactor::Exact {
            dim as f64
        } else {
            0.0
        }
    }
}

/// Draws with less than this share of the sum of densities have a gradient of 0.
const NEGLIGIBLE: f64 = 1e-30;

/// The draws of a query and the squares of their elements.
pub struct QueryDraws<T> {
    z: Vec<T>,
    squares: Vec<T>,
}

/// The numbers of a class that all draws share: K, mu, y/n, the diagonal of the matrix that makes x of z (K, or 1), its square,
/// that matrix times y, n, and the log of C(n) e^n det K, the last divided by the last factor's power of n.
pub struct Shape<T> {
    kappa: Vec<T>,
    mu: Vec<T>,
    unit: Vec<T>,
    stretch: Vec<T>,
    squares: Vec<T>,
    stretched_y: Vec<T>,
    n: f64,
    logs: f64,
}

/// Calls a function of lanes for one number.
macro_rules! one {
    ($S:ident, $function:expr, $x:expr) => {
        $function(V::<$S, f64>::from($x)).to_array()[0]
    };
}

/// Loads some lanes of an array. A macro, as a closure would not inherit the instruction set.
macro_rules! load {
    ($x:expr, $at:ident) => {
        V::<S, f64>::load(&$x[$at.clone()])
    };
}

/// Divides a vector by its length, and returns that.
#[inline(always)]
fn unit<S: Simd, T: Normals>(x: &mut [T]) -> T {
    let length = T::sqrt(reduce::<S, T, PRODUCTS>(x, x));
    for x in x {
        *x = *x / length;
    }
    length
}

/// The log density, cos(x, y) and |x|^2 for each draw (rows) and class (columns).
struct Densities {
    logs: Vec<[f64; ROWS]>,
    cosines: Vec<[f64; ROWS]>,
    squares: Vec<[f64; ROWS]>,
}

/// n (1 - cos) and |x|^2 of one draw, from the difference of directions. A dispatch of its own, as it is seldom called.
struct Apart<'a, T>(&'a Shape<T>, &'a [T]);
impl<T: Normals> Kernel for Apart<'_, T> {
    const LANES_MEET: bool = false;
    type Output = (f64, f64);
    #[inline(always)]
    fn run<S: Simd>(self) -> (f64, f64) {
        let Apart(shape, draw) = self;
        let mut x = memory::collected(draw.iter().zip(&shape.stretch).map(|(&z, &k)| k * z));
        let length = unit::<S, T>(&mut x).to_f64();
        (0.5 * shape.n * reduce::<S, T, DIFFERENCES>(&x, &shape.unit).to_f64(), length * length)
    }
}

/// Calls [`Density::densities`]: a function of its own, which values and gradients share.
struct MakeDensities<'a, 'b, T> {
    density: &'a Density<'b>,
    items: &'a Items<'a, QueryDraws<T>, Shape<T>>,
}
impl<T: Normals> Kernel for MakeDensities<'_, '_, T> {
    const LANES_MEET: bool = false;
    type Output = Densities;
    #[inline(always)]
    fn run<S: Simd>(self) -> Densities {
        self.density.densities::<S, T>(self.items)
    }
}

impl Density<'_> {
    #[inline(always)]
    fn shape<S: Simd, T: Normals>(&self, mu: Vec<T>, kappa: &[T]) -> Shape<T> {
        let last = kappa.len() - 1;
        let kappa = memory::collected((0..mu.len()).map(|d| kappa[d.min(last)]));
        let mut y = memory::collected(kappa.iter().zip(&mu).map(|(&k, &m)| k * m));
        let one = T::from_f64(1.0);
        let stretch = memory::collected(kappa.iter().map(|&k| if self.stretched { k } else { one }));
        let squares = memory::collected(stretch.iter().map(|&k| k * k));
        let stretched_y = memory::collected(stretch.iter().zip(&y).map(|(&k, &y)| k * y));
        let n = unit::<S, T>(&mut y);
        let mut sum = AllLanes::<S, T>::zeros();
        for (first, part) in (0..).step_by(V::<S, T>::LANES).zip(kappa.chunks(V::<S, T>::LANES)) {
            let sum = sum.at(first);
            *sum = *sum + ln::<S, T>(V::<S, T>::load_partial(part, T::from_f64(1.0)));
        }
        let n = n.to_f64();
        let normaliser = self.orders.normaliser.log_norm_at_zero()
            - one!(S, |n| bessel::log_hyp0f1e::<S>(self.orders.normaliser, n), n);
        let power = self.factor.power_of_n(kappa.len());
        let det = sum.sum().to_f64() - if power > 0.0 { power * one!(S, ln::<S, f64>, n) } else { 0.0 };
        Shape { kappa, mu, unit: y, stretch, squares, stretched_y, n, logs: normaliser + det }
    }

    /// The densities of all classes at all draws of the queries.
    #[inline(always)]
    fn densities<S: Simd, T: Normals>(&self, items: &Items<'_, QueryDraws<T>, Shape<T>>) -> Densities {
        let dim = items.dim as f64;
        let (z, z_squares) = (draws_of(items, |draws| &draws.z), draws_of(items, |draws| &draws.squares));
        let classes = items.gallery;
        let (stretched_y, k_squares): (Vec<_>, Vec<_>) =
            classes.iter().map(|k| (&k.stretched_y[..], &k.squares[..])).unzip();
        let (mut n, mut logs) = ([1.0; ROWS], [0.0; ROWS]);
        for (j, class) in classes.iter().enumerate() {
            (n[j], logs[j]) = (class.n, class.logs);
        }
        let empty = || memory::filled([0.0; ROWS], z.len());
        let mut out = Densities { logs: empty(), cosines: empty(), squares: empty() };
        let half_power = 0.5 * self.factor.power_of_x(items.dim);
        for (first, (z_part, square_part)) in (0..).step_by(ROWS).zip(z.chunks(ROWS).zip(z_squares.chunks(ROWS))) {
            let (mut products, mut squares) = ([[T::default(); ROWS]; ROWS], [[T::default(); ROWS]; ROWS]);
            rows::products::<T, PRODUCTS>(z_part, &stretched_y, &mut products);
            rows::products::<T, PRODUCTS>(square_part, &k_squares, &mut squares);
            for i in 0..z_part.len() {
                let (mut product, mut square) = ([0.0; ROWS], [1.0; ROWS]);
                for j in 0..classes.len() {
                    (product[j], square[j]) = (products[i][j].to_f64(), squares[i][j].to_f64());
                }
                for from in (0..classes.len()).step_by(V::<S, f64>::LANES) {
                    let at = from..from + V::<S, f64>::LANES;
                    let (n, square) = (load!(n, at), load!(square, at));
                    let cosine = load!(product, at) / (square.sqrt() * n);
                    let mut apart = n * (1.0 - cosine);
                    // Where digits are lost, or where the squares may have left the range of numbers, both are computed again.
                    let lost = (apart + dim).if_less(0.25 * n, 1.0, 0.0);
                    let inside = square.if_greater(RANGE.0, square.if_less(RANGE.1, lost, 1.0), 1.0);
                    let again = V::<S, f64>::from(0.0).not_less_bits(inside) ^ ((1 << V::<S, f64>::LANES) - 1);
                    let (mut lengths, mut cosines) = (square, cosine);
                    if again != 0 {
                        let (mut gaps, mut all) = (apart.to_array(), square.to_array());
                        for lane in
                            (0..V::<S, f64>::LANES).filter(|lane| again >> lane & 1 == 1 && from + lane < classes.len())
                        {
                            (gaps[lane], all[lane]) = dispatch(Apart(classes[from + lane], z_part[i]));
                        }
                        (apart, lengths) = (V::<S, f64>::load(&gaps), V::<S, f64>::load(&all));
                        cosines = 1.0 - apart / n;
                    }
                    let value = load!(logs, at) - apart - half_power * ln::<S, f64>(lengths);
                    value.store(&mut out.logs[first + i][at.clone()]);
                    cosines.store(&mut out.cosines[first + i][at.clone()]);
                    lengths.store(&mut out.squares[first + i][at]);
                }
            }
        }
        out
    }
}

/// The range of squared lengths that are accurate as inner products in float32, whose terms are normal numbers there.
const RANGE: (f64, f64) = (1e-30, 1e30);

/// The rows of all draws of all queries, or those of their squares.
fn draws_of<'a, T>(
    items: &Items<'a, QueryDraws<T>, Shape<T>>,
    of: impl Fn(&'a QueryDraws<T>) -> &'a Vec<T>,
) -> Vec<&'a [T]> {
    let mut all = memory::room(items.queries.iter().map(|draws| of(draws).len() / items.dim).sum());
    all.extend(items.queries.iter().flat_map(|draws| of(draws).chunks_exact(items.dim)));
    all
}

/// Replaces logs by exp(log - top), top being the greatest log of a column (NaN if one is); returns the columns' tops and sums.
#[inline(always)]
fn relative<S: Simd>(logs: &mut [[f64; ROWS]], count: usize) -> ([f64; ROWS], [f64; ROWS]) {
    let (mut tops, mut sums) = ([0.0; ROWS], [0.0; ROWS]);
    for from in (0..count).step_by(V::<S, f64>::LANES) {
        let at = from..from + V::<S, f64>::LANES;
        let (mut top, mut no_number) = (V::<S, f64>::from(f64::NEG_INFINITY), V::<S, f64>::from(0.0));
        for row in &*logs {
            let log = V::<S, f64>::load(&row[at.clone()]);
            top = log.max(top);
            no_number = no_number + log.if_less(f64::INFINITY, 0.0, log);
        }
        let mut sum = V::<S, f64>::from(0.0);
        for row in &mut *logs {
            let share = exp::<S>(V::<S, f64>::load(&row[at.clone()]) - top);
            share.store(&mut row[at.clone()]);
            sum = sum + share;
        }
        (top + no_number).store(&mut tops[at.clone()]);
        sum.store(&mut sums[at]);
    }
    (tops, sums)
}

impl<T: Normals> Comparison<T> for Density<'_> {
    type Query = QueryDraws<T>;
    type Gallery = Shape<T>;

    #[inline(always)]
    fn query<S: Simd>(&self, _: usize, draws: Vec<T>) -> QueryDraws<T> {
        let squares = memory::collected(draws.iter().map(|&z| z * z));
        QueryDraws { z: draws, squares }
    }

    #[inline(always)]
    fn gallery<S: Simd>(&self, _: usize, mu: Vec<T>, kappa: &[T]) -> Shape<T> {
        self.shape::<S, T>(mu, kappa)
    }

    #[inline(always)]
    fn values<S: Simd>(&self, items: &Items<'_, QueryDraws<T>, Shape<T>>, out: &mut [&mut [T]]) {
        let mut logs = S::call(MakeDensities { density: self, items }).logs;
        let (draws, count) = (logs.len() / items.queries.len(), items.gallery.len());
        for (out, logs) in out.iter_mut().zip(logs.chunks_mut(draws)) {
            let mut value = logs[0];
            if draws > 1 {
                let (tops, sums) = relative::<S>(logs, count);
                for from in (0..count).step_by(V::<S, f64>::LANES) {
                    let at = from..from + V::<S, f64>::LANES;
                    let mean = V::<S, f64>::load(&sums[at.clone()]) / draws as f64;
                    let top = V::<S, f64>::load(&tops[at.clone()]);
                    // All logs are -inf, or one is inf: there are no differences to take.
                    let all = top.abs().if_less(f64::INFINITY, top + ln::<S, f64>(mean), top);
                    all.store(&mut value[at]);
                }
            }
            for (out, value) in out.iter_mut().zip(value) {
                *out = T::from_f64(value);
            }
        }
    }

    /// With M the matrix that makes x of z, and J the power of 1/|x|, the gradient of log rho with respect to z is M y / |x| - (n
    /// cos + J) M^2 z / |x|^2. For each draw, two weighted sums over the classes are added up, of M y and of the diagonal of M^2;
    /// for each class, the weighted sums over the draws of z and of z^2, and the sum of the weights.
    #[inline(always)]
    fn backward<S: Simd>(
        &self,
        items: &Items<'_, QueryDraws<T>, Shape<T>>,
        weights: &[&[T]],
        out: &mut ByItems<'_, T>,
    ) {
        let dim = items.dim;
        let mut found = S::call(MakeDensities { density: self, items });
        let (draws, classes) = (found.logs.len() / items.queries.len(), items.gallery);
        let (z, z_squares) = (draws_of(items, |draws| &draws.z), draws_of(items, |draws| &draws.squares));
        let (stretched_y, k_squares): (Vec<_>, Vec<_>) =
            classes.iter().map(|k| (&k.stretched_y[..], &k.squares[..])).unzip();
        let jacobian = self.factor.power_of_x(dim);
        let mut n = [1.0; ROWS];
        n.iter_mut().zip(classes).for_each(|(n, class)| *n = class.n);
        let totals = weigh_draws::<S, T>(&mut found.logs, draws, classes.len(), weights);
        for (first, (z_part, square_part)) in (0..).step_by(ROWS).zip(z.chunks(ROWS).zip(z_squares.chunks(ROWS))) {
            let (mut along, mut across) = ([[T::default(); ROWS]; ROWS], [[T::default(); ROWS]; ROWS]);
            for i in 0..z_part.len() {
                let draw = [&found.logs[first + i], &found.squares[first + i], &found.cosines[first + i]];
                let (by_along, by_across) = weights_of_sums::<S>(draw, &n, jacobian, classes.len());
                for j in 0..classes.len() {
                    (along[i][j], across[i][j]) = (T::from_f64(by_along[j]), T::from_f64(by_across[j]));
                }
            }
            if let Some(out) = &mut out.queries {
                let mut sums = [vec![T::default(); z_part.len() * dim], vec![T::default(); z_part.len() * dim]];
                rows::accumulate::<T, PRODUCTS, ROWS_FIRST>(z_part, &stretched_y, &along, &mut sums[0]);
                rows::accumulate::<T, PRODUCTS, ROWS_FIRST>(z_part, &k_squares, &across, &mut sums[1]);
                for (n, sums) in sums.iter().enumerate() {
                    for (i, sums) in sums.chunks(dim).enumerate() {
                        let (query, draw) = ((first + i) / draws, (first + i) % draws);
                        let place = ((2 * query + n) * draws + draw) * dim;
                        add(&mut out[place..place + dim], sums);
                    }
                }
            }
            if let Some(out) = &mut out.gallery {
                let mut sums = [vec![T::default(); classes.len() * dim], vec![T::default(); classes.len() * dim]];
                rows::accumulate::<T, PRODUCTS, OTHERS_FIRST>(&stretched_y, z_part, &along, &mut sums[0]);
                rows::accumulate::<T, PRODUCTS, OTHERS_FIRST>(&k_squares, square_part, &across, &mut sums[1]);
                for (n, sums) in sums.iter().enumerate() {
                    for (j, sums) in sums.chunks(dim).enumerate() {
                        let place = j * (2 * dim + 1) + n * dim;
                        add(&mut out[place..place + dim], sums);
                    }
                }
            }
        }
        if let Some(out) = &mut out.gallery {
            for (out, total) in out.chunks_mut(2 * dim + 1).zip(totals) {
                out[2 * dim] = out[2 * dim] + T::from_f64(total);
            }
        }
    }

    fn finite(&self, items: &Items<'_, QueryDraws<T>, Shape<T>>) -> bool {
        let classes = items.gallery.iter().flat_map(|class| [&class.stretched_y[..], &class.squares[..]]);
        let known = items.gallery.iter().all(|class| class.n > 0.0 && class.logs.is_finite());
        known && rows::finite(draws_of(items, |draws| &draws.squares).into_iter().chain(classes))
    }

    fn widths(&self, dim: usize, (draws, _): (usize, usize)) -> (usize, usize) {
        (2 * draws * dim, 2 * dim + 1)
    }

    #[inline(always)]
    fn to_draws<S: Simd>(&self, _: usize, query: &QueryDraws<T>, _: &dyn Fn() -> Vec<T>, by_query: &[T]) -> Vec<T> {
        let (along, across) = by_query.split_at(query.z.len());
        memory::collected(query.z.iter().zip(along).zip(across).map(|((&z, &along), &across)| along - z * across))
    }

    #[inline(always)]
    fn gallery_to_draws<S: Simd>(
        &self,
        dim: usize,
        class: &Shape<T>,
        _: &dyn Fn() -> Vec<T>,
        by_class: &[T],
        by_kappa: &mut [T],
    ) -> Vec<T> {
        let resultant = one!(S, |n| bessel::iv_ratio::<S>(self.orders.ratio, n), class.n);
        let power = self.factor.power_of_n(dim);
        let by_unit = T::from_f64(resultant + if power > 0.0 { power / class.n } else { 0.0 });
        let ((along, rest), (last, zero)) = (by_class.split_at(dim), (by_kappa.len() - 1, T::default()));
        let (across, total) = (&rest[..dim], rest[dim]);
        memory::collected((0..dim).map(|d| {
            let (kappa, mu, stretch) = (class.kappa[d], class.mu[d], class.stretch[d]);
            let by_y = stretch * along[d] - total * by_unit * class.unit[d];
            // The part of the gradient that goes through x = K z.
            let by_stretch = if self.stretched { kappa * mu * along[d] - kappa * across[d] } else { zero };
            by_kappa[d.min(last)] = by_kappa[d.min(last)] + (mu * by_y + by_stretch + total / kappa);
            kappa * by_y
        }))
    }
}

/// Replaces the log-densities of draws by their shares of the pairs' weights; returns the sum of these for each class.
#[inline(always)]
fn weigh_draws<S: Simd, T: Float>(
    logs: &mut [[f64; ROWS]],
    draws: usize,
    classes: usize,
    weights: &[&[T]],
) -> [f64; ROWS] {
    let mut totals = [0.0; ROWS];
    for (shares, weights) in logs.chunks_mut(draws).zip(weights) {
        let (_, sums) = relative::<S>(shares, classes);
        let mut weight = [0.0; ROWS];
        weight.iter_mut().zip(*weights).for_each(|(weight, x)| *weight = x.to_f64());
        for from in (0..classes).step_by(V::<S, f64>::LANES) {
            let at = from..from + V::<S, f64>::LANES;
            let (weight, sum) = (V::<S, f64>::load(&weight[at.clone()]), V::<S, f64>::load(&sums[at.clone()]));
            let mut total = V::<S, f64>::load(&totals[at.clone()]);
            for share in &mut *shares {
                let found = V::<S, f64>::load(&share[at.clone()]);
                // Smaller shares would soon be subnormal numbers, which take a hundred times as long.
                let counted = found.if_less(NEGLIGIBLE * sum, 0.0, weight * found / sum);
                let counted = weight.abs().if_less(f64::SMALLEST, 0.0, counted);
                counted.store(&mut share[at.clone()]);
                total = total + counted;
            }
            total.store(&mut totals[at]);
        }
    }
    totals
}

/// The weights of the two sums of a draw over the classes, given its shares, squares and cosines: of M y, and of the diagonal of
/// M^2.
#[inline(always)]
fn weights_of_sums<S: Simd>(
    [shares, squares, cosines]: [&[f64; ROWS]; 3],
    n: &[f64; ROWS],
    jacobian: f64,
    classes: usize,
) -> ([f64; ROWS], [f64; ROWS]) {
    let (mut by_along, mut by_across) = ([0.0; ROWS], [0.0; ROWS]);
    for from in (0..classes).step_by(V::<S, f64>::LANES) {
        let at = from..from + V::<S, f64>::LANES;
        let (share, square) = (load!(shares, at), load!(squares, at));
        let fall = load!(n, at).mul_add(load!(cosines, at), jacobian);
        let size = share.abs();
        let (x, y) = (share / square.sqrt(), share * fall / square);
        size.if_less(f64::SMALLEST, 0.0, x).store(&mut by_along[at.clone()]);
        size.if_less(f64::SMALLEST, 0.0, y).store(&mut by_across[at]);
    }
    (by_along, by_across)
}

fn add<T: Float>(sums: &mut [T], terms: &[T]) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum = *sum + *term);
}
