//! The Bessel family: elementwise functions of an order (or dimension) and x. It includes the length of the mean direction of a
//! normal, a confluent hypergeometric function that is for normals what a ratio of Bessel functions is for von Mises-Fisher
//! distributions, and the logarithm of the normal distribution function, which has no order.
//!
//! float64, and orders that differ by element, are computed in float64 lanes and rounded once to the type of x. What depends on
//! the order alone is computed once per run of equal orders or, where runs are short, in lanes as well. `special::bessel` has
//! the formulas and error bounds.
//!
//! float32 of one order, as all uses of one von Mises-Fisher dimension have, is computed by a table: quadratics on 64 pieces per
//! octave of x in [2^-2, 2^24), fitted to the float64 function and cached for the orders in use. An element costs two
//! multiplications and three look-ups, an eighth of the formula; elements outside those octaves are computed by the formula.
//! Errors are below 2e-7 relative to max(1, |value|) (vmf_log_norm: max(1, order, |value|)), mostly from the rounding of the
//! coefficients and of the result.

use crate::error::Error;
use crate::memory;
use crate::parallel;
use crate::rows::convert;
use crate::simd::{dispatch, Float, Kernel, Simd, V};
use crate::special::bessel::{self, LaneOrders, Order};
use std::marker::PhantomData;

mod functions;
mod table;

use functions::Tabulated;
pub use functions::{find, Computed, Function, Quantity};
use table::{ByTable, Table};

/// Elements in a part of the work.
const CHUNK: usize = 8192;

/// Computes `out[i] = Q(order[i], x[i])`; `order` has one element for all of `x`, or as many as `x`.
pub fn elementwise<Q: Quantity, T: Float>(
    order: &[f64],
    x: &[T],
    out: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    assert!(x.len() == out.len() && (order.len() == 1 || order.len() == x.len()));
    let parts = x.chunks(CHUNK).zip(out.chunks_mut(CHUNK)).enumerate();
    parallel::for_each(parts, interrupted, |(part, (x, out))| {
        let orders = if order.len() == 1 { order } else { &order[part * CHUNK..part * CHUNK + x.len()] };
        by_formula::<Q, T>(orders, x, out);
    })
}

/// [`elementwise`] in float32. Where the function has a table, one order is computed by it, and several are by the formula in
/// float64, so that it is not compiled for float32 as well.
pub fn elementwise_f32<Q: Quantity>(
    order: &[f64],
    x: &[f32],
    out: &mut [f32],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    if Q::TABLE == Tabulated::No {
        return elementwise::<Q, f32>(order, x, out, interrupted);
    }
    if order.len() != 1 {
        let (mut wide, mut values) = (memory::filled(0.0, x.len()), memory::filled(0.0, x.len()));
        convert(x, &mut wide);
        elementwise::<Q, f64>(order, &wide, &mut values, interrupted)?;
        convert(&values, out);
        return Ok(());
    }
    assert!(x.len() == out.len());
    let table = Table::of::<Q>(order[0]);
    parallel::for_each(x.chunks(CHUNK).zip(out.chunks_mut(CHUNK)), interrupted, |(x, out)| {
        let order = Order::new(Q::order(order[0]));
        dispatch(ByTable::<Q> { table: &table, order: &order, x, out, quantity: PhantomData });
    })
}

/// Computes elements by the formula, on the calling thread; `order` has one element for all of `x`, or as many as `x`.
fn by_formula<Q: Quantity, T: Float>(order: &[f64], x: &[T], out: &mut [T]) {
    let runs = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if runs * SHORT > order.len() {
        return dispatch(ByLanes::<Q, T> { order, x, out, quantity: PhantomData });
    }
    let mut start = 0;
    for run in order.chunk_by(|a, b| a == b) {
        let end = if order.len() == 1 { x.len() } else { start + run.len() };
        let (x, out) = (&x[start..end], &mut out[start..end]);
        dispatch(ByFormula::<Q, T> { order: &Order::new(Q::order(run[0])), x, out, quantity: PhantomData });
        start = end;
    }
}

