//! The numbers of the bound that `prune` takes the inner products of, queries' and rows'.

use super::at;
use super::formulas::Product;
use crate::shapes::Inputs;
use crate::simd::{Float, Kernel, Lanes, Simd, V};
use crate::special::log::ln;
use std::f64::consts::LN_2;

/// What the numbers of queries and rows refer to, dimension by dimension.
pub struct Reference {
    /// Taken off all means.
    centre: Vec<f64>,
    /// By which they are multiplied then; a power of two.
    scale: Vec<f64>,
    /// r
    var: Vec<f64>,
}

impl Reference {
    /// From samples of the rows, and the queries.
    pub fn new<T: Float>(inputs: &Inputs<T>) -> Self {
        let (rows, dim) = (inputs.mu2.rows(), inputs.mu1.stored());
        // Some of the rows are enough: nothing here need be right, only near.
        let some = || (0..rows).step_by((rows / 1024).max(1));
        let mut room = Vec::new();
        let (mut sums, mut squares) = (vec![0.0; dim], vec![0.0; dim]);
        for j in some() {
            for (d, b) in inputs.mu2.row(j, &mut room).iter().enumerate() {
                sums[d] += b.to_f64();
                squares[d] += b.to_f64() * b.to_f64();
            }
        }
        let count = some().count().max(1) as f64;
        let rounded = |x: f64| T::from_f64(x).to_f64();
        let centre: Vec<f64> = sums.iter().map(|sum| rounded(sum / count)).collect();
        let scale = centre.iter().zip(&squares).map(|(centre, square)| {
            let power = (0.5 * (square / count - centre * centre).max(0.0).log2()).round();
            if power.abs() < 40.0 {
                2f64.powi(-power as i32)
            } else {
                1.0
            }
        });
        let mut logs = vec![0.0; dim];
        for i in 0..inputs.mu1.rows() {
            let row = inputs.extra1.row(i);
            for (d, log) in logs.iter_mut().enumerate() {
                *log += at(row, d).ln();
            }
        }
        let var = logs.iter().map(|log| (log / inputs.mu1.rows() as f64).exp());
        let var = var.map(|var| if var > 1e-30 && var < 1e30 { rounded(var) } else { 1.0 });
        Reference { scale: scale.collect(), var: var.collect(), centre }
    }
}

/// The least and greatest variances of the rows of a bucket; whether all are numbers >= 0.
pub struct Bounds {
    low: Vec<f64>,
    high: Vec<f64>,
    pub sound: bool,
}

impl Bounds {
    /// The least and greatest variances of rows, dimension by dimension.
    pub fn new<T: Float>(inputs: &Inputs<T>, rows: &[u32]) -> Self {
        let dim = inputs.mu1.stored();
        let (mut low, mut high) = (vec![T::from_f64(f64::INFINITY); dim], vec![T::from_f64(f64::NEG_INFINITY); dim]);
        let mut room = Vec::new();
        for &row in rows {
            let vars = inputs.extra2.row(row as usize, &mut room);
            if vars.len() == dim {
                for ((low, high), &w) in low.iter_mut().zip(&mut high).zip(vars) {
                    // Of a NaN these know nothing: a row that has one is never ruled out.
                    *low = if w < *low { w } else { *low };
                    *high = if w > *high { w } else { *high };
                }
            } else {
                low.iter_mut().for_each(|low| *low = if vars[0] < *low { vars[0] } else { *low });
                high.iter_mut().for_each(|high| *high = if vars[0] > *high { vars[0] } else { *high });
            }
        }
        let wide = |x: Vec<T>| x.into_iter().map(T::to_f64).collect::<Vec<_>>();
        let (low, high) = (wide(low), wide(high));
        let sound = low.iter().all(|&low| low >= 0.0) && high.iter().all(|&high| high < f64::INFINITY);
        Bounds { low, high, sound }
    }
}

