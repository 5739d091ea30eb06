// out[r][h] = sum over t of softmax_t(scale * q[r][h] . K[t]) * V[t] over a cache in blocks of 32
// values, for the GROUP query heads that share a KV head, HEADS of them a block. A block takes one split
// of one row's tokens; the last block of a row's heads merges.
//
// The split depends on the length of the row's own sequence and the window alone, as in attention.cu. Inside a
// split pages in order with a running maximum; two threads a token, a half of the dimensions each;
// values in four warps of 16 tokens, added in order. Splits are merged in order.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM, WINDOW (tokens that a row sees, 0: all), HAS_SINKS, HEADS
// (of a block; a group's last may have fewer), THREADS, MAX_SPLITS.
#include "kv_blocks.cuh"
#include "variant.cuh"

constexpr int GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t SHARERS = (GROUP + HEADS - 1) / HEADS;  // blocks that share a group's heads
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t TOKENS_WARP = PAGE_TOKENS / WARPS;
constexpr uint32_t QUADS = HEAD_DIM / 4;  // groups of four dimensions
constexpr uint32_t QUADS_LANE = (QUADS + 31) / 32;
constexpr uint32_t SPLIT_FLOATS = HEADS * (HEAD_DIM + 2);

struct Params {
    const float* q;  // [m][N_HEAD * HEAD_DIM]
    float* out;      // the same
    KvView kv;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    // [m][N_HEAD_KV][SHARERS][MAX_SPLITS][HEADS][HEAD_DIM + 2]: sums, maximum, weight
    float* partial;
    uint32_t* tickets;  // [m][N_HEAD_KV][SHARERS], zero between launches
    const float* sinks; // [N_HEAD]: one more score each, of value 0; or null
    float scale;
    uint32_t alone;     // for attention.cu
};

