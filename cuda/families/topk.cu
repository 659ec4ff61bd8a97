// The best k of given scores.

#include "../drivers/topk.cuh"

// Calls body(score, id) for the items of a thread: one of each TOPK_THREADS, and not always the same one, as padding may lie at regular
// places. Those of four are loaded at once.
template <typename T, typename Body>
__device__ inline void each_item(const T* scores, const int64_t* ids, int64_t n, const Body& body) {
    constexpr int AHEAD = 4;
    for (int64_t first = 0; first < n; first += AHEAD * TOPK_THREADS) {
        Scored<T> items[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int64_t row = first / TOPK_THREADS + j, i = row * TOPK_THREADS + (threadIdx.x + row) % TOPK_THREADS;
            items[j] = i < n ? Scored<T>{scores[i], ids[i]} : Scored<T>{0, NONE};
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (items[j].id != NONE) body(items[j].score, items[j].id);
        }
    }
}

// The item that the best k of n all come before or are: the k-th best of the threads' best scores, which k items reach. All come before
// padding, where there is none.
template <typename T>
__device__ ListState<T> reached(const List<T>& list, const T* scores, const int64_t* ids, int64_t n) {
    const int k = list.k, thread = int(threadIdx.x);
    if (k > TOPK_THREADS || n < 2 * TOPK_THREADS) return {0, T(-INFINITY), NONE};
    T best = NAN;
    each_item(scores, ids, n, [&](T score, int64_t) {
        if (!(score <= best) && score == score) best = score;
    });
    list.scores[thread] = best, list.ids[thread] = best == best ? thread : NONE;
    __syncthreads();
    sort<Block>(list.scores, list.ids, TOPK_THREADS);
    const bool any = list.ids[k - 1] != NONE;
    const T score = list.scores[k - 1];
    __syncthreads();
    return {0, any ? score : T(-INFINITY), any ? INT64_MAX : NONE};
}

// Adds the items that come before that of `start`, and returns whether the list has memory for all of them. Most often it does, and the
// threads need not wait for each other.
template <typename T>
__device__ bool all_fit(const List<T>& list, const ListState<T>& start, const T* scores, const int64_t* ids, int64_t n, int64_t capacity) {
    if (threadIdx.x == 0) list.clear(start);
    __syncthreads();
    each_item(scores, ids, n, [&](T score, int64_t id) {
        if (!before(score, id, start.score, start.id)) return;
        const int at = atomicAdd(&list.state->count, 1);
        if (at < capacity) list.scores[at] = score, list.ids[at] = id;
    });
    __syncthreads();
    const bool fit = list.state->count <= capacity;
    __syncthreads();
    return fit;
}

// Writes the best k of each query's items. A block takes a query, then the one gridDim.x further on. Shared memory holds `capacity` items.
template <typename T>
__device__ void topk(const TopKArgs& args) {
    DYNAMIC_SHARED(int64_t, shared_ids);
    __shared__ ListState<T> state;
    const int k = int(args.k);
    const List<T> list{reinterpret_cast<T*>(shared_ids + args.capacity), shared_ids, &state, k};
    const int64_t n = args.scores.stored;
    for (int64_t q = blockIdx.x; q < args.scores.rows; q += gridDim.x) {
        const T* const scores = row_of<T>(args.scores, q);
        const int64_t* const ids = row_of<int64_t>(args.ids, q);
        T* const to = static_cast<T*>(args.out_scores) + q * k;
        int64_t* const to_ids = args.out_ids + q * k;
        const ListState<T> start = reached(list, scores, ids, n);
        if ((n <= args.capacity || start.id != NONE) && all_fit(list, start, scores, ids, n, args.capacity)) {
            list.template settle<Block>();
            list.template write<Block>(to, to_ids);
            __syncthreads();
            continue;
        }
        take_best<TOPK_THREADS>(list, start, n, args.capacity, to, to_ids, [&](int64_t first) {
            const int64_t i = first + threadIdx.x;
            return i < n ? Scored<T>{scores[i], ids[i]} : Scored<T>{0, NONE};
        });
    }
}

KERNEL(topk_f32, TopKArgs, TOPK_THREADS) { topk<float>(args); }
KERNEL(topk_f64, TopKArgs, TOPK_THREADS) { topk<double>(args); }
