// Dual numbers, as rust/special/dual.rs has them: a value with its derivative by one variable, so that a formula gives
// its own slopes (forward mode). What does not depend on the variable is a double: a formula of doubles has no
// derivatives to compute. Quotients by dual numbers are products with a reciprocal, which slopes share.
#pragma once

#include "../common.cuh"

struct Dual {
    double value, slope;
};

__device__ inline double value_of(double x) { return x; }
__device__ inline double value_of(Dual x) { return x.value; }

__device__ inline Dual operator-(Dual a) { return {-a.value, -a.slope}; }

__device__ inline Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
__device__ inline Dual operator+(Dual a, double b) { return {a.value + b, a.slope}; }
__device__ inline Dual operator+(double a, Dual b) { return b + a; }

__device__ inline Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.slope - b.slope}; }
__device__ inline Dual operator-(Dual a, double b) { return {a.value - b, a.slope}; }
__device__ inline Dual operator-(double a, Dual b) { return {a - b.value, -b.slope}; }

__device__ inline Dual operator*(Dual a, Dual b) { return {a.value * b.value, a.slope * b.value + b.slope * a.value}; }
__device__ inline Dual operator*(Dual a, double b) { return {a.value * b, a.slope * b}; }
__device__ inline Dual operator*(double a, Dual b) { return b * a; }

__device__ inline Dual operator/(Dual a, double b) {
    const double inverse = 1 / b;
    return {a.value * inverse, a.slope * inverse};
}
__device__ inline Dual operator/(double a, Dual b) {
    const double inverse = 1 / b.value, value = a * inverse;
    return {value, -value * b.slope * inverse};
}
__device__ inline Dual operator/(Dual a, Dual b) {
    const double inverse = 1 / b.value, value = a.value * inverse;
    return {value, (a.slope - value * b.slope) * inverse};
}

__device__ inline Dual sqrt(Dual x) {
    const double root = sqrt(x.value);
    return {root, 0.5 * x.slope / root};
}
__device__ inline Dual log(Dual x) { return {log(x.value), x.slope / x.value}; }
