//! Registers of aarch64: NEON, which all of its processors have.
//!
//! Minimum and maximum are a comparison and a selection, since `fmin` and `fmax` differ from [`super::Lanes::min`] on NaN and on
//! zeros of both signs.

use super::registers::{register, Register, Two};
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

// With operands in the order of `register!`, and with its minimum and maximum.
macro_rules! fma_min_max {
    ($reg:ty, $fma:ident = $by:ident, $min:ident, $max:ident = $select:ident, $less:ident) => {
        #[inline(always)]
        unsafe fn $fma(a: $reg, b: $reg, c: $reg) -> $reg {
            unsafe { $by(c, a, b) }
        }
        #[inline(always)]
        unsafe fn $min(a: $reg, b: $reg) -> $reg {
            unsafe { $select($less(a, b), a, b) }
        }
        #[inline(always)]
        unsafe fn $max(a: $reg, b: $reg) -> $reg {
            unsafe { $select($less(b, a), a, b) }
        }
    };
}
fma_min_max!(float32x4_t, fma_f32 = vfmaq_f32, min_f32, max_f32 = vbslq_f32, vcltq_f32);
fma_min_max!(float64x2_t, fma_f64 = vfmaq_f64, min_f64, max_f64 = vbslq_f64, vcltq_f64);

register!(float32x4_t, f32, 4, vdupq_n_f32, vld1q_f32,
load_first: |p, n, rest| {
    let mut lanes = [0.0; 4];
    vst1q_f32(lanes.as_mut_ptr(), rest);
    std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
    vld1q_f32(lanes.as_ptr())
};
vst1q_f32, vaddq_f32, vsubq_f32, vmulq_f32, vdivq_f32, fma_f32, vsqrtq_f32, min_f32, max_f32,
sign: |x| vabsq_f32(x), vnegq_f32(x);
compare: |a, b, yes, no| vbslq_f32(vcltq_f32(a, b), yes, no), {
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

register!(float64x2_t, f64, 2, vdupq_n_f64, vld1q_f64,
load_first: |p, n, rest| {
    let mut lanes = [0.0; 2];
    vst1q_f64(lanes.as_mut_ptr(), rest);
    std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
    vld1q_f64(lanes.as_ptr())
};
vst1q_f64, vaddq_f64, vsubq_f64, vmulq_f64, vdivq_f64, fma_f64, vsqrtq_f64, min_f64, max_f64,
sign: |x| vabsq_f64(x), vnegq_f64(x);
compare: |a, b, yes, no| vbslq_f64(vcltq_f64(a, b), yes, no), {
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
