// The best k of a stream of items in the order that every verb keeps: higher score first, then NaN, then padding (id
// -1); ties go to the lower id.
#pragma once

#include "../warps.cuh"

// The id of what is no item; its score is -infinity.
constexpr int64_t NONE = -1;

// Whether the item (s, i) comes before (t, j).
template <typename T>
HD bool before(T s, int64_t i, T t, int64_t j) {
    if (i == NONE || j == NONE) return i != NONE;
    if (s > t) return true;
    if (s < t) return false;
    const bool nan = s != s, other = t != t;
    return nan != other ? other : i < j;
}

// Who sorts: all threads of a block, or of a warp.
struct Block {
    static __device__ int rank() { return threadIdx.x; }
    static __device__ int size() { return blockDim.x; }
    static __device__ void sync() { __syncthreads(); }
};
struct Warp {
    static __device__ int rank() { return threadIdx.x % WARP; }
    static __device__ int size() { return WARP; }
    static __device__ void sync() { __syncwarp(); }
};

// Bitonic sort of n items, n a power of two. What came before is synchronised, and so is the result.
template <typename Group, typename T>
__device__ __noinline__ void sort(T* scores, int64_t* ids, int n) {
    for (int size = 2; size <= n; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            for (int i = Group::rank(); i < n / 2; i += Group::size()) {
                const int low = 2 * i - (i & (stride - 1)), high = low + stride;
                const T s = scores[low], t = scores[high];
                const int64_t a = ids[low], b = ids[high];
                const bool ascending = (low & size) == 0;
                if (ascending ? before(t, b, s, a) : before(s, a, t, b)) {
                    scores[low] = t, scores[high] = s;
                    ids[low] = b, ids[high] = a;
                }
            }
            Group::sync();
        }
    }
}

// An item.
template <typename T>
struct Scored {
    T score;
    int64_t id;
};

// What all threads know of a list, in shared memory: how many items it holds, and the one that others must come before.
template <typename T>
struct ListState {
    int count;
    T score;
    int64_t id;
};

// The best k so far and what has been offered since, in any order: at most `capacity` items, a power of two >= k.
template <typename T>
struct List {
    T* scores;
    int64_t* ids;
    ListState<T>* state;
    int k;

    // By one thread.
    __device__ void clear() const { *state = {0, T(-INFINITY), NONE}; }

    // By any thread, while the list is not full.
    __device__ void offer(T score, int64_t id) const {
        if (!before(score, id, state->score, state->id)) return;
        const int at = atomicAdd(&state->count, 1);
        scores[at] = score, ids[at] = id;
    }

    // Sorts, and forgets all but the best k. By a group, synchronised before; so it is after.
    template <typename Group>
    __device__ void settle() const {
        const int count = state->count;
        int n = 1;
        while (n < count) n *= 2;
        for (int i = count + Group::rank(); i < n; i += Group::size()) scores[i] = T(-INFINITY), ids[i] = NONE;
        Group::sync();
        sort<Group>(scores, ids, n);
        if (Group::rank() == 0 && count >= k) *state = {k, scores[k - 1], ids[k - 1]};
        Group::sync();
    }

    // Writes the best k of a settled list.
    template <typename Group>
    __device__ void write(T* out_scores, int64_t* out_ids) const {
        for (int i = Group::rank(); i < k; i += Group::size()) {
            const bool item = i < state->count;
            out_scores[i] = item ? scores[i] : T(-INFINITY);
            out_ids[i] = item ? ids[i] : NONE;
        }
    }
};

// The best k of n items, which `item(first)` gives, to each of THREADS threads one of those from `first` on: all of
// them call it together, and what has the id NONE is none. The list holds `capacity` >= min(n, k + THREADS).
template <int THREADS, typename T, typename Items>
__device__ inline void take_best(const List<T>& list, int64_t n, int64_t capacity, T* scores, int64_t* ids,
                                 const Items& item) {
    if (threadIdx.x == 0) list.clear();
    __syncthreads();
    for (int64_t first = 0; first < n; first += THREADS) {
        const Scored<T> own = item(first);
        if (own.id != NONE) list.offer(own.score, own.id);
        __syncthreads();
        const int64_t left = n - first - THREADS, next = left < THREADS ? left : THREADS;
        if (left > 0 && list.state->count + next > capacity) list.template settle<Block>();
        __syncthreads();
    }
    list.template settle<Block>();
    list.template write<Block>(scores, ids);
    __syncthreads();
}
