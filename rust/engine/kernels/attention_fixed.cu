// out[r][h] = sum over t of softmax_t(scale * q[r][h] . K[t]) * V[t] over a cache of integers, for the
// GROUP query heads that share a KV head: the sum that Op::Attention states, on tensor cores. A block
// takes one split of one row's tokens; the last block of a row joins the splits.
//
// A unit of 64 tokens at a time. Scores: a warp has 16 tokens, rows of A, in two limbs of their keys;
// columns of B are the two limbs of q of four heads, so that a lane has both limbs' sums of two tokens
// and one head. Values: a warp has some tiles of 16 dimensions, rows of A, and all tokens; columns of B
// are the two limbs of the weights. Bytes of integers are float16 subnormals, as in unit.cuh.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM, THREADS, MAX_SPLITS.
#include "kv_fixed.cuh"
#include "math.cuh"
#include "variant.cuh"

using Cache = KvFixed<HEAD_DIM>;
constexpr uint32_t GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t TILES = (GROUP + 3) / 4;  // of four heads
constexpr uint32_t COLUMNS = TILES * 8;      // two limbs a head
constexpr uint32_t WARPS = THREADS / 32;
static_assert(WARPS * 16 == PAGE_TOKENS, "a warp has 16 tokens of a unit");
constexpr uint32_t BLOCKS = Cache::BLOCKS;
constexpr uint32_t DIM_TILES = HEAD_DIM / 16;
constexpr uint32_t WARP_TILES = (DIM_TILES + WARPS - 1) / WARPS;
constexpr uint32_t SPLIT_FLOATS = GROUP * (HEAD_DIM + 2);
// Exponent fields of the largest of q.
constexpr uint32_t MOST_Q = 176;

struct Params {
    const float* q;  // [m][N_HEAD * HEAD_DIM]
    float* out;      // the same
    KvView kv;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    float* partial;     // [m][N_HEAD_KV][MAX_SPLITS][GROUP][HEAD_DIM + 2]: sums, maximum, weight
    uint32_t* tickets;  // [m][N_HEAD_KV], zero between launches
    float scale;        // times log2(e)
    uint32_t alone;     // for attention.cu
};

// 2^n, zero below 2^-126.
DEVICE float fade(float n) {
    return n < -126.0f ? 0.0f : u32_as_float(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23);
}

// What is joined to sums: factors of both, step 5.
struct Join {
    float old_share, new_share;
};

DEVICE Join join(float& most, float next) {
    const float both = fmaxf(most, next);
    const Join factors = {fade(sub_rn(most, both)), fade(sub_rn(next, both))};
    most = both;
    return factors;
}

// A, of words of two 16-bit integers: bytes 2^-24 as large.
DEVICE void limbs_of(const uint32_t (&words)[4], uint32_t (&hi)[4], uint32_t (&lo)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        lo[i] = words[i] & 0x00ff00ffu;
        // Above -128, then less 128.
        hi[i] = add_f16x2(((words[i] >> 8) & 0x00ff00ffu) ^ 0x00800080u, 0x80808080u);
    }
}

// A sum of A's bytes with integers.
DEVICE int64_t integer_of(float sum) { return static_cast<int64_t>(static_cast<int>(mul_rn(sum, 16777216.0f))); }

// 256 hi + lo limbs of A times `base` hi + lo limbs of B, rounded once.
template <int base>
DEVICE float rounded_sum(const float* hi, const float* lo) {
    return static_cast<float>(integer_of(hi[0]) * (256 * base) + integer_of(hi[1]) * 256 +
                              integer_of(lo[0]) * base + integer_of(lo[1]));
}

