//! Scores that are the MLS of other numbers, but for an offset of each item, `score = MLS(query', row') + offset(query) +
//! offset(row)`, so that the searches of MLS find the best of them. Means and variances are a, v of a query and b, w of a row.
//!
//! llr, with prior variances p: given the first item, the second one's mean is N(m, w + t) with m = p a / A, t = p v / A, A = p +
//! v; otherwise it is N(0, B) with B = p + w. So llr is log N(b; m, w + t) - log N(b; 0, B): the MLS of (m, t) and (b, w), plus
//! the row's offset `1/2 sum [ b^2 / B + log 2 pi B ]`.
//!
//! overlap, with powers alpha and beta: the MLS of (a, v / alpha) and (b, w / beta), plus the offsets `1/2 (1 - alpha) sum log v`
//! and `1/2 (1 - beta) sum log w`, and a constant, which is added to the query's offset.
//!
//! Minus the Mahalanobis distance, which has no logarithms, is twice the rational part of the MLS of the items themselves.
//!
//! Rounding, with unit roundoff u, E = sum a^2 / A + sum b^2 / B for llr (0 for others) and R the rational part of the MLS. What
//! llr's pair function sums is at most `M = sum p [ a^2 v / A + b^2 w / B + (a - b)^2 ] / det` in size, det = p (v + w) + v w,
//! and off by (D/8 + 40) u M; as `p a^2 v / (A det) <= a^2 / A`, and as llr's rational part is `sum b^2 / B - R`, M is at most 2
//! E + R. The mean m is rounded, which moves R by at most `2 u sum |b - m| |m| / s <= u (R + sum m^2 / s)`, s >= t + the least w.
//! The offsets are sums in lanes: off by (D/8 + 8) u of their rational part, by 2 D u in the product under the logarithm, and by
//! 4 u in the last steps.

use super::formulas::{Dimension, Formula};
use super::likelihoods::Mls;
use super::sums::OffsetSums;
use super::{at, rest, whole};
use crate::drivers::{Inputs, Side};
use crate::error::Error;
use crate::memory;
use crate::parallel;
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use std::ops::Range;

/// The offset of an item.
#[derive(Clone, Copy, Default)]
pub struct Offset {
    /// The offset; NaN where it is not known.
    pub value: f64,
    /// The sum of the sizes of its terms.
    pub size: f32,
    /// Half of the item's share of E.
    pub rational: f32,
}

/// The offsets of the gallery's rows; none where the score has no such offsets.
pub fn row_offsets<T: Float, F: Formula>(
    inputs: &Inputs<T>,
    formula: F,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<Offset>, Error> {
    let side = Side::Gallery;
    let mut all = memory::filled(Offset::default(), formula.offset_log_weight(side).map_or(0, |_| inputs.mu2.rows()));
    parallel::for_each(all.chunks_mut(1024).enumerate(), interrupted, |(part, out)| {
        dispatch(Sum { inputs, formula, side, rows: part * 1024..part * 1024 + out.len(), out });
    })?;
    Ok(all)
}

/// The MLS that a score is, but for offsets: what stands in it for a block of queries, and the offsets of queries and rows.
pub struct EquivalentMls<'a> {
    dim: usize,
    first: usize,
    /// The means of the queries in that MLS, [queries, D].
    means: Vec<f64>,
    /// The variances of the queries in that MLS, [queries, D].
    vars: Vec<f64>,
    /// The offsets of the queries.
    queries: Vec<Offset>,
    /// The offsets of all rows; empty where they have none.
    rows: &'a [Offset],
    /// Whether a mean differs from the query's own mean.
    pub moved: bool,
    /// The factor of the rows' variances.
    pub var_scale: f64,
}

