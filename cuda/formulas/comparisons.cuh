// How the draws of two items are compared, as in rust/kernels/sampled_scores/{distances,densities}.rs. All lanes of a
// warp compare a pair together: lane l has the dimensions l, l + 32, ...
//
// A comparison is a class C<T>, made of the arguments, with
//   summarise(dim, draws)    computes, before draws are compared, what the comparison needs of one item's draws
//   value(pair)              returns the score to all lanes
//   backward(query, pair, weight, out)   adds `weight` times the gradient by the draws of one side, the queries' if
//                            `query`, to what `out` points to; each lane adds to its own dimensions
#pragma once

#include "../warps.cuh"
#include "vmf.cuh"

// The draws of an item, n rows of D.
template <typename T>
struct Draws {
    const T* z;
    int n;
    T* summary;      // D numbers, which summarise() may fill
    int64_t stride;  // from draw to draw

    __device__ const T* row(int i) const { return z + i * stride; }
};

// Numbers of a non-isotropic von Mises-Fisher distribution alone: n = |y|, the terms of the log density that do not
// depend on the draw and, for gradients, I_(D/2)(n) / I_(D/2-1)(n).
struct PerItemShape {
    double n, logs, ratio;
};
static_assert(sizeof(PerItemShape) == PER_ITEM_NUMBERS * sizeof(double));

// The draws of two items, and the uncertainty of the gallery's.
template <typename T>
struct DrawnPair {
    int64_t dim;
    Draws<T> query, gallery;
    const T* uncertainty;
    int64_t stored;
    const PerItemShape* shape;  // the gallery item's; null where no memory was given for it
};

// Where a warp adds up gradients: by the item's draws; by D numbers of its uncertainty, where that is no parameter
// of a sampler; and by the shared numbers, of which each lane has a part.
template <typename T>
struct DrawnGradient {
    T* draws;
    T* uncertainty;
    double shared[2];
};

// -- mean cosine ------------------------------------------------------------------------------------------------------

// The mean over all pairs of draws is the inner product of the two means of directions.
template <typename T>
struct MeanCosine {
    __device__ MeanCosine(const PairArgs&, const DrawingArgs&) {}

    __device__ void summarise(int64_t dim, const Draws<T>& draws) const {
        for (int64_t d = lane(); d < dim; d += WARP) draws.summary[d] = 0;
        for (int i = 0; i < draws.n; ++i) {
            const T* const z = draws.row(i);
            T square = 0;
            for (int64_t d = lane(); d < dim; d += WARP) square = fma(z[d], z[d], square);
            const double length = sqrt(square_of(z, dim, warp_sum(square)));
            // The direction of zeros counts as 0.
            const T by_length = length == 0 ? T(0) : T(1) / T(draws.n) / T(length);
            for (int64_t d = lane(); d < dim; d += WARP) draws.summary[d] = fma(by_length, z[d], draws.summary[d]);
        }
    }
    // The squared length of a draw, in double where it loses digits in T.
    static __device__ double square_of(const T* z, int64_t dim, T square) {
        if (sizeof(T) == 8 || (square >= T(0x1p-62) && square <= T(0x1p62))) return square;
        double wide = 0;
        for (int64_t d = lane(); d < dim; d += WARP) wide = fma(double(z[d]), double(z[d]), wide);
        return warp_sum(wide);
    }
    __device__ double value(const DrawnPair<T>& pair) const {
        T sum = 0;
        for (int64_t d = lane(); d < pair.dim; d += WARP) {
            sum = fma(pair.query.summary[d], pair.gallery.summary[d], sum);
        }
        const double cosine = warp_sum(sum);
        return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
    }
    __device__ void backward(bool query, const DrawnPair<T>& pair, double weight, DrawnGradient<T>& out) const {
        const Draws<T>& draws = query ? pair.query : pair.gallery;
        const T* const other = (query ? pair.gallery : pair.query).summary;
        const T share = T(weight / draws.n);
        for (int i = 0; i < draws.n; ++i) {
            const T* const z = draws.row(i);
            T square = 0, product = 0;
            for (int64_t d = lane(); d < pair.dim; d += WARP) {
                square = fma(z[d], z[d], square), product = fma(z[d], other[d], product);
            }
            const double wide = square_of(z, pair.dim, warp_sum(square)), along_other = warp_sum(product);
            const T scale = wide == 0 ? T(0) : share / T(sqrt(wide)), along = wide == 0 ? T(0) : T(along_other / wide);
            for (int64_t d = lane(); d < pair.dim; d += WARP) {
                out.draws[i * pair.dim + d] += scale * (other[d] - along * z[d]);
            }
        }
    }
};

