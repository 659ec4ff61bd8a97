// The formulas of scores that are functions of one inner product or squared distance and a few numbers per item, in
// double, as in rust/kernels/dot_scores/{formulas,normals}.rs, which name their sources.
//
// A formula is made of (D, first and second shared number) and has
//   DIFFERENCE       whether x is the squared distance or the inner product
//   NORMS            whether the squared norms are used
//   value(pair), partials(pair)    the score and its derivatives
//   AT_ONCE          how many pairs of a thread are computed at once from products, so that the waits of one hide in the work of others;
//                    1 where the value has branches
//   ALIKE            whether it takes the sum of the uncertainties alone, and no norms: derivatives by both items are alike
//   transposed()     the formula that gives the score when the two items change places
//   tolerance(v, w)  the most by which rounding can lower a value below that of another x whose score is not higher
//   LIMITED          whether it has limit(pair): in single precision, a number that the value is not above; or NaN.
//                    With u = 2^-24, each operation of it errs by at most u, rough_quotient and rough_rsqrt by 4 u and
//                    rough_log2 by 4 u |log2| + 4 u; what it adds is at least 1.7 times what they err by together.
//   alone(kappa, made)    a number of an item alone that the limit takes
//   at_edge(pair)    where the value of a pair in the domain is NaN, its limit; NaN where there is none
//   partials_at_edge(pair, partials)    where a derivative of such a pair is not finite, the derivatives, 0 without a limit
//   per_item(kappa, partials)   of von Mises-Fisher: the numbers of an item alone, for scores or, if `partials`, for
//   their partial derivatives
#pragma once

#include "../numerics/dual.cuh"
#include "../numerics/elementary.cuh"
#include "../pair.cuh"

// x where it is finite, else 0.
__device__ inline double or_zero(double x) { return is_finite(x) ? x : 0; }

// Values and partials at the edge that many formulas share.
struct Edges {
    static constexpr int AT_ONCE = 4;
    static constexpr bool ALIKE = false;
    __device__ static float alone(double, const PerItem*) { return 0; }
    __device__ static double at_edge(const DotPair&) { return NAN; }
    __device__ static DotPartials partials_at_edge(const DotPair&, const DotPartials& p) {
        return {or_zero(p.x), or_zero(p.norm), or_zero(p.uncertainty), {or_zero(p.shared[0]), or_zero(p.shared[1])}};
    }
};

// A limit that is reached where the means are equal; where they differ, the score falls to -infinity.
__device__ inline double if_equal(const DotPair& pair, double limit) { return pair.x > 0 ? -INFINITY : limit; }

// The limit of growth log(1 / y) as y goes to 0.
__device__ inline double growing(double growth) { return growth == 0 ? 0 : growth * INFINITY; }

// Whether no number of a pair is NaN, and no uncertainty below 0 that must not be.
template <typename Formula>
__device__ inline bool is_in_domain(const DotPair& pair) {
    const double norms = Formula::NORMS ? pair.n + pair.m : 0, sum = pair.x + norms + pair.v + pair.w;
    return sum == sum && (Formula::SIGNED || (pair.v >= 0 && pair.w >= 0));
}

// The value and the derivatives, with their limits at the edges of the domain.
template <typename Formula>
__device__ inline double value_with_limits(const Formula& formula, const DotPair& pair) {
    const double value = formula.value(pair);
    return value != value && is_in_domain<Formula>(pair) ? formula.at_edge(pair) : value;
}
template <typename Formula>
__device__ inline DotPartials partials_with_limits(const Formula& formula, const DotPair& pair) {
    const DotPartials partials = formula.partials(pair);
    const double sum = partials.x + partials.norm + partials.uncertainty + partials.shared[0] + partials.shared[1];
    const bool known = is_finite(sum) || !is_finite(pair.x) || !is_in_domain<Formula>(pair);
    return known ? partials : formula.partials_at_edge(pair, partials);
}

// Not inlined, so that a pair's score has the same bits from all kernels.
template <typename Formula>
__device__ __noinline__ double value_of(Formula formula, DotPair pair) {
    return value_with_limits(formula, pair);
}
template <typename Formula>
__device__ __noinline__ DotPartials partials_of(Formula formula, DotPair pair) {
    return partials_with_limits(formula, pair);
}

