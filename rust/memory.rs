//! Memory that grows with the data of a call: where there is too little, the call ends with an error, not the process.
//!
//! Rust's own lists end the process where an allocation fails. Those whose length depends on queries, k, candidates, rows or draws
//! are made here. Too little memory unwinds as a panic does, from whichever thread, to [`guarded`]. Other lists are small: in the
//! Python module an allocator holds a reserve for them, and the call that took from it ends at its next part or list.

use crate::error::Error;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The system's allocator with the reserve.
struct WithReserve;

#[cfg_attr(feature = "python", global_allocator)]
#[cfg_attr(not(feature = "python"), allow(dead_code))]
static ALLOCATOR: WithReserve = WithReserve;

/// The reserve, which nobody writes to, so that it takes no memory but addresses; null once it was given back to the system.
static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The bytes of the small allocation for which it was given back; else 0.
static SHORT: AtomicUsize = AtomicUsize::new(0);
/// The bytes of the reserve, and of what is small beside it.
const RESERVED: usize = 1 << 22;
const SMALL: usize = RESERVED / 8;

fn layout() -> Layout {
    Layout::new::<[u64; RESERVED / 8]>()
}

impl WithReserve {
    /// Memory of the system; where it has none, a second try once the reserve is given back.
    #[inline(always)]
    fn or_of_reserve(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        let found = allocate();
        if found.is_null() && size <= SMALL {
            let reserve = RESERVE.swap(null_mut(), Ordering::AcqRel);
            if !reserve.is_null() {
                SHORT.store(size, Ordering::Relaxed);
                // SAFETY: it was allocated with this layout, and was taken out of where others could find it.
                unsafe { System.dealloc(reserve, layout()) };
            }
            return allocate();
        }
        found
    }
}

// SAFETY: all memory is the system's.
unsafe impl GlobalAlloc for WithReserve {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::or_of_reserve(layout.size(), || unsafe { System.alloc(layout) })
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::or_of_reserve(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::or_of_reserve(size, || unsafe { System.realloc(memory, layout, size) })
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Takes the reserve where it is not held.
fn hold_reserve() {
    SHORT.store(0, Ordering::Relaxed);
    if RESERVE.load(Ordering::Acquire).is_null() {
        // SAFETY: the layout has a size.
        let fresh = unsafe { System.alloc(layout()) };
        if fresh.is_null() {
            too_little::<u8>(RESERVED);
        }
        if RESERVE.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: another thread was first, and nobody else knows of this memory.
            unsafe { System.dealloc(fresh, layout()) };
        }
    }
}

/// The payload of the unwinding: the bytes that were wanted.
struct TooLittle(usize);

/// Runs the work of a call, such as ("search", "mls_isotropic"). Where there is too little memory for it, the error names the call.
pub fn guarded<R>(call: (&str, &str), work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    let held = || {
        hold_reserve();
        work()
    };
    catch_unwind(AssertUnwindSafe(held)).unwrap_or_else(|panic| match panic.downcast::<TooLittle>() {
        Ok(wanted) => Err(Error::Memory(format!("{} of {}: unable to allocate {} bytes", call.0, call.1, wanted.0))),
        Err(panic) => resume_unwind(panic),
    })
}

/// Ends the call where the reserve was given back.
#[inline]
pub fn require_reserve() {
    let short = SHORT.load(Ordering::Relaxed);
    if short != 0 {
        too_little::<u8>(short);
    }
}

#[cold]
#[inline(never)]
fn too_little<T>(n: usize) -> ! {
    resume_unwind(Box::new(TooLittle(n.saturating_mul(size_of::<T>()))))
}

/// An empty list with room for `n` items.
pub fn room<T>(n: usize) -> Vec<T> {
    let mut items = Vec::new();
    require_reserve();
    if items.try_reserve_exact(n).is_err() {
        too_little::<T>(n);
    }
    items
}

/// Makes room for `more` items of a list.
pub fn reserve<T>(items: &mut Vec<T>, more: usize) {
    require_reserve();
    if items.try_reserve(more).is_err() {
        too_little::<T>(items.len().saturating_add(more));
    }
}

/// Appends an item.
#[inline(always)]
pub fn push<T>(items: &mut Vec<T>, item: T) {
    if items.len() == items.capacity() {
        reserve(items, 1);
    }
    items.push(item);
}

/// Brings a list to `n` items: cuts it, or appends copies.
pub fn resize<T: Clone>(items: &mut Vec<T>, n: usize, item: T) {
    reserve(items, n.saturating_sub(items.len()));
    items.resize(n, item);
}

/// A list of `n` copies.
pub fn filled<T: Clone>(item: T, n: usize) -> Vec<T> {
    let mut items = room(n);
    items.resize(n, item);
    items
}

/// The list of some items.
pub fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut all = room(items.len());
    all.extend(items);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_an_error_of_the_call() {
        let most = isize::MAX as usize / 8;
        let works: [&dyn Fn(); 4] =
            [&|| drop(filled(0.0, most)), &|| drop(collected(0..most)), &|| resize(&mut vec![0_u64], most, 1), &|| {
                reserve(&mut vec![0_u64], most - 1)
            }];
        for work in works {
            let failed = guarded(("search", "mls"), || {
                work();
                Ok(())
            });
            assert_eq!(failed, Err(Error::Memory(format!("search of mls: unable to allocate {} bytes", 8 * most))));
        }
        assert_eq!(guarded(("search", "mls"), || Ok(filled(7, 3))), Ok(vec![7, 7, 7]));
        assert!(catch_unwind(|| guarded::<()>(("search", "mls"), || panic!("another"))).is_err());
    }
}
