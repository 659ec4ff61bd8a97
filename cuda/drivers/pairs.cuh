// Drivers that score pairs: one pair function becomes paired, pairwise, listed and reranked scores. search.cuh and
// backward.cuh hold the other drivers.
//
// A warp computes a pair: lane l takes the dimensions 4 (l + 32 j) .. + 3, four at a time, and the lanes' sums are combined by one tree. So
// a pair's score has the same bits from every driver. A warp computes several pairs at once, so that enough loads are under way; after 32
// pairs each lane holds the sums of one of them and finishes its score in double.
//
// The compiler may contract a product and a sum in one kernel and not in another. Where bits must be equal, products are added by an
// explicit fma, so that nothing is left to contract, and functions that compute in double are not inlined.
//
// A family is a class F with
//   T                the type that it computes in
//   ARRAYS           how many rows it reads of an item: 1, the mean, or 2, also the uncertainty
//   ROW              whether it reads the shared row, a number per dimension
//   Pair, Item       sums over dimensions of a pair, and of an item alone; start() is those of no dimension
//   add_item(item, rows, shared), add_pair(pair, query's rows, gallery's rows, shared)    add four dimensions
//   Pair::reduced(all), Item::reduced(all)    combine N sums over the lanes of a warp: lane l gets number l / (32 / N)
//   score<S>(args, pair, query's item, gallery's item, q, g, wanted)    by all lanes: the score of the lane's pair
// Beyond the end of a row, means are 0, uncertainties 1 and shared numbers 1.
#pragma once

#include "../pair.cuh"
#include "../warps.cuh"
#include "topk.cuh"

// -- rows -------------------------------------------------------------------------------------------------------------

// Elements d .. d + 3 of a row, with `fill` beyond its end. VECTOR says that all four exist and are aligned.
template <bool VECTOR, typename T, typename S>
__device__ inline Four<T> four(const S* row, int stored, int d, int dim, T fill) {
    Four<T> out;
    if constexpr (VECTOR) {
        const Four<S> in = *reinterpret_cast<const Four<S>*>(row + d);
        for (int i = 0; i < 4; ++i) out.x[i] = T(widened(in.x[i]));
    } else {
        for (int i = 0; i < 4; ++i) out.x[i] = d + i < dim ? T(widened(row[stored > 1 ? d + i : 0])) : fill;
    }
    return out;
}

// Loads four dimensions of a query's rows.
template <typename F, bool VECTOR>
__device__ inline void load_query(const PairArgs& args, int64_t q, int d, Four<typename F::T>* rows) {
    using T = typename F::T;
    const int dim = int(args.mu1.stored);
    rows[0] = four<VECTOR>(row_of<T>(args.mu1, q), dim, d, dim, T(0));
    if constexpr (F::ARRAYS == 2) {
        rows[1] = four<VECTOR>(row_of<T>(args.uncertainty1, q), args.uncertainty1.stored, d, dim, T(1));
    }
}

// Loads four dimensions of a gallery item's rows.
template <typename F, typename S, bool VECTOR>
__device__ inline void load_gallery(const PairArgs& args, int64_t g, int d, Four<typename F::T>* rows) {
    using T = typename F::T;
    const int dim = int(args.mu1.stored);
    rows[0] = four<VECTOR>(row_of<S>(args.mu2, g), dim, d, dim, T(0));
    if constexpr (F::ARRAYS == 2) {
        if (VECTOR || sizeof(S) == sizeof(T) || !args.wide_uncertainty2) {
            rows[1] = four<VECTOR>(row_of<S>(args.uncertainty2, g), args.uncertainty2.stored, d, dim, T(1));
        } else {
            rows[1] = four<VECTOR>(row_of<T>(args.uncertainty2, g), args.uncertainty2.stored, d, dim, T(1));
        }
    }
}

// Four dimensions of the shared row, if the family reads it. Beyond the end it is tiny, so that a prior adds nothing there.
template <typename F>
__device__ inline Four<typename F::T> load_shared(const PairArgs& args, int d) {
    using T = typename F::T;
    if constexpr (F::ROW) return four<false>(row_of<T>(args.shared, 0), args.shared.stored, d, args.mu1.stored, T(0x1p-31));
    return {};
}