KERNEL_BOUNDS(attention_fixed, Params, THREADS, 2) {
    // Words of two dimensions, of two tokens: rows begin in banks of their own.
    SHARED uint32_t query[COLUMNS][HEAD_DIM / 2 + 4];
    SHARED uint32_t weights[BLOCKS][COLUMNS][PAGE_TOKENS / 2 + 4];
    SHARED float factors[TILES * 4];
    SHARED uint32_t is_number[TILES * 4];
    SHARED float tops[WARPS][TILES * 4], largest[WARPS][BLOCKS][TILES * 4];
    SHARED int shares[WARPS][TILES * 4];
    SHARED uint32_t ticket;

    const uint32_t head = blockIdx.x, split = blockIdx.y, m = blockIdx.z;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, quarter = lane % 4;
    pdl_wait();
    pdl_trigger();
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    uint32_t n = load_relaxed_u32(p.positions + m) + 1;
    // A position outside the cache was reported by the scatter; here it must only not be read.
    if (n > p.kv.n_ctx || n == 0) n = p.kv.n_ctx;
    uint32_t tokens = PAGE_TOKENS;
    while (n > tokens * MAX_SPLITS) tokens *= 2;
    const uint32_t splits = (n + tokens - 1) / tokens;
    if (split >= splits) return;
    const uint32_t begin = split * tokens, end = n < begin + tokens ? n : begin + tokens;

    const uint64_t row = (static_cast<uint64_t>(m) * N_HEAD + head * GROUP) * HEAD_DIM;
    for (uint32_t h = warp; h < TILES * 4; h += WARPS) {
        constexpr uint32_t PAIRS = HEAD_DIM / 2;
        uint32_t most = 0;
        for (uint32_t i = lane; h < GROUP && i < HEAD_DIM; i += 32) {
            const uint32_t bits = float_as_u32(fabsf(load_relaxed_f32(p.q + row + h * HEAD_DIM + i)));
            most = most > bits ? most : bits;
        }
        uint32_t field = warp_max_u32(most) >> 23;
        const bool fits = field <= MOST_Q;
        field = field < LEAST_FIELD ? LEAST_FIELD : fits ? field : MOST_Q;
        const float scale = u32_as_float((271 - field) << 23);  // 2^(18 - e)
        for (uint32_t i = lane; i < PAIRS; i += 32) {
            float hi[2], lo[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint64_t at = row + h * HEAD_DIM + 2 * i + j;
                const float x = h < GROUP && fits ? load_relaxed_f32(p.q + at) : 0.0f;
                const int q = static_cast<int>(rint_small(mul_rn(x, scale)));
                const int upper = (q + 256) >> 9;
                hi[j] = static_cast<float>(upper), lo[j] = static_cast<float>(q - upper * 512);
            }
            query[2 * h][i] = f32x2_to_f16x2(hi[0], hi[1]);
            query[2 * h + 1][i] = f32x2_to_f16x2(lo[0], lo[1]);
        }
        if (lane == 0) {
            factors[h] = mul_rn(p.scale, u32_as_float((field - 17) << 23));
            is_number[h] = fits;
        }
    }
    // Of the lane's head of each tile: the split's largest score, the sum of weights, of values.
    float most[TILES], weight[TILES], o[WARP_TILES][TILES][2];
    bool is_empty = true;
    __syncthreads();

#pragma unroll 1
    for (uint32_t first = begin; first < end; first += PAGE_TOKENS) {
        const uint32_t live = end - first < PAGE_TOKENS ? end - first : PAGE_TOKENS;
        const uint32_t page = kv_page(p.kv, slot, first);
        if (page == 0) continue;
        const uint8_t* keys = Cache::head<N_HEAD_KV>(p.kv.k, page, head);
        const uint8_t* values = Cache::head<N_HEAD_KV>(p.kv.v, page, head);
        auto unit = [&](const uint8_t* of, uint32_t token, uint32_t block) {
            const uint32_t at = Cache::exponent_at(token, block);
            const uint32_t word =
                load_relaxed_u32(reinterpret_cast<const uint32_t*>(of + at / 4 * 4));
            return u32_as_float((word >> at % 4 * 8 & 0xff) << 23);
        };
        // Values arrive while the scores are computed. Behind the length there is anything, which a
        // weight of zero makes nothing of.
        uint32_t v[WARP_TILES][4][4];
#pragma unroll
        for (uint32_t i = 0; i < WARP_TILES; i++) {
            const uint32_t tile = warp + WARPS * i;
#pragma unroll
            for (uint32_t step = 0; step < 4; step++) {
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    const uint32_t pair = step * 8 + e / 2 * 4 + quarter;
                    const uint32_t at = Cache::values_at(pair, tile * 16 + e % 2 * 8 + g);
                    v[i][step][e] = 0;
                    if (tile < DIM_TILES && step * 16 < live) {
                        v[i][step][e] = load_relaxed_u32(reinterpret_cast<const uint32_t*>(values + at));
                    }
                }
            }
        }
        float y[TILES][2], v_unit[BLOCKS][2];
        const uint32_t token[2] = {warp * 16 + g, warp * 16 + g + 8};
#pragma unroll
        for (uint32_t b = 0; b < BLOCKS; b++) {
            float hi[TILES][4] = {}, lo[TILES][4] = {};
#pragma unroll
            for (uint32_t step = b * 4; step < DIM_TILES && step < b * 4 + 4; step++) {
                uint32_t words[4], high[4], low[4];
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    const uint32_t dim = step * 16 + e / 2 * 8 + quarter * 2;
                    const uint8_t* at = keys + Cache::key_at(token[e % 2], dim);
                    words[e] = 0;
                    if (token[e % 2] < live) {
                        words[e] = load_relaxed_u32(reinterpret_cast<const uint32_t*>(at));
                    }
                }
                limbs_of(words, high, low);
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    const uint32_t* column = query[t * 8 + g] + step * 8 + quarter;
                    const uint32_t q[2] = {column[0], column[4]};
                    mma_m16n8k16_f16_f32(hi[t], high, q, hi[t]);
                    mma_m16n8k16_f16_f32(lo[t], low, q, lo[t]);
                }
            }
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const bool here = token[r] < live;
                const float k_unit = here ? unit(keys, token[r], b) : 0.0f;
                v_unit[b][r] = here ? unit(values, token[r], b) : 0.0f;
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    const float sum = rounded_sum<512>(hi[t] + 2 * r, lo[t] + 2 * r);
                    y[t][r] = b == 0 ? mul_rn(sum, k_unit) : fma_rn(sum, k_unit, y[t][r]);
                }
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                y[t][r] = mul_rn(y[t][r], factors[t * 4 + quarter]);
                if (token[r] >= live) y[t][r] = -infinity_f32();
            }
            float top = fmaxf(y[t][0], y[t][1]);
