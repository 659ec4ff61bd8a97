//! Registers of x86-64: AVX2 with FMA, and AVX-512.

use super::registers::{register, Register, Two};
use super::{run_avx2, run_avx512, Kernel, Lanes, Simd, Words, FIRST_F32, FIRST_F64};
use std::arch::x86_64::*;

/// The level of 256-bit registers.
#[derive(Clone, Copy)]
pub struct Avx2;
impl Simd for Avx2 {
    type F32 = Two<__m256>;
    type F64 = Two<__m256d>;
    type Words = Wide<__m256i, 4>;
    const TILE: (usize, usize) = (1, 6);
    const PAIRS: usize = 1;
    #[inline(always)]
    fn widen_f16(halves: &[u16; 16]) -> [f32; 16] {
        // SAFETY: the array has sixteen halves, and lanes exist only on a level that has the instructions.
        unsafe {
            let [low, high] = halves.as_ptr().cast::<[__m128i; 2]>().read_unaligned();
            Lanes(Two(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))).to_array()
        }
    }
    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: only kernels that run on this level call it.
        unsafe { run_avx2(kernel) }
    }
}

/// The level of 512-bit registers.
#[derive(Clone, Copy)]
pub struct Avx512;
impl Simd for Avx512 {
    type F32 = __m512;
    type F64 = __m512d;
    type Words = Wide<__m512i, 2>;
    const TILE: (usize, usize) = (2, 12);
    const PAIRS: usize = 4;
    #[inline(always)]
    fn widen_f16(halves: &[u16; 16]) -> [f32; 16] {
        // SAFETY: the array has sixteen halves, and lanes exist only on a level that has the instructions.
        unsafe { Lanes(_mm512_cvtph_ps(halves.as_ptr().cast::<__m256i>().read_unaligned())).to_array() }
    }
    #[inline(always)]
    fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: only kernels that run on this level call it.
        unsafe { run_avx512(kernel) }
    }
}

// The exponent field becomes a number without an integer conversion (AVX2 has none for 64 bits): it is put into the low bits of
// 2^23 (float64: 2^52), whose unit in the last place is 1, and that constant and the bias are subtracted. The field is masked
// first, so the sign of x does not matter.
const TWO23: i32 = 0x4B00_0000;
const TWO52: i64 = 0x4330_0000_0000_0000;

register!(__m256, f32, 8, _mm256_set1_ps, _mm256_loadu_ps,
load_first: |p, n, rest| {
    let places = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), places);
    _mm256_blendv_ps(rest, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask))
};
_mm256_storeu_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps,
_mm256_div_ps, _mm256_fmadd_ps, _mm256_sqrt_ps, _mm256_min_ps, _mm256_max_ps,
sign: |x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x), _mm256_xor_ps(_mm256_set1_ps(-0.0), x);
compare: |a, b, yes, no| _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)),
    _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(a, b)) as u32;
fields: |x| {
    let field = _mm256_and_si256(_mm256_srli_epi32::<23>(_mm256_castps_si256(x)), _mm256_set1_epi32(0xFF));
    let shifted = _mm256_castsi256_ps(_mm256_or_si256(field, _mm256_set1_epi32(TWO23)));
    _mm256_sub_ps(shifted, _mm256_set1_ps(8_388_608.0 + 127.0))
}, {
    let field = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x007F_FFFF));
    _mm256_castsi256_ps(_mm256_or_si256(field, _mm256_set1_epi32(0x3F80_0000)))
}, {
    // The sum has the biased exponent in the low bits of 2^23; the shift moves it to its field, and the other bits out.
    let biased = _mm256_add_ps(x, _mm256_set1_ps(8_388_608.0 + 127.0));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(biased)))
};
pieces: |x, table| {
    let piece = _mm256_srli_epi32::<17>(_mm256_castps_si256(x));
    let index = _mm256_sub_epi32(piece, _mm256_set1_epi32(FIRST_F32));
    _mm256_i32gather_ps::<4>(table, index)
}, {
    let low = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x0001_FFFF));
    _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_set1_epi32(0x3F80_0000)))
};
sum: |x| {
    let quad = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
}, {
    let quad = _mm_mul_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let pair = _mm_mul_ps(quad, _mm_movehl_ps(quad, quad));
    _mm_cvtss_f32(_mm_mul_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
};
four: |x| [x[0].sum(), x[1].sum(), x[2].sum(), x[3].sum()]; transpose: transpose_ps);

