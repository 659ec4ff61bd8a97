//! The best of a whole gallery: cuda/drivers/products.cuh and search.cuh, cuda/families/topk.cu.

use super::arguments::{DeviceMatrix, PairArgs, ProductArgs, TopKArgs};
use super::call::{Call, Ranked, Types, Which};
use super::constants::{PER_ITEM_NUMBERS, PRODUCT_COLUMNS, SIEVE_COLUMNS, TOPK_THREADS};
use super::libcublas::{self, Numbers, Rows};
use super::libcuda::{driver, Place};
use super::products::Products;
use super::tiles::Tiling;
use crate::drivers::Prune;
use crate::error::Error;
use crate::kernels::pair_op::Sieve;

/// Queries that are searched at a time.
const QUERIES: usize = 2048;
/// Products that are made at a time: 32 MB, which a second-level cache holds.
const PRODUCTS: usize = 1 << 23;
/// Survivors that all queries have memory for.
const SURVIVORS: usize = 1 << 23;
/// Gallery rows below which products are not worth their launches.
const FEW_ROWS: usize = 4096;

/// How a search by products is cut.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Queries that are searched at a time.
    pub queries: usize,
    /// Rows whose lower limits give the first threshold.
    pub first: usize,
    /// Rows whose products are made at a time, of whole blocks of a sieve.
    pub rows: usize,
    /// The survivors of a query that there is memory for.
    pub survivors: usize,
    /// Blocks that share a query's survivors.
    pub shares: usize,
}

/// How a search is cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// All pairs are scored.
    All(Tiling),
    /// Products rule pairs out.
    Products(Blocks),
}

/// The memory of a search.
#[derive(Clone, Copy)]
pub struct Workspace {
    /// The best of each part of the gallery, [Q, parts k].
    pub parts: Ranked,
    /// The items of the lists of the best, as many as the tiling says.
    pub lists: Ranked,
    /// The memory of a search by products beside them.
    pub sieve: Option<SieveMemory>,
}

/// The memory of a search by products.
#[derive(Clone, Copy)]
pub struct SieveMemory {
    /// torch's handle of cuBLAS.
    pub handle: u64,
    /// Address of the products, float32 [queries, rows].
    pub products: u64,
    /// Addresses of the squared norms of both sides, float32.
    pub norms: [u64; 2],
    /// Addresses of the queries as halves and of the factors of their products; 0 where neither the gallery nor copies of it are in halves.
    pub narrow: [u64; 2],
    /// Likewise of a gallery in float32, [G, D] and [G], where they were prepared.
    pub copies: [u64; 2],
    /// Address of the numbers from 0 on, int64 [first].
    pub numbers: u64,
    /// Address of the survivors, int32 [queries, survivors].
    pub survivors: u64,
    /// Address of the number of each query's survivors, int32 [queries].
    pub counts: u64,
}

impl Blocks {
    /// The ends of the chunks after each of which survivors are scored. Of a chunk seven times as long as what was seen, some 7 k
    /// survive.
    fn ends(&self, k: usize, gallery: usize) -> Vec<usize> {
        // Few queries wait for launches longer than for the scores of more survivors.
        let growth = (self.survivors / (4 * k)).clamp(1, if self.queries <= 32 { 31 } else { 7 });
        let longer = |&end: &usize| (end < gallery).then(|| gallery.min(end * (1 + growth)));
        std::iter::successors(longer(&self.first).or(Some(gallery)), longer).collect()
    }
}

impl Call {
    /// The same call, of some queries.
    fn of_queries(&self, first: usize, queries: usize) -> Self {
        let mut part = *self;
        for (matrix, size) in
            [(&mut part.inputs.mu1, self.types.size()), (&mut part.inputs.uncertainty1, self.types.size())]
        {
            matrix.data += (first * matrix.stride as usize * size) as u64;
            matrix.rows = queries as i64;
        }
        if part.per_item[0] != 0 {
            part.per_item[0] += (first * PER_ITEM_NUMBERS * 8) as u64;
        }
        part
    }

