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
    // Queries and rows of a block, and how many tiles of rows give each lane one pair to finish.
    static constexpr int BLOCK_QUERIES = ACROSS * QUERIES, BLOCK_ROWS = DOWN * ROWS, TILES = WARP / PAIRS;
    // Dimensions that are loaded at a time.
    static constexpr int STEP = 4 * WARP;
    // Each warp loads one row and computes the sums of one row.
    static_assert(BLOCK_ROWS == SEARCH_THREADS / WARP && ROWS == ACROSS);
    // The launch counts with these numbers.
    static_assert(BLOCK_QUERIES == (sizeof(T) == 4 ? SEARCH_QUERIES_F32 : SEARCH_QUERIES_F64));
    static_assert(BLOCK_ROWS == SEARCH_ROWS && BLOCK_ROWS * TILES <= SEARCH_GROUP && STEP == SEARCH_STEP);
};

// A block's shared memory: queries [step][query][array][128], of all steps or of one, and gallery rows
// [row][array][128].
template <typename F, typename S>
struct Stage {
    using T = typename F::T;
    const PairArgs& args;
    T* queries;
    T* rows;
    bool vector;

    __device__ static void store(const Four<T>* from, T* to, int row) {
        for (int array = 0; array < F::ARRAYS; ++array) {
            *reinterpret_cast<Four<T>*>(to + (row * F::ARRAYS + array) * Tile<T>::STEP + 4 * lane()) = from[array];
        }
    }

    // Whether the lane's dimensions of a step exist.
    __device__ bool has(int64_t step) const { return Tile<T>::STEP * step + 4 * lane() < args.mu1.stored; }

    __device__ void load_query(int64_t q, int64_t step, Four<T>* to) const {
        const int64_t d = Tile<T>::STEP * step + 4 * lane();
        vector ? ::load_query<F, true>(args, q, d, to) : ::load_query<F, false>(args, q, d, to);
    }
    __device__ void load_row(int64_t g, int64_t step, Four<T>* to) const {
        const int64_t d = Tile<T>::STEP * step + 4 * lane();
        if (!has(step)) return;
        vector ? load_gallery<F, S, true>(args, g, d, to) : load_gallery<F, S, false>(args, g, d, to);
    }

    // Copies the block's queries from q on, one by each warp; a query beyond the last is a copy of the last.
    __device__ void stage_queries(int64_t q, int64_t step, T* to) const {
        for (int i = warp(); i < Tile<T>::BLOCK_QUERIES; i += SEARCH_THREADS / WARP) {
            Four<T> four[F::ARRAYS];
            const int64_t row = q + i < args.mu1.rows ? q + i : args.mu1.rows - 1;
            if (!has(step)) continue;
            load_query(row, step, four);
            store(four, to, i);
        }
    }
};

