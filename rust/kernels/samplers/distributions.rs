//! The table of the distributions that callers draw from.

use super::{backward, sample, Items, Normal, Normals, Sampler, VonMisesFisher};
use crate::error::Error;

/// The signature of [`sample`] for one sampler and type.
type Sample<T> = fn(items: &Items<T>, out: &mut [T], interrupted: &dyn Fn() -> bool) -> Result<(), Error>;
/// The signature of [`backward`] for one sampler and type.
type Backward<T> = fn(
    items: &Items<T>,
    weights: &[T],
    mu: &mut [T],
    uncertainty: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error>;

/// The facts of a distribution; nothing else knows its sampler by name.
pub struct Distribution {
    /// The name of the kernel, and of the torch operator.
    pub name: &'static str,
    least_dim: usize,
    per_dim: bool,
    single: (Sample<f32>, Backward<f32>),
    double: (Sample<f64>, Backward<f64>),
}

impl Distribution {
    const fn of<P: Sampler>(name: &'static str) -> Distribution {
        let single: (Sample<f32>, Backward<f32>) = (sample::<P, f32>, backward::<P, f32>);
        let double: (Sample<f64>, Backward<f64>) = (sample::<P, f64>, backward::<P, f64>);
        Distribution { name, least_dim: P::LEAST_DIM, per_dim: P::PER_DIM, single, double }
    }

    /// Returns an error if there is no such distribution in `dim` dimensions with this many uncertainties for an item.
    pub fn check(&self, dim: usize, uncertainties: usize) -> Result<(), Error> {
        let (name, least) = (self.name, self.least_dim);
        if dim < least {
            return Err(Error::Value(format!("{name}: D is {dim}, expected at least {least}")));
        }
        if uncertainties != 1 && !(self.per_dim && uncertainties == dim) {
            let expected = if self.per_dim { "1 or D" } else { "1" };
            return Err(Error::Value(format!(
                "{name}: an item has {uncertainties} uncertainties, expected {expected}"
            )));
        }
        Ok(())
    }
}

/// All distributions that callers draw from.
static DISTRIBUTIONS: [Distribution; 2] =
    [Distribution::of::<Normal>("sample_normal"), Distribution::of::<VonMisesFisher>("sample_vmf")];

/// The distribution whose sampler has this name.
pub fn find(name: &str) -> Result<&'static Distribution, Error> {
    let found = DISTRIBUTIONS.iter().find(|distribution| distribution.name == name);
    found.ok_or_else(|| Error::Value(format!("no kernel is called {name:?}")))
}

/// An element type that samplers are compiled for.
pub trait Drawn: Normals {
    /// The functions of a distribution for this type: [`sample`] and [`backward`].
    fn functions(distribution: &Distribution) -> (Sample<Self>, Backward<Self>);
}

impl Drawn for f32 {
    fn functions(distribution: &Distribution) -> (Sample<f32>, Backward<f32>) {
        distribution.single
    }
}

impl Drawn for f64 {
    fn functions(distribution: &Distribution) -> (Sample<f64>, Backward<f64>) {
        distribution.double
    }
}
