//! Exports of the CUDA kernels. Shapes and dtypes are checked here; that addresses are valid is up to the Python layer.

use super::array::DeviceArray;
use super::ensure;
use crate::cuda::arguments::ProductArgs;
use crate::cuda::call::{Call, DeviceInputs, Gradients, Ranked, Types, Which};
use crate::cuda::constants::{BEST, PER_ITEM_NUMBERS, PRODUCT_ROWS, WARP};
use crate::cuda::products::{self, Products, Scratch, Weighted};
use crate::cuda::sampled::{self, Drawing};
use crate::cuda::search::{self, Blocks, Cut, SieveMemory, Workspace};
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

/// The call of a score with that memory.
fn call_with(op: &str, at: At, arrays: &FiveArrays, per_item: &PerItem) -> Result<Call, Error> {
    let mut call = call(op, at, arrays)?;
    set_per_item(&mut call, per_item)?;
    Ok(call)
}

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

/// The arguments of a score that compares draws: the seed (none where nothing is random), the number of draws, a workspace, the draws
/// of queries and gallery [n, N, D] where they have been made, and the gradients by a side's draws where products gave them.
type Draws = (Option<DeviceArray>, usize, DeviceArray, [Option<DeviceArray>; 2], Option<DeviceArray>);

/// The draws of a call; None for a score that compares no draws. Scores [rows, columns], or gradients of `rows` items, say how
/// large the workspace must be.
fn drawing(call: &Call, draws: Option<&Draws>, rows: usize, columns: Option<usize>) -> Result<Option<Drawing>, Error> {
    let op = call.kernel.name;
    if !call.compares_draws() {
        return ensure(draws.is_none(), || format!("{op}: draws nothing")).map(|()| None);
    }
    let Some(draws) = draws else {
        return Err(Error::Value(format!("{op}: compares draws")));
    };
    let (wanted, found) = (sampled::workspace(call, draws.1, rows, columns)?, count(&draws.2));
    ensure(found >= wanted, || format!("the workspace has {found} elements, expected {wanted}"))?;
    drawn(call, draws).map(Some)
}

