//! Exports of the kernels that process elements or items one by one: the functions of the Bessel family, and the samplers.

use super::array::{Array, Element};
use super::{detached, ensure, interrupted};
use crate::error::Error;
use crate::kernels::bessel::{self, Computed as _};
use crate::kernels::samplers::{self, Distribution, Drawn as _, Items};
use crate::rng::Stream;
use pyo3::prelude::*;

/// Computes the function `name` of the Bessel family into `out` [N], from `x` [N] and `order` (or dimension), float64 [1] or [N].
#[pyfunction]
pub fn elementwise(py: Python<'_>, name: &str, order: Array, x: Array, out: Array) -> PyResult<()> {
    let function = bessel::find(name)?;
    detached(py, ("elements", name), || {
        with_type!(x, |T| {
            let (order, x, out) = (order.slice::<f64>()?, x.slice::<T>()?, out.output::<T>()?);
            let fits = x.len() == out.len() && [1, x.len()].contains(&order.len());
            ensure(fits, || "order, x and out need the same number of elements".into())?;
            T::by(function)(order, x, out, &interrupted)
        })
    })
}

/// The items of a sampler: mu [N, D] and the uncertainties [N] or [N, D], whose shapes are checked against that of `drawn`, [n,
/// N, D].
fn items<'a, T: Element>(
    distribution: &Distribution,
    mu: &'a Array,
    uncertainty: &'a Array,
    seed: u64,
    first_row: u64,
    stream: u32,
    drawn: &Array,
) -> Result<Items<'a, T>, Error> {
    let stream = match stream {
        0 => Stream::Query,
        1 => Stream::Gallery,
        2 => Stream::User,
        other => return Err(Error::Value(format!("no stream is numbered {other}"))),
    };
    let (mu, uncertainty) = (mu.view()?, uncertainty.view()?);
    let (rows, dim) = (mu.rows(), mu.stored());
    let draws = drawn.shape().first().copied().unwrap_or(0);
    let fit = uncertainty.rows() == rows && drawn.shape() == [draws, rows, dim] && u32::try_from(draws).is_ok();
    ensure(fit, || "the shapes of a sampler's arrays do not fit together".into())?;
    distribution.check(dim, uncertainty.stored())?;
    Ok(Items { mu, uncertainty, seed, first_row, stream })
}

/// Writes n draws of each of the N items to `out` [n, N, D].
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays, and what identifies the random numbers
pub fn sample(
    py: Python<'_>,
    name: &str,
    mu: Array,
    uncertainty: Array,
    seed: u64,
    first_row: u64,
    stream: u32,
    out: Array,
) -> PyResult<()> {
    let distribution = samplers::find(name)?;
    detached(py, ("draws", name), || {
        with_type!(out, |T| {
            let items = items::<T>(distribution, &mu, &uncertainty, seed, first_row, stream, &out)?;
            let (sample, _) = T::functions(distribution);
            sample(&items, out.output()?, &interrupted)
        })
    })
}

/// Writes the gradients of `sum(weights * samples)`, weights [n, N, D], to `out`: with respect to mu and to uncertainty, in their
/// shapes.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays, and what identifies the random numbers
pub fn sample_backward(
    py: Python<'_>,
    name: &str,
    mu: Array,
    uncertainty: Array,
    seed: u64,
    first_row: u64,
    stream: u32,
    weights: Array,
    out: [Array; 2],
) -> PyResult<()> {
    let distribution = samplers::find(name)?;
    detached(py, ("gradients of draws", name), || {
        with_type!(weights, |T| {
            let items = items::<T>(distribution, &mu, &uncertainty, seed, first_row, stream, &weights)?;
            let weights = weights.slice::<T>()?;
            let (by_mu, by_uncertainty) = (out[0].output::<T>()?, out[1].output::<T>()?);
            let (rows, dim, wide) = (items.mu.rows(), items.mu.stored(), items.uncertainty.stored());
            let fits = by_mu.len() == rows * dim && by_uncertainty.len() == rows * wide;
            ensure(fits, || "gradients need the shapes of the inputs".into())?;
            let (_, backward) = T::functions(distribution);
            backward(&items, weights, by_mu, by_uncertainty, &interrupted)
        })
    })
}
