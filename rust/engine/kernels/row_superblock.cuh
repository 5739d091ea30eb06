// A superblock of a tile of weights times one of a row of x, as Op::MatVec states it, by a warp.
//
// An mma has eight columns of B and there is one row of x, so B is block-diagonal: a column has x of one
// sub-block and zeros elsewhere. Sixteen mma then leave lane quarter t the exact sums of the t-th quarter of
// the sub-blocks (step 2), and p goes from lane to lane (step 4).
//
// Include it behind epilogue.cuh, which has the segments, and what variant.cuh has for matvec.cu.
#pragma once
#include "fixed.cuh"

// Whether x is needed as float16, and as signed bytes, two a column.
template <typename T>
constexpr bool IN_BYTES = T::BYTE_TERMS > 0;
constexpr bool NEEDS_BYTES =
    IN_BYTES<Segment0> || IN_BYTES<Segment1> || IN_BYTES<Segment2> || IN_BYTES<Segment3>;
constexpr bool NEEDS_HALVES =
    !(IN_BYTES<Segment0> && IN_BYTES<Segment1> && IN_BYTES<Segment2> && IN_BYTES<Segment3>);
template <typename T>
constexpr bool IS_ABOVE = T::ABOVE > 0;
constexpr bool NEEDS_ABOVE =
    IS_ABOVE<Segment0> || IS_ABOVE<Segment1> || IS_ABOVE<Segment2> || IS_ABOVE<Segment3>;
template <typename T>
constexpr bool HAS_OFFSETS = T::OFFSETS == OWN_OFFSETS;
constexpr bool NEEDS_OFFSETS =
    HAS_OFFSETS<Segment0> || HAS_OFFSETS<Segment1> || HAS_OFFSETS<Segment2> || HAS_OFFSETS<Segment3>;

// A superblock of x. Of each pair of sub-blocks of 32: the first, zeros, the second, X_SUB_BYTES each, so that
// of two neighbours in B one reads x and zeros where the other reads zeros and x; behind them zeros for all
// other columns. Then signed bytes, a sub-block behind another, and zeros; what takes them to H, [8] floats.
constexpr uint32_t X_PAIR = 3 * X_SUB_BYTES, X_ZEROS = 4 * X_PAIR;
constexpr uint32_t X_BYTES = NEEDS_HALVES ? X_ZEROS + 2 * X_SUB_BYTES : 0;
constexpr uint32_t X_BYTE_ZEROS = X_BYTES + 8 * X_SUB_BYTES;
constexpr uint32_t X_UNITS = X_BYTE_ZEROS + X_SUB_BYTES + 16;
// Sums for minimums, MINIMUMS of them (8, 16, or 24 for both), a word each; as offsets, [8] floats; over
// sixteen columns, [16] floats, for integers that are stored above what they are.
constexpr uint32_t X_SUMS = NEEDS_BYTES ? X_UNITS + 32 : X_BYTES;
constexpr uint32_t X_SUMS_OF_16 = X_SUMS + (MINIMUMS % 16 ? 32 : 0);
constexpr uint32_t X_OFFSETS = X_SUMS + MINIMUMS * 4;
constexpr uint32_t X_ABOVE = X_OFFSETS + 32;
constexpr uint32_t X_SB = X_ABOVE + 64;

