// Gradients of sum(weights * scores) by the items of one side: each is a sum over the pairs that the item is in, always in the same order.
//
// Beyond what pairs.cuh requires, a family's class has
//   Partials         what the gradient of a pair takes beside its two rows; it is stored in shared memory
//   partials(args, query, item, other, weight, totals)   called by all lanes: the partial derivatives of the lane's
//   pair, none if
//                    other < 0; adds to `totals` the gradients by an uncertainty of one number and by two shared
//                    numbers
//   Gradient         the sums of one dimension
//   add_gradient(gradient, partials, query, dimension, shared)   adds one pair's gradient in one dimension
// and, if ARRAYS is 2,
//   seen_from(query)     the formula whose partials(dimension, false) are those by an item of that side
//   in_range(x)          x, or NaN where partials that are computed in T would not be right
#pragma once

#include "pairs.cuh"

// The gradients that are single numbers: by the uncertainty and by two shared numbers.
constexpr int TOTALS = 3;

// Pair i of an item: returns the other item's row, or NONE if the pair adds nothing, and the pair's weight.
template <typename T>
__device__ inline int64_t other_item(const BackwardArgs& args, int64_t item, int64_t i, T* weight) {
    const PairArgs& pairs = args.pairs;
    const bool query = args.side == QUERY;
    const int64_t columns = pairs.pairs == LISTED ? pairs.candidates.stored : pairs.mu2.rows;
    int64_t other = pairs.pairs == PAIRED ? item : i, at = query ? item * columns + i : i * columns + item;
    if (pairs.pairs == MARKED) {
        const int64_t words = (columns + WARP - 1) / WARP;
        const uint32_t word = query ? args.marks[item * words + i / WARP] : args.marks[i / WARP * columns + item];
        if (!(word >> (i % WARP) & 1)) return NONE;
    }
    if (pairs.pairs == PAIRED) at = item;
    if (pairs.pairs == LISTED && query) other = row_of<int64_t>(pairs.candidates, item)[i];
    if (pairs.pairs == LISTED && !query) {
        at = args.positions[args.offsets[item] + i];
        other = at / columns;
    }
    *weight = static_cast<const T*>(args.weights)[at];
    const bool row = other >= 0 && other < (query ? pairs.mu2.rows : pairs.mu1.rows);
    // A weight of 0 adds nothing even where partial derivatives are NaN or infinite.
    return row && *weight != 0 ? other : NONE;
}

// How many pairs an item is in.
__device__ inline int64_t number_of_pairs(const BackwardArgs& args, int64_t item) {
    const PairArgs& pairs = args.pairs;
    if (pairs.pairs == PAIRED) return 1;
    if (args.side == QUERY) return pairs.pairs == LISTED ? pairs.candidates.stored : pairs.mu2.rows;
    return pairs.pairs == LISTED ? args.offsets[item + 1] - args.offsets[item] : pairs.mu1.rows;
}

// Writes the gradients of an item that are single numbers, or adds them. The totals of all threads are added up by one tree.
template <typename F>
__device__ inline void write_totals(const BackwardArgs& args, int64_t item, const double (&totals)[TOTALS],
                                    double (*parts)[TOTALS]) {
    using T = typename F::T;
    const PairArgs& pairs = args.pairs;
    const DeviceMatrix& uncertainty = args.side == QUERY ? pairs.uncertainty1 : pairs.uncertainty2;
    T* const shared = static_cast<T*>(args.shared);
    for (int s = 0; s < TOTALS; ++s) {
        const double sum = warp_sum(totals[s]);
        if (lane() == 0) parts[warp()][s] = sum;
    }
    __syncthreads();
    if (threadIdx.x < TOTALS) {
        const int s = int(threadIdx.x);
        double sum = 0;
        for (int i = 0; i < PAIR_THREADS / WARP; ++i) sum += parts[i][s];
        const bool single = !(F::ROW && pairs.shared.stored > 1) && s - 1 < pairs.shared.stored;
        const auto write = [&](T* to) { *to = T(pairs.pairs == MARKED ? double(*to) + sum : sum); };
        if (s == 0 && uncertainty.stored == 1) write(static_cast<T*>(args.uncertainty) + item);
        if (s > 0 && shared && single) write(shared + item * pairs.shared.stored + s - 1);
    }
}

