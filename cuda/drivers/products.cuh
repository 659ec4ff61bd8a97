// Scores of one inner product, from products that a library of matrix products has made: of all pairs, their gradients,
// and the sieve of a search.
//
// Rows. Where a score depends on the distance of the means alone, a mean of some rows of the gallery is subtracted from all: of rows with
// a large common mean, products would tell no distance. Products and norms are of such copies, the pair function is of the rows themselves.
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
// by less; norms by (4 ceil(D/128) + 5) u. Where a mean is subtracted, each difference a' errs by u |a'|, and a squared distance by
// 2 |a' - b'| u (|a'| + |b'|) and less than 4 u more, below 8 u (n + m). With ceil(D/128) < D/128 + 1, all of it is below
//   (r + (D + 1) 4u + (3 D/32 + 41) u) (n + m)
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

// The numbers of a tile of queries that its pairs take, in shared memory. X is the type in which pairs are computed: no conversion is left
// to each pair, as these take longer than sums.
template <typename X>
struct ProductQueries {
    // Of one query, loaded at once.
    struct alignas(16) Query {
        X norm, uncertainty;
        float power, threshold, alone;
    };
    Query of[PRODUCT_ROWS];
};

// PRODUCT_ROWS queries, which all threads of a block go through together.
template <typename F, typename S, typename X>
struct ProductTile {
    using T = typename F::T;
    const ProductArgs& args;
    const ProductQueries<X>& queries;
    int64_t first_query;
    int count;

    __device__ ProductTile(const F& f, const ProductArgs& args, ProductQueries<X>& shared, int64_t tile, bool of_sieve)
        : args(args), queries(shared), first_query(tile * PRODUCT_ROWS) {
        const int64_t left = args.pairs.mu1.rows - first_query;
        count = int(left < PRODUCT_ROWS ? left : PRODUCT_ROWS);
        const int i = int(threadIdx.x);
        if (i < PRODUCT_ROWS) {
            // Beyond the last query it is repeated.
            const int64_t q = row(i);
            const X norm = static_cast<const T*>(args.norms[QUERY])[q];
            const T uncertainty = uncertainty_of_query<T>(args.pairs, q);
            shared.of[i] = {norm, X(uncertainty), args.powers[QUERY] ? args.powers[QUERY][q] : 1, of_sieve ? threshold(args.pairs, q) : 0,
                            f.formula.alone(uncertainty, F::per_item_of(args.pairs, QUERY, q))};
        }
        __syncthreads();
    }
    // The row of a query, of the last one beyond it.
    __device__ int64_t row(int i) const { return first_query + (i < count ? i : count - 1); }
    // Calls body(first, products) for each AHEAD queries: products[i][j] is that of query first + i and of the j-th of COLUMNS columns,
    // `apart` from each other. Those of the next queries are loaded before. Beyond the last query its products are repeated.
    template <int AHEAD, int COLUMNS, typename Body>
    __device__ void each_few(int64_t column, int64_t apart, const Body& body) const {
        const T* next = static_cast<const T*>(args.products) + first_query * args.stride + column;
        T loaded[AHEAD][COLUMNS];
        const auto load = [&](int first) {
            const auto read = [&](int i) {
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) loaded[i][j] = next[j * apart];
            };
            if (first + AHEAD < count) {
#pragma unroll
                for (int i = 0; i < AHEAD; ++i, next += args.stride) read(i);
            } else {
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    read(i);
                    if (first + i + 1 < count) next += args.stride;
                }
            }
        };
        load(0);
        for (int first = 0; first < count; first += AHEAD) {
            T products[AHEAD][COLUMNS];
            memcpy(products, loaded, sizeof products);
            if (first + AHEAD < count) load(first + AHEAD);
            body(first, products);
        }
    }
};

// A gallery row of a thread, which it keeps for all queries of a tile.
template <typename F, typename S, typename X>
struct ProductColumn {
    using T = typename F::T;
    const ProductTile<F, S, X>& tile;
    int64_t g;
    bool there;  // whether there is such a gallery row
    X norm, uncertainty;
    float power, alone;

