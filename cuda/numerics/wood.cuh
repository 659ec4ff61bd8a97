// The height w = x.mu of a von Mises-Fisher draw, and its derivative in kappa, in float64, by one thread, as in
// rust/kernels/samplers/wood.rs, which says why.
//
// Wood's rejection sampler (Comm. Statist. Simul. 23, 1994): with b = m/(2k + sqrt(4k^2 + m^2)), m = D - 1, x0 = (1 - b)/(1 + b), and X
// drawn from the uniform distribution on the sphere, w = (x0 - X)/e, e = 1 - x0 X, and the log of the acceptance is m (1 - 1/e - log e). X
// = R cos V with 1 - R^2 = U^(2/(D-2)), V uniform (Ulrich, Appl. Statist. 33, 1984).
//
// dw/dk = int_w^1 (t - A) f(t) dt / f(w), or the same over [-1, w] with A - t where w < A. With t = tanh(y), |T| = tanh
// of the distance in y, u = w on the upper side and -w on the lower one:
//   |t - w| = (1 - w^2)|T|/g, g = 1 + u|T|, f(t) dt/f(w) = (1 - w^2) exp(E) dy,
//   E = +-k |t - w| + m/2 log((1 - T^2)/g^2),
// Gauss-Legendre from 0 to where E falls to -25, or for float32, but in few dimensions, to -20 with half the nodes. With
// d = exp(-2y), |T| = (1 - d)/(1 + d), all of it is made of one quotient, 1/q of q = (1 + d) g = (1 + u) + d (1 - u). Largest
// error relative to the root mean square of dw/dk: 3e-9.
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
    double ahead, behind;  // 1 + u, 1 - u
    double kappa_square;   // +-kappa (1 - w^2)
    // At a distance in y: E, its derivative by the distance, and |t - w|/(1 - w^2).
    double depth, steep, moved;

    HD void move_to(double y) {
        const double decay = exp(-2 * y), far = decay * behind;
        const double by_q = 1 / (ahead + far), root = 2 * by_q;  // (1 - T^2)/g^2 = decay root^2
        moved = (1 - decay) * by_q;
        steep = kappa_square * (decay * root * root) - 2 * half_m * (ahead - far) * by_q;
        depth = fma(kappa_square, moved, half_m * (2 * (ln_normal(root) - y)));
    }
};

// How the integral is found: to where E falls by `end`, by so many steps, with a rule of so many nodes.
struct Quadrature {
    double end;
    int steps, nodes;
    const double* rule;

    __device__ Quadrature(int64_t dim, bool single)
        : end(single && dim > 8 ? 20 : 25), steps(single && dim > 8 ? 3 : 6),
          nodes(dim == 2 ? 64 : dim <= 8 ? 48 : single ? 16 : 32),
          rule(dim == 2 ? GAUSS_64 : dim <= 8 ? GAUSS_48 : single ? GAUSS_16 : GAUSS_32) {}
};

// dw/dkappa at fixed quantile; `mean` is A(kappa), `below_mean` 1 - A(kappa), and `single` says that float32 will hold it.
__device__ inline double dw_dkappa(int64_t dim, double kappa, double mean, double below_mean, const Height& height,
                                   bool single) {
    const Quadrature integral(dim, single);
    const double m = double(dim - 1), w = height.w(), square = height.below * height.above, end = integral.end;
    // w - A, of which the size and the sign are used.
    const double distance = w < 0 ? w - mean : below_mean - height.below;
    const bool lower = distance < 0;
    SideOfHeight side;
    side.half_m = 0.5 * m, side.kappa_square = (lower ? -kappa : kappa) * square;
    side.ahead = lower ? height.below : height.above, side.behind = lower ? height.above : height.below;
    // The integral ends where E has fallen by `end`: first by a parabola with the slope and the bend of E at w, then by Newton's steps.
    const double steep = side.kappa_square - m * (lower ? -w : w);
    const double bend = greater(square * (2 * kappa * w + m), 0.05 * m * square);
    double width = 2 * end / (sqrt(steep * steep + 2 * end * bend) - steep);
    for (int i = 0; i < integral.steps; ++i) {
        side.move_to(width);
        const double step = (side.depth + end) / greater(-side.steep, 1e-3 * m);
        width = greater(lesser(width + step, 2 * width), 0.5 * width);
    }
    double total = 0;
    for (int i = 0; i < integral.nodes; ++i) {
        side.move_to(width * integral.rule[2 * i]);
        total = fma((square * side.moved + fabs(distance)) * exp(side.depth), integral.rule[2 * i + 1], total);
    }
    // At an infinite kappa the derivative is 0.
    return kappa < INFINITY ? square * width * total : 0 * height.below;
}

// w, sqrt(1 - w^2) and dw/dkappa of one draw. `order` is dim/2, `single` as for dw_dkappa.
struct HeightPartials {
    double w, s, by_kappa;

    __device__ inline HeightPartials(const Order& order, int64_t dim, double kappa, const Address& address, bool single) {
        const Height height = draw_height(dim, kappa, address);
        const double mean = iv_ratio(order, kappa), below_mean = iv_ratio_complement(order, kappa) / (1 + mean);
        w = height.w(), s = height.tangent(), by_kappa = dw_dkappa(dim, kappa, mean, below_mean, height, single);
    }
};
