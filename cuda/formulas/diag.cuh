// The formulas of scores of diagonal normals, as in rust/kernels/diag_scores/formulas.rs, which names their sources.
//
// A formula is a sum over dimensions of rational_weight * rational part + log_weight * log of a product + var_weights *
// log of both variances + constant. Its class has
//   ROW              whether the shared row holds a number per dimension
//   PRODUCT          the product under the logarithm: none, with a factor for four dimensions, or of ratios >= 1 and kept
//                    less 1
//   VARS             whether the logarithms of the variances are used
//   add(sums, ...)   adds four dimensions: see Sums
//   in_range(v, w)   whether `add` is safe for variances from v.least to v.greatest and w.least to w.greatest
//   beyond()         of FACTOR_OF_FOUR: the factor of the product in a dimension beyond the end, where variances are 1
//   by_dimension(x)  one dimension's value without the constant, in double, by the definition, for any input, as AtEdge
//   partials(x, shared)    derivatives by the first mean and the first variance and, if `shared`, by the shared numbers, in
//                    the type of x: where one is not finite, gradients are computed again in double
//   transposed()     the formula that gives the score when the two items change places
// Partial derivatives are written out, as they are all that the inner loop of a gradient computes: as dual numbers of
// `by_dimension` those of mls take 10 operations in the place of 8, of neg_mahalanobis 8 for 5, of overlap 25 for 16 and
// two more divisions; those of llr and neg_kl lose digits (rust/kernels/dot_scores/normals.rs).
#pragma once

#include "../pair.cuh"

constexpr double LN_2 = 0.693147180559945309417;

// -- products ---------------------------------------------------------------------------------------------------------

// The greatest variance, and the reciprocal of the least, of which products of four neither overflow nor become subnormal.
template <typename T>
constexpr T QUARTER_RANGE = 0x1p31f;
template <>
constexpr double QUARTER_RANGE<double> = 0x1p255;

// 1 / x; in float32 to one unit in the last place, for x and 1 / x that are normal.
__device__ inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1 / x;
#endif
}
__device__ inline double reciprocal(double x) { return 1 / x; }

// Splits a positive normal x: adds its biased exponent to `exponent` and returns its significand in [1, 2).
__device__ inline float take_exponent(float x, int& exponent) {
    const uint32_t bits = to_bits(x);
    exponent += int(bits >> 23);
#ifdef __CUDA_ARCH__
    // One instruction, of which nvcc makes two.
    uint32_t significand;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(significand) : "r"(bits), "r"(0x7fffff), "r"(0x3f800000));
    return from_bits(significand);
#else
    return from_bits((bits & 0x7fffff) | 0x3f800000);
#endif
}
__device__ inline double take_exponent(double x, int& exponent) {
    const uint64_t bits = to_bits(x);
    exponent += int(bits >> 52);
    return from_bits(uint64_t((bits & 0xfffffffffffff) | 0x3ff0000000000000));
}
template <typename T>
constexpr int BIAS = sizeof(T) == 4 ? 127 : 1023;

// A product of many numbers, as a significand and the sum of the numbers' biased exponents.
template <typename T>
struct Product {
    T significand;
    int exponent;

    __device__ void times(T x) { significand = take_exponent(significand * x, exponent); }

    // Multiplies a product whose significand is kept less 1, and whose exponent is not biased, by 1 + x, x >= 0: near 1 it
    // has all digits of its logarithm.
    __device__ void times_one_plus(T x) {
        significand = fma(significand, x, significand + x);
        if (const T product = 1 + significand; product >= 2) {
            significand = take_exponent(product, exponent) - 1;
            exponent -= BIAS<T>;
        }
    }
};

// The logarithm of a product of that many numbers.
template <typename T>
__device__ __noinline__ double log_of(Product<T> product, int64_t numbers) {
    const double exponent = double(product.exponent - numbers * BIAS<T>);
    return fma(exponent, LN_2, log(double(product.significand)));
}

