//! The compiled kernels of each family, as `build.rs` made them: `IMAGES`, `TARGETS`, `WHY_NONE`.

/// Bytes aligned as the driver needs a fatbin's header to be, which `include_bytes!` alone does not ensure.
#[repr(C, align(16))]
pub struct Aligned<Bytes: ?Sized>(pub Bytes);

include!(concat!(env!("OUT_DIR"), "/images.rs"));
