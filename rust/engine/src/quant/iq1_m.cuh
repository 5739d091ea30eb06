// IQ1_M: 256 weights in 56 bytes: numbers of points of eight in 32 bytes, for each three more bits and a
// shift down in 16, then 8 of scales for every 16, three bits each, and the four parts of f16 d;
// weight = d / 8 (2 s + 1) (8 p +- 1).
#pragma once
#include "iq1_s.cuh"

struct IQ1_M : Magnitudes<0x09090701u, 0x09090909u>, OddScales<2048, 16, 8> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 56 : nullptr; };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            if (!from) return 0;
            const uint32_t i = column / 8, more = nibble_of(from + 32, i);
            const uint32_t number = from[i] | ((more & 7) << 8);
            return iq1_code(IQ1_S_GRID[number] >> (column % 8 * 2) & 3, more >> 3);
        });
        pack_scales(
            tile, lane, block, [](const uint8_t* from) {
                uint32_t d = 0;
                for (uint32_t i = 0; i < 4; i++) d |= file_u16(from + 48 + 2 * i) >> 12 << (4 * i);
                return d;
            },
            [](const uint8_t* from, uint32_t j) { return file_u16(from + 48 + j / 4 * 2) >> (j % 4 * 3) & 7; });
    }
};
