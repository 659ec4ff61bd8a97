//! SIMD dispatch: the only module that knows instruction sets.
//!
//! A kernel is written once, generic over `S: Simd` and `T: Float`, in terms of [`Lanes`]: 16 logical float32 or 8 logical
//! float64 lanes on every level. Each lane operation is one IEEE operation and sums follow one fixed tree (lane `i` takes lane
//! `i + n/2`, then `n` halves), so a kernel returns the same bits on every level.
//!
//! Levels: `avx512` and `avx2` of x86-64, `neon` of aarch64, `baseline` of all (no wide registers assumed; the compiler vectorises
//! as the target allows, and a processor without fused multiply-add emulates it: slow, with the same bits). Where there are others
//! hardly any machine uses the last one, but all of it is compiled in every build: there a kernel whose lanes never meet
//! ([`Kernel::LANES_MEET`]) takes one lane after the other, which makes an instruction of an operation in the place of a call with
//! its arguments in memory.
//! The best level of the machine is chosen at the first dispatch; `PEACCEL_SIMD=baseline|neon|avx2|avx512`, unless empty, forces one.

use crate::error::Error;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::OnceLock;

pub mod bytes;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod registers;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use lanes::{AllLanes, Lanes};
use registers::Plain;
pub use registers::Register;

/// A real number type that kernels compute in.
pub trait Float:
    Copy
    + PartialOrd
    + Default
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + std::fmt::Debug
{
    /// The number of logical lanes of this type.
    const LANES: usize;
    /// The unit roundoff, half the distance from 1 to the next number.
    const ROUNDOFF: f64;
    /// The smallest positive number: what rounding may lose where a result is subnormal.
    const SMALLEST: f64;
    /// The number of bits of the significand below those that select a piece of [`Lanes::lookup`].
    const PIECE_SHIFT: u32;
    /// A bound b such that products of four numbers in [1 / b, b] are far from overflow and from subnormals.
    const QUARTER_RANGE: f64;
    /// The register that holds the lanes of this type on level `S`.
    type Register<S: Simd>: Register<Elem = Self>;
    /// Converts from float64, to the nearest representable value.
    fn from_f64(x: f64) -> Self;
    /// Converts to float64, exactly.
    fn to_f64(self) -> f64;
    /// Converts from float32, exactly.
    fn from_f32(x: f32) -> Self;
    /// Converts sixteen IEEE binary16 numbers, exactly.
    fn widen_f16<S: Simd>(halves: &[u16; 16], out: &mut [Self; 16]);
}

/// The number of pieces into which [`Lanes::lookup`] divides [`PIECES_FROM`, `PIECES_TO`): 64 per octave.
pub const PIECES: usize = 26 * 64;
/// The start of the first piece, 2^-2.
pub const PIECES_FROM: f64 = 0.25;
/// The end of the last piece, 2^24.
pub const PIECES_TO: f64 = 16_777_216.0;

/// The leading bits of the start of the first piece: the exponent field and the six bits of the significand that select a piece.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const FIRST_F32: i32 = 125 << 6;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const FIRST_F64: i64 = 1021 << 6;

/// The lanes of type `T` on level `S`, [`Float::LANES`] of them.
pub type V<S, T> = Lanes<<T as Float>::Register<S>>;

/// Sixteen 32-bit words, each in the low half of 64 bits whose high half may hold anything, so that the product of two words is
/// one instruction.
pub trait Words: Copy {
    /// Widens sixteen words.
    fn new(words: &[u32; 16]) -> Self;
    /// The sixteen words, without the high halves.
    fn words(self) -> [u32; 16];
    /// The 64-bit products of all words with `factor`; their low halves serve as words.
    fn product(self, factor: u32) -> Self;
    /// The words `high half of self ^ b ^ key`.
    fn high_xor(self, b: Self, key: u32) -> Self;
}