// Stores a superblock of x. For whole warps.
DEVICE void store_row(const Fixed& x, uint32_t lane, uint8_t* x_sb) {
    const uint32_t sub = lane / 4;
    if constexpr (NEEDS_HALVES) {
        uint8_t* of_pair = x_sb + sub / 2 * X_PAIR;
        store_fragments(x, lane, of_pair + sub % 2 * (2 * X_SUB_BYTES));
        // All between pairs, and a pair of them behind.
        if (lane < 24) {
            uint8_t* zeros = lane < 16 ? x_sb + lane / 4 * X_PAIR + X_SUB_BYTES + lane % 4 * 16
                                       : x_sb + X_ZEROS + (lane - 16) * 16;
            *reinterpret_cast<uint4*>(zeros) = make_uint4(0, 0, 0, 0);
        }
    }
    if constexpr (NEEDS_BYTES) {
        store_bytes(x, lane, x_sb + X_BYTES + sub * X_SUB_BYTES);
        if (lane < 5) {
            *reinterpret_cast<uint4*>(x_sb + X_BYTE_ZEROS + lane * 16) = make_uint4(0, 0, 0, 0);
        }
        if (lane % 4 == 0) {
            reinterpret_cast<float*>(x_sb + X_UNITS)[sub] = power_of_two(-24 - x.shift);
        }
    }
    uint32_t* sums = reinterpret_cast<uint32_t*>(x_sb + X_SUMS);
    if constexpr (NEEDS_ABOVE || MINIMUMS >= 16) {
        const float of_16 = sum_of_columns<2>(x);
        if constexpr (MINIMUMS >= 16) {
            const uint32_t sum = sixteens(of_16);
            if (lane % 2 == 0) sums[(X_SUMS_OF_16 - X_SUMS) / 4 + lane / 2] = sum;
        }
        if (NEEDS_ABOVE && lane % 2 == 0) {
            reinterpret_cast<float*>(x_sb + X_ABOVE)[lane / 2] = offset_sum(of_16);
        }
    }
    if constexpr (NEEDS_OFFSETS || MINIMUMS % 16) {
        const float of_32 = sum_of_columns<4>(x);
        if constexpr (MINIMUMS % 16) {
            const uint32_t sum = sixteens(of_32);
            if (lane % 4 == 0) sums[sub] = sum;
        }
        if (NEEDS_OFFSETS && lane % 4 == 0) {
            reinterpret_cast<float*>(x_sb + X_OFFSETS)[sub] = offset_sum(of_32);
        }
    }
}

// A superblock of x as a lane's share of B, zero but for one column: in registers, b[step] of the sixteen...
struct Columns {
    uint32_t b[16][2];
};

// ... or where those of a quarter's first sub-block lie, of each quarter: its own, or zeros. (Instead of a
// choice in registers between x and zero, 35 of 290 instructions a tile: 8B 1,689 -> 1,673 us a step on an
// H200, 1B 475 -> 469. Of sub-blocks of 16, where it would be sixteen loads: 8B of Q6_K 496 -> 481 tokens/s.)
struct ColumnsAt {
    const uint8_t* of[4];
};

template <typename T>
DEVICE auto columns_of(const uint8_t* x_sb, uint32_t lane) {
    const uint32_t own = lane / 8, second = lane / 4 % 2, q = lane % 4;
    if constexpr (IN_BYTES<T>) {
        // Columns a and b of either sub-block of a quarter.
        ColumnsAt x;
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t at = X_BYTES + t * (2 * X_SUB_BYTES) + second * (X_SUB_BYTES / 2) + q * 8;
            x.of[t] = x_sb + (own == t ? at : X_BYTE_ZEROS);
        }
        return x;
    } else if constexpr (T::SUB == 32) {
        ColumnsAt x;
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            const uint32_t at = t * X_PAIR + second * X_SUB_BYTES + q * 16;
            x.of[t] = x_sb + (own == t ? at : X_ZEROS);
        }
        return x;
    } else {
        // Of a quarter's four sub-blocks, a step each: the first two, then the others.
        const uint8_t* from = x_sb + own * X_PAIR + q * 16 + second * 8;
        uint2 v[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            v[i] = *reinterpret_cast<const uint2*>(from + i * (2 * X_SUB_BYTES));
        }
        Columns x;
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            const bool is_own = own == j / 4 && second == j % 2;
            x.b[j][0] = is_own ? v[j % 4 / 2].x : 0;
            x.b[j][1] = is_own ? v[j % 4 / 2].y : 0;
        }
        return x;
    }
}

// B of step n of the sixteen, or, of bytes, of sub-block n.
template <typename T>
DEVICE void step_of(const Columns& x, int n, uint32_t (&b)[2]) {
    b[0] = x.b[n][0], b[1] = x.b[n][1];
}
template <typename T>
DEVICE void step_of(const ColumnsAt& x, int n, uint32_t (&b)[2]) {
    if constexpr (IN_BYTES<T>) {
        const uint8_t* of_sub = x.of[n / 2] + (n % 2) * X_SUB_BYTES;
        const uint2 v = *reinterpret_cast<const uint2*>(of_sub);
        b[0] = v.x, b[1] = v.y;
    } else {
        const uint8_t* of_sub = x.of[n / 4] + n / 2 % 2 * X_SUB_BYTES;
        const uint4 v = *reinterpret_cast<const uint4*>(of_sub);
        b[0] = n % 2 ? v.z : v.x, b[1] = n % 2 ? v.w : v.y;
    }
}

