// F32: plain floats.
#pragma once
#include "unit.cuh"

struct F32 : Floats<float> {
    DEVICE void load(const uint8_t* unit, uint32_t lane, uint32_t r, float (&w)[8]) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) w[i] = *at(unit, lane, r, i);
    }
};
