// out = (out + norm(norm(a) + norm(b))) * factor over rows of GROUP values, each norm as rms_norm.cu has
// it and by a weight of its own; a block a row. The factor is 1 unless it HAS_FACTOR.
//
// variant.cuh: GROUP, THREADS, HAS_FACTOR.
#include "norm.cuh"
#include "variant.cuh"
#include "row.cuh"

struct Params {
    const float* a;
    const float* b;
    float* out;
    const float* a_weight;  // [GROUP]
    const float* b_weight;  // the same
    const float* weight;    // the same, of the sum
    const float* factor;    // one number, or null
    float eps;
    uint32_t rows;
};

KERNEL_BOUNDS(rms_norm_pair, Params, THREADS, 1) {
    SHARED float a_squares[N_SB], b_squares[N_SB], squares[N_SB];
    Row a_weight = {}, b_weight = {}, weight = {}, a = {}, b = {}, out = {};
    load_weight(a_weight, p.a_weight);
    load_weight(b_weight, p.b_weight);
    load_weight(weight, p.weight);
    const float last = HAS_FACTOR ? *p.factor : 1.0f;
    pdl_wait();
    pdl_trigger();
    const uint64_t base = static_cast<uint64_t>(blockIdx.x) * GROUP;
    load_row(a, p.a + base);
    load_row(b, p.b + base);
    load_row(out, p.out + base);
    square_row(a_squares, a);
    square_row(b_squares, b);
    __syncthreads();
    const float of_a = rms_factor<N_SB>(a_squares, GROUP, p.eps);
    const float of_b = rms_factor<N_SB>(b_squares, GROUP, p.eps);
    set_row(a, [&](uint32_t s, uint32_t e) {
        return add_rn(mul_rn(mul_rn(a[s][e], of_a), a_weight[s][e]),
                      mul_rn(mul_rn(b[s][e], of_b), b_weight[s][e]));
    });
    square_row(squares, a);
    __syncthreads();
    const float of_sum = rms_factor<N_SB>(squares, GROUP, p.eps);
    delay_block();
    set_row(out, [&](uint32_t s, uint32_t e) {
        const float sum = add_rn(out[s][e], mul_rn(mul_rn(a[s][e], of_sum), weight[s][e]));
        return HAS_FACTOR ? mul_rn(sum, last) : sum;
    });
    store_row(p.out + base, out);
}
