// A superblock of a tile of weights times one of a row of x, as Op::MatVec states it, by a warp.
//
// An mma has eight columns of B and one row of x two limbs, so B is block-diagonal: column pair t has
// the limbs of the columns of chain t's sub-block and zeros elsewhere. Sixteen mma then leave lane
// quarter t the exact sums of chain t (step 2), which it folds into p (steps 3 and 4).
//
// Include it behind epilogue.cuh, which has the segments, and what variant.cuh has for matvec.cu.
#pragma once
#include "fixed.cuh"

// Whether x is needed as float16, two limbs a column, and as signed bytes, four.
template <typename T>
constexpr bool IN_BYTES = T::BYTE_TERMS > 0;
constexpr bool NEEDS_BYTES =
    IN_BYTES<Segment0> || IN_BYTES<Segment1> || IN_BYTES<Segment2> || IN_BYTES<Segment3>;
constexpr bool NEEDS_HALVES =
    !(IN_BYTES<Segment0> && IN_BYTES<Segment1> && IN_BYTES<Segment2> && IN_BYTES<Segment3>);

// A superblock of x: both limbs of a sub-block and zeros, so that the four that a warp reads at a time lie
// in different banks; the same as bytes, or these alone; the parts of its sums for minimums, MINIMUMS of
// them, [2][8] words for eight, and as offsets, [8] floats.
constexpr uint32_t X_SUB = 2 * LIMB_BYTES + 16, X_ZEROS = 2 * LIMB_BYTES;
constexpr uint32_t X_BYTES = NEEDS_HALVES ? 8 * X_SUB : 0;
constexpr uint32_t X_SUMS = X_BYTES + (NEEDS_BYTES ? 8 * X_SUB : 0);
constexpr uint32_t X_OFFSETS = X_SUMS + MINIMUMS / 8 * 64;
// Behind these the sums of both limbs over sixteen columns, [16][2] floats, with which integers that are
// stored above what they are give their sums without a subtraction each.
constexpr uint32_t X_LIMBS = X_OFFSETS + 32;
constexpr uint32_t X_SB = X_LIMBS + 128;
constexpr bool NEEDS_LIMBS =
    Segment0::ABOVE > 0 || Segment1::ABOVE > 0 || Segment2::ABOVE > 0 || Segment3::ABOVE > 0;

// Stores a lane's integers of a superblock.
DEVICE void store_columns(const Fixed& x, uint32_t lane, uint8_t* x_sb) {
    uint8_t* of_sub = x_sb + lane / 4 * X_SUB;
    if constexpr (NEEDS_HALVES) store_fragments(x, lane, of_sub, of_sub + LIMB_BYTES);
    if constexpr (NEEDS_BYTES) store_bytes(x, lane, of_sub + X_BYTES);
    if (lane % 4) return;
    *reinterpret_cast<uint4*>(of_sub + X_ZEROS) = make_uint4(0, 0, 0, 0);
    if (NEEDS_HALVES && NEEDS_BYTES) {
        *reinterpret_cast<uint4*>(of_sub + X_BYTES + X_ZEROS) = make_uint4(0, 0, 0, 0);
    }
}

// A superblock of x as a lane's share of B, zero but for columns of its own chain: in registers, b[step] of
// the sixteen...
struct Columns {
    uint32_t b[16][2];
};

// ... or where those of a chain's first sub-block lie, of each chain: its own, or zeros. (Instead of a choice
// in registers between x and zero, 35 of 290 instructions a tile: 8B 1,689 -> 1,673 us a step on an H200,
// 1B 475 -> 469. Of sub-blocks of 16, where it would be sixteen loads: 8B of Q6_K 496 -> 481 tokens/s.)
struct ColumnsAt {
    const uint8_t* of[4];
};

template <typename T>
DEVICE auto columns_of(const uint8_t* x_sb, uint32_t lane) {
    const uint32_t own = lane / 8, at = lane % 8 * 16;  // its chain; limb and quarter
    if constexpr (T::SUB == 32) {
        ColumnsAt x;
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            x.of[t] = x_sb + (IN_BYTES<T> ? X_BYTES : 0) + t * X_SUB + (own == t ? at : X_ZEROS);
        }
        return x;
    } else {
        Columns x;
        // Steps own, own + 4, ..., a sub-block each.
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t* from = x_sb + at + (own / 2 + 2 * i) * X_SUB + own % 2 * 8;
            const uint2 v = *reinterpret_cast<const uint2*>(from);
#pragma unroll
            for (uint32_t t = 0; t < 4; t++) {
                x.b[4 * i + t][0] = own == t ? v.x : 0;
                x.b[4 * i + t][1] = own == t ? v.y : 0;
            }
        }
        return x;
    }
}

