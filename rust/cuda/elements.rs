//! Elementwise kernels of the Bessel family and samplers: cuda/families/bessel.cu and samplers.cu.

use super::driver::{driver, Launch};
use super::Matrix;
use crate::error::Error;
use crate::special::bessel::Order;

const THREADS: u32 = 256;

/// The device and stream of a call.
#[derive(Clone, Copy)]
pub struct Place {
    /// The number of the device, as torch counts.
    pub device: i32,
    /// The stream, as torch gives it.
    pub stream: u64,
}

impl Place {
    /// As many blocks as keep the device busy, `per_multiprocessor` on each, or fewer where `blocks` do all the work.
    pub(super) fn launch(self, blocks: u64, per_multiprocessor: u32, block: u32) -> Result<Launch, Error> {
        let busy = driver()?.capacities(self.device)?.0 as u64 * u64::from(per_multiprocessor);
        let blocks = blocks.min(busy) as u32;
        Ok(Launch { device: self.device, stream: self.stream, grid: (blocks, 1), block, shared: 0 })
    }
}

/// Addresses and sizes of an elementwise call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Elements {
    /// float64, one for all or as many as x.
    pub order: u64,
    /// How many.
    pub orders: i64,
    /// float32 or float64.
    pub x: u64,
    /// Of the same type.
    pub out: u64,
    /// How many.
    pub n: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TableArgs {
    order: u64,
    table: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TabulatedArgs {
    table: u64,
    x: u64,
    out: u64,
    n: i64,
}

/// Bytes that the table of one order takes at most (`Table` in cuda/families/bessel.cu).
const TABLE_BYTES: usize = 32 * 1024;
const TABULATED: [&str; 9] = [
    "log_ive",
    "log_ive_dx",
    "log_ive_dxx",
    "iv_ratio",
    "iv_ratio_dx",
    "iv_ratio_dxx",
    "iv_ratio_complement",
    "vmf_log_norm",
    "vmf_log_norm_dx",
];
/// Fewer elements than this cost less by the formula.
const TABLE_PAYS: usize = 1 << 16;

/// Bytes of workspace that [`elementwise`] wants, 0 where it goes by the formula.
pub fn table_size(name: &str, single: bool, orders: usize, elements: usize) -> usize {
    let pays = single && orders == 1 && elements >= TABLE_PAYS && TABULATED.contains(&name);
    if pays {
        TABLE_BYTES
    } else {
        0
    }
}

/// The op for all elements; by a table where there is room for one.
///
/// # Safety
/// The addresses must be the device's, of as many elements as is said, and stay until the stream has passed.
pub unsafe fn elementwise(
    name: &str,
    at: Place,
    single: bool,
    args: Elements,
    table: Option<u64>,
) -> Result<(), Error> {
    let driver = driver()?;
    let blocks = (args.n as u64).div_ceil(u64::from(THREADS) * 4);
    let Some(table) = table else {
        let name = format!("{name}_{}", if single { "f32" } else { "f64" });
        return driver.launch(&name, at.launch(blocks, 8, THREADS)?, &args);
    };
    let pieces = 7; // of 256 threads: a piece each
    let make = TableArgs { order: args.order, table };
    driver.launch(&format!("{name}_table_f32"), at.launch(pieces, 1, THREADS)?, &make)?;
    let args = TabulatedArgs { table, x: args.x, out: args.out, n: args.n };
    driver.launch(&format!("{name}_tabulated_f32"), at.launch(blocks, 8, THREADS)?, &args)
}

/// What a sampler is given.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Samples {
    /// [N, D]
    pub mu: Matrix,
    /// Variances [N] or [N, D], or concentrations [N].
    pub extra: Matrix,
    /// The address of the seed, int64.
    pub seed: u64,
    /// Number of row 0 in its distribution.
    pub first_row: u64,
    /// As in rust/rng.rs.
    pub stream: i64,
    /// Of each row.
    pub draws: i64,
    tile: i64,
    kept: i64,
    out: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct BackwardArgs {
    items: Samples,
    weights: u64,
    by_mu: u64,
    by_extra: u64,
    order: Order,
}

/// Threads of a block of a sampler.
pub const SAMPLER_THREADS: u32 = 128;
/// Its warps.
pub const WARPS: u64 = SAMPLER_THREADS as u64 / 32;

/// The steps of a sampler's teams whose normals stay in shared memory, of a warp's 512 bytes each: at most 48 KB a block.
pub struct Normals(u32);

impl Normals {
    /// Of draws of a dimension; `RUN EACH` of cuda/numerics/philox.cuh are made in a step.
    pub fn of(dim: usize, single: bool) -> Self {
        let each_step = if single { 64 } else { 16 };
        Normals(dim.div_ceil(each_step).clamp(1, 24) as u32)
    }
    /// How many steps.
    pub fn kept(&self) -> i64 {
        i64::from(self.0)
    }
    /// Of a block.
    pub fn bytes(&self) -> u32 {
        self.0 * WARPS as u32 * 512
    }
}

impl Samples {
    /// Items, where their noise is, and how many draws.
    pub fn new(mu: Matrix, extra: Matrix, seed: u64, first_row: u64, stream: i64, draws: i64) -> Self {
        Samples { mu, extra, seed, first_row, stream, draws, tile: 1, kept: 1, out: 0 }
    }

    /// Shares `parts` among the warps, up to `most` at a time for each, and says how to launch them.
    fn shared_out(&mut self, at: Place, single: bool, parts: u64, most: u64) -> Result<Launch, Error> {
        let mut launch = at.launch(parts.div_ceil(WARPS), 16, SAMPLER_THREADS)?;
        let warps = u64::from(launch.grid.0.max(1)) * WARPS;
        self.tile = parts.div_ceil(warps).clamp(1, most) as i64;
        let normals = Normals::of(self.mu.stored as usize, single);
        (self.kept, launch.shared) = (normals.kept(), normals.bytes());
        Ok(launch)
    }
}

/// Draws [draws, N, D] to `out`.
///
/// # Safety
/// As [`elementwise`].
pub unsafe fn sample(name: &str, at: Place, single: bool, mut args: Samples, out: u64) -> Result<(), Error> {
    let parts = (args.mu.rows * args.draws) as u64;
    let launch = args.shared_out(at, single, parts, 32)?;
    args.out = out;
    driver()?.launch(&format!("{name}_{}", if single { "f32" } else { "f64" }), launch, &args)
}

/// Gradients of sum(weights * draws), by mu and by the extra.
///
/// # Safety
/// As [`elementwise`].
pub unsafe fn sample_backward(
    name: &str,
    at: Place,
    single: bool,
    mut items: Samples,
    weights: u64,
    (by_mu, by_extra): (u64, u64),
) -> Result<(), Error> {
    let launch = items.shared_out(at, single, items.mu.rows as u64, 32)?;
    let order = Order::new(0.5 * items.mu.stored as f64);
    let args = BackwardArgs { items, weights, by_mu, by_extra, order };
    driver()?.launch(&format!("{name}_backward_{}", if single { "f32" } else { "f64" }), launch, &args)
}

#[cfg(test)]
mod tests {
    use super::Normals;

    #[test]
    fn normals_of_all_steps_are_kept_as_far_as_48_kb_go() {
        let header = include_str!("../../cuda/numerics/philox.cuh");
        assert!(
            header.contains("EACH = 4, RUN = 16;\n    float n") && header.contains("EACH = 2, RUN = 8;\n    double n")
        );
        for (dim, single, steps) in [(1, true, 1), (64, true, 1), (65, true, 2), (9999, true, 24), (17, false, 2)] {
            assert_eq!(Normals::of(dim, single).kept(), steps);
        }
        assert_eq!((Normals::of(128, false).kept(), Normals::of(9999, false).bytes()), (8, 48 * 1024));
    }
}
