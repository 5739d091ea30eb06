// out[r][g] = x[r][g] / sqrt(mean(x[r][g]^2) + eps) * weight over groups of GROUP values; a block a
// group. In place where out is x.
//
// variant.cuh: GROUP, THREADS.
#include "common.cuh"
#include "variant.cuh"

constexpr int WARPS = THREADS / 32;

struct Params {
    const float* x;
    float* out;
    const float* weight;  // [GROUP]
    float eps;
    uint32_t groups;
};

KERNEL_BOUNDS(rms_norm, Params, 32 * WARPS, 1) {
    SHARED float scratch[WARPS];
    pdl_wait();
    pdl_trigger();
    uint64_t base = static_cast<uint64_t>(blockIdx.x) * GROUP;
    float square = 0.0f;
    for (uint32_t i = threadIdx.x; i < GROUP; i += 32 * WARPS) {
        float v = load_relaxed_f32(p.x + base + i);
        square = fma_rn(v, v, square);
    }
    square = block_sum_f32<WARPS>(square, scratch);
    float mean = div_rn(square, static_cast<float>(GROUP));
    float factor = div_rn(1.0f, sqrt_rn(add_rn(mean, p.eps)));
    delay_block();
    for (uint32_t i = threadIdx.x; i < GROUP; i += 32 * WARPS) {
        float v = load_relaxed_f32(p.x + base + i);
        p.out[base + i] = mul_rn(mul_rn(v, factor), p.weight[i]);
    }
}
