// Q6_K: 256 weights in 210 bytes: low nibbles in 128 bytes, high pairs of bits in 64, sixteen
// signed 8-bit scales, f16 d; weight = d sc (q - 32), a scale for every 16.
#pragma once
#include "weight_tile.cuh"

// Scales of Q6_K and Q3_K at AT: signed bytes [16 rows][16], then d of each row.
template <uint32_t AT>
struct SixteenScales {
    static constexpr int SUB = 16;
    static constexpr Offsets OFFSETS = NO_OFFSETS;
    static constexpr uint32_t SCALE_BYTES = 256 + 32;

    struct Quarter {
        uint32_t s;
        float d;
    };
    struct Row {
        uint4 s;
        float d;
    };

    DEVICE float factor(const uint8_t* tile, uint32_t r) {
        return f16_to_f32(*reinterpret_cast<const uint16_t*>(tile + AT + 256 + r * 2));
    }
    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        return {*reinterpret_cast<const uint4*>(tile + AT + r * 16), factor(tile, r)};
    }
    DEVICE Quarter quarter(const Row& row, int t) {
        return {t == 0 ? row.s.x : t == 1 ? row.s.y : t == 2 ? row.s.z : row.s.w, row.d};
    }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        return {*reinterpret_cast<const uint32_t*>(tile + AT + r * 16 + t * 4), factor(tile, r)};
    }
    DEVICE float scale(const Quarter& quarter, int i) {
        return mul_rn(quarter.d, static_cast<float>(static_cast<int8_t>(quarter.s >> (8 * i))));
    }

    // `block(r)` is the superblock of row r in the file, or null; its d is at byte d, and scale(block, j)
    // is that of its sub-block j.
    template <typename Block, typename Scale>
    DEVICE void pack_scales(uint8_t* tile, uint32_t lane, Block block, uint32_t d, Scale scale) {
        if (lane >= TILE_ROWS) return;
        const uint8_t* from = block(lane);
        for (uint32_t j = 0; j < 16; j++) {
            tile[AT + lane * 16 + j] =
                static_cast<uint8_t>(from ? scale(from, j) : 0);
        }
        *reinterpret_cast<uint16_t*>(tile + AT + 256 + lane * 2) =
            static_cast<uint16_t>(from ? file_u16(from + d) : 0);
    }
};

struct Q6_K : Planes<2, 32>, SixteenScales<3072> {
    static constexpr uint32_t TILE_BYTES = QUANT_BYTES + SCALE_BYTES;

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t) {
        const auto block = [&](uint32_t r) { return rows[r] ? rows[r] + sb * 210 : nullptr; };
        // Within 128 weights: byte i of 64 has quarters 0|1 (low half), 2|3 (high half).
        pack(tile, lane, [&](uint32_t r, uint32_t column) -> uint32_t {
            const uint8_t* from = block(r);
            if (!from) return 0;
            const uint32_t half = column / 128, quarter = column % 128 / 32, i = column % 32;
            const uint32_t low = from[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4);
            const uint32_t high = from[128 + half * 32 + i] >> (quarter * 2);
            return (low & 15) | ((high & 3) << 4);
        });
        pack_scales(tile, lane, block, 208,
                    [](const uint8_t* from, uint32_t j) -> uint32_t { return from[192 + j]; });
    }
};
