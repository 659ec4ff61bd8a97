// GENERATED from rust/cuda/arguments.rs, constants.rs and rust/special/bessel/order.rs; do not edit. To write it anew:
// PEACCEL_WRITE=1 cargo test arguments
#pragma once

#include <stdint.h>

// Threads of a warp.
constexpr int WARP = 32;
// The side of the queries.
constexpr int QUERY = 0;
// The side of the gallery.
constexpr int GALLERY = 1;
// The pairs of query i and gallery row i.
constexpr int PAIRED = 0;
// The pairs of each query and each gallery row.
constexpr int PAIRWISE = 1;
// The pairs of each query and its candidates.
constexpr int LISTED = 2;
// The pairs of which a mask has a bit.
constexpr int MARKED = 3;
// The most items of a query that rerank, search and top-k return.
constexpr int BEST = 1024;
// The most float64 numbers that a family makes of an item alone.
constexpr int PER_ITEM_NUMBERS = 3;
// Threads of a block that scores pairs one by one, or adds up gradients.
constexpr int PAIR_THREADS = 128;
// Threads of a block of a search.
constexpr int SEARCH_THREADS = 256;
// Dimensions that a block of a search loads at a time.
constexpr int SEARCH_STEP = 128;
// Gallery rows that a block of a search loads at a time.
constexpr int SEARCH_ROWS = 8;
// Queries of a block of a search that computes in float32.
constexpr int SEARCH_QUERIES_F32 = 16;
// Queries of a block of a search that computes in float64.
constexpr int SEARCH_QUERIES_F64 = 8;
// The most gallery rows that a block of a search scores at a time, so the most items that it adds to a list at a time.
constexpr int SEARCH_GROUP = 32;
// Gallery rows of a block that reads products, one a thread.
constexpr int PRODUCT_COLUMNS = 128;
// Times as many of a block of a sieve.
constexpr int SIEVE_COLUMNS = 4;
// Queries of a block that reads products: the bits of a mask.
constexpr int PRODUCT_ROWS = 32;
// Rows whose mean is subtracted from all before they are multiplied, where that changes no score.
constexpr int CENTRE_ROWS = 8;
// The most threads of a block that reads products of draws.
constexpr int FOLD_THREADS = 1024;
// Threads of a block that selects the best of given scores.
constexpr int TOPK_THREADS = 256;
// Threads of a block that computes elements.
constexpr int ELEMENT_THREADS = 256;
// Pieces of a function's table: 64 of each octave.
constexpr int TABLE_PIECES = 1664;
// The most bytes of the table of a function for one order.
constexpr int TABLE_BYTES = 32768;
// Threads of a block that draws, or compares draws.
constexpr int SAMPLER_THREADS = 128;
// Blocks that draw in float32 and fit on a multiprocessor: registers are dealt out for so many, and launches have no more.
constexpr int SAMPLE_BLOCKS_F32 = 8;
// In float64.
constexpr int SAMPLE_BLOCKS_F64 = 6;
// Of those that take gradients through draws in float32.
constexpr int GRADIENT_BLOCKS_F32 = 5;
// In float64.
constexpr int GRADIENT_BLOCKS_F64 = 4;
// float32 normals that a block of random words gives.
constexpr int NORMALS_F32 = 4;
// Blocks of random words whose float32 normals are interleaved.
constexpr int RUN_F32 = 16;
// float64 normals that a block of random words gives.
constexpr int NORMALS_F64 = 2;
// Blocks of random words whose float64 normals are interleaved.
constexpr int RUN_F64 = 8;

// Everything that depends on the order v alone; takes most of a microsecond to make.
struct Order {
    // v, or NaN outside the domain.
    double v;
    // v + 3.25.
    double w;
    // Pairs in use in each series.
    int64_t pairs;
    // Coefficients, by powers of u, of (P - P at x = 0) / (u - 1) and of the first three derivatives of P in t.
    double series[4][24][2];
    // 1/w.
    double inverse;
    // P at x = 0 - log(2 pi w)/2.
    double constant;
    // w + constant: the limit of log(I_v(x) e^-x) - v log(x/2w) at x = 0.
    double limit;
};
static_assert(sizeof(Order) == 1584);

