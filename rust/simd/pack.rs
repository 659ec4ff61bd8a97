//! The logical lanes as a pack of registers, and the register that every machine has: one number.

use super::{Float, Lanes, Words, PIECES, PIECES_FROM, PIECES_TO};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// One hardware register: the operations that [`Pack`] spreads over `N` of them.
///
/// # Safety
/// Every method may only run where the level's instructions exist, which [`super::dispatch`] guarantees.
#[allow(missing_docs, clippy::missing_safety_doc)] // each method is the operation of `Lanes` of the same name, on one register
pub trait Register: Copy {
    type Elem: Float;
    const WIDTH: usize;
    unsafe fn splat(x: Self::Elem) -> Self;
    unsafe fn load(p: *const Self::Elem) -> Self;
    unsafe fn store(self, p: *mut Self::Elem);
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    unsafe fn neg(self) -> Self;
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    unsafe fn abs(self) -> Self;
    unsafe fn min(self, b: Self) -> Self;
    unsafe fn max(self, b: Self) -> Self;
    unsafe fn if_less(self, b: Self, yes: Self, no: Self) -> Self;
    unsafe fn not_less_bits(self, b: Self) -> u32;
    unsafe fn exponent(self) -> Self;
    unsafe fn significand(self) -> Self;
    unsafe fn pow2(self) -> Self;
    /// `self` lies in [`PIECES_FROM`, `PIECES_TO`).
    unsafe fn lookup(self, table: *const Self::Elem) -> Self;
    unsafe fn place(self) -> Self;
    unsafe fn sum(self) -> Self::Elem;
    unsafe fn product(self) -> Self::Elem;
}

/// `N` registers that together hold the logical lanes.
#[derive(Clone, Copy)]
pub struct Pack<R, const N: usize>([R; N]);

// Loops over arrays instead of closures: a closure does not inherit the instructions of the function it is written in.
macro_rules! each {
    ($a:expr, $($op:ident($($arg:expr),*)),+) => {{
        let mut r = $a.0;
        for i in 0..N {
            // SAFETY: values of this type exist only inside `dispatch` on a level that has the instructions.
            r[i] = unsafe { $(r[i].$op($($arg.0[i]),*))+ };
        }
        Pack(r)
    }};
}

macro_rules! tree {
    ($a:expr, $op:ident, $within:ident) => {{
        let mut r = $a.0;
        let mut n = N;
        // SAFETY: as in `each!`.
        unsafe {
            while n > 1 {
                n /= 2;
                for i in 0..n {
                    r[i] = r[i].$op(r[i + n]);
                }
            }
            r[0].$within()
        }
    }};
}

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl<R: Register, const N: usize> $trait for Pack<R, N> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, b: Self) -> Self {
                each!(self, $method(b))
            }
        }
    };
}
operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl<R: Register, const N: usize> Neg for Pack<R, N> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        each!(self, neg())
    }
}

impl<R: Register, const N: usize> Lanes<R::Elem> for Pack<R, N> {
    #[inline(always)]
    fn splat(x: R::Elem) -> Self {
        // SAFETY: as in `each!`.
        Pack([unsafe { R::splat(x) }; N])
    }
    #[inline(always)]
    fn load(x: &[R::Elem]) -> Self {
        assert!(x.len() == N * R::WIDTH);
        // SAFETY: the slice holds N * WIDTH elements; level as in `each!`.
        unsafe {
            let mut r = [R::load(x.as_ptr()); N];
            for i in 1..N {
                r[i] = R::load(x.as_ptr().add(i * R::WIDTH));
            }
            Pack(r)
        }
    }
    #[inline(always)]
    fn load_partial(x: &[R::Elem], fill: R::Elem) -> Self {
        let mut buffer = [fill; 16];
        buffer[..x.len()].copy_from_slice(x);
        Self::load(&buffer[..N * R::WIDTH])
    }
    #[inline(always)]
    fn store(self, out: &mut [R::Elem]) {
        assert!(out.len() == N * R::WIDTH);
        for i in 0..N {
            // SAFETY: the slice holds N * WIDTH elements; level as in `each!`.
            unsafe { self.0[i].store(out.as_mut_ptr().add(i * R::WIDTH)) }
        }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        each!(self, mul_add(b, c))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        each!(self, sqrt())
    }
    #[inline(always)]
    fn abs(self) -> Self {
        each!(self, abs())
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        each!(self, min(b))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        each!(self, max(b))
    }
    #[inline(always)]
    fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
        each!(self, if_less(b, yes, no))
    }
    #[inline(always)]
    fn not_less_bits(self, b: Self) -> u32 {
        let mut bits = 0;
        for i in 0..N {
            // SAFETY: as in `each!`.
            bits |= unsafe { self.0[i].not_less_bits(b.0[i]) } << (i * R::WIDTH);
        }
        bits
    }
    #[inline(always)]
    fn exponent(self) -> Self {
        each!(self, exponent())
    }
    #[inline(always)]
    fn significand(self) -> Self {
        each!(self, significand())
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        each!(self, pow2())
    }
    #[inline(always)]
    fn lookup(self, table: &[R::Elem; PIECES]) -> Self {
        let smallest = Self::splat(R::Elem::from_f64(PIECES_FROM));
        let largest = Self::splat(R::Elem::from_f64(PIECES_TO * (1.0 - 2.0 * R::Elem::ROUNDOFF)));
        let mut r = self.max(smallest).min(largest).0;
        for i in 0..N {
            // SAFETY: the bounds, which NaN meets as well, keep every lane within the pieces; level as in `each!`.
            r[i] = unsafe { r[i].lookup(table.as_ptr()) };
        }
        Pack(r)
    }
    #[inline(always)]
    fn place(self) -> Self {
        each!(self, place())
    }
    #[inline(always)]
    fn sum(self) -> R::Elem {
        tree!(self, add, sum)
    }
    #[inline(always)]
    fn product(self) -> R::Elem {
        tree!(self, mul, product)
    }
}

