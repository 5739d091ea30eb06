// NVFP4: 64 weights in 36 bytes: four scales E4M3, then nibbles as MXFP4's, eight bytes for every 16
// weights; weight = scale / 2 q, a scale of NaN being 0.
#pragma once
#include "mxfp4.cuh"

// Scales as bytes [16 rows][16].
struct NVFP4 : E2M1Codes {
    static constexpr uint32_t AT = QUANT_BYTES;
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + 256;
    static constexpr int SUB = 16;
    static constexpr Offsets OFFSETS = NO_OFFSETS;

    using Row = uint4;
    using Quarter = uint32_t;

    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        return *reinterpret_cast<const uint4*>(tile + AT + r * 16);
    }
    DEVICE Quarter quarter(const Row& row, int t) {
        return t == 0 ? row.x : t == 1 ? row.y : t == 2 ? row.z : row.w;
    }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        return *reinterpret_cast<const uint32_t*>(tile + AT + r * 16 + t * 4);
    }
    // A float16's exponent is 8 more, its mantissa 7 bits longer.
    DEVICE float scale(const Quarter& quarter, int i) {
        const uint32_t bits = quarter >> (8 * i) & 0x7f;
        return mul_rn(f16_to_f32(static_cast<uint16_t>(bits << 7)), 128.0f);
    }

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t column) -> const uint8_t* {
            const uint32_t j = sb * 4 + column / 64;
            return rows[r] && j * 64 < n ? rows[r] + j * 36 : nullptr;
        };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column);
            if (!from) return 0;
            const uint32_t nibbles = from[4 + column % 64 / 16 * 8 + column % 8];
            return code_of((nibbles >> (column % 16 / 8 * 4)) & 15);
        });
        if (lane >= TILE_ROWS) return;
        for (uint32_t j = 0; j < 16; j++) {
            const uint8_t* from = block(lane, j * 16);
            const uint32_t scale = from ? from[j % 4] : 0;
            tile[AT + lane * 16 + j] =
                static_cast<uint8_t>(scale == 0x7f ? 0 : scale);
        }
    }
};
