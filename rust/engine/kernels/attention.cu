// out[r][h] = sum over t of softmax_t(scale * q[r][h] . K[t]) * V[t], for the GROUP query heads that
// share a KV head, HEADS of them a block. A row's tokens are cut into splits; a team of 128 threads takes
// one. A block has two teams, and where a row has no more than BLOCK_SPLITS splits it takes them all:
// then nothing is merged through memory. Else the last block of a row's heads merges.
//
// The split depends on the length n of the row's own sequence, from the page of the first token that it
// sees, alone: 64 * 2^max(0, ceil(log2(n / 2048))) tokens, so at most MAX_SPLITS of them. Inside a split, pages in order with a
// running maximum. Scores: two threads a token, one the even and one the odd groups of eight
// dimensions. Values: a lane adds the eight tokens of its eighth of the page, the
// eighths are added in pairs. Splits are merged in order.
//
// variant.cuh: N_HEAD, N_HEAD_KV, HEAD_DIM, WINDOW (tokens that a row sees, 0: all), HAS_SINKS, HEADS
// (of a block; a group's last may have fewer), Kv, THREADS, TEAMS, MAX_SPLITS, BLOCK_SPLITS (of a block
// that has a row's heads for itself; shared memory holds their sums).
#include "kv.cuh"
#include "variant.cuh"

constexpr int GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t SHARERS = (GROUP + HEADS - 1) / HEADS;  // blocks that share a group's heads
constexpr uint32_t TEAM = THREADS / TEAMS;
static_assert(TEAM == 128, "four warps");
constexpr uint32_t WARPS = THREADS / 32, TEAM_WARPS = TEAM / 32;
constexpr uint32_t PARTS = TEAM / PAGE_TOKENS;  // threads of a token's score
constexpr uint32_t EIGHTS = HEAD_DIM / 8, EIGHTS_PART = (EIGHTS + PARTS - 1) / PARTS;
constexpr uint32_t EIGHTH = PAGE_TOKENS / 8;    // tokens of a lane
constexpr uint32_t QUADS = HEAD_DIM / 4;        // groups of four dimensions
constexpr uint32_t QUADS_TURN = TEAM / 8;       // of a team at a time, eight lanes each
constexpr uint32_t QUADS_LANE = (QUADS + QUADS_TURN - 1) / QUADS_TURN;
constexpr int SUMS_LANE = HEADS * QUADS_LANE * 4;
constexpr int half_if_even(int n) { return n % 2 == 0 ? n / 2 : n; }
constexpr int KEPT = half_if_even(half_if_even(half_if_even(SUMS_LANE)));  // after fold
// Values of wide heads fit the registers a token at a time alone.
constexpr bool ONE_BY_ONE = QUADS_LANE > 4;
// Keys of a thread and tokens of a lane whose values are asked for before the scores, as far as
// registers allow.
constexpr uint32_t KEYS_MOST =
    ONE_BY_ONE || SUMS_LANE > 48 ? 4 : SUMS_LANE > 40 ? 2 : SUMS_LANE > 32 ? 4 : 8;
constexpr uint32_t KEYS_AHEAD = EIGHTS_PART < KEYS_MOST ? EIGHTS_PART : KEYS_MOST;
constexpr uint32_t VALUES_AHEAD =
    ONE_BY_ONE || SUMS_LANE > 32 ? 0 : SUMS_LANE > 24 ? 4 : EIGHTH;
// Beside a mat-vec, so that one starts early, where registers allow it.
constexpr int MIN_BLOCKS =
    !ONE_BY_ONE && SUMS_LANE <= 48 && sizeof(typename Kv::Eight) <= 16 ? 2 : 1;

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
    uint32_t alone;     // 1: no two rows are of one sequence
};

DEVICE uint32_t split_tokens(uint32_t n) {
    uint32_t tokens = PAGE_TOKENS;
    while (n > tokens * MAX_SPLITS) tokens *= 2;
    return tokens;
}