// -- distances --------------------------------------------------------------------------------------------------------

// The logarithm of a mean of powers of e, term by term.
struct LogMean {
    double top = -INFINITY, sum = 0;

    // exp(x - top), which is 1 where both are the same infinity.
    __device__ double relative(double x) const { return exp(x == top ? 0 : x - top); }
    __device__ void add(LogMean other) {
        if (other.top > top) {
            const LogMean old = *this;
            *this = other, other = old;
        }
        sum += other.sum * relative(other.top);
    }
    __device__ void add(double x) { add(LogMean{x, 1}); }
    __device__ double value(int64_t count) const { return top + log(sum / double(count)); }
    __device__ double share(double x) const { return relative(x) / sum; }

    // Returns to all lanes of a warp the LogMean of all their terms.
    __device__ LogMean over_warp() const {
        LogMean all = *this;
        for (int mask = WARP / 2; mask > 0; mask /= 2) {
            LogMean other;
            other.top = __shfl_xor_sync(FULL, all.top, mask), other.sum = __shfl_xor_sync(FULL, all.sum, mask);
            all.add(other);
        }
        return all;
    }
    __device__ LogMean(double top, double sum) : top(top), sum(sum) {}
    __device__ LogMean() {}
};

// Minus the mean distance.
struct MeanDistance {
    struct Total {
        double sum = 0;

        __device__ Total over_warp() const { return Total{warp_sum(sum)}; }
    };
    static constexpr bool ONE_PARTIAL = true;  // the derivative is the same for every distance

    __device__ MeanDistance(double, double) {}
    __device__ void add(Total& total, double distance) const { total.sum += distance; }
    __device__ double value(const Total& total, int64_t count) const { return -total.sum / double(count); }
    __device__ double partial(const Total&, int64_t count, double, double*) const { return -1 / double(count); }
};

// Log of the mean of sigmoid(b - a distance).
struct MatchOfDraws {
    using Total = LogMean;
    static constexpr bool ONE_PARTIAL = false;
    double a, b;

    __device__ MatchOfDraws(double a, double b) : a(a), b(b) {}
    __device__ double log_at(double distance) const {
        const double y = b - a * distance;
        return (y < 0 ? y : 0) - log(1 + exp(-fabs(y)));
    }
    __device__ void add(Total& total, double distance) const { total.add(log_at(distance)); }
    __device__ double value(const Total& total, int64_t count) const { return total.value(count); }
    // The derivative by one distance; adds to `by_line` those by a and b.
    __device__ double partial(const Total& total, int64_t, double distance, double* by_line) const {
        const double log = log_at(distance), rest = total.share(log) * -expm1(log);
        by_line[0] -= rest * distance, by_line[1] += rest;
        return -a * rest;
    }
};

// A function F of the distances between all pairs of draws. A warp computes 4 x 8 distances at a time, one for each
// lane.
template <typename T, typename F>
struct ByDistances {
    static constexpr int DOWN = 4, ACROSS = 8;
    static_assert(DOWN * ACROSS == WARP, "a pair for each lane");
    F f;

    __device__ ByDistances(const PairArgs& args, const DrawingArgs&) : f(number(args, 0), number(args, 1)) {}
    static __device__ double number(const PairArgs& args, int n) {
        return n < args.shared.stored ? double(row_of<T>(args.shared, 0)[n]) : NAN;
    }
    __device__ void summarise(int64_t, const Draws<T>&) const {}

