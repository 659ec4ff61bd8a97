//! Random words: Philox4x32-10 (Salmon et al., SC 2011), a function of a key and a counter. Every number thus has an address,
//! and no order of work, number of threads or split of rows can change it.
//!
//! The layout, the same on the CPU and on a GPU:
//! - key: the seed, low 32 bits first.
//! - counter: row (64 bits, low word first), draw (32 bits), then a word with the stream in its 4 highest bits and a position
//!   in the other 28: position b < 2^27 is block b of the normals of this row and draw, positions 2^27 + 2 a and 2^27 + 2 a + 1
//!   are the two blocks of proposal a of a rejection sampler.
//! - row: the number of the item in its distribution; draw: the number of the sample.
//!
//! How words become numbers is said in `kernels::samplers`.

use crate::simd::{Simd, Words};

/// The independent sequences of one seed: the two sides of a score never share noise, nor does a user's sample with either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The queries of a sampled score.
    Query = 0,
    /// The gallery of a sampled score.
    Gallery = 1,
    /// Draws of `sample`.
    User = 2,
}

/// Blocks that are computed at once.
pub const BLOCKS: usize = 16;
/// Word `i` of block `b` is element `[i][b]`.
pub type Block = [[u32; BLOCKS]; 4];

/// The position of the first block of proposals.
const PROPOSALS: u32 = 1 << 27;

/// The address of all random numbers of one draw of one item.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The seed, which is the key.
    pub seed: u64,
    /// The number of the item in its distribution.
    pub row: u64,
    /// The number of the draw.
    pub draw: u32,
    /// The sequence of the seed.
    pub stream: Stream,
}

impl Address {
    fn counter(&self, place: u32) -> [u32; 4] {
        let last = (self.stream as u32) << 28 | place;
        [self.row as u32, (self.row >> 32) as u32, self.draw, last]
    }

    /// Blocks `16 * group .. 16 * group + 16` of the normals at this address.
    #[inline(always)]
    pub fn normals<S: Simd>(&self, group: usize) -> Block {
        let [low, high, draw, last] = self.counter(0);
        let mut places = [0; BLOCKS];
        for (i, place) in places.iter_mut().enumerate() {
            *place = last | (BLOCKS * group + i) as u32;
        }
        philox::<S>(self.seed, [[low; BLOCKS], [high; BLOCKS], [draw; BLOCKS], places])
    }
}

/// Sixteen blocks of normals, that at row `rows[i]`, draw `draws[i]` and position `numbers[i]` for each `i`; `like` has the seed
/// and the stream.
#[inline(always)]
pub fn normals<S: Simd>(like: &Address, rows: &[u64; BLOCKS], draws: &[u32; BLOCKS], numbers: &[u32; BLOCKS]) -> Block {
    let [.., last] = like.counter(0);
    let mut counters = [[0; BLOCKS], [0; BLOCKS], *draws, *numbers];
    for i in 0..BLOCKS {
        counters[0][i] = rows[i] as u32;
        counters[1][i] = (rows[i] >> 32) as u32;
        counters[3][i] |= last;
    }
    philox::<S>(like.seed, counters)
}

/// Proposal number `attempt` at eight addresses of one seed: blocks i and i + 8 belong to address i.
#[inline(always)]
pub fn proposals<S: Simd>(addresses: &[Address; BLOCKS / 2], attempt: usize) -> Block {
    let mut counters = [[0; BLOCKS]; 4];
    for i in 0..BLOCKS {
        let address = &addresses[i % (BLOCKS / 2)];
        let place = PROPOSALS | (2 * attempt + i / (BLOCKS / 2)) as u32;
        for (counter, word) in counters.iter_mut().zip(address.counter(place)) {
            counter[i] = word;
        }
    }
    philox::<S>(addresses[0].seed, counters)
}

/// Philox4x32-10 of sixteen counters.
#[inline(always)]
fn philox<S: Simd>(seed: u64, counter: Block) -> Block {
    let [mut a, mut b, mut c, mut d] = [
        S::Words::new(&counter[0]),
        S::Words::new(&counter[1]),
        S::Words::new(&counter[2]),
        S::Words::new(&counter[3]),
    ];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let (first, second) = (a.product(0xD251_1F53), c.product(0xCD9E_8D57));
        (a, b, c, d) = (second.high_xor(b, key[0]), second, first.high_xor(d, key[1]), first);
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    [a.words(), b.words(), c.words(), d.words()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{dispatch, Kernel};

    struct Philox(u64, [u32; 4]);
    impl Kernel for Philox {
        type Output = Block;
        #[inline(always)]
        fn run<S: Simd>(self) -> Block {
            philox::<S>(self.0, self.1.map(|word| [word; BLOCKS]))
        }
    }

    /// The blocks of group 2 of the normals and of proposal 9 at an address.
    struct Places(Address);
    impl Kernel for Places {
        type Output = (Block, Block);
        #[inline(always)]
        fn run<S: Simd>(self) -> (Block, Block) {
            (self.0.normals::<S>(2), proposals::<S>(&[self.0; 8], 9))
        }
    }

    #[test]
    fn known_answers_of_random123() {
        let answers: [(u64, [u32; 4], [u32; 4]); 3] = [
            (0, [0; 4], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            (u64::MAX, [u32::MAX; 4], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                0x299F_31D0_A409_3822,
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ];
        for (seed, counter, expected) in answers {
            let words = dispatch(Philox(seed, counter));
            assert_eq!(words, expected.map(|word| [word; BLOCKS]));
        }
    }

    #[test]
    fn addresses_are_laid_out_as_written() {
        let address = Address { seed: 7, row: 0x1_0000_0002, draw: 3, stream: Stream::User };
        assert_eq!(address.counter(5), [2, 1, 3, 0x2000_0005]);
        let one = |place| dispatch(Philox(7, address.counter(place))).map(|words| words[0]);
        let (group, attempt) = dispatch(Places(address));
        for i in 0..BLOCKS {
            assert_eq!(group.map(|words| words[i]), one(32 + i as u32));
            assert_eq!(attempt.map(|words| words[i]), one(PROPOSALS + 18 + (i / 8) as u32));
        }
    }
}
