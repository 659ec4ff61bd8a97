// The best k of given scores.

#include "../drivers/topk.cuh"

// The item that the best k of n all come before or are: the k-th best of the threads' best scores, which k items reach. All come before
// padding, where there is none.
template <typename T>
__device__ ListState<T> reached(const List<T>& list, const T* scores, const int64_t* ids, int64_t n) {
    const int k = list.k, thread = int(threadIdx.x);
    if (k > TOPK_THREADS || n < 2 * TOPK_THREADS) return {0, T(-INFINITY), NONE};
    T best = NAN;
#pragma unroll 4
    for (int64_t i = thread; i < n; i += TOPK_THREADS) {
        const T score = scores[i];
        if (ids[i] != NONE && !(score <= best) && score == score) best = score;
    }
    list.scores[thread] = best, list.ids[thread] = best == best ? thread : NONE;
    __syncthreads();
    sort<Block>(list.scores, list.ids, TOPK_THREADS);
    const bool any = list.ids[k - 1] != NONE;
    const T score = list.scores[k - 1];
    __syncthreads();
    return {0, any ? score : T(-INFINITY), any ? INT64_MAX : NONE};
}

// Writes the best k of each query's items. A block takes a query, then the one gridDim.x further on. Shared memory
// holds `capacity` items.
template <typename T>
__device__ void topk(const TopKArgs& args) {
    DYNAMIC_SHARED(int64_t, ids);
    __shared__ ListState<T> state;
    const int k = int(args.k);
    const List<T> list{reinterpret_cast<T*>(ids + args.capacity), ids, &state, k};
    const int64_t n = args.scores.stored;
    for (int64_t q = blockIdx.x; q < args.scores.rows; q += gridDim.x) {
        const T* scores = row_of<T>(args.scores, q);
        const int64_t* ids = row_of<int64_t>(args.ids, q);
        const auto item = [&](int64_t first) {
            const int64_t i = first + threadIdx.x;
            return i < n ? Scored<T>{scores[i], ids[i]} : Scored<T>{0, NONE};
        };
        T* const to = static_cast<T*>(args.out_scores) + q * k;
        take_best<TOPK_THREADS>(list, reached(list, scores, ids, n), n, args.capacity, to, args.out_ids + q * k, item);
    }
}

KERNEL(topk_f32, TopKArgs, TOPK_THREADS) { topk<float>(args); }
KERNEL(topk_f64, TopKArgs, TOPK_THREADS) { topk<double>(args); }
