//! Limits of one core here, for `benches/limits.py`: says in its first line how much a burst is of each kind of work, then
//! does one for each line that it reads.
//!
//! - `GF/s`: multiply-adds of float32 in as many sums as a register tile of a dense product has, on the SIMD level in use, which
//!   neither wait for each other nor for memory.
//! - `GB/s`: sums over an array far larger than the caches, in order.

use peaccel::simd::{dispatch, Kernel, Simd, V};
use std::hint::black_box;
use std::io::{stdin, BufRead, Result};

const LANES: usize = 16;
const STEPS: usize = 1 << 20;
const BYTES: usize = 1 << 28;

/// Multiply-adds; their number.
struct MultiplyAdds;
impl Kernel for MultiplyAdds {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        match S::TILE {
            (2, 12) => multiply_adds::<S, 24>(),
            (1, 6) => multiply_adds::<S, 6>(),
            _ => multiply_adds::<S, 2>(),
        }
    }
}

#[inline(always)]
fn multiply_adds<S: Simd, const SUMS: usize>() -> usize {
    let factor = V::<S, f32>::splat(black_box(0.5));
    let mut sums = [factor; SUMS];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = sum.mul_add(factor, factor);
        }
    }
    for sum in sums {
        black_box(sum.sum());
    }
    STEPS * SUMS * LANES
}

/// The sum of an array.
struct Sum<'a>(&'a [f32]);
impl Kernel for Sum<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let mut sums = [V::<S, f32>::splat(0.0); 4];
        for part in self.0.chunks_exact(4 * LANES) {
            for (sum, part) in sums.iter_mut().zip(part.chunks_exact(LANES)) {
                *sum = *sum + V::<S, f32>::load(part);
            }
        }
        ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum()
    }
}

fn main() -> Result<()> {
    let array = vec![1.0_f32; BYTES / size_of::<f32>()];
    println!("{{\"GF/s\": {}, \"GB/s\": {BYTES}}}", 2 * dispatch(MultiplyAdds));
    for line in stdin().lock().lines() {
        match line?.as_str() {
            "GF/s" => _ = black_box(dispatch(MultiplyAdds)),
            _ => _ = black_box(dispatch(Sum(&array))),
        }
        println!();
    }
    Ok(())
}
