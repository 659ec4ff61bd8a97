// The log of the probability that draws of two isotropic normals match, log E sigmoid(b - a |z1 - z2|), in double, as
// in rust/kernels/dot_scores/match_probability.rs, which has the source and the derivation.
//
// With s = v1 + v2, L = |mu1 - mu2| / sqrt s, A = a sqrt s and t = |z1 - z2| / sqrt s, the density of t times the
// sigmoid is integrated over tau = t - L, on both sides of where the sigmoid turns, or else of its peak: Gauss-Legendre
// over u, tau = cut + width u^4, from where the logarithm has fallen by DEPTH to the left to where it has to the right.
#pragma once

#include "vmf.cuh"

// sigmoid(-y) and log sigmoid(y).
struct Sigmoid {
    double opposite, log;

    __device__ inline explicit Sigmoid(double y) {
        const double decay = exp(-fabs(y)), by = 1 / (1 + decay);
        opposite = y < 0 ? by : decay * by;
        log = lesser(y, 0) - ::log(1 + decay);
    }
};

// The formula, of which a and b are the shared numbers.
struct MatchProbability : Edges {
    static constexpr bool DIFFERENCE = true, NORMS = false, SIGNED = false, ALIKE = true;
    static constexpr int NODES = 64;
    // By how much the logarithm falls from the peak to the ends of the interval.
    static constexpr double DEPTH = 28;
    // Steps of the iterations that find the peak and the ends.
    static constexpr int PEAK_STEPS = 32, END_STEPS = 8;
    // Where L is greater than this and than A, the derivative by s takes another form.
    static constexpr double FAR_APART = 40;

    double dim, a, b;
    Orders orders;

    __device__ MatchProbability(double dim, double a, double b, const Orders& orders)
        : dim(dim), a(a), b(b), orders(orders) {}
    __device__ MatchProbability transposed() const { return *this; }

    // log |S^(D-1)| (2 pi)^(-D/2)
    __device__ double constant() const {
        return (dim == 1 ? 0.693147180559945309417 : -orders.log_norm_at_zero()) - 0.5 * dim * LOG_2PI;
    }
    // log(0F1(; D/2; x^2/4) e^-x)
    __device__ double h(double x) const { return dim == 1 ? log(0.5 * (1 + exp(-2 * x))) : orders.h(x); }
    // The mean cosine of directions given the length, I_(D/2) / I_(D/2-1), and its derivative.
    __device__ void ratio(double x, double& value, double& derivative) const {
        if (dim > 1) {
            value = orders.a(x), derivative = orders.a_derivative(x);
            return;
        }
        const double decay = exp(-2 * x), by = 1 / (1 + decay);
        value = (1 - decay) * by, derivative = 4 * decay * by * by;
    }

    __device__ double value(const DotPair& pair) const;
    __device__ DotPartials partials(const DotPair& pair) const;
};

// The integral of a pair over tau = t - L.
struct MatchIntegral {
    MatchProbability formula;
    double length, steep, middle;  // L, A and b - a d
    double cut, widths[2];         // where the interval is cut, how far it reaches to the left (< 0) and to the right
    double top;                    // the logarithm of the integrand at its peak

    // The integrand at a node.
    struct Node {
        double tau, t, q, weight;  // q: sigmoid(-y); weight: density times sigmoid times du, relative to the peak
    };
    // L (1 - R(x)), R(x) / x and the derivative of R, at x = L t.
    struct RatioTerms {
        double shortfall, by_x, derivative;
    };

    __device__ MatchIntegral(const MatchProbability& formula, double distance, double root)
        : formula(formula), length(distance / root), steep(formula.a * root),
          middle(formula.b - formula.a * distance) {
        // At the peak (D-1)/t balances tau and A q, and q is above 1/2 beyond the turn.
        const double turn = middle / steep, small = 2 * (formula.dim - 1) / steep - length;
        double low = -length, high = sqrt(formula.dim) + greater(-steep, 0);
        if (0 < steep) high = lesser(high, greater(greater(small, turn), 0));
        double peak = high;
#pragma unroll 1
        for (int step = 0; step < MatchProbability::PEAK_STEPS; ++step) {
            double slope, bend;
            derivatives(peak, slope, bend);
            if (0 < slope) {
                low = peak;
            } else {
                high = peak;
            }
            // Newton's steps alone can alternate between two slopes, so every other step of the first half bisects.
            const double next = peak - slope / bend;
            const bool newton = step % 2 == 0 || step > MatchProbability::PEAK_STEPS / 2;
            peak = newton && low < next && next < high ? next : 0.5 * (low + high);
        }
        double q;
        logarithm(peak, q, top);

        // The logarithm bends by more than -1 (D > 1), and at the left falls below (D - 1) (log r + 1 - r) at r = t / t peak.
        const double depth = MatchProbability::DEPTH, reach = sqrt(2 * depth) + 0.5;
        const double fraction = exp(greater(-depth / (formula.dim - 1) - 1, -60));
        const double left = greater(fraction * (length + peak) - length, peak - reach);
        double ends[2] = {formula.dim == 1 ? greater(peak - reach, -length) : left, peak + reach};
#pragma unroll 1
        for (int side = 0; side < 2; ++side) {
            const double start = ends[side];
            double end = start;
            for (int step = 0; step < MatchProbability::END_STEPS; ++step) {
                double log, slope, bend;
                logarithm(end, q, log);
                derivatives(end, slope, bend);
                // Steps come from outside. For D = 1 the logarithm is not concave near t = 0; there bounds hold them.
                const double above = log - top + depth, next = end - above / slope;
                if (above < 0) end = lesser(greater(next, lesser(start, peak)), greater(start, peak));
            }
            ends[side] = end;
        }
        // A turn just outside of the interval still bends the integrand inside.
        const double near = 8 / fabs(steep);
        const bool inside = ends[0] - near < turn && turn < ends[1] + near;
        cut = inside ? lesser(greater(turn, ends[0]), ends[1]) : peak;
        for (int side = 0; side < 2; ++side) widths[side] = ends[side] - cut;
    }

