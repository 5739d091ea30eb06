// Weights as the products read them. A tile is 16 rows x 256 columns of one matrix. The tiles of the
// same 16 rows lie one after another: [tiles][superblocks]. In kernels `tile` counts along the rows,
// `sb` along the columns. In a warp that multiplies, lane l owns rows g = l/4 and g + 8 of a tile and, of every 16 columns, the four that an mma.m16n8k16 takes from quarter q = l%4
// (2q, 2q + 1, 2q + 8, 2q + 9): its share of A, so that weights go from a tile to the tensor cores
// without an exchange between lanes.
//
// Integers come as float16 subnormals: columns of k below 8 hold q 2^-24, those from 8 on q 2^-20,
// for that is what a nibble is where it stands. The integers of x from k = 8 on are stored 2^-4 as
// large, and the 2^24 goes into the factor of a superblock (fixed.cuh). All of it is exact.
//
// A type of integers is a struct with
//   TILE_BYTES                 a multiple of 16
//   SUB                        columns that share a scale: 32 or 16
//   OFFSETS                    what sub-blocks have beside their scales
//   Quants, load(tile, lane, v)     the lane's columns of sub-blocks of 32 number 2v and 2v + 1
//   fragment(quants, s, h, a)       A of columns 16h.. of sub-block s (0 or 1) of these
//   BYTE_TERMS                      0, or of how many signed bytes an integer is the sum
//   byte_terms(quants, s, a)        then, of each of these, A of an mma.m16n8k32 of sub-block s, whose k
//                                   from 4q on are columns 2q, 2q + 1, 2q + 8, 2q + 9, and from 16 + 4q
//                                   on those sixteen further
//   LARGEST                         the largest |q|
//   Row, row(tile, r)               what a row has beside its integers
//   Quarter, quarter(row, t), quarter(tile, r, t)   the scales of the t-th quarter of the sub-blocks, from a
//                                   row that was read or by itself
//   scale(quarter, i), offset(quarter, i)   d s of the i-th of them, and m where offsets are their own
//   mins(tile, r, t), dmin(tile, r) m of the t-th quarter, a byte each, and their scale, where offsets are
//                                   shared
//   repack(tile, lane, rows, sb, n) the lane's share of superblock sb of rows in the file's encoding,
//                                   n columns each; a null row and columns past n become zero
// and one of floats (INTEGERS false), whose lane owns columns l, l + 32, ... of all rows, has
//   load(tile, lane, r, w)          the lane's eight columns of row r
//   repack                          as above
#pragma once
#include "common.cuh"
// TILE_ROWS and TILE_COLS.
#include "host.cuh"
static_assert(TILE_ROWS == 16 && TILE_COLS == 256, "lanes own rows l / 4 and l / 4 + 8");

enum Offsets { NO_OFFSETS, SHARED_OFFSETS, OWN_OFFSETS };

// Rows start anywhere in a file.
DEVICE uint32_t file_u16(const uint8_t* at) {
    return static_cast<uint32_t>(at[0]) | (static_cast<uint32_t>(at[1]) << 8);
}

DEVICE float byte_f32(uint32_t v, int i) { return static_cast<float>((v >> (8 * i)) & 0xff); }

DEVICE float half_of(uint32_t v, int i) { return i ? f16x2_high(v) : f16x2_low(v); }

// Column of a sub-block of 32 that is element e (of 4) of lane quarter q in step h.
DEVICE uint32_t column_of(uint32_t h, uint32_t q, uint32_t e) {
    return 16 * h + 2 * q + e % 2 + e / 2 * 8;
}

// ---------------------------------------------------------------- integers of 2 to 6 bits

