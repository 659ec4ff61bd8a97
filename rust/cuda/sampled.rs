//! Scores that compare draws, and their gradients: cuda/families/sampled_scores.cu.

use super::arguments::{DrawingArgs, PairArgs, ProductArgs, With};
use super::call::{Call, Gradients, Lists, Which};
use super::constants::{FOLD_THREADS, PRODUCT_ROWS, SAMPLER_THREADS, WARP};
use super::libcuda::{driver, Launch};
use super::samplers::{CachedNormals, WARPS};
use crate::error::Error;

/// Bytes of shared memory that a block's workspace has at most: more, and too few blocks fit on a multiprocessor.
const SHARED: usize = 24 * 1024;
/// Bytes that the workspaces of all blocks have at most outside of shared memory.
const MOST_WORKSPACE: usize = 1 << 28;
/// Blocks that keep a multiprocessor busy.
const BLOCKS: u32 = 8;

/// The draws of a score.
#[derive(Clone, Copy)]
pub struct Drawing {
    /// Address of the seed, int64; 0 where nothing is random.
    pub seed: u64,
    /// Number of draws of each item.
    pub draws: usize,
    /// Address of the workspace that [`workspace`] asks for.
    pub workspace: u64,
    /// Addresses of the draws [n, N, D] of queries and gallery; 0 where each pair draws anew.
    pub made: [u64; 2],
    /// Address of the gradients by the draws [n, N, D] of a side that products have given; 0 where none have.
    pub by_draws: u64,
}

impl Drawing {
    /// The arguments that kernels take of it.
    fn args(&self, call: &Call) -> DrawingArgs {
        let Drawing { seed, draws, made, by_draws, .. } = *self;
        DrawingArgs { seed, draws: draws as i64, made, by_draws, orders: call.orders(), ..DrawingArgs::default() }
    }
}

/// How a call is shared out among blocks.
struct Plan {
    launch: Launch,
    normals: CachedNormals,
    /// Pairs that a warp takes at a time.
    columns: usize,
    /// Elements of a block's workspace.
    stride: usize,
    /// Whether the workspace is in shared memory.
    in_shared: bool,
}

impl Plan {
    /// The plan for scores [rows, columns]; or, without columns, for gradients of `rows` items.
    fn of(call: &Call, draws: usize, rows: usize, columns: Option<usize>) -> Result<Plan, Error> {
        let (size, dim) = (call.types.size(), call.inputs.mu1.stored as usize);
        let normals = CachedNormals::of(dim, size == 4);
        let (busy, _) = driver()?.capacities(call.at.device)?;
        // For scores each warp has the draws of two items. For gradients it has one item's, and the sums by that item's
        // draws, which all warps share.
        let items = 2 * WARPS + usize::from(columns.is_none());
        let stride = items * (draws + 1) * dim;
        let warps = busy * BLOCKS as usize * WARPS;
        let at_once = (rows * columns.unwrap_or(0) / warps).clamp(1, WARP);
        let blocks = columns.map_or(rows, |columns| (rows * columns.div_ceil(at_once)).div_ceil(WARPS));
        let in_shared = stride * size <= SHARED;
        let most = if in_shared { usize::MAX } else { (MOST_WORKSPACE / (stride * size)).max(1) };
        let mut launch = call.at.launch(blocks.min(most) as u64, BLOCKS, SAMPLER_THREADS)?;
        launch.shared = (normals.bytes() + if in_shared { stride * size } else { 0 }) as u32;
        Ok(Plan { launch, normals, columns: at_once, stride, in_shared })
    }

    /// Launches a kernel of the score.
    ///
    /// # Safety
    /// As [`scores`].
    unsafe fn launch<A: Copy>(&self, call: &Call, kernel: &str, args: A, drawing: &Drawing) -> Result<(), Error> {
        let more = DrawingArgs {
            cached_steps: self.normals.steps() as i64,
            columns: self.columns as i64,
            stride: self.stride as i64,
            workspace: if self.in_shared { 0 } else { drawing.workspace },
            ..drawing.args(call)
        };
        driver()?.launch(&call.name(kernel), self.launch, &With { args, more })
    }
}

