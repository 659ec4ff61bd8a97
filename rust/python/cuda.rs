//! Exports of the CUDA kernels: addresses are the Python layer's word, shapes and dtypes are checked here.

use super::array::DeviceArray;
use super::ensure;
use crate::cuda::{self, elements, Place};
use crate::error::Error;
use pyo3::prelude::*;

/// What the embedded kernels are compiled for, the CUDA version of the driver (13000 for 13.0), or why there is none.
#[pyfunction]
pub fn cuda_info() -> (&'static str, i32, Option<String>) {
    match cuda::driver() {
        Ok(driver) => (cuda::TARGETS, driver.version(), None),
        Err(why) => (cuda::TARGETS, 0, Some(why.to_string())),
    }
}

/// Device and stream.
type At = (i32, u64);

fn place(at: At) -> Place {
    Place { device: at.0, stream: at.1 }
}

/// Whether a dtype that kernels compute in is float32.
fn single(x: &DeviceArray) -> Result<bool, Error> {
    match x.dtype() {
        "float32" => Ok(true),
        "float64" => Ok(false),
        other => Err(Error::Value(format!("expected float32 or float64, got {other}"))),
    }
}

fn count(x: &DeviceArray) -> usize {
    x.shape().iter().product()
}

/// Bytes of workspace that `cuda_elementwise` wants.
#[pyfunction]
pub fn cuda_table_size(name: &str, dtype: &str, orders: usize, elements: usize) -> usize {
    elements::table_size(name, dtype == "float32", orders, elements)
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
    let single = single(&x)?;
    let (n, orders, room) = (count(&x), count(&order), count(&table));
    ensure(count(&out) == n && [1, n].contains(&orders), || "order, x and out need as many elements".into())?;
    let wanted = elements::table_size(name, single, orders, n);
    ensure(room >= wanted, || format!("the table has {room} bytes, expected {wanted}"))?;
    let args = elements::Elements {
        order: order.address("float64")?,
        orders: orders as i64,
        x: x.address(x.dtype())?,
        out: out.address(x.dtype())?,
        n: n as i64,
    };
    let table = if wanted > 0 { Some(table.address("uint8")?) } else { None };
    // SAFETY: sizes were checked; the Python layer reads addresses off tensors that it keeps alive, and torch keeps memory
    // that is freed in a stream's order.
    py.detach(|| unsafe { elements::elementwise(name, place(at), single, args, table) })?;
    Ok(())
}
