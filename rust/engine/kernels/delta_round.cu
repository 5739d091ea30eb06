// The gated delta rule of delta_net.cu over a round's rows: those of a slot are neighbours, the token drawn
// last and its draft. The state of a slot stays as it is until it is known how many rows count:
//   delta_verify  as if all rows did; of each it keeps K, w and g of the rule in the round's memory
//   delta_commit  brings the state of each slot forward by the rows that count, of all layers alike: the
//                 rule's own update of the same numbers, so the bits are those of steps of one row
//
// variant.cuh: N_HEAD, N_HEAD_K, GROUPED, HEAD_DIM, COLUMNS, ROOT (1 / sqrt(HEAD_DIM)), MOST_ROWS of a round.
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "delta.cuh"

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

// A block takes COLUMNS columns of a head, and the rows of a slot that begin at its own.
KERNEL_BOUNDS(delta_verify, Verify, WARPS * 32, 1) {
    // Of a row and of the next one: queries, keys.
    SHARED float directions[2][2][HEAD_DIM];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t chain = lane / 8;
    const uint32_t head = blockIdx.x / PARTS, key = key_head(head);
    const uint32_t column = blockIdx.x % PARTS * COLUMNS + warp * 8 + lane % 8;
    const float a = p.a[head], dt = p.dt[head];
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
        set_directions(direction, p.eps,
                       [&](uint32_t e) { return load_relaxed_f32x4(row + direction_at + e); });
        // Of the row before last all have read by now: they met at the row before.
        __syncthreads();
        const float g = decay_f32(a, add_rn(load_relaxed_f32(p.alpha + number), dt));
        const float b = finite_sigmoid_f32(load_relaxed_f32(p.beta + number));
        const float v = load_relaxed_f32(row + value_at);
        float w;
        const float y = advance(s, direction, g, b, v, w);
        if (chain == 0) {
            float* kept = p.kept + kept_vectors<N_HEAD, HEAD_DIM, HEAD_DIM>(m, head);
            p.out[number * HEAD_DIM + column] = y;
            kept[column] = direction[1][column];
            kept[HEAD_DIM + column] = w;
            if (column == 0) p.kept[kept_gate<MOST_ROWS, N_HEAD, HEAD_DIM, HEAD_DIM>(m, head)] = g;
        }
    }
}

KERNEL_BOUNDS(delta_commit, Commit, THREADS, 1) {
    commit_matrices<MOST_ROWS, N_HEAD, HEAD_DIM, HEAD_DIM>(p);
}