    __device__ ProductColumn(const F& f, const ProductTile<F, S, X>& tile, int64_t column)
        : tile(tile), g(tile.args.pairs.begin + column), there(g < tile.args.pairs.end) {
        norm = static_cast<const T*>(tile.args.norms[GALLERY])[row()];
        power = tile.args.powers[GALLERY] ? tile.args.powers[GALLERY][row()] : 1;
        const T uncertainty_of_row = uncertainty_of_gallery<T, S>(tile.args.pairs, row());
        uncertainty = X(uncertainty_of_row), alone = f.formula.alone(uncertainty_of_row, per_item());
    }
    // The row, of the last one beyond it.
    __device__ int64_t row() const { return there ? g : tile.args.pairs.end - 1; }
    __device__ const PerItem* per_item() const { return F::per_item_of(tile.args.pairs, GALLERY, row()); }
    // Where its products are.
    __device__ int64_t at() const { return there ? g - tile.args.pairs.begin : 0; }
    // The numbers of the pair with a query, x being the inner product or, for distances, the squared distance.
    __device__ DotPair pair(int i, T product) const {
        const auto query = tile.queries.of[i];
        if (tile.args.powers[QUERY]) product *= T(query.power);
        if (tile.args.powers[GALLERY]) product *= T(power);
        const double n = query.norm, m = norm, x = product;
        return {F::DIFFERENCE ? (n + m) - 2 * x : x, n, m, double(query.uncertainty), double(uncertainty),
                F::per_item_of(tile.args.pairs, QUERY, tile.row(i)),
                per_item()};
    }
    // Whether a pair's product has the digits that its score needs.
    __device__ static bool is_apart(const DotPair& pair) {
        if (F::DIFFERENCE) return has_digits<T>(pair.x, pair.n + pair.m);
        return (!F::LENGTHS || (in_range<T>(pair.n) && in_range<T>(pair.m))) && is_finite(pair.x);
    }
};

// Calls body(tile, number) for each tile of queries that the block takes, by all of its threads.
template <typename F, typename S, typename X, typename Body>
__device__ inline void each_tile(const F& f, const ProductArgs& args, bool of_sieve, const Body& body) {
    __shared__ ProductQueries<X> queries;
    for (int64_t number = blockIdx.y; number * PRODUCT_ROWS < args.pairs.mu1.rows; number += gridDim.y) {
        body(ProductTile<F, S, X>(f, args, queries, number, of_sieve), number);
        __syncthreads();
    }
}

// The column of a thread, of kernels that have one.
__device__ inline int64_t only_column() { return int64_t(blockIdx.x) * PRODUCT_COLUMNS + threadIdx.x; }

// The score of each lane's pair (q, g) by the pair function, or of a lane with g < 0 by the formula with its limits. Not inlined: few
// warps come here, and all would keep registers for it.
template <typename F>
__device__ __noinline__ typename F::T score_alone(F f, const PairArgs& args, DotPair pair, int64_t q, int64_t g) {
    using T = typename F::T;
    const Numbers<F> numbers = sum_pairs<F, T>(f, args, q, g);
    const T exact = f.template score<T>(args, numbers.pair, numbers.query, numbers.item, q, g, g >= 0);
    return g >= 0 ? exact : T(value_of(f.formula, pair));
}

