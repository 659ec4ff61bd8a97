//! Memory: Python buffers as views. The only place that turns foreign memory into Rust slices.
//!
//! Arrays come through the buffer protocol (numpy arrays, and torch CPU tensors as the numpy arrays that share their memory), so
//! the exporter itself declares element type, shape and strides, and stays alive and fixed in size while the buffer is held. That
//! nobody writes to an input while a kernel reads it without the GIL is the caller's part, as it is in numpy.

use crate::cuda;
use crate::error::Error;
use crate::view::{Half, Matrix, View};
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;

/// Element types that kernels compute in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// float32
    F32,
    /// float64
    F64,
}

/// A Python buffer, held as long as this lives.
pub struct Array(PyUntypedBuffer);

impl<'py> FromPyObject<'_, 'py> for Array {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        PyUntypedBuffer::get(&object).map(Array)
    }
}

/// Memory of a device, which only its kernels read: address, shape, strides in elements, dtype. The Python layer vouches for
/// these, as it reads them off a tensor that it keeps alive.
#[derive(FromPyObject)]
pub struct DeviceArray(u64, Vec<usize>, Vec<isize>, String);

impl DeviceArray {
    /// The dtype's name.
    pub fn dtype(&self) -> &str {
        &self.3
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.1
    }

    /// The address of contiguous elements of a dtype.
    pub fn address(&self, dtype: &str) -> Result<u64, Error> {
        let contiguous = (self.1.iter().zip(&self.2).rev())
            .try_fold(1, |step, (&n, &stride)| (n == 1 || stride == step).then_some(step * n as isize));
        if contiguous.is_none() && self.1.iter().all(|&n| n > 0) || self.3 != dtype {
            let what =
                format!("expected contiguous {dtype}, got {} of shape {:?}, strides {:?}", self.3, self.1, self.2);
            return Err(Error::Value(what));
        }
        Ok(self.0)
    }

    /// A matrix [N, D], or a vector [N] as [N, 1]; rows as in [`Array::view`].
    pub fn matrix(&self) -> Result<cuda::DeviceMatrix, Error> {
        let (rows, cols, by_row, by_col) = match (&self.1[..], &self.2[..]) {
            ([n], [s]) => (*n, 1, *s, 1),
            ([n, d], [s, t]) => (*n, *d, *s, *t),
            (shape, _) => return Err(Error::Value(format!("expected 1 or 2 dimensions, got shape {shape:?}"))),
        };
        let stored = match (cols, by_col) {
            (0 | 1, _) | (_, 1) => cols,
            _ if rows == 0 => cols,
            (_, 0) => 1,
            _ => return Err(Error::Value("expected rows of adjacent elements".into())),
        };
        Ok(cuda::DeviceMatrix { data: self.0, rows: rows as i64, stored: stored as i64, stride: by_row as i64 })
    }
}

/// A number that buffers hold.
pub trait Element: Copy {
    /// Whether a buffer's element is this type.
    fn is(kind: ElementType) -> bool;
}
impl Element for f32 {
    fn is(kind: ElementType) -> bool {
        kind == ElementType::Float { bytes: 4 }
    }
}
impl Element for f64 {
    fn is(kind: ElementType) -> bool {
        kind == ElementType::Float { bytes: 8 }
    }
}
impl Element for i64 {
    fn is(kind: ElementType) -> bool {
        kind == ElementType::SignedInteger { bytes: 8 }
    }
}

impl Element for u8 {
    fn is(kind: ElementType) -> bool {
        kind == ElementType::UnsignedInteger { bytes: 1 }
    }
}
impl Element for u16 {
    fn is(kind: ElementType) -> bool {
        matches!(kind, ElementType::Float { bytes: 2 } | ElementType::UnsignedInteger { bytes: 2 })
    }
}

impl Array {
    /// A matrix of `T`, or of halves: float16, or bfloat16 as 16-bit words.
    pub fn matrix<T: Element>(&self) -> Result<Matrix<'_, T>, Error> {
        Ok(match self.element() {
            ElementType::Float { bytes: 2 } => Matrix::Half(self.view()?, Half::Float16),
            ElementType::UnsignedInteger { bytes: 2 } => Matrix::Half(self.view()?, Half::BFloat16),
            _ => Matrix::Full(self.view()?),
        })
    }

    /// The array's own shape.
    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn element(&self) -> ElementType {
        ElementType::from_format(self.0.format())
    }

    /// float32 or float64, else an error.
    pub fn kind(&self) -> Result<Kind, Error> {
        match self.element() {
            ElementType::Float { bytes: 4 } => Ok(Kind::F32),
            ElementType::Float { bytes: 8 } => Ok(Kind::F64),
            _ => Err(self.unexpected("float32 or float64")),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        Error::Value(format!("expected {expected}, got a buffer of format {:?}", self.0.format()))
    }

    fn check<T: Element>(&self) -> Result<(), Error> {
        let aligned = self.0.buf_ptr().cast::<T>().is_aligned();
        if T::is(self.element()) && self.0.item_size() == size_of::<T>() && aligned {
            Ok(())
        } else {
            Err(self.unexpected(&format!("aligned {}", std::any::type_name::<T>())))
        }
    }

    /// A matrix [N, D], or a vector [N] as [N, 1]. Within a row, elements must be adjacent; a row that repeats one element
    /// (stride 0, as from broadcasting) becomes a constant row.
    pub fn view<T: Element>(&self) -> Result<View<'_, T>, Error> {
        self.check::<T>()?;
        let size = size_of::<T>() as isize;
        let (rows, cols, by_row, by_col) = match (self.0.shape(), self.0.strides()) {
            ([n], [s]) => (*n, 1, *s, size),
            ([n, d], [s, t]) => (*n, *d, *s, *t),
            (shape, _) => return Err(Error::Value(format!("expected 1 or 2 dimensions, got shape {shape:?}"))),
        };
        let stored = match (cols, by_col) {
            (0 | 1, _) => cols,
            (_, 0) => 1,
            (_, t) if t == size => cols,
            _ => return Err(Error::Value("expected rows of adjacent elements".into())),
        };
        if rows > 1 && by_row % size != 0 {
            return Err(Error::Value("expected rows that start at whole elements".into()));
        }
        // SAFETY: the exporter vouches for shape and strides; the element type and alignment were checked; a View is only
        // read. Rows of stride `by_row` hold `stored` adjacent elements each.
        Ok(unsafe { View::from_raw(self.0.buf_ptr().cast::<T>(), rows, stored, by_row / size) })
    }

    /// A contiguous writable array that only the caller of this function writes to: outputs are allocated for each call.
    #[allow(clippy::mut_from_ref)]
    pub fn output<T: Element>(&self) -> Result<&mut [T], Error> {
        self.check::<T>()?;
        if self.0.readonly() || !self.0.is_c_contiguous() {
            return Err(Error::Value("expected a writable contiguous output".into()));
        }
        // SAFETY: the buffer is writable, contiguous, aligned and holds `item_count` elements; the Python layer allocates each
        // output for one call, and nothing else writes to it meanwhile.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<T>(), self.0.item_count()) })
    }

    /// A contiguous array as a slice.
    pub fn slice<T: Element>(&self) -> Result<&[T], Error> {
        self.check::<T>()?;
        if !self.0.is_c_contiguous() {
            return Err(Error::Value("expected a contiguous array".into()));
        }
        // SAFETY: the buffer is contiguous, aligned and holds `item_count` elements.
        Ok(unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<T>(), self.0.item_count()) })
    }
}