/// Elements of the workspace that a call needs for scores [rows, columns] or, without columns, for gradients of `rows` items.
pub fn workspace(call: &Call, draws: usize, rows: usize, columns: Option<usize>) -> Result<usize, Error> {
    let plan = Plan::of(call, draws, rows, columns)?;
    Ok(if plan.in_shared { 0 } else { plan.launch.grid.0 as usize * plan.stride })
}

/// Makes what belongs to each item alone, where there is memory for it: for scores, or for their partial derivatives.
unsafe fn make_per_item(call: &Call, drawing: &Drawing, partials: bool) -> Result<(), Error> {
    for (rows, args) in call.per_item_args(partials) {
        Plan::of(call, 1, rows, None)?.launch(call, "per_item", args, drawing)?;
    }
    Ok(())
}

/// Scores of pairs, to `out` [N], [Q, G] or [Q, K].
///
/// # Safety
/// As [`Call::scores`]; the workspace is of the size that [`workspace`] says.
pub unsafe fn scores(call: &Call, drawing: &Drawing, which: Which, out: u64) -> Result<(), Error> {
    make_per_item(call, drawing, false)?;
    let (rows, columns) = call.grid(which);
    let args = PairArgs { scores: out, ..call.args(which) };
    Plan::of(call, drawing.draws, rows, Some(columns))?.launch(call, "pairs", args, drawing)
}

/// Gradients of sum(weights * scores) of some sides, each with what it draws and a workspace of its own.
///
/// # Safety
/// As [`scores`].
pub unsafe fn backward(
    call: &Call,
    which: Which,
    sides: &[(Gradients, Drawing)],
    lists: Lists,
    weights: u64,
) -> Result<(), Error> {
    if let Some((_, drawing)) = sides.first() {
        make_per_item(call, drawing, true)?;
    }
    for &(side, drawing) in sides {
        let (rows, args) = call.backward_args(which, side, lists, weights);
        Plan::of(call, drawing.draws, rows, None)?.launch(call, "backward", args, &drawing)?;
    }
    Ok(())
}

/// Warps of a block that reads products of draws whose sums over m draws each of them keeps in 128 m numbers of shared memory.
pub fn warps(m: usize) -> usize {
    (256 / m.next_power_of_two()).clamp(4, FOLD_THREADS / WARP)
}

/// The scores of a tile, or with weights what its gradients are made of, in place of the products too; `args` has the tile, and what is
/// read and written of all pairs. The first tile makes what belongs to each item alone.
///
/// # Safety
/// As [`scores`]; draws have been made.
pub unsafe fn fold(call: &Call, drawing: &Drawing, args: ProductArgs) -> Result<(), Error> {
    let (PairArgs { scores, begin, end, .. }, weighs) = (args.pairs, args.weights != 0);
    if (args.first, begin) == (0, 0) {
        make_per_item(call, drawing, weighs)?;
    }
    let m = if call.kernel.samplers[1].is_some() { drawing.draws } else { 1 };
    let (warps, rows, queries) = (warps(m), (end - begin) as usize, args.queries as usize);
    let grid = (rows.div_ceil(WARP) as u32, queries.div_ceil(PRODUCT_ROWS) as u32);
    let shared = if weighs { (warps * m * WARP * call.types.size()) as u32 } else { 0 };
    let at = Launch { device: call.at.device, stream: call.at.stream, grid, block: (warps * WARP) as u32, shared };
    let pairs = PairArgs { scores, begin, end, ..call.args(Which::Pairwise) };
    let args = ProductArgs { pairs, stride: (m * rows) as i64, ..args };
    let kernel = call.name(if weighs { "weights" } else { "scores" });
    driver()?.launch(&kernel, at, &With { args, more: drawing.args(call) })
}