// Writes the scores of all pairs [Q, G].
template <typename F>
__device__ void scores_of_products(const F& f, const ProductArgs& args) {
    using T = typename F::T;
    constexpr int AT_ONCE = F::AT_ONCE;
    each_tile<F, T, double>(f, args, false, [&](const auto& tile, int64_t) {
        const ProductColumn<F, T, double> column(f, tile, only_column());
        T* to = static_cast<T*>(args.pairs.scores) + tile.first_query * args.pairs.mu2.rows + column.g;
        tile.template each_few<AT_ONCE, 1>(column.at(), 0, [&](int first, const T(&products)[AT_ONCE][1]) {
            T scores[AT_ONCE];
            uint32_t near = 0, left = 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const DotPair pair = column.pair(first + i, products[i][0]);
                const bool there = column.there & (first + i < tile.count), is_near = !column.is_apart(pair);
                scores[i] = T(f.formula.value(pair));
                near |= uint32_t(there & is_near) << i, left |= uint32_t(there & (is_near | (scores[i] != scores[i]))) << i;
            }
            if (__any_sync(FULL, left)) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    if (!__any_sync(FULL, left >> i & 1)) continue;
                    const DotPair pair = column.pair(first + i, products[i][0]);
                    const T score =
                        score_alone<F>(f, args.pairs, pair, tile.row(first + i), near >> i & 1 ? column.g : NONE);
                    if (left >> i & 1) scores[i] = score;
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i, to += args.pairs.mu2.rows) {
                if (column.there && first + i < tile.count) *to = scores[i];
            }
        });
    });
}

// The weights of a thread's pairs with some queries, and what their derivatives add to the factors and to the sums of each query.
template <typename F, int QUERIES, int SUMS>
struct WeightedPairs {
    using T = typename F::T;
    T weights[QUERIES], factors[QUERIES] = {}, sums[QUERIES * SUMS] = {};

    // Adds the derivatives of the pair with query i, if it counts, to these and to the sums of the column.
    __device__ void add(int i, bool counts, const DotPartials& by_query, const DotPartials& by_gallery, double (&of_column)[2]) {
        const auto times = [&](double partial) { return counts ? weights[i] * partial : 0; };
        const double factor = (F::DIFFERENCE ? -2 : 1) * times(by_query.x), shift = F::DIFFERENCE ? factor : 0;
        const double uncertainty = times(by_query.uncertainty);
        factors[i] += T(factor);
        sums[i * SUMS] += T(2 * times(by_query.norm) - shift), sums[i * SUMS + 1] += T(uncertainty);
        for (int s = 2; s < SUMS; ++s) sums[i * SUMS + s] += T(times(by_query.shared[s - 2]));
        of_column[0] += 2 * times(by_gallery.norm) - shift;
        of_column[1] += F::ALIKE ? uncertainty : times(by_gallery.uncertainty);
    }
};

// Adds up the SUMS sums of each of `count` queries over the warps of a block, parts [warps, PRODUCT_ROWS, SUMS].
template <int SUMS, typename T>
__device__ inline void write_sums(const T* parts, int count, double* to) {
    const int i = int(threadIdx.x) / PRODUCT_SUMS, s = int(threadIdx.x) % PRODUCT_SUMS;
    if (i >= count) return;
    double sum = 0;
    for (int w = 0; w < PRODUCT_COLUMNS / WARP && s < SUMS; ++w) sum += parts[(w * PRODUCT_ROWS + i) * SUMS + s];
    to[i * PRODUCT_SUMS + s] = sum;
}

// The same pair, seen from the gallery.
__device__ inline DotPair turned(const DotPair& pair) {
    return {pair.x, pair.m, pair.n, pair.w, pair.v, pair.second, pair.first};
}

