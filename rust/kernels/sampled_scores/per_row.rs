//! Values that are made once for each row of a side, for all pairs of a call.

use crate::memory;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Rows whose places are allocated together.
const CHUNK: usize = 256;

/// A value for each of many rows, made when it is first needed; a limited number of values is stored.
pub struct PerRow<I> {
    chunks: Vec<OnceLock<Box<[OnceLock<I>]>>>,
    left: AtomicUsize,
}

/// A stored value, or one that is made for a single use.
pub enum Cached<'a, I> {
    /// The value is stored.
    There(&'a I),
    /// The value is made for this use.
    Once(I),
}

impl<I> Deref for Cached<'_, I> {
    type Target = I;
    #[inline(always)]
    fn deref(&self) -> &I {
        match self {
            Cached::There(item) => item,
            Cached::Once(item) => item,
        }
    }
}

impl<I> PerRow<I> {
    /// For `rows` rows, at most `most` of whose values are stored.
    pub fn new(rows: usize, most: usize) -> Self {
        let chunks = if most == 0 { 0 } else { rows.div_ceil(CHUNK) };
        PerRow { chunks: memory::collected((0..chunks).map(|_| OnceLock::new())), left: AtomicUsize::new(most) }
    }

    /// The value of a row; `make` must make the same one whenever it is called.
    pub fn get(&self, row: usize, make: impl FnOnce() -> I) -> Cached<'_, I> {
        let Some(chunk) = self.chunks.get(row / CHUNK) else { return Cached::Once(make()) };
        let place = &chunk.get_or_init(|| memory::collected((0..CHUNK).map(|_| OnceLock::new())).into())[row % CHUNK];
        if let Some(item) = place.get() {
            return Cached::There(item);
        }
        // Rust 1.99 calls it try_update, a name that the oldest Rust that is allowed has not.
        #[allow(deprecated)]
        let took = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if took.is_err() {
            return Cached::Once(make());
        }
        Cached::There(place.get_or_init(make))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn rows_are_made_once_as_long_as_there_is_room() {
        let (rows, made) = (PerRow::new(1000, 3), Cell::new(0));
        let get = |row: usize| {
            let make = || {
                made.set(made.get() + 1);
                2 * row
            };
            assert_eq!(*rows.get(row, make), 2 * row);
        };
        for row in [0, 255, 256, 0, 255, 256] {
            get(row);
        }
        assert_eq!(made.get(), 3);
        for _ in 0..2 {
            get(999); // no memory is left
            get(0);
        }
        assert_eq!(made.get(), 5);
        let none = PerRow::<usize>::new(1000, 0);
        assert_eq!((*none.get(7, || 14), *none.get(7, || 15)), (14, 15));
    }
}