// Adds the N sums of lanes that differ in bit MASK and then in those below, down to bit 2. Lanes
// share the work: each keeps half of the sums, `start` the first of them, as long as there is an
// even number; then both keep all, and `owner` only one of the two.
template <int N, uint32_t MASK>
DEVICE void fold(float (&v)[SUMS_LANE], uint32_t lane, uint32_t& start, bool& owner) {
    const bool upper = lane & MASK;
    constexpr bool even = N % 2 == 0;
    constexpr int kept = even ? N / 2 : N;
#pragma unroll
    for (int i = 0; i < kept; i++) {
        const float other = v[even ? i + kept : i];
        const float give = upper || !even ? v[i] : other, keep = upper ? other : v[i];
        v[i] = add_rn(keep, __shfl_xor_sync(FULL_WARP, give, MASK));
    }
    if (upper && even) start += kept;
    owner = owner && (even || !upper);
    if constexpr (MASK > 4) {
        fold<kept, MASK / 2>(v, lane, start, owner);
    }
}

KERNEL_BOUNDS(attention, Params, THREADS, MIN_BLOCKS) {
    alignas(16) SHARED float q[HEADS][HEAD_DIM];
    alignas(16) SHARED float scores[TEAMS][HEADS][PAGE_TOKENS];
    SHARED float result[BLOCK_SPLITS][HEADS][HEAD_DIM];
    SHARED float most[BLOCK_SPLITS][HEADS], weight[BLOCK_SPLITS][HEADS], fade[TEAMS][HEADS];
    SHARED float share[HEADS][MAX_SPLITS], total[HEADS];
    SHARED uint32_t ticket;

    const uint32_t head = blockIdx.x / SHARERS, m = blockIdx.z;
    // The first of its heads, and how many they are.
    const uint32_t first_head = blockIdx.x % SHARERS * HEADS, rest = GROUP - first_head;
    const uint32_t heads = SHARERS == 1 || rest > HEADS ? HEADS : rest;
    const uint64_t row = (static_cast<uint64_t>(m) * N_HEAD + head * GROUP + first_head) * HEAD_DIM;
    const uint32_t team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM;
    const uint32_t lane = thread % 32, warp = thread / 32;
    // Position and slot were written at least two kernels ago, and every kernel lets its successor
    // start only after its own wait: they may be read before this one's. So may the tokens of
    // earlier steps. Where each row is a sequence of its own, only the newest token's key and
    // value, and q, come from the kernel before; among rows of one sequence all may.
    if (!p.alone) pdl_wait();
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    uint32_t n = load_relaxed_u32(p.positions + m) + 1;
    // A position outside the cache was reported by the scatter; here it must only not be read.
    if (n > p.kv.n_ctx || n == 0) n = p.kv.n_ctx;
    const uint32_t seen = first_seen<WINDOW>(n), start = seen / PAGE_TOKENS * PAGE_TOKENS;
    const uint32_t tokens = split_tokens(n - start), splits = (n - start + tokens - 1) / tokens;
    const uint32_t block_splits = splits <= BLOCK_SPLITS ? BLOCK_SPLITS : TEAMS;
    const uint32_t first_split = blockIdx.y * block_splits;
    if (first_split >= splits) {
        if (p.alone) pdl_wait();
        return;
    }
    const uint32_t my_splits =
        splits - first_split < block_splits ? splits - first_split : block_splits;
    const uint32_t token = thread / PARTS, part = thread % PARTS;      // of the scores
    const uint32_t eighth = lane / 4, quad = warp * 4 + lane % 4;      // of the values

#pragma unroll 1
    for (uint32_t wave = 0; wave < my_splits; wave += TEAMS) {
        const uint32_t local = wave + team;
        const uint32_t begin = start + (first_split + local) * tokens;
        uint32_t end = n < begin + tokens ? n : begin + tokens;
        if (local >= my_splits) end = begin;
        // The first team's split is the longer one: both take as many pages.
        const uint32_t wave_begin = start + (first_split + wave) * tokens;
        const uint32_t reach = n - wave_begin < tokens ? n - wave_begin : tokens;
        if (thread < HEADS && local < BLOCK_SPLITS) {
            most[local][thread] = -infinity_f32();
            weight[local][thread] = 0.0f;
        }
#pragma unroll 1
        for (uint32_t offset = 0; offset < reach; offset += PAGE_TOKENS) {
            const uint32_t first = begin + offset;
            const uint32_t left = first < end ? end - first : 0;
            const uint32_t live = left < PAGE_TOKENS ? left : PAGE_TOKENS;
            const uint32_t page = live > 0 ? kv_page(p.kv, slot, first) : 0;
            const uint64_t base = kv_head_at<N_HEAD_KV, HEAD_DIM>(page, head);
            // This thread's first key and value; the others are at constant distances.
            const auto* keys = static_cast<const Kv::Element*>(p.kv.k) + base +
                               kv_key_at<HEAD_DIM>(token, part * 8);
            const auto* values = static_cast<const Kv::Element*>(p.kv.v) + base +
                                 kv_value_at<HEAD_DIM>(eighth * EIGHTH, quad * 4);

            // Values arrive while the scores are computed. Entries past the length, or behind the
            // window, are not read: a fresh page holds anything, and 0 * NaN is NaN.
            auto sees = [&](uint32_t at) {
                return at < live && page != 0 && (WINDOW == 0 || first + at >= seen);
            };
            const bool has_token = sees(token);
            const uint32_t newest = n - 1 - first;         // its entry, where it is in this page
            const bool before = wave == 0 && offset == 0;    // q is not here yet
            const bool ahead = before && p.alone != 0;     // nor has the kernel before ended
            typename Kv::Eight k[KEYS_AHEAD];
            typename Kv::Four v[EIGHTH][QUADS_LANE] = {};
            auto load_keys = [&]() {
#pragma unroll
                for (uint32_t c = 0; c < KEYS_AHEAD; c++) {
                    if (c * PARTS + part >= EIGHTS) break;
                    k[c] = Kv::load8(keys + kv_key_at<HEAD_DIM>(0, c * PARTS * 8));
                }
            };
            auto load_values = [&](uint32_t t) {
#pragma unroll
                for (uint32_t i = 0; i < QUADS_LANE; i++) {
                    if (quad + QUADS_TURN * i >= QUADS) break;
                    v[t][i] = Kv::load4(values + kv_value_at<HEAD_DIM>(t, QUADS_TURN * i * 4));
                }
            };
            if (has_token && (token != newest || !ahead)) load_keys();
#pragma unroll
            for (uint32_t t = 0; t < VALUES_AHEAD; t++) {
                const uint32_t at = eighth * EIGHTH + t;
                if (sees(at) && (at != newest || !ahead)) load_values(t);
            }
            if (before) {
                if (ahead) pdl_wait();
                pdl_trigger();
#pragma unroll 1
                for (uint32_t i = threadIdx.x; i < HEADS * HEAD_DIM; i += THREADS) {
                    const bool is_there = SHARERS == 1 || i < heads * HEAD_DIM;
                    q[i / HEAD_DIM][i % HEAD_DIM] = is_there ? load_relaxed_f32(p.q + row + i) : 0.0f;
                }
                if (ahead && has_token && token == newest) load_keys();
#pragma unroll
                for (uint32_t t = 0; t < VALUES_AHEAD; t++) {
                    const uint32_t at = eighth * EIGHTH + t;
                    if (ahead && at == newest && sees(at)) load_values(t);
                }
                __syncthreads();
            }
            float dot[HEADS] = {};
            if (has_token) {
#pragma unroll
                for (uint32_t c = 0; c < EIGHTS_PART; c++) {
                    const uint32_t at = c * PARTS + part;
                    if (EIGHTS % PARTS != 0 && at >= EIGHTS) break;
                    if (c >= KEYS_AHEAD) {
                        k[c % KEYS_AHEAD] = Kv::load8(keys + kv_key_at<HEAD_DIM>(0, c * PARTS * 8));
                    }
                    float key[8];
                    Kv::expand8(k[c % KEYS_AHEAD], key);
                    // Four dimensions after another: more queries would not fit the registers.
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        if (i % 4 == 0) compiler_fence();
#pragma unroll
                        for (int g = 0; g < HEADS; g++) {
                            dot[g] = fma_rn(key[i], q[g][at * 8 + i], dot[g]);
                        }
                    }
                }
            }
#pragma unroll
            for (int g = 0; g < HEADS; g++) {
                float s = add_rn(dot[g], __shfl_xor_sync(FULL_WARP, dot[g], 1));
                if (part == 0) scores[team][g][token] = has_token ? mul_rn(s, p.scale) : -infinity_f32();
            }
            compiler_fence();
#pragma unroll
            for (uint32_t t = VALUES_AHEAD; t < EIGHTH; t++) {
                if (!ONE_BY_ONE && sees(eighth * EIGHTH + t)) load_values(t);
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t g = warp; g < HEADS && local < my_splits; g += TEAM_WARPS) {
                float s[2];
#pragma unroll
                for (int i = 0; i < 2; i++) s[i] = scores[team][g][lane + 32 * i];
                float top = fmaxf(most[local][g], warp_max_f32(fmaxf(s[0], s[1])));
                // No token at all yet: nothing to fade.
                float shrink = top == -infinity_f32() ? 1.0f : expf(add_rn(most[local][g], -top));
                float e[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    e[i] = s[i] == -infinity_f32() ? 0.0f : expf(add_rn(s[i], -top));
                    scores[team][g][lane + 32 * i] = e[i];
                }
                float sum = warp_sum_f32(add_rn(e[0], e[1]));
                __syncwarp();
                if (lane == 0) {
                    weight[local][g] = fma_rn(weight[local][g], shrink, sum);
                    most[local][g] = top;
                    fade[team][g] = shrink;
                }
            }
            __syncthreads();
            if (live > 0) {
                float acc[SUMS_LANE] = {};
#pragma unroll
                for (uint32_t t = 0; t < EIGHTH; t++) {
                    compiler_fence();
                    if (ONE_BY_ONE && sees(eighth * EIGHTH + t)) load_values(t);
                    float e[HEADS];
#pragma unroll
                    for (int g = 0; g < HEADS; g++) e[g] = scores[team][g][eighth * EIGHTH + t];
#pragma unroll
                    for (int i = 0; i < QUADS_LANE; i++) {
                        // Past the length the weight is zero and so are the values.
                        float value[4];
                        Kv::expand4(v[t][i], value);
#pragma unroll
                        for (int g = 0; g < HEADS; g++) {
#pragma unroll
                            for (int d = 0; d < 4; d++) {
                                float& sum = acc[(g * QUADS_LANE + i) * 4 + d];
                                sum = fma_rn(e[g], value[d], sum);
                            }
                        }
                    }
                }
                uint32_t start = 0;
                bool owner = true;
                fold<SUMS_LANE, 16>(acc, lane, start, owner);
#pragma unroll
                for (int i = 0; i < KEPT; i++) {
                    const uint32_t at = start + i, g = at / (QUADS_LANE * 4);
                    const uint32_t dim = (quad + QUADS_TURN * (at / 4 % QUADS_LANE)) * 4;
                    if (!owner || dim >= HEAD_DIM) continue;
                    float* sum = &result[local][g][dim + at % 4];
                    *sum = offset == 0 ? acc[i] : fma_rn(*sum, fade[team][g], acc[i]);
                }
            }
            if (offset + PAGE_TOKENS < reach || wave + TEAMS < my_splits) __syncthreads();
        }
    }
    __syncthreads();
    delay_block();
    float* out = p.out + row;
    auto sink = [&](uint32_t g) { return p.sinks[head * GROUP + first_head + g]; };
    if (splits <= BLOCK_SPLITS) {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < heads * HEAD_DIM; i += THREADS) {
            const uint32_t g = i / HEAD_DIM, d = i % HEAD_DIM;
            float top = most[0][g], all = 0.0f, sum = 0.0f;
#pragma unroll 1
            for (uint32_t s = 1; s < splits; s++) top = fmaxf(top, most[s][g]);
            [[maybe_unused]] const float of_scores = top;
            if constexpr (HAS_SINKS) top = fmaxf(top, sink(g));
#pragma unroll 1
            for (uint32_t s = 0; s < splits; s++) {
                const float e = expf(add_rn(most[s][g], -top));
                all = fma_rn(weight[s][g], e, all);
                sum = fma_rn(result[s][g][d], e, sum);
            }
            if constexpr (HAS_SINKS) all = add_rn(all, sink_share(sink(g), top, of_scores));
            out[i] = div_rn(sum, all);
        }
        return;
    }
    constexpr uint32_t SPLIT_FLOATS = HEADS * (HEAD_DIM + 2);
    const uint64_t group = static_cast<uint64_t>(m) * gridDim.x + blockIdx.x;
    float* row_partial = p.partial + group * (MAX_SPLITS * SPLIT_FLOATS);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < my_splits * SPLIT_FLOATS; i += THREADS) {
        const uint32_t s = i / SPLIT_FLOATS, g = i / (HEAD_DIM + 2) % HEADS, d = i % (HEAD_DIM + 2);
        row_partial[first_split * SPLIT_FLOATS + i] = d < HEAD_DIM    ? result[s][g][d]
                                                      : d == HEAD_DIM ? most[s][g]
                                                                      : weight[s][g];
    }
    __syncthreads();
    const uint32_t blocks = (splits + TEAMS - 1) / TEAMS;
    if (threadIdx.x == 0) {
        ticket = atomic_inc_acq_rel_wrap(p.tickets + group, blocks - 1);
    }
    __syncthreads();
    if (ticket != blocks - 1) return;
    // Each split's share: a warp a head, a lane a split.
