// The formulas of scores of von Mises-Fisher distributions, in double, as in rust/kernels/dot_scores/vmf.rs.
//
// With x = |mu1 - mu2|^2 nothing large cancels: for R = |kappa1 mu1 + kappa2 mu2|,
// R^2 = (kappa1 + kappa2)^2 - kappa1 kappa2 x and kappa1 + kappa2 - R = kappa1 kappa2 x / (kappa1 + kappa2 + R).
// With H = log_hyp0f1e, log C(kappa) = log C(0) - H(kappa) - kappa, so all log C are taken relative to log C(0).
#pragma once

#include "../numerics/special.cuh"
#include "dot.cuh"

// H, A and A' of a concentration kappa: read from the item's numbers, or computed where there are none.
struct Orders {
    const TwoOrders* both;

    __device__ double h(double kappa, const PerItem* made = nullptr) const {
        return made ? made->h : log_hyp0f1e(both->normaliser, kappa);
    }
    __device__ double a(double kappa, const PerItem* made = nullptr) const {
        return made ? made->a : iv_ratio(both->ratio, kappa);
    }
    __device__ double a_derivative(double kappa, const PerItem* made = nullptr) const {
        return made ? made->a_derivative : iv_ratio_dx(both->ratio, kappa);
    }
    __device__ double log_norm_at_zero() const { return ::log_norm_at_zero(both->normaliser); }
};

// Log of the integral of p1^alpha p2^beta, plus an offset:
// alpha log C(kappa1) + beta log C(kappa2) - log C(|alpha kappa1 mu1 + beta kappa2 mu2|) + offset.
struct OverlapVmf : Edges {
    static constexpr int AT_ONCE = 1;
    static constexpr bool DIFFERENCE = true, NORMS = false, LIMITED = false, SIGNED = false;
    Orders orders;
    double alpha, beta, constant;

    __device__ OverlapVmf(double, double alpha, double beta, const Orders& orders, double offset = 0)
        : orders(orders), alpha(alpha), beta(beta),
          constant(offset + (alpha + beta - 1) * orders.log_norm_at_zero()) {}
    __device__ OverlapVmf transposed() const {
        OverlapVmf other = *this;
        other.alpha = beta, other.beta = alpha;
        return other;
    }
    __device__ PerItem per_item(double kappa, bool partials) const {
        return {orders.h(kappa), partials ? orders.a(kappa) : 0, 0};
    }

