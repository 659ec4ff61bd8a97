//! Threads: the only user of rayon.
//!
//! Work comes as independent parts, so its result does not depend on how many threads there are. The caller begins alone, and
//! wakes the pool if the work lasts longer than waking it takes. The caller then waits outside the pool in slices of 50 ms,
//! after each of which it asks whether it was interrupted; workers look at a flag between parts. The pool belongs to the
//! process that made it: after a fork the child makes its own and forgets the old one, whose threads do not exist there.

use crate::error::Error;
use crate::memory;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(50);

/// About how long it takes to wake threads and to hear from them again on a busy machine.
const WAKING: Duration = Duration::from_micros(100);

static THREADS: AtomicUsize = AtomicUsize::new(0);

struct Pool {
    process: u32,
    threads: usize,
    pool: ThreadPool,
}
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

/// The number of threads in use: the one that was set, else `PEACCEL_NUM_THREADS`, else `OMP_NUM_THREADS`, which numpy, torch
/// and FAISS read as well, else the parallelism that the machine offers this process. Of a list, which has an entry for each
/// level of nesting, the first counts.
pub fn num_threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            let asked = |name| {
                let text = std::env::var(name).ok()?;
                text.split(',').next()?.trim().parse().ok().filter(|&n| n > 0)
            };
            let wanted = asked("PEACCEL_NUM_THREADS").or_else(|| asked("OMP_NUM_THREADS"));
            let n = wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
            THREADS.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// Sets the number of threads for all later calls, at least 1.
pub fn set_num_threads(n: usize) {
    THREADS.store(n.max(1), Ordering::Relaxed);
}

/// A pool of this process with at least `threads` threads. Pools are never dropped: one that is too small may still be in use
/// elsewhere, and one inherited by a fork has no threads to join.
fn pool(threads: usize) -> Result<&'static ThreadPool, Error> {
    let process = std::process::id();
    let current = POOL.load(Ordering::Acquire);
    // SAFETY: a stored pointer comes from `Box::into_raw` below and is never freed.
    if let Some(found) = unsafe { current.as_ref() } {
        if found.process == process && found.threads >= threads {
            return Ok(&found.pool);
        }
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("peaccel-{i}"))
        .build()
        .map_err(|e| Error::Value(format!("set_num_threads: cannot start {threads} threads: {e}")))?;
    let fresh = Box::into_raw(Box::new(Pool { process, threads, pool }));
    POOL.store(fresh, Ordering::Release);
    // SAFETY: the pool was just allocated, and is never freed.
    Ok(unsafe { &(*fresh).pool })
}

/// Parts of work, which any thread may take.
pub trait Parts: IntoIterator<IntoIter: ExactSizeIterator + Send> {}
impl<P: IntoIterator<IntoIter: ExactSizeIterator + Send>> Parts for P {}

/// Runs `work` on every part, on up to [`num_threads`] threads, and returns when all are done. Once `interrupted` returns true,
/// no further part is started and the call returns [`Error::Interrupted`]. Other threads are woken once the caller has worked
/// alone for half the time that waking them takes, if the rest would take it more than twice that time: little work is not
/// slower on many threads.
pub fn for_each<P: Parts>(
    parts: P,
    interrupted: &dyn Fn() -> bool,
    work: impl Fn(P::Item) + Sync,
) -> Result<(), Error> {
    each(parts, true, interrupted, work)
}

/// [`for_each`] for parts each of which takes longer than waking threads does: the threads are woken at once.
pub fn for_each_long<P: Parts>(
    parts: P,
    interrupted: &dyn Fn() -> bool,
    work: impl Fn(P::Item) + Sync,
) -> Result<(), Error> {
    each(parts, false, interrupted, work)
}

