// Random words and standard normals, each a function of its address: Philox4x32-10 (Salmon et al., SC 2011) laid out as
// rust/rng.rs has it, Box-Muller as rust/kernels/samplers/normals.rs.
//
// - key: the seed, low 32 bits first.
// - counter: row (64 bits, low word first), draw (32 bits), then the stream in the 4 highest bits of the last word and
//   28 bits of place: below 2^27 block b of the normals of this row and draw; from 2^27 on blocks 2a and 2a + 1 of
//   proposal a.
//
// Words are the CPU's. Normals compiled for the host are the CPU's to the last bit; those of a device differ by less
// than 4 ulp, as the logarithm has an approximate quotient and products are fused otherwise.
#pragma once

#include "../warps.cuh"
#include "elementary.cuh"

// Four random words.
struct Words {
    uint32_t a, b, c, d;
};

// The keys of the rounds, which are those of all counters of a seed.
struct Keys {
    static constexpr int ROUNDS = 10;
    uint32_t low[ROUNDS], high[ROUNDS];

    __device__ inline explicit Keys(uint64_t seed) {
#pragma unroll
        for (uint32_t round = 0; round < ROUNDS; ++round) {
            low[round] = uint32_t(seed) + round * 0x9E3779B9u;
            high[round] = uint32_t(seed >> 32) + round * 0xBB67AE85u;
        }
    }
    // The same keys, which the compiler cannot make again for each counter, as it does not see how they were made. At
    // the beginning of a kernel they get registers that all lanes of a warp share.
    __device__ inline Keys kept() const {
        Keys keys = *this;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) asm("" : "+r"(keys.low[round]), "+r"(keys.high[round]));
        return keys;
    }
};

// The words of a counter x.
__device__ inline Words philox(const Keys& keys, Words x) {
    constexpr uint32_t FIRST = 0xD2511F53u, SECOND = 0xCD9E8D57u;
#pragma unroll
    for (int round = 0; round < Keys::ROUNDS; ++round) {
        // Both words of a product are written in 32 bits: of a product in 64 bits the compiler makes longer operations.
        x = {__umulhi(x.c, SECOND) ^ x.b ^ keys.low[round], x.c * SECOND,
             __umulhi(x.a, FIRST) ^ x.d ^ keys.high[round], x.a * FIRST};
    }
    return x;
}

// The address of all numbers of one row and draw.
struct Address {
    Keys keys;
    uint64_t row;
    uint32_t draw;
    uint32_t stream;  // 0 queries, 1 gallery, 2 user

    __device__ inline Words at(uint32_t place) const {
        return philox(keys, {uint32_t(row), uint32_t(row >> 32), draw, stream << 28 | place});
    }
    __device__ inline Words normals(uint32_t block) const { return at(block); }
    __device__ inline Words proposal(uint32_t attempt, uint32_t half) const {
        return at(1u << 27 | (2 * attempt + half));
    }
};

// -- words to numbers -------------------------------------------------------------------------------------------------

HD uint64_t joined(uint32_t high, uint32_t low) { return uint64_t(high) << 32 | low; }

// A number in (0, 1) from the highest bits of a word, by an exact subtraction.
HD float uniform(uint32_t word) { return from_bits(0x3f800000u | word >> 9) - (1 - 0x1p-24f); }
HD double uniform(uint64_t word) { return from_bits(uint64_t(0x3ff0000000000000) | word >> 12) - (1 - 0x1p-53); }

// Cosine and sine of an angle: the highest bit of its word chooses the sign of the cosine, the next one whether cosine
// and sine change places, the rest is the angle within an eighth of a turn.
template <typename T>
struct Direction {
    T first, second;

    template <typename Word>
    HD explicit Direction(Word word) {
        constexpr int TOP = 8 * sizeof(Word) - 1;
        T sine, cosine;
        sin_cos(uniform(Word(word << 2)) - T(0.5), sine, cosine);
        cosine = word >> TOP ? -cosine : cosine;
        const bool swapped = word >> (TOP - 1) & 1;
        first = swapped ? sine : cosine, second = swapped ? cosine : sine;
    }
};

// Two normals from a word for the radius and one for the angle.
template <typename T, typename Word>
HD void box_muller(Word radius, Word angle, T& first, T& second) {
    const T r = sqrt(T(-2) * ln_normal(uniform(radius)));
    const Direction<T> direction(angle);
    first = r * direction.first, second = r * direction.second;
}

// -- the normals of an address ----------------------------------------------------------------------------------------

// A block gives EACH normals; those of RUN blocks are interleaved: number k of block b has index b / RUN * RUN * EACH + k * RUN + b % RUN.
template <typename T>
struct Normals;

template <>
struct Normals<float> {
    static constexpr int EACH = NORMALS_F32, RUN = RUN_F32;
    float n[EACH];

    HD explicit Normals(const Words& words) {
        box_muller(words.a, words.b, n[0], n[1]);
        box_muller(words.c, words.d, n[2], n[3]);
    }
};

template <>
struct Normals<double> {
    static constexpr int EACH = NORMALS_F64, RUN = RUN_F64;
    double n[EACH];

    HD explicit Normals(const Words& words) {
        box_muller(joined(words.a, words.b), joined(words.c, words.d), n[0], n[1]);
    }
};

// How the lanes of a warp share the normals of draws in D dimensions. A team of lanes takes those of one draw: lane
// `me` takes block t * RUN + me in step t, so that adjacent lanes have adjacent dimensions. A warp is several teams.
template <typename T>
struct Team {
    static constexpr int EACH = Normals<T>::EACH, RUN = Normals<T>::RUN;
    int dim, size, me, number, steps;  // `number` is that of the team in its warp

    __device__ inline explicit Team(int64_t d) : dim(int(d)), size(1), steps((dim + RUN * EACH - 1) / (RUN * EACH)) {
        while (size < RUN && size < dim) size *= 2;
        const int lane = threadIdx.x % WARP;
        me = lane % size, number = lane / size;
    }
    // How many draws a warp makes at once.
    __device__ inline int together() const { return WARP / size; }

    __device__ inline uint32_t block(int step) const { return uint32_t(step * RUN + me); }
    // The dimension of normal k of that block; from D on there is none.
    __device__ inline int index(int step, int k) const { return step * (RUN * EACH) + k * RUN + me; }

    // Returns to all lanes of a team the sum of their x. Called by all teams of a warp.
    __device__ inline T sum(T x) const {
        for (int mask = RUN / 2; mask > 0; mask /= 2) {
            const T other = __shfl_xor_sync(FULL, x, mask);
            if (mask < size) x += other;
        }
        return x;
    }
};