enum UnderLog { NO_PRODUCT, FACTOR_OF_FOUR, LESS_ONE };

// The product of two significands that are kept less 1.
struct TimesLessOne {
    template <typename T>
    __device__ T operator()(T x, T y) const { return fma(x, y, x + y); }
};

// The sums of a pair over dimensions: the rational part, and the product under the logarithm.
template <typename T>
struct Sums {
    T rational;
    Product<T> product;
};

// Adds square[0] / s[0] + ... over one denominator, the product of all s, which it returns.
template <typename T>
__device__ inline T add_quotients(Sums<T>& sums, const T (&square)[4], const T (&s)[4]) {
    const T p01 = s[0] * s[1], p23 = s[2] * s[3], product = p01 * p23;
    const T n01 = fma(square[0], s[1], square[1] * s[0]), n23 = fma(square[2], s[3], square[3] * s[2]);
    sums.rational = fma(fma(n01, p23, n23 * p01), reciprocal(product), sums.rational);
    return product;
}

// -- formulas ---------------------------------------------------------------------------------------------------------

// The least and the greatest of the variances of an item.
template <typename T>
struct Extremes {
    T least, greatest;
};

// One dimension's value at variances of 0, which go to 0 together: `value` and `falls` times the logarithm of the
// variances. Where means differ that sum falls, faster than any multiple of the logarithm.
struct AtEdge {
    double value, falls = 0;
};

// (a - b)^2 / s; 0 for equal means, however small s is.
__device__ inline double square_over(const Dimension& x, double s) {
    return x.a == x.b ? 0 : (x.a - x.b) / s * (x.a - x.b);
}

// A dimension in which both variances are 0: what is left where means are equal.
__device__ inline AtEdge both_certain(const Dimension& x, double value, double falls) {
    return {value, x.a == x.b ? falls : x.a - x.b == x.a - x.b ? INFINITY : NAN};
}

// With s = v + w, -1/2 sum [ (a - b)^2 / s + log s + log 2 pi ].
template <typename T>
struct Mls {
    static constexpr bool ROW = false, VARS = false;
    static constexpr UnderLog PRODUCT = FACTOR_OF_FOUR;
    static constexpr double rational_weight = -0.5, log_weight = -0.5;
    static constexpr double constant = -0.5 * LOG_2PI;

    __device__ Mls(double, double) {}
    __device__ Mls transposed() const { return *this; }
    __device__ double beyond() const { return 2; }

    // Adds the quotients of four dimensions, and returns the product of their s.
    static __device__ T add_four(Sums<T>& sums, const Four<T>& a, const Four<T>& v, const Four<T>& b,
                                 const Four<T>& w) {
        T square[4], s[4];
        for (int i = 0; i < 4; ++i) {
            square[i] = (a.x[i] - b.x[i]) * (a.x[i] - b.x[i]);
            s[i] = v.x[i] + w.x[i];
        }
        return add_quotients(sums, square, s);
    }
    __device__ void add(Sums<T>& sums, const Four<T>& a, const Four<T>& v, const Four<T>& b, const Four<T>& w,
                        const Four<T>&) const {
        sums.product.times(add_four(sums, a, v, b, w));
    }
    __device__ bool in_range(const Extremes<T>& v, const Extremes<T>& w) const {
        const T least = v.least + w.least, greatest = v.greatest + w.greatest;
        return v.least >= 0 && w.least >= 0 && least >= 1 / QUARTER_RANGE<T> && greatest <= QUARTER_RANGE<T>;
    }
    __device__ AtEdge by_dimension(const Dimension& x) const {
        const double s = x.v + x.w;
        return s == 0 ? both_certain(x, 0, -0.5) : AtEdge{-0.5 * (square_over(x, s) + log(s))};
    }
    template <typename X>
    __device__ DimensionPartials<X> partials(const DimensionOf<X>& x, bool) const {
        const X inverse = reciprocal(x.v + x.w), by_mean = (x.a - x.b) * inverse;
        return {-by_mean, X(0.5) * fma(by_mean, by_mean, -inverse), {0, 0}};
    }
};

