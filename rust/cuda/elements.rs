//! Elementwise functions: cuda/families/bessel.cu.

use super::arguments::{ElementwiseArgs, TableArgs, TabulatedArgs};
use super::constants::{ELEMENT_THREADS, TABLE_BYTES, TABLE_PIECES};
use super::libcuda::{driver, Place};
use crate::error::Error;
use crate::kernels::bessel::Function;

/// Fewer elements than this cost less by the formula.
const TABLE_PAYS: usize = 1 << 16;
/// Blocks that keep a multiprocessor busy.
const BLOCKS: u32 = 8;
/// Elements that a thread takes at a time.
const AT_ONCE: usize = 4;

/// Bytes of workspace that [`elementwise`] needs: 0 where it goes by the formula.
pub fn table_size(function: &Function, single: bool, orders: usize, elements: usize) -> usize {
    if single && orders == 1 && elements >= TABLE_PAYS && function.tabulated {
        TABLE_BYTES
    } else {
        0
    }
}

/// Values of the function for all elements; by a table where there is memory for one.
///
/// # Safety
/// The addresses must be the device's, of memory of the sizes that the arguments say, which stays until the stream has run the
/// kernels.
pub unsafe fn elementwise(
    function: &Function,
    at: Place,
    single: bool,
    args: ElementwiseArgs,
    table: Option<u64>,
) -> Result<(), Error> {
    let (driver, name) = (driver()?, function.name);
    let all = at.launch((args.n as usize).div_ceil(ELEMENT_THREADS * AT_ONCE) as u64, BLOCKS, ELEMENT_THREADS)?;
    let Some(table) = table else {
        return driver.launch(&format!("{name}_{}", if single { "f32" } else { "f64" }), all, &args);
    };
    let ElementwiseArgs { order, x, out, n, .. } = args;
    let pieces = at.launch(TABLE_PIECES.div_ceil(ELEMENT_THREADS) as u64, 1, ELEMENT_THREADS)?;
    driver.launch(&format!("{name}_table_f32"), pieces, &TableArgs { order, table })?;
    driver.launch(&format!("{name}_tabulated_f32"), all, &TabulatedArgs { table, x, out, n })
}
