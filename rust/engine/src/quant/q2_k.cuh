// Q2_K: 256 weights in 84 bytes: sixteen pairs of a 4-bit scale and minimum, pairs of bits in 64 bytes,
// f16 d, f16 dmin; weight = d sc q - dmin m, a scale and a minimum for every 16.
#pragma once
#include "weight_tile.cuh"

// Scales and minimums as bytes [16 rows][16], as in the file, then d and dmin of each row.
struct Q2_K : Planes<0, 0, 2> {
    static constexpr uint32_t AT = QUANT_BYTES;
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + 256 + 64;
    static constexpr int SUB = 16;
    static constexpr Offsets OFFSETS = SHARED_OFFSETS;

    struct Quarter {
        uint32_t s;
        float d;
    };
    struct Row {
        uint4 s;
        float d;
    };

    DEVICE uint32_t factors(const uint8_t* tile, uint32_t r) {
        return *reinterpret_cast<const uint32_t*>(tile + AT + 256 + r * 4);
    }
    DEVICE uint32_t pairs(const uint8_t* tile, uint32_t r, uint32_t t) {
        return *reinterpret_cast<const uint32_t*>(tile + AT + r * 16 + t * 4);
    }
    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        return {*reinterpret_cast<const uint4*>(tile + AT + r * 16), f16x2_low(factors(tile, r))};
    }
    DEVICE Quarter quarter(const Row& row, int t) {
        return {t == 0 ? row.s.x : t == 1 ? row.s.y : t == 2 ? row.s.z : row.s.w, row.d};
    }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        return {pairs(tile, r, t), f16x2_low(factors(tile, r))};
    }
    DEVICE float scale(const Quarter& quarter, int i) {
        return mul_rn(quarter.d, static_cast<float>(quarter.s >> (8 * i) & 15));
    }
    DEVICE uint32_t mins(const uint8_t* tile, uint32_t r, uint32_t t) {
        return pairs(tile, r, t) >> 4 & 0x0f0f0f0fu;
    }
    DEVICE float dmin(const uint8_t* tile, uint32_t r) { return f16x2_high(factors(tile, r)); }

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 84 : nullptr; };
        // Within 128 weights: byte i of 32 has column 32 c + i at bit 2 c.
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            const uint32_t run = column / 32;
            return from ? from[16 + run / 4 * 32 + column % 32] >> (run % 4 * 2) & 3 : 0;
        });
        if (lane >= TILE_ROWS) return;
        const uint8_t* from = block(lane);
        for (uint32_t j = 0; j < 16; j++) {
            tile[AT + lane * 16 + j] = from ? from[j] : 0;
        }
        *reinterpret_cast<uint32_t*>(tile + AT + 256 + lane * 4) =
            from ? file_u16(from + 80) | (file_u16(from + 82) << 16) : 0;
    }
};