// -sum (a - b)^2 / (v + w).
template <typename T>
struct NegMahalanobis : Mls<T> {
    static constexpr UnderLog PRODUCT = NO_PRODUCT;
    static constexpr double rational_weight = -1, log_weight = 0, constant = 0;

    __device__ NegMahalanobis(double, double) : Mls<T>(0, 0) {}
    __device__ NegMahalanobis transposed() const { return *this; }

    __device__ void add(Sums<T>& sums, const Four<T>& a, const Four<T>& v, const Four<T>& b, const Four<T>& w,
                        const Four<T>&) const {
        Mls<T>::add_four(sums, a, v, b, w);
    }
    __device__ AtEdge by_dimension(const Dimension& x) const { return {-square_over(x, x.v + x.w)}; }
    template <typename X>
    __device__ DimensionPartials<X> partials(const DimensionOf<X>& x, bool) const {
        const X by_mean = (x.a - x.b) * reciprocal(x.v + x.w);
        return {-2 * by_mean, by_mean * by_mean, {0, 0}};
    }
};

// With A = p + v, B = p + w, det = p (v + w) + v w, 1/2 sum [ p (a^2 v/A + b^2 w/B - (a - b)^2) / det + log(AB / det) ].
template <typename T>
struct Llr {
    static constexpr bool ROW = true, VARS = false;
    static constexpr UnderLog PRODUCT = LESS_ONE;
    static constexpr double rational_weight = 0.5, log_weight = 0.5;
    static constexpr double constant = 0;

    __device__ Llr(double, double) {}
    __device__ Llr transposed() const { return *this; }

    __device__ void add(Sums<T>& sums, const Four<T>& a, const Four<T>& v, const Four<T>& b, const Four<T>& w,
                        const Four<T>& shared) const {
        for (int i = 0; i < 4; ++i) {
            const T p = shared.x[i], s = p + v.x[i], t = p + w.x[i], both = s * t, apart = a.x[i] - b.x[i];
            const T by_det = p * reciprocal(fma(p, v.x[i] + w.x[i], v.x[i] * w.x[i]));
            const T spread = fma(a.x[i] * a.x[i] * v.x[i], t, b.x[i] * b.x[i] * w.x[i] * s) * reciprocal(both);
            sums.rational = fma(fma(-apart, apart, spread), by_det, sums.rational);
            sums.product.times_one_plus(p * by_det);  // AB / det - 1
        }
    }
    // The greatest variance of an item is at least the prior, and infinite where the prior is too small.
    __device__ bool in_range(const Extremes<T>& v, const Extremes<T>& w) const {
        const T least = v.least + w.least;
        return v.least >= 0 && w.least >= 0 && least >= 1 / QUARTER_RANGE<T> && v.greatest <= QUARTER_RANGE<T> &&
               w.greatest <= QUARTER_RANGE<T>;
    }
    __device__ AtEdge by_dimension(const Dimension& x) const {
        if (x.v + x.w == 0 && x.shared > 0) return both_certain(x, 0, -0.5);
        const double p = x.shared, f = x.v / (p + x.v), g = x.w / (p + x.w);
        // AB / det = 1 / (1 - (p/A)(p/B)), and 1 - (1 - f)(1 - g) = f + g - f g.
        const double united = f + g - f * g;
        const double spread = x.a * x.a * f + x.b * x.b * g - (x.a - x.b) * (x.a - x.b);
        return {0.5 * (spread * ((1 - f) / (p + x.w)) / united + log(1 / united))};
    }
    template <typename X>
    __device__ DimensionPartials<X> partials(const DimensionOf<X>& x, bool) const {
        const X a = x.a, b = x.b, p = x.shared, apart = a - b, both = x.v + x.w;
        const X by_s = reciprocal(p + x.v), by_t = reciprocal(p + x.w), inverse = reciprocal(fma(p, both, x.v * x.w));
        // Each mean by its variance's share of the sum with the prior, and the first one by the prior's.
        const X c = a * x.v * by_s, d = b * x.w * by_t, shrunk = p * by_s * a;
        const X spread = fma(a, c, fma(b, d, -apart * apart)), per_spread = spread * inverse;
        const X var = fma(shrunk, shrunk, -p * fma(p + x.w, per_spread, p * by_s));
        const X prior = spread - p * (a * c * by_s + b * d * by_t + both * per_spread);
        const X logs = by_s + by_t - both * inverse;
        return {p * inverse * (c - apart), X(0.5) * var * inverse, {X(0.5) * fma(prior, inverse, logs), 0}};
    }
};

