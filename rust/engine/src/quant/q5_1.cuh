// Q5_1: 32 weights in 24 bytes: f16 d, f16 m, a fifth bit of every weight in 4 bytes, then nibbles;
// weight = d q + m.
#pragma once
#include "weight_tile.cuh"

struct Q5_1 : Planes<1, 0>, HalfScales<2560, OWN_OFFSETS> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<24>(rows[r], sb, j, n); };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? five_bits_of_32(from + 4, column % 32) : 0;
        });
        pack_scales(tile, lane, block);
    }
};
