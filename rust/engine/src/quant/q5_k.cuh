// Q5_K: 256 weights in 176 bytes: as Q4_K, with a fifth bit of every weight in 32 bytes before the
// nibbles; weight = d sc q - dmin m.
#pragma once
#include "q4_k.cuh"

struct Q5_K : Planes<1, 0>, KScales<2560> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 176 : nullptr; };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            if (!from) return 0;
            const uint32_t high = from[16 + column % 32] >> (column / 32);
            return k_nibble(from + 48, column) | ((high & 1) << 4);
        });
        pack_scales(tile, lane, block);
    }
};
