//! Exports of the CUDA kernels. Shapes and dtypes are checked here; that addresses are valid is up to the Python layer.

use super::array::DeviceArray;
use super::ensure;
use crate::cuda::arguments::Bounding;
use crate::cuda::call::{Call, DeviceInputs, Gradients, Ranked, Types, Which};
use crate::cuda::constants::{BEST, PER_ITEM_NUMBERS};
use crate::cuda::sampled::{self, Drawing};
use crate::cuda::search::{self, Workspace};
use crate::cuda::{self, DeviceMatrix, Place};
use crate::drivers::Prune;
use crate::error::Error;
use crate::kernels::sampled_scores::DRAWS;
use crate::kernels::table;
use pyo3::prelude::*;

/// The architectures of the embedded kernels, the CUDA version of the driver (13000 for 13.0), or why there is none.
#[pyfunction]
pub fn cuda_info() -> (&'static str, i32, Option<String>) {
    match cuda::driver() {
        Ok(driver) => (cuda::TARGETS, driver.version(), None),
        Err(why) => (cuda::TARGETS, 0, Some(why.to_string())),
    }
}

/// The number of a device, and the address of a stream.
pub type At = (i32, u64);

pub fn place(at: At) -> Place {
    Place { device: at.0, stream: at.1 }
}

/// Whether an array is of float32, or else of float64: kernels compute in no other type.
pub fn single(x: &DeviceArray) -> Result<bool, Error> {
    match x.dtype() {
        "float32" => Ok(true),
        "float64" => Ok(false),
        other => Err(Error::Value(format!("expected float32 or float64, got {other}"))),
    }
}

pub fn count(x: &DeviceArray) -> usize {
    x.shape().iter().product()
}

/// A matrix that stores all elements of its rows, none of which is one element that stands for a constant row.
pub fn full(x: &DeviceArray) -> Result<DeviceMatrix, Error> {
    let matrix = x.matrix()?;
    let width = x.shape().get(1).copied().unwrap_or(1);
    ensure(matrix.stored == width as i64, || format!("expected rows of {width} elements, got one for all of a row"))?;
    Ok(matrix)
}

/// The inputs of a score: mu1, uncertainty1, mu2, uncertainty2, shared.
type FiveArrays = [DeviceArray; 5];

/// The call of a score, whose inputs are checked.
fn call(op: &str, at: At, arrays: &FiveArrays) -> Result<Call, Error> {
    let kernel = table::facts(op)?;
    let [mu1, uncertainty1, mu2, uncertainty2, shared] = arrays;
    let double = !single(mu1)?;
    let dtype = mu1.dtype();
    let types = match (double, mu2.dtype()) {
        (true, "float64") => Types::F64,
        (false, "float32") => Types::F32,
        (false, "float16") => Types::F32F16,
        (false, "bfloat16") => Types::F32BF16,
        (_, other) => return Err(Error::Value(format!("{op}: a gallery of {other} does not go with {dtype}"))),
    };
    let dtypes = uncertainty1.dtype() == dtype
        && shared.dtype() == dtype
        && [dtype, mu2.dtype()].contains(&uncertainty2.dtype());
    ensure(dtypes, || format!("{op}: the dtypes of a score's inputs do not fit together"))?;
    let inputs = DeviceInputs {
        mu1: full(mu1)?,
        uncertainty1: uncertainty1.matrix()?,
        mu2: full(mu2)?,
        uncertainty2: uncertainty2.matrix()?,
        shared: shared.matrix()?,
    };
    let size = |matrix: &DeviceMatrix| (matrix.rows as usize, matrix.stored as usize);
    kernel.check([&inputs.mu1, &inputs.uncertainty1, &inputs.mu2, &inputs.uncertainty2, &inputs.shared].map(size))?;
    let wide_uncertainty2 = uncertainty2.dtype() == dtype && mu2.dtype() != dtype;
    Ok(Call { kernel, at: place(at), types, inputs, wide_uncertainty2, per_item: [0; 2] })
}

/// By side, memory for what a family makes of each item alone, float64 [N, 3]; none where each pair makes it anew.
type PerItem = [Option<DeviceArray>; 2];

fn set_per_item(call: &mut Call, per_item: &PerItem) -> Result<(), Error> {
    for ((address, memory), mu) in call.per_item.iter_mut().zip(per_item).zip([&call.inputs.mu1, &call.inputs.mu2]) {
        let Some(memory) = memory else { continue };
        let shape = [mu.rows as usize, PER_ITEM_NUMBERS];
        ensure(memory.shape() == shape, || {
            format!("numbers per item have shape {:?}, expected {shape:?}", memory.shape())
        })?;
        *address = memory.address("float64")?;
    }
    Ok(())
}

