// Q6_K: 256 weights in 210 bytes: low nibbles in 128 bytes, high pairs of bits in 64, sixteen
// signed 8-bit scales, f16 d; weight = d sc (q - 32), a scale for every 16.
#pragma once
#include "unit.cuh"

struct Q6_K : SixBits {
    static constexpr uint32_t UNIT_BYTES = 1536 + 128 + 16;
    static constexpr int SUB = 16;

    DEVICE void scales(const uint8_t* unit, uint32_t lane, int j, float (&s)[2],
                              float (&o)[2]) {
        uint32_t pair = *reinterpret_cast<const uint16_t*>(unit + 1536 + lane * 4 + j * 2);
        float d = f16_to_f32(
            *reinterpret_cast<const uint16_t*>(unit + 1664 + (lane % 4 + 4 * j) * 2));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sc = mul_rn(d, static_cast<float>(static_cast<int8_t>(pair >> (8 * h))));
            s[h] = mul_rn(sc, SUBNORMAL_UNSCALE);
            o[h] = mul_rn(sc, -32.0f);
        }
    }

    static constexpr bool OFFSETS = false;
    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        SixBits::centred<32>(unit, lane, j, h);
        return SUBNORMAL_SCALE;
    }

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* a, const uint8_t* b,
                              uint32_t k, uint32_t n) {
        for (int j = 0; j < 2; j++) {
            const uint8_t* row = j ? b : a;
            const uint8_t* block = row && k < n ? row + k / 256 * 210 : nullptr;
            uint32_t half = k % 256 / 128, quarter = k % 128 / 32;
            // Within 128 weights: byte i of 64 has quarters 0|1 (low half), 2|3 (high half).
            pack(unit, lane, j, [&](int i) -> uint32_t {
                if (!block) return 0;
                uint32_t low = block[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4);
                uint32_t high = block[128 + half * 32 + i] >> (quarter * 2);
                return (low & 15) | ((high & 3) << 4);
            });
            *reinterpret_cast<uint16_t*>(unit + 1536 + lane * 4 + j * 2) =
                static_cast<uint16_t>(block ? file_u16(block + 192 + k % 256 / 16) : 0);
            if (lane / 4 == 0) {
                *reinterpret_cast<uint16_t*>(unit + 1664 + (lane % 4 + 4 * j) * 2) =
                    static_cast<uint16_t>(block ? file_u16(block + 208) : 0);
            }
        }
    }
};
