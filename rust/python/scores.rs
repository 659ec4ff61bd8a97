//! The kernels of scores.

use super::array::{Array, Element};
use super::{ensure, interrupted};
use crate::error::Error;
use crate::kernels::diag_scores::{self, DiagScore, Prune};
use crate::kernels::dot_scores::{self, DotScore, Orders, Packed};
use crate::kernels::sampled_scores::{
    ByDistances, Density, Itself, MatchProbability, MeanCosine, MeanDistance, SampledScore,
};
use crate::kernels::samplers::{Normal, Normals, VonMisesFisher};
use crate::panels;
use crate::parallel;
use crate::shapes::{self, Best, Gradients, Inputs, PairScore, Pairs, Wanted};
use crate::simd::Float;
use crate::special::bessel::Order;
use crate::view::Matrix;
use pyo3::prelude::*;
use std::cell::OnceCell;

/// The inputs of a pair score: mu1, extra1, mu2, extra2, shared.
type FiveArrays = [Array; 5];

fn inputs<T: Float + Element>(arrays: &FiveArrays) -> Result<Inputs<'_, T>, Error> {
    let [mu1, extra1, mu2, extra2, shared] = arrays;
    let all = Inputs {
        mu1: mu1.view()?,
        extra1: extra1.view()?,
        mu2: mu2.matrix()?,
        extra2: extra2.matrix()?,
        shared: shared.view()?,
    };
    let dim = all.mu1.stored();
    let wide = |stored| [1, dim].contains(&stored);
    let queries = all.extra1.rows() == all.mu1.rows() && wide(all.extra1.stored());
    let gallery = all.extra2.rows() == all.mu2.rows() && wide(all.extra2.stored()) && all.mu2.stored() == dim;
    // Which of these a score takes its `PairOp` says; a missing number is NaN, a row of the wrong length none at all.
    let shared = all.shared.rows() == 1 && ([0, 1, 2, dim].contains(&all.shared.stored()));
    ensure(queries && gallery && shared, || "the shapes of a score's inputs do not fit together".into())?;
    Ok(all)
}

/// Those of D/2 - 1 and D/2, which formulas of von Mises-Fisher distributions use: made when asked for, as they take a
/// microsecond.
struct BothOrders {
    dim: f64,
    made: OnceCell<(Order, Order)>,
}

impl BothOrders {
    fn of(dim: usize) -> Self {
        BothOrders { dim: dim as f64, made: OnceCell::new() }
    }

    fn get(&self) -> Orders<'_> {
        let (normaliser, ratio) =
            self.made.get_or_init(|| (Order::new(self.dim / 2.0 - 1.0), Order::new(self.dim / 2.0)));
        Orders { normaliser, ratio }
    }
}

