// MXFP4: 32 weights in 17 bytes: a scale E8M0, then nibbles, each a sign and an E2M1 magnitude;
// weight = 2^(scale - 128) q, q twice what the nibble stands for. The tile keeps scales as bfloat16,
// which holds all of them.
#pragma once
#include "codes.cuh"

// Codes whose top bit is a sign, the others of the magnitudes 0, 1, 2, 3, 4, 6, 8, 12.
struct E2M1Codes : Codes<COLUMN_HALVES> {
    static constexpr int LARGEST = 12;
    static constexpr int BYTE_TERMS = 0;

    // A's halves are these magnitudes as subnormals, below the sign.
    DEVICE void fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
        const uint32_t w = quants.w[2 * s + h];
        const uint32_t codes = w & 0x77777777u;
        const uint32_t lower = prmt(0x03020100u, 0x0c080604u, codes);
        const uint32_t upper = prmt(0x30201000u, 0xc0806040u, codes >> 16);
        const uint32_t odd = w & 0x80808080u, even = (w << 4) & 0x80808080u;
        a[0] = prmt(lower, odd, 0x5341), a[1] = prmt(lower, even, 0x5240);
        a[2] = prmt(upper, odd, 0x7361), a[3] = prmt(upper, even, 0x7260);
    }

    // The code of a nibble: there is one zero, without a sign.
    DEVICE uint32_t code_of(uint32_t nibble) { return nibble == 8 ? 0 : nibble; }
};

struct MXFP4 : E2M1Codes, HalfScales<2048, NO_OFFSETS> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE float scale(const Quarter& quarter, int i) {
        return bf16_to_f32(static_cast<uint16_t>(quarter.d >> (16 * i)));
    }

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<17>(rows[r], sb, j, n); };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? code_of(nibble_of_32(from + 1, column % 32)) : 0;
        });
        pack_scales(tile, lane, block, [](const uint8_t* from) -> uint32_t {
            const uint32_t e = from[0];
            return e < 2 ? 0x20u << e : (e - 1) << 7;
        });
    }
};