// Keeps them in registers: else the compiler loads or chooses them anew for each tile.
template <typename T, typename X>
DEVICE Columns held(const X& x) {
    Columns columns = {};
#pragma unroll
    for (int n = 0; n < (IN_BYTES<T> ? 8 : 16); n++) {
        uint32_t b[2];
        step_of<T>(x, n, b);
        columns.b[n][0] = opaque_u32(b[0]), columns.b[n][1] = opaque_u32(b[1]);
    }
    return columns;
}

// Types that have offsets of their own, or a fifth bit and sums to begin with, need the most registers. What
// they need late is loaded late: scales and offsets, and in light blocks the second half of the columns. Else
// the compiler asks for all at once, and some go to memory.
template <typename T>
constexpr bool LOADS_LATE =
    T::OFFSETS == OWN_OFFSETS || (T::SUB == 32 && T::ABOVE > 0 && sizeof(typename T::Quants) > 16);

// sums[i]: those of sub-block i of the lane's quarter, rows g and g + 8, by float16.
template <typename T, int EACH, typename X>
DEVICE void sums_of_halves(const typename T::Quants (&quants)[4], uint32_t t, const uint8_t* x_sb,
                           const X& x, float (&sums)[EACH][2]) {
    static_assert(!SPLITS_QUANTS<T>, "as bytes");
    // By four chains of products, that none waits for more than three before it: of sub-blocks of 32 either step,
    // of those of 16 either half of a quarter; and, where registers are left, of even quarters and of odd ones, of
    // which one is zero.
    constexpr int TURNS = LOADS_LATE<T> ? 1 : 2;
    float part[TURNS][2][4] = {};
    if constexpr (T::ABOVE > 0) {
        static_assert(16 * (2 * T::ABOVE - 1) < 1024 && T::SUB * T::ABOVE < 1024, "exact");
        const float4 of_16 = reinterpret_cast<const float4*>(x_sb + X_ABOVE)[t];
        constexpr float LESS = -T::ABOVE;
        const float first[2] = {of_16.x, T::SUB == 16 ? of_16.z : of_16.y};
        const float second[2] = {T::SUB == 16 ? of_16.y : of_16.z, of_16.w};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            part[0][i][0] = part[0][i][2] = mul_rn(first[i], LESS);
            part[0][i][1] = part[0][i][3] = mul_rn(second[i], LESS);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half && LOADS_LATE<T> && !HOLDS_COLUMNS && AHEAD == RING) __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // Quarters 0 and 1 in turn, then 2 and 3.
            const int v = 2 * half + i % 2, n = i / 2;
            uint32_t a[4], b[2];
            if constexpr (T::ABOVE > 0) {
                T::stored_fragment(quants[v], n / 2, n % 2, a);
            } else {
                T::fragment(quants[v], n / 2, n % 2, a);
            }
            step_of<T>(x, 4 * v + n, b);
            float(&sum)[4] = part[v % TURNS][T::SUB == 32 ? n % 2 : n / 2];
            mma_m16n8k16_f16_f32(sum, a, b, sum);
        }
    }
    if constexpr (TURNS == 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                part[0][i][e] = add_rn(part[0][i][e], part[TURNS - 1][i][e]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int e = 2 * r + i % 2;
            sums[i][r] = EACH == 4 ? part[0][i / 2][e] : add_rn(part[0][0][e], part[0][1][e]);
        }
    }
}

