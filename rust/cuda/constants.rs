//! The constants that launches and kernels share: how many threads a block has, and what a block works on at a time.

use crate::layout::shared_with_cuda;

shared_with_cuda! {
    /// Threads of a warp.
    pub const WARP: usize = 32;

    /// The side of the queries.
    pub const QUERY: i64 = 0;
    /// The side of the gallery.
    pub const GALLERY: i64 = 1;

    /// The pairs of query i and gallery row i.
    pub const PAIRED: i64 = 0;
    /// The pairs of each query and each gallery row.
    pub const PAIRWISE: i64 = 1;
    /// The pairs of each query and its candidates.
    pub const LISTED: i64 = 2;
    /// The pairs of which a mask has a bit.
    pub const MARKED: i64 = 3;

    /// The most items of a query that rerank, search and top-k return.
    pub const BEST: usize = 1024;
    /// The most float64 numbers that a family makes of an item alone.
    pub const PER_ITEM_NUMBERS: usize = 3;
    /// Threads of a block that scores pairs one by one, or adds up gradients.
    pub const PAIR_THREADS: usize = 128;

    /// Threads of a block of a search.
    pub const SEARCH_THREADS: usize = 256;
    /// Dimensions that a block of a search loads at a time.
    pub const SEARCH_STEP: usize = 128;
    /// Gallery rows that a block of a search loads at a time.
    pub const SEARCH_ROWS: usize = 8;
    /// Queries of a block of a search that computes in float32.
    pub const SEARCH_QUERIES_F32: usize = 16;
    /// Queries of a block of a search that computes in float64.
    pub const SEARCH_QUERIES_F64: usize = 8;
    /// The most gallery rows that a block of a search scores at a time, so the most items that it adds to a list at a time.
    pub const SEARCH_GROUP: usize = 32;

    /// Gallery rows of a block that reads products, one a thread.
    pub const PRODUCT_COLUMNS: usize = 128;
    /// Times as many of a block of a sieve.
    pub const SIEVE_COLUMNS: usize = 4;
    /// Queries of a block that reads products: the bits of a mask.
    pub const PRODUCT_ROWS: usize = 32;
    /// Rows whose mean is subtracted from all before they are multiplied, where that changes no score.
    pub const CENTRE_ROWS: usize = 8;
    /// The most threads of a block that reads products of draws.
    pub const FOLD_THREADS: usize = 1024;

    /// Threads of a block that selects the best of given scores.
    pub const TOPK_THREADS: usize = 256;

    /// Threads of a block that computes elements.
    pub const ELEMENT_THREADS: usize = 256;
    /// Pieces of a function's table: 64 of each octave.
    pub const TABLE_PIECES: usize = 26 * 64;
    /// The most bytes of the table of a function for one order.
    pub const TABLE_BYTES: usize = 32 * 1024;

    /// Threads of a block that draws, or compares draws.
    pub const SAMPLER_THREADS: usize = 128;
    /// Blocks that draw in float32 and fit on a multiprocessor: registers are dealt out for so many, and launches have no more.
    pub const SAMPLE_BLOCKS_F32: usize = 8;
    /// In float64.
    pub const SAMPLE_BLOCKS_F64: usize = 6;
    /// Of those that take gradients through draws in float32.
    pub const GRADIENT_BLOCKS_F32: usize = 5;
    /// In float64.
    pub const GRADIENT_BLOCKS_F64: usize = 4;
    /// float32 normals that a block of random words gives.
    pub const NORMALS_F32: usize = 4;
    /// Blocks of random words whose float32 normals are interleaved.
    pub const RUN_F32: usize = 16;
    /// float64 normals that a block of random words gives.
    pub const NORMALS_F64: usize = 2;
    /// Blocks of random words whose float64 normals are interleaved.
    pub const RUN_F64: usize = 8;
}
