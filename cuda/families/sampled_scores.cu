// Scores that compare draws: each item is drawn n times, and the draws of two items are compared (formulas/comparisons.cuh).
//
// Draws are those of the samplers: the key is the seed, the row the item's number in its distribution, the stream its side. So a pair has
// the same draws in every verb. Where the caller gives memory, they are made once for a call; else the warp that computes a pair draws both
// items, and the query once for consecutive pairs. The numbers of a class alone, which densities take, are made in the same way. Gradients
// are those of the drawn score: by each draw, then through the sampler.
//
// Of all pairs, a library multiplies the draws of both sides, and a kernel here folds a tile of products into scores, or replaces them by
// the factors of which the library makes gradients by draws. A pair of items in which two draws are so near each other that their
// product lacks digits (drivers/products.cuh) is compared by its draws themselves.

#include "../drivers/backward.cuh"
#include "../drivers/samplers.cuh"
#include "../formulas/comparisons.cuh"

using DrawnArgs = With<PairArgs, DrawingArgs>;
using DrawnBackwardArgs = With<BackwardArgs, DrawingArgs>;
using DrawnPerItemArgs = With<PerItemArgs, DrawingArgs>;

constexpr int DRAWN_WARPS = SAMPLER_THREADS / WARP;

// The sampler of an item that is itself its only draw.
struct Itself {
    static constexpr bool RANDOM = false;
};

// The arguments of a sampler of a side's items.
__device__ inline SampleArgs items_of(const PairArgs& args, const DrawingArgs& drawing, bool query) {
    const DeviceMatrix &mu = query ? args.mu1 : args.mu2, &uncertainty = query ? args.uncertainty1 : args.uncertainty2;
    const int side = query ? QUERY : GALLERY;  // also the number of its stream
    return {mu, uncertainty, drawing.seed, 0, side, drawing.draws, WARP, drawing.cached_steps, drawing.made[side]};
}

// The draws of an item that are in memory: those made for the call, or the item itself.
template <typename Sampler, typename T>
__device__ inline Draws<T> stored(const SampleArgs& items, int64_t row, T* summary) {
    const int64_t dim = items.mu.stored;
    if (!Sampler::RANDOM) return {row_of<T>(items.mu, row), 1, summary, dim};
    return {static_cast<const T*>(items.out) + row * dim, int(items.draws), summary, items.mu.rows * dim};
}

// The draws of an item: those in memory, or new ones, which the warp writes to its `workspace` of D (n + 1) numbers.
template <typename Sampler, typename T>
__device__ __noinline__ Draws<T> drawn(const SampleArgs& items, int64_t row, T* normals, T* workspace) {
    const int64_t dim = items.mu.stored;
    if constexpr (Sampler::RANDOM) {
        if (items.out) return stored<Sampler>(items, row, workspace);
        // The keys are made anew for each draw: if they were kept, the comparison would have fewer registers.
        const auto addresses = [&](int64_t i, int64_t draw) { return address_of(items, Keys(*items.seed), i, draw); };
        const Team<T> team(dim);
        T* const z = workspace + dim;
        __syncwarp();
        for (int64_t first = 0; first < items.draws; first += WARP) {
            const int64_t left = items.draws - first;
            const SampleTile tile(items, row * items.draws + first, left < WARP ? left : WARP);
            const auto out = [&](const RowAndDraw& pair) { return z + pair.draw * dim; };
            Sampler::draw(items, addresses, team, tile, normals, out);
        }
        __syncwarp();
        return {z, int(items.draws), workspace, dim};
    } else {
        return stored<Sampler>(items, row, workspace);
    }
}

// The numbers per gallery item, or null where no memory was given for them.
__device__ inline const PerItemShape* per_item_of(const PairArgs& args, int64_t row) {
    const PerItemShape* const all = static_cast<const PerItemShape*>(args.per_item[GALLERY]);
    return all ? all + row : nullptr;
}

// The workspace of the block.
template <typename T>
__device__ inline T* block_workspace(const DrawingArgs& drawing, T* shared) {
    if (drawing.workspace) return static_cast<T*>(drawing.workspace) + blockIdx.x * drawing.stride;
    return shared + DRAWN_WARPS * drawing.cached_steps * Normals<T>::EACH * WARP;
}

