// Scores of one inner product, from products that a library of matrix products has made: of all pairs, their gradients,
// and the sieve of a search.
//
// Pairs. A squared distance is n - 2 a.b with n = |a|^2 + |b|^2, unless the rows are near each other (below NEAR_ROWS n), where that
// would lose digits: such pairs, and those of rows whose lengths leave the range, are left to the pair function of pairs.cuh,
// as are pairs whose products are not finite. rust/kernels/dot_scores/all_pairs.rs bounds what is left of the error.
//
// Gradients. With x the product or squared distance of a pair, the gradient by the mean a is a sum of factor * b and of a number
// times a. This writes the factors, whose products with the other side's means a library makes, and the sums over rows and columns
// of all other derivatives; the pairs that are left to the pair function have a factor of 0, and a bit in a mask.
//
// Sieve. Products of rows rounded to fewer digits rule out the pairs that cannot be among the best. The survivors are scored by
// the pair function (rerank, pairs.cuh), so that ids and bits are those of every other verb.
//
// Its slack, relative to n + m = |a|^2 + |b|^2 >= 2 |a||b|, with u = 2^-24. Let r be what rounding the rows changes a product by,
// relative to |a||b|: rust/cuda/search.rs says it of each type. Products are added up with "at least single precision", in any order
// and rounded in any direction (PTX ISA, mma). Tensor cores are known to add some products at once, after they cut each of
// them and the sum so far at 2^-23 of the largest; so a sum of D products is taken to err by another (D + 1) 2^-22 |a||b|. The
// pair function's own sum of D squares of differences errs by (4 ceil(D/128) + 8) u x with x <= 2 (n + m), its inner product
// by less; norms by (4 ceil(D/128) + 5) u. With ceil(D/128) < D/128 + 1, all of it is below
//   (r + (D + 1) 4u + (3 D/32 + 33) u) (n + m)
// on a squared distance, and half of that on an inner product; a factor 1.01 covers products of such terms (for
// D < 2^16). Numbers below 2^-126 may be flushed to 0: 4 D 2^-126 covers that.
//
// Proof that no row is lost: let x be the product or distance of the pair function, and y the one computed here, moved
// by the slack towards higher scores. The pair function's score is T(value(x)). `value` as computed is monotone in x up
// to the formula's tolerance, and rounding to T is monotone. So if T(value(y) + tolerance) is below the score of the
// worst of k known rows, or below k lower limits made in the same way, so is the row's score. A NaN rules nothing out.
#pragma once

#include "../formulas/dot.cuh"
#include "backward.cuh"

// As in rust/kernels/dot_scores/all_pairs.rs.
constexpr double NEAR_ROWS = 1.0 / 16;

// The tiles of a block: PRODUCT_ROWS queries from first_query on and PRODUCT_COLUMNS gallery rows, of which a thread takes one.
// Its warps are as many as that takes, and all threads of a block go through the same queries.
struct ProductTile {
    int64_t first_query, last_query, g;
    bool there;  // whether there is a gallery row for the thread

    __device__ ProductTile(const ProductArgs& args, int64_t rows) {
        first_query = rows * PRODUCT_ROWS;
        const int64_t end = first_query + PRODUCT_ROWS;
        last_query = end < args.pairs.mu1.rows ? end : args.pairs.mu1.rows;
        g = args.pairs.begin + int64_t(blockIdx.x) * PRODUCT_COLUMNS + threadIdx.x;
        there = g < args.pairs.end;
    }
};

// The item of the thread's column, which it keeps for all queries of a tile.
template <typename F, typename S>
struct ProductColumn {
    using T = typename F::T;
    const ProductArgs& args;
    int64_t g;
    T norm;
    double uncertainty;
    const PerItem* per_item;

