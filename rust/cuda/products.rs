//! Scores of all pairs and their gradients, from inner products that torch has made: cuda/drivers/products.cuh.

use super::arguments::{DeviceMatrix, NormArgs, ProductArgs};
use super::call::{Call, Types, Which};
use super::constants::{PAIR_THREADS, PRODUCT_COLUMNS, PRODUCT_ROWS, SIEVE_COLUMNS, WARP};
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

/// The addresses of masks, norms and sums over pairs in one piece of memory.
#[derive(Clone, Copy)]
pub struct Scratch {
    /// The sums over rows, and over columns.
    sums: [u64; 2],
    /// The masks of the pairs that are left to the pair function.
    marks: [u64; 2],
    /// Squared norms of both sides.
    norms: u64,
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
        let sizes = [32 * parts[0] * queries, 16 * parts[1] * gallery, 8 * (queries + gallery), masks[0], masks[1]];
        let mut size = 0;
        let [rows, columns, norms, by_query, by_row] = sizes.map(|bytes| {
            size += bytes;
            address + (size - bytes) as u64
        });
        Scratch { sums: [rows, columns], marks: [by_query, by_row], norms, parts, size }
    }

    /// The parts of it that the gradients of a side take.
    pub fn of_side(&self, side: usize) -> (u64, u64, usize) {
        (self.marks[side], self.sums[side], self.parts[side])
    }
}

/// The numbers of blocks that share all pairs: along the gallery, and along the queries.
fn blocks(queries: usize, gallery: usize) -> [usize; 2] {
    [gallery.div_ceil(PRODUCT_COLUMNS), queries.div_ceil(PRODUCT_ROWS)]
}

impl Call {
    /// Writes the squared norms of the queries and then of the gallery, and returns their addresses; of one set they are made once.
    unsafe fn norms_of_both(&self, to: u64) -> Result<[u64; 2], Error> {
        let (mu1, mu2) = (self.inputs.mu1, self.inputs.mu2);
        let one_set = (mu1.data, mu1.rows, mu1.stride) == (mu2.data, mu2.rows, mu2.stride);
        let after = if one_set { to } else { to + mu1.rows.cast_unsigned() * self.types.size() as u64 };
        let sides = [(mu1, to), (mu2, after)];
        norms(self.at, self.types, &sides[usize::from(one_set)..], None)?;
        Ok([to, after])
    }

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

    /// The scores of all pairs, to `out` [Q, G], which may be the products' memory, given at `data`; memory at `norms` takes Q + G
    /// numbers.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn scores_of_products(&self, data: u64, norms: u64, out: u64) -> Result<(), Error> {
        self.make_per_item(false)?;
        let norms = self.norms_of_both(norms)?;
        let mut args = self.product_args(Products { data, stride: self.inputs.mu2.rows as usize, norms });
        args.pairs.scores = out;
        self.launch_on_products("scores", args)
    }

    /// The factors, masks and sums of which the gradients of sum(weights * scores) are made; sums over columns if `both` sides are
    /// wanted.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn weights_of_products(&self, data: u64, of: Weighted, both: bool) -> Result<(), Error> {
        self.make_per_item(true)?;
        let norms = self.norms_of_both(of.scratch.norms)?;
        let products = Products { data, stride: self.inputs.mu2.rows as usize, norms };
        let Weighted { weights, factors, scratch: Scratch { sums: [rows, columns], marks, .. } } = of;
        let columns = if both { columns } else { 0 };
        self.launch_on_products(
            "weights",
            ProductArgs { weights, factors, marks, rows, columns, ..self.product_args(products) },
        )
    }
}

/// Writes the squared norms of the rows of one or two sides, whose type is `types`' stored one, to the address beside them; with `narrow`,
/// the addresses of halves and of the reciprocals of the powers by which rows are multiplied, rows of float32 of one side as halves of that
/// type too.
///
/// # Safety
/// As [`Call::scores`].
pub unsafe fn norms(
    at: Place,
    types: Types,
    sides: &[(DeviceMatrix, u64)],
    narrow: Option<[u64; 2]>,
) -> Result<(), Error> {
    let [narrow_rows, powers] = narrow.unwrap_or_default();
    let mut args = NormArgs { narrow: narrow_rows, powers, ..NormArgs::default() };
    for (side, &(rows, norms)) in sides.iter().enumerate() {
        (args.rows[side], args.norms[side]) = (rows, norms);
    }
    let most = sides.iter().map(|(rows, _)| rows.rows.cast_unsigned()).max().unwrap_or(0);
    let mut launch = at.launch(most.div_ceil((PAIR_THREADS / WARP) as u64), 16, PAIR_THREADS)?;
    launch.grid.1 = sides.len() as u32;
    let name = format!("{}_{}", if narrow.is_some() { "narrowed" } else { "norms" }, types.tag());
    driver()?.launch(&name, launch, &args)
}
