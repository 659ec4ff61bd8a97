//! The Python functions of scores of pairs.

use super::array::{Array, Element};
use super::{detached, ensure, interrupted};
use crate::coded_panels::{self, CodedPanels};
use crate::codes::{self, Codes};
use crate::drivers::{self, Best, Gradients, Inputs, Pairs, Prune, Wanted};
use crate::error::Error;
use crate::kernels::dot_scores;
use crate::kernels::pair_op::{Draws, Facts, Family, Purpose, Request, Scored, Sieve};
use crate::kernels::table;
use crate::panels::{self, Packed};
use crate::parallel;
use crate::simd::Float;
use crate::special::bessel::BothOrders;
use crate::view::{Matrix, View};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The inputs of a pair score: mu1, uncertainty1, mu2, uncertainty2, shared.
type FiveArrays = [Array; 5];

fn inputs<'a, T: Float + Element>(kernel: &Facts, arrays: &'a FiveArrays) -> Result<Inputs<'a, T>, Error> {
    let [mu1, uncertainty1, mu2, uncertainty2, shared] = arrays;
    let all = Inputs {
        mu1: mu1.view()?,
        uncertainty1: uncertainty1.view()?,
        mu2: mu2.matrix()?,
        uncertainty2: uncertainty2.matrix()?,
        shared: shared.view()?,
    };
    kernel.check([
        (all.mu1.rows(), all.mu1.stored()),
        (all.uncertainty1.rows(), all.uncertainty1.stored()),
        (all.mu2.rows(), all.mu2.stored()),
        (all.uncertainty2.rows(), all.uncertainty2.stored()),
        (all.shared.rows(), all.shared.stored()),
    ])?;
    Ok(all)
}

/// The pairs of a call: listed ones, else (i, i) for a vector of scores and all (i, j) for a matrix.
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

/// Scores of paired rows (out [N]), of all pairs (out [Q, G]) or of candidates (out [Q, K]). `saved`, of the shape of the scores,
/// takes what [`score_backward`] would have to compute again; only scores of one inner product write to it.
#[pyfunction]
pub fn score(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    candidates: Option<Array>,
    out: Array,
    saved: Option<Array>,
) -> PyResult<()> {
    let kernel = table::find(name)?;
    detached(py, ("scores", name), || {
        with_type!(out, |T| {
            let inputs = inputs::<T>(&kernel.facts, &arrays)?;
            let pairs = pairs(candidates.as_ref(), &out, inputs.mu1.rows(), inputs.mu2.rows())?;
            let saved = saved.as_ref();
            ensure(saved.is_none_or(|saved| saved.shape() == out.shape()), || {
                "what is saved needs the scores' shape".into()
            })?;
            let saved = saved.map_or(Ok(&mut [][..]), Array::output::<T>)?;
            let out = out.output::<T>()?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let purpose = Purpose::Scores(out.len());
            let pair = &*T::pair(kernel, &Request { inputs, purpose, draws, orders: &orders })?;
            match pairs {
                Pairs::Paired => drivers::paired(pair, out, saved, &interrupted),
                Pairs::Pairwise if kernel.facts.symmetric && inputs.of_one_set() => {
                    drivers::pairwise_of_one_set(pair, out, saved, &interrupted)
                }
                Pairs::Pairwise => drivers::pairwise(pair, out, saved, &interrupted),
                Pairs::Candidates(ids) => drivers::candidates(pair, name, ids, out, saved, &interrupted),
            }
        })
    })
}

/// The bit of `wanted` for the gradients of the queries.
pub const QUERY: u32 = 1;
/// The bit of `wanted` for the gradients of the gallery.
pub const GALLERY: u32 = 2;
/// The bit of `wanted` for the gradient of the shared row.
pub const SHARED: u32 = 4;

/// The bit of `wanted` that says that the gallery is the queries themselves, whose gradients are to be the sums of those of both.
pub const TOGETHER: u32 = 8;

