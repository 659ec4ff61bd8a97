// What a formula is given of a pair and what it gives back, which drivers hold too.
#pragma once

#include "common.cuh"

// -- by dimension -----------------------------------------------------------------------------------------------------

// Four adjacent elements.
template <typename T>
struct alignas(sizeof(T) < 4 ? 8 : 16) Four {
    T x[4];
};

// One dimension of a pair: own mean and extra, the other's, the shared number.
struct Dimension {
    double a, v, b, w, shared;
};

struct DimensionSlopes {
    double mean, var, shared[2];
};

// -- by pair ----------------------------------------------------------------------------------------------------------

// What belongs to a von Mises-Fisher item alone, as far as it is wanted: H, A and A' of its concentration
// (formulas/vmf.cuh).
struct Own {
    double h, a, a_slope;
};

// What a formula sees of a pair: the first item is the one that gradients are asked for. A number that the score is to
// be differentiated by is a Dual.
template <typename X, typename N, typename V>
struct DotPairOf {
    X x;                        // squared distance or inner product
    N n;                        // squared norms of the first and second; of no meaning unless the formula asks for them
    double m;
    V v;                        // extras: variances, weights, ...
    double w;
    const Own *first, *second;  // null where they were not made
};
using DotPair = DotPairOf<double, double, double>;

// Derivatives by x, the first item's squared norm and extra, and the shared numbers.
struct DotSlopes {
    double x, norm, extra, shared[2];
};
