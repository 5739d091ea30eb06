// A KV cache in blocks of 32 values with one scale: value = f16 d times a signed byte q. A head's
// page has the bytes first, keys [HEAD_DIM / 8][token][8] and values [token][HEAD_DIM] as in
// kv.cuh, then the scales, of keys [HEAD_DIM / 32][token] and of values [token][HEAD_DIM / 32].
#pragma once
#include "kv.cuh"

template <int HEAD_DIM>
struct KvBlocks {
    static_assert(HEAD_DIM % 32 == 0, "whole blocks");
    static constexpr uint32_t QUANTS = PAGE_TOKENS * HEAD_DIM;
    static constexpr uint32_t BYTES = QUANTS + QUANTS / 32 * 2;

    // A head's page; 64 bits, caches are larger than 4 GiB.
    template <int N_HEAD_KV>
    DEVICE uint8_t* head(void* pool, uint32_t page, uint32_t head) {
        return static_cast<uint8_t*>(pool) +
               (static_cast<uint64_t>(page) * N_HEAD_KV + head) * BYTES;
    }

    DEVICE uint16_t* key_scale(uint8_t* head, uint32_t token, uint32_t dim) {
        return reinterpret_cast<uint16_t*>(head + QUANTS) + dim / 32 * PAGE_TOKENS + token;
    }
    DEVICE uint16_t* value_scale(uint8_t* head, uint32_t token, uint32_t dim) {
        return reinterpret_cast<uint16_t*>(head + QUANTS) + token * (HEAD_DIM / 32) + dim / 32;
    }

    DEVICE float number(uint32_t word, uint32_t byte, float d) {
        return mul_rn(d, static_cast<float>(static_cast<int8_t>(word >> (8 * byte))));
    }

    // Dimensions dim..dim+7 of a token's key.
    DEVICE void load_key8(uint8_t* head, uint32_t token, uint32_t dim, float (&v)[8]) {
        const uint2 q = load_relaxed_u32x2(head + kv_key_at<HEAD_DIM>(token, dim));
        const float d = f16_to_f32(load_relaxed_u16(key_scale(head, token, dim)));
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = number(q.x, i, d), v[4 + i] = number(q.y, i, d);
    }

    // Dimensions dim..dim+3 of a token's value.
    DEVICE void load_value4(uint8_t* head, uint32_t token, uint32_t dim, float (&v)[4]) {
        const uint32_t q = load_relaxed_u32(
            reinterpret_cast<const uint32_t*>(head + kv_value_at<HEAD_DIM>(token, dim)));
        const float d = f16_to_f32(load_relaxed_u16(value_scale(head, token, dim)));
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = number(q, i, d);
    }

    // The byte of value x and its block's scale, as the interpreter's quantizer has them; a whole
    // warp, a lane a value. What no block holds, NaN too, raises `saturated`, which is sticky.
    DEVICE uint8_t quantize(float x, uint16_t& scale, uint32_t& saturated) {
        constexpr float LIMIT = 127.0f * F16_MAX;
        saturated |= !(fabsf(x) <= LIMIT);
        x = x == x ? fminf(fmaxf(x, -LIMIT), LIMIT) : 0.0f;
        const float d = div_rn(warp_max_f32(fabsf(x)), 127.0f);
        float steps = div_rn(1.0f, d);
        if (!(steps < infinity_f32())) steps = 0.0f;
        scale = f32_to_f16(d < F16_MAX ? d : F16_MAX);
        // To the nearest, halves away from zero.
        const float y = mul_rn(x, steps);
        int q = static_cast<int>(y);
        const float rest = sub_rn(y, static_cast<float>(q));
        q += (rest >= 0.5f) - (rest <= -0.5f);
        q = q > 127 ? 127 : q < -128 ? -128 : q;
        return static_cast<uint8_t>(q);
    }
};