    // Rounding of the rows can bring the square of a tiny R below 0; a tiny floor also keeps 0 / 0 out.
    __device__ static double resultant(double kappa1, double kappa2, double x) {
        const double sum = kappa1 + kappa2;
        return quick_sqrt(greater(sum * sum - kappa1 * kappa2 * x, 2.2250738585072014e-308));
    }
    // Errors of three H, and of R where it cancels: rust/kernels/dot_scores/vmf.rs.
    __device__ double tolerance(double v, double w) const {
        // Beside an infinite one, a score is that of a finite concentration alone.
        const double both = (v < INFINITY ? alpha * v : 0) + (w < INFINITY ? beta * w : 0), dim = 2 * orders.both->normaliser.v + 2;
        return 12e-15 * greater(dim, 2) + 1e-14 * both + 8.8817841970012523e-16 / dim * both * both;
    }
    __device__ double value(const DotPair& pair) const {
        const double kappa1 = alpha * pair.v, kappa2 = beta * pair.w, r = resultant(kappa1, kappa2, pair.x);
        const double lost = quick_quotient(kappa1 * kappa2 * pair.x, kappa1 + kappa2 + r);
        const double normalisers = alpha * orders.h(pair.v, pair.first) + beta * orders.h(pair.w, pair.second);
        return valid(pair.v, pair.w, orders.h(r) - normalisers - lost + constant);
    }
    // Infinite concentrations: rust/kernels/dot_scores/vmf.rs.
    __device__ double at_edge(const DotPair& pair) const {
        const auto density = [&](double power, double kappa, const PerItem* made) {
            return constant - power * (orders.h(kappa, made) + 0.5 * kappa * pair.x);
        };
        const bool first = pair.v == INFINITY, second = pair.w == INFINITY;
        if (first && second) return if_equal(pair, growing(alpha + beta - 1) + constant);
        if (first) return growing(alpha - 1) + density(beta, pair.w, pair.second);
        return second ? growing(beta - 1) + density(alpha, pair.v, pair.first) : NAN;
    }
    __device__ DotPartials partials_at_edge(const DotPair& pair, const DotPartials&) const {
        const auto by_power = [&](double kappa, const PerItem* made) {
            return orders.log_norm_at_zero() - orders.h(kappa, made) - 0.5 * kappa * pair.x;
        };
        DotPartials out{};
        if (pair.v == INFINITY && pair.w < INFINITY && alpha == 1) {
            out.x = -0.5 * beta * pair.w, out.shared[1] = by_power(pair.w, pair.second);
        } else if (pair.w == INFINITY && pair.v < INFINITY && beta == 1) {
            out.x = -0.5 * alpha * pair.v, out.shared[0] = by_power(pair.v, pair.first);
            out.uncertainty = alpha * (1 - orders.a(pair.v, pair.first) - 0.5 * pair.x);
        }
        return out;
    }
    __device__ DotPartials partials(const DotPair& pair) const {
        const double kappa1 = alpha * pair.v, kappa2 = beta * pair.w, r = resultant(kappa1, kappa2, pair.x);
        const double a_over_r = quick_quotient(orders.a(r), r), cosine = 1 - 0.5 * pair.x;
        const double along = a_over_r * fma(kappa2, cosine, kappa1), across = a_over_r * fma(kappa1, cosine, kappa2);
        const auto by_power = [&](double kappa, const PerItem* made, double along) {
            return orders.log_norm_at_zero() - orders.h(kappa, made) - kappa + along * kappa;
        };
        const DotPartials partials{-0.5 * kappa1 * kappa2 * a_over_r, 0, alpha * (along - orders.a(pair.v, pair.first)),
                               {by_power(pair.v, pair.first, along), by_power(pair.w, pair.second, across)}};
        return valid(pair.v, pair.w, partials);
    }
};

// The mutual likelihood score plus an offset, its shared number.
//
// Its limit. With v = D/2 - 1 and G = H + kappa, the integral of A, the score is G(R) - G(kappa1) - G(kappa2) + constant. By Hornik and
// Gruen (2013, "Amos-type bounds for modified Bessel function ratios", theorem 2), A(t) <= t / (a + sqrt(t^2 + b^2)) with a = v + 1/2 and
// b^2 = a (v + 3/2), so that G(R) <= z - a log(a + z) - (b - a log(a + b)) with z^2 = R^2 + b^2, which is at most 1/4 above it.
struct MlsVmf : OverlapVmf {
    static constexpr bool LIMITED = true;
    float a, b_square, base;

    __device__ MlsVmf(double, double offset, double, const Orders& orders) : OverlapVmf(0, 1, 1, orders, offset) {
        const double v = orders.both->normaliser.v, exact_a = v + 0.5, exact_b = sqrt(exact_a * (v + 1.5));
        a = float(exact_a), b_square = float(exact_b * exact_b);
        base = float(constant - (exact_b - exact_a * log(exact_a + exact_b)));
    }
    __device__ static float alone(double kappa, const PerItem* made) { return made ? float(made->h + kappa) : NAN; }
    __device__ float limit(const LimitPair& pair) const {
        const float sum = pair.v + pair.w, square = sum * sum;
        // R^2 and z from above, as z grows with R, and the limit with z.
        const float inside = fma(-pair.v * pair.w, pair.x, fma(SPARE, square, square)) + b_square, root = inside * rough_rsqrt(inside);
        const float z = fma(3 * SPARE, root, root), logs = a * LOG_2 * rough_log2(a + z);
        const float size = z + (fabs(base) + pair.first + pair.second) + 3 * fabs(logs) + 2 * a;
        const float limit = (z - logs) + ((base - pair.first) - pair.second);
        return (sum < 1e12f) & (inside > 1e-30f) ? fma(2 * SPARE, size, limit) : NAN;
    }
    __device__ MlsVmf transposed() const { return *this; }
    __device__ DotPartials partials(const DotPair& pair) const {
        return by_offset(OverlapVmf::partials(pair));
    }
    __device__ DotPartials partials_at_edge(const DotPair& pair, const DotPartials& partials) const {
        return by_offset(OverlapVmf::partials_at_edge(pair, partials));
    }
    __device__ static DotPartials by_offset(DotPartials partials) {
        partials.shared[0] = 1, partials.shared[1] = 0;
        return partials;
    }
};

