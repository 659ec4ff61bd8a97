// Scores of normals of which one side at least has a variance per dimension; one stored variance stands for all of a row.
//
// Where a formula allows it, four dimensions share one division. A pair takes one logarithm of each kind, of a product that is accumulated
// as significand and exponent. Pairs whose variances leave the range in which that is accurate, or that have a negative variance or a sum
// that is not finite, are scored again, slowly, by the definition in double. rust/kernels/diag_scores.rs derives the range.

#include "../drivers/kernels.cuh"
#include "../formulas/diag.cuh"

// The value of one dimension, NaN where a variance is below 0. Not inlined, for the reason that drivers/pairs.cuh gives.
template <typename Formula>
__device__ __noinline__ AtEdge value_of(const Formula& formula, Dimension x) {
    return x.v >= 0 && x.w >= 0 && x.shared >= 0 ? formula.by_dimension(x) : AtEdge{NAN};
}

template <typename T_, template <typename> class Formula>
struct DiagKernel {
    using T = T_;
    static constexpr int ARRAYS = 2;
    static constexpr bool ROW = Formula<T>::ROW;

    struct Pair {
        Sums<T> sums;

        static __device__ Pair start() { return {{0, {T(Formula<T>::PRODUCT == LESS_ONE ? 0 : 1), 0}}}; }
        template <int N>
        static __device__ Pair reduced(const Pair (&all)[N]) {
            Sums<T> sums[N];
            Product<T> products[N];
            for (int i = 0; i < N; ++i) sums[i] = all[i].sums, products[i] = all[i].sums.product;
            Pair pair = start();
            pair.sums.rational = combined(sums, &Sums<T>::rational, Sum());
            if constexpr (Formula<T>::PRODUCT == LESS_ONE) pair.sums.product = reduced_product(products, TimesLessOne());
            if constexpr (Formula<T>::PRODUCT == FACTOR_OF_FOUR) pair.sums.product = reduced_product(products, Times());
            return pair;
        }
    };
    struct Item {
        Extremes<T> extremes;
        Product<T> vars;

        static __device__ Item start() { return {{T(INFINITY), 0}, {1, 0}}; }
        template <int N>
        static __device__ Item reduced(const Item (&all)[N]) {
            Extremes<T> extremes[N];
            Product<T> products[N];
            for (int i = 0; i < N; ++i) extremes[i] = all[i].extremes, products[i] = all[i].vars;
            Item item = start();
            item.extremes.least = combined(extremes, &Extremes<T>::least, Least());
            item.extremes.greatest = combined(extremes, &Extremes<T>::greatest, Greatest());
            if (Formula<T>::VARS) item.vars = reduced_product(products, Times());
            return item;
        }
    };
    template <int N, typename Multiply>
    static __device__ Product<T> reduced_product(const Product<T> (&all)[N], Multiply multiply) {
        // The product of 32 significands is below 2^32.
        return {combined(all, &Product<T>::significand, multiply), combined(all, &Product<T>::exponent, Sum())};
    }

    Formula<T> formula;

    __device__ explicit DiagKernel(const PairArgs& args) : formula(number(args, 0), number(args, 1)) {}
    static __device__ double number(const PairArgs& args, int n) {
        return !ROW && n < args.shared.stored ? double(row_of<T>(args.shared, 0)[n]) : NAN;
    }

    __device__ void add_pair(Pair& pair, const Four<T>* query, const Four<T>* gallery, const Four<T>& shared) const {
        formula.add(pair.sums, query[0], query[1], gallery[0], gallery[1], shared);
    }
    __device__ void add_item(Item& item, const Four<T>* rows, const Four<T>& shared) const {
        const T* var = rows[1].x;
        for (int i = 0; i < 4; ++i) {
            T greatest = var[i];
            if (ROW) {
                // A prior that is too small counts as a variance that is too great.
                const T prior = shared.x[i];
                greatest = prior < 1 / QUARTER_RANGE<T> ? T(INFINITY) : fmax(greatest, prior);
            }
            item.extremes.least = fmin(item.extremes.least, var[i]);
            item.extremes.greatest = fmax(item.extremes.greatest, greatest);
        }
        if (Formula<T>::VARS) item.vars.times((var[0] * var[1]) * (var[2] * var[3]));
    }

