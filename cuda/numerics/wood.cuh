// The height w = x.mu of a von Mises-Fisher draw, and its derivative in kappa, in float64, by one thread, as in
// rust/kernels/samplers/wood.rs, which says why.
//
// Wood's rejection sampler (Comm. Statist. Simul. 23, 1994): with b = m/(2k + sqrt(4k^2 + m^2)), m = D - 1,
// x0 = (1 - b)/(1 + b), and X drawn from the uniform distribution on the sphere, w = (x0 - X)/e, e = 1 - x0 X, and the
// log of the acceptance is m (1 - 1/e - log e). X = R cos V with 1 - R^2 = U^(2/(D-2)), V uniform (Ulrich, Appl.
// Statist. 33, 1984).
//
// dw/dk = int_w^1 (t - A) f(t) dt / f(w), or the same over [-1, w] with A - t where w < A. With t = tanh(y), |T| = tanh
// of the distance in y, u = w on the upper side and -w on the lower one:
//   |t - w| = (1 - w^2)|T|/g, g = 1 + u|T|, f(t) dt/f(w) = (1 - w^2) exp(E) dy,
//   E = +-k |t - w| + m/2 log((1 - T^2)/g^2),
// Gauss-Legendre from 0 to where E falls to -25. Largest error relative to the root mean square of dw/dk: 3e-9.
#pragma once

#include "philox.cuh"
#include "special.cuh"

// A height w, as its distances from 1 and from -1.
struct Height {
    double below;  // 1 - w
    double above;  // 1 + w

    HD double w() const { return below < 1 ? 1 - below : above - 1; }
    // sqrt(1 - w^2)
    HD double tangent() const { return sqrt(above * below); }
};

// Draws a height, which is NaN for kappa < 0.
__device__ inline Height draw_height(int64_t dim, double kappa, const Address& address) {
    const double m = double(dim - 1), exponent = 2 / double(dim - 2);
    kappa = nonnegative(kappa);
    const double twice = 2 * kappa, b = m / (twice + sqrt(fma(twice, twice, m * m)));
    const double x0 = (1 - b) / (1 + b), below_x0 = 2 * b / (1 + b);
    for (uint32_t attempt = 0;; ++attempt) {
        const Words words = address.proposal(attempt, 0), chance = address.proposal(attempt, 1);
        const double rest = exp(ln_normal(uniform(joined(words.a, words.b))) * exponent), r = sqrt(1 - rest);
        const Direction<double> direction(joined(words.c, words.d));
        const double x = r * direction.first, other = r * direction.second;
        // 1 - |X| is (1 - X^2) / (1 + |X|).
        const double far = 1 + fabs(x), near = fma(other, other, rest) / far;
        const double less = x < 0 ? far : near, more = x < 0 ? near : far;  // 1 - X, 1 + X
        const double e = below_x0 + x0 * less, by_e = 1 / e;
        const double accept = m * (1 - by_e - ln_normal(e));
        // NaN is accepted, and returned.
        if (!(accept < ln_normal(uniform(joined(chance.a, chance.b)))))
            return {below_x0 * more * by_e, (1 + x0) * less * by_e};
    }
}

// The integrand on one side of w.
struct SideOfHeight {
    double half_m;
    double u;      // +-w
    double ahead;  // 1 + u
    double kappa_square;   // +-kappa (1 - w^2)
    // At a distance in y: E, its derivative by the distance, and |t - w|/(1 - w^2).
    double depth, steep, moved;

    HD void move_to(double y) {
        const double decay = exp(-2 * y), by = 1 / (1 + decay);
        const double tanh_y = (1 - decay) * by;
        const double by_g = 1 / (ahead - u * (2 * decay * by));  // 1 - |T| = 2 decay by
        const double root = 2 * by * by_g;                       // (1 - T^2)/g^2 = decay root^2
        moved = tanh_y * by_g;
        steep = kappa_square * (decay * root * root) - 2 * half_m * (u + tanh_y) * by_g;
        depth = fma(kappa_square, moved, half_m * (2 * (ln_normal(root) - y)));
    }
};

// dw/dkappa at fixed quantile; `mean` is A(kappa), `below_mean` 1 - A(kappa).
__device__ inline double dw_dkappa(int64_t dim, double kappa, double mean, double below_mean, const Height& height) {
    constexpr double END = 25;  // by how much E falls to the end of the integral
    const double m = double(dim - 1), w = height.w(), square = height.below * height.above;
    // w - A, of which the size and the sign are used.
    const double distance = w < 0 ? w - mean : below_mean - height.below, upper = distance < 0 ? -1 : 1;
    SideOfHeight side;
    side.half_m = 0.5 * m, side.u = upper * w, side.kappa_square = upper * kappa * square;
    side.ahead = distance < 0 ? height.below : height.above;
    // The integral ends where E has fallen by END: first by a parabola with the slope and the bend of E at w, then by
    // Newton's steps.
    const double steep = side.kappa_square - m * side.u;
    const double bend = greater(square * (2 * kappa * w + m), 0.05 * m * square);
    double width = 2 * END / (sqrt(steep * steep + 2 * END * bend) - steep);
    for (int i = 0; i < 6; ++i) {
        side.move_to(width);
        const double step = (side.depth + END) / greater(-side.steep, 1e-3 * m);
        width = greater(lesser(width + step, 2 * width), 0.5 * width);
    }
    const int nodes = dim == 2 ? 64 : dim <= 8 ? 48 : 32;
    const double* const rule = dim == 2 ? GAUSS_64 : dim <= 8 ? GAUSS_48 : GAUSS_32;
    double total = 0;
    for (int i = 0; i < nodes; ++i) {
        side.move_to(width * rule[2 * i]);
        total = fma((square * side.moved + fabs(distance)) * exp(side.depth), rule[2 * i + 1], total);
    }
    // At an infinite kappa the derivative is 0.
    return kappa < INFINITY ? square * width * total : 0 * height.below;
}

// w, sqrt(1 - w^2) and dw/dkappa of one draw. `order` is dim/2.
struct HeightPartials {
    double w, s, by_kappa;

    __device__ inline HeightPartials(const Order& order, int64_t dim, double kappa, const Address& address) {
        const Height height = draw_height(dim, kappa, address);
        const double mean = iv_ratio(order, kappa), below_mean = iv_ratio_complement(order, kappa) / (1 + mean);
        w = height.w(), s = height.tangent(), by_kappa = dw_dkappa(dim, kappa, mean, below_mean, height);
    }
};
