// The formulas of scores of von Mises-Fisher distributions, in double, as in rust/kernels/dot_scores/vmf.rs.
//
// With x = |mu1 - mu2|^2 nothing large cancels: for R = |k1 mu1 + k2 mu2|, k1 + k2 - R = k1 k2 x / (k1 + k2 + R) and
// R^2 = (k1 + k2)^2 - k1 k2 x. With H = log_hyp0f1e, log C(k) = log C(0) - H(k) - k, so all log C are taken relative to
// log C(0).
#pragma once

#include "../numerics/special.cuh"
#include "dot.cuh"

// H, A and A' of a concentration k: read from the item's own numbers, or computed where there are none.
struct Orders {
    const TwoOrders* both;

    __device__ double h(double k, const Own* own = nullptr) const {
        return own ? own->h : log_hyp0f1e(both->normaliser, k);
    }
    __device__ double a(double k, const Own* own = nullptr) const { return own ? own->a : iv_ratio(both->ratio, k); }
    __device__ double a_slope(double k, const Own* own = nullptr) const {
        return own ? own->a_slope : iv_ratio_dx(both->ratio, k);
    }
    __device__ double log_norm_at_zero() const { return ::log_norm_at_zero(both->normaliser); }
};

// Log of the integral of p1^alpha p2^beta, plus an offset:
// alpha log C(k1) + beta log C(k2) - log C(|alpha k1 mu1 + beta k2 mu2|) + offset.
struct OverlapVmf {
    static constexpr bool DIFFERENCE = true, NORMS = false;
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
    __device__ Own own(double k, bool slopes) const { return {orders.h(k), slopes ? orders.a(k) : 0, 0}; }

    // Rounding of the rows can bring the square of a tiny R below 0; a tiny floor also keeps 0 / 0 out.
    __device__ static double resultant(double k1, double k2, double x) {
        const double sum = k1 + k2;
        return sqrt(greater(sum * sum - k1 * k2 * x, 2.2250738585072014e-308));
    }
    // Errors of three H, and of R where it cancels: rust/kernels/dot_scores/vmf.rs.
    __device__ double tolerance(double v, double w) const {
        const double both = alpha * v + beta * w, dim = 2 * orders.both->normaliser.v + 2;
        return 12e-15 * greater(dim, 2) + 1e-14 * both + 8.8817841970012523e-16 / dim * both * both;
    }
    __device__ double value(const DotPair& pair) const {
        const double k1 = alpha * pair.v, k2 = beta * pair.w, r = resultant(k1, k2, pair.x);
        const double lost = k1 * k2 * pair.x / (k1 + k2 + r);
        const double own = alpha * orders.h(pair.v, pair.first) + beta * orders.h(pair.w, pair.second);
        return valid(pair.v, pair.w, orders.h(r) - own - lost + constant);
    }
    __device__ DotSlopes slopes(const DotPair& pair) const {
        const double k1 = alpha * pair.v, k2 = beta * pair.w, r = resultant(k1, k2, pair.x);
        const double pull = orders.a(r) / r, cosine = 1 - 0.5 * pair.x;
        const double along = pull * fma(k2, cosine, k1), across = pull * fma(k1, cosine, k2);
        const auto by_power = [&](double k, const Own* own, double along) {
            return orders.log_norm_at_zero() - orders.h(k, own) - k + along * k;
        };
        const DotSlopes slopes{-0.5 * k1 * k2 * pull, 0, alpha * (along - orders.a(pair.v, pair.first)),
                               {by_power(pair.v, pair.first, along), by_power(pair.w, pair.second, across)}};
        return valid(pair.v, pair.w, slopes);
    }
};

// The mutual likelihood score plus an offset, its shared number.
struct MlsVmf : OverlapVmf {
    __device__ MlsVmf(double, double offset, double, const Orders& orders) : OverlapVmf(0, 1, 1, orders, offset) {}
    __device__ MlsVmf transposed() const { return *this; }
    __device__ DotSlopes slopes(const DotPair& pair) const {
        DotSlopes slopes = OverlapVmf::slopes(pair);
        slopes.shared[0] = 1, slopes.shared[1] = 0;
        return slopes;
    }
};

// Minus share KL(p1 || p2) + (1 - share) KL(p2 || p1), with c = cos(mu1, mu2) and
// KL(p1 || p2) = log C(k1) - log C(k2) + A(k1) (k1 - k2 c) = H(k2) - H(k1) + (k2 - k1) (1 - A(k1)) + A(k1) k2 x / 2.
struct NegKlVmf : Monotone {
    static constexpr bool DIFFERENCE = true, NORMS = false;
    Orders orders;
    double share;

    __device__ NegKlVmf(double, double share, double, const Orders& orders) : orders(orders), share(share) {}
    __device__ NegKlVmf transposed() const { return {0, 1 - share, 0, orders}; }
    __device__ Own own(double k, bool slopes) const {
        return {orders.h(k), orders.a(k), slopes ? orders.a_slope(k) : 0};
    }

    // KL(p1 || p2) without H(k2) - H(k1).
    __device__ static double moved(double k1, double k2, double a1, double x) {
        return (k2 - k1) * (1 - a1) + 0.5 * a1 * k2 * x;
    }
    __device__ double value(const DotPair& pair) const {
        const double k1 = pair.v, k2 = pair.w;
        double sum = (2 * share - 1) * (orders.h(k2, pair.second) - orders.h(k1, pair.first));
        if (share != 0) sum += share * moved(k1, k2, orders.a(k1, pair.first), pair.x);
        if (share != 1) sum += (1 - share) * moved(k2, k1, orders.a(k2, pair.second), pair.x);
        return valid(k1, k2, -sum);
    }
    __device__ DotSlopes slopes(const DotPair& pair) const {
        const double k1 = pair.v, k2 = pair.w, rest = 1 - share, cosine = 1 - 0.5 * pair.x;
        const double a1 = orders.a(k1, pair.first), a2 = orders.a(k2, pair.second);
        // KL(p1 || p2) and KL(p2 || p1) by k1.
        const double forth = orders.a_slope(k1, pair.first) * (k1 - k2 * cosine), back = a1 - a2 * cosine;
        const double logs = 2 * (orders.h(k2, pair.second) - orders.h(k1, pair.first));
        const double apart = moved(k1, k2, a1, pair.x) - moved(k2, k1, a2, pair.x) + logs;
        const double by_x = -0.5 * (share * a1 * k2 + rest * a2 * k1), by_k1 = -(share * forth + rest * back);
        const DotSlopes slopes{by_x, 0, by_k1, {-apart, 0}};
        return valid(k1, k2, slopes);
    }
};

// Names of kernels and their formulas.
#define VMF_FORMULAS(KERNEL_OF)        \
    KERNEL_OF(mls_vmf, MlsVmf)         \
    KERNEL_OF(overlap_vmf, OverlapVmf) \
    KERNEL_OF(neg_kl_vmf, NegKlVmf)
