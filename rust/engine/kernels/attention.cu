// out[r][h] = sum over t of softmax_t(scale * q[r][h] . K[t]) * V[t], for the GROUP query heads that
// share a KV head. A block takes one split of one row's tokens; the last block of a row merges.
//
// The split depends on the length n of the row's own sequence alone: 64 * 2^max(0,
// ceil(log2(n / 2048))) tokens, so at most MAX_SPLITS of them. Inside a split: a thread a token
// and half of the dimensions for the scores (two partial sums, added); pages in order with a running
// maximum; values in four warps of 16 tokens, added in order. Splits are merged in order.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM, Kv.
#include "kv.cuh"
#include "variant.cuh"

constexpr int GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t THREADS = 128;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t MAX_SPLITS = 32;
constexpr uint32_t TOKENS_WARP = PAGE_TOKENS / WARPS;
constexpr uint32_t QUADS = HEAD_DIM / 4;             // groups of four dimensions
constexpr uint32_t QUADS_LANE = (QUADS + 31) / 32;
// Groups of eight key dimensions that a thread loads before it needs them.
constexpr uint32_t KEYS_AHEAD = HEAD_DIM / 16 < 8 ? HEAD_DIM / 16 : 8;

struct Params {
    const float* q;  // [m][N_HEAD * HEAD_DIM]
    float* out;      // the same
    KvView kv;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    float* partial;     // [m][N_HEAD_KV][MAX_SPLITS][GROUP][HEAD_DIM + 2]: sums, maximum, weight
    uint32_t* tickets;  // [m][N_HEAD_KV], zero between launches
    float scale;
    uint32_t alone;     // 1: no two rows are of one sequence
};

DEVICE uint32_t split_tokens(uint32_t n) {
    uint32_t tokens = PAGE_TOKENS;
    while (n > tokens * MAX_SPLITS) tokens *= 2;
    return tokens;
}

