// out[r][h] = sum over t of softmax_t(scale * q[r][h] . K[t]) * V[t] for a prompt's rows, on tensor
// cores. A block has 64 query rows, the GROUP heads of neighbouring tokens that share a KV head, and
// goes through the pages of their sequence; a warp has 16 of them. Keys and values are float16 as
// they are stored; queries and weights are hi + lo, two float16, after a power of two.
//
// The sum of one output depends on its own sequence alone: pages in order with a running maximum;
// inside a page chains of mma from zero, lo before hi. Pages past a row's last token, or behind its
// window, leave its bits.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM (a multiple of 16), WINDOW (tokens that a row sees, 0: all),
// HAS_SINKS, Kv (KvF16), THREADS, ROWS (queries a block), SHARED_BYTES.
#include "kv.cuh"
#include "variant.cuh"

constexpr uint32_t GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t K_STEPS = HEAD_DIM / 16;
constexpr uint32_t VECTORS = HEAD_DIM / 8;             // of 16 bytes, a token's
constexpr uint32_t VALUE_ROW = HEAD_DIM * 2 + 16;      // an odd number of vectors: no bank conflicts
constexpr uint32_t KEY_BYTES = PAGE_TOKENS * HEAD_DIM * 2;
constexpr uint32_t STAGE = KEY_BYTES + PAGE_TOKENS * VALUE_ROW;
static_assert(SHARED_BYTES == 2 * STAGE + ROWS * HEAD_DIM * 4, "two pages and the queries");
// Weights of tokens are at most this: far below it hi + lo is still exact enough.
constexpr float MOST_WEIGHT = 16384.0f;

struct Params {
    const float* q;  // [m][N_HEAD * HEAD_DIM]
    float* out;      // the same
    KvView kv;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    const float* sinks;         // [N_HEAD]: one more score each, of value 0; or null
    float scale;
    uint32_t m;
};

// Two numbers as float16 and what is missing of them.
DEVICE void split_pair(float a, float b, uint32_t& hi, uint32_t& lo) {
    hi = f32x2_to_f16x2(a, b);
    lo = f32x2_to_f16x2(sub_rn(a, f16x2_low(hi)), sub_rn(b, f16x2_high(hi)));
}

KERNEL_BOUNDS(prompt_attention, Params, THREADS, 2) {
    SHARED uint32_t row_slot[ROWS], row_length[ROWS];
    SHARED float row_weight[ROWS];  // a row's four lanes have one: registers are scarce
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t head = blockIdx.x, first_row = blockIdx.y * ROWS;
    const uint32_t rows = p.m * GROUP - first_row < ROWS ? p.m * GROUP - first_row : ROWS;
    uint8_t* stages = dynamic_shared<uint8_t>();
    pdl_wait();
    pdl_trigger();

    if (threadIdx.x < ROWS) {
        uint32_t slot = PADDING_SLOT, length = 0;
        if (threadIdx.x < rows) {
            const uint32_t m = (first_row + threadIdx.x) / GROUP;
            slot = load_relaxed_u32(p.slots + m);
            length = load_relaxed_u32(p.positions + m) + 1;
            // A position outside the cache was reported by the scatter.
            if (length > p.kv.n_ctx || length == 0) length = p.kv.n_ctx;
        }
        row_slot[threadIdx.x] = slot;
        row_length[threadIdx.x] = length;
    }

    // This lane's part of the queries g and g + 8 of its warp, as mma wants A.
    const uint32_t mine[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
    auto address = [&](uint32_t row) {
        const uint32_t at = first_row + row;
        return (static_cast<uint64_t>(at / GROUP) * N_HEAD + head * GROUP + at % GROUP) * HEAD_DIM;
    };
    // Where it keeps them: they would take too many registers. [step][lo, hi][lane] of its warp.
    uint32_t* q = reinterpret_cast<uint32_t*>(stages + 2 * STAGE + warp * K_STEPS * 1024 + lane * 16);
    float unscale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float v[K_STEPS][2][2], most = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < K_STEPS; k++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint2 pair = make_uint2(0, 0);
                if (mine[r] < rows) {
                    pair = load_relaxed_u32x2(p.q + address(mine[r]) + k * 16 + half * 8 +
                                              lane % 4 * 2);
                }
                v[k][half][0] = u32_as_float(pair.x), v[k][half][1] = u32_as_float(pair.y);
                most = fmaxf(most, fmaxf(fabsf(v[k][half][0]), fabsf(v[k][half][1])));
            }
        }
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
        uint32_t exponent = float_as_u32(most) >> 23;
        exponent = exponent < 41 ? 41 : exponent;
        const float up = u32_as_float((127 + 141 - exponent) << 23);
        unscale[r] = u32_as_float((127 + exponent - 141) << 23);
