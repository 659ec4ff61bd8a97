//! The structs that kernels take by value. Addresses are of memory of the device.

use crate::layout::shared_with_cuda;
use crate::special::bessel::Order;

shared_with_cuda! {
    /// A read-only matrix: rows `stride` elements apart, of which `stored` elements each are in memory. A constant row
    /// stores one element, which stands for all of the row.
    pub struct DeviceMatrix {
        /// Address of the first element.
        pub data: u64 as "const void*",
        /// Number of rows.
        pub rows: i64,
        /// Number of elements stored of each row.
        pub stored: i64,
        /// Number of elements from the beginning of a row to that of the next one.
        pub stride: i64,
    }

    /// The orders of the Bessel functions that densities of von Mises-Fisher distributions in D dimensions call.
    pub struct TwoOrders {
        /// D/2 - 1, of the normaliser.
        pub normaliser: Order,
        /// D/2, of the mean direction's length.
        pub ratio: Order,
    }

    /// The arguments of every kernel of a score; each reads the fields that concern it. T is the type that is computed in, S
    /// that of the stored gallery: T, float16 or bfloat16.
    pub struct PairArgs {
        /// T [Q, D], the queries' means.
        pub mu1: DeviceMatrix,
        /// T [Q, 1] or [Q, D], the queries' uncertainties.
        pub uncertainty1: DeviceMatrix,
        /// S [G, D], the gallery's means.
        pub mu2: DeviceMatrix,
        /// S [G, 1] or [G, D], the gallery's uncertainties.
        pub uncertainty2: DeviceMatrix,
        /// T [1, 0], [1, 1], [1, 2] or [1, D], the numbers that all pairs share.
        pub shared: DeviceMatrix,
        /// int64 [Q, K], the candidates of each query: rows of the gallery, or -1 for none.
        pub candidates: DeviceMatrix,
        /// Not 0 where uncertainty2 holds T though mu2 holds halves.
        pub wide_uncertainty2: i64,
        /// Which pairs are scored: PAIRED, PAIRWISE, LISTED or MARKED.
        pub pairs: i64,
        /// How many items of each query are wanted; 0 in a search that writes all scores.
        pub k: i64,
        /// Items that a list of the best has memory for: a power of two.
        pub capacity: i64,
        /// Search: not 0 where shared memory holds all dimensions of a block's queries.
        pub resident: i64,
        /// T, written: the scores of all pairs, [N], [Q, G] or [Q, K], or of the best, [Q, k] or [Q, shards, k].
        pub scores: u64 as "void*",
        /// The rows of the best, of the same shape.
        pub ids: u64 as "int64_t*",
        /// Sieve, and rerank of its survivors: the first of the rows that it tests.
        pub begin: i64,
        /// The end of those rows.
        pub end: i64,
        /// Sieve and rerank: the survivors of a query that there is memory for.
        pub most_survivors: i64,
        /// Sieve: [Q, most_survivors], written, the rows that may be among the best. Rerank: candidates in place of
        /// `candidates`, unless it is null.
        pub survivors: u64 as "int32_t*",
        /// [Q], the number of survivors of each query. More than `most_survivors` stand for all rows from `begin` to `end`.
        pub counts: u64 as "int32_t*",
        /// Rerank: [Q, k], rows that are candidates beside the survivors; null where there are none.
        pub known: u64 as "const int64_t*",
        /// Search: T [queries of all blocks, capacity], the scores of the lists; null where shared memory holds them.
        pub list_scores: u64 as "void*",
        /// Search: the rows of the lists, of the same shape.
        pub list_ids: u64 as "int64_t*",
        /// By side, float64 [N, PER_ITEM_NUMBERS], what the family makes of each item alone; null where each pair makes it
        /// anew.
        pub per_item: [u64; 2] as "void*",
    }

    /// The arguments of a kernel that fills `pairs.per_item` of one side.
    pub struct PerItemArgs {
        /// The inputs, and where the numbers go.
        pub pairs: PairArgs,
        /// Whose numbers: QUERY or GALLERY.
        pub side: i64,
        /// Not 0 where the numbers are for gradients.
        pub partials: i64,
    }

    /// The arguments of a kernel that adds up the gradients of one side, whose items the kernel goes through. The gallery holds
    /// T.
    pub struct BackwardArgs {
        /// The inputs, the candidates and which pairs.
        pub pairs: PairArgs,
        /// The side: QUERY or GALLERY.
        pub side: i64,
        /// T, the weight of each score, of the scores' shape.
        pub weights: u64 as "const void*",
        /// [G + 1], for candidates seen from the gallery: row j is named at the places from offsets[j] to offsets[j + 1].
        pub offsets: u64 as "const int64_t*",
        /// Those places among the candidates [Q, K], in ascending order.
        pub positions: u64 as "const int64_t*",
        /// For marked pairs, a bit for each: [Q, G / 32] of the side of the queries, [Q / 32, G] of the other.
        pub marks: u64 as "const uint32_t*",
        /// With these, float64 [parts, items, 4 or 2], the sums over the other pairs that `ProductArgs` describes.
        pub sums: u64 as "const double*",
        /// The parts of the sums.
        pub parts: i64,
        /// T [items, D], the side's rows that were multiplied.
        pub rows: u64 as "const void*",
        /// T [items, D], written or, beside marked pairs, added to: the gradients by the means.
        pub mu: u64 as "void*",
        /// T, likewise: the gradients by the uncertainties, of their stored shape.
        pub uncertainty: u64 as "void*",
        /// T [items, shared.stored], likewise: each item's part of the gradient by the shared numbers; null where that is
        /// not wanted.
        pub shared: u64 as "void*",
    }

    /// The arguments of scores that compare draws, beside their inputs.
    pub struct DrawingArgs {
        /// The seed, one number.
        pub seed: u64 as "const int64_t*",
        /// Draws of each item.
        pub draws: i64,
        /// As in SampleArgs.
        pub cached_steps: i64,
        /// Pairs that a warp takes at a time.
        pub columns: i64,
        /// Elements of a block's workspace.
        pub stride: i64,
        /// T [blocks, stride], the workspace; null where it is in shared memory, behind the normals.
        pub workspace: u64 as "void*",
        /// T [draws, N, D], the draws of queries and gallery; null where each pair draws anew.
        pub made: [u64; 2] as "void*",
        /// Gradients: T [draws, N, D], those by the draws of the side, of products; null where no pair has any.
        pub by_draws: u64 as "const void*",
        /// The orders of densities.
        pub orders: TwoOrders,
    }

    /// The arguments of kernels that read inner products which a library has made: those of all queries and the gallery rows
    /// from `pairs.begin` to `pairs.end`. Where draws are compared, all draws of `queries` queries from `first` on and of these rows.
    pub struct ProductArgs {
        /// The inputs, and where scores, limits or survivors go.
        pub pairs: PairArgs,
        /// T [Q, stride], the products, which are multiplied by the powers of two of both sides. Of draws, T
        /// [draws, queries, draws, rows], of which gradients write the factors.
        pub products: u64 as "void*",
        /// Densities of draws: T, likewise, the products of squares.
        pub squares: u64 as "void*",
        /// Elements from one query's products to the next one's.
        pub stride: i64,
        /// Of draws: the first query, a multiple of PRODUCT_ROWS.
        pub first: i64,
        /// Of draws: the queries.
        pub queries: i64,
        /// By side, T [N], the squared norms; of draws [draws, N].
        pub norms: [u64; 2] as "const void*",
        /// By side, float32 [N], the factors that the products are multiplied by; null for 1.
        pub powers: [u64; 2] as "const float*",
        /// Sieve: by how much a squared distance may be off, relative to the sum of both squared norms.
        pub slack: f64,
        /// Gradients: T [Q, G], the weight of each score.
        pub weights: u64 as "const void*",
        /// Gradients: T [Q, G], written: the factor of the other item's mean in the gradient by an item's mean.
        pub factors: u64 as "void*",
        /// Gradients, written: a bit for each pair that is left to the pair function, [Q, G / 32] and [Q / 32, G].
        pub marks: [u64; 2] as "uint32_t*",
        /// Gradients: float64 [G / PRODUCT_COLUMNS, Q, 4], written: sums over the pairs of a query of the factor of its own
        /// mean and of the derivatives by its uncertainty and by two shared numbers. Of draws [G / WARP, draws, Q], the sums of
        /// factors; null where they are not wanted.
        pub rows: u64 as "double*",
        /// Gradients: float64 [Q / PRODUCT_ROWS, G, 2], written: the first two sums of each gallery item; null where they are
        /// not wanted. Of draws [Q / PRODUCT_ROWS, draws, G].
        pub columns: u64 as "double*",
        /// Gradients of draws: float64 [Q / PRODUCT_ROWS, G / WARP, warps, 2], written: the sums of the derivatives by two shared
        /// numbers; null where there are none.
        pub by_line: u64 as "double*",
    }

    /// The arguments of a kernel that makes the squared norms of rows of one or two sides, of which the mean of `like` is subtracted.
    pub struct NormArgs {
        /// By side [N, D], the rows.
        pub rows: [DeviceMatrix; 2],
        /// Rows of the same type, CENTRE_ROWS at most, the mean of which is subtracted; none where nothing is.
        pub like: DeviceMatrix,
        /// By side T [N], written.
        pub norms: [u64; 2] as "void*",
        /// By side T [N, D], written: the rows, of which those that are not finite are 0; null where they are not wanted.
        pub copies: [u64; 2] as "void*",
        /// Halves [N, D], written: the rows multiplied by powers of two; null where they are not wanted.
        pub narrow: u64 as "void*",
        /// float32 [N], written: the reciprocals of these powers.
        pub powers: u64 as "float*",
    }

    /// The arguments of a kernel that selects the best of given scores.
    pub struct TopKArgs {
        /// T [Q, N], the scores of each query's items.
        pub scores: DeviceMatrix,
        /// int64 [Q, N], the items' ids, or -1 for none.
        pub ids: DeviceMatrix,
        /// How many items of each query are wanted, 1 to BEST.
        pub k: i64,
        /// Items that a list has memory for: a power of two, at least min(N, k + TOPK_THREADS).
        pub capacity: i64,
        /// T [Q, k], written: the best scores.
        pub out_scores: u64 as "void*",
        /// [Q, k], written: their ids.
        pub out_ids: u64 as "int64_t*",
    }

    /// The arguments of a sampler.
    pub struct SampleArgs {
        /// [N, D], the means; D >= 2 for von Mises-Fisher distributions.
        pub mu: DeviceMatrix,
        /// Variances [N] or [N, D], or concentrations [N].
        pub uncertainty: DeviceMatrix,
        /// The seed, one number.
        pub seed: u64 as "const int64_t*",
        /// The number that row 0 has in its distribution.
        pub first_row: u64,
        /// Who draws, as rust/rng.rs numbers them.
        pub stream: i64,
        /// Draws of each row, 1 to 2^31 - 1.
        pub draws: i64,
        /// Draws that a warp makes at a time, 1 to WARP; for gradients, rows that it takes at a time.
        pub tile: i64,
        /// Steps of a von Mises-Fisher draw whose normals stay in shared memory, at least 1: each takes 512 bytes a warp.
        pub cached_steps: i64,
        /// [draws, N, D], written.
        pub out: u64 as "void*",
    }

    /// The arguments of a kernel that takes gradients through a sampler.
    pub struct SampleBackwardArgs {
        /// The items and their noise; `out` is not used.
        pub items: SampleArgs,
        /// [draws, N, D], the gradients by the draws.
        pub weights: u64 as "const void*",
        /// [N, D], written: the gradients by the means.
        pub by_mu: u64 as "void*",
        /// [N] or [N, D], written: the gradients by the uncertainties, rows adjacent.
        pub by_uncertainty: u64 as "void*",
        /// D/2, for von Mises-Fisher distributions.
        pub order: Order,
    }

    /// The arguments of an elementwise function.
    pub struct ElementwiseArgs {
        /// [orders], the order or dimension: one for all elements, or one for each.
        pub order: u64 as "const double*",
        /// How many they are.
        pub orders: i64,
        /// float32 or float64 [n], the arguments.
        pub x: u64 as "const void*",
        /// [n], written: the values, of the type of x.
        pub out: u64 as "void*",
        /// The number of elements.
        pub n: i64,
    }

    /// The arguments of a kernel that makes the table of a function for one order.
    pub struct TableArgs {
        /// The order, one number.
        pub order: u64 as "const double*",
        /// TABLE_BYTES bytes, written.
        pub table: u64 as "void*",
    }

    /// The arguments of a function that reads a table.
    pub struct TabulatedArgs {
        /// The table.
        pub table: u64 as "const void*",
        /// [n], the arguments.
        pub x: u64 as "const float*",
        /// [n], written: the values.
        pub out: u64 as "float*",
        /// The number of elements.
        pub n: i64,
    }
}

