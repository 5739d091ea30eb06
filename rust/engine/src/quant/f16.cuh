// F16: IEEE half precision.
#pragma once
#include "unit.cuh"

struct F16 : Floats<uint16_t> {
    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
#pragma unroll
        for (int i = 0; i < 32; i++) w[i] = f16_to_f32(at(unit, lane, j, i / 8)[i % 8]);
    }
};