#pragma unroll
        for (uint32_t k = 0; k < K_STEPS; k++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t* at = q + k * 256 + r + 2 * half;
                split_pair(mul_rn(v[k][half][0], up), mul_rn(v[k][half][1], up), at[128], at[0]);
            }
        }
    }

    float acc[VECTORS][4] = {};
    float most[2] = {-infinity_f32(), -infinity_f32()};
    if (lane % 4 == 0) row_weight[mine[0]] = row_weight[mine[1]] = 0.0f;
    __syncthreads();

    // Neighbouring rows of one sequence go through its pages together.
#pragma unroll 1
    for (uint32_t begin = 0; begin < rows;) {
        const uint32_t slot = row_slot[begin];
        uint32_t end = begin, longest = 0, shortest = row_length[begin];
        while (end < rows && row_slot[end] == slot) {
            longest = row_length[end] > longest ? row_length[end] : longest;
            shortest = row_length[end] < shortest ? row_length[end] : shortest;
            // Rows of one token are alike.
            end += GROUP - (first_row + end) % GROUP;
        }
        uint32_t length[2], seen_from[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            length[r] = mine[r] >= begin && mine[r] < end ? row_length[mine[r] % ROWS] : 0;
            if (mine[r] >= rows) length[r] = 0;
            seen_from[r] = first_seen<WINDOW>(length[r]);
        }
        begin = end;
        const uint32_t start = first_seen<WINDOW>(shortest);  // before it nobody looks

        // Pages that are not mapped count for nothing, as tokens that no row sees.
        auto issue = [&](uint32_t page_number) {
            const uint32_t first = page_number * PAGE_TOKENS;
            const uint32_t page = kv_page(p.kv, slot, first);
            const uint32_t live = page == 0 ? 0 : longest - first;
            auto sees = [&](uint32_t at) {
                return at < live && (WINDOW == 0 || first + at >= start);
            };
            const uint64_t base = kv_head_at<N_HEAD_KV, HEAD_DIM>(page, head);
            const auto* keys = static_cast<const uint16_t*>(p.kv.k) + base;
            const auto* values = static_cast<const uint16_t*>(p.kv.v) + base;
            uint8_t* stage = stages + page_number % 2 * STAGE;
#pragma unroll 2
            for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * VECTORS; i += THREADS) {
                const uint32_t token = i % PAGE_TOKENS;
                cp_async_16_zero_fill(stage + i * 16, keys + i * 8, sees(token) ? 16 : 0);
                const uint32_t row = i / VECTORS, vector = i % VECTORS;
                cp_async_16_zero_fill(stage + KEY_BYTES + row * VALUE_ROW + vector * 16,
                                      values + i * 8, sees(row) ? 16 : 0);
            }
            cp_async_commit();
            return page != 0;
        };
        const uint32_t pages = (longest + PAGE_TOKENS - 1) / PAGE_TOKENS;
        bool mapped_next = issue(start / PAGE_TOKENS);
