//! The functions of the family, and the table of what others must know of them.

use super::{elementwise, elementwise_f32};
use crate::error::Error;
use crate::simd::{Float, Simd, V};
use crate::special::bessel::{self, AnyOrder};
use crate::special::{direction, ndtr};

/// A function of an order and x, computed in lanes.
pub trait Quantity: 'static {
    /// Whether quadratics on the pieces of a table keep the function's accuracy, and what they are fitted to.
    const TABLE: Tabulated;
    /// How many of an order's four series the function needs: one more than the derivatives of the remainder that it takes.
    const SERIES: usize;
    /// The order of the Bessel functions, from the function's first argument (order or dimension).
    fn order(argument: f64) -> f64;
    /// The values of the function at x.
    fn value<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64>;
}

/// The contents of the table of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tabulated {
    /// The function has no table.
    No,
    /// The function itself, which behaves like a power of x between x^-1 and x^2.
    Value,
    /// The function times x^2; the function behaves like a power of x between x^-3 and x.
    TimesSquare,
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $function:ident, series: $series:expr, table: $table:ident) => {
        $(#[$doc])*
        pub struct $name;
        impl Quantity for $name {
            const TABLE: Tabulated = Tabulated::$table;
            const SERIES: usize = $series;
            fn order(order: f64) -> f64 {
                order
            }
            #[inline(always)]
            fn value<S: Simd>(order: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
                bessel::$function::<S>(order, x)
            }
        }
    };
}
quantity!(/** log(I_v(x) e^-x). */ LogIve, log_ive, series: 1, table: Value);
quantity!(/** The first derivative of [`LogIve`] in x. */ LogIveDx, log_ive_dx, series: 2, table: TimesSquare);
quantity!(/** The second derivative of [`LogIve`] in x. */ LogIveDxx, log_ive_dxx, series: 3, table: TimesSquare);
quantity!(/** I_v(x) / I_(v-1)(x). */ IvRatio, iv_ratio, series: 2, table: Value);
quantity!(/** The first derivative of [`IvRatio`] in x. */ IvRatioDx, iv_ratio_dx, series: 3, table: TimesSquare);
quantity!(/** The second derivative of [`IvRatio`] in x. */ IvRatioDxx, iv_ratio_dxx, series: 4, table: TimesSquare);
quantity!(/** 1 - (I_v(x) / I_(v-1)(x))^2. */ IvRatioComplement, iv_ratio_complement, series: 3, table: Value);

/// log C_dim(kappa) of von Mises-Fisher, with full constants; the first argument is the dimension.
pub struct VmfLogNorm;
impl Quantity for VmfLogNorm {
    const TABLE: Tabulated = Tabulated::Value;
    const SERIES: usize = 1;
    fn order(dim: f64) -> f64 {
        0.5 * dim - 1.0
    }
    #[inline(always)]
    fn value<S: Simd>(order: &impl AnyOrder<S>, kappa: V<S, f64>) -> V<S, f64> {
        let value = order.log_norm_at_zero() - bessel::log_hyp0f1e::<S>(order, kappa) - kappa;
        // At infinity, where the terms are infinite with opposite signs, the value is -infinity. A NaN passes.
        kappa.if_less(f64::INFINITY, value, -kappa)
    }
}

/// The derivative of [`VmfLogNorm`] in kappa: -[`IvRatio`] of order dim/2.
pub struct VmfLogNormDx;
impl Quantity for VmfLogNormDx {
    const TABLE: Tabulated = Tabulated::Value;
    const SERIES: usize = 2;
    fn order(dim: f64) -> f64 {
        0.5 * dim
    }
    #[inline(always)]
    fn value<S: Simd>(order: &impl AnyOrder<S>, kappa: V<S, f64>) -> V<S, f64> {
        -bessel::iv_ratio::<S>(order, kappa)
    }
}

