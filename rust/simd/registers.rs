//! The operations of a level's registers, the register made of two of half the width, and the baseline's register: an array.

use super::{Float, Words, PIECES_FROM};

/// A register: it implements the operations of [`super::Lanes`].
///
/// # Safety
/// Every method may only run where the level's instructions exist, which [`super::dispatch`] guarantees.
#[allow(missing_docs, clippy::missing_safety_doc)] // each method is the operation of `Lanes` of the same name, on one register
pub trait Register: Copy {
    type Elem: Float;
    const WIDTH: usize;
    unsafe fn splat(x: Self::Elem) -> Self;
    unsafe fn load(p: *const Self::Elem) -> Self;
    /// Loads the first `n` lanes, at most `WIDTH`, from memory; the others are those of `rest`.
    unsafe fn load_first(p: *const Self::Elem, n: usize, rest: Self) -> Self;
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
    /// Requires that all lanes lie in the pieces.
    unsafe fn lookup(self, table: *const Self::Elem) -> Self;
    unsafe fn place(self) -> Self;
    unsafe fn sum(self) -> Self::Elem;
    unsafe fn product(self) -> Self::Elem;
    /// [`Register::sum`] of four registers.
    unsafe fn sum_four(x: [Self; 4]) -> [Self::Elem; 4];
    /// Requires `WIDTH` rows, as many elements of each from `from` on, and memory for the columns, `step` elements apart.
    #[inline(always)]
    unsafe fn transpose(rows: &[&[Self::Elem]], from: usize, to: *mut Self::Elem, step: usize) {
        for (lane, row) in rows[..Self::WIDTH].iter().enumerate() {
            for (column, &x) in row[from..from + Self::WIDTH].iter().enumerate() {
                unsafe { to.add(column * step + lane).write(x) }
            }
        }
    }
}

/// Two registers as one. Loops over arrays of registers would do the same, but take ten times as long to compile.
#[derive(Clone, Copy)]
pub struct Two<R>(pub R, pub R);

macro_rules! two {
    ($($op:ident($($arg:ident),*)),+) => {
        $(
            #[inline(always)]
            unsafe fn $op(self, $($arg: Self),*) -> Self {
                unsafe { Two(self.0.$op($($arg.0),*), self.1.$op($($arg.1),*)) }
            }
        )+
    };
}