/// A query's numbers, negated, for the means and variances of its row; their norm, and sum l.
pub fn numbers<T: Float>(reference: &Reference, bounds: &Bounds, mu: &[T], vars: &[T], out: &mut [T]) -> (f64, f64) {
    let (mut square, mut log, mut ratio) = (0.0, 0.0, 1.0_f64);
    for (d, (mean, out)) in mu.iter().zip(out.chunks_exact_mut(3)).enumerate() {
        let (v, r) = (at(vars, d), reference.var[d]);
        let (near, far) = if v > r { (bounds.low[d], bounds.high[d]) } else { (bounds.high[d], bounds.low[d]) };
        let a = (mean.to_f64() - reference.centre[d]) * reference.scale[d];
        let c = (r + near) / (v + near);
        ratio *= (v + far) / (r + far);
        // One logarithm for many, while their product is far from the ends of the range.
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

/// The numbers of the rows of two panels, as panels; sum log(r + w) and the norm of the others, row by row.
pub struct Numbers<'a, 'b, T> {
    pub inputs: &'a Inputs<'b, T>,
    pub reference: &'a Reference,
    pub rows: &'a [u32],
    pub out: &'a mut [T],
    pub logs: &'a mut [f64],
    pub norms: &'a mut [f64],
}
impl<T: Float> Kernel for Numbers<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (zero, one) = (V::<S, T>::splat(T::default()), V::<S, T>::splat(T::from_f64(1.0)));
        let mut rooms = [const { (Vec::new(), Vec::new()) }; 16];
        for panel in 0..2 {
            let mut rows: [(&[T], &[T]); 16] = [(&[], &[]); 16];
            // Places beyond the last row repeat it; nobody asks for them.
            for (lane, (row, room)) in rows.iter_mut().zip(&mut rooms).enumerate().take(T::LANES) {
                let j = self.rows[(panel * T::LANES + lane).min(self.rows.len() - 1)] as usize;
                *row = (self.inputs.mu2.row(j, &mut room.0), self.inputs.extra2.row(j, &mut room.1));
            }
            let (mut product, mut norm) = (Product { significand: one, exponent: zero }, zero);
            let mut square = ([[T::default(); 16]; 16], [[T::default(); 16]; 16]);
            for (d, out) in self.out.chunks_exact_mut(3 * 2 * T::LANES).enumerate() {
                if d % 16 == 0 {
                    for (lane, (mean, var)) in rows.iter().enumerate().take(T::LANES) {
                        let end = mean.len().min(d + 16);
                        square.0[lane][..end - d].copy_from_slice(&mean[d..end]);
                        if var.len() == 1 {
                            square.1[lane] = [var[0]; 16];
                        } else {
                            square.1[lane][..end - d].copy_from_slice(&var[d..end]);
                        }
                    }
                }
                let (mut means, mut vars) = ([T::default(); 16], [T::default(); 16]);
                for lane in 0..T::LANES {
                    (means[lane], vars[lane]) = (square.0[lane][d % 16], square.1[lane][d % 16]);
                }
                let splat = |x: f64| V::<S, T>::splat(T::from_f64(x));
                let scale = self.reference.scale[d];
                let b = (V::<S, T>::load(&means[..T::LANES]) - splat(self.reference.centre[d])) * splat(scale);
                let s = V::<S, T>::load(&vars[..T::LANES]) + splat(self.reference.var[d]);
                let weight = splat(1.0 / (scale * scale)) / s;
                let (linear, square) = (weight * b, weight * b * b);
                for (part, x) in [weight, linear, square].into_iter().enumerate() {
                    x.store(&mut out[(2 * part + panel) * T::LANES..(2 * part + panel + 1) * T::LANES]);
                    norm = x.mul_add(x, norm);
                }
                product.times(s);
            }
            let (exponents, significands, norm) =
                (product.exponent.to_array(), ln::<S, T>(product.significand).to_array(), norm.to_array());
            for lane in 0..T::LANES {
                let at = panel * T::LANES + lane;
                self.logs[at] = exponents[lane].to_f64() * LN_2 + significands[lane].to_f64();
                self.norms[at] = norm[lane].to_f64().sqrt();
            }
        }
    }
}
