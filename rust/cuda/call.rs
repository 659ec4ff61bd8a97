//! The call of a score: which kernel, where it runs, and its inputs.

use super::arguments::{DeviceMatrix, PairArgs, PerItemArgs, TwoOrders, With};
use super::constants::{LISTED, MARKED, PAIRED, PAIRWISE};
use super::libcuda::{driver, Launch, Place};
use crate::error::Error;
use crate::kernels::pair_op::{Facts, Family};
use crate::special::bessel::Order;

/// The type that a score is computed in, and the one that the gallery is stored in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// Computed in float32, like the gallery.
    F32,
    /// Computed in float64, like the gallery.
    F64,
    /// Computed in float32 from a gallery of float16.
    F32F16,
    /// Computed in float32 from a gallery of bfloat16.
    F32BF16,
}

impl Types {
    /// How names of kernels end.
    pub(super) fn tag(self) -> &'static str {
        match self {
            Types::F32 => "f32",
            Types::F64 => "f64",
            Types::F32F16 => "f32_f16",
            Types::F32BF16 => "f32_bf16",
        }
    }

    /// The name of the type that is computed in.
    pub fn name(self) -> &'static str {
        if self == Types::F64 {
            "float64"
        } else {
            "float32"
        }
    }

    /// Bytes of the type that is computed in.
    pub(super) fn size(self) -> usize {
        if self == Types::F64 {
            8
        } else {
            4
        }
    }
}

/// The arrays of a score, in the device's memory.
#[derive(Clone, Copy)]
pub struct DeviceInputs {
    /// The queries' means [Q, D].
    pub mu1: DeviceMatrix,
    /// The queries' uncertainties [Q, 1] or [Q, D].
    pub uncertainty1: DeviceMatrix,
    /// The gallery's means [G, D].
    pub mu2: DeviceMatrix,
    /// The gallery's uncertainties [G, 1] or [G, D].
    pub uncertainty2: DeviceMatrix,
    /// The numbers that all pairs share [1, S].
    pub shared: DeviceMatrix,
}

/// Which pairs are scored.
#[derive(Clone, Copy)]
pub enum Which {
    /// Query i and gallery row i.
    Paired,
    /// Each query and each gallery row.
    Pairwise,
    /// Each query and its candidates, int64 [Q, K].
    Listed(DeviceMatrix),
    /// Those of which a mask has a bit.
    Marked,
}

/// Where scores and ids are written.
#[derive(Clone, Copy)]
pub struct Ranked {
    /// Address of the scores, of the type that is computed in.
    pub scores: u64,
    /// Address of the ids, int64.
    pub ids: u64,
}

/// The gradients of a side.
#[derive(Clone, Copy)]
pub struct Gradients {
    /// The side: 0 for queries, 1 for the gallery.
    pub side: usize,
    /// Addresses of the gradients by its means, by its uncertainties, and by the shared numbers for each of its items.
    pub out: [u64; 3],
    /// Where products give the gradients of all but marked pairs, addresses of the side's mask and sums over pairs, how many parts these
    /// have, and the address of its rows that were multiplied.
    pub of_products: (u64, u64, usize, u64),
}

/// Addresses of the lists of candidates seen from the gallery: where each row's list begins, and the places in it.
pub type Lists = (u64, u64);

/// The call of a score.
#[derive(Clone, Copy)]
pub struct Call {
    /// The kind of kernel.
    pub kernel: &'static Facts,
    /// Where it runs.
    pub at: Place,
    /// The types of the computation and of the stored gallery.
    pub types: Types,
    /// The arrays.
    pub inputs: DeviceInputs,
    /// Whether the gallery's uncertainty is of the type that is computed in, though its mean is in halves.
    pub wide_uncertainty2: bool,
    /// By side, the address of memory for what the family makes of each item alone, float64 [N, PER_ITEM_NUMBERS]; 0 where each
    /// pair makes it anew.
    pub per_item: [u64; 2],
}

impl Call {
    /// Whether the score compares draws.
    pub fn compares_draws(&self) -> bool {
        self.kernel.family == Family::Sampled
    }

    /// The number of queries, and that of gallery rows.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.inputs.mu1.rows as usize, self.inputs.mu2.rows as usize)
    }

    /// The shape of the scores, a vector being one row.
    pub fn grid(&self, which: Which) -> (usize, usize) {
        let (queries, gallery) = self.sizes();
        match which {
            Which::Paired => (1, gallery),
            Which::Pairwise | Which::Marked => (queries, gallery),
            Which::Listed(candidates) => (queries, candidates.stored as usize),
        }
    }

    /// The arguments that all kernels of the call take, without any output.
    pub(super) fn args(&self, which: Which) -> PairArgs {
        let (pairs, candidates) = match which {
            Which::Paired => (PAIRED, DeviceMatrix::default()),
            Which::Pairwise => (PAIRWISE, DeviceMatrix::default()),
            Which::Marked => (MARKED, DeviceMatrix::default()),
            Which::Listed(candidates) => (LISTED, candidates),
        };
        let DeviceInputs { mu1, uncertainty1, mu2, uncertainty2, shared } = self.inputs;
        let wide_uncertainty2 = i64::from(self.wide_uncertainty2);
        let args = PairArgs { mu1, uncertainty1, mu2, uncertainty2, shared, ..PairArgs::default() };
        PairArgs { candidates, wide_uncertainty2, pairs, per_item: self.per_item, ..args }
    }

    /// For each side that has memory for what is made of its items alone, their number and the arguments that ask for it.
    pub(super) fn per_item_args(&self, partials: bool) -> impl Iterator<Item = (usize, PerItemArgs)> {
        let (queries, gallery) = self.sizes();
        let (pairs, partials) = (self.args(Which::Paired), i64::from(partials));
        let sides = [queries, gallery].into_iter().zip(0..).zip(self.per_item);
        sides
            .filter(|&(_, address)| address != 0)
            .map(move |((rows, side), _)| (rows, PerItemArgs { pairs, side, partials }))
    }

    /// The name of the score's kernel for a driver.
    pub(super) fn name(&self, driver: &str) -> String {
        format!("{}_{driver}_{}", self.kernel.name, self.types.tag())
    }

    /// The orders of Bessel functions in D dimensions.
    pub(super) fn orders(&self) -> TwoOrders {
        let half = 0.5 * self.inputs.mu1.stored as f64;
        TwoOrders { normaliser: Order::new(half - 1.0), ratio: Order::new(half) }
    }

    /// Launches the score's kernel for a driver, with the orders where it calls Bessel functions.
    ///
    /// # Safety
    /// As for the driver's `launch`: `args` must be the struct that the kernel takes.
    pub(super) unsafe fn launch<A: Copy>(&self, kernel: &str, at: Launch, args: A) -> Result<(), Error> {
        let name = self.name(kernel);
        if self.kernel.orders {
            driver()?.launch(&name, at, &With { args, more: self.orders() })
        } else {
            driver()?.launch(&name, at, &args)
        }
    }
}
