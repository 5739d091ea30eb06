// Weights as the mat-vec reads them. A unit is 8 rows x 256 columns of one matrix; a tile is all
// units of 8 rows, one after another. Lane l of a warp owns, in every unit, the 32 columns
// [32b, 32b+32), b = l/4, of the rows l%4 and l%4 + 4: its sub-blocks. A quant type stores them so
// that each lane's share comes in whole words and a warp reads 512 contiguous bytes at a time.
//
// A type is a struct with
//   UNIT_BYTES            a multiple of 16
//   SUB                   columns that share a scale and an offset: 32 or 16
//   CHAINS                accumulators of one sub-block, so that they do not wait for each other
//   chain(i)              which of them column i of 32 goes to
//   chain_scale(c)        what that sum is to be multiplied with
//   unpack(unit, lane, j, w)        the lane's 32 columns of its row j (0 or 1)
//   scales(unit, lane, j, s, o)     weight = s * w * chain_scale * X_SCALE + o, 32 / SUB of each
//   OFFSETS, halves(unit, lane, j, h)   the same columns as float16, two a word, for tensor cores;
//                                   it returns f: weight = s * f * h, + o where OFFSETS
//   repack(unit, lane, a, b, k, n)  the lane's share of both rows from the file's encoding; k is
//                                   the first of its 32 columns, n the row's length; a null row and
//                                   columns past n are zero
//
// Integer weights cost one logical operation each: the bits of `word & mask` are, read as a float,
// the subnormal q * 2^(position - 149). The product with an activation that was multiplied by
// X_SCALE beforehand is a normal number, exact but for the one rounding of the fused multiply-add.
// Floats as quant types (F16, ...) use the same scaled activations.
#pragma once
#include "common.cuh"
// UNIT_ROWS and UNIT_COLS.
#include "host.cuh"
static_assert(UNIT_ROWS == 8 && UNIT_COLS == 256, "lanes own rows l % 4 and l % 4 + 4, 32 columns");

// Activations are stored times 2^96: |x| up to 2^31 stays finite, down to 2^-73 exact.
constexpr float X_SCALE = 79228162514264337593543950336.0f;
constexpr float X_UNSCALE = 1.0f / X_SCALE;
// q * 2^-149 * 2^96 * SUBNORMAL_UNSCALE = q.
constexpr float SUBNORMAL_UNSCALE = 9007199254740992.0f;
constexpr float SUBNORMAL_SCALE = 1.0f / SUBNORMAL_UNSCALE;

// The float16 -n for 1 <= n < 2048, twice.
constexpr uint32_t minus_f16x2(uint32_t n) {
    uint32_t e = 0;
    while (n >> (e + 1)) e++;
    return (0x8000 | ((e + 15) << 10) | ((n << (10 - e)) & 0x3ff)) * 0x10001u;
}

// Two integers below 1024, less BIAS, as float16: in the last place of 1024 + q stands q.
template <int BIAS>
DEVICE uint32_t centred_pair(uint32_t first, uint32_t second) {
    return add_f16x2(first | (second << 16) | 0x64006400u, minus_f16x2(1024 + BIAS));
}

DEVICE uint4 unit_u32x4(const uint8_t* unit, uint32_t vector, uint32_t lane) {
    return *reinterpret_cast<const uint4*>(unit + vector * 512 + lane * 16);
}

// Sixteen unaligned bytes of a file's row become a word at a time: rows start anywhere.
DEVICE uint32_t file_u16(const uint8_t* at) {
    return static_cast<uint32_t>(at[0]) | (static_cast<uint32_t>(at[1]) << 8);
}

// ---------------------------------------------------------------- 4-bit quants, 16 bytes a row

// Column 8w + n is nibble n of word w. The words of row j are vector j of the unit.
struct Nibbles {
    static constexpr int CHAINS = 4;
    static constexpr int chain(int i) { return i % 4; }
    static constexpr float chain_scale(int c) { return 1.0f / (1 << (4 * c)); }

    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
        uint4 v = unit_u32x4(unit, j, lane);
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint32_t word = i % 8 < 4 ? words[i / 8] : words[i / 8] >> 16;
            w[i] = u32_as_float(word & (0xfu << (4 * (i % 4))));
        }
    }

    // The integers, less BIAS, as float16, in the order of their columns.
    template <int BIAS>
    DEVICE void centred(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        uint4 v = unit_u32x4(unit, j, lane);
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t pair[4];  // columns i and i + 4
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t word = words[w] >> (8 * i);
                // The last place of 1024 is 1, that of 64 is a sixteenth.
                pair[2 * i] = add_f16x2((word & 0x000f000fu) | 0x64006400u,
                                        minus_f16x2(1024 + BIAS));
                pair[2 * i + 1] = add_f16x2((word & 0x00f000f0u) | 0x54005400u,
                                            minus_f16x2(64 + BIAS));
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                h[4 * w + i] = prmt(pair[2 * i], pair[2 * i + 1], 0x5410);
                h[4 * w + 2 + i] = prmt(pair[2 * i], pair[2 * i + 1], 0x7632);
            }
        }
    }

    // Stores q(column) of row j.
    template <typename Q>
    DEVICE void pack(uint8_t* unit, uint32_t lane, int j, Q q) {
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 32; i++) words[i / 8] |= q(i) << (4 * (i % 8));
        *reinterpret_cast<uint4*>(unit + j * 512 + lane * 16) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
};