/// The least mean number of elements in a run of equal orders for which it pays to compute an [`Order`].
const SHORT: usize = 16;

/// Computes elements that have an order each, lane by lane; a vector holds elements whose orders lie on the same piece.
struct ByLanes<'a, Q, T> {
    order: &'a [f64],
    x: &'a [T],
    out: &'a mut [T],
    quantity: PhantomData<Q>,
}

impl<Q: Quantity, T: Float> Kernel for ByLanes<'_, Q, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut places = [const { Vec::new() }; bessel::ORDER_PIECES];
        for (i, &order) in self.order.iter().enumerate() {
            places[bessel::piece(Q::order(order))].push(i);
        }
        let mut made = LaneOrders::none();
        for (piece, places) in places.iter().enumerate() {
            for places in places.chunks(f64::LANES) {
                let (mut orders, mut lanes) = ([Q::order(self.order[places[0]]); f64::LANES], [1.0; f64::LANES]);
                for (lane, &i) in places.iter().enumerate() {
                    (orders[lane], lanes[lane]) = (Q::order(self.order[i]), self.x[i].to_f64());
                }
                made.set(&orders, piece, Q::SERIES);
                for lane in (0..f64::LANES).step_by(V::<S, f64>::LANES) {
                    let lanes = &mut lanes[lane..];
                    Q::value::<S>(&made.from(lane), V::<S, f64>::load(lanes)).store(lanes);
                }
                for (&i, lane) in places.iter().zip(lanes) {
                    self.out[i] = T::from_f64(lane);
                }
            }
        }
    }
}

/// Computes elements of one order by the formula.
struct ByFormula<'a, Q, T> {
    order: &'a Order,
    x: &'a [T],
    out: &'a mut [T],
    quantity: PhantomData<Q>,
}

