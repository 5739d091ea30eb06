// Q4_K: 256 weights in 144 bytes: f16 d, f16 dmin, eight pairs of a 6-bit scale and minimum in 12
// bytes, then nibbles; weight = d sc q - dmin m. The tile keeps scale and minimum as bytes.
#pragma once
#include "weight_tile.cuh"

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

// Scales of Q4_K and Q5_K at AT: bytes [16 rows][8], minimums likewise, then d and dmin of
// each row.
template <uint32_t AT>
struct KScales {
    static constexpr int SUB = 32;
    static constexpr Offsets OFFSETS = SHARED_OFFSETS;
    static constexpr uint32_t SCALE_BYTES = 128 + 128 + 64;

    struct Quarter {
        uint32_t s;
        float d;
    };
    struct Row {
        uint2 s;
        float d;
    };

    DEVICE uint32_t factors(const uint8_t* tile, uint32_t r) {
        return *reinterpret_cast<const uint32_t*>(tile + AT + 256 + r * 4);
    }
    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        return {*reinterpret_cast<const uint2*>(tile + AT + r * 8), f16x2_low(factors(tile, r))};
    }
    DEVICE Quarter quarter(const Row& row, int t) {
        const uint32_t pair = t < 2 ? row.s.x : row.s.y;
        return {t % 2 ? pair >> 16 : pair, row.d};
    }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        return {*reinterpret_cast<const uint16_t*>(tile + AT + r * 8 + t * 2),
                f16x2_low(factors(tile, r))};
    }
    DEVICE float scale(const Quarter& quarter, int i) { return mul_rn(quarter.d, byte_f32(quarter.s, i)); }
    DEVICE uint32_t mins(const uint8_t* tile, uint32_t r, uint32_t t) {
        return *reinterpret_cast<const uint16_t*>(tile + AT + 128 + r * 8 + t * 2);
    }
    DEVICE float dmin(const uint8_t* tile, uint32_t r) { return f16x2_high(factors(tile, r)); }

    // `block(r)` is the superblock of row r in the file, or null.
    template <typename F>
    DEVICE void pack_scales(uint8_t* tile, uint32_t lane, F block) {
        if (lane >= TILE_ROWS) return;
        const uint8_t* from = block(lane);
        for (uint32_t j = 0; j < 8; j++) {
            const uint32_t pair = from ? k_scale_min(from + 4, j) : 0;
            const uint32_t at = AT + lane * 8 + j;
            tile[at] = static_cast<uint8_t>(pair);
            tile[at + 128] = static_cast<uint8_t>(pair >> 8);
        }
        *reinterpret_cast<uint32_t*>(tile + AT + 256 + lane * 4) =
            from ? file_u16(from) | (file_u16(from + 2) << 16) : 0;
    }
};

// The lower four bits of a column: byte i of 32 holds sub-block 2c in its lower half and 2c + 1 in its
// upper one.
DEVICE uint32_t k_nibble(const uint8_t* nibbles, uint32_t column) {
    const uint32_t sub = column / 32;
    return (nibbles[sub / 2 * 32 + column % 32] >> (sub % 2 * 4)) & 15;
}

struct Q4_K : Planes<0, 0>, KScales<2048> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 144 : nullptr; };
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            return from ? k_nibble(from + 16, column) : 0;
        });
        pack_scales(tile, lane, block);
    }
};
