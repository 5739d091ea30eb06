// Q3_K: 256 weights in 110 bytes: high bits in 32 bytes, low pairs of bits in 64, sixteen 6-bit scales
// in 12, f16 d; weight = d (sc - 32) (q - 4), a scale for every 16.
#pragma once
#include "q6_k.cuh"

struct Q3_K : Planes<1, 4, 2>, SixteenScales<1536> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 110 : nullptr; };
        // Within 128 weights: byte i of 32 has column 32 c + i at bit 2 c.
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            if (!from) return 0;
            const uint32_t run = column / 32, i = column % 32;
            const uint32_t low = from[32 + run / 4 * 32 + i] >> (run % 4 * 2);
            return (low & 3) | ((from[i] >> run & 1) << 2);
        });
        pack_scales(tile, lane, block, 108, [](const uint8_t* from, uint32_t j) {
            const uint32_t low = from[96 + j % 8] >> (j / 8 * 4);
            const uint32_t high = from[104 + j % 4] >> (j / 4 * 2);
            return ((low & 15) | ((high & 3) << 4)) - 32;
        });
    }
};
