// How eight rows of x, or four, lie for products by tensor cores, superblock by superblock.
//
// Include it behind variant.cuh: X_SUMS (for minimums, of a superblock: 0, 8 or 16), X_OFFSETS,
// WARPGROUPS, PACKED.
#pragma once
#include "fixed.cuh"

constexpr uint32_t X_TILE_ROWS = PACKED ? 4 : 8;

// Sub-blocks of fragments lie so far apart more, that what a warp stores goes to different banks.
constexpr uint32_t PAD_BYTES = 16;

// For mma_m16n8k16: fragments of B [8 sub-blocks][hi, lo][8 rows][LIMB_BYTES], padded, so that lane
// 4 row + quarter of a warp has 16 bytes of 512; [8 rows] factors of the superblock; of every eight
// X_SUMS the parts of its sums for minimums, [upper, lower][8 rows][4][sub-blocks t, t + 4]; where
// X_OFFSETS, its sums [8 sub-blocks][8 rows].
struct Fragments {
    static constexpr uint32_t LIMB = X_TILE_ROWS * LIMB_BYTES;  // of a sub-block
    static constexpr uint32_t SUB_STRIDE = 2 * LIMB + PAD_BYTES;
    static constexpr uint32_t FACTORS = 8 * SUB_STRIDE;
    static constexpr uint32_t SUMS = FACTORS + X_TILE_ROWS * 4;
    static constexpr uint32_t OFFSETS = SUMS + X_SUMS / 8 * 512;
    static constexpr uint32_t BYTES = OFFSETS + (X_OFFSETS ? 256 : 0);

    DEVICE void store(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
        uint8_t* of_sub = tile + lane / 4 * SUB_STRIDE + row * LIMB_BYTES;
        store_fragments(x, lane, of_sub, of_sub + LIMB);
    }
    // Of sub-block `sub`: the upper part, the lower one SUMS_STRIDE behind.
    static constexpr uint32_t SUMS_STRIDE = 256;
    DEVICE uint8_t* sums(uint8_t* tile, uint32_t row, uint32_t sub) {
        return tile + SUMS + sub / 8 * 512 + ((row * 4 + sub % 4) * 2 + sub % 8 / 4) * 4;
    }
    // Of row 0.
    DEVICE uint32_t offsets(uint32_t sub) { return OFFSETS + sub * 32; }
};

// For wgmma: two halves, hi and lo, of core matrices [16 steps][8 columns of k below 8, from 8 on]
// [8 rows][8 columns]; for every eight X_SUMS one more of each for the upper and the lower parts of its
// sums, [sub-blocks t, t + 4][8 rows][4]; where X_OFFSETS, its sums [4 sub-blocks][8 rows]; [8 rows]
// factors. So the columns of C are the rows of x tile by tile, with hi and with lo.
struct CoreMatrices {
    static constexpr uint32_t SUMS = 4096;
    static constexpr uint32_t HALF_OFFSETS = SUMS + X_SUMS / 8 * 256;
    static constexpr uint32_t FACTORS = HALF_OFFSETS + (X_OFFSETS ? 128 : 0);
    static constexpr uint32_t HALF = FACTORS + X_TILE_ROWS * 4;
    static constexpr uint32_t BYTES = 2 * HALF;

    DEVICE void store(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
        uint8_t* to = tile + lane * 128 + row * 16;
        *reinterpret_cast<uint4*>(to) = small_halves(x.hi, lane);
        *reinterpret_cast<uint4*>(to + HALF) = small_halves(x.lo, lane);
    }
    static constexpr uint32_t SUMS_STRIDE = HALF;
    DEVICE uint8_t* sums(uint8_t* tile, uint32_t row, uint32_t sub) {
        return tile + SUMS + sub / 4 * 128 + row * 16 + sub % 4 * 4;
    }
    DEVICE uint32_t offsets(uint32_t sub) { return sub / 4 * HALF + HALF_OFFSETS + sub % 4 * 32; }
};

// For mma_m16n8k16 whose columns are both limbs of four rows: fragments of B [8 sub-blocks][4 rows][hi, lo]
// [LIMB_BYTES], padded; [4 rows] factors; of every eight X_SUMS their parts, [4 rows][upper, lower][4]
// [sub-blocks t, t + 4]; where X_OFFSETS, the sums [8 sub-blocks][4 rows]. So columns 2 q and 2 q + 1 of C
// are row q's.
struct PackedFragments {
    static constexpr uint32_t SUB_STRIDE = 4 * 2 * LIMB_BYTES + PAD_BYTES;
    static constexpr uint32_t FACTORS = 8 * SUB_STRIDE;
    static constexpr uint32_t SUMS = FACTORS + 4 * 4;
    static constexpr uint32_t OFFSETS = SUMS + X_SUMS / 8 * 256;
    static constexpr uint32_t BYTES = OFFSETS + (X_OFFSETS ? 128 : 0);

    DEVICE void store(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
        uint8_t* of_row = tile + lane / 4 * SUB_STRIDE + row * (2 * LIMB_BYTES);
        store_fragments(x, lane, of_row, of_row + LIMB_BYTES);
    }
    static constexpr uint32_t SUMS_STRIDE = 32;
    DEVICE uint8_t* sums(uint8_t* tile, uint32_t row, uint32_t sub) {
        return tile + SUMS + sub / 8 * 256 + row * 64 + (sub % 4 * 2 + sub % 8 / 4) * 4;
    }
    DEVICE uint32_t offsets(uint32_t sub) { return OFFSETS + sub * 16; }
};

template <bool warpgroups, bool packed>
struct XTileOf {
    using Type = Fragments;
};
template <>
struct XTileOf<true, false> {
    using Type = CoreMatrices;
};
template <>
struct XTileOf<false, true> {
    using Type = PackedFragments;
};
using XTile = XTileOf<WARPGROUPS, PACKED>::Type;

// The parts of a sum for minimums.
DEVICE void store_parts(uint8_t* to, int32_t sum) {
    *reinterpret_cast<uint32_t*>(to) = eights(upper_part(sum));
    *reinterpret_cast<uint32_t*>(to + XTile::SUMS_STRIDE) = eights(lower_part(sum));
}

// Puts a superblock of a row into a tile.
DEVICE void store_in_tile(uint8_t* tile, uint32_t row, uint32_t lane, const Fixed& x) {
    XTile::store(tile, row, lane, x);
    if (lane == 0) reinterpret_cast<float*>(tile + XTile::FACTORS)[row] = x.factor;
    if constexpr (X_SUMS > 8) {
        const int32_t sum = sub_block_sum<2>(x);
        if (lane % 2 == 0) store_parts(XTile::sums(tile, row, lane / 2), sum);
    }
    if constexpr (X_SUMS == 8 || X_OFFSETS) {
        const int32_t sum = sub_block_sum(x);
        const uint32_t sub = lane / 4;
        if (lane % 4) return;
        if constexpr (X_SUMS == 8) store_parts(XTile::sums(tile, row, sub), sum);
        if constexpr (X_OFFSETS) {
            reinterpret_cast<float*>(tile + XTile::offsets(sub))[row] = offset_sum(sum);
        }
    }
}
