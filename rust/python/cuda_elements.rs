//! Exports of the CUDA kernels that compute elements or draw; what they share with those of pairs is in `cuda.rs`.

use super::array::DeviceArray;
use super::cuda::{count, full, place, single, At};
use super::ensure;
use crate::cuda::arguments::{ElementwiseArgs, SampleArgs};
use crate::cuda::{self, elements};
use crate::error::Error;
use crate::kernels::bessel;
use crate::kernels::samplers::{self, Distribution};
use pyo3::prelude::*;

/// Bytes of workspace that `cuda_elementwise` needs.
#[pyfunction]
pub fn cuda_table_size(name: &str, dtype: &str, orders: usize, elements: usize) -> PyResult<usize> {
    Ok(elements::table_size(bessel::find(name)?, dtype == "float32", orders, elements))
}

/// A function of the Bessel family over elements: `order` float64 [1] or [N], `x` and `out` [N], `table` uint8.
#[pyfunction]
pub fn cuda_elementwise(
    py: Python<'_>,
    name: &str,
    at: At,
    order: DeviceArray,
    x: DeviceArray,
    table: DeviceArray,
    out: DeviceArray,
) -> PyResult<()> {
    let (function, single) = (bessel::find(name)?, single(&x)?);
    let (n, orders, bytes) = (count(&x), count(&order), count(&table));
    ensure(count(&out) == n && [1, n].contains(&orders), || "order, x and out need as many elements".into())?;
    let wanted = elements::table_size(function, single, orders, n);
    ensure(bytes >= wanted, || format!("the table has {bytes} bytes, expected {wanted}"))?;
    let args = ElementwiseArgs {
        order: order.address("float64")?,
        orders: orders as i64,
        x: x.address(x.dtype())?,
        out: out.address(x.dtype())?,
        n: n as i64,
    };
    let table = if wanted > 0 { Some(table.address("uint8")?) } else { None };
    // SAFETY: sizes were checked; the Python layer reads addresses off tensors that it keeps alive, and torch keeps memory
    // that is freed in a stream's order.
    py.detach(|| unsafe { elements::elementwise(function, place(at), single, args, table) })?;
    Ok(())
}

/// The arguments of a sampler, checked against the draws [n, N, D].
fn samples(
    distribution: &Distribution,
    arrays: [&DeviceArray; 3],
    first_row: u64,
    stream: u32,
    drawn: &DeviceArray,
) -> Result<SampleArgs, Error> {
    let [mu, uncertainty, seed] = arrays;
    let (items, spread) = (full(mu)?, uncertainty.matrix()?);
    let draws = drawn.shape().first().copied().unwrap_or(0);
    let fit = spread.rows == items.rows && stream < 3;
    let fit = fit && drawn.shape().get(1..) == Some(mu.shape()) && i32::try_from(draws).is_ok();
    ensure(fit && uncertainty.dtype() == mu.dtype(), || "the shapes of a sampler's arrays do not fit together".into())?;
    distribution.check(items.stored as usize, spread.stored as usize)?;
    let (seed, stream, draws) = (seed.address("int64")?, i64::from(stream), draws as i64);
    Ok(SampleArgs { mu: items, uncertainty: spread, seed, first_row, stream, draws, ..SampleArgs::default() })
}

/// Draws of the items into out [n, N, D]; the seed is read on the device.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays, and the address of the random numbers
pub fn cuda_sample(
    py: Python<'_>,
    name: &str,
    at: At,
    mu: DeviceArray,
    uncertainty: DeviceArray,
    seed: DeviceArray,
    first_row: u64,
    stream: u32,
    out: DeviceArray,
) -> PyResult<()> {
    let (distribution, single) = (samplers::find(name)?, single(&mu)?);
    let args = samples(distribution, [&mu, &uncertainty, &seed], first_row, stream, &out)?;
    let args = SampleArgs { out: out.address(mu.dtype())?, ..args };
    // SAFETY: as in `cuda_elementwise`.
    py.detach(|| unsafe { cuda::samplers::sample(distribution, place(at), single, args) })?;
    Ok(())
}

/// Gradients of sum(weights * draws), weights [n, N, D], into arrays of the shapes of mu and uncertainty.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // as above
pub fn cuda_sample_backward(
    py: Python<'_>,
    name: &str,
    at: At,
    mu: DeviceArray,
    uncertainty: DeviceArray,
    seed: DeviceArray,
    weights: DeviceArray,
    by_mu: DeviceArray,
    by_uncertainty: DeviceArray,
    first_row: u64,
    stream: u32,
) -> PyResult<()> {
    let (distribution, single) = (samplers::find(name)?, single(&mu)?);
    let args = samples(distribution, [&mu, &uncertainty, &seed], first_row, stream, &weights)?;
    full(&uncertainty)?; // its gradient is
    ensure(by_mu.shape() == mu.shape() && by_uncertainty.shape() == uncertainty.shape(), || {
        "gradients need the shapes of the inputs".into()
    })?;
    let weights = weights.address(mu.dtype())?;
    let out = (by_mu.address(mu.dtype())?, by_uncertainty.address(mu.dtype())?);
    // SAFETY: as in `cuda_elementwise`.
    py.detach(|| unsafe { cuda::samplers::sample_backward(distribution, place(at), single, args, weights, out) })?;
    Ok(())
}