/// The draws of a call, whatever its workspace.
fn drawn(call: &Call, (seed, n, workspace, made, by_draws): &Draws) -> Result<Drawing, Error> {
    let (op, dtype) = (call.kernel.name, call.types.name());
    ensure((1..=DRAWS).contains(n), || format!("n is {n}, expected 1 .. {DRAWS}"))?;
    ensure(seed.is_some() || !call.kernel.draws(), || format!("{op}: draws need a seed"))?;
    let seed = seed.as_ref().map_or(Ok(0), |seed| seed.address("int64"))?;
    let mut addresses = [0; 2];
    for ((address, given), mu) in addresses.iter_mut().zip(made).zip([&call.inputs.mu1, &call.inputs.mu2]) {
        let Some(given) = given else { continue };
        let shape = [*n, mu.rows as usize, mu.stored as usize];
        ensure(given.shape() == shape, || format!("draws have shape {:?}, expected {shape:?}", given.shape()))?;
        *address = given.address(dtype)?;
    }
    let by_draws = by_draws.as_ref().map_or(Ok(0), |given| given.address(dtype))?;
    Ok(Drawing { seed, draws: *n, workspace: workspace.address(dtype)?, made: addresses, by_draws })
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
    let call = call_with(name, at, &arrays, &per_item)?;
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

/// The addresses of a side's gradients, which have the shapes of its inputs.
fn of_side(arrays: &FiveArrays, side: usize, out: &[DeviceArray; 3]) -> Result<[u64; 3], Error> {
    let (mu, uncertainty, dtype) = (&arrays[2 * side], &arrays[2 * side + 1], arrays[0].dtype());
    full(uncertainty)?; // its gradient is
    let shapes = out[0].shape() == mu.shape()
        && out[1].shape() == uncertainty.shape()
        && out[2].shape() == [mu.shape()[0], arrays[4].shape()[1]];
    ensure(shapes, || "gradients need the shapes of the inputs".into())?;
    Ok([out[0].address(dtype)?, out[1].address(dtype)?, out[2].address(dtype)?])
}

/// Gradients of sum(weights * scores) by some sides. `lists`: for candidates seen from the gallery, where each row's begin
/// [G + 1] and their places [Q K]. `marks`: masks of the pairs that
/// products do not give, empty where they give all.
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
    marks: Option<Vec<DeviceArray>>,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    let which = which(&call, candidates.as_ref(), &weights)?;
    let (which, marks) = match marks.as_deref() {
        Some([by_query, by_row]) => (Which::Marked, masks(&call, [by_query, by_row])?),
        Some(_) => (Which::Marked, [0; 2]),
        None => (which, [0; 2]),
    };
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
        let drawing = drawing(&call, draws.as_ref(), arrays[2 * side].shape()[0], None)?;
        let out = of_side(&arrays, *side, out)?;
        let gradients = Gradients { side: *side, out, of_products: (marks[*side], 0, 0, 0) };
        match drawing {
            Some(Drawing { by_draws: 0, .. }) if matches!(which, Which::Marked) => {
                return Err(Error::Value(format!("{name}: marked pairs need gradients by draws")).into());
            }
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

/// The addresses of masks [Q, G / 32] and [Q / 32, G], int32.
fn masks(call: &Call, marks: [&DeviceArray; 2]) -> Result<[u64; 2], Error> {
    let (queries, gallery) = (call.inputs.mu1.rows as usize, call.inputs.mu2.rows as usize);
    let fits = count(marks[0]) >= queries * gallery.div_ceil(WARP)
        && count(marks[1]) >= queries.div_ceil(PRODUCT_ROWS) * gallery;
    ensure(fits, || "masks need a bit for each pair".into())?;
    Ok([marks[0].address("int32")?, marks[1].address("int32")?])
}

/// How many warps of a block share the sums over m draws.
#[pyfunction]
pub fn cuda_warps(m: usize) -> usize {
    sampled::warps(m)
}

/// The weights [Q, G]; masks; float64 sums over rows [G / 32, n, Q] and columns [Q / 32, m, G], and those of the derivatives by shared numbers
/// [Q / 32, G / 32, warps, 2].
type OfWeights = (DeviceArray, [DeviceArray; 2], Option<DeviceArray>, DeviceArray, Option<DeviceArray>);

/// The scores [Q, G] of a tile, given the products of its draws and maybe of their squares, [n, queries, m, rows], and the squared norms of
/// all draws; or, with weights, what its gradients are made of. The tile: first query, queries, first gallery row, rows.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_fold(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    draws: Draws,
    per_item: PerItem,
    tile: [usize; 4],
    products: Vec<DeviceArray>,
    norms: Vec<DeviceArray>,
    out: Option<DeviceArray>,
    weights: Option<OfWeights>,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    let (drawing, dtype) = (drawn(&call, &draws)?, call.types.name());
    let sides = [&call.inputs.mu1, &call.inputs.mu2].map(|mu| mu.rows as usize);
    let [n, m] = call.kernel.samplers.map(|sampler| sampler.map_or(1, |_| drawing.draws));
    let [first, queries, begin, rows] = tile;
    let of_densities = call.kernel.per_item[1];
    let inside =
        first % PRODUCT_ROWS == 0 && begin % WARP == 0 && first + queries <= sides[0] && begin + rows <= sides[1];
    let fits = out.is_some() != weights.is_some()
        && products.len() == 1 + usize::from(of_densities)
        && products.iter().all(|x| count(x) >= n * queries * m * rows)
        && (if of_densities { call.per_item[1] != 0 } else { norms.len() == 2 })
        && norms.iter().zip([n * sides[0], m * sides[1]]).all(|(norms, wanted)| count(norms) >= wanted)
        && drawing.made.iter().zip(call.kernel.samplers).all(|(&made, sampler)| made != 0 || sampler.is_none());
    ensure(inside && fits, || format!("{name}: products do not fit the tile"))?;
    let address = |arrays: &[DeviceArray], i: usize| arrays.get(i).map_or(Ok(0), |x| x.address(dtype));
    let mut args = ProductArgs {
        products: address(&products, 0)?,
        squares: address(&products, 1)?,
        norms: [address(&norms, 0)?, address(&norms, 1)?],
        first: first as i64,
        queries: queries as i64,
        ..ProductArgs::default()
    };
    (args.pairs.begin, args.pairs.end) = (begin as i64, (begin + rows) as i64);
    args.pairs.scores = out.as_ref().map_or(Ok(0), |out| products_of(&call, dtype, out))?;
    if let Some((weights, marks, by_row, by_column, by_line)) = &weights {
        let (words, tiles) = (sides[1].div_ceil(WARP), sides[0].div_ceil(PRODUCT_ROWS));
        let sum = |memory: Option<&DeviceArray>, wanted: usize| match memory {
            Some(memory) if count(memory) >= wanted => memory.address("float64"),
            Some(_) => Err(Error::Value(format!("{name}: sums do not fit the call"))),
            None => Ok(0),
        };
        args.weights = products_of(&call, dtype, weights)?;
        args.marks = masks(&call, marks.each_ref())?;
        args.rows = sum(by_row.as_ref(), words * n * sides[0])?;
        args.columns = sum(Some(by_column), tiles * m * sides[1])?;
        args.by_line = sum(by_line.as_ref(), tiles * words * sampled::warps(m) * 2)?;
    }
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { sampled::fold(&call, &drawing, args) })?;
    Ok(())
}

