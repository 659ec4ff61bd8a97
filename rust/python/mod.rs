//! The Python module `peaccel._core`: the only place that knows Python.
//!
//! The Python layer allocates outputs and has checked shapes, dtypes and devices with messages of its own; what is checked
//! here keeps memory safe whatever is passed.

mod array;

/// Runs `$body` with `$t` bound to the element type of `$array`.
macro_rules! with_type {
    ($array:expr, |$t:ident| $body:expr) => {
        match $array.kind()? {
            $crate::python::array::Kind::F32 => {
                type $t = f32;
                $body
            }
            $crate::python::array::Kind::F64 => {
                type $t = f64;
                $body
            }
        }
    };
}

mod cuda;
mod cuda_elements;
mod elements;
mod scores;

use crate::error::Error;
use crate::memory;
use crate::parallel;
use crate::simd;
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    peaccel,
    CudaError,
    PyRuntimeError,
    "CUDA cannot be used, or a kernel could not be launched; the message says why."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::Value(message) => PyValueError::new_err(message),
            Error::Cuda(why) => CudaError::new_err(why),
            Error::Memory(message) => PyMemoryError::new_err(message),
            Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        }
    }
}

/// Whether Python has seen Ctrl-C; the calling thread asks while it waits.
fn interrupted() -> bool {
    Python::attach(|py| py.check_signals().is_err())
}

/// Runs the work of a call, named as in [`memory::guarded`], without Python's lock.
fn detached<R: Send>(
    py: Python<'_>,
    call: (&str, &str),
    work: impl FnOnce() -> Result<R, Error> + Send,
) -> PyResult<R> {
    Ok(py.detach(|| memory::guarded(call, work))?)
}

fn ensure(holds: bool, what: impl Fn() -> String) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::Value(what()))
    }
}

/// The name of the SIMD level in use.
#[pyfunction]
fn simd_level() -> PyResult<&'static str> {
    Ok(simd::level_name()?)
}

/// The number of threads in use.
#[pyfunction]
fn num_threads() -> usize {
    parallel::num_threads()
}

/// Sets the number of threads.
#[pyfunction]
fn set_num_threads(n: usize) {
    parallel::set_num_threads(n);
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    simd::level_name()?;
    module.add("CUDA_BEST", crate::cuda::constants::BEST)?;
    module.add("QUERY", scores::QUERY)?;
    module.add("GALLERY", scores::GALLERY)?;
    module.add("SHARED", scores::SHARED)?;
    module.add("TOGETHER", scores::TOGETHER)?;
    module.add("EVERY_GRADIENT", scores::QUERY | scores::GALLERY | scores::SHARED)?;
    module.add("CudaError", module.py().get_type::<CudaError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for function in [
        wrap_pyfunction!(scores::kernels, module)?,
        wrap_pyfunction!(scores::score, module)?,
        wrap_pyfunction!(scores::score_backward, module)?,
        wrap_pyfunction!(scores::rerank, module)?,
        wrap_pyfunction!(scores::search, module)?,
        wrap_pyfunction!(elements::elementwise, module)?,
        wrap_pyfunction!(elements::sample, module)?,
        wrap_pyfunction!(elements::sample_backward, module)?,
        wrap_pyfunction!(scores::pack, module)?,
        wrap_pyfunction!(scores::panels_shape, module)?,
        wrap_pyfunction!(scores::encode, module)?,
        wrap_pyfunction!(scores::codes_width, module)?,
        wrap_pyfunction!(scores::encode_panels, module)?,
        wrap_pyfunction!(scores::coded_shape, module)?,
        wrap_pyfunction!(cuda::cuda_info, module)?,
        wrap_pyfunction!(cuda_elements::cuda_table_size, module)?,
        wrap_pyfunction!(cuda_elements::cuda_elementwise, module)?,
        wrap_pyfunction!(cuda::cuda_cut, module)?,
        wrap_pyfunction!(cuda::cuda_shares, module)?,
        wrap_pyfunction!(cuda::cuda_rerank, module)?,
        wrap_pyfunction!(cuda::cuda_fold, module)?,
        wrap_pyfunction!(cuda::cuda_norms, module)?,
        wrap_pyfunction!(cuda::cuda_scratch, module)?,
        wrap_pyfunction!(cuda::cuda_scores_of_products, module)?,
        wrap_pyfunction!(cuda::cuda_weights_of_products, module)?,
        wrap_pyfunction!(cuda::cuda_add_to_products, module)?,
        wrap_pyfunction!(cuda::cuda_warps, module)?,
        wrap_pyfunction!(cuda::cuda_workspace, module)?,
        wrap_pyfunction!(cuda_elements::cuda_sample, module)?,
        wrap_pyfunction!(cuda::cuda_score, module)?,
        wrap_pyfunction!(cuda::cuda_score_backward, module)?,
        wrap_pyfunction!(cuda::cuda_search, module)?,
        wrap_pyfunction!(cuda::cuda_select, module)?,
        wrap_pyfunction!(cuda_elements::cuda_sample_backward, module)?,
        wrap_pyfunction!(simd_level, module)?,
        wrap_pyfunction!(num_threads, module)?,
        wrap_pyfunction!(set_num_threads, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}
