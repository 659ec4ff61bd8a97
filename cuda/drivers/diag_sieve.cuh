// The sieve of the mutual likelihood score of diagonal normals: an inner product of 3 D numbers, by tensor cores,
// bounds the score of a query and a row of a tile, and rules pairs out. The survivors are scored by the pair function.
//
// With v the query's variances, s a row's, least <= s <= greatest over the rows of a tile, and any reference p:
//   1 / (v + s) >= r w, w = 1 / (p + s), r = (p + f) / (v + f), f = least where v > p, else greatest,
//   log(v + s) >= log(p + s) + log((v + e) / (p + e)), e = greatest where v > p, else least,
// since both ratios are monotone in s. So with means a and b, C the sum of the last logarithms, L that of log(p + s),
//   score <= -1/2 (sum r w (a - b)^2 + L + C + D log 2 pi), sum r w (a - b)^2 = [r a^2, -2 r a, r] . [w, w b, w b^2].
// Rows are sorted by their mean variance beforehand, so that a tile's ranges are narrow.
//
// Slack, with u = 2^-24. The absolute values of the products add up to at most 2 sum r w (a^2 + b^2) <= 2 (P + R max
// r), with P the sum of r a^2 / (p + least) and R that of w b^2. Each product comes of 16 roundings and, on each side,
// of one to tf32, 2^-11; their sum errs by (3 D + 1) 4u (tensor.cuh), so that
//   sum r w (a - b)^2 >= products - 2.02 (2^-10 + 2^-22 + 16 u + (3 D + 1) 4u) (P + R max r) - 12 D 2^-126.
// Each logarithm l in C errs by 4 u (1 + |l|) and their sum by (D/8 + 3) u of the sum of their sizes. L, the logarithm
// of a product of D numbers, errs by (2 D + 16) u, and the pair function's logarithm, of a product too, by less than 2
// D u; its quotients and their sum err by (D/8 + 64) u. Rows whose variances leave the range of that product have no
// bound: they all survive.
#pragma once

#include "../formulas/diag.cuh"
#include "tensor.cuh"

// The row that has a number in the order by mean variance.
__device__ inline int64_t row_at(const Bounding& bounding, int64_t number) {
    return bounding.order[number - bounding.first];
}

// Four numbers of a row of D, with `fill` beyond its end.
__device__ inline Four<float> four_of(const float* row, int64_t d, int64_t dim, float fill) {
    return four<false>(row, dim, d, dim, fill);
}

// Writes the ranges and sums of all tiles. A block takes a tile, then the one gridDim.x further on.
template <typename F, typename S>
__device__ void bound_tiles(const PairArgs& args, const Bounding& bounding) {
    const int64_t dim = args.mu1.stored, rows = args.end - bounding.first;
    const auto variances = [&](int64_t number, int64_t d, Four<float>* four) {
        load_gallery<F, S, false>(args, row_at(bounding, bounding.first + number), d, four);
    };
    for (int64_t tile = blockIdx.x; tile * SieveShape::ROWS < rows; tile += gridDim.x) {
        const int64_t begin = tile * SieveShape::ROWS, left = rows - begin;
        const int64_t end = begin + (left < SieveShape::ROWS ? left : SieveShape::ROWS);
        for (int64_t d = 4 * threadIdx.x; d < dim; d += 4 * SIEVE_THREADS) {
            Four<float> least, greatest, row[2];
            for (int j = 0; j < 4; ++j) least.x[j] = INFINITY, greatest.x[j] = 0;
            for (int64_t number = begin; number < end; ++number) {
                variances(number, d, row);
                for (int j = 0; j < 4; ++j) {
                    // Rows with a NaN or a number below 0 in the place of a variance have no score, and need no bound.
                    least.x[j] = fmin(least.x[j], fmax(row[1].x[j], 0.0f));
                    greatest.x[j] = fmax(greatest.x[j], row[1].x[j]);
                }
            }
            float* const to = bounding.ranges + tile * 2 * dim;
            for (int j = 0; j < 4 && d + j < dim; ++j) to[d + j] = least.x[j], to[dim + d + j] = greatest.x[j];
        }
        for (int64_t number = begin + warp(); number < end; number += SIEVE_THREADS / WARP) {
            float spread = 0;
            Product<float> product{1, 0};
            bool known = true;
            int64_t count = 0;
            for (int64_t d = 4 * lane(); d < dim; d += 4 * WARP, ++count) {
                Four<float> row[2], s;
                variances(number, d, row);
                const Four<float> reference = four_of(bounding.reference, d, dim, 0);
                for (int j = 0; j < 4; ++j) {
                    s.x[j] = d + j < dim ? reference.x[j] + row[1].x[j] : 1;
                    known = known && s.x[j] > 1 / QUARTER_RANGE<float> && s.x[j] < QUARTER_RANGE<float>;
                    spread = fma(row[0].x[j] / s.x[j], row[0].x[j], spread);
                }
                product.times((s.x[0] * s.x[1]) * (s.x[2] * s.x[3]));
            }
            const double logs = warp_sum(known ? log_of(product, count) : NAN);
            spread = warp_sum(spread);
            if (lane() == 0) bounding.sums[2 * number] = float(logs), bounding.sums[2 * number + 1] = spread;
        }
    }
}