/// What a pair function is for.
enum Purpose<'a, T> {
    /// Scores of so many pairs.
    Scores(usize),
    /// The best of a gallery, which may be prepared.
    Search(Option<Packed<'a, T>>),
    /// Gradients, with what scoring the same pairs kept for them.
    Gradients(Option<&'a [T]>),
}

/// The pair function called `name`. A line per kernel.
fn pair<'a, T: Normals>(
    name: &str,
    inputs: Inputs<'a, T>,
    purpose: Purpose<'a, T>,
    draws: Draws,
    prune: Prune,
    orders: &'a BothOrders,
) -> Result<Box<dyn PairScore<T> + 'a>, Error> {
    let dim = inputs.mu1.stored() as f64;
    let numbers = inputs.shared.row(0);
    let shared = |n: usize| numbers.get(n).map_or(f64::NAN, |x| x.to_f64());
    let both = (shared(0), shared(1));
    let keep = matches!(purpose, Purpose::Gradients(_));
    let count = match purpose {
        Purpose::Scores(count) => count,
        _ => inputs.mu1.rows().saturating_mul(inputs.mu2.rows()),
    };
    let (packed, kept) = match purpose {
        Purpose::Scores(_) => (None, None),
        Purpose::Search(packed) => (packed, None),
        Purpose::Gradients(kept) => (None, kept),
    };
    macro_rules! dot {
        ($formula:expr) => {
            Box::new(DotScore { inputs, formula: $formula, packed, kept })
        };
    }
    macro_rules! diag {
        ($formula:expr) => {
            Box::new(DiagScore { inputs, formula: $formula, prune })
        };
    }
    // The samplers of queries and gallery; a score that draws nothing is given no seed.
    macro_rules! sampled {
        ($query:ident, $gallery:ident, $comparison:expr) => {{
            let (Matrix::Full(mu), Matrix::Full(extra)) = (inputs.mu2, inputs.extra2) else {
                return Err(Error::Value(format!("{name}: takes no gallery of halves")));
            };
            let draws = draws.unwrap_or((0, 1));
            ensure((1..=DRAWS).contains(&draws.1), || format!("n is {}, expected 1 .. {DRAWS}", draws.1))?;
            Box::new(SampledScore::<_, _, $query, $gallery>::new(inputs, (mu, extra), draws, $comparison, count))
        }};
    }
    macro_rules! density {
        ($query:ident, $stretched:expr, $exact:expr) => {
            sampled!($query, Itself, Density { orders: orders.get(), stretched: $stretched, exact: $exact })
        };
    }
    Ok(match name {
        "cosine" => dot!(dot_scores::Cosine { shift: 0.0 }),
        "shifted_cosine" => dot!(dot_scores::Cosine { shift: shared(0) }),
        "neg_sq_l2" => dot!(dot_scores::NegSqL2),
        "mls_isotropic" => dot!(dot_scores::MlsIsotropic { dim }),
        "llr_isotropic" => dot!(dot_scores::LlrIsotropic { dim, prior_var: shared(0) }),
        "overlap_isotropic" => dot!(dot_scores::OverlapIsotropic { dim, powers: both }),
        "neg_kl_isotropic" => dot!(dot_scores::NegKlIsotropic { dim, share: shared(0) }),
        "mls_vmf" => dot!(dot_scores::MlsVmf::new(orders.get(), shared(0))),
        "overlap_vmf" => dot!(dot_scores::OverlapVmf { orders: orders.get(), powers: both, offset: 0.0 }),
        "neg_kl_vmf" => dot!(dot_scores::NegKlVmf { orders: orders.get(), share: shared(0) }),
        "hib_isotropic" => dot!(dot_scores::MatchProbability { dim, orders: orders.get(), line: both }),
        "mls_diagonal" => diag!(diag_scores::Mls),
        "llr_diagonal" => diag!(diag_scores::Llr),
        "overlap_diagonal" => diag!(diag_scores::Overlap { powers: both }),
        "neg_kl_diagonal" => diag!(diag_scores::NegKl { share: shared(0) }),
        "sampled_cosine_normal" => sampled!(Normal, Normal, MeanCosine { keep }),
        "sampled_cosine_vmf" => sampled!(VonMisesFisher, VonMisesFisher, MeanCosine { keep }),
        "sampled_cosine_vmf_point" => sampled!(VonMisesFisher, Itself, MeanCosine { keep }),
        "sampled_cosine_point_vmf" => sampled!(Itself, VonMisesFisher, MeanCosine { keep }),
        "neg_sampled_l2_normal" => sampled!(Normal, Normal, ByDistances(MeanDistance)),
        "neg_sampled_l2_vmf" => sampled!(VonMisesFisher, VonMisesFisher, ByDistances(MeanDistance)),
        "neg_sampled_l2_vmf_point" => sampled!(VonMisesFisher, Itself, ByDistances(MeanDistance)),
        "neg_sampled_l2_point_vmf" => sampled!(Itself, VonMisesFisher, ByDistances(MeanDistance)),
        "hib_sampled" => sampled!(Normal, Normal, ByDistances(MatchProbability { line: both })),
        "el_nivmf" => density!(VonMisesFisher, true, true),
        "el_nivmf_published" => density!(VonMisesFisher, false, false),
        "nivmf" => density!(Itself, true, true),
        "nivmf_published" => density!(Itself, true, false),
        other => return Err(Error::Value(format!("no kernel is called {other:?}"))),
    })
}

/// Draws of an item that a sampled score can compare: what it holds of a pair grows as their square.
const DRAWS: usize = 1024;

/// Seed and number of draws, for a score that draws.
type Draws = Option<(u64, usize)>;

/// Which pairs: listed ones, else (i, i) for a vector of scores and all (i, j) for a matrix.
fn pairs<'a>(
    candidates: Option<&'a Array>,
    scores: &Array,
    queries: usize,
    gallery: usize,
) -> Result<Pairs<'a>, Error> {
    let (pairs, shape) = match candidates {
        Some(candidates) => {
            let view = candidates.view::<i64>()?;
            ensure(view.rows() == queries, || "candidates need a row per query".into())?;
            (Pairs::Candidates(view), vec![queries, view.stored()])
        }
        None if scores.shape().len() == 1 => {
            ensure(queries == gallery, || "paired scores need as many queries as gallery rows".into())?;
            (Pairs::Paired, vec![queries])
        }
        None => (Pairs::Pairwise, vec![queries, gallery]),
    };
    ensure(scores.shape() == shape, || format!("scores have shape {:?}, expected {shape:?}", scores.shape()))?;
    Ok(pairs)
}

