//! Scores that are the MLS of other numbers: `score = MLS(query', row') + a number of the query + a number of the row`, so that
//! the searches of MLS find the best of them.
//!
//! llr: given the first item, the second one's mean is N(m, w + t) with m = p a / A, t = p v / A, A = p + v. So llr is
//! log N(b; m, w + t) - log N(b; 0, p + w): MLS of (m, t) and (b, w), plus `1/2 sum [ b^2 / B + log 2 pi B ]`, B = p + w.
//!
//! overlap: MLS of (a, v / alpha) and (b, w / beta), plus `1/2 (1 - alpha) sum log v` and `1/2 (1 - beta) sum log w`.
//!
//! Rounding, with unit roundoff u, E = sum a^2 / A + sum b^2 / B for llr (0 for others) and R the rational part of the MLS. What
//! llr's pair function sums is at most `M = sum p [ a^2 v / A + b^2 w / B + (a - b)^2 ] / det` in size, off by (D/8 + 40) u M; as
//! `p a^2 v / (A det) <= a^2 / A`, and as llr's rational part is `sum b^2 / B - R`, M is at most 2 E + R. The mean m is rounded, which moves R by at
//! most `2 u sum |b - m| |m| / s <= u (R + sum m^2 / s)`, s >= t + the least w. The numbers of the items are sums in lanes: off
//! by (D/8 + 8) u of their rational part, 2 D u by the product under the logarithm, 4 u by the last steps.

use super::formulas::{Dimension, Formula, Mls, Product};
use super::{at, rest, whole};
use crate::error::Error;
use crate::parallel;
use crate::shapes::{Inputs, Side};
use crate::simd::{dispatch, Float, Kernel, Lanes, Simd, V};
use crate::special::log::ln;
use std::f64::consts::LN_2;
use std::ops::Range;

/// What an item adds to the MLS.
#[derive(Clone, Copy, Default)]
pub struct Own {
    /// NaN where it is not known.
    pub value: f64,
    /// The sum of the sizes of its terms.
    pub size: f64,
    /// Half of what E has of the item.
    pub rational: f64,
}

/// Running sums of what items add, over dimensions.
pub struct OwnSums<X> {
    /// A half of its sum counts.
    pub rational: X,
    /// What stands under a logarithm, [`Formula::own_log`] of which counts.
    pub product: Product<X>,
    /// The least and the greatest factor.
    pub range: (X, X),
}

impl<X> OwnSums<X> {
    /// Nothing yet.
    #[inline(always)]
    pub fn new<T: Float>() -> Self
    where
        X: Lanes<T>,
    {
        let (zero, one) = (X::splat(T::default()), X::splat(T::from_f64(1.0)));
        OwnSums { rational: zero, product: Product { significand: one, exponent: zero }, range: (one, one) }
    }

    /// A factor of what stands under the logarithm.
    #[inline(always)]
    pub fn times<T: Float>(&mut self, x: X)
    where
        X: Lanes<T>,
    {
        self.product.times(x);
        self.range = (x.min(self.range.0), x.max(self.range.1));
    }

    /// The logarithm, lane by lane; NaN where a factor is out of range.
    #[inline(always)]
    pub fn logs<S: Simd, T: Float<Lanes<S> = X>>(&self) -> [f64; 16]
    where
        X: Lanes<T>,
    {
        // A product of a number in this range and one in [1, 2) is neither subnormal nor infinite.
        let (least, greatest) = (T::QUARTER_RANGE.powi(-3), T::QUARTER_RANGE.powi(3));
        let (low, high) = (self.range.0.to_array(), self.range.1.to_array());
        let (exponent, log) = (self.product.exponent.to_array(), ln::<S, T>(self.product.significand).to_array());
        std::array::from_fn(|lane| {
            let known = low[lane].to_f64() >= least && high[lane].to_f64() <= greatest;
            let log = exponent[lane].to_f64() * LN_2 + log[lane].to_f64();
            if known {
                log
            } else {
                f64::NAN
            }
        })
    }
}

/// The numbers of the MLS that a score is.
pub struct AsMls {
    dim: usize,
    /// The means and the variances of the queries, [Q, D].
    means: Vec<f64>,
    vars: Vec<f64>,
    /// What the queries add, and the rows; none where these add nothing.
    queries: Vec<Own>,
    rows: Vec<Own>,
    /// Whether the queries' means are other numbers than they were.
    pub moved: bool,
    /// By which the rows' variances are multiplied.
    pub var_scale: f64,
}