// The registers of a thread for its four rows of one side: their means, and their variances, then r (queries) or w (gallery).
template <typename F, typename S, bool GALLERY>
struct DiagSide {
    static constexpr int LOADS = SieveShape::LOADS;
    const PairArgs& args;
    const Bounding& bounding;
    const float* ranges;
    int64_t rows[LOADS];
    Four<float> mean[LOADS], weight[LOADS], reference, least, greatest;
    // For each query: P, the largest r, C and the sum of the absolute values of C's terms.
    float spread[LOADS], largest[LOADS], logs[LOADS], terms[LOADS];

    // Takes the rows from `first` on; the last row stands for all beyond it.
    __device__ DiagSide(const PairArgs& args, const Bounding& bounding, int64_t first, int64_t last,
                        const float* ranges)
        : args(args), bounding(bounding), ranges(ranges) {
        for (int i = 0; i < LOADS; ++i) {
            const int64_t row_or_last = first + loaded_row(i) < last ? first + loaded_row(i) : last;
            rows[i] = GALLERY ? row_at(bounding, row_or_last) : row_or_last;
            spread[i] = largest[i] = logs[i] = terms[i] = 0;
        }
    }

    // Loads a step's dimensions, which nothing waits for before `weigh`.
    __device__ void load(int64_t step) {
        const int64_t dim = args.mu1.stored, d = SieveShape::STEP * step + 4 * (threadIdx.x % 8);
        reference = four_of(bounding.reference, d, dim, 1);
        if (!GALLERY) least = four_of(ranges, d, dim, 1), greatest = four_of(ranges + dim, d, dim, 1);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            Four<float> row[2];
            for (int j = 0; j < 4; ++j) row[0].x[j] = 0, row[1].x[j] = 1;
            if (d < dim) {
                if (GALLERY) {
                    load_gallery<F, S, false>(args, rows[i], d, row);
                } else {
                    load_query<F, false>(args, rows[i], d, row);
                }
            }
            mean[i] = row[0], weight[i] = row[1];
        }
    }
    // Makes r or w of the variances, and adds the step's dimensions to the numbers of each query.
    __device__ void weigh() {
        const Four<float>& p = reference;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            for (int j = 0; j < 4; ++j) {
                const float a = mean[i].x[j], v = weight[i].x[j];
                if (GALLERY) {
                    weight[i].x[j] = 1 / (p.x[j] + v);
                    continue;
                }
                const bool above = v > p.x[j];
                const float lower = above ? least.x[j] : greatest.x[j], upper = above ? greatest.x[j] : least.x[j];
                const float r = (p.x[j] + lower) / (v + lower), log_ratio = log((v + upper) / (p.x[j] + upper));
                weight[i].x[j] = r;
                spread[i] = fma(r * a / (p.x[j] + least.x[j]), a, spread[i]);
                largest[i] = r > largest[i] || r != r ? r : largest[i];
                logs[i] += log_ratio, terms[i] += fabs(log_ratio);
            }
        }
    }
    // Stores part 0, 1 or 2 of the 3 D numbers whose products are bounds.
    __device__ void store(int part, uint32_t* to) const {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            Four<uint32_t> words;
            for (int j = 0; j < 4; ++j) {
                const float a = mean[i].x[j], by = weight[i].x[j], once = by * a, twice = once * a;
                const float ascending = part == 0 ? by : part == 1 ? once : twice;
                const float descending = part == 0 ? twice : part == 1 ? -2 * once : by;
                words.x[j] = rounded_to_tf32(GALLERY ? ascending : descending);
            }
            *reinterpret_cast<Four<uint32_t>*>(to + loaded_row(i) * SieveShape::STRIDE + 4 * (threadIdx.x % 8)) = words;
        }
    }
    // Writes P, the largest r, C and the sum of its absolute terms of each query, from the eight threads that load it.
    __device__ void write(float (*to)[4]) const {
        for (int i = 0; i < LOADS; ++i) {
            float all[4] = {spread[i], largest[i], logs[i], terms[i]};
            for (int mask = 4; mask > 0; mask /= 2) {
                for (int n = 0; n < 4; ++n) {
                    const float other = __shfl_xor_sync(FULL, all[n], mask);
                    const bool larger = other > all[n] || other != other;
                    all[n] = n != 1 ? all[n] + other : larger ? other : all[n];
                }
            }
            if (threadIdx.x % 8 == 0)
                for (int n = 0; n < 4; ++n) to[loaded_row(i)][n] = all[n];
        }
    }
};