// LOW bits of each integer in one word a step: row g in bits 0 and 16 (columns 2q, 2q + 1), 4 and 20
// (2q + 8, 2q + 9), row g + 8 in bits 8, 24, 12, 28. Where LOW is 2, a word has two steps, the second
// one's two bits further up. Further bits, HIGH of them, in words of their own: a field of HIGH bits
// for each of A's halves, so placed that one shift takes those of a row to where they belong, above
// the low ones. BIAS is what q is stored above.
//
// Quants [4 vectors][32 lanes][4 LOW bytes], then [4][32 lanes][HIGH words].
template <int HIGH, int BIAS, int LOW = 4>
struct Planes {
    static_assert(LOW == 4 || LOW == 2, "a word has one step or two");
    static constexpr bool INTEGERS = true;
    static constexpr int ABOVE = BIAS;
    static constexpr int LARGEST = BIAS > 0 ? BIAS : (1 << (LOW + HIGH)) - 1;
    static constexpr int BYTE_TERMS = 0;
    static constexpr uint32_t LOW_BYTES = 512 * LOW;
    static constexpr uint32_t QUANT_BYTES = LOW_BYTES + 512 * HIGH;
    static constexpr int PER_WORD = 4 / LOW;  // steps
    static constexpr uint32_t LOW_MASK = (1u << LOW) - 1;
    static constexpr int FIELDS = HIGH ? 8 / (HIGH ? HIGH : 1) : 1;  // rows and steps a word
    // Of the columns of k below 8, and of those from 8 on.
    static constexpr uint32_t HIGH_LOW = (((1u << HIGH) - 1) << LOW) * 0x00010001u;
    static constexpr uint32_t HIGH_UPPER = (((1u << HIGH) - 1) << LOW) * 0x00100010u;
    // -BIAS as subnormals of either place.
    static constexpr uint32_t MINUS_LOW = (0x8000u | BIAS) * 0x10001u;
    static constexpr uint32_t MINUS_UPPER = (0x8000u | (BIAS << 4)) * 0x10001u;

    struct Quants {
        uint32_t w[LOW], high[HIGH ? HIGH : 1];
    };

    // The bit of a word where the field of step n (of 4 in a vector) and row r begins.
    static constexpr int field(int n, int r) {
        return (n * 2 + r) % FIELDS * HIGH + (n * 2 + r) % FIELDS * HIGH / 4 * 4;
    }
    static constexpr int word(int n, int r) { return (n * 2 + r) / FIELDS; }

    DEVICE Quants load(const uint8_t* tile, uint32_t lane, uint32_t v) {
        Quants quants = {};
        const uint8_t* low = tile + (v * 32 + lane) * 4 * LOW;
        if constexpr (LOW == 4) {
            const uint4 x = *reinterpret_cast<const uint4*>(low);
            quants.w[0] = x.x, quants.w[1] = x.y, quants.w[2] = x.z, quants.w[3] = x.w;
        } else {
            const uint2 x = *reinterpret_cast<const uint2*>(low);
            quants.w[0] = x.x, quants.w[1] = x.y;
        }
        const uint8_t* high = tile + LOW_BYTES + (v * 32 + lane) * 4 * HIGH;
        if constexpr (HIGH == 1) quants.high[0] = *reinterpret_cast<const uint32_t*>(high);
        if constexpr (HIGH == 2) {
            const uint2 y = *reinterpret_cast<const uint2*>(high);
            quants.high[0] = y.x, quants.high[1] = y.y;
        }
        return quants;
    }