    // The rows of N draws from `first` on; the last draw stands for those beyond it.
    template <int N>
    static __device__ inline void rows(const Draws<T>& draws, int first, const T* (&out)[N]) {
        for (int i = 0; i < N; ++i) out[i] = draws.row(first + i < draws.n ? first + i : draws.n - 1);
    }
    static __device__ inline double distance(const T* (&first)[DOWN], const T* (&second)[ACROSS], int64_t dim) {
        T sums[WARP] = {};
        for (int64_t d = lane(); d < dim; d += WARP) {
            T x[DOWN], y[ACROSS];
#pragma unroll
            for (int i = 0; i < DOWN; ++i) x[i] = first[i][d];
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) y[j] = second[j][d];
#pragma unroll
            for (int n = 0; n < WARP; ++n) {
                const T apart = x[n / ACROSS] - y[n % ACROSS];
                sums[n] = fma(apart, apart, sums[n]);
            }
        }
        return sqrt(double(combined(sums, Sum())));
    }
    // Calls each(i, rows of draws, rows of others, valid, distance) for each block of pairs, whose first draw is i.
    template <typename Each>
    static __device__ inline void for_each(const Draws<T>& draws, const Draws<T>& others, int64_t dim,
                                           const Each& each) {
        for (int i = 0; i < draws.n; i += DOWN) {
            for (int j = 0; j < others.n; j += ACROSS) {
                const T *down[DOWN], *across[ACROSS];
                rows(draws, i, down), rows(others, j, across);
                const bool valid = i + lane() / ACROSS < draws.n && j + lane() % ACROSS < others.n;
                each(i, down, across, valid, distance(down, across, dim));
            }
        }
    }
    __device__ typename F::Total total(const Draws<T>& draws, const Draws<T>& others, int64_t dim) const {
        typename F::Total total;
        for_each(draws, others, dim, [&](int, const T* const*, const T* const*, bool valid, double distance) {
            if (valid) f.add(total, distance);
        });
        return total.over_warp();
    }

    __device__ double value(const DrawnPair<T>& pair) const {
        const int64_t count = int64_t(pair.query.n) * pair.gallery.n;
        return f.value(total(pair.query, pair.gallery, pair.dim), count);
    }
    __device__ void backward(bool query, const DrawnPair<T>& pair, double weight, DrawnGradient<T>& out) const {
        const Draws<T>&draws = query ? pair.query : pair.gallery, &others = query ? pair.gallery : pair.query;
        const int64_t count = int64_t(draws.n) * others.n, dim = pair.dim;
        typename F::Total all;
        if (!F::ONE_PARTIAL) all = total(draws, others, dim);
        for_each(draws, others, dim,
                 [&](int i, const T* const* down, const T* const* across, bool valid, double distance) {
            double by_line[2] = {0, 0}, scale = 0;
            if (valid) {
                // The distance of draws that coincide has no gradient.
                const double partial = f.partial(all, count, distance, by_line);
                scale = distance == 0 ? 0 : weight * partial / distance;
                for (int s = 0; s < 2; ++s) out.shared[s] += weight * by_line[s];
            }
            T scales[WARP];
#pragma unroll
            for (int n = 0; n < WARP; ++n) scales[n] = __shfl_sync(FULL, T(scale), n);
            for (int64_t d = lane(); d < dim; d += WARP) {
                T y[ACROSS];
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) y[j] = across[j][d];
#pragma unroll
                for (int k = 0; k < DOWN; ++k) {
                    const T x = down[k][d];
                    T sum = 0;
#pragma unroll
                    for (int j = 0; j < ACROSS; ++j) sum += scales[k * ACROSS + j] * (x - y[j]);
                    if (i + k < draws.n) out.draws[(i + k) * dim + d] += sum;
                }
            }
        });
    }
};

// -- densities --------------------------------------------------------------------------------------------------------

// Log of the mean density of the gallery item, non-isotropic von Mises-Fisher, at the query's draws. For z on the
// sphere, K = diag(kappa), x = K z (STRETCHED, else z), y = K mu and n = |y|,
//   rho(z) = C_D(n) exp(n cos(x, y)) det K / |x|^D    (EXACT; or det K / n^D, PAPER, or det K / n, PUBLISHED, for the last factor),
// and nothing cancels in log C(n) + n cos = log C(0) - log H(n) - n |x/|x| - y/n|^2 / 2.
enum LastFactor { EXACT, PAPER, PUBLISHED };

template <typename T, bool STRETCHED, LastFactor FACTOR>
struct Density {
    Orders orders;

    __device__ Density(const PairArgs&, const DrawingArgs& drawing) : orders{&drawing.orders} {}
    __device__ void summarise(int64_t, const Draws<T>&) const {}

