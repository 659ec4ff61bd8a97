//! The best `k` of a stream of scored items, in the order of all verbs: higher score first, then NaN; ties go to the lower id.

use crate::simd::Float;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A scored item; the *greatest* one is the worst, so that a max-heap gives up the worst first.
#[derive(Clone, Copy)]
struct Scored<T> {
    score: T,
    id: i64,
}

impl<T: Float> Ord for Scored<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.score, other.score);
        // NaN is worse than any number and ties with NaN; +0 and -0 tie, as numbers do.
        let by_score = b.partial_cmp(&a).unwrap_or_else(|| a.to_f64().is_nan().cmp(&b.to_f64().is_nan()));
        by_score.then(self.id.cmp(&other.id))
    }
}
impl<T: Float> PartialOrd for Scored<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T: Float> PartialEq for Scored<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T: Float> Eq for Scored<T> {}

/// The best `k` items seen so far.
pub struct TopK<T> {
    heap: BinaryHeap<Scored<T>>,
    k: usize,
}

impl<T: Float> TopK<T> {
    /// Keeps at most `k` items, `k >= 1`; memory for more than 64 is allocated as items come.
    pub fn new(k: usize) -> Self {
        TopK { heap: BinaryHeap::with_capacity(k.min(64)), k }
    }

    /// How many items it keeps.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Offers an item.
    #[inline]
    pub fn push(&mut self, score: T, id: i64) {
        let item = Scored { score, id };
        if self.heap.len() < self.k {
            self.heap.push(item);
        } else if let Some(mut worst) = self.heap.peek_mut() {
            if item < *worst {
                *worst = item;
            }
        }
    }

    /// The score that a later item must reach to be among the best: that of the worst item once there are `k` (-infinity if that
    /// is NaN), -infinity before. An item that ties with the worst takes its place if its id is lower.
    #[inline]
    pub fn threshold(&self) -> f64 {
        match self.heap.peek() {
            Some(worst) if self.heap.len() == self.k && !worst.score.to_f64().is_nan() => worst.score.to_f64(),
            _ => f64::NEG_INFINITY,
        }
    }

    /// Moves the items of `self` into `other`, which then holds the best of both.
    pub fn drain_into(mut self, other: &mut TopK<T>) {
        if other.heap.len() < self.heap.len() {
            std::mem::swap(&mut self.heap, &mut other.heap);
        }
        for item in self.heap {
            other.push(item.score, item.id);
        }
    }

    /// Writes the items best first; positions beyond the number of items get score -infinity and id -1.
    pub fn write(self, scores: &mut [T], ids: &mut [i64]) {
        scores.fill(T::from_f64(f64::NEG_INFINITY));
        ids.fill(-1);
        let mut items = self.heap.into_vec();
        items.sort_unstable();
        for (place, item) in items.into_iter().enumerate() {
            scores[place] = item.score;
            ids[place] = item.id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TopK;
    use proptest::prelude::*;

    fn best(k: usize, items: &[(f64, i64)]) -> (Vec<f64>, Vec<i64>) {
        let mut top = TopK::new(k);
        for &(score, id) in items {
            top.push(score, id);
        }
        let (mut scores, mut ids) = (vec![0.0; k], vec![0; k]);
        top.write(&mut scores, &mut ids);
        (scores, ids)
    }

    #[test]
    fn order_is_score_then_nan_then_padding_with_ties_to_the_lower_id() {
        let items =
            [(1.0, 7), (f64::NAN, 0), (2.0, 5), (1.0, 3), (-0.0, 9), (0.0, 8), (f64::NEG_INFINITY, 4), (f64::NAN, 1)];
        let (scores, ids) = best(9, &items);
        assert_eq!(ids, [5, 3, 7, 8, 9, 4, 0, 1, -1]);
        assert!(scores[6].is_nan() && scores[7].is_nan() && scores[8] == f64::NEG_INFINITY);
        for k in 1..=8 {
            assert_eq!(best(k, &items).1, ids[..k], "the best {k} are the first {k} of the best 9");
        }
    }

    /// Few different scores, so that many tie.
    fn score() -> impl Strategy<Value = f64> {
        prop_oneof![
            (-2i8..3).prop_map(f64::from),
            Just(f64::NAN),
            Just(-0.0),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY)
        ]
    }

    proptest! {
        /// Whatever their order, and however they are dealt out to threads before these are merged.
        #[test]
        fn the_best_are_the_first_of_all_that_are_sorted(
            scores in prop::collection::vec((score(), 0usize..4), 0..60),
            backwards in any::<bool>(),
            k in 1usize..20,
        ) {
            let mut sorted: Vec<(f64, i64)> = scores.iter().enumerate().map(|(id, x)| (x.0, id as i64)).collect();
            // A stable sort, so that ties stay in the order of ids.
            sorted.sort_by(|a, b| a.0.is_nan().cmp(&b.0.is_nan()).then(b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal)));
            let mut threads = [(); 4].map(|()| TopK::new(k));
            for i in 0..scores.len() {
                let i = if backwards { scores.len() - 1 - i } else { i };
                threads[scores[i].1].push(scores[i].0, i as i64);
            }
            let [mut first, others @ ..] = threads;
            for other in others {
                other.drain_into(&mut first);
            }
            let expected_threshold = match sorted.get(k - 1) {
                Some(&(score, _)) if !score.is_nan() => score,
                _ => f64::NEG_INFINITY,
            };
            prop_assert_eq!(first.threshold(), expected_threshold);
            let (mut found, mut ids) = (vec![0.0; k], vec![0; k]);
            first.write(&mut found, &mut ids);
            sorted.resize(sorted.len().max(k), (f64::NEG_INFINITY, -1));
            for (place, &(score, id)) in sorted[..k].iter().enumerate() {
                prop_assert_eq!(ids[place], id);
                prop_assert!(found[place] == score || (found[place].is_nan() && score.is_nan()));
            }
        }
    }
}
