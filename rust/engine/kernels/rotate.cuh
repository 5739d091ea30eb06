// A head normalized and rotated by the angles of its position, as RMSNorm and Rope state it. A warp has
// the head, up to 256 values, or the first of them, of which a lane has eight.
//
// Include it behind variant.cuh: HALF (pairs that are rotated, a multiple of 8), INTERLEAVED (whether
// partners are neighbours).
#pragma once
#include "norm.cuh"

// Lanes that have the first values of pairs, where these are halves; pairs of which a lane has values.
constexpr uint32_t HALF_LANES = HALF / 8;
constexpr uint32_t LANE_PAIRS = INTERLEAVED ? 4 : 8;

struct Angles {
    float cosine[LANE_PAIRS], sine[LANE_PAIRS];
};

// What this lane rotates its values by; `row` is the position's, [HALF][cos, sin].
DEVICE Angles angles_of(const float* row, uint32_t lane) {
    const bool is_first = INTERLEAVED || lane < HALF_LANES;
    const uint32_t first = (is_first ? lane : lane - HALF_LANES) * LANE_PAIRS;
    Angles angles = {};
    if (first >= HALF) return angles;
#pragma unroll
    for (uint32_t i = 0; i < LANE_PAIRS; i += 2) {
        const float4 two = *reinterpret_cast<const float4*>(row + 2 * (first + i));
        angles.cosine[i] = two.x, angles.sine[i] = two.y;
        angles.cosine[i + 1] = two.z, angles.sine[i + 1] = two.w;
    }
    return angles;
}

// Eight values of a vector that a head is normalized by.
DEVICE void load_norm(const float* weight, uint32_t lane, float (&w)[8]) {
#pragma unroll
    for (uint32_t e = 0; e < 8; e += 4) {
        const float4 four = *reinterpret_cast<const float4*>(weight + lane * 8 + e);
        w[e] = four.x, w[e + 1] = four.y, w[e + 2] = four.z, w[e + 3] = four.w;
    }
}

// Rotates the eight values of a lane, partners in other lanes; by all lanes of a warp.
DEVICE void rotate_head(float (&v)[8], const Angles& angles, uint32_t lane) {
    if constexpr (INTERLEAVED) {
        if (lane * LANE_PAIRS >= HALF) return;
#pragma unroll
        for (uint32_t e = 0; e < 8; e += 2) {
            const float c = angles.cosine[e / 2 % LANE_PAIRS], s = angles.sine[e / 2 % LANE_PAIRS];
            const float a = v[e], b = v[e + 1];
            v[e] = fma_rn(a, c, -mul_rn(b, s));
            v[e + 1] = fma_rn(a, s, mul_rn(b, c));
        }
    } else {
        const bool is_first = lane < HALF_LANES;
        const uint32_t partner = is_first ? lane + HALF_LANES : lane - HALF_LANES;
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) {
            const float other = __shfl_sync(FULL_WARP, v[e], partner & 31);
            if (lane >= 2 * HALF_LANES) continue;
            const float c = angles.cosine[e % LANE_PAIRS], s = angles.sine[e % LANE_PAIRS];
            v[e] = is_first ? fma_rn(v[e], c, -mul_rn(other, s)) : fma_rn(other, s, mul_rn(v[e], c));
        }
    }
}

// By all lanes of a warp; those behind the head have zeros.
DEVICE void norm_head(float (&v)[8], uint32_t dim, float eps) {
    const float squares[1] = {superblock_squares(v)};
    const float factor = rms_factor<1>(squares, dim, eps);
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) v[e] = mul_rn(v[e], factor);
}

DEVICE void norm_and_rotate(float (&v)[8], const float (&weight)[8], const Angles& angles, uint32_t dim,
                          float eps, uint32_t lane) {
    norm_head(v, dim, eps);
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) v[e] = mul_rn(v[e], weight[e]);
    rotate_head(v, angles, lane);
}
