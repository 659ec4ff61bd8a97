//! The best of a whole gallery: cuda/drivers/search.cuh, sieve.cuh and diag_sieve.cuh, cuda/families/topk.cu.

use super::driver::{driver, Launch};
use super::pairs::{Call, PairArgs, Ranked, Types, Which};
use super::{Matrix, Place};
use crate::error::Error;
use crate::kernels::score::{Family, Sieve};
use crate::shapes::Prune;

/// The most that CUDA lets `gridDim.y` be.
const GRID_Y: usize = 65_535;

const SEARCH_THREADS: u32 = 256;
const TOPK_THREADS: u32 = 256;
/// Dimensions and rows that a block of a search has in shared memory at a time.
const STEP: usize = 128;
const ROWS: usize = 8;

const SIEVE_THREADS: u32 = 256;
/// Queries and rows of a block of a sieve.
const SIEVE_TILE: usize = 128;
const SIEVE_SHARED: usize = 4 * SIEVE_TILE * 36 * 4;
/// Survivors of all queries together, at most.
const SURVIVORS: usize = 1 << 25;

/// How a search is cut: shards of the gallery, and how many items its lists hold outside of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Parts of the gallery, whose results are merged.
    pub shards: usize,
    /// Items of all lists; 0 where shared memory holds them.
    pub listed: usize,
    /// Rows of which all pairs are scored; the others pass a sieve.
    pub first: usize,
    /// Survivors of a query, at most, and so rows of a sieve; 0 where there is no sieve.
    pub survivors: usize,
    /// Tiles of rows that are to be bounded.
    pub bounded: usize,
    capacity: usize,
    resident: bool,
    shared: usize,
    tiles: usize,
}

/// Memory of a search: for [Q, shards k] and for the lists' items; int32 [Q, cut.survivors] and [Q], the latter zeros.
#[derive(Clone, Copy)]
pub struct Workspace {
    /// Results of shards.
    pub parts: Ranked,
    /// Lists.
    pub lists: Ranked,
    /// What passes the sieve.
    pub survivors: u64,
    /// How many they are.
    pub counts: u64,
    /// What bounds of tiles are made of and kept in.
    pub bounding: Bounding,
}

/// `Bounding` of cuda/arguments.cuh.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Bounding {
    /// int32 [G - first], the rows from `first` on by their mean variance.
    pub order: u64,
    /// Of the cut.
    pub first: i64,
    /// float32 [D], variances.
    pub reference: u64,
    /// float32 [tiles, 2, D].
    pub ranges: u64,
    /// float32 [G - first, 2].
    pub sums: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Bounded {
    args: PairArgs,
    bounding: Bounding,
}

impl Call {
    /// All pairs of many queries, by the tiles of a search.
    pub(super) unsafe fn all(&self, out: u64) -> Result<(), Error> {
        let cut = self.tiles_of(0)?;
        let args = PairArgs { scores: out, resident: i64::from(cut.resident), ..self.args(Which::Pairwise) };
        self.launch("search", self.tiled(&cut), args)
    }

    /// The same, of the first rows of the gallery.
    fn of_first(&self, rows: usize) -> Self {
        let mut part = *self;
        part.inputs.mu2.rows = rows as i64;
        part.inputs.extra2.rows = rows as i64;
        part
    }

    /// How a search for the best k is cut.
    pub fn cut(&self, k: usize, prune: Prune) -> Result<Cut, Error> {
        let (queries, gallery) = self.sizes();
        let always = prune == Prune::Always;
        let bounded = self.kernel.sieve == Sieve::Tiles;
        // Enough rows for a threshold that rules most others out; whole tiles.
        let first = (if always { k } else { (8 * k).max(8192) }).next_multiple_of(SIEVE_TILE);
        // How tight bounds are depends on the variances, which only the caller knows.
        let pays = queries >= 32 && self.inputs.mu1.stored >= 32 && gallery >= 4 * first && !bounded;
        let can = self.types != Types::F64 && self.kernel.sieve != Sieve::None && i32::try_from(gallery).is_ok();
        let fits = driver()?.capacities(self.at.device)?.1 >= SIEVE_SHARED;
        if prune == Prune::Never || !can || !fits || queries == 0 || gallery <= first || !(always || pays) {
            return self.tiles_of(k);
        }
        let left = gallery - first;
        let survivors = (SURVIVORS / queries / SIEVE_TILE).clamp(1, GRID_Y) * SIEVE_TILE;
        let bounded = if bounded { left.div_ceil(SIEVE_TILE) } else { 0 };
        Ok(Cut { first, survivors: survivors.min(left), bounded, ..self.of_first(first).tiles_of(k)? })
    }