register!(__m256d, f64, 4, _mm256_set1_pd, _mm256_loadu_pd,
load_first: |p, n, rest| {
    let mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_set_epi64x(3, 2, 1, 0));
    _mm256_blendv_pd(rest, _mm256_maskload_pd(p, mask), _mm256_castsi256_pd(mask))
};
_mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd,
_mm256_div_pd, _mm256_fmadd_pd, _mm256_sqrt_pd, _mm256_min_pd, _mm256_max_pd,
sign: |x| _mm256_andnot_pd(_mm256_set1_pd(-0.0), x), _mm256_xor_pd(_mm256_set1_pd(-0.0), x);
compare: |a, b, yes, no| _mm256_blendv_pd(no, yes, _mm256_cmp_pd::<_CMP_LT_OQ>(a, b)),
    _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_NLT_UQ>(a, b)) as u32;
fields: |x| {
    let field = _mm256_and_si256(_mm256_srli_epi64::<52>(_mm256_castpd_si256(x)), _mm256_set1_epi64x(0x7FF));
    let shifted = _mm256_castsi256_pd(_mm256_or_si256(field, _mm256_set1_epi64x(TWO52)));
    _mm256_sub_pd(shifted, _mm256_set1_pd(4_503_599_627_370_496.0 + 1023.0))
}, {
    let field = _mm256_and_si256(_mm256_castpd_si256(x), _mm256_set1_epi64x(0x000F_FFFF_FFFF_FFFF));
    _mm256_castsi256_pd(_mm256_or_si256(field, _mm256_set1_epi64x(0x3FF0_0000_0000_0000)))
}, {
    // The sum has the biased exponent in the low bits of 2^52; the shift moves it to its field, and the other bits out.
    let biased = _mm256_add_pd(x, _mm256_set1_pd(4_503_599_627_370_496.0 + 1023.0));
    _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_castpd_si256(biased)))
};
pieces: |x, table| {
    let piece = _mm256_srli_epi64::<46>(_mm256_castpd_si256(x));
    let index = _mm256_sub_epi64(piece, _mm256_set1_epi64x(FIRST_F64));
    _mm256_i64gather_pd::<8>(table, index)
}, {
    let low = _mm256_and_si256(_mm256_castpd_si256(x), _mm256_set1_epi64x(0x0000_3FFF_FFFF_FFFF));
    _mm256_castsi256_pd(_mm256_or_si256(low, _mm256_set1_epi64x(0x3FF0_0000_0000_0000)))
};
sum: |x| {
    let pair = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
    _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)))
}, {
    let pair = _mm_mul_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
    _mm_cvtsd_f64(_mm_mul_sd(pair, _mm_unpackhi_pd(pair, pair)))
};
four: |x| [x[0].sum(), x[1].sum(), x[2].sum(), x[3].sum()]; transpose: transpose_pd);

register!(__m512, f32, 16, _mm512_set1_ps, _mm512_loadu_ps,
load_first: |p, n, rest| _mm512_mask_loadu_ps(rest, ((1_u32 << n) - 1) as u16, p);
_mm512_storeu_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps,
_mm512_div_ps, _mm512_fmadd_ps, _mm512_sqrt_ps, _mm512_min_ps, _mm512_max_ps,
sign: |x| _mm512_andnot_ps(_mm512_set1_ps(-0.0), x), _mm512_xor_ps(_mm512_set1_ps(-0.0), x);
compare: |a, b, yes, no| _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes),
    u32::from(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b));
