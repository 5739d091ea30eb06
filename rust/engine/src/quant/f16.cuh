// F16: IEEE half precision.
#pragma once
#include "weight_tile.cuh"

struct F16 : Floats<uint16_t> {
    DEVICE void load(const uint8_t* tile, uint32_t lane, uint32_t r, float (&w)[8]) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) w[i] = f16_to_f32(*at(tile, lane, r, i));
    }
};
