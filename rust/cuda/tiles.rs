//! Scores of all pairs, tile by tile: cuda/drivers/search.cuh.

use super::arguments::PairArgs;
use super::call::{Call, Types, Which};
use super::constants::{
    SEARCH_GROUP, SEARCH_QUERIES_F32, SEARCH_QUERIES_F64, SEARCH_ROWS, SEARCH_STEP, SEARCH_THREADS,
};
use super::libcuda::{driver, Launch, Place};
use crate::error::Error;
use crate::kernels::pair_op::Family;

/// The most that CUDA lets `gridDim.y` be.
pub(super) const GRID_Y: usize = 65_535;
/// Bytes of shared memory that a block of a search has beside queries, rows and lists, and that the driver takes.
const RESERVED: usize = 2048;
/// Gallery rows that are worth a shard with lists of the best.
const SHARD: usize = 512;
/// Bytes of the lists of all blocks, and of the best of all shards: 128 MB, but for the one shard that there is at least.
const LISTS: usize = 1 << 27;

/// How all pairs are shared out among blocks, each of which takes some queries and a shard of the gallery.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    /// Parts of the gallery, whose best are merged.
    pub shards: usize,
    /// Items of all lists of the best; 0 where shared memory holds them.
    pub listed: usize,
    /// Items that a list of the best has memory for.
    pub(super) capacity: usize,
    /// Whether shared memory holds all dimensions of a block's queries.
    resident: bool,
    /// Parts of the queries.
    tiles: usize,
    /// Bytes of shared memory of a block.
    shared: usize,
}

impl Call {
    /// How all pairs are shared out where the best k of each query are wanted, or, for k = 0, all scores.
    pub(super) fn tiling(&self, k: usize) -> Result<Tiling, Error> {
        let (queries, gallery) = self.sizes();
        let size = self.types.size();
        let tile = if self.types == Types::F64 { SEARCH_QUERIES_F64 } else { SEARCH_QUERIES_F32 };
        let arrays = if self.kernel.family == Family::Diagonal { 2 } else { 1 };
        let (busy, limit) = driver()?.capacities(self.at.device)?;
        let row = arrays * SEARCH_STEP * size;
        let steps = (self.inputs.mu1.stored as usize).div_ceil(SEARCH_STEP).max(1);
        let capacity = if k == 0 { 0 } else { (k + SEARCH_GROUP).next_power_of_two() };
        let lists = tile * capacity * (size + 8);
        let (rows, all, one) = (SEARCH_ROWS * row, steps * tile * row, tile * row);
        // Two blocks on a multiprocessor, so that one computes while the other waits. Beside this, each has as many rows again.
        let memory = (limit / 2).saturating_sub(rows + RESERVED);
        let in_shared = rows + one + lists <= memory;
        let lists_there = if in_shared { lists } else { 0 };
        let resident = rows + all + lists_there <= memory;
        let shared = rows + if resident { all } else { one } + lists_there;
        let tiles = queries.div_ceil(tile);
        let shard = if k == 0 { SEARCH_GROUP } else { SHARD };
        // No more blocks than two rounds of them, the last of which would be short.
        let of_a_shard = (tiles * tile * (k + if in_shared { 0 } else { capacity }) * (size + 8)).max(1);
        let most = gallery.div_ceil(shard).min(LISTS / of_a_shard).clamp(1, GRID_Y);
        let shards = (4 * busy / tiles.max(1)).clamp(1, most);
        let listed = if in_shared { 0 } else { tiles * shards * tile * capacity };
        Ok(Tiling { shards, listed, capacity, resident, tiles, shared })
    }

    /// Launches the kernel that scores all pairs.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub(super) unsafe fn launch_tiled(&self, tiling: &Tiling, args: PairArgs) -> Result<(), Error> {
        let Place { device, stream } = self.at;
        let grid = (tiling.tiles as u32, tiling.shards as u32);
        let launch = Launch { device, stream, grid, block: SEARCH_THREADS as u32, shared: tiling.shared as u32 };
        self.launch("search", launch, PairArgs { resident: i64::from(tiling.resident), ..args })
    }

    /// The scores of all pairs, to `out` [Q, G].
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub(super) unsafe fn all_scores(&self, out: u64) -> Result<(), Error> {
        let args = PairArgs { scores: out, ..self.args(Which::Pairwise) };
        self.launch_tiled(&self.tiling(0)?, args)
    }
}