fields: |x| _mm512_getexp_ps(x), _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_ZERO>(x), {
    // The sum has the biased exponent in the low bits of 2^23; the shift moves it to its field, and the other bits out.
    let biased = _mm512_add_ps(x, _mm512_set1_ps(8_388_608.0 + 127.0));
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(biased)))
};
pieces: |x, table| {
    let piece = _mm512_srli_epi32::<17>(_mm512_castps_si512(x));
    let index = _mm512_sub_epi32(piece, _mm512_set1_epi32(FIRST_F32));
    _mm512_i32gather_ps::<4>(index, table)
}, {
    let low = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x0001_FFFF));
    _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_set1_epi32(0x3F80_0000)))
};
sum: |x| {
    let octet = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    Register::sum(octet)
}, {
    let octet = _mm256_mul_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    Register::product(octet)
};
four: |x| {
    // Halves of two registers side by side are added, then quarters of four: each sum follows the fixed tree.
    let [a, b, c, d] = x;
    let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
    let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
    let quads = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
    let pairs = _mm512_add_ps(quads, _mm512_permute_ps::<0x4E>(quads));
    let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0xB1>(pairs));
    let mut out = [0.0; 16];
    _mm512_storeu_ps(out.as_mut_ptr(), sums);
    [out[0], out[4], out[8], out[12]]
};
transpose: transpose_ps_512);

register!(__m512d, f64, 8, _mm512_set1_pd, _mm512_loadu_pd,
load_first: |p, n, rest| _mm512_mask_loadu_pd(rest, ((1_u32 << n) - 1) as u8, p);
_mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd,
_mm512_div_pd, _mm512_fmadd_pd, _mm512_sqrt_pd, _mm512_min_pd, _mm512_max_pd,
sign: |x| _mm512_andnot_pd(_mm512_set1_pd(-0.0), x), _mm512_xor_pd(_mm512_set1_pd(-0.0), x);
compare: |a, b, yes, no| _mm512_mask_blend_pd(_mm512_cmp_pd_mask::<_CMP_LT_OQ>(a, b), no, yes),
    u32::from(_mm512_cmp_pd_mask::<_CMP_NLT_UQ>(a, b));
fields: |x| _mm512_getexp_pd(x), _mm512_getmant_pd::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_ZERO>(x), {
    // The sum has the biased exponent in the low bits of 2^52; the shift moves it to its field, and the other bits out.
    let biased = _mm512_add_pd(x, _mm512_set1_pd(4_503_599_627_370_496.0 + 1023.0));
    _mm512_castsi512_pd(_mm512_slli_epi64::<52>(_mm512_castpd_si512(biased)))
};
pieces: |x, table| {
    let piece = _mm512_srli_epi64::<46>(_mm512_castpd_si512(x));
    let index = _mm512_sub_epi64(piece, _mm512_set1_epi64(FIRST_F64));
    _mm512_i64gather_pd::<8>(index, table)
}, {
    let low = _mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64(0x0000_3FFF_FFFF_FFFF));
    _mm512_castsi512_pd(_mm512_or_si512(low, _mm512_set1_epi64(0x3FF0_0000_0000_0000)))
};
sum: |x| {
    let quad = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x));
    Register::sum(quad)
}, {
    let quad = _mm256_mul_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x));
    Register::product(quad)
};
four: |x| {
    let [a, b, c, d] = x;
    let ab = _mm512_add_pd(_mm512_shuffle_f64x2::<0x44>(a, b), _mm512_shuffle_f64x2::<0xEE>(a, b));
    let cd = _mm512_add_pd(_mm512_shuffle_f64x2::<0x44>(c, d), _mm512_shuffle_f64x2::<0xEE>(c, d));
    let pairs = _mm512_add_pd(_mm512_shuffle_f64x2::<0x88>(ab, cd), _mm512_shuffle_f64x2::<0xDD>(ab, cd));
    let sums = _mm512_add_pd(pairs, _mm512_permute_pd::<0x55>(pairs));
    let mut out = [0.0; 8];
    _mm512_storeu_pd(out.as_mut_ptr(), sums);
    [out[0], out[2], out[4], out[6]]
};
transpose: transpose_pd_512);

