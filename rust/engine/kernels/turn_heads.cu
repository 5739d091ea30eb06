// Normalizes each head of queries and keys and turns its first 2 HALF values by the angles of the row's
// position, in place: what rms_norm.cu and rope.cu do in four launches. A warp a head.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM, and what turn.cuh needs.
#include "common.cuh"
#include "variant.cuh"
#include "turn.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t HEADS = N_HEAD + N_HEAD_KV;
static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM <= 256 && HALF % 8 == 0, "a warp has a head");

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
    float weight[8] = {};
    if (is_there) load_norm(is_key ? p.k_weight : p.q_weight, lane, weight);
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
    const Angles angles = angles_of(p.cos_sin + static_cast<uint64_t>(position) * HALF * 2, lane);
    norm_and_turn(v, weight, angles, HEAD_DIM, p.eps, lane);
    delay_block();
#pragma unroll
    for (uint32_t e = 0; e < 8; e += 4) {
        if (!is_there) break;
        *reinterpret_cast<float4*>(x + e) = make_float4(v[e], v[e + 1], v[e + 2], v[e + 3]);
    }
}