/// How many blocks share each query's candidates [Q, K], each of which writes its best k.
#[pyfunction]
pub fn cuda_shares(name: &str, at: At, arrays: FiveArrays, candidates: usize) -> PyResult<usize> {
    Ok(call(name, at, &arrays)?.shares(candidates)?)
}

/// Memory for scores and ids of at least so many items.
fn memory_for(items: usize, dtype: &str, arrays: &[DeviceArray; 2]) -> Result<Ranked, Error> {
    let fits = arrays.iter().all(|array| count(array) >= items);
    ensure(fits, || format!("a call needs memory for {items} items"))?;
    Ok(Ranked { scores: arrays[0].address(dtype)?, ids: arrays[1].address("int64")? })
}

/// The best k of each query's candidates [Q, K], -1 = none, into scores and ids [Q, k]; `parts` hold [Q, shares k].
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_rerank(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    candidates: DeviceArray,
    parts: [DeviceArray; 2],
    scores: DeviceArray,
    ids: DeviceArray,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    let candidates = listed(&candidates, call.inputs.mu1.rows)?;
    let (queries, dtype) = (call.inputs.mu1.rows as usize, arrays[0].dtype());
    let (k, out) = ranked(dtype, queries, &scores, &ids)?;
    let shares = call.shares(candidates.stored as usize)?;
    let parts = memory_for(if shares > 1 { queries * shares * k } else { 0 }, dtype, &parts)?;
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.rerank(candidates, k, parts, out) })?;
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

/// How a search for the best k is cut: how many parts of the gallery, or of a query's survivors, give their best; how many items its
/// lists hold outside of the kernel's own memory; and, of a search by products, how many queries are searched at a time, how many
/// rows give the first threshold, of how many rows products are made at a time, and how many survivors of a query have memory.
#[pyfunction]
pub fn cuda_cut(name: &str, at: At, arrays: FiveArrays, k: usize, prune: &str) -> PyResult<[usize; 6]> {
    Ok(match call(name, at, &arrays)?.cut(k, pruning(prune)?)? {
        Cut::All(tiling) => [tiling.shards, tiling.listed, 0, 0, 0, 0],
        Cut::Products(cut) => [cut.shares, 0, cut.queries, cut.first, cut.rows, cut.survivors],
    })
}

/// Rows in halves, and the factors of their products.
type Halves = [DeviceArray; 2];

/// The memory of a search by products: torch's handle of cuBLAS, products, both sides' norms, the queries in halves for a gallery in
/// halves or copies of one, these copies, numbers from 0 on, survivors and how many they are.
type ProductMemory =
    (u64, DeviceArray, [DeviceArray; 2], Option<Halves>, Option<Halves>, DeviceArray, [DeviceArray; 2]);

