//! The rows that may be among a query's best, while a search goes on.

use super::formulas::{scored, Formula, Query};
use super::lengths::in_range;
use super::Pair;
use crate::codes::Product;
use crate::drivers::{DynKernel, Found, Rows};
use crate::memory;
use crate::simd::{Float, Kernel, Simd, V};
use crate::topk::TopK;

/// Rows that may be among a query's best.
pub struct Pool<T> {
    k: usize,
    /// The least score that is among the best.
    pub threshold: f64,
    /// Rows that passed the first sieve.
    passed: Vec<Passed>,
    /// Rows that passed the second sieve, too.
    bounded: Vec<Bounded>,
    /// Rows whose scores are known.
    pub top: TopK<T>,
}

/// A row that passed the first sieve: squared distance or inner product as a product of matrices or of codes finds it, how far it
/// may lie from that of the row, but for roundings, squared norm and uncertainty.
pub struct Passed {
    pub x: f64,
    pub within: f64,
    pub norm: f64,
    pub uncertainty: f64,
    pub row: usize,
}

/// A row whose score is known to lie between two numbers; NaN counts as more than all numbers.
struct Bounded {
    least: f64,
    most: f64,
    row: usize,
}

/// A row as the second sieve takes it; None where its codes say nothing, or its length and that of the query are not those that
/// the score divides by.
pub fn passed<T: Float, F: Formula>(query: &Query, product: &Product, row: usize) -> Option<Passed> {
    let Product { x, within, norm, number: uncertainty } = *product;
    if !(within < f64::INFINITY) {
        return None;
    }
    if F::DIFFERENCE {
        return Some(Passed { x: query.norm + norm - 2.0 * x, within: 2.0 * within, norm, uncertainty, row });
    }
    if !(in_range::<T>(query.norm) && in_range::<T>(norm)) {
        return None;
    }
    let largest = query.norm.sqrt() * norm.sqrt(); // the product of the squares could leave the range
    let (least, most) = ((x - within).max(-largest), (x + within).min(largest));
    Some(Passed { x: 0.5 * (least + most), within: 0.5 * (most - least), norm, uncertainty, row })
}

/// Rows that go through the second sieve together.
pub const WEIGHED: usize = 32;

impl<T: Float> Found for Pool<T> {
    fn new(k: usize) -> Self {
        let (threshold, passed, bounded) = (f64::NEG_INFINITY, Vec::new(), Vec::new());
        Pool { k, threshold, passed, bounded, top: TopK::new(k) }
    }
    fn threshold(&self) -> f64 {
        self.threshold
    }
    fn merge_into(self, other: &mut Self) {
        memory::reserve(&mut other.bounded, self.bounded.len());
        other.bounded.extend(self.bounded);
        self.top.drain_into(&mut other.top);
        other.threshold = other.threshold.max(self.threshold).max(lowered::<T>(other.top.threshold()));
        other.narrow();
    }
}

impl<T: Float> Pool<T> {
    /// Adds a row that passed the first sieve; returns whether enough rows wait for the second one.
    pub fn push(&mut self, row: Passed) -> bool {
        self.passed.push(row);
        self.passed.len() == WEIGHED
    }

    /// Adds a row of whose score nothing is known.
    pub fn keep(&mut self, row: usize) {
        memory::push(&mut self.bounded, Bounded { least: f64::NEG_INFINITY, most: f64::NAN, row });
    }

    /// How many rows passed the second sieve.
    pub fn len(&self) -> usize {
        self.bounded.len()
    }

    /// Once there are many rows, drops those that cannot be among the best. If too many are left, near-duplicates or NaN that
    /// their bounds cannot tell apart, scores them; returns how many.
    pub fn tidy(&mut self, score: &dyn DynKernel<T>, query: usize) -> usize {
        if self.bounded.len() < 2 * self.k + WEIGHED {
            return 0;
        }
        self.narrow();
        if self.bounded.len() < self.k + self.k / 2 + WEIGHED / 2 {
            return 0;
        }
        self.settle(score, query)
    }

    /// Raises the threshold to what the lower bounds give, and drops rows whose upper bound is below it.
    pub fn narrow(&mut self) {
        if self.bounded.len() >= self.k {
            let (_, last, _) = self.bounded.select_nth_unstable_by(self.k - 1, |a, b| b.least.total_cmp(&a.least));
            self.threshold = self.threshold.max(lowered::<T>(last.least));
        }
        self.bounded.retain(|row| !(row.most < self.threshold));
    }

    /// Scores the rows that passed the second sieve, those with the greatest upper bounds first: others may be dropped unread. Returns
    /// how many were scored.
    pub fn settle(&mut self, score: &dyn DynKernel<T>, query: usize) -> usize {
        let (mut rows, mut count, mut scores) = (std::mem::take(&mut self.bounded), 0, [T::default(); WEIGHED]);
        if rows.len() > self.k {
            rows.select_nth_unstable_by(self.k, |a, b| b.most.total_cmp(&a.most));
        }
        for rows in rows.chunks(WEIGHED) {
            let reach = rows.iter().filter(|row| !(row.most < self.threshold)).map(|row| row.row);
            let mut rows: Vec<usize> = reach.collect();
            rows.sort_unstable();
            let scores = &mut scores[..rows.len()];
            score.score(Rows::Same(query), Rows::List(&rows), scores, &mut []);
            for (&row, &score) in rows.iter().zip(scores.iter()) {
                self.top.push(score, row as i64);
            }
            self.threshold = self.threshold.max(lowered::<T>(self.top.threshold()));
            count += rows.len();
        }
        count
    }
}

