// The kernels of a score: <op>_{pairs,rerank,search,backward}_<types>. The types are the one that is computed in and,
// where it is another one, that of the stored gallery.
#pragma once

#include "backward.cuh"
#include "search.cuh"

// How many blocks are to fit on a multiprocessor, which has 65536 registers: with more, the compiler would spill many.
template <typename F>
constexpr int PAIR_BLOCKS = F::ARRAYS == 1 ? 5 : 3;
template <typename F>
constexpr int RERANK_BLOCKS = F::ARRAYS == 1 ? 6 : sizeof(typename F::T) == 4 ? 4 : 3;
template <typename F>
constexpr int SEARCH_BLOCKS = sizeof(typename F::T) == 4 ? 2 : 1;
template <typename F>
constexpr int BACKWARD_BLOCKS = F::ARRAYS == 1 || sizeof(typename F::T) == 8 ? 1 : 3;

// A kernel's arguments may be those of a driver alone, or With more for the formula. `family` makes the family's object
// of either; `plain` returns the driver's part.
template <typename F>
__device__ F family(const PairArgs& args) {
    return F(args);
}
template <typename F, typename Args>
__device__ F family(const Args& args) {
    return F(args.pairs);
}
template <typename F, typename More>
__device__ F family(const With<PairArgs, More>& all) {
    return F(all.args, all.more);
}
template <typename F, typename Args, typename More>
__device__ F family(const With<Args, More>& all) {
    return F(all.args.pairs, all.more);
}
template <typename Args>
__device__ const Args& plain(const Args& args) {
    return args;
}
template <typename Args, typename More>
__device__ const Args& plain(const With<Args, More>& all) {
    return all.args;
}

#define DRIVERS(op, F, S, types, Args)                                                                                 \
    KERNEL(op##_pairs_##types, Args, PAIR_THREADS, PAIR_BLOCKS<F>) { score_all<F, S>(family<F>(args), plain(args)); } \
    KERNEL(op##_rerank_##types, Args, PAIR_THREADS, RERANK_BLOCKS<F>) { rerank<F, S>(family<F>(args), plain(args)); } \
    KERNEL(op##_search_##types, Args, SEARCH_THREADS, SEARCH_BLOCKS<F>) { search<F, S>(family<F>(args), plain(args)); }

#define BACKWARD(op, F, types, Args) \
    KERNEL(op##_backward_##types, Args, PAIR_THREADS, BACKWARD_BLOCKS<F>) { backward<F>(family<F>(args), plain(args)); }

#define KERNELS(op, Family, Formula, Forward, Backward)            \
    using op##_single = Family<float, Formula>;                    \
    using op##_double = Family<double, Formula>;                   \
    using op##_forward = Forward;                                  \
    using op##_back = Backward;                                    \
    DRIVERS(op, op##_single, float, f32, op##_forward)             \
    DRIVERS(op, op##_double, double, f64, op##_forward)            \
    DRIVERS(op, op##_single, Float16, f32_f16, op##_forward)       \
    DRIVERS(op, op##_single, BFloat16, f32_bf16, op##_forward)     \
    BACKWARD(op, op##_single, f32, op##_back)                      \
    BACKWARD(op, op##_double, f64, op##_back)

// Lets a type with commas be the argument of a macro.
#define TYPE(...) __VA_ARGS__

// Defines all kernels of the score `op`, whose pair function is Family<T, Formula>. `More` is what its formula takes beside arrays.
#define SCORE(op, Family, Formula) KERNELS(op, Family, Formula, PairArgs, BackwardArgs)
#define SCORE_WITH(op, Family, Formula, More) \
    KERNELS(op, Family, Formula, TYPE(With<PairArgs, More>), TYPE(With<BackwardArgs, More>))
