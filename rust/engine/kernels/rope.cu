// Rotates the first 2 * HALF values of each head of x[r] by the angles of position r.
//
// variant.cuh: N_HEAD, HEAD_DIM, HALF, INTERLEAVED.
#include "common.cuh"
#include "variant.cuh"

struct Params {
    float* x;                   // [m][N_HEAD * HEAD_DIM]
    const float* cos_sin;       // [n_ctx][HALF][cos, sin]
    const uint32_t* positions;  // [m]
    uint32_t n_ctx;
    uint32_t unused;
};

KERNEL(rope, Params) {
    pdl_wait();
    pdl_trigger();
    uint32_t m = blockIdx.x;
    uint32_t position = load_relaxed_u32(p.positions + m);
    if (position >= p.n_ctx) position = 0;  // the scatter reports it
    const float* cos_sin = p.cos_sin + static_cast<uint64_t>(position) * HALF * 2;
    float* row = p.x + static_cast<uint64_t>(m) * (N_HEAD * HEAD_DIM);
    delay_block();
    for (uint32_t i = threadIdx.x; i < N_HEAD * HALF; i += blockDim.x) {
        uint32_t head = i / HALF, pair = i % HALF;
        float* a = row + head * HEAD_DIM + (INTERLEAVED ? 2 * pair : pair);
        float* b = INTERLEAVED ? a + 1 : a + HALF;
        float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
        float u = load_relaxed_f32(a), v = load_relaxed_f32(b);
        *a = fma_rn(u, c, -mul_rn(v, s));
        *b = fma_rn(u, s, mul_rn(v, c));
    }
}
