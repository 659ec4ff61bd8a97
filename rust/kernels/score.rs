//! What a score of pairs is to all that call it: a [`Score`], whose one line stands beside its formula.
//!
//! Dispatch on the CPU and on a GPU, checks of arguments, sizes of workspaces and the records of the Python layer come from
//! [`Facts`]; nothing else knows a kernel by its name.

use crate::error::Error;
use crate::kernels::samplers::Normals;
use crate::panels::Packed;
use crate::shapes::{Inputs, PairScore, Prune};
use crate::special::bessel::{BothOrders, Orders};

/// What a pair of items costs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One inner product or squared distance: `dot_scores`.
    Dot,
    /// A pass over the dimensions: `diag_scores`.
    Diagonal,
    /// Draws, or densities at draws: `sampled_scores`.
    Sampled,
}

/// What rules pairs out of a search on a GPU before they are scored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sieve {
    /// Nothing does.
    None,
    /// An inner product, in which the score is monotone.
    Product,
    /// Bounds of tiles of rows.
    Tiles,
}

/// What others must know of a kernel.
#[derive(Clone, Copy)]
pub struct Facts {
    /// Of the kernel, and of the torch operator.
    pub name: &'static str,
    /// What a pair costs.
    pub family: Family,
    /// What the number or row is called that goes with each item's mean.
    pub extra: &'static str,
    /// What the numbers are called that all pairs share.
    pub shared: &'static str,
    /// What is drawn of queries and gallery; None where an item is its own one draw.
    pub samplers: [Option<&'static str>; 2],
    /// How a search on a GPU passes over pairs.
    pub sieve: Sieve,
    /// Whether Bessel functions of the orders D/2 - 1 and D/2 are called.
    pub orders: bool,
    /// Whether gradients take a number of each pair that scoring finds, the product or distance.
    pub keeps: bool,
    /// Whether a GPU makes numbers of each query and of each gallery item alone, once for all of its pairs.
    pub own: [bool; 2],
}

impl Facts {
    /// Without a sieve, Bessel functions or draws.
    pub const fn new(name: &'static str, family: Family, extra: &'static str, shared: &'static str) -> Facts {
        let (samplers, own) = ([None; 2], [false; 2]);
        Facts { name, family, extra, shared, samplers, sieve: Sieve::None, orders: false, keeps: false, own }
    }

    /// With numbers that all pairs share.
    pub const fn with_shared(self, shared: &'static str) -> Facts {
        Facts { shared, ..self }
    }

    /// Calls Bessel functions.
    pub const fn with_orders(self) -> Facts {
        Facts { orders: true, ..self }
    }

    /// Bessel functions are most of the work: a GPU makes those of an item's own concentration once.
    pub const fn with_own_orders(self) -> Facts {
        Facts { own: [true; 2], ..self.with_orders() }
    }

    /// With bounds of tiles of rows, by which a GPU passes over pairs.
    pub const fn with_bounds_of_tiles(self) -> Facts {
        Facts { sieve: Sieve::Tiles, ..self }
    }

    /// Whether draws are random: whether the kernel takes a seed.
    pub fn draws(&self) -> bool {
        self.samplers.iter().any(Option::is_some)
    }

    /// How a gallery that is searched often is best laid out.
    pub fn layout(&self) -> Option<&'static str> {
        match (self.family, self.sieve) {
            (Family::Dot, Sieve::Product) => Some("panels"),
            (Family::Diagonal, _) => Some("rows"),
            _ => None,
        }
    }

    /// Refuses inputs (mu1, extra1, mu2, extra2, shared), given as rows and elements stored in each, that do not fit together.
    pub fn check(&self, [mu1, extra1, mu2, extra2, shared]: [(usize, usize); 5]) -> Result<(), Error> {
        let dim = mu1.1;
        let alike = |extra: (usize, usize), mu: (usize, usize)| extra.0 == mu.0 && [1, dim].contains(&extra.1);
        // A number that is missing is NaN.
        let row = shared.0 == 1 && [0, 1, 2, dim].contains(&shared.1);
        if alike(extra1, mu1) && alike(extra2, mu2) && mu2.1 == dim && row {
            return Ok(());
        }
        Err(Error::Value(format!("{}: the shapes of a score's inputs do not fit together", self.name)))
    }
}

/// What a pair function is for.
pub enum Purpose<'a, T> {
    /// Scores of so many pairs.
    Scores(usize),
    /// The best of a gallery, which may be prepared.
    Search(Option<Packed<'a, T>>, Prune),
    /// Gradients, with what scoring the same pairs kept for them.
    Gradients(Option<&'a [T]>),
}

/// Seed and number of draws, of a score that draws.
pub type Draws = Option<(u64, usize)>;

/// A pair function, or why there is none.
pub type PairFunction<'a, T> = Result<Box<dyn PairScore<T> + 'a>, Error>;

/// What a pair function is asked for.
pub struct Request<'a, T> {
    /// The arrays.
    pub inputs: Inputs<'a, T>,
    /// What it is to do.
    pub purpose: Purpose<'a, T>,
    /// Of a score that draws.
    pub draws: Draws,
    /// Of D.
    pub orders: &'a BothOrders,
}

impl<'a, T: Normals> Request<'a, T> {
    /// D.
    pub fn dim(&self) -> f64 {
        self.inputs.mu1.stored() as f64
    }

    /// A shared number; NaN where it is missing.
    pub fn shared(&self, n: usize) -> f64 {
        self.inputs.shared.row(0).get(n).map_or(f64::NAN, |x| x.to_f64())
    }

    /// The two shared numbers.
    pub fn both(&self) -> (f64, f64) {
        (self.shared(0), self.shared(1))
    }

    /// D/2 - 1 and D/2.
    pub fn orders(&self) -> Orders<'a> {
        self.orders.get()
    }
}

/// A score of pairs: its facts, and what makes its pair function.
pub struct Score {
    /// What others must know of it.
    pub facts: Facts,
    /// Of float32.
    pub single: for<'a> fn(&Request<'a, f32>) -> PairFunction<'a, f32>,
    /// Of float64.
    pub double: for<'a> fn(&Request<'a, f64>) -> PairFunction<'a, f64>,
}

/// A [`Score`] of its facts and the formula of a request, which the family's `pair_function` takes; or, after `=>`, of what makes
/// the pair function itself.
macro_rules! score {
    ($facts:expr, |$request:ident| $formula:expr) => {
        $crate::kernels::score::score!($facts, |$request| => pair_function($request, $formula))
    };
    ($facts:expr, |$request:ident| => $made:expr) => {{
        fn make<'a, T: $crate::kernels::samplers::Normals>(
            $request: &$crate::kernels::score::Request<'a, T>,
        ) -> $crate::kernels::score::PairFunction<'a, T> {
            $made
        }
        $crate::kernels::score::Score { facts: $facts, single: make::<f32>, double: make::<f64> }
    }};
}
pub(crate) use score;

/// A type that pairs are scored in.
pub trait Scored: Normals {
    /// The pair function of a score.
    fn pair<'a>(score: &Score, request: &Request<'a, Self>) -> PairFunction<'a, Self>;
}

impl Scored for f32 {
    fn pair<'a>(score: &Score, request: &Request<'a, Self>) -> PairFunction<'a, Self> {
        (score.single)(request)
    }
}

impl Scored for f64 {
    fn pair<'a>(score: &Score, request: &Request<'a, Self>) -> PairFunction<'a, Self> {
        (score.double)(request)
    }
}
