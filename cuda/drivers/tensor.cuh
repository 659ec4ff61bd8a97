// The common part of the sieves: products of rows rounded to tf32, by tensor cores, and the survivors, rows that are not ruled
// out. A block takes 128 queries and 128 gallery rows, 32 numbers of each at a time; a warp takes 64 queries and 32
// rows.
//
// Rounding to tf32 changes a number by at most 2^-11 of itself, and so a product a b by (2^-10 + 2^-22) |a b|. Products
// are added up with "at least single precision", in any order and rounded in any direction (PTX ISA, mma). Tensor cores
// are known to add some products at once, after they cut each of them and the sum so far at 2^-23 of the largest; so a
// sum of K products is taken to err by another (K + 1) 2^-22 sum |a b|. Numbers below 2^-126 may be flushed to 0.
#pragma once

#include "pairs.cuh"

// How a block of a sieve is laid out.
struct SieveShape {
    static constexpr int QUERIES = SIEVE_TILE, ROWS = SIEVE_TILE, STEP = SIEVE_STEP;
    // Numbers from one row in shared memory to the next, such that no two lanes of a fragment read from the same bank;
    // and numbers of a buffer.
    static constexpr int STRIDE = SIEVE_STRIDE, BUFFER = SIEVE_TILE * STRIDE;
    // A warp computes 4 x 4 fragments of 16 x 8 products.
    static constexpr int DOWN = 4, ACROSS = 4;
    // Rows that a thread loads; eight threads load a row together.
    static constexpr int LOADS = SIEVE_TILE * 8 / SIEVE_THREADS;
    // Numbers from one query's products to the next query's, where products overwrite the buffers.
    static constexpr int PRODUCTS_STRIDE = ROWS + 4;
    static_assert(QUERIES * PRODUCTS_STRIDE <= 4 * BUFFER, "two buffers for each side");
};

// The number within the block of the i-th row that a thread loads.
__device__ inline int loaded_row(int i) { return threadIdx.x / 8 + i * (SIEVE_THREADS / 8); }

// The nearest number of tf32; of two, any.
__device__ inline uint32_t rounded_to_tf32(float x) {
#ifdef __CUDA_ARCH__
    uint32_t bits;
#if __CUDA_ARCH__ >= 900
    // One instruction, where the other takes three.
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
    return bits;
#else
    const uint32_t bits = to_bits(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
#endif
}

#ifdef __CUDACC__
// Adds to sums [16, 8] the product of a [16, 8] and b [8, 8], by a warp. With g = lane / 4 and t = lane % 4: a has rows
// g, g + 8, g, g + 8 and columns t, t, t + 4, t + 4; b rows t, t + 4 and column g; sums rows g, g, g + 8, g + 8 and
// columns 2 t, 2 t + 1, ...
__device__ inline void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Adds a step's products to the warp's sums.
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

// Overwrites the buffers with the block's products, query by query, PRODUCTS_STRIDE apart.
__device__ inline float* write_products(const float (&sums)[SieveShape::DOWN][SieveShape::ACROSS][4],
                                        uint32_t* shared) {
    float* const products = reinterpret_cast<float*>(shared);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SieveShape::DOWN; ++i) {
#pragma unroll
        for (int j = 0; j < SieveShape::ACROSS; ++j) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int query = warp() / 4 * 16 * SieveShape::DOWN + 16 * i + lane() / 4 + n / 2 * 8;
                const int row = warp() % 4 * 8 * SieveShape::ACROSS + 8 * j + lane() % 4 * 2 + n % 2;
                products[query * SieveShape::PRODUCTS_STRIDE + row] = sums[i][j][n];
            }
        }
    }
    __syncthreads();
    return products;
}

// The score that a pair must reach to be among the best: that of the worst of k known rows, the last one in args.scores
// and args.ids. Where fewer rows are known it is NaN, below which no score is.
__device__ inline float threshold(const PairArgs& args, int64_t q) {
    const int64_t worst = (q + 1) * args.k - 1;
    return args.ids[worst] == NONE ? NAN : static_cast<const float*>(args.scores)[worst];
}

// Adds id(row) to a query's survivors for each pair whose highest possible score, highest(query, row), is not below the
// threshold. `query` and `row` are numbers within the block. A NaN rules nothing out.
template <typename Highest, typename Id>
__device__ inline void sift(const PairArgs& args, int64_t first_query, int rows, const float* thresholds,
                            const Highest& highest, const Id& id) {
    for (int query = warp(); query < SieveShape::QUERIES; query += SIEVE_THREADS / WARP) {
        const int64_t q = first_query + query;
        if (q >= args.mu1.rows) break;
#pragma unroll 1
        for (int row = lane(); row < SieveShape::ROWS; row += WARP) {
            const bool survives = row < rows && !(float(highest(query, row)) < thresholds[query]);
            const unsigned all = __ballot_sync(FULL, survives);
            if (!all) continue;
            int at = 0;
            if (lane() == 0) at = atomicAdd(args.counts + q, __popc(all));
            at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane()) - 1));
            if (survives) args.survivors[q * args.most_survivors + at] = id(row);
        }
    }
}
