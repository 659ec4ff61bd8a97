//! Scores that compare draws: cuda/families/sampled_scores.cu.

use super::driver::{driver, Launch};
use super::elements::{Normals, SAMPLER_THREADS as THREADS, WARPS};
use super::pairs::{BackwardArgs, Call, OwnArgs, PairArgs};
use crate::error::Error;
use crate::kernels::score::Family;
use crate::special::bessel::Order;

/// Of a block's own shared memory; more, and too few blocks fit on a multiprocessor.
const SHARED: usize = 24 * 1024;
/// Of all blocks outside of it.
const MOST_WORKSPACE: usize = 1 << 28;
const BLOCKS: u32 = 8; // on a multiprocessor

/// What is drawn: the address of the seed (0 where nothing is), how many draws of each item, and the address of the workspace that
/// [`Call::workspace`] asks for.
#[derive(Clone, Copy, Default)]
pub struct Drawing {
    /// Address of the seed, int64.
    pub seed: u64,
    /// Number of draws of each item.
    pub draws: usize,
    /// Address of the workspace.
    pub workspace: u64,
    /// Addresses of the draws [n, N, D] of queries and gallery, 0 where they are made for each pair.
    pub made: [u64; 2],
}

/// `DrawingArgs` of cuda/arguments.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct DrawingArgs {
    seed: u64,
    draws: i64,
    kept: i64,
    columns: i64,
    stride: i64,
    workspace: u64,
    made: [u64; 2],
    normaliser: Order,
    ratio: Order,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct With<A> {
    args: A,
    drawing: DrawingArgs,
}

/// How a call is shared out.
struct Plan {
    launch: Launch,
    normals: Normals,
    columns: usize,
    /// Elements of a block's workspace, and whether they are in shared memory.
    stride: usize,
    in_shared: bool,
}

impl Call {
    /// Whether the op compares draws.
    pub fn compares_draws(&self) -> bool {
        self.kernel.family == Family::Sampled
    }

    /// For scores [rows, columns]; or, without columns, for gradients of `rows` items.
    fn plan(&self, draws: usize, rows: usize, columns: Option<usize>) -> Result<Plan, Error> {
        let (size, dim) = (self.types.size(), self.inputs.mu1.stored as usize);
        let normals = Normals::of(dim, size == 4);
        let (busy, _) = driver()?.capacities(self.at.device)?;
        // Of each warp two items' draws; or one's and the sums by the own item's, which all warps share.
        let items = 2 * WARPS as usize + usize::from(columns.is_none());
        let stride = items * (draws + 1) * dim;
        let warps = busy * BLOCKS as usize * WARPS as usize;
        let at_once = (rows * columns.unwrap_or(0) / warps).clamp(1, 32);
        let blocks = columns.map_or(rows, |columns| (rows * columns.div_ceil(at_once)).div_ceil(WARPS as usize));
        let in_shared = stride * size <= SHARED;
        let most = if in_shared { usize::MAX } else { (MOST_WORKSPACE / (stride * size)).max(1) };
        let mut launch = self.at.launch(blocks.min(most) as u64, BLOCKS, THREADS)?;
        launch.shared = normals.bytes() + if in_shared { (stride * size) as u32 } else { 0 };
        Ok(Plan { launch, normals, columns: at_once, stride, in_shared })
    }

    /// How many elements of memory a call wants for its draws.
    pub fn workspace(&self, draws: usize, rows: usize, columns: Option<usize>) -> Result<usize, Error> {
        let plan = self.plan(draws, rows, columns)?;
        Ok(if plan.in_shared { 0 } else { plan.launch.grid.0 as usize * plan.stride })
    }

    unsafe fn launch_drawn<A: Copy>(&self, driver_name: &str, plan: &Plan, args: A) -> Result<(), Error> {
        let dim = self.inputs.mu1.stored as f64;
        let drawing = DrawingArgs {
            seed: self.drawing.seed,
            draws: self.drawing.draws as i64,
            kept: plan.normals.kept(),
            columns: plan.columns as i64,
            stride: plan.stride as i64,
            workspace: if plan.in_shared { 0 } else { self.drawing.workspace },
            made: self.drawing.made,
            normaliser: Order::new(0.5 * dim - 1.0),
            ratio: Order::new(0.5 * dim),
        };
        driver()?.launch(&self.name(driver_name), plan.launch, &With { args, drawing })
    }

    pub(super) unsafe fn drawn_own(&self, rows: usize, args: OwnArgs) -> Result<(), Error> {
        self.launch_drawn("own", &self.plan(1, rows, None)?, args)
    }

    pub(super) unsafe fn drawn_scores(&self, (rows, columns): (usize, usize), args: PairArgs) -> Result<(), Error> {
        let plan = self.plan(self.drawing.draws, rows, Some(columns))?;
        self.launch_drawn("pairs", &plan, args)
    }

    pub(super) unsafe fn drawn_backward(&self, rows: usize, args: BackwardArgs) -> Result<(), Error> {
        let plan = self.plan(self.drawing.draws, rows, None)?;
        self.launch_drawn("backward", &plan, args)
    }
}