    DEVICE void fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
        stored_fragment(quants, s, h, a);
        if constexpr (BIAS > 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                a[r] = add_f16x2(a[r], MINUS_LOW);
                a[2 + r] = add_f16x2(a[2 + r], MINUS_UPPER);
            }
        }
    }

    DEVICE void stored_fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
        const int n = 2 * s + h;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t w = quants.w[n / PER_WORD] >> (n % PER_WORD * LOW + r * 8);
            uint32_t low = w & (LOW_MASK * 0x00010001u), upper = w & (LOW_MASK * 0x00100010u);
            if constexpr (HIGH > 0) {
                const int shift = field(n, r) - LOW;
                const uint32_t all = quants.high[word(n, r)];
                const uint32_t bits = shift < 0 ? all << -shift : all >> shift;
                low |= bits & HIGH_LOW;
                upper |= bits & HIGH_UPPER;
            }
            a[r] = low, a[2 + r] = upper;
        }
    }

    // Stores stored(r, c), the integer of row r and column c of the tile, above BIAS.
    template <typename F>
    DEVICE void pack(uint8_t* tile, uint32_t lane, F stored) {
        const uint32_t g = lane / 4, q = lane % 4;
        for (uint32_t v = 0; v < 4; v++) {
            Quants quants = {};
            for (int n = 0; n < 4; n++) {
                for (int r = 0; r < 2; r++) {
                    for (uint32_t e = 0; e < 4; e++) {
                        const uint32_t column = (2 * v + n / 2) * 32 + column_of(n % 2, q, e);
                        const uint32_t x = stored(g + 8 * r, column);
                        quants.w[n / PER_WORD] |=
                            (x & LOW_MASK)
                            << (n % PER_WORD * LOW + r * 8 + e / 2 * 4 + e % 2 * 16);
                        if constexpr (HIGH > 0) {
                            quants.high[word(n, r)] |=
                                (x >> LOW) << (field(n, r) + e / 2 * 4 + e % 2 * 16);
                        }
                    }
                }
            }
            for (int i = 0; i < LOW; i++) {
                reinterpret_cast<uint32_t*>(tile)[(v * 32 + lane) * LOW + i] = quants.w[i];
            }
            for (int i = 0; i < HIGH; i++) {
                reinterpret_cast<uint32_t*>(tile + LOW_BYTES)[(v * 32 + lane) * HIGH + i] =
                    quants.high[i];
            }
        }
    }
};

// ---------------------------------------------------------------- integers of 8 bits

// Two of four signed bytes, stored above 128, as A's columns of k below 8, and as those from 8 on;
// nibbles 0 and 2 of `selector` are their numbers, the others 4. A byte below 0x64 is 1024 + q + 128:
// times 2^-24, less 1152 of these; 2^-20 likewise.
DEVICE uint32_t signed_lower(uint32_t bytes, uint32_t selector) {
    return fma_f16x2(prmt(bytes, 0x64646464u, selector), 0x00010001u, 0x84808480u);
}
DEVICE uint32_t signed_upper(uint32_t bytes, uint32_t selector) {
    return fma_f16x2(prmt(bytes, 0x64646464u, selector), 0x00100010u, 0x94809480u);
}

// Signed bytes, stored above 128. Quants [4 vectors][2][32 lanes][16 bytes]: words 2n and 2n + 1 of a
// lane are rows g and g + 8 of step n, in each columns 2q, 2q + 1, 2q + 8, 2q + 9.
struct Bytes {
    static constexpr bool INTEGERS = true;
    static constexpr int ABOVE = 0;
    static constexpr int LARGEST = 128;
    static constexpr int BYTE_TERMS = 1;
    static constexpr uint32_t QUANT_BYTES = 4096;

    struct Quants {
        uint32_t w[8];
    };

    DEVICE Quants load(const uint8_t* tile, uint32_t lane, uint32_t v) {
        const uint4 x = *reinterpret_cast<const uint4*>(tile + v * 1024 + lane * 16);
        const uint4 y = *reinterpret_cast<const uint4*>(tile + v * 1024 + 512 + lane * 16);
        return {{x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w}};
    }

    DEVICE void byte_terms(const Quants& quants, int s, uint32_t (&a)[1][4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[0][i] = quants.w[4 * s + i] ^ 0x80808080u;
    }

    DEVICE void fragment(const Quants& quants, int s, int h, uint32_t (&a)[4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t w = quants.w[2 * (2 * s + h) + r];
            a[r] = signed_lower(w, 0x4140), a[2 + r] = signed_upper(w, 0x4342);
        }
    }

    template <typename F>
    DEVICE void pack(uint8_t* tile, uint32_t lane, F stored) {
        const uint32_t g = lane / 4, q = lane % 4;
        for (uint32_t v = 0; v < 4; v++) {
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t n = i / 2, r = i % 2;
                uint32_t word = 0;
                for (uint32_t e = 0; e < 4; e++) {
                    const uint32_t column = (2 * v + n / 2) * 32 + column_of(n % 2, q, e);
                    word |= stored(g + 8 * r, column) << (8 * e);
                }
                reinterpret_cast<uint32_t*>(tile + v * 1024 + i / 4 * 512 + lane * 16)[i % 4] = word;
            }
        }
    }
};

