// F16: IEEE half precision.
#pragma once
#include "unit.cuh"

struct F16 : Floats<uint16_t> {
    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
#pragma unroll
        for (int i = 0; i < 32; i++) w[i] = f16_to_f32(at(unit, lane, j, i / 8)[i % 8]);
    }

    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
#pragma unroll
        for (int v = 0; v < 4; v++) {
            uint4 words = unit_u32x4(unit, 4 * j + v, lane);
            h[4 * v] = words.x, h[4 * v + 1] = words.y;
            h[4 * v + 2] = words.z, h[4 * v + 3] = words.w;
        }
        return X_SCALE;
    }
};