    // The powers of 1/n and of 1/|x| in the last factor.
    static __device__ double power_of_n(int64_t dim) { return FACTOR == PAPER ? double(dim) : FACTOR == PUBLISHED; }
    static __device__ double power_of_x(int64_t dim) { return FACTOR == EXACT ? double(dim) : 0; }
    static __device__ T kappa(const DrawnPair<T>& pair, int64_t d) { return pair.uncertainty[pair.stored > 1 ? d : 0]; }
    static __device__ T image(const DrawnPair<T>& pair, const T* z, int64_t d) {
        return STRETCHED ? kappa(pair, d) * z[d] : z[d];
    }
    __device__ __noinline__ PerItemShape shape(const DrawnPair<T>& pair, bool partials) const {
        if (pair.shape) return *pair.shape;
        T square = 0, sum = 0;
        for (int64_t d = lane(); d < pair.dim; d += WARP) {
            const T k = kappa(pair, d), y = k * pair.gallery.z[d];
            square = fma(y, y, square), sum += log(k);
        }
        const T length = sqrt(warp_sum(square));
        const double n = length, power = power_of_n(pair.dim);
        const double det = double(warp_sum(sum)) - (FACTOR == EXACT ? 0 : power * log(n));
        return {n, orders.log_norm_at_zero() - orders.h(n) + det, partials ? orders.a(n) : 0};
    }
    // Of one draw z: |x|, |x/|x| - y/n|^2 and the log density.
    struct At {
        T length;
        double apart, log;
    };
    __device__ At at(const PerItemShape& shape, const DrawnPair<T>& pair, const T* z) const {
        T square = 0, apart = 0;
        for (int64_t d = lane(); d < pair.dim; d += WARP) {
            const T x = image(pair, z, d);
            square = fma(x, x, square);
        }
        const T length = sqrt(warp_sum(square)), n = T(shape.n);
        for (int64_t d = lane(); d < pair.dim; d += WARP) {
            const T x = image(pair, z, d) / length - kappa(pair, d) * pair.gallery.z[d] / n;
            apart = fma(x, x, apart);
        }
        const double whole = warp_sum(apart), power = power_of_x(pair.dim);
        const double stretch = FACTOR == EXACT ? power * ::log(double(length)) : 0;
        return {length, whole, shape.logs - 0.5 * shape.n * whole - stretch};
    }
    __device__ LogMean total(const PerItemShape& shape, const DrawnPair<T>& pair) const {
        LogMean total;
        for (int i = 0; i < pair.query.n; ++i) total.add(at(shape, pair, pair.query.row(i)).log);
        return total;
    }

    __device__ double value(const DrawnPair<T>& pair) const {
        return total(shape(pair, false), pair).value(pair.query.n);
    }
    // With c = cos(x, y) and R = I_(D/2)(n) / I_(D/2-1)(n): by x, (n / |x|) (y/n - c x/|x|) less the power of 1/|x|
    // times x/|x|^2; by y, x/|x| - R y/n less the power of 1/n times y/n^2; by kappa also 1/kappa.
    __device__ void backward(bool query, const DrawnPair<T>& pair, double weight, DrawnGradient<T>& out) const {
        const PerItemShape shape = this->shape(pair, true);
        const LogMean all = total(shape, pair);
        const T by_unit = T(shape.ratio + (FACTOR == EXACT ? 0 : power_of_n(pair.dim) / shape.n)), n = T(shape.n);
        for (int i = 0; i < pair.query.n; ++i) {
            const T* const z = pair.query.row(i);
            const At at = this->at(shape, pair, z);
            const T share = T(weight * all.share(at.log));
            const double cosine = 1 - 0.5 * at.apart, jacobian = power_of_x(pair.dim);
            const T along = n / at.length, across = T(shape.n * cosine + jacobian) / at.length;
            for (int64_t d = lane(); d < pair.dim; d += WARP) {
                const T k = kappa(pair, d), mu = pair.gallery.z[d];
                const T x = image(pair, z, d) / at.length, y = k * mu / n;
                const T by_x = share * (along * y - across * x);
                if (query) {
                    out.draws[i * pair.dim + d] += STRETCHED ? k * by_x : by_x;
                } else {
                    const T by_y = share * (x - by_unit * y);
                    out.draws[d] += k * by_y;
                    out.uncertainty[d] += (STRETCHED ? z[d] * by_x : T(0)) + mu * by_y + share / k;
                }
            }
        }
    }
};
