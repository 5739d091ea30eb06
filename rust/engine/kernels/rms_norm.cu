// out[r][g] = x[r][g] / sqrt(mean(x[r][g]^2) + eps) * weight over groups of GROUP values; a block a
// group, all 1 unless it HAS_WEIGHT. In place where out is x. Or, where it ADDS: out += that, and where it
// HAS_FACTOR out = (out + that) * factor; or, where it is GATED: out = silu(gate) * that.
//
// variant.cuh: GROUP, THREADS, ADDS, GATED, HAS_WEIGHT, HAS_FACTOR.
#include "norm.cuh"
#include "math.cuh"
#include "variant.cuh"

constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t N_SB = (GROUP + 255) / 256;

struct Params {
    const float* x;
    float* out;
    const float* weight;  // [GROUP], or null
    const float* factor;  // one number, or null
    const float* gate;    // as x, or null
    float eps;
    uint32_t groups;
};

KERNEL_BOUNDS(rms_norm, Params, 32 * WARPS, 1) {
    SHARED float squares[N_SB];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
    const uint64_t base = static_cast<uint64_t>(blockIdx.x) * GROUP;
    for (uint32_t sb = warp; sb < N_SB; sb += WARPS) {
        const uint32_t k = sb * 256 + lane * 8;
        float v[8] = {};
        if constexpr (GROUP % 4 == 0) {
#pragma unroll
            for (uint32_t e = 0; e < 8; e += 4) {
                if (k + e >= GROUP) break;
                const float4 f = load_relaxed_f32x4(p.x + base + k + e);
                v[e] = f.x, v[e + 1] = f.y, v[e + 2] = f.z, v[e + 3] = f.w;
            }
        } else {
            for (uint32_t e = 0; e < 8 && k + e < GROUP; e++) {
                v[e] = load_relaxed_f32(p.x + base + k + e);
            }
        }
        const float sum = superblock_squares(v);
        if (lane == 0) squares[sb] = sum;
    }
    __syncthreads();
    const float factor = rms_factor<N_SB>(squares, GROUP, p.eps);
    delay_block();
    for (uint32_t i = threadIdx.x; i < GROUP; i += 32 * WARPS) {
        const float v = load_relaxed_f32(p.x + base + i);
        float normed = mul_rn(v, factor);
        if constexpr (HAS_WEIGHT) normed = mul_rn(normed, p.weight[i]);
        float* out = p.out + base + i;
        if constexpr (ADDS) normed = add_rn(load_relaxed_f32(out), normed);
        if constexpr (HAS_FACTOR) normed = mul_rn(normed, *p.factor);
        if constexpr (GATED) normed = swiglu_f32(load_relaxed_f32(p.gate + base + i), normed);
        *out = normed;
    }
}