// The orders of the Bessel functions that densities of von Mises-Fisher distributions in D dimensions call.
struct TwoOrders {
    // D/2 - 1, of the normaliser.
    Order normaliser;
    // D/2, of the mean direction's length.
    Order ratio;
};
static_assert(sizeof(TwoOrders) == 3168);

// A read-only matrix: rows `stride` elements apart, of which `stored` elements each are in memory. A constant row
// stores one element, which stands for all of the row.
struct DeviceMatrix {
    // Address of the first element.
    const void* data;
    // Number of rows.
    int64_t rows;
    // Number of elements stored of each row.
    int64_t stored;
    // Number of elements from the beginning of a row to that of the next one.
    int64_t stride;
};
static_assert(sizeof(DeviceMatrix) == 32);

// The arguments of every kernel of a score; each reads the fields that concern it. T is the type that is computed in, S
// that of the stored gallery: T, float16 or bfloat16.
struct PairArgs {
    // T [Q, D], the queries' means.
    DeviceMatrix mu1;
    // T [Q, 1] or [Q, D], the queries' uncertainties.
    DeviceMatrix uncertainty1;
    // S [G, D], the gallery's means.
    DeviceMatrix mu2;
    // S [G, 1] or [G, D], the gallery's uncertainties.
    DeviceMatrix uncertainty2;
    // T [1, 0], [1, 1], [1, 2] or [1, D], the numbers that all pairs share.
    DeviceMatrix shared;
    // int64 [Q, K], the candidates of each query: rows of the gallery, or -1 for none.
    DeviceMatrix candidates;
    // Not 0 where uncertainty2 holds T though mu2 holds halves.
    int64_t wide_uncertainty2;
    // Which pairs are scored: PAIRED, PAIRWISE, LISTED or MARKED.
    int64_t pairs;
    // How many items of each query are wanted; 0 in a search that writes all scores.
    int64_t k;
    // Items that a list of the best has memory for: a power of two.
    int64_t capacity;
    // Search: not 0 where shared memory holds all dimensions of a block's queries.
    int64_t resident;
    // T, written: the scores of all pairs, [N], [Q, G] or [Q, K], or of the best, [Q, k] or [Q, shards, k].
    void* scores;
    // The rows of the best, of the same shape.
    int64_t* ids;
    // Sieve, and rerank of its survivors: the first of the rows that it tests.
    int64_t begin;
    // The end of those rows.
    int64_t end;
    // Sieve and rerank: the survivors of a query that there is memory for.
    int64_t most_survivors;
    // Sieve: [Q, most_survivors], written, the rows that may be among the best. Rerank: candidates in place of
    // `candidates`, unless it is null.
    int32_t* survivors;
    // [Q], the number of survivors of each query. More than `most_survivors` stand for all rows from `begin` to `end`.
    int32_t* counts;
    // Rerank: [Q, k], rows that are candidates beside the survivors; null where there are none.
    const int64_t* known;
    // Search: T [queries of all blocks, capacity], the scores of the lists; null where shared memory holds them.
    void* list_scores;
    // Search: the rows of the lists, of the same shape.
    int64_t* list_ids;
    // By side, float64 [N, PER_ITEM_NUMBERS], what the family makes of each item alone; null where each pair makes it
    // anew.
    void* per_item[2];
};
static_assert(sizeof(PairArgs) == 328);

// The arguments of a kernel that fills `pairs.per_item` of one side.
struct PerItemArgs {
    // The inputs, and where the numbers go.
    PairArgs pairs;
    // Whose numbers: QUERY or GALLERY.
    int64_t side;
    // Not 0 where the numbers are for gradients.
    int64_t partials;
};
static_assert(sizeof(PerItemArgs) == 344);