// Writes the scores of all pairs that `args.pairs` says. A warp's workspace is D (n + 1) numbers for each side.
template <typename T, typename Comparison, typename P, typename R>
__device__ void score_drawn(const DrawnArgs& all) {
    DYNAMIC_SHARED(T, shared);
    const PairArgs& args = all.args;
    const DrawingArgs& drawing = all.more;
    const int64_t dim = args.mu1.stored, numbers = (drawing.draws + 1) * dim;
    T* const normals = memory_of_normals(shared, drawing.cached_steps);
    T* const workspace = block_workspace(drawing, shared) + warp() * 2 * numbers;
    const SampleArgs queries = items_of(args, drawing, true), gallery = items_of(args, drawing, false);
    const Comparison comparison(args, drawing);

    const bool paired = args.pairs == PAIRED, listed = args.pairs == LISTED;
    const int64_t rows = paired ? 1 : args.mu1.rows, columns = listed ? args.candidates.stored : args.mu2.rows;
    const int64_t parts = (columns + drawing.columns - 1) / drawing.columns, warps = int64_t(gridDim.x) * DRAWN_WARPS;
    for (int64_t part = int64_t(blockIdx.x) * DRAWN_WARPS + warp(); part < rows * parts; part += warps) {
        const int64_t row = part / parts, first = part % parts * drawing.columns;
        const int64_t left = columns - first, count = left < drawing.columns ? left : drawing.columns;
        DrawnPair<T> pair{dim, {}, {}, nullptr, args.uncertainty2.stored, nullptr};
        int64_t drawn_query = NONE;
        // Each lane has a pair; the warp compares those that there are, one after another.
        const bool mine = lane() < count;
        const int64_t column = first + lane();
        const int64_t id = !mine ? NONE : listed ? row_of<int64_t>(args.candidates, row)[column] : column;
        T score = id == NONE ? -INFINITY : NAN;
        for (unsigned left = __ballot_sync(FULL, id >= 0 && id < args.mu2.rows); left; left &= left - 1) {
            const int source = __ffs(int(left)) - 1;
            const int64_t q = paired ? first + source : row, g = __shfl_sync(FULL, id, source);
            if (q != drawn_query) {
                pair.query = drawn<P>(queries, q, normals, workspace);
                comparison.summarise(dim, pair.query);
                drawn_query = q;
            }
            pair.gallery = drawn<R>(gallery, g, normals, workspace + numbers);
            comparison.summarise(dim, pair.gallery);
            pair.uncertainty = row_of<T>(args.uncertainty2, g), pair.shape = per_item_of(args, g);
            const T found = T(comparison.value(pair));
            if (lane() == source) score = found;
        }
        if (mine) static_cast<T*>(args.scores)[row * columns + column] = score;
    }
}

// Takes the gradients by the draws of an item, `stride` from draw to draw, through the sampler to its mean and uncertainty.
template <typename ItemSampler, typename T>
__device__ inline void through_sampler(const DrawnBackwardArgs& all, const SampleArgs& items, int64_t row, T* normals,
                                       const T* draws, int64_t stride, const T* uncertainty) {
    const int64_t dim = items.mu.stored;
    T* const by_mu = static_cast<T*>(all.args.mu);
    T* const by_uncertainty = static_cast<T*>(all.args.uncertainty);
    if constexpr (ItemSampler::RANDOM) {
        const auto addresses = [&](int64_t i, int64_t draw) { return address_of(items, Keys(*items.seed), i, draw); };
        const auto weights = [&](int64_t, int64_t draw) { return draws + draw * stride; };
        const auto& order = all.more.orders.ratio;
        ItemSampler::backward(items, addresses, order, Team<T>(dim), row, 1, normals, weights, by_mu, by_uncertainty);
    } else {
        T sum = 0;
        for (int64_t d = lane(); d < dim; d += WARP) {
            by_mu[row * dim + d] = draws[d];
            if (items.uncertainty.stored > 1) by_uncertainty[row * dim + d] = uncertainty[d];
            sum += uncertainty[d];
        }
        sum = warp_sum(sum);
        if (items.uncertainty.stored == 1 && lane() == 0) by_uncertainty[row] = sum;
    }
}

