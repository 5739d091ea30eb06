// Products of four warps, a warpgroup, on compute capability 9.0 alone: d = a*b + (adds ? d : 0) for A in
// registers, 16 rows of 64 a warp as mma_m16n8k16_f16_f32 has them, or mma_m16n8k32_s32, and B in shared
// memory, 16 rows of float16 or 32 of bytes; d[j] is C's columns 8j.. as there. B lies in core matrices,
// eight columns of B of 16 bytes each, [8 columns][8 rows of float16 or 16 of bytes]: 128 bytes that begin
// at a multiple of 16.
//
// They run behind their issue: `wgmma_fence` before the first of a group and behind all changes of its
// registers, `wgmma_commit` behind its last, `wgmma_wait<n>` until at most n groups run, then
// `settle_registers` before d is read. A, B and d are theirs until then, which the simulator holds.
#pragma once
#include "common.cuh"

#ifdef ONEGRAPH_SIM
constexpr bool HAS_WARPGROUPS = ARCH_AT_LEAST(900) && !ARCH_AT_LEAST(901);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool HAS_WARPGROUPS = true;

// C's registers, %0 on, behind them those of A, B and `adds`.
#define NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 \
    NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CHUNK(R, j) R(d[j][0]), R(d[j][1]), R(d[j][2]), R(d[j][3])
#define CHUNKS_2(R, j) CHUNK(R, j), CHUNK(R, j + 1)
#define CHUNKS_4(R, j) CHUNKS_2(R, j), CHUNKS_2(R, j + 2)
#define CHUNKS_8(R, j) CHUNKS_4(R, j), CHUNKS_4(R, j + 4)
#define FLOATS(v) "+f"(v)
#define INTEGERS(v) "+r"(v)
#define WGMMA(NAME, ELEMENT, CHUNKS, SHAPE, LAST, NAMES, A, B, ADDS, ...)                         \
    DEVICE void NAME(ELEMENT (&d)[CHUNKS][4], const uint32_t (&a)[4], uint64_t b, uint32_t adds) { \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADDS                                       \
                     ", 0; wgmma.mma_async.sync.aligned." SHAPE " {" NAMES "}, {" A "}, " B        \
                     ", p" LAST "; }"                                                             \
                     : __VA_ARGS__                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));            \
    }
#define WGMMA_FLOATS(CHUNKS, COLUMNS, ...)                                                    \
    WGMMA(wgmma_registers, float, CHUNKS, "m64n" COLUMNS "k16.f32.f16.f16", ", 1, 1, 0",      \
          __VA_ARGS__)
WGMMA_FLOATS(2, "16", NAMES_8, "%8, %9, %10, %11", "%12", "%13", CHUNKS_2(FLOATS, 0))
WGMMA_FLOATS(4, "32", NAMES_16, "%16, %17, %18, %19", "%20", "%21", CHUNKS_4(FLOATS, 0))
WGMMA_FLOATS(8, "64", NAMES_32, "%32, %33, %34, %35", "%36", "%37", CHUNKS_8(FLOATS, 0))
#define WGMMA_BYTES(NAME, TYPES)                                                                   \
    WGMMA(NAME, int32_t, 2, "m64n16k32.s32." TYPES, "", NAMES_8, "%8, %9, %10, %11", "%12", "%13", \
          CHUNKS_2(INTEGERS, 0))                                                                   \
    WGMMA(NAME, int32_t, 4, "m64n32k32.s32." TYPES, "", NAMES_16, "%16, %17, %18, %19", "%20",     \
          "%21", CHUNKS_4(INTEGERS, 0))                                                            \
    WGMMA(NAME, int32_t, 8, "m64n64k32.s32." TYPES, "", NAMES_32, "%32, %33, %34, %35", "%36",     \
          "%37", CHUNKS_8(INTEGERS, 0))
