//! The compiled kernels of each family, as `build.rs` made them: `IMAGES`, `TARGETS`, `WHY_NONE`.

use lzma_rust2::LzmaReader;
use std::io::Read as _;

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// The device that an image is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The compute capability, ten times its number: 90 for 9.0.
    pub capability: i32,
    /// Whether it is machine code, or intermediate code from which the driver compiles.
    pub machine: bool,
}

impl Target {
    /// The target whose images a device of this capability runs: machine code of its own major number, not above it, or else
    /// intermediate code.
    pub fn of(capability: i32) -> Option<Target> {
        let targets = || IMAGES.iter().map(|&(_, target, ..)| target).filter(|target| target.capability <= capability);
        let own = targets().filter(|target| target.machine && target.capability / 10 == capability / 10);
        own.max_by_key(|target| target.capability).or_else(|| targets().find(|target| !target.machine))
    }
}

/// An unpacked fatbin, aligned as the driver needs its header to be.
pub struct Image(Vec<u128>);

impl Image {
    fn unpack(size: usize, packed: &[u8]) -> Result<Self, String> {
        let mut words = vec![0_u128; size.div_ceil(size_of::<u128>())];
        // SAFETY: the words have at least so many bytes, any of which make a number.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size) };
        let mut reader = LzmaReader::new_mem_limit(packed, u32::MAX, None).map_err(|e| e.to_string())?;
        reader.read_exact(bytes).map_err(|e| e.to_string())?;
        Ok(Image(words))
    }

    /// The address of the fatbin's header.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

/// The families with their images for a target, each unpacked by a thread.
pub fn unpacked(target: Target) -> Vec<(&'static str, Result<Image, String>)> {
    std::thread::scope(|scope| {
        let runs: Vec<_> = IMAGES
            .iter()
            .filter(|&&(_, of, ..)| of == target)
            .map(|&(family, _, size, packed)| (family, scope.spawn(move || Image::unpack(size, packed))))
            .collect();
        runs.into_iter()
            .map(|(family, run)| (family, run.join().unwrap_or_else(|_| Err("the thread panicked".into()))))
            .collect()
    })
}
