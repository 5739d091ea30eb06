// A row of x as block fixed point, step 1 of Op::MatVec: 256 columns in a warp, lane l has 8l..8l+7. A block
// of 32 columns, four lanes', has a grid of its own, a superblock the exponent e in which its H count:
// float16 whose sums of products are exact.
#pragma once
#include "common.cuh"

constexpr uint32_t LEAST_FIELD = 24, MOST_FIELD = 243;

struct Fixed {
    // H of the lane's columns, two a word, as the tensor cores read them: from k = 8 on, which are odd
    // lanes', a sixteenth of it (weight_tile.cuh).
    uint32_t h[4];
    // H 2^shift are integers.
    int32_t shift;
    // bits(max |x|).
    uint32_t most;
    // 2^(e + 10): what the sum of a superblock is multiplied with. NaN where x has no block fixed point, and so
    // is every sum then.
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

// 2^n, n from -126 to 127; as two float16, from -24 to 15.
DEVICE float power_of_two(int32_t n) { return u32_as_float(static_cast<uint32_t>(127 + n) << 23); }
DEVICE uint32_t powers_of_two_f16x2(int32_t n) {
    return f32x2_to_f16x2(power_of_two(n), power_of_two(n));
}

DEVICE uint32_t field_of(uint32_t bits) {
    const uint32_t field = bits >> 23;
    return field < LEAST_FIELD ? LEAST_FIELD : field > MOST_FIELD ? MOST_FIELD : field;
}

DEVICE Fixed fixed_point(const float (&v)[8]) {
    Fixed x;
    uint32_t most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t bits = float_as_u32(fabsf(v[e]));
        most = most > bits ? most : bits;
    }
    x.most = warp_max_u32(most);
#pragma unroll
    for (uint32_t distance = 1; distance < 4; distance *= 2) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, most, distance);
        most = most > other ? most : other;
    }
    const uint32_t own = field_of(most), field = field_of(x.most);
    // Exponents that the block lies below the superblock.
    const uint32_t below = field - own;
    const int32_t shift = static_cast<int32_t>(below < 20 ? below : 20);
    const bool is_odd = threadIdx.x % 2;
    const float to_grid = u32_as_float((267 - own) << 23);  // 2^(14 - e) of the block
    const uint32_t to_h = powers_of_two_f16x2(is_odd ? -4 - shift : -shift);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float z0 = rint_small(v[2 * i], to_grid), z1 = rint_small(v[2 * i + 1], to_grid);
        x.h[i] = fma_f16x2(f32x2_to_f16x2(z0, z1), to_h, 0);
    }
    if (below > 20) {
        // Of units of 2^-20, multiples again: as float16 they are units of 2^-24.
        const int32_t rest = static_cast<int32_t>(below < 36 ? 20 - below : -16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t sixteenth = is_odd ? x.h[i] : fma_f16x2(x.h[i], 0x2c002c00u, 0);
            const uint32_t rounded = fma_f16x2(sixteenth, powers_of_two_f16x2(rest), 0);
            x.h[i] = is_odd ? rounded : fma_f16x2(rounded, 0x4c004c00u, 0);
        }
    }
    x.shift = shift;
    x.factor = overflows(x) ? nan_f32() : u32_as_float((field + 11) << 23);
    return x;
}

// H of the lane's columns.
DEVICE void values_of(const Fixed& x, float (&h)[8]) {
    const float unit = threadIdx.x % 2 ? 16.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h[2 * i] = mul_rn(f16x2_low(x.h[i]), unit);
        h[2 * i + 1] = mul_rn(f16x2_high(x.h[i]), unit);
    }
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

// Bytes of fragments of B of a sub-block of 32 columns and one row of x: for each lane quarter, steps 0 and
// 1, k below 8 and from 8 on.
constexpr uint32_t X_SUB_BYTES = 64;

// Stores a lane's columns where the four lanes of a fragment read 16 bytes each: `to` is that of the lane's
// sub-block, l / 4.
DEVICE void store_fragments(const Fixed& x, uint32_t lane, uint8_t* to) {
#pragma unroll
    for (int q = 0; q < 4; q++) *reinterpret_cast<uint32_t*>(to + q * 16 + lane % 4 * 4) = x.h[q];
}

// Stores a lane's columns as integers 256 a + b of signed bytes: all of a sub-block's a, then b, of either
// 8 bytes for each of the four lanes of a fragment of mma.m16n8k32, k below 16 and from 16 on
// (weight_tile.cuh). `to` is that of the lane's sub-block.
DEVICE void store_bytes(const Fixed& x, uint32_t lane, uint8_t* to) {
    float h[8];
    values_of(x, h);
    uint8_t* own = to + lane % 4 / 2 * 4 + lane % 2 * 2;
    uint32_t above[8];  // 128 more than the integer, in the lower 16 bits
    const float steps = power_of_two(x.shift);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        above[e] = float_as_u32(fma_rn(h[e], steps, LAST_PLACE_ONE + 128.0f));
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
        uint16_t* pair = reinterpret_cast<uint16_t*>(own + q * 8);
        pair[0] = static_cast<uint16_t>(prmt(above[2 * q], above[2 * q + 1], 0x0051));
        pair[X_SUB_BYTES / 4] =
            static_cast<uint16_t>(prmt(above[2 * q], above[2 * q + 1], 0x0040) ^ 0x8080u);
    }
}

// The sum of H over the lane's 8 LANES columns, the same in its lanes: exact.
template <uint32_t LANES>
DEVICE float sum_of_columns(const Fixed& x) {
    float pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = add_rn(f16x2_low(x.h[i]), f16x2_high(x.h[i]));
    float sum = add_rn(add_rn(pairs[0], pairs[1]), add_rn(pairs[2], pairs[3]));
    sum = mul_rn(sum, threadIdx.x % 2 ? 16.0f : 1.0f);
#pragma unroll
    for (uint32_t distance = 1; distance < LANES; distance *= 2) {
        sum = add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, distance));
    }
    return sum;
}

// A sum of sub-blocks as what minimums, (16 m, m), are multiplied with, step 3 of Op::MatVec: 16 a + b, on
// one grid for the superblock. For whole warps: each lane has one.
DEVICE uint32_t sixteens(float sum) {
    const uint32_t field = warp_max_u32(float_as_u32(fabsf(sum))) >> 23;
    const uint32_t most = field < 124 ? 124 : field > 160 ? 160 : field;
    const float whole = rint_small(sum, u32_as_float((267 - most) << 23));  // 2^(14 - e) of the sums
    const float a = rint_small(whole, 1.0f / 16.0f), b = fma_rn(a, -16.0f, whole);
    const float unit = u32_as_float((most - 13) << 23);
    return f32x2_to_f16x2(mul_rn(a, unit), mul_rn(b, unit));
}

// What a sum of x is in the units of the products' sums.
DEVICE float offset_sum(float sum) { return mul_rn(sum, SCALE_OF_SUMS); }