/// A threshold as scores hold it, in which all that overflow tie, less one rounding: a score may have been rounded up to the
/// threshold and win a tie there. Among subnormal numbers and at 0 a rounding is not relative, but up to half the smallest number.
/// Of infinity it is NaN, by which no threshold rises.
fn lowered<T: Float>(threshold: f64) -> f64 {
    let threshold = T::from_f64(threshold).to_f64();
    threshold - 2.0 * T::ROUNDOFF * threshold.abs() - T::SMALLEST
}

/// The second sieve: moves the rows that may reach the threshold to `bounded`, with bounds on their scores.
pub struct Weigh<'a, T, F> {
    pub formula: &'a F,
    pub query: Query,
    pub pool: &'a mut Pool<T>,
    pub slack: f64,
    pub smallest: f64,
}
impl<T: Float, F: Formula> Kernel for Weigh<'_, T, F> {
    const LANES_MEET: bool = false;
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let load = V::<S, f64>::load;
        let Pool { threshold, passed, bounded, .. } = self.pool;
        for rows in passed.chunks(V::<S, f64>::LANES) {
            let [mut x, mut within, mut norms, mut uncertainties] = [[0.0; f64::LANES]; 4];
            for (lane, row) in rows.iter().enumerate() {
                (x[lane], within[lane]) = (row.x, row.within);
                (norms[lane], uncertainties[lane]) = (row.norm, row.uncertainty);
            }
            let norms = (V::<S, f64>::from(self.query.norm), load(&norms));
            let uncertainties = (V::<S, f64>::from(self.query.uncertainty), load(&uncertainties));
            let (x, within, slack) = (load(&x), load(&within), self.slack * (norms.0 + norms.1));
            let (best, worst) = if F::DIFFERENCE {
                let slack = slack + (within + self.smallest);
                // A squared distance is never negative, so neither need its lower bound be.
                ((x - slack).max(0.0), x + slack)
            } else {
                let slack = slack.mul_add(0.5, within + self.smallest);
                (x + slack, x - slack)
            };
            let per_item = (
                self.formula.per_item::<S>(uncertainties.0, norms.0),
                self.formula.per_item::<S>(uncertainties.1, norms.1),
            );
            let pair = Pair { x: best, norms, uncertainties, per_item };
            let tolerance = self.formula.tolerance::<S>(&pair);
            let most = scored::<S, F>(self.formula, pair) + tolerance;
            let bits = most.not_less_bits(*threshold);
            if bits == 0 {
                continue;
            }
            let least = scored::<S, F>(self.formula, Pair { x: worst, ..pair }) - tolerance;
            let (least, most) = (least.to_array(), most.to_array());
            for (lane, row) in rows.iter().enumerate().filter(|(lane, _)| bits >> lane & 1 == 1) {
                // There is no lower bound where the panels or the pair function may overflow.
                let range = T::from_f64(2.0 * (self.query.norm + row.norm)).to_f64();
                let known = range < f64::INFINITY && !least[lane].is_nan();
                let least = if known { least[lane] } else { f64::NEG_INFINITY };
                memory::push(bounded, Bounded { least, most: most[lane], row: row.row });
            }
        }
        passed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounded, Pool};
    use crate::drivers::Found;
    use proptest::prelude::*;

    /// A score, which may overflow an f32, and bounds that it lies between; none where the third number says so.
    fn bounded() -> impl Strategy<Value = (f64, f64, f64, bool, usize)> {
        let edges = vec![f64::from(f32::MIN_POSITIVE), 0.0, -1e40, -2e40, -3.5e38, -3.4e38, 1e40, 2e40];
        let score = prop_oneof![(-3i8..4).prop_map(f64::from), -1e3..1e3, prop::sample::select(edges)];
        (score, 0f64..2.0, 0f64..2.0, prop::bool::weighted(0.1), 0usize..3)
    }

    proptest! {
        /// The sieve that lists are narrowed by, in threads whose lists are merged.
        #[test]
        fn no_row_among_the_best_is_dropped(rows in prop::collection::vec(bounded(), 1..80), k in 1usize..12, often in 1usize..9) {
            let mut threads = [(); 3].map(|()| Pool::<f32>::new(k));
            for (row, &(score, below, above, unknown, thread)) in rows.iter().enumerate() {
                let (least, most) = if unknown { (f64::NEG_INFINITY, f64::NAN) } else { (score - below, score + above) };
                let pool = &mut threads[thread];
                if !(most < pool.threshold) {
                    pool.bounded.push(Bounded { least, most, row });
                }
                if row % often == 0 {
                    pool.narrow();
                }
            }
            let [mut all, others @ ..] = threads;
            for other in others {
                other.merge_into(&mut all);
            }
            all.narrow();
            let mut sorted: Vec<(f32, usize)> = rows.iter().enumerate().map(|(row, x)| (x.0 as f32, row)).collect();
            sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            for &(score, row) in sorted.iter().take(k) {
                prop_assert!(all.bounded.iter().any(|x| x.row == row), "row {} with score {}", row, score);
            }
            if let Some(last) = sorted.get(k - 1) {
                prop_assert!(all.threshold <= f64::from(last.0));
            }
        }
    }
}
