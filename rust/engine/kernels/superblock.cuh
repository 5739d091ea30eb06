// A superblock of tiles of weights times one of tiles of eight rows of x, as Op::MatVec states it, by a
// warp: W_TILES of the one and N_TILES of the other.
//
// Include it behind epilogue.cuh, which has N_SB and N_PARTS, and FEW_ROWS (no more than half a tile of x).
#pragma once
#include "x_tile.cuh"

// Superblocks before part `part`.
DEVICE uint32_t first_sb(uint32_t part) { return part * N_SB / N_PARTS; }

using Sums = float[W_TILES][N_TILES][4];

// Whether loads must stay where they are: elsewhere the compiler moves so many of them ahead that
// registers go to memory, as it does for two tiles of weights and one of x, for one of each by several types or
// one whose integers are taken in two, and, of eight rows of x, by one that has sixteen scales and quants of six
// words, or rotates what it makes.
template <typename T>
constexpr bool LOADS_IN_ORDER =
    !ARCH_AT_LEAST(900) || ARCH_AT_LEAST(1000) ||
    (W_TILES == 2 && N_TILES == 1) ||
    (W_TILES * N_TILES == 1 &&
     (!ONE_TYPE || SPLITS_QUANTS<T> ||
      (T::SUB == 16 && !FEW_ROWS &&
       (sizeof(decltype(T::load(nullptr, 0, 0))) > 16 || EPILOGUE == EPILOGUE_QKV))));

// Where the sums lie that the k-th eight minimums of a type are multiplied with.
template <typename T>
constexpr uint32_t sums_of(int k) {
    return XTile::SUMS + (T::SUB == 16 ? SUMS_OF_16 + k * EIGHT_SUMS : 0);
}

// Adds a superblock to y, and begins the next.
DEVICE void end_superblock(const uint8_t* x, uint32_t q, Sums& p, Sums& y) {
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const float2 factor =
            *reinterpret_cast<const float2*>(x + n * XTile::BYTES + XTile::FACTORS + q * 8);
#pragma unroll
        for (int w = 0; w < W_TILES; w++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                y[w][n][e] = fma_rn(e % 2 ? factor.y : factor.x, p[w][n][e], y[w][n][e]);
            }
        }
    }
}

// y of a superblock: `tiles` are this warp's, LARGEST_TILE apart, `x` its tiles.
template <typename T>
DEVICE void add_superblock(const uint8_t* weights, const uint8_t* x, uint32_t lane, Sums& y) {
    using OfT = Terms<T>;
    constexpr int EACH = 64 / T::SUB;  // sub-blocks of a quarter
    const uint32_t g = lane / 4, q = lane % 4;
    typename T::Row rows[W_TILES][2];
#pragma unroll
    for (int w = 0; w < W_TILES; w++) {
#pragma unroll
        for (int r = 0; r < 2; r++) rows[w][r] = T::row(weights + w * LARGEST_TILE, g + 8 * r);
    }
    Sums p = {};
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
#pragma unroll
        for (int w = 0; w < W_TILES; w++) {
            const uint8_t* tile = weights + w * LARGEST_TILE;
            uint32_t a[EIGHTS<T>][4];
#pragma unroll
            for (int k = 0; k < EIGHTS<T>; k++) minimums<T>(tile, g, q, k, a[k]);
            const float dmin[2] = {T::dmin(tile, g), T::dmin(tile, g + 8)};
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                float m[4] = {};
#pragma unroll
                for (int k = 0; k < EIGHTS<T>; k++) {
                    const uint8_t* at = x + n * XTile::BYTES + sums_of<T>(k) + lane * 8;
                    const uint2 v = *reinterpret_cast<const uint2*>(at);
                    const uint32_t b[2] = {v.x, v.y};
                    mma_m16n8k16_f16_f32(m, a[k], b, m);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) p[w][n][e] = mul_rn(-dmin[e / 2], m[e]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4 * EACH; j++) {
        if constexpr (LOADS_IN_ORDER<T>) __syncwarp();
        const int sub = j * T::SUB / 32;  // of 32 columns
        OfT terms[W_TILES];
        float scale[W_TILES][2];
        [[maybe_unused]] float offset[W_TILES][2];
#pragma unroll
        for (int w = 0; w < W_TILES; w++) {
            terms[w].set(T::load(weights + w * LARGEST_TILE, lane, sub / 2), j);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const auto quarter = T::quarter(rows[w][r], j / EACH);
                scale[w][r] = T::scale(quarter, j % EACH);
                if constexpr (T::OFFSETS == OWN_OFFSETS) offset[w][r] = T::offset(quarter, j % EACH);
            }
        }
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            const uint8_t* at = x + n * XTile::BYTES + sub * Fragments::SUB_STRIDE + lane * 16;
            uint32_t b[OfT::STEPS][2];
            if constexpr (OfT::STEPS == 2) {
                const uint4 v = *reinterpret_cast<const uint4*>(at);
                b[0][0] = v.x, b[0][1] = v.y;
                b[OfT::STEPS - 1][0] = v.z, b[OfT::STEPS - 1][1] = v.w;
            } else {
                const uint2 v = *reinterpret_cast<const uint2*>(at + j % 2 * 8);
                b[0][0] = v.x, b[0][1] = v.y;
            }
            [[maybe_unused]] float2 of_x;
            if constexpr (T::OFFSETS == OWN_OFFSETS) {
                of_x = *reinterpret_cast<const float2*>(x + n * XTile::BYTES + XTile::OFFSETS +
                                                        j * (X_TILE_ROWS * 4) + q * 8);
            }
#pragma unroll
            for (int w = 0; w < W_TILES; w++) {
                float sums[OfT::COUNT][4] = {};
#pragma unroll
                for (int i = 0; i < OfT::PRODUCTS; i++) {
                    float(&sum)[4] = sums[OfT::term(i)];
                    mma_m16n8k16_f16_f32(sum, terms[w].a[i], b[OfT::step(i)], sum);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float sum = sums[0][e];
                    if constexpr (OfT::COUNT == 2) sum = add_rn(sum, sums[OfT::COUNT - 1][e]);
                    float& its = p[w][n][e];
                    its = fma_rn(scale[w][e / 2], sum, its);
                    if constexpr (T::OFFSETS == OWN_OFFSETS) {
                        its = fma_rn(offset[w][e / 2], e % 2 ? of_x.y : of_x.x, its);
                    }
                }
            }
        }
    }
    end_superblock(x, q, p, y);
}
