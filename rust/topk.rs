//! The best `k` of a stream of scored items, in the order of all verbs: higher score first, then NaN; ties go to the lower id.

use crate::memory;
use crate::simd::Float;
use std::marker::PhantomData;

/// An item's place in that order, the least for the best item: what orders scores in the upper half; in the lower half the id, and
/// in the last bit whether the score is -0, which ties with 0.
type Rank = u128;

/// The rank of an item; ids are not negative.
#[inline]
fn rank<T: Float>(score: T, id: i64) -> Rank {
    let score = score.to_f64();
    // Among numbers of one sign, bits are in the order of sizes. The sum makes 0 of -0.
    let bits = (score + 0.0).to_bits();
    let descending = if score.is_nan() { u64::MAX } else { bits ^ if bits >> 63 == 1 { 0 } else { u64::MAX >> 1 } };
    let negative_zero = score == 0.0 && score.is_sign_negative();
    u128::from(descending) << 64 | u128::from((id as u64) << 1 | u64::from(negative_zero))
}

/// The score of a rank, but for the sign of a zero. All NaN are one.
#[inline]
fn number(rank: Rank) -> f64 {
    let descending = (rank >> 64) as u64;
    if descending == u64::MAX {
        return f64::NAN;
    }
    f64::from_bits(descending ^ if descending >> 63 == 1 { 0 } else { u64::MAX >> 1 })
}

/// The score and id of a rank.
#[inline]
fn scored<T: Float>(rank: Rank) -> (T, i64) {
    let score = if rank & 1 == 1 { -0.0 } else { number(rank) };
    (T::from_f64(score), (rank as u64 >> 1) as i64)
}

/// The least length of a list that counts as long.
const LONG: usize = 128;

/// Items that are sorted by comparisons alone.
const FEW: usize = 256;

/// Brings the best `k` items to the front, best first. Many items are dealt out to as many buckets, of equal ranges of scores, of
/// which those that hold the best are sorted.
fn sort_best(items: &mut Vec<Rank>, k: usize) {
    let all = items.len();
    if all < FEW {
        return items.sort_unstable();
    }
    let finite = items.iter().map(|&item| number(item)).filter(|x| x.is_finite());
    let (least, most) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (x.min(a), x.max(b)));
    let scale = (all - 1) as f64 / (most - least);
    let bucket = |&item: &Rank| {
        let x = number(item);
        // No step is falling, and what is no number becomes 0.
        let place = ((most - x) * scale) as usize;
        (if x.is_nan() { all - 1 } else { place.min(all - 1) }) as u32
    };
    let buckets: Vec<u32> = memory::collected(items.iter().map(bucket));
    let mut ends = memory::filled(0, all + 1);
    buckets.iter().for_each(|&bucket| ends[bucket as usize + 1] += 1);
    let (mut total, mut kept) = (0, 0);
    for count in &mut ends {
        total += *count;
        *count = total;
        kept += usize::from(total < k);
    }
    // Until items are dealt out, `ends` has where each bucket begins.
    kept = kept.min(all);
    let mut sorted = memory::filled(0, ends[kept]);
    for (&item, bucket) in items.iter().zip(buckets).filter(|(_, bucket)| (*bucket as usize) < kept) {
        let end = &mut ends[bucket as usize];
        sorted[*end] = item;
        *end += 1;
    }
    let mut first = 0;
    for &end in &ends[..kept] {
        sorted[first..end].sort_unstable();
        first = end;
    }
    *items = sorted;
}

/// The best `k` items seen so far, and some that were among the best before.
pub struct TopK<T> {
    k: usize,
    /// The items, of which there are fewer than [`TopK::room`].
    items: Vec<Rank>,
    /// The rank of the item that was the k-th best when items were last dropped; none is worse.
    worst: Rank,
    threshold: f64,
    scores: PhantomData<T>,
}

impl<T: Float> TopK<T> {
    /// Keeps at most `k` items, `k >= 1`; memory for more than 64 is allocated as items come.
    pub fn new(k: usize) -> Self {
        let items = Vec::with_capacity(Self::room(k).min(64));
        TopK { k, items, worst: Rank::MAX, threshold: f64::NEG_INFINITY, scores: PhantomData }
    }

    /// How many items there may be until those beyond the best k are dropped: the fewer, the sooner the threshold rises, and the
    /// more time an item takes. Of long lists an item takes more time than it saves by a higher threshold.
    fn room(k: usize) -> usize {
        k.saturating_add(k / if k < LONG { 8 } else { 2 } + 1)
    }

    /// Offers an item with an id that is not negative.
    #[inline]
    pub fn push(&mut self, score: T, id: i64) {
        self.take(rank(score, id));
    }

