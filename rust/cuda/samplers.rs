//! Draws of distributions and gradients through them: cuda/families/samplers.cu.

use super::arguments::{DeviceMatrix, SampleArgs, SampleBackwardArgs};
use super::constants::{
    GRADIENT_BLOCKS_F32, GRADIENT_BLOCKS_F64, NORMALS_F32, NORMALS_F64, RUN_F32, RUN_F64, SAMPLER_THREADS,
    SAMPLE_BLOCKS_F32, SAMPLE_BLOCKS_F64, WARP,
};
use super::libcuda::{driver, Launch, Place};
use crate::error::Error;
use crate::kernels::samplers::Distribution;
use crate::special::bessel::Order;

/// Warps of a block.
pub(super) const WARPS: usize = SAMPLER_THREADS / WARP;
/// Blocks that keep a multiprocessor busy, as many as fit on one, in float32 and float64: more would wait for the others.
const BLOCKS: [usize; 2] = [SAMPLE_BLOCKS_F32, SAMPLE_BLOCKS_F64];
/// Of those that take gradients.
const GRADIENT_BLOCKS: [usize; 2] = [GRADIENT_BLOCKS_F32, GRADIENT_BLOCKS_F64];
/// Bytes of normals that a warp makes in a step.
const STEP_BYTES: usize = WARP * NORMALS_F32 * size_of::<f32>();
const _: () = assert!(STEP_BYTES == WARP * NORMALS_F64 * size_of::<f64>());
/// The most steps whose normals stay in shared memory: 48 KB for a block.
const MOST_STEPS: usize = 24;

/// The steps of a draw whose normals stay in shared memory.
pub(super) struct CachedNormals(usize);

impl CachedNormals {
    /// The steps for draws of a dimension, in float32 or else in float64.
    pub(super) fn of(dim: usize, single: bool) -> Self {
        let each_step = if single { NORMALS_F32 * RUN_F32 } else { NORMALS_F64 * RUN_F64 };
        CachedNormals(dim.div_ceil(each_step).clamp(1, MOST_STEPS))
    }

    /// How many steps they are.
    pub(super) fn steps(&self) -> usize {
        self.0
    }

    /// Bytes of a block's shared memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.0 * WARPS * STEP_BYTES
    }
}

impl SampleArgs {
    /// Shares `parts`, draws or rows, among warps in tiles of at most [`WARP`], as many for each, and says how to launch them.
    fn share_out(&mut self, at: Place, single: bool, blocks: [usize; 2], parts: i64) -> Result<Launch, Error> {
        let parts = parts as usize;
        let mut launch =
            at.launch(parts.div_ceil(WARPS) as u64, blocks[usize::from(!single)] as u32, SAMPLER_THREADS)?;
        let warps = launch.grid.0.max(1) as usize * WARPS;
        let times = parts.div_ceil(warps * WARP).max(1);
        self.tile = parts.div_ceil(warps * times).max(1) as i64;
        let normals = CachedNormals::of(self.mu.stored as usize, single);
        (self.cached_steps, launch.shared) = (normals.steps() as i64, normals.bytes() as u32);
        Ok(launch)
    }
}

/// How the name of a sampler's kernel ends.
fn tag(single: bool) -> &'static str {
    if single {
        "f32"
    } else {
        "f64"
    }
}

/// Draws, to `args.out` [draws, N, D].
///
/// # Safety
/// The addresses must be the device's, of memory of the sizes that the arguments say, which stays until the stream has run the
/// kernel.
pub unsafe fn sample(distribution: &Distribution, at: Place, single: bool, mut args: SampleArgs) -> Result<(), Error> {
    let launch = args.share_out(at, single, BLOCKS, args.mu.rows * args.draws)?;
    driver()?.launch(&format!("{}_{}", distribution.name, tag(single)), launch, &args)
}

/// Gradients of sum(weights * draws) by the means and by the uncertainties, to the two addresses; without draws, zeros.
///
/// # Safety
/// As [`sample`].
pub unsafe fn sample_backward(
    distribution: &Distribution,
    at: Place,
    single: bool,
    mut items: SampleArgs,
    weights: u64,
    (by_mu, by_uncertainty): (u64, u64),
) -> Result<(), Error> {
    if items.draws == 0 {
        let words = |x: DeviceMatrix| (x.rows * x.stored) as usize * if single { 1 } else { 2 };
        driver()?.fill_with_zeros(at, by_mu, words(items.mu))?;
        return driver()?.fill_with_zeros(at, by_uncertainty, words(items.uncertainty));
    }
    let launch = items.share_out(at, single, GRADIENT_BLOCKS, items.mu.rows)?;
    let order = Order::new(0.5 * items.mu.stored as f64);
    let args = SampleBackwardArgs { items, weights, by_mu, by_uncertainty, order };
    driver()?.launch(&format!("{}_backward_{}", distribution.name, tag(single)), launch, &args)
}

#[cfg(test)]
mod tests {
    use super::CachedNormals;

    #[test]
    fn normals_of_all_steps_are_cached_as_far_as_48_kb_go() {
        for (dim, single, steps) in [(1, true, 1), (64, true, 1), (65, true, 2), (9999, true, 24), (17, false, 2)] {
            assert_eq!(CachedNormals::of(dim, single).steps(), steps);
        }
        let (some, many) = (CachedNormals::of(128, false), CachedNormals::of(9999, false));
        assert_eq!((some.steps(), many.bytes()), (8, 48 * 1024));
    }
}
