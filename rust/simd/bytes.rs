//! Products of bytes: inner products of a few queries with rows that lie side by side, 32 of them, in exact integers, and which of
//! them reach a limit.
//!
//! A register holds four bytes of each of 16 rows. AVX-512 with VNNI multiplies and adds 64 pairs of bytes in one instruction, four
//! times as many as float32. AVX2 takes three for 32 pairs, of which the sum of two products must fit 16 bits: queries have seven
//! bits there. Elsewhere nothing is gained.

use super::{level, Level};

/// Rows that lie side by side: two panels of 16.
pub const ROWS: usize = 32;

/// The most queries of a tile.
pub const QUERIES: usize = 12;

/// Integers from 0 to 255 as rows, which stand for so much less: from -128 to 127.
pub const OFFSET: i32 = 128;

/// Queries and rows whose products are computed together.
pub struct Tile<'a> {
    /// The rows' bytes, four of each row after the other: `[D/4][ROWS][4]`.
    pub rows: &'a [u8],
    /// The queries' signed bytes, four of them in a word: `[D/4][queries]`.
    pub queries: &'a [i32],
    /// The number at which the sums of each query start.
    pub starts: &'a [i32],
    /// The factor of each query, by which the share of a row is multiplied.
    pub factors: &'a [f32],
    /// The limit of each query.
    pub limits: &'a [f32],
    /// The factor of each row, by which its sums are multiplied.
    pub scales: &'a [f32; ROWS],
    /// The share of each row, which is added to that.
    pub shares: &'a [f32; ROWS],
}

/// The sums of a tile's pairs that reach their limits.
#[derive(Default)]
pub struct Sums {
    /// Of each query a bit for each row: whether `sum * scale + factor * share` is not below the limit (or NaN).
    pub reach: [u32; QUERIES],
    /// The sums of queries of which a row reaches the limit.
    pub sums: [[i32; ROWS]; QUERIES],
}

/// How a level multiplies bytes.
#[derive(Clone, Copy)]
pub struct Bytes {
    /// The queries of a whole tile; a smaller one has a third of them, or one.
    pub queries: usize,
    /// The largest integer that a query may have, and minus the least.
    pub largest: i32,
    multiply: unsafe fn(&Tile, &mut Sums) -> bool,
}