    __device__ ProductColumn(const ProductArgs& args, const ProductTile& tile) : args(args) {
        g = tile.there ? tile.g : args.pairs.end - 1;
        norm = static_cast<const T*>(args.norms[GALLERY])[g];
        uncertainty = uncertainty_of_gallery<T, S>(args.pairs, g);
        per_item = F::per_item_of(args.pairs, GALLERY, g);
    }
    // The product with a query, as it was made.
    __device__ T product(int64_t q) const {
        const T x = static_cast<const T*>(args.products)[q * args.stride + g - args.pairs.begin];
        return args.powers ? T(args.powers[q]) * x : x;
    }
    // The numbers of the pair with a query, x being the inner product or, for distances, the squared distance.
    __device__ DotPair pair(int64_t q) const {
        const double n = static_cast<const T*>(args.norms[QUERY])[q], x = product(q);
        return {F::DIFFERENCE ? (n + norm) - 2 * x : x, n, double(norm), uncertainty_of_query<T>(args.pairs, q), uncertainty,
                F::per_item_of(args.pairs, QUERY, q), per_item};
    }
    // Whether a pair's product has the digits that its score needs.
    __device__ static bool is_apart(const DotPair& pair) {
        constexpr double TINY = sizeof(T) == 4 ? 16 * 0x1p-102 : 16 * 0x1p-969;
        if (F::DIFFERENCE) return pair.x >= NEAR_ROWS * (pair.n + pair.m) + TINY && is_finite(pair.x);
        return (!F::LENGTHS || (in_range<T>(pair.n) && in_range<T>(pair.m))) && is_finite(pair.x);
    }
};

// Writes the scores of all pairs [Q, G].
template <typename F>
__device__ void scores_of_products(const F& f, const ProductArgs& args) {
    using T = typename F::T;
    T* const scores = static_cast<T*>(args.pairs.scores);
    for (int64_t rows = blockIdx.y; rows * PRODUCT_ROWS < args.pairs.mu1.rows; rows += gridDim.y) {
        const ProductTile tile(args, rows);
        const ProductColumn<F, T> column(args, tile);
        for (int64_t q = tile.first_query; q < tile.last_query; ++q) {
            const DotPair pair = column.pair(q);
            const bool near = tile.there && !column.is_apart(pair);
            T score = near ? T(0) : T(value_of(f.formula, pair));
            if (__any_sync(FULL, near)) {
                const Numbers<F> numbers = sum_pairs<F, T>(f, args.pairs, q, near ? tile.g : NONE);
                const T exact = f.template score<T>(args.pairs, numbers.pair, numbers.query, numbers.item, q, tile.g, near);
                if (near) score = exact;
            }
            if (tile.there) scores[q * args.pairs.mu2.rows + tile.g] = score;
        }
    }
}