impl<Q: Quantity, T: Float> Kernel for ByFormula<'_, Q, T> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = V::<S, f64>::LANES;
        let whole = self.x.len() / width * width;
        let ((x, x_rest), (out, out_rest)) = (self.x.split_at(whole), self.out.split_at_mut(whole));
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mut lanes = [0.0; f64::LANES];
            for (lane, x) in lanes.iter_mut().zip(x) {
                *lane = x.to_f64();
            }
            Q::value::<S>(self.order, V::<S, f64>::load(&lanes)).store(&mut lanes);
            for (out, lane) in out.iter_mut().zip(lanes) {
                *out = T::from_f64(lane);
            }
        }
        if !x_rest.is_empty() {
            // Filled up to a whole vector, and by a call of this function: a formula is long, so it stands in the code once.
            let (mut x, mut values) = ([T::from_f64(1.0); f64::LANES], [T::default(); f64::LANES]);
            x[..x_rest.len()].copy_from_slice(x_rest);
            S::call(ByFormula::<Q, T> { order: self.order, x: &x, out: &mut values, quantity: PhantomData });
            out_rest.copy_from_slice(&values[..out_rest.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::functions::*;
    use super::*;
    use crate::special::bessel::AnyOrder;

    quantity!(/** what vMF scores are made of */ LogHyp0f1e, log_hyp0f1e, series: 1, table: No);

    /// The columns of tests/golden/bessel.csv; NaN where a field is empty.
    struct Golden {
        names: Vec<String>,
        columns: Vec<Vec<f64>>,
    }

    impl Golden {
        fn read() -> Self {
            let text =
                std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/bessel.csv")).unwrap();
            let mut lines = text.lines();
            let names: Vec<String> = lines.next().unwrap().split(',').map(String::from).collect();
            let mut columns = vec![Vec::new(); names.len()];
            for line in lines {
                for (column, field) in columns.iter_mut().zip(line.split(',')) {
                    column.push(if field.is_empty() { f64::NAN } else { field.parse().unwrap() });
                }
            }
            Golden { names, columns }
        }

        fn column(&self, name: &str) -> &[f64] {
            &self.columns[self.names.iter().position(|n| n == name).unwrap()]
        }

        /// Compares Q with its column; `floor` gives the magnitude below which errors count as absolute.
        fn check<Q: Quantity>(&self, name: &str, tolerance: &str, floor: fn(v: f64, x: f64) -> f64) {
            let (v, x, want, tolerance) =
                (self.column("v"), self.column("x"), self.column(name), self.column(tolerance));
            let dims: Vec<f64> = v.iter().map(|v| 2.0 * v + 2.0).collect();
            let order = if name == "vmf_log_norm" { &dims } else { v };
            let mut got = vec![0.0; x.len()];
            by_formula::<Q, f64>(order, x, &mut got);
            for i in (0..x.len()).filter(|&i| !want[i].is_nan()) {
                let error = (got[i] - want[i]).abs() / want[i].abs().max(floor(v[i], x[i]));
                let case = format!("{name}({}, {:e}): got {:e}, expected {:e}", v[i], x[i], got[i], want[i]);
                assert!(error <= tolerance[i], "{case}, error {error:e}");
            }
            // The float32 result is the float64 result, rounded.
            let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            let widened: Vec<f64> = single.iter().map(|&x| x.into()).collect();
            let mut rounded = vec![0.0_f32; x.len()];
            by_formula::<Q, f32>(order, &single, &mut rounded);
            by_formula::<Q, f64>(order, &widened, &mut got);
            for i in 0..x.len() {
                assert!(rounded[i] == got[i] as f32 || got[i].is_nan() && rounded[i].is_nan());
            }
        }
    }

    #[test]
    fn golden_values() {
        let golden = Golden::read();
        assert!(golden.column("v").len() >= 5000);
        golden.check::<LogIve>("log_ive", "tol", |_, _| 1.0);
        golden.check::<LogHyp0f1e>("log_hyp0f1e", "tol_rest", |_, _| 1.0);
        golden.check::<VmfLogNorm>("vmf_log_norm", "tol_rest", |v, _| v.max(1.0));
        golden.check::<IvRatio>("iv_ratio", "tol_ratio", |_, _| 0.0);
        golden.check::<LogIveDx>("log_ive_dx", "tol_rest", |_, x| x.recip().min(1.0));
        golden.check::<LogIveDxx>("log_ive_dxx", "tol_bend", |_, x| x.recip().powi(2).min(1.0));
        golden.check::<IvRatioDx>("iv_ratio_dx", "tol_bend", |_, _| 0.0);
        golden.check::<IvRatioDxx>("iv_ratio_dxx", "tol_bend", |_, _| 0.0);
    }

    fn one<Q: Quantity>(order: f64, x: f64) -> f64 {
        let mut out = [0.0];
        by_formula::<Q, f64>(&[order], &[x], &mut out);
        out[0]
    }

    #[test]
    fn limits_at_zero_and_infinity() {
        let inf = f64::INFINITY;
        for v in [0.0, 0.5, 1.0, 7.3, 63.0, 1e5] {
            for zero in [0.0, -0.0] {
                assert_eq!(one::<LogIve>(v, zero), if v == 0.0 { 0.0 } else { -inf });
                assert_eq!(one::<LogHyp0f1e>(v, zero), 0.0);
                let slope = one::<LogIveDx>(v, zero).abs();
                assert!(if v == 0.0 { (slope - 1.0).abs() < 1e-14 } else { slope == inf });
                let bend = one::<LogIveDxx>(v, zero);
                assert!(if v == 0.0 { (bend - 0.5).abs() < 1e-14 } else { bend == -inf });
            }
            assert_eq!(one::<LogIve>(v, inf), -inf);
            assert_eq!(one::<LogHyp0f1e>(v, inf), -inf);
            assert_eq!(one::<LogIveDx>(v, inf), 0.0);
            assert_eq!(one::<LogIveDxx>(v, inf), 0.0);
            assert_eq!(one::<VmfLogNorm>(2.0 * v + 2.0, inf), -inf);
            if v >= 1.0 {
                assert_eq!([one::<IvRatio>(v, 0.0), one::<IvRatio>(v, inf)], [0.0, 1.0]);
                assert!((one::<IvRatioDx>(v, 0.0) * 2.0 * v - 1.0).abs() < 1e-15);
                assert_eq!([one::<IvRatioDx>(v, inf), one::<IvRatioDxx>(v, 0.0), one::<IvRatioDxx>(v, inf)], [0.0; 3]);
            }
        }
        // At kappa 0 the density is 1 by the length of the circle, or by the area of the sphere.
        let pi = std::f64::consts::PI;
        assert!((one::<VmfLogNorm>(2.0, 0.0) + (2.0 * pi).ln()).abs() < 1e-14);
        assert!((one::<VmfLogNorm>(3.0, 0.0) + (4.0 * pi).ln()).abs() < 1e-14);
    }

    #[test]
    fn outside_the_domain_is_nan() {
        for (v, x) in [(2.0, -1e-320), (2.0, -3.0), (2.0, f64::NEG_INFINITY), (2.0, f64::NAN)] {
            assert!([one::<LogIve>(v, x), one::<LogIveDx>(v, x), one::<LogIveDxx>(v, x)].iter().all(|y| y.is_nan()));
            assert!([one::<IvRatio>(v, x), one::<IvRatioDx>(v, x), one::<IvRatioDxx>(v, x)].iter().all(|y| y.is_nan()));
            assert!(one::<VmfLogNorm>(v, x).is_nan() && one::<LogHyp0f1e>(v, x).is_nan());
        }
        for x in [0.0, 1.0, 1e300] {
            for v in [-1e-300, -2.0, f64::NEG_INFINITY, f64::INFINITY, f64::NAN] {
                assert!([one::<LogIve>(v, x), one::<LogIveDx>(v, x), one::<LogIveDxx>(v, x)]
                    .iter()
                    .all(|y| y.is_nan()));
                assert!(one::<IvRatio>(v, x).is_nan() && one::<VmfLogNorm>(v, x).is_nan());
            }
            assert!(one::<IvRatio>(0.5, x).is_nan() && one::<VmfLogNorm>(1.0, x).is_nan());
        }
    }

    #[test]
    fn tiny_and_huge_arguments() {
        for x in [5e-324, 1e-310, f64::MIN_POSITIVE] {
            // At such x, I_v(x) = (x/2)^v / Gamma(v + 1).
            let want = 2.0 * ((x * 2_f64.powi(60)).ln() - 61.0 * std::f64::consts::LN_2) - 2_f64.ln();
            assert!((one::<LogIve>(2.0, x) / want - 1.0).abs() < 1e-14);
            assert!(one::<LogIve>(0.0, x).abs() < 1e-14);
            assert!((one::<IvRatio>(2.0, x) - x / 4.0).abs() <= 5e-324);
        }
        for x in [1e154, 1e200, f64::MAX] {
            let want = -0.5 * (x.ln() + (2.0 * std::f64::consts::PI).ln());
            for v in [0.0, 63.0, 1e5] {
                assert!((one::<LogIve>(v, x) / want - 1.0).abs() < 1e-15);
            }
            assert_eq!(one::<IvRatio>(63.0, x), 1.0);
        }
    }

    #[test]
    fn orders_may_change_by_element() {
        let order: Vec<f64> = (0..100).map(|i| f64::from(i / 11) * 7.5).collect();
        let x: Vec<f64> = (0..100).map(|i| f64::from(i) * 1.5).collect();
        let mut out = vec![0.0; 100];
        by_formula::<LogIve, f64>(&order, &x, &mut out);
        for i in 0..100 {
            assert_eq!(out[i].to_bits(), one::<LogIve>(order[i], x[i]).to_bits());
        }
        by_formula::<LogIve, f64>(&[1.0], &[], &mut []);
    }
}
