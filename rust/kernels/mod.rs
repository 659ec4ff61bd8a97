//! The families of quantities. Each stands in `rust/kernels/<family>.rs`, `cuda/families/<family>.cu` and
//! `python/peaccel/ops/<family>.py`; the scores of pairs make up a [`table`].

pub mod bessel;
pub mod diag_scores;
pub mod dot_scores;
pub mod sampled_scores;
pub mod samplers;
pub mod score;
pub mod table;
