//! The features of queries and rows whose inner products `prune` takes as bounds.

use super::mls::EquivalentMls;
use super::sieve::{column, PanelRows, Widened};
use super::sums::Product;
use crate::drivers::{Inputs, AHEAD};
use crate::simd::{prefetch, Float, Kernel, Simd, V};
use crate::special::log::ln;
use std::f64::consts::LN_2;

/// How means are shifted and scaled, dimension by dimension.
pub struct Frame {
    /// The row that is subtracted from all means.
    pub centre: Vec<f64>,
    /// The factors after that, powers of two.
    pub scale: Vec<f64>,
}

impl Frame {
    /// A frame from a sample of the rows. Bounds hold for any frame; one that is near the data keeps their rounding errors small.
    pub fn new<T: Float>(inputs: &Inputs<T>) -> Self {
        let (rows, dim) = (inputs.mu2.rows(), inputs.mu1.stored());
        let some = || (0..rows).step_by((rows / 1024).max(1));
        let mut buffer = Vec::new();
        let (mut sums, mut squares) = (vec![0.0; dim], vec![0.0; dim]);
        for j in some() {
            for (d, b) in inputs.mu2.row(j, &mut buffer).iter().enumerate() {
                sums[d] += b.to_f64();
                squares[d] += b.to_f64() * b.to_f64();
            }
        }
        let count = some().count().max(1) as f64;
        let centre: Vec<f64> = sums.iter().map(|sum| rounded::<T>(sum / count)).collect();
        let scale = centre.iter().zip(&squares).map(|(centre, square)| {
            let power = (0.5 * (square / count - centre * centre).max(0.0).log2()).round();
            if power.abs() < 40.0 {
                2f64.powi(-power as i32)
            } else {
                1.0
            }
        });
        Frame { scale: scale.collect(), centre }
    }
}

fn rounded<T: Float>(x: f64) -> f64 {
    T::from_f64(x).to_f64()
}

/// The reference of the features of queries and rows.
pub struct Reference {
    frame: Frame,
    /// The variances r, one per dimension.
    var: Vec<f64>,
}

impl Reference {
    /// A reference from a sample of the rows and from the queries of the block.
    pub fn new<T: Float>(inputs: &Inputs<T>, mls: &EquivalentMls) -> Self {
        let mut logs = vec![0.0; inputs.mu1.stored()];
        let mut count = 0.0_f64;
        for vars in mls.vars() {
            logs.iter_mut().zip(vars).for_each(|(log, var)| *log += var.ln());
            count += 1.0;
        }
        let var = logs.iter().map(|log| (log / count).exp());
        let var = var.map(|var| if var > 1e-30 && var < 1e30 { rounded::<T>(var) } else { 1.0 });
        Reference { frame: Frame::new(inputs), var: var.collect() }
    }
}

/// The least and greatest variances of the rows of a bucket, and whether all are numbers >= 0.
pub struct Bounds {
    low: Vec<f64>,
    high: Vec<f64>,
    pub sound: bool,
}

impl Bounds {
    /// The least and greatest variances of `rows`, dimension by dimension.
    pub fn new<T: Float>(inputs: &Inputs<T>, mls: &EquivalentMls, rows: &[u32]) -> Self {
        let dim = inputs.mu1.stored();
        let (mut low, mut high) = (vec![T::from_f64(f64::INFINITY); dim], vec![T::from_f64(f64::NEG_INFINITY); dim]);
        let mut buffer = Vec::new();
        for (place, &row) in rows.iter().enumerate() {
            if let Some(&next) = rows.get(place + AHEAD) {
                prefetch(inputs.uncertainty2.bytes(next as usize));
            }
            let vars = inputs.uncertainty2.row(row as usize, &mut buffer);
            if vars.len() == dim {
                for ((low, high), &w) in low.iter_mut().zip(&mut high).zip(vars) {
                    // NaN is left out: a row that has one is never ruled out.
                    *low = if w < *low { w } else { *low };
                    *high = if w > *high { w } else { *high };
                }
            } else {
                low.iter_mut().for_each(|low| *low = if vars[0] < *low { vars[0] } else { *low });
                high.iter_mut().for_each(|high| *high = if vars[0] > *high { vars[0] } else { *high });
            }
        }
        let wide = |x: Vec<T>| x.into_iter().map(|x| x.to_f64() * mls.var_scale).collect::<Vec<_>>();
        let (low, high) = (wide(low), wide(high));
        let sound = low.iter().all(|&low| low >= 0.0) && high.iter().all(|&high| high < f64::INFINITY);
        Bounds { low, high, sound }
    }
}

