// The weighted sum of what the experts of a row give, as Op::MixExperts states it.
//
// Include it behind variant.cuh: RANKS, ADDS (whether it is added to what is there).
#pragma once
#include "common.cuh"

// A column of a row: y = w_0 x_0, then fma(w_j, x_j, y); out = y or, where it ADDS, out += y. `routes` are
// the row's, [2][RANKS], `x` [RANKS][width], `out` [width].
DEVICE void mix_column(const float* routes, const float* x, float* out, uint32_t width, uint32_t at) {
    const float* weights = routes + RANKS;
    float y = 0.0f;
#pragma unroll 8
    for (uint32_t j = 0; j < RANKS; j++) {
        const float w = load_relaxed_f32(weights + j);
        const float of_rank = load_relaxed_f32(x + static_cast<uint64_t>(j) * width + at);
        y = j == 0 ? mul_rn(w, of_rank) : fma_rn(w, of_rank, y);
    }
    out[at] = ADDS ? add_rn(load_relaxed_f32(out + at), y) : y;
}
