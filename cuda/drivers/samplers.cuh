// Samplers: how warps draw items and take gradients through draws, for families/samplers.cu and the scores that compare draws.
//
// A sampler makes a tile of up to 32 draws (those of a row follow each other, so that mu comes from the cache), or
// takes the gradients by some rows' draws to the rows. Each lane draws a height, all at once; then teams of lanes make
// the normals of one draw after another. Between the passes over them, each lane stores its normals in shared memory as
// far as that reaches, and makes the others again. No sum depends on how draws are shared out.
#pragma once

#include "../numerics/wood.cuh"

// From this dimension on |p|^2 = |n|^2 - (n.mu)^2 loses no digits worth having.
constexpr int64_t MANY = 16;

__device__ inline Address address_of(const SampleArgs& args, const Keys& keys, int64_t row, int64_t draw) {
    return {keys, args.first_row + uint64_t(row), uint32_t(draw), uint32_t(args.stream)};
}

// The memory of a warp's normals: dynamic shared memory begins with that of all warps, one after another.
template <typename T>
__device__ inline T* memory_of_normals(T* shared, int64_t cached_steps) {
    return shared + threadIdx.x / WARP * (cached_steps * Normals<T>::EACH * WARP);
}

// A draw: the number of its row, and its own number among the draws of that row.
struct RowAndDraw {
    int64_t row;
    uint32_t draw;
};

// Consecutive draws, those of a row side by side, one for each lane.
struct SampleTile {
    int count;
    RowAndDraw mine;

    // `most` draws from `first` on, or as many as there are.
    __device__ inline SampleTile(const SampleArgs& args, int64_t first, int64_t most) {
        const int64_t left = args.mu.rows * args.draws - first;
        count = int(left < most ? left : most);
        const uint32_t draws = uint32_t(args.draws), ahead = uint32_t(first % args.draws) + threadIdx.x % WARP;
        mine = {first / args.draws + ahead / draws, ahead % draws};
    }
    // The draw of lane i. Called by all lanes.
    __device__ inline RowAndDraw pair(int i) const {
        return {__shfl_sync(FULL, mine.row, i), __shfl_sync(FULL, mine.draw, i)};
    }
};

// -- normal -----------------------------------------------------------------------------------------------------------

struct NormalSampler {
    static constexpr bool RANDOM = true;

    // Writes each draw of a tile to out(pair). The numbers of a draw are at addresses(row, draw).
    template <typename T, typename Addresses, typename Out>
    static __device__ inline void draw(const SampleArgs& args, const Addresses& addresses, const Team<T>& team,
                                       const SampleTile& tile, T*, const Out& out) {
        for (int from = 0; from < tile.count; from += team.together()) {
            const bool valid = from + team.number < tile.count;  // all lanes go on, as shuffles need all of them
            const RowAndDraw pair = tile.pair(valid ? from + team.number : from);
            const Address address = addresses(pair.row, pair.draw);
            const T* const mu = row_of<T>(args.mu, pair.row);
            const T* const var = row_of<T>(args.uncertainty, pair.row);
            T* const to = out(pair);
            const bool one = args.uncertainty.stored == 1;
            const T common = sqrt(var[0]);
            for (int t = 0; t < team.steps; ++t) {
                const Normals<T> normals(address.normals(team.block(t)));
                // All loads come first, without branches.
                T means[Normals<T>::EACH], variances[Normals<T>::EACH];
                for (int k = 0; k < team.EACH; ++k) {
                    const int d = team.index(t, k);
                    means[k] = d < team.dim ? mu[d] : T(0), variances[k] = !one && d < team.dim ? var[d] : T(1);
                }
                for (int k = 0; k < team.EACH; ++k) {
                    const int d = team.index(t, k);
                    const T x = fma(one ? common : sqrt(variances[k]), normals.n[k], means[k]);
                    if (valid && d < team.dim) to[d] = x;
                }
            }
        }
    }

    // How many rows a warp takes at a time.
    template <typename T>
    static __device__ inline int rows_at_once(const SampleArgs&, const Team<T>& team) {
        return team.together();
    }

