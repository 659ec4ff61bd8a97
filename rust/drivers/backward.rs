//! Gradients of scores as sums over pairs, once for each query and once for each gallery row.

use super::{pieces, tiles, DynKernel, Gradient, Lists, Pairs, Rows, Side, BLOCK};
use crate::error::Error;
use crate::memory;
use crate::parallel;
use crate::simd::Float;

/// Gradients of all inputs, as contiguous arrays of the inputs' own (stored) shapes. Their former contents do not matter: a
/// part of them is set to zero just before gradients are added to it, so that it is in the cache by then.
pub struct Gradients<'a, T> {
    /// Gradients with respect to `mu1` [Q, D] and `uncertainty1` [Q, 1] or [Q, D].
    pub query: (&'a mut [T], &'a mut [T]),
    /// Gradients with respect to `mu2` [G, D] and `uncertainty2` [G, 1] or [G, D].
    pub gallery: (&'a mut [T], &'a mut [T]),
    /// Gradient with respect to `shared`.
    pub shared: &'a mut [T],
    /// Which of these are wanted; each of the others is 0, or right.
    pub wanted: Wanted,
}

/// Which gradients are wanted.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Whether gradients with respect to the queries are.
    pub query: bool,
    /// Whether gradients with respect to the gallery are.
    pub gallery: bool,
    /// Whether the gradient with respect to the shared row is.
    pub shared: bool,
    /// Whether the gallery is the queries themselves, and the gradients with respect to the queries are to hold those with respect to
    /// the gallery too: of all pairs, by a score that is the same when the two items change places.
    pub together: bool,
}

/// Adds the gradient of item `row` of one side over its pairs: the rows `others` of the other side, the pairs' positions among
/// the scores and their weights.
fn add_gradient<T: Float>(
    pair: &dyn DynKernel<T>,
    side: Side,
    row: usize,
    others: Rows,
    places: &[usize],
    weights: &[T],
    out: &mut Gradient<T>,
) {
    for (block, (weights, places)) in weights.chunks(BLOCK).zip(places.chunks(BLOCK)).enumerate() {
        let others = others.part(block * BLOCK, weights.len());
        let pairs = if side == Side::Query { (Rows::Same(row), others) } else { (others, Rows::Same(row)) };
        pair.backward(side, pairs, places, weights, out);
    }
}

/// The listed pairs by gallery row: entries `starts[j] .. starts[j + 1]` are the queries that list row `j`, and these pairs'
/// positions among the scores.
struct Inverse {
    starts: Vec<usize>,
    queries: Vec<usize>,
    places: Vec<usize>,
}

impl Inverse {
    fn new(lists: &Lists) -> Self {
        let mut starts = memory::filled(0, lists.gallery + 1);
        // Read once: what is counted must be what is sorted.
        let listed = memory::collected((0..lists.ids.rows()).map(|query| lists.of_query(query)));
        listed.iter().flat_map(|(rows, _)| rows).for_each(|row| starts[row + 1] += 1);
        for j in 0..lists.gallery {
            starts[j + 1] += starts[j];
        }
        let (mut next, total) = (memory::collected(starts.iter().copied()), starts[lists.gallery]);
        let (mut queries, mut places) = (memory::filled(0, total), memory::filled(0, total));
        for (query, (rows, its_places)) in listed.iter().enumerate() {
            for (&row, place) in rows.iter().zip(its_places) {
                let at = &mut next[row];
                (queries[*at], places[*at]) = (query, query * lists.ids.stored() + place);
                *at += 1;
            }
        }
        Inverse { starts, queries, places }
    }
}

/// Items whose shares of the shared row's gradient are added up together: fixed, which fixes the order of summation.
const SHARED_BLOCK: usize = 64;