DEVICE void step_of(const Columns& x, int n, uint32_t (&b)[2]) { b[0] = x.b[n][0], b[1] = x.b[n][1]; }

// Two steps a sub-block, or, as bytes, both limbs.
DEVICE void step_of(const ColumnsAt& x, int n, uint32_t (&b)[2]) {
    const uint8_t* of_sub = x.of[n / 2 % 4] + n / 8 * (4 * X_SUB);
    const uint4 v = *reinterpret_cast<const uint4*>(of_sub);
    b[0] = n % 2 ? v.z : v.x, b[1] = n % 2 ? v.w : v.y;
}

// Keeps them in registers: else the compiler loads or chooses them anew for each tile.
template <typename X>
DEVICE Columns held(const X& x) {
    Columns columns;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        uint32_t b[2];
        step_of(x, n, b);
        columns.b[n][0] = opaque_u32(b[0]), columns.b[n][1] = opaque_u32(b[1]);
    }
    return columns;
}

// Types that have offsets of their own need the most registers. What they need late is loaded late: scales
// and offsets, and in light blocks the second half of the columns. Else the compiler asks for all at once,
// and some go to memory.
template <typename T>
constexpr bool LOADS_LATE = T::OFFSETS == OWN_OFFSETS;

// sums[i]: those of sub-block t + 4i, rows g and g + 8, by float16.
template <typename T, int SUBS, typename X>
DEVICE void sums_of_halves(const typename T::Quants (&quants)[4], uint32_t t, const uint8_t* x_sb,
                           const X& x, float (&sums)[SUBS][2]) {
    // [v]: the sums of what vector v has of sub-blocks t + 4i, both limbs, rows g and g + 8: exact, so
    // that no product waits for more than three before it.
    float part[4][4] = {};
    if constexpr (T::ABOVE > 0) {
        static_assert((2 * T::ABOVE + 64) * T::SUB * 2048 < 1 << 24, "exact");
        const float2* limbs = reinterpret_cast<const float2*>(x_sb + X_LIMBS);
#pragma unroll
        for (int i = 0; i < SUBS; i++) {
            float2 sum;
            if constexpr (T::SUB == 16) {
                sum = limbs[t + 4 * i];
            } else {
                const float2 a = limbs[2 * (t + 4 * i)], b = limbs[2 * (t + 4 * i) + 1];
                sum = make_float2(add_rn(a.x, b.x), add_rn(a.y, b.y));
            }
            constexpr int STRIDE = 4 / SUBS;
            part[STRIDE * i][0] = part[STRIDE * i][2] = mul_rn(sum.x, static_cast<float>(T::ABOVE));
            part[STRIDE * i][1] = part[STRIDE * i][3] = mul_rn(sum.y, static_cast<float>(T::ABOVE));
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Two vectors at a time.
        const auto multiply_step = [&](int v, int n) {
            uint32_t a[4];
            if constexpr (T::ABOVE > 0) {
                T::stored_fragment(quants[v], n / 2, n % 2, a);
            } else {
                T::fragment(quants[v], n / 2, n % 2, a);
            }
            uint32_t b[2];
            step_of(x, 4 * v + n, b);
            mma_m16n8k16_f16_f32(part[v], a, b, part[v]);
        };
        if (half && LOADS_LATE<T> && !HOLDS_COLUMNS && AHEAD == RING) __syncwarp();
#pragma unroll
        for (int n = 0; n < 4; n++) {
            multiply_step(half, n);
            multiply_step(2 + half, n);
        }
    }
#pragma unroll
    for (int i = 0; i < SUBS; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const auto sum_of = [&](int e) {
                if constexpr (SUBS == 4) return part[i][e];
                return add_rn(part[2 * i % 4][e], part[(2 * i + 1) % 4][e]);
            };
            sums[i][r] = fma_rn(sum_of(2 * r), 4096.0f, sum_of(2 * r + 1));
        }
    }
}

