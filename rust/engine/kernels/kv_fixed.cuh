// KV caches of integers: value = k u, with one scale u for consecutive dimensions of a head of a token, a
// block. KvFixed, 16-bit block fixed point: k of two bytes, u a bfloat16 of up to 128 dimensions. KvBytes:
// k of one byte, u a float16 of up to 32. A head's page has the upper bytes of all k, then the lower ones,
// as tensor cores take them: keys [HEAD_DIM / 16][token][16], values [token / 16][HEAD_DIM][16]; then the
// scales [block][token]. Sixteen tokens of a value lie in the order that lets a thread take weights from
// where products of tensor cores left them.
#pragma once
#include "common.cuh"
#include "kv.cuh"
#include "math.cuh"

// The upper and the lower byte of the low halves of four words.
DEVICE void split_bytes(const uint32_t (&w)[4], uint32_t& hi, uint32_t& lo) {
    const uint32_t first = prmt(w[0], w[1], 0x5140), second = prmt(w[2], w[3], 0x5140);
    lo = prmt(first, second, 0x5410);
    hi = prmt(first, second, 0x7632);
}

// x rounded to an integer, of a product that is not rounded before: below 2^22 in size.
DEVICE float rint_product(float x, float scale) {
    return sub_rn(fma_rn(x, scale, 12582912.0f), 12582912.0f);
}

constexpr uint32_t TWO_TO_23 = 0x4b000000;  // 2^23f

// 65536 hh + 256 mid + ll, rounded once: |hh| is below 2^22, the rest below 2^31. In a loop `exponent` is a
// register that the compiler does not make anew each time.
DEVICE float limbs_sum(int32_t hh, int32_t mid, int32_t ll, uint32_t exponent = TWO_TO_23) {
    const int32_t rest = mid * 256 + ll;
    // 2^23 and what is not above: taken back as 128 times 65536. By floats where these can: a card has half
    // as many scales for integers.
    const float lower = u32_as_float(prmt(static_cast<uint32_t>(rest), exponent, 0x7610));
    return fma_rn(sub_rn(static_cast<float>(hh + (rest >> 16)), 128.0f), 65536.0f, lower);
}

// The same of one byte, of which there is no lower one: both are below 2^21.
DEVICE float limbs_sum(int32_t hi, int32_t lo) { return static_cast<float>(hi * 256 + lo); }

// The sum of a row's products with two bytes of a head: a lane has them in neighbouring columns, of the
// upper bytes, and of the lower ones where there are two.
template <uint32_t LIMBS, uint32_t TILES>
DEVICE float row_sum(const int32_t (&sums)[LIMBS][TILES][4], uint32_t tile, uint32_t row) {
    const int32_t* first = sums[0][tile] + 2 * row;
    if constexpr (LIMBS == 1) {
        return limbs_sum(first[0], first[1]);
    } else {
        const int32_t* last = sums[LIMBS - 1][tile] + 2 * row;
        return limbs_sum(first[0], first[1] + last[0], last[1]);
    }
}

// Where integers of LIMBS_ bytes lie in a head's page, and scales of GROUP_ dimensions.
template <int HEAD_DIM, uint32_t LIMBS_, uint32_t GROUP_>
struct KvIntegers {
    static constexpr uint32_t LIMBS = LIMBS_;
    static constexpr uint32_t GROUP = GROUP_;  // dimensions of a block
    static constexpr uint32_t BLOCKS = (HEAD_DIM + GROUP - 1) / GROUP;
    static constexpr uint32_t PLANE = PAGE_TOKENS * HEAD_DIM;  // bytes of all upper, or lower, bytes
    static constexpr uint32_t BYTES = LIMBS * PLANE + PAGE_TOKENS * BLOCKS * 2;
    // What a warp encodes at a time, four dimensions a lane: whole blocks.
    static constexpr uint32_t SPAN = 128;
    static constexpr uint32_t SPANS = (HEAD_DIM + SPAN - 1) / SPAN;
    static_assert(SPAN % GROUP == 0, "whole blocks");

    // A head's page; 64 bits, caches are larger than 4 GiB.
    template <int N_HEAD_KV>
    DEVICE uint8_t* head(void* pool, uint32_t page, uint32_t head) {
        return static_cast<uint8_t*>(pool) +
               (static_cast<uint64_t>(page) * N_HEAD_KV + head) * BYTES;
    }

