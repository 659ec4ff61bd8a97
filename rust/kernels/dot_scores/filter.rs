//! Exact search that computes few exact scores: inner products of register tiles rule out the rest.

use super::formulas::{Group, Query};
use super::{sq_norms, DotScore, Formula, Pair};
use crate::error::Error;
use crate::panels::{self, Epilogue, QueryTiles};
use crate::shapes::{self, Best, PairScore, Rows};
use crate::simd::{dispatch, Float, Kernel, Lanes, Simd, V};
use crate::topk::TopK;
use crate::view::Matrix;
use std::ops::Range;

/// The best `k` rows of every query, found by inner products of panels and scored by the pair function.
pub fn search<T: Float, F: Formula>(score: &DotScore<T, F>, best: Best<T>) -> Result<usize, Error> {
    let (queries, gallery, dim) = (score.inputs.mu1.rows(), score.inputs.mu2.rows(), score.inputs.mu1.stored());
    // Few queries do not pay for packing the rows.
    if !F::SIEVED || dim == 0 || (queries < 4 && score.packed.is_none()) {
        return shapes::search(score, best);
    }
    let group = panels::padded::<T>(shapes::segment(dim));
    shapes::search_by_shards(queries, gallery, 1024, group, best, &|queries, rows, floors, tops| {
        scan(score, queries, rows, group, floors, tops)
    })
}

/// Queries from which on it pays to sort a gallery that is not prepared: a row takes some 60 ns, and saves some 5 ns a query.
const SORTED: usize = 32;

/// Rows that are sorted at once: few enough for the second-level cache.
const STRETCH: usize = 1 << 16;

/// Rows in the order they are looked at: by their extras, as [`Packed`] has them, if there are queries enough.
fn in_order<T: Float>(extras: &Matrix<T>, queries: usize, rows: Range<usize>) -> Vec<i64> {
    if queries < SORTED || extras.stored() == 0 {
        return (rows.start as i64..rows.end as i64).collect();
    }
    let mut keyed: Vec<_> = rows.map(|row| (extras.first(row), row as i64)).collect();
    keyed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    keyed.into_iter().map(|(_, row)| row).collect()
}

/// One task of a search: a block of queries over a shard of the gallery, a group of rows at a time.
fn scan<T: Float, F: Formula>(
    score: &DotScore<T, F>,
    queries: Range<usize>,
    rows: Range<usize>,
    group: usize,
    floors: &[f64],
    tops: &mut [TopK<T>],
) -> usize {
    let inputs = &score.inputs;
    let dim = inputs.mu1.stored();
    let tiles = QueryTiles::new(&inputs.mu1, queries.clone());
    let mut norms = vec![T::default(); group.max(queries.len())];
    sq_norms(&Matrix::Full(inputs.mu1), queries.clone(), &mut norms[..queries.len()]);
    let query = |(i, norm): (usize, &T)| Query {
        norm: norm.to_f64(),
        extra: inputs.extra1.row(i)[0].to_f64(),
        ..Query::default()
    };
    let mut filter = Filter {
        score,
        first_query: queries.start,
        queries: queries.clone().zip(&norms).map(query).collect(),
        floors,
        thresholds: floors.iter().map(|&floor| lowered::<T>(floor)).collect(),
        // Beyond the last query there is nothing to reach.
        limits: vec![T::from_f64(f64::INFINITY); tiles.padded()],
        tops,
        slack: slack::<T>(dim),
        smallest: (6 * dim + 20) as f64 * T::SMALLEST,
        scored: 0,
        group: NO_ROWS,
        ids: Vec::with_capacity(group),
        norms: vec![0.0; group],
        extras: vec![0.0; group],
    };
    let (mut buffer, mut starts) = (Vec::new(), vec![T::default(); group]);
    for stretch in rows.clone().step_by(STRETCH).map(|first| first..(first + STRETCH).min(rows.end)) {
        let sorted;
        let order = match &score.packed {
            Some(packed) => &packed.order[stretch.clone()],
            None => {
                sorted = in_order(&inputs.extra2, queries.len(), stretch.clone());
                &sorted[..]
            }
        };
        for (order, first) in order.chunks(group).zip(stretch.step_by(group)) {
            if score.packed.is_none() {
                sq_norms(&inputs.mu2, order.iter().map(|&row| row as usize), &mut norms[..order.len()]);
            }
            filter.enter(order, &norms);
            for (start, norm) in starts.iter_mut().zip(&filter.norms) {
                *start = T::from_f64(if F::DIFFERENCE { -0.5 * filter.group.share * norm } else { 0.0 });
            }
            let size = panels::padded::<T>(order.len()) * dim;
            let packed = match &score.packed {
                Some(packed) => &packed.panels[first * dim..][..size],
                None => {
                    buffer.resize(size, T::default());
                    panels::pack(&inputs.mu2, 0..order.len(), |place| order[place] as usize, &mut buffer);
                    &buffer
                }
            };
            panels::products(&tiles, packed, &starts, &mut filter);
        }
    }
    filter.scored
}

