//! How rows of activations lie for products on tensor cores, superblock by superblock, as `x_tile.cuh` has them.

use super::shape::{minimums, MOST_MINIMUMS, TILE_COLS};
use crate::backend::cuda::driver::source::constants;
use crate::quant::{Offsets, QuantType};

/// Rows of a tile.
pub const X_TILE_ROWS: usize = 8;

/// Bytes of a superblock of a tile: a float16 a column, and factors.
const X_TILE_BYTES: usize = X_TILE_ROWS * (2 * TILE_COLS + 4);
/// What fragments of the eight sub-blocks have between them.
const PADDING_BYTES: usize = 8 * 16;
/// Sums of eight sub-blocks.
const SUMS_BYTES: usize = X_TILE_ROWS * 8 * 4;

constants! {
    /// What a tile of activations holds for these types of weights.
    #[derive(Copy, Eq, Default)]
    pub struct XTile {
        /// Sums of a superblock for minimums.
        x_sums: int,
        x_offsets: bool,
        /// Whether it is laid out for warpgroups.
        warpgroups: bool,
    }
}

impl XTile {
    /// The most that one takes.
    pub const MOST_BYTES: usize =
        X_TILE_BYTES + PADDING_BYTES + (MOST_MINIMUMS / 8 + 1) * SUMS_BYTES;

    pub fn new(types: &[&QuantType], warpgroups: bool) -> Self {
        Self {
            x_sums: minimums(types),
            x_offsets: types.iter().any(|t| t.offsets() == Offsets::Own),
            warpgroups,
        }
    }

    #[cfg(test)]
    pub fn is_for_warpgroups(self) -> bool {
        self.warpgroups
    }

    pub fn bytes(self) -> usize {
        let sums = self.x_sums / 8 + usize::from(self.x_offsets);
        let padding = if self.warpgroups { 0 } else { PADDING_BYTES };
        X_TILE_BYTES + padding + sums * SUMS_BYTES
    }
}
