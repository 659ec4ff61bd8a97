//! Scores of pairs: cuda/pairs.cuh, search.cuh, backward.cuh and topk.cu. Kernels are named `<op>_<driver>_<types>`.

use super::driver::{driver, Launch};
use super::sampled::Drawing;
use super::{Matrix, Place};
use crate::error::Error;
use crate::special::bessel::Order;

/// The best that a kernel keeps of each query.
pub const BEST: usize = 1024;
const PAIR_THREADS: u32 = 128;
const SEARCH_THREADS: u32 = 256;
const TOPK_THREADS: u32 = 256;
/// Dimensions and rows that a block of a search has in shared memory at a time.
const STEP: usize = 128;
const ROWS: usize = 8;

/// What is computed in, and what the gallery is kept in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// float32
    F32,
    /// float64
    F64,
    /// float32, float16
    F32F16,
    /// float32, bfloat16
    F32BF16,
}

impl Types {
    fn tag(self) -> &'static str {
        match self {
            Types::F32 => "f32",
            Types::F64 => "f64",
            Types::F32F16 => "f32_f16",
            Types::F32BF16 => "f32_bf16",
        }
    }
    /// What is computed in.
    pub fn name(self) -> &'static str {
        if self == Types::F64 {
            "float64"
        } else {
            "float32"
        }
    }
    /// Bytes of it.
    pub(super) fn size(self) -> usize {
        if self == Types::F64 {
            8
        } else {
            4
        }
    }
    /// Queries of a block of a search.
    fn tile(self) -> usize {
        if self == Types::F64 {
            8
        } else {
            16
        }
    }
}

/// The two sides of the pairs, and what they share.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Inputs {
    /// [Q, D]
    pub mu1: Matrix,
    /// [Q, 1] or [Q, D]
    pub extra1: Matrix,
    /// [G, D]
    pub mu2: Matrix,
    /// [G, 1] or [G, D]
    pub extra2: Matrix,
    /// [1, S]
    pub shared: Matrix,
}

/// Which pairs.
#[derive(Clone, Copy)]
pub enum Which {
    /// (i, i)
    Paired,
    /// All.
    Pairwise,
    /// Candidates int64 [Q, K].
    Listed(Matrix),
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PairArgs {
    inputs: Inputs,
    candidates: Matrix,
    wide_extra2: i64,
    pairs: i64,
    k: i64,
    capacity: i64,
    resident: i64,
    scores: u64,
    ids: u64,
    list_scores: u64,
    list_ids: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BackwardArgs {
    pairs: PairArgs,
    side: i64,
    weights: u64,
    offsets: u64,
    positions: u64,
    mu: u64,
    extra: u64,
    shared: u64,
}

/// Arguments of scores that call Bessel functions: also the orders D/2 - 1 and D/2.
#[repr(C)]
#[derive(Clone, Copy)]
struct WithOrders<A> {
    args: A,
    normaliser: Order,
    ratio: Order,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TopKArgs {
    scores: Matrix,
    ids: Matrix,
    k: i64,
    capacity: i64,
    out_scores: u64,
    out_ids: u64,
}

/// A call: the op, where, what types, and the inputs.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The op's name.
    pub op: &'a str,
    /// Device and stream.
    pub at: Place,
    /// Types.
    pub types: Types,
    /// The arrays.
    pub inputs: Inputs,
    /// Whether the gallery's extra is of the type that is computed in, though its mean is in halves.
    pub wide_extra2: bool,
    /// Of scores that compare draws.
    pub drawing: Drawing,
}

/// Scores and ids.
#[derive(Clone, Copy)]
pub struct Ranked {
    /// Their address.
    pub scores: u64,
    /// Theirs, int64.
    pub ids: u64,
}

/// How a search is cut: shards of the gallery, and how many items its lists hold outside of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Parts of the gallery, whose results are merged.
    pub shards: usize,
    /// Items of all lists; 0 where shared memory holds them.
    pub listed: usize,
    capacity: usize,
    resident: bool,
    shared: usize,
    tiles: usize,
}

impl Call<'_> {
    fn args(&self, which: Which) -> PairArgs {
        let (pairs, candidates) = match which {
            Which::Paired => (0, Matrix::NONE),
            Which::Pairwise => (1, Matrix::NONE),
            Which::Listed(candidates) => (2, candidates),
        };
        PairArgs {
            inputs: self.inputs,
            candidates,
            wide_extra2: i64::from(self.wide_extra2),
            pairs,
            k: 0,
            capacity: 0,
            resident: 0,
            scores: 0,
            ids: 0,
            list_scores: 0,
            list_ids: 0,
        }
    }

