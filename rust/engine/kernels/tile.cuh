// How eight rows of x lie between split.cu and matmul.cu, superblock by superblock: fragments of B
// [8 sub-blocks][hi, lo][8 rows][LIMB_BYTES], so that lane 4 row + quarter of a warp has 16 bytes of
// 512; [8 rows] factors of the superblock; where X_SUMS, the parts of its sums for minimums,
// [upper, lower][8 rows][4][sub-blocks t, t + 4]; where X_OFFSETS, its sums [8 sub-blocks][8 rows].
//
// Include it behind variant.cuh: X_SUMS, X_OFFSETS.
#pragma once
#include "fixed.cuh"

constexpr uint32_t TILE_ROWS = 8;
constexpr uint32_t TILE_LIMB = TILE_ROWS * LIMB_BYTES;  // of a sub-block
constexpr uint32_t TILE_FACTORS = 8 * 2 * TILE_LIMB;
constexpr uint32_t TILE_SUMS = TILE_FACTORS + TILE_ROWS * 4;
constexpr uint32_t TILE_OFFSETS = TILE_SUMS + (X_SUMS ? 512 : 0);
constexpr uint32_t TILE_BYTES = TILE_OFFSETS + (X_OFFSETS ? 256 : 0);
