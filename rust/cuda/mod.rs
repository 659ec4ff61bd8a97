//! Kernels on a GPU: what they are given, mirrored from cuda/arguments.cuh, and how many threads run them.
//!
//! The maths is in cuda/, compiled by `build.rs`; Python allocates on the device and hands over addresses.

mod driver;
pub mod elements;
mod images;
pub mod pairs;
pub mod sampled;
pub mod search;

pub use driver::driver;
pub use elements::Place;
pub use images::TARGETS;

/// Memory of a device as `cuda/arguments.cuh` has it: rows `stride` elements apart, `stored` elements each, or one that stands
/// for all of a constant row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Its address.
    pub data: u64,
    /// Number of rows.
    pub rows: i64,
    /// Elements stored per row.
    pub stored: i64,
    /// Elements from one row to the next.
    pub stride: i64,
}

impl Matrix {
    /// Of no rows.
    pub const NONE: Matrix = Matrix { data: 0, rows: 0, stored: 0, stride: 0 };
}
