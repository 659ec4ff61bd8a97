//! Samples of normal and von Mises-Fisher distributions, with exact reparametrised gradients.
//!
//! Every number comes from the address of its row and draw (`rng`), so samples do not depend on threads or on how rows are split,
//! and backward makes the same numbers again instead of storing them.
//! - Normal: x = mu + sqrt(var) n.
//! - von Mises-Fisher: x = w mu + sqrt(1 - w^2) p/|p|, p = n - (n.mu) mu, with w = x.mu drawn by `wood` and n standard normal: no
//!   rotation matrix. Its gradient with respect to kappa is the implicit one of w (Figurnov et al., NeurIPS 2018), to mu that of
//!   this form.
//!
//! How `normals` turns words into numbers: u is (w >> 9 + 1/2) 2^-23 of a word w in float32, and (b >> 12 + 1/2) 2^-52 of 64 bits
//! b in float64. Box-Muller takes a radius from u and an angle from a second word: its highest bit chooses the sign of the
//! cosine, the next one swaps cosine and sine, the rest is the angle within an eighth of a turn.

use crate::error::Error;
use crate::parallel;
use crate::rng::{Address, Stream};
use crate::simd::{dispatch, AllLanes, Float, Kernel, Simd, V};
use crate::special::bessel::Order;
use crate::view::View;

mod distributions;
mod normals;
mod wood;

pub use distributions::{find, Distribution, Drawn};
pub use normals::Normals;

/// Draws that are made at once.
pub const LANES: usize = <f64 as Float>::LANES;
/// From this dimension on |p|^2 = |n|^2 - (n.mu)^2 is accurate: |p| < |n| / 100 has a probability under 1e-15.
const MANY: usize = 16;

/// Rows of up to this length are mixed element by element: a part of a vector costs more.
const FEW: usize = 4;

/// The items, mu [N, D] and uncertainty [N, 1] or [N, D], and where their random numbers come from.
#[derive(Clone, Copy)]
pub struct Items<'a, T> {
    /// Means or unit directions.
    pub mu: View<'a, T>,
    /// Variances or concentrations.
    pub uncertainty: View<'a, T>,
    /// The seed of the random words.
    pub seed: u64,
    /// The number of the first row.
    pub first_row: u64,
    /// The sequence of the seed.
    pub stream: Stream,
}

impl<T> Items<'_, T> {
    fn address(&self, row: usize, draw: usize) -> Address {
        let row = self.first_row.wrapping_add(row as u64);
        Address { seed: self.seed, row, draw: draw as u32, stream: self.stream }
    }
}

/// A distribution to draw from.
pub trait Sampler: Sync {
    /// Whether draws of an item differ.
    const RANDOM: bool = true;
    /// How many draws `forward` makes at most.
    const AT_ONCE: usize = LANES;
    /// The least dimension in which the distribution is defined.
    const LEAST_DIM: usize = 1;
    /// Whether an item may have an uncertainty for each dimension.
    const PER_DIM: bool = false;
    /// Draws for the pairs of row and draw in `at`, into consecutive rows of `out`.
    fn forward<S: Simd, T: Normals>(items: &Items<T>, at: &[(usize, usize)], out: &mut [T]);
    /// Adds the gradients of sum(weights * draw), for one draw of a row and weights [D], with respect to the row's mu [D] and
    /// uncertainty [1] or [D]. `partials` is what [`Sampler::partials`] found.
    fn backward<S: Simd, T: Normals>(
        items: &Items<T>,
        at: (usize, usize),
        partials: &HeightPartials,
        weights: &[T],
        mu: &mut [T],
        uncertainty: &mut [T],
    );
    /// The inputs of `backward` for up to eight draws, computed together; `order` is the Bessel order D/2.
    fn partials<S: Simd, T: Normals>(items: &Items<T>, order: &Order, at: &[(usize, usize)])
        -> [HeightPartials; LANES];
}

/// The numbers of a von Mises-Fisher draw that its gradient reads: w, sqrt(1 - w^2) and dw/dkappa.
#[derive(Clone, Copy, Default)]
pub struct HeightPartials {
    w: f64,
    s: f64,
    by_kappa: f64,
}

