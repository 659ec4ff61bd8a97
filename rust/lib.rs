//! The compute core of peaccel. Map of the crate, each line using only what stands above it:
//!
//! - [`error`]: the error type · [`memory`]: lists that grow with the data of a call · `layout`: structs and constants that Rust and CUDA share
//! - [`view`]: the array types · [`simd`]: lanes and dispatch · [`parallel`]: threads and interrupts
//! - [`special`]: scalar functions on lanes, with their error bounds · [`rng`]: random words
//! - [`rows`]: tiles of rows against rows · [`panels`]: register tiles of inner products · [`codes`] and [`coded_panels`]: rows as
//!   8-bit integers
//! - [`topk`]: the best k · [`drivers`]: a pair function becomes paired, pairwise, candidates and top-k
//! - [`kernels`]: the families of quantities
//! - [`cuda`]: the same families on a GPU
//! - `python`: the only module that knows Python (feature `python`)

pub mod coded_panels;
pub mod codes;
pub mod cuda;
pub mod drivers;
pub mod error;
pub mod kernels;
mod layout;
pub mod memory;
pub mod panels;
pub mod parallel;
#[cfg(feature = "python")]
mod python;
pub mod rng;
pub mod rows;
pub mod simd;
pub mod special;
pub mod topk;
pub mod view;