/// Bound, relative to |a|^2 + |b|^2, on how far the squared distance (twice the inner product) that the pair function finds
/// may lie from the one got by the panels' inner products.
///
/// With unit roundoff u and n = |a|^2 + |b|^2 (so |a| |b| <= n/2): the panels' sum of D products and a start of at most |b|^2/2
/// errs by at most (D + 1) u (|a||b| + |b|^2/2) <= (D + 1) u n, twice that is (2 D + 2) u n; a norm is summed over at most D/L +
/// log2 L + 3 roundings of a relative u each (fewer, as four chains share them); the pair function's sum errs by at most (D/L +
/// log2 L + 5) u x with x <= 2 n, or (D/L + log2 L + 3) u |a||b|. Together below (2 D + 3 D/L + 26) u n for L = 8 or 16; the
/// factor 1.01 covers the terms in u^2 (D u < 0.01) and the norms' own rounding. Where products are subnormal, each of the at
/// most 6 D + 20 roundings errs by up to half the smallest number instead, which [`Filter`] takes off as well.
fn slack<T: Float>(dim: usize) -> f64 {
    let (dim, lanes) = (dim as f64, T::LANES as f64);
    1.01 * (2.0 * dim + 3.0 * dim / lanes + 26.0) * T::ROUNDOFF
}

/// Keeps the rows whose score may reach the query's threshold and scores them by the pair function.
///
/// Two sieves. The first one compares a panel's inner products, less each row's share of its squared norm, with one number per
/// query and group of rows, got from [`Formula::bound`]: where the rows of a group have much the same extra, hardly any pair
/// passes that is not among the best. The second one is the formula itself on what is left.
///
/// Proof that no row is lost by the second: let x be what the pair function finds and y what the panels find, moved by the
/// slack to the side of higher scores, so y <= x (y >= x for inner products). The pair function's score is `T(value(x, ...))`; the
/// filter compares with `value(y, ...)`, the same float64 operations on the same other numbers. It is monotone in x as rounded,
/// but for [`Formula::tolerance`], and so is the rounding to T, hence `T(value(y)) >= T(value(x))`, and a row whose `T(value(y))`
/// is below the threshold cannot be among the best. By the first: a row that can reach the threshold has x within the bound, so
/// y too, and the limit is the inner product at which y is the bound, rounded down. A NaN passes both, but rows whose norm or
/// extra is NaN do not count in a group: a score that is NaN is not among the best while there is a threshold.
struct Filter<'a, 'b, T, F> {
    score: &'a DotScore<'b, T, F>,
    first_query: usize,
    queries: Vec<Query>,
    floors: &'a [f64],
    thresholds: Vec<f64>,
    /// What an inner product must reach in the group at hand.
    limits: Vec<T>,
    tops: &'a mut [TopK<T>],
    slack: f64,
    smallest: f64,
    /// Pairs scored so far.
    scored: usize,
    /// The rows at hand: what bounds them all, and each.
    group: Group,
    ids: Vec<usize>,
    norms: Vec<f64>,
    extras: Vec<f64>,
}

/// One rounding below: a score may have been rounded up to the threshold and win a tie there. Among subnormal numbers and at 0
/// a rounding is not relative, but up to half the smallest number.
fn lowered<T: Float>(threshold: f64) -> f64 {
    threshold - 2.0 * T::ROUNDOFF * threshold.abs() - T::SMALLEST
}

const NO_ROWS: Group = Group {
    norms: (f64::INFINITY, f64::NEG_INFINITY),
    extras: (f64::INFINITY, f64::NEG_INFINITY),
    share: 1.0,
    own: [0.0; 2],
};

impl<T: Float, F: Formula> Epilogue<T> for Filter<'_, '_, T, F> {
    #[inline(always)]
    fn limits(&self) -> &[T] {
        &self.limits
    }

    fn visit(&mut self, query: usize, panel: usize, dots: &[T; 16]) {
        // Beyond the last query stand zeros, whose product with a NaN is not below anything.
        if query < self.queries.len() {
            self.sift(query, panel, dots);
        }
    }
}

impl<T: Float, F: Formula> Filter<'_, '_, T, F> {
    /// Takes these rows as the group at hand; `norms` are theirs, unless they are kept with the panels.
    fn enter(&mut self, rows: &[i64], norms: &[T]) {
        let packed = &self.score.packed;
        self.ids.clear();
        self.ids.extend(rows.iter().map(|&row| row as usize));
        self.group = NO_ROWS;
        for (place, &row) in self.ids.iter().enumerate() {
            let norm = packed.map_or(norms[place], |packed| packed.norms[row]).to_f64();
            let extra = self.score.inputs.extra2.first(row);
            (self.norms[place], self.extras[place]) = (norm, extra);
            // The least and greatest of two numbers, one of which may be NaN.
            self.group.norms = (self.group.norms.0.min(norm), self.group.norms.1.max(norm));
            self.group.extras = (self.group.extras.0.min(extra.max(0.0)), self.group.extras.1.max(extra));
        }
        // Beyond the last row there is nothing to find.
        self.norms[self.ids.len()..].fill(f64::INFINITY);
        dispatch(Enter { formula: &self.score.formula, group: &mut self.group });
        for query in 0..self.queries.len() {
            self.set_limit(query);
        }
    }