    /// The name of its kernel for a driver.
    pub(super) fn kernel(&self, driver: &str) -> String {
        format!("{}_{driver}_{}", self.op, self.types.tag())
    }

    /// Launches a driver of the op.
    unsafe fn launch<A: Copy>(&self, kernels: &str, at: Launch, args: A) -> Result<(), Error> {
        let name = self.kernel(kernels);
        if !(self.op.ends_with("_vmf") || self.op == "hib_isotropic") {
            return driver()?.launch(&name, at, &args);
        }
        let dim = self.inputs.mu1.stored as f64;
        let (normaliser, ratio) = (Order::new(0.5 * dim - 1.0), Order::new(0.5 * dim));
        driver()?.launch(&name, at, &WithOrders { args, normaliser, ratio })
    }

    fn sizes(&self) -> (usize, usize) {
        (self.inputs.mu1.rows as usize, self.inputs.mu2.rows as usize)
    }

    /// The shape of scores, a vector being one row.
    pub fn grid(&self, which: Which) -> (usize, usize) {
        let (queries, gallery) = self.sizes();
        match which {
            Which::Paired => (1, gallery),
            Which::Pairwise => (queries, gallery),
            Which::Listed(candidates) => (queries, candidates.stored as usize),
        }
    }

    /// Scores of pairs, to [N], [Q, G] or [Q, K].
    ///
    /// # Safety
    /// The addresses must be the device's, of the sizes that are said, and stay until the stream has passed.
    pub unsafe fn scores(&self, which: Which, out: u64) -> Result<(), Error> {
        let (rows, columns) = self.grid(which);
        let tiled = matches!(which, Which::Pairwise) && rows >= 4;
        let args = PairArgs { scores: out, ..self.args(which) };
        if self.compares_draws() {
            return self.drawn_scores((rows, columns), args);
        }
        if tiled {
            return self.all(out);
        }
        let parts = rows * columns.div_ceil(32);
        let launch = self.at.launch(parts.div_ceil(4) as u64, 16, PAIR_THREADS)?;
        self.launch("pairs", launch, args)
    }

    /// All pairs of many queries, by the tiles of a search.
    unsafe fn all(&self, out: u64) -> Result<(), Error> {
        let cut = self.cut(0)?;
        let launch = self.tiled(&cut);
        let args = PairArgs { scores: out, resident: i64::from(cut.resident), ..self.args(Which::Pairwise) };
        self.launch("search", launch, args)
    }

    /// The best k of each query's candidates, to [Q, k].
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn rerank(&self, candidates: Matrix, k: usize, out: Ranked) -> Result<(), Error> {
        let width = candidates.stored as usize;
        let capacity = width.min(k + PAIR_THREADS as usize).max(k).next_power_of_two();
        let mut launch = self.at.launch(self.inputs.mu1.rows as u64, 16, PAIR_THREADS)?;
        launch.shared = (capacity * (8 + self.types.size())) as u32;
        let args = PairArgs {
            k: k as i64,
            capacity: capacity as i64,
            scores: out.scores,
            ids: out.ids,
            ..self.args(Which::Listed(candidates))
        };
        self.launch("rerank", launch, args)
    }

