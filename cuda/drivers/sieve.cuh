// The sieve of scores that are monotone in an inner product: tensor cores compute the products of rows rounded to tf32,
// which rule out the pairs that cannot be among the best. The survivors are scored by the pair function (rerank,
// pairs.cuh), so that ids and bits are those of every other verb.
//
// The squared norms are computed while rows are loaded, to the pair function's bits: eight threads load a row, and in
// step s thread t loads what lane (t + 8 s) % 32 of a pair's warp loads, so that four sums, by s % 4, add up in the
// order of lanes.
//
// Slack, relative to n + m = |a|^2 + |b|^2 >= 2 |a||b|, with u = 2^-24. The products err by
// (2^-10 + 2^-22 + (D + 1) 4u) |a||b| (tensor.cuh). The pair function's own sum of D squares of differences errs by
// (4 ceil(D/128) + 8) u x with x <= 2 (n + m), its inner product by less; norms by (4 ceil(D/128) + 5) u. With
// ceil(D/128) < D/128 + 1, all of it is below
//   (2^-10 + 2^-22 + (D + 1) 4u + (3 D/32 + 33) u) (n + m)
// on a squared distance, and half of that on an inner product; a factor 1.01 covers products of such terms (for
// D < 2^16). Numbers below 2^-126 may be flushed to 0: 4 D 2^-126 covers that.
//
// Proof that no row is lost: let x be the product or distance of the pair function, and y the one computed here, moved
// by the slack towards higher scores. The pair function's score is T(value(x)). `value` as computed is monotone in x up
// to the formula's tolerance, and rounding to T is monotone. So if T(value(y) + tolerance) is below the score of the
// worst of k known rows, so is the row's score. A NaN rules nothing out.
#pragma once

#include "../formulas/dot.cuh"
#include "tensor.cuh"

// The registers of a thread for one side: the numbers that it loads in a step, and four sums of squares of each of its rows.
template <typename F, typename S, bool GALLERY>
struct SieveSide {
    const PairArgs& args;
    int64_t first, last;  // the block's first row, and the last row that there is, which stands for all beyond it
    bool vector;
    Four<float> next[SieveShape::LOADS];
    float squares[SieveShape::LOADS][4];

    __device__ SieveSide(const PairArgs& args, int64_t first, int64_t last, bool vector)
        : args(args), first(first), last(last), vector(vector) {
        for (auto& row : squares)
            for (float& sum : row) sum = 0;
    }

    __device__ void load(int64_t step) {
        const int64_t d = SieveShape::STEP * step + 4 * (threadIdx.x % 8);
#pragma unroll
        for (int i = 0; i < SieveShape::LOADS; ++i) {
            const int64_t wanted = first + loaded_row(i), row = wanted < last ? wanted : last;
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
            *reinterpret_cast<Four<uint32_t>*>(to + loaded_row(i) * SieveShape::STRIDE + 4 * (threadIdx.x % 8)) = words;
        }
    }
    // Writes the squared norms of the rows, to the pair function's bits.
    __device__ void write_norms(float* norms) const {
        for (int i = 0; i < SieveShape::LOADS; ++i) {
            float sum = (squares[i][0] + squares[i][2]) + (squares[i][1] + squares[i][3]);
            for (int mask = 4; mask > 0; mask /= 2) sum += __shfl_xor_sync(FULL, sum, mask);
            if (threadIdx.x % 8 == 0) norms[loaded_row(i)] = sum;
        }
    }
};

// Adds the rows of args.begin .. args.end that may be among the best to args.survivors. The grid is tiles of queries by
// tiles of rows.
template <typename F, typename S>
__device__ void sieve(const F& f, const PairArgs& args) {
    using Shape = SieveShape;
    DYNAMIC_SHARED(uint32_t, shared);
    __shared__ float query_norms[Shape::QUERIES], row_norms[Shape::ROWS], thresholds[Shape::QUERIES];
    __shared__ float query_uncertainties[Shape::QUERIES], row_uncertainties[Shape::ROWS];

    const int64_t first_query = int64_t(blockIdx.x) * Shape::QUERIES;
    const int64_t first_row = args.begin + int64_t(blockIdx.y) * Shape::ROWS;
    const bool vector = vectors<F, S>(args);
    SieveSide<F, S, false> queries(args, first_query, args.mu1.rows - 1, vector);
    SieveSide<F, S, true> rows(args, first_row, args.end - 1, vector);
    for (int i = threadIdx.x; i < Shape::QUERIES; i += SIEVE_THREADS) {
        const int64_t q = first_query + i < args.mu1.rows ? first_query + i : args.mu1.rows - 1;
        query_uncertainties[i] = float(uncertainty_of_query<float>(args, q));
        thresholds[i] = threshold(args, q);
    }
    for (int i = threadIdx.x; i < Shape::ROWS; i += SIEVE_THREADS) {
        const int64_t g = first_row + i < args.end ? first_row + i : args.end - 1;
        row_uncertainties[i] = float(uncertainty_of_gallery<float, S>(args, g));
    }

    float sums[Shape::DOWN][Shape::ACROSS][4] = {};
    const int64_t steps = (args.mu1.stored + Shape::STEP - 1) / Shape::STEP;
    queries.load(0), rows.load(0);
#pragma unroll 1
    for (int64_t step = 0; step < steps; ++step) {
        // Other warps may still read the other buffer.
        uint32_t* const buffer = shared + (step % 2) * 2 * Shape::BUFFER;
        queries.store(buffer), rows.store(buffer + Shape::BUFFER);
        __syncthreads();
        if (step + 1 < steps) queries.load(step + 1), rows.load(step + 1);
        add_products(buffer, buffer + Shape::BUFFER, sums);
    }
    queries.write_norms(query_norms), rows.write_norms(row_norms);
    const float* const products = write_products(sums, shared);

    const double dim = double(args.mu1.stored), u = 5.9604644775390625e-08;
    const double slack = 1.01 * (9.765625e-4 + 2.384185791015625e-07 + 4 * (dim + 1) * u + (3 * dim / 32 + 33) * u);
    const double smallest = 4 * dim * 1.1754943508222875e-38;
    const auto highest = [&](int query, int row) -> double {
        // A cosine of rows of other lengths is that of scaled rows.
        if (F::LENGTHS && !(in_range<float>(query_norms[query]) && in_range<float>(row_norms[row]))) return NAN;
        if constexpr (F::LIMITED) {
            const LimitPair pair{products[query * Shape::PRODUCTS_STRIDE + row], query_norms[query], row_norms[row],
                                 query_uncertainties[query], row_uncertainties[row]};
            const float limit = f.limit(pair, float(slack + 16 * u), float(2 * smallest));
            // Most pairs are ruled out by it, and few warps go on to double precision.
            if (limit < thresholds[query]) return limit;
        }
        const double n = query_norms[query], m = row_norms[row], dot = products[query * Shape::PRODUCTS_STRIDE + row];
        const DotPair pair{dot, n, m, query_uncertainties[query], row_uncertainties[row],
                           F::per_item_of(args, QUERY, first_query + query),
                           F::per_item_of(args, GALLERY, first_row + row)};
        return f.highest(pair, slack * (n + m) + smallest);
    };
    const int64_t left = args.end - first_row;
    sift(args, first_query, int(left < Shape::ROWS ? left : Shape::ROWS), thresholds, highest,
         [&](int row) { return int32_t(first_row + row); });
}