// A formula whose value as computed is monotone in x: x is only added to, multiplied by and divided by numbers that do not depend on it.
struct Monotone : Edges {
    static constexpr bool LIMITED = false, SIGNED = false;
    __device__ static double tolerance(double, double) { return 0; }
};

// `value` where both uncertainties are >= 0, else NaN, as scores of variances outside their domain are.
__device__ inline double valid(double v, double w, double value) { return v < 0 || w < 0 ? NAN : value; }

__device__ inline DotPartials valid(double v, double w, const DotPartials& s) {
    const double zero = valid(v, w, 0);
    return {s.x + zero, s.norm + zero, s.uncertainty + zero, {s.shared[0] + zero, s.shared[1] + zero}};
}

// A score, and its derivative, where the uncertainties are >= 0, else NaN.
template <typename Pair>
__device__ inline double in_domain(const Pair& pair, double score) {
    return valid(value_of(pair.v), pair.w, score);
}
template <typename Pair>
__device__ inline Dual in_domain(const Pair& pair, Dual score) {
    return {in_domain(pair, score.value), in_domain(pair, score.derivative)};
}

// A formula whose partial derivatives are the derivatives of its value, which is a template: it takes pairs of which
// one number is a Dual. Other formulas write their partial derivatives out; rust/kernels/dot_scores says why.
template <typename Formula>
struct Differentiated : Monotone {
    __device__ DotPartials partials(const DotPair& p) const {
        const Formula& formula = static_cast<const Formula&>(*this);
        DotPartials out{};
        using ByX = DotPairOf<Dual, double, double>;
        out.x = formula.value(ByX{{p.x, 1}, p.n, p.m, p.v, p.w, p.first, p.second}).derivative;
        if constexpr (Formula::NORMS) {
            using ByNorm = DotPairOf<double, Dual, double>;
            out.norm = formula.value(ByNorm{p.x, {p.n, 1}, p.m, p.v, p.w, p.first, p.second}).derivative;
        }
        using ByUncertainty = DotPairOf<double, double, Dual>;
        out.uncertainty = formula.value(ByUncertainty{p.x, p.n, p.m, {p.v, 1}, p.w, p.first, p.second}).derivative;
        formula.by_shared(p, out.shared);
        return out;
    }
    // The derivatives by the shared numbers, where a formula has such numbers.
    __device__ static void by_shared(const DotPair&, double (&)[2]) {}
};

// factor log x, which is 0 for a factor of 0 and any x.
template <typename X>
__device__ inline X times_log(double factor, X x) {
    return factor == 0 ? X{} : factor * quick_log(x);
}

// A share of what single precision takes for the size of a number, 8 u, that is added to it so that it is a limit.
constexpr float SPARE = 4.76837158203125e-07f;

// log 2.
constexpr float LOG_2 = 0.693147180559945f;

// Whether a squared norm has all its digits, and the inner products of rows whose norms have them
// (rust/kernels/dot_scores/lengths.rs). No NaN has.
template <typename T, typename X>
__device__ inline bool in_range(X norm) {
    constexpr X MOST = sizeof(T) == 4 ? 0x1p62 : 0x1p510;
    return (norm >= 1 / MOST) & (norm <= MOST);  // Without a branch, as a sieve asks it of each pair.
}

// v w (cos(mu1, mu2) - shift), where v and w are weights.
struct ShiftedCosine : Differentiated<ShiftedCosine> {
    static constexpr bool DIFFERENCE = false, NORMS = true, LIMITED = true;
    double shift;