/// A level of instruction sets, which names the lane types.
pub trait Simd: Copy + Send + Sync + 'static {
    /// The register of 16 float32 lanes.
    type F32: Register<Elem = f32>;
    /// The register of 8 float64 lanes.
    type F64: Register<Elem = f64>;
    /// The registers of 16 words.
    type Words: Words;
    /// Converts sixteen IEEE binary16 numbers, exactly.
    fn widen_f16(halves: &[u16; 16]) -> [f32; 16];
    /// Panels (of as many rows as there are lanes) and queries that one register tile of a dense product holds.
    const TILE: (usize, usize);
    /// Pairs of rows whose sums over products of their elements fit into registers side by side, four vectors for each pair.
    const PAIRS: usize;
    /// Runs work that many kernels contain as a function of its own, which they share. May only be called by a kernel that runs
    /// on this level.
    fn call<K: Kernel>(kernel: K) -> K::Output;
}

impl Float for f32 {
    const LANES: usize = 16;
    const ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;
    const SMALLEST: f64 = f64::from_bits((1023 - 149) << 52); // 2^-149
    const PIECE_SHIFT: u32 = 23 - 6;
    const QUARTER_RANGE: f64 = 2_147_483_648.0; // 2^31
    type Register<S: Simd> = S::F32;
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn widen_f16<S: Simd>(halves: &[u16; 16], out: &mut [Self; 16]) {
        *out = S::widen_f16(halves);
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Float for f64 {
    const LANES: usize = 8;
    const ROUNDOFF: f64 = f64::EPSILON / 2.0;
    const SMALLEST: f64 = f64::from_bits(1); // 2^-1074
    const PIECE_SHIFT: u32 = 52 - 6;
    const QUARTER_RANGE: f64 = f64::from_bits((1023 + 255) << 52); // 2^255
    type Register<S: Simd> = S::F64;
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        f64::from(x)
    }
    #[inline(always)]
    fn widen_f16<S: Simd>(halves: &[u16; 16], out: &mut [Self; 16]) {
        *out = S::widen_f16(halves).map(f64::from);
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// Converts an IEEE binary16 number, exactly.
#[inline(always)]
pub fn widen_f16(half: u16) -> f32 {
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7FFF));
    // The shifted exponent field is 127 - 15 too small; a product by 2^112 corrects that, for subnormals as well.
    let number = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    let special = if rest >= 0x7C00 { 0xFF << 23 } else { 0 };
    f32::from_bits(sign | special | number.to_bits())
}

/// A number's bits as an integer that is in the order of the numbers; NaN lie beyond both ends.
#[inline(always)]
pub fn ascending(x: f32) -> u32 {
    x.to_bits() ^ if x.is_sign_negative() { u32::MAX } else { 1 << 31 }
}

/// The places of the bits that are set, in order.
#[inline(always)]
pub fn set_bits(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            place
        })
    })
}

/// The level of arrays, which the compiler vectorises as the target allows.
#[derive(Clone, Copy)]
pub struct Baseline;

impl Simd for Baseline {
    type F32 = Plain<f32, 16>;
    type F64 = Plain<f64, 8>;
    type Words = [u64; 16];
    const TILE: (usize, usize) = (1, 2);
    const PAIRS: usize = 1;
    #[inline(always)]
    fn widen_f16(halves: &[u16; 16]) -> [f32; 16] {
        halves.map(widen_f16)
    }
    fn call<K: Kernel>(kernel: K) -> K::Output {
        run_plain::<Self, K>(kernel)
    }
}

/// The baseline's lanes one after the other, for kernels whose lanes never meet.
#[derive(Clone, Copy)]
pub struct OneLane;

impl Simd for OneLane {
    type F32 = f32;
    type F64 = f64;
    type Words = [u64; 16];
    const TILE: (usize, usize) = Baseline::TILE;
    const PAIRS: usize = Baseline::PAIRS;
    #[inline(always)]
    fn widen_f16(halves: &[u16; 16]) -> [f32; 16] {
        Baseline::widen_f16(halves)
    }
    fn call<K: Kernel>(kernel: K) -> K::Output {
        run_plain::<Self, K>(kernel)
    }
}

