//! A score of pairs as its callers see it: a [`PairOp`], one line beside its formula.
//!
//! Dispatch on the CPU and on a GPU, checks of arguments, sizes of workspaces and the records of the Python layer come from
//! [`Facts`]; nothing else knows a kernel by its name.

use crate::codes::Codes;
use crate::drivers::{DynKernel, Inputs, Prune};
use crate::error::Error;
use crate::kernels::samplers::Normals;
use crate::panels::Packed;
use crate::special::bessel::{BothOrders, Orders};

/// The families of kernels, by what a pair of items costs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One inner product or squared distance: `dot_scores`.
    Dot,
    /// A pass over the dimensions: `diag_scores`.
    Diagonal,
    /// Draws, or densities at draws: `sampled_scores`.
    Sampled,
}

/// How a search on a GPU rules pairs out before they are scored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sieve {
    /// No pair is ruled out.
    None,
    /// Pairs are ruled out by an inner product, in which the score is monotone.
    Product,
    /// Pairs are ruled out by bounds of tiles of rows.
    Tiles,
}

/// The properties of a kernel that dispatch, checks and Python read.
#[derive(Clone, Copy)]
pub struct Facts {
    /// The name of the kernel, and of the torch operator.
    pub name: &'static str,
    /// The family, by the cost of a pair.
    pub family: Family,
    /// The name of the number or row beside each item's mean, such as "var".
    pub uncertainty: &'static str,
    /// The name of the numbers that all pairs share; "none" where there are none.
    pub shared: &'static str,
    /// The samplers that draw queries and gallery; None where an item is its own only draw.
    pub samplers: [Option<&'static str>; 2],
    /// How a search on a GPU rules pairs out.
    pub sieve: Sieve,
    /// Whether the kernel calls Bessel functions of the orders D/2 - 1 and D/2.
    pub orders: bool,
    /// Whether gradients need a number of each pair that scoring computes: the inner product or squared distance.
    pub saves: bool,
    /// Whether the score is the same, to the last bit, when the two items change places.
    pub symmetric: bool,
    /// Whether a score of one inner product depends on the distance of the means alone: a shift of all of them changes none.
    pub by_distance: bool,
    /// Whether a GPU computes numbers of each query and of each gallery item alone, once for all of its pairs.
    pub per_item: [bool; 2],
    /// Of a score that compares draws, by what: "directions", "distances", or "densities", at "stretched" draws or at draws.
    pub compares: Option<&'static str>,
}

impl Facts {
    /// Facts of a kernel without a sieve, Bessel functions, draws or symmetry.
    pub const fn new(name: &'static str, family: Family, uncertainty: &'static str, shared: &'static str) -> Facts {
        let (samplers, sieve, per_item) = ([None; 2], Sieve::None, [false; 2]);
        Facts {
            name,
            family,
            uncertainty,
            shared,
            samplers,
            sieve,
            orders: false,
            saves: false,
            symmetric: false,
            by_distance: false,
            per_item,
            compares: None,
        }
    }

    /// These facts, with numbers of this name that all pairs share.
    pub const fn with_shared(self, shared: &'static str) -> Facts {
        Facts { shared, ..self }
    }

    /// These facts, of a kernel that calls Bessel functions.
    pub const fn with_orders(self) -> Facts {
        Facts { orders: true, ..self }
    }

    /// These facts, of a kernel most of whose work are Bessel functions: a GPU computes those of each item's concentration once.
    pub const fn with_per_item_orders(self) -> Facts {
        Facts { per_item: [true; 2], ..self.with_orders() }
    }

    /// These facts, of a kernel with bounds of tiles of rows, by which a GPU rules pairs out.
    pub const fn with_bounds_of_tiles(self) -> Facts {
        Facts { sieve: Sieve::Tiles, ..self }
    }

    /// Whether items are drawn at random, so that the kernel takes a seed.
    pub fn draws(&self) -> bool {
        self.samplers.iter().any(Option::is_some)
    }

    /// The layout for a gallery that is searched often; None where none is better than that of the arrays.
    pub fn layout(&self) -> Option<&'static str> {
        match (self.family, self.sieve) {
            (Family::Dot, Sieve::Product) => Some("panels"),
            (Family::Diagonal, _) => Some("rows"),
            _ => None,
        }
    }

