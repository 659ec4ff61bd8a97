// Exact search by scoring every pair: a block takes a tile of queries and a shard of the gallery.
//
// Gallery rows are loaded into shared memory, 128 dimensions of eight rows at a time. Each warp scores all pairs of
// some of the queries and some of the rows in registers, with the lanes and the order of sums of pairs.cuh.
#pragma once

#include "pairs.cuh"

// How the pairs of a block are shared out among its warps.
template <typename T>
struct Tile {
    // Queries and rows of a warp, the sums of whose pairs fit into registers.
    static constexpr int QUERIES = sizeof(T) == 4 ? 4 : 2, ROWS = 4, PAIRS = QUERIES * ROWS;
    // Warps along the queries, and along the rows.
    static constexpr int ACROSS = 4, DOWN = SEARCH_THREADS / WARP / ACROSS;
    // A warp's first query and first row. Adjacent warps have the same queries, so that few keep several schedulers busy.
    static __device__ int first_query() { return warp() / DOWN * QUERIES; }
    static __device__ int first_row() { return warp() % DOWN * ROWS; }
    // Queries and rows of a block, and how many tiles of rows give each lane one pair to finish.
    static constexpr int BLOCK_QUERIES = ACROSS * QUERIES, BLOCK_ROWS = DOWN * ROWS, TILES = WARP / PAIRS;
    // Dimensions that are loaded at a time.
    static constexpr int STEP = 4 * WARP;
    // Each warp loads one row and computes its sums.
    static_assert(BLOCK_ROWS == SEARCH_THREADS / WARP);
    // The launch counts with these numbers.
    static_assert(BLOCK_QUERIES == (sizeof(T) == 4 ? SEARCH_QUERIES_F32 : SEARCH_QUERIES_F64));
    static_assert(BLOCK_ROWS == SEARCH_ROWS && BLOCK_ROWS * TILES <= SEARCH_GROUP && STEP == SEARCH_STEP);
};

// The row of the gallery that a warp loads next: where the lane's first dimensions are, and those of a step.
template <typename F, typename S>
struct NextRow {
    using T = typename F::T;
    const S* at[F::ARRAYS];
    Four<T> four[F::ARRAYS];
    // Shared memory that the step goes to, and that of the step before, which some warps may still read.
    T *to, *before;
};

// A block's shared memory for queries [step][query][array][128], of all steps or of one.
template <typename F, typename S>
struct Stage {
    using T = typename F::T;
    const PairArgs& args;
    T* queries;
    bool vector;

    __device__ static void store(const Four<T>* from, T* to, int row) {
        for (int array = 0; array < F::ARRAYS; ++array) {
            *reinterpret_cast<Four<T>*>(to + (row * F::ARRAYS + array) * Tile<T>::STEP + 4 * lane()) = from[array];
        }
    }

    // The number of dimensions. Those of a step are `from` and the next ones.
    __device__ int dim() const { return int(args.mu1.stored); }
    __device__ int steps() const { return (dim() + Tile<T>::STEP - 1) / Tile<T>::STEP; }
    // Whether the lane's dimensions of a step exist.
    __device__ bool has(int from) const { return from + 4 * lane() < dim(); }

    __device__ void load_query(int64_t q, int from, Four<T>* to) const {
        const int d = from + 4 * lane();
        vector ? ::load_query<F, true>(args, q, d, to) : ::load_query<F, false>(args, q, d, to);
    }

    // Copies the block's queries from q on, one by each warp; a query beyond the last is a copy of the last.
    __device__ void stage_queries(int64_t q, int from, T* to) const {
        for (int i = warp(); i < Tile<T>::BLOCK_QUERIES; i += SEARCH_THREADS / WARP) {
            Four<T> four[F::ARRAYS];
            const int64_t row = q + i < args.mu1.rows ? q + i : args.mu1.rows - 1;
            if (!has(from)) continue;
            load_query(row, from, four);
            store(four, to, i);
        }
    }
};

// Adds a step's dimensions to the sums of the warp's pairs.
template <typename F>
__device__ inline void add_tile(const F& f, const typename F::T* queries, const typename F::T* rows,
                                const Four<typename F::T>& shared,
                                typename F::Pair (&pairs)[Tile<typename F::T>::PAIRS]) {
    using T = typename F::T;
    using Shape = Tile<T>;
    const auto get = [](const T* from, int row, Four<T>* to) {
        for (int array = 0; array < F::ARRAYS; ++array) {
            to[array] = *reinterpret_cast<const Four<T>*>(from + (row * F::ARRAYS + array) * Shape::STEP + 4 * lane());
        }
    };
    Four<T> y[Shape::ROWS][F::ARRAYS];
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) get(rows, Shape::first_row() + r, y[r]);
#pragma unroll
    for (int i = 0; i < Shape::QUERIES; ++i) {
        Four<T> x[F::ARRAYS];
        get(queries, Shape::first_query() + i, x);
#pragma unroll
        for (int r = 0; r < Shape::ROWS; ++r) f.add_pair(pairs[i * Shape::ROWS + r], x, y[r], shared);
    }
}