/// Gradients of sum(weights * scores) with respect to the inputs. `weights` has the shape of the scores.
pub fn backward<T: Float>(
    pair: &dyn DynKernel<T>,
    op: &str,
    pairs: Pairs,
    weights: &[T],
    mut out: Gradients<T>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let inputs = pair.inputs();
    let shared = if out.wanted.shared { out.shared.len() } else { 0 };
    out.shared.fill(T::default());
    let nothing = inputs.dim() == 0 || weights.is_empty();
    // The gradient of the shared row is found along with that of the queries.
    let rows = out.wanted.query || shared > 0;
    for ((mu, uncertainty), found) in [(&mut out.query, rows), (&mut out.gallery, out.wanted.gallery)] {
        if nothing || !found {
            mu.fill(T::default());
            uncertainty.fill(T::default());
        }
    }
    if nothing {
        return Ok(());
    }
    let candidates = match pairs {
        Pairs::Paired => return tiles::backward_paired(pair, weights, out, interrupted),
        Pairs::Pairwise => return tiles::backward(pair, weights, out, interrupted),
        Pairs::Candidates(candidates) => candidates,
    };
    let lists = Lists::new(op, candidates, inputs.mu2.rows())?;
    add_queries(pair, &lists, weights, (out.query, rows), &mut out.shared[..shared], interrupted)?;
    if out.wanted.gallery {
        add_gallery(pair, &lists, weights, out.gallery, interrupted)?;
    }
    lists.unchanged()
}

/// Writes the gradients of the queries over their candidates, if they are found, and adds that of the shared row.
fn add_queries<T: Float>(
    pair: &dyn DynKernel<T>,
    lists: &Lists,
    weights: &[T],
    (query, found): ((&mut [T], &mut [T]), bool),
    by_shared: &mut [T],
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let (inputs, shared) = (pair.inputs(), by_shared.len());
    let mut partial = memory::filled(T::default(), shared * inputs.mu1.rows().div_ceil(SHARED_BLOCK));
    let mut share = pieces(&mut partial, shared);
    let parts = split(query, inputs.dim(), inputs.uncertainty1.stored(), SHARED_BLOCK);
    let parts = parts.take(if found { usize::MAX } else { 0 }).map(move |part| (part, share()));
    parallel::for_each(parts, interrupted, |((first, mu, uncertainty), shared)| {
        mu.fill(T::default());
        uncertainty.fill(T::default());
        let rows = mu.chunks_mut(inputs.dim()).zip(uncertainty.chunks_mut(inputs.uncertainty1.stored()));
        for (i, (mu, uncertainty)) in (first..).zip(rows) {
            let mut out = Gradient { mu, uncertainty, shared: &mut *shared };
            let (ids, mut places) = lists.of_query(i);
            places.iter_mut().for_each(|place| *place += i * lists.ids.stored());
            let weights = memory::collected(places.iter().map(|&place| weights[place]));
            add_gradient(pair, Side::Query, i, Rows::List(&ids), &places, &weights, &mut out);
        }
    })?;
    for part in partial.chunks(shared.max(1)).filter(|_| shared > 0) {
        by_shared.iter_mut().zip(part).for_each(|(sum, x)| *sum = *sum + *x);
    }
    Ok(())
}

/// Writes the gradients of the gallery's rows over the queries that name them.
fn add_gallery<T: Float>(
    pair: &dyn DynKernel<T>,
    lists: &Lists,
    weights: &[T],
    gallery: (&mut [T], &mut [T]),
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let inputs = pair.inputs();
    let inverse = Inverse::new(lists);
    let gallery_parts = split(gallery, inputs.dim(), inputs.uncertainty2.stored(), SHARED_BLOCK);
    parallel::for_each(gallery_parts, interrupted, |(first, mu, uncertainty)| {
        mu.fill(T::default());
        uncertainty.fill(T::default());
        let rows = mu.chunks_mut(inputs.dim()).zip(uncertainty.chunks_mut(inputs.uncertainty2.stored()));
        for (j, (mu, uncertainty)) in (first..).zip(rows) {
            let mut out = Gradient { mu, uncertainty, shared: &mut [] };
            let entries = inverse.starts[j]..inverse.starts[j + 1];
            let places = &inverse.places[entries.clone()];
            let weights = memory::collected(places.iter().map(|&place| weights[place]));
            let list = Rows::List(&inverse.queries[entries]);
            add_gradient(pair, Side::Gallery, j, list, places, &weights, &mut out);
        }
    })
}

/// First row of a part and its slices of the two arrays, mu and uncertainty.
type Part<'a, T> = (usize, &'a mut [T], &'a mut [T]);

fn split<'a, T>(
    (mu, uncertainty): (&'a mut [T], &'a mut [T]),
    dim: usize,
    stored: usize,
    rows: usize,
) -> impl ExactSizeIterator<Item = Part<'a, T>> {
    let parts = mu.chunks_mut(rows * dim).zip(uncertainty.chunks_mut(rows * stored.max(1)));
    parts.enumerate().map(move |(part, (mu, uncertainty))| (part * rows, mu, uncertainty))
}