// Writes the factors of all pairs, the masks, and the sums over rows and columns.
template <typename F>
__device__ void weights_of_products(const F& f, const ProductArgs& args) {
    using T = typename F::T;
    // A formula of the distance and the sum of the uncertainties has no other derivatives; others take twice the registers.
    constexpr int AT_ONCE = F::ALIKE ? F::AT_ONCE : (F::AT_ONCE + 1) / 2;
    constexpr int SUMS = F::ALIKE ? 2 : PRODUCT_SUMS;
    __shared__ T parts[PRODUCT_COLUMNS / WARP][PRODUCT_ROWS][SUMS];
    const int64_t gallery = args.pairs.mu2.rows, words = (gallery + WARP - 1) / WARP;
    const auto other = f.formula.transposed();
    each_tile<F, T, double>(f, args, false, [&](const auto& tile, int64_t number) {
        const ProductColumn<F, T, double> column(f, tile, only_column());
        const int64_t start = tile.first_query * gallery + column.g;
        double of_column[2] = {};
        uint32_t marks = 0;
        // A pair's weight lies beside its product, in another matrix of the same shape.
        const int64_t apart = static_cast<const T*>(args.weights) - static_cast<const T*>(args.products);
        tile.template each_few<AT_ONCE, 2>(column.at(), apart, [&](int first, const T(&loaded)[AT_ONCE][2]) {
            WeightedPairs<F, AT_ONCE, SUMS> found;
            const bool both = !F::ALIKE && args.columns;
            uint32_t left = 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                found.weights[i] = column.there && first + i < tile.count ? loaded[i][1] : 0;
                const DotPair pair = column.pair(first + i, loaded[i][0]);
                // A weight of 0 adds nothing even where derivatives are NaN or infinite.
                const bool wanted = found.weights[i] != 0, near = wanted & !column.is_apart(pair);
                const DotPartials by_query = f.formula.partials(pair);
                const DotPartials by_gallery = both ? other.partials(turned(pair)) : DotPartials{};
                const double all = by_query.x + by_query.norm + by_query.uncertainty + by_query.shared[0] + by_query.shared[1] +
                                   by_gallery.norm + by_gallery.uncertainty;
                const bool finite = is_finite(all), counts = wanted & !near;
                found.add(i, counts & finite, by_query, by_gallery, of_column);
                marks |= uint32_t(near) << (first + i), left |= uint32_t(counts & !finite) << i;
            }
            if (__any_sync(FULL, left)) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    if (!__any_sync(FULL, left >> i & 1)) continue;
                    const DotPair pair = column.pair(first + i, loaded[i][0]);
                    const DotPartials by_gallery = both ? partials_of(other, turned(pair)) : DotPartials{};
                    found.add(i, left >> i & 1, partials_of(f.formula, pair), by_gallery, of_column);
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (first + i >= tile.count) break;
                const uint32_t word = __ballot_sync(FULL, marks >> (first + i) & 1);
                if (lane() == 0 && column.g / WARP < words) {
                    args.marks[QUERY][(tile.first_query + first + i) * words + column.g / WARP] = word;
                }
                if (column.there) static_cast<T*>(args.factors)[start + (first + i) * gallery] = found.factors[i];
            }
            // Lane l has sum l / EACH of the first query on.
            constexpr int EACH = WARP / (AT_ONCE * SUMS);
            const T sum = combined(found.sums, Sum());
            if (lane() % EACH == 0) parts[warp()][first + lane() / EACH / SUMS][lane() / EACH % SUMS] = sum;
        });
        if (column.there) args.marks[GALLERY][number * gallery + column.g] = marks;
        if (column.there && args.columns) {
            for (int s = 0; s < 2; ++s) args.columns[(number * gallery + column.g) * 2 + s] = of_column[s];
        }
        __syncthreads();
        write_sums<SUMS>(&parts[0][0][0], tile.count, args.rows + (blockIdx.x * args.pairs.mu1.rows + tile.first_query) * PRODUCT_SUMS);
    });
}

// -- sieve ------------------------------------------------------------------------------------------------------------

// The lane's four elements d .. d + 3 of a row, less the mean of the rows that are given for that: numbers that are not finite count as 0
// in it.
template <typename T, typename S>
__device__ inline Four<T> centred(const NormArgs& args, const S* row, bool vector, int d, int dim) {
    const auto load = [&](const S* from) {
        return vector ? four<true, T>(from, dim, d, dim, T(0)) : four<false, T>(from, dim, d, dim, T(0));
    };
    Four<T> x = load(row), sum = {};
    for (int r = 0; r < int(args.like.rows); ++r) {
        const Four<T> y = load(row_of<S>(args.like, r));
        for (int j = 0; j < 4; ++j) sum.x[j] += is_finite(y.x[j]) ? y.x[j] : T(0);
    }
    for (int j = 0; j < 4 && args.like.rows; ++j) x.x[j] -= sum.x[j] / T(args.like.rows);
    return x;
}