// Adds rows to args.survivors as `sieve` does, of those that have the numbers args.begin .. args.end, whole tiles of
// them.
template <typename F, typename S>
__device__ void diag_sieve(const PairArgs& args, const Bounding& bounding) {
    using Shape = SieveShape;
    DYNAMIC_SHARED(uint32_t, shared);
    __shared__ float queries[Shape::QUERIES][4], sums_of_rows[Shape::ROWS][2], thresholds[Shape::QUERIES];

    const int64_t first_query = int64_t(blockIdx.x) * Shape::QUERIES;
    const int64_t first = args.begin + int64_t(blockIdx.y) * Shape::ROWS, dim = args.mu1.stored;
    const float* const ranges = bounding.ranges + (first - bounding.first) / Shape::ROWS * 2 * dim;
    DiagSide<F, S, false> query_side(args, bounding, first_query, args.mu1.rows - 1, ranges);
    DiagSide<F, S, true> row_side(args, bounding, first, args.end - 1, ranges);
    for (int i = threadIdx.x; i < Shape::QUERIES; i += SIEVE_THREADS) {
        thresholds[i] = first_query + i < args.mu1.rows ? threshold(args, first_query + i) : NAN;
    }
    for (int i = threadIdx.x; i < Shape::ROWS; i += SIEVE_THREADS) {
        const int64_t number = (first + i < args.end ? first + i : args.end - 1) - bounding.first;
        for (int n = 0; n < 2; ++n) sums_of_rows[i][n] = bounding.sums[2 * number + n];
    }

    float sums[Shape::DOWN][Shape::ACROSS][4] = {};
    const int64_t steps = (dim + Shape::STEP - 1) / Shape::STEP;
    query_side.load(0), row_side.load(0);
#pragma unroll 1
    for (int64_t part = 0; part < 3 * steps; ++part) {
        if (part % 3 == 0) query_side.weigh(), row_side.weigh();
        // Other warps may still read the other buffer.
        uint32_t* const buffer = shared + (part % 2) * 2 * Shape::BUFFER;
        query_side.store(int(part % 3), buffer), row_side.store(int(part % 3), buffer + Shape::BUFFER);
        __syncthreads();
        if (part % 3 == 2 && part + 1 < 3 * steps) query_side.load(part / 3 + 1), row_side.load(part / 3 + 1);
        add_products(buffer, buffer + Shape::BUFFER, sums);
    }
    query_side.write(queries);
    const float* const products = write_products(sums, shared);

    const double d = double(dim), u = 5.9604644775390625e-08;
    const double share = 2.02 * (9.765625e-4 + 2.384185791015625e-07 + 16 * u + 4 * (3 * d + 1) * u);
    const double smallest = 12 * d * 1.1754943508222875e-38;
    const auto highest = [&](int query, int row) {
        const double spread = queries[query][0], largest = queries[query][1], ratios = queries[query][2];
        const double logs = sums_of_rows[row][0], distance = sums_of_rows[row][1];
        const double slack = share * (spread + largest * distance) + smallest;
        // Where the products are NaN, 0 stands for the quotients, which are never below it.
        const double quotients = fmax(products[query * Shape::PRODUCTS_STRIDE + row] - slack, 0.0);
        const double spare = u * ((d / 8 + 16) * queries[query][3] + 16 * (2 * d + fabs(logs) + fabs(ratios)));
        return -0.5 * (quotients * (1 - (d / 8 + 64) * u) + logs + ratios + d * LOG_2PI - spare);
    };
    const int64_t left = args.end - first;
    sift(args, first_query, int(left < Shape::ROWS ? left : Shape::ROWS), thresholds, highest,
         [&](int row) { return int32_t(row_at(bounding, first + row)); });
}