// A block of a search: its queries, its shard of the gallery, and the lists of the best rows so far.
template <typename F, typename S>
struct SearchBlock {
    using T = typename F::T;
    using Shape = Tile<T>;
    static constexpr int QUERIES = Shape::BLOCK_QUERIES, ROWS = Shape::BLOCK_ROWS, WARPS = SEARCH_THREADS / WARP;
    static constexpr int QUERY_STEP = QUERIES * F::ARRAYS * Shape::STEP;

    const F& f;
    const PairArgs& args;
    const Stage<F, S> stage;
    const int64_t first_query;
    // The end of the shard.
    const int64_t end;
    ListState<T>* const states;
    typename F::Item *const query_items, (*const row_items)[ROWS];

    __device__ List<T> list(int query) const {
        T* const shared_scores = stage.queries + (args.resident ? stage.steps() : 1) * QUERY_STEP;
        const int64_t block = int64_t(blockIdx.y) * gridDim.x + blockIdx.x, at = query * args.capacity;
        T* scores = shared_scores + at;
        int64_t* ids = reinterpret_cast<int64_t*>(shared_scores + QUERIES * args.capacity) + at;
        if (args.list_scores) {
            scores = static_cast<T*>(args.list_scores) + block * QUERIES * args.capacity + at;
            ids = args.list_ids + block * QUERIES * args.capacity + at;
        }
        return List<T>{scores, ids, &states[query], int(args.k)};
    }

    // Computes the sums of each query alone, empties the lists, and loads queries that stay in shared memory.
    __device__ void enter() const {
        for (int i = warp(); i < QUERIES; i += WARPS) {
            const int64_t q = first_query + i < args.mu1.rows ? first_query + i : args.mu1.rows - 1;
            typename F::Item sums[1] = {F::Item::start()};
            for (int from = 0; stage.has(from); from += Shape::STEP) {
                Four<T> four[F::ARRAYS];
                stage.load_query(q, from, four);
                f.add_item(sums[0], four, load_shared<F>(args, from + 4 * lane()));
            }
            const auto all = F::Item::reduced(sums);
            if (lane() == 0) {
                query_items[i] = all;
                list(i).clear();
            }
        }
        T* to = stage.queries;
        for (int from = 0; args.resident && from < stage.dim(); from += Shape::STEP, to += QUERY_STEP) {
            stage.stage_queries(first_query, from, to);
        }
    }

    // Loads a step of the row of the tile from `first` on that the warp copies; a row beyond the last is a copy of it.
    __device__ void load(int64_t first, int from, NextRow<F, S>& next) const {
        const auto g = [&] { return first + warp() < end ? first + warp() : end - 1; };
        if (from == 0) {
            next.at[0] = row_of<S>(args.mu2, g()) + 4 * lane();
            if constexpr (F::ARRAYS == 2) next.at[1] = row_of<S>(args.uncertainty2, g()) + 4 * lane();
        }
        if (!stage.has(from)) return;
        if (!stage.vector) return load_gallery<F, S, false>(args, g(), from + 4 * lane(), next.four);
        for (int array = 0; array < F::ARRAYS; ++array) {
            next.four[array] = four<true>(next.at[array] + from, 0, 0, 0, T(0));
        }
    }

