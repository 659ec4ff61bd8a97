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

// The score that a pair must reach to be among the best: that of the worst of k known rows, the last one in args.scores
// and args.ids. Where fewer rows are known it is NaN, below which no score is.
__device__ inline float threshold(const PairArgs& args, int64_t q) {
    const int64_t worst = (q + 1) * args.k - 1;
    return args.ids[worst] == NONE ? NAN : static_cast<const float*>(args.scores)[worst];
}

// Products that a thread loads before it uses the first of them.
constexpr int PRODUCTS_AHEAD = 8;
static_assert(PRODUCT_ROWS % PRODUCTS_AHEAD == 0 && PRODUCT_ROWS <= PRODUCT_COLUMNS);

// The queries' numbers that the pairs of a tile take, in shared memory. X is the type in which pairs are computed: no conversion is left to
// each pair, as these take longer than sums.
template <typename X>
struct ProductQueries {
    // Of one query, loaded at once.
    struct alignas(16) Query {
        X norm, uncertainty;
        float power, threshold;
    };
    Query of[PRODUCT_ROWS];

    template <typename T>
    __device__ void load(const ProductArgs& args, int64_t first, int count, bool of_sieve) {
        const int i = int(threadIdx.x);
        if (i < count) {
            const X norm = static_cast<const T*>(args.norms[QUERY])[first + i];
            of[i] = {norm, X(uncertainty_of_query<T>(args.pairs, first + i)), args.powers ? args.powers[first + i] : 1,
                     of_sieve ? threshold(args.pairs, first + i) : 0};
        }
        __syncthreads();
    }
};

// The gallery row of a thread, which it keeps for all queries of its block's tile: PRODUCT_ROWS queries by PRODUCT_COLUMNS rows. All
// threads of a block go through the same queries.
template <typename F, typename S, typename X>
struct ProductColumn {
    using T = typename F::T;
    using Query = typename ProductQueries<X>::Query;
    const ProductArgs& args;
    const ProductQueries<X>& queries;
    int64_t first_query, g;
    int count;   // queries of the tile
    bool there;  // whether there is a gallery row for the thread
    X norm, uncertainty;
    const PerItem* per_item;

    __device__ ProductColumn(const ProductArgs& args, ProductQueries<X>& shared, int64_t tile, bool of_sieve)
        : args(args), queries(shared) {
        first_query = tile * PRODUCT_ROWS;
        const int64_t left = args.pairs.mu1.rows - first_query;
        count = int(left < PRODUCT_ROWS ? left : PRODUCT_ROWS);
        shared.template load<T>(args, first_query, count, of_sieve);
        g = args.pairs.begin + int64_t(blockIdx.x) * PRODUCT_COLUMNS + threadIdx.x;
        there = g < args.pairs.end;
        const int64_t row = there ? g : args.pairs.end - 1;
        norm = static_cast<const T*>(args.norms[GALLERY])[row];
        uncertainty = X(uncertainty_of_gallery<T, S>(args.pairs, row));
        per_item = F::per_item_of(args.pairs, GALLERY, row);
    }
    // Calls body(first, products) for each PRODUCTS_AHEAD queries of the tile, by all threads together. Beyond the last query its
    // product is repeated.
    template <typename Body>
    __device__ void each_few(const Body& body) const {
        const T* next = static_cast<const T*>(args.products) + first_query * args.stride + (there ? g - args.pairs.begin : 0);
        for (int first = 0; first < count; first += PRODUCTS_AHEAD) {
            T found[PRODUCTS_AHEAD];
#pragma unroll
            for (int i = 0; i < PRODUCTS_AHEAD; ++i) {
                found[i] = *next;
                if (first + i + 1 < count) next += args.stride;
            }
            body(first, found);
        }
    }
    // Calls body(i, query, product) for each query of the tile, by all threads together.
    template <typename Body>
    __device__ void each(const Body& body) const {
        each_few([&](int first, const T(&found)[PRODUCTS_AHEAD]) {
#pragma unroll
            for (int i = 0; i < PRODUCTS_AHEAD; ++i) {
                if (first + i >= count) break;
                const Query query = queries.of[first + i];
                body(first + i, query, T(query.power) * found[i]);
            }
        });
    }
    // The numbers of the pair with a query, x being the inner product or, for distances, the squared distance.
    __device__ DotPair pair(int i, const Query& query, T product) const {
        const double n = query.norm, m = norm, x = product;
        return {F::DIFFERENCE ? (n + m) - 2 * x : x, n, m, double(query.uncertainty), double(uncertainty),
                F::per_item_of(args.pairs, QUERY, first_query + i), per_item};
    }
    // Whether a pair's product has the digits that its score needs.
    __device__ static bool is_apart(const DotPair& pair) {
        if (F::DIFFERENCE) return has_digits<T>(pair.x, pair.n + pair.m);
        return (!F::LENGTHS || (in_range<T>(pair.n) && in_range<T>(pair.m))) && is_finite(pair.x);
    }
};

