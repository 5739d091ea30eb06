//! Tiles of weights: 16 rows and 256 columns, as weight_tile.cuh has them.

use crate::backend::cuda::driver::constants::{Constants, Group, Line};
use crate::plan::fuse::MOST_PARTS;
use crate::quant::QuantType;

pub use crate::plan::fuse::{MOST_FLOATS_X, TILE_ROWS};

/// Columns of a tile: a superblock.
pub const TILE_COLS: usize = 256;

/// Most rows of weights of a block of matmul.cu.
pub const MOST_BLOCK_ROWS: usize = 256;

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

/// The types of a product's matrices: `Segment0` to `Segment3`, how many there are, and checks that both
/// sides agree on the size and the form of their tiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Segments(pub Vec<&'static QuantType>);

impl Group for Segments {
    fn list(&self, list: &mut Constants) {
        let Self(types) = self;
        list.constant("int", "n_segments", types.len());
        for i in 0..MOST_PARTS {
            let ty = types[i.min(types.len() - 1)];
            list.push(Line::Include(ty.kernel.header));
            list.push(Line::Using(format!("Segment{i}"), ty.name.into()));
            let bytes = ty.kernel.tile_bytes;
            list.push(Line::Assert(
                format!("Segment{i}::TILE_BYTES == {bytes}"),
                "tile",
            ));
            if ty.integers {
                let has_bytes = if ty.kernel.in_bytes { "!=" } else { "==" };
                let form = format!("Segment{i}::BYTE_TERMS {has_bytes} 0");
                list.push(Line::Assert(form, "form"));
            }
        }
    }
}

/// Minimums of a superblock, of all types that share theirs together.
pub const MOST_MINIMUMS: usize = 8 + 16;

/// Sums of a superblock of x that the minimums of these types are multiplied with: of each number of
/// sub-blocks its own.
pub fn minimums(types: &[&QuantType]) -> usize {
    let has = |n| types.iter().any(|t| t.shared_minimums() == n);
    [8, 16].into_iter().filter(|n| has(*n)).sum()
}
