// Scores that are functions of one inner product (or one squared distance) and a few numbers per item.
//
// A pair costs one pass over its two rows; then the formula is computed once, in double, whatever the rows' type. Squared distances are
// sums of squared differences, never |a|^2 + |b|^2 - 2 a.b, which loses all digits for near-duplicates.
//
// Bessel functions are most of the cost of von Mises-Fisher scores. Where the caller gives memory, those of each item's
// concentration are computed once for a call.

#include "../drivers/kernels.cuh"
#include "../drivers/products.cuh"
#include "../formulas/match.cuh"

// The powers of two by which the rows of a pair are multiplied.
struct Powers {
    int first = 0, second = 0;
};

template <typename T_, typename Formula>
struct DotKernel {
    using T = T_;
    static constexpr int ARRAYS = 1;
    static constexpr bool ROW = false;

    // Of numbers of twice the size half as many fit into registers.
    static constexpr int AT_ONCE = sizeof(T) == 4 ? Formula::AT_ONCE : (Formula::AT_ONCE + 1) / 2;
    static constexpr bool DIFFERENCE = Formula::DIFFERENCE, ALIKE = Formula::ALIKE;
    // Whether the score is one of cosines, which take rows of any length.
    static constexpr bool LENGTHS = Formula::NORMS && !Formula::DIFFERENCE;

    // The sum of a pair is x, the inner product or squared distance; that of an item is its squared norm.
    struct Pair {
        T sum;

        static __device__ Pair start() { return {0}; }
        template <int N>
        static __device__ Pair reduced(const Pair (&all)[N]) {
            return {combined(all, &Pair::sum, Sum())};
        }
    };
    struct Item {
        T sum;

        static __device__ Item start() { return {0}; }
        template <int N>
        static __device__ Item reduced(const Item (&all)[N]) {
            return Formula::NORMS ? Item{combined(all, &Item::sum, Sum())} : start();
        }
    };

    Formula formula;

    __device__ explicit DotKernel(const PairArgs& args)
        : formula(double(args.mu1.stored), number(args, 0), number(args, 1)) {}
    __device__ DotKernel(const PairArgs& args, const TwoOrders& orders)
        : formula(double(args.mu1.stored), number(args, 0), number(args, 1), Orders{&orders}) {}
    static __device__ double number(const PairArgs& args, int n) {
        return n < args.shared.stored ? double(row_of<T>(args.shared, 0)[n]) : NAN;
    }

    __device__ void add_pair(Pair& pair, const Four<T>* query, const Four<T>* gallery, const Four<T>&) const {
        for (int i = 0; i < 4; ++i) {
            const T a = query->x[i], b = gallery->x[i];
            pair.sum = Formula::DIFFERENCE ? fma(a - b, a - b, pair.sum) : fma(a, b, pair.sum);
        }
    }
    __device__ void add_item(Item& item, const Four<T>* rows, const Four<T>&) const {
        for (int i = 0; Formula::NORMS && i < 4; ++i) item.sum = fma(rows->x[i], rows->x[i], item.sum);
    }