    /// How a search for the best k is cut.
    pub fn cut(&self, k: usize, prune: Prune) -> Result<Cut, Error> {
        let (queries, gallery) = self.sizes();
        let always = prune == Prune::Always && gallery > 0;
        let can = self.types != Types::F64 && self.kernel.sieve == Sieve::Product && i32::try_from(gallery).is_ok();
        if prune == Prune::Never || !can || queries == 0 || !(always || gallery >= FEW_ROWS) {
            return Ok(Cut::All(self.tiling(k)?));
        }
        let queries = queries.min(QUERIES).min((SURVIVORS / (16 * k)).max(1));
        let first = if always { k } else { (8 * k).max(FEW_ROWS) }.min(gallery);
        let rows = (PRODUCTS / queries).max(first).min(gallery).next_multiple_of(PRODUCT_COLUMNS * SIEVE_COLUMNS);
        let survivors = (SURVIVORS / queries).min(gallery);
        let shares = self.of_queries(0, queries).shares(usize::MAX)?;
        Ok(Cut::Products(Blocks { queries, first, rows, survivors, shares }))
    }

    /// The best k of the gallery for each query, to `out` [Q, k].
    ///
    /// # Safety
    /// As [`Call::scores`]; `cut` is this call's, and the workspace of the sizes that it asks for.
    pub unsafe fn search(&self, k: usize, cut: &Cut, with: Workspace, out: Ranked) -> Result<(), Error> {
        self.make_per_item(false)?;
        match (cut, with.sieve) {
            (Cut::Products(blocks), Some(sieve)) => {
                let queries = self.sizes().0;
                for first in (0..queries).step_by(blocks.queries) {
                    let n = blocks.queries.min(queries - first);
                    let moved =
                        |address: u64, size: usize| if address == 0 { 0 } else { address + (first * size) as u64 };
                    let halves = 2 * self.inputs.mu1.stored as usize;
                    let sieve = SieveMemory {
                        norms: [moved(sieve.norms[0], 4), sieve.norms[1]],
                        narrow: [moved(sieve.narrow[0], halves), moved(sieve.narrow[1], 4)],
                        ..sieve
                    };
                    let out = Ranked { scores: moved(out.scores, 4 * k), ids: moved(out.ids, 8 * k) };
                    self.of_queries(first, n).search_by_products(k, blocks, (sieve, with.parts), out)?;
                }
                Ok(())
            }
            (Cut::All(tiling), _) => self.search_all(k, tiling, with, out),
            (Cut::Products(_), None) => Err(Error::Value("a search by products needs memory for them".into())),
        }
    }

    /// The best k of the gallery by products of blocks of its rows, which rule most pairs out.
    unsafe fn search_by_products(
        &self,
        k: usize,
        blocks: &Blocks,
        (sieve, parts): (SieveMemory, Ranked),
        out: Ranked,
    ) -> Result<(), Error> {
        let (queries, gallery) = self.sizes();
        let args = |begin: usize, end: usize| self.sieve_args((begin, end), k, blocks, &sieve, out);
        // The worst of the best k lower limits of the first rows is a threshold that k rows reach.
        self.make_products((0, blocks.first), blocks, &sieve)?;
        let mut lowest = args(0, blocks.first);
        lowest.pairs.scores = sieve.products;
        self.launch_on_products("lowest", lowest)?;
        let (rows, stored) = (queries as i64, blocks.first as i64);
        let limits = DeviceMatrix { data: sieve.products, rows, stored, stride: blocks.rows as i64 };
        let numbers = DeviceMatrix { data: sieve.numbers, rows, stored, stride: 0 };
        select(self.at, false, (limits, numbers), k, out)?;
        let mut begin = 0;
        for end in blocks.ends(k, gallery) {
            driver()?.fill_with_zeros(self.at, sieve.counts, queries)?;
            for from in (begin..end).step_by(blocks.rows) {
                let to = end.min(from + blocks.rows);
                self.make_products((from, to), blocks, &sieve)?;
                self.launch_on_products("sieve", args(from, to))?;
            }
            let survivors = PairArgs { known: if begin > 0 { out.ids } else { 0 }, ..args(begin, end).pairs };
            self.take_best(usize::MAX, k, survivors, parts, out)?;
            begin = end;
        }
        Ok(())
    }

