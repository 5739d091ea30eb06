// Values of a row of a matrix, as float32, by a block.
//
// Include it behind weight_tile.cuh and variant.cuh: N_IN.
#pragma once
#include "weight_tile.cuh"

constexpr uint32_t N_SB = (N_IN + TILE_COLS - 1) / TILE_COLS;

// Of row r of a row of tiles the n columns from the first on, integers: four lanes for every 64 columns.
template <typename T>
DEVICE void expand_integers(const uint8_t* weights, uint32_t r, float factor, float* out, uint32_t first,
                            uint32_t n) {
    constexpr uint32_t EACH = 64 / T::SUB;  // sub-blocks of a quarter
    const uint32_t end = (first + n + TILE_COLS - 1) / TILE_COLS;
    for (uint32_t i = first / TILE_COLS * 16 + threadIdx.x; i < end * 16; i += blockDim.x) {
        const uint32_t sb = i / 16, v = i / 4 % 4, q = i % 4;
        const uint8_t* tile = weights + sb * T::TILE_BYTES;
        const auto quants = T::load(tile, r % 8 * 4 + q, v);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const uint32_t sub = 2 * v + part / 2, h = part % 2;
            uint32_t a[4];
            T::fragment(quants, part / 2, part % 2, a);
            const uint32_t j = T::SUB == 16 ? 2 * sub + h : sub;
            const auto quarter = T::quarter(tile, r, j / EACH);
            const float scale = T::scale(quarter, j % EACH);
            float offset = 0.0f;
            if constexpr (T::OFFSETS == OWN_OFFSETS) offset = T::offset(quarter, j % EACH);
            if constexpr (T::OFFSETS == SHARED_OFFSETS) {
                const float m = byte_f32(T::mins(tile, r, j / EACH), j % EACH);
                offset = -mul_rn(T::dmin(tile, r), m);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                // A's halves are subnormals: weight_tile.cuh.
                const uint32_t pair = r < 8 ? a[e / 2 * 2] : a[e / 2 * 2 + 1];
                const float integer =
                    mul_rn(half_of(pair, e % 2), e < 2 ? 16777216.0f : 1048576.0f);
                const uint32_t k = sb * TILE_COLS + sub * 32 + column_of(h, q, e);
                if (k < first || k >= first + n) continue;
                // A sum with 0 would lose the sign of a zero.
                const bool alone = T::OFFSETS == NO_OFFSETS;
                const float w = alone ? mul_rn(scale, integer) : fma_rn(scale, integer, offset);
                out[k - first] = mul_rn(w, factor);
            }
        }
    }
}

template <typename T>
DEVICE void expand_floats(const uint8_t* weights, uint32_t r, float factor, float* out, uint32_t first,
                          uint32_t n) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t end = (first + n + TILE_COLS - 1) / TILE_COLS;
    for (uint32_t sb = first / TILE_COLS + threadIdx.x / 32; sb < end; sb += blockDim.x / 32) {
        float w[8];
        T::load(weights + sb * T::TILE_BYTES, lane, r, w);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t k = sb * TILE_COLS + lane + 32 * i;
            if (k >= first && k < first + n) out[k - first] = mul_rn(w[i], factor);
        }
    }
}