// ---------------------------------------------------------------- 5-bit quants, 20 bytes a row

// Word w of five holds columns 6w..6w+5 in its low 30 bits; the ten bits above are columns 30, 31.
struct FiveBits {
    static constexpr int CHAINS = 3;
    static constexpr int chain(int i) { return i < 30 ? i % 3 : 0; }
    static constexpr float chain_scale(int c) { return 1.0f / (1 << (5 * c)); }

    // Words 0..3 of row j are vector j; word 4 of both rows is at 1024 + 8 lane.
    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
        uint4 v = unit_u32x4(unit, j, lane);
        uint32_t last = *reinterpret_cast<const uint32_t*>(unit + 1024 + lane * 8 + j * 4);
        uint32_t words[5] = {v.x, v.y, v.z, v.w, last};
#pragma unroll
        for (int i = 0; i < 30; i++) {
            uint32_t word = i % 6 < 3 ? words[i / 6] : words[i / 6] >> 15;
            w[i] = u32_as_float(word & (0x1fu << (5 * (i % 3))));
        }
        uint32_t t[5];
#pragma unroll
        for (int i = 0; i < 5; i++) t[i] = words[i] >> 30;
        w[30] = u32_as_float(t[0] | (t[1] << 2) | ((t[2] & 1) << 4));
        w[31] = u32_as_float((t[2] >> 1) | (t[3] << 1) | (t[4] << 3));
    }

    template <int BIAS>
    DEVICE void centred(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        uint4 v = unit_u32x4(unit, j, lane);
        uint32_t last = *reinterpret_cast<const uint32_t*>(unit + 1024 + lane * 8 + j * 4);
        uint32_t words[5] = {v.x, v.y, v.z, v.w, last};
        auto q = [&](int i) { return (words[i / 6] >> (5 * (i % 6))) & 31; };
#pragma unroll
        for (int i = 0; i < 15; i++) h[i] = centred_pair<BIAS>(q(2 * i), q(2 * i + 1));
        uint32_t t[5];
#pragma unroll
        for (int i = 0; i < 5; i++) t[i] = words[i] >> 30;
        h[15] = centred_pair<BIAS>(t[0] | (t[1] << 2) | ((t[2] & 1) << 4),
                                   (t[2] >> 1) | (t[3] << 1) | (t[4] << 3));
    }

    template <typename Q>
    DEVICE void pack(uint8_t* unit, uint32_t lane, int j, Q q) {
        uint32_t words[5] = {0, 0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 30; i++) words[i / 6] |= q(i) << (5 * (i % 6));
        uint32_t a = q(30), b = q(31);
        words[0] |= (a & 3) << 30;
        words[1] |= ((a >> 2) & 3) << 30;
        words[2] |= (((a >> 4) & 1) | ((b & 1) << 1)) << 30;
        words[3] |= ((b >> 1) & 3) << 30;
        words[4] |= ((b >> 3) & 3) << 30;
        *reinterpret_cast<uint4*>(unit + j * 512 + lane * 16) =
            make_uint4(words[0], words[1], words[2], words[3]);
        *reinterpret_cast<uint32_t*>(unit + 1024 + lane * 8 + j * 4) = words[4];
    }
};

// ---------------------------------------------------------------- 6-bit quants, 24 bytes a row

// Word w of six holds columns 5w..5w+4 in its low 30 bits; the twelve bits above are 30 and 31.
struct SixBits {
    static constexpr int CHAINS = 3;
    static constexpr int chain(int i) { return i < 30 ? (i % 5) % 3 : 0; }
    static constexpr float chain_scale(int c) { return 1.0f / (1 << (6 * c)); }

