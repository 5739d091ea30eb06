// Normalizes each head of queries and keys and rotates its first 2 HALF values by the angles of the row's
// position, in place: what rms_norm.cu and rope.cu do in four launches. Heads of values are normalized
// beside them, without a weight: N_HEAD_V of their own, in place, or where VALUES_ARE_KEYS those that keys
// were before. A warp a head, of which a lane has eight values of each 256.
//
// variant.cuh: N_HEAD, N_HEAD_KV, N_HEAD_V, VALUES_ARE_KEYS, HEAD_DIM, and what rotate.cuh needs.
#include "common.cuh"
#include "variant.cuh"
#include "rotate.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t HEADS = N_HEAD + N_HEAD_KV + N_HEAD_V;
constexpr uint32_t N_SB = (HEAD_DIM + 255) / 256;
// Whether partners are of two superblocks, and so one lane's; else both are of the first.
constexpr bool FAR = HALF == 256;
static_assert(HEAD_DIM % 8 == 0 && N_SB <= 2 && HALF % 8 == 0, "a warp has a head");
static_assert(N_SB == 1 || (!INTERLEAVED && (HALF <= 128 || FAR)), "a warp finds partners");

struct Params {
    float* q;                   // [m][N_HEAD][HEAD_DIM]
    float* k;                   // [m][N_HEAD_KV][HEAD_DIM]
    float* v;                   // [m][N_HEAD_V or N_HEAD_KV][HEAD_DIM], or null
    const float* q_weight;      // [HEAD_DIM]
    const float* k_weight;      // the same
    const float* cos_sin;       // [n_ctx][HALF][cos, sin]
    const uint32_t* positions;  // [m]
    float eps;
    uint32_t n_ctx;
    uint32_t m;
    uint32_t unused;
};

// Stores a lane's values of a head, `to` its place of the first.
DEVICE void store_head(float* to, uint32_t lane, const float (&v)[N_SB][8]) {
#pragma unroll
    for (uint32_t sb = 0; sb < N_SB; sb++) {
        if (sb * 256 + lane * 8 >= HEAD_DIM) break;
#pragma unroll
        for (uint32_t e = 0; e < 8; e += 4) {
            *reinterpret_cast<float4*>(to + sb * 256 + e) =
                make_float4(v[sb][e], v[sb][e + 1], v[sb][e + 2], v[sb][e + 3]);
        }
    }
}

KERNEL_BOUNDS(qk_norm_rope, Params, 32 * WARPS, 1) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t number = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const uint32_t m = static_cast<uint32_t>(number / HEADS), head = number % HEADS;
    const bool is_value = head >= N_HEAD + N_HEAD_KV, is_key = !is_value && head >= N_HEAD;
    float weight[N_SB][8] = {};
#pragma unroll
    for (uint32_t sb = 0; sb < N_SB; sb++) {
        if (sb * 256 + lane * 8 >= HEAD_DIM) break;
        load_norm((is_key ? p.k_weight : p.q_weight) + sb * 256, lane, weight[sb]);
    }
    pdl_wait();
    pdl_trigger();
    if (m >= p.m) return;
    const uint64_t row = m;
    float* x = is_value ? p.v + (row * N_HEAD_V + head - N_HEAD - N_HEAD_KV) * HEAD_DIM
               : is_key ? p.k + (row * N_HEAD_KV + head - N_HEAD) * HEAD_DIM
                        : p.q + (row * N_HEAD + head) * HEAD_DIM;
    x += lane * 8;
    uint32_t position = load_relaxed_u32(p.positions + m);
    float v[N_SB][8] = {};
#pragma unroll
    for (uint32_t sb = 0; sb < N_SB; sb++) {
        if (sb * 256 + lane * 8 >= HEAD_DIM) break;
#pragma unroll
        for (uint32_t e = 0; e < 8; e += 4) {
            const float4 f = load_relaxed_f32x4(x + sb * 256 + e);
            v[sb][e] = f.x, v[sb][e + 1] = f.y, v[sb][e + 2] = f.z, v[sb][e + 3] = f.w;
        }
    }
    if (position >= p.n_ctx) position = 0;  // the scatter reports it
    const Angles angles = angles_of(p.cos_sin + static_cast<uint64_t>(position) * HALF * 2, lane);
    float squares[N_SB];
#pragma unroll
    for (uint32_t sb = 0; sb < N_SB; sb++) squares[sb] = superblock_squares(v[sb]);
    const float factor = rms_factor<N_SB>(squares, HEAD_DIM, p.eps);
#pragma unroll
    for (uint32_t sb = 0; sb < N_SB; sb++) {
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) v[sb][e] = mul_rn(v[sb][e], factor);
    }
    delay_block();
    if (N_HEAD_V > 0 && is_value) {
        store_head(x, lane, v);
        return;
    }
    if (VALUES_ARE_KEYS && is_key) {
        store_head(p.v + (row * N_HEAD_KV + head - N_HEAD) * HEAD_DIM + lane * 8, lane, v);
    }
#pragma unroll
    for (uint32_t sb = 0; sb < N_SB; sb++) {
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) v[sb][e] = mul_rn(v[sb][e], weight[sb][e]);
    }
    if constexpr (FAR) {
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) {
            const float c = angles.cosine[e % LANE_PAIRS], s = angles.sine[e % LANE_PAIRS];
            const float a = v[0][e], b = v[N_SB - 1][e];
            v[0][e] = fma_rn(a, c, -mul_rn(b, s));
            v[N_SB - 1][e] = fma_rn(a, s, mul_rn(b, c));
        }
    } else {
        rotate_head(v[0], angles, lane);
    }
    store_head(x, lane, v);
}
