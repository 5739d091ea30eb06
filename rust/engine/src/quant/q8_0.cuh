// Q8_0: 32 weights in 34 bytes: f16 d, then signed bytes; weight = d q. Stored as q + 128.
#pragma once
#include "unit.cuh"

struct Q8_0 : Bytes {
    static constexpr uint32_t UNIT_BYTES = 2048 + 128;
    static constexpr int SUB = 32;

    DEVICE void scales(const uint8_t* unit, uint32_t lane, int j, float (&s)[1],
                              float (&o)[1]) {
        float d = f16_to_f32(*reinterpret_cast<const uint16_t*>(unit + 2048 + lane * 4 + j * 2));
        s[0] = mul_rn(d, SUBNORMAL_UNSCALE);
        o[0] = mul_rn(d, -128.0f);
    }

    static constexpr bool OFFSETS = false;
    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        Bytes::centred<128>(unit, lane, j, h);
        return SUBNORMAL_SCALE;
    }

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* a, const uint8_t* b,
                              uint32_t k, uint32_t n) {
        for (int j = 0; j < 2; j++) {
            const uint8_t* row = j ? b : a;
            const uint8_t* block = row && k < n ? row + k / 32 * 34 : nullptr;
            pack(unit, lane, j, [&](int i) -> uint32_t {
                return block ? static_cast<uint32_t>(block[2 + i]) ^ 0x80 : 0;
            });
            *reinterpret_cast<uint16_t*>(unit + 2048 + lane * 4 + j * 2) = block ? file_u16(block) : 0;
        }
    }
};