    // Words 0..3 of row j are vector j; words 4, 5 of both rows are vector 2.
    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
        uint4 v = unit_u32x4(unit, j, lane);
        uint2 last = *reinterpret_cast<const uint2*>(unit + 1024 + lane * 16 + j * 8);
        uint32_t words[6] = {v.x, v.y, v.z, v.w, last.x, last.y};
#pragma unroll
        for (int i = 0; i < 30; i++) {
            uint32_t word = i % 5 < 3 ? words[i / 5] : words[i / 5] >> 18;
            w[i] = u32_as_float(word & (0x3fu << (6 * ((i % 5) % 3))));
        }
        uint32_t t[6];
#pragma unroll
        for (int i = 0; i < 6; i++) t[i] = words[i] >> 30;
        w[30] = u32_as_float(t[0] | (t[1] << 2) | (t[2] << 4));
        w[31] = u32_as_float(t[3] | (t[4] << 2) | (t[5] << 4));
    }

    template <int BIAS>
    DEVICE void centred(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        uint4 v = unit_u32x4(unit, j, lane);
        uint2 last = *reinterpret_cast<const uint2*>(unit + 1024 + lane * 16 + j * 8);
        uint32_t words[6] = {v.x, v.y, v.z, v.w, last.x, last.y};
        auto q = [&](int i) { return (words[i / 5] >> (6 * (i % 5))) & 63; };
#pragma unroll
        for (int i = 0; i < 15; i++) h[i] = centred_pair<BIAS>(q(2 * i), q(2 * i + 1));
        uint32_t t[6];
#pragma unroll
        for (int i = 0; i < 6; i++) t[i] = words[i] >> 30;
        h[15] = centred_pair<BIAS>(t[0] | (t[1] << 2) | (t[2] << 4),
                                   t[3] | (t[4] << 2) | (t[5] << 4));
    }

    template <typename Q>
    DEVICE void pack(uint8_t* unit, uint32_t lane, int j, Q q) {
        uint32_t words[6] = {0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 30; i++) words[i / 5] |= q(i) << (6 * (i % 5));
        uint32_t a = q(30), b = q(31);
#pragma unroll
        for (int i = 0; i < 3; i++) {
            words[i] |= ((a >> (2 * i)) & 3) << 30;
            words[3 + i] |= ((b >> (2 * i)) & 3) << 30;
        }
        *reinterpret_cast<uint4*>(unit + j * 512 + lane * 16) =
            make_uint4(words[0], words[1], words[2], words[3]);
        *reinterpret_cast<uint2*>(unit + 1024 + lane * 16 + j * 8) = make_uint2(words[4], words[5]);
    }
};

// ---------------------------------------------------------------- 8-bit quants, 32 bytes a row

// Column 4w + n is byte n of word w, biased to be unsigned. Row j is vectors 2j and 2j + 1.
struct Bytes {
    static constexpr int CHAINS = 4;
    static constexpr int chain(int i) { return i % 4; }
    static constexpr float chain_scale(int c) { return c % 2 ? 1.0f / 256 : 1.0f; }

    DEVICE void unpack(const uint8_t* unit, uint32_t lane, int j, float (&w)[32]) {
        uint4 u = unit_u32x4(unit, 2 * j, lane);
        uint4 v = unit_u32x4(unit, 2 * j + 1, lane);
        uint32_t words[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint32_t word = i % 4 < 2 ? words[i / 4] : words[i / 4] >> 16;
            w[i] = u32_as_float(word & (0xffu << (8 * (i % 2))));
        }
    }

    template <int BIAS>
    DEVICE void centred(const uint8_t* unit, uint32_t lane, int j, uint32_t (&h)[16]) {
        uint4 u = unit_u32x4(unit, 2 * j, lane);
        uint4 v = unit_u32x4(unit, 2 * j + 1, lane);
        uint32_t words[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // Each byte below 0x64: 1024 + q.
            h[2 * i] = add_f16x2(prmt(words[i], 0x64646464u, 0x4140), minus_f16x2(1024 + BIAS));
            h[2 * i + 1] = add_f16x2(prmt(words[i], 0x64646464u, 0x4342), minus_f16x2(1024 + BIAS));
        }
    }

    template <typename Q>
    DEVICE void pack(uint8_t* unit, uint32_t lane, int j, Q q) {
        uint32_t words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 32; i++) words[i / 4] |= q(i) << (8 * (i % 4));
        uint4* at = reinterpret_cast<uint4*>(unit + 2 * j * 512 + lane * 16);
        at[0] = make_uint4(words[0], words[1], words[2], words[3]);
        at[32] = make_uint4(words[4], words[5], words[6], words[7]);
    }
};

// ---------------------------------------------------------------- floats

// `load(i)` gives column i of 32; the lane's columns of both rows stand one after another, in
// vectors of 16 bytes.
template <typename Element>
struct Floats {
    static constexpr uint32_t UNIT_BYTES = UNIT_ROWS * UNIT_COLS * sizeof(Element);
    static constexpr bool OFFSETS = false;
    static constexpr int SUB = 32;
    static constexpr int CHAINS = 4;
    static constexpr int PER_VECTOR = 16 / sizeof(Element);
    static constexpr int VECTORS = 32 / PER_VECTOR;
    static constexpr int chain(int i) { return i % 4; }
    static constexpr float chain_scale(int) { return 1.0f; }

    DEVICE const Element* at(const uint8_t* unit, uint32_t lane, int j, int vector) {
        return reinterpret_cast<const Element*>(unit + (j * VECTORS + vector) * 512 + lane * 16);
    }

    DEVICE void scales(const uint8_t*, uint32_t, int, float (&s)[1], float (&o)[1]) {
        s[0] = X_UNSCALE;
        o[0] = 0.0f;
    }

    DEVICE void repack(uint8_t* unit, uint32_t lane, const uint8_t* a, const uint8_t* b,
                              uint32_t k, uint32_t n) {
        for (int j = 0; j < 2; j++) {
            const uint8_t* row = j ? b : a;
            for (int i = 0; i < 32; i++) {
                Element* to = const_cast<Element*>(at(unit, lane, j, i / PER_VECTOR)) + i % PER_VECTOR;
                *to = row && k + i < n ? reinterpret_cast<const Element*>(row)[k + i] : Element(0);
            }
        }
    }
};
