// The Bessel family, elementwise: each element has an order (or dimension) and x. numerics/special.cuh has the formulas
// and their error bounds.
//
// `<op>_f64` and `<op>_f32` compute by the formula in float64 and round once to the type of x. The order is read on the
// device; a block makes an order that all elements share once.
//
// `<op>_table_f32`, then `<op>_tabulated_f32`, compute float32 of one order as rust/kernels/bessel.rs does: by
// quadratics on 64 pieces an octave of x in [2^-2, 2^24), fitted to the float64 function and copied to shared memory.
// Elements outside those octaves take the formula. The error is below 2e-7 relative to max(1, |value|) (vmf_log_norm:
// max(1, order, |value|)).
#include "../numerics/special.cuh"
#include "../pair.cuh"

// -- the quantities ---------------------------------------------------------------------------------------------------

// A quantity: its function, and the order that belongs to the first argument. SCALED says by which power of x the
// function is multiplied in its table: 2 where it goes like x^-2 or x^-3.
#define QUANTITY(Name, function, order_of) SCALED(Name, function, order_of, 0)
#define SCALED(Name, function, order_of, power)                    \
    struct Name {                                                  \
        static constexpr int POWER = power;                        \
        HD static double order(double first) { return order_of; }  \
        template <class O>                                         \
        HD static double value(const O& order, double x) {         \
            return function(order, x);                             \
        }                                                          \
    };
QUANTITY(LogIve, log_ive, first)
SCALED(LogIveDx, log_ive_dx, first, 2)
SCALED(LogIveDxx, log_ive_dxx, first, 2)
QUANTITY(IvRatio, iv_ratio, first)
SCALED(IvRatioDx, iv_ratio_dx, first, 2)
SCALED(IvRatioDxx, iv_ratio_dxx, first, 2)
QUANTITY(IvRatioComplement, iv_ratio_complement, first)
QUANTITY(VmfLogNorm, vmf_log_norm, 0.5 * first - 1)  // first is the dimension
QUANTITY(VmfLogNormDx, -iv_ratio, 0.5 * first)       // first is the dimension
QUANTITY(NormalLength, normal_length, first)         // first is the dimension
QUANTITY(NormalLengthDx, normal_length_dx, first)
QUANTITY(LogNdtr, log_ndtr, 0 * first)  // there is no order
QUANTITY(LogNdtrDx, log_ndtr_dx, 0 * first)
QUANTITY(LogNdtrDxx, log_ndtr_dxx, 0 * first)

// -- by the formula ---------------------------------------------------------------------------------------------------

template <class Q, typename T>
__device__ inline void elementwise(const ElementwiseArgs& args) {
    __shared__ Order order;
    const T* const x = static_cast<const T*>(args.x);
    T* const out = static_cast<T*>(args.out);
    const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
    if (args.orders == 1) {
        make_order(Q::order(args.order[0]), order);
        for (int64_t i = first; i < args.n; i += step) out[i] = T(Q::value(order, double(x[i])));
    } else {
        for (int64_t i = first; i < args.n; i += step)
            out[i] = T(Q::value(LoneOrder(Q::order(args.order[i])), double(x[i])));
    }
}