KERNEL_BOUNDS(attention_blocks, Params, THREADS, 2) {
    using Cache = KvBlocks<HEAD_DIM>;
    SHARED float q[HEADS][HEAD_DIM];
    SHARED float scores[2][HEADS][PAGE_TOKENS];
    SHARED float most[HEADS], weight[HEADS], fade[HEADS];
    SHARED float sums[WARPS][HEADS][HEAD_DIM];
    SHARED uint32_t ticket;

    const uint32_t head = blockIdx.x / SHARERS, split = blockIdx.y, m = blockIdx.z;
    // The first of its heads, and how many they are.
    const uint32_t first_head = blockIdx.x % SHARERS * HEADS, rest = GROUP - first_head;
    const uint32_t heads = SHARERS == 1 || rest > HEADS ? HEADS : rest;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    uint32_t n = load_relaxed_u32(p.positions + m) + 1;
    // A position outside the cache was reported by the scatter; here it must only not be read.
    if (n > p.kv.n_ctx || n == 0) n = p.kv.n_ctx;
    const uint32_t seen = first_seen<WINDOW>(n), start = seen / PAGE_TOKENS * PAGE_TOKENS;
    uint32_t tokens = PAGE_TOKENS;
    while (n - start > tokens * MAX_SPLITS) tokens *= 2;
    const uint32_t splits = (n - start + tokens - 1) / tokens;
    if (split >= splits) return;
    const uint32_t begin = start + split * tokens, end = n < begin + tokens ? n : begin + tokens;

    const uint64_t row = (static_cast<uint64_t>(m) * N_HEAD + head * GROUP + first_head) * HEAD_DIM;
    for (uint32_t i = threadIdx.x; i < HEADS * HEAD_DIM; i += THREADS) {
        const bool is_there = SHARERS == 1 || i < heads * HEAD_DIM;
        q[i / HEAD_DIM][i % HEAD_DIM] = is_there ? load_relaxed_f32(p.q + row + i) : 0.0f;
    }
    if (threadIdx.x < HEADS) {
        most[threadIdx.x] = -infinity_f32();
        weight[threadIdx.x] = 0.0f;
    }
    float acc[HEADS][QUADS_LANE][4] = {};
    __syncthreads();

#pragma unroll 1
    for (uint32_t first = begin; first < end; first += PAGE_TOKENS) {
        const uint32_t live = end - first < PAGE_TOKENS ? end - first : PAGE_TOKENS;
        const uint32_t page = kv_page(p.kv, slot, first);
        uint8_t* keys = Cache::head<N_HEAD_KV>(p.kv.k, page, head);
        uint8_t* values = Cache::head<N_HEAD_KV>(p.kv.v, page, head);
        const uint32_t token = threadIdx.x % PAGE_TOKENS, half = threadIdx.x / PAGE_TOKENS;
        float dot[HEADS] = {};
        // Entries past the length, or behind the window, are not read: a fresh page holds anything, and
        // 0 * NaN is NaN.
        auto sees = [&](uint32_t at) {
            return at < live && page != 0 && (WINDOW == 0 || first + at >= seen);
        };
        if (sees(token)) {
#pragma unroll 4
            for (uint32_t c = 0; c < HEAD_DIM / 16; c++) {
                const uint32_t dim = half * (HEAD_DIM / 2) + c * 8;
                float key[8];
                Cache::load_key8(keys, token, dim, key);
#pragma unroll
                for (int g = 0; g < HEADS; g++) {
#pragma unroll
                    for (int i = 0; i < 8; i++) dot[g] = fma_rn(key[i], q[g][dim + i], dot[g]);
                }
            }
        }
#pragma unroll
        for (int g = 0; g < HEADS; g++) scores[half][g][token] = dot[g];
        __syncthreads();
        for (uint32_t g = warp; g < HEADS; g += WARPS) {
            float s[2], e[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t at = lane + 32 * i;
                s[i] = mul_rn(add_rn(scores[0][g][at], scores[1][g][at]), p.scale);
                if (!sees(at)) s[i] = -infinity_f32();
            }
            const float top = fmaxf(most[g], warp_max_f32(fmaxf(s[0], s[1])));
            // No token at all yet: nothing to fade.
            const float shrink = top == -infinity_f32() ? 1.0f : expf(add_rn(most[g], -top));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                e[i] = s[i] == -infinity_f32() ? 0.0f : expf(add_rn(s[i], -top));
                scores[0][g][lane + 32 * i] = e[i];
            }
            const float sum = warp_sum_f32(add_rn(e[0], e[1]));
            __syncwarp();
            if (lane == 0) {
                weight[g] = fma_rn(weight[g], shrink, sum);
                most[g] = top;
                fade[g] = shrink;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < QUADS_LANE; i++) {
            const uint32_t quad = lane + 32 * i;
            if (quad >= QUADS) continue;
#pragma unroll
            for (int g = 0; g < HEADS; g++) {
#pragma unroll
                for (int d = 0; d < 4; d++) acc[g][i][d] = mul_rn(acc[g][i][d], fade[g]);
            }
#pragma unroll 4
            for (uint32_t t = 0; t < TOKENS_WARP; t++) {
                const uint32_t at = warp * TOKENS_WARP + t;
                if (at >= live || page == 0) break;
                if (!sees(at)) continue;
                float v[4];
                Cache::load_value4(values, at, quad * 4, v);
#pragma unroll
                for (int g = 0; g < HEADS; g++) {
                    const float e = scores[0][g][at];
#pragma unroll
                    for (int d = 0; d < 4; d++) acc[g][i][d] = fma_rn(e, v[d], acc[g][i][d]);
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int g = 0; g < HEADS; g++) {
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
    const uint64_t group = static_cast<uint64_t>(m) * gridDim.x + blockIdx.x;
    float* parts = p.partial + group * (MAX_SPLITS * SPLIT_FLOATS);
    float* mine = parts + split * SPLIT_FLOATS;
    for (uint32_t i = threadIdx.x; i < heads * HEAD_DIM; i += THREADS) {
        const uint32_t g = i / HEAD_DIM, d = i % HEAD_DIM;
        float sum = sums[0][g][d];
#pragma unroll
        for (uint32_t w = 1; w < WARPS; w++) sum = add_rn(sum, sums[w][g][d]);
        if (splits == 1) {
            float all = weight[g];
            if constexpr (HAS_SINKS) {
                const float sink = p.sinks[head * GROUP + first_head + g], top = fmaxf(most[g], sink);
                const float shrink = expf(add_rn(most[g], -top));
                sum = mul_rn(sum, shrink);
                all = fma_rn(all, shrink, expf(add_rn(sink, -top)));
            }
            p.out[row + i] = div_rn(sum, all);
        } else {
            mine[g * (HEAD_DIM + 2) + d] = sum;
        }
    }
    if (splits == 1) return;
    if (threadIdx.x < HEADS) {
        mine[threadIdx.x * (HEAD_DIM + 2) + HEAD_DIM] = most[threadIdx.x];
        mine[threadIdx.x * (HEAD_DIM + 2) + HEAD_DIM + 1] = weight[threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ticket = atomic_inc_acq_rel_wrap(p.tickets + group, splits - 1);
    }
    __syncthreads();
    if (ticket != splits - 1) return;
    // Each split's share: a warp a head, a lane a split.
    for (uint32_t g = warp; g < heads; g += WARPS) {
        const float* at = parts + lane * SPLIT_FLOATS + g * (HEAD_DIM + 2) + HEAD_DIM;
        const float top = lane < splits ? load_relaxed_f32(at) : -infinity_f32();
        const float sum = lane < splits ? load_relaxed_f32(at + 1) : 0.0f;
        float all = warp_max_f32(top);
        if constexpr (HAS_SINKS) all = fmaxf(all, p.sinks[head * GROUP + first_head + g]);
        const float e = top == -infinity_f32() ? 0.0f : expf(add_rn(top, -all));
        scores[0][g][lane] = e;
        float total = 0.0f;
        for (uint32_t s = 0; s < splits; s++) {
            total = fma_rn(__shfl_sync(FULL_WARP, sum, s), __shfl_sync(FULL_WARP, e, s), total);
        }
        if constexpr (HAS_SINKS) {
            total = add_rn(total, expf(add_rn(p.sinks[head * GROUP + first_head + g], -all)));
        }
        if (lane == 0) weight[g] = total;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < heads * HEAD_DIM; i += THREADS) {
        const uint32_t g = i / HEAD_DIM;
        const float* at = parts + g * (HEAD_DIM + 2) + i % HEAD_DIM;
        float sum = 0.0f;
        for (uint32_t s = 0; s < splits; s++) {
            sum = fma_rn(load_relaxed_f32(at + s * SPLIT_FLOATS), scores[0][g][s], sum);
        }
        p.out[row + i] = div_rn(sum, weight[g]);
    }
}
