//! Elementwise kernels of the Bessel family and samplers: cuda/bessel.cu, cuda/samplers.cu.

use super::driver::{driver, Launch};
use crate::error::Error;

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
        let busy = driver()?.multiprocessors(self.device)? * per_multiprocessor;
        let blocks = blocks.min(u64::from(busy)) as u32;
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

/// Bytes that the table of one order takes at most (`Table` in cuda/bessel.cu).
const TABLE_BYTES: usize = 32 * 1024;
const TABULATED: [&str; 3] = ["log_ive", "iv_ratio", "vmf_log_norm"];
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
