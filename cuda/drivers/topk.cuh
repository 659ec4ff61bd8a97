// The best k of a stream of items, in the order of every verb: higher score first, then NaN, then padding (id -1);
// among equal scores the lower id comes first.
#pragma once

#include "../warps.cuh"

// The id of padding, whose score is -infinity.
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

// The group of threads that sorts together: a block or a warp.
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

// Bitonic sort of n items, n a power of two. The group must have synchronised before the call, and is synchronised after it.
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

// An item: a row of the gallery and its score.
template <typename T>
struct Scored {
    T score;
    int64_t id;
};

// The state of a list, in shared memory: how many items it holds, and the item that new ones must come before.
template <typename T>
struct ListState {
    int count;
    T score;
    int64_t id;
};

// A list of the best k so far and of the items that have been added since, in any order. It has memory for `capacity`
// items, a power of two >= k.
template <typename T>
struct List {
    T* scores;
    int64_t* ids;
    ListState<T>* state;
    int k;

    // Empties the list. Called by one thread.
    __device__ void clear(const ListState<T>& start = {0, T(-INFINITY), NONE}) const { *state = start; }

    // Adds an item that comes before the k-th best so far. Called by any thread, while the list is not full.
    __device__ void offer(T score, int64_t id) const {
        if (!before(score, id, state->score, state->id)) return;
        const int at = atomicAdd(&state->count, 1);
        scores[at] = score, ids[at] = id;
    }

    // Sorts the list and drops all but the best k. Called by a group that has synchronised, which it is again afterwards.
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

    // Writes the best k of a settled list, with padding where there are fewer. Called by a group.
    template <typename Group>
    __device__ void write(T* out_scores, int64_t* out_ids) const {
        for (int i = Group::rank(); i < k; i += Group::size()) {
            const bool item = i < state->count;
            out_scores[i] = item ? scores[i] : T(-INFINITY);
            out_ids[i] = item ? ids[i] : NONE;
        }
    }
};

// Writes the best k of n items. `item(first)`, which all of THREADS threads call together, returns to each of them one
// of the items from `first` on, or one with the id NONE. The list has memory for `capacity` >= min(n, k + THREADS)
// items. Those that do not come before the item of `start` are not among the best.
template <int THREADS, typename T, typename Items>
__device__ inline void take_best(const List<T>& list, const ListState<T>& start, int64_t n, int64_t capacity, T* scores,
                                 int64_t* ids, const Items& item) {
    if (threadIdx.x == 0) list.clear(start);
    __syncthreads();
    for (int64_t first = 0; first < n; first += THREADS) {
        const Scored<T> scored = item(first);
        if (scored.id != NONE) list.offer(scored.score, scored.id);
        __syncthreads();
        const int64_t left = n - first - THREADS, next = left < THREADS ? left : THREADS;
        if (left > 0 && list.state->count + next > capacity) list.template settle<Block>();
        __syncthreads();
    }
    list.template settle<Block>();
    list.template write<Block>(scores, ids);
    __syncthreads();
}
