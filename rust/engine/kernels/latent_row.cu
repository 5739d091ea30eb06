// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, then y[r] rotated: the row that a layer of latent
// attention caches. Beside it, heads of q[r] are rotated in place; or, where heads of all[r] have PLAIN values
// that are not, those that are go to q[r] and the others to plain[r]. That is four or six launches else. The first
// block of a row makes its row, the others those of queries.
//
// variant.cuh: GROUP (of x), THREADS, N_HEAD, PLAIN, HALF, INTERLEAVED.
#include "common.cuh"
#include "variant.cuh"
#include "row.cuh"

constexpr uint32_t ROTATED = 2 * HALF;

struct Params {
    const float* x;             // [m][GROUP]
    const float* y;             // [m][ROTATED]
    float* q;                   // [m][N_HEAD][ROTATED]
    float* out;                 // [m][GROUP + ROTATED]
    const float* all;           // [m][N_HEAD][PLAIN + ROTATED], where PLAIN is not 0
    float* plain;               // [m][N_HEAD][PLAIN]
    const float* weight;        // [GROUP]
    const float* cos_sin;       // [n_ctx][HALF][cos, sin]
    const uint32_t* positions;  // [m]
    float eps;
    uint32_t n_ctx;
};

// A pair of a head, from one place to another.
DEVICE void rotate_pair(const float* from, float* to, const float* cos_sin, uint32_t pair) {
    const uint32_t first = INTERLEAVED ? 2 * pair : pair, second = INTERLEAVED ? first + 1 : first + HALF;
    const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
    const float u = load_relaxed_f32(from + first), v = load_relaxed_f32(from + second);
    to[first] = fma_rn(u, c, -mul_rn(v, s));
    to[second] = fma_rn(u, s, mul_rn(v, c));
}

KERNEL_BOUNDS(latent_row, Params, THREADS, 1) {
    SHARED float squares[N_SB];
    Row v = {}, weight = {};
    const bool is_row = blockIdx.y == 0;
    if (is_row) load_weight(weight, p.weight);
    pdl_wait();
    pdl_trigger();
    const uint64_t m = blockIdx.x;
    uint32_t position = load_relaxed_u32(p.positions + m);
    if (position >= p.n_ctx) position = 0;  // the scatter reports it
    const float* cos_sin = p.cos_sin + static_cast<uint64_t>(position) * ROTATED;
    if (!is_row) {
        constexpr uint32_t HEAD = PLAIN + ROTATED;
        float* q = p.q + m * (N_HEAD * ROTATED);
        const float* all = PLAIN ? p.all + m * (N_HEAD * HEAD) : q;
        const uint32_t first = (blockIdx.y - 1) * THREADS + threadIdx.x, stride = (gridDim.y - 1) * THREADS;
        delay_block();
        for (uint32_t i = first; i < N_HEAD * HALF; i += stride) {
            const uint32_t head = i / HALF;
            rotate_pair(all + head * HEAD + PLAIN, q + head * ROTATED, cos_sin, i % HALF);
        }
        if constexpr (PLAIN > 0) {
            float* plain = p.plain + m * (N_HEAD * PLAIN);
            for (uint32_t i = first; i < N_HEAD * PLAIN; i += stride) {
                plain[i] = load_relaxed_f32(all + i / PLAIN * HEAD + i % PLAIN);
            }
        }
        return;
    }
    load_row(v, p.x + m * GROUP);
    square_row(squares, v);
    __syncthreads();
    const float factor = rms_factor<N_SB>(squares, GROUP, p.eps);
    delay_block();
    set_row(v, [&](uint32_t s, uint32_t e) { return mul_rn(mul_rn(v[s][e], factor), weight[s][e]); });
    float* out = p.out + m * (GROUP + ROTATED);
    store_row(out, v);
    for (uint32_t pair = threadIdx.x; pair < HALF; pair += THREADS) {
        rotate_pair(p.y + m * ROTATED, out + GROUP, cos_sin, pair);
    }
}