#pragma unroll
            for (uint32_t mask = 4; mask < 32; mask *= 2) {
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, mask));
            }
            if (g == 0) tops[warp][t * 4 + quarter] = top;
        }
        __syncthreads();
        Join joined[TILES];
        float unit_most[TILES];
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint32_t h = t * 4 + quarter;
            float top = tops[0][h];
#pragma unroll
            for (uint32_t w = 1; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
            unit_most[t] = ceilf(top);
            int share = 0;
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                y[t][r] = token[r] < live ? exp2_down_f32(sub_rn(y[t][r], unit_most[t])) : 0.0f;
                share += static_cast<int>(rint_small(mul_rn(y[t][r], 4194304.0f)));
            }
#pragma unroll
            for (uint32_t mask = 4; mask < 32; mask *= 2) {
                share += __shfl_xor_sync(FULL_WARP, share, mask);
            }
            if (g == 0) shares[warp][h] = share;
#pragma unroll
            for (uint32_t b = 0; b < BLOCKS; b++) {
                float top_value =
                    fmaxf(mul_rn(y[t][0], v_unit[b][0]), mul_rn(y[t][1], v_unit[b][1]));
#pragma unroll
                for (uint32_t mask = 4; mask < 32; mask *= 2) {
                    top_value = fmaxf(top_value, __shfl_xor_sync(FULL_WARP, top_value, mask));
                }
                if (g == 0) largest[warp][b][h] = top_value;
            }
        }
        __syncthreads();
        // 2^(E - 16) of each block.
        float o_unit[BLOCKS][TILES];
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint32_t h = t * 4 + quarter;
            int share = shares[0][h];
#pragma unroll
            for (uint32_t w = 1; w < WARPS; w++) share += shares[w][h];
            const float unit_weight = mul_rn(static_cast<float>(share), 2.384185791015625e-7f);
            if (is_empty) {
                most[t] = unit_most[t], weight[t] = unit_weight;
            } else {
                joined[t] = join(most[t], unit_most[t]);
                weight[t] = fma_rn(unit_weight, joined[t].new_share,
                                   mul_rn(weight[t], joined[t].old_share));
            }