// Whether a pair of the item has a mark. Called by all threads of a block.
__device__ inline bool is_marked(const BackwardArgs& args, int64_t item) {
    const bool query = args.side == QUERY;
    const int64_t columns = args.pairs.mu2.rows, words = ((query ? columns : args.pairs.mu1.rows) + WARP - 1) / WARP;
    bool marked = false;
    for (int64_t word = threadIdx.x; args.marks && word < words; word += blockDim.x) {
        marked = marked || (query ? args.marks[item * words + word] : args.marks[word * columns + item]) != 0;
    }
    return __syncthreads_or(marked);
}

// The sums over the pairs of a query that products.cuh makes, of which an item of the gallery has the first two.
constexpr int PRODUCT_SUMS = 4;

// Adds to the gradient by an item's mean what products left of it, and writes those that are single numbers: the sums over its pairs, of
// which the first one is a factor of its own mean. Returns whether a pair of the item is marked.
template <typename F>
__device__ inline bool add_sums(const BackwardArgs& args, int64_t item) {
    using T = typename F::T;
    __shared__ double by_warp[PAIR_THREADS / WARP][PRODUCT_SUMS];
    const bool query = args.side == QUERY;
    const PairArgs& pairs = args.pairs;
    const DeviceMatrix &mu = query ? pairs.mu1 : pairs.mu2, &uncertainty = query ? pairs.uncertainty1 : pairs.uncertainty2;
    const int kinds = query ? PRODUCT_SUMS : 2;
    double sums[PRODUCT_SUMS] = {};
    for (int64_t part = threadIdx.x; part < args.parts; part += PAIR_THREADS) {
        for (int s = 0; s < kinds; ++s) sums[s] += args.sums[(part * mu.rows + item) * kinds + s];
    }
    for (int s = 0; s < kinds; ++s) {
        const double sum = warp_sum(sums[s]);
        if (lane() == 0) by_warp[warp()][s] = sum;
    }
    const bool any = is_marked(args, item);
    for (int s = 0; s < kinds; ++s) {
        sums[s] = 0;
        for (int w = 0; w < PAIR_THREADS / WARP; ++w) sums[s] += by_warp[w][s];
    }
    const T* const row = static_cast<const T*>(args.rows) + item * mu.stored;
    T* const to = static_cast<T*>(args.mu) + item * mu.stored;
    for (int64_t d = threadIdx.x; d < mu.stored && sums[0] != 0; d += PAIR_THREADS) {
        to[d] = T(fma(sums[0], double(row[d]), double(to[d])));
    }
    if (threadIdx.x == 0) {
        if (uncertainty.stored == 1) static_cast<T*>(args.uncertainty)[item] = T(sums[1]);
        for (int s = 0; args.shared && s < 2 && s < pairs.shared.stored; ++s) {
            static_cast<T*>(args.shared)[item * pairs.shared.stored + s] = query ? T(sums[2 + s]) : T(0);
        }
    }
    __syncthreads();
    return any;
}

// Items of a block that adds up gradients of all pairs, as many as registers have space for, and its dimensions.
template <typename T>
constexpr int BACKWARD_ITEMS = 32 / sizeof(T);
constexpr int BACKWARD_DIMS = 2 * WARP;

// Rows of a side's means and uncertainties.
template <typename T>
struct SideRows {
    const DeviceMatrix &mu, &uncertainty;

    __device__ SideRows(const PairArgs& pairs, bool query)
        : mu(query ? pairs.mu1 : pairs.mu2), uncertainty(query ? pairs.uncertainty1 : pairs.uncertainty2) {}

