// A KV cache of 16-bit block fixed point: value = k 2^(B - 127), with one B for up to 64 dimensions of a
// head of a token. A head's page has the integers first, keys [HEAD_DIM / 8][token][8] and values
// [token / 2][HEAD_DIM][2], so that words are what tensor cores take, then bytes B [block][token].
#pragma once
#include "fixed.cuh"
#include "kv.cuh"

template <int HEAD_DIM>
struct KvFixed {
    static constexpr uint32_t GROUP = 64;  // dimensions of a block
    static constexpr uint32_t BLOCKS = (HEAD_DIM + GROUP - 1) / GROUP;
    static constexpr uint32_t INTEGER_BYTES = PAGE_TOKENS * HEAD_DIM * 2;
    static constexpr uint32_t BYTES = INTEGER_BYTES + PAGE_TOKENS * BLOCKS;
    static constexpr float LARGEST = 32767.0f * 34359738368.0f;
    static constexpr uint32_t LEAST = 15, MOST = 176;  // exponent fields of largest magnitudes

    // A head's page; 64 bits, caches are larger than 4 GiB.
    template <int N_HEAD_KV>
    DEVICE uint8_t* head(void* pool, uint32_t page, uint32_t head) {
        return static_cast<uint8_t*>(pool) +
               (static_cast<uint64_t>(page) * N_HEAD_KV + head) * BYTES;
    }

    // Byte of dimensions dim, dim + 1 of a key; of dimension dim of tokens 2i, 2i + 1.
    DEVICE uint32_t key_at(uint32_t token, uint32_t dim) {
        return kv_key_at<HEAD_DIM>(token, dim) * 2;
    }
    DEVICE uint32_t values_at(uint32_t pair, uint32_t dim) { return (pair * HEAD_DIM + dim) * 4; }
    DEVICE uint32_t exponent_at(uint32_t token, uint32_t block) {
        return INTEGER_BYTES + block * PAGE_TOKENS + token;
    }

    // Exponent and integers of a block, a warp: a lane has two dimensions, zeros behind the last. What
    // no block holds, NaN too, raises `saturated`, which is sticky.
    DEVICE uint8_t encode(float (&x)[2], int16_t (&k)[2], uint32_t& saturated) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            saturated |= !(fabsf(x[i]) <= LARGEST);
            x[i] = x[i] == x[i] ? fminf(fmaxf(x[i], -LARGEST), LARGEST) : 0.0f;
            const uint32_t bits = float_as_u32(fabsf(x[i]));
            most = most > bits ? most : bits;
        }
        uint32_t field = warp_max_u32(most) >> 23;
        field = field < LEAST ? LEAST : field > MOST ? MOST : field;
        const float scale = u32_as_float((268 - field) << 23);  // 2^(141 - field)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float rounded = rint_small(mul_rn(x[i], scale));
            k[i] = static_cast<int16_t>(fminf(fmaxf(rounded, -32767.0f), 32767.0f));
        }
        return static_cast<uint8_t>(field - LEAST + 1);
    }
};
