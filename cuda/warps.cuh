// The lanes of a warp: their numbers, and how they combine the values that each of them holds.
#pragma once

#include "common.cuh"

#define FULL 0xffffffffu

__device__ inline int lane() { return threadIdx.x % WARP; }
__device__ inline int warp() { return threadIdx.x / WARP; }

// Returns to all lanes of a warp the sum of their x. It is added up by one tree, so that its bits are those of every kernel.
template <typename T>
__device__ inline T warp_sum(T x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(FULL, x, mask);
    return x;
}

// Returns to all lanes of a warp the greatest of their x.
template <typename T>
__device__ inline T warp_greatest(T x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const T other = __shfl_xor_sync(FULL, x, mask);
        x = other > x ? other : x;
    }
    return x;
}

struct Sum {
    template <typename T>
    __device__ T operator()(T x, T y) const { return x + y; }
};
struct Times {
    template <typename T>
    __device__ T operator()(T x, T y) const { return x * y; }
};
struct Least {
    template <typename T>
    __device__ T operator()(T x, T y) const { return y < x ? y : x; }
};
struct Greatest {
    template <typename T>
    __device__ T operator()(T x, T y) const { return y > x ? y : x; }
};

// Combines N numbers of each lane over the lanes of a warp, N a power of two, and returns number l / (32 / N) to lane l. In each of the
// first steps a lane sends half of its numbers to another lane; the tree is that of warp_sum, whatever N.
template <typename Operation, int N, typename T>
__device__ inline T combined(const T (&x)[N], Operation operation, int mask = WARP / 2) {
    if constexpr (N > 1) {
        const bool upper = lane() & mask;
        T half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const T sent = upper ? x[i] : x[i + N / 2], held = upper ? x[i + N / 2] : x[i];
            half[i] = operation(held, __shfl_xor_sync(FULL, sent, mask));
        }
        return combined(half, operation, mask / 2);
    } else {
        T all = x[0];
        for (; mask > 0; mask /= 2) all = operation(all, __shfl_xor_sync(FULL, all, mask));
        return all;
    }
}

// Combines a member of N structs of each lane likewise.
template <typename Operation, int N, typename Struct, typename T>
__device__ inline T combined(const Struct (&all)[N], T Struct::*member, Operation operation) {
    T x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = all[i].*member;
    return combined(x, operation);
}