/// Implements [`Register::transpose`] for registers of `$parts` parts of 128 bits, of `$n` elements each: `$group` transposes the
/// parts of `$n` rows, so that its register `c` has column `$n p + c` of them in part `p`, and `$across` the parts of such registers.
macro_rules! transpose {
    ($name:ident, $elem:ty, $load:ident, $n:expr, $parts:expr, $group:ident, $across:ident) => {
        #[inline(always)]
        unsafe fn $name(rows: &[&[$elem]], from: usize, to: *mut $elem, step: usize) {
            // SAFETY: callers run on a level that has the instructions, with rows and memory for all columns.
            unsafe {
                let mut groups = [[$load(rows[0].as_ptr().add(from)); $n]; $parts];
                for g in 0..$parts {
                    for i in 0..$n {
                        groups[g][i] = $load(rows[g * $n + i].as_ptr().add(from));
                    }
                    groups[g] = $group(groups[g]);
                }
                for c in 0..$n {
                    let mut parts = [groups[0][c]; $parts];
                    for g in 0..$parts {
                        parts[g] = groups[g][c];
                    }
                    let columns = $across(parts);
                    for p in 0..$parts {
                        columns[p].store(to.add((p * $n + c) * step));
                    }
                }
            }
        }
    };
}
transpose!(transpose_ps, f32, _mm256_loadu_ps, 4, 2, quads_256, across_ps);
transpose!(transpose_pd, f64, _mm256_loadu_pd, 2, 2, pairs_256, across_pd);
transpose!(transpose_ps_512, f32, _mm512_loadu_ps, 4, 4, quads_512, across_ps_512);
transpose!(transpose_pd_512, f64, _mm512_loadu_pd, 2, 4, pairs_512, across_pd_512);

macro_rules! within_parts {
    ($quads:ident, $ps:ty, $pairs:ident, $pd:ty, $low:ident, $high:ident, $low_pd:ident, $high_pd:ident, $to_pd:ident, $to_ps:ident) => {
        #[inline(always)]
        unsafe fn $pairs([a, b]: [$pd; 2]) -> [$pd; 2] {
            // SAFETY: as in `transpose!`.
            unsafe { [$low_pd(a, b), $high_pd(a, b)] }
        }
        #[inline(always)]
        unsafe fn $quads([a, b, c, d]: [$ps; 4]) -> [$ps; 4] {
            // SAFETY: as in `transpose!`.
            unsafe {
                let [first, second] = $pairs([$to_pd($low(a, b)), $to_pd($low(c, d))]);
                let [third, fourth] = $pairs([$to_pd($high(a, b)), $to_pd($high(c, d))]);
                [$to_ps(first), $to_ps(second), $to_ps(third), $to_ps(fourth)]
            }
        }
    };
}
within_parts!(
    quads_256,
    __m256,
    pairs_256,
    __m256d,
    _mm256_unpacklo_ps,
    _mm256_unpackhi_ps,
    _mm256_unpacklo_pd,
    _mm256_unpackhi_pd,
    _mm256_castps_pd,
    _mm256_castpd_ps
);
within_parts!(
    quads_512,
    __m512,
    pairs_512,
    __m512d,
    _mm512_unpacklo_ps,
    _mm512_unpackhi_ps,
    _mm512_unpacklo_pd,
    _mm512_unpackhi_pd,
    _mm512_castps_pd,
    _mm512_castpd_ps
);