// The arguments of a kernel that adds up the gradients of one side, whose items the kernel goes through. The gallery holds
// T.
struct BackwardArgs {
    // The inputs, the candidates and which pairs.
    PairArgs pairs;
    // The side: QUERY or GALLERY.
    int64_t side;
    // T, the weight of each score, of the scores' shape.
    const void* weights;
    // [G + 1], for candidates seen from the gallery: row j is named at the places from offsets[j] to offsets[j + 1].
    const int64_t* offsets;
    // Those places among the candidates [Q, K], in ascending order.
    const int64_t* positions;
    // For marked pairs, a bit for each: [Q, G / 32] of the side of the queries, [Q / 32, G] of the other.
    const uint32_t* marks;
    // With these, float64 [parts, items, 4 or 2], the sums over the other pairs that `ProductArgs` describes.
    const double* sums;
    // The parts of the sums.
    int64_t parts;
    // T [items, D], the side's rows that were multiplied.
    const void* rows;
    // T [items, D], written or, beside marked pairs, added to: the gradients by the means.
    void* mu;
    // T, likewise: the gradients by the uncertainties, of their stored shape.
    void* uncertainty;
    // T [items, shared.stored], likewise: each item's part of the gradient by the shared numbers; null where that is
    // not wanted.
    void* shared;
};
static_assert(sizeof(BackwardArgs) == 416);

// The arguments of scores that compare draws, beside their inputs.
struct DrawingArgs {
    // The seed, one number.
    const int64_t* seed;
    // Draws of each item.
    int64_t draws;
    // As in SampleArgs.
    int64_t cached_steps;
    // Pairs that a warp takes at a time.
    int64_t columns;
    // Elements of a block's workspace.
    int64_t stride;
    // T [blocks, stride], the workspace; null where it is in shared memory, behind the normals.
    void* workspace;
    // T [draws, N, D], the draws of queries and gallery; null where each pair draws anew.
    void* made[2];
    // Gradients: T [draws, N, D], those by the draws of the side, of products; null where no pair has any.
    const void* by_draws;
    // The orders of densities.
    TwoOrders orders;
};
static_assert(sizeof(DrawingArgs) == 3240);

// The arguments of kernels that read inner products which a library has made: those of all queries and the gallery rows
// from `pairs.begin` to `pairs.end`. Where draws are compared, all draws of `queries` queries from `first` on and of these rows.
struct ProductArgs {
    // The inputs, and where scores, limits or survivors go.
    PairArgs pairs;
    // T [Q, stride], the products, which are multiplied by the powers of two of both sides. Of draws, T
    // [draws, queries, draws, rows], of which gradients write the factors.
    void* products;
    // Densities of draws: T, likewise, the products of squares.
    void* squares;
    // Elements from one query's products to the next one's.
    int64_t stride;
    // Of draws: the first query, a multiple of PRODUCT_ROWS.
    int64_t first;
    // Of draws: the queries.
    int64_t queries;
    // By side, T [N], the squared norms; of draws [draws, N].
    const void* norms[2];
    // By side, float32 [N], the factors that the products are multiplied by; null for 1.
    const float* powers[2];
    // Sieve: by how much a squared distance may be off, relative to the sum of both squared norms.
    double slack;
    // Gradients: T [Q, G], the weight of each score.
    const void* weights;
    // Gradients: T [Q, G], written: the factor of the other item's mean in the gradient by an item's mean.
    void* factors;
    // Gradients, written: a bit for each pair that is left to the pair function, [Q, G / 32] and [Q / 32, G].
    uint32_t* marks[2];
    // Gradients: float64 [G / PRODUCT_COLUMNS, Q, 4], written: sums over the pairs of a query of the factor of its own
    // mean and of the derivatives by its uncertainty and by two shared numbers. Of draws [G / WARP, draws, Q], the sums of
    // factors; null where they are not wanted.
    double* rows;
    // Gradients: float64 [Q / PRODUCT_ROWS, G, 2], written: the first two sums of each gallery item; null where they are
    // not wanted. Of draws [Q / PRODUCT_ROWS, draws, G].
    double* columns;
    // Gradients of draws: float64 [Q / PRODUCT_ROWS, G / WARP, warps, 2], written: the sums of the derivatives by two shared
    // numbers; null where there are none.
    double* by_line;
};
static_assert(sizeof(ProductArgs) == 464);

// The arguments of a kernel that makes the squared norms of rows of one or two sides, of which the mean of `like` is subtracted.
struct NormArgs {
    // By side [N, D], the rows.
    DeviceMatrix rows[2];
    // Rows of the same type, CENTRE_ROWS at most, the mean of which is subtracted; none where nothing is.
    DeviceMatrix like;
    // By side T [N], written.
    void* norms[2];
    // By side T [N, D], written: the rows, of which those that are not finite are 0; null where they are not wanted.
    void* copies[2];
    // Halves [N, D], written: the rows multiplied by powers of two; null where they are not wanted.
    void* narrow;
    // float32 [N], written: the reciprocals of these powers.
    float* powers;
};
static_assert(sizeof(NormArgs) == 144);