/// Gradients of sum(weights * scores) with respect to the five inputs, into arrays of their (stored) shapes. `wanted` is a sum of
/// [`QUERY`], [`GALLERY`], [`SHARED`] and [`TOGETHER`]; other gradients may be left 0. `saved` is what [`score`] wrote.
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
    saved: Option<Array>,
) -> PyResult<()> {
    let kernel = table::find(name)?;
    detached(py, ("gradients", name), || {
        with_type!(weights, |T| {
            let inputs = inputs::<T>(&kernel.facts, &arrays)?;
            let pairs = pairs(candidates.as_ref(), &weights, inputs.mu1.rows(), inputs.mu2.rows())?;
            let queries =
                [(inputs.mu1.rows(), inputs.mu1.stored()), (inputs.uncertainty1.rows(), inputs.uncertainty1.stored())];
            let gallery =
                [(inputs.mu2.rows(), inputs.mu2.stored()), (inputs.uncertainty2.rows(), inputs.uncertainty2.stored())];
            let sizes = queries.into_iter().chain(gallery).chain([(1, inputs.shared.stored())]);
            for ((rows, stored), out) in sizes.zip(&out) {
                let expected = rows * stored;
                ensure(out.output::<T>()?.len() == expected, || format!("a gradient needs {expected} elements"))?;
            }
            let weights = weights.slice::<T>()?;
            let [mu1, uncertainty1, mu2, uncertainty2, shared] = &out;
            let out = Gradients {
                query: (mu1.output()?, uncertainty1.output()?),
                gallery: (mu2.output()?, uncertainty2.output()?),
                shared: shared.output()?,
                wanted: Wanted {
                    query: wanted & QUERY != 0,
                    gallery: wanted & GALLERY != 0,
                    shared: wanted & SHARED != 0,
                    together: wanted & TOGETHER != 0,
                },
            };
            let all_of_one_set = kernel.facts.symmetric && matches!(pairs, Pairs::Pairwise) && queries == gallery;
            ensure(!out.wanted.together || all_of_one_set, || {
                format!("{name}: gradients of both sides together need all pairs of one set, and a symmetric score")
            })?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let saved = saved.as_ref().map(Array::slice::<T>).transpose()?;
            let fits = |saved: &[T]| saved.len() == weights.len();
            ensure(saved.is_none_or(fits), || "what was saved needs the shape of the scores".into())?;
            let pair =
                T::pair(kernel, &Request { inputs, purpose: Purpose::Gradients(saved), draws, orders: &orders })?;
            drivers::backward(&*pair, name, pairs, weights, out, &interrupted)
        })
    })
}

/// The best k of each query's candidates [Q, K], -1 = none, into scores and ids [Q, k]. `codes` are those of the gallery's rows, by
/// which candidates are ruled out.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn rerank(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    candidates: Array,
    codes: Option<Array>,
    scores: Array,
    ids: Array,
) -> PyResult<()> {
    let kernel = table::find(name)?;
    detached(py, ("rerank", name), || {
        with_type!(scores, |T| {
            let inputs = inputs::<T>(&kernel.facts, &arrays)?;
            let candidates = candidates.view::<i64>()?;
            ensure(candidates.rows() == inputs.mu1.rows(), || "candidates need a row per query".into())?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let codes = codes.as_ref().map(Array::view::<u8>).transpose()?;
            let codes = codes.map(|bytes| codes_of(bytes, &inputs.mu2)).transpose()?;
            let purpose = Purpose::Rerank(candidates.rows() * candidates.stored(), codes);
            let pair = T::pair(kernel, &Request { inputs, purpose, draws, orders: &orders })?;
            drivers::rerank(&*pair, name, candidates, best(&scores, &ids, inputs.mu1.rows())?)
        })
    })
}

/// Codes, which must be those of a row each.
fn codes_of<'a, T: Float>(bytes: View<'a, u8>, rows: &Matrix<T>) -> Result<Codes<'a>, Error> {
    let codes = Codes::new(bytes, rows.stored()).filter(|codes| codes.rows() == rows.rows());
    codes.ok_or_else(|| Error::Value("the codes do not fit the rows".into()))
}

/// Writes the codes of rows [G, D] with their uncertainties [G, 1], both of float64 (`double`), float32 or halves, to
/// [G, `codes_width(D)`] bytes.
#[pyfunction]
pub fn encode(py: Python<'_>, rows: Array, uncertainties: Array, double: bool, codes: Array) -> PyResult<()> {
    detached(py, ("codes", "rows"), || {
        let codes = codes.output::<u8>()?;
        if double {
            encode_parts(&rows.matrix::<f64>()?, &uncertainties.matrix()?, codes)
        } else {
            encode_parts(&rows.matrix::<f32>()?, &uncertainties.matrix()?, codes)
        }
    })
}

fn encode_parts<T: Float>(rows: &Matrix<T>, uncertainties: &Matrix<T>, codes: &mut [u8]) -> Result<(), Error> {
    let width = codes::width(rows.stored());
    let fits = uncertainties.rows() == rows.rows() && uncertainties.stored() == 1;
    ensure(fits && codes.len() == rows.rows() * width, || "the codes do not fit the rows".into())?;
    parallel::for_each(codes.chunks_mut(ROWS * width).enumerate(), &interrupted, |(part, codes)| {
        let first = part * ROWS;
        codes::encode(rows, uncertainties, first..rows.rows().min(first + ROWS), codes);
    })
}

