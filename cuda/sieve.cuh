// Search by tensor cores: inner products of rows rounded to tf32 rule out the pairs that cannot be among the best, and
// what is left is scored by the pair function (rerank, pairs.cuh), so that ids and bits are those of every other verb.
//
// A block takes 128 queries and 128 rows, 32 dimensions at a time; a warp 64 queries and 32 rows. The pair function's
// squared norms are by-products of loading: eight threads have a row, and thread t sees, in step s, what lane
// (t + 8 s) % 32 of a pair's warp sees, so four sums, by s % 4, add up in the order of lanes.
//
// Slack, relative to n + m = |a|^2 + |b|^2 >= 2 |a||b|, with u = 2^-24. Rounding to tf32 moves a number by 2^-11 of it
// at most, so the products by (2^-10 + 2^-22) |a||b|; they are added up with "at least single precision" (PTX ISA,
// mma), whatever the direction of rounding, so the sum errs by another (D + 1) 2u |a||b|. The pair function's own sum
// of D squares of differences errs by (4 ceil(D/128) + 8) u x with x <= 2 (n + m), its inner product by less; norms by
// (4 ceil(D/128) + 5) u. With ceil(D/128) < D/128 + 1, all of it is below
//   (2^-10 + 2^-22 + (D + 1) 2u + (3 D/32 + 33) u) (n + m)
// on a squared distance, and half of that on an inner product; a factor 1.01 covers products of such terms (for
// D < 2^16). Numbers below 2^-126 may be flushed to 0: 4 D 2^-126 covers that.
//
// Proof that no row is lost: let x be what the pair function finds and y what is found here, moved by the slack to the
// side of higher scores. The pair function's score is T(value(x)); value is monotone in x as rounded, but for what a
// formula's tolerance says, and so is the rounding to T. So if T(value(y) + tolerance) is below the score of the worst
// of k rows known, so is the row's. A NaN rules nothing out.
#pragma once

#include "pairs.cuh"

constexpr int SIEVE_THREADS = 256;

struct SieveShape {
    static constexpr int QUERIES = 128, ROWS = 128, STEP = 32;
    // Elements from one row in shared memory to the next: no two lanes of a fragment want the same bank.
    static constexpr int STRIDE = STEP + 4, BUFFER = 128 * STRIDE;
    // Of a warp: 4 x 4 products of 16 x 8.
    static constexpr int DOWN = 4, ACROSS = 4;
    // Rows that a thread loads, eight threads each.
    static constexpr int LOADS = 128 * 8 / SIEVE_THREADS;
    // Of the products, when they take the place of what they were made of.
    static constexpr int PRODUCTS_STRIDE = ROWS + 4;
    static_assert(QUERIES * PRODUCTS_STRIDE <= 4 * BUFFER, "two buffers for each side");
};

__device__ inline uint32_t rounded_to_tf32(float x) {
#ifdef __CUDA_ARCH__
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
#endif
}

#ifdef __CUDACC__
// sums [16, 8] += a [16, 8] b [8, 8], by a warp. With g = lane / 4 and t = lane % 4: a has rows g, g + 8, g, g + 8 and
// columns t, t, t + 4, t + 4; b rows t, t + 4 and column g; sums rows g, g, g + 8, g + 8 and columns 2 t, 2 t + 1, ...
__device__ inline void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// What a thread loads of one side in a step, and its four sums of squares of each row.
template <typename F, typename S, bool GALLERY>
struct SieveSide {
    const PairArgs& args;
    int64_t first, last;  // rows; beyond the last one comes the last one
    bool vector;
    Four<float> next[SieveShape::LOADS];
    float squares[SieveShape::LOADS][4];

    __device__ SieveSide(const PairArgs& args, int64_t first, int64_t last, bool vector)
        : args(args), first(first), last(last), vector(vector) {
        for (auto& row : squares)
            for (float& sum : row) sum = 0;
    }
    static __device__ int row_of(int i) { return threadIdx.x / 8 + i * (SIEVE_THREADS / 8); }

    __device__ void load(int64_t step) {
        const int64_t d = SieveShape::STEP * step + 4 * (threadIdx.x % 8);
#pragma unroll
        for (int i = 0; i < SieveShape::LOADS; ++i) {
            const int64_t own = first + row_of(i), row = own < last ? own : last;
            next[i] = {};
            if (d >= args.mu1.stored) continue;
            Four<float>* const to = &next[i];
            if (GALLERY) {
                vector ? load_gallery<F, S, true>(args, row, d, to) : load_gallery<F, S, false>(args, row, d, to);
            } else {
                vector ? load_query<F, true>(args, row, d, to) : load_query<F, false>(args, row, d, to);
            }
        }
    }
    __device__ void store(uint32_t* to) {
#pragma unroll
        for (int i = 0; i < SieveShape::LOADS; ++i) {
            Four<uint32_t> words;
            float sum = squares[i][0];
            for (int j = 0; j < 4; ++j) {
                sum = fma(next[i].x[j], next[i].x[j], sum);
                words.x[j] = rounded_to_tf32(next[i].x[j]);
            }
            for (int j = 0; j < 3; ++j) squares[i][j] = squares[i][j + 1];
            squares[i][3] = sum;
            *reinterpret_cast<Four<uint32_t>*>(to + row_of(i) * SieveShape::STRIDE + 4 * (threadIdx.x % 8)) = words;
        }
    }
    // The squared norms of the rows, as the pair function has them.
    __device__ void write_norms(float* norms) const {
        for (int i = 0; i < SieveShape::LOADS; ++i) {
            float sum = (squares[i][0] + squares[i][2]) + (squares[i][1] + squares[i][3]);
            for (int mask = 4; mask > 0; mask /= 2) sum += __shfl_xor_sync(FULL, sum, mask);
            if (threadIdx.x % 8 == 0) norms[row_of(i)] = sum;
        }
    }
};