/// The arguments of a score that compares draws: the seed (none where nothing is random), the number of draws, a workspace, and
/// the draws of queries and gallery [n, N, D] where they have been made.
type Draws = (Option<DeviceArray>, usize, DeviceArray, Option<DeviceArray>, Option<DeviceArray>);

/// The draws of a call; None for a score that compares no draws. Scores [rows, columns], or gradients of `rows` items, say how
/// large the workspace must be.
fn drawing(call: &Call, draws: Option<&Draws>, rows: usize, columns: Option<usize>) -> Result<Option<Drawing>, Error> {
    let op = call.kernel.name;
    if !call.compares_draws() {
        return ensure(draws.is_none(), || format!("{op}: draws nothing")).map(|()| None);
    }
    let Some((seed, n, workspace, query, gallery)) = draws else {
        return Err(Error::Value(format!("{op}: compares draws")));
    };
    ensure((1..=DRAWS).contains(n), || format!("n is {n}, expected 1 .. {DRAWS}"))?;
    ensure(seed.is_some() || !call.kernel.draws(), || format!("{op}: draws need a seed"))?;
    let (wanted, found) = (sampled::workspace(call, *n, rows, columns)?, count(workspace));
    ensure(found >= wanted, || format!("the workspace has {found} elements, expected {wanted}"))?;
    let seed = seed.as_ref().map_or(Ok(0), |seed| seed.address("int64"))?;
    let mut made = [0; 2];
    for ((made, given), mu) in made.iter_mut().zip([query, gallery]).zip([&call.inputs.mu1, &call.inputs.mu2]) {
        let Some(given) = given else { continue };
        let shape = [*n, mu.rows as usize, mu.stored as usize];
        ensure(given.shape() == shape, || format!("draws have shape {:?}, expected {shape:?}", given.shape()))?;
        *made = given.address(call.types.name())?;
    }
    Ok(Some(Drawing { seed, draws: *n, workspace: workspace.address(call.types.name())?, made }))
}

/// Elements of the workspace that scores [rows, columns] or, without columns, gradients of `rows` items need for n draws; None
/// for a score that compares no draws.
#[pyfunction]
pub fn cuda_workspace(
    name: &str,
    at: At,
    arrays: FiveArrays,
    n: usize,
    rows: usize,
    columns: Option<usize>,
) -> PyResult<Option<usize>> {
    let call = call(name, at, &arrays)?;
    Ok(if call.compares_draws() { Some(sampled::workspace(&call, n, rows, columns)?) } else { None })
}

fn listed(candidates: &DeviceArray, queries: i64) -> Result<DeviceMatrix, Error> {
    let matrix = full(candidates)?;
    ensure(candidates.dtype() == "int64" && matrix.rows == queries, || "candidates need int64 [Q, K]".into())?;
    Ok(matrix)
}

/// The pairs that are scored: those of the candidates, or else (i, i) for a vector of scores and all (i, j) for a matrix.
fn which(call: &Call, candidates: Option<&DeviceArray>, scores: &DeviceArray) -> Result<Which, Error> {
    let (queries, gallery) = (call.inputs.mu1.rows, call.inputs.mu2.rows);
    let (which, shape) = match candidates {
        Some(candidates) => {
            let candidates = listed(candidates, queries)?;
            (Which::Listed(candidates), vec![queries as usize, candidates.stored as usize])
        }
        None if scores.shape().len() == 1 => {
            ensure(queries == gallery, || "paired scores need as many queries as gallery rows".into())?;
            (Which::Paired, vec![queries as usize])
        }
        None => (Which::Pairwise, vec![queries as usize, gallery as usize]),
    };
    ensure(scores.shape() == shape, || format!("scores have shape {:?}, expected {shape:?}", scores.shape()))?;
    Ok(which)
}

/// k, and where scores and ids [rows, k] are written.
fn ranked(dtype: &str, rows: usize, scores: &DeviceArray, ids: &DeviceArray) -> Result<(usize, Ranked), Error> {
    let k = scores.shape().last().copied().unwrap_or(0);
    let shape = [rows, k];
    let fits = scores.shape() == shape && ids.shape() == shape && (1..=BEST).contains(&k);
    ensure(fits, || format!("scores and ids need shape [{rows}, k], k in 1 .. {BEST}"))?;
    Ok((k, Ranked { scores: scores.address(dtype)?, ids: ids.address("int64")? }))
}