impl Bytes {
    /// The way of the level in use; None where products of float32 are as fast.
    pub fn of_level() -> Option<Bytes> {
        match level().ok()? {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_x86_feature_detected!("avx512vnni") => {
                Some(Bytes { queries: QUERIES, largest: 127, multiply: x86::multiply_avx512 })
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => Some(Bytes { queries: 3, largest: 63, multiply: x86::multiply_avx2 }),
            _ => None,
        }
    }

    /// The number of queries in a tile of which so many are left.
    pub fn wide(&self, left: usize) -> usize {
        match left {
            1 => 1,
            _ if left <= self.queries / 3 => self.queries / 3,
            _ => self.queries,
        }
    }

    /// Computes the products of a tile; returns whether any pair reaches its limit, else the sums are not written.
    #[inline]
    pub fn multiply(&self, tile: &Tile, out: &mut Sums) -> bool {
        let (words, queries) = (tile.rows.len() / (4 * ROWS), tile.starts.len());
        assert!(tile.queries.len() == words * queries && [1, self.queries / 3, self.queries].contains(&queries));
        assert!(tile.factors.len() == queries && tile.limits.len() == queries);
        // SAFETY: `of_level` detected the instructions, and the lengths fit each other.
        unsafe { (self.multiply)(tile, out) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Sums, Tile, ROWS};
    use std::arch::x86_64::*;

    /// A register of sums of rows, or of four bytes of each row.
    trait Register: Copy {
        /// The rows in a register.
        const ROWS: usize;
        unsafe fn splat(x: i32) -> Self;
        unsafe fn load(p: *const u8) -> Self;
        unsafe fn store(self, p: *mut i32);
        /// Adds the products of the bytes of each row with those of a query.
        unsafe fn add_products(self, rows: Self, query: Self) -> Self;
        /// A bit for each row: whether `self * scale + factor * share` is not below the limit.
        unsafe fn reach(self, scale: *const f32, share: *const f32, factor: f32, limit: f32) -> u32;
    }

    impl Register for __m512i {
        const ROWS: usize = 16;
        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { _mm512_set1_epi32(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            unsafe { _mm512_loadu_si512(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut i32) {
            unsafe { _mm512_storeu_si512(p.cast(), self) }
        }
        #[inline(always)]
        unsafe fn add_products(self, rows: Self, query: Self) -> Self {
            unsafe { _mm512_dpbusd_epi32(self, rows, query) }
        }
        #[inline(always)]
        unsafe fn reach(self, scale: *const f32, share: *const f32, factor: f32, limit: f32) -> u32 {
            unsafe {
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(self), _mm512_loadu_ps(scale));
                let sum = _mm512_fmadd_ps(_mm512_loadu_ps(share), _mm512_set1_ps(factor), scaled);
                u32::from(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(sum, _mm512_set1_ps(limit)))
            }
        }
    }

    impl Register for __m256i {
        const ROWS: usize = 8;
        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { _mm256_set1_epi32(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut i32) {
            unsafe { _mm256_storeu_si256(p.cast(), self) }
        }
        #[inline(always)]
        unsafe fn add_products(self, rows: Self, query: Self) -> Self {
            unsafe {
                let pairs = _mm256_maddubs_epi16(rows, query);
                _mm256_add_epi32(self, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            }
        }
        #[inline(always)]
        unsafe fn reach(self, scale: *const f32, share: *const f32, factor: f32, limit: f32) -> u32 {
            unsafe {
                let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(self), _mm256_loadu_ps(scale));
                let sum = _mm256_fmadd_ps(_mm256_loadu_ps(share), _mm256_set1_ps(factor), scaled);
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(sum, _mm256_set1_ps(limit))) as u32
            }
        }
    }

    /// The bytes by which rows are brought into the cache ahead of the products.
    const FETCHED: usize = 8192;

    /// The products of Q queries with all rows, which take N registers.
    ///
    /// # Safety
    /// The instructions must exist; there are as many words and numbers as there are rows and queries.
    #[inline(always)]
    unsafe fn tile<R: Register, const N: usize, const Q: usize>(tile: &Tile, out: &mut Sums) -> bool {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut sums = [[R::splat(0); N]; Q];
            for q in 0..Q {
                sums[q] = [R::splat(*tile.starts.get_unchecked(q)); N];
            }
            let (mut rows, mut queries) = (tile.rows.as_ptr(), tile.queries.as_ptr());
            for _ in 0..tile.rows.len() / (4 * ROWS) {
                let mut x = [R::splat(0); N];
                for n in 0..N {
                    x[n] = R::load(rows.add(4 * n * R::ROWS));
                }
                for line in 0..2 {
                    _mm_prefetch::<_MM_HINT_T0>(rows.wrapping_add(FETCHED + 64 * line).cast());
                }
                for q in 0..Q {
                    let y = R::splat(*queries.add(q));
                    for n in 0..N {
                        sums[q][n] = sums[q][n].add_products(x[n], y);
                    }
                }
                (rows, queries) = (rows.add(4 * ROWS), queries.add(Q));
            }
            // Only loops of constant length over little code access the sums, which stay in registers.
            let (mut reach, mut any) = ([0; Q], 0);
            for q in 0..Q {
                let (factor, limit) = (*tile.factors.get_unchecked(q), *tile.limits.get_unchecked(q));
                for n in 0..N {
                    let (scale, share) = (tile.scales.as_ptr().add(n * R::ROWS), tile.shares.as_ptr().add(n * R::ROWS));
                    reach[q] |= sums[q][n].reach(scale, share, factor, limit) << (n * R::ROWS);
                }
                any |= reach[q];
            }
            if any == 0 {
                return false;
            }
            for q in 0..Q {
                out.reach[q] = reach[q];
                for n in 0..N {
                    sums[q][n].store(out.sums[q].as_mut_ptr().add(n * R::ROWS));
                }
            }
            out.reach[Q..].fill(0);
            true
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,bmi1,bmi2")]
    pub unsafe fn multiply_avx512(work: &Tile, out: &mut Sums) -> bool {
        // SAFETY: as in `tile`.
        unsafe {
            match work.starts.len() {
                12 => tile::<__m512i, 2, 12>(work, out),
                4 => tile::<__m512i, 2, 4>(work, out),
                _ => tile::<__m512i, 2, 1>(work, out),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,bmi1,bmi2")]
    pub unsafe fn multiply_avx2(work: &Tile, out: &mut Sums) -> bool {
        // SAFETY: as in `tile`.
        unsafe {
            match work.starts.len() {
                3 => tile::<__m256i, 4, 3>(work, out),
                _ => tile::<__m256i, 4, 1>(work, out),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Sums, Tile, QUERIES, ROWS};
    use proptest::prelude::*;

    proptest! {
        /// Sums of products of the largest bytes, and of any, and which of them reach a limit.
        #[test]
        fn sums_are_exact_and_those_that_reach_a_limit_are_named(
            words in 1usize..40,
            width in 0usize..3,
            extreme in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let Some(bytes) = Bytes::of_level() else { return Ok(()) };
            let queries = [1, bytes.queries / 3, bytes.queries][width];
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state >> 33
            };
            let rows: Vec<u8> = (0..words * 4 * ROWS).map(|_| if extreme { 255 } else { next() as u8 }).collect();
            let most = bytes.largest;
            let mut code = || if extreme { -most } else { next() as i32 % (2 * most + 1) - most };
            let integers: Vec<[i32; 4]> = (0..words * queries).map(|_| [(); 4].map(|()| code())).collect();
            let words_of: Vec<i32> =
                integers.iter().map(|word| i32::from_ne_bytes(word.map(|code| code as i8 as u8))).collect();
            let starts: Vec<i32> = (0..queries).map(|q| 1000 - 77 * q as i32).collect();
            let (factors, limits) = (vec![2.0; queries], (0..queries).map(|q| q as f32).collect::<Vec<_>>());
            let mut scales = [0.5; ROWS];
            scales[3] = f32::NAN;
            let mut shares = [0.25; ROWS];
            shares[5] = f32::NEG_INFINITY;
            let tile = Tile {
                rows: &rows, queries: &words_of, starts: &starts, factors: &factors, limits: &limits,
                scales: &scales, shares: &shares,
            };
            let mut out = Sums { reach: [u32::MAX; QUERIES], ..Sums::default() };
            // The row without a scale reaches any limit.
            prop_assert!(bytes.multiply(&tile, &mut out));
            for q in 0..QUERIES {
                for row in 0..ROWS {
                    let product = |word: usize, n: usize| {
                        i32::from(rows[(word * ROWS + row) * 4 + n]) * integers[word * queries + q][n]
                    };
                    let reach = out.reach[q] >> row & 1 == 1;
                    if q >= queries {
                        prop_assert!(!reach);
                        continue;
                    }
                    let sum: i32 = (0..words).map(|word| (0..4).map(|n| product(word, n)).sum::<i32>()).sum();
                    prop_assert_eq!(out.sums[q][row], starts[q] + sum);
                    let number = (starts[q] + sum) as f32 * scales[row] + factors[q] * shares[row];
                    prop_assert_eq!(reach, !(number < limits[q]));
                }
            }
        }
    }
}
