// What the core gives to kernels, and the constants that both count with: rust/cuda/ and rust/special/bessel/order.rs have the same.
#pragma once

#include <stdint.h>

constexpr int WARP = 32;

// Everything that depends on the order alone. rust/special/bessel.rs fills the same struct.
struct Order {
    double v;
    double w;
    int64_t pairs;  // in use in each series
    // Coefficients, by powers of u, of what Remainder holds.
    double series[4][24][2];
    double inverse;   // 1/w
    double constant;  // P at x = 0 - log(2 pi w)/2
    double limit;     // w + constant: the limit of log(I_v(x) e^-x) - v log(x/2w) at x = 0
};

// D/2 - 1, of the normaliser, and D/2, of the mean's length: among the arguments, made by the caller.
struct TwoOrders {
    Order normaliser, ratio;
};

// A read-only matrix as rust/view.rs has it: rows `stride` elements apart, `stored` elements each; one element of a
// constant row stands for all.
struct DeviceMatrix {
    const void* data;
    int64_t rows;
    int64_t stored;
    int64_t stride;
};

enum Pairs : int64_t { PAIRED = 0, PAIRWISE = 1, LISTED = 2 };
enum Side : int64_t { QUERY = 0, GALLERY = 1 };

// The arguments of all drivers of scores; each says what it uses.
struct PairArgs {
    DeviceMatrix mu1;           // T [Q, D]
    DeviceMatrix extra1;        // T [Q, 1] or [Q, D]
    DeviceMatrix mu2;           // S [G, D]: T or halves
    DeviceMatrix extra2;        // S [G, 1] or [G, D]
    DeviceMatrix shared;        // T [1, 0], [1, 1], [1, 2] or [1, D]
    DeviceMatrix candidates;    // int64 [Q, K]: rows of the gallery, -1 = none
    int64_t wide_extra2;  // not 0: extra2 holds T though mu2 holds halves
    int64_t pairs;        // which: paired (i, i), all (i, j), or candidates
    int64_t k;            // how many are the best
    int64_t capacity;     // of a list of the best: a power of two
    int64_t resident;     // of search: not 0 if shared memory holds all of a tile's queries
    void* scores;         // T: of all pairs, [N], [Q, G] or [Q, K]; of the best, [Q, k] or, by shards, [Q, shards, k]
    int64_t* ids;         // of the best, of that shape
    int64_t begin, end;   // of a sieve: the rows that it looks at
    int64_t most;         // survivors of a query
    int32_t* survivors;   // of a sieve: [Q, most], rows that may be among the best; of rerank, if not null: candidates
                          // beside `ids`
    int32_t* counts;      // [Q], how many they are; rerank sets them to 0
    void* list_scores;    // of search: T [queries of all blocks, capacity], null where they fit into shared memory
    int64_t* list_ids;    // likewise
    void* own[2];         // by side, what belongs to each item alone, made once for the call: three doubles, whose
                          // meaning the family knows; null: it makes them for each pair
};

// Numbers of items alone, to be made.
struct OwnArgs {
    PairArgs pairs;  // inputs and `own`
    int64_t side;
    int64_t slopes;  // whether gradients want them, not scores
};

struct BackwardArgs {
    PairArgs pairs;            // inputs, candidates and `pairs`; the gallery is not in halves
    int64_t side;              // whose gradients: the own items
    const void* weights;       // T, of the shape of the scores, contiguous
    const int64_t* offsets;    // [G + 1] candidates seen from the gallery: row j has those from offsets[j]
    const int64_t* positions;  // ... to offsets[j + 1] of these places, i K + c, in order
    void* mu;                  // T [own items, D]
    void* extra;               // T, of the stored shape of the own items' extras
    void* shared;              // T [own items, shared.stored], a part of the sum for each; null if not wanted
};

// Arguments of kernels whose formulas need more than arrays.
template <typename Args, typename More>
struct With {
    Args args;
    More more;
};

// What the kernels of sampled scores take beyond the inputs.
struct DrawingArgs {
    const int64_t* seed;  // on the device
    int64_t draws;        // of each item
    int64_t kept;         // as in SampleArgs
    int64_t columns;      // pairs that a warp takes at a time
    int64_t stride;       // elements of a block's workspace
    void* workspace;      // T [blocks, stride]; null: in shared memory, behind the samplers' normals
    void* made[2];        // T [draws, N, D] of queries and gallery; null: made for each pair
    TwoOrders orders;
};

struct Bounding {
    const int32_t* order;    // rows by their mean variance, from number `first` of a search's sequence on
    int64_t first;
    const float* reference;  // [D], variances
    float* ranges;           // [tiles, 2, D]: least and greatest variances of each 128 of them
    float* sums;             // [rows, 2]: L and R
};

// The items of a query are those of its row; an id of -1 is none.
struct TopKArgs {
    DeviceMatrix scores;     // T [Q, N]
    DeviceMatrix ids;        // int64 [Q, N]
    int64_t k;         // 1 .. 1024
    int64_t capacity;  // of the list: a power of two >= min(N, k + THREADS)
    void* out_scores;  // T [Q, k]
    int64_t* out_ids;  // [Q, k]
};

struct SampleArgs {
    DeviceMatrix mu;            // [N, D], D >= 2 for von Mises-Fisher
    DeviceMatrix extra;         // variances [N] or [N, D] (constant rows store one element), or concentrations [N]
    const int64_t* seed;  // on the device
    uint64_t first_row;   // number of row 0 in its distribution
    int64_t stream;
    int64_t draws;        // of each row, 1 .. 2^31 - 1
    int64_t tile;         // pairs that a warp takes at a time, 1 .. 32 (backward: rows)
    int64_t kept;         // von Mises-Fisher: of a team's steps those whose normals fit into the shared memory of
                          // the launch, at least 1; each takes 512 bytes of each warp of the block
    void* out;            // [draws, N, D]
};

struct SampleBackwardArgs {
    SampleArgs items;     // out unused
    const void* weights;  // [draws, N, D], gradients of the draws
    void* by_mu;          // [N, D]
    void* by_extra;       // like extra, rows adjacent
    Order order;          // D/2, von Mises-Fisher alone
};

struct ElementwiseArgs {
    const double* order;  // one for all, or as many as x
    int64_t orders;
    const void* x;
    void* out;
    int64_t n;
};

struct TableArgs {
    const double* order;  // one
    void* table;          // written
};

struct TabulatedArgs {
    const void* table;
    const float* x;
    float* out;
    int64_t n;
};

