//! The best of a whole gallery: cuda/drivers/search.cuh, sieve.cuh and diag_sieve.cuh, cuda/families/topk.cu.

use super::arguments::{Bounding, DeviceMatrix, PairArgs, TopKArgs, With};
use super::call::{Call, Ranked, Types, Which};
use super::constants::{SIEVE_STRIDE, SIEVE_THREADS, SIEVE_TILE, TOPK_THREADS};
use super::libcuda::{driver, Launch, Place};
use super::tiles::{Tiling, GRID_Y};
use crate::drivers::Prune;
use crate::error::Error;
use crate::kernels::pair_op::Sieve;

/// Bytes of a sieve's shared memory: of each side two buffers of tf32 numbers.
const SIEVE_BYTES: usize = 2 * 2 * SIEVE_TILE * SIEVE_STRIDE * 4;
/// The most survivors of all queries together.
const SURVIVORS: usize = 1 << 25;

/// How a search is cut: the rows of which all pairs are scored, and those that pass a sieve first.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// How the first rows are shared out.
    pub tiling: Tiling,
    /// Rows of which all pairs are scored; the others pass a sieve.
    pub first: usize,
    /// The most survivors of a query, and so the most rows of a sieve; 0 where there is no sieve.
    pub survivors: usize,
    /// Tiles of rows whose bounds are computed.
    pub bounded: usize,
}

/// The memory of a search.
#[derive(Clone, Copy)]
pub struct Workspace {
    /// The best of each shard, [Q, shards k].
    pub parts: Ranked,
    /// The items of the lists of the best, as many as the tiling says.
    pub lists: Ranked,
    /// Address of the survivors, int32 [Q, cut.survivors].
    pub survivors: u64,
    /// Address of the number of each query's survivors, int32 [Q], all 0.
    pub counts: u64,
    /// The inputs of the bounds of tiles, and where these are stored.
    pub bounding: Bounding,
}

impl Call {
    /// The same call, of the first rows of the gallery.
    fn of_first(&self, rows: usize) -> Self {
        let mut part = *self;
        part.inputs.mu2.rows = rows as i64;
        part.inputs.uncertainty2.rows = rows as i64;
        part
    }

    /// How a search for the best k is cut.
    pub fn cut(&self, k: usize, prune: Prune) -> Result<Cut, Error> {
        let (queries, gallery) = self.sizes();
        let always = prune == Prune::Always;
        let bounded = self.kernel.sieve == Sieve::Tiles;
        // Enough rows for a threshold that rules most others out; whole tiles.
        let first = (if always { k } else { (8 * k).max(8192) }).next_multiple_of(SIEVE_TILE);
        // How tight the bounds of tiles are depends on the variances, which only the caller knows.
        let pays = queries >= 32 && self.inputs.mu1.stored >= 32 && gallery >= 4 * first && !bounded;
        let can = self.types != Types::F64 && self.kernel.sieve != Sieve::None && i32::try_from(gallery).is_ok();
        let fits = driver()?.capacities(self.at.device)?.1 >= SIEVE_BYTES;
        if prune == Prune::Never || !can || !fits || queries == 0 || gallery <= first || !(always || pays) {
            return Ok(Cut { tiling: self.tiling(k)?, first: gallery, survivors: 0, bounded: 0 });
        }
        let left = gallery - first;
        let survivors = (SURVIVORS / queries / SIEVE_TILE).clamp(1, GRID_Y) * SIEVE_TILE;
        let bounded = if bounded { left.div_ceil(SIEVE_TILE) } else { 0 };
        Ok(Cut { tiling: self.of_first(first).tiling(k)?, first, survivors: survivors.min(left), bounded })
    }

    /// The best k of the gallery for each query, to `out` [Q, k].
    ///
    /// # Safety
    /// As [`Call::scores`]; `cut` is this call's, and the workspace of the sizes that it asks for.
    pub unsafe fn search(&self, k: usize, cut: &Cut, with: Workspace, out: Ranked) -> Result<(), Error> {
        let (queries, gallery) = self.sizes();
        self.make_per_item(false)?;
        self.of_first(cut.first).search_all(k, &cut.tiling, with, out)?;
        let args = PairArgs {
            k: k as i64,
            most_survivors: cut.survivors as i64,
            survivors: with.survivors,
            counts: with.counts,
            scores: out.scores,
            ids: out.ids,
            ..self.args(Which::Listed(DeviceMatrix::default()))
        };
        let Place { device, stream } = self.at;
        let more = Bounding { first: cut.first as i64, ..with.bounding };
        if cut.bounded > 0 {
            let launch = self.at.launch(cut.bounded as u64, 4, SIEVE_THREADS)?;
            let args = PairArgs { end: gallery as i64, ..args };
            driver()?.launch(&self.name("bound"), launch, &With { args, more })?;
        }
        let mut begin = cut.first;
        while begin < gallery {
            // Of a chunk seven times as long as what was seen, some 7 k survive.
            let end = gallery.min(begin + cut.survivors.min(7 * begin));
            let grid = (queries.div_ceil(SIEVE_TILE) as u32, (end - begin).div_ceil(SIEVE_TILE) as u32);
            let launch = Launch { device, stream, grid, block: SIEVE_THREADS as u32, shared: SIEVE_BYTES as u32 };
            let chunk = PairArgs { begin: begin as i64, end: end as i64, ..args };
            if cut.bounded > 0 {
                driver()?.launch(&self.name("sieve"), launch, &With { args: chunk, more })?;
            } else {
                self.launch("sieve", launch, chunk)?;
            }
            self.take_best(usize::MAX, k, args)?;
            begin = end;
        }
        Ok(())
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
        let width = (tiling.shards * k) as i64;
        let matrix = |data| DeviceMatrix { data, rows: self.inputs.mu1.rows, stored: width, stride: width };
        select(self.at, self.types == Types::F64, (matrix(with.parts.scores), matrix(with.parts.ids)), k, out)
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