/// The addresses of the memory of a search by products, whose sizes are checked; that of survivors may be smaller than the cut says.
fn sieve_memory(
    call: &Call,
    cut: &mut Blocks,
    arrays: &FiveArrays,
    memory: &ProductMemory,
) -> Result<SieveMemory, Error> {
    let (handle, products, norms, narrow, copies, numbers, [survivors, counts]) = memory;
    let (dtype, queries, dim, gallery) =
        (arrays[0].dtype(), count(&norms[0]), arrays[0].shape()[1], arrays[2].shape()[0]);
    let rows_are_apart = call.inputs.mu2.stride >= dim as i64 && call.inputs.mu1.stride >= dim as i64;
    let fits = count(products) >= cut.queries * cut.rows
        && norms[0].shape() == [arrays[0].shape()[0]]
        && norms[1].shape() == [gallery]
        && narrow.is_some() == (arrays[2].dtype() != dtype || copies.is_some())
        && !(copies.is_some() && arrays[2].dtype() != dtype)
        && [(narrow, queries), (copies, gallery)].iter().all(|(halves, n)| {
            halves.as_ref().is_none_or(|[rows, powers]| rows.shape() == [*n, dim] && powers.shape() == [*n])
        })
        && count(numbers) >= cut.first
        && count(survivors) >= cut.queries
        && count(counts) >= cut.queries;
    ensure(fits && rows_are_apart, || format!("{}: the memory of products does not fit the search", call.kernel.name))?;
    cut.survivors = cut.survivors.min(count(survivors) / cut.queries);
    let stored = if copies.is_some() { "float16" } else { arrays[2].dtype() };
    let halves = |halves: &Option<Halves>| match halves {
        Some([rows, powers]) => Ok([rows.address(stored)?, powers.address(dtype)?]),
        None => Ok::<_, Error>([0, 0]),
    };
    let (narrow, copies) = (halves(narrow)?, halves(copies)?);
    Ok(SieveMemory {
        handle: *handle,
        products: products.address(dtype)?,
        norms: [norms[0].address(dtype)?, norms[1].address(dtype)?],
        narrow,
        copies,
        numbers: numbers.address("int64")?,
        survivors: survivors.address("int32")?,
        counts: counts.address("int32")?,
    })
}

/// Exact top-k over the whole gallery into scores and ids [Q, k]; `parts` hold [Q, parts k], `lists` as many items as `cuda_cut` says.
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
    of_products: Option<ProductMemory>,
    scores: DeviceArray,
    ids: DeviceArray,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    let (queries, dtype) = (call.inputs.mu1.rows as usize, arrays[0].dtype());
    let (k, out) = ranked(dtype, queries, &scores, &ids)?;
    let mut cut = call.cut(k, pruning(prune)?)?;
    let (parts_of, at_a_time, listed) = match &cut {
        Cut::All(tiling) => (tiling.shards, queries, tiling.listed),
        Cut::Products(blocks) => (blocks.shares, blocks.queries, 0),
    };
    let parts = memory_for(if parts_of > 1 { at_a_time * parts_of * k } else { 0 }, dtype, &parts)?;
    let lists = memory_for(listed, dtype, &lists)?;
    let sieve = match (&mut cut, &of_products) {
        (Cut::Products(blocks), Some(memory)) => Some(sieve_memory(&call, blocks, &arrays, memory)?),
        (Cut::Products(_), None) => {
            return Err(Error::Value(format!("{name}: a search needs memory for products")).into())
        }
        (Cut::All(_), _) => None,
    };
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.search(k, &cut, Workspace { parts, lists, sieve }, out) })?;
    Ok(())
}

/// The squared norms [N] of the rows of one or two sides, float32 of halves, less the mean of some rows `like` them if there are any; and
/// where there is memory for them, copies of rows, or rows of float32 as halves, multiplied by powers of two, and the reciprocals of these.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_norms(
    py: Python<'_>,
    at: At,
    rows: Vec<DeviceArray>,
    norms: Vec<DeviceArray>,
    copies: Vec<DeviceArray>,
    like: Option<DeviceArray>,
    narrow: Option<Halves>,
) -> PyResult<()> {
    let first = rows.first().ok_or_else(|| Error::Value("norms of no rows".into()))?;
    let stored = narrow.as_ref().map_or(first.dtype(), |[halves, _]| halves.dtype());
    let types = match stored {
        "float64" => Types::F64,
        "float32" => Types::F32,
        "float16" => Types::F32F16,
        "bfloat16" => Types::F32BF16,
        other => return Err(Error::Value(format!("norms of {other}")).into()),
    };
    ensure(rows.len() <= 2 && norms.len() == rows.len(), || "norms need one or two sides".into())?;
    let mut sides = Vec::new();
    for (i, (rows, norms)) in rows.iter().zip(&norms).enumerate() {
        let (matrix, copy) = (full(rows)?, copies.get(i));
        let fits = rows.dtype() == first.dtype() && norms.shape() == [matrix.rows as usize];
        ensure(fits && copy.is_none_or(|copy| copy.shape() == rows.shape()), || "norms need the shape [N]".into())?;
        let copies = copy.map_or(Ok(0), |copy| copy.address(types.name()))?;
        sides.push((matrix, norms.address(types.name())?, copies));
    }
    let like = match &like {
        Some(like) => {
            let fits = like.dtype() == first.dtype() && like.shape()[1..] == first.shape()[1..];
            ensure(fits, || "a mean needs rows of the same kind".into())?;
            full(like)?
        }
        None => DeviceMatrix::default(),
    };
    let narrow = match &narrow {
        None => None,
        Some([halves, powers]) => {
            let fits =
                first.dtype() == "float32" && halves.shape() == first.shape() && powers.shape() == norms[0].shape();
            ensure(fits, || "halves need the shape of the rows".into())?;
            Some([halves.address(stored)?, powers.address("float32")?])
        }
    };
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { products::norms(place(at), types, &sides, like, narrow) })?;
    Ok(())
}