    fn set_limit(&mut self, query: usize) {
        let limit = if self.thresholds[query] == f64::NEG_INFINITY {
            f64::NEG_INFINITY
        } else {
            let (own, group) = (&mut self.queries[query], &self.group);
            let threshold = self.thresholds[query];
            let bound = dispatch(Bound { formula: &self.score.formula, threshold, own: &mut *own, group });
            let both = own.norm + self.group.norms.1;
            let limit = if F::DIFFERENCE {
                0.5 * (own.norm - bound - self.slack * both - self.smallest)
            } else {
                bound - 0.5 * self.slack * both - self.smallest
            };
            // The roundings up to here and that to T.
            limit - 2.0 * T::ROUNDOFF * limit.abs() - 1e-15 * (both + bound.abs())
        };
        self.limits[query] = T::from_f64(if limit.is_nan() { f64::NEG_INFINITY } else { limit });
    }

    /// The second sieve.
    #[inline(never)]
    fn sift(&mut self, query: usize, panel: usize, dots: &[T; 16]) {
        let mut rows = [0; 16];
        let mut n = 0;
        let first = panel * T::LANES;
        for at in (first..first + T::LANES).step_by(f64::LANES) {
            let dots = &dots[at - first..][..f64::LANES];
            if dots.iter().all(|&dot| dot < self.limits[query]) {
                continue;
            }
            let passing = Passing {
                formula: &self.score.formula,
                query: self.queries[query],
                threshold: self.thresholds[query],
                dots: std::array::from_fn(|lane| dots[lane].to_f64()),
                norms: &self.norms[at..at + f64::LANES],
                extras: &self.extras[at..at + f64::LANES],
                share: self.group.share,
                slack: self.slack,
                smallest: self.smallest,
            };
            let bits = dispatch(passing);
            for lane in (0..f64::LANES).filter(|lane| bits >> lane & 1 == 1) {
                if !(dots[lane] < self.limits[query]) && at + lane < self.ids.len() {
                    rows[n] = self.ids[at + lane];
                    n += 1;
                }
            }
        }
        if n == 0 {
            return;
        }
        let mut scores = [T::default(); 16];
        PairScore::score(self.score, Rows::Same(self.first_query + query), Rows::List(&rows[..n]), &mut scores[..n]);
        self.scored += n;
        let top = &mut self.tops[query];
        for (&row, &score) in rows[..n].iter().zip(&scores) {
            top.push(score, row as i64);
        }
        let threshold = lowered::<T>(top.threshold().max(self.floors[query]));
        if threshold != self.thresholds[query] {
            self.thresholds[query] = threshold;
            self.set_limit(query);
        }
    }
}

/// [`Formula::group`]; a dispatch of its own, as are the next two, so that it is compiled once for all types of rows.
struct Enter<'a, F> {
    formula: &'a F,
    group: &'a mut Group,
}
impl<F: Formula> Kernel for Enter<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        self.formula.group::<S>(self.group);
    }
}

/// [`Formula::bound`].
struct Bound<'a, F> {
    formula: &'a F,
    threshold: f64,
    own: &'a mut Query,
    group: &'a Group,
}
impl<F: Formula> Kernel for Bound<'_, F> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self) -> f64 {
        self.formula.bound::<S>(self.threshold, self.own, self.group)
    }
}

/// Which of eight rows may reach the threshold, as bits.
struct Passing<'a, F> {
    formula: &'a F,
    query: Query,
    threshold: f64,
    /// The panels' inner products, less the rows' share of their squared norms.
    dots: [f64; f64::LANES],
    norms: &'a [f64],
    extras: &'a [f64],
    share: f64,
    slack: f64,
    smallest: f64,
}
impl<F: Formula> Kernel for Passing<'_, F> {
    type Output = u32;
    #[inline(always)]
    fn run<S: Simd>(self) -> u32 {
        let splat = V::<S, f64>::splat;
        let dot = V::<S, f64>::load(&self.dots);
        let norms = (splat(self.query.norm), V::<S, f64>::load(self.norms));
        let extras = (splat(self.query.extra), V::<S, f64>::load(self.extras));
        let both = norms.0 + norms.1;
        let (slack, smallest) = (splat(self.slack), splat(self.smallest));
        let x = if F::DIFFERENCE {
            // A squared distance is never negative, so neither need its lower bound be.
            let own = norms.0 + splat(1.0 - self.share) * norms.1;
            (own - slack * both - (dot + dot) - smallest).max(splat(0.0))
        } else {
            (splat(0.5) * slack).mul_add(both, dot + smallest)
        };
        let pair = Pair { x, norms, extras };
        let value = self.formula.value::<S>(pair) + self.formula.tolerance::<S>(&pair);
        value.not_less_bits(splat(self.threshold))
    }
}