/// Writes n draws of each of the N items to `out` [n, N, D].
pub fn sample<P: Sampler, T: Normals>(
    items: &Items<T>,
    out: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let (rows, dim) = (items.mu.rows(), items.mu.stored());
    if out.is_empty() {
        return Ok(());
    }
    let at = |i: usize| (i % rows, i / rows);
    parallel::for_each(out.chunks_mut(PART * dim).enumerate(), interrupted, |(part, out)| {
        for (i, out) in out.chunks_mut(P::AT_ONCE * dim).enumerate() {
            let mut next = at(part * PART + i * P::AT_ONCE);
            let mut places = [(0, 0); PART];
            let count = out.len() / dim;
            for place in &mut places[..count] {
                *place = next;
                next = if next.0 + 1 == rows { (0, next.1 + 1) } else { (next.0 + 1, next.1) };
            }
            draw::<P, T>(items, &places[..count], out);
        }
    })
}

/// Draws in a part of the work: a multiple of the lanes, enough that the part is worth a thread's attention.
const PART: usize = 8 * LANES;

/// Draws for up to [`Sampler::AT_ONCE`] pairs of row and draw, into consecutive rows of `out`, on the SIMD level in use.
pub fn draw<P: Sampler, T: Normals>(items: &Items<T>, at: &[(usize, usize)], out: &mut [T]) {
    dispatch(Forward::<P, T> { items, at, out, sampler: std::marker::PhantomData });
}

struct Forward<'a, P, T> {
    items: &'a Items<'a, T>,
    at: &'a [(usize, usize)],
    out: &'a mut [T],
    sampler: std::marker::PhantomData<P>,
}
impl<P: Sampler, T: Normals> Kernel for Forward<'_, P, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        P::forward::<S, T>(self.items, self.at, self.out);
    }
}

/// Writes the gradients of sum(weights * samples), weights [n, N, D], to `mu` [N, D] and `uncertainty` [N, 1] or [N, D].
pub fn backward<P: Sampler, T: Normals>(
    items: &Items<T>,
    weights: &[T],
    mu: &mut [T],
    uncertainty: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let (rows, dim, wide) = (items.mu.rows(), items.mu.stored(), items.uncertainty.stored());
    if weights.is_empty() {
        mu.fill(T::default());
        uncertainty.fill(T::default());
        return Ok(());
    }
    let order = Order::new(dim as f64 / 2.0);
    let parts = mu.chunks_mut(LANES * dim).zip(uncertainty.chunks_mut(LANES * wide)).enumerate();
    parallel::for_each(parts, interrupted, |(part, (mu, uncertainty))| {
        mu.fill(T::default());
        uncertainty.fill(T::default());
        let first = part * LANES;
        let count = mu.len() / dim;
        for (draw, weights) in weights.chunks_exact(rows * dim).enumerate() {
            let weights = &weights[first * dim..(first + count) * dim];
            let mut at = [(0, draw); LANES];
            for (i, place) in at[..count].iter_mut().enumerate() {
                place.0 = first + i;
            }
            add_gradient::<P, T>(items, &order, &at[..count], weights, mu, uncertainty);
        }
    })
}

/// Adds the gradients of sum(weights * draws) to `mu` and `uncertainty`, for up to eight draws: one of each row, or, where these
/// have one row, all of that row. `order` is the Bessel order D/2.
pub fn add_gradient<P: Sampler, T: Normals>(
    items: &Items<T>,
    order: &Order,
    at: &[(usize, usize)],
    weights: &[T],
    mu: &mut [T],
    uncertainty: &mut [T],
) {
    dispatch(Backward { items, order, at, weights, mu, uncertainty, sampler: std::marker::PhantomData::<P> });
}