// Adds a step's dimensions to the sums of the warp's pairs, and to those of the one row whose sums the warp computes.
template <typename F>
__device__ inline void add_tile(const F& f, const typename F::T* queries, const typename F::T* rows,
                                const Four<typename F::T>& shared,
                                typename F::Pair (&pairs)[Tile<typename F::T>::PAIRS], typename F::Item& item) {
    using T = typename F::T;
    using Shape = Tile<T>;
    const int across = warp() % Shape::ACROSS, down = warp() / Shape::ACROSS;
    const auto get = [](const T* from, int row, Four<T>* to) {
        for (int array = 0; array < F::ARRAYS; ++array) {
            to[array] = *reinterpret_cast<const Four<T>*>(from + (row * F::ARRAYS + array) * Shape::STEP + 4 * lane());
        }
    };
    Four<T> y[Shape::ROWS][F::ARRAYS];
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) get(rows, down * Shape::ROWS + r, y[r]);
#pragma unroll
    for (int i = 0; i < Shape::QUERIES; ++i) {
        Four<T> x[F::ARRAYS];
        get(queries, across * Shape::QUERIES + i, x);
#pragma unroll
        for (int r = 0; r < Shape::ROWS; ++r) f.add_pair(pairs[i * Shape::ROWS + r], x, y[r], shared);
    }
    get(rows, down * Shape::ROWS + across, y[0]);
    f.add_item(item, y[0], shared);
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
    const int64_t steps, first_query;
    // The end of the shard.
    const int64_t end;
    ListState<T>* const states;
    typename F::Item *const query_items, (*const row_items)[ROWS];

    __device__ List<T> list(int query) const {
        T* const shared_scores = stage.queries + (args.resident ? steps : 1) * QUERY_STEP;
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
            for (int64_t step = 0; step < steps; ++step) {
                Four<T> four[F::ARRAYS];
                if (!stage.has(step)) continue;
                stage.load_query(q, step, four);
                f.add_item(sums[0], four, load_shared<F>(args, Shape::STEP * step + 4 * lane()));
            }
            const auto all = F::Item::reduced(sums);
            if (lane() == 0) {
                query_items[i] = all;
                list(i).clear();
            }
        }
        if (args.resident) {
            for (int64_t step = 0; step < steps; ++step) {
                stage.stage_queries(first_query, step, stage.queries + step * QUERY_STEP);
            }
        }
    }

    // Loads a step of the row of the tile from `first` on that the warp copies; a row beyond the last is a copy of it.
    __device__ void load(int64_t first, int64_t step, Four<T>* next) const {
        const int64_t g = first + warp();
        stage.load_row(g < end ? g : end - 1, step, next);
    }

    // The sums of the lane's pair with a group of rows from `first` on. `next` is the first step of the group's first
    // row of the warp, and becomes that of the next group's.
    __device__ typename F::Pair sums(int64_t first, Four<T>* next) const {
        typename F::Pair mine = F::Pair::start();
#pragma unroll 1
        for (int tile = 0; tile < Shape::TILES; ++tile) {
            typename F::Pair pairs[Shape::PAIRS];
            typename F::Item item[1] = {F::Item::start()};
#pragma unroll
            for (int i = 0; i < Shape::PAIRS; ++i) pairs[i] = F::Pair::start();
#pragma unroll 1
            for (int64_t step = 0; step < steps; ++step) {
                __syncthreads();
                if (stage.has(step)) stage.store(next, stage.rows, warp());
                if (!args.resident) stage.stage_queries(first_query, step, stage.queries);
                __syncthreads();
                // The rows of the next step are loaded while this one is computed.
                const bool last = step + 1 == steps;
                load(first + (tile + last) * ROWS, last ? 0 : step + 1, next);
                if (stage.has(step)) {
                    const auto shared = load_shared<F>(args, Shape::STEP * step + 4 * lane());
                    const T* const queries = stage.queries + (args.resident ? step : 0) * QUERY_STEP;
                    add_tile(f, queries, stage.rows, shared, pairs, item[0]);
                }
            }
            const auto all = F::Pair::reduced(pairs);
            const auto all_item = F::Item::reduced(item);
            if (lane() % Shape::TILES == tile) mine = all;
            const int row = warp() / Shape::ACROSS * Shape::ROWS + warp() % Shape::ACROSS;
            if (lane() == 0) row_items[tile][row] = all_item;
        }
        __syncthreads();
        return mine;
    }

    // Scores the lane's pair of the group of rows from `first` on, and writes the score or offers it to its list.
    __device__ void offer(int64_t first, const typename F::Pair& sums) const {
        const int pair = lane() / Shape::TILES, tile = lane() % Shape::TILES;
        const int query = warp() % Shape::ACROSS * Shape::QUERIES + pair / Shape::ROWS;
        const int row = warp() / Shape::ACROSS * Shape::ROWS + pair % Shape::ROWS;
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
// BLOCK_QUERIES queries by shards. Shared memory holds, in this order, rows, queries (of all steps if they are
// resident) and, if they fit, lists of `capacity` >= k + SEARCH_GROUP items.
template <typename F, typename S>
__device__ void search(const F& f, const PairArgs& args) {
    using T = typename F::T;
    using Block = SearchBlock<F, S>;
    using Shape = Tile<T>;
    DYNAMIC_SHARED(T, rows);
    __shared__ ListState<T> states[Block::QUERIES];
    __shared__ typename F::Item query_items[Block::QUERIES], row_items[Shape::TILES][Block::ROWS];

    const int64_t steps = (args.mu1.stored + Shape::STEP - 1) / Shape::STEP;
    const int64_t first_query = int64_t(blockIdx.x) * Block::QUERIES;
    const Stage<F, S> stage{args, rows + Block::ROWS * F::ARRAYS * Shape::STEP, rows, vectors<F, S>(args)};
    const int64_t group = Block::ROWS * Shape::TILES, groups = (args.mu2.rows + group - 1) / group;
    const int64_t begin = groups * blockIdx.y / gridDim.y * group;
    const int64_t limit = groups * (blockIdx.y + 1) / gridDim.y * group;
    const int64_t end = limit < args.mu2.rows ? limit : args.mu2.rows;

    const Block block{f, args, stage, steps, first_query, end, states, query_items, row_items};
    block.enter();
    Four<T> next[F::ARRAYS];
    if (begin < end) block.load(begin, 0, next);
    for (int64_t first = begin; first < end; first += group) block.offer(first, block.sums(first, next));
    if (args.k == 0) return;
    __syncthreads();
    block.write();
}
