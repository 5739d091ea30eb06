// F32: plain floats.
#pragma once
#include "weight_tile.cuh"

struct F32 : Floats<float> {
    DEVICE void load(const uint8_t* tile, uint32_t lane, uint32_t r, float (&w)[8]) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) w[i] = *at(tile, lane, r, i);
    }
};