// ---------------------------------------------------------------- scales

// A float16 scale for each sub-block of 32, at AT: [16 rows][8], and, where OFFSETS are their
// own, as many offsets behind.
template <uint32_t AT, Offsets OWN>
struct HalfScales {
    static constexpr int SUB = 32;
    static constexpr Offsets OFFSETS = OWN;
    static constexpr uint32_t SCALE_BYTES = OWN == OWN_OFFSETS ? 512 : 256;

    struct Quarter {
        uint32_t d, m;
    };
    struct Row {
        uint4 d, m;
    };

    DEVICE Row row(const uint8_t* tile, uint32_t r) {
        Row row = {};
        row.d = *reinterpret_cast<const uint4*>(tile + AT + r * 16);
        if (OWN == OWN_OFFSETS) row.m = *reinterpret_cast<const uint4*>(tile + AT + 256 + r * 16);
        return row;
    }
    DEVICE uint32_t word(const uint4& v, int t) {
        return t == 0 ? v.x : t == 1 ? v.y : t == 2 ? v.z : v.w;
    }
    DEVICE Quarter quarter(const Row& row, int t) { return {word(row.d, t), word(row.m, t)}; }
    DEVICE Quarter quarter(const uint8_t* tile, uint32_t r, uint32_t t) {
        const uint8_t* at = tile + AT + r * 16 + t * 4;
        Quarter quarter = {*reinterpret_cast<const uint32_t*>(at), 0};
        if (OWN == OWN_OFFSETS) quarter.m = *reinterpret_cast<const uint32_t*>(at + 256);
        return quarter;
    }
    DEVICE float scale(const Quarter& quarter, int i) { return half_of(quarter.d, i); }
    DEVICE float offset(const Quarter& quarter, int i) { return half_of(quarter.m, i); }

    // `block(r, j)` is sub-block j of row r in the file, or null; `bits` those of its scale.
    template <typename F, typename G = uint32_t (*)(const uint8_t*)>
    DEVICE void pack_scales(uint8_t* tile, uint32_t lane, F block, G bits = file_u16) {
        if (lane >= TILE_ROWS) return;
        for (uint32_t j = 0; j < 8; j++) {
            const uint8_t* from = block(lane, j);
            const uint32_t at = AT + lane * 16 + j * 2;
            *reinterpret_cast<uint16_t*>(tile + at) =
                static_cast<uint16_t>(from ? bits(from) : 0);
            if (OWN == OWN_OFFSETS) {
                *reinterpret_cast<uint16_t*>(tile + at + 256) =
                    static_cast<uint16_t>(from ? file_u16(from + 2) : 0);
            }
        }
    }
};

// Whether the sum of a sub-block's integers with x, up to 2^14 in size, may be 2^24 or more: then each step of
// 16 columns is summed by itself, or, where that is too large too, an integer is taken as 16 hi + lo.
template <typename T>
constexpr bool SPLITS_QUANTS = 16 * T::LARGEST >= 1024;
template <typename T>
constexpr bool SPLITS_STEPS = !SPLITS_QUANTS<T> && T::SUB * T::LARGEST >= 1024;

// Takes A apart into 16 hi and lo, from -8 to 8: added to a number whose last place is 16, integers are rounded
// to its multiples.
DEVICE void split_sixteens(uint32_t (&a)[4], uint32_t (&lo)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // 1.5 2^14 and its negative, in the units of either place.
        const uint32_t more = i < 2 ? 0x16001600u : 0x26002600u, less = more ^ 0x80008000u;
        const uint32_t hi = add_f16x2(add_f16x2(a[i], more), less);
        lo[i] = add_f16x2(a[i], hi ^ 0x80008000u);
        a[i] = hi;
    }
}