struct Backward<'a, P, T> {
    items: &'a Items<'a, T>,
    order: &'a Order,
    at: &'a [(usize, usize)],
    weights: &'a [T],
    mu: &'a mut [T],
    uncertainty: &'a mut [T],
    sampler: std::marker::PhantomData<P>,
}
impl<P: Sampler, T: Normals> Kernel for Backward<'_, P, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (dim, wide) = (self.items.mu.stored(), self.items.uncertainty.stored());
        let partials = P::partials::<S, T>(self.items, self.order, self.at);
        let rows = self.mu.len() / dim;
        for (i, (at, weights)) in self.at.iter().zip(self.weights.chunks(dim)).enumerate() {
            let (mu, uncertainty) =
                (&mut self.mu[i % rows * dim..][..dim], &mut self.uncertainty[i % rows * wide..][..wide]);
            P::backward::<S, T>(self.items, *at, &partials[i], weights, mu, uncertainty);
        }
    }
}

/// The noise of draw `i` in `at`, and more numbers after it. With few dimensions the noise of all of `at` is made with that of
/// the first draw.
#[inline(always)]
fn noise<'a, S: Simd, T: Normals>(
    items: &Items<T>,
    at: &[(usize, usize)],
    i: usize,
    buffer: &'a mut Vec<T>,
) -> &'a mut [T] {
    let dim = items.mu.stored();
    let address = |(row, draw)| items.address(row, draw);
    if dim > T::LANES {
        buffer.resize(dim.next_multiple_of(T::GROUP), T::default());
        normals::fill::<S, T>(&address(at[i]), buffer);
        return buffer;
    }
    if i == 0 {
        let mut addresses = [address(at[0]); PART];
        addresses.iter_mut().zip(at).for_each(|(to, &at)| *to = address(at));
        buffer.resize(at.len() * dim, T::default());
        normals::fill_few::<S, T>(&addresses[..at.len()], dim, buffer);
    }
    &mut buffer[i * dim..]
}

/// The normal distribution N(mu, var), with var per item or per dimension.
pub struct Normal;

impl Sampler for Normal {
    const AT_ONCE: usize = PART;
    const PER_DIM: bool = true;

    #[inline(always)]
    fn forward<S: Simd, T: Normals>(items: &Items<T>, at: &[(usize, usize)], out: &mut [T]) {
        let dim = items.mu.stored();
        let mut buffer = Vec::new();
        for (i, (&(row, _), out)) in at.iter().zip(out.chunks_mut(dim)).enumerate() {
            let noise = noise::<S, T>(items, at, i, &mut buffer);
            let (mu, var) = (items.mu.row(row), items.uncertainty.row(row));
            if let &[var] = var {
                mix::<S, T>(T::sqrt(var), noise, T::from_f64(1.0), mu, out);
            } else {
                for (((out, &n), &m), &var) in out.iter_mut().zip(&*noise).zip(mu).zip(var) {
                    *out = T::sqrt(var).fused(n, m);
                }
            }
        }
    }

    #[inline(always)]
    fn partials<S: Simd, T: Normals>(_: &Items<T>, _: &Order, _: &[(usize, usize)]) -> [HeightPartials; LANES] {
        [HeightPartials::default(); LANES]
    }

    #[inline(always)]
    fn backward<S: Simd, T: Normals>(
        items: &Items<T>,
        (row, draw): (usize, usize),
        _: &HeightPartials,
        weights: &[T],
        mu: &mut [T],
        by_var: &mut [T],
    ) {
        let mut noise = Vec::new();
        let noise = self::noise::<S, T>(items, &[(row, draw)], 0, &mut noise);
        let var = items.uncertainty.row(row);
        // A root has no finite derivative at a variance of 0, where it counts as 0.
        let half = T::from_f64(0.5);
        for (mu, &weight) in mu.iter_mut().zip(weights) {
            *mu = *mu + weight;
        }
        if let &[var] = var {
            let mut whole = T::default();
            for (&weight, &n) in weights.iter().zip(&*noise) {
                whole = whole + weight * n;
            }
            by_var[0] = by_var[0] + if var == T::default() { var } else { half * whole / T::sqrt(var) };
            return;
        }
        for (((by_var, &var), &weight), &n) in by_var.iter_mut().zip(var).zip(weights).zip(&*noise) {
            *by_var = *by_var + if var == T::default() { var } else { half * weight * n / T::sqrt(var) };
        }
    }
}