// Adds the gradients of those of an item's n pairs that are the warp's. Each lane looks at one, and the warp takes those that add
// something, one after another.
template <typename T, typename OtherSampler, typename Comparison>
__device__ inline void add_pairs(const DrawnBackwardArgs& all, const Comparison& comparison, bool query, int64_t item, int64_t n,
                                 const Draws<T>& draws, const SampleArgs& other_items, T* normals, T* others,
                                 DrawnGradient<T>& out) {
    const PairArgs& args = all.args.pairs;
    const int64_t dim = args.mu1.stored;
    for (int64_t first = warp(); first < n; first += DRAWN_WARPS * WARP) {
        const int64_t i = first + lane() * DRAWN_WARPS;
        T mine = 0;
        const int64_t with = i < n ? other_item<T>(all.args, item, i, &mine) : NONE;
        for (unsigned left = __ballot_sync(FULL, with >= 0); left; left &= left - 1) {
            const int source = __ffs(int(left)) - 1;
            const int64_t other = __shfl_sync(FULL, with, source), g = query ? other : item;
            const T weight = __shfl_sync(FULL, mine, source);
            const Draws<T> drawn_other = drawn<OtherSampler>(other_items, other, normals, others);
            comparison.summarise(dim, drawn_other);
            const DrawnPair<T> pair{dim, query ? draws : drawn_other, query ? drawn_other : draws,
                                    row_of<T>(args.uncertainty2, g), args.uncertainty2.stored, per_item_of(args, g)};
            comparison.backward(query, pair, double(weight), out);
        }
    }
}

// Writes the gradients of all items of the side. A block takes one of them, then the one gridDim.x further on, and its
// warps share the item's pairs. The block's workspace is D (n + 1) numbers for the item's draws, then for each warp as
// many for another item's draws and as many for sums, those by the uncertainty before those by the draws.
template <typename T, typename Comparison, typename ItemSampler, typename OtherSampler>
__device__ void backward_drawn(const DrawnBackwardArgs& all, bool query) {
    __shared__ double parts[DRAWN_WARPS][2];
    DYNAMIC_SHARED(T, shared);
    const PairArgs& args = all.args.pairs;
    const DrawingArgs& drawing = all.more;
    const int64_t dim = args.mu1.stored, numbers = (drawing.draws + 1) * dim;
    T* const normals = memory_of_normals(shared, drawing.cached_steps);
    T* const block = block_workspace(drawing, shared);
    T* const others = block + numbers + warp() * 2 * numbers;
    const SampleArgs items = items_of(args, drawing, query), other_items = items_of(args, drawing, !query);
    const Comparison comparison(args, drawing);

    for (int64_t item = blockIdx.x; item < items.mu.rows; item += gridDim.x) {
        const T* const of_products = static_cast<const T*>(drawing.by_draws) + item * dim;
        T* const shared_numbers = static_cast<T*>(all.args.shared) + item * args.shared.stored;
        const bool sums_shared = all.args.shared && int64_t(threadIdx.x) < args.shared.stored;
        const int64_t n = args.pairs == MARKED && !is_marked(all.args, item) ? 0 : number_of_pairs(all.args, item);
        if (ItemSampler::RANDOM && drawing.by_draws && n == 0) {  // products left nothing to add
            if (sums_shared) shared_numbers[threadIdx.x] = 0;
            if (warp() == 0) {
                through_sampler<ItemSampler, T>(all, items, item, normals, of_products, items.mu.rows * dim, nullptr);
            }
            continue;
        }
        T* const sums = others + numbers;
        for (int64_t i = lane(); i < numbers; i += WARP) sums[i] = 0;
        __syncwarp();
        DrawnGradient<T> out{sums + dim, sums, {0, 0}};
        // All warps read the item's draws; one warp makes them, unless they were made for the call.
        Draws<T> draws{block + dim, int(drawing.draws), block, dim};
        if (!ItemSampler::RANDOM || items.out) {
            draws = drawn<ItemSampler>(items, item, normals, block);
        } else if (warp() == 0) {
            drawn<ItemSampler>(items, item, normals, block);
        }
        __syncthreads();
        add_pairs<T, OtherSampler>(all, comparison, query, item, n, draws, other_items, normals, others, out);
        for (int s = 0; s < 2; ++s) {
            const double sum = warp_sum(out.shared[s]);
            if (lane() == 0) parts[warp()][s] = sum;
        }
        __syncthreads();
        T* const first = block + 2 * numbers;
        for (int64_t i = threadIdx.x; i < numbers; i += SAMPLER_THREADS) {
            for (int w = 1; w < DRAWN_WARPS; ++w) first[i] += first[i + w * 2 * numbers];
            // An item that is not drawn has one row of them.
            const bool has = drawing.by_draws && i >= dim && i < (ItemSampler::RANDOM ? numbers : 2 * dim);
            if (has) first[i] += of_products[(i / dim - 1) * items.mu.rows * dim + i % dim];
        }
        if (sums_shared) {
            double sum = 0;
            for (int w = 0; w < DRAWN_WARPS; ++w) sum += parts[w][threadIdx.x];
            shared_numbers[threadIdx.x] = T(sum);
        }
        __syncthreads();
        if (warp() == 0) through_sampler<ItemSampler>(all, items, item, normals, first + dim, dim, first);
        __syncthreads();
    }
}