    template <typename S>
    __device__ T score(const PairArgs& args, const Pair& pair, const Item& query, const Item& item, int64_t q,
                       int64_t g, bool wanted) const {
        DotPair numbers{pair.sum, query.sum, item.sum, 0, 0, nullptr, nullptr};
        if constexpr (LENGTHS) scaled<S>(args, numbers, q, g, wanted);
        if (!wanted) return 0;
        numbers.v = uncertainty_of_query<T>(args, q), numbers.w = uncertainty_of_gallery<T, S>(args, g);
        numbers.first = per_item_of(args, QUERY, q), numbers.second = per_item_of(args, GALLERY, g);
        return T(value_of(formula, numbers));
    }
    // Where a norm of the lane's pair is not in range, sums over rows that are scaled, in double, in place of the
    // inner product and the norms. Called by all lanes, which add up one pair after the other.
    template <typename S>
    __device__ __noinline__ Powers scaled(const PairArgs& args, DotPair& pair, int64_t q, int64_t g, bool wanted) const {
        const int64_t dim = args.mu1.stored;
        const bool known = in_range<T>(pair.n) && in_range<T>(pair.m);
        Powers mine;
        for (unsigned left = __ballot_sync(FULL, wanted && !known); left; left &= left - 1) {
            const int source = __ffs(int(left)) - 1;
            const T* const a = row_of<T>(args.mu1, __shfl_sync(FULL, q, source));
            const S* const b = row_of<S>(args.mu2, __shfl_sync(FULL, g, source));
            const bool first = in_range<T>(__shfl_sync(FULL, pair.n, source));
            const bool second = in_range<T>(__shfl_sync(FULL, pair.m, source));
            double greatest_a = 0, greatest_b = 0;
            for (int64_t d = lane(); d < dim; d += WARP) {
                greatest_a = fmax(greatest_a, fabs(double(a[d]))), greatest_b = fmax(greatest_b, fabs(double(widened(b[d]))));
            }
            const Powers powers{first ? 0 : power(greatest_a), second ? 0 : power(greatest_b)};
            double x = 0, n = 0, m = 0;
            for (int64_t d = lane(); d < dim; d += WARP) {
                const double y = ldexp(double(a[d]), powers.first), z = ldexp(double(widened(b[d])), powers.second);
                x = fma(y, z, x), n = fma(y, y, n), m = fma(z, z, m);
            }
            x = warp_sum(x), n = warp_sum(n), m = warp_sum(m);
            if (lane() == source) {
                pair.x = x, mine = powers;
                if (!first) pair.n = n;
                if (!second) pair.m = m;
            }
        }
        return mine;
    }
    // The power that brings a row with this greatest size of a lane's numbers near length 1.
    static __device__ int power(double greatest) {
        greatest = warp_greatest(greatest);
        return greatest > 0 && is_finite(greatest) ? -ilogb(greatest) : 0;
    }
    // The numbers per item, or null where no memory was given for them.
    static __device__ const PerItem* per_item_of(const PairArgs& args, int side, int64_t row) {
        const PerItem* const all = static_cast<const PerItem*>(args.per_item[side]);
        return all ? all + row : nullptr;
    }

    // In single precision, a number that no score of a pair is above whose inner product lies within half of `slack`, relative to
    // both norms, of x times a power of two. Of x, four operations err by at most 2 u (n + m) each, which the slack is to hold as well. A squared
    // distance is never below 0; of NaN it is 0.
    static constexpr bool LIMITED = Formula::LIMITED;
    __device__ float limit(LimitPair pair, float power, float slack, float smallest) const {
        const float both = pair.n + pair.m;
        pair.x = Formula::DIFFERENCE ? fmaxf(fma(1 - slack, both, fma(-2 * power, pair.x, -smallest)), 0.0f)
                                     : fma(0.5f * slack, both, fma(power, pair.x, smallest));
        return formula.limit(pair);
    }

    // -- gradients

    // The gradient by the mean of an item is by_other times the other mean (or the difference of the means, for
    // distances) plus by_item times the mean.
    struct Partials {
        T by_other, by_item;
    };
    struct Gradient {
        T mu;
    };
    __device__ Partials partials(const PairArgs& args, bool query, int64_t item, int64_t other, double weight,
                             double* totals) const {
        const int64_t q = query || other < 0 ? item : other, g = other < 0 ? NONE : query ? other : item;
        const Numbers<DotKernel> numbers = sum_pairs<DotKernel, T>(*this, args, q, g);
        DotPair pair{numbers.pair.sum, numbers.query.sum, numbers.item.sum, 0, 0, nullptr, nullptr};
        Powers powers;
        if constexpr (LENGTHS) powers = scaled<T>(args, pair, q, g, other >= 0);
        if (other < 0) return {0, 0};
        pair.v = uncertainty_of_query<T>(args, q), pair.w = uncertainty_of_gallery<T, T>(args, g);
        pair.first = per_item_of(args, QUERY, q), pair.second = per_item_of(args, GALLERY, g);
        if (!query) pair = {pair.x, pair.m, pair.n, pair.w, pair.v, pair.second, pair.first};
        const DotPartials partials = partials_of(query ? formula : formula.transposed(), pair);
        totals[0] += weight * partials.uncertainty;
        for (int s = 0; s < 2; ++s) totals[1 + s] += weight * partials.shared[s];
        if (LENGTHS && (powers.first != 0 || powers.second != 0)) {
            const double by_other = ldexp(weight * partials.x, powers.first + powers.second);
            const double by_item = ldexp(2 * weight * partials.norm, 2 * (query ? powers.first : powers.second));
            // The gradient of a row so short that they leave the range counts as 0.
            return is_finite(T(by_other)) && is_finite(T(by_item)) ? Partials{T(by_other), T(by_item)} : Partials{0, 0};
        }
        return {T((Formula::DIFFERENCE ? 2 : 1) * weight * partials.x), T(2 * weight * partials.norm)};
    }
    __device__ void add_gradient(Gradient& sum, const Partials& pair, bool, const Dimension& x, bool) const {
        const T a = T(x.a), b = T(x.b);
        sum.mu += pair.by_other * (Formula::DIFFERENCE ? a - b : b) + pair.by_item * a;
    }
};