/// Arguments of kernels whose formulas take more than arrays. C++ has a template of the same name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct With<Args, More> {
    /// The arguments of every kernel of the driver.
    pub args: Args,
    /// The arguments of the formulas beside them.
    pub more: More,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::constants;
    use crate::layout::InCuda;
    use std::mem::offset_of;

    const INTRODUCTION: &str = "\
// GENERATED from rust/cuda/arguments.rs, constants.rs and rust/special/bessel/order.rs; do not edit. To write it anew:
// PEACCEL_WRITE=1 cargo test arguments
#pragma once

#include <stdint.h>

";
    const WITH: &str = "
// Arguments of kernels whose formulas take more than arrays.
template <typename Args, typename More>
struct With {
    Args args;
    More more;
};
";

    /// The assertion of a use of [`With`], which has no gap.
    fn with<Args: InCuda, More: InCuda>() -> String {
        const { assert!(offset_of!(With<Args, More>, more) == size_of::<Args>()) };
        let size = size_of::<With<Args, More>>();
        assert_eq!(size, size_of::<Args>() + size_of::<More>());
        format!("static_assert(sizeof(With<{}, {}>) == {size});\n", Args::name(), More::name())
    }

    fn header() -> String {
        let structs = [
            Order::declaration(),
            TwoOrders::declaration(),
            DeviceMatrix::declaration(),
            PairArgs::declaration(),
            PerItemArgs::declaration(),
            BackwardArgs::declaration(),
            DrawingArgs::declaration(),
            ProductArgs::declaration(),
            NormArgs::declaration(),
            TopKArgs::declaration(),
            SampleArgs::declaration(),
            SampleBackwardArgs::declaration(),
            ElementwiseArgs::declaration(),
            TableArgs::declaration(),
            TabulatedArgs::declaration(),
        ];
        let uses = [
            with::<PairArgs, TwoOrders>(),
            with::<PerItemArgs, TwoOrders>(),
            with::<BackwardArgs, TwoOrders>(),
            with::<PairArgs, DrawingArgs>(),
            with::<PerItemArgs, DrawingArgs>(),
            with::<BackwardArgs, DrawingArgs>(),
            with::<ProductArgs, TwoOrders>(),
            with::<ProductArgs, DrawingArgs>(),
        ];
        [INTRODUCTION, &constants::declarations(), &structs.concat(), WITH, &uses.concat()].concat()
    }

    #[test]
    fn arguments_are_those_of_the_header() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/arguments.cuh");
        if std::env::var_os("PEACCEL_WRITE").is_some() {
            std::fs::write(path, header()).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap();
        assert!(
            stored == header(),
            "cuda/arguments.cuh is not what rust/cuda declares: PEACCEL_WRITE=1 cargo test arguments"
        );
    }
}
