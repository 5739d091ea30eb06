// BF16: the upper half of a float32.
#pragma once
#include "unit.cuh"

struct BF16 : Floats<uint16_t> {
    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
#pragma unroll
        for (int i = 0; i < 32; i++) w[i] = bf16_to_f32(at(unit, lane, j, i / 8)[i % 8]);
    }

    // As float16 with a power of two of the lane's columns: exact from 2^-29 of the largest on, and
    // 2^-40 of it beside the value below.
    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        uint32_t words[16], most = 0;
#pragma unroll
        for (int v = 0; v < 4; v++) {
            uint4 at = unit_u32x4(unit, 4 * j + v, lane);
            words[4 * v] = at.x, words[4 * v + 1] = at.y;
            words[4 * v + 2] = at.z, words[4 * v + 3] = at.w;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t low = words[i] & 0x7f80, high = words[i] >> 16 & 0x7f80;
            most = most > low ? most : low;
            most = most > high ? most : high;
        }
        // The largest gets the exponent 15; between 2^-60 and 2^30 the factor is a normal number.
        uint32_t exponent = most >> 7;
        exponent = exponent < 67 ? 67 : exponent > 157 ? 157 : exponent;
        const float scale = u32_as_float((127 + 142 - exponent) << 23);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            h[i] = f32x2_to_f16x2(mul_rn(u32_as_float(words[i] << 16), scale),
                                  mul_rn(u32_as_float(words[i] & 0xffff0000), scale));
        }
        return mul_rn(u32_as_float((127 + exponent - 142) << 23), X_SCALE);
    }
};