    /// Offers items with ids from `first` on, but for those that score below `floor`, and NaN if there is a floor.
    pub fn offer(&mut self, scores: &[T], first: i64, floor: f64) {
        let floor = if floor == f64::NEG_INFINITY { Rank::MAX } else { rank(T::from_f64(floor), i64::MAX >> 1) };
        let (mut end, bar) = (self.items.len(), self.worst.min(floor));
        memory::resize(&mut self.items, end + scores.len(), 0);
        // Without a branch, of which long lists would take either side by turns.
        for (id, &score) in (first..).zip(scores) {
            let item = rank(score, id);
            self.items[end] = item;
            end += usize::from(item < bar);
        }
        self.items.truncate(end);
        if end >= Self::room(self.k) {
            self.drop_others();
        }
    }

    #[inline]
    fn take(&mut self, item: Rank) {
        if item < self.worst {
            memory::push(&mut self.items, item);
            if self.items.len() >= Self::room(self.k) {
                self.drop_others();
            }
        }
    }

    /// Drops all but the best k of at least k items.
    fn drop_others(&mut self) {
        let (_, &mut worst, _) = self.items.select_nth_unstable(self.k - 1);
        self.items.truncate(self.k);
        self.worst = worst;
        let (score, _) = scored::<T>(worst);
        self.threshold = if score.to_f64().is_nan() { f64::NEG_INFINITY } else { score.to_f64() };
    }

    /// A score that a later item must reach to be among the best: that of the k-th best item when items were last dropped or taken
    /// from another (-infinity if that is NaN), -infinity before. An item that ties with that one takes its place if its id is lower.
    #[inline]
    pub fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Moves the items of `self` into `other`, which then holds the best of both.
    pub fn drain_into(mut self, other: &mut TopK<T>) {
        if other.items.len() < self.items.len() {
            std::mem::swap(&mut self, other);
        }
        self.items.into_iter().for_each(|item| other.take(item));
        if other.items.len() >= other.k {
            other.drop_others();
        }
    }

    /// Writes the items best first; positions beyond the number of items get score -infinity and id -1.
    pub fn write(mut self, scores: &mut [T], ids: &mut [i64]) {
        scores.fill(T::from_f64(f64::NEG_INFINITY));
        ids.fill(-1);
        sort_best(&mut self.items, self.k);
        for ((score, id), item) in scores.iter_mut().zip(ids).zip(self.items) {
            (*score, *id) = scored(item);
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

    /// Few different scores, so that many tie, or many; some that are no numbers.
    fn scores() -> impl Strategy<Value = Vec<(f64, usize)>> {
        let few = prop_oneof![
            (-2i8..3).prop_map(f64::from),
            Just(f64::NAN),
            Just(-0.0),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY)
        ];
        let many = prop_oneof![
            100 => -1e3f64..1e3,
            10 => -1e-3f64..1e-3,
            1 => any::<f64>(),
            1 => Just(f64::NAN),
            1 => Just(f64::INFINITY),
            1 => Just(f64::NEG_INFINITY)
        ];
        let threads = 0usize..4;
        prop_oneof![
            prop::collection::vec((few, threads.clone()), 0..60),
            prop::collection::vec((many, threads), 0..900),
        ]
    }

    proptest! {
        /// Whatever their order, and however they are dealt out to threads before these are merged.
        #[test]
        fn the_best_are_the_first_of_all_that_are_sorted(
            scores in scores(),
            backwards in any::<bool>(),
            k in prop_oneof![1usize..20, 1usize..700],
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
            // All of them in blocks, with the floor that others have reached.
            let numbers: Vec<f64> = scores.iter().map(|x| x.0).collect();
            let mut blocks = TopK::new(k);
            for (block, numbers) in numbers.chunks(64).enumerate() {
                blocks.offer(numbers, 64 * block as i64, if block % 2 == 1 { first.threshold() } else { f64::NEG_INFINITY });
                prop_assert!(blocks.threshold() <= expected_threshold);
            }
            prop_assert_eq!(first.threshold(), expected_threshold);
            sorted.resize(sorted.len().max(k), (f64::NEG_INFINITY, -1));
            for top in [first, blocks] {
                let (mut found, mut ids) = (vec![0.0; k], vec![0; k]);
                top.write(&mut found, &mut ids);
                for (place, &(score, id)) in sorted[..k].iter().enumerate() {
                    prop_assert_eq!(ids[place], id);
                    let same = found[place].to_bits() == score.to_bits() || (found[place].is_nan() && score.is_nan());
                    prop_assert!(same, "{} at {}, expected {}", found[place], place, score);
                }
            }
        }
    }
}
