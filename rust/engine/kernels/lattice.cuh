// Weights that are points of a lattice: a sign and one of eight magnitudes each, below 64, and an odd
// scale for every 16 or 32. The file has numbers of points of a grid; a tile has the points themselves,
// four bits a weight.
#pragma once
#include "weight_tile.cuh"

// Magnitudes are the bytes of FIRST, then of SECOND. A word a step: the code of a magnitude in three
// bits of every four, row g in the lower half and row g + 8 in the upper one, columns 2q, 2q + 1,
// 2q + 8, 2q + 9 in order. Their fourth bits are signs: of each of A's registers a row, 16 bits apart.
//
// Quants [4 vectors][32 lanes][16 bytes].
template <uint32_t FIRST, uint32_t SECOND>
struct Magnitudes {
    static constexpr bool INTEGERS = true;
    static constexpr int ABOVE = 0;
    static constexpr int LARGEST = SECOND >> 24;
    static constexpr int BYTE_TERMS = 0;
    static constexpr uint32_t QUANT_BYTES = 2048;

    struct Quants {
        uint32_t w[4];
    };

    DEVICE Quants load(const uint8_t* tile, uint32_t lane, uint32_t v) {
        const uint4 x = *reinterpret_cast<const uint4*>(tile + v * 512 + lane * 16);
        return {{x.x, x.y, x.z, x.w}};
    }

    // The bit of the sign of element e of row r.
    static constexpr int sign_bit(int r, int e) { return 15 + e % 2 * 16 - 4 * (2 * r + e / 2); }

    DEVICE void fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
        const uint32_t w = quants.w[2 * s + h];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t bytes = prmt(FIRST, SECOND, w >> (16 * r) & 0x7777u);
            const uint32_t low = prmt(bytes, 0, 0x4140), upper = prmt(bytes, 0, 0x4342) << 4;
            // A float16 has its sign beside its magnitude.
            a[r] = low | (w << (8 * r) & 0x80008000u);
            a[2 + r] = upper | (w << (8 * r + 4) & 0x80008000u);
        }
    }

    // Stores stored(r, c), the code of row r and column c of the tile and, in bit 3, its sign.
    template <typename F>
    DEVICE void pack(uint8_t* tile, uint32_t lane, F stored) {
        const uint32_t g = lane / 4, q = lane % 4;
        for (uint32_t v = 0; v < 4; v++) {
            for (int n = 0; n < 4; n++) {
                uint32_t word = 0;
                for (int r = 0; r < 2; r++) {
                    for (int e = 0; e < 4; e++) {
                        const uint32_t column = (2 * v + n / 2) * 32 + column_of(n % 2, q, e);
                        const uint32_t x = stored(g + 8 * r, column);
                        word |= (x & 7) << (16 * r + 4 * e);
                        word |= x >> 3 << sign_bit(r, e);
                    }
                }
                reinterpret_cast<uint32_t*>(tile + v * 512 + lane * 16)[n] = word;
            }
        }
    }
};

// Scales of COLUMNS each at AT, d / DIVISOR their scale: bytes [16 rows][4 EACH], then
// d of each row.
template <uint32_t AT, int COLUMNS, int DIVISOR>
struct OddScales {
    static constexpr int SUB = COLUMNS;
    static constexpr Offsets OFFSETS = NO_OFFSETS;
    static constexpr uint32_t EACH = 64 / COLUMNS;  // of a quarter
    static constexpr uint32_t SCALE_BYTES = TILE_ROWS * (4 * EACH + 2);

    struct Quarter {
        uint32_t s;
        float d;
    };
    struct Row {
        uint32_t s[EACH];
        float d;
    };

    DEVICE float factor(const uint8_t* tile, uint32_t r) {
        const uint8_t* at = tile + AT + TILE_ROWS * 4 * EACH + r * 2;
        return mul_rn(f16_to_f32(*reinterpret_cast<const uint16_t*>(at)), 1.0f / DIVISOR);
    }
    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        Row row = {};
        const uint8_t* at = tile + AT + r * (4 * EACH);
        if constexpr (EACH == 4) {
            const uint4 s = *reinterpret_cast<const uint4*>(at);
            row.s[0] = s.x, row.s[1] = s.y, row.s[2] = s.z, row.s[3] = s.w;
        } else {
            const uint2 s = *reinterpret_cast<const uint2*>(at);
            row.s[0] = s.x, row.s[1] = s.y;
        }
        row.d = factor(tile, r);
        return row;
    }
    DEVICE Quarter quarter(const Row& row, int t) {
        return {EACH == 4 ? row.s[t] : row.s[t / 2] >> (t % 2 * 16), row.d};
    }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        const uint8_t* at = tile + AT + (r * 4 + t) * EACH;
        uint32_t s;
        if constexpr (EACH == 4) {
            s = *reinterpret_cast<const uint32_t*>(at);
        } else {
            s = *reinterpret_cast<const uint16_t*>(at);
        }
        return {s, factor(tile, r)};
    }
    DEVICE float scale(const Quarter& quarter, int i) { return mul_rn(quarter.d, byte_f32(quarter.s, i)); }

    // `block(r)` is the superblock of row r in the file, or null; d(block) are the bits of its float16,
    // and s(block, j) the number of its scale j.
    template <typename Block, typename D, typename S>
    DEVICE void pack_scales(uint8_t* tile, uint32_t lane, Block block, D d, S s) {
        if (lane >= TILE_ROWS) return;
        const uint8_t* from = block(lane);
        for (uint32_t j = 0; j < 4 * EACH; j++) {
            tile[AT + lane * (4 * EACH) + j] =
                static_cast<uint8_t>(from ? 2 * s(from, j) + 1 : 0);
        }
        *reinterpret_cast<uint16_t*>(tile + AT + TILE_ROWS * 4 * EACH + lane * 2) =
            static_cast<uint16_t>(from ? d(from) : 0);
    }
};

// Number j of four bits: the low half of a byte first.
DEVICE uint32_t nibble_of(const uint8_t* bytes, uint32_t j) { return bytes[j / 2] >> (j % 2 * 4) & 15; }

DEVICE uint32_t file_u32(const uint8_t* at) { return file_u16(at) | (file_u16(at + 2) << 16); }

// Sign i of eight of which seven are stored: an even number of them is set.
DEVICE uint32_t sign_of_seven(uint32_t seven, uint32_t i) {
    const uint32_t signs = seven & 127;
    uint32_t parity = signs ^ (signs >> 4);
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return i < 7 ? signs >> i & 1 : parity & 1;
}
