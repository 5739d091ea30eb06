// IQ4_NL: 32 weights in 18 bytes: f16 d, then nibbles; weight = d table[nibble].
#pragma once
#include "codes.cuh"

// Codes of the table of IQ4_NL and IQ4_XS: 8 integers from -127 up, 8 from 1 to 113.
struct IQ4Codes : Codes<ROW_HALVES> {
    static constexpr int LARGEST = 127;
    static constexpr int BYTE_TERMS = 2;

    // A permute repeats the sign of a byte where its nibble's top bit is set: so of the two halves of the
    // table the wrong one gives 0, where all bytes are above it, or -1, where all are below.
    DEVICE void byte_terms(const Quants& quants, int s, uint32_t (&a)[2][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t w = quants.w[2 * s + i / 2], codes = i % 2 ? w >> 16 : w;
            a[0][i] = prmt(0xbfad9881u, 0xf6eaddcfu, codes);
            // These are 1 larger for the other term's -1.
            a[1][i] = prmt(0x271a0e02u, 0x725a4636u, codes ^ 0x8888u);
        }
    }

    DEVICE void fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
        const uint32_t w = quants.w[2 * s + h];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t codes = r ? w >> 16 : w;
            // The lower half negated, so that the wrong one gives 0 of either.
            const uint32_t below = prmt(0x4153687fu, 0x0a162331u, codes);
            const uint32_t above = prmt(0x26190d01u, 0x71594535u, codes ^ 0x8888u);
            // 128 + q: no byte borrows of the next.
            const uint32_t bytes = 0x80808080u + above - below;
            a[r] = signed_lower(bytes, 0x4140), a[2 + r] = signed_upper(bytes, 0x4342);
        }
    }
};

struct IQ4_NL : IQ4Codes, HalfScales<2048, NO_OFFSETS> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<18>(rows[r], sb, j, n); };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? nibble_of_32(from + 2, column % 32) : 0;
        });
        pack_scales(tile, lane, block);
    }
};
