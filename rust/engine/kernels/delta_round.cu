// The gated delta rule of delta_net.cu over a round's rows: those of a slot are neighbours, the token drawn
// last and its draft. The state of a slot stays as it is until it is known how many rows count:
//   delta_verify  as if all rows did; of each it keeps K, w and g of the rule in the round's memory
//   delta_commit  brings the state of each slot forward by the rows that count, of all layers alike: the
//                 rule's own update of the same numbers, so the bits are those of steps of one row
//
// variant.cuh: N_HEAD, N_HEAD_K, GROUPED, HEAD_DIM, COLUMNS, ROOT (1 / sqrt(HEAD_DIM)), MOST_ROWS of a round.
#include "kv.cuh"
#include "math.cuh"
#include "norm.cuh"
#include "round.cuh"
#include "variant.cuh"

constexpr uint32_t CHAINS = 4;
constexpr uint32_t CHAIN = HEAD_DIM / CHAINS;
constexpr uint32_t WARPS = COLUMNS / 8;
constexpr uint32_t HEADS = 2 * N_HEAD_K + N_HEAD;
constexpr uint32_t PARTS = HEAD_DIM / COLUMNS;
static_assert(HEAD_DIM % COLUMNS == 0 && HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "lanes of a head");
static_assert(WARPS >= 2, "a warp for queries, one for keys");

// What is kept of a row: [N_HEAD][K, w][HEAD_DIM], and behind those of all rows g, [N_HEAD].
DEVICE uint64_t kept_vectors(uint32_t m, uint32_t head) {
    return (static_cast<uint64_t>(m) * N_HEAD + head) * (2 * HEAD_DIM);
}
DEVICE uint64_t kept_gate(uint32_t m, uint32_t head) {
    return kept_vectors(MOST_ROWS, 0) + static_cast<uint64_t>(m) * N_HEAD + head;
}

struct Verify {
    const float* qkv;    // [m][HEADS][HEAD_DIM]: queries, keys, values
    const float* alpha;  // [m][N_HEAD]
    const float* beta;   // the same
    const float* a;      // [N_HEAD]
    const float* dt;     // the same
    const float* state;  // [n_slots][N_HEAD][HEAD_DIM][HEAD_DIM]
    float* kept;         // see kept_vectors
    float* out;          // [m][N_HEAD][HEAD_DIM]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t m;
    uint32_t n_slots;
    float eps;
    uint32_t unused;
};

// The sum of four chains, the same in all lanes of a column.
DEVICE float chains_sum(float y) {
    y = add_rn(y, __shfl_xor_sync(FULL_WARP, y, 8));
    return add_rn(y, __shfl_xor_sync(FULL_WARP, y, 16));
}