#pragma unroll 1
    for (uint32_t g = threadIdx.x / 32; g < heads; g += WARPS) {
        const float* at = row_partial + lane * SPLIT_FLOATS + g * (HEAD_DIM + 2) + HEAD_DIM;
        float top = -infinity_f32(), sum = 0.0f;
        if (lane < splits) {
            top = load_relaxed_f32(at);
            sum = load_relaxed_f32(at + 1);
        }
        float all = warp_max_f32(top);
        [[maybe_unused]] const float of_scores = all;
        if constexpr (HAS_SINKS) all = fmaxf(all, sink(g));
        const float e = lane < splits ? expf(add_rn(top, -all)) : 0.0f;
        share[g][lane] = e;
        // In split order, as the sums below.
        float weights = 0.0f;
        for (uint32_t s = 0; s < splits; s++) {
            weights = fma_rn(__shfl_sync(FULL_WARP, sum, s), __shfl_sync(FULL_WARP, e, s), weights);
        }
        if constexpr (HAS_SINKS) {
            weights = add_rn(weights, sink_share(sink(g), all, of_scores));
        }
        if (lane == 0) total[g] = weights;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < heads * HEAD_DIM; i += THREADS) {
        const uint32_t g = i / HEAD_DIM, d = i % HEAD_DIM;
        const float* at = row_partial + g * (HEAD_DIM + 2) + d;
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t s = 0; s < splits; s++) {
            sum = fma_rn(load_relaxed_f32(at + s * SPLIT_FLOATS), share[g][s], sum);
        }
        out[i] = div_rn(sum, total[g]);
    }
}
