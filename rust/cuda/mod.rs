//! Kernels on a GPU: what they are given, and how many threads run them.
//!
//! The maths is in cuda/, compiled by `build.rs`. Python allocates memory on the device and passes addresses.

pub mod arguments;
pub mod call;
pub mod constants;
pub mod elements;
mod images;
mod libcublas;
mod libcuda;
mod pairs;
pub mod products;
pub mod sampled;
pub mod samplers;
pub mod search;
mod tiles;

pub use arguments::DeviceMatrix;
pub use images::TARGETS;
pub use libcuda::{driver, Place};
