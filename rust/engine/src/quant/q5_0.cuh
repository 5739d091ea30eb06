// Q5_0: 32 weights in 22 bytes: f16 d, a fifth bit of every weight in 4 bytes, then nibbles;
// weight = d (q - 16).
#pragma once
#include "weight_tile.cuh"

struct Q5_0 : Planes<1, 16>, HalfScales<2560, NO_OFFSETS> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<22>(rows[r], sb, j, n); };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? five_bits_of_32(from + 2, column % 32) : 0;
        });
        pack_scales(tile, lane, block);
    }
};