template <typename T, typename Comparison, typename P, typename R>
__device__ void backward_drawn(const DrawnBackwardArgs& all) {
    if (all.args.side == QUERY) {
        backward_drawn<T, Comparison, P, R>(all, true);
    } else {
        backward_drawn<T, Comparison, R, P>(all, false);
    }
}

// -- all pairs, by products -------------------------------------------------------------------------------------------

using DrawnProductArgs = With<ProductArgs, DrawingArgs>;

// Calls body(products, q, g, there) for the pairs of a tile: a block takes PRODUCT_ROWS queries, its warps in turn, and a gallery item a
// lane, if it is there.
template <typename T, typename P, typename R, typename Body>
__device__ inline void each_drawn_pair(const DrawnProductArgs& all, const Body& body) {
    const ProductArgs& args = all.args;
    const PairArgs& pairs = args.pairs;
    const int64_t rows = pairs.end - pairs.begin, column = int64_t(blockIdx.x) * WARP + lane();
    const int64_t at = column < rows ? column : rows - 1, g = pairs.begin + at;
    const auto norm = [&](int side, int64_t row) { return args.norms[side] ? static_cast<const T*>(args.norms[side]) + row : nullptr; };
    for (int i = warp(); i < PRODUCT_ROWS; i += int(blockDim.x) / WARP) {
        const int64_t row = int64_t(blockIdx.y) * PRODUCT_ROWS + i, q = args.first + row, place = row * args.stride + at;
        if (row >= args.queries) break;
        T* const squares = args.squares ? static_cast<T*>(args.squares) + place : nullptr;
        const int draws = int(all.more.draws);
        const DrawProducts<T> products{pairs.mu1.stored, args.queries * args.stride, rows, P::RANDOM ? draws : 1, R::RANDOM ? draws : 1,
                                       static_cast<T*>(args.products) + place, squares, {norm(QUERY, q), norm(GALLERY, g)},
                                       {pairs.mu1.rows, pairs.mu2.rows}, per_item_of(pairs, g)};
        body(products, q, g, column < rows);
    }
}

// The score of a pair by its draws themselves, which have been made.
template <typename T, typename Comparison, typename P, typename R>
__device__ __noinline__ T score_of_draws(const DrawnProductArgs& all, const Comparison& comparison, int64_t q, int64_t g) {
    const PairArgs& args = all.args.pairs;
    const auto of = items_of(args, all.more, true), with = items_of(args, all.more, false);
    const DrawnPair<T> pair{args.mu1.stored, stored<P, T>(of, q, nullptr), stored<R, T>(with, g, nullptr),
                            row_of<T>(args.uncertainty2, g), args.uncertainty2.stored, per_item_of(args, g)};
    return T(comparison.value(pair));
}

// Writes the scores of the pairs of a tile.
template <typename T, typename Comparison, typename P, typename R>
__device__ void scores_of_draws(const DrawnProductArgs& all) {
    const PairArgs& args = all.args.pairs;
    const Comparison comparison(args, all.more);
    each_drawn_pair<T, P, R>(all, [&](const DrawProducts<T>& products, int64_t q, int64_t g, bool there) {
        const auto total = comparison.total(products);
        T score = total.sum == total.sum ? T(comparison.score(total, products)) : T(0);
        for (unsigned left = __ballot_sync(FULL, there && total.sum != total.sum); left; left &= left - 1) {
            const int source = __ffs(int(left)) - 1;
            const T exact = score_of_draws<T, Comparison, P, R>(all, comparison, q, __shfl_sync(FULL, g, source));
            if (lane() == source) score = exact;
        }
        if (there) static_cast<T*>(args.scores)[q * args.mu2.rows + g] = score;
    });
}