#define FORMULA(name, Q)                                                                   \
    KERNEL(name##_f32, ElementwiseArgs, ELEMENT_THREADS) { elementwise<Q, float>(args); }          \
    KERNEL(name##_f64, ElementwiseArgs, ELEMENT_THREADS) { elementwise<Q, double>(args); }
FORMULA(log_ive, LogIve)
FORMULA(log_ive_dx, LogIveDx)
FORMULA(log_ive_dxx, LogIveDxx)
FORMULA(iv_ratio, IvRatio)
FORMULA(iv_ratio_dx, IvRatioDx)
FORMULA(iv_ratio_dxx, IvRatioDxx)
FORMULA(iv_ratio_complement, IvRatioComplement)
FORMULA(vmf_log_norm, VmfLogNorm)
FORMULA(vmf_log_norm_dx, VmfLogNormDx)
FORMULA(normal_length, NormalLength)
FORMULA(normal_length_dx, NormalLengthDx)
FORMULA(log_ndtr, LogNdtr)
FORMULA(log_ndtr_dx, LogNdtrDx)
FORMULA(log_ndtr_dxx, LogNdtrDxx)

// -- by a table -------------------------------------------------------------------------------------------------------

constexpr double PIECES_FROM = 0.25;
// The highest bits of a float, from this one on, number its piece; the first piece has this number.
constexpr int PIECE_SHIFT = 17;
constexpr uint32_t FIRST_PIECE = 0x3e800000u >> PIECE_SHIFT;
// Half the width of a piece, relative to the beginning of its octave.
constexpr double HALF_PIECE = 1.0 / 128;

// The quadratic c0 + u (c1 + u c2) of a piece, u in [-1/128, 1/128] from its middle; 16 bytes are one access to shared memory.
struct alignas(16) Piece {
    float c0, c1, c2, unused;
};

// The table of a function for one order.
struct Table {
    Order order;
    Piece pieces[TABLE_PIECES];
};
static_assert(sizeof(Table) <= TABLE_BYTES, "what the caller has memory for");

// Fills the table by interpolation at the Chebyshev nodes -b, 0, b of each piece.
template <class Q>
__device__ inline void make_table(const TableArgs& args) {
    __shared__ Order order;
    Table& table = *static_cast<Table*>(args.table);
    make_order(Q::order(args.order[0]), order);
    if (blockIdx.x == 0 && threadIdx.x == 0) table.order = order;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < TABLE_PIECES; i += gridDim.x * blockDim.x) {
        const double octave = PIECES_FROM * double(1 << (i / 64)), middle = 1 + HALF_PIECE + (i % 64) / 64.0;
        const double b = HALF_PIECE * sqrt(0.75);
        double y[3];
        for (int k = 0; k < 3; ++k) {
            const double x = octave * (middle + (k - 1) * b);
            y[k] = Q::value(order, x) * (Q::POWER == 2 ? x * x : 1);
        }
        const double c1 = (y[2] - y[0]) / (2 * b), c2 = ((y[2] - y[1]) - (y[1] - y[0])) / (2 * b * b);
        table.pieces[i] = {float(y[1]), float(c1), float(c2), 0};
    }
}

// The value by the formula. Not inlined, so that few elements do not cost all of them registers.
template <class Q>
__attribute__((noinline)) __device__ float outside_table(const Order* order, float x) {
    return float(Q::value(*order, double(x)));
}

// The piece of x: TABLE_PIECES or more outside the table, for x < 0 and for NaN.
HD uint32_t piece_of(float x) { return (to_bits(x) >> PIECE_SHIFT) - FIRST_PIECE; }

// Replaces each x by its value. Elements outside the table are few, so one branch serves them all.
template <class Q, int N>
__device__ inline void by_table(const Table* table, const Piece* pieces, float (&x)[N]) {
    float y[N];
    bool outside = false;
    for (int k = 0; k < N; ++k) {
        const uint32_t i = piece_of(x[k]);
        outside |= i >= uint32_t(TABLE_PIECES);
        const Piece piece = pieces[i < uint32_t(TABLE_PIECES) ? i : 0];
        const float place = from_bits((to_bits(x[k]) & ((1u << PIECE_SHIFT) - 1)) | 0x3f800000u);
        const float u = place - float(1 + HALF_PIECE);
        y[k] = fmaf(u, fmaf(u, piece.c2, piece.c1), piece.c0);
        if (Q::POWER == 2) y[k] /= x[k] * x[k];
    }
    if (outside)
        for (int k = 0; k < N; ++k)
            if (piece_of(x[k]) >= uint32_t(TABLE_PIECES)) y[k] = outside_table<Q>(&table->order, x[k]);
    for (int k = 0; k < N; ++k) x[k] = y[k];
}

template <class Q>
__device__ inline void tabulated(const TabulatedArgs& args) {
    __shared__ Piece pieces[TABLE_PIECES];
    const Table* const table = static_cast<const Table*>(args.table);
    for (int i = threadIdx.x; i < TABLE_PIECES; i += blockDim.x) pieces[i] = table->pieces[i];
    __syncthreads();
    const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
    const uintptr_t places = reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.out);
    const int64_t fours = places % sizeof(Four<float>) == 0 ? args.n / 4 : 0;
    for (int64_t i = first; i < fours; i += 2 * step) {
        // Two loads are under way at once; where there is no second element, the first is loaded twice.
        const bool second = i + step < fours;
        const Four<float>* const x = reinterpret_cast<const Four<float>*>(args.x) + i;
        Four<float>* const out = reinterpret_cast<Four<float>*>(args.out) + i;
        Four<float> a = x[0], b = x[second ? step : 0];
        by_table<Q>(table, pieces, a.x);
        out[0] = a;
        by_table<Q>(table, pieces, b.x);
        if (second) out[step] = b;
    }
    for (int64_t i = 4 * fours + first; i < args.n; i += step) {
        float one[1] = {args.x[i]};
        by_table<Q>(table, pieces, one);
        args.out[i] = one[0];
    }
}

#define TABULATED(name, Q)                                                                  \
    KERNEL(name##_table_f32, TableArgs, ELEMENT_THREADS) { make_table<Q>(args); }                   \
    KERNEL(name##_tabulated_f32, TabulatedArgs, ELEMENT_THREADS) { tabulated<Q>(args); }
// The functions for which quadratics on the pieces are as accurate as said above.
TABULATED(log_ive, LogIve)
TABULATED(log_ive_dx, LogIveDx)
TABULATED(log_ive_dxx, LogIveDxx)
TABULATED(iv_ratio, IvRatio)
TABULATED(iv_ratio_dx, IvRatioDx)
TABULATED(iv_ratio_dxx, IvRatioDxx)
TABULATED(iv_ratio_complement, IvRatioComplement)
TABULATED(vmf_log_norm, VmfLogNorm)
TABULATED(vmf_log_norm_dx, VmfLogNormDx)