fn each<P: Parts>(
    parts: P,
    alone: bool,
    interrupted: &dyn Fn() -> bool,
    work: impl Fn(P::Item) + Sync,
) -> Result<(), Error> {
    let parts = parts.into_iter();
    let count = parts.len();
    let queue = Mutex::new(parts);
    run(count, alone, interrupted, &|| {
        memory::require_reserve();
        let part = queue.lock().map_or(None, |mut queue| queue.next());
        part.map(&work).is_some()
    })
}

/// [`each`] for parts of any type: `step` does one part and returns whether there was one left. It is compiled once.
fn run(
    parts: usize,
    alone: bool,
    interrupted: &dyn Fn() -> bool,
    step: &(dyn Fn() -> bool + Sync),
) -> Result<(), Error> {
    let begun = Instant::now();
    let (mut left, mut asked) = (parts, begun);
    let little = |left: usize| {
        let (spent, done) = (begun.elapsed(), parts - left);
        done == 0 || spent < WAKING / 2 || spent.mul_f64(left as f64 / done as f64) < 2 * WAKING
    };
    while left > 0 && (num_threads().min(left) == 1 || (alone && little(left))) {
        step();
        left -= 1;
        if asked.elapsed() > SLICE {
            if interrupted() {
                return Err(Error::Interrupted);
            }
            asked = Instant::now();
        }
    }
    if left == 0 {
        return Ok(());
    }
    run_in_pool(num_threads().min(left), interrupted, step)
}

/// Calls `step` on so many threads of the pool until it says that there is no more.
fn run_in_pool(threads: usize, interrupted: &dyn Fn() -> bool, step: &(dyn Fn() -> bool + Sync)) -> Result<(), Error> {
    let pool = pool(threads)?;
    let stop = AtomicBool::new(false);
    let (done, finished) = channel();
    let worker = || {
        let mut more = true;
        while more && !stop.load(Ordering::Relaxed) {
            more = step();
        }
    };
    for _ in 0..threads {
        let done = done.clone();
        let job: Box<dyn FnOnce() + Send> = Box::new(|| {
            let outcome = catch_unwind(AssertUnwindSafe(worker));
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            // Moving the sender in here makes it outlive the borrow of everything else.
            let done = done;
            let _ = done.send(outcome);
        });
        // SAFETY: this function does not return before every job has sent its outcome, the last thing that it does, so what
        // the job borrows outlives it.
        let job =
            unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Box<dyn FnOnce() + Send + 'static>>(job) };
        pool.spawn(job);
    }
    let mut panic = None;
    let mut running = threads;
    while running > 0 {
        match finished.recv_timeout(SLICE) {
            Ok(outcome) => {
                running -= 1;
                panic = outcome.err().or(panic);
            }
            Err(RecvTimeoutError::Timeout) => {
                if !stop.load(Ordering::Relaxed) && interrupted() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the caller holds a sender"),
        }
    }
    match panic {
        Some(panic) => resume_unwind(panic),
        None if stop.into_inner() => Err(Error::Interrupted),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_run_once_and_an_interrupt_ends_the_rest() {
        set_num_threads(3);
        let mut out = vec![0u32; 1000];
        for_each(out.iter_mut(), &|| false, |x| *x += 1).expect("not interrupted");
        assert!(out.iter().all(|&x| x == 1));

        let count = AtomicUsize::new(0);
        let slow = |_| {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(for_each(vec![(); 1000], &|| true, slow), Err(Error::Interrupted));
        assert!(count.into_inner() < 200);
    }

    #[test]
    fn too_little_memory_in_a_worker_reaches_the_call() {
        set_num_threads(3);
        let list = |part| drop(memory::filled(part, if part == 5 { usize::MAX } else { 1 }));
        let failed = memory::guarded(("search", "mls"), || for_each(0..10, &|| false, list));
        assert!(matches!(failed, Err(Error::Memory(_))));
    }

    #[test]
    fn a_panic_in_a_worker_reaches_the_caller() {
        set_num_threads(3);
        let outcome = catch_unwind(|| for_each(0..10, &|| false, |i| assert!(i != 5, "five")));
        assert!(outcome.is_err());
    }
}
