//! The Bessel family, elementwise: an order (or dimension) and x for each element.
//!
//! Everything is computed in float64 lanes and rounded once to the type of x; what depends on the order alone is made
//! once per run of equal orders. Formulas and error bounds: `special::bessel`.

use crate::simd::{dispatch, Float, Kernel, Lanes, Simd, V};
use crate::special::bessel::{self, Order};

/// A function of an order and x.
pub trait Quantity {
    /// What depends on the first argument alone.
    fn order(order: f64) -> Order;
    /// The value.
    fn value<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64>;
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $function:ident) => {
        $(#[$doc])*
        pub struct $name;
        impl Quantity for $name {
            fn order(order: f64) -> Order {
                Order::new(order)
            }
            #[inline(always)]
            fn value<S: Simd>(order: &Order, x: V<S, f64>) -> V<S, f64> {
                bessel::$function::<S>(order, x)
            }
        }
    };
}
quantity!(/** log(I_v(x) e^-x) */ LogIve, log_ive);
quantity!(/** its first derivative in x */ LogIveDx, log_ive_dx);
quantity!(/** its second derivative in x */ LogIveDxx, log_ive_dxx);
quantity!(/** I_v(x) / I_(v-1)(x) */ IvRatio, iv_ratio);
quantity!(/** its first derivative in x */ IvRatioDx, iv_ratio_dx);
quantity!(/** its second derivative in x */ IvRatioDxx, iv_ratio_dxx);
quantity!(/** 1 - (I_v(x) / I_(v-1)(x))^2 */ IvRatioComplement, iv_ratio_complement);

/// log C_dim(kappa) of von Mises-Fisher, with full constants; the first argument is the dimension. Its derivative in
/// kappa is -[`IvRatio`] of order dim/2.
pub struct VmfLogNorm;
impl Quantity for VmfLogNorm {
    fn order(dim: f64) -> Order {
        Order::new(0.5 * dim - 1.0)
    }
    #[inline(always)]
    fn value<S: Simd>(order: &Order, kappa: V<S, f64>) -> V<S, f64> {
        let uniform = V::<S, f64>::splat(order.log_norm_at_zero());
        let value = uniform - bessel::log_hyp0f1e::<S>(order, kappa) - kappa;
        // -inf at infinity, where the terms have opposite signs; NaN passes.
        kappa.if_less(V::<S, f64>::splat(f64::INFINITY), value, -kappa)
    }
}

/// `out[i] = Q(order[i], x[i])`, on the calling thread; `order` has one element for all, or as many as `x`.
pub fn fill<Q: Quantity, T: Float>(order: &[f64], x: &[T], out: &mut [T]) {
    assert!(x.len() == out.len() && (order.len() == 1 || order.len() == x.len()));
    let mut start = 0;
    for run in order.chunk_by(|a, b| a == b) {
        let end = if order.len() == 1 { x.len() } else { start + run.len() };
        let (x, out) = (&x[start..end], &mut out[start..end]);
        dispatch(Run::<Q, T> { order: &Q::order(run[0]), x, out, quantity: std::marker::PhantomData });
        start = end;
    }
}

/// Elements of one order.
struct Run<'a, Q, T> {
    order: &'a Order,
    x: &'a [T],
    out: &'a mut [T],
    quantity: std::marker::PhantomData<Q>,
}

