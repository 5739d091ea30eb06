// The sum of squares of RMSNorm, in the order that the op states.
#pragma once
#include "common.cuh"

// Of 256 consecutive values, of which a lane has 8: the same in every lane of the warp.
DEVICE float superblock_squares(const float (&v)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fma_rn(v[e], v[e], sum);
    return warp_sum_f32(sum);
}

// 1 / sqrt(x), and NaN where x is infinite: a zero would hide numbers whose squares are too large.
DEVICE float root_factor(float x) {
    const float factor = div_rn(1.0f, sqrt_rn(x));
    return factor > 0.0f ? factor : nan_f32();
}

// 1 / sqrt(mean + eps) of n values with these sums.
template <uint32_t N_SB>
DEVICE float rms_factor(const float* squares, uint32_t n, float eps) {
    float sum = squares[0];
#pragma unroll
    for (uint32_t sb = 1; sb < N_SB; sb++) sum = add_rn(sum, squares[sb]);
    const float mean = div_rn(sum, static_cast<float>(n));
    return root_factor(add_rn(mean, eps));
}