macro_rules! across_parts {
    ($two:ident, $half:ty, $permute:ident, $four:ident, $reg:ty, $shuffle:ident) => {
        #[inline(always)]
        unsafe fn $two([a, b]: [$half; 2]) -> [$half; 2] {
            // SAFETY: as in `transpose!`.
            unsafe { [$permute::<0x20>(a, b), $permute::<0x31>(a, b)] }
        }
        #[inline(always)]
        unsafe fn $four([a, b, c, d]: [$reg; 4]) -> [$reg; 4] {
            // SAFETY: as in `transpose!`.
            unsafe {
                let (even, odd) = (
                    ($shuffle::<0x88>(a, b), $shuffle::<0x88>(c, d)),
                    ($shuffle::<0xDD>(a, b), $shuffle::<0xDD>(c, d)),
                );
                [
                    $shuffle::<0x88>(even.0, even.1),
                    $shuffle::<0x88>(odd.0, odd.1),
                    $shuffle::<0xDD>(even.0, even.1),
                    $shuffle::<0xDD>(odd.0, odd.1),
                ]
            }
        }
    };
}
across_parts!(across_ps, __m256, _mm256_permute2f128_ps, across_ps_512, __m512, _mm512_shuffle_f32x4);
across_parts!(across_pd, __m256d, _mm256_permute2f128_pd, across_pd_512, __m512d, _mm512_shuffle_f64x2);

/// Sixteen words in the 64-bit lanes of `N` registers.
#[derive(Clone, Copy)]
pub struct Wide<R, const N: usize>([R; N]);

macro_rules! words {
    ($reg:ty, $n:expr, $widen:expr, $narrow:expr, $half:ty, $splat:ident, $mul:ident, $xor:ident, $swap:ident) => {
        impl Words for Wide<$reg, $n> {
            #[inline(always)]
            fn new(words: &[u32; 16]) -> Self {
                // SAFETY: values of this type exist only inside `dispatch` on a level that has the instructions; each
                // register widens its share of the sixteen words.
                unsafe {
                    let mut r = [$splat(0); $n];
                    for i in 0..$n {
                        r[i] = $widen(words.as_ptr().add(i * 16 / $n).cast::<$half>().read_unaligned());
                    }
                    Wide(r)
                }
            }
            #[inline(always)]
            fn words(self) -> [u32; 16] {
                let mut out = [0; 16];
                for i in 0..$n / 2 {
                    // SAFETY: as in `new`; each pair of registers is narrowed to its share of the words. Whole registers are
                    // stored: a load that spans two stores would wait for both to reach the cache.
                    let pair = unsafe { $narrow(self.0[2 * i], self.0[2 * i + 1]) };
                    unsafe { out.as_mut_ptr().add(i * 32 / $n).cast::<$reg>().write_unaligned(pair) }
                }
                out
            }
            #[inline(always)]
            fn product(mut self, factor: u32) -> Self {
                for r in &mut self.0 {
                    // SAFETY: as in `new`.
                    *r = unsafe { $mul(*r, $splat(i64::from(factor))) };
                }
                self
            }
            #[inline(always)]
            fn high_xor(mut self, b: Self, key: u32) -> Self {
                for i in 0..$n {
                    // SAFETY: as in `new`. The halves are swapped instead of shifted: shuffles use another port.
                    unsafe {
                        let high = $swap::<0b1011_0001>(self.0[i]);
                        self.0[i] = $xor($xor(high, b.0[i]), $splat(i64::from(key)));
                    }
                }
                self
            }
        }
    };
}
words!(
    __m512i,
    2,
    _mm512_cvtepu32_epi64,
    low_words_512,
    __m256i,
    _mm512_set1_epi64,
    _mm512_mul_epu32,
    _mm512_xor_si512,
    _mm512_shuffle_epi32
);
words!(
    __m256i,
    4,
    _mm256_cvtepu32_epi64,
    low_words_256,
    __m128i,
    _mm256_set1_epi64x,
    _mm256_mul_epu32,
    _mm256_xor_si256,
    _mm256_shuffle_epi32
);

/// The low 32-bit halves of the 64-bit lanes of two registers.
#[inline(always)]
unsafe fn low_words_512(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: callers run on a level that has the instructions.
    unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)), _mm512_cvtepi64_epi32(b)) }
}

/// The low 32-bit halves of the 64-bit lanes of two registers.
#[inline(always)]
unsafe fn low_words_256(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: callers run on a level that has the instructions.
    unsafe {
        let mixed = _mm256_shuffle_ps::<0b10_00_10_00>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(mixed))
    }
}