impl<Q: Quantity, T: Float> Kernel for Run<'_, Q, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        for (x, out) in self.x.chunks(f64::LANES).zip(self.out.chunks_mut(f64::LANES)) {
            let mut lanes = [1.0; f64::LANES];
            for i in 0..x.len() {
                lanes[i] = x[i].to_f64();
            }
            Q::value::<S>(self.order, V::<S, f64>::load(&lanes)).store(&mut lanes);
            for i in 0..x.len() {
                out[i] = T::from_f64(lanes[i]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    quantity!(/** what vMF scores are made of */ LogHyp0f1e, log_hyp0f1e);

    /// Columns of tests/golden/bessel.csv; NaN where a field is empty.
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

        /// Holds Q against its column; `floor` gives the magnitude below which errors count as absolute.
        fn check<Q: Quantity>(&self, name: &str, tolerance: &str, floor: fn(v: f64, x: f64) -> f64) {
            let (v, x, want, tolerance) =
                (self.column("v"), self.column("x"), self.column(name), self.column(tolerance));
            let dims: Vec<f64> = v.iter().map(|v| 2.0 * v + 2.0).collect();
            let order = if name == "vmf_log_norm" { &dims } else { v };
            let mut got = vec![0.0; x.len()];
            fill::<Q, f64>(order, x, &mut got);
            for i in (0..x.len()).filter(|&i| !want[i].is_nan()) {
                let error = (got[i] - want[i]).abs() / want[i].abs().max(floor(v[i], x[i]));
                let case = format!("{name}({}, {:e}): got {:e}, expected {:e}", v[i], x[i], got[i], want[i]);
                assert!(error <= tolerance[i], "{case}, error {error:e}");
            }
            // float32 is the float64 result, rounded.
            let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            let widened: Vec<f64> = single.iter().map(|&x| x.into()).collect();
            let mut rounded = vec![0.0_f32; x.len()];
            fill::<Q, f32>(order, &single, &mut rounded);
            fill::<Q, f64>(order, &widened, &mut got);
            for i in 0..x.len() {
                assert!(rounded[i] == got[i] as f32 || got[i].is_nan() && rounded[i].is_nan());
            }
        }
    }

    #[test]
    fn golden_values() {
        let golden = Golden::read();
        assert!(golden.column("v").len() >= 2000);
        golden.check::<LogIve>("log_ive", "tol", |_, _| 1.0);
        golden.check::<LogHyp0f1e>("log_hyp0f1e", "tol", |_, _| 1.0);
        golden.check::<VmfLogNorm>("vmf_log_norm", "tol", |v, _| v.max(1.0));
        golden.check::<IvRatio>("iv_ratio", "tol", |_, _| 0.0);
        golden.check::<LogIveDx>("log_ive_dx", "tol", |_, x| x.recip().min(1.0));
        golden.check::<LogIveDxx>("log_ive_dxx", "tol_bend", |_, x| x.recip().powi(2).min(1.0));
        golden.check::<IvRatioDx>("iv_ratio_dx", "tol_bend", |_, _| 0.0);
        golden.check::<IvRatioDxx>("iv_ratio_dxx", "tol_bend", |_, _| 0.0);
    }

    fn one<Q: Quantity>(order: f64, x: f64) -> f64 {
        let mut out = [0.0];
        fill::<Q, f64>(&[order], &[x], &mut out);
        out[0]
    }

    #[test]
    fn limits_at_zero_and_infinity() {
        let inf = f64::INFINITY;
        for v in [0.0, 0.5, 1.0, 7.3, 63.0, 1e5] {
            for zero in [0.0, -0.0] {
                assert_eq!(one::<LogIve>(v, zero), if v == 0.0 { 0.0 } else { -inf });
                assert_eq!(one::<LogHyp0f1e>(v, zero), 0.0);
                assert_eq!(one::<LogIveDx>(v, zero).abs(), if v == 0.0 { 1.0 } else { inf });
                assert_eq!(one::<LogIveDxx>(v, zero), if v == 0.0 { 0.5 } else { -inf });
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
        // Surfaces of the circle and the sphere.
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
            // I_v(x) = (x/2)^v / Gamma(v + 1) here.
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
        fill::<LogIve, f64>(&order, &x, &mut out);
        for i in 0..100 {
            assert_eq!(out[i].to_bits(), one::<LogIve>(order[i], x[i]).to_bits());
        }
        fill::<LogIve, f64>(&[1.0], &[], &mut []);
    }
}