// Calls body(column, tile) for each tile of queries that the block takes, by all of its threads.
template <typename F, typename S, typename X, typename Body>
__device__ inline void each_tile(const ProductArgs& args, bool of_sieve, const Body& body) {
    __shared__ ProductQueries<X> queries;
    for (int64_t tile = blockIdx.y; tile * PRODUCT_ROWS < args.pairs.mu1.rows; tile += gridDim.y) {
        const ProductColumn<F, S, X> column(args, queries, tile, of_sieve);
        body(column, tile);
        __syncthreads();
    }
}

// The score of each lane's pair (q, g) by the pair function; a lane with g < 0 has no pair. Not inlined: few warps come here, and all
// would keep registers for it.
template <typename F>
__device__ __noinline__ typename F::T score_of_rows(const F& f, const PairArgs& args, int64_t q, int64_t g) {
    const Numbers<F> numbers = sum_pairs<F, typename F::T>(f, args, q, g);
    return f.template score<typename F::T>(args, numbers.pair, numbers.query, numbers.item, q, g, g >= 0);
}

// Writes the scores of all pairs [Q, G].
template <typename F>
__device__ void scores_of_products(const F& f, const ProductArgs& args) {
    using T = typename F::T;
    each_tile<F, T, double>(args, false, [&](const ProductColumn<F, T, double>& column, int64_t) {
        T* const scores = static_cast<T*>(args.pairs.scores) + column.first_query * args.pairs.mu2.rows + column.g;
        column.each([&](int i, const auto& query, T product) {
            const DotPair pair = column.pair(i, query, product);
            const bool near = column.there && !column.is_apart(pair);
            T score = near ? T(0) : T(value_of(f.formula, pair));
            if (__any_sync(FULL, near)) {
                const T exact = score_of_rows(f, args.pairs, column.first_query + i, near ? column.g : NONE);
                if (near) score = exact;
            }
            if (column.there) scores[i * args.pairs.mu2.rows] = score;
        });
    });
}