    /// How a search for the best k is cut.
    pub fn cut(&self, k: usize) -> Result<Cut, Error> {
        let (queries, gallery) = self.sizes();
        let (size, tile) = (self.types.size(), self.types.tile());
        let arrays = if self.op.ends_with("_diagonal") { 2 } else { 1 };
        let (busy, limit) = driver()?.capacities(self.at.device)?;
        let row = arrays * STEP * size;
        let steps = (self.inputs.mu1.stored as usize).div_ceil(STEP).max(1);
        let capacity = if k == 0 { 0 } else { (k + 32).next_power_of_two() };
        let lists = tile * capacity * (size + 8);
        // Two blocks on a multiprocessor, so that one computes while the other waits.
        let room = limit / 2;
        let (rows, all, one) = (ROWS * row, steps * tile * row, tile * row);
        let in_shared = rows + one + lists <= room;
        let lists_there = if in_shared { lists } else { 0 };
        let resident = rows + all + lists_there <= room;
        let shared = rows + if resident { all } else { one } + lists_there;
        let tiles = queries.div_ceil(tile);
        let shards = (4 * busy).div_ceil(tiles.max(1)).clamp(1, gallery.div_ceil(512).clamp(1, 65_535));
        let listed = if in_shared { 0 } else { tiles * shards * tile * capacity };
        Ok(Cut { shards, listed, capacity, resident, shared, tiles })
    }

    fn tiled(&self, cut: &Cut) -> Launch {
        let grid = (cut.tiles as u32, cut.shards as u32);
        let Place { device, stream } = self.at;
        Launch { device, stream, grid, block: SEARCH_THREADS, shared: cut.shared as u32 }
    }

    /// The best k of the gallery for each query, to `out` [Q, k]; `parts` has room for [Q, shards, k], `lists` for the
    /// cut's items.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn search(&self, k: usize, cut: &Cut, parts: Ranked, lists: Ranked, out: Ranked) -> Result<(), Error> {
        let (queries, _) = self.sizes();
        let one = cut.shards == 1;
        let to = if one { out } else { parts };
        let args = PairArgs {
            k: k as i64,
            capacity: cut.capacity as i64,
            resident: i64::from(cut.resident),
            scores: to.scores,
            ids: to.ids,
            list_scores: if cut.listed > 0 { lists.scores } else { 0 },
            list_ids: lists.ids,
            ..self.args(Which::Pairwise)
        };
        self.launch("search", self.tiled(cut), args)?;
        if one {
            return Ok(());
        }
        let width = (cut.shards * k) as i64;
        let matrix = |data| Matrix { data, rows: queries as i64, stored: width, stride: width };
        select(self.at, self.types == Types::F64, (matrix(parts.scores), matrix(parts.ids)), k, out)
    }

    /// Gradients of sum(weights * scores) of one side (0: queries, 1: gallery), by its mu and extra, and by the shared row for
    /// each of its items; `lists` are, for candidates seen from the gallery, where each row's begin and their places.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn backward(
        &self,
        which: Which,
        side: usize,
        lists: (u64, u64),
        weights: u64,
        out: [u64; 3],
    ) -> Result<(), Error> {
        let (queries, gallery) = self.sizes();
        let [mu, extra, shared] = out;
        let args = BackwardArgs {
            pairs: self.args(which),
            side: side as i64,
            weights,
            offsets: lists.0,
            positions: lists.1,
            mu,
            extra,
            shared,
        };
        let rows = [queries, gallery][side];
        if self.compares_draws() {
            return self.drawn_backward(rows, args);
        }
        let launch = self.at.launch(rows as u64, 16, PAIR_THREADS)?;
        self.launch("backward", launch, args)
    }
}

/// The best k of given scores [Q, N] with their ids, -1 = none, to [Q, k].
///
/// # Safety
/// As [`Call::scores`].
pub unsafe fn select(at: Place, double: bool, all: (Matrix, Matrix), k: usize, out: Ranked) -> Result<(), Error> {
    let (scores, ids) = all;
    let size = if double { 8 } else { 4 };
    let capacity = (scores.stored as usize).min(k + TOPK_THREADS as usize).max(k).next_power_of_two();
    let args =
        TopKArgs { scores, ids, k: k as i64, capacity: capacity as i64, out_scores: out.scores, out_ids: out.ids };
    let mut launch = at.launch(scores.rows as u64, 8, TOPK_THREADS)?;
    launch.shared = (capacity * (8 + size)) as u32;
    driver()?.launch(if double { "topk_f64" } else { "topk_f32" }, launch, &args)
}
