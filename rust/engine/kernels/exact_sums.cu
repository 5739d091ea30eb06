// Whether a card's tensor cores sum the products of a sub-block exactly, which all products with
// weights that are small integers stand on (step 2 of Op::MatVec): random tiles of each type and random x, as
// the fragments that products multiply, against sums of integers.
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
    int16_t x[X_ROWS][TILE_COLS];
    int16_t q[TILE_ROWS][32];
};

// Of every four tiles one has all bits set and one has none: the largest integers of either sign.
DEVICE uint32_t tile_word(uint32_t number, uint32_t random) {
    return number % 4 == 2 ? 0xffffffffu : number % 4 == 3 ? 0 : random;
}

// The largest size of an integer of x.
constexpr int32_t MOST_X = 1 << 14;

// An integer of x of 11 significant bits: of every sixteen tiles, in four any, in the others the largest, of
// both signs or of one.
DEVICE int16_t integer_of_x(uint32_t number, uint32_t random) {
    const int32_t size = static_cast<int32_t>(random % 2049) << (random >> 12 & 3);
    const int32_t any = random & 1u << 31 ? -size : size, largest = random & 1 ? MOST_X : -MOST_X;
    const uint32_t kind = number / 4 % 4;
    return static_cast<int16_t>(kind == 0 ? any : kind == 1 ? largest : kind == 2 ? MOST_X : -MOST_X);
}

// Exponents that the grid of sub-block `sub` of a row lies below the superblock's: with the largest, x are the
// smallest float16.
DEVICE uint32_t below(uint32_t number, uint32_t row, uint32_t sub) {
    return number % 3 ? (7 * number + 5 * row + 3 * sub) % 21 : 20 * (sub % 2);
}

DEVICE void fill(Work& work, uint32_t number, uint32_t seed) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t* words = reinterpret_cast<uint32_t*>(work.tile);
    int16_t* x = reinterpret_cast<int16_t*>(work.x);
    constexpr uint32_t WORDS = MOST_QUANT_BYTES / 4, INTEGERS = X_ROWS * TILE_COLS;
#pragma unroll 1
    for (uint32_t i = lane; i < (WORDS + INTEGERS) / 4; i += 32) {
        const uint4 random = random_words(seed, number, i);
        const uint32_t word[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t at = 4 * i + e;
            if (at < WORDS) {
                words[at] = tile_word(number, word[e]);
            } else {
                x[at - WORDS] = integer_of_x(number, word[e]);
            }
        }
    }
}

// Two integers as a lane's word of B is stored, `scale` times as large.
DEVICE uint32_t halves(const int16_t* x, float scale) {
    return f32x2_to_f16x2(mul_rn(static_cast<float>(x[0]), scale),
                          mul_rn(static_cast<float>(x[1]), scale));
}

template <int value>
struct Number {
    static constexpr int VALUE = value;
};

// How many of the lane's sums are not exact.
template <typename T>
DEVICE uint32_t wrong_sums(Work& work, uint32_t number) {
    using OfT = Terms<T>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t wrong = 0;
#pragma unroll 1
    for (uint32_t sub = 0; sub < 8; sub++) {
        const auto quants = T::load(work.tile, lane, sub / 2);
        uint32_t b[2][2];
        const float unit = power_of_two(-static_cast<int32_t>(below(number, g, sub)));
        // Each half with the same code: which it is must be known when it is compiled.
        const auto half = [&](auto odd) {
            constexpr int S = decltype(odd)::VALUE;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t a[4];
                T::fragment(quants, S, h, a);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    // Columns of k below 8 hold q 2^-24, those from 8 on q 2^-20: weight_tile.cuh.
                    const float to_q = i < 2 ? 16777216.0f : 1048576.0f;
                    int16_t* q = &work.q[g + i % 2 * 8][16 * h + i / 2 * 8 + 2 * t];
                    q[0] = static_cast<int16_t>(mul_rn(f16x2_low(a[i]), to_q));
                    q[1] = static_cast<int16_t>(mul_rn(f16x2_high(a[i]), to_q));
                }
                const int16_t* x = &work.x[g][sub * 32 + 16 * h + 2 * t];
                b[h][0] = halves(x, unit);
                b[h][1] = halves(x + 8, unit / 16.0f);
            }
            __syncwarp();
            // One sub-block of 32 columns or two of 16.
#pragma unroll
            for (int own = 0; own < 32 / T::SUB; own++) {
                OfT terms;
                terms.set(quants, T::SUB == 32 ? S : 2 * S + own);
                float sums[OfT::COUNT][4] = {};
#pragma unroll
                for (int i = 0; i < OfT::PRODUCTS; i++) {
                    float(&sum)[4] = sums[OfT::term(i)];
                    mma_m16n8k16_f16_f32(sum, terms.a[i], b[T::SUB == 32 ? OfT::step(i) : own], sum);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t row = 2 * t + e % 2;
                    const int16_t* q = &work.q[g + e / 2 * 8][own * T::SUB];
                    const int16_t* x = &work.x[row][sub * 32 + own * T::SUB];
                    int32_t sum = 0;
#pragma unroll 4
                    for (int k = 0; k < T::SUB; k++) sum += q[k] * x[k];
                    float found = sums[0][e];
                    if constexpr (OfT::COUNT == 2) found = add_rn(found, sums[OfT::COUNT - 1][e]);
                    const auto to_integer = static_cast<int32_t>(24 + below(number, row, sub));
                    wrong += mul_rn(found, power_of_two(to_integer)) != static_cast<float>(sum);
                }
            }
            __syncwarp();
        };
        if (sub % 2) {
            half(Number<1>{});
        } else {
            half(Number<0>{});
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
            wrong += wrong_sums<T>(work, n);
        });
    }
    auto* found = reinterpret_cast<unsigned long long*>(p.found + 2 * type);
    atomicAdd(found, 1ull * sums);
    if (wrong) atomicAdd(found + 1, 1ull * wrong);
}