// A block takes COLUMNS columns of a head, and the rows of a slot that begin at its own. Lanes as in
// delta_net.cu: a warp has eight columns, and four chains of each.
KERNEL_BOUNDS(delta_verify, Verify, WARPS * 32, 1) {
    // Of a row and of the next one: queries, keys.
    SHARED float directions[2][2][HEAD_DIM];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t chain = lane / 8;
    const uint32_t head = blockIdx.x / PARTS;
    const uint32_t key = GROUPED ? head / (N_HEAD / N_HEAD_K) : head % N_HEAD_K;
    const uint32_t column = blockIdx.x % PARTS * COLUMNS + warp * 8 + lane % 8;
    const float a = p.a[head], dt = p.dt[head];
    const bool has_direction = warp < 2 && lane * 8 < HEAD_DIM;
    const uint32_t direction_at = (warp * N_HEAD_K + key) * HEAD_DIM + lane * 8;
    const uint32_t value_at = (2 * N_HEAD_K + head) * HEAD_DIM + column;
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t first = blockIdx.y, slot = load_relaxed_u32(p.slots + first);
    if (first != 0 && load_relaxed_u32(p.slots + first - 1) == slot) return;
    const bool is_padding = slot >= p.n_slots;
    const bool begins = is_padding || load_relaxed_u32(p.positions + first) == 0;
    const uint64_t matrix = static_cast<uint64_t>(is_padding ? 0 : slot) * N_HEAD + head;
    float s[CHAIN];
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j++) {
        const float* at = p.state + (matrix * HEAD_DIM + j * CHAINS + chain) * HEAD_DIM + column;
        s[j] = begins ? 0.0f : load_relaxed_f32(at);
    }
    for (uint32_t m = first; m < p.m && load_relaxed_u32(p.slots + m) == slot; m++) {
        const uint64_t number = static_cast<uint64_t>(m) * N_HEAD + head;
        if (is_padding) {
            if (chain == 0) p.out[number * HEAD_DIM + column] = 0.0f;
            continue;
        }
        const float* row = p.qkv + static_cast<uint64_t>(m) * (HEADS * HEAD_DIM);
        auto& direction = directions[(m - first) % 2];
        if (warp < 2) {
            float v[8] = {};
#pragma unroll
            for (uint32_t e = 0; e < 8; e += 4) {
                if (!has_direction) break;
                const float4 f = load_relaxed_f32x4(row + direction_at + e);
                v[e] = f.x, v[e + 1] = f.y, v[e + 2] = f.z, v[e + 3] = f.w;
            }
            const float sum = superblock_squares(v);
            const float f = root_factor(add_rn(sum, p.eps));
            const float factor = mul_rn(f, warp == 0 ? ROOT : 1.0f);
#pragma unroll
            for (uint32_t e = 0; e < 8; e++) {
                if (has_direction) direction[warp][lane * 8 + e] = mul_rn(v[e], factor);
            }
        }
        // Of the row before last all have read by now: they met at the row before.
        __syncthreads();
        const float g = decay_f32(a, add_rn(load_relaxed_f32(p.alpha + number), dt));
        const float b = finite_sigmoid_f32(load_relaxed_f32(p.beta + number));
        float u = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < CHAIN; j++) u = fma_rn(s[j], direction[1][j * CHAINS + chain], u);
        const float v = load_relaxed_f32(row + value_at);
        const float w = mul_rn(fma_rn(-g, chains_sum(u), v), b);
        float y = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < CHAIN; j++) {
            s[j] = fma_rn(direction[1][j * CHAINS + chain], w, mul_rn(g, s[j]));
            y = fma_rn(s[j], direction[0][j * CHAINS + chain], y);
        }
        y = chains_sum(y);
        if (chain == 0) {
            float* kept = p.kept + kept_vectors(m, head);
            p.out[number * HEAD_DIM + column] = y;
            kept[column] = direction[1][column];
            kept[HEAD_DIM + column] = w;
            if (column == 0) p.kept[kept_gate(m, head)] = g;
        }
    }
}

// Neighbours in a row of a head's state that a thread has, and the threads of a block.
constexpr uint32_t NEAR = 4;
constexpr uint32_t THREADS = 256;
// Of these a thread has so many: enough loads under way.
constexpr uint32_t EACH = 4;

// A block takes a part of a head's state of the slot whose rows begin at its own.
KERNEL_BOUNDS(delta_commit, Commit, THREADS, 1) {
    constexpr uint32_t SIZE = HEAD_DIM * HEAD_DIM;
    constexpr uint32_t BLOCKS = (SIZE + THREADS * NEAR * EACH - 1) / (THREADS * NEAR * EACH);
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t head = blockIdx.x / BLOCKS, m = blockIdx.y;
    const uint32_t accepted = load_relaxed_u32(p.accepted + m);
    if (accepted == 0) return;
    const Place place = load_place(p.places + blockIdx.z);
    const bool begins = load_relaxed_u32(p.positions + m) == 0;
    const uint64_t matrix = static_cast<uint64_t>(load_relaxed_u32(p.slots + m)) * N_HEAD + head;
    float* state = place.state + matrix * SIZE;
    const uint32_t first = (blockIdx.x % BLOCKS * EACH * THREADS + threadIdx.x) * NEAR;
    float4 s[EACH];
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
        const uint32_t at = first + n * (THREADS * NEAR);
        s[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (at < SIZE && !begins) s[n] = load_relaxed_f32x4(state + at);
    }
    for (uint32_t row = m; row < m + accepted; row++) {
        const float* kept = place.kept + kept_vectors(row, head);
        const float g = load_relaxed_f32(place.kept + kept_gate(row, head));
#pragma unroll
        for (uint32_t n = 0; n < EACH; n++) {
            const uint32_t at = first + n * (THREADS * NEAR);
            if (at >= SIZE) break;
            const float k = load_relaxed_f32(kept + at / HEAD_DIM);
            const float4 w = load_relaxed_f32x4(kept + HEAD_DIM + at % HEAD_DIM);
            s[n].x = fma_rn(k, w.x, mul_rn(g, s[n].x));
            s[n].y = fma_rn(k, w.y, mul_rn(g, s[n].y));
            s[n].z = fma_rn(k, w.z, mul_rn(g, s[n].z));
            s[n].w = fma_rn(k, w.w, mul_rn(g, s[n].w));
        }
    }
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
        const uint32_t at = first + n * (THREADS * NEAR);
        if (at < SIZE) *reinterpret_cast<float4*>(state + at) = s[n];
    }
}