    __device__ ShiftedCosine(double, double shift, double) : shift(shift) {}
    __device__ ShiftedCosine transposed() const { return *this; }
    template <typename Pair>
    __device__ auto value(const Pair& pair) const {
        // Two roots: the product of the squares could leave the range.
        const auto weight = pair.v * pair.w;
        return within(pair.x * quick_quotient(weight, quick_sqrt(pair.n) * quick_sqrt(pair.m)), weight) - shift * weight;
    }
    // The product of weights and cosine, which roundings must not bring beyond the weights.
    __device__ static double within(double x, double weight) {
        const double most = fabs(weight);
        return x > most ? most : x < -most ? -most : x;
    }
    template <typename Weight>
    __device__ static Dual within(Dual x, const Weight&) {
        return x;
    }
    // The cosine of zeros, and its derivatives, are 0.
    __device__ double at_edge(const DotPair& pair) const {
        return pair.n == 0 || pair.m == 0 ? -shift * (pair.v * pair.w) : NAN;
    }
    __device__ DotPartials partials_at_edge(const DotPair& pair, const DotPartials&) const {
        return {0, 0, -shift * pair.w, {-pair.v * pair.w, 0}};
    }
    __device__ static void by_shared(const DotPair& pair, double (&out)[2]) { out[0] = -pair.v * pair.w; }
    __device__ float limit(const LimitPair& pair) const {
        const float once = pair.x * rough_rsqrt(pair.n), weight = pair.v * pair.w;
        const float cosine = weight * (once * rough_rsqrt(pair.m)), shifted = float(shift) * weight;
        // Subnormal numbers err by more.
        const bool known = (fabs(once) > 1e-30f) & (weight > 1e-30f) & (fabs(cosine) > 1e-30f);
        return known ? cosine - shifted + 3 * SPARE * (fabs(cosine) + fabs(shifted)) : NAN;
    }
};

// v w cos(mu1, mu2).
struct Cosine : ShiftedCosine {
    __device__ Cosine(double, double, double) : ShiftedCosine(0, 0, 0) {}
    __device__ Cosine transposed() const { return *this; }
};

// -(|mu1 - mu2|^2 + v + w), where v and w are traces of covariances or numbers of any sign; or mu1.mu2 + v + w.
template <bool OF_DISTANCES>
struct SignedSum : Differentiated<SignedSum<OF_DISTANCES>> {
    static constexpr bool DIFFERENCE = OF_DISTANCES, NORMS = false, LIMITED = true, SIGNED = true, ALIKE = true;

    __device__ SignedSum(double, double, double) {}
    __device__ SignedSum transposed() const { return *this; }
    template <typename Pair>
    __device__ auto value(const Pair& pair) const {
        return DIFFERENCE ? -(pair.x + (pair.v + pair.w)) : pair.x + (pair.v + pair.w);
    }
    __device__ static float limit(const LimitPair& pair) {
        return SPARE * (fabs(pair.x) + (fabs(pair.v) + fabs(pair.w))) + (DIFFERENCE ? -1 : 1) * (pair.x + (pair.v + pair.w));
    }
};

// With s = v + w, -(|mu1 - mu2|^2 / s + D log s + D log 2 pi) / 2.
struct MlsIsotropic : Differentiated<MlsIsotropic> {
    static constexpr bool DIFFERENCE = true, NORMS = false, LIMITED = true, ALIKE = true;
    double dim;

    __device__ MlsIsotropic(double dim, double, double) : dim(dim) {}
    __device__ MlsIsotropic transposed() const { return *this; }
    template <typename Pair>
    __device__ auto value(const Pair& pair) const {
        const auto s = pair.v + pair.w;
        return in_domain(pair, -0.5 * (quick_quotient(pair.x, s) + dim * (quick_log(s) + LOG_2PI)));
    }
    __device__ static double at_edge(const DotPair& pair) {
        return pair.v + pair.w == 0 ? if_equal(pair, INFINITY) : NAN;
    }
    __device__ float limit(const LimitPair& pair) const {
        const float s = pair.v + pair.w, logs = rough_log2(s), rest = fma(-0.5f * LOG_2, logs, 4 * SPARE - 0.5f * float(LOG_2PI));
        // The quotient of half of x: it is infinite where the score is.
        const float quotients = rough_quotient((SPARE - 0.5f) * pair.x, s);
        const float limit = fma(float(dim), fma(SPARE * LOG_2, fabs(logs), rest), quotients);
        return (s > 1e-30f) & (s < 1e30f) ? limit : NAN;
    }
};

// -|mu1 - mu2|^2 / (v + w).
struct NegMahalanobisIsotropic : Differentiated<NegMahalanobisIsotropic> {
    static constexpr bool DIFFERENCE = true, NORMS = false, ALIKE = true;

    __device__ NegMahalanobisIsotropic(double, double, double) {}
    __device__ NegMahalanobisIsotropic transposed() const { return *this; }
    template <typename Pair>
    __device__ auto value(const Pair& pair) const {
        return in_domain(pair, -quick_quotient(pair.x, pair.v + pair.w));
    }
    __device__ static double at_edge(const DotPair& pair) { return pair.v + pair.w == 0 ? if_equal(pair, 0) : NAN; }
};

