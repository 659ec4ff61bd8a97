//! The density of a non-isotropic von Mises-Fisher distribution at draws.
//!
//! For z on the sphere, K = diag(kappa), x = K z, y = K mu and n = |y| (Kirchhof et al. 2022, eq. 4):
//!
//!   rho(z) = C_D(n) exp(n cos(x, y)) det K / |x|^D.
//!
//! The last factor is the Jacobian of z -> K z / |K z|: with it rho integrates to 1. The paper leaves it to an approximation;
//! its code takes det K / n, and in the expected likelihood cos(z, y) for cos(K z, y). Nothing cancels in
//! log C(n) + n cos = log C(0) - log H(n) - n |x/|x| - y/n|^2 / 2, H(n) = 0F1(; D/2; n^2/4) e^-n.

use super::distances::{log_mean_exp, relative};
use super::{Comparison, Pair};
use crate::kernels::dot_scores::Orders;
use crate::kernels::samplers::Normals;
use crate::rows::reduce;
use crate::shapes::Side;
use crate::simd::{Lanes, Simd, V};
use crate::special::bessel;
use crate::special::log::ln;

/// Log of the mean density of the gallery item at the query's draws.
pub struct Density<'a> {
    /// For the Bessel functions.
    pub orders: Orders<'a>,
    /// Whether x = K z, or z.
    pub stretched: bool,
    /// Whether the last factor is det K / |x|^D, or det K / n.
    pub exact: bool,
}

/// The share of the density at a draw below which its gradient is 0.
const NEGLIGIBLE: f64 = 1e-30;

/// What all draws share: K, mu, unit y, n, and log det K and C(n) without e^-n.
pub struct Shape<T> {
    kappa: Vec<T>,
    mu: Vec<T>,
    unit: Vec<T>,
    n: f64,
    logs: f64,
}

/// A function of one number, by lanes.
macro_rules! one {
    ($S:ident, $function:expr, $x:expr) => {
        $function(V::<$S, f64>::splat($x)).to_array()[0]
    };
}

/// Makes a direction of a vector, and returns what its length was.
#[inline(always)]
fn unit<S: Simd, T: Normals>(x: &mut [T]) -> T {
    let length = T::sqrt(reduce::<S, T, false>(x, x));
    for x in x {
        *x = *x / length;
    }
    length
}

impl Density<'_> {
    #[inline(always)]
    fn shape<S: Simd, T: Normals>(&self, mu: Vec<T>, extra: &[T]) -> Shape<T> {
        let last = extra.len() - 1;
        let kappa: Vec<T> = (0..mu.len()).map(|d| extra[d.min(last)]).collect();
        let mut y: Vec<T> = kappa.iter().zip(&mu).map(|(&k, &m)| k * m).collect();
        let n = unit::<S, T>(&mut y);
        let mut sum = V::<S, T>::splat(T::default());
        for part in kappa.chunks(T::LANES) {
            sum = sum + ln::<S, T>(V::<S, T>::load_partial(part, T::from_f64(1.0)));
        }
        let n = n.to_f64();
        let normaliser = self.orders.normaliser.log_norm_at_zero()
            - one!(S, |n| bessel::log_hyp0f1e::<S>(self.orders.normaliser, n), n);
        let det = sum.sum().to_f64() - if self.exact { 0.0 } else { one!(S, ln::<S, f64>, n) };
        Shape { kappa, mu, unit: y, n, logs: normaliser + det }
    }

    /// Writes unit x and returns its length.
    #[inline(always)]
    fn image<S: Simd, T: Normals>(&self, shape: &Shape<T>, draw: &[T], x: &mut [T]) -> T {
        x.copy_from_slice(draw);
        if self.stretched {
            x.iter_mut().zip(&shape.kappa).for_each(|(x, &k)| *x = k * *x);
        }
        unit::<S, T>(x)
    }

    /// The log density at each draw.
    #[inline(always)]
    fn logs<S: Simd, T: Normals>(&self, dim: usize, draws: &[T], shape: &Shape<T>) -> Vec<f64> {
        let (mut x, mut logs) = (vec![T::default(); dim], Vec::with_capacity(draws.len() / dim));
        for draw in draws.chunks_exact(dim) {
            let length = self.image::<S, T>(shape, draw, &mut x);
            let apart = reduce::<S, T, true>(&x, &shape.unit).to_f64();
            let stretch = if self.exact { dim as f64 * one!(S, ln::<S, f64>, length.to_f64()) } else { 0.0 };
            logs.push(shape.logs - 0.5 * shape.n * apart - stretch);
        }
        logs
    }
}

