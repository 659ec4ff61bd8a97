//! The only array type: a borrowed matrix whose rows may lie anywhere, but are themselves contiguous or constant.

use std::marker::PhantomData;

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
// SAFETY: as above.
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

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements stored per row: the number of columns, or 1 for a constant row.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// The stored elements of row `i`.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.rows, "row {i} of a view with {} rows", self.rows);
        // SAFETY: `i` is a row, and the constructor's caller vouched for its elements.
        unsafe { std::slice::from_raw_parts(self.data.offset(i as isize * self.stride), self.stored) }
    }
}