// Writes the factors of all pairs, the masks, and the sums over rows and columns.
template <typename F>
__device__ void weights_of_products(const F& f, const ProductArgs& args) {
    using T = typename F::T;
    constexpr int SUMS = 4, WARPS = PRODUCT_COLUMNS / WARP;
    __shared__ double parts[WARPS][PRODUCT_ROWS][SUMS];
    const int64_t gallery = args.pairs.mu2.rows, words = (gallery + WARP - 1) / WARP;
    const auto other = f.formula.transposed();
    for (int64_t rows = blockIdx.y; rows * PRODUCT_ROWS < args.pairs.mu1.rows; rows += gridDim.y) {
        const ProductTile tile(args, rows);
        const ProductColumn<F, T> column(args, tile);
        double of_column[2] = {};
        uint32_t marks = 0;
        for (int64_t q = tile.first_query; q < tile.last_query; ++q) {
            const int64_t at = q * gallery + tile.g;
            const double weight = tile.there ? double(static_cast<const T*>(args.weights)[at]) : 0;
            // A weight of 0 adds nothing even where derivatives are NaN or infinite.
            const bool wanted = weight != 0;
            const DotPair pair = column.pair(q);
            const bool near = wanted && !column.is_apart(pair);
            double factor = 0, sums[SUMS] = {};
            if (wanted && !near) {
                const DotPartials by_query = partials_of(f.formula, pair);
                factor = (F::DIFFERENCE ? -2 : 1) * weight * by_query.x;
                const double shift = F::DIFFERENCE ? factor : 0;
                sums[0] = 2 * weight * by_query.norm - shift, sums[1] = weight * by_query.uncertainty;
                sums[2] = weight * by_query.shared[0], sums[3] = weight * by_query.shared[1];
                if (args.columns) {
                    const DotPair turned{pair.x, pair.m, pair.n, pair.w, pair.v, pair.second, pair.first};
                    const DotPartials by_gallery = partials_of(other, turned);
                    of_column[0] += 2 * weight * by_gallery.norm - shift, of_column[1] += weight * by_gallery.uncertainty;
                }
            }
            const int row = int(q - tile.first_query);
            const uint32_t word = __ballot_sync(FULL, near);
            marks |= uint32_t(near) << row;
            if (lane() == 0 && tile.g / WARP < words) args.marks[QUERY][q * words + tile.g / WARP] = word;
            if (tile.there) static_cast<T*>(args.factors)[at] = T(factor);
            const double sum = combined(sums, Sum());
            if (lane() % (WARP / SUMS) == 0) parts[warp()][row][lane() / (WARP / SUMS)] = sum;
        }
        if (tile.there) args.marks[GALLERY][rows * gallery + tile.g] = marks;
        if (tile.there && args.columns) {
            for (int s = 0; s < 2; ++s) args.columns[(rows * gallery + tile.g) * 2 + s] = of_column[s];
        }
        __syncthreads();
        const int64_t q = tile.first_query + threadIdx.x / SUMS;
        if (q < tile.last_query) {
            double sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += parts[w][threadIdx.x / SUMS][threadIdx.x % SUMS];
            args.rows[(int64_t(blockIdx.x) * args.pairs.mu1.rows + q) * SUMS + threadIdx.x % SUMS] = sum;
        }
        __syncthreads();
    }
}

// -- sieve ------------------------------------------------------------------------------------------------------------

// The squared norms of rows, to the pair function's bits; and, for HALF, the rows multiplied by powers of two that bring their
// greatest number between 1 and 2, so that halves hold them. A warp takes a row.
template <typename T, typename S, typename Half>
__device__ void norms_of_rows(const NormArgs& args) {
    const int64_t dim = args.rows.stored, step = int64_t(gridDim.x) * (blockDim.x / WARP);
    for (int64_t i = int64_t(blockIdx.x) * (blockDim.x / WARP) + warp(); i < args.rows.rows; i += step) {
        const S* const row = row_of<S>(args.rows, i);
        const bool vector = dim % 4 == 0 && aligned<S>(args.rows, dim);
        T sum = 0, greatest = 0;
        for (int64_t d = 4 * lane(); d < dim; d += 4 * WARP) {
            const Four<T> x = vector ? four<true, T>(row, dim, d, dim, T(0)) : four<false, T>(row, dim, d, dim, T(0));
            for (int j = 0; j < 4; ++j) sum = fma(x.x[j], x.x[j], sum), greatest = fabs(x.x[j]) > greatest ? fabs(x.x[j]) : greatest;
        }
        sum = warp_sum(sum);
        if (lane() == 0) static_cast<T*>(args.norms)[i] = sum;
        if constexpr (sizeof(Half) == 2) {
            greatest = warp_greatest(greatest);
            const int power = greatest > 0 && is_finite(greatest) ? -ilogb(greatest) : 0;
            for (int64_t d = lane(); d < dim; d += WARP) {
                static_cast<Half*>(args.narrow)[i * dim + d] = narrowed<Half>(ldexpf(row[d], power));
            }
            if (lane() == 0) args.powers[i] = ldexpf(1, -power);
        }
    }
}

// What is the same of all queries of a tile: the highest, or lowest, score that a pair can have.
template <typename F, typename S>
struct Limits {
    const F& f;
    const ProductColumn<F, S>& column;
    double slack, smallest;

    __device__ Limits(const F& f, const ProductColumn<F, S>& column, const ProductArgs& args)
        : f(f), column(column), slack(args.slack), smallest(4 * double(args.pairs.mu1.stored) * 1.1754943508222875e-38) {}