#pragma unroll 1
        for (uint32_t number = start / PAGE_TOKENS; number < pages; number++) {
            const bool mapped = mapped_next;
            cp_async_wait<0>();
            __syncthreads();
            if (number + 1 < pages) mapped_next = issue(number + 1);
            const uint32_t first = number * PAGE_TOKENS;
            auto looks = [&](int r) {
                return length[r] > first && (WINDOW == 0 || seen_from[r] < first + PAGE_TOKENS);
            };
            if (!mapped || !__any_sync(FULL_WARP, looks(0) || looks(1))) continue;
            const uint8_t* keys = stages + number % 2 * STAGE;
            const uint8_t* values = keys + KEY_BYTES;

            float s[8][4] = {};
#pragma unroll
            for (uint32_t k = 0; k < K_STEPS; k++) {
                const uint4 lo = *reinterpret_cast<const uint4*>(q + k * 256);
                const uint4 hi = *reinterpret_cast<const uint4*>(q + k * 256 + 128);
                const uint32_t a_lo[4] = {lo.x, lo.y, lo.z, lo.w};
                const uint32_t a_hi[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
                for (uint32_t n = 0; n < 8; n += 2) {
                    uint32_t b[4];
                    ldmatrix_x4(b, keys + ((2 * k + lane / 8 % 2) * PAGE_TOKENS +
                                           (n + lane / 16) * 8 + lane % 8) * 16);
                    mma_m16n8k16_f16_f32(s[n], a_lo, b, s[n]);
                    mma_m16n8k16_f16_f32(s[n + 1], a_lo, b + 2, s[n + 1]);
                    mma_m16n8k16_f16_f32(s[n], a_hi, b, s[n]);
                    mma_m16n8k16_f16_f32(s[n + 1], a_hi, b + 2, s[n + 1]);
                }
            }
            float top[2] = {most[0], most[1]}, shrink[2];
#pragma unroll
            for (uint32_t n = 0; n < 8; n++) {
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    const uint32_t token = first + n * 8 + lane % 4 * 2 + e % 2;
                    const float score = mul_rn(mul_rn(s[n][e], unscale[e / 2]), p.scale);
                    const bool sees = token < length[e / 2] &&
                                      (WINDOW == 0 || token >= seen_from[e / 2]);
                    s[n][e] = sees ? score : -infinity_f32();
                    top[e / 2] = fmaxf(top[e / 2], s[n][e]);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 1));
                top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 2));
                // No token at all yet: nothing to fade.
                shrink[r] = top[r] == -infinity_f32() ? 1.0f : expf(add_rn(most[r], -top[r]));
                most[r] = top[r];
            }
            uint32_t e_hi[4][4], e_lo[4][4];
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (uint32_t n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float e[2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float score = s[n][2 * r + i];
                        e[i] = score == -infinity_f32()
                                   ? 0.0f
                                   : mul_rn(expf(add_rn(score, -top[r])), MOST_WEIGHT);
                        sum[r] = add_rn(sum[r], e[i]);
                    }
                    split_pair(e[0], e[1], e_hi[n / 2][r + n % 2 * 2], e_lo[n / 2][r + n % 2 * 2]);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                sum[r] = add_rn(sum[r], __shfl_xor_sync(FULL_WARP, sum[r], 1));
                sum[r] = add_rn(sum[r], __shfl_xor_sync(FULL_WARP, sum[r], 2));
                float& weight = row_weight[mine[r]];
                if (lane % 4 == 0) weight = fma_rn(weight, shrink[r], sum[r]);
            }
#pragma unroll
            for (uint32_t d = 0; d < VECTORS; d += 2) {
                float chain[2][4] = {};
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    uint32_t b[4];
                    ldmatrix_x4_transposed(b, values + (k * 16 + lane % 16) * VALUE_ROW +
                                                  (d + lane / 16) * 16);
                    mma_m16n8k16_f16_f32(chain[0], e_lo[k], b, chain[0]);
                    mma_m16n8k16_f16_f32(chain[1], e_lo[k], b + 2, chain[1]);
                    mma_m16n8k16_f16_f32(chain[0], e_hi[k], b, chain[0]);
                    mma_m16n8k16_f16_f32(chain[1], e_hi[k], b + 2, chain[1]);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        acc[d + i][e] = fma_rn(acc[d + i][e], shrink[e / 2], chain[i][e]);
                    }
                }
            }
        }
        __syncthreads();
    }

    delay_block();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (mine[r] >= rows) continue;
        float* out = p.out + address(mine[r]) + lane % 4 * 2;
        float weight = row_weight[mine[r]];
        if constexpr (HAS_SINKS) {
            const float sink = p.sinks[head * GROUP + (first_row + mine[r]) % GROUP];
            const float top = fmaxf(most[r], sink), shrink = expf(add_rn(most[r], -top));
            weight = fma_rn(weight, shrink, mul_rn(sink_share(sink, top, most[r]), MOST_WEIGHT));
#pragma unroll
            for (uint32_t d = 0; d < VECTORS; d++) {
#pragma unroll
                for (int i = 0; i < 2; i++) acc[d][2 * r + i] = mul_rn(acc[d][2 * r + i], shrink);
            }
        }
#pragma unroll
        for (uint32_t d = 0; d < VECTORS; d++) {
            *reinterpret_cast<float2*>(out + d * 8) = make_float2(
                div_rn(acc[d][2 * r], weight), div_rn(acc[d][2 * r + 1], weight));
        }
    }
}
