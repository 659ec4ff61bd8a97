// Modified Bessel functions of the first kind in log space, their ratio, and derivatives in x, for real orders v >= 0,
// in double precision, by one thread, as in rust/special/bessel.rs, which says more about why.
//
// One formula for all orders and all x, without regimes. With w = v + 3.25, r = sqrt(x^2 + w^2), t = w/r:
//
//   log(I_v(x) e^-x) = w^2/(r + x) + v log(x/(w + r)) - log(2 pi r)/2 + P(v, t),
//
// the leading terms of Debye's expansion (DLMF 10.41.3) at a shifted order, so that the remainder P is smooth down to v = 0: a polynomial
// in u = 2 t - 1 whose coefficients, polynomials in 1/w, are REMAINDER. Derivatives differentiate this form.
//
// Functions take the order as an Order, made once for many x (by a block, or by the caller on the host), or as a
// LoneOrder, which a thread makes for one x at ten times the cost.
//
// Domain: 0 <= v <= 1e60, 0 <= x <= inf; NaN outside. Largest errors measured, with either kind of order, on
// tests/golden/bessel.csv (v up to 1e5; relative to what: tests/oracle/golden.py), compiled for the host, whose quotients, roots and logarithms are within 1 ulp, not 2:
//
// | | log_ive | log_hyp0f1e | vmf_log_norm | iv_ratio | log_ive_dx | log_ive_dxx | iv_ratio_dx | iv_ratio_dxx |
// |---|---|---|---|---|---|---|---|---| | v >= 3 | 7e-16 | 5e-16 | 2e-15 | 4e-16 | 2e-15 | 2e-15 | 1e-15 | 6e-15 | | v < 3 | 7e-16 | 5e-16
// | 5e-16 | 4e-16 | 2e-15 | 4e-15 | 2e-15 | 5e-14 |
#pragma once

#include "elementary.cuh"

// log(2 pi) / 2 in two parts.
constexpr double HALF_LOG_2_PI = 0.9189385332046728, HALF_LOG_2_PI_REST = -3.878294158067242e-17;
// The shift of the order, w - v.
constexpr double SHIFT = 3.25;
// Orders below which the head of log_ive is taken relative to its limit at x = 0.
constexpr double NEAR = 3.0;
constexpr double LARGEST = 1.7976931348623157e308;

// -- the order --------------------------------------------------------------------------------------------------------

// A sum, and the error that rounding has made in it.
struct ExactSum {
    double sum, lost;

    HD void add(double term) {
        const double next = sum + term, part = next - sum;
        lost += (sum - (next - part)) + (term - part);
        sum = next;
    }
    // Adds -log(w)/2 - log(2 pi)/2.
    HD void add_constants(double w) {
        add(-0.5 * ln_normal(w));
        add(-HALF_LOG_2_PI);
        add(-HALF_LOG_2_PI_REST);
    }
    HD double value() const { return sum + lost; }
};

// The remainder of the formula at one u: (P - P at x = 0) / (u - 1) and the first three derivatives of P in t.
struct Remainder {
    double rest, p1, p2, p3;
};

// How many pairs of coefficients P has: those of u^0 and u^1, of u^2 and u^3, ...
constexpr int PAIRS = (REMAINDER_POWERS + 1) / 2;

static_assert(sizeof(Order::series) == 4 * PAIRS * 2 * sizeof(double), "series of all coefficients");

// Series number i of an order at u.
HD double series_at(const Order& order, int i, double u) {
    const double square = u * u;
    double even = 0, odd = 0;
    for (int k = int(order.pairs) - 1; k >= 0; --k) {
        even = fma(even, square, order.series[i][k][0]);
        odd = fma(odd, square, order.series[i][k][1]);
    }
    return fma(odd, u, even);
}

HD Remainder remainder_of(const Order& order, double u) {
    return {series_at(order, 0, u), series_at(order, 1, u), series_at(order, 2, u), series_at(order, 3, u)};
}

// Where the coefficients of an order are in REMAINDER.
struct Place {
    int piece;
    double place;  // in [-1, 1]