    // The limit in the direction of the sign, 1 for the highest and -1 for the lowest score.
    __device__ double exact(DotPair pair, double sign) const {
        const double by = sign * (slack * (pair.n + pair.m) + smallest);
        pair.x += F::DIFFERENCE ? -by : 0.5 * by;
        // A squared distance is never below 0, so its lower bound need not be either; of NaN it is 0.
        if (F::DIFFERENCE && sign > 0 && !(pair.x > 0)) pair.x = 0;
        return value_of(f.formula, pair) + sign * f.formula.tolerance(pair.v, pair.w);
    }
    // Whether a pair cannot be among the best, given the score of the worst known one.
    __device__ bool rules_out(int64_t q, float threshold) const {
        const ProductArgs& args = column.args;
        const float n = static_cast<const float*>(args.norms[QUERY])[q], m = column.norm, u = 5.9604644775390625e-08f;
        // A cosine of rows of other lengths is that of scaled rows.
        if (F::LENGTHS && !(in_range<float>(n) && in_range<float>(m))) return false;
        if constexpr (F::LIMITED) {
            const LimitPair pair{column.product(q), n, m, float(uncertainty_of_query<float>(args.pairs, q)),
                                 float(column.uncertainty)};
            // Most pairs are ruled out by it, and few warps go on to double precision.
            if (f.limit(pair, float(slack) + 16 * u, float(2 * smallest)) < threshold) return true;
        }
        return float(exact(column.pair(q), 1)) < threshold;
    }
};

// Writes to args.pairs.scores [Q, stride] a number for each pair that its score is not below; NaN where there is none.
template <typename F, typename S>
__device__ void lowest_of_products(const F& f, const ProductArgs& args) {
    for (int64_t rows = blockIdx.y; rows * PRODUCT_ROWS < args.pairs.mu1.rows; rows += gridDim.y) {
        const ProductTile tile(args, rows);
        const ProductColumn<F, S> column(args, tile);
        const Limits<F, S> limits(f, column, args);
        for (int64_t q = tile.first_query; q < tile.last_query && tile.there; ++q) {
            const DotPair pair = column.pair(q);
            const bool known = !F::LENGTHS || (in_range<float>(pair.n) && in_range<float>(pair.m));
            float* const to = static_cast<float*>(args.pairs.scores) + q * args.stride + tile.g - args.pairs.begin;
            *to = known ? float(limits.exact(pair, -1)) : NAN;
        }
    }
}

// The score that a pair must reach to be among the best: that of the worst of k known rows, the last one in args.scores
// and args.ids. Where fewer rows are known it is NaN, below which no score is.
__device__ inline float threshold(const PairArgs& args, int64_t q) {
    const int64_t worst = (q + 1) * args.k - 1;
    return args.ids[worst] == NONE ? NAN : static_cast<const float*>(args.scores)[worst];
}

// Adds the rows of args.begin .. args.end that may be among the best to args.survivors, as many as there is memory for, and
// counts them all.
template <typename F, typename S>
__device__ void sieve(const F& f, const ProductArgs& args) {
    const PairArgs& pairs = args.pairs;
    for (int64_t rows = blockIdx.y; rows * PRODUCT_ROWS < pairs.mu1.rows; rows += gridDim.y) {
        const ProductTile tile(args, rows);
        const ProductColumn<F, S> column(args, tile);
        const Limits<F, S> limits(f, column, args);
        for (int64_t q = tile.first_query; q < tile.last_query; ++q) {
            const bool survives = tile.there && !limits.rules_out(q, threshold(pairs, q));
            const unsigned all = __ballot_sync(FULL, survives);
            if (!all) continue;
            int at = 0;
            if (lane() == 0) at = atomicAdd(pairs.counts + q, __popc(all));
            at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane()) - 1));
            if (survives && at < pairs.most_survivors) pairs.survivors[q * pairs.most_survivors + at] = int32_t(tile.g);
        }
    }
}
