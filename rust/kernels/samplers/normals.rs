//! Standard normal numbers by Box-Muller, sixteen blocks of words at a time.

use crate::rng::{self, Address, Block, BLOCKS};
use crate::simd::{Float, Simd, V};
use crate::special::log::ln_normal;
use crate::special::trig::sin_cos;

/// A type that normal numbers are drawn in.
pub trait Normals: Float {
    /// How many normals sixteen blocks give.
    const GROUP: usize;
    /// Makes a group's normals from its words.
    fn group<S: Simd>(words: &Block, out: &mut [Self]);
    /// Makes the first normal of each of sixteen blocks.
    fn firsts<S: Simd>(words: &Block, out: &mut [Self; BLOCKS]);
    /// Square root.
    fn sqrt(self) -> Self;
    /// `self * b + c`, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
}

/// Writes the first normals at an address; the length of `out` is a multiple of the group. The words of two groups are made
/// before the normals of either: both are long chains of dependent instructions, and a processor sees only so far ahead.
#[inline(always)]
pub fn fill<S: Simd, T: Normals>(address: &Address, out: &mut [T]) {
    for (pair, out) in out.chunks_mut(2 * T::GROUP).enumerate() {
        let (here, next) = out.split_at_mut(T::GROUP);
        let first = address.normals::<S>(2 * pair);
        if next.is_empty() {
            T::group::<S>(&first, here);
        } else {
            let second = address.normals::<S>(2 * pair + 1);
            T::group::<S>(&first, here);
            T::group::<S>(&second, next);
        }
    }
}

/// Writes the first `dim` normals at each address to `out` [addresses, dim], for up to as many dimensions as there are lanes:
/// number k is the first normal of block k. Two groups at a time, as in [`fill`].
#[inline(always)]
pub fn fill_few<S: Simd, T: Normals>(addresses: &[Address], dim: usize, out: &mut [T]) {
    let (mut item, mut number) = (0, 0);
    for out in out.chunks_mut(2 * BLOCKS) {
        let (mut rows, mut draws, mut numbers) = ([[0; BLOCKS]; 2], [[0; BLOCKS]; 2], [[0; BLOCKS]; 2]);
        for i in 0..out.len() {
            let at = (i / BLOCKS, i % BLOCKS);
            (rows[at.0][at.1], draws[at.0][at.1]) = (addresses[item].row, addresses[item].draw);
            numbers[at.0][at.1] = number as u32;
            number += 1;
            if number == dim {
                (item, number) = (item + 1, 0);
            }
        }
        // No closure: it would not inherit the instruction set of this function.
        let words = [
            rng::normals::<S>(&addresses[0], &rows[0], &draws[0], &numbers[0]),
            rng::normals::<S>(&addresses[0], &rows[1], &draws[1], &numbers[1]),
        ];
        let mut normals = [[T::default(); BLOCKS]; 2];
        T::firsts::<S>(&words[0], &mut normals[0]);
        T::firsts::<S>(&words[1], &mut normals[1]);
        out.copy_from_slice(&normals.as_flattened()[..out.len()]);
    }
}

/// Writes two normals each, to `first` and, unless it is empty, to `second`, from u in (0, 1), an angle of x quarter turns, x in
/// (-1/2, 1/2), a sign of +-1, and swap < 0 where cosine and sine change places.
#[inline(always)]
fn box_muller<S: Simd, T: Float>([u, x, sign, swap]: [&[T]; 4], first: &mut [T], second: &mut [T]) {
    for lane in (0..T::LANES).step_by(V::<S, T>::LANES) {
        let (u, x) = (V::<S, T>::load(&u[lane..]), V::<S, T>::load(&x[lane..]));
        let radius = (-2.0 * ln_normal::<S, T>(u)).sqrt();
        let (sine, cosine) = sin_cos::<S, T>(x);
        let (sine, cosine) = (radius * sine, radius * cosine * V::<S, T>::load(&sign[lane..]));
        let swap = V::<S, T>::load(&swap[lane..]);
        swap.if_less(0.0, sine, cosine).store(&mut first[lane..]);
        if !second.is_empty() {
            swap.if_less(0.0, cosine, sine).store(&mut second[lane..]);
        }
    }
}

