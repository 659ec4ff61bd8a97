//! Registers of aarch64: NEON, which all of its processors have.
//!
//! Minimum and maximum are a comparison and a selection, since `fmin` and `fmax` differ from [`super::Lanes::min`] on NaN and on
//! zeros of both signs.

use super::registers::{Register, Two};
use super::{run_neon, widen_f16, Kernel, Simd, FIRST_F32, FIRST_F64};
use std::arch::aarch64::*;

/// The level of 128-bit registers.
#[derive(Clone, Copy)]
pub struct Neon;
impl Simd for Neon {
    type F32 = Two<Two<float32x4_t>>;
    type F64 = Two<Two<float64x2_t>>;
    type Words = [u64; 16];
    const TILE: (usize, usize) = (1, 6);
    const PAIRS: usize = 1;
    #[inline(always)]
    fn widen_f16(halves: &[u16; 16]) -> [f32; 16] {
        halves.map(widen_f16)
    }
    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        run_neon(kernel)
    }
}

macro_rules! register {
    ($reg:ty, $elem:ty, $width:expr, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $div:ident,
     $fma:ident, $sqrt:ident, $neg:ident, $abs:ident, $less:ident, $select:ident;
     bits: |$bits:ident, $other:ident| $not_less_bits:expr;
     fields: |$f:ident| $exponent:expr, $significand:expr, $pow2:expr;
     pieces: |$p:ident, $table:ident| $lookup:expr, $place:expr;
     sum: |$t:ident| $sum:expr, $product:expr; four: |$four:ident| $sums:expr) => {
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
            unsafe fn load_first(p: *const $elem, n: usize, rest: Self) -> Self {
                let mut lanes = [0.0; $width];
                unsafe {
                    rest.store(lanes.as_mut_ptr());
                    std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
                    $load(lanes.as_ptr())
                }
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
                unsafe { $fma(c, self, b) }
            }
            #[inline(always)]
            unsafe fn sqrt(self) -> Self {
                unsafe { $sqrt(self) }
            }
            #[inline(always)]
            unsafe fn neg(self) -> Self {
                unsafe { $neg(self) }
            }
            #[inline(always)]
            unsafe fn abs(self) -> Self {
                unsafe { $abs(self) }
            }
            #[inline(always)]
            unsafe fn min(self, b: Self) -> Self {
                unsafe { $select($less(self, b), self, b) }
            }
            #[inline(always)]
            unsafe fn max(self, b: Self) -> Self {
                unsafe { $select($less(b, self), self, b) }
            }
            #[inline(always)]
            unsafe fn if_less(self, b: Self, yes: Self, no: Self) -> Self {
                unsafe { $select($less(self, b), yes, no) }
            }
            #[inline(always)]
            unsafe fn not_less_bits(self, $other: Self) -> u32 {
                let $bits = self;
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
        }
    };
}

register!(float32x4_t, f32, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, vaddq_f32, vsubq_f32, vmulq_f32, vdivq_f32,
    vfmaq_f32, vsqrtq_f32, vnegq_f32, vabsq_f32, vcltq_f32, vbslq_f32;
bits: |a, b| {
    let places = vld1q_u32([1, 2, 4, 8].as_ptr());
    vaddvq_u32(vbicq_u32(places, vcltq_f32(a, b)))
};
fields: |x| {
    let field = vandq_u32(vshrq_n_u32::<23>(vreinterpretq_u32_f32(x)), vdupq_n_u32(0xFF));
    vsubq_f32(vcvtq_f32_u32(field), vdupq_n_f32(127.0))
}, {
    let field = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x007F_FFFF));
    vreinterpretq_f32_u32(vorrq_u32(field, vdupq_n_u32(0x3F80_0000)))
}, {
    vreinterpretq_f32_u32(vshlq_n_u32::<23>(vcvtq_u32_f32(vaddq_f32(x, vdupq_n_f32(127.0)))))
};
pieces: |x, table| {
    let piece = vshrq_n_s32::<17>(vreinterpretq_s32_f32(x));
    let mut index = [0; 4];
    vst1q_s32(index.as_mut_ptr(), vsubq_s32(piece, vdupq_n_s32(FIRST_F32)));
    vld1q_f32(index.map(|i| *table.add(i as usize)).as_ptr())
}, {
    let low = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x0001_FFFF));
    vreinterpretq_f32_u32(vorrq_u32(low, vdupq_n_u32(0x3F80_0000)))
};
sum: |x| vaddv_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x))), {
    let pair = vmul_f32(vget_low_f32(x), vget_high_f32(x));
    vget_lane_f32::<0>(pair) * vget_lane_f32::<1>(pair)
};
four: |x| {
    // Halves of two registers side by side are added, then neighbours of four: each sum follows the fixed tree.
    let ab = vaddq_f32(low_halves(x[0], x[1]), high_halves(x[0], x[1]));
    let cd = vaddq_f32(low_halves(x[2], x[3]), high_halves(x[2], x[3]));
    let sums = vpaddq_f32(ab, cd);
    let mut out = [0.0; 4];
    vst1q_f32(out.as_mut_ptr(), sums);
    out
});

register!(float64x2_t, f64, 2, vdupq_n_f64, vld1q_f64, vst1q_f64, vaddq_f64, vsubq_f64, vmulq_f64, vdivq_f64,
    vfmaq_f64, vsqrtq_f64, vnegq_f64, vabsq_f64, vcltq_f64, vbslq_f64;
bits: |a, b| {
    let places = vld1q_u64([1, 2].as_ptr());
    vaddvq_u64(vbicq_u64(places, vcltq_f64(a, b))) as u32
};
fields: |x| {
    let field = vandq_u64(vshrq_n_u64::<52>(vreinterpretq_u64_f64(x)), vdupq_n_u64(0x7FF));
    vsubq_f64(vcvtq_f64_u64(field), vdupq_n_f64(1023.0))
}, {
    let field = vandq_u64(vreinterpretq_u64_f64(x), vdupq_n_u64(0x000F_FFFF_FFFF_FFFF));
    vreinterpretq_f64_u64(vorrq_u64(field, vdupq_n_u64(0x3FF0_0000_0000_0000)))
}, {
    vreinterpretq_f64_u64(vshlq_n_u64::<52>(vcvtq_u64_f64(vaddq_f64(x, vdupq_n_f64(1023.0)))))
};
pieces: |x, table| {
    let piece = vshrq_n_s64::<46>(vreinterpretq_s64_f64(x));
    let mut index = [0; 2];
    vst1q_s64(index.as_mut_ptr(), vsubq_s64(piece, vdupq_n_s64(FIRST_F64)));
    vld1q_f64(index.map(|i| *table.add(i as usize)).as_ptr())
}, {
    let low = vandq_u64(vreinterpretq_u64_f64(x), vdupq_n_u64(0x0000_3FFF_FFFF_FFFF));
    vreinterpretq_f64_u64(vorrq_u64(low, vdupq_n_u64(0x3FF0_0000_0000_0000)))
};
sum: |x| vaddvq_f64(x), vgetq_lane_f64::<0>(x) * vgetq_lane_f64::<1>(x);
four: |x| [x[0].sum(), x[1].sum(), x[2].sum(), x[3].sum()]);

/// The low halves of two registers, side by side.
#[inline(always)]
fn low_halves(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: all processors of this architecture have the instructions.
    unsafe { vcombine_f32(vget_low_f32(a), vget_low_f32(b)) }
}

/// The high halves of two registers, side by side.
#[inline(always)]
fn high_halves(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: as in `low_halves`.
    unsafe { vcombine_f32(vget_high_f32(a), vget_high_f32(b)) }
}
