// out[r][g] = x[r][g] / sqrt(mean(x[r][g]^2) + eps) * weight over groups of GROUP values; a block a
// group, all 1 unless it HAS_WEIGHT. In place where out is x. Or, where it ADDS: out += that, and where it
// HAS_FACTOR out = (out + that) * factor; or, where it is GATED: out = silu(gate) * that.
//
// A step has one row and waits for nothing but memory: the model's vectors are asked for before the
// preceding kernel has ended, all others at once, and what a thread has read it keeps.
//
// variant.cuh: GROUP, THREADS, ADDS, GATED, HAS_WEIGHT, HAS_FACTOR, WEIGHTS (groups in turn that have a
// weight of their own; 1: all have the same).
#include "math.cuh"
#include "variant.cuh"
#include "row.cuh"

struct Params {
    const float* x;
    float* out;
    const float* weight;  // [WEIGHTS][GROUP], or null
    const float* factor;  // one number, or null
    const float* gate;    // as x, or null
    float eps;
    uint32_t groups;
};

KERNEL_BOUNDS(rms_norm, Params, THREADS, 1) {
    SHARED float squares[N_SB];
    Row v = {}, weight = {};
    [[maybe_unused]] Row other = {};
    if constexpr (HAS_WEIGHT) load_weight(weight, p.weight + blockIdx.x % WEIGHTS * GROUP);
    const float last = HAS_FACTOR ? *p.factor : 1.0f;
    pdl_wait();
    pdl_trigger();
    const uint64_t base = static_cast<uint64_t>(blockIdx.x) * GROUP;
    load_row(v, p.x + base);
    if constexpr (ADDS) load_row(other, p.out + base);
    if constexpr (GATED) load_row(other, p.gate + base);
    square_row(squares, v);
    __syncthreads();
    const float factor = rms_factor<N_SB>(squares, GROUP, p.eps);
    delay_block();
    set_row(v, [&](uint32_t s, uint32_t e) {
        float normed = mul_rn(v[s][e], factor);
        if constexpr (HAS_WEIGHT) normed = mul_rn(normed, weight[s][e]);
        if constexpr (ADDS) normed = add_rn(other[s][e], normed);
        if constexpr (HAS_FACTOR) normed = mul_rn(normed, last);
        if constexpr (GATED) normed = swiglu_f32(other[s][e], normed);
        return normed;
    });
    store_row(p.out + base, v);
}
