//! How rows of activations lie for products on tensor cores, superblock by superblock, as `x_tile.cuh` has them.

use super::shape::minimums;
use crate::backend::cuda::driver::source::constants;
use crate::quant::{Offsets, QuantType, SUBS as MOST_SUMS};

/// Rows of a tile.
pub const X_TILE_ROWS: usize = 8;

/// Bytes of a superblock of a tile: fragments and factors; eight sums for minimums; sums as offsets.
const X_TILE_BYTES: usize = 8 * 2 * X_TILE_ROWS * 64 + X_TILE_ROWS * 4;
/// What fragments of the eight sub-blocks have between them.
const PADDING_BYTES: usize = 8 * 16;
const _: () = assert!(HALVES_BYTES <= PADDING_BYTES);
const SUMS_BYTES: usize = 512;
const OFFSETS_BYTES: usize = 256;
/// What one in halves for warpgroups has beside.
const HALVES_BYTES: usize = X_TILE_ROWS * 4;

constants! {
    /// What a tile of activations holds for these types of weights.
    #[derive(Copy, Eq, Default)]
    pub struct XTile {
        /// Sums of a superblock for minimums.
        x_sums: int,
        x_offsets: bool,
        /// Whether it is laid out for warpgroups.
        warpgroups: bool,
        /// Whether it has four rows, both of whose limbs are columns of one product.
        packed: bool,
    }
}

impl XTile {
    /// The most that one takes.
    pub const MOST_BYTES: usize =
        X_TILE_BYTES + PADDING_BYTES + MOST_SUMS / 8 * SUMS_BYTES + OFFSETS_BYTES;

    pub fn new(types: &[&QuantType], warpgroups: bool) -> Self {
        Self {
            x_sums: minimums(types),
            x_offsets: types.iter().any(|t| t.offsets() == Offsets::Own),
            warpgroups,
            packed: false,
        }
    }

    /// Of up to four rows.
    pub fn packed(types: &[&QuantType]) -> Self {
        Self {
            packed: true,
            ..Self::new(types, false)
        }
    }

    #[cfg(test)]
    pub fn is_for_warpgroups(self) -> bool {
        self.warpgroups
    }

    pub fn rows(self) -> usize {
        X_TILE_ROWS >> usize::from(self.packed)
    }

    pub fn bytes(self) -> usize {
        let bytes = X_TILE_BYTES
            + self.x_sums / 8 * SUMS_BYTES
            + usize::from(self.x_offsets) * OFFSETS_BYTES;
        match (self.warpgroups, self.packed) {
            (true, _) => bytes + HALVES_BYTES,
            (false, packed) => (bytes >> usize::from(packed)) + PADDING_BYTES,
        }
    }
}