    static __device__ const T* at(const DeviceMatrix& matrix, int64_t row, int64_t d) {
        return row_of<T>(matrix, row) + (matrix.stored > 1 ? d : 0);
    }
    __device__ const T* mean(int64_t row, int64_t d) const { return at(mu, row, d); }
    __device__ const T* var(int64_t row, int64_t d) const { return at(uncertainty, row, d); }
};

// The gradient by an item in one dimension from `count` adjacent pairs, in double, by the definition.
template <typename F>
__device__ __noinline__ typename F::Gradient by_definition(const F& f, const BackwardArgs& args, int64_t item, int64_t d,
                                                           int64_t first, int count) {
    using T = typename F::T;
    const bool query = args.side == QUERY;
    const SideRows<T> items(args.pairs, query), others(args.pairs, !query);
    typename F::Gradient sum = {};
    Dimension x{*items.mean(item, d), *items.var(item, d), 0, 0, 0};
    if (F::ROW) x.shared = *items.at(args.pairs.shared, 0, d);
    for (int64_t i = first; i < first + count; ++i) {
        T weight;
        if (other_item<T>(args, item, i, &weight) < 0) continue;
        x.b = *others.mean(i, d), x.w = *others.var(i, d);
        f.add_gradient(sum, {double(weight)}, query, x, false);
    }
    return sum;
}

// A tile of items and dimensions, whose gradients from all pairs a block adds up: each warp goes through some of the
// others, WARP at a time, with the lanes along the dimensions.
template <typename F>
struct GradientTile {
    using T = typename F::T;
    static constexpr int ITEMS = BACKWARD_ITEMS<T>, COLUMNS = BACKWARD_DIMS / WARP, WARPS = PAIR_THREADS / WARP;
    // The warp's sums.
    using Sums = double (&)[ITEMS][BACKWARD_DIMS];
    using Weights = Four<T> (&)[WARP][ITEMS / 4];

    const F& f;
    const BackwardArgs& args;
    const SideRows<T> items, others;
    // The first item.
    const int64_t top;
    // The lane's dimensions, and these of the items.
    int64_t d[COLUMNS];
    DimensionOf<T> x[ITEMS][COLUMNS];

