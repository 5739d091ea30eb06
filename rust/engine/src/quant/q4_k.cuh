// Q4_K: 256 weights in 144 bytes: f16 d, f16 dmin, eight pairs of a 6-bit scale and minimum in 12
// bytes, then nibbles; weight = d sc q - dmin m. The unit keeps scale and minimum as bytes.
#pragma once
#include "unit.cuh"

// Scale and minimum of sub-block b from the twelve packed bytes: low byte the scale.
DEVICE uint32_t k_scale_min(const uint8_t* packed, uint32_t b) {
    uint32_t sc, m;
    if (b < 4) {
        sc = packed[b] & 63;
        m = packed[b + 4] & 63;
    } else {
        sc = (packed[b + 4] & 15) | ((packed[b - 4] >> 6) << 4);
        m = (packed[b + 4] >> 4) | ((packed[b] >> 6) << 4);
    }
    return sc | (m << 8);
}

// Scales of Q4_K and Q5_K: two bytes a sub-block at `at + 4 lane`, d and dmin of each row behind.
struct KScales {
    static constexpr int SUB = 32;

    DEVICE void read(const uint8_t* at, uint32_t lane, int j, float& s, float& o) {
        uint32_t pair = *reinterpret_cast<const uint16_t*>(at + lane * 4 + j * 2);
        uint32_t dm = *reinterpret_cast<const uint32_t*>(at + 128 + (lane % 4 + 4 * j) * 4);
        float d = mul_rn(f16x2_low(dm), SUBNORMAL_UNSCALE);
        s = mul_rn(d, static_cast<float>(pair & 0xff));
        o = -mul_rn(f16x2_high(dm), static_cast<float>(pair >> 8));
    }

    // `block` is the superblock in the file, or null.
    DEVICE void write(uint8_t* at, uint32_t lane, int j, const uint8_t* block) {
        *reinterpret_cast<uint16_t*>(at + lane * 4 + j * 2) =
            static_cast<uint16_t>(block ? k_scale_min(block + 4, lane / 4) : 0);
        if (lane / 4 == 0) {
            *reinterpret_cast<uint32_t*>(at + 128 + (lane % 4 + 4 * j) * 4) =
                block ? file_u16(block) | (file_u16(block + 2) << 16) : 0;
        }
    }
};

struct Q4_K : Nibbles {
    static constexpr uint32_t UNIT_BYTES = 1024 + 128 + 32;
    static constexpr int SUB = 32;

    DEVICE void scales(const uint8_t* unit, uint32_t lane, int j, float (&s)[1],
                              float (&o)[1]) {
        KScales::read(unit + 1024, lane, j, s[0], o[0]);
    }

    static constexpr bool OFFSETS = true;
    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        Nibbles::centred<0>(unit, lane, j, h);
        return SUBNORMAL_SCALE;
    }

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* a, const uint8_t* b,
                              uint32_t k, uint32_t n) {
        for (int j = 0; j < 2; j++) {
            const uint8_t* row = j ? b : a;
            const uint8_t* block = row && k < n ? row + k / 256 * 144 : nullptr;
            uint32_t sub = k % 256 / 32;
            // Byte i of 32 holds sub-block 2c in its low half and 2c + 1 in its high half.
            pack(unit, lane, j, [&](int i) -> uint32_t {
                return block ? (block[16 + sub / 2 * 32 + i] >> (sub % 2 * 4)) & 15 : 0;
            });
            KScales::write(unit + 1024, lane, j, block);
        }
    }
};
