//! The compiled kernels of each family, as `build.rs` made them: `IMAGES`, `TARGETS`, `WHY_NONE`.

use lzma_rust2::LzmaReader;
use std::io::Read as _;

include!(concat!(env!("OUT_DIR"), "/images.rs"));

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

/// The families with their images, each unpacked by a thread: half a second on two cores for what a wheel holds, once in a process.
pub fn unpacked() -> Vec<(&'static str, Result<Image, String>)> {
    std::thread::scope(|scope| {
        let runs: Vec<_> = IMAGES
            .iter()
            .map(|&(family, size, packed)| (family, scope.spawn(move || Image::unpack(size, packed))))
            .collect();
        runs.into_iter()
            .map(|(family, run)| (family, run.join().unwrap_or_else(|_| Err("the thread panicked".into()))))
            .collect()
    })
}
