// How the draws of two items are compared, as in rust/kernels/sampled_scores/{distances,densities}.rs. All lanes of a
// warp compare a pair together: lane l has the dimensions l, l + 32, ...
//
// A comparison is a class C<T>, made of the arguments, with
//   summarise(dim, draws)    computes, before draws are compared, what the comparison needs of one item's draws
//   value(pair)              returns the score to all lanes
//   backward(query, pair, weight, out)   adds `weight` times the gradient by the draws of one side, the queries' if
//                            `query`, to what `out` points to; each lane adds to its own dimensions
//
// Where a library has multiplied all draws of many items, each lane has a pair of its own. Products may lack digits, so a pair of which
// one does is left to the functions above:
//   total(draws)             returns what the score is made of; its sum is NaN where a product lacks digits
//   score(total, draws)      returns the score
//   scale(total, draws, weight)   returns the weight as `weigh` takes it
//   weigh(draws, i, j, total, scale, by_line)   puts the factors of the gradients by two draws in the place of their products, and returns
//                            what of it is summed over the draws of either side; adds the derivatives by the shared numbers to `by_line`
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
// depend on the draw and, for gradients, I_(D/2)(n) / I_(D/2-1)(n) and the power of 1/n in the last factor, over n.
struct PerItemShape {
    double n, logs, by_unit;
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

// The products of the n draws of a query and the m draws of a gallery item, by draw; those of their squares, which densities take, or
// else the squared norms of the draws.
template <typename T>
struct DrawProducts {
    int64_t dim, down, across;  // from the products of a draw of the query, or of the gallery item, to those of the next one
    int n, m;
    T *products, *squares;
    const T* norms[2];
    int64_t next[2];            // from the norm of a draw to that of the next one
    const PerItemShape* shape;  // the gallery item's

    __device__ int64_t at(int i, int j) const { return i * down + j * across; }
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

// e^-x, 1/x and 1/sqrt x, in single precision by the device's approximations, which err by two units of the last digit and, the first
// one, by what a rounding of x changes.
__device__ inline double decayed(double x) { return exp(-x); }
__device__ inline double inverse(double x) { return 1 / x; }
__device__ inline double inverse_root(double x) { return 1 / sqrt(x); }
__device__ inline float decayed(float x) { return __expf(-x); }
__device__ inline float inverse(float x) { return __fdividef(1, x); }
__device__ inline float inverse_root(float x) { return rsqrtf(x); }

// Minus the mean distance.
struct MeanDistance {
    static constexpr bool SHIFTS = false;

    __device__ MeanDistance(double, double) {}
    template <typename X>
    __device__ X exponent(X) const { return 0; }
    template <typename X>
    __device__ X term(X distance, X, X& slope) const { return slope = 1, distance; }
    __device__ double of_sum(double sum, double, double count) const { return -sum / count; }
    __device__ double by_sum(double, double count) const { return -1 / count; }
    __device__ double by_distance() const { return 1; }
};

// Log of the mean of sigmoid(b - a distance).
struct MatchOfDraws {
    static constexpr bool SHIFTS = true;
    double a, b;

    __device__ MatchOfDraws(double a, double b) : a(a), b(b) {}
    template <typename X>
    __device__ X exponent(X distance) const { return fma(-X(a), distance, X(b)); }
    template <typename X>
    __device__ X term(X distance, X shift, X& slope) const {
        const X y = exponent(distance) + shift, decay = decayed(fabs(y)), large = inverse(1 + decay), small = decay * large;
        slope = small * large;
        return y < 0 ? small : large;
    }
    __device__ double of_sum(double sum, double shift, double count) const { return log(sum / count) - shift; }
    __device__ double by_sum(double sum, double) const { return 1 / sum; }
    __device__ double by_distance() const { return -a; }
};

// The score is of_sum() of the sum of a term of each distance, whose derivative by the distance is a slope times by_distance(). Sums so
// small that they lose digits are those of terms with a shift that makes their greatest exponent -60, beyond which a probability is a power
// of e to all digits.
template <typename X>
struct Terms {
    double sum = 0;
    X shift = 0;