// Writes factors in the place of the products of a tile, the masks of the pairs that are left to backward_drawn, whose factors are 0,
// and the sums over draws.
template <typename T, typename Comparison, typename P, typename R>
__device__ void weights_of_draws(const DrawnProductArgs& all) {
    DYNAMIC_SHARED(T, shared);  // the sums over the queries of each warp
    __shared__ uint32_t near_of[PRODUCT_ROWS];
    const ProductArgs& args = all.args;
    const int64_t gallery = args.pairs.mu2.rows, words = (gallery + WARP - 1) / WARP, tile = args.first / PRODUCT_ROWS + blockIdx.y;
    const int64_t column = args.pairs.begin + int64_t(blockIdx.x) * WARP + lane(), word = column / WARP;
    const int m = R::RANDOM ? int(all.more.draws) : 1, warps = int(blockDim.x) / WARP;
    const Comparison comparison(args.pairs, all.more);
    for (int j = 0; j < m; ++j) shared[(warp() * m + j) * WARP + lane()] = 0;
    if (threadIdx.x < PRODUCT_ROWS) near_of[threadIdx.x] = 0;
    __syncthreads();
    double by_line[2] = {};
    each_drawn_pair<T, P, R>(all, [&](const DrawProducts<T>& products, int64_t q, int64_t g, bool there) {
        const double weight = there ? double(static_cast<const T*>(args.weights)[q * gallery + g]) : 0;
        const auto total = comparison.total(products);
        // A weight of 0 adds nothing even where derivatives are NaN or infinite.
        const bool near = weight != 0 && total.sum != total.sum, counts = weight != 0 && !near;
        const auto scale = comparison.scale(total, products, weight);
        const uint32_t all_near = __ballot_sync(FULL, near);
        if (lane() == 0) args.marks[QUERY][q * words + word] = near_of[q % PRODUCT_ROWS] = all_near;
        for (int i = 0; i < products.n; ++i) {
            T sum = 0, lines[2] = {};
            for (int j = 0; j < m; ++j) {
                T counted = 0;
                if (counts) {
                    counted = comparison.weigh(products, i, j, total, scale, lines);
                } else if (there) {
                    products.products[products.at(i, j)] = 0;
                    if (products.squares) products.squares[products.at(i, j)] = 0;
                }
                sum += counted, shared[(warp() * m + j) * WARP + lane()] += counted;
            }
            for (int s = 0; s < 2; ++s) by_line[s] += lines[s];
            if (!args.rows) continue;
            sum = warp_sum(sum);
            if (lane() == 0) args.rows[(word * products.n + i) * args.pairs.mu1.rows + q] = sum;
        }
    });
    __syncthreads();
    if (column < args.pairs.end) {
        for (int j = warp(); j < m; j += warps) {
            double sum = 0;
            for (int w = 0; w < warps; ++w) sum += shared[(w * m + j) * WARP + lane()];
            args.columns[(tile * m + j) * gallery + column] = sum;
        }
        uint32_t marks = 0;
        for (int i = 0; i < PRODUCT_ROWS; ++i) marks |= (near_of[i] >> lane() & 1) << i;
        if (warp() == 0) args.marks[GALLERY][tile * gallery + column] = marks;
    }
    for (int s = 0; args.by_line && s < 2; ++s) {
        const double sum = warp_sum(by_line[s]);
        if (lane() == 0) args.by_line[((tile * words + word) * warps + warp()) * 2 + s] = sum;
    }
}

