// Q8_0: 32 weights in 34 bytes: f16 d, then signed bytes; weight = d q.
#pragma once
#include "weight_tile.cuh"

struct Q8_0 : Bytes, HalfScales<4096, NO_OFFSETS> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<34>(rows[r], sb, j, n); };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? from[2 + column % 32] ^ 0x80u : 0x80u;
        });
        pack_scales(tile, lane, block);
    }
};
