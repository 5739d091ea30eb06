// Q4_0: 32 weights in 18 bytes: f16 d, then nibbles; weight = d (q - 8).
#pragma once
#include "weight_tile.cuh"

struct Q4_0 : Planes<0, 8>, HalfScales<2048, NO_OFFSETS> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<18>(rows[r], sb, j, n); };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? nibble_of_32(from + 2, column % 32) : 0;
        });
        pack_scales(tile, lane, block);
    }
};