// With A = p + v, B = p + w, det = p (v + w) + v w, 1/2 [ p (|a|^2 v/A + |b|^2 w/B - |a - b|^2) / det + D log(AB / det) ].
struct LlrIsotropic : Monotone {
    static constexpr bool DIFFERENCE = true, NORMS = true, LIMITED = true;
    double dim, prior_var;

    __device__ LlrIsotropic(double dim, double prior_var, double) : dim(dim), prior_var(prior_var) {}
    __device__ LlrIsotropic transposed() const { return *this; }
    __device__ double value(const DotPair& pair) const {
        const double p = prior_var, v = pair.v, w = pair.w, a = p + v, b = p + w, det = p * (v + w) + v * w;
        const double spread = (quick_quotient(pair.n * v, a) + quick_quotient(pair.m * w, b)) - pair.x, inverse = quick_quotient(1, det);
        return valid(fmin(v, w), p, 0.5 * (spread * (p * inverse) + dim * quick_log(a * b * inverse)));
    }
    // Two variances of 0, or such that the reciprocal of det leaves the range.
    __device__ double at_edge(const DotPair& pair) const {
        const double p = prior_var, v = pair.v, w = pair.w, det = p * (v + w) + v * w;
        if (!(p > 0 && v + w < INFINITY)) return NAN;
        if (v + w == 0) return if_equal(pair, INFINITY);
        const double spread = (pair.n * v / (p + v) + pair.m * w / (p + w)) - pair.x;
        return 0.5 * (spread / det * p + dim * (log(p + v) + log(p + w) - log(det)));
    }
    __device__ float limit(const LimitPair& pair) const {
        const float p = float(prior_var), v = pair.v, w = pair.w, a = p + v, b = p + w, det = p * (v + w) + v * w;
        const float alone = rough_quotient(pair.n * v, a) + rough_quotient(pair.m * w, b), by = rough_quotient(p, det);
        const float logs = LOG_2 * rough_log2(rough_quotient(a, det) * b), d = float(dim);
        const float score = 0.5f * ((alone - pair.x) * by + d * logs);
        // Subnormal numbers err by more, as do quotients by large ones.
        const bool known = (det > 1e-30f) & (a < 1e18f) & (b < 1e18f) & (p > 1e-18f);
        return known ? score + SPARE * (2 * (alone + pair.x) * by + d * (fabs(logs) + 4)) : NAN;
    }
    __device__ DotPartials partials(const DotPair& pair) const {
        const double p = prior_var, v = pair.v, w = pair.w, n = pair.n, m = pair.m;
        const double by_a = quick_quotient(1, p + v), b = p + w, by_b = quick_quotient(1, b);
        const double inverse = quick_quotient(1, p * (v + w) + v * w), first = n * v * by_a, second = m * w * by_b;
        const double spread = (first + second) - pair.x;
        const double by_var = p * p * n * (by_a * by_a) - p * b * spread * inverse - dim * p * p * by_a;
        const double prior = spread - p * (first * by_a + second * by_b) - p * (v + w) * spread * inverse;
        const double logs = dim * (by_a + by_b - (v + w) * inverse);
        const double by_prior = 0.5 * (prior * inverse + logs);
        return valid(fmin(v, w), p,
                     DotPartials{-0.5 * p * inverse, 0.5 * p * v * by_a * inverse, 0.5 * by_var * inverse, {by_prior, 0}});
    }
};

// With s = v / alpha + w / beta,
// -(|mu1 - mu2|^2 / s + D [log s - (1 - alpha) log v - (1 - beta) log w
//   + log alpha + log beta + (alpha + beta - 1) log 2 pi]) / 2.
struct OverlapIsotropic : Differentiated<OverlapIsotropic> {
    static constexpr bool DIFFERENCE = true, NORMS = false;
    double dim, alpha, beta;