// The uncertainty of a query, and of a gallery item, that is one number.
template <typename T>
__device__ inline double uncertainty_of_query(const PairArgs& args, int64_t q) {
    return row_of<T>(args.uncertainty1, q)[0];
}
template <typename T, typename S>
__device__ inline double uncertainty_of_gallery(const PairArgs& args, int64_t g) {
    if (sizeof(S) != sizeof(T) && args.wide_uncertainty2) return row_of<T>(args.uncertainty2, g)[0];
    return widened(row_of<S>(args.uncertainty2, g)[0]);
}

// Whether the rows of a matrix have all dimensions, and are aligned for loads of four elements.
template <typename S>
__device__ inline bool aligned(const DeviceMatrix& matrix, int64_t dim) {
    return (reinterpret_cast<uint64_t>(matrix.data) | uint64_t(matrix.stride) * sizeof(S)) % alignof(Four<S>) == 0 &&
           matrix.stored == dim;
}

// Whether every row can be read four elements at a time.
template <typename F, typename S>
__device__ inline bool vectors(const PairArgs& args) {
    using T = typename F::T;
    const int64_t dim = args.mu1.stored;
    bool yes = dim % 4 == 0 && aligned<T>(args.mu1, dim) && aligned<S>(args.mu2, dim);
    if (F::ARRAYS == 2) {
        yes = yes && aligned<T>(args.uncertainty1, dim) && aligned<S>(args.uncertainty2, dim);
        yes = yes && (sizeof(S) == sizeof(T) || !args.wide_uncertainty2);
    }
    return yes;
}

// -- pairs ------------------------------------------------------------------------------------------------------------

// Pairs that a warp computes at once: as many as registers have space for.
template <typename T>
constexpr int AT_ONCE = sizeof(T) == 4 ? 4 : 2;

// The number of the lane's pair, where a warp takes groups of AT_ONCE adjacent pairs and its groups are `apart` groups from each other.
template <typename T>
__device__ inline int64_t place(int64_t apart) {
    constexpr int N = AT_ONCE<T>, GROUPS = WARP / N;
    return N * (lane() % GROUPS) * apart + lane() / GROUPS;
}

// Adds the lane's dimensions to the sums of N pairs (q, g).
template <typename F, typename S, bool VECTOR, int N>
__device__ inline void add_rows(const F& f, const PairArgs& args, const int64_t (&q)[N], const int64_t (&g)[N],
                                typename F::Pair (&pairs)[N], typename F::Item (&queries)[N],
                                typename F::Item (&gallery)[N]) {
    for (int d = 4 * lane(); d < int(args.mu1.stored); d += 4 * WARP) {
        Four<typename F::T> x[N][F::ARRAYS], y[N][F::ARRAYS];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            load_query<F, VECTOR>(args, q[i], d, x[i]);
            load_gallery<F, S, VECTOR>(args, g[i], d, y[i]);
        }
        const auto shared = load_shared<F>(args, d);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            f.add_item(queries[i], x[i], shared);
            f.add_item(gallery[i], y[i], shared);
            f.add_pair(pairs[i], x[i], y[i], shared);
        }
    }
}

// The sums of a pair and of its two items.
template <typename F>
struct Numbers {
    typename F::Pair pair;
    typename F::Item query, item;
};

// The sums of each lane's pair (q, g), which all lanes compute together; a lane with g < 0 has no pair.
template <typename F, typename S>
__device__ inline Numbers<F> sum_pairs(const F& f, const PairArgs& args, int64_t q, int64_t g) {
    constexpr int N = AT_ONCE<typename F::T>, GROUPS = WARP / N;
    const bool vector = vectors<F, S>(args);
    const unsigned wanted = __ballot_sync(FULL, g >= 0);
    Numbers<F> mine{F::Pair::start(), F::Item::start(), F::Item::start()};
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
        unsigned members = 0;
        for (int i = 0; i < N; ++i) members |= wanted & (1u << (i * GROUPS + group));
        if (!members) continue;
        int64_t rows_q[N], rows_g[N];
        typename F::Pair pairs[N];
        typename F::Item queries[N], items[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            // A place without a pair repeats one that is computed anyway.
            const int at = i * GROUPS + group, source = members >> at & 1 ? at : __ffs(int(members)) - 1;
            rows_q[i] = __shfl_sync(FULL, q, source), rows_g[i] = __shfl_sync(FULL, g, source);
            pairs[i] = F::Pair::start(), queries[i] = items[i] = F::Item::start();
        }
        if (vector) {
            add_rows<F, S, true>(f, args, rows_q, rows_g, pairs, queries, items);
        } else {
            add_rows<F, S, false>(f, args, rows_q, rows_g, pairs, queries, items);
        }
        const Numbers<F> all{F::Pair::reduced(pairs), F::Item::reduced(queries), F::Item::reduced(items)};
        if (lane() % GROUPS == group) mine = all;
    }
    return mine;
}

