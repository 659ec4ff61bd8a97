// Natural logarithm, sine and cosine as in rust/special/{log,trig}.rs, from the same coefficients, so that random numbers agree with the
// CPU's to the last bits, and so that the host tests the functions that the device runs. exp and sqrt are CUDA's own.
//
// ln_normal: x = 2^k (1 + f) with 1 + f in [1/sqrt 2, sqrt 2); s = f / (2 + f), z = s^2;
// log(1 + f) = f - f^2/2 + s (f^2/2 + z R(z)). Largest error: 0.9 ulp.
// sin_cos: sin(pi x / 2) = x S(x^2), cos(pi x / 2) = C(x^2) for |x| <= 1/2. Largest error: 1.6 ulp.
#pragma once

#include "../common.cuh"
#include "tables.cuh"

// The polynomial with these coefficients.
template <typename T, int N>
HD T horner(const T (&ascending)[N], T x) {
    T sum = ascending[N - 1];
    for (int i = N - 2; i >= 0; --i) sum = fma(sum, x, ascending[i]);
    return sum;
}

// a / b, with an error of up to 2 ulp on a device.
HD float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdividef(a, b);
#else
    return a / b;
#endif
}
HD double quotient(double a, double b) { return a / b; }

// a / b, with an error of up to 2 ulp on a device, where b and 1 / b are normal numbers.
HD float rough_quotient(float a, float b) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    return a * inverse;
#else
    return a / b;
#endif
}

// 1 / sqrt x of a normal number, with an error of up to 2 ulp on a device.
HD float rough_rsqrt(float x) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
#else
    return 1 / sqrt(x);
#endif
}

// log2 x of a normal number, with an error of up to 2 ulp or 2^-22 on a device.
HD float rough_log2(float x) {
#ifdef __CUDA_ARCH__
    float log2;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2) : "f"(x));
    return log2;
#else
    return log2(x);
#endif
}

// log(2^k (1 + f)); log 2 is in two parts, the product of the first with any exponent is exact.
template <typename T, int N>
HD T log_of(T k, T f, const T (&series)[N], T upper_log2, T lower_log2) {
    const T s = quotient(f, f + 2), z = s * s, half_square = T(0.5) * f * f;
    const T small = fma(s, fma(horner(series, z), z, half_square), k * lower_log2) - half_square;
    return fma(k, upper_log2, f + small);
}

// Natural logarithm of a positive, finite, normal number.
HD float ln_normal(float x) {
    constexpr float series[] = {LOG_F32};
    constexpr uint32_t least = 0x3f3504f3;  // 1/sqrt 2
    const uint32_t above = to_bits(x) - least;
    const float f = from_bits((above & 0x007fffff) + least) - 1;
    return log_of(float(int32_t(above) >> 23), f, series, 0.693145751953125f, 1.428606820309417e-6f);
}

HD double ln_normal(double x) {
    constexpr double series[] = {LOG_F64};
    constexpr uint64_t least = 0x3fe6a09e667f3bcd;  // 1/sqrt 2
    const uint64_t above = to_bits(x) - least;
    const double f = from_bits((above & 0x000fffffffffffff) + least) - 1;
    return log_of(double(int32_t(int64_t(above) >> 52)), f, series, 0.6931471803691238, 1.9082149292705877e-10);
}

// a / b, to 2 ulp and without a branch on a device, so that those of many pairs are computed at once. A b below the normal numbers counts
// as 0 there.
HD double quick_quotient(double a, double b) {
#ifdef __CUDA_ARCH__
    double inverse;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(b));
    // Of twenty bits, sixty. The reciprocal of 0 or infinity is exact.
    const double error = fma(-b, inverse, 1.0), better = fma(inverse, fma(error, error, error), inverse);
    return a * ((uint32_t(to_bits(inverse) >> 32) - 0x00100000u) % 0x80000000u < 0x7fe00000u ? better : inverse);
#else
    return a / b;
#endif
}

// The root of x >= 0, likewise.
HD double quick_sqrt(double x) {
#ifdef __CUDA_ARCH__
    double inverse;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(x));
    const double root = x * inverse, error = fma(-root, inverse, 1.0);
    return error == error ? fma(root, error * fma(0.375, error, 0.5), root) : x;
#else
    return sqrt(x);
#endif
}

// The natural logarithm, likewise.
HD double quick_log(double x) {
#ifdef __CUDA_ARCH__
    constexpr double series[] = {LOG_F64};
    constexpr uint64_t least = 0x3fe6a09e667f3bcd;  // 1/sqrt 2
    // Numbers by their upper halves: below the normal ones, infinity or NaN, and below 0.
    const uint64_t bits = to_bits(x), infinity = uint64_t(0x7ff00000) << 32;
    const uint32_t upper = uint32_t(bits >> 32);
    const bool small = upper < 0x00100000, odd = upper >= 0x7ff00000;
    const uint64_t above = to_bits(small ? x * 0x1p54 : x) - least;
    const double f = from_bits((above & 0x000fffffffffffff) + least) - 1;
    const double k = double(int32_t(int64_t(above) >> 52) - (small ? 54 : 0));
    const double s = quick_quotient(f, f + 2), z = s * s, half_square = 0.5 * f * f;
    const double rest = fma(s, fma(horner(series, z), z, half_square), k * 1.9082149292705877e-10) - half_square;
    const double log = fma(k, 0.6931471803691238, f + rest);
    return bits << 1 == 0 ? -INFINITY : odd ? (bits == infinity ? x : NAN) : log;
#else
    return log(x);
#endif
}

// Sine and cosine of pi x / 2 for |x| <= 1/2.
HD void sin_cos(float x, float& sine, float& cosine) {
    constexpr float s[] = {SIN_F32}, c[] = {COS_F32};
    sine = x * horner(s, x * x), cosine = horner(c, x * x);
}

HD void sin_cos(double x, double& sine, double& cosine) {
    constexpr double s[] = {SIN_F64}, c[] = {COS_F64};
    sine = x * horner(s, x * x), cosine = horner(c, x * x);
}
