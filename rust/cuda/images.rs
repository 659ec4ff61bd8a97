//! The compiled kernels of each family, as `build.rs` made them: `IMAGES`, `TARGETS`, `WHY_NONE`.

/// Bytes where the driver may read a fatbin's header from: `include_bytes!` alone puts them anywhere.
#[repr(C, align(16))]
pub struct Aligned<Bytes: ?Sized>(pub Bytes);

include!(concat!(env!("OUT_DIR"), "/images.rs"));