    // each(body) calls body(distance) for the lane's distances: all of its pair, or of the warp's pair a part, if SHARED.
    template <bool SHARED, typename F, typename Each>
    static __device__ Terms of(const F& f, const Each& each) {
        constexpr double LEAST = sizeof(X) == 4 ? 1e-30 : 1e-280;
        Terms all;
        const auto add = [&] {
            all.sum = 0;
            each([&](X distance) {
                X slope;
                all.sum += f.term(distance, all.shift, slope);
            });
            if (SHARED) all.sum = warp_sum(all.sum);
        };
        add();
        if (F::SHIFTS && __any_sync(FULL, all.sum < LEAST)) {
            X top = -INFINITY;
            each([&](X distance) { top = f.exponent(distance) > top ? f.exponent(distance) : top; });
            if (SHARED) top = warp_greatest(top);
            all.shift = top < -60 ? -60 - top : X(0);
            add();
        }
        return all;
    }
};

// A function F of the distances between all pairs of draws. A warp computes 4 x 8 distances at a time, one for each lane.
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
    __device__ Terms<double> total(const Draws<T>& draws, const Draws<T>& others, int64_t dim) const {
        return Terms<double>::template of<true>(f, [&](const auto& body) {
            for_each(draws, others, dim, [&](int, const T* const*, const T* const*, bool valid, double distance) {
                if (valid) body(distance);
            });
        });
    }
    // The factor of a - b in the gradient by a draw a, b being another one; adds the derivatives by two shared numbers.
    template <typename X>
    __device__ X factor(X distance, X inverse, X shift, X scale, X* by_line) const {
        X slope;
        f.term(distance, shift, slope);
        slope *= scale, by_line[0] -= slope * distance, by_line[1] += slope;
        return X(f.by_distance()) * slope * inverse;
    }

