//! Scalar functions on lanes: values in, values out, with regimes and error bounds in each file's header.

pub mod bessel;
pub mod direction;
pub mod dual;
pub mod exp;
pub mod log;
pub mod ndtr;
#[allow(clippy::approx_constant)] // a fitted coefficient may come near one
pub(crate) mod tables;
pub mod trig;