// With s = v / alpha + w / beta,
// -1/2 sum [ (a - b)^2 / s + log s - (1 - alpha) log v - (1 - beta) log w
//            + log alpha + log beta + (alpha + beta - 1) log 2 pi ].
template <typename T>
struct Overlap {
    static constexpr bool ROW = false, VARS = true;
    static constexpr UnderLog PRODUCT = FACTOR_OF_FOUR;
    static constexpr double rational_weight = -0.5, log_weight = -0.5;
    double alpha, beta, var_weights[2], constant;
    T by_alpha, by_beta;  // reciprocals

    __device__ Overlap(double alpha, double beta)
        : alpha(alpha), beta(beta), var_weights{0.5 * (1 - alpha), 0.5 * (1 - beta)},
          constant(-0.5 * fma(alpha + beta - 1, LOG_2PI, log(alpha) + log(beta))), by_alpha(T(1 / alpha)),
          by_beta(T(1 / beta)) {}
    __device__ Overlap transposed() const { return Overlap(beta, alpha); }
    __device__ double beyond() const { return sum(1, 1); }

    __device__ T sum(T v, T w) const { return fma(w, by_beta, v * by_alpha); }
    __device__ void add(Sums<T>& sums, const Four<T>& a, const Four<T>& v, const Four<T>& b, const Four<T>& w,
                        const Four<T>&) const {
        T square[4], s[4];
        for (int i = 0; i < 4; ++i) {
            square[i] = (a.x[i] - b.x[i]) * (a.x[i] - b.x[i]);
            s[i] = sum(v.x[i], w.x[i]);
        }
        sums.product.times(add_quotients(sums, square, s));
    }
    __device__ bool in_range(const Extremes<T>& v, const Extremes<T>& w) const {
        const T range = QUARTER_RANGE<T>, least = sum(v.least, w.least), greatest = sum(v.greatest, w.greatest);
        const bool each = v.least >= 1 / range && w.least >= 1 / range && v.greatest <= range && w.greatest <= range;
        return each && least >= 1 / range && greatest <= range;
    }
    __device__ AtEdge by_dimension(const Dimension& x) const {
        if (x.v + x.w == 0) return both_certain(x, -0.5 * log(1 / alpha + 1 / beta), 0.5 * (1 - alpha - beta));
        const double s = x.v / alpha + x.w / beta;
        const double first = alpha == 1 || x.v == 0 ? 0 : (1 - alpha) * log(x.v);
        const double second = beta == 1 || x.w == 0 ? 0 : (1 - beta) * log(x.w);
        const double falls = (x.v == 0 ? 0.5 * (1 - alpha) : 0) + (x.w == 0 ? 0.5 * (1 - beta) : 0);
        return {-0.5 * (square_over(x, s) + log(s) - first - second), falls};
    }
    template <typename X>
    __device__ DimensionPartials<X> partials(const DimensionOf<X>& x, bool shared) const {
        const X per_alpha = X(1 / alpha), per_beta = X(1 / beta), half = X(0.5), power = X(var_weights[0]);
        const X inverse = reciprocal(fma(x.w, per_beta, x.v * per_alpha)), by_mean = (x.a - x.b) * inverse;
        const X by_s = half * fma(by_mean, by_mean, -inverse);
        const X by_power = power == 0 ? 0 : power * reciprocal(x.v);
        DimensionPartials<X> partials{-by_mean, fma(by_s, per_alpha, by_power), {0, 0}};
        if (shared) {
            const X constant = X(LOG_2PI);
            partials.shared[0] = -by_s * x.v * per_alpha * per_alpha - half * (log(x.v) + per_alpha + constant);
            partials.shared[1] = -by_s * x.w * per_beta * per_beta - half * (log(x.w) + per_beta + constant);
        }
        return partials;
    }
};