/// The von Mises-Fisher distribution about unit directions, D >= 2. Draws are NaN for kappa < 0, mu itself for infinite kappa.
pub struct VonMisesFisher;

impl VonMisesFisher {
    /// The heights of some draws, and their concentrations.
    #[inline(always)]
    fn heights<T: Normals>(items: &Items<T>, at: &[(usize, usize)]) -> (wood::Height<[f64; LANES]>, [f64; LANES]) {
        let mut kappa = [1.0; LANES];
        let mut addresses = [items.address(at[0].0, at[0].1); LANES];
        for (i, &(row, draw)) in at.iter().enumerate() {
            kappa[i] = items.uncertainty.row(row)[0].to_f64();
            addresses[i] = items.address(row, draw);
        }
        (dispatch(wood::Draw { dim: items.mu.stored(), kappa: &kappa, addresses: &addresses }), kappa)
    }

    /// n.mu and |p| of noise n; below [`MANY`] dimensions, p replaces n.
    #[inline(always)]
    fn tangent<S: Simd, T: Normals>(mu: &[T], noise: &mut [T]) -> (T, T) {
        let noise = &mut noise[..mu.len()];
        let (along, square) = two_sums::<S, T>(noise, mu);
        if mu.len() >= MANY {
            return (along, T::sqrt(square - along * along));
        }
        for _ in 0..2 {
            // Twice: in two dimensions p may be a small remainder of n.
            let (rest, _) = two_sums::<S, T>(noise, mu);
            for (n, &m) in noise.iter_mut().zip(mu) {
                *n = *n - rest * m;
            }
        }
        (along, T::sqrt(two_sums::<S, T>(noise, mu).1))
    }
}

/// a.b and |a|^2, each in two chains that run side by side.
#[inline(always)]
fn two_sums<S: Simd, T: Float>(a: &[T], b: &[T]) -> (T, T) {
    let (mut products, mut squares) = (AllLanes::<S, T>::zeros(), AllLanes::<S, T>::zeros());
    for lane in (0..T::LANES).step_by(V::<S, T>::LANES) {
        (*products.at(lane), *squares.at(lane)) = two_sums_of_lanes::<S, T>(a, b, lane);
    }
    (products.sum(), squares.sum())
}

/// [`two_sums`] in each of the lanes from one on.
#[inline(always)]
fn two_sums_of_lanes<S: Simd, T: Float>(a: &[T], b: &[T], lane: usize) -> (V<S, T>, V<S, T>) {
    let zero = V::<S, T>::from(0.0);
    let (mut product, mut square) = ([zero; 2], [zero; 2]);
    for (a, b) in a.chunks(2 * T::LANES).zip(b.chunks(2 * T::LANES)) {
        for (i, (a, b)) in a.chunks(T::LANES).zip(b.chunks(T::LANES)).enumerate() {
            let (a, b) = if a.len() == T::LANES {
                (V::<S, T>::load(&a[lane..]), V::<S, T>::load(&b[lane..]))
            } else {
                let at = lane.min(a.len())..(lane + V::<S, T>::LANES).min(a.len());
                let none = T::default();
                (V::<S, T>::load_partial(&a[at.clone()], none), V::<S, T>::load_partial(&b[at], none))
            };
            (product[i], square[i]) = (a.mul_add(b, product[i]), a.mul_add(a, square[i]));
        }
    }
    (product[0] + product[1], square[0] + square[1])
}

/// out = x a + y b.
#[inline(always)]
fn mix<S: Simd, T: Normals>(x: T, a: &[T], y: T, b: &[T], out: &mut [T]) {
    if out.len() <= FEW {
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *out = x.fused(a, y * b);
        }
        return;
    }
    let (x, y) = (V::<S, T>::splat(x), V::<S, T>::splat(y));
    let width = V::<S, T>::LANES;
    let whole = out.len() / width * width;
    let ((a, a_rest), (b, b_rest)) = (a[..out.len()].split_at(whole), b.split_at(whole));
    let (out, out_rest) = out.split_at_mut(whole);
    for ((a, b), out) in a.chunks_exact(width).zip(b.chunks_exact(width)).zip(out.chunks_exact_mut(width)) {
        x.mul_add(V::<S, T>::load(a), y * V::<S, T>::load(b)).store(out);
    }
    let (a, b) = (V::<S, T>::load_partial(a_rest, T::default()), V::<S, T>::load_partial(b_rest, T::default()));
    x.mul_add(a, y * b).store_partial(out_rest);
}