// The same by signed bytes.
template <typename T, int SUBS, typename X>
DEVICE void sums_of_bytes(const typename T::Quants (&quants)[4], const X& x,
                          float (&sums)[SUBS][2]) {
    static_assert(T::SUB == 32, "two products a sub-block");
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // [hi, lo]: of rows g and g + 8, a and b (fixed.cuh), which make up at most 32 2^7 2^11.
        int32_t part[2][4] = {};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t a[T::BYTE_TERMS][4];
            T::byte_terms(quants[2 * i + n / 2], n % 2, a);
#pragma unroll
            for (int limb = 0; limb < 2; limb++) {
                uint32_t b[2];
                step_of(x, 8 * i + 2 * n + limb, b);
#pragma unroll
                for (int term = 0; term < T::BYTE_TERMS; term++) {
                    mma_m16n8k32_s32<true, true>(part[limb], a[term], b, part[limb]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const auto sum_of = [&](const int32_t (&limb)[4]) {
                return static_cast<float>(limb[2 * r] * 64 + limb[2 * r + 1]);
            };
            const float sum = fma_rn(sum_of(part[0]), 4096.0f, sum_of(part[1]));
            sums[i][r] = mul_rn(sum, SCALE_OF_SUMS);
        }
    }
}

// p of the rows of a tile, [4 chains][16 rows]. Calls `was_read` when it needs the tile no more; where it
// READS_FIRST, that is before it multiplies.
template <typename T, bool READS_FIRST, typename X, typename Read>
DEVICE void multiply(const uint8_t* tile, uint32_t lane, const uint8_t* x_sb, const X& x,
                     float* p_sb, Read was_read) {
    constexpr int SUBS = 64 / T::SUB;            // sub-blocks of a chain
    const uint32_t g = lane / 4, t = lane % 4;
    const typename T::Quants quants[4] = {T::load(tile, lane, 0), T::load(tile, lane, 1),
                                          T::load(tile, lane, 2), T::load(tile, lane, 3)};
    typename T::Chain chains[2];
    const auto read_chains = [&]() {
        chains[0] = T::chain(tile, g, t), chains[1] = T::chain(tile, g + 8, t);
    };
    constexpr bool READS_CHAINS_LATE = LOADS_LATE<T> && !READS_FIRST;
    if constexpr (!READS_CHAINS_LATE) read_chains();
    [[maybe_unused]] uint32_t least[MINIMUMS / 8][4];
    [[maybe_unused]] float dmin[2];
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
#pragma unroll
        for (int k = 0; k < MINIMUMS / 8; k++) minimums<T, MINIMUMS>(tile, g, t, k, least[k]);
        dmin[0] = T::dmin(tile, g), dmin[1] = T::dmin(tile, g + 8);
    }
    if constexpr (READS_FIRST) was_read();
    float sums[SUBS][2];
    if constexpr (IN_BYTES<T>) {
        sums_of_bytes<T>(quants, x, sums);
    } else {
        sums_of_halves<T>(quants, t, x_sb, x, sums);
    }
    if constexpr (READS_CHAINS_LATE) {
        __syncwarp();
        read_chains();
    }
    float p[2] = {};
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
        // Columns 0 and 1 of one more mma are the sums of minimums with the parts of the sums of x.
        const uint32_t* at = reinterpret_cast<const uint32_t*>(x_sb + X_SUMS) + g % 2 * 8 + t;
        float minimum[4] = {};
#pragma unroll
        for (int k = 0; k < MINIMUMS / 8; k++) {
            const uint32_t b[2] = {at[16 * k], at[16 * k + 4]};
            mma_m16n8k16_f16_f32(minimum, least[k], b, minimum);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float m = fma_rn(minimum[2 * r], 16384.0f, minimum[2 * r + 1]);
            p[r] = t == 0 ? mul_rn(-dmin[r], m) : 0.0f;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const auto& chain = chains[r];
#pragma unroll
        for (int i = 0; i < SUBS; i++) {
            p[r] = fma_rn(T::scale(chain, i), sums[i][r], p[r]);
            if constexpr (T::OFFSETS == OWN_OFFSETS) {
                const float* offsets = reinterpret_cast<const float*>(x_sb + X_OFFSETS);
                p[r] = fma_rn(T::offset(chain, i), offsets[t + 4 * i], p[r]);
            }
        }
        p_sb[t * TILE_ROWS + g + 8 * r] = p[r];
    }
    if constexpr (!READS_FIRST) was_read();
}