#[cfg(target_arch = "aarch64")]
use neon::Neon;
#[cfg(target_arch = "x86_64")]
use x86::{Avx2, Avx512};

/// Work that is compiled once per level; `run` must be `#[inline(always)]`, as must all functions of lanes that it calls.
pub trait Kernel {
    /// Whether the kernel needs [`Float::LANES`] lanes at a time. Otherwise it takes as many as [`Lanes::LANES`] says, adds up over
    /// them by [`AllLanes`] alone, and is compiled for one lane on the baseline of processors that have other levels.
    const LANES_MEET: bool = true;
    /// The result of the work.
    type Output;
    /// Does the work on level `S`.
    fn run<S: Simd>(self) -> Self::Output;
}

/// The levels.
#[derive(Clone, Copy, Debug)]
enum Level {
    Baseline,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Whether the processor has all of these features.
#[cfg(target_arch = "x86_64")]
macro_rules! all_detected {
    ($($feature:tt),+) => { $(is_x86_feature_detected!($feature))&&+ };
}

impl Level {
    /// Those of the machine that runs this, from the least to the best.
    fn available() -> Vec<Level> {
        let mut found = vec![Level::Baseline];
        #[cfg(target_arch = "aarch64")]
        found.push(Level::Neon);
        #[cfg(target_arch = "x86_64")]
        if all_detected!("avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "popcnt") {
            found.push(Level::Avx2);
            if all_detected!("avx512f", "avx512dq", "avx512bw", "avx512vl") {
                found.push(Level::Avx512);
            }
        }
        found
    }

    fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }
}

fn level() -> Result<Level, Error> {
    static LEVEL: OnceLock<Result<Level, Error>> = OnceLock::new();
    LEVEL
        .get_or_init(|| {
            let available = Level::available();
            let wanted = std::env::var("PEACCEL_SIMD").unwrap_or_default();
            let names: Vec<_> = available.iter().map(|level| level.name()).collect();
            match available.iter().rfind(|level| wanted.is_empty() || level.name() == wanted) {
                Some(&level) => Ok(level),
                None => Err(Error::Value(format!("PEACCEL_SIMD: this machine has {names:?}, got {wanted:?}"))),
            }
        })
        .clone()
}

/// The name of the level that [`dispatch`] uses, or an error if the level in `PEACCEL_SIMD` is not available.
pub fn level_name() -> Result<&'static str, Error> {
    level().map(Level::name)
}

/// Runs the work on the level in use.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    // The Python module reports an unavailable level when it is imported, so only callers in Rust reach the fallback.
    match level().unwrap_or(Level::Baseline) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` detected every feature that this function enables.
        Level::Avx512 => unsafe { run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { run_avx2(kernel) },
        #[cfg(target_arch = "aarch64")]
        Level::Neon => run_neon(kernel),
        _ if K::LANES_MEET || cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) => {
            run_plain::<Baseline, K>(kernel)
        }
        _ => run_plain::<OneLane, K>(kernel),
    }
}

/// A function of its own, as those of the other levels are: within its callers it would be compiled for each of them.
#[inline(never)]
fn run_plain<S: Simd, K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<S>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

#[cfg(target_arch = "aarch64")]
#[inline(never)]
fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon>()
}

/// Prefetches the cache line so many bytes beyond the start of a slice; that it may lie beyond the end does no harm.
#[inline(always)]
pub fn prefetch_beyond<T>(row: &[T], bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch never faults, and the address is not read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().cast::<i8>().wrapping_add(bytes)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (row, bytes);
}

/// Prefetches the cache lines of a slice.
#[inline(always)]
pub fn prefetch<T>(row: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        let bytes = std::mem::size_of_val(row);
        for offset in (0..bytes).step_by(64) {
            // SAFETY: a prefetch never faults, and the address lies inside the slice.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().cast::<i8>().add(offset)) }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}
