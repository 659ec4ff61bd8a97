// The prelude of every kernel file: how a kernel is declared, numbers and their bits, rows in memory.
//
// All of cuda/ also compiles with a host compiler after `-include tests/host_cuda.hpp`, which runs the threads of a
// block as fibers: kernels are tested whole where there is no GPU.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "arguments.cuh"

#ifdef __CUDACC__
#define HD __host__ __device__ inline
// Declares a kernel, which takes one struct by value and whose name is its symbol. After the struct comes the most
// threads of a block and, where it matters, how many blocks are to fit on a multiprocessor.
#define KERNEL(name, Args, ...) \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Args args)
// Names the dynamic shared memory of the launch.
#define DYNAMIC_SHARED(T, name)                  \
    extern __shared__ __align__(16) char dynamic_shared[]; \
    T* const name = reinterpret_cast<T*>(dynamic_shared)
#endif

constexpr double LOG_2PI = 1.83787706640934548356;

// -- numbers ----------------------------------------------------------------------------------------------------------

// Halves as they are stored: their bits, in a type for each format.
struct Float16 {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

HD float from_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
#endif
}

HD uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

HD uint64_t to_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

HD double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

HD bool is_finite(double x) { return x - x == 0; }

HD float widened(float x) { return x; }
HD double widened(double x) { return x; }
HD float widened(BFloat16 x) { return from_bits(uint32_t(x.bits) << 16); }
HD float widened(Float16 x) {
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
#else
    // The exponent moves from bias 15 to bias 127 by a product, which normalises subnormal numbers too.
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = uint32_t(x.bits & 0x7fff) << 13;
    const bool finite = rest < 0x7c00u << 13;
    const float magnitude = finite ? from_bits(rest) * from_bits(0x77800000u) : from_bits(rest | 0x7f800000);
    return from_bits(to_bits(magnitude) | sign);
#endif
}

// The nearest half; of two, the even one.
template <typename Half>
HD Half narrowed(float x);
template <>
HD BFloat16 narrowed<BFloat16>(float x) {
    const uint32_t bits = to_bits(x);
    return {uint16_t(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <>
HD Float16 narrowed<Float16>(float x) {
#ifdef __CUDA_ARCH__
    Float16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(x));
    return half;
#else
    const uint16_t sign = uint16_t(to_bits(x) >> 16 & 0x8000);
    const float size = fabsf(x);
    if (!(size < 65520)) return {uint16_t(sign | (x != x ? 0x7fff : 0x7c00))};
    // A multiple of the step between halves of that size; of subnormal ones it is their bits.
    const int exponent = size < 0x1p-14f ? -14 : ilogbf(size);
    const int multiple = int(nearbyintf(ldexpf(size, 10 - exponent)));
    return {uint16_t(sign | (multiple + ((exponent + 14) << 10)))};
#endif
}

// -- memory -----------------------------------------------------------------------------------------------------------

// A pointer to row i of a matrix.
template <typename T>
HD const T* row_of(const DeviceMatrix& matrix, int64_t i) {
    return static_cast<const T*>(matrix.data) + i * matrix.stride;
}
