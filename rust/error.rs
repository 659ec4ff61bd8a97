//! The one error type. A message is one line that names the argument, what was expected and what was got.

/// The errors: of an argument, before any work is done; of CUDA; of memory; an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value, shape or range that is not allowed.
    #[error("{0}")]
    Value(String),
    /// CUDA cannot be used; the message says why.
    #[error("{0}")]
    Cuda(String),
    /// There is too little memory.
    #[error("{0}")]
    Memory(String),
    /// The caller's interrupt (Ctrl-C) arrived while the work ran.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An [`Error::Value`] that reads "`op`: `argument` `what`".
    pub fn value(op: &str, argument: &str, what: impl std::fmt::Display) -> Self {
        Error::Value(format!("{op}: {argument} {what}"))
    }
}
