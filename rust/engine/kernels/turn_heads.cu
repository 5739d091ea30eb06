// Normalizes each head of queries and keys and turns its first 2 HALF values by the angles of the row's
// position, in place: what rms_norm.cu and rope.cu do in four launches. A warp a head, of which a lane
// has eight values.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM, HALF, INTERLEAVED.
#include "norm.cuh"
#include "variant.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t HEADS = N_HEAD + N_HEAD_KV;
static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM <= 256, "a warp has a head");
static_assert(INTERLEAVED || HALF % 8 == 0, "partners of a lane's values are one lane's");

struct Params {
    float* q;                   // [m][N_HEAD][HEAD_DIM]
    float* k;                   // [m][N_HEAD_KV][HEAD_DIM]
    const float* q_weight;      // [HEAD_DIM]
    const float* k_weight;      // the same
    const float* cos_sin;       // [n_ctx][HALF][cos, sin]
    const uint32_t* positions;  // [m]
    float eps;
    uint32_t n_ctx;
    uint32_t m;
    uint32_t unused;
};

KERNEL_BOUNDS(turn_heads, Params, 32 * WARPS, 1) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t number = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const uint32_t m = static_cast<uint32_t>(number / HEADS), head = number % HEADS;
    const bool is_key = head >= N_HEAD, is_there = lane * 8 < HEAD_DIM;
    const float* weight = (is_key ? p.k_weight : p.q_weight) + lane * 8;
    float w[8] = {};
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) {
        if (is_there) w[e] = weight[e];
    }
    pdl_wait();
    pdl_trigger();
    if (m >= p.m) return;
    const uint64_t row = m;
    float* x = is_key ? p.k + (row * N_HEAD_KV + head - N_HEAD) * HEAD_DIM
                      : p.q + (row * N_HEAD + head) * HEAD_DIM;
    x += lane * 8;
    float v[8] = {};
#pragma unroll
    for (uint32_t e = 0; e < 8; e += 4) {
        if (!is_there) break;
        const float4 f = load_relaxed_f32x4(x + e);
        v[e] = f.x, v[e + 1] = f.y, v[e + 2] = f.z, v[e + 3] = f.w;
    }
    uint32_t position = load_relaxed_u32(p.positions + m);
    if (position >= p.n_ctx) position = 0;  // the scatter reports it
    const float* cos_sin = p.cos_sin + static_cast<uint64_t>(position) * HALF * 2;
    const float squares[1] = {superblock_squares(v)};
    const float factor = rms_factor<1>(squares, HEAD_DIM, p.eps);
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) v[e] = mul_rn(mul_rn(v[e], factor), w[e]);
    if constexpr (INTERLEAVED) {
#pragma unroll
        for (uint32_t e = 0; e < 8; e += 2) {
            const uint32_t pair = lane * 4 + e / 2;
            if (pair >= HALF) break;
            const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1], a = v[e], b = v[e + 1];
            v[e] = fma_rn(a, c, -mul_rn(b, s));
            v[e + 1] = fma_rn(a, s, mul_rn(b, c));
        }
    } else {
        constexpr uint32_t LANES = HALF / 8;  // of a half
        const bool is_first = lane < LANES;
        const uint32_t partner = is_first ? lane + LANES : lane - LANES;
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) {
            const float other = __shfl_sync(FULL_WARP, v[e], partner & 31);
            if (lane >= 2 * LANES) continue;
            const uint32_t pair = (is_first ? lane : partner) * 8 + e;
            const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
            v[e] = is_first ? fma_rn(v[e], c, -mul_rn(other, s)) : fma_rn(other, s, mul_rn(v[e], c));
        }
    }
    delay_block();
#pragma unroll
    for (uint32_t e = 0; e < 8; e += 4) {
        if (!is_there) break;
        *reinterpret_cast<float4*>(x + e) = make_float4(v[e], v[e + 1], v[e + 2], v[e + 3]);
    }
}