    // Where the upper byte lies; the lower one is PLANE bytes on.
    DEVICE uint32_t key_at(uint32_t token, uint32_t dim) {
        return (dim / 16 * PAGE_TOKENS + token) * 16 + dim % 16;
    }
    DEVICE uint32_t value_at(uint32_t token, uint32_t dim) {
        return (token / 16 * HEAD_DIM + dim) * 16 + place(token);
    }
    DEVICE uint32_t scale_at(uint32_t token, uint32_t block) {
        return LIMBS * PLANE + (block * PAGE_TOKENS + token) * 2;
    }
    // A token's place among its sixteen: a lane of a product has tokens 2t, 2t + 1, 2t + 8 and 2t + 9.
    DEVICE uint32_t place(uint32_t token) {
        return token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
    }

    // Puts four dimensions of a token, from `dim` on, where a page has them: a word of each byte.
    DEVICE void put(uint8_t* page, bool is_value, uint32_t token, uint32_t dim,
                    const uint32_t (&limbs)[LIMBS]) {
        if (!is_value) {
#pragma unroll
            for (uint32_t limb = 0; limb < LIMBS; limb++) {
                uint8_t* at = page + limb * PLANE + key_at(token, dim);
                *reinterpret_cast<uint32_t*>(at) = limbs[limb];
            }
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint8_t* at = page + value_at(token, dim + i);
#pragma unroll
            for (uint32_t limb = 0; limb < LIMBS; limb++) {
                at[limb * PLANE] = static_cast<uint8_t>(limbs[limb] >> 8 * i);
            }
        }
    }
    DEVICE void put_scale(uint8_t* page, uint32_t token, uint32_t block, uint16_t scale) {
        *reinterpret_cast<uint16_t*>(page + scale_at(token, block)) = scale;
    }
};

template <int HEAD_DIM>
struct KvFixed : KvIntegers<HEAD_DIM, 2, 128> {
    static constexpr float LARGEST = 32767.0f * 34359738368.0f;
    static constexpr uint32_t LEAST_SCALE = 0x0080;  // 2^-126

    DEVICE float scale(uint16_t bits) { return bf16_to_f32(bits); }

    // Scales of tokens 2i and 2i + 1 of a block.
    DEVICE float2 scales_at(const uint8_t* page, uint32_t pair, uint32_t block) {
        const uint32_t two =
            *reinterpret_cast<const uint32_t*>(page + KvFixed::scale_at(2 * pair, block));
        return make_float2(u32_as_float(two << 16), u32_as_float(two & 0xffff0000u));
    }

    // Scale and integers of a block, a warp: a lane has four dimensions, zeros behind the last. What no
    // block holds becomes the largest, NaN 0; `given` is noted for kv_tell.
    DEVICE uint16_t encode(float (&x)[4], uint32_t (&limbs)[2], uint32_t& given) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            note_size(x[i], given);
            x[i] = x[i] == x[i] ? fminf(fmaxf(x[i], -LARGEST), LARGEST) : 0.0f;
            note_size(x[i], most);
        }
        const float exact = div_rn(u32_as_float(warp_max_u32(most)), 32767.0f);
        uint32_t scale = (float_as_u32(exact) + 0xffffu) >> 16;
        scale = scale < LEAST_SCALE ? LEAST_SCALE : scale;
        const float inverse = div_rn(1.0f, bf16_to_f32(static_cast<uint16_t>(scale)));
        uint32_t k[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float rounded = rint_product(x[i], inverse);
            k[i] = static_cast<uint32_t>(static_cast<int>(fminf(fmaxf(rounded, -32767.0f), 32767.0f)));
        }
        split_bytes(k, limbs[0], limbs[1]);
        return static_cast<uint16_t>(scale);
    }
};

template <int HEAD_DIM>
struct KvBytes : KvIntegers<HEAD_DIM, 1, 32> {
    static constexpr float LARGEST = 127.0f * F16_MAX;

    DEVICE float scale(uint16_t bits) { return f16_to_f32(bits); }

    DEVICE float2 scales_at(const uint8_t* page, uint32_t pair, uint32_t block) {
        const uint32_t two =
            *reinterpret_cast<const uint32_t*>(page + KvBytes::scale_at(2 * pair, block));
        return make_float2(f16x2_low(two), f16x2_high(two));
    }