// Writes the factors of all pairs, the masks, and the sums over rows and columns.
template <typename F>
__device__ void weights_of_products(const F& f, const ProductArgs& args) {
    using T = typename F::T;
    constexpr int SUMS = PRODUCT_SUMS, WARPS = PRODUCT_COLUMNS / WARP;
    __shared__ double parts[WARPS][PRODUCT_ROWS][SUMS];
    const int64_t gallery = args.pairs.mu2.rows, words = (gallery + WARP - 1) / WARP;
    const auto other = f.formula.transposed();
    each_tile<F, T, double>(args, false, [&](const ProductColumn<F, T, double>& column, int64_t tile) {
        double of_column[2] = {};
        uint32_t marks = 0;
        column.each([&](int i, const auto& query, T product) {
            const int64_t at = (column.first_query + i) * gallery + column.g;
            const double weight = column.there ? double(static_cast<const T*>(args.weights)[at]) : 0;
            // A weight of 0 adds nothing even where derivatives are NaN or infinite.
            const bool wanted = weight != 0;
            const DotPair pair = column.pair(i, query, product);
            const bool near = wanted && !column.is_apart(pair);
            double factor = 0, sums[SUMS] = {};
            if (wanted && !near) {
                const DotPartials by_query = partials_of(f.formula, pair);
                factor = (F::DIFFERENCE ? -2 : 1) * weight * by_query.x;
                const double shift = F::DIFFERENCE ? factor : 0;
                sums[0] = 2 * weight * by_query.norm - shift, sums[1] = weight * by_query.uncertainty;
                sums[2] = weight * by_query.shared[0], sums[3] = weight * by_query.shared[1];
                if (F::ALIKE) {
                    of_column[0] -= shift, of_column[1] += sums[1];
                } else if (args.columns) {
                    const DotPair turned{pair.x, pair.m, pair.n, pair.w, pair.v, pair.second, pair.first};
                    const DotPartials by_gallery = partials_of(other, turned);
                    of_column[0] += 2 * weight * by_gallery.norm - shift, of_column[1] += weight * by_gallery.uncertainty;
                }
            }
            const uint32_t word = __ballot_sync(FULL, near);
            marks |= uint32_t(near) << i;
            if (lane() == 0 && column.g / WARP < words) {
                args.marks[QUERY][(column.first_query + i) * words + column.g / WARP] = word;
            }
            if (column.there) static_cast<T*>(args.factors)[at] = T(factor);
            const double sum = combined(sums, Sum());
            if (lane() % (WARP / SUMS) == 0) parts[warp()][i][lane() / (WARP / SUMS)] = sum;
        });
        if (column.there) args.marks[GALLERY][tile * gallery + column.g] = marks;
        if (column.there && args.columns) {
            for (int s = 0; s < 2; ++s) args.columns[(tile * gallery + column.g) * 2 + s] = of_column[s];
        }
        __syncthreads();
        const int i = int(threadIdx.x) / SUMS, s = int(threadIdx.x) % SUMS;
        if (i < column.count) {
            double sum = 0;
            for (int w = 0; w < WARPS; ++w) sum += parts[w][i][s];
            args.rows[(int64_t(blockIdx.x) * args.pairs.mu1.rows + column.first_query + i) * SUMS + s] = sum;
        }
    });
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

// The limits of the pairs of a column: the highest, or lowest, score that each can have.
template <typename F, typename S, typename X>
struct Limits {
    const F& f;
    const ProductColumn<F, S, X>& column;
    double slack, smallest;
    float rough_slack, rough_smallest;

    __device__ Limits(const F& f, const ProductColumn<F, S, X>& column, const ProductArgs& args)
        : f(f), column(column), slack(args.slack), smallest(4 * double(args.pairs.mu1.stored) * 1.1754943508222875e-38),
          rough_slack(float(slack) + 16 * 5.9604644775390625e-08f), rough_smallest(float(2 * smallest)) {}

    // The limit in the direction of the sign, 1 for the highest and -1 for the lowest score.
    __device__ double exact(DotPair pair, double sign) const {
        const double by = sign * (slack * (pair.n + pair.m) + smallest);
        pair.x += F::DIFFERENCE ? -by : 0.5 * by;
        // A squared distance is never below 0, so its lower bound need not be either; of NaN it is 0.
        if (F::DIFFERENCE && sign > 0 && !(pair.x > 0)) pair.x = 0;
        return value_of(f.formula, pair) + sign * f.formula.tolerance(pair.v, pair.w);
    }
    // The highest score in single precision; NaN where there is no such limit.
    template <typename Query>
    __device__ float rough(const Query& query, float product) const {
        if constexpr (F::LIMITED) {
            const LimitPair pair{product, query.norm, column.norm, query.uncertainty, column.uncertainty};
            const float limit = f.limit(pair, rough_slack, rough_smallest);
            // A cosine of rows of other lengths is that of scaled rows.
            const bool known = in_range<float>(query.norm) & in_range<float>(column.norm);
            return F::LENGTHS && !known ? INFINITY : limit;
        }
        return NAN;
    }
    // Whether a pair that its limit in single precision has not ruled out cannot be among the best.
    template <typename Query>
    __device__ bool rules_out(int i, const Query& query, float product) const {
        if (F::LENGTHS && !(in_range<float>(query.norm) && in_range<float>(column.norm))) return false;
        if (rough(query, product) >= query.threshold) return false;
        return float(exact(column.pair(i, query, product), 1)) < query.threshold;
    }
};

// Writes to args.pairs.scores [Q, stride] a number for each pair that its score is not below; NaN where there is none.
template <typename F, typename S>
__device__ void lowest_of_products(const F& f, const ProductArgs& args) {
    each_tile<F, S, double>(args, false, [&](const ProductColumn<F, S, double>& column, int64_t) {
        const Limits<F, S, double> limits(f, column, args);
        float* const to = static_cast<float*>(args.pairs.scores) + column.first_query * args.stride + column.g - args.pairs.begin;
        column.each([&](int i, const auto& query, float product) {
            const DotPair pair = column.pair(i, query, product);
            const bool known = !F::LENGTHS || (in_range<float>(pair.n) && in_range<float>(pair.m));
            if (column.there) to[i * args.stride] = known ? float(limits.exact(pair, -1)) : NAN;
        });
    });
}

// Adds the rows of args.begin .. args.end that may be among the best to args.survivors, as many as there is memory for, and
// counts them all.
template <typename F, typename S>
__device__ void sieve(const F& f, const ProductArgs& args) {
    const PairArgs& pairs = args.pairs;
    each_tile<F, S, float>(args, true, [&](const ProductColumn<F, S, float>& column, int64_t) {
        const Limits<F, S, float> limits(f, column, args);
        column.each_few([&](int first, const float(&products)[PRODUCTS_AHEAD]) {
            // Nearly all pairs are ruled out here: a few instructions each, and one vote for all of them.
            uint32_t left = 0;
#pragma unroll
            for (int i = 0; i < PRODUCTS_AHEAD; ++i) {
                const auto query = column.queries.of[first + i];
                const bool out = limits.rough(query, query.power * products[i]) < query.threshold;
                left |= uint32_t(!out) << i;
            }
            if (!column.there) left = 0;
            if (!__any_sync(FULL, left)) return;
#pragma unroll
            for (int i = 0; i < PRODUCTS_AHEAD; ++i) {
                if (first + i >= column.count || !__any_sync(FULL, left >> i & 1)) continue;
                const auto query = column.queries.of[first + i];
                const bool survives = (left >> i & 1) && !limits.rules_out(first + i, query, query.power * products[i]);
                const unsigned all = __ballot_sync(FULL, survives);
                if (!all) continue;
                const int64_t q = column.first_query + first + i;
                int at = 0;
                if (lane() == 0) at = atomicAdd(pairs.counts + q, __popc(all));
                at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane()) - 1));
                if (survives && at < pairs.most_survivors) pairs.survivors[q * pairs.most_survivors + at] = int32_t(column.g);
            }
        });
    });
}
