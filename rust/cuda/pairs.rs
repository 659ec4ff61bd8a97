//! Scores of pairs and their gradients: cuda/drivers/pairs.cuh and backward.cuh. Kernels are named `<score>_<driver>_<types>`.

use super::arguments::{BackwardArgs, DeviceMatrix, PairArgs};
use super::call::{Call, Gradients, Lists, Ranked, Types, Which};
use super::constants::{PAIR_THREADS, WARP};
use super::libcuda::driver;
use super::search::select;
use crate::error::Error;

/// Blocks that keep a multiprocessor busy.
const BLOCKS: u32 = 16;
/// Fewer queries than this leave most of a tile idle.
const TILED: usize = 4;
/// The most blocks that share a query's candidates.
const MOST_SHARES: usize = 64;
/// Blocks of a multiprocessor that hide each other's waits for rows.
const BLOCKS_EACH: usize = 4;

impl Call {
    /// Makes what belongs to each item alone, where there is memory for it: for scores, or for their partial derivatives.
    pub(super) unsafe fn make_per_item(&self, partials: bool) -> Result<(), Error> {
        for (rows, args) in self.per_item_args(partials) {
            let launch = self.at.launch(rows.div_ceil(PAIR_THREADS) as u64, BLOCKS, PAIR_THREADS)?;
            self.launch("per_item", launch, args)?;
        }
        Ok(())
    }

    /// Scores of pairs, to `out` [N], [Q, G] or [Q, K].
    ///
    /// # Safety
    /// The addresses must be the device's, of memory of the sizes that the call says, which stays until the stream has run the
    /// kernels.
    pub unsafe fn scores(&self, which: Which, out: u64) -> Result<(), Error> {
        self.make_per_item(false)?;
        let (rows, columns) = self.grid(which);
        if matches!(which, Which::Pairwise) && rows >= TILED {
            return self.all_scores(out);
        }
        let warps = rows * columns.div_ceil(WARP);
        let launch = self.at.launch(warps.div_ceil(PAIR_THREADS / WARP) as u64, BLOCKS, PAIR_THREADS)?;
        self.launch("pairs", launch, PairArgs { scores: out, ..self.args(which) })
    }

    /// How many blocks share each query's candidates, at most `most` a query, where queries alone would leave the device idle.
    pub fn shares(&self, most: usize) -> Result<usize, Error> {
        let (busy, _) = driver()?.capacities(self.at.device)?;
        let queries = self.sizes().0.max(1);
        Ok((BLOCKS_EACH * busy / queries).min(most / PAIR_THREADS).clamp(1, MOST_SHARES))
    }

    /// The best k of each query's candidates, to `out` [Q, k]; `parts` have [Q, shares k].
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn rerank(&self, candidates: DeviceMatrix, k: usize, parts: Ranked, out: Ranked) -> Result<(), Error> {
        self.make_per_item(false)?;
        self.take_best(candidates.stored as usize, k, self.args(Which::Listed(candidates)), parts, out)
    }

    /// The best k of each query's candidates or survivors, of which there are at most `most`.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub(super) unsafe fn take_best(
        &self,
        most: usize,
        k: usize,
        args: PairArgs,
        parts: Ranked,
        out: Ranked,
    ) -> Result<(), Error> {
        let capacity = most.min(k + PAIR_THREADS).max(k).next_power_of_two();
        let shares = self.shares(most)?;
        let mut launch = self.at.launch(self.inputs.mu1.rows as u64, BLOCKS, PAIR_THREADS)?;
        launch.shared = (capacity * (8 + self.types.size())) as u32;
        launch.grid.1 = shares as u32;
        let Ranked { scores, ids } = if shares == 1 { out } else { parts };
        self.launch("rerank", launch, PairArgs { k: k as i64, capacity: capacity as i64, scores, ids, ..args })?;
        if shares == 1 {
            return Ok(());
        }
        self.merge(shares * k, k, parts, out)
    }

    /// The best k of each query's parts [Q, width].
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub(super) unsafe fn merge(&self, width: usize, k: usize, parts: Ranked, out: Ranked) -> Result<(), Error> {
        let width = width as i64;
        let matrix = |data| DeviceMatrix { data, rows: self.inputs.mu1.rows, stored: width, stride: width };
        select(self.at, self.types == Types::F64, (matrix(parts.scores), matrix(parts.ids)), k, out)
    }

    /// The arguments that ask for the gradients of sum(weights * scores) of a side, and the number of its items. The lists
    /// are for candidates seen from the gallery.
    pub(super) fn backward_args(
        &self,
        which: Which,
        Gradients { side, out: [mu, uncertainty, shared], of_products: (marks, sums, parts, rows) }: Gradients,
        (offsets, positions): Lists,
        weights: u64,
    ) -> (usize, BackwardArgs) {
        let (queries, gallery) = self.sizes();
        let pairs = self.args(which);
        let (side_number, parts) = (side as i64, parts as i64);
        let of_products = BackwardArgs { marks, sums, parts, rows, ..BackwardArgs::default() };
        let lists = BackwardArgs { offsets, positions, ..of_products };
        let args = BackwardArgs { pairs, side: side_number, weights, mu, uncertainty, shared, ..lists };
        ([queries, gallery][side], args)
    }

    /// Gradients of sum(weights * scores) of some sides.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn backward(&self, which: Which, sides: &[Gradients], lists: Lists, weights: u64) -> Result<(), Error> {
        self.make_per_item(true)?;
        for &side in sides {
            let (rows, args) = self.backward_args(which, side, lists, weights);
            self.launch("backward", self.at.launch(rows as u64, BLOCKS, PAIR_THREADS)?, args)?;
        }
        Ok(())
    }
}