KERNEL_BOUNDS(attention, Params, THREADS, 2) {
    SHARED float q[GROUP][HEAD_DIM];
    SHARED float scores[2][GROUP][PAGE_TOKENS];
    SHARED float most[GROUP], weight[GROUP], fade[GROUP];
    SHARED float sums[WARPS][GROUP][HEAD_DIM];
    SHARED uint32_t ticket;

    const uint32_t head = blockIdx.x, split = blockIdx.y, m = blockIdx.z;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Position and slot were written at least two kernels ago, and every kernel lets its successor
    // start only after its own wait: they may be read before this one's. So may the tokens of
    // earlier steps. Where each row is a sequence of its own, only the newest token's key and
    // value, and q, come from the kernel before; among rows of one sequence all may.
    if (!p.alone) pdl_wait();
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    uint32_t n = load_relaxed_u32(p.positions + m) + 1;
    // A position outside the cache was reported by the scatter; here it must only not be read.
    if (n > p.kv.n_ctx || n == 0) n = p.kv.n_ctx;
    const uint32_t tokens = split_tokens(n), splits = (n + tokens - 1) / tokens;
    if (split >= splits) {
        if (p.alone) pdl_wait();
        return;
    }
    const uint32_t begin = split * tokens, end = n < begin + tokens ? n : begin + tokens;

    float acc[GROUP][QUADS_LANE][4] = {};

#pragma unroll 1
    for (uint32_t first = begin; first < end; first += PAGE_TOKENS) {
        const uint32_t live = end - first < PAGE_TOKENS ? end - first : PAGE_TOKENS;
        const uint32_t page = kv_page(p.kv, slot, first);
        const uint64_t base = kv_head_at<N_HEAD_KV, HEAD_DIM>(page, head);
        const auto* keys = static_cast<const Kv::Element*>(p.kv.k) + base;
        const auto* values = static_cast<const Kv::Element*>(p.kv.v) + base;

        // All loads of the page at once: the values arrive while the scores are computed. Entries
        // past the length are not read: a fresh page holds anything, and 0 * NaN is NaN.
        const uint32_t token = threadIdx.x % PAGE_TOKENS, half = threadIdx.x / PAGE_TOKENS;
        const bool has_token = token < live && page != 0;
        const uint32_t newest = n - 1 - first;  // its entry, where it is in this page
        const bool before = first == begin;             // q is not here yet
        const bool ahead = before && p.alone != 0;      // nor has the kernel before ended
        float v[TOKENS_WARP][QUADS_LANE][4] = {};
        float dot[GROUP] = {};
        typename Kv::Eight k[KEYS_AHEAD];
#pragma unroll
        for (uint32_t c = 0; c < KEYS_AHEAD; c++) {
            const uint32_t dim = half * (HEAD_DIM / 2) + c * 8;
            if (has_token && (token != newest || !ahead)) {
                k[c] = Kv::load8(keys + kv_key_at<HEAD_DIM>(token, dim));
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < TOKENS_WARP; t++) {
            const uint32_t at = warp * TOKENS_WARP + t;
#pragma unroll
            for (int i = 0; i < QUADS_LANE; i++) {
                const uint32_t quad = lane + 32 * i;
                if (quad < QUADS && at < live && page != 0 && (at != newest || !ahead)) {
                    Kv::load4(values + kv_value_at<HEAD_DIM>(at, quad * 4), v[t][i]);
                }
            }
        }
        if (before) {
            if (ahead) pdl_wait();
            pdl_trigger();
            const float* q_row = p.q + (static_cast<uint64_t>(m) * N_HEAD + head * GROUP) * HEAD_DIM;
            for (uint32_t i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
                q[i / HEAD_DIM][i % HEAD_DIM] = load_relaxed_f32(q_row + i);
            }
            if (threadIdx.x < GROUP) {
                most[threadIdx.x] = -infinity_f32();
                weight[threadIdx.x] = 0.0f;
            }
            if (ahead && has_token && token == newest) {
#pragma unroll
                for (uint32_t c = 0; c < KEYS_AHEAD; c++) {
                    const uint32_t dim = half * (HEAD_DIM / 2) + c * 8;
                    k[c] = Kv::load8(keys + kv_key_at<HEAD_DIM>(token, dim));
                }
            }
            if (ahead && newest < live && newest / TOKENS_WARP == warp && page != 0) {
#pragma unroll
                for (uint32_t t = 0; t < TOKENS_WARP; t++) {
#pragma unroll
                    for (int i = 0; i < QUADS_LANE; i++) {
                        const uint32_t quad = lane + 32 * i;
                        if (t == newest % TOKENS_WARP && quad < QUADS) {
                            Kv::load4(values + kv_value_at<HEAD_DIM>(newest, quad * 4), v[t][i]);
                        }
                    }
                }
            }
            __syncthreads();
        }
        if (has_token) {
#pragma unroll
            for (uint32_t c = 0; c < HEAD_DIM / 16; c++) {
                const uint32_t dim = half * (HEAD_DIM / 2) + c * 8;
                if (c >= KEYS_AHEAD) {
                    k[c % KEYS_AHEAD] = Kv::load8(keys + kv_key_at<HEAD_DIM>(token, dim));
                }
                float key[8];
                Kv::expand8(k[c % KEYS_AHEAD], key);
#pragma unroll
                for (int g = 0; g < GROUP; g++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) dot[g] = fma_rn(key[i], q[g][dim + i], dot[g]);
                }
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) scores[half][g][token] = dot[g];
        __syncthreads();
        for (uint32_t g = warp; g < GROUP; g += WARPS) {
            float s[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t token = lane + 32 * i;
                s[i] = mul_rn(add_rn(scores[0][g][token], scores[1][g][token]), p.scale);
                if (token >= live || page == 0) s[i] = -infinity_f32();
            }
            float top = fmaxf(most[g], warp_max_f32(fmaxf(s[0], s[1])));
            // No token at all yet: nothing to fade.
            float shrink = top == -infinity_f32() ? 1.0f : expf(add_rn(most[g], -top));
            float e[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                e[i] = s[i] == -infinity_f32() ? 0.0f : expf(add_rn(s[i], -top));
                scores[0][g][lane + 32 * i] = e[i];
            }
            float sum = warp_sum_f32(add_rn(e[0], e[1]));
            __syncwarp();
            if (lane == 0) {
                weight[g] = fma_rn(weight[g], shrink, sum);
                most[g] = top;
                fade[g] = shrink;
            }
        }
        __syncthreads();
        // Values: a warp 16 tokens, a lane four dimensions.
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int i = 0; i < QUADS_LANE; i++) {
#pragma unroll
                for (int d = 0; d < 4; d++) acc[g][i][d] = mul_rn(acc[g][i][d], fade[g]);
            }
#pragma unroll
            for (uint32_t t = 0; t < TOKENS_WARP; t++) {
                const uint32_t at = warp * TOKENS_WARP + t;
                // Past the length the weight is zero and so are the values.
                const float e = scores[0][g][at];
#pragma unroll
                for (int i = 0; i < QUADS_LANE; i++) {
#pragma unroll
                    for (int d = 0; d < 4; d++) acc[g][i][d] = fma_rn(e, v[t][i][d], acc[g][i][d]);
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (int i = 0; i < QUADS_LANE; i++) {
            const uint32_t quad = lane + 32 * i;
            if (quad >= QUADS) continue;
#pragma unroll
            for (int d = 0; d < 4; d++) sums[warp][g][quad * 4 + d] = acc[g][i][d];
        }
    }
    __syncthreads();
    delay_block();
    float* out = p.out + (static_cast<uint64_t>(m) * N_HEAD + head * GROUP) * HEAD_DIM;
    constexpr uint32_t SPLIT_FLOATS = GROUP * (HEAD_DIM + 2);
    float* row_partial =
        p.partial + (static_cast<uint64_t>(m) * N_HEAD_KV + head) * (MAX_SPLITS * SPLIT_FLOATS);
    float* mine = row_partial + split * SPLIT_FLOATS;
    for (uint32_t i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
        const uint32_t g = i / HEAD_DIM, d = i % HEAD_DIM;
        float sum = sums[0][g][d];
#pragma unroll
        for (uint32_t w = 1; w < WARPS; w++) sum = add_rn(sum, sums[w][g][d]);
        if (splits == 1) {
            out[i] = div_rn(sum, weight[g]);
        } else {
            mine[g * (HEAD_DIM + 2) + d] = sum;
        }
    }
    if (splits == 1) return;
    if (threadIdx.x < GROUP) {
        mine[threadIdx.x * (HEAD_DIM + 2) + HEAD_DIM] = most[threadIdx.x];
        mine[threadIdx.x * (HEAD_DIM + 2) + HEAD_DIM + 1] = weight[threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ticket = atomic_inc_acq_rel_wrap(p.tickets + m * N_HEAD_KV + head, splits - 1);
    }
    __syncthreads();
    if (ticket != splits - 1) return;
    // Each split's share: a warp a head, a lane a split.
    for (uint32_t g = warp; g < GROUP; g += WARPS) {
        const float* at = row_partial + lane * SPLIT_FLOATS + g * (HEAD_DIM + 2) + HEAD_DIM;
        float top = -infinity_f32(), sum = 0.0f;
        if (lane < splits) {
            top = load_relaxed_f32(at);
            sum = load_relaxed_f32(at + 1);
        }
        const float all = warp_max_f32(top);
        const float e = lane < splits ? expf(add_rn(top, -all)) : 0.0f;
        scores[0][g][lane] = e;
        // In split order, as the sums below.
        float total = 0.0f;
        for (uint32_t s = 0; s < splits; s++) {
            total = fma_rn(__shfl_sync(FULL_WARP, sum, s), __shfl_sync(FULL_WARP, e, s), total);
        }
        if (lane == 0) weight[g] = total;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
        const uint32_t g = i / HEAD_DIM, d = i % HEAD_DIM;
        const float* at = row_partial + g * (HEAD_DIM + 2) + d;
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t s = 0; s < splits; s++) {
            sum = fma_rn(load_relaxed_f32(at + s * SPLIT_FLOATS), scores[0][g][s], sum);
        }
        out[i] = div_rn(sum, weight[g]);
    }
}