// Minus share KL(p1 || p2) + (1 - share) KL(p2 || p1), with c = cos(mu1, mu2) and
// KL(p1 || p2) = log C(kappa1) - log C(kappa2) + A(kappa1) (kappa1 - kappa2 c)
//              = H(kappa2) - H(kappa1) + (kappa2 - kappa1) (1 - A(kappa1)) + A(kappa1) kappa2 x / 2.
struct NegKlVmf : Monotone {
    static constexpr bool DIFFERENCE = true, NORMS = false;
    Orders orders;
    double share;

    __device__ NegKlVmf(double, double share, double, const Orders& orders) : orders(orders), share(share) {}
    __device__ NegKlVmf transposed() const { return {0, 1 - share, 0, orders}; }
    __device__ PerItem per_item(double kappa, bool partials) const {
        return {orders.h(kappa), orders.a(kappa), partials ? orders.a_derivative(kappa) : 0};
    }

    // KL(p1 || p2) without H(kappa2) - H(kappa1).
    __device__ static double moved(double kappa1, double kappa2, double a1, double x) {
        return (kappa2 - kappa1) * (1 - a1) + 0.5 * a1 * kappa2 * x;
    }
    __device__ double value(const DotPair& pair) const {
        const double kappa1 = pair.v, kappa2 = pair.w;
        double sum = (2 * share - 1) * (orders.h(kappa2, pair.second) - orders.h(kappa1, pair.first));
        if (share != 0) sum += share * moved(kappa1, kappa2, orders.a(kappa1, pair.first), pair.x);
        if (share != 1) sum += (1 - share) * moved(kappa2, kappa1, orders.a(kappa2, pair.second), pair.x);
        return valid(kappa1, kappa2, -sum);
    }
    // The divergence of equal items is 0, that from or to any other item of an infinite concentration infinite.
    __device__ static double at_edge(const DotPair& pair) {
        return pair.v == pair.w ? if_equal(pair, 0) : -INFINITY;
    }
    __device__ DotPartials partials(const DotPair& pair) const {
        const double kappa1 = pair.v, kappa2 = pair.w, rest = 1 - share, cosine = 1 - 0.5 * pair.x;
        const double a1 = orders.a(kappa1, pair.first), a2 = orders.a(kappa2, pair.second);
        // KL(p1 || p2) and KL(p2 || p1) by kappa1.
        const double forth = orders.a_derivative(kappa1, pair.first) * (kappa1 - kappa2 * cosine);
        const double back = a1 - a2 * cosine;
        const double logs = 2 * (orders.h(kappa2, pair.second) - orders.h(kappa1, pair.first));
        const double apart = moved(kappa1, kappa2, a1, pair.x) - moved(kappa2, kappa1, a2, pair.x) + logs;
        const double by_x = -0.5 * (share * a1 * kappa2 + rest * a2 * kappa1);
        const double by_kappa1 = -(share * forth + rest * back);
        const DotPartials partials{by_x, 0, by_kappa1, {-apart, 0}};
        return valid(kappa1, kappa2, partials);
    }
};

// Names of kernels and their formulas.
#define VMF_FORMULAS(KERNEL_OF)        \
    KERNEL_OF(mls_vmf, MlsVmf)         \
    KERNEL_OF(overlap_vmf, OverlapVmf) \
    KERNEL_OF(neg_kl_vmf, NegKlVmf)
