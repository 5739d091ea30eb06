// Activations for the tensor cores: each row times a power of two as the sum of two float16, hi and
// lo, with the sums of every 32 columns. With NORM, RMSNorm comes first. A block a row.
//
// The power of two takes the row's largest magnitude to [2^14, 2^15): nothing overflows, hi + lo has
// 22 bits down to 2^-17 of the largest and an error below 2^-39 of it further down.
//
// variant.cuh: N_IN (a multiple of 32), NORM, THREADS.
#include "norm.cuh"
#include "variant.cuh"

constexpr uint32_t N_BLOCKS = N_IN / 32;
constexpr uint32_t N_SB = (N_IN + 255) / 256;
constexpr uint32_t CHUNKS = N_BLOCKS * 4;  // of eight columns, one thread's share
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t ROUNDS = (CHUNKS + THREADS - 1) / THREADS;
// Rows that fit the registers are read once.
constexpr bool KEPT = ROUNDS <= 8;

struct Params {
    const float* x;     // [m][N_IN]
    const float* norm;  // [N_IN]
    uint8_t* halves;    // [m][N_BLOCKS][hi, lo][32] float16
    float* sums;        // [N_BLOCKS][stride], of the scaled row
    float* unscale;     // [m], what takes the scaled row back
    float eps;
    uint32_t stride;
};

KERNEL_BOUNDS(split, Params, THREADS, 1) {
    SHARED float scratch[WARPS], squares[N_SB];
    const uint32_t m = blockIdx.x;
    float kept[KEPT ? ROUNDS : 1][8];
    pdl_wait();
    pdl_trigger();

    const float* row = p.x + static_cast<uint64_t>(m) * N_IN;
    auto load = [&](uint32_t chunk, float (&v)[8]) {
#pragma unroll
        for (int q = 0; q < 2; q++) {
            float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (chunk < CHUNKS) f = load_relaxed_f32x4(row + chunk * 8 + q * 4);
            v[4 * q] = f.x, v[4 * q + 1] = f.y, v[4 * q + 2] = f.z, v[4 * q + 3] = f.w;
        }
    };
    float factor = 1.0f;
    auto normed = [&](uint32_t chunk, float (&v)[8]) {
        if constexpr (NORM) {
            if (chunk >= CHUNKS) return;
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = mul_rn(mul_rn(v[e], factor), p.norm[chunk * 8 + e]);
        }
    };

    if constexpr (KEPT) {
#pragma unroll
        for (uint32_t round = 0; round < ROUNDS; round++) {
            load(round * THREADS + threadIdx.x, kept[round]);
        }
    }
    if constexpr (NORM) {
        // A warp has the 32 chunks of a superblock at a time.
#pragma unroll
        for (uint32_t round = 0; round < ROUNDS; round++) {
            if (!KEPT) load(round * THREADS + threadIdx.x, kept[0]);
            const float sum = superblock_squares(kept[KEPT ? round : 0]);
            const uint32_t sb = round * WARPS + threadIdx.x / 32;
            if (threadIdx.x % 32 == 0 && sb < N_SB) squares[sb] = sum;
        }
        __syncthreads();
        factor = rms_factor<N_SB>(squares, N_IN, p.eps);
    }
    float most = 0.0f;
#pragma unroll
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t chunk = round * THREADS + threadIdx.x;
        float(&v)[8] = kept[KEPT ? round : 0];
        if (!KEPT) load(chunk, v);
        normed(chunk, v);
#pragma unroll
        for (int e = 0; e < 8; e++) most = fmaxf(most, fabsf(v[e]));
    }
    most = block_max_f32<WARPS>(most, scratch);
    // Rows of zeros, and those below 2^-86, keep a factor that is a normal number.
    uint32_t exponent = float_as_u32(most) >> 23;
    exponent = exponent < 41 ? 41 : exponent;
    const float scale = u32_as_float((127 + 141 - exponent) << 23);
    delay_block();
    if (threadIdx.x == 0) p.unscale[m] = u32_as_float((127 + exponent - 141) << 23);
#pragma unroll
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t chunk = round * THREADS + threadIdx.x;
        float(&v)[8] = kept[KEPT ? round : 0];
        if (!KEPT) {
            load(chunk, v);
            normed(chunk, v);
        }
        float sum = 0.0f;
        uint32_t hi[4], lo[4];
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            float a = mul_rn(v[e], scale), b = mul_rn(v[e + 1], scale);
            sum = add_rn(add_rn(sum, a), b);
            hi[e / 2] = f32x2_to_f16x2(a, b);
            lo[e / 2] = f32x2_to_f16x2(sub_rn(a, f16x2_low(hi[e / 2])),
                                       sub_rn(b, f16x2_high(hi[e / 2])));
        }
        sum = add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 1));
        sum = add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 2));
        if (chunk >= CHUNKS) continue;
        uint8_t* to =
            p.halves + (static_cast<uint64_t>(m) * N_BLOCKS + chunk / 4) * 128 + chunk % 4 * 16;
        *reinterpret_cast<uint4*>(to) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
        *reinterpret_cast<uint4*>(to + 64) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
        if (chunk % 4 == 0) p.sums[static_cast<uint64_t>(chunk / 4) * p.stride + m] = sum;
    }
}