    __device__ OverlapIsotropic(double dim, double alpha, double beta) : dim(dim), alpha(alpha), beta(beta) {}
    __device__ OverlapIsotropic transposed() const { return {dim, beta, alpha}; }
    template <typename Pair>
    __device__ auto value(const Pair& pair) const {
        const auto s = quick_quotient(pair.v, alpha) + quick_quotient(pair.w, beta);
        const auto logs = quick_log(s) - times_log(1 - alpha, pair.v) - times_log(1 - beta, pair.w);
        const double constant = log(alpha) + log(beta) + (alpha + beta - 1) * LOG_2PI;
        return in_domain(pair, -0.5 * (quick_quotient(pair.x, s) + dim * (logs + constant)));
    }
    // Two variances of 0: with both equal to y, the logarithms are (alpha + beta - 1) log y + log(1 / alpha + 1 / beta).
    __device__ double at_edge(const DotPair& pair) const {
        if (pair.v + pair.w != 0) return NAN;
        const double constant = log(alpha) + log(beta) + (alpha + beta - 1) * LOG_2PI;
        return if_equal(pair, growing(alpha + beta - 1) - 0.5 * dim * (log(1 / alpha + 1 / beta) + constant));
    }
    __device__ void by_shared(const DotPair& pair, double (&out)[2]) const {
        const double inverse = 1 / (pair.v / alpha + pair.w / beta), by_s = 0.5 * inverse * (pair.x * inverse - dim);
        const auto by_power = [&](double power, double var) {
            return -(by_s * var / (power * power)) - 0.5 * dim * (log(var) + LOG_2PI + 1 / power);
        };
        out[0] = in_domain(pair, by_power(alpha, pair.v)), out[1] = in_domain(pair, by_power(beta, pair.w));
    }
};

// Minus share KL(p1 || p2) + (1 - share) KL(p2 || p1), KL(p1 || p2) = (|mu1 - mu2|^2 / w + D [v/w - 1 - log(v/w)]) / 2.
struct NegKlIsotropic : Monotone {
    static constexpr bool DIFFERENCE = true, NORMS = false;
    double dim, share;

    __device__ NegKlIsotropic(double dim, double share, double) : dim(dim), share(share) {}
    __device__ NegKlIsotropic transposed() const { return {dim, 1 - share, 0}; }
    __device__ double value(const DotPair& pair) const {
        const double v = pair.v, w = pair.w;
        const double by_v = quick_quotient(1, v), by_w = quick_quotient(1, w);
        double twice = times_log((1 - 2 * share) * dim, v * by_w);
        if (share != 0) twice += share * by_w * (pair.x + dim * (v - w));
        if (share != 1) twice += (1 - share) * by_v * (pair.x + dim * (w - v));
        // An item without variance is infinitely far from any other, in both directions, but for an equal one.
        if (v + w == 0) return NAN;
        return valid(v, w, v == 0 || w == 0 ? -INFINITY : -0.5 * twice);
    }
    __device__ static double at_edge(const DotPair& pair) {
        if (pair.v == pair.w && pair.v < INFINITY) return if_equal(pair, 0);
        return pair.v + pair.w < INFINITY ? -INFINITY : NAN;
    }
    __device__ DotPartials partials(const DotPair& pair) const {
        const double v = pair.v, w = pair.w, rest = 1 - share;
        // KL(1 || 2) and KL(2 || 1), doubled, by v.
        const double by_v = quick_quotient(1, v), by_w = quick_quotient(1, w), logs = dim * quick_log(v * by_w);
        const double forth = dim * ((v - w) * by_w * by_v), back = (dim * (v - w) - pair.x) * (by_v * by_v);
        const double first = by_w * (pair.x + dim * (v - w)) - logs, second = by_v * (pair.x + dim * (w - v)) + logs;
        const DotPartials partials{-0.5 * (share * by_w + rest * by_v), 0, -0.5 * (share * forth + rest * back),
                               {0.5 * (second - first), 0}};
        return valid(v, w, partials);
    }
};

// Names of kernels and their formulas.
#define DOT_FORMULAS(KERNEL_OF)                    \
    KERNEL_OF(cosine, Cosine)                      \
    KERNEL_OF(shifted_cosine, ShiftedCosine)       \
    KERNEL_OF(neg_sq_l2, SignedSum<true>)          \
    KERNEL_OF(inner_product, SignedSum<false>)     \
    KERNEL_OF(mls_isotropic, MlsIsotropic)         \
    KERNEL_OF(neg_mahalanobis_isotropic, NegMahalanobisIsotropic) \
    KERNEL_OF(llr_isotropic, LlrIsotropic)         \
    KERNEL_OF(overlap_isotropic, OverlapIsotropic) \
    KERNEL_OF(neg_kl_isotropic, NegKlIsotropic)
