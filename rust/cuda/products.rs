//! Scores of all pairs and their gradients, from inner products that torch has made: cuda/drivers/products.cuh.

use super::arguments::{DeviceMatrix, NormArgs, ProductArgs};
use super::call::{Call, Types, Which};
use super::constants::{CENTRE_ROWS, PAIR_THREADS, PRODUCT_COLUMNS, PRODUCT_ROWS, SIEVE_COLUMNS, WARP};
use super::libcuda::{driver, Launch, Place};
use super::tiles::GRID_Y;
use crate::error::Error;

/// Inner products of all pairs, and what stands beside them.
#[derive(Clone, Copy)]
pub struct Products {
    /// Address of the products [Q, stride].
    pub data: u64,
    /// Elements from one query's products to the next one's.
    pub stride: usize,
    /// Addresses of the squared norms of each side.
    pub norms: [u64; 2],
}

/// The memory of the gradients of all pairs.
#[derive(Clone, Copy)]
pub struct Weighted {
    /// Address of the weight of each score, [Q, G].
    pub weights: u64,
    /// Address of the factors of other items' means, [Q, G], written.
    pub factors: u64,
    /// Where the rest is written.
    pub scratch: Scratch,
}

/// The addresses of masks and sums over pairs in one piece of memory.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// The sums over rows, and over columns.
    sums: [u64; 2],
    /// The masks of the pairs that are left to the pair function.
    marks: [u64; 2],
    /// How many parts the sums over rows have, and those over columns.
    parts: [usize; 2],
    /// The bytes of all.
    pub size: usize,
}

impl Scratch {
    /// At this address, for so many queries and gallery rows.
    pub fn at(address: u64, queries: usize, gallery: usize) -> Self {
        let parts = blocks(queries, gallery);
        let masks = [4 * queries * gallery.div_ceil(32), 4 * parts[1] * gallery];
        let sizes = [32 * parts[0] * queries, 16 * parts[1] * gallery, masks[0], masks[1]];
        let mut size = 0;
        let [rows, columns, by_query, by_row] = sizes.map(|bytes| {
            size += bytes;
            address + (size - bytes) as u64
        });
        Scratch { sums: [rows, columns], marks: [by_query, by_row], parts, size }
    }

    /// The parts of it that the gradients of a side take, whose rows that were multiplied are at this address.
    pub fn of_side(&self, side: usize, rows: u64) -> (u64, u64, usize, u64) {
        (self.marks[side], self.sums[side], self.parts[side], rows)
    }
}

/// The numbers of blocks that share all pairs: along the gallery, and along the queries.
fn blocks(queries: usize, gallery: usize) -> [usize; 2] {
    [gallery.div_ceil(PRODUCT_COLUMNS), queries.div_ceil(PRODUCT_ROWS)]
}

impl Call {
    /// The arguments of a kernel that reads products of all pairs.
    pub(super) fn product_args(&self, products: Products) -> ProductArgs {
        let mut pairs = self.args(Which::Pairwise);
        pairs.end = pairs.mu2.rows;
        let Products { data, stride, norms } = products;
        ProductArgs { pairs, products: data, stride: stride as i64, norms, ..ProductArgs::default() }
    }

    /// Launches a kernel that reads the products of the gallery rows from `begin` to `end`.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub(super) unsafe fn launch_on_products(&self, kernel: &str, args: ProductArgs) -> Result<(), Error> {
        let Place { device, stream } = self.at;
        let [x, y] = blocks(args.pairs.mu1.rows as usize, (args.pairs.end - args.pairs.begin) as usize);
        let x = if kernel == "sieve" { x.div_ceil(SIEVE_COLUMNS) } else { x };
        let grid = (x as u32, y.min(GRID_Y) as u32);
        self.launch(kernel, Launch { device, stream, grid, block: PRODUCT_COLUMNS as u32, shared: 0 }, args)
    }

    /// The scores of all pairs, to `out` [Q, G], which may be the products' memory.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn scores_of_products(&self, products: Products, out: u64) -> Result<(), Error> {
        self.make_per_item(false)?;
        let mut args = self.product_args(products);
        args.pairs.scores = out;
        self.launch_on_products("scores", args)
    }

    /// The factors, masks and sums of which the gradients of sum(weights * scores) are made; sums over columns if `both` sides are
    /// wanted.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn weights_of_products(&self, products: Products, of: Weighted, both: bool) -> Result<(), Error> {
        self.make_per_item(true)?;
        let Weighted { weights, factors, scratch: Scratch { sums: [rows, columns], marks, .. } } = of;
        let columns = if both { columns } else { 0 };
        self.launch_on_products(
            "weights",
            ProductArgs { weights, factors, marks, rows, columns, ..self.product_args(products) },
        )
    }
}

/// Writes the squared norms of the rows of one or two sides, whose type is `types`' stored one, to the address beside them, and copies to the
/// one after that unless it is 0, all less the mean of some rows of `like` if it has any; with `narrow`, the addresses of halves and of the reciprocals of the powers by which rows are multiplied, rows of float32 of one
/// side as halves of that type too.
///
/// # Safety
/// As [`Call::scores`].
pub unsafe fn norms(
    at: Place,
    types: Types,
    sides: &[(DeviceMatrix, u64, u64)],
    mut like: DeviceMatrix,
    narrow: Option<[u64; 2]>,
) -> Result<(), Error> {
    let [narrow_rows, powers] = narrow.unwrap_or_default();
    let used = like.rows.min(CENTRE_ROWS as i64);
    like.stride *= if used > 0 { like.rows / used } else { 1 };
    like.rows = used;
    let mut args = NormArgs { like, narrow: narrow_rows, powers, ..NormArgs::default() };
    for (side, &(rows, norms, copies)) in sides.iter().enumerate() {
        (args.rows[side], args.norms[side], args.copies[side]) = (rows, norms, copies);
    }
    let most = sides.iter().map(|(rows, ..)| rows.rows.cast_unsigned()).max().unwrap_or(0);
    let mut launch = at.launch(most.div_ceil((PAIR_THREADS / WARP) as u64), 16, PAIR_THREADS)?;
    launch.grid.1 = sides.len() as u32;
    let name = format!("{}_{}", if narrow.is_some() { "narrowed" } else { "norms" }, types.tag());
    driver()?.launch(&name, launch, &args)
}