// The arguments of a kernel that selects the best of given scores.
struct TopKArgs {
    // T [Q, N], the scores of each query's items.
    DeviceMatrix scores;
    // int64 [Q, N], the items' ids, or -1 for none.
    DeviceMatrix ids;
    // How many items of each query are wanted, 1 to BEST.
    int64_t k;
    // Items that a list has memory for: a power of two, at least min(N, k + TOPK_THREADS).
    int64_t capacity;
    // T [Q, k], written: the best scores.
    void* out_scores;
    // [Q, k], written: their ids.
    int64_t* out_ids;
};
static_assert(sizeof(TopKArgs) == 96);

// The arguments of a sampler.
struct SampleArgs {
    // [N, D], the means; D >= 2 for von Mises-Fisher distributions.
    DeviceMatrix mu;
    // Variances [N] or [N, D], or concentrations [N].
    DeviceMatrix uncertainty;
    // The seed, one number.
    const int64_t* seed;
    // The number that row 0 has in its distribution.
    uint64_t first_row;
    // Who draws, as rust/rng.rs numbers them.
    int64_t stream;
    // Draws of each row, 1 to 2^31 - 1.
    int64_t draws;
    // Draws that a warp makes at a time, 1 to WARP; for gradients, rows that it takes at a time.
    int64_t tile;
    // Steps of a von Mises-Fisher draw whose normals stay in shared memory, at least 1: each takes 512 bytes a warp.
    int64_t cached_steps;
    // [draws, N, D], written.
    void* out;
};
static_assert(sizeof(SampleArgs) == 120);

// The arguments of a kernel that takes gradients through a sampler.
struct SampleBackwardArgs {
    // The items and their noise; `out` is not used.
    SampleArgs items;
    // [draws, N, D], the gradients by the draws.
    const void* weights;
    // [N, D], written: the gradients by the means.
    void* by_mu;
    // [N] or [N, D], written: the gradients by the uncertainties, rows adjacent.
    void* by_uncertainty;
    // D/2, for von Mises-Fisher distributions.
    Order order;
};
static_assert(sizeof(SampleBackwardArgs) == 1728);

// The arguments of an elementwise function.
struct ElementwiseArgs {
    // [orders], the order or dimension: one for all elements, or one for each.
    const double* order;
    // How many they are.
    int64_t orders;
    // float32 or float64 [n], the arguments.
    const void* x;
    // [n], written: the values, of the type of x.
    void* out;
    // The number of elements.
    int64_t n;
};
static_assert(sizeof(ElementwiseArgs) == 40);

// The arguments of a kernel that makes the table of a function for one order.
struct TableArgs {
    // The order, one number.
    const double* order;
    // TABLE_BYTES bytes, written.
    void* table;
};
static_assert(sizeof(TableArgs) == 16);

// The arguments of a function that reads a table.
struct TabulatedArgs {
    // The table.
    const void* table;
    // [n], the arguments.
    const float* x;
    // [n], written: the values.
    float* out;
    // The number of elements.
    int64_t n;
};
static_assert(sizeof(TabulatedArgs) == 32);

// Arguments of kernels whose formulas take more than arrays.
template <typename Args, typename More>
struct With {
    Args args;
    More more;
};
static_assert(sizeof(With<PairArgs, TwoOrders>) == 3496);
static_assert(sizeof(With<PerItemArgs, TwoOrders>) == 3512);
static_assert(sizeof(With<BackwardArgs, TwoOrders>) == 3584);
static_assert(sizeof(With<PairArgs, DrawingArgs>) == 3568);
static_assert(sizeof(With<PerItemArgs, DrawingArgs>) == 3584);
static_assert(sizeof(With<BackwardArgs, DrawingArgs>) == 3656);
static_assert(sizeof(With<ProductArgs, TwoOrders>) == 3632);
static_assert(sizeof(With<ProductArgs, DrawingArgs>) == 3704);