    // As KvFixed has it, of the blocks that a warp has: eight lanes each.
    DEVICE uint16_t encode(float (&x)[4], uint32_t (&limbs)[1], uint32_t& given) {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            note_size(x[i], given);
            x[i] = x[i] == x[i] ? fminf(fmaxf(x[i], -LARGEST), LARGEST) : 0.0f;
            most = fmaxf(most, fabsf(x[i]));
        }
#pragma unroll
        for (uint32_t mask = 1; mask < 8; mask *= 2) {
            most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, mask));
        }
        const float d = div_rn(most, 127.0f);
        float steps = div_rn(1.0f, d);
        if (!(steps < infinity_f32())) steps = 0.0f;
        uint32_t q[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // To the nearest, halves away from zero.
            const float y = mul_rn(x[i], steps);
            int k = static_cast<int>(y);
            const float rest = sub_rn(y, static_cast<float>(k));
            k += (rest >= 0.5f) - (rest <= -0.5f);
            q[i] = static_cast<uint32_t>(k > 127 ? 127 : k < -128 ? -128 : k);
        }
        limbs[0] = prmt(prmt(q[0], q[1], 0x0040), prmt(q[2], q[3], 0x0040), 0x5410);
        return f32_to_f16(d < F16_MAX ? d : F16_MAX);
    }
};

// A head's query as fixed point, step 1 of Op::Attention: |Q| <= 32639, two signed bytes.
constexpr uint32_t MOST_QUERY_FIELD = 176;

struct QueryScale {
    float to_integers;  // Q = rint(q to_integers)
    float factor;       // of the scores, what 2^(1 / 64) is raised to
    bool is_number;
};

// Of bits(max |q|).
DEVICE QueryScale query_scale(uint32_t most, float scale) {
    const bool is_number = most >> 23 <= MOST_QUERY_FIELD;
    const float largest = fmaxf(is_number ? u32_as_float(most) : 0.0f, 7.888609e-31f);  // 2^-100
    return {div_rn(32639.0f, largest), mul_rn(scale, largest), is_number};
}

// Q in bytes, four integers a word.
DEVICE void query_limbs(const float (&q)[4], float to_integers, uint32_t& hi, uint32_t& lo) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // 128 more than its lower byte is not negative; the byte less 128 has that bit flipped.
        w[i] = static_cast<uint32_t>(static_cast<int>(rint_product(q[i], to_integers)) + 128);
    }
    split_bytes(w, hi, lo);
    lo ^= 0x80808080u;
}

// Token blocks that a split of n tokens has, step 5.
template <uint32_t SPLITS>
DEVICE uint32_t token_blocks_of_split(uint32_t n) {
    constexpr uint32_t TOKENS = PAGE_TOKENS * SPLITS;
    return n <= TOKENS ? 1 : (n + TOKENS - 1) / TOKENS;
}

// 2^n of an integer up to 0; zero below 2^-126, and of no number.
DEVICE float fade(float n) {
    // The sum's last bits are n + 127, which the shift leaves in the place of exponents.
    return u32_as_float(float_as_u32(add_rn(fmaxf(n, -127.0f), 12583039.0f)) << 23);
}

// What is joined to sums: factors of both, step 5.
struct Join {
    float old_share, new_share;
};

DEVICE Join join(float& most, float next) {
    const float both = fmaxf(most, next);
    const Join factors = {fade(sub_rn(most, both)), fade(sub_rn(next, both))};
    most = both;
    return factors;
}

// The scores of a token block against their largest, step 3: p = exp2_unit_f32(fma_sat(s, factor,
// bias)).
struct TokenBlockTop {
    float most, factor, bias;
};

DEVICE TokenBlockTop token_block_top(float top, float factor) {
    const float most = ceilf(mul_rn(mul_rn(top, factor), 64.0f));
    if (fabsf(most) < 8388608.0f) return {most, factor, fma_rn(most, -0.015625f, 1.0f)};
    // One for the largest, zero for all below: a power of two that makes them integers, of which the
    // float below the largest is taken.
    const uint32_t bits = float_as_u32(top), field = bits >> 23 & 255;
    const float whole = u32_as_float((278 - (field < 24 ? 24 : field)) << 23);
    const float below = u32_as_float(top > 0.0f ? bits - 1 : bits + 1);
    return {most, whole, -mul_rn(below, whole)};
}