    __device__ double value(const DrawnPair<T>& pair) const {
        const Terms<double> all = total(pair.query, pair.gallery, pair.dim);
        return f.of_sum(all.sum, all.shift, double(pair.query.n) * pair.gallery.n);
    }
    __device__ void backward(bool query, const DrawnPair<T>& pair, double weight, DrawnGradient<T>& out) const {
        const Draws<T>&draws = query ? pair.query : pair.gallery, &others = query ? pair.gallery : pair.query;
        const int64_t dim = pair.dim;
        Terms<double> all;
        if (F::SHIFTS) all = total(draws, others, dim);
        const double by_term = weight * f.by_sum(all.sum, double(draws.n) * others.n);
        for_each(draws, others, dim,
                 [&](int i, const T* const* down, const T* const* across, bool valid, double distance) {
            // The distance of draws that coincide has no gradient.
            const double inverse = distance == 0 ? 0 : 1 / distance;
            const double scale = valid ? factor(distance, inverse, all.shift, by_term, out.shared) : 0;
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

    // -- by products

    // The distance of draws i and j, and its inverse: NaN where their product lacks its digits. Where it does not, the distance errs by at
    // most (D + 4 ceil(D/128) + 8) u / (2 NEAR_ROWS) of itself, which is D roundings of a product, those of both norms and a few.
    struct At {
        T distance, inverse;

        __device__ At(const DrawProducts<T>& draws, int i, int j) {
            const T both = draws.norms[QUERY][i * draws.next[QUERY]] + draws.norms[GALLERY][j * draws.next[GALLERY]];
            const T square = fma(T(-2), draws.products[draws.at(i, j)], both);
            inverse = has_digits<T>(square, both) ? inverse_root(square) : T(NAN), distance = square * inverse;
        }
    };
    __device__ Terms<T> total(const DrawProducts<T>& draws) const {
        return Terms<T>::template of<false>(f, [&](const auto& body) {
            for (int i = 0; i < draws.n; ++i) {
#pragma unroll 4
                for (int j = 0; j < draws.m; ++j) body(At(draws, i, j).distance);
            }
        });
    }
    __device__ double score(const Terms<T>& total, const DrawProducts<T>& draws) const {
        return f.of_sum(total.sum, total.shift, double(draws.n) * draws.m);
    }
    __device__ T scale(const Terms<T>& total, const DrawProducts<T>& draws, double weight) const {
        return T(weight * f.by_sum(total.sum, double(draws.n) * draws.m));
    }
    // The gradient by a draw a is the sum of factors times a - b: of their products with b, negative, and of their sum times a.
    __device__ T weigh(const DrawProducts<T>& draws, int i, int j, const Terms<T>& total, T scale, T* by_line) const {
        const At at(draws, i, j);
        const T found = factor(at.distance, at.inverse, total.shift, scale, by_line);
        draws.products[draws.at(i, j)] = -found;
        return found;
    }
};

// -- densities --------------------------------------------------------------------------------------------------------

// The logarithm of a mean of powers of e, term by term.
struct LogMean {
    double top = -INFINITY, sum = 0;

    // exp(x - top), which is 1 where both are the same infinity.
    __device__ double relative(double x) const { return exp(x == top ? 0 : x - top); }
    __device__ void add(double x) {
        const double old = top;
        if (x > top) top = x, sum *= relative(old);
        sum += relative(x);
    }
    __device__ double value(int64_t count) const { return top + log(sum / double(count)); }
    __device__ double share(double x) const { return relative(x) / sum; }
};

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
        const double by_unit = partials ? orders.a(n) + (FACTOR == EXACT ? 0 : power / n) : 0;
        return {n, orders.log_norm_at_zero() - orders.h(n) + det, by_unit};
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
        const T by_unit = T(shape.by_unit), n = T(shape.n);
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

    // -- by products: of z with K y (STRETCHED, else y), and of squares with K^2 (or 1)

    // Of one draw z: |x|, the cosine and the log density, which is NaN where products lack digits.
    struct OfProduct {
        double length, cosine, log;
    };
    __device__ OfProduct of_product(const DrawProducts<T>& draws, int i) const {
        const PerItemShape& shape = *draws.shape;
        const double square = draws.squares[draws.at(i, 0)], length = sqrt(square);
        const double cosine = draws.products[draws.at(i, 0)] / (length * shape.n), apart = shape.n * (1 - cosine);
        // As in rust/kernels/sampled_scores/densities.rs: a cosine errs by some 2 D u, so the log density by 2 D u n, at most 8 D u of
        // apart + D.
        const bool digits = square > 1e-30 && square < 1e30 && apart + double(draws.dim) >= 0.25 * shape.n;
        return {length, cosine, digits ? shape.logs - apart - power_of_x(draws.dim) * ::log(length) : NAN};
    }
    __device__ LogMean total(const DrawProducts<T>& draws) const {
        LogMean total;
        for (int i = 0; i < draws.n; ++i) total.add(of_product(draws, i).log);
        return total;
    }
    __device__ double score(const LogMean& total, const DrawProducts<T>& draws) const { return total.value(draws.n); }
    __device__ double scale(const LogMean& total, const DrawProducts<T>&, double weight) const { return weight / total.sum; }
    // With M = K (STRETCHED, else 1), the gradient by z is a factor times M y less another one times M^2 z, that by y the first one times
    // x less the share of the weight times by_unit y/n.
    __device__ T weigh(const DrawProducts<T>& draws, int i, int, const LogMean& total, double scale, T*) const {
        const OfProduct at = of_product(draws, i);
        const double share = scale * total.relative(at.log), along = share / at.length;
        draws.products[draws.at(i, 0)] = T(along);
        draws.squares[draws.at(i, 0)] = T(along * (draws.shape->n * at.cosine + power_of_x(draws.dim)) / at.length);
        return T(share);
    }
};
