//! The families of quantities. Each stands in `rust/kernels/<family>.rs`, `cuda/<family>.cu` and
//! `python/peaccel/ops/<family>.py`.

pub mod bessel;
pub mod diag_scores;
pub mod dot_scores;
pub mod sampled_scores;
pub mod samplers;