// A of the terms that a sub-block's integers are summed by: one, or two where the sum of one would not be
// exact, 16 hi + lo or a step each.
template <typename T>
struct Terms {
    static constexpr int STEPS = T::SUB / 16;
    static constexpr int COUNT = SPLITS_QUANTS<T> || SPLITS_STEPS<T> ? 2 : 1;
    static constexpr int PRODUCTS = SPLITS_QUANTS<T> ? 2 * STEPS : STEPS;
    uint32_t a[PRODUCTS][4];

    // Which term product i adds to, whether it begins it, and its step of the sub-block.
    static constexpr int term(int i) { return SPLITS_QUANTS<T> ? i / STEPS : SPLITS_STEPS<T> ? i : 0; }
    static constexpr bool begins(int i) { return SPLITS_STEPS<T> || i % STEPS == 0; }
    static constexpr int step(int i) { return i % STEPS; }

    // Of sub-block j, of quants that hold it.
    void set(const typename T::Quants& quants, int j) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int h = STEPS == 2 ? step : j % 2;
            T::fragment(quants, j * T::SUB / 32 % 2, h, a[step]);
            if constexpr (SPLITS_QUANTS<T>) split_sixteens(a[step], a[STEPS + step]);
        }
    }
};

// Minimums by eight, of a superblock of a type that shares them.
template <typename T>
constexpr int EIGHTS = T::OFFSETS == SHARED_OFFSETS ? 32 / T::SUB : 0;

// A of the k-th eight minimums of a tile of type T where these are shared, rows g and g + 8: of quarter q's
// sub-blocks numbers 2k and 2k + 1, each as 16 m and m (fixed.cuh's sixteens).
template <typename T>
DEVICE void minimums(const uint8_t* tile, uint32_t g, uint32_t q, int k, uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t m = T::mins(tile, g + 8 * r, q) >> (16 * k);
        a[r] = (m & 0xff) * 0x00010010u, a[2 + r] = (m >> 8 & 0xff) * 0x00010010u;
    }
}

// The block of 32 columns, BYTES long, number j of superblock sb of a row of n columns, or null.
template <uint32_t BYTES>
DEVICE const uint8_t* block_of(const uint8_t* row, uint32_t sb, uint32_t j, uint32_t n) {
    const uint32_t block = sb * 8 + j;
    return row && block * 32 < n ? row + block * BYTES : nullptr;
}

// Column `i` of 32 whose nibbles lie in 16 bytes: the first half in their lower four bits.
DEVICE uint32_t nibble_of_32(const uint8_t* nibbles, uint32_t i) {
    return (nibbles[i % 16] >> (i / 16 * 4)) & 15;
}

// The same of five bits, the fifth ones in 4 bytes before the nibbles, in the order of the columns.
DEVICE uint32_t five_bits_of_32(const uint8_t* bits, uint32_t i) {
    return nibble_of_32(bits + 4, i) | ((bits[i / 8] >> (i % 8) & 1) << 4);
}

// ---------------------------------------------------------------- floats

// Tiles are [16 rows][vectors of 16 bytes][32 lanes]: a lane's eight columns of a row.
template <typename Element>
struct Floats {
    static constexpr bool INTEGERS = false;
    static constexpr uint32_t TILE_BYTES = TILE_ROWS * TILE_COLS * sizeof(Element);
    static constexpr int PER_VECTOR = 16 / sizeof(Element);

    DEVICE const Element* at(const uint8_t* tile, uint32_t lane, uint32_t r, uint32_t i) {
        const uint32_t vector = r * (8 / PER_VECTOR) + i / PER_VECTOR;
        return reinterpret_cast<const Element*>(tile + vector * 512 + lane * 16) + i % PER_VECTOR;
    }

    DEVICE void repack(uint8_t* tile, uint32_t lane, const uint8_t* const* rows, uint32_t sb,
                       uint32_t n) {
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t k = sb * TILE_COLS + lane + 32 * i;
                Element* to = const_cast<Element*>(at(tile, lane, r, i));
                *to = rows[r] && k < n ? reinterpret_cast<const Element*>(rows[r])[k] : Element(0);
            }
        }
    }
};
