// A row of x as block fixed point, step 1 of Op::MatVec: 256 columns in a warp, lane l has 8l..8l+7.
// Integers X = 4096 hi + lo, both limbs at most 2^11 in size, so that float16 holds them.
#pragma once
#include "common.cuh"

constexpr uint32_t LEAST_FIELD = 24, MOST_FIELD = 245;

struct Fixed {
    float hi[8], lo[8];
    // bits(max |x|).
    uint32_t most;
    // 2^(e - 23) 2^24: what the sums of a superblock are multiplied with, whose integers are 2^-24 as
    // large (weight_tile.cuh). NaN where x has no block fixed point, and so is every sum then.
    float factor;
};

DEVICE bool overflows(const Fixed& x) { return x.most >> 23 > MOST_FIELD; }

// Columns k to k + 7 of a row of x that has n; zeros behind it.
template <uint32_t n>
DEVICE void load_columns(const float* row, uint32_t k, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (k + 4 * i < n) f = load_relaxed_f32x4(row + k + 4 * i);
        v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
    }
}

// 1.5 2^23: the last place of a sum of it and a small number is 1, and so its last bits are an integer's.
constexpr float LAST_PLACE_ONE = 12582912.0f;

// x power rounded to an integer, of a power of two.
DEVICE float rint_small(float x, float power) {
    return sub_rn(fma_rn(x, power, LAST_PLACE_ONE), LAST_PLACE_ONE);
}

// What sums of products are in: integers of weights come as 2^-24 as large (weight_tile.cuh).
constexpr float SCALE_OF_SUMS = 1.0f / 16777216.0f;

DEVICE Fixed fixed_point(const float (&v)[8]) {
    Fixed x;
    uint32_t most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t bits = float_as_u32(fabsf(v[e]));
        most = most > bits ? most : bits;
    }
    x.most = warp_max_u32(most);
    const uint32_t least = x.most >> 23 < LEAST_FIELD ? LEAST_FIELD : x.most >> 23;
    const uint32_t field = least > MOST_FIELD ? MOST_FIELD : least;
    const float scale = u32_as_float((264 - field) << 23);  // 2^(11 - e)
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float z = mul_rn(v[e], scale);
        x.hi[e] = rint_small(z, 1.0f);
        x.lo[e] = rint_small(sub_rn(z, x.hi[e]), 4096.0f);
    }
    x.factor = overflows(x) ? nan_f32() : u32_as_float((field + 2) << 23);
    return x;
}

// Where a product reports rows that have no block fixed point to the host.
struct Overflows {
    uint64_t* words;            // [n_slots], in host memory
    const uint32_t* positions;  // of the rows of a pass
    const uint32_t* slots;      // of these
    const uint32_t* rows;       // which of these the rows of x are; null: the same
    uint32_t n_slots;
    uint32_t product;           // its number in the pass
};

// Tells the host that row m of x overflows. For one lane of a warp.
DEVICE void report_overflow(const Overflows& to, uint32_t m, const Fixed& x) {
    const uint32_t row = to.rows ? load_relaxed_u32(to.rows + m) : m;
    const uint32_t slot = load_relaxed_u32(to.slots + row);
    // Padding has none.
    if (slot >= to.n_slots) return;
    report(to.words + slot, load_relaxed_u32(to.positions + row), to.product, true, x.most);
}

// Bytes of fragments of B, of one limb and sub-block of 32 columns and one row of x: for each lane
// quarter, steps 0 and 1, k below 8 and from 8 on.
constexpr uint32_t LIMB_BYTES = 64;

// A lane's eight integers of one limb, as float16.
DEVICE uint4 small_halves(const float (&x)[8], uint32_t lane) {
    // Columns of k from 8 on: weight_tile.cuh.
    const uint32_t small = lane % 2 ? 0x2c002c00u : 0x3c003c00u;  // 1 / 16, 1
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = fma_f16x2(f32x2_to_f16x2(x[2 * i], x[2 * i + 1]), small, 0);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Stores a lane's integers where the four lanes of a fragment read 16 bytes each: `to` is that of
// the lane's sub-block, l / 4.
DEVICE void store_fragments(const Fixed& x, uint32_t lane, uint8_t* to_hi, uint8_t* to_lo) {
    const uint4 hi = small_halves(x.hi, lane), lo = small_halves(x.lo, lane);
    const uint32_t his[4] = {hi.x, hi.y, hi.z, hi.w}, los[4] = {lo.x, lo.y, lo.z, lo.w};
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const uint32_t at = q * 16 + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(to_hi + at) = his[q];
        *reinterpret_cast<uint32_t*>(to_lo + at) = los[q];
    }
}

