// The best k of given scores.

#include "topk.cuh"

// The items of a query are those of its row; an id of -1 is none.
struct TopKArgs {
    Matrix scores;     // T [Q, N]
    Matrix ids;        // int64 [Q, N]
    int64_t k;         // 1 .. 1024
    int64_t capacity;  // of the list: a power of two >= min(N, k + THREADS)
    void* out_scores;  // T [Q, k]
    int64_t* out_ids;  // [Q, k]
};

constexpr int THREADS = 256;

// A block takes a query, and the next after gridDim.x; shared memory: capacity items.
template <typename T>
__device__ void topk(const TopKArgs& args) {
    DYNAMIC_SHARED(int64_t, ids);
    __shared__ ListState<T> state;
    const int k = int(args.k);
    const List<T> list{reinterpret_cast<T*>(ids + args.capacity), ids, &state, k};
    const int64_t n = args.scores.stored;
    for (int64_t q = blockIdx.x; q < args.scores.rows; q += gridDim.x) {
        if (threadIdx.x == 0) list.clear();
        __syncthreads();
        const T* scores = args.scores.row<T>(q);
        const int64_t* own = args.ids.row<int64_t>(q);
        for (int64_t first = 0; first < n; first += THREADS) {
            const int64_t i = first + threadIdx.x;
            if (i < n && own[i] != NONE) list.offer(scores[i], own[i]);
            __syncthreads();
            const int64_t left = n - first - THREADS, next = left < THREADS ? left : THREADS;
            if (left > 0 && state.count + next > args.capacity) list.template settle<Block>();
            __syncthreads();
        }
        list.template settle<Block>();
        list.template write<Block>(static_cast<T*>(args.out_scores) + q * k, args.out_ids + q * k);
        __syncthreads();
    }
}

KERNEL(topk_f32, TopKArgs, THREADS) { topk<float>(args); }
KERNEL(topk_f64, TopKArgs, THREADS) { topk<double>(args); }
