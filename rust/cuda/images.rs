//! The compiled kernels of each family, as `build.rs` made them: `IMAGES`, `TARGETS`, `WHY_NONE`.

include!(concat!(env!("OUT_DIR"), "/images.rs"));