// Of two rows: as a rule both are alike, and one branch is enough.
DEVICE void token_block_tops(const float (&top)[2], const float (&factor)[2], TokenBlockTop (&tops)[2]) {
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; r++) most[r] = ceilf(mul_rn(mul_rn(top[r], factor[r]), 64.0f));
    if (fmaxf(fabsf(most[0]), fabsf(most[1])) < 8388608.0f && most[0] == most[0] && most[1] == most[1]) {
#pragma unroll
        for (int r = 0; r < 2; r++) tops[r] = {most[r], factor[r], fma_rn(most[r], -0.015625f, 1.0f)};
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) tops[r] = token_block_top(top[r], factor[r]);
}

// A token block's sum of weights, from that of rint(p 2^22).
DEVICE float token_block_weight(int share, float most) {
    // 65535 2^-38: weights of values are 65535ths.
    constexpr float PART = 65535.0f / 274877906944.0f;
    return fabsf(most) < infinity_f32() ? mul_rn(static_cast<float>(share), PART) : nan_f32();
}

// A sink, step 6: what is joined last.
struct Sink {
    float most, weight;
};

DEVICE Sink sink_of(float logit) {
    const float s = mul_rn(logit, 0.022542110f);  // log2(e) / 64
    const TokenBlockTop top = token_block_top(s, 1.0f);
    const float p = exp2_unit_f32(fma_sat(s, top.factor, top.bias));
    return {top.most, token_block_weight(static_cast<int>(rint_product(p, 4194304.0f)), top.most)};
}

// The grid of a token block's weighted values, step 4, from the largest p u: w = rint(p u to_integers).
struct ValueScale {
    float to_integers, step;
};

DEVICE ValueScale value_scale(float largest) {
    uint32_t field = float_as_u32(largest) >> 23;
    field = field < 24 ? 24 : field;
    // 65535 2^-E and 2^(E - 16), E = field - 126.
    return {mul_rn(65535.0f, u32_as_float((253 - field) << 23)), u32_as_float((field - 15) << 23)};
}

// Weights of a block's values for four heads from its tokens' p, as products want B: bytes of what is for
// the head of this lane's column. Lanes of a head have eight tokens each, of which they make both bytes,
// and hand over the one that is for the neighbouring column. Returns what sums of this lane's own head
// are multiplied with.
template <typename Cache, uint32_t N>
DEVICE float block_weights(const float (&parts)[N][PAGE_TOKENS + 8], const uint8_t* values,
                           uint32_t block, uint32_t tile, uint32_t (&columns)[2][2]) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, quarter = lane % 4;
    // Of each 32 tokens the first or the second half.
    const bool is_second = g % 2;
    const float* part = parts[tile * 4 + g / 2];
    float v[2][4], most = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
        for (uint32_t two = 0; two < 2; two++) {
            const uint32_t pair = (2 * k + is_second) * 8 + two * 4 + quarter;
            const float2 p = *reinterpret_cast<const float2*>(part + 2 * pair);
            const float2 scales = Cache::scales_at(values, pair, block);
            // Where nothing is seen p is 0, and a scale may be no number.
            v[k][2 * two] = fmaxf(mul_rn(p.x, scales.x), 0.0f);
            v[k][2 * two + 1] = fmaxf(mul_rn(p.y, scales.y), 0.0f);
            most = fmaxf(most, fmaxf(v[k][2 * two], v[k][2 * two + 1]));
        }
    }
#pragma unroll
    for (uint32_t mask = 1; mask < 8; mask *= 2) {
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, mask));
    }
    const ValueScale scale = value_scale(most);
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t w[4], hi, lo;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = float_as_u32(fma_rn(v[k][i], scale.to_integers, 8388608.0f));
        }
        split_bytes(w, hi, lo);
        const uint32_t other = __shfl_xor_sync(FULL_WARP, is_second ? hi : lo, 4);
        columns[k][0] = is_second ? other : hi;
        columns[k][1] = is_second ? lo : other;
    }
    return __shfl_sync(FULL_WARP, scale.step, quarter * 8);
}