    template <typename S>
    __device__ T score(const PairArgs& args, const Pair& pair, const Item& query, const Item& item, int64_t q,
                       int64_t g, bool wanted) const {
        const int64_t dim = args.mu1.stored, fours = (dim + 3) / 4;
        double value = formula.constant * double(dim);
        if constexpr (Formula<T>::PRODUCT == LESS_ONE) {
            const Product<T>& product = pair.sums.product;
            value = fma(formula.log_weight, fma(double(product.exponent), LN_2, log1p(double(product.significand))), value);
        } else if constexpr (Formula<T>::PRODUCT == FACTOR_OF_FOUR) {
            double logs = log_of(pair.sums.product, fours);
            if (dim % 4 != 0) logs = fma(-double(4 * fours - dim), log(formula.beyond()), logs);
            value = fma(formula.log_weight, logs, value);
        }
        if constexpr (Formula<T>::VARS) {
            const double first = formula.var_weights[0], second = formula.var_weights[1];
            if (first != 0) value = fma(first, log_of(query.vars, fours), value);
            if (second != 0) value = fma(second, log_of(item.vars, fours), value);
        }
        const T rational = pair.sums.rational;
        value = fma(formula.rational_weight, double(rational), value);
        const bool fast = formula.in_range(query.extremes, item.extremes) && rational - rational == 0;
        for (unsigned slow = __ballot_sync(FULL, wanted && !fast); slow; slow &= slow - 1) {
            const int source = __ffs(int(slow)) - 1;
            const double exact = by_dimension<S>(args, __shfl_sync(FULL, q, source), __shfl_sync(FULL, g, source));
            if (lane() == source) value = exact;
        }
        return T(value);
    }

    // The score by the definition, for any input. Called by all lanes for one pair.
    template <typename S>
    __device__ __noinline__ double by_dimension(const PairArgs& args, int64_t q, int64_t g) const {
        const int64_t dim = args.mu1.stored;
        const auto get = [](const auto* row, int64_t stored, int64_t d) {
            return double(widened(row[stored > 1 ? d : 0]));
        };
        double sum = 0, falls = 0;
        for (int64_t d = lane(); d < dim; d += WARP) {
            Dimension x;
            x.a = get(row_of<T>(args.mu1, q), dim, d);
            x.v = get(row_of<T>(args.uncertainty1, q), args.uncertainty1.stored, d);
            x.b = get(row_of<S>(args.mu2, g), dim, d);
            const int64_t stored = args.uncertainty2.stored;
            const bool wide = sizeof(S) != sizeof(T) && args.wide_uncertainty2;
            x.w = wide ? get(row_of<T>(args.uncertainty2, g), stored, d)
                       : get(row_of<S>(args.uncertainty2, g), stored, d);
            x.shared = ROW ? get(row_of<T>(args.shared, 0), args.shared.stored, d) : 0;
            const AtEdge value = value_of(formula, x);
            sum += value.value, falls += value.falls;
        }
        sum = fma(formula.constant, double(dim), warp_sum(sum)), falls = warp_sum(falls);
        // The logarithm of what goes to 0 is -infinity; where it has a factor, all that is finite is nothing beside it.
        return falls == 0 ? sum : sum + falls * -INFINITY;
    }

    // -- gradients

    struct Partials {
        double weight;
    };
    struct Gradient {
        double mu, uncertainty, shared[2];
    };
    __device__ Partials partials(const PairArgs&, bool, int64_t, int64_t, double weight, double*) const {
        return {weight};
    }

    // The formula whose first item is of that side.
    __device__ Formula<T> seen_from(bool query) const { return query ? formula : formula.transposed(); }

    // A variance, or a number per dimension, of which partial derivatives may be computed in T: else NaN, as they are then.
    static __device__ T in_range(T x) { return x >= 0 && x <= QUARTER_RANGE<T> ? x : T(NAN); }

    __device__ void add_gradient(Gradient& sum, const Partials& pair, bool query, const Dimension& x,
                                 bool shared) const {
        const DimensionPartials<double> partials = seen_from(query).partials(x, shared);
        // NaN outside the domain and where the means are not finite; a derivative without a finite limit counts as 0.
        const double outside = x.v >= 0 && x.w >= 0 && x.shared >= 0 ? 0 * (x.a + x.b) + 0 * (x.v + x.w) : NAN;
        const auto finite = [&](double x) { return is_finite(x) && outside == 0 ? x : outside; };
        sum.mu += pair.weight * finite(partials.mean);
        sum.uncertainty += pair.weight * finite(partials.var);
        for (int s = 0; s < 2; ++s) sum.shared[s] += pair.weight * finite(partials.shared[s]);
    }
};

SCORE(mls_diagonal, DiagKernel, Mls)
SCORE(neg_mahalanobis_diagonal, DiagKernel, NegMahalanobis)
SCORE(llr_diagonal, DiagKernel, Llr)
SCORE(overlap_diagonal, DiagKernel, Overlap)
SCORE(neg_kl_diagonal, DiagKernel, NegKl)