    // Loads the items in the dimensions from `from` on; beyond the end of either, the last one.
    __device__ void load(int64_t from) {
        const int64_t last_item = items.mu.rows - 1, last = items.mu.stored - 1;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int64_t at = from + WARP * c + lane();
            d[c] = at < last ? at : last;
            const T shared = F::ROW ? f.in_range(*items.at(args.pairs.shared, 0, d[c])) : T(0);
#pragma unroll
            for (int r = 0; r < ITEMS; ++r) {
                const int64_t item = top + r < last_item ? top + r : last_item;
                x[r][c] = {*items.mean(item, d[c]), f.in_range(*items.var(item, d[c])), 0, 0, shared};
            }
        }
    }

    // Stages the weights of the pairs with WARP others from `first` on; 0 beyond the end.
    __device__ void stage(int64_t first, Weights weights) const {
        Four<T> staged[ITEMS / 4] = {};
#pragma unroll
        for (int r = 0; r < ITEMS; ++r) {
            const int64_t item = top + r, other = first + lane();
            if (item >= items.mu.rows || other >= others.mu.rows) continue;
            other_item<T>(args, item, other, &staged[r / 4].x[r % 4]);
        }
        __syncwarp();
        for (int j = 0; j < ITEMS / 4; ++j) weights[lane()][j] = staged[j];
        __syncwarp();
    }

    // Adds the pairs with `count` others from `first` on, in sums of type T; one that is not finite is computed again.
    template <typename Formula>
    __device__ void add(const Formula& formula, int64_t first, int count, Weights weights, Sums means, Sums vars) {
        T by_mean[ITEMS][COLUMNS] = {}, by_var[ITEMS][COLUMNS] = {}, b[COLUMNS], w[COLUMNS];
        const T *at_mean[COLUMNS], *at_var[COLUMNS];
        for (int c = 0; c < COLUMNS; ++c) at_mean[c] = others.mean(first, d[c]), at_var[c] = others.var(first, d[c]);
        const auto load_next = [&] {
            for (int c = 0; c < COLUMNS; ++c) {
                b[c] = *at_mean[c], w[c] = *at_var[c];
                at_mean[c] += others.mu.stride, at_var[c] += others.uncertainty.stride;
            }
        };
        load_next();
#pragma unroll 2
        for (int i = 0; i < count; ++i) {
            Four<T> weight[ITEMS / 4];
            for (int j = 0; j < ITEMS / 4; ++j) weight[j] = weights[i][j];
            T mean[COLUMNS], var[COLUMNS];
            for (int c = 0; c < COLUMNS; ++c) mean[c] = b[c], var[c] = f.in_range(w[c]);
            // The next rows are loaded while these are computed.
            if (i + 1 < count) load_next();
#pragma unroll
            for (int r = 0; r < ITEMS; ++r) {
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {
                    x[r][c].b = mean[c], x[r][c].w = var[c];
                    const auto partials = formula.partials(x[r][c], false);
                    by_mean[r][c] = fma(weight[r / 4].x[r % 4], partials.mean, by_mean[r][c]);
                    by_var[r][c] = fma(weight[r / 4].x[r % 4], partials.var, by_var[r][c]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ITEMS; ++r) {
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                typename F::Gradient sum{by_mean[r][c], by_var[r][c], {}};
                if (!is_finite(by_mean[r][c] + by_var[r][c]) && top + r < items.mu.rows) {
                    sum = by_definition(f, args, top + r, d[c], first, count);
                }
                means[r][WARP * c + lane()] += sum.mu, vars[r][WARP * c + lane()] += sum.uncertainty;
            }
        }
    }
};

// Writes the gradients by means and uncertainties from all pairs, of families with ARRAYS 2. A block takes a tile, then
// the one gridDim.x further on.
template <typename F>
__device__ void backward_all(const F& f, const BackwardArgs& args) {
    using T = typename F::T;
    using Tile = GradientTile<F>;
    __shared__ Four<T> weights[Tile::WARPS][WARP][Tile::ITEMS / 4];
    __shared__ double means[Tile::WARPS][Tile::ITEMS][BACKWARD_DIMS], vars[Tile::WARPS][Tile::ITEMS][BACKWARD_DIMS];

    const bool query = args.side == QUERY;
    const SideRows<T> items(args.pairs, query), others(args.pairs, !query);
    const auto formula = f.seen_from(query);
    const int64_t rows = items.mu.rows, n = others.mu.rows, dim = items.mu.stored;
    const int64_t steps = (dim + BACKWARD_DIMS - 1) / BACKWARD_DIMS, tiles = (rows + Tile::ITEMS - 1) / Tile::ITEMS;
    // A block adds up all dimensions where their sum is wanted.
    const bool single = items.uncertainty.stored == 1;
    const int64_t parts = single ? 1 : steps;
    for (int64_t part = blockIdx.x; part < tiles * parts; part += gridDim.x) {
        Tile tile{f, args, items, others, part / parts * Tile::ITEMS, {}, {}};
        double totals[Tile::ITEMS / Tile::WARPS] = {};
        for (int64_t from = part % parts * BACKWARD_DIMS; from < dim; from += parts * BACKWARD_DIMS) {
            tile.load(from);
            for (int r = 0; r < Tile::ITEMS; ++r) {
                for (int at = lane(); at < BACKWARD_DIMS; at += WARP) means[warp()][r][at] = vars[warp()][r][at] = 0;
            }
            for (int64_t first = WARP * warp(); first < n; first += PAIR_THREADS) {
                tile.stage(first, weights[warp()]);
                const int count = int(n - first < WARP ? n - first : WARP);
                tile.add(formula, first, count, weights[warp()], means[warp()], vars[warp()]);
            }
            __syncthreads();
            for (int r = warp(); r < Tile::ITEMS && tile.top + r < rows; r += Tile::WARPS) {
                for (int at = lane(); at < BACKWARD_DIMS && from + at < dim; at += WARP) {
                    const int64_t to = (tile.top + r) * dim + from + at;
                    double mean = 0, var = 0;
                    for (int i = 0; i < Tile::WARPS; ++i) mean += means[i][r][at], var += vars[i][r][at];
                    static_cast<T*>(args.mu)[to] = T(mean);
                    if (!single) static_cast<T*>(args.uncertainty)[to] = T(var);
                    totals[r / Tile::WARPS] += var;
                }
            }
            __syncthreads();
        }
        for (int r = warp(); single && r < Tile::ITEMS && tile.top + r < rows; r += Tile::WARPS) {
            const double sum = warp_sum(totals[r / Tile::WARPS]);
            if (lane() == 0) static_cast<T*>(args.uncertainty)[tile.top + r] = T(sum);
        }
    }
}

// Writes the gradients of all items of the side. A block takes one of them, then the one gridDim.x further on.
template <typename F>
__device__ void backward(const F& f, const BackwardArgs& args) {
    using T = typename F::T;
    // Each pair counts once in the gradients by shared numbers: with its query.
    if constexpr (F::ARRAYS == 2) {
        const bool shared = args.side == QUERY && args.shared;
        if (args.pairs.pairs == PAIRWISE && !shared) return backward_all<F>(f, args);
    }
    __shared__ int64_t others[PAIR_THREADS];
    __shared__ typename F::Partials partials[PAIR_THREADS];
    __shared__ double parts[PAIR_THREADS / WARP][TOTALS];

    const PairArgs& pairs = args.pairs;
    const bool query = args.side == QUERY, adds = pairs.pairs == MARKED;
    const SideRows<T> items(pairs, query), rows(pairs, !query);
    const int64_t dim = items.mu.stored;
    T* const shared = static_cast<T*>(args.shared);
    for (int64_t item = blockIdx.x; item < items.mu.rows; item += gridDim.x) {
        if (adds && !add_sums<F>(args, item)) continue;
        double totals[TOTALS] = {};
        const int64_t n = number_of_pairs(args, item);
        for (int64_t first = 0; first == 0 || first < n; first += PAIR_THREADS) {
            const int at = WARP * warp() + int(place<T>(1));
            T weight = 0;
            const int64_t other = first + at < n ? other_item<T>(args, item, first + at, &weight) : NONE;
            // Most pairs have no mark.
            if (adds && !__syncthreads_or(other >= 0)) continue;
            others[at] = other;
            partials[at] = f.partials(pairs, query, item, other, double(weight), totals);
            __syncthreads();
            const int count = int(n - first < PAIR_THREADS ? n - first : PAIR_THREADS);
            for (int64_t d = threadIdx.x; d < dim; d += PAIR_THREADS) {
                typename F::Gradient sum = {};
                Dimension x{*items.mean(item, d), 0, 0, 0, F::ROW ? *items.at(pairs.shared, 0, d) : 0};
                if (F::ARRAYS == 2) x.v = *items.var(item, d);
                for (int i = 0; i < count; ++i) {
                    if (others[i] < 0) continue;
                    x.b = *rows.mean(others[i], d);
                    if (F::ARRAYS == 2) x.w = *rows.var(others[i], d);
                    f.add_gradient(sum, partials[i], query, x, shared != nullptr);
                }
                const auto add = [&](T* to, double value) { *to = T(first == 0 && !adds ? value : double(*to) + value); };
                add(static_cast<T*>(args.mu) + item * dim + d, sum.mu);
                if constexpr (F::ARRAYS == 2) {
                    if (items.uncertainty.stored > 1) {
                        add(static_cast<T*>(args.uncertainty) + item * dim + d, sum.uncertainty);
                    } else {
                        totals[0] += sum.uncertainty;
                    }
                    if (F::ROW && shared && pairs.shared.stored > 1) {
                        add(shared + item * pairs.shared.stored + d, sum.shared[0]);
                    } else {
                        for (int s = 0; s < 2; ++s) totals[1 + s] += sum.shared[s];
                    }
                }
            }
            __syncthreads();
        }
        write_totals<F>(args, item, totals, parts);
        __syncthreads();
    }
}
