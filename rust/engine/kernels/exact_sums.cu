// Whether a card's tensor cores sum the products of a sub-block exactly, which all products with
// weights that are small integers stand on (steps 2 and 3 of Op::MatVec): random tiles of each type and
// random x, as the fragments that products multiply, against sums of integers.
//
// A warp takes one tile at a time, for eight rows of x; a block has the tiles of the type
// blockIdx.y. variant.cuh: the types' headers, and with_type(number, f).
#include "fixed.cuh"
#include "sample.cuh"
#include "weight_tile.cuh"
#include "variant.cuh"

constexpr uint32_t WARPS = 2;
constexpr uint32_t X_ROWS = 8;
constexpr uint32_t MOST_QUANT_BYTES = 4096;

struct ExactSumsParams {
    uint64_t* found;  // [types] sums, and how many of them are not exact
    uint32_t tiles;   // of each type
    uint32_t seed;
};

// What a warp multiplies: a tile, x, and the integers of 32 columns of the tile.
struct Work {
    uint8_t tile[MOST_QUANT_BYTES];
    int16_t x[2][X_ROWS][TILE_COLS];  // hi, lo
    int16_t q[TILE_ROWS][32];
};

// Of every four tiles one has all bits set and one has none: the largest integers of either sign.
DEVICE uint32_t tile_word(uint32_t number, uint32_t random) {
    return number % 4 == 2 ? 0xffffffffu : number % 4 == 3 ? 0 : random;
}

// A limb of x: of every sixteen tiles, in four any, in the others the largest, of both signs or of one.
DEVICE int16_t limb(uint32_t number, uint32_t random) {
    const int32_t any = static_cast<int32_t>(random % 4097) - 2048;
    const int32_t largest = random & 1 ? 2048 : -2048;
    const uint32_t kind = number / 4 % 4;
    return static_cast<int16_t>(kind == 0 ? any : kind == 1 ? largest : kind == 2 ? 2048 : -2048);
}

DEVICE void fill(Work& work, uint32_t number, uint32_t seed) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t* words = reinterpret_cast<uint32_t*>(work.tile);
    int16_t* limbs = reinterpret_cast<int16_t*>(work.x);
    constexpr uint32_t WORDS = MOST_QUANT_BYTES / 4, LIMBS = 2 * X_ROWS * TILE_COLS;
#pragma unroll 1
    for (uint32_t i = lane; i < (WORDS + LIMBS) / 4; i += 32) {
        const uint4 random = random_words(seed, number, i);
        const uint32_t word[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t at = 4 * i + e;
            if (at < WORDS) {
                words[at] = tile_word(number, word[e]);
            } else {
                limbs[at - WORDS] = limb(number, word[e]);
            }
        }
    }
}

// Two integers as a lane's word of B is stored, `scale` times as large.
DEVICE uint32_t halves(const int16_t* x, float scale) {
    return f32x2_to_f16x2(mul_rn(static_cast<float>(x[0]), scale),
                          mul_rn(static_cast<float>(x[1]), scale));
}

// How many of the lane's sums are not exact.
template <typename T>
DEVICE uint32_t wrong_sums(Work& work) {
    constexpr int STEPS = T::SUB / 16;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t wrong = 0;
#pragma unroll 1
    for (uint32_t v = 0; v < 4; v++) {
        const auto quants = T::load(work.tile, lane, v);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint32_t first = (2 * v + s) * 32;
            uint32_t a[2][4], b[2][2][2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                T::fragment(quants, s, h, a[h]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    // Columns of k below 8 hold q 2^-24, those from 8 on q 2^-20: weight_tile.cuh.
                    const float to_q = i < 2 ? 16777216.0f : 1048576.0f;
                    int16_t* q = &work.q[g + i % 2 * 8][16 * h + i / 2 * 8 + 2 * t];
                    q[0] = static_cast<int16_t>(mul_rn(f16x2_low(a[h][i]), to_q));
                    q[1] = static_cast<int16_t>(mul_rn(f16x2_high(a[h][i]), to_q));
                }
#pragma unroll
                for (int l = 0; l < 2; l++) {
                    const int16_t* x = &work.x[l][g][first + 16 * h + 2 * t];
                    b[l][h][0] = halves(x, 1.0f);
                    b[l][h][1] = halves(x + 8, 0.0625f);
                }
            }
            __syncwarp();
            // One sub-block of 32 columns or two of 16.
#pragma unroll
            for (int sub = 0; sub < 2 / STEPS; sub++) {
                float hi[4] = {}, lo[4] = {};
#pragma unroll
                for (int h = sub * STEPS; h < (sub + 1) * STEPS; h++) {
                    mma_m16n8k16_f16_f32(hi, a[h], b[0][h], hi);
                    mma_m16n8k16_f16_f32(lo, a[h], b[1][h], lo);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int16_t* q = &work.q[g + e / 2 * 8][sub * T::SUB];
                    const int16_t* x_hi = &work.x[0][2 * t + e % 2][first + sub * T::SUB];
                    const int16_t* x_lo = &work.x[1][2 * t + e % 2][first + sub * T::SUB];
                    int32_t sum_hi = 0, sum_lo = 0;
#pragma unroll 4
                    for (int k = 0; k < T::SUB; k++) {
                        sum_hi += q[k] * x_hi[k];
                        sum_lo += q[k] * x_lo[k];
                    }
                    const float found_hi = mul_rn(hi[e], 16777216.0f);
                    const float found_lo = mul_rn(lo[e], 16777216.0f);
                    const int64_t sum = static_cast<int64_t>(sum_hi) * 4096 + sum_lo;
                    wrong += found_hi != static_cast<float>(sum_hi) ||
                             found_lo != static_cast<float>(sum_lo) ||
                             fma_rn(found_hi, 4096.0f, found_lo) != static_cast<float>(sum);
                }
            }
            __syncwarp();
        }
    }
    return wrong;
}

KERNEL_BOUNDS(exact_sums, ExactSumsParams, 32 * WARPS, 1) {
    alignas(16) SHARED Work all[WARPS];
    const uint32_t warp = threadIdx.x / 32, type = blockIdx.y;
    Work& work = all[warp];
    uint32_t sums = 0, wrong = 0;
#pragma unroll 1
    for (uint32_t n = blockIdx.x * WARPS + warp; n < p.tiles; n += gridDim.x * WARPS) {
        fill(work, n, p.seed + type);
        __syncwarp();
        with_type(type, [&](auto example) {
            using T = decltype(example);
            sums += TILE_COLS / T::SUB * 4;
            wrong += wrong_sums<T>(work);
        });
    }
    auto* found = reinterpret_cast<unsigned long long*>(p.found + 2 * type);
    atomicAdd(found, 1ull * sums);
    if (wrong) atomicAdd(found + 1, 1ull * wrong);
}
