//! Scores of pairs and their gradients: cuda/drivers/pairs.cuh and backward.cuh. Kernels are named `<score>_<driver>_<types>`.

use super::arguments::{BackwardArgs, DeviceMatrix, PairArgs};
use super::call::{Call, Gradients, Lists, Ranked, Which};
use super::constants::{PAIR_THREADS, WARP};
use crate::error::Error;

/// Blocks that keep a multiprocessor busy.
const BLOCKS: u32 = 16;
/// Fewer queries than this leave most of a tile idle.
const TILED: usize = 4;

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

    /// The best k of each query's candidates, to `out` [Q, k].
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn rerank(&self, candidates: DeviceMatrix, k: usize, out: Ranked) -> Result<(), Error> {
        self.make_per_item(false)?;
        let args = PairArgs { scores: out.scores, ids: out.ids, ..self.args(Which::Listed(candidates)) };
        self.take_best(candidates.stored as usize, k, args)
    }

    /// The best k of each query's candidates or survivors, of which there are at most `most`.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub(super) unsafe fn take_best(&self, most: usize, k: usize, args: PairArgs) -> Result<(), Error> {
        let capacity = most.min(k + PAIR_THREADS).max(k).next_power_of_two();
        let mut launch = self.at.launch(self.inputs.mu1.rows as u64, BLOCKS, PAIR_THREADS)?;
        launch.shared = (capacity * (8 + self.types.size())) as u32;
        self.launch("rerank", launch, PairArgs { k: k as i64, capacity: capacity as i64, ..args })
    }

    /// The arguments that ask for the gradients of sum(weights * scores) of a side, and the number of its items. The lists
    /// are for candidates seen from the gallery.
    pub(super) fn backward_args(
        &self,
        which: Which,
        Gradients { side, out: [mu, uncertainty, shared] }: Gradients,
        (offsets, positions): Lists,
        weights: u64,
    ) -> (usize, BackwardArgs) {
        let (queries, gallery) = self.sizes();
        let pairs = self.args(which);
        let args = BackwardArgs { pairs, side: side as i64, weights, offsets, positions, mu, uncertainty, shared };
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
