//! The table of the scores of pairs, of which each line stands beside its formula.

use super::pair_op::{Facts, PairOp};
use super::{diag_scores, dot_scores, sampled_scores};
use crate::error::Error;

/// All scores, in the order of their families.
pub fn scores() -> impl Iterator<Item = &'static PairOp> {
    let families = dot_scores::KERNELS.into_iter().chain(diag_scores::KERNELS).chain([sampled_scores::KERNELS]);
    families.flatten()
}

/// The score of this name.
pub fn find(name: &str) -> Result<&'static PairOp, Error> {
    scores().find(|score| score.facts.name == name).ok_or_else(|| Error::Value(format!("no kernel is called {name:?}")))
}

/// The facts of the score of this name.
pub fn facts(name: &str) -> Result<&'static Facts, Error> {
    find(name).map(|score| &score.facts)
}