    fn tiles_of(&self, k: usize) -> Result<Cut, Error> {
        let (queries, gallery) = self.sizes();
        let size = self.types.size();
        let tile = if self.types == Types::F64 { 8 } else { 16 }; // queries of a block
        let arrays = if self.kernel.family == Family::Diagonal { 2 } else { 1 };
        let (busy, limit) = driver()?.capacities(self.at.device)?;
        let row = arrays * STEP * size;
        let steps = (self.inputs.mu1.stored as usize).div_ceil(STEP).max(1);
        let capacity = if k == 0 { 0 } else { (k + 32).next_power_of_two() };
        let lists = tile * capacity * (size + 8);
        // Two blocks on a multiprocessor, so that one computes while the other waits.
        let memory = limit / 2;
        let (rows, all, one) = (ROWS * row, steps * tile * row, tile * row);
        let in_shared = rows + one + lists <= memory;
        let lists_there = if in_shared { lists } else { 0 };
        let resident = rows + all + lists_there <= memory;
        let shared = rows + if resident { all } else { one } + lists_there;
        let tiles = queries.div_ceil(tile);
        let shards = (4 * busy).div_ceil(tiles.max(1)).clamp(1, gallery.div_ceil(512).clamp(1, GRID_Y));
        let listed = if in_shared { 0 } else { tiles * shards * tile * capacity };
        Ok(Cut { shards, listed, first: gallery, survivors: 0, bounded: 0, capacity, resident, shared, tiles })
    }

    fn tiled(&self, cut: &Cut) -> Launch {
        let grid = (cut.tiles as u32, cut.shards as u32);
        let Place { device, stream } = self.at;
        Launch { device, stream, grid, block: SEARCH_THREADS, shared: cut.shared as u32 }
    }

    /// The best k of the gallery for each query, to `out` [Q, k].
    ///
    /// # Safety
    /// As [`Call::scores`]; `cut` is this call's, and the workspace of the sizes that it asks for.
    pub unsafe fn search(&self, k: usize, cut: &Cut, with: Workspace, out: Ranked) -> Result<(), Error> {
        let (queries, gallery) = self.sizes();
        self.make_own(false)?;
        self.of_first(cut.first).search_all(k, cut, with, out)?;
        let args = PairArgs {
            k: k as i64,
            most: cut.survivors as i64,
            survivors: with.survivors,
            counts: with.counts,
            scores: out.scores,
            ids: out.ids,
            ..self.args(Which::Listed(Matrix::NONE))
        };
        let Place { device, stream } = self.at;
        let bounding = Bounding { first: cut.first as i64, ..with.bounding };
        if cut.bounded > 0 {
            let launch = self.at.launch(cut.bounded as u64, 4, SIEVE_THREADS)?;
            let args = PairArgs { end: gallery as i64, ..args };
            driver()?.launch(&self.name("bound"), launch, &Bounded { args, bounding })?;
        }
        let mut begin = cut.first;
        while begin < gallery {
            // Of a chunk seven times as long as what was seen, some 7 k survive.
            let end = gallery.min(begin + cut.survivors.min(7 * begin));
            let grid = (queries.div_ceil(SIEVE_TILE) as u32, (end - begin).div_ceil(SIEVE_TILE) as u32);
            let launch = Launch { device, stream, grid, block: SIEVE_THREADS, shared: SIEVE_SHARED as u32 };
            let own = PairArgs { begin: begin as i64, end: end as i64, ..args };
            if cut.bounded > 0 {
                driver()?.launch(&self.name("sieve"), launch, &Bounded { args: own, bounding })?;
            } else {
                self.launch("sieve", launch, own)?;
            }
            self.take_best(usize::MAX, k, args)?;
            begin = end;
        }
        Ok(())
    }

    /// The same by scoring every pair.
    unsafe fn search_all(&self, k: usize, cut: &Cut, with: Workspace, out: Ranked) -> Result<(), Error> {
        let one = cut.shards == 1;
        let to = if one { out } else { with.parts };
        let args = PairArgs {
            k: k as i64,
            capacity: cut.capacity as i64,
            resident: i64::from(cut.resident),
            scores: to.scores,
            ids: to.ids,
            list_scores: if cut.listed > 0 { with.lists.scores } else { 0 },
            list_ids: with.lists.ids,
            ..self.args(Which::Pairwise)
        };
        self.launch("search", self.tiled(cut), args)?;
        if one {
            return Ok(());
        }
        let width = (cut.shards * k) as i64;
        let matrix = |data| Matrix { data, rows: self.inputs.mu1.rows, stored: width, stride: width };
        select(self.at, self.types == Types::F64, (matrix(with.parts.scores), matrix(with.parts.ids)), k, out)
    }
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