    /// Returns an error if the inputs, given as rows and elements stored in each, do not fit together.
    pub fn check(&self, [mu1, uncertainty1, mu2, uncertainty2, shared]: [(usize, usize); 5]) -> Result<(), Error> {
        let dim = mu1.1;
        let alike = |uncertainty: (usize, usize), mu: (usize, usize)| {
            uncertainty.0 == mu.0 && [1, dim].contains(&uncertainty.1)
        };
        // A shared number that is missing counts as NaN.
        let row = shared.0 == 1 && [0, 1, 2, dim].contains(&shared.1);
        if alike(uncertainty1, mu1) && alike(uncertainty2, mu2) && mu2.1 == dim && row {
            return Ok(());
        }
        Err(Error::Value(format!("{}: the shapes of a score's inputs do not fit together", self.name)))
    }
}

/// The shape of the call that a pair function serves.
pub enum Purpose<'a, T> {
    /// The scores of so many pairs.
    Scores(usize),
    /// The best of so many candidates, of whose rows there may be codes.
    Rerank(usize, Option<Codes<'a>>),
    /// A search for the best of a gallery, which may be prepared.
    Search(Option<Packed<'a, T>>, Prune),
    /// Gradients, given what scoring the same pairs saved for them, if anything.
    Gradients(Option<&'a [T]>),
}

/// Seed, number of draws, and the number of the gallery's first row, for a score that draws.
pub type Draws = Option<(u64, usize, u64)>;

/// A pair function, or why there is none.
pub type BoxedKernel<'a, T> = Result<Box<dyn DynKernel<T> + 'a>, Error>;

/// A request for a pair function.
pub struct Request<'a, T> {
    /// The input arrays.
    pub inputs: Inputs<'a, T>,
    /// The shape of the call.
    pub purpose: Purpose<'a, T>,
    /// The seed and the number of draws of a score that draws.
    pub draws: Draws,
    /// The orders of Bessel functions for D dimensions.
    pub orders: &'a BothOrders,
}

impl<'a, T: Normals> Request<'a, T> {
    /// The dimension D.
    pub fn dim(&self) -> f64 {
        self.inputs.mu1.stored() as f64
    }

    /// Shared number `n`; NaN where it is missing.
    pub fn shared(&self, n: usize) -> f64 {
        self.inputs.shared.row(0).get(n).map_or(f64::NAN, |x| x.to_f64())
    }

    /// The first two shared numbers.
    pub fn both(&self) -> (f64, f64) {
        (self.shared(0), self.shared(1))
    }

    /// The orders D/2 - 1 and D/2 of Bessel functions.
    pub fn orders(&self) -> Orders<'a> {
        self.orders.get()
    }
}

/// A score of pairs: its facts, and the functions that make its pair function.
pub struct PairOp {
    /// The properties that callers read.
    pub facts: Facts,
    /// Makes the pair function on float32.
    pub single: for<'a> fn(&Request<'a, f32>) -> BoxedKernel<'a, f32>,
    /// Makes the pair function on float64.
    pub double: for<'a> fn(&Request<'a, f64>) -> BoxedKernel<'a, f64>,
}

/// Makes a [`PairOp`] of its facts and of the formula of a request, which is given to the family's `pair_function`; or, after
/// `=>`, of an expression for the pair function itself.
macro_rules! pair_op {
    ($facts:expr, |$request:ident| $formula:expr) => {
        $crate::kernels::pair_op::pair_op!($facts, |$request| => pair_function($request, $formula))
    };
    ($facts:expr, |$request:ident| => $made:expr) => {{
        fn make<'a, T: $crate::kernels::samplers::Normals>(
            $request: &$crate::kernels::pair_op::Request<'a, T>,
        ) -> $crate::kernels::pair_op::BoxedKernel<'a, T> {
            $made
        }
        $crate::kernels::pair_op::PairOp { facts: $facts, single: make::<f32>, double: make::<f64> }
    }};
}
pub(crate) use pair_op;

/// A type that pairs are scored in: float32 or float64.
pub trait Scored: Normals {
    /// The pair function of a score.
    fn pair<'a>(score: &PairOp, request: &Request<'a, Self>) -> BoxedKernel<'a, Self>;
}

impl Scored for f32 {
    fn pair<'a>(score: &PairOp, request: &Request<'a, Self>) -> BoxedKernel<'a, Self> {
        (score.single)(request)
    }
}

impl Scored for f64 {
    fn pair<'a>(score: &PairOp, request: &Request<'a, Self>) -> BoxedKernel<'a, Self> {
        (score.double)(request)
    }
}