#pragma unroll
            for (uint32_t b = 0; b < BLOCKS; b++) {
                float top = largest[0][b][h];
#pragma unroll
                for (uint32_t w = 1; w < WARPS; w++) top = fmaxf(top, largest[w][b][h]);
                uint32_t field = float_as_u32(top) >> 23;
                field = field < LEAST_FIELD ? LEAST_FIELD : field;
                o_unit[b][t] = u32_as_float((field - 15) << 23);
                const float scale = u32_as_float((269 - field) << 23);  // 2^(16 - E)
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    const float value = mul_rn(y[t][r], v_unit[b][r]);
                    int w = static_cast<int>(rint_small(mul_rn(value, scale)));
                    w = w < 65535 ? w : 65535;
                    auto* column = reinterpret_cast<uint16_t*>(weights[b][2 * h]);
                    auto* low = reinterpret_cast<uint16_t*>(weights[b][2 * h + 1]);
                    column[token[r]] = f32_to_f16(static_cast<float>(w >> 8));
                    low[token[r]] = f32_to_f16(static_cast<float>(w & 255));
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < WARP_TILES; i++) {
            const uint32_t tile = warp + WARPS * i, b = tile / 4;
            if (tile >= DIM_TILES) break;
            float hi[TILES][4] = {}, lo[TILES][4] = {};
#pragma unroll
            for (uint32_t step = 0; step < 4; step++) {
                uint32_t high[4], low[4];
                limbs_of(v[i][step], high, low);
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    const uint32_t* column = weights[b][t * 8 + g] + step * 8 + quarter;
                    const uint32_t w[2] = {column[0], column[4]};
                    mma_m16n8k16_f16_f32(hi[t], high, w, hi[t]);
                    mma_m16n8k16_f16_f32(lo[t], low, w, lo[t]);
                }
            }
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                float of_unit = o_unit[0][t];
#pragma unroll
                for (uint32_t other = 1; other < BLOCKS; other++) {
                    if (b == other) of_unit = o_unit[other][t];
                }
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    const float sum =
                        mul_rn(rounded_sum<256>(hi[t] + 2 * r, lo[t] + 2 * r), of_unit);
                    float& all = o[i][t][r];
                    all = is_empty ? sum
                                   : fma_rn(sum, joined[t].new_share, mul_rn(all, joined[t].old_share));
                }
            }
        }
        is_empty = false;
    }

    delay_block();
    float* parts =
        p.partial + (static_cast<uint64_t>(m) * N_HEAD_KV + head) * (MAX_SPLITS * SPLIT_FLOATS);
    float* mine = parts + split * SPLIT_FLOATS;
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
        const uint32_t h = t * 4 + quarter;
        if (h >= GROUP) continue;
        if (splits > 1 && warp == 0 && g == 0) {
            mine[h * (HEAD_DIM + 2) + HEAD_DIM] = is_empty ? 0.0f : most[t];
            mine[h * (HEAD_DIM + 2) + HEAD_DIM + 1] = is_empty ? 0.0f : weight[t];
        }
#pragma unroll
        for (uint32_t i = 0; i < WARP_TILES; i++) {
            const uint32_t tile = warp + WARPS * i;
            if (tile >= DIM_TILES) break;
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const uint32_t dim = tile * 16 + r * 8 + g;
                const float sum = is_empty ? 0.0f : o[i][t][r];
                if (splits > 1) {
                    mine[h * (HEAD_DIM + 2) + dim] = sum;
                } else {
                    const float all = is_empty ? 0.0f : weight[t];
                    p.out[row + h * HEAD_DIM + dim] = is_number[h] ? div_rn(sum, all) : nan_f32();
                }
            }
        }
    }
    if (splits == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        ticket = atomic_inc_acq_rel_wrap(p.tickets + m * N_HEAD_KV + head, splits - 1);
    }
    __syncthreads();
    if (ticket != splits - 1) return;
    for (uint32_t i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
        const uint32_t h = i / HEAD_DIM;
        const float* at = parts + h * (HEAD_DIM + 2);
        float all_most = load_relaxed_f32(at + HEAD_DIM), all = load_relaxed_f32(at + HEAD_DIM + 1);
        float sum = load_relaxed_f32(at + i % HEAD_DIM);
        for (uint32_t s = 1; s < splits; s++) {
            at += SPLIT_FLOATS;
            const Join both = join(all_most, load_relaxed_f32(at + HEAD_DIM));
            const float next = load_relaxed_f32(at + HEAD_DIM + 1);
            all = fma_rn(next, both.new_share, mul_rn(all, both.old_share));
            sum = fma_rn(load_relaxed_f32(at + i % HEAD_DIM), both.new_share,
                         mul_rn(sum, both.old_share));
        }
        p.out[row + i] = is_number[h] ? div_rn(sum, all) : nan_f32();
    }
}
