// The best k of given scores.

#include "../drivers/topk.cuh"

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
        take_best<TOPK_THREADS>(list, n, args.capacity, to, args.out_ids + q * k, item);
    }
}

KERNEL(topk_f32, TopKArgs, TOPK_THREADS) { topk<float>(args); }
KERNEL(topk_f64, TopKArgs, TOPK_THREADS) { topk<double>(args); }
