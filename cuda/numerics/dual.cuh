// Dual numbers: a value with its derivative with respect to one variable, so that a formula gives its own derivatives
// (automatic differentiation in forward mode). A formula is evaluated once for each variable, and the compiler joins
// what the evaluations share; those of rust/special/dual.rs have a derivative for each of three variables. A number
// that does not depend on the variable is a double: a formula of doubles has no derivatives to compute. Quotients by
// dual numbers are products with a reciprocal, which the derivatives use as well.
#pragma once

#include "elementary.cuh"

struct Dual {
    double value, derivative;
};

__device__ inline double value_of(double x) { return x; }
__device__ inline double value_of(Dual x) { return x.value; }

__device__ inline Dual operator-(Dual a) { return {-a.value, -a.derivative}; }

__device__ inline Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.derivative + b.derivative}; }
__device__ inline Dual operator+(Dual a, double b) { return {a.value + b, a.derivative}; }
__device__ inline Dual operator+(double a, Dual b) { return b + a; }

__device__ inline Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.derivative - b.derivative}; }
__device__ inline Dual operator-(Dual a, double b) { return {a.value - b, a.derivative}; }
__device__ inline Dual operator-(double a, Dual b) { return {a - b.value, -b.derivative}; }

__device__ inline Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.derivative * b.value + b.derivative * a.value};
}
__device__ inline Dual operator*(Dual a, double b) { return {a.value * b, a.derivative * b}; }
__device__ inline Dual operator*(double a, Dual b) { return b * a; }

__device__ inline Dual quick_quotient(Dual a, double b) {
    return {quick_quotient(a.value, b), quick_quotient(a.derivative, b)};
}
__device__ inline Dual quick_quotient(double a, Dual b) {
    const double inverse = quick_quotient(1, b.value), value = a * inverse;
    return {value, -value * b.derivative * inverse};
}
__device__ inline Dual quick_quotient(Dual a, Dual b) {
    const double inverse = quick_quotient(1, b.value), value = a.value * inverse;
    return {value, (a.derivative - value * b.derivative) * inverse};
}

__device__ inline Dual quick_sqrt(Dual x) {
    const double root = quick_sqrt(x.value);
    return {root, quick_quotient(0.5 * x.derivative, root)};
}
__device__ inline Dual quick_log(Dual x) { return {quick_log(x.value), quick_quotient(x.derivative, x.value)}; }