    /// The type of the numbers whose products are made, their bytes, and by how much rounding the rows changes a product, relative to
    /// their lengths.
    fn numbers(&self, copies: bool) -> (Numbers, usize, f64) {
        match self.types {
            // Both sides are rounded, as the query is below.
            _ if copies => (Numbers::F16, 2, f64::powi(2.0, -10) + f64::powi(2.0, -16) + f64::powi(2.0, -21)),
            // Tensor cores cut each number to eleven digits.
            Types::F32 | Types::F64 => (Numbers::F32, 4, f64::powi(2.0, -9) + f64::powi(2.0, -20)),
            // The query is rounded; halves below the normal ones, beside a number of 1 at least, by a multiple of 2^-25.
            Types::F32F16 => (Numbers::F16, 2, f64::powi(2.0, -11) + f64::powi(2.0, -17)),
            Types::F32BF16 => (Numbers::BF16, 2, f64::powi(2.0, -9)),
        }
    }

    /// Makes the products of all queries and the gallery rows from `begin` to `end`.
    unsafe fn make_products(
        &self,
        (begin, end): (usize, usize),
        blocks: &Blocks,
        sieve: &SieveMemory,
    ) -> Result<(), Error> {
        let (DeviceMatrix { data, rows, stored, stride }, mu2) = (self.inputs.mu1, self.inputs.mu2);
        let (data, stride) = if sieve.narrow[0] == 0 { (data, stride) } else { (sieve.narrow[0], stored) };
        let (numbers, size, _) = self.numbers(sieve.copies[0] != 0);
        let queries = Rows { data, rows: rows as usize, stride: stride as usize };
        let (all, stride) = if sieve.copies[0] == 0 { (mu2.data, mu2.stride) } else { (sieve.copies[0], stored) };
        let data = all + (begin * stride as usize * size) as u64;
        let gallery = Rows { data, rows: end - begin, stride: stride as usize };
        let to = (sieve.products, blocks.rows);
        libcublas::products((self.at, sieve.handle), numbers, stored as usize, [queries, gallery], to)
    }

    /// The arguments of the kernels that read these products.
    fn sieve_args(
        &self,
        (begin, end): (usize, usize),
        k: usize,
        blocks: &Blocks,
        sieve: &SieveMemory,
        out: Ranked,
    ) -> ProductArgs {
        let (dim, u) = (self.inputs.mu1.stored as f64, f64::powi(2.0, -24));
        let rounded = self.numbers(sieve.copies[0] != 0).2;
        let slack = 1.01 * (rounded + 4.0 * (dim + 1.0) * u + (3.0 * dim / 32.0 + 41.0) * u);
        let products = Products { data: sieve.products, stride: blocks.rows, norms: sieve.norms };
        let powers = [sieve.narrow[1], sieve.copies[1]];
        let mut args = ProductArgs { powers, slack, ..self.product_args(products) };
        args.pairs = PairArgs {
            k: k as i64,
            begin: begin as i64,
            end: end as i64,
            scores: out.scores,
            ids: out.ids,
            most_survivors: blocks.survivors as i64,
            survivors: sieve.survivors,
            counts: sieve.counts,
            ..args.pairs
        };
        args
    }

    /// The best k of the gallery by the scores of all pairs.
    unsafe fn search_all(&self, k: usize, tiling: &Tiling, with: Workspace, out: Ranked) -> Result<(), Error> {
        let one = tiling.shards == 1;
        let to = if one { out } else { with.parts };
        let args = PairArgs {
            k: k as i64,
            capacity: tiling.capacity as i64,
            scores: to.scores,
            ids: to.ids,
            list_scores: if tiling.listed > 0 { with.lists.scores } else { 0 },
            list_ids: with.lists.ids,
            ..self.args(Which::Pairwise)
        };
        self.launch_tiled(tiling, args)?;
        if one {
            return Ok(());
        }
        self.merge(tiling.shards * k, k, with.parts, out)
    }
}

/// The best k of given scores [Q, N] with their ids, -1 = none, to `out` [Q, k].
///
/// # Safety
/// As [`Call::scores`].
pub unsafe fn select(
    at: Place,
    double: bool,
    (scores, ids): (DeviceMatrix, DeviceMatrix),
    k: usize,
    out: Ranked,
) -> Result<(), Error> {
    let capacity = (scores.stored as usize).min(k + TOPK_THREADS).max(k).next_power_of_two();
    let (out_scores, out_ids) = (out.scores, out.ids);
    let args = TopKArgs { scores, ids, k: k as i64, capacity: capacity as i64, out_scores, out_ids };
    let mut launch = at.launch(scores.rows as u64, 8, TOPK_THREADS)?;
    launch.shared = (capacity * (8 + if double { 8 } else { 4 })) as u32;
    driver()?.launch(if double { "topk_f64" } else { "topk_f32" }, launch, &args)
}
