//! The families of quantities. Each stands in `rust/kernels/<family>.rs`, `cuda/families/<family>.cu` and
//! `python/peaccel/ops/<family>.py`; the scores of pairs make up a [`table`].
//!
//! The way of one call through the floors:
//!
//! ```text
//!               pe.rerank(queries, gallery, candidates, k, "mls")        of von Mises-Fisher items
//!                   retrieval/plan.py  plan
//!                   checks; the score says by both kinds which op it is, mls_vmf, and what it is given of each item
//!               ops.Inputs  mu1, uncertainty1, mu2, uncertainty2, shared     here mu, kappa, mu, kappa, offset
//!                   ops/_dispatch  kernels_of: numpy or torch, host or GPU
//!          ┌──────────────────────┴───────────────────────┐
//!     ops/_numpy, ops/_cpu                            ops/_cuda
//!         layouts, outputs                                workspaces, outputs
//!  ────────┼──────────────────────────────────────────────┼──────  the core is given a name and five arrays
//!     python/scores.rs  rerank                        python/cuda.rs  cuda_rerank
//!         Array -> View, float32 or float64               addresses -> Call
//!          │                                              │
//!     kernels/table.rs  find                          kernels/table.rs  facts
//!         name -> PairOp -> DotKernel<T, MlsVmf>            name -> Facts
//!          │                                              │
//!     drivers.rs  rerank                              cuda/pairs.rs  rerank
//!         queries among threads, the best k               grid and shared memory, libcuda.rs
//!          │                                              │
//!     drivers/pair.rs  PairKernel::score              cuda/families/dot_scores.cu  mls_vmf_rerank_f32
//!         a block of pairs, in lanes                      drivers/pairs.cuh and topk.cuh
//!          │                                              │
//!     kernels/dot_scores/vmf.rs  Formula::score       cuda/formulas/vmf.cuh  MlsVmf::value
//!         of |mu1 - mu2|^2 (rows.rs), kappa1, kappa2      of the same numbers
//!          │                                              │
//!     special/bessel.rs                               cuda/numerics/special.cuh
//! ```
//!
//! The other verbs leave this way at the drivers: [`crate::drivers::paired`], [`crate::drivers::pairwise`],
//! [`crate::drivers::candidates`], and [`crate::drivers::PairKernel::search`], which a family may replace by a search that rules
//! pairs out. [`crate::drivers::backward`] goes the same way for gradients, with [`dot_scores::Formula::partials`] in place of
//! `score`.

pub mod bessel;
pub mod diag_scores;
pub mod dot_scores;
pub mod pair_op;
pub mod sampled_scores;
pub mod samplers;
pub mod table;