    // Writes the gradients by `count` rows from `first` on; weights(row, draw) are those by a draw. A team takes all
    // draws of a row; all lanes go on as long as one does, as sums need all of them.
    template <typename T, typename Addresses, typename Weights>
    static __device__ inline void backward(const SampleArgs& args, const Addresses& addresses, const Order&,
                                           const Team<T>& team, int64_t first, int count, T*, const Weights& weights,
                                           T* all_by_mu, T* all_by_var) {
        const bool one = args.uncertainty.stored == 1, valid = team.number < count;
        const int64_t row = valid ? first + team.number : first;
        const T* const var = row_of<T>(args.uncertainty, row);
        T* const by_mu = all_by_mu + row * team.dim;
        T* const by_var = all_by_var + row * (one ? 1 : team.dim);
        T whole = 0;
        for (int t = 0; t < team.steps; ++t) {
            T plain[Normals<T>::EACH] = {}, noisy[Normals<T>::EACH] = {};
            for (int64_t draw = 0; draw < args.draws; ++draw) {
                const Normals<T> normals(addresses(row, draw).normals(team.block(t)));
                const T* const along = weights(row, draw);
                for (int k = 0; k < team.EACH; ++k) {
                    const int d = team.index(t, k);
                    const T weight = d < team.dim ? along[d] : T(0);
                    plain[k] += weight, noisy[k] = fma(weight, normals.n[k], noisy[k]);
                }
            }
            for (int k = 0; k < team.EACH; ++k) {
                const int d = team.index(t, k);
                whole += noisy[k];
                if (!valid || d >= team.dim) continue;
                by_mu[d] = plain[k];
                if (!one) by_var[d] = by_root(noisy[k], var[d]);
            }
        }
        whole = team.sum(whole);
        if (one && valid && team.me == 0) by_var[0] = by_root(whole, var[0]);
    }
    // The derivative by a variance, given that by its root; 0 at 0, where a root has no finite one.
    template <typename T>
    static __device__ inline T by_root(T x, T var) {
        return var == 0 ? T(0) : T(0.5) * x / sqrt(var);
    }
};

// -- von Mises-Fisher -------------------------------------------------------------------------------------------------

// The normals of a draw, which each lane makes and may replace: those of the first `cached_steps` steps stay in shared memory.
template <typename T>
struct Noise {
    const Team<T>& team;
    const Address& address;
    T* memory;  // the warp's
    int cached_steps;

    __device__ inline T& at(int step, int k) const {
        return memory[(step * Normals<T>::EACH + k) * WARP + threadIdx.x % WARP];
    }

    // Calls f(d, in, n) for each dimension d of this lane and its number n, which is 0 where d is not `in` the row: without branches,
    // so that a lane loads several numbers at once. `first_time` makes normals; later calls see what has replaced them.
    template <typename F>
    __device__ inline void for_each(bool first_time, const F& f) const {
        for (int t = 0; t < team.steps; ++t) {
            const bool has_place = t < cached_steps;
            T n[Normals<T>::EACH];
            if (first_time || !has_place) {
                const Normals<T> normals(address.normals(team.block(t)));
                for (int k = 0; k < Normals<T>::EACH; ++k) n[k] = team.index(t, k) < team.dim ? normals.n[k] : T(0);
                for (int k = 0; k < Normals<T>::EACH && has_place; ++k) at(t, k) = n[k];
            } else {
                for (int k = 0; k < Normals<T>::EACH; ++k) n[k] = at(t, k);
            }
            for (int k = 0; k < Normals<T>::EACH; ++k) f(team.index(t, k), team.index(t, k) < team.dim, n[k]);
        }
    }
};

// n.mu and |p| of a draw's normals n, and p.x and mu.x of another vector x, if there is one. In few dimensions p replaces n.
template <typename T>
struct Tangent {
    T along, length, of_p, of_mu;

    __device__ inline Tangent(const Noise<T>& noise, const T* mu, const T* x) {
        const Team<T>& team = noise.team;
        T product = 0, square = 0, of_n = 0;
        of_p = 0, of_mu = 0;
        noise.for_each(true, [&](int d, bool in, T n) {
            const T m = in ? mu[d] : T(0), along_x = x && in ? x[d] : T(0);
            product = fma(n, m, product), square = fma(n, n, square);
            of_n = fma(n, along_x, of_n), of_mu = fma(m, along_x, of_mu);
        });
        along = team.sum(product), square = team.sum(square);
        if (x) of_n = team.sum(of_n), of_mu = team.sum(of_mu);
        if (team.dim >= MANY) {
            length = sqrt(square - along * along), of_p = of_n - along * of_mu;
            return;
        }
        // Twice, as in two dimensions p may be a small remainder of n. There is one step, which is cached.
        T rest = along;
        for (int i = 0; i < 2; ++i) {
            product = 0, square = 0, of_n = 0;
            for (int k = 0; k < Normals<T>::EACH; ++k) {
                const int d = team.index(0, k);
                if (d >= team.dim) continue;
                const T p = noise.at(0, k) - rest * mu[d];
                noise.at(0, k) = p;
                product = fma(p, mu[d], product), square = fma(p, p, square);
                if (x) of_n = fma(p, x[d], of_n);
            }
            rest = team.sum(product);
        }
        length = sqrt(team.sum(square));
        if (x) of_p = team.sum(of_n);
    }
};

// Adds the gradient by a row's mean that one draw gives; returns the one by kappa.
template <typename T>
__device__ inline T add_vmf_gradient(const Noise<T>& noise, const T* mu, const T* weights, T w, T s, T ratio,
                                     T by_kappa, bool fresh, bool valid, T* by_mu) {
    const bool many = noise.team.dim >= MANY;
    const Tangent<T> tangent(noise, mu, weights);
    const T along = tangent.along, scale = 1 / tangent.length, of_v = tangent.of_p * scale;  // v = p/|p|
    // dp = -(n.dmu) mu - (n.mu) dmu, and d(p/|p|) is its part across v over |p|. So the gradient is a sum of the weights, of v and of
    // n = p + (n.mu) mu, of which n, or p in few dimensions, and mu are at hand.
    const T by_length = s * scale, across = -(by_length * along), by_v = across * of_v * scale, by_n = by_length * tangent.of_mu;
    const T by_weight = w + across, by_noise = -(by_v + by_n), by_row = many ? by_v * along : -(by_n * along);
    noise.for_each(false, [&](int d, bool in, T n) {
        const T weight = in ? weights[d] : T(0), m = in ? mu[d] : T(0), before = in && !fresh ? by_mu[d] : T(0);
        const T after = before + fma(by_weight, weight, fma(by_noise, n, by_row * m));
        if (valid && in) by_mu[d] = after;
    });
    // dx = dw (mu - w/s v).
    return by_kappa * (tangent.of_mu - ratio * of_v);
}