/// One number as a register of width 1. A processor without fused multiply-add emulates it: slow, with the same bits.
#[derive(Clone, Copy)]
pub struct One<T>(T);

macro_rules! one {
    ($t:ty, $bits:ty, $shift:expr, $bias:expr) => {
        impl Register for One<$t> {
            type Elem = $t;
            const WIDTH: usize = 1;
            #[inline(always)]
            unsafe fn splat(x: $t) -> Self {
                One(x)
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                One(unsafe { *p })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                unsafe { *p = self.0 }
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                One(self.0 + b.0)
            }
            #[inline(always)]
            unsafe fn sub(self, b: Self) -> Self {
                One(self.0 - b.0)
            }
            #[inline(always)]
            unsafe fn mul(self, b: Self) -> Self {
                One(self.0 * b.0)
            }
            #[inline(always)]
            unsafe fn div(self, b: Self) -> Self {
                One(self.0 / b.0)
            }
            #[inline(always)]
            unsafe fn neg(self) -> Self {
                One(-self.0)
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                One(self.0.mul_add(b.0, c.0))
            }
            #[inline(always)]
            unsafe fn sqrt(self) -> Self {
                One(self.0.sqrt())
            }
            #[inline(always)]
            unsafe fn abs(self) -> Self {
                One(self.0.abs())
            }
            #[inline(always)]
            unsafe fn min(self, b: Self) -> Self {
                if self.0 < b.0 {
                    self
                } else {
                    b
                }
            }
            #[inline(always)]
            unsafe fn max(self, b: Self) -> Self {
                if self.0 > b.0 {
                    self
                } else {
                    b
                }
            }
            #[inline(always)]
            unsafe fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
                if self.0 < b.0 {
                    yes
                } else {
                    no
                }
            }
            #[inline(always)]
            unsafe fn not_less_bits(self, b: Self) -> u32 {
                u32::from(!(self.0 < b.0))
            }
            #[inline(always)]
            unsafe fn exponent(self) -> Self {
                const MASK: $bits = ((1 as $bits) << (<$bits>::BITS - 1 - $shift)) - 1;
                One(((self.0.to_bits() >> $shift) & MASK) as $t - $bias)
            }
            #[inline(always)]
            unsafe fn significand(self) -> Self {
                const FIELD: $bits = (1 << $shift) - 1;
                One(<$t>::from_bits((self.0.to_bits() & FIELD) | (1.0 as $t).to_bits()))
            }
            #[inline(always)]
            unsafe fn pow2(self) -> Self {
                One(<$t>::from_bits(((self.0 + $bias) as $bits) << $shift))
            }
            #[inline(always)]
            unsafe fn lookup(self, table: *const $t) -> Self {
                let first = (PIECES_FROM as $t).to_bits() >> <$t>::PIECE_SHIFT;
                One(unsafe { *table.add(((self.0.to_bits() >> <$t>::PIECE_SHIFT) - first) as usize) })
            }
            #[inline(always)]
            unsafe fn place(self) -> Self {
                const FIELD: $bits = (1 << <$t>::PIECE_SHIFT) - 1;
                One(<$t>::from_bits((self.0.to_bits() & FIELD) | (1.0 as $t).to_bits()))
            }
            #[inline(always)]
            unsafe fn sum(self) -> $t {
                self.0
            }
            #[inline(always)]
            unsafe fn product(self) -> $t {
                self.0
            }
        }
    };
}
one!(f32, u32, 23, 127.0);
one!(f64, u64, 52, 1023.0);

impl Words for [u64; 16] {
    #[inline(always)]
    fn new(words: &[u32; 16]) -> Self {
        let mut out = [0; 16];
        for i in 0..16 {
            out[i] = u64::from(words[i]);
        }
        out
    }
    #[inline(always)]
    fn words(self) -> [u32; 16] {
        let mut out = [0; 16];
        for i in 0..16 {
            out[i] = self[i] as u32;
        }
        out
    }
    #[inline(always)]
    fn product(mut self, factor: u32) -> Self {
        for i in 0..16 {
            self[i] = u64::from(self[i] as u32) * u64::from(factor);
        }
        self
    }
    #[inline(always)]
    fn high_xor(mut self, b: Self, key: u32) -> Self {
        for i in 0..16 {
            self[i] = self[i] >> 32 ^ b[i] ^ u64::from(key);
        }
        self
    }
}
