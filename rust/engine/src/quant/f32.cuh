// F32: plain floats.
#pragma once
#include "unit.cuh"

struct F32 : Floats<float> {
    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
#pragma unroll
        for (int i = 0; i < 32; i++) w[i] = at(unit, lane, j, i / 4)[i % 4];
    }
};