impl Sampler for VonMisesFisher {
    const LEAST_DIM: usize = 2;

    #[inline(always)]
    fn forward<S: Simd, T: Normals>(items: &Items<T>, at: &[(usize, usize)], out: &mut [T]) {
        let dim = items.mu.stored();
        let (heights, _) = Self::heights::<T>(items, at);
        let [w, s] = heights.parts::<S>();
        let mut buffer = Vec::new();
        for (i, (&(row, _), out)) in at.iter().zip(out.chunks_mut(dim)).enumerate() {
            let noise = noise::<S, T>(items, at, i, &mut buffer);
            let mu = items.mu.row(row);
            let (along, length) = Self::tangent::<S, T>(mu, noise);
            let by_noise = T::from_f64(s[i]) / length;
            let by_mu = T::from_f64(w[i]) - if dim >= MANY { by_noise * along } else { T::default() };
            mix::<S, T>(by_noise, noise, by_mu, mu, out);
        }
    }

    #[inline(always)]
    fn partials<S: Simd, T: Normals>(
        items: &Items<T>,
        order: &Order,
        at: &[(usize, usize)],
    ) -> [HeightPartials; LANES] {
        let dim = items.mu.stored();
        let (heights, kappa) = Self::heights::<T>(items, at);
        let single = T::LANES == f32::LANES;
        let by_kappa = dispatch(wood::ByKappa { dim, single, order, kappa: &kappa, heights: &heights });
        let [w, s] = heights.parts::<S>();
        let mut partials = [HeightPartials::default(); LANES];
        for (i, partials) in partials.iter_mut().enumerate() {
            *partials = HeightPartials { w: w[i], s: s[i], by_kappa: by_kappa[i] };
        }
        partials
    }

    #[inline(always)]
    fn backward<S: Simd, T: Normals>(
        items: &Items<T>,
        (row, draw): (usize, usize),
        partials: &HeightPartials,
        weights: &[T],
        mu: &mut [T],
        by_kappa: &mut [T],
    ) {
        let dim = mu.len();
        let direction = items.mu.row(row);
        let mut noise = Vec::new();
        let noise = self::noise::<S, T>(items, &[(row, draw)], 0, &mut noise);
        let (along, length) = Self::tangent::<S, T>(direction, noise);
        // v = p/|p| replaces n.
        let (sideways, inverse) = (if dim >= MANY { along } else { T::default() }, T::from_f64(1.0) / length);
        for (n, &m) in noise.iter_mut().zip(direction) {
            *n = (*n - sideways * m) * inverse;
        }
        let (by_v, _) = two_sums::<S, T>(&noise[..dim], weights);
        let (by_mu, _) = two_sums::<S, T>(direction, weights);
        // dx = dw (mu - w/s v); s is 0 only where kappa is infinite, and dw with it.
        let ratio = if partials.s == 0.0 { 0.0 } else { partials.w / partials.s };
        by_kappa[0] = by_kappa[0] + T::from_f64(partials.by_kappa) * (by_mu - T::from_f64(ratio) * by_v);
        // dp = -(n.dmu) mu - (n.mu) dmu, and d(p/|p|) is its part across v over |p|; n = |p| v + (n.mu) mu.
        let (w, s) = (T::from_f64(partials.w), T::from_f64(partials.s) / length);
        let across = -(s * along);
        let (noise, direction, weights) = (&noise[..dim], &direction[..dim], &weights[..dim]);
        for d in 0..dim {
            let n = length * noise[d] + along * direction[d];
            mu[d] = mu[d] + w * weights[d] + across * (weights[d] - by_v * noise[d]) - s * by_mu * n;
        }
    }
}