    __device__ double t_at(double tau) const { return greater(length + tau, 2.2250738585072014e-308); }

    // sigmoid(-y), and the logarithm of the integrand without its constant. Not inlined, as it is called in many
    // places.
    __device__ __noinline__ void logarithm(double tau, double& q, double& log) const {
        const double t = t_at(tau);
        const Sigmoid sigmoid(middle - steep * tau);
        q = sigmoid.opposite;
        log = (formula.dim - 1) * ::log(t) + formula.h(length * t) + sigmoid.log - 0.5 * tau * tau;
    }
    __device__ __noinline__ RatioTerms ratio_terms(double t) const {
        const double x = greater(length * t, 1e-100);  // R(x) / x is constant there
        double ratio, derivative;
        formula.ratio(x, ratio, derivative);
        // 1 - R^2 = R' + (D - 1) R / x
        const double by_x = ratio / x, square = fma(formula.dim - 1, by_x, derivative);
        return {length * square / (1 + ratio), by_x, derivative};
    }
    // The first two derivatives of that logarithm.
    __device__ void derivatives(double tau, double& first, double& second) const {
        const double t = t_at(tau), powers = (formula.dim - 1) / t;
        const RatioTerms at = ratio_terms(t);
        const double q = Sigmoid(middle - steep * tau).opposite;
        first = powers - at.shortfall - tau - steep * q;
        second = length * length * at.derivative - powers / t - 1 - steep * steep * q * (1 - q);
        second = second < -1 ? second : -1;
    }
    // Node i of a side.
    __device__ Node node(int side, int i) const {
        const double u = GAUSS_64[2 * i], tau = fma(widths[side], u * u * u * u, cut);
        double q, log;
        logarithm(tau, q, log);
        const double by_u = fabs(widths[side]) * (4 * u * u * u * GAUSS_64[2 * i + 1]);
        return {tau, t_at(tau), q, by_u * exp(log - top)};
    }
};

// The distance, sqrt s, and whether s is so small that the score is that of the distance without noise.
struct MatchScales {
    double distance, root;
    bool exact;

    __device__ explicit MatchScales(const DotPair& pair) : distance(sqrt(pair.x)) {
        const double s = pair.v + pair.w;
        exact = s < greater(1e-200 * pair.x, 2.2250738585072014e-308);
        root = exact ? 1 : sqrt(s);
    }
};

__device__ inline double MatchProbability::value(const DotPair& pair) const {
    const MatchScales at(pair);
    if (at.exact) return valid(pair.v, pair.w, Sigmoid(b - a * at.distance).log);
    const MatchIntegral integral(*this, at.distance, at.root);
    double total = 0;
#pragma unroll 1
    for (int i = 0; i < NODES; ++i) total += integral.node(0, i).weight + integral.node(1, i).weight;
    const double value = integral.top + log(total) + constant();
    return valid(pair.v, pair.w, 0 < value ? 0 : value);
}

// Means over P, the density times the sigmoid as a distribution, with q = sigmoid(-y) and R(x) the mean cosine:
//   by b: q; by a: -sqrt s q t; by d^2: -a/2 q R(L t) / d; by s: -a/(2 sqrt s) q (t - L R(L t)), or, where L is large,
//   1/2 (a^2 q (2 q - 1) - a q (D - 1) / (sqrt s t)).
__device__ inline DotPartials MatchProbability::partials(const DotPair& pair) const {
    const MatchScales at(pair);
    const auto bend = [&](double q, double r) { return a * q * (a * (q + q - 1) - (dim - 1) / r); };
    if (at.exact) {
        // A distance of 0 has no gradient.
        const double q = Sigmoid(b - a * at.distance).opposite, apart = 0 < at.distance ? q / at.distance : 0;
        const double by_s = 0.5 * bend(q, at.distance);
        return valid(pair.v, pair.w, DotPartials{-0.5 * a * apart, 0, by_s, {-q * at.distance, q}});
    }
    const MatchIntegral integral(*this, at.distance, at.root);
    double total = 0, by_b = 0, by_a = 0, by_d = 0, near = 0, far = 0;
#pragma unroll 1
    for (int i = 0; i < 2 * NODES; ++i) {
        const MatchIntegral::Node node = integral.node(i % 2, i / 2);
        const MatchIntegral::RatioTerms ratio = integral.ratio_terms(node.t);
        const double q = node.q;
        total += node.weight;
        by_b = fma(q, node.weight, by_b);
        by_a = fma(q * node.t, node.weight, by_a);
        by_d = fma(q * node.t * ratio.by_x, node.weight, by_d);
        near = fma(q * (node.tau + ratio.shortfall), node.weight, near);
        far = fma(bend(q, at.root * node.t), node.weight, far);
    }
    near = -a * (near / total) / at.root;
    const double by_s = greater(integral.steep, FAR_APART) < integral.length ? far / total : near;
    return valid(pair.v, pair.w,
                 DotPartials{-0.5 * a * (by_d / at.root / total), 0, 0.5 * by_s,
                           {-at.root * by_a / total, by_b / total}});
}
