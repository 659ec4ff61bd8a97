// The kernels of a score: <op>_{pairs,rerank,search,backward}_<types>, for each type of the numbers computed in and,
// where that is another one, of the gallery.
#pragma once

#include "backward.cuh"
#include "search.cuh"

// Blocks that are to fit on a multiprocessor, which has 65536 registers: so many that few are spilled.
template <typename F>
constexpr int PAIR_BLOCKS = F::ARRAYS == 1 ? 5 : 3;
template <typename F>
constexpr int RERANK_BLOCKS = F::ARRAYS == 1 ? 6 : sizeof(typename F::T) == 4 ? 4 : 3;
template <typename F>
constexpr int SEARCH_BLOCKS = sizeof(typename F::T) == 4 ? 2 : 1;

#define DRIVERS(op, F, S, types)                                                                                       \
    KERNEL(op##_pairs_##types, PairArgs, PAIR_THREADS, PAIR_BLOCKS<F>) { score_all<F, S>(F(args), args); }           \
    KERNEL(op##_rerank_##types, PairArgs, PAIR_THREADS, RERANK_BLOCKS<F>) { rerank<F, S>(F(args), args); }           \
    KERNEL(op##_search_##types, PairArgs, SEARCH_THREADS, SEARCH_BLOCKS<F>) { search<F, S>(F(args), args); }

#define BACKWARD(op, F, types) \
    KERNEL(op##_backward_##types, BackwardArgs, PAIR_THREADS) { backward<F>(F(args.pairs), args); }

// All of the score `op`: Family<T, Formula> is its pair function.
#define SCORE(op, Family, Formula)                            \
    using op##_single = Family<float, Formula>;               \
    using op##_double = Family<double, Formula>;              \
    DRIVERS(op, op##_single, float, f32)                      \
    DRIVERS(op, op##_double, double, f64)                     \
    DRIVERS(op, op##_single, Float16, f32_f16)                \
    DRIVERS(op, op##_single, BFloat16, f32_bf16)              \
    BACKWARD(op, op##_single, f32)                            \
    BACKWARD(op, op##_double, f64)