// Writes the numbers of each item of a side alone. A thread takes an item.
template <typename F, typename S>
__device__ void make_per_item(const F& f, const PerItemArgs& args) {
    using T = typename F::T;
    const PairArgs& pairs = args.pairs;
    const bool query = args.side == QUERY;
    const int64_t rows = (query ? pairs.mu1 : pairs.mu2).rows, step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < rows; i += step) {
        const double uncertainty = query ? uncertainty_of_query<T>(pairs, i) : uncertainty_of_gallery<T, S>(pairs, i);
        static_cast<PerItem*>(pairs.per_item[args.side])[i] = f.formula.per_item(uncertainty, args.partials);
    }
}
#define PER_ITEM_OF(op, T, S, types) \
    KERNEL(op##_per_item_##types, op##_of_items, PAIR_THREADS) { \
        make_per_item<op##_##T, S>(family<op##_##T>(args), plain(args)); \
    }
#define PER_ITEM(op)                                    \
    using op##_of_items = With<PerItemArgs, TwoOrders>; \
    PER_ITEM_OF(op, single, float, f32)                 \
    PER_ITEM_OF(op, double, double, f64)                \
    PER_ITEM_OF(op, single, Float16, f32_f16)           \
    PER_ITEM_OF(op, single, BFloat16, f32_bf16)

// The kernels that read products.
#define PRODUCTS_OF(op, driver, F, types) \
    KERNEL(op##_##driver##_##types, op##_product, PRODUCT_COLUMNS, 4) { driver##_of_products<F>(family<F>(args), plain(args)); }
#define PRODUCTS(op, Args)                         \
    using op##_product = Args;                     \
    PRODUCTS_OF(op, scores, op##_single, f32)      \
    PRODUCTS_OF(op, scores, op##_double, f64)      \
    PRODUCTS_OF(op, weights, op##_single, f32)     \
    PRODUCTS_OF(op, weights, op##_double, f64)
#define SIEVE_OF(op, S, types)                                                                    \
    KERNEL(op##_lowest_##types, op##_product, PRODUCT_COLUMNS) {                                  \
        lowest_of_products<op##_single, S>(family<op##_single>(args), plain(args));               \
    }                                                                                             \
    KERNEL(op##_sieve_##types, op##_product, PRODUCT_COLUMNS) {                                   \
        sieve<op##_single, S>(family<op##_single>(args), plain(args));                            \
    }
#define SIEVE(op)                    \
    SIEVE_OF(op, float, f32)         \
    SIEVE_OF(op, Float16, f32_f16)   \
    SIEVE_OF(op, BFloat16, f32_bf16)

#define SIEVED_SCORE(op, Formula) \
    SCORE(op, DotKernel, Formula)  \
    PRODUCTS(op, ProductArgs)      \
    SIEVE(op)
DOT_FORMULAS(SIEVED_SCORE)

using ProductsWithOrders = With<ProductArgs, TwoOrders>;
#define SIEVED_VMF_SCORE(op, Formula)            \
    SCORE_WITH(op, DotKernel, Formula, TwoOrders) \
    PER_ITEM(op)                                 \
    PRODUCTS(op, ProductsWithOrders)             \
    SIEVE(op)
VMF_FORMULAS(SIEVED_VMF_SCORE)

// hib has no sieve, as its quadrature is not monotone in x, and costs so much more than a product that its pairs are shared out
// among more threads.
SCORE_WITH(hib_isotropic, DotKernel, MatchProbability, TwoOrders)

#define NORMS_OF(name, T, S, Half, types) \
    KERNEL(name##_##types, NormArgs, PAIR_THREADS) { norms_of_rows<T, S, Half>(args); }
NORMS_OF(norms, float, float, float, f32)
NORMS_OF(norms, double, double, double, f64)
NORMS_OF(norms, float, Float16, float, f32_f16)
NORMS_OF(norms, float, BFloat16, float, f32_bf16)
NORMS_OF(narrowed, float, float, Float16, f32_f16)
NORMS_OF(narrowed, float, float, BFloat16, f32_bf16)
