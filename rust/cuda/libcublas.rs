//! cuBLAS: the library that torch has loaded, by torch's handle, and called in this file only.

use super::libcuda::Place;
use crate::error::Error;
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// CUBLAS_OP_N and CUBLAS_OP_T: a matrix as it is stored, by columns, or transposed.
const AS_STORED: c_int = 0;
const TRANSPOSED: c_int = 1;
/// CUBLAS_COMPUTE_32F_FAST_TF32
const TF32: c_int = 77;
/// CUBLAS_COMPUTE_32F
const SINGLE: c_int = 68;
/// CUBLAS_GEMM_DEFAULT
const DEFAULT: c_int = -1;

/// The type of the numbers of a product's two matrices, by cudaDataType. The products themselves are float32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// float32, of which tensor cores read the digits of tf32.
    F32 = 0,
    /// float16.
    F16 = 2,
    /// bfloat16.
    BF16 = 14,
}

type Matrix = *const c_void;
/// cublasGemmEx.
type Gemm = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    Matrix,
    c_int,
    c_int,
    Matrix,
    c_int,
    c_int,
    *const f32,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// Rows of a matrix in the device's memory: their address, their number, and the elements from one to the next.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Address of the first row.
    pub data: u64,
    /// Number of rows.
    pub rows: usize,
    /// Elements from the beginning of a row to that of the next one.
    pub stride: usize,
}

/// The function of the library that this process has loaded for torch. `PEACCEL_LIBCUBLAS` names another one.
fn gemm() -> Result<Gemm, Error> {
    static FOUND: OnceLock<Result<Gemm, String>> = OnceLock::new();
    let find = || {
        let named = std::env::var_os("PEACCEL_LIBCUBLAS");
        // SAFETY: a library that is loaded already runs nothing; the one that is named is the user's.
        let library = unsafe {
            match &named {
                Some(path) => Library::new(path),
                None => loaded_by_torch(),
            }
        }
        .map_err(|why| format!("torch's cuBLAS was not found ({why}); search(prune=\"never\") does without"))?;
        // SAFETY: the signature is that of cublas_api.h, the same from 11.0 on.
        let found = unsafe { library.get::<Gemm>(b"cublasGemmEx\0") }.map(|symbol| *symbol);
        std::mem::forget(library);
        found.map_err(|why| format!("cuBLAS lacks cublasGemmEx: {why}"))
    };
    FOUND.get_or_init(find).clone().map_err(Error::Cuda)
}

/// torch's own library, among whose dependencies the linker finds the cuBLAS that torch calls, whichever others are loaded.
#[cfg(unix)]
unsafe fn loaded_by_torch() -> Result<Library, libloading::Error> {
    use libloading::os::unix;
    const RTLD_NOLOAD: c_int = if cfg!(target_os = "linux") { 4 } else { 16 };
    unix::Library::open(Some("libtorch_cuda.so"), unix::RTLD_NOW | RTLD_NOLOAD).map(Library::from)
}
#[cfg(windows)]
unsafe fn loaded_by_torch() -> Result<Library, libloading::Error> {
    use libloading::os::windows;
    windows::Library::open_already_loaded("cublas64_13.dll").map(Library::from)
}

/// Puts the inner products of the rows of a [Q, dim] and b [G, dim] on a stream, to float32 `out` [Q, stride].
///
/// # Safety
/// The handle must be torch's for the device and the stream of `at`, and the addresses of the device's memory.
pub unsafe fn products(
    (at, handle): (Place, u64),
    numbers: Numbers,
    dim: usize,
    [a, b]: [Rows; 2],
    out: (u64, usize),
) -> Result<(), Error> {
    let compute = if numbers == Numbers::F32 { TF32 } else { SINGLE };
    let size = |x: usize| c_int::try_from(x).map_err(|_| Error::Value(format!("a product of {x} rows is too large")));
    let (rows, columns, dim) = (size(b.rows)?, size(a.rows)?, size(dim)?);
    let (lda, ldb, ldc) = (size(b.stride)?, size(a.stride)?, size(out.1)?);
    let (one, zero, kind, gemm) = (1.0_f32, 0.0_f32, numbers as c_int, gemm()?);
    // Rows of ours are columns of cuBLAS.
    let call = || {
        gemm(
            handle as *mut c_void,
            TRANSPOSED,
            AS_STORED,
            rows,
            columns,
            dim,
            &one,
            b.data as Matrix,
            kind,
            lda,
            a.data as Matrix,
            kind,
            ldb,
            &zero,
            out.0 as *mut c_void,
            Numbers::F32 as c_int,
            ldc,
            compute,
            DEFAULT,
        )
    };
    let status = super::libcuda::driver()?.in_context(at.device, call)?;
    if status == 0 {
        return Ok(());
    }
    Err(Error::Cuda(format!("cublasGemmEx: status {status}")))
}