// The squared norms of rows, to the pair function's bits where no mean is subtracted; and copies of the rows, or, for HALF, the rows
// multiplied by powers of two that bring their greatest number between 1 and 2, so that halves hold them. A warp takes a row; the grid is two
// blocks high for two sides.
template <typename T, typename S, typename Half>
__device__ void norms_of_rows(const NormArgs& args) {
    const DeviceMatrix& rows = args.rows[blockIdx.y];
    T* const copies = static_cast<T*>(args.copies[blockIdx.y]);
    const int64_t dim = rows.stored, step = int64_t(gridDim.x) * (blockDim.x / WARP);
    const bool vector = dim % 4 == 0 && aligned<S>(rows, dim) && (!args.like.rows || aligned<S>(args.like, dim));
    for (int64_t i = int64_t(blockIdx.x) * (blockDim.x / WARP) + warp(); i < rows.rows; i += step) {
        const S* const row = row_of<S>(rows, i);
        T sum = 0, greatest = 0;
        for (int64_t d = 4 * lane(); d < dim; d += 4 * WARP) {
            const Four<T> x = centred<T>(args, row, vector, d, dim);
            for (int j = 0; j < 4; ++j) sum = fma(x.x[j], x.x[j], sum), greatest = fabs(x.x[j]) > greatest ? fabs(x.x[j]) : greatest;
        }
        sum = warp_sum(sum);
        if (lane() == 0) static_cast<T*>(args.norms[blockIdx.y])[i] = sum;
        // Each element of the copy, by `write`.
        const auto each = [&](const auto& write) {
            for (int64_t d = 4 * lane(); d < dim; d += 4 * WARP) {
                const Four<T> x = centred<T>(args, row, vector, d, dim);
                for (int j = 0; j < 4 && d + j < dim; ++j) write(i * dim + d + j, x.x[j]);
            }
        };
        if constexpr (sizeof(Half) == 2) {
            greatest = warp_greatest(greatest);
            const int power = greatest > 0 && is_finite(greatest) ? -ilogb(greatest) : 0;
            each([&](int64_t at, T x) { static_cast<Half*>(args.narrow)[at] = narrowed<Half>(ldexpf(x, power)); });
            if (lane() == 0) args.powers[i] = ldexpf(1, -power);
        } else if (copies) {
            each([&](int64_t at, T x) { copies[at] = is_finite(sum) ? x : T(0); });
        }
    }
}

// The limits of pairs: the highest, or lowest, score that each can have.
template <typename F, typename S, typename X>
struct Limits {
    using Column = ProductColumn<F, S, X>;
    const F& f;
    double slack, smallest;
    float rough_slack, rough_smallest;

    __device__ Limits(const F& f, const ProductArgs& args)
        : f(f), slack(args.slack), smallest(4 * double(args.pairs.mu1.stored) * 1.1754943508222875e-38),
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
    __device__ float rough(const Column& column, const Query& query, float product) const {
        if constexpr (F::LIMITED) {
            const LimitPair pair{product, query.norm, column.norm, query.uncertainty, column.uncertainty, query.alone, column.alone};
            const float limit = f.limit(pair, column.power, rough_slack, rough_smallest);
            // A cosine of rows of other lengths is that of scaled rows.
            const bool known = in_range<float>(query.norm) & in_range<float>(column.norm);
            return F::LENGTHS && !known ? INFINITY : limit;
        }
        return NAN;
    }
    // Whether a pair that its limit in single precision has not ruled out cannot be among the best.
    __device__ bool rules_out(const Column& column, int i, float product) const {
        const auto query = column.tile.queries.of[i];
        if (F::LENGTHS && !(in_range<float>(query.norm) && in_range<float>(column.norm))) return false;
        if (rough(column, query, query.power * product) >= query.threshold) return false;
        return float(exact(column.pair(i, product), 1)) < query.threshold;
    }
};