impl AsMls {
    pub fn new<T: Float, F: Formula>(
        inputs: &Inputs<T>,
        formula: F,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, Error> {
        let (queries, dim) = (inputs.mu1.rows(), inputs.mu1.stored());
        let (mut means, mut vars) = (Vec::with_capacity(queries * dim), Vec::with_capacity(queries * dim));
        let mut of_queries = vec![0.0; queries];
        for (i, rational) in of_queries.iter_mut().enumerate() {
            let (mu, var) = (inputs.mu1.row(i), inputs.extra1.row(i));
            for d in 0..dim {
                let shared = if F::ROW { at(inputs.shared.row(0), d) } else { 0.0 };
                let x = Dimension { a: at(mu, d), v: at(var, d), b: 0.0, w: 0.0, shared };
                let (mean, var, size) =
                    if x.valid() { formula.query_of_mls(x) } else { (f64::NAN, f64::NAN, f64::NAN) };
                means.push(mean);
                vars.push(var);
                *rational += 0.5 * size;
            }
        }
        let constant = dim as f64 * (formula.constant() - Mls.constant());
        let mut all =
            AsMls { dim, means, vars, queries: vec![], rows: vec![], moved: F::ROW, var_scale: formula.var_scale() };
        for (side, rows) in [(Side::Query, queries), (Side::Gallery, inputs.mu2.rows())] {
            let mut own = vec![Own::default(); formula.own_log(side).map_or(0, |_| rows)];
            let parts = own.chunks_mut(1024).enumerate().collect();
            parallel::for_each(parts, interrupted, |(part, out): (usize, &mut [Own])| {
                dispatch(Sum { inputs, formula, side, rows: part * 1024..part * 1024 + out.len(), out });
            })?;
            match side {
                Side::Query => all.queries = own,
                Side::Gallery => all.rows = own,
            }
        }
        all.queries.resize(queries, Own::default());
        for (own, rational) in all.queries.iter_mut().zip(of_queries) {
            own.value += constant;
            own.rational += rational;
        }
        Ok(all)
    }

    /// The mean and the variances of a query.
    pub fn query(&self, i: usize) -> (&[f64], &[f64]) {
        let at = i * self.dim..(i + 1) * self.dim;
        (&self.means[at.clone()], &self.vars[at])
    }

    /// What a query adds.
    pub fn of_query(&self, i: usize) -> Own {
        self.queries[i]
    }

    /// What a row adds.
    pub fn of_row(&self, j: usize) -> Own {
        self.rows.get(j).copied().unwrap_or_default()
    }
}

/// What some items of a side add.
struct Sum<'a, 'b, T, F> {
    inputs: &'a Inputs<'b, T>,
    formula: F,
    side: Side,
    rows: Range<usize>,
    out: &'a mut [Own],
}
impl<T: Float, F: Formula> Kernel for Sum<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Inputs { mu1, extra1, mu2, extra2, shared } = self.inputs;
        let dim = mu1.stored();
        let weight = self.formula.own_log(self.side).unwrap_or(0.0);
        let (mut means, mut vars, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
        for (i, out) in self.rows.zip(self.out) {
            let (mean, var) = match self.side {
                Side::Query => (mu1.row(i), extra1.row(i)),
                Side::Gallery => (mu2.row(i, &mut means), extra2.row(i, &mut vars)),
            };
            let (var, shared) = (whole(var, dim, &mut repeated), if F::ROW { shared.row(0) } else { mean });
            let mut sums = OwnSums::<V<S, T>>::new::<T>();
            for from in (0..dim).step_by(T::LANES) {
                // Beyond the end stands what adds nothing: means of 0 and, summed or not, 1 under the logarithm.
                let (mean, shared) = (rest::<S, T>(mean, from, 0.0), rest::<S, T>(shared, from, 0.0));
                self.formula.add_own::<S, T>(&mut sums, mean, rest::<S, T>(var, from, 1.0), shared);
            }
            let rational = 0.5 * sums.rational.sum().to_f64();
            let log = weight * sums.logs::<S, T>()[..T::LANES].iter().sum::<f64>();
            let value = if rational.is_finite() { rational + log } else { f64::NAN };
            *out = Own { value, size: rational + log.abs(), rational };
        }
    }
}