impl<R: Register> Register for Two<R> {
    type Elem = R::Elem;
    const WIDTH: usize = 2 * R::WIDTH;
    #[inline(always)]
    unsafe fn splat(x: R::Elem) -> Self {
        unsafe { Two(R::splat(x), R::splat(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const R::Elem) -> Self {
        unsafe { Two(R::load(p), R::load(p.add(R::WIDTH))) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const R::Elem, n: usize, rest: Self) -> Self {
        let low = n.min(R::WIDTH);
        unsafe { Two(R::load_first(p, low, rest.0), R::load_first(p.add(low), n - low, rest.1)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut R::Elem) {
        unsafe {
            self.0.store(p);
            self.1.store(p.add(R::WIDTH));
        }
    }
    two!(add(b), sub(b), mul(b), div(b), neg(), mul_add(b, c), sqrt(), abs(), min(b), max(b), if_less(b, yes, no));
    two!(exponent(), significand(), pow2(), place());
    #[inline(always)]
    unsafe fn not_less_bits(self, b: Self) -> u32 {
        unsafe { self.0.not_less_bits(b.0) | self.1.not_less_bits(b.1) << R::WIDTH }
    }
    #[inline(always)]
    unsafe fn lookup(self, table: *const R::Elem) -> Self {
        unsafe { Two(self.0.lookup(table), self.1.lookup(table)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> R::Elem {
        unsafe { self.0.add(self.1).sum() }
    }
    #[inline(always)]
    unsafe fn product(self) -> R::Elem {
        unsafe { self.0.mul(self.1).product() }
    }
    #[inline(always)]
    unsafe fn sum_four([a, b, c, d]: [Self; 4]) -> [R::Elem; 4] {
        unsafe { R::sum_four([a.0.add(a.1), b.0.add(b.1), c.0.add(c.1), d.0.add(d.1)]) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[&[R::Elem]], from: usize, to: *mut R::Elem, step: usize) {
        for (half, rows) in rows[..Self::WIDTH].chunks(R::WIDTH).enumerate() {
            for part in 0..2 {
                let column = part * R::WIDTH;
                unsafe { R::transpose(rows, from + column, to.add(column * step + half * R::WIDTH), step) }
            }
        }
    }
}

/// Implements [`Register`] for a register of the processor's, from its instructions: `fma(a, b, c)` is `a * b + c`, `min` and `max`
/// give `b` for a NaN in either, and what stands in bars names the operands of the expressions after it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! register {
    ($reg:ty, $elem:ty, $width:expr, $splat:ident, $load:ident,
     load_first: |$from:ident, $n:ident, $rest:ident| $load_first:expr; $store:ident, $add:ident, $sub:ident, $mul:ident,
     $div:ident, $fma:ident, $sqrt:ident, $min:ident, $max:ident,
     sign: |$s:ident| $abs:expr, $neg:expr;
     compare: |$a:ident, $b:ident, $yes:ident, $no:ident| $if_less:expr, $not_less_bits:expr;
     fields: |$f:ident| $exponent:expr, $significand:expr, $pow2:expr;
     pieces: |$p:ident, $table:ident| $lookup:expr, $place:expr;
     sum: |$t:ident| $sum:expr, $product:expr; four: |$four:ident| $sums:expr $(; transpose: $transpose:ident)?) => {
        impl Register for $reg {
            type Elem = $elem;
            const WIDTH: usize = $width;
            #[inline(always)]
            unsafe fn splat(x: $elem) -> Self {
                unsafe { $splat(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const $elem) -> Self {
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn load_first($from: *const $elem, $n: usize, $rest: Self) -> Self {
                unsafe { $load_first }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $elem) {
                unsafe { $store(p, self) }
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                unsafe { $add(self, b) }
            }
            #[inline(always)]
            unsafe fn sub(self, b: Self) -> Self {
                unsafe { $sub(self, b) }
            }
            #[inline(always)]
            unsafe fn mul(self, b: Self) -> Self {
                unsafe { $mul(self, b) }
            }
            #[inline(always)]
            unsafe fn div(self, b: Self) -> Self {
                unsafe { $div(self, b) }
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                unsafe { $fma(self, b, c) }
            }
            #[inline(always)]
            unsafe fn sqrt(self) -> Self {
                unsafe { $sqrt(self) }
            }
            #[inline(always)]
            unsafe fn min(self, b: Self) -> Self {
                unsafe { $min(self, b) }
            }
            #[inline(always)]
            unsafe fn max(self, b: Self) -> Self {
                unsafe { $max(self, b) }
            }
            #[inline(always)]
            unsafe fn neg(self) -> Self {
                let $s = self;
                unsafe { $neg }
            }
            #[inline(always)]
            unsafe fn abs(self) -> Self {
                let $s = self;
                unsafe { $abs }
            }
            #[inline(always)]
            unsafe fn if_less(self, $b: Self, $yes: Self, $no: Self) -> Self {
                let $a = self;
                unsafe { $if_less }
            }
            #[inline(always)]
            unsafe fn not_less_bits(self, $b: Self) -> u32 {
                let $a = self;
                unsafe { $not_less_bits }
            }
            #[inline(always)]
            unsafe fn exponent(self) -> Self {
                let $f = self;
                unsafe { $exponent }
            }
            #[inline(always)]
            unsafe fn significand(self) -> Self {
                let $f = self;
                unsafe { $significand }
            }
            #[inline(always)]
            unsafe fn pow2(self) -> Self {
                let $f = self;
                unsafe { $pow2 }
            }
            #[inline(always)]
            unsafe fn lookup(self, $table: *const $elem) -> Self {
                let $p = self;
                unsafe { $lookup }
            }
            #[inline(always)]
            unsafe fn place(self) -> Self {
                let $p = self;
                unsafe { $place }
            }
            #[inline(always)]
            unsafe fn sum(self) -> $elem {
                let $t = self;
                unsafe { $sum }
            }
            #[inline(always)]
            unsafe fn product(self) -> $elem {
                let $t = self;
                unsafe { $product }
            }
            #[inline(always)]
            unsafe fn sum_four($four: [Self; 4]) -> [$elem; 4] {
                unsafe { $sums }
            }
            $(
                #[inline(always)]
                unsafe fn transpose(rows: &[&[$elem]], from: usize, to: *mut $elem, step: usize) {
                    unsafe { $transpose(rows, from, to, step) }
                }
            )?
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use register;

macro_rules! scalar {
    ($t:ty, $bits:ty, $shift:expr, $bias:expr) => {
        /// A number as a register of one lane. A processor without fused multiply-add emulates it: slow, with the same bits.
        impl Register for $t {
            type Elem = $t;
            const WIDTH: usize = 1;
            #[inline(always)]
            unsafe fn splat(x: $t) -> $t {
                x
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> $t {
                unsafe { p.read() }
            }
            #[inline(always)]
            unsafe fn load_first(p: *const $t, n: usize, rest: $t) -> $t {
                if n == 0 {
                    rest
                } else {
                    unsafe { p.read() }
                }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                unsafe { p.write(self) }
            }
            #[inline(always)]
            unsafe fn add(self, b: $t) -> $t {
                self + b
            }
            #[inline(always)]
            unsafe fn sub(self, b: $t) -> $t {
                self - b
            }
            #[inline(always)]
            unsafe fn mul(self, b: $t) -> $t {
                self * b
            }
            #[inline(always)]
            unsafe fn div(self, b: $t) -> $t {
                self / b
            }
            #[inline(always)]
            unsafe fn neg(self) -> $t {
                -self
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: $t, c: $t) -> $t {
                <$t>::mul_add(self, b, c)
            }
            #[inline(always)]
            unsafe fn sqrt(self) -> $t {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            unsafe fn abs(self) -> $t {
                <$t>::abs(self)
            }
            #[inline(always)]
            unsafe fn min(self, b: $t) -> $t {
                if self < b {
                    self
                } else {
                    b
                }
            }
            #[inline(always)]
            unsafe fn max(self, b: $t) -> $t {
                if self > b {
                    self
                } else {
                    b
                }
            }
            #[inline(always)]
            unsafe fn if_less(self, b: $t, yes: $t, no: $t) -> $t {
                if self < b {
                    yes
                } else {
                    no
                }
            }
            #[inline(always)]
            unsafe fn not_less_bits(self, b: $t) -> u32 {
                u32::from(!(self < b))
            }
            #[inline(always)]
            unsafe fn exponent(self) -> $t {
                const MASK: $bits = ((1 as $bits) << (<$bits>::BITS - 1 - $shift)) - 1;
                ((self.to_bits() >> $shift) & MASK) as $t - $bias
            }
            #[inline(always)]
            unsafe fn significand(self) -> $t {
                const FIELD: $bits = (1 << $shift) - 1;
                <$t>::from_bits((self.to_bits() & FIELD) | (1.0 as $t).to_bits())
            }
            #[inline(always)]
            unsafe fn pow2(self) -> $t {
                <$t>::from_bits(((self + $bias) as $bits) << $shift)
            }
            #[inline(always)]
            unsafe fn lookup(self, table: *const $t) -> $t {
                let first = (PIECES_FROM as $t).to_bits() >> <$t>::PIECE_SHIFT;
                unsafe { *table.add(((self.to_bits() >> <$t>::PIECE_SHIFT) - first) as usize) }
            }
            #[inline(always)]
            unsafe fn place(self) -> $t {
                const FIELD: $bits = (1 << <$t>::PIECE_SHIFT) - 1;
                <$t>::from_bits((self.to_bits() & FIELD) | (1.0 as $t).to_bits())
            }
            #[inline(always)]
            unsafe fn sum(self) -> $t {
                self
            }
            #[inline(always)]
            unsafe fn product(self) -> $t {
                self
            }
            #[inline(always)]
            unsafe fn sum_four(x: [$t; 4]) -> [$t; 4] {
                x
            }
        }
    };
}
scalar!(f32, u32, 23, 127.0);
scalar!(f64, u64, 52, 1023.0);

/// An array as a register of `N` lanes.
///
/// On x86-64 and aarch64, where hardly any machine uses this level, the operations are not inlined, which halves the compiler's
/// work in every build; elsewhere they are inlined, and the compiler vectorises them.
#[derive(Clone, Copy)]
pub struct Plain<T, const N: usize>([T; N]);

macro_rules! each {
    ($($op:ident($($arg:ident),*)),+) => {
        $(
            #[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), inline(never))]
            #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), inline(always))]
            unsafe fn $op(mut self, $($arg: Self),*) -> Self {
                for i in 0..N {
                    self.0[i] = unsafe { Register::$op(self.0[i], $($arg.0[i]),*) };
                }
                self
            }
        )+
    };
}

impl<T: Float + Register<Elem = T>, const N: usize> Register for Plain<T, N> {
    type Elem = T;
    const WIDTH: usize = N;
    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Plain([x; N])
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        Plain(unsafe { p.cast::<[T; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const T, n: usize, mut rest: Self) -> Self {
        rest.0[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        rest
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        unsafe { p.cast::<[T; N]>().write_unaligned(self.0) }
    }
    each!(add(b), sub(b), mul(b), div(b), neg(), mul_add(b, c), sqrt(), abs(), min(b), max(b), if_less(b, yes, no));
    each!(exponent(), significand(), pow2(), place());
    // Not inlined either: where it was, as the codegen unit of a caller had it, its reads of single lanes made the compiler
    // hold the sums of a search in pieces, with twice as many moves at each step.
    #[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), inline(never))]
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), inline(always))]
    unsafe fn not_less_bits(self, b: Self) -> u32 {
        (0..N).fold(0, |bits, i| bits | unsafe { self.0[i].not_less_bits(b.0[i]) } << i)
    }
    unsafe fn lookup(mut self, table: *const T) -> Self {
        for x in &mut self.0 {
            *x = unsafe { x.lookup(table) };
        }
        self
    }
    unsafe fn sum(mut self) -> T {
        let mut n = N;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                self.0[i] = self.0[i] + self.0[i + n];
            }
        }
        self.0[0]
    }
    unsafe fn product(mut self) -> T {
        let mut n = N;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                self.0[i] = self.0[i] * self.0[i + n];
            }
        }
        self.0[0]
    }
    unsafe fn sum_four([a, b, c, d]: [Self; 4]) -> [T; 4] {
        unsafe { [a.sum(), b.sum(), c.sum(), d.sum()] }
    }
}

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