// The score of each lane's pair of a query and a listed id: -infinity for the id NONE, NaN for one that is no row of the gallery.
template <typename F, typename S>
__device__ inline typename F::T score_listed(const F& f, const PairArgs& args, int64_t q, int64_t id) {
    using T = typename F::T;
    const bool row = id >= 0 && id < args.mu2.rows;
    const Numbers<F> numbers = sum_pairs<F, S>(f, args, q, row ? id : NONE);
    const T score = f.template score<S>(args, numbers.pair, numbers.query, numbers.item, q, id, row);
    return row ? score : T(id == NONE ? -INFINITY : NAN);
}

// Writes the scores of all pairs that `args.pairs` says. The grid may be any number of blocks of whole warps.
template <typename F, typename S>
__device__ void score_all(const F& f, const PairArgs& args) {
    using T = typename F::T;
    const bool paired = args.pairs == PAIRED, listed = args.pairs == LISTED;
    const int64_t rows = paired ? 1 : args.mu1.rows, columns = listed ? args.candidates.stored : args.mu2.rows;
    const int64_t parts = (columns + WARP - 1) / WARP, warps = int64_t(gridDim.x) * (blockDim.x / WARP);
    for (int64_t part = int64_t(blockIdx.x) * (blockDim.x / WARP) + warp(); part < rows * parts; part += warps) {
        const int64_t row = part / parts, column = part % parts * WARP + place<T>(1);
        int64_t id = NONE;
        if (column < columns) id = listed ? row_of<int64_t>(args.candidates, row)[column] : column;
        const T score = score_listed<F, S>(f, args, paired ? column : row, id);
        if (column < columns) static_cast<T*>(args.scores)[row * columns + column] = score;
    }
}

// Writes the best k of each query's candidates, or of its survivors and the rows that are known: of each of gridDim.y parts of
// them, [Q, gridDim.y, k]. A block takes a query, then the one gridDim.x further on. Shared memory holds `capacity` items, a
// power of two >= min(K, k + PAIR_THREADS).
template <typename F, typename S>
__device__ void rerank(const F& f, const PairArgs& args) {
    using T = typename F::T;
    DYNAMIC_SHARED(int64_t, ids);
    __shared__ ListState<T> state;
    const int k = int(args.k);
    const List<T> list{reinterpret_cast<T*>(ids + args.capacity), ids, &state, k};
    for (int64_t q = blockIdx.x; q < args.mu1.rows; q += gridDim.x) {
        const int64_t known = args.known ? k : 0, counted = args.survivors ? args.counts[q] : 0;
        // Of too many survivors, memory holds not all; all rows that were tested stand for them.
        const bool all = counted > args.most_survivors;
        const int64_t n = !args.survivors ? args.candidates.stored : known + (all ? args.end - args.begin : counted);
        const int64_t begin = n * blockIdx.y / gridDim.y, end = n * (blockIdx.y + 1) / gridDim.y;
        const auto candidate = [&](int64_t i) -> int64_t {
            i += begin;
            if (i >= end) return NONE;
            if (!args.survivors) return row_of<int64_t>(args.candidates, q)[i];
            if (i < known) return args.known[q * k + i];
            return all ? args.begin + i - known : args.survivors[q * args.most_survivors + i - known];
        };
        const auto item = [&](int64_t first) {
            // Warps take turns by groups of pairs, so that few candidates keep all of them busy.
            const int64_t id = candidate(first + AT_ONCE<T> * warp() + place<T>(PAIR_THREADS / WARP));
            return Scored<T>{score_listed<F, S>(f, args, q, id), id};
        };
        const int64_t to = (q * gridDim.y + blockIdx.y) * k;
        take_best<PAIR_THREADS>(list, {0, T(-INFINITY), NONE}, end - begin, args.capacity, static_cast<T*>(args.scores) + to, args.ids + to, item);
    }
}