// Writes to args.pairs.scores [Q, stride] a number for each pair that its score is not below; NaN where there is none.
template <typename F, typename S>
__device__ void lowest_of_products(const F& f, const ProductArgs& args) {
    constexpr int AHEAD = 8;
    const Limits<F, S, double> limits(f, args);
    each_tile<F, S, double>(f, args, false, [&](const auto& tile, int64_t) {
        const ProductColumn<F, S, double> column(f, tile, only_column());
        float* const to = static_cast<float*>(args.pairs.scores) + tile.first_query * args.stride + column.at();
        tile.template each_few<AHEAD, 1>(column.at(), 0, [&](int first, const float(&products)[AHEAD][1]) {
            for (int i = 0; i < AHEAD && first + i < tile.count; ++i) {
                const DotPair pair = column.pair(first + i, products[i][0]);
                const bool known = !F::LENGTHS || (in_range<float>(pair.n) && in_range<float>(pair.m));
                if (column.there) to[(first + i) * args.stride] = known ? float(limits.exact(pair, -1)) : NAN;
            }
        });
    });
}

// Adds the row of each lane that survives to those of a query, as many as there is memory for, and counts them all.
__device__ __noinline__ void add_survivors(const PairArgs& args, int64_t q, int64_t g, bool survives) {
    const unsigned all = __ballot_sync(FULL, survives);
    if (!all) return;
    int at = 0;
    if (lane() == 0) at = atomicAdd(args.counts + q, __popc(all));
    at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane()) - 1));
    if (survives && at < args.most_survivors) args.survivors[q * args.most_survivors + at] = int32_t(g);
}

// Adds the rows of args.begin .. args.end that may be among the best to args.survivors. Nearly all pairs are ruled out by a few instructions
// each, so that loads are the rest: a thread keeps several rows, for all of which it reads a query's numbers once. There is memory for
// the products of whole blocks, so that those beyond the last row need no check.
template <typename F, typename S>
__device__ void sieve(const F& f, const ProductArgs& args) {
    constexpr int AHEAD = 4, COLUMNS = SIEVE_COLUMNS;
    static_assert(PRODUCT_ROWS % AHEAD == 0 && COLUMNS == 4);
    const Limits<F, S, float> limits(f, args);
    each_tile<F, S, float>(f, args, true, [&](const auto& tile, int64_t) {
        using Column = ProductColumn<F, S, float>;
        const int64_t at = int64_t(blockIdx.x) * COLUMNS * PRODUCT_COLUMNS + threadIdx.x;
        const Column columns[COLUMNS] = {{f, tile, at}, {f, tile, at + PRODUCT_COLUMNS}, {f, tile, at + 2 * PRODUCT_COLUMNS},
                                         {f, tile, at + 3 * PRODUCT_COLUMNS}};
        tile.template each_few<AHEAD, COLUMNS>(at, PRODUCT_COLUMNS, [&](int first, const float(&products)[AHEAD][COLUMNS]) {
            uint32_t left = 0;
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const auto query = tile.queries.of[first + i];
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const bool out = limits.rough(columns[j], query, query.power * products[i][j]) < query.threshold;
                    left |= uint32_t(!out) << (i * COLUMNS + j);
                }
            }
            if (!__any_sync(FULL, left)) return;
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (first + i >= tile.count) break;
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const bool mine = columns[j].there && (left >> (i * COLUMNS + j) & 1);
                    if (!__any_sync(FULL, mine)) continue;
                    const bool survives = mine && !limits.rules_out(columns[j], first + i, products[i][j]);
                    add_survivors(args.pairs, tile.first_query + first + i, columns[j].g, survives);
                }
            }
        });
    });
}