// Stores a lane's integers as signed bytes, hi = 64 a + b and lo likewise, where the four lanes of a fragment
// of mma.m16n8k32 read 16 bytes each, hi and lo, k below 16 and from 16 on (weight_tile.cuh): those of a, then
// those of b. `to` is that of the lane's sub-block.
DEVICE void store_bytes(const Fixed& x, uint32_t lane, uint8_t* to) {
    uint8_t* own = to + lane % 4 / 2 * 4 + lane % 2 * 2;
    const auto store = [&](const float (&limb)[8], uint8_t* at) {
        uint32_t a[8], b[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float upper = fma_rn(limb[e], 1.0f / 64.0f, LAST_PLACE_ONE);
            const float rest = fma_rn(sub_rn(upper, LAST_PLACE_ONE), -64.0f, limb[e]);
            a[e] = float_as_u32(upper), b[e] = float_as_u32(add_rn(rest, LAST_PLACE_ONE));
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint16_t* pair = reinterpret_cast<uint16_t*>(at + q * 16);
            pair[0] = static_cast<uint16_t>(prmt(a[2 * q], a[2 * q + 1], 0x0040));
            pair[LIMB_BYTES / 2] = static_cast<uint16_t>(prmt(b[2 * q], b[2 * q + 1], 0x0040));
        }
    };
    store(x.hi, own);
    store(x.lo, own + 8);
}

// The sums of both limbs over the lane's 8 LANES columns, the same in its lanes.
template <uint32_t LANES>
DEVICE float2 sums_of_limbs(const Fixed& x) {
    float hi = 0.0f, lo = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        hi = add_rn(hi, x.hi[e]);
        lo = add_rn(lo, x.lo[e]);
    }
#pragma unroll
    for (uint32_t distance = 1; distance < LANES; distance *= 2) {
        hi = add_rn(hi, __shfl_xor_sync(FULL_WARP, hi, distance));
        lo = add_rn(lo, __shfl_xor_sync(FULL_WARP, lo, distance));
    }
    return make_float2(hi, lo);
}

// The sum of X over the lane's sub-block of 8 LANES columns, the same in its lanes.
template <uint32_t LANES = 4>
DEVICE int32_t sub_block_sum(const Fixed& x) {
    const float2 sums = sums_of_limbs<LANES>(x);
    return static_cast<int32_t>(sums.x) * 4096 + static_cast<int32_t>(sums.y);
}

// Less the sums of both limbs over sixteen columns, the lane's and its neighbour's, in the units of the
// products' sums.
DEVICE float2 limb_sums(const Fixed& x) {
    const float2 sums = sums_of_limbs<2>(x);
    return make_float2(mul_rn(sums.x, -SCALE_OF_SUMS), mul_rn(sums.y, -SCALE_OF_SUMS));
}

// An integer up to 2^14 in size as 8 a + b, two halves: what minimums, as (8 m, m), are multiplied
// with.
DEVICE uint32_t eights(int32_t x) {
    const int32_t a = (x + 4) >> 3;
    return f32x2_to_f16x2(static_cast<float>(a), static_cast<float>(x - 8 * a));
}

// The upper and the lower part of a sum of x, step 3 of Op::MatVec: 2^14 u + v.
DEVICE int32_t upper_part(int32_t sum) { return (sum + 8192) >> 14; }
DEVICE int32_t lower_part(int32_t sum) { return sum - (upper_part(sum) << 14); }

// float(sum) in the units of the products' sums.
DEVICE float offset_sum(int32_t sum) {
    return mul_rn(static_cast<float>(sum), SCALE_OF_SUMS);
}