impl<T: Normals> Comparison<T> for Density<'_> {
    type Query = Vec<T>;
    type Gallery = Shape<T>;

    #[inline(always)]
    fn query<S: Simd>(&self, _: usize, draws: Vec<T>) -> Vec<T> {
        draws
    }

    #[inline(always)]
    fn gallery<S: Simd>(&self, _: usize, mu: Vec<T>, extra: &[T]) -> Shape<T> {
        self.shape::<S, T>(mu, extra)
    }

    #[inline(always)]
    fn value<S: Simd>(&self, dim: usize, query: &Vec<T>, gallery: &Shape<T>) -> f64 {
        log_mean_exp::<S>(&mut self.logs::<S, T>(dim, query, gallery))
    }

    /// With c = cos(x, y) and R = I_(D/2)(n) / I_(D/2-1)(n):
    /// by x: (n / |x|) (y/n - c x/|x|) - D x/|x|^2 (exact); by y: x/|x| - R y/n - y/n^2 (not exact); by kappa also 1/kappa.
    #[inline(always)]
    fn backward<S: Simd>(
        &self,
        side: Side,
        pair: &Pair<'_, Vec<T>, Shape<T>>,
        weight: f64,
        draws: &mut [T],
        extra: &mut [T],
        _: &mut [T],
    ) {
        let shape = pair.gallery;
        let mut shares = self.logs::<S, T>(pair.dim, pair.query, shape);
        let (_, sum) = relative::<S>(&mut shares);
        let resultant = one!(S, |n| bessel::iv_ratio::<S>(self.orders.ratio, n), shape.n);
        let by_unit = T::from_f64(resultant + if self.exact { 0.0 } else { 1.0 / shape.n });
        let (last, mut x) = (extra.len() - 1, vec![T::default(); pair.dim]);
        for (i, (draw, share)) in pair.query.chunks_exact(pair.dim).zip(shares).enumerate() {
            // Subnormal numbers, which the rest would be, take a hundred times as long.
            if share < NEGLIGIBLE * sum {
                continue;
            }
            let length = self.image::<S, T>(shape, draw, &mut x);
            let weight = T::from_f64(weight * share / sum);
            let cosine = 1.0 - 0.5 * reduce::<S, T, true>(&x, &shape.unit).to_f64();
            let jacobian = if self.exact { pair.dim as f64 } else { 0.0 };
            let (along, own) = (T::from_f64(shape.n) / length, T::from_f64(shape.n * cosine + jacobian) / length);
            let (unit, kappa) = (&shape.unit[..pair.dim], &shape.kappa[..pair.dim]);
            if side == Side::Query {
                let out = &mut draws[i * pair.dim..(i + 1) * pair.dim];
                for d in 0..pair.dim {
                    let by_x = weight * (along * unit[d] - own * x[d]);
                    out[d] = out[d] + if self.stretched { kappa[d] * by_x } else { by_x };
                }
                continue;
            }
            let (mu, out) = (&shape.mu[..pair.dim], &mut draws[..pair.dim]);
            // By kappa, in the place of x.
            for d in 0..pair.dim {
                let by_y = weight * (x[d] - by_unit * unit[d]);
                let by_x = weight * (along * unit[d] - own * x[d]);
                out[d] = out[d] + kappa[d] * by_y;
                x[d] = if self.stretched { draw[d] * by_x } else { T::default() } + mu[d] * by_y + weight / kappa[d];
            }
            if last == 0 {
                extra[0] = x.iter().fold(extra[0], |sum, &x| sum + x);
            } else {
                extra.iter_mut().zip(&x).for_each(|(extra, &x)| *extra = *extra + x);
            }
        }
    }
}