#define DRAWN(op, Comparison, P, R)                                                                               \
    KERNEL(op##_pairs_f32, DrawnArgs, SAMPLER_THREADS) { score_drawn<float, Comparison(float), P, R>(args); }       \
    KERNEL(op##_pairs_f64, DrawnArgs, SAMPLER_THREADS) { score_drawn<double, Comparison(double), P, R>(args); }     \
    KERNEL(op##_backward_f32, DrawnBackwardArgs, SAMPLER_THREADS) {                                                 \
        backward_drawn<float, Comparison(float), P, R>(args);                                                     \
    }                                                                                                             \
    KERNEL(op##_backward_f64, DrawnBackwardArgs, SAMPLER_THREADS) {                                                 \
        backward_drawn<double, Comparison(double), P, R>(args);                                                   \
    }

#define MEAN_COSINE(T) MeanCosine<T>
#define MEAN_DISTANCE(T) ByDistances<T, MeanDistance>
#define MATCH(T) ByDistances<T, MatchOfDraws>
#define DENSITY(T) Density<T, true, EXACT>
#define PAPER_DENSITY(T) Density<T, true, PAPER>
#define PUBLISHED_DENSITY(T) Density<T, true, PUBLISHED>
#define PUBLISHED_LIKELIHOOD(T) Density<T, false, PUBLISHED>

#define OF_PRODUCTS(op, driver, T, types, Comparison, P, R) \
    KERNEL(op##_##driver##_##types, DrawnProductArgs, FOLD_THREADS, 1) { driver##_of_draws<T, Comparison(T), P, R>(args); }
#define DRAWN_PRODUCTS(op, Comparison, P, R)                  \
    DRAWN(op, Comparison, P, R)                               \
    OF_PRODUCTS(op, scores, float, f32, Comparison, P, R)     \
    OF_PRODUCTS(op, scores, double, f64, Comparison, P, R)    \
    OF_PRODUCTS(op, weights, float, f32, Comparison, P, R)    \
    OF_PRODUCTS(op, weights, double, f64, Comparison, P, R)

DRAWN(sampled_cosine_normal, MEAN_COSINE, NormalSampler, NormalSampler)
DRAWN(sampled_cosine_vmf, MEAN_COSINE, VmfSampler, VmfSampler)
DRAWN(sampled_cosine_vmf_point, MEAN_COSINE, VmfSampler, Itself)
DRAWN(sampled_cosine_point_vmf, MEAN_COSINE, Itself, VmfSampler)
DRAWN_PRODUCTS(neg_sampled_l2_normal, MEAN_DISTANCE, NormalSampler, NormalSampler)
DRAWN_PRODUCTS(neg_sampled_l2_vmf, MEAN_DISTANCE, VmfSampler, VmfSampler)
DRAWN_PRODUCTS(neg_sampled_l2_vmf_point, MEAN_DISTANCE, VmfSampler, Itself)
DRAWN_PRODUCTS(neg_sampled_l2_point_vmf, MEAN_DISTANCE, Itself, VmfSampler)
DRAWN_PRODUCTS(hib_sampled, MATCH, NormalSampler, NormalSampler)
DRAWN_PRODUCTS(el_nivmf, DENSITY, VmfSampler, Itself)
DRAWN_PRODUCTS(el_nivmf_paper, PAPER_DENSITY, VmfSampler, Itself)
DRAWN_PRODUCTS(el_nivmf_published, PUBLISHED_LIKELIHOOD, VmfSampler, Itself)
DRAWN_PRODUCTS(nivmf, DENSITY, Itself, Itself)
DRAWN_PRODUCTS(nivmf_paper, PAPER_DENSITY, Itself, Itself)
DRAWN_PRODUCTS(nivmf_published, PUBLISHED_DENSITY, Itself, Itself)

// Writes what is made of each of the gallery's items alone. A warp takes an item.
template <typename T, typename Comparison>
__device__ void make_per_item(const DrawnPerItemArgs& all) {
    const PairArgs& args = all.args.pairs;
    const int64_t dim = args.mu2.stored, warps = int64_t(gridDim.x) * DRAWN_WARPS;
    const Comparison comparison(args, all.more);
    for (int64_t g = int64_t(blockIdx.x) * DRAWN_WARPS + warp(); g < args.mu2.rows; g += warps) {
        const Draws<T> itself{row_of<T>(args.mu2, g), 1, nullptr, dim};
        const DeviceMatrix& kappa = args.uncertainty2;
        const DrawnPair<T> pair{dim, itself, itself, row_of<T>(kappa, g), kappa.stored, nullptr};
        const PerItemShape shape = comparison.shape(pair, all.args.partials);
        if (lane() == 0) static_cast<PerItemShape*>(args.per_item[GALLERY])[g] = shape;
    }
}
#define PER_ITEM(op, Comparison)                                                                           \
    KERNEL(op##_per_item_f32, DrawnPerItemArgs, SAMPLER_THREADS) { make_per_item<float, Comparison(float)>(args); }   \
    KERNEL(op##_per_item_f64, DrawnPerItemArgs, SAMPLER_THREADS) { make_per_item<double, Comparison(double)>(args); }
PER_ITEM(el_nivmf, DENSITY)
PER_ITEM(el_nivmf_paper, PAPER_DENSITY)
PER_ITEM(el_nivmf_published, PUBLISHED_LIKELIHOOD)
PER_ITEM(nivmf, DENSITY)
PER_ITEM(nivmf_paper, PAPER_DENSITY)
PER_ITEM(nivmf_published, PUBLISHED_DENSITY)
