// The inputs of a formula of a pair of items, and the derivatives that it returns.
#pragma once

#include "common.cuh"

// -- by dimension -----------------------------------------------------------------------------------------------------

// Four adjacent elements of a row, which are loaded at once.
template <typename T>
struct alignas(sizeof(T) < 4 ? 8 : 16) Four {
    T x[4];
};

// One dimension of a pair: mean and uncertainty of the first item, a and v, and of the second, b and w; and the number
// that all pairs share.
template <typename X>
struct DimensionOf {
    X a, v, b, w, shared;
};
using Dimension = DimensionOf<double>;

// Derivatives by the first item's mean and uncertainty in one dimension, and by the shared numbers.
template <typename X>
struct DimensionPartials {
    X mean, var, shared[2];
};

// -- by pair ----------------------------------------------------------------------------------------------------------

// As in rust/kernels/dot_scores/all_pairs.rs.
constexpr double NEAR_ROWS = 1.0 / 16;

// Whether the squared distance of two rows, computed from their product, has the digits that its score needs; `both` are the squared
// norms of the two.
template <typename T, typename X>
__device__ inline bool has_digits(X square, X both) {
    constexpr double TINY = sizeof(T) == 4 ? 16 * 0x1p-102 : 16 * 0x1p-969;
    return (square >= X(NEAR_ROWS) * both + X(TINY)) & (square - square == 0);
}

// Functions of a von Mises-Fisher item's concentration alone: H, A and A' of formulas/vmf.cuh. Those that the kernel does not use are 0.
struct PerItem {
    double h, a, a_derivative;
};
static_assert(sizeof(PerItem) == PER_ITEM_NUMBERS * sizeof(double));

// The inputs of a formula of one inner product. Gradients are by the first item. The number that a value is
// differentiated by is a Dual (numerics/dual.cuh).
template <typename X, typename N, typename V>
struct DotPairOf {
    X x;                        // squared distance or inner product
    N n;                        // squared norms of the first and second item, set if the formula's NORMS is true
    double m;
    V v;                        // their uncertainties: variances, weights, ...
    double w;
    const PerItem *first, *second;  // what is made of each alone; null where no memory was given for them
};
using DotPair = DotPairOf<double, double, double>;

// The same in single precision, for a limit of the value: x is not above the squared distance, or not below the inner
// product. The last two are what a formula's `alone` makes of each item.
struct LimitPair {
    float x, n, m, v, w, first, second;
};

// Derivatives by x, the first item's squared norm and uncertainty, and the shared numbers.
struct DotPartials {
    double x, norm, uncertainty, shared[2];
};