/// Scores of paired rows (out [N]), of all pairs (out [Q, G]) or of candidates (out [Q, K]). `kept`, of the shape of the scores, takes
/// what [`score_backward`] would have to find again; only scores of one inner product keep something.
#[pyfunction]
pub fn score(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    candidates: Option<Array>,
    out: Array,
    kept: Option<Array>,
) -> PyResult<()> {
    py.detach(|| {
        with_type!(out, |T| {
            let inputs = inputs::<T>(&arrays)?;
            let pairs = pairs(candidates.as_ref(), &out, inputs.mu1.rows(), inputs.mu2.rows())?;
            let kept = kept.as_ref();
            ensure(kept.is_none_or(|kept| kept.shape() == out.shape()), || {
                "what is kept needs the scores' shape".into()
            })?;
            let kept = kept.map_or(Ok(&mut [][..]), Array::output::<T>)?;
            let out = out.output::<T>()?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let pair = &*pair(name, inputs, Purpose::Scores(out.len()), draws, Prune::Auto, &orders)?;
            match pairs {
                Pairs::Paired => shapes::paired(pair, out, kept, &interrupted),
                Pairs::Pairwise => shapes::pairwise(pair, out, kept, &interrupted),
                Pairs::Candidates(ids) => shapes::candidates(pair, name, ids, out, kept, &interrupted),
            }
        })
    })?;
    Ok(())
}

/// Whose gradients are wanted: the queries', the gallery's, the shared row's.
pub const QUERY: u32 = 1;
/// As above.
pub const GALLERY: u32 = 2;
/// As above.
pub const SHARED: u32 = 4;

/// Gradients of sum(weights * scores) with respect to the five inputs, into arrays of their (stored) shapes. `wanted` is a
/// sum of [`QUERY`], [`GALLERY`] and [`SHARED`]; the gradients of the others are nothing to go by. `kept` is what [`score`] kept.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn score_backward(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    candidates: Option<Array>,
    weights: Array,
    out: FiveArrays,
    wanted: u32,
    kept: Option<Array>,
) -> PyResult<()> {
    py.detach(|| {
        with_type!(weights, |T| {
            let inputs = inputs::<T>(&arrays)?;
            let pairs = pairs(candidates.as_ref(), &weights, inputs.mu1.rows(), inputs.mu2.rows())?;
            let queries = [(inputs.mu1.rows(), inputs.mu1.stored()), (inputs.extra1.rows(), inputs.extra1.stored())];
            let gallery = [(inputs.mu2.rows(), inputs.mu2.stored()), (inputs.extra2.rows(), inputs.extra2.stored())];
            let sizes = queries.into_iter().chain(gallery).chain([(1, inputs.shared.stored())]);
            for ((rows, stored), out) in sizes.zip(&out) {
                let expected = rows * stored;
                ensure(out.output::<T>()?.len() == expected, || format!("a gradient needs {expected} elements"))?;
            }
            let weights = weights.slice::<T>()?;
            let [mu1, extra1, mu2, extra2, shared] = &out;
            let out = Gradients {
                query: (mu1.output()?, extra1.output()?),
                gallery: (mu2.output()?, extra2.output()?),
                shared: shared.output()?,
                wanted: Wanted {
                    query: wanted & QUERY != 0,
                    gallery: wanted & GALLERY != 0,
                    shared: wanted & SHARED != 0,
                },
            };
            let orders = BothOrders::of(inputs.mu1.stored());
            let kept = kept.as_ref().map(Array::slice::<T>).transpose()?;
            let fits = |kept: &[T]| kept.len() == weights.len();
            ensure(kept.is_none_or(fits), || "what was kept needs the shape of the scores".into())?;
            let pair = pair(name, inputs, Purpose::Gradients(kept), draws, Prune::Auto, &orders)?;
            shapes::backward(&*pair, name, pairs, weights, out, &interrupted)
        })
    })?;
    Ok(())
}

