// IQ4_NL: 32 weights in 18 bytes: f16 d, then nibbles; weight = d table[nibble].
#pragma once
#include "codes.cuh"

// Codes of the table of IQ4_NL and IQ4_XS: 8 integers from -127 up, 8 from 1 to 113.
struct IQ4Codes : Codes {
    DEVICE void fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
        const uint32_t w = quants.w[2 * s + h];
        uint32_t bytes[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t codes = half ? w >> 16 : w;
            // A permute repeats the sign of a byte, 0 here, where its nibble's top bit is set: so of
            // the two halves of the table the wrong one gives 0. The integers below 1 come negated.
            const uint32_t below = prmt(0x4153687fu, 0x0a162331u, codes);
            const uint32_t above = prmt(0x26190d01u, 0x71594535u, codes ^ 0x8888u);
            // 128 + q: no byte borrows of the next.
            bytes[half] = 0x80808080u + above - below;
        }
        a[0] = signed_lower(bytes[0], 0x4341), a[1] = signed_lower(bytes[0], 0x4240);
        a[2] = signed_upper(bytes[1], 0x4341), a[3] = signed_upper(bytes[1], 0x4240);
    }
};

struct IQ4_NL : IQ4Codes, HalfScales<2048, NO_OFFSETS> {
    static constexpr uint32_t UNIT_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        const auto block = [&](uint32_t r, uint32_t j) { return block_of<18>(rows[r], sb, j, n); };
        pack(unit, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r, column / 32);
            return from ? nibble_of_32(from + 2, column % 32) : 0;
        });
        pack_scales(unit, lane, block);
    }
};
