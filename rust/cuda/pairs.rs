//! Scores of pairs: cuda/drivers/pairs.cuh and backward.cuh. Kernels are named `<op>_<driver>_<types>`.

use super::driver::{driver, Launch};
use super::sampled::Drawing;
use super::{Matrix, Place};
use crate::error::Error;
use crate::kernels::score::Facts;
use crate::special::bessel::Order;

/// The best that a kernel keeps of each query.
pub const BEST: usize = 1024;
const PAIR_THREADS: u32 = 128;
/// Numbers that a score may make of an item alone.
pub const OWN: usize = 3;

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
    pub inputs: Inputs,
    pub candidates: Matrix,
    pub wide_extra2: i64,
    pub pairs: i64,
    pub k: i64,
    pub capacity: i64,
    pub resident: i64,
    pub scores: u64,
    pub ids: u64,
    pub begin: i64,
    pub end: i64,
    pub most: i64,
    pub survivors: u64,
    pub counts: u64,
    pub list_scores: u64,
    pub list_ids: u64,
    pub own: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OwnArgs {
    pairs: PairArgs,
    side: i64,
    slopes: i64,
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

/// A call: the kernel, where, what types, and the inputs.
#[derive(Clone, Copy)]
pub struct Call {
    /// What the kernel is.
    pub kernel: &'static Facts,
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
    /// Addresses of float64 [N, [`OWN`]] for queries and gallery, where each call makes what belongs to an item alone once; 0
    /// where it is made for each pair.
    pub own: [u64; 2],
}

/// What is wanted of a side.
#[derive(Clone, Copy)]
pub struct Gradients {
    /// 0: queries, 1: gallery.
    pub side: usize,
    /// Of scores that compare draws.
    pub drawing: Drawing,
    /// Addresses of the gradients by its mu and extra, and by the shared row for each of its items.
    pub out: [u64; 3],
}

/// Where scores and ids go.
#[derive(Clone, Copy)]
pub struct Ranked {
    /// Address of the scores, of the type that is computed in.
    pub scores: u64,
    /// Address of the ids, int64.
    pub ids: u64,
}

impl Call {
    pub(super) fn args(&self, which: Which) -> PairArgs {
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
            begin: 0,
            end: 0,
            most: 0,
            survivors: 0,
            counts: 0,
            list_scores: 0,
            list_ids: 0,
            own: self.own,
        }
    }

    /// The name of its kernel for a driver.
    pub(super) fn name(&self, driver: &str) -> String {
        format!("{}_{driver}_{}", self.kernel.name, self.types.tag())
    }

    /// Launches a driver of the op.
    pub(super) unsafe fn launch<A: Copy>(&self, kernels: &str, at: Launch, args: A) -> Result<(), Error> {
        let name = self.name(kernels);
        if !self.kernel.orders {
            return driver()?.launch(&name, at, &args);
        }
        let dim = self.inputs.mu1.stored as f64;
        let (normaliser, ratio) = (Order::new(0.5 * dim - 1.0), Order::new(0.5 * dim));
        driver()?.launch(&name, at, &WithOrders { args, normaliser, ratio })
    }

    pub(super) fn sizes(&self) -> (usize, usize) {
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

    /// Makes what belongs to each item alone, where there is memory for it: for scores, or for their slopes.
    pub(super) unsafe fn make_own(&self, slopes: bool) -> Result<(), Error> {
        let (queries, gallery) = self.sizes();
        for (side, rows) in [queries, gallery].into_iter().enumerate().filter(|&(side, _)| self.own[side] != 0) {
            let args = OwnArgs { pairs: self.args(Which::Paired), side: side as i64, slopes: i64::from(slopes) };
            if self.compares_draws() {
                self.drawn_own(rows, args)?;
            } else {
                let launch = self.at.launch(rows.div_ceil(PAIR_THREADS as usize) as u64, 16, PAIR_THREADS)?;
                self.launch("own", launch, args)?;
            }
        }
        Ok(())
    }

    /// Scores of pairs, to [N], [Q, G] or [Q, K].
    ///
    /// # Safety
    /// The addresses must be the device's, of the sizes that are said, and stay until the stream has passed.
    pub unsafe fn scores(&self, which: Which, out: u64) -> Result<(), Error> {
        self.make_own(false)?;
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

    /// The best k of each query's candidates, to [Q, k].
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn rerank(&self, candidates: Matrix, k: usize, out: Ranked) -> Result<(), Error> {
        self.make_own(false)?;
        let args = PairArgs { scores: out.scores, ids: out.ids, ..self.args(Which::Listed(candidates)) };
        self.take_best(candidates.stored as usize, k, args)
    }

    /// The best k of at most `most` candidates of each query, as the arguments have them.
    pub(super) unsafe fn take_best(&self, most: usize, k: usize, args: PairArgs) -> Result<(), Error> {
        let capacity = most.min(k + PAIR_THREADS as usize).max(k).next_power_of_two();
        let mut launch = self.at.launch(self.inputs.mu1.rows as u64, 16, PAIR_THREADS)?;
        launch.shared = (capacity * (8 + self.types.size())) as u32;
        self.launch("rerank", launch, PairArgs { k: k as i64, capacity: capacity as i64, ..args })
    }

    /// Gradients of sum(weights * scores) of some sides; `lists` are, for candidates seen from the gallery, where each row's
    /// begin and their places.
    ///
    /// # Safety
    /// As [`Call::scores`].
    pub unsafe fn backward(
        &self,
        which: Which,
        sides: &[Gradients],
        (offsets, positions): (u64, u64),
        weights: u64,
    ) -> Result<(), Error> {
        self.make_own(true)?;
        let (queries, gallery) = self.sizes();
        for &Gradients { side, drawing, out: [mu, extra, shared] } in sides {
            let pairs = self.args(which);
            let args = BackwardArgs { pairs, side: side as i64, weights, offsets, positions, mu, extra, shared };
            let rows = [queries, gallery][side];
            if self.compares_draws() {
                Call { drawing, ..*self }.drawn_backward(rows, args)?;
            } else {
                self.launch("backward", self.at.launch(rows as u64, 16, PAIR_THREADS)?, args)?;
            }
        }
        Ok(())
    }
}