/// The bytes that the codes of a row of D elements take.
#[pyfunction]
pub fn codes_width(dim: usize) -> usize {
    codes::width(dim)
}

/// The outputs for the best k of every query.
fn best<'a, T: Element>(scores: &'a Array, ids: &'a Array, queries: usize) -> Result<Best<'a, T>, Error> {
    let k = scores.shape().last().copied().unwrap_or(0);
    let (scores, ids) = (scores.output::<T>()?, ids.output::<i64>()?);
    let fits = k > 0 && scores.len() == queries * k && ids.len() == scores.len();
    ensure(fits, || "scores and ids need shape [Q, k]".into())?;
    Ok(Best { k, scores, ids, interrupted: &interrupted })
}

/// The panels, squared norms and order of a prepared gallery, and its coded panels, if there are any.
fn packed<'a, T: Float + Element>(
    packed: &'a Option<Vec<Array>>,
    inputs: &Inputs<'_, T>,
) -> Result<Option<Packed<'a, T>>, Error> {
    let (panels, norms, order, coded) = match packed.as_deref() {
        None => return Ok(None),
        Some([panels, norms, order]) => (panels, norms, order, None),
        Some([panels, norms, order, bytes, numbers, middle]) => (panels, norms, order, Some([bytes, numbers, middle])),
        Some(others) => return Err(Error::Value(format!("a packed gallery has {} arrays", others.len()))),
    };
    let (panels, norms, order) = (panels.matrix::<T>()?, norms.slice::<T>()?, order.slice::<i64>()?);
    let (rows, dim) = (inputs.mu2.rows(), inputs.mu2.stored());
    let fits = (panels.rows(), panels.stored()) == panels::shape::<T>(rows, dim) && norms.len() == rows;
    ensure(fits && order.len() == rows, || "the packed gallery does not fit the gallery".into())?;
    let coded = coded.map(|[bytes, numbers, middle]| {
        let middle = middle.slice()?;
        let panels = CodedPanels::new(bytes.view()?, numbers.view()?, middle, rows).filter(|_| middle.len() == dim);
        panels.ok_or_else(|| Error::Value("the coded panels do not fit the gallery".into()))
    });
    Ok(Some(Packed { panels, norms, order, coded: coded.transpose()? }))
}

/// Writes the coded panels of rows [G, D], which may be halves, in this order, and the vector [D] that their codes share; the shapes are
/// those of [`coded_shape`]. `double`: the rows are float64.
#[pyfunction]
pub fn encode_panels(
    py: Python<'_>,
    rows: Array,
    order: Array,
    double: bool,
    bytes: Array,
    numbers: Array,
    middle: Array,
) -> PyResult<()> {
    detached(py, ("codes", "panels"), || {
        let (order, out) = (order.slice::<i64>()?, (bytes.output::<u8>()?, numbers.output::<f32>()?));
        if double {
            encode_panels_of(&rows.matrix::<f64>()?, order, out, middle.output()?)
        } else {
            encode_panels_of(&rows.matrix::<f32>()?, order, out, middle.output()?)
        }
    })
}

fn encode_panels_of<T: Float>(
    rows: &Matrix<T>,
    order: &[i64],
    (bytes, numbers): (&mut [u8], &mut [f32]),
    middle: &mut [f64],
) -> Result<(), Error> {
    let shapes = coded_panels::shape(rows.rows(), rows.stored());
    let fits = bytes.len() == shapes.0 .0 * shapes.0 .1 && numbers.len() == shapes.1 .0 * shapes.1 .1;
    let all = fits && order.len() == rows.rows() && middle.len() == rows.stored();
    ensure(all, || "the coded panels do not fit the rows".into())?;
    middle.copy_from_slice(&coded_panels::middle(rows));
    let (parts, middle) = (ROWS / coded_panels::TOGETHER, &*middle);
    let parts = bytes.chunks_mut((parts * shapes.0 .1).max(1)).zip(numbers.chunks_mut(parts * shapes.1 .1));
    parallel::for_each(parts.zip(order.chunks(ROWS)), &interrupted, |((bytes, numbers), order)| {
        coded_panels::encode(rows, order, middle, bytes, numbers);
    })
}

/// The shapes of the coded panels of so many rows, bytes and numbers; None where this processor gains nothing by them.
#[pyfunction]
pub fn coded_shape(rows: usize, dim: usize) -> Option<((usize, usize), (usize, usize))> {
    coded_panels::pays(dim).map(|_| coded_panels::shape(rows, dim))
}

