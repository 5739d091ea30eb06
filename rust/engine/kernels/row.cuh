// A row of GROUP values that a block has in registers: of superblock warp + s * WARPS a lane has the
// eight values s. What lies behind the row's end is zero.
//
// Include it behind variant.cuh: GROUP, THREADS.
#pragma once
#include "norm.cuh"

constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t N_SB = (GROUP + 255) / 256;
constexpr uint32_t EACH = (N_SB + WARPS - 1) / WARPS;

using Row = float[EACH][8];

// Calls f with s, e and k of every `step`-th of a lane's values: value e of eight is the row's k-th.
template <uint32_t step, class F>
DEVICE void each_place(F f) {
#pragma unroll
    for (uint32_t s = 0; s < EACH; s++) {
        const uint32_t k = (threadIdx.x / 32 + s * WARPS) * 256 + threadIdx.x % 32 * 8;
#pragma unroll
        for (uint32_t e = 0; e < 8; e += step) {
            if (k + e < GROUP) f(s, e, k + e);
        }
    }
}

// Of a row that an earlier kernel wrote: all loads are asked for before any is waited for.
DEVICE void load_row(Row& v, const float* from) {
    if constexpr (GROUP % 4 == 0) {
        each_place<4>([&](uint32_t s, uint32_t e, uint32_t k) {
            const float4 f = load_relaxed_f32x4(from + k);
            v[s][e] = f.x, v[s][e + 1] = f.y, v[s][e + 2] = f.z, v[s][e + 3] = f.w;
        });
    } else {
        each_place<1>([&](uint32_t s, uint32_t e, uint32_t k) {
            v[s][e] = load_relaxed_f32(from + k);
        });
    }
}

// Of a row of the model's, which may be asked for before pdl_wait().
DEVICE void load_weight(Row& w, const float* from) {
    if constexpr (GROUP % 4 == 0) {
        each_place<4>([&](uint32_t s, uint32_t e, uint32_t k) {
            const uint4 f = load_stream_u32x4(from + k);
            w[s][e] = u32_as_float(f.x), w[s][e + 1] = u32_as_float(f.y);
            w[s][e + 2] = u32_as_float(f.z), w[s][e + 3] = u32_as_float(f.w);
        });
    } else {
        each_place<1>([&](uint32_t s, uint32_t e, uint32_t k) { w[s][e] = from[k]; });
    }
}

DEVICE void store_row(float* to, const Row& v) {
    if constexpr (GROUP % 4 == 0) {
        each_place<4>([&](uint32_t s, uint32_t e, uint32_t k) {
            *reinterpret_cast<float4*>(to + k) =
                make_float4(v[s][e], v[s][e + 1], v[s][e + 2], v[s][e + 3]);
        });
    } else {
        each_place<1>([&](uint32_t s, uint32_t e, uint32_t k) { to[k] = v[s][e]; });
    }
}

// v[s][e] = f(s, e) of the values that are there.
template <class F>
DEVICE void set_row(Row& v, F f) {
    constexpr uint32_t STEP = GROUP % 8 == 0 ? 8 : 1;
    each_place<STEP>([&](uint32_t s, uint32_t first, uint32_t) {
#pragma unroll
        for (uint32_t e = first; e < first + STEP; e++) v[s][e] = f(s, e);
    });
}

// The sums of squares of a row's superblocks: to be read behind a barrier.
DEVICE void square_row(float (&squares)[N_SB], const Row& v) {
#pragma unroll
    for (uint32_t s = 0; s < EACH; s++) {
        const uint32_t sb = threadIdx.x / 32 + s * WARPS;
        if (sb >= N_SB) break;
        const float sum = superblock_squares(v[s]);
        if (threadIdx.x % 32 == 0) squares[sb] = sum;
    }
}