    HD explicit Place(double w) : piece(w <= 1.5 * SHIFT ? 2 : w <= 3 * SHIFT ? 1 : 0) {
        place = 6 * SHIFT / w - (1 + 2 * piece);
    }
    // The coefficient of u^k.
    __device__ inline double coefficient(int k) const {
        const short* const starts = REMAINDER_STARTS + piece * (REMAINDER_POWERS + 1);
        double sum = 0;
        for (int i = starts[k + 1] - 1; i >= starts[k]; --i) sum = fma(sum, place, REMAINDER[i]);
        return sum;
    }
};

HD double order_in_domain(double v) { return v >= 0 && v <= 1e60 ? v : NAN; }

// Fills `order`, in shared memory, for the order v. Called by all threads of a block.
__device__ inline void make_order(double v, Order& order) {
    v = order_in_domain(v);
    const double w = v + SHIFT;
    const Place place(w);
    for (int k = threadIdx.x; k < 2 * PAIRS; k += blockDim.x)
        order.series[0][k / 2][k % 2] = k < REMAINDER_POWERS ? place.coefficient(k) : 0;
    __syncthreads();
    // d/dt = 2 d/du.
    for (int k = threadIdx.x; k < 2 * PAIRS; k += blockDim.x) {
        double factor = 1;
        for (int i = 1; i < 4; ++i) {
            factor *= 2 * (k + i);
            order.series[i][k / 2][k % 2] = k + i < 2 * PAIRS ? factor * order.series[0][(k + i) / 2][(k + i) % 2] : 0;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double(&series)[PAIRS][2] = order.series[0];
        // The coefficients that are dropped are below 2^-55 together.
        int pairs = PAIRS;
        for (double dropped = 0; pairs > 0; --pairs) {
            dropped += fabs(series[pairs - 1][0]) + fabs(series[pairs - 1][1]);
            if (!(dropped < 2.8e-17)) break;
        }
        // At x = 0, u = 1. The rest is divided by u - 1, so that it keeps all digits down to there.
        ExactSum constant = {0, 0};
        for (int k = 0; k < 2 * PAIRS; ++k) constant.add(series[k / 2][k % 2]);
        double above = 0;
        for (int k = 2 * PAIRS - 1; k >= 0; --k) {
            const double c = series[k / 2][k % 2];
            series[k / 2][k % 2] = above;
            above += c;
        }
        constant.add_constants(w);
        ExactSum limit = constant;
        limit.add(w);
        order.v = v, order.w = w, order.pairs = pairs;
        order.inverse = 1 / w, order.constant = constant.value(), order.limit = limit.value();
    }
    __syncthreads();
}

// The order of one x, where each x has its own: coefficients are computed when they are used.
struct LoneOrder {
    double v, w, inverse, constant, limit;
    Place place;

    __device__ inline explicit LoneOrder(double any) : v(order_in_domain(any)), w(v + SHIFT), inverse(1 / w), place(w) {
        ExactSum sum = {0, 0};
        for (int k = REMAINDER_POWERS - 1; k >= 0; --k) sum.add(place.coefficient(k));
        sum.add_constants(w);
        constant = sum.value();
        sum.add(w);
        limit = sum.value();
    }
};

__device__ inline Remainder remainder_of(const LoneOrder& order, double u) {
    // p2 and p3 are halves and sixths of derivatives in u.
    double above = 0, rest = 0, p = 0, p1 = 0, p2 = 0, p3 = 0;
    for (int k = REMAINDER_POWERS - 1; k >= 0; --k) {
        const double c = order.place.coefficient(k);
        rest = fma(rest, u, above);
        above += c;
        p3 = fma(p3, u, p2), p2 = fma(p2, u, p1), p1 = fma(p1, u, p), p = fma(p, u, c);
    }
    return {rest, 2 * p1, 8 * p2, 48 * p3};
}

// The limit of log C(kappa) at kappa = 0 for v = dim/2 - 1: minus the log surface of the unit sphere.
template <class O>
HD double log_norm_at_zero(const O& order) {
    // log(I_v(x) / x^v) at x = 0.
    return -(order.v + 1) * (2 * HALF_LOG_2_PI) - (order.limit - order.v * ln_normal(2 * order.w));
}

// -- one x ------------------------------------------------------------------------------------------------------------

// 2^510. From here on r = d = x to the last bit, and all other terms are at their limits; products of two such numbers are finite.
constexpr double FAR = 3.3519519824856493e153;
// Outside these bounds each derivative is its limit times a power of x, to the last bit; inside, nothing underflows or
// overflows where that would matter.
constexpr double BOUND_BELOW = 1e-100, BOUND_ABOVE = 1e300;

// The smaller and the larger of two numbers; b where either is NaN.
HD double lesser(double a, double b) { return a < b ? a : b; }
HD double greater(double a, double b) { return a > b ? a : b; }

HD double nonnegative(double x) { return x < 0 ? double(NAN) : x; }
HD double bounded(double x) { return lesser(BOUND_ABOVE, greater(BOUND_BELOW, x)); }

// The terms of all functions at one x, of which the compiler computes those that are used. theta = x d/dx.
struct Point {
    double x;                // at most FAR
    double sum, by_sum;      // w + r and its reciprocal
    double over_w;           // r - w
    double over_x;           // r - x
    double over_both;        // r - w - x
    double tail;             // P - log(r/w)/2, less its limit at x = 0
    double d, d1;            // d = x I_(v-1) / I_v, theta d
    double mu, bend;         // x L' and x^2 L'', where L = log(I_v e^-x)
    double n1;               // theta n, where n = d - theta d = v - bend = d^2 (I_v / I_(v-1))'

    // At x in the domain (or NaN); infinity counts as the largest number.
    template <class O>
    HD Point(const O& order, double any) {
        const double v = order.v, w = order.w;
        any = lesser(LARGEST, any);
        x = lesser(FAR, any);
        const double r = quick_sqrt(fma(x, x, w * w)), by_r = quick_quotient(1, r);
        // t^2 + z = 1; theta t = -t z, theta z = 2 z t^2.
        const double t = w * by_r, c = x * by_r, tt = t * t, z = c * c;

        sum = w + r, by_sum = quick_quotient(1, sum);
        const double by_other = quick_quotient(1, r + x);
        over_w = x * (x * by_sum), over_x = w * w * by_other;
        over_both = -w * ((over_w + x) * by_other);

        const Remainder p = remainder_of(order, fma(2.0, t, -1.0));
        const double h = fma(t, p.p1, 0.5);
        const double h1 = t * fma(t, p.p2, p.p1);                         // theta h = -z h1
        const double h2 = t * fma(tt, p.p3, fma(t, 3 * p.p2, p.p1));      // theta h1 = -z h2
        const double q = fma(1 - 2 * tt, h, z * h1), four = 4 * tt;
        const double q1 = z * (four * h - (1 - four) * h1 - z * h2);      // theta q
        const double st = SHIFT * t;

        tail = -2 * (over_w * by_r) * p.rest - 0.5 * quick_log((x < FAR ? r : any) * order.inverse);
        const double near_d = v + (fma(x, c, v * t) - z * h);
        d = x < FAR ? near_d : any + 0 * near_d;  // keeps a NaN
        d1 = z * (r + st - 2 * tt * h + z * h1);
        mu = (x < w ? fma(x, c, v * t) - x : over_x - st) - z * h;
        bend = z * (st + q) - v * t;
        n1 = -z * (v * t + st * (2 * tt - z) + 2 * tt * q + q1);
    }
};

// -- functions --------------------------------------------------------------------------------------------------------

// log(I_v(x) e^-x): -inf at x = 0 (0 for v = 0) and at infinity.
template <class O>
HD double log_ive(const O& order, double x) {
    x = nonnegative(x);
    const Point p(order, x);
    // log(x / (w + r)): x that could make the quotient y subnormal is scaled; y near 1 is corrected by what rounding
    // lost, as 1 - y = (w + r - x) / (w + r) is known to full relative accuracy.
    constexpr double TINY = 3.0549363634996047e-151, SCALE = 4.149515568880993e180;  // 2^-500, 2^600
    const double scaled = p.x < TINY ? p.x * SCALE : p.x;
    double y = scaled * p.by_sum;
    y = fma(fma(-y, p.sum, scaled), p.by_sum, y);  // rounded as a division
    const double lost = y < 0.5 ? 0 : 1 - y - (order.w + p.over_x) * p.by_sum;
    const double log_y = quick_log(y) + (p.x < TINY ? -415.88830833596717 : lost);  // -600 log 2

    // At small orders w is far larger than the value where x is small: there r - x less its limit w is what varies.
    const bool relative = order.v < NEAR && p.x < order.w;
    const double head = relative ? p.over_both : p.over_x, constant = relative ? order.limit : order.constant;
    const double value = fma(order.v, log_y, head) + (p.tail + constant);
    const double at_zero = order.v > 0 ? -INFINITY : 0 * order.v;
    return x < INFINITY ? (0 < x ? value : at_zero) : -x;  // -inf at infinity, NaN for NaN
}

// log(0F1(; v + 1; x^2/4) e^-x), that is log(I_v(x) e^-x / x^v) less its limit at x = 0; falls from 0 to -inf.
template <class O>
HD double log_hyp0f1e(const O& order, double x) {
    x = nonnegative(x);
    const Point p(order, x);
    // log1p((r - w) / 2w), corrected by what the rounding of the sum lost where that matters.
    const double over_w = p.x < FAR ? p.over_w : lesser(LARGEST, x);
    const double u = over_w * (0.5 * order.inverse), sum = 1 + u;
    const double log_sum = quick_log(sum) + (u < 1 ? u - (sum - 1) : 0);
    const double value = p.over_both - order.v * log_sum + p.tail;
    return x < INFINITY ? (0 < x ? value : 0 * order.v) : -x;
}

// log C_dim(kappa) of von Mises-Fisher, order dim/2 - 1, with full constants. Its derivative is -iv_ratio of order dim/2.
template <class O>
HD double vmf_log_norm(const O& order, double kappa) {
    const double value = log_norm_at_zero(order) - log_hyp0f1e(order, kappa) - kappa;
    return kappa < INFINITY ? value : -kappa;  // at infinity the terms have opposite signs
}

template <class O>
HD double ratio_domain(const O& order, double x) {
    return order.v < 1 ? double(NAN) : nonnegative(x);
}

// I_v(x) / I_(v-1)(x) for v >= 1, in [0, 1].
template <class O>
HD double iv_ratio(const O& order, double x) {
    x = ratio_domain(order, x);
    // The reciprocal of the largest numbers is below the normal ones.
    return lesser(1, lesser(LARGEST, x) / Point(order, x).d);
}

// The first derivative of iv_ratio in x.
template <class O>
HD double iv_ratio_dx(const O& order, double x) {
    const Point p(order, ratio_domain(order, x));
    const double by_d = quick_quotient(1, p.d);
    return (order.v - p.bend) * by_d * by_d;
}

// 1 - A^2 for A = iv_ratio, as A' + (2 v - 1) A / x, whose terms are positive.
template <class O>
HD double iv_ratio_complement(const O& order, double x) {
    // Where x is tiny A / x is constant, and A is accurate down to subnormal numbers.
    if (x >= 0) x = greater(x, 1e-300);
    return iv_ratio_dx(order, x) + (2 * order.v - 1) * iv_ratio(order, x) / x;
}

// The second derivative of iv_ratio in x.
template <class O>
HD double iv_ratio_dxx(const O& order, double x) {
    x = ratio_domain(order, x);
    const double within = bounded(x);
    const Point p(order, within);
    const double n = order.v - p.bend;
    // (theta n - 2 n theta d / d) / (x d^2): both terms are negative.
    const double at_bound = (p.n1 - 2 * n * (p.d1 / p.d)) / p.d / p.d / within;
    return at_bound * lesser(1, x * (1 / BOUND_BELOW));  // proportional to x below the lower bound
}

// The divisor that turns theta into d/dx: near 0 derivatives of log_ive go as powers of v/x, but are constant for v = 0.
template <class O>
HD double theta_divisor(const O& order, double x, double within) {
    return order.v > 0 ? x : greater(within, x);
}

// The first derivative of log_ive in x: +inf at x = 0 (-1 for v = 0), 0 at infinity.
template <class O>
HD double log_ive_dx(const O& order, double x) {
    x = nonnegative(x);
    const double within = bounded(x);
    return Point(order, within).mu / theta_divisor(order, x, within);
}

// The second derivative of log_ive in x: -inf at x = 0 (1/2 for v = 0), 0 at infinity.
template <class O>
HD double log_ive_dxx(const O& order, double x) {
    x = nonnegative(x);
    const double within = bounded(x), divisor = theta_divisor(order, x, within);
    return Point(order, within).bend / divisor / divisor;
}

// -- the mean direction of an isotropic normal ------------------------------------------------------------------------

// int_0^(pi/2) exp(-x sin^2 t) sin^(2 n) t cos^(dim - 2 n) t dt, n 0 or 1, for x in [0, 1e100]: the trapezoidal rule in
// y, sin t = tanh y; rust/special/direction.rs says why.
HD double direction_integral(double dim, double x, int n) {
    const double step = 0.62 / sqrt(2 * x + dim + 8), square = step * step;
    double sinh = 1, cosh = 1;
    for (int k = 12; k >= 2; k -= 2) {
        sinh = fma(sinh * square, 1.0 / (k * (k + 1)), 1.0);
        cosh = fma(cosh * square, 1.0 / (k * (k - 1)), 1.0);
    }
    const double tanh_step = step * sinh / cosh, sech_step = 1 / (cosh * cosh), power = 0.5 * (dim + 1) - n;
    double tanh = 0, square_sech = 1, total = n ? 0 : 0.5;
    for (int k = 0; k < 400; ++k) {
        const double by = 1 / fma(tanh, tanh_step, 1.0);
        tanh = (tanh + tanh_step) * by;
        square_sech *= sech_step * (by * by);
        const double square_tanh = tanh * tanh, rounded = 1 - square_tanh;
        // The error of that rounding, which a large power would magnify.
        const double lost = (1 - rounded - square_tanh) * (1 + square_tanh);
        const double log = square_tanh < 0.5 ? ln_normal(rounded) + lost : ln_normal(square_sech);
        double term = exp(power * log - x * square_tanh);
        if (n) term *= square_tanh;
        total += term;
        if (term < 1e-17 * total) break;
    }
    return total * step;
}

constexpr double ROOT_PI = 1.772453850905516;

// |E[z / |z|]|, z ~ N(mu, var I) in D dimensions, x = |mu|^2 / (2 var).
template <class O>
HD double normal_length(const O& dim, double x) {
    if (!(dim.v >= 1 && x >= 0)) return NAN;
    x = lesser(x, 1e100) + 0.0;  // no negative 0
    return lesser(1, 2 / ROOT_PI * sqrt(x) * direction_integral(dim.v, x, 0));
}

// The derivative of normal_length in x.
template <class O>
HD double normal_length_dx(const O& dim, double x) {
    if (!(dim.v >= 1 && x >= 0)) return NAN;
    x = lesser(x, 1e100) + 0.0;  // no negative 0
    const double inner = dim.v > 1 ? (dim.v - 1) * direction_integral(greater(dim.v, 2), x, 1) : exp(-x);
    return inner / (ROOT_PI * sqrt(x));
}

// -- the normal distribution ------------------------------------------------------------------------------------------

// log Phi(z) and its derivatives, which have no order: rust/special/ndtr.rs.
struct NormalTail {
    double a, p, excess, density, near;  // |z|; p, and by how much the hazard rate is above a; phi(z); |z| up to 60

    HD explicit NormalTail(double z) : a(fabs(z)) {
        constexpr double series[] = {HAZARD_F64};
        p = horner(series, 1 - 7 / (a + 3.5));
        excess = p / (a + 2);
        near = lesser(a, 60);
        // Corrected by the error of the rounding of z^2.
        const double square = near * near, lost = fma(near, near, -square);
        density = 0.3989422804014327 * (exp(-0.5 * square) * (1 - 0.5 * lost));
    }
    HD double hazard() const { return a + excess; }
    HD double slope() const { return density / (1 - density / hazard()); }
};

template <class O>
HD double log_ndtr(const O&, double z) {
    const NormalTail tail(z);
    if (z < 0) return -0.5 * tail.a * tail.a - log(tail.hazard() * 2.5066282746310002);
    return log1p(-tail.density / tail.hazard());
}

template <class O>
HD double log_ndtr_dx(const O&, double z) {
    const NormalTail tail(z);
    return z < 0 ? tail.hazard() : tail.slope();
}

template <class O>
HD double log_ndtr_dxx(const O&, double z) {
    const NormalTail tail(z);
    // a h = p - 2 h: a itself may be infinite.
    return z < 0 ? -fma(tail.excess, tail.excess - 2, tail.p) : -tail.slope() * (tail.near + tail.slope());
}
