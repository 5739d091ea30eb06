// out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias over rows of GROUP values, a bias of zeros
// unless it HAS_BIAS; a block a row. In place where out is x.
//
// variant.cuh: GROUP, THREADS, HAS_BIAS.
#include "common.cuh"
#include "variant.cuh"
#include "row.cuh"

struct Params {
    const float* x;
    float* out;
    const float* weight;  // [GROUP], both
    const float* bias;    // or null
    float eps;
    uint32_t rows;
};

// The sums of a row's superblocks, in the order of those of its squares: to be read behind a barrier.
DEVICE void sum_row(float (&sums)[N_SB], const Row& v) {
#pragma unroll
    for (uint32_t s = 0; s < EACH; s++) {
        const uint32_t sb = threadIdx.x / 32 + s * WARPS;
        if (sb >= N_SB) break;
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++) sum = add_rn(v[s][e], sum);
        sum = warp_sum_f32(sum);
        if (threadIdx.x % 32 == 0) sums[sb] = sum;
    }
}

KERNEL_BOUNDS(layer_norm, Params, THREADS, 1) {
    SHARED float sums[N_SB], squares[N_SB];
    Row v = {}, weight = {}, bias = {};
    load_weight(weight, p.weight);
    if constexpr (HAS_BIAS) load_weight(bias, p.bias);
    pdl_wait();
    pdl_trigger();
    const uint64_t base = static_cast<uint64_t>(blockIdx.x) * GROUP;
    load_row(v, p.x + base);
    sum_row(sums, v);
    __syncthreads();
    float sum = sums[0];
#pragma unroll
    for (uint32_t sb = 1; sb < N_SB; sb++) sum = add_rn(sum, sums[sb]);
    const float mean = div_rn(sum, static_cast<float>(GROUP));
    set_row(v, [&](uint32_t s, uint32_t e) { return sub_rn(v[s][e], mean); });
    square_row(squares, v);
    __syncthreads();
    const float factor = rms_factor<N_SB>(squares, GROUP, p.eps);
    delay_block();
    set_row(v, [&](uint32_t s, uint32_t e) {
        return fma_rn(mul_rn(v[s][e], factor), weight[s][e], bias[s][e]);
    });
    store_row(p.out + base, v);
}