/// The best k of each query's candidates [Q, K], -1 = none, into scores and ids [Q, k].
#[pyfunction]
pub fn rerank(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    candidates: Array,
    scores: Array,
    ids: Array,
) -> PyResult<()> {
    py.detach(|| {
        with_type!(scores, |T| {
            let inputs = inputs::<T>(&arrays)?;
            let candidates = candidates.view::<i64>()?;
            ensure(candidates.rows() == inputs.mu1.rows(), || "candidates need a row per query".into())?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let count = candidates.rows() * candidates.stored();
            let pair = pair(name, inputs, Purpose::Scores(count), draws, Prune::Auto, &orders)?;
            shapes::rerank(&*pair, name, candidates, best(&scores, &ids, inputs.mu1.rows())?)
        })
    })?;
    Ok(())
}

/// Where the best k of every query go.
fn best<'a, T: Element>(scores: &'a Array, ids: &'a Array, queries: usize) -> Result<Best<'a, T>, Error> {
    let k = scores.shape().last().copied().unwrap_or(0);
    let (scores, ids) = (scores.output::<T>()?, ids.output::<i64>()?);
    let fits = k > 0 && scores.len() == queries * k && ids.len() == scores.len();
    ensure(fits, || "scores and ids need shape [Q, k]".into())?;
    Ok(Best { k, scores, ids, interrupted: &interrupted })
}

/// The panels, squared norms and order of a prepared gallery.
fn packed<'a, T: Float + Element>(
    packed: &'a Option<[Array; 3]>,
    inputs: &Inputs<'_, T>,
) -> Result<Option<Packed<'a, T>>, Error> {
    let Some([panels, norms, order]) = packed else { return Ok(None) };
    let (panels, norms, order) = (panels.slice::<T>()?, norms.slice::<T>()?, order.slice::<i64>()?);
    let (rows, dim) = (inputs.mu2.rows(), inputs.mu2.stored());
    let fits = panels.len() == panels::padded::<T>(rows) * dim && norms.len() == rows;
    ensure(fits && order.len() == rows, || "the packed gallery does not fit the gallery".into())?;
    Ok(Some(Packed { panels, norms, order }))
}

/// Exact top-k over the whole gallery into scores and ids [Q, k]; the share of pairs that were scored by the pair function.
/// `panels` holds the panels, squared norms and order of a prepared one.
#[pyfunction]
pub fn search(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    panels: Option<[Array; 3]>,
    prune: &str,
    scores: Array,
    ids: Array,
) -> PyResult<f64> {
    let prune = match prune {
        "auto" => Prune::Auto,
        "never" => Prune::Never,
        "always" => Prune::Always,
        other => return Err(Error::Value(format!("prune is {other:?}")).into()),
    };
    let share = py.detach(|| {
        with_type!(scores, |T| {
            let inputs = inputs::<T>(&arrays)?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let pair = pair(name, inputs, Purpose::Search(packed(&panels, &inputs)?), draws, prune, &orders)?;
            let pairs = (inputs.mu1.rows() * inputs.mu2.rows()).max(1);
            let scored = pair.search(best(&scores, &ids, inputs.mu1.rows())?)?;
            Ok::<f64, Error>(scored as f64 / pairs as f64)
        })
    })?;
    Ok(share)
}

/// The gallery rows [G, D] as panels (`panel_rows(G, ...)` x D elements), the row at each place by `order` [G], and the squared
/// norm of the row at each place [G].
#[pyfunction]
pub fn pack(py: Python<'_>, rows: Array, order: Array, panels: Array, norms: Array) -> PyResult<()> {
    py.detach(|| {
        with_type!(rows, |T| {
            let (rows, order) = (rows.matrix::<T>()?, order.slice::<i64>()?);
            let (panels, norms) = (panels.output::<T>()?, norms.output::<T>()?);
            let fits = panels.len() == panels::padded::<T>(rows.rows()) * rows.stored() && norms.len() == rows.rows();
            ensure(fits && order.len() == rows.rows(), || "panels, order and norms do not fit the rows".into())?;
            // Whole panels for either type.
            const ROWS: usize = 512;
            let parts = panels.chunks_mut((ROWS * rows.stored()).max(1)).zip(norms.chunks_mut(ROWS));
            parallel::for_each(parts.zip(order.chunks(ROWS)).collect(), &interrupted, |((panels, norms), order)| {
                panels::pack(&rows, 0..order.len(), |place| order[place] as usize, panels);
                dot_scores::sq_norms(&rows, order.iter().map(|&row| row as usize), norms);
            })
        })
    })?;
    Ok(())
}

/// How many rows the panels of `rows` rows take, for float64 (`double`) or float32.
#[pyfunction]
pub fn panel_rows(rows: usize, double: bool) -> usize {
    if double {
        panels::padded::<f64>(rows)
    } else {
        panels::padded::<f32>(rows)
    }
}