/// Two words of a block as one, the first of them high.
#[inline(always)]
pub fn joined(words: &Block, first: usize, block: usize) -> u64 {
    u64::from(words[first][block]) << 32 | u64::from(words[first + 1][block])
}

macro_rules! numbers {
    ($name:ident, $t:ty, $bits:ty, $lanes:expr, $shift:expr) => {
        /// (u, x, sign, swap) of [`box_muller`] from words for the radius and the angle.
        #[inline(always)]
        pub fn $name(radius: &[$bits; $lanes], angle: &[$bits; $lanes]) -> [[$t; $lanes]; 4] {
            const ONE: $bits = (1.0 as $t).to_bits();
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            const HALF: $t = <$t>::EPSILON / 2.0;
            let mut out = [[0.0; $lanes]; 4];
            for i in 0..$lanes {
                // Significands in [1, 2); all differences are exact.
                out[0][i] = <$t>::from_bits(ONE | radius[i] >> $shift) - (1.0 - HALF);
                out[1][i] = <$t>::from_bits(ONE | (angle[i] << 2) >> $shift) - 1.5 + HALF;
                out[2][i] = <$t>::from_bits(ONE | (angle[i] & SIGN));
                out[3][i] = <$t>::from_bits(ONE | ((angle[i] << 1) & SIGN));
            }
            out
        }
    };
}
numbers!(singles, f32, u32, 16, 9);
numbers!(doubles, f64, u64, 8, 12);

impl Normals for f32 {
    const GROUP: usize = 4 * BLOCKS;

    /// Words 0 and 1 of the sixteen blocks give the cosines, then the sines, of the first 32; words 2 and 3 the rest.
    #[inline(always)]
    fn group<S: Simd>(words: &Block, out: &mut [f32]) {
        for (pair, out) in words.chunks_exact(2).zip(out.chunks_exact_mut(2 * BLOCKS)) {
            let (numbers, (first, second)) = (singles(&pair[0], &pair[1]), out.split_at_mut(BLOCKS));
            box_muller::<S, f32>(numbers.each_ref().map(|x| &x[..]), first, second);
        }
    }

    #[inline(always)]
    fn firsts<S: Simd>(words: &Block, out: &mut [f32; BLOCKS]) {
        box_muller::<S, f32>(singles(&words[0], &words[1]).each_ref().map(|x| &x[..]), out, &mut []);
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
}

/// Writes the normals of the first eight blocks or of the others, as [`box_muller`] does.
#[inline(always)]
fn pairs_of_half<S: Simd>(words: &Block, half: usize, first: &mut [f64], second: &mut [f64]) {
    let (mut radius, mut angle) = ([0; BLOCKS / 2], [0; BLOCKS / 2]);
    for i in 0..BLOCKS / 2 {
        let block = half * BLOCKS / 2 + i;
        radius[i] = joined(words, 0, block);
        angle[i] = joined(words, 2, block);
    }
    box_muller::<S, f64>(doubles(&radius, &angle).each_ref().map(|x| &x[..]), first, second);
}

impl Normals for f64 {
    const GROUP: usize = 2 * BLOCKS;

    /// The first eight blocks give the cosines, then the sines, of the first 16; words 0 and 1 (high, low) are the radius,
    /// 2 and 3 the angle.
    #[inline(always)]
    fn group<S: Simd>(words: &Block, out: &mut [f64]) {
        for (half, out) in out.chunks_exact_mut(BLOCKS).enumerate() {
            let (first, second) = out.split_at_mut(BLOCKS / 2);
            pairs_of_half::<S>(words, half, first, second);
        }
    }

    #[inline(always)]
    fn firsts<S: Simd>(words: &Block, out: &mut [f64; BLOCKS]) {
        for (half, out) in out.chunks_exact_mut(BLOCKS / 2).enumerate() {
            pairs_of_half::<S>(words, half, out, &mut []);
        }
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
}
