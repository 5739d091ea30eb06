//! Tiles of weights: 16 rows and 256 columns, as weight_tile.cuh has them.

use std::fmt::Write;

use crate::plan::fuse::MOST_PARTS;
use crate::quant::QuantType;

pub use crate::plan::fuse::{MOST_FLOATS_X, TILE_ROWS};

/// Columns of a tile: a superblock.
pub const TILE_COLS: usize = 256;

/// Most rows of x of a block of any product.
pub const MOST_BLOCK_X: usize = 64;

/// Counters of kernels whose blocks count themselves, beside what products of several rows have: as many
/// blocks of one expert, and heads of a rule's keys, there are at most.
pub const MOST_TICKETS: usize = 1024;

/// Superblocks, and so tiles, of a row of `n_in` weights.
pub fn superblocks(n_in: usize) -> usize {
    n_in.div_ceil(TILE_COLS)
}

/// Bytes of the largest tile of these types: what a place for any of them takes.
pub fn largest_tile(types: &[&QuantType]) -> usize {
    let bytes = types.iter().map(|t| t.kernel.tile_bytes);
    bytes.max().unwrap_or(0)
}

/// `Segment0` to `Segment3` and how many there are, for `variant.cuh`, and checks that both sides
/// agree on their size and form.
pub fn segments(types: &[&QuantType]) -> String {
    let mut text = format!("constexpr int N_SEGMENTS = {};\n", types.len());
    for i in 0..MOST_PARTS {
        let ty = types[i.min(types.len() - 1)];
        let _ = writeln!(text, "#include \"{}\"", ty.kernel.header);
        let _ = writeln!(text, "using Segment{i} = {};", ty.name);
        let _ = writeln!(
            text,
            "static_assert(Segment{i}::TILE_BYTES == {}, \"tile\");",
            ty.kernel.tile_bytes
        );
        if ty.integers {
            let of_bytes = if ty.kernel.in_bytes { "!=" } else { "==" };
            let _ = writeln!(
                text,
                "static_assert(Segment{i}::BYTE_TERMS {of_bytes} 0, \"form\");"
            );
        }
    }
    text
}

/// Sums of a superblock of x that the minimums of these types are multiplied with: as many as the type
/// with the most has minimums. The others take theirs with the sums of halves.
pub fn minimums(types: &[&QuantType]) -> usize {
    let each = types.iter().map(|t| t.shared_minimums());
    each.max().unwrap_or(0)
}
