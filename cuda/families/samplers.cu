// Draws of normal and von Mises-Fisher distributions, with exact reparametrised gradients, as in
// rust/kernels/samplers.rs. Random numbers have the same addresses, so draws agree with the CPU's to rounding, and
// gradients make them again instead of storing them.
// - Normal: x = mu + sqrt(var) n.
// - von Mises-Fisher: x = w mu + sqrt(1 - w^2) p/|p|, p = n - (n.mu) mu, with w = x.mu of
//   numerics/wood.cuh. Its gradient in kappa is the implicit one of w (Figurnov et al., NeurIPS 2018), in mu that of
//   this form.
#include "../drivers/samplers.cuh"

__device__ inline int64_t warp_of_grid() { return (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WARP; }
__device__ inline int64_t warps_of_grid() { return int64_t(gridDim.x) * blockDim.x / WARP; }

template <typename Sampler, typename T>
__device__ inline void sample(const SampleArgs& args) {
    DYNAMIC_SHARED(T, shared);
    const Keys keys = Keys(*args.seed).kept();
    const auto addresses = [&](int64_t row, int64_t draw) { return address_of(args, keys, row, draw); };
    const Team<T> team(args.mu.stored);
    // As many draws as a warp has teams, so that none is idle.
    const int64_t pairs = args.mu.rows * args.draws, most = args.tile > team.together() ? args.tile : team.together();
    for (int64_t first = warp_of_grid() * most; first < pairs; first += warps_of_grid() * most) {
        const SampleTile tile(args, first, most);
        T* const normals = memory_of_normals(shared, args.cached_steps);
        Sampler::draw(args, addresses, team, tile, normals, [&](const RowAndDraw& pair) {
            return static_cast<T*>(args.out) + (pair.draw * args.mu.rows + pair.row) * team.dim;
        });
    }
}

template <typename Sampler, typename T>
__device__ inline void sample_backward(const SampleBackwardArgs& all) {
    DYNAMIC_SHARED(T, shared);
    const SampleArgs& args = all.items;
    const Keys keys = Keys(*args.seed).kept();
    const auto addresses = [&](int64_t row, int64_t draw) { return address_of(args, keys, row, draw); };
    const Team<T> team(args.mu.stored);
    const int64_t rows = args.mu.rows;
    const auto weights = [&](int64_t row, int64_t draw) {
        return static_cast<const T*>(all.weights) + (draw * rows + row) * team.dim;
    };
    const int most = Sampler::rows_at_once(args, team);
    for (int64_t first = warp_of_grid() * most; first < rows; first += warps_of_grid() * most) {
        const int count = int(rows - first < most ? rows - first : most);
        T* const normals = memory_of_normals(shared, args.cached_steps);
        Sampler::backward(args, addresses, all.order, team, first, count, normals, weights,
                          static_cast<T*>(all.by_mu), static_cast<T*>(all.by_uncertainty));
    }
}

#define SAMPLER_OF(name, Sampler, T, types, blocks, backward_blocks)                                               \
    KERNEL(name##_##types, SampleArgs, SAMPLER_THREADS, blocks) { sample<Sampler, T>(args); }                     \
    KERNEL(name##_backward_##types, SampleBackwardArgs, SAMPLER_THREADS, backward_blocks) { sample_backward<Sampler, T>(args); }
#define SAMPLER(name, Sampler)                                                            \
    SAMPLER_OF(name, Sampler, float, f32, SAMPLE_BLOCKS_F32, GRADIENT_BLOCKS_F32)         \
    SAMPLER_OF(name, Sampler, double, f64, SAMPLE_BLOCKS_F64, GRADIENT_BLOCKS_F64)
SAMPLER(sample_normal, NormalSampler)
SAMPLER(sample_vmf, VmfSampler)
