// IQ4_XS: 256 weights in 136 bytes: f16 d, the upper two bits of eight scales in 2 bytes and their
// nibbles in 4, then nibbles; weight = d (s - 32) table[nibble]. The tile keeps s - 32 as bytes.
#pragma once
#include "iq4_nl.cuh"

// Scales as bytes [16 rows][8], then d of each row.
struct IQ4_XS : IQ4Codes {
    static constexpr uint32_t AT = QUANT_BYTES;
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + 128 + 32;
    static constexpr int SUB = 32;
    static constexpr Offsets OFFSETS = NO_OFFSETS;

    struct Quarter {
        uint32_t s;
        float d;
    };
    struct Row {
        uint2 s;
        float d;
    };

    DEVICE float factor(const uint8_t* tile, uint32_t r) {
        return f16_to_f32(*reinterpret_cast<const uint16_t*>(tile + AT + 128 + r * 2));
    }
    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        return {*reinterpret_cast<const uint2*>(tile + AT + r * 8), factor(tile, r)};
    }
    DEVICE Quarter quarter(const Row& row, int t) {
        const uint32_t pair = t < 2 ? row.s.x : row.s.y;
        return {t % 2 ? pair >> 16 : pair, row.d};
    }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        return {*reinterpret_cast<const uint16_t*>(tile + AT + r * 8 + t * 2), factor(tile, r)};
    }
    DEVICE float scale(const Quarter& quarter, int i) {
        return mul_rn(quarter.d, static_cast<float>(static_cast<int8_t>(quarter.s >> (8 * i))));
    }

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 136 : nullptr; };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            return from ? nibble_of_32(from + 8 + column / 32 * 16, column % 32) : 0;
        });
        if (lane >= TILE_ROWS) return;
        const uint8_t* from = block(lane);
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t s = 32;
            if (from) {
                s = ((from[4 + j / 2] >> (j % 2 * 4)) & 15) |
                    (((file_u16(from + 2) >> (2 * j)) & 3) << 4);
            }
            tile[AT + lane * 8 + j] = static_cast<uint8_t>(s - 32);
        }
        *reinterpret_cast<uint16_t*>(tile + AT + 128 + lane * 2) =
            static_cast<uint16_t>(from ? file_u16(from) : 0);
    }
};
