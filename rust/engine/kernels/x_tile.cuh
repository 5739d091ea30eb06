// How eight rows of x lie for products by tensor cores, superblock by superblock.
//
// Include it behind variant.cuh: X_SUMS (for minimums, of a superblock: none, 8, 16, or 24 for both),
// X_OFFSETS, WARPGROUPS.
#pragma once
#include "fixed.cuh"

constexpr uint32_t X_TILE_ROWS = 8;

// Sub-blocks of fragments lie so far apart more, that what a warp stores goes to different banks.
constexpr uint32_t PAD_BYTES = 16;

// Bytes of the sums of eight sub-blocks, a word each.
constexpr uint32_t EIGHT_SUMS = X_TILE_ROWS * 8 * 4;
// Those over 16 columns lie behind those over 32.
constexpr uint32_t SUMS_OF_16 = X_SUMS % 16 ? EIGHT_SUMS : 0;

// For mma_m16n8k16: fragments of B [8 sub-blocks][8 rows][X_SUB_BYTES], padded, so that lane
// 4 row + quarter of a warp has 16 bytes of 512; [8 rows] factors of the superblock; sums for minimums
// [8 rows][8 sub-blocks], those over 16 columns [2][8 rows][4 quarters][2]; where X_OFFSETS, sums
// [8 sub-blocks][8 rows].
struct Fragments {
    static constexpr uint32_t SUB_STRIDE = X_TILE_ROWS * X_SUB_BYTES + PAD_BYTES;
    static constexpr uint32_t FACTORS = 8 * SUB_STRIDE;
    static constexpr uint32_t SUMS = FACTORS + X_TILE_ROWS * 4;

    DEVICE void store(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
        store_fragments(x, lane, tile + lane / 4 * SUB_STRIDE + row * X_SUB_BYTES);
    }
    // Where the pair of sums `half` of quarter q lies.
    static constexpr uint32_t sum_at(uint32_t row, uint32_t q, uint32_t half) {
        return row * 32 + q * 8 + half * 4;
    }
};

// For wgmma: core matrices [16 steps][8 columns of k below 8, from 8 on][8 rows][8 columns]; the same of
// sums for minimums, [eight sub-blocks][first of a pair, second][8 rows][4 quarters]; where X_OFFSETS, sums
// [8 sub-blocks][8 rows]; [8 rows] factors.
struct CoreMatrices {
    static constexpr uint32_t FACTORS = 4096;
    static constexpr uint32_t SUMS = FACTORS + X_TILE_ROWS * 4;

    DEVICE void store(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
        *reinterpret_cast<uint4*>(tile + lane * 128 + row * 16) =
            make_uint4(x.h[0], x.h[1], x.h[2], x.h[3]);
    }
    static constexpr uint32_t sum_at(uint32_t row, uint32_t q, uint32_t half) {
        return half * 128 + row * 16 + q * 4;
    }
};

template <bool warpgroups>
struct XTileOf : Fragments {};
template <>
struct XTileOf<true> : CoreMatrices {};

struct XTile : XTileOf<WARPGROUPS> {
    static constexpr uint32_t OFFSETS = SUMS + X_SUMS / 8 * EIGHT_SUMS;
    static constexpr uint32_t BYTES = OFFSETS + (X_OFFSETS ? EIGHT_SUMS : 0);
};

// Puts a superblock of a row into a tile. For whole warps.
DEVICE void store_in_tile(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
    XTile::store(tile, row, lane, x);
    if (lane == 0) reinterpret_cast<float*>(tile + XTile::FACTORS)[row] = x.factor;
    if constexpr (X_SUMS >= 16) {
        const uint32_t sum = sixteens(sum_of_columns<2>(x)), sub = lane / 2;
        uint8_t* to = tile + XTile::SUMS + SUMS_OF_16 + sub % 4 / 2 * EIGHT_SUMS;
        if (lane % 2 == 0) {
            *reinterpret_cast<uint32_t*>(to + XTile::sum_at(row, sub / 4, sub % 2)) = sum;
        }
    }
    if constexpr (X_SUMS % 16 || X_OFFSETS) {
        const float of_sub = sum_of_columns<4>(x);
        const uint32_t sub = lane / 4;
        if constexpr (X_SUMS % 16) {
            const uint32_t sum = sixteens(of_sub);
            uint8_t* to = tile + XTile::SUMS + XTile::sum_at(row, sub / 2, sub % 2);
            if (lane % 4 == 0) *reinterpret_cast<uint32_t*>(to) = sum;
        }
        if (X_OFFSETS && lane % 4 == 0) {
            reinterpret_cast<float*>(tile + XTile::OFFSETS)[sub * X_TILE_ROWS + row] =
                offset_sum(of_sub);
        }
    }
}
