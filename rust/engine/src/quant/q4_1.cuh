// Q4_1: 32 weights in 20 bytes: f16 d, f16 m, then nibbles; weight = d q + m.
#pragma once
#include "unit.cuh"

struct Q4_1 : Nibbles {
    static constexpr uint32_t UNIT_BYTES = 1024 + 256;
    static constexpr int SUB = 32;

    DEVICE void scales(const uint8_t* unit, uint32_t lane, int j, float (&s)[1],
                              float (&o)[1]) {
        uint32_t dm = *reinterpret_cast<const uint32_t*>(unit + 1024 + lane * 8 + j * 4);
        s[0] = mul_rn(f16x2_low(dm), SUBNORMAL_UNSCALE);
        o[0] = f16x2_high(dm);
    }

    static constexpr bool OFFSETS = true;
    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        Nibbles::centred<0>(unit, lane, j, h);
        return SUBNORMAL_SCALE;
    }

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* a, const uint8_t* b,
                              uint32_t k, uint32_t n) {
        for (int j = 0; j < 2; j++) {
            const uint8_t* row = j ? b : a;
            const uint8_t* block = row && k < n ? row + k / 32 * 20 : nullptr;
            pack(unit, lane, j, [&](int i) -> uint32_t {
                return block ? (block[4 + i % 16] >> (i / 16 * 4)) & 15 : 0;
            });
            *reinterpret_cast<uint32_t*>(unit + 1024 + lane * 8 + j * 4) =
                block ? file_u16(block) | (file_u16(block + 2) << 16) : 0;
        }
    }
};