WGMMA_BYTES(wgmma_s8_s8, "s8.s8")
WGMMA_BYTES(wgmma_s8_u8, "s8.u8")
WGMMA_BYTES(wgmma_u8_s8, "u8.s8")
WGMMA_BYTES(wgmma_u8_u8, "u8.u8")
#undef WGMMA_BYTES
#undef WGMMA_FLOATS
#undef WGMMA
#undef INTEGERS
#undef FLOATS
#undef CHUNKS_8
#undef CHUNKS_4
#undef CHUNKS_2
#undef CHUNK
#undef NAMES_32
#undef NAMES_16
#undef NAMES_8
#else
constexpr bool HAS_WARPGROUPS = false;
#endif

// Lets products read what the thread has stored where B lies; a barrier goes behind it.
DEVICE void wgmma_stored() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(ONEGRAPH_SIM)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

DEVICE void wgmma_fence() {
#ifdef ONEGRAPH_SIM
    sim::wgmma_fence();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE void wgmma_commit() {
#ifdef ONEGRAPH_SIM
    sim::wgmma_commit();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int pending>
DEVICE void wgmma_wait() {
#ifdef ONEGRAPH_SIM
    sim::wgmma_wait(pending);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}

template <int CHUNKS>
DEVICE void settle_registers([[maybe_unused]] float (&d)[CHUNKS][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[j][e])::"memory");
    }
#endif
}

template <int CHUNKS>
DEVICE void settle_registers([[maybe_unused]] int32_t (&d)[CHUNKS][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+r"(d[j][e])::"memory");
    }
#endif
}

// Where core matrices begin: the next columns `column_stride` bytes on, the next rows `row_stride`.
#ifdef ONEGRAPH_SIM
struct CoreMatrix {
    const uint8_t* at;
    uint32_t column_stride, row_stride;
};

DEVICE CoreMatrix core_matrix(SharedAddress at, uint32_t column_stride, uint32_t row_stride = 128) {
    return {at, column_stride, row_stride};
}

// The one `bytes` behind it, a multiple of 16.
DEVICE CoreMatrix operator+(CoreMatrix b, uint32_t bytes) {
    b.at += bytes;
    return b;
}
#else
struct CoreMatrix {
    uint64_t descriptor;
};

// All in sixteenths; no swizzle.
DEVICE CoreMatrix core_matrix(SharedAddress at, uint32_t column_stride, uint32_t row_stride = 128) {
    return {((at >> 4) & 0x3fffu) | (row_stride / 16 << 16) |
            (static_cast<uint64_t>(column_stride / 16) << 32)};
}

DEVICE CoreMatrix operator+(CoreMatrix b, uint32_t bytes) {
    b.descriptor += bytes / 16;
    return b;
}
#endif

template <int CHUNKS>
DEVICE void wgmma_k16_f16_f32(float (&d)[CHUNKS][4], const uint32_t (&a)[4], CoreMatrix b, bool adds) {
#ifdef ONEGRAPH_SIM
    sim::wgmma(d, a, {b.at, b.column_stride, b.row_stride, CHUNKS, sim::HALVES, adds, 0});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    wgmma_registers(d, a, b.descriptor, adds);
#endif
}

// Exact, sums wrap around.
template <bool a_signed, bool b_signed, int CHUNKS>
DEVICE void wgmma_k32_s32(int32_t (&d)[CHUNKS][4], const uint32_t (&a)[4], CoreMatrix b, bool adds) {
#ifdef ONEGRAPH_SIM
    const uint32_t type = sim::bytes_of(a_signed, b_signed);
    sim::wgmma(d, a, {b.at, b.column_stride, b.row_stride, CHUNKS, type, adds, 0});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (a_signed && b_signed) {
        wgmma_s8_s8(d, a, b.descriptor, adds);
    } else if constexpr (a_signed) {
        wgmma_s8_u8(d, a, b.descriptor, adds);
    } else if constexpr (b_signed) {
        wgmma_u8_s8(d, a, b.descriptor, adds);
    } else {
        wgmma_u8_u8(d, a, b.descriptor, adds);
    }
#endif
}