// Minus share KL(p1 || p2) + (1 - share) KL(p2 || p1), KL(p1 || p2) = 1/2 sum [ ((a - b)^2 + v - w) / w - log(v/w) ].
template <typename T>
struct NegKl {
    static constexpr bool ROW = false, VARS = true;
    static constexpr UnderLog PRODUCT = NO_PRODUCT;
    static constexpr double rational_weight = -0.5, log_weight = 0, constant = 0;
    double share, var_weights[2];

    __device__ NegKl(double share, double) : share(share), var_weights{share - 0.5, 0.5 - share} {}
    __device__ NegKl transposed() const { return NegKl(1 - share, 0); }

    __device__ void add(Sums<T>& sums, const Four<T>& a, const Four<T>& v, const Four<T>& b, const Four<T>& w,
                        const Four<T>&) const {
        const T forth = T(share), back = T(1 - share);
        for (int i = 0; i < 4; ++i) {
            const T x = a.x[i] - b.x[i], apart = v.x[i] - w.x[i];
            const T to = fma(x, x, apart) * v.x[i], from = fma(x, x, -apart) * w.x[i];
            sums.rational = fma(fma(forth, to, back * from), reciprocal(v.x[i] * w.x[i]), sums.rational);
        }
    }
    __device__ bool in_range(const Extremes<T>& v, const Extremes<T>& w) const {
        const T range = QUARTER_RANGE<T>;
        return v.least >= 1 / range && w.least >= 1 / range && v.greatest <= range && w.greatest <= range;
    }
    __device__ AtEdge by_dimension(const Dimension& x) const {
        // An item without variance is infinitely far from any other, in both directions, but for an equal one.
        if (x.v + x.w == 0) return both_certain(x, 0, 0);
        if (x.v == 0 || x.w == 0) return {-INFINITY};
        const double difference = x.a - x.b, log_weight = 0.5 - share;
        double sum = log_weight == 0 ? 0 : log_weight * (log(x.w) - log(x.v));
        if (share != 0) sum -= 0.5 * share * (difference / x.w * difference + (x.v - x.w) / x.w);
        if (share != 1) sum -= 0.5 * (1 - share) * (difference / x.v * difference + (x.w - x.v) / x.v);
        return {sum};
    }
    template <typename X>
    __device__ DimensionPartials<X> partials(const DimensionOf<X>& x, bool shared) const {
        const X forth = X(share), back = X(1 - share), by_v = reciprocal(x.v), by_w = reciprocal(x.w), half = X(0.5);
        const X difference = x.a - x.b, apart = x.v - x.w, both = fma(forth, by_w, back * by_v);
        const X var = fma(forth, by_w - by_v, back * (fma(-difference, difference, apart) * by_v) * by_v);
        DimensionPartials<X> partials{-difference * both, -half * var, {0, 0}};
        if (shared) {
            const X to = fma(difference, difference, apart) * by_w, from = fma(difference, difference, -apart) * by_v;
            partials.shared[0] = half * (from - to) + log(x.v / x.w);
        }
        return partials;
    }
};