/// Scores of paired rows (out [N]), of all pairs (out [Q, G]) or of candidates (out [Q, K]).
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_score(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    draws: Option<Draws>,
    per_item: PerItem,
    candidates: Option<DeviceArray>,
    out: DeviceArray,
) -> PyResult<()> {
    let mut call = call(name, at, &arrays)?;
    set_per_item(&mut call, &per_item)?;
    let which = which(&call, candidates.as_ref(), &out)?;
    let (rows, columns) = call.grid(which);
    let drawing = drawing(&call, draws.as_ref(), rows, Some(columns))?;
    let out = out.address(arrays[0].dtype())?;
    // SAFETY: as in `cuda_elementwise`; ids that are no row of the gallery are found by the kernel.
    py.detach(|| unsafe {
        match &drawing {
            Some(drawing) => sampled::scores(&call, drawing, which, out),
            None => call.scores(which, out),
        }
    })?;
    Ok(())
}

/// A side (0: queries, 1: gallery), what it draws, and its gradients: by mu, by the uncertainty, and by the shared row for each
/// of its items [rows, S].
type OfSide = (usize, Option<Draws>, [DeviceArray; 3]);

/// Gradients of sum(weights * scores) by some sides. `lists`: for candidates seen from the gallery, where each row's begin
/// [G + 1] and their places [Q K].
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_score_backward(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    candidates: Option<DeviceArray>,
    lists: Option<[DeviceArray; 2]>,
    weights: DeviceArray,
    sides: Vec<OfSide>,
) -> PyResult<()> {
    let mut call = call(name, at, &arrays)?;
    set_per_item(&mut call, &per_item)?;
    let which = which(&call, candidates.as_ref(), &weights)?;
    ensure(call.types != Types::F32F16 && call.types != Types::F32BF16, || "gradients need a gallery in full".into())?;
    let dtype = arrays[0].dtype();
    let lists = match (&lists, &candidates) {
        (Some([offsets, places]), Some(candidates)) => {
            let fits = count(offsets) == arrays[2].shape()[0] + 1 && count(places) == count(candidates);
            ensure(fits, || "the lists do not fit the candidates".into())?;
            (offsets.address("int64")?, places.address("int64")?)
        }
        (None, Some(_)) => return Err(Error::Value("candidates seen from the gallery need lists".into()).into()),
        _ => (0, 0),
    };
    let (mut plain, mut drawn) = (Vec::new(), Vec::new());
    for (side, draws, out) in &sides {
        ensure(*side < 2, || format!("side is {side}"))?;
        let (mu, uncertainty) = (&arrays[2 * side], &arrays[2 * side + 1]);
        let rows = mu.shape()[0];
        let drawing = drawing(&call, draws.as_ref(), rows, None)?;
        full(uncertainty)?; // its gradient is
        let shapes = out[0].shape() == mu.shape()
            && out[1].shape() == uncertainty.shape()
            && out[2].shape() == [rows, arrays[4].shape()[1]];
        ensure(shapes, || "gradients need the shapes of the inputs".into())?;
        let out = [out[0].address(dtype)?, out[1].address(dtype)?, out[2].address(dtype)?];
        let gradients = Gradients { side: *side, out };
        match drawing {
            Some(drawing) => drawn.push((gradients, drawing)),
            None => plain.push(gradients),
        }
    }
    let weights = weights.address(dtype)?;
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe {
        if call.compares_draws() {
            sampled::backward(&call, which, &drawn, lists, weights)
        } else {
            call.backward(which, &plain, lists, weights)
        }
    })?;
    Ok(())
}

/// The best k of each query's candidates [Q, K], -1 = none, into scores and ids [Q, k].
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_rerank(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    candidates: DeviceArray,
    scores: DeviceArray,
    ids: DeviceArray,
) -> PyResult<()> {
    let mut call = call(name, at, &arrays)?;
    set_per_item(&mut call, &per_item)?;
    let candidates = listed(&candidates, call.inputs.mu1.rows)?;
    let (k, out) = ranked(arrays[0].dtype(), call.inputs.mu1.rows as usize, &scores, &ids)?;
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.rerank(candidates, k, out) })?;
    Ok(())
}