// The same by signed bytes, x = (256 a + b) its unit.
template <typename T, int EACH, typename X>
DEVICE void sums_of_bytes(const typename T::Quants (&quants)[4], uint32_t t, const uint8_t* x_sb,
                          const X& x, float (&sums)[EACH][2]) {
    static_assert(T::SUB == 32, "a product a sub-block");
    // Of the first and the second sub-block of the quarter.
    int32_t part[2][4] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t a[T::BYTE_TERMS][4], b[2];
        T::byte_terms(quants[j / 2], j % 2, a);
        step_of<T>(x, j, b);
#pragma unroll
        for (int term = 0; term < T::BYTE_TERMS; term++) {
            mma_m16n8k32_s32<true, true>(part[j % 2], a[term], b, part[j % 2]);
        }
    }
    const float* units = reinterpret_cast<const float*>(x_sb + X_UNITS) + 2 * t;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t sum = part[i][2 * r] * 256 + part[i][2 * r + 1];
            sums[i][r] = mul_rn(static_cast<float>(sum), units[i]);
        }
    }
}

// p of the rows of a tile, [16 rows]. Calls `was_read` when it needs the tile no more; where it READS_FIRST,
// that is before it multiplies.
template <typename T, bool READS_FIRST, typename X, typename Read>
DEVICE void multiply(const uint8_t* tile, uint32_t lane, const uint8_t* x_sb, const X& x,
                     float* p_sb, Read was_read) {
    constexpr int EACH = 64 / T::SUB;  // sub-blocks of a quarter
    const uint32_t g = lane / 4, t = lane % 4;
    const typename T::Quants quants[4] = {T::load(tile, lane, 0), T::load(tile, lane, 1),
                                          T::load(tile, lane, 2), T::load(tile, lane, 3)};
    typename T::Quarter quarters[2];
    const auto read_scales = [&]() {
        quarters[0] = T::quarter(tile, g, t), quarters[1] = T::quarter(tile, g + 8, t);
    };
    constexpr bool READS_SCALES_LATE = LOADS_LATE<T> && !READS_FIRST;
    if constexpr (!READS_SCALES_LATE) read_scales();
    [[maybe_unused]] uint32_t least[EIGHTS<T> + 1][4];
    [[maybe_unused]] float dmin[2];
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
#pragma unroll
        for (int k = 0; k < EIGHTS<T>; k++) minimums<T>(tile, g, t, k, least[k]);
        dmin[0] = T::dmin(tile, g), dmin[1] = T::dmin(tile, g + 8);
    }
    if constexpr (READS_FIRST) was_read();
    float p[2] = {};
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
        // First, for what it begins goes from lane to lane. All columns of B are the row's sums.
        const uint8_t* at = x_sb + (T::SUB == 16 ? X_SUMS_OF_16 : X_SUMS);
        float m[4] = {};
#pragma unroll
        for (int k = 0; k < EIGHTS<T>; k++) {
            const uint2 v = *reinterpret_cast<const uint2*>(at + t * (4 * EACH) + k * 8);
            const uint32_t b[2] = {v.x, v.y};
            mma_m16n8k16_f16_f32(m, least[k], b, m);
        }
        p[0] = mul_rn(-dmin[0], m[0]), p[1] = mul_rn(-dmin[1], m[2]);
    }
    float sums[EACH][2];
    if constexpr (IN_BYTES<T>) {
        sums_of_bytes<T>(quants, t, x_sb, x, sums);
    } else {
        sums_of_halves<T>(quants, t, x_sb, x, sums);
    }
    if constexpr (READS_SCALES_LATE) {
        __syncwarp();
        read_scales();
    }
    [[maybe_unused]] const float* offsets =
        reinterpret_cast<const float*>(x_sb + X_OFFSETS) + EACH * t;
    // Each quarter in its turn: what others make of p meanwhile is not used.
#pragma unroll
    for (int turn = 0; turn < 4; turn++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (turn > 0) p[r] = __shfl_up_sync(FULL_WARP, p[r], 1);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                p[r] = fma_rn(T::scale(quarters[r], i), sums[i][r], p[r]);
                if constexpr (T::OFFSETS == OWN_OFFSETS) {
                    p[r] = fma_rn(T::offset(quarters[r], i), offsets[i], p[r]);
                }
            }
        }
    }
    if (t == 3) p_sb[g] = p[0], p_sb[g + 8] = p[1];
    if constexpr (!READS_FIRST) was_read();
}