/// Bytes of the scratch that gradients of all pairs [Q, G] take.
#[pyfunction]
pub fn cuda_scratch(queries: usize, gallery: usize) -> usize {
    Scratch::at(0, queries, gallery).size
}

/// The scratch of a call, in memory that has the size for it.
fn scratch(call: &Call, memory: &DeviceArray) -> Result<Scratch, Error> {
    let scratch = Scratch::at(memory.address("uint8")?, call.inputs.mu1.rows as usize, call.inputs.mu2.rows as usize);
    ensure(count(memory) >= scratch.size, || format!("gradients of all pairs need {} bytes", scratch.size))?;
    Ok(scratch)
}

/// The products of all pairs [Q, G] and the squared norms of both sides.
fn all_products(call: &Call, dtype: &str, products: &DeviceArray, norms: &[DeviceArray; 2]) -> Result<Products, Error> {
    let (queries, gallery) = (call.inputs.mu1.rows as usize, call.inputs.mu2.rows as usize);
    let fits = norms[0].shape() == [queries] && norms[1].shape() == [gallery];
    ensure(fits, || "products need the norms of both sides".into())?;
    let norms = [norms[0].address(dtype)?, norms[1].address(dtype)?];
    Ok(Products { data: products_of(call, dtype, products)?, stride: gallery, norms })
}

/// The address of the products of all pairs [Q, G].
fn products_of(call: &Call, dtype: &str, products: &DeviceArray) -> Result<u64, Error> {
    which(call, None, products)?;
    products.address(dtype)
}

/// Scores of all pairs [Q, G] from their inner products and the squared norms of both sides.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_scores_of_products(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    products: DeviceArray,
    norms: [DeviceArray; 2],
    out: DeviceArray,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    let dtype = arrays[0].dtype();
    let (products, out) = (all_products(&call, dtype, &products, &norms)?, products_of(&call, dtype, &out)?);
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.scores_of_products(products, out) })?;
    Ok(())
}

/// The parts of gradients of sum(weights * scores) of all pairs: factors [Q, G] of means, and in the scratch masks and sums, those of
/// gallery rows if `both` sides are wanted.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_weights_of_products(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    products: DeviceArray,
    norms: [DeviceArray; 2],
    weights: DeviceArray,
    factors: DeviceArray,
    memory: DeviceArray,
    both: bool,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    let dtype = arrays[0].dtype();
    let products = all_products(&call, dtype, &products, &norms)?;
    let (weights, factors) = (products_of(&call, dtype, &weights)?, products_of(&call, dtype, &factors)?);
    let scratch = scratch(&call, &memory)?;
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.weights_of_products(products, Weighted { weights, factors, scratch }, both) })?;
    Ok(())
}

/// Adds to the gradients of some sides, products of factors and rows, the sums of the scratch and the marked pairs. Beside each side's
/// gradients are its rows that were multiplied.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // arrays
pub fn cuda_add_to_products(
    py: Python<'_>,
    name: &str,
    at: At,
    arrays: FiveArrays,
    per_item: PerItem,
    weights: DeviceArray,
    memory: DeviceArray,
    sides: Vec<(usize, [DeviceArray; 3], DeviceArray)>,
) -> PyResult<()> {
    let call = call_with(name, at, &arrays, &per_item)?;
    which(&call, None, &weights)?;
    let (dtype, scratch) = (arrays[0].dtype(), scratch(&call, &memory)?);
    let mut gradients = Vec::new();
    for (side, out, rows) in &sides {
        ensure(*side < 2 && rows.shape() == arrays[2 * side].shape(), || format!("side is {side}"))?;
        let of_products = scratch.of_side(*side, rows.address(dtype)?);
        gradients.push(Gradients { side: *side, out: of_side(&arrays, *side, out)?, of_products });
    }
    let weights = weights.address(dtype)?;
    // SAFETY: as in `cuda_score`.
    py.detach(|| unsafe { call.backward(Which::Marked, &gradients, (0, 0), weights) })?;
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