impl<'a> EquivalentMls<'a> {
    /// The MLS for the queries `of`; `rows` are the offsets that [`row_offsets`] found.
    pub fn new<T: Float, F: Formula>(inputs: &Inputs<T>, formula: F, rows: &'a [Offset], of: Range<usize>) -> Self {
        let (first, dim, side) = (of.start, inputs.mu1.stored(), Side::Query);
        let (mut means, mut vars) = (memory::room(of.len() * dim), memory::room(of.len() * dim));
        let (mut queries, mut moved) = (vec![Offset::default(); of.len()], false);
        if formula.offset_log_weight(side).is_some() {
            dispatch(Sum { inputs, formula, side, rows: of.clone(), out: &mut queries });
        }
        for (i, offset) in of.zip(&mut queries) {
            let (mu, var, mut sizes) = (inputs.mu1.row(i), inputs.uncertainty1.row(i), 0.0);
            for d in 0..dim {
                let shared = if F::ROW { at(inputs.shared.row(0), d) } else { 0.0 };
                let x = Dimension { a: at(mu, d), v: at(var, d), b: 0.0, w: 0.0, shared };
                let (mean, var, size) =
                    if x.valid() { formula.query_of_mls(x) } else { (f64::NAN, f64::NAN, f64::NAN) };
                moved |= mean != x.a;
                means.push(mean);
                vars.push(var);
                sizes += size;
            }
            offset.value += if F::LOGS > 0 { dim as f64 * (formula.constant() - Mls.constant()) } else { 0.0 };
            offset.rational += 0.5 * sizes as f32;
        }
        EquivalentMls { dim, first, means, vars, queries, rows, moved, var_scale: formula.var_scale() }
    }

    /// The means and the variances of query `i`, counted among all queries.
    pub fn query(&self, i: usize) -> (&[f64], &[f64]) {
        let at = (i - self.first) * self.dim..(i - self.first + 1) * self.dim;
        (&self.means[at.clone()], &self.vars[at])
    }

    /// The variances of each of the block's queries.
    pub fn vars(&self) -> impl Iterator<Item = &[f64]> {
        self.vars.chunks_exact(self.dim)
    }

    /// The offset of query `i`, counted among all queries.
    pub fn query_offset(&self, i: usize) -> Offset {
        self.queries[i - self.first]
    }

    /// The offset of row `j`.
    pub fn row_offset(&self, j: usize) -> Offset {
        self.rows.get(j).copied().unwrap_or_default()
    }
}

/// Computes the offsets of some items of a side.
struct Sum<'a, 'b, T, F> {
    inputs: &'a Inputs<'b, T>,
    formula: F,
    side: Side,
    rows: Range<usize>,
    out: &'a mut [Offset],
}
impl<T: Float, F: Formula> Kernel for Sum<'_, '_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Inputs { mu1, uncertainty1: var1, mu2, uncertainty2: var2, shared } = self.inputs;
        let dim = mu1.stored();
        let weight = self.formula.offset_log_weight(self.side).unwrap_or(0.0);
        let (mut means, mut vars, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
        for (i, out) in self.rows.zip(self.out) {
            let (mean, var) = match self.side {
                Side::Query => (mu1.row(i), var1.row(i)),
                Side::Gallery => (mu2.row(i, &mut means), var2.row(i, &mut vars)),
            };
            let (var, shared) = (whole(var, dim, &mut repeated), if F::ROW { shared.row(0) } else { mean });
            let mut sums = OffsetSums::<V<S, T>>::new();
            for from in (0..dim).step_by(T::LANES) {
                // Padding adds nothing: means of 0, and a variance of 1 under the logarithm, with or without a shared 0.
                let (mean, shared) = (rest::<S, T>(mean, from, 0.0), rest::<S, T>(shared, from, 0.0));
                self.formula.add_offset::<S, T>(&mut sums, mean, rest::<S, T>(var, from, 1.0), shared);
            }
            let rational = 0.5 * sums.rational.sum().to_f64();
            let log = weight * sums.logs::<S, T>()[..T::LANES].iter().sum::<f64>();
            let value = if rational.is_finite() { rational + log } else { f64::NAN };
            *out = Offset { value, size: (rational + log.abs()) as f32, rational: rational as f32 };
        }
    }
}