struct VmfSampler {
    static constexpr bool RANDOM = true;

    // The functions are those of NormalSampler; `memory` is that of the warp's normals.
    template <typename T, typename Addresses, typename Out>
    static __device__ inline void draw(const SampleArgs& args, const Addresses& addresses, const Team<T>& team,
                                       const SampleTile& tile, T* memory, const Out& out) {
        T my_w = 0, my_s = 0;
        if (int(threadIdx.x % WARP) < tile.count) {
            const double kappa = double(row_of<T>(args.uncertainty, tile.mine.row)[0]);
            const Height height = draw_height(team.dim, kappa, addresses(tile.mine.row, tile.mine.draw));
            my_w = T(height.w()), my_s = T(height.tangent());
        }
        for (int from = 0; from < tile.count; from += team.together()) {
            const bool valid = from + team.number < tile.count;  // all lanes go on, as sums need all of them
            const int i = valid ? from + team.number : from;
            const T w = __shfl_sync(FULL, my_w, i), s = __shfl_sync(FULL, my_s, i);
            const RowAndDraw pair = tile.pair(i);
            const Address address = addresses(pair.row, pair.draw);
            const T* const mu = row_of<T>(args.mu, pair.row);
            T* const to = out(pair);

            const Noise<T> noise = {team, address, memory, int(args.cached_steps)};
            const Tangent<T> tangent(noise, mu, nullptr);
            const T by_noise = s / tangent.length, by_mu = w - (team.dim >= MANY ? by_noise * tangent.along : T(0));
            noise.for_each(false, [&](int d, bool in, T n) {
                const T m = in ? mu[d] : T(0);
                if (valid && in) to[d] = fma(by_noise, n, by_mu * m);
            });
        }
    }

    // How many draws of a row are taken at a time: lane i takes the partial derivatives of row i / chunk, draw i % chunk.
    static __device__ inline int chunk(const SampleArgs& args) { return int(args.draws < WARP ? args.draws : WARP); }
    template <typename T>
    static __device__ inline int rows_at_once(const SampleArgs& args, const Team<T>&) {
        return int(args.tile < WARP / chunk(args) ? args.tile : WARP / chunk(args));
    }

    template <typename T, typename Addresses, typename Weights>
    static __device__ inline void backward(const SampleArgs& args, const Addresses& addresses, const Order& order,
                                           const Team<T>& team, int64_t first, int count, T* memory,
                                           const Weights& weights, T* all_by_mu, T* all_by_kappa) {
        const int lane = threadIdx.x % WARP, chunk = VmfSampler::chunk(args);
        for (int64_t draw = 0; draw < args.draws; draw += chunk) {
            const int here = int(args.draws - draw < chunk ? args.draws - draw : chunk);
            T mine[4] = {0, 0, 0, 0};
            if (lane < count * chunk && lane % chunk < here) {
                const int64_t row = first + lane / chunk;
                const double kappa = double(row_of<T>(args.uncertainty, row)[0]);
                const Address address = addresses(row, draw + lane % chunk);
                const HeightPartials partials(order, team.dim, kappa, address, sizeof(T) == 4);
                // s is 0 only where kappa is infinite; there dw is 0 too.
                mine[0] = T(partials.w), mine[1] = T(partials.s);
                mine[2] = partials.s == 0 ? T(0) : T(partials.w / partials.s);
                mine[3] = T(partials.by_kappa);
            }
            for (int from = 0; from < count; from += team.together()) {
                const bool valid = from + team.number < count;
                const int i = valid ? from + team.number : from;
                const int64_t row = first + i;
                const T* const mu = row_of<T>(args.mu, row);
                T* const by_mu = all_by_mu + row * team.dim;
                T* const by_kappa = all_by_kappa + row;
                T total = draw == 0 ? T(0) : *by_kappa;
                for (int j = 0; j < here; ++j) {
                    T its[4];
                    for (int k = 0; k < 4; ++k) its[k] = __shfl_sync(FULL, mine[k], i * chunk + j);
                    const Address address = addresses(row, draw + j);
                    const Noise<T> noise = {team, address, memory, int(args.cached_steps)};
                    total += add_vmf_gradient<T>(noise, mu, weights(row, draw + j), its[0], its[1], its[2], its[3],
                                                 draw + j == 0, valid, by_mu);
                }
                if (valid && team.me == 0) *by_kappa = total;
            }
        }
    }
};