    // The sums of the lane's pair with a group of rows from `first` on. `next` is the first step of the group's first
    // row of the warp, and becomes that of the next group's.
    __device__ typename F::Pair sums(int64_t first, NextRow<F, S>& next) const {
        typename F::Pair mine = F::Pair::start();
#pragma unroll 1
        for (int tile = 0; tile < Shape::TILES; ++tile) {
            typename F::Pair pairs[Shape::PAIRS];
            typename F::Item item[1] = {F::Item::start()};
#pragma unroll
            for (int i = 0; i < Shape::PAIRS; ++i) pairs[i] = F::Pair::start();
            const T* queries = stage.queries;
#pragma unroll 1
            for (int from = 0; from < stage.dim(); from += Shape::STEP) {
                // A warp whose queries are all beyond the last one only loads.
                const bool has = stage.has(from), last = from + Shape::STEP >= stage.dim();
                const bool busy = has && first_query + Shape::first_query() < args.mu1.rows;
                Four<T> shared;
                if (has) {
                    shared = load_shared<F>(args, from + 4 * lane());
                    stage.store(next.four, next.to, warp());
                    f.add_item(item[0], next.four, shared);
                }
                if (!args.resident) {
                    __syncthreads();
                    stage.stage_queries(first_query, from, stage.queries);
                }
                __syncthreads();
                // The rows of the next step are loaded while this one is computed.
                load(first + (tile + last) * ROWS, last ? 0 : from + Shape::STEP, next);
                if (busy) add_tile(f, queries, next.to, shared, pairs);
                T* const rows = next.to;
                next.to = next.before, next.before = rows;
                if (args.resident) queries += QUERY_STEP;
            }
            const auto all = F::Pair::reduced(pairs);
            const auto all_item = F::Item::reduced(item);
            if (lane() % Shape::TILES == tile) mine = all;
            if (lane() == 0) row_items[tile][warp()] = all_item;
        }
        __syncthreads();
        return mine;
    }

    // Scores the lane's pair of the group of rows from `first` on, and writes the score or offers it to its list.
    __device__ void offer(int64_t first, const typename F::Pair& sums) const {
        const int pair = lane() / Shape::TILES, tile = lane() % Shape::TILES;
        const int query = Shape::first_query() + pair / Shape::ROWS, row = Shape::first_row() + pair % Shape::ROWS;
        const int64_t q = first_query + query, g = first + tile * ROWS + row;
        const bool wanted = q < args.mu1.rows && g < end;
        const T score = f.template score<S>(args, sums, query_items[query], row_items[tile][row], q, g, wanted);
        if (args.k == 0) {
            if (wanted) static_cast<T*>(args.scores)[q * args.mu2.rows + g] = score;
            return;
        }
        if (wanted) list(query).offer(score, g);
        __syncthreads();
        for (int i = warp(); i < QUERIES; i += WARPS) {
            if (states[i].count + ROWS * Shape::TILES > args.capacity) list(i).template settle<Warp>();
        }
    }

    // Writes the best of each query among the shard's rows.
    __device__ void write() const {
        for (int i = warp(); i < QUERIES && first_query + i < args.mu1.rows; i += WARPS) {
            list(i).template settle<Warp>();
            const int64_t at = ((first_query + i) * gridDim.y + blockIdx.y) * args.k;
            list(i).template write<Warp>(static_cast<T*>(args.scores) + at, args.ids + at);
        }
    }
};

// Writes the best k of each query among the rows of a shard or, where k is 0, all scores [Q, G]. The grid is tiles of
// BLOCK_QUERIES queries by shards. Shared memory holds, in this order, half of the rows, queries (of all steps if they
// are resident) and, if they fit, lists of `capacity` >= k + SEARCH_GROUP items.
template <typename F, typename S>
__device__ void search(const F& f, const PairArgs& args) {
    using T = typename F::T;
    using Block = SearchBlock<F, S>;
    using Shape = Tile<T>;
    DYNAMIC_SHARED(T, rows);
    __shared__ Four<T> other_rows[Block::ROWS * F::ARRAYS * WARP];
    __shared__ ListState<T> states[Block::QUERIES];
    __shared__ typename F::Item query_items[Block::QUERIES], row_items[Shape::TILES][Block::ROWS];

    const int64_t first_query = int64_t(blockIdx.x) * Block::QUERIES;
    const Stage<F, S> stage{args, rows + Block::ROWS * F::ARRAYS * Shape::STEP, vectors<F, S>(args)};
    const int64_t group = Block::ROWS * Shape::TILES, groups = (args.mu2.rows + group - 1) / group;
    const int64_t begin = groups * blockIdx.y / gridDim.y * group;
    const int64_t limit = groups * (blockIdx.y + 1) / gridDim.y * group;
    const int64_t end = limit < args.mu2.rows ? limit : args.mu2.rows;

    const Block block{f, args, stage, first_query, end, states, query_items, row_items};
    block.enter();
    NextRow<F, S> next;
    next.to = rows, next.before = other_rows[0].x;
    if (begin < end) block.load(begin, 0, next);
    for (int64_t first = begin; first < end; first += group) block.offer(first, block.sums(first, next));
    if (args.k == 0) return;
    __syncthreads();
    block.write();
}
