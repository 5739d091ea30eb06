// A superblock of tiles of weights times one of tiles of eight rows of x, as Op::MatVec states it, by a
// warp: W_TILES of the one and N_TILES of the other.
//
// Include it behind epilogue.cuh, which has N_SB and N_PARTS.
#pragma once
#include "x_tile.cuh"

// Superblocks before part `part`.
DEVICE uint32_t first_sb(uint32_t part) { return part * N_SB / N_PARTS; }

// Products of eight minimums each.
constexpr int EIGHTS = X_SUMS ? X_SUMS / 8 : 1;

using Sums = float[W_TILES][N_TILES][4];

// Whether loads must stay in their chain: elsewhere the compiler moves so many of them ahead that
// registers go to memory, as it does for two tiles of weights and one of x, for one of each by several types,
// and, of eight rows of x, by one that has sixteen scales and quants of six words, or rotates what it makes.
template <typename T>
constexpr bool LOADS_IN_ORDER =
    !ARCH_AT_LEAST(900) || ARCH_AT_LEAST(1000) ||
    (W_TILES == 2 && N_TILES == 1) ||
    (W_TILES * N_TILES == 1 &&
     (!ONE_TYPE ||
      (!PACKED && T::SUB == 16 &&
       (sizeof(decltype(T::load(nullptr, 0, 0))) > 16 || EPILOGUE == EPILOGUE_QKV))));

// Adds a chain to y, and begins the next.
DEVICE void end_chain(const uint8_t* x, uint32_t q, Sums& p, Sums& y) {
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const float2 factor =
            *reinterpret_cast<const float2*>(x + n * XTile::BYTES + XTile::FACTORS + q * 8);
#pragma unroll
        for (int w = 0; w < W_TILES; w++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                y[w][n][e] = fma_rn(e % 2 ? factor.y : factor.x, p[w][n][e], y[w][n][e]);
                p[w][n][e] = 0.0f;
            }
        }
    }
}

// y of a superblock: `tiles` are this warp's, LARGEST_TILE apart, `x` its tiles.
template <typename T>
DEVICE void add_superblock(const uint8_t* weights, const uint8_t* x, uint32_t lane, Sums& y) {
    constexpr int SUBS = 64 / T::SUB;   // sub-blocks of a chain
    constexpr int STEPS = T::SUB / 16;  // of a sub-block
    const uint32_t g = lane / 4, q = lane % 4;
    typename T::Row rows[W_TILES][2];
#pragma unroll
    for (int w = 0; w < W_TILES; w++) {
#pragma unroll
        for (int r = 0; r < 2; r++) rows[w][r] = T::row(weights + w * LARGEST_TILE, g + 8 * r);
    }
#pragma unroll
    for (int t = 0; t < 4; t++) {
        Sums p = {};
        if constexpr (T::OFFSETS == SHARED_OFFSETS) {
            if (t == 0) {
#pragma unroll
                for (int w = 0; w < W_TILES; w++) {
                    const uint8_t* tile = weights + w * LARGEST_TILE;
                    uint32_t a[EIGHTS][4];
#pragma unroll
                    for (int k = 0; k < EIGHTS; k++) minimums<T, X_SUMS>(tile, g, q, k, a[k]);
                    const float dmin[2] = {T::dmin(tile, g), T::dmin(tile, g + 8)};
#pragma unroll
                    for (int n = 0; n < N_TILES; n++) {
                        const uint8_t* at = x + n * XTile::BYTES + Fragments::SUMS + lane * 8;
                        float upper[4] = {}, lower[4] = {};
#pragma unroll
                        for (int k = 0; k < EIGHTS; k++) {
                            const uint2 u = *reinterpret_cast<const uint2*>(at + 512 * k);
                            const uint2 v = *reinterpret_cast<const uint2*>(at + 512 * k + 256);
                            const uint32_t b[2][2] = {{u.x, u.y}, {v.x, v.y}};
                            mma_m16n8k16_f16_f32(upper, a[k], b[0], upper);
                            mma_m16n8k16_f16_f32(lower, a[k], b[1], lower);
                        }
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            const float m = fma_rn(upper[e], 16384.0f, lower[e]);
                            p[w][n][e] = mul_rn(-dmin[e / 2], m);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < SUBS; i++) {
            if constexpr (LOADS_IN_ORDER<T>) __syncwarp();
            const int j = t + 4 * i;
            const int sub = j * T::SUB / 32;  // of 32 columns
            uint32_t a[W_TILES][STEPS][4];
            float scale[W_TILES][2];
            [[maybe_unused]] float offset[W_TILES][2];
#pragma unroll
            for (int w = 0; w < W_TILES; w++) {
                const auto quants = T::load(weights + w * LARGEST_TILE, lane, sub / 2);
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    T::fragment(quants, sub % 2, STEPS == 2 ? step : j % 2, a[w][step]);
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const auto chain = T::chain(rows[w][r], t);
                    scale[w][r] = T::scale(chain, i);
                    if constexpr (T::OFFSETS == OWN_OFFSETS) offset[w][r] = T::offset(chain, i);
                }
            }
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const uint8_t* at = x + n * XTile::BYTES + sub * Fragments::SUB_STRIDE + lane * 16;
                uint32_t b[2][STEPS][2];
#pragma unroll
                for (int limb = 0; limb < 2; limb++) {
                    if constexpr (STEPS == 2) {
                        const uint4 v = *reinterpret_cast<const uint4*>(at + limb * Fragments::LIMB);
                        b[limb][0][0] = v.x, b[limb][0][1] = v.y;
                        b[limb][STEPS - 1][0] = v.z, b[limb][STEPS - 1][1] = v.w;
                    } else {
                        const uint2 v = *reinterpret_cast<const uint2*>(at + limb * Fragments::LIMB +
                                                                        j % 2 * 8);
                        b[limb][0][0] = v.x, b[limb][0][1] = v.y;
                    }
                }
                [[maybe_unused]] float2 of_x;
                if constexpr (T::OFFSETS == OWN_OFFSETS) {
                    of_x = *reinterpret_cast<const float2*>(x + n * XTile::BYTES +
                                                            Fragments::offsets(j) + q * 8);
                }
#pragma unroll
                for (int w = 0; w < W_TILES; w++) {
                    float hi[4] = {}, lo[4] = {};
#pragma unroll
                    for (int step = 0; step < STEPS; step++) {
                        mma_m16n8k16_f16_f32(hi, a[w][step], b[0][step], hi);
                        mma_m16n8k16_f16_f32(lo, a[w][step], b[1][step], lo);
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float& sum = p[w][n][e];
                        sum = fma_rn(scale[w][e / 2], fma_rn(hi[e], 4096.0f, lo[e]), sum);
                        if constexpr (T::OFFSETS == OWN_OFFSETS) {
                            sum = fma_rn(offset[w][e / 2], e % 2 ? of_x.y : of_x.x, sum);
                        }
                    }
                }
            }
        }
        end_chain(x, q, p, y);
    }
}