/// Exact top-k over the whole gallery into scores and ids [Q, k]; returns the share of pairs that were scored by the pair
/// function. `panels` holds the panels, squared norms and order of a prepared gallery, and its coded panels, if it has any.
#[pyfunction]
pub fn search(
    py: Python<'_>,
    name: &str,
    arrays: FiveArrays,
    draws: Draws,
    panels: Option<Vec<Array>>,
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
    let kernel = table::find(name)?;
    detached(py, ("search", name), || {
        with_type!(scores, |T| {
            let inputs = inputs::<T>(&kernel.facts, &arrays)?;
            let orders = BothOrders::of(inputs.mu1.stored());
            let purpose = Purpose::Search(packed(&panels, &inputs)?, prune);
            let pair = T::pair(kernel, &Request { inputs, purpose, draws, orders: &orders })?;
            let pairs = (inputs.mu1.rows() * inputs.mu2.rows()).max(1);
            let scored = pair.search(best(&scores, &ids, inputs.mu1.rows())?)?;
            Ok(scored as f64 / pairs as f64)
        })
    })
}

/// Packs the gallery rows [G, D], which may be halves, as panels of the same type and of `panels_shape(G, D, ...)`, with row
/// `order[i]` at position i, and writes the squared norm of the row at each position [G], of the type to compute in.
#[pyfunction]
pub fn pack(py: Python<'_>, rows: Array, order: Array, panels: Array, norms: Array) -> PyResult<()> {
    detached(py, ("panels", "rows"), || {
        with_type!(norms, |T| {
            let (rows, order, norms) = (rows.matrix::<T>()?, order.slice::<i64>()?, norms.output::<T>()?);
            let fits = norms.len() == rows.rows() && order.len() == rows.rows();
            ensure(fits, || "order and norms do not fit the rows".into())?;
            let norms = norms.chunks_mut(ROWS).zip(order.chunks(ROWS));
            match &rows {
                Matrix::Full(_) => pack_parts(&rows, norms, panels.output::<T>()?, &|order, panels| {
                    panels::pack(&rows, 0..order.len(), &|place| order[place] as usize, panels);
                }),
                Matrix::Half(halves, _) => pack_parts(&rows, norms, panels.output::<u16>()?, &|order, panels| {
                    panels::pack_halves::<T>(halves, 0..order.len(), &|place| order[place] as usize, panels);
                }),
            }
        })
    })
}

/// Rows that are packed together: a whole number of panels for either type.
const ROWS: usize = 512;

/// Packs rows by `pack`, part by part, after their norms, which bring them into the cache.
fn pack_parts<'a, T: Float, E: Send>(
    rows: &Matrix<T>,
    parts: impl ExactSizeIterator<Item = (&'a mut [T], &'a [i64])> + Send,
    panels: &mut [E],
    pack: &(dyn Fn(&[i64], &mut [E]) + Sync),
) -> Result<(), Error> {
    let (pairs, length) = panels::shape::<T>(rows.rows(), rows.stored());
    ensure(panels.len() == pairs * length, || "panels do not fit the rows".into())?;
    let parts = panels.chunks_mut((ROWS * rows.stored()).max(1)).zip(parts);
    parallel::for_each(parts, &interrupted, |(panels, (norms, order))| {
        dot_scores::sq_norms(rows, order.iter().map(|&row| row as usize), norms);
        pack(order, panels);
    })
}

/// The shape of the panels of `rows` rows, for float64 (`double`) or float32.
#[pyfunction]
pub fn panels_shape(rows: usize, dim: usize, double: bool) -> (usize, usize) {
    if double {
        panels::shape::<f64>(rows, dim)
    } else {
        panels::shape::<f32>(rows, dim)
    }
}

/// The facts of all scores of pairs, from the table of kernels: a dict for each.
#[pyfunction]
pub fn kernels(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let told = |kernel: &Facts| {
        let fields = PyDict::new(py);
        fields.set_item("name", kernel.name)?;
        fields.set_item("uncertainty", kernel.uncertainty)?;
        fields.set_item("shared", kernel.shared)?;
        fields.set_item("layout", kernel.layout())?;
        fields.set_item("samplers", kernel.samplers)?;
        fields.set_item("sampled", kernel.family == Family::Sampled)?;
        fields.set_item("one_product", kernel.sieve == Sieve::Product)?;
        fields.set_item("saves", kernel.saves)?;
        fields.set_item("symmetric", kernel.symmetric)?;
        fields.set_item("by_distance", kernel.by_distance)?;
        fields.set_item("per_item", kernel.per_item)?;
        fields.set_item("compares", kernel.compares)?;
        Ok(fields)
    };
    table::scores().map(|score| told(&score.facts)).collect()
}
