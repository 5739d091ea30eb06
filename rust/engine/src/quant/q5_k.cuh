// Q5_K: 256 weights in 176 bytes: as Q4_K, with a fifth bit of every weight in 32 bytes before the
// nibbles; weight = d sc q - dmin m.
#pragma once
#include "q4_k.cuh"

struct Q5_K : FiveBits {
    static constexpr uint32_t UNIT_BYTES = 1280 + 128 + 32;
    static constexpr int SUB = 32;

    DEVICE void scales(const uint8_t* unit, uint32_t lane, int j, float (&s)[1],
                              float (&o)[1]) {
        KScales::read(unit + 1280, lane, j, s[0], o[0]);
    }

    static constexpr bool OFFSETS = true;
    DEVICE float halves(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        FiveBits::centred<0>(unit, lane, j, h);
        return SUBNORMAL_SCALE;
    }

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* a, const uint8_t* b,
                              uint32_t k, uint32_t n) {
        for (int j = 0; j < 2; j++) {
            const uint8_t* row = j ? b : a;
            const uint8_t* block = row && k < n ? row + k / 256 * 176 : nullptr;
            uint32_t sub = k % 256 / 32;
            pack(unit, lane, j, [&](int i) -> uint32_t {
                if (!block) return 0;
                uint32_t low = (block[48 + sub / 2 * 32 + i] >> (sub % 2 * 4)) & 15;
                return low | (((block[16 + i] >> sub) & 1) << 4);
            });
            KScales::write(unit + 1280, lane, j, block);
        }
    }
};