/// Writes the negated features of a query with these means and variances; returns their norm, and sum l.
pub fn query_features<T: Float>(
    reference: &Reference,
    bounds: &Bounds,
    (means, vars): (&[f64], &[f64]),
    out: &mut [T],
) -> (f64, f64) {
    let (mut square, mut log, mut ratio) = (0.0, 0.0, 1.0_f64);
    for (d, ((mean, &v), out)) in means.iter().zip(vars).zip(out.chunks_exact_mut(3)).enumerate() {
        let r = reference.var[d];
        let (near, far) = if v > r { (bounds.low[d], bounds.high[d]) } else { (bounds.high[d], bounds.low[d]) };
        let a = (mean - reference.frame.centre[d]) * reference.frame.scale[d];
        let c = (r + near) / (v + near);
        ratio *= (v + far) / (r + far);
        // One logarithm for many ratios, while their product is far from the ends of the range.
        if !(1e-100..1e100).contains(&ratio) {
            log += ratio.ln();
            ratio = 1.0;
        }
        for (out, x) in out.iter_mut().zip([-c * a * a, 2.0 * c * a, -c]) {
            *out = T::from_f64(x);
            square += x * x;
        }
    }
    (square.sqrt(), log + ratio.ln())
}

/// Writes the features of the rows of one panel, the first or the second of a pair of panels; for each row also sum log(r + w)
/// and the norm of the features.
pub struct RowFeatures<'a, 'b, T> {
    pub inputs: &'a Inputs<'b, T>,
    pub mls: &'a EquivalentMls<'a>,
    pub reference: &'a Reference,
    pub rows: &'a [u32],
    pub place: usize,
    pub pair: &'a mut [T],
    pub logs: &'a mut [f64],
    pub norms: &'a mut [f64],
}
impl<T: Float> Kernel for RowFeatures<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (Reference { frame, var: reference }, pair) = (self.reference, self.pair);
        let (zero, one) = (V::<S, T>::from(0.0), V::<S, T>::from(1.0));
        let (mut product, mut norm) = (Product { significand: one, exponent: zero }, zero);
        let (mut widened, mut columns) = (Widened::<T>::default(), [[T::default(); 256]; 2]);
        let rows = PanelRows::new(self.inputs, self.rows, &mut widened);
        for first in (0..frame.scale.len()).step_by(T::LANES) {
            for d in rows.columns::<S>(first, &mut columns) {
                let ([mean, var], scale) = (column::<S, T>(&columns, d - first), frame.scale[d]);
                let b = (mean - frame.centre[d]) * scale;
                let s = var.mul_add(self.mls.var_scale, reference[d]);
                let weight = 1.0 / (scale * scale) / s;
                for (part, x) in [weight, weight * b, weight * b * b].into_iter().enumerate() {
                    let at = 2 * (3 * d + part) + self.place;
                    x.store(&mut pair[at * T::LANES..(at + 1) * T::LANES]);
                    norm = x.mul_add(x, norm);
                }
                product.times(s);
            }
        }
        let (exponents, significands, norm) =
            (product.exponent.to_array(), ln::<S, T>(product.significand).to_array(), norm.to_array());
        for lane in 0..T::LANES {
            self.logs[lane] = exponents[lane].to_f64() * LN_2 + significands[lane].to_f64();
            self.norms[lane] = norm[lane].to_f64().sqrt();
        }
    }
}