fn pruning(prune: &str) -> Result<Prune, Error> {
    match prune {
        "auto" => Ok(Prune::Auto),
        "never" => Ok(Prune::Never),
        "always" => Ok(Prune::Always),
        other => Err(Error::Value(format!("prune is {other:?}"))),
    }
}

/// How a search for the best k is cut: how many shards it makes, how many items its lists hold outside of the kernel's own
/// memory; how many rows are scored without a sieve, how many survivors of it a query has at most, and how many
/// tiles of rows have bounds.
#[pyfunction]
pub fn cuda_cut(name: &str, at: At, arrays: FiveArrays, k: usize, prune: &str) -> PyResult<[usize; 5]> {
    let cut = call(name, at, &arrays)?.cut(k, pruning(prune)?)?;
    Ok([cut.tiling.shards, cut.tiling.listed, cut.first, cut.survivors, cut.bounded])
}

/// Exact top-k over the whole gallery into scores and ids [Q, k]; `parts` hold [Q, shards k], `lists` for as many
/// items as `cuda_cut` says, `survivors` are int32 [Q, survivors of a query] and [Q] zeros. `bounding`, where there are tiles:
/// the order of the rows that pass a sieve, int32, a variance for each dimension, and memory for [tiles, 2, D] and [rows, 2].
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_search(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    prune: &str,
    parts: [DeviceArray; 2],
    lists: [DeviceArray; 2],
    survivors: [DeviceArray; 2],
    bounding: Option<[DeviceArray; 4]>,
    scores: DeviceArray,
    ids: DeviceArray,
) -> PyResult<()> {
    let mut call = call(name, at, &arrays)?;
    set_per_item(&mut call, &per_item)?;
    let (queries, dtype) = (call.inputs.mu1.rows as usize, arrays[0].dtype());
    let (k, out) = ranked(dtype, queries, &scores, &ids)?;
    let cut = call.cut(k, pruning(prune)?)?;
    let ranked_memory = |arrays: &[DeviceArray; 2], items: usize| {
        let fits = arrays.iter().all(|array| count(array) >= items);
        ensure(fits, || format!("a search needs memory for {items} items"))?;
        Ok::<_, Error>(Ranked { scores: arrays[0].address(dtype)?, ids: arrays[1].address("int64")? })
    };
    let (parts, lists) =
        (ranked_memory(&parts, queries * cut.tiling.shards * k)?, ranked_memory(&lists, cut.tiling.listed)?);
    let [survivors, counts] = &survivors;
    let fits = count(survivors) >= queries * cut.survivors && (cut.survivors == 0 || count(counts) == queries);
    ensure(fits, || format!("a search needs memory for {} survivors of each query", cut.survivors))?;
    let (survivors, counts) = (survivors.address("int32")?, counts.address("int32")?);
    let bounding = match &bounding {
        None => ensure(cut.bounded == 0, || format!("{name}: a search bounds tiles")).map(|()| Bounding::default())?,
        Some([order, reference, ranges, sums]) => {
            let (dim, left) = (call.inputs.mu1.stored as usize, arrays[2].shape()[0] - cut.first);
            let fits = count(order) == left && count(reference) == dim && count(ranges) >= 2 * dim * cut.bounded;
            ensure(fits && count(sums) >= 2 * left, || format!("{name}: bounds need {} tiles", cut.bounded))?;
            let [reference, ranges, sums] = [reference.address(dtype)?, ranges.address(dtype)?, sums.address(dtype)?];
            Bounding { order: order.address("int32")?, first: 0, reference, ranges, sums }
        }
    };
    let with = Workspace { parts, lists, survivors, counts, bounding };
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.search(k, &cut, with, out) })?;
    Ok(())
}

/// The best k of each row of scores [Q, N] with their ids, -1 = none, into scores and ids [Q, k].
#[pyfunction]
pub fn cuda_select(
    py: Python<'_>,
    at: At,
    all: DeviceArray,
    all_ids: DeviceArray,
    scores: DeviceArray,
    ids: DeviceArray,
) -> PyResult<()> {
    let double = !single(&all)?;
    let matrix = full(&all)?;
    let all_ids = listed(&all_ids, matrix.rows)?;
    ensure(all_ids.stored == matrix.stored, || "scores and ids need one shape".into())?;
    let (k, out) = ranked(all.dtype(), matrix.rows as usize, &scores, &ids)?;
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { search::select(place(at), double, (matrix, all_ids), k, out) })?;
    Ok(())
}
