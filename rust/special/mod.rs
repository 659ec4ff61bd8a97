//! Scalar functions on lanes: values in, values out, with regimes and error bounds in each file's header.

pub mod bessel;
pub mod log;
mod tables;