macro_rules! mean_direction {
    ($(#[$doc:meta])* $name:ident, $function:ident) => {
        $(#[$doc])*
        pub struct $name;
        impl Quantity for $name {
            const TABLE: Tabulated = Tabulated::No;
            const SERIES: usize = 1;
            fn order(dim: f64) -> f64 {
                dim
            }
            #[inline(always)]
            fn value<S: Simd>(dim: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
                direction::$function::<S>(dim.v(), x)
            }
        }
    };
}
mean_direction!(/** The length of a normal's mean direction in dim dimensions, x = |mu|^2 / (2 var). */ NormalLength, length);
mean_direction!(/** The derivative of [`NormalLength`] in x. */ NormalLengthDx, length_dx);

macro_rules! without_order {
    ($(#[$doc:meta])* $name:ident, $function:ident) => {
        $(#[$doc])*
        pub struct $name;
        impl Quantity for $name {
            const TABLE: Tabulated = Tabulated::No;
            const SERIES: usize = 1;
            fn order(_: f64) -> f64 {
                0.0
            }
            #[inline(always)]
            fn value<S: Simd>(_: &impl AnyOrder<S>, x: V<S, f64>) -> V<S, f64> {
                ndtr::$function::<S>(x)
            }
        }
    };
}
without_order!(/** log Phi(x), where Phi is the normal distribution function. */ LogNdtr, log_ndtr);
without_order!(/** The derivative of [`LogNdtr`]. */ LogNdtrDx, log_ndtr_dx);
without_order!(/** The second derivative of [`LogNdtr`]. */ LogNdtrDxx, log_ndtr_dxx);

#[cfg(test)]
pub(super) use quantity;

/// The signature of [`elementwise`] for one function and type.
type Elementwise<T> = fn(order: &[f64], x: &[T], out: &mut [T], interrupted: &dyn Fn() -> bool) -> Result<(), Error>;

/// The facts of a function, from which the CPU and a GPU dispatch; nothing else knows a function by its name.
pub struct Function {
    /// The name of the kernel, and of the torch operator.
    pub name: &'static str,
    /// Whether float32 elements of one order are computed by a table where they are many.
    pub tabulated: bool,
    single: Elementwise<f32>,
    double: Elementwise<f64>,
}

impl Function {
    const fn of<Q: Quantity>(name: &'static str) -> Function {
        let tabulated = !matches!(Q::TABLE, Tabulated::No);
        Function { name, tabulated, single: elementwise_f32::<Q>, double: elementwise::<Q, f64> }
    }
}

/// All functions of the family.
static FUNCTIONS: [Function; 14] = [
    Function::of::<LogIve>("log_ive"),
    Function::of::<LogIveDx>("log_ive_dx"),
    Function::of::<LogIveDxx>("log_ive_dxx"),
    Function::of::<IvRatio>("iv_ratio"),
    Function::of::<IvRatioDx>("iv_ratio_dx"),
    Function::of::<IvRatioDxx>("iv_ratio_dxx"),
    Function::of::<IvRatioComplement>("iv_ratio_complement"),
    Function::of::<VmfLogNorm>("vmf_log_norm"),
    Function::of::<VmfLogNormDx>("vmf_log_norm_dx"),
    Function::of::<NormalLength>("normal_length"),
    Function::of::<NormalLengthDx>("normal_length_dx"),
    Function::of::<LogNdtr>("log_ndtr"),
    Function::of::<LogNdtrDx>("log_ndtr_dx"),
    Function::of::<LogNdtrDxx>("log_ndtr_dxx"),
];

/// The function of this name.
pub fn find(name: &str) -> Result<&'static Function, Error> {
    let found = FUNCTIONS.iter().find(|function| function.name == name);
    found.ok_or_else(|| Error::Value(format!("no kernel is called {name:?}")))
}

/// An element type that the functions are compiled for.
pub trait Computed: Float {
    /// The implementation of `function` for this type.
    fn by(function: &Function) -> Elementwise<Self>;
}

impl Computed for f32 {
    fn by(function: &Function) -> Elementwise<f32> {
        function.single
    }
}

impl Computed for f64 {
    fn by(function: &Function) -> Elementwise<f64> {
        function.double
    }
}