// A warp's products of a step.
__device__ inline void add_products(const uint32_t* queries, const uint32_t* rows,
                                    float (&sums)[SieveShape::DOWN][SieveShape::ACROSS][4]) {
    constexpr int STRIDE = SieveShape::STRIDE;
    const int group = lane() / 4, within = lane() % 4;
    queries += (warp() / 4 * 16 * SieveShape::DOWN + group) * STRIDE + within;
    rows += (warp() % 4 * 8 * SieveShape::ACROSS + group) * STRIDE + within;
#pragma unroll
    for (int k = 0; k < SieveShape::STEP; k += 8) {
        uint32_t b[SieveShape::ACROSS][2];
#pragma unroll
        for (int j = 0; j < SieveShape::ACROSS; ++j) {
            b[j][0] = rows[8 * j * STRIDE + k], b[j][1] = rows[8 * j * STRIDE + k + 4];
        }
#pragma unroll
        for (int i = 0; i < SieveShape::DOWN; ++i) {
            const uint32_t* from = queries + 16 * i * STRIDE + k;
            const uint32_t a[4] = {from[0], from[8 * STRIDE], from[4], from[8 * STRIDE + 4]};
#pragma unroll
            for (int j = 0; j < SieveShape::ACROSS; ++j) multiply_add(sums[i][j], a, b[j]);
        }
    }
}

// Rows of args.begin .. args.end that may be among the best, after those in args.survivors. Grid: tiles of queries,
// tiles of rows. The worst of k known rows is the last one in args.scores and args.ids.
template <typename F, typename S>
__device__ void sieve(const F& f, const PairArgs& args) {
    using Shape = SieveShape;
    DYNAMIC_SHARED(uint32_t, shared);
    __shared__ float query_norms[Shape::QUERIES], row_norms[Shape::ROWS], thresholds[Shape::QUERIES];
    __shared__ double query_extras[Shape::QUERIES], row_extras[Shape::ROWS];

    const int64_t first_query = int64_t(blockIdx.x) * Shape::QUERIES;
    const int64_t first_row = args.begin + int64_t(blockIdx.y) * Shape::ROWS;
    const bool vector = vectors<F, S>(args);
    SieveSide<F, S, false> queries(args, first_query, args.mu1.rows - 1, vector);
    SieveSide<F, S, true> rows(args, first_row, args.end - 1, vector);
    for (int i = threadIdx.x; i < Shape::QUERIES; i += SIEVE_THREADS) {
        const int64_t q = first_query + i < args.mu1.rows ? first_query + i : args.mu1.rows - 1;
        const int64_t worst = (q + 1) * args.k - 1;
        query_extras[i] = extra_of_query<float>(args, q);
        thresholds[i] = args.ids[worst] == NONE ? NAN : static_cast<const float*>(args.scores)[worst];
    }
    for (int i = threadIdx.x; i < Shape::ROWS; i += SIEVE_THREADS) {
        const int64_t g = first_row + i < args.end ? first_row + i : args.end - 1;
        row_extras[i] = extra_of_gallery<float, S>(args, g);
    }

    float sums[Shape::DOWN][Shape::ACROSS][4] = {};
    const int64_t steps = (args.mu1.stored + Shape::STEP - 1) / Shape::STEP;
    queries.load(0), rows.load(0);
#pragma unroll 1
    for (int64_t step = 0; step < steps; ++step) {
        // The other buffer may still be read.
        uint32_t* const own = shared + (step % 2) * 2 * Shape::BUFFER;
        queries.store(own), rows.store(own + Shape::BUFFER);
        __syncthreads();
        if (step + 1 < steps) queries.load(step + 1), rows.load(step + 1);
        add_products(own, own + Shape::BUFFER, sums);
    }
    queries.write_norms(query_norms), rows.write_norms(row_norms);
    __syncthreads();
    float* const products = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int i = 0; i < Shape::DOWN; ++i) {
#pragma unroll
        for (int j = 0; j < Shape::ACROSS; ++j) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int query = warp() / 4 * 16 * Shape::DOWN + 16 * i + lane() / 4 + n / 2 * 8;
                const int row = warp() % 4 * 8 * Shape::ACROSS + 8 * j + lane() % 4 * 2 + n % 2;
                products[query * Shape::PRODUCTS_STRIDE + row] = sums[i][j][n];
            }
        }
    }
    __syncthreads();

    const double dim = double(args.mu1.stored), u = 5.9604644775390625e-08;
    const double slack = 1.01 * (9.765625e-4 + 2.384185791015625e-07 + 2 * (dim + 1) * u + (3 * dim / 32 + 33) * u);
    const double smallest = 4 * dim * 1.1754943508222875e-38;
    for (int query = warp(); query < Shape::QUERIES; query += SIEVE_THREADS / WARP) {
        const int64_t q = first_query + query;
        if (q >= args.mu1.rows) break;
#pragma unroll 1
        for (int row = lane(); row < Shape::ROWS; row += WARP) {
            const double dot = products[query * Shape::PRODUCTS_STRIDE + row];
            const double n = query_norms[query], m = row_norms[row], v = query_extras[query], w = row_extras[row];
            const float highest = float(f.highest(dot, slack * (n + m) + smallest, n, m, v, w));
            const bool kept = first_row + row < args.end && !(highest < thresholds[query]);
            const unsigned all = __ballot_sync(FULL, kept);
            if (!all) continue;
            int at = 0;
            if (lane() == 0) at = atomicAdd(args.counts + q, __popc(all));
            at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane()) - 1));
            if (kept) args.survivors[q * args.room + at] = int32_t(first_row + row);
        }
    }
}
