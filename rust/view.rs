//! The array types: [`View`], a borrowed matrix whose rows may lie anywhere in memory, and [`Matrix`], whose elements may be
//! stored in half precision.

use crate::simd::{dispatch, widen_f16, Float, Kernel, Simd};
use std::marker::PhantomData;
use std::ops::Range;

/// A read-only matrix of `rows` x `cols`. Rows may have any stride (also zero or negative); within a row the elements are
/// adjacent, or, for a constant row, one element stands for all.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: *const T,
    rows: usize,
    stored: usize,
    stride: isize,
    owner: PhantomData<&'a [T]>,
}

// SAFETY: a View is a shared borrow of plain numbers.
unsafe impl<T: Sync> Send for View<'_, T> {}
// SAFETY: a View is a shared borrow of plain numbers.
unsafe impl<T: Sync> Sync for View<'_, T> {}

impl<'a, T> View<'a, T> {
    /// Consecutive rows of `cols` elements.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a view must cover its slice");
        View { data: data.as_ptr(), rows, stored: cols, stride: cols as isize, owner: PhantomData }
    }

    /// Rows that start `stride` elements apart and hold `stored` elements each.
    ///
    /// # Safety
    /// For every row `i < rows`, the elements from `data + i * stride` to `data + i * stride + stored` must be readable and
    /// stay unchanged while the view lives.
    pub unsafe fn from_raw(data: *const T, rows: usize, stored: usize, stride: isize) -> Self {
        View { data, rows, stored, stride, owner: PhantomData }
    }

    /// The elements `columns` of the rows `rows`.
    pub fn part(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let fits = rows.start < rows.end && rows.end <= self.rows && columns.end <= self.stored;
        assert!(fits && columns.start <= columns.end, "a part of a view lies in it");
        // SAFETY: the first of them lies in the view, and the constructor's caller vouched for all of its elements.
        let data = unsafe { self.data.offset(rows.start as isize * self.stride).add(columns.start) };
        View { data, rows: rows.len(), stored: columns.len(), ..*self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements stored per row: the number of columns, or 1 for a constant row.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// Whether this is the same memory, read in the same way.
    pub fn is(&self, other: &Self) -> bool {
        (self.data, self.rows, self.stored, self.stride) == (other.data, other.rows, other.stored, other.stride)
    }

    /// The stored elements of row `i`.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.rows, "row {i} of a view with {} rows", self.rows);
        // SAFETY: `i` is a row, and the constructor's caller vouched for its elements.
        unsafe { std::slice::from_raw_parts(self.data.offset(i as isize * self.stride), self.stored) }
    }
}

/// A 16-bit floating-point format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// IEEE binary16.
    Float16,
    /// bfloat16: the upper 16 bits of IEEE binary32.
    BFloat16,
}

/// A matrix whose elements are stored in the type that kernels compute in, or in half precision, which that type holds exactly.
#[derive(Clone, Copy)]
pub enum Matrix<'a, T> {
    /// Elements of the type that kernels compute in.
    Full(View<'a, T>),
    /// 16-bit elements, which are widened when they are read.
    Half(View<'a, u16>, Half),
}

impl<'a, T: Float> Matrix<'a, T> {
    /// Whether each row begins where the one before it ends.
    pub fn is_whole(&self) -> bool {
        match self {
            Matrix::Full(view) => view.stride == view.stored as isize,
            Matrix::Half(view, _) => view.stride == view.stored as isize,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::Full(view) => view.rows(),
            Matrix::Half(view, _) => view.rows(),
        }
    }

    /// Elements stored per row, as in [`View::stored`].
    pub fn stored(&self) -> usize {
        match self {
            Matrix::Full(view) => view.stored(),
            Matrix::Half(view, _) => view.stored(),
        }
    }

    /// The bytes of row `i` in memory.
    #[inline(always)]
    pub fn bytes(&self, i: usize) -> &'a [u8] {
        fn bytes<T>(row: &[T]) -> &[u8] {
            // SAFETY: the elements are plain numbers without padding, so all of their bytes may be read.
            unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), std::mem::size_of_val(row)) }
        }
        match self {
            Matrix::Full(view) => bytes(view.row(i)),
            Matrix::Half(view, _) => bytes(view.row(i)),
        }
    }

    /// The stored elements of row `i`: borrowed from the matrix, or widened into `buffer`.
    #[inline(always)]
    pub fn row<'b>(&self, i: usize, buffer: &'b mut Vec<T>) -> &'b [T]
    where
        'a: 'b,
    {
        match self {
            Matrix::Full(view) => view.row(i),
            Matrix::Half(view, half) => {
                let row = view.row(i);
                buffer.resize(row.len(), T::default());
                dispatch(Widen { row, half: *half, out: &mut *buffer });
                buffer
            }
        }
    }

    /// The stored elements of consecutive rows: borrowed from the matrix, or widened into `buffer`.
    pub fn rows_of<'b>(&self, rows: Range<usize>, buffer: &'b mut Vec<T>) -> Vec<&'b [T]>
    where
        'a: 'b,
    {
        match self {
            Matrix::Full(view) => rows.map(|i| view.row(i)).collect(),
            Matrix::Half(view, half) => {
                buffer.resize(rows.len() * view.stored(), T::default());
                for (i, out) in rows.zip(buffer.chunks_mut(view.stored().max(1))) {
                    dispatch(Widen { row: view.row(i), half: *half, out });
                }
                buffer.chunks(view.stored().max(1)).collect()
            }
        }
    }

    /// The first element of row `i`.
    #[inline(always)]
    pub fn first(&self, i: usize) -> f64 {
        match self {
            Matrix::Full(view) => view.row(i)[0].to_f64(),
            Matrix::Half(view, Half::Float16) => f64::from(widen_f16(view.row(i)[0])),
            Matrix::Half(view, Half::BFloat16) => f64::from(widen_bf16(view.row(i)[0])),
        }
    }
}

#[inline(always)]
fn widen_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

struct Widen<'a, T> {
    row: &'a [u16],
    half: Half,
    out: &'a mut [T],
}
impl<T: Float> Kernel for Widen<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        if self.half == Half::BFloat16 {
            for (out, &half) in self.out.iter_mut().zip(self.row) {
                *out = T::from_f32(widen_bf16(half));
            }
            return;
        }
        let (row, rest) = self.row.as_chunks::<16>();
        let (out, out_rest) = self.out.as_chunks_mut::<16>();
        for (out, row) in out.iter_mut().zip(row) {
            T::widen_f16::<S>(row, out);
        }
        for (out, &half) in out_rest.iter_mut().zip(rest) {
            *out = T::from_f32(widen_f16(half));
        }
    }
}
