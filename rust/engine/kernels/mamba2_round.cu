// Mamba-2's scan over a round's rows: those of a slot are neighbours, the token drawn last and its draft. The
// state of a slot stays as it is until it is known how many rows count:
//   mamba2_verify  as if all rows did; of each it keeps B, u and g in the round's memory
//   mamba2_commit  brings the state of each slot forward by the rows that count, of all layers alike: the
//                  scan's own update of the same numbers, so the bits are those of steps of one row
//
// variant.cuh: N_HEAD, N_GROUP, HEAD_DIM, D_STATE, COLUMNS, MOST_ROWS of a round.
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "mamba2.cuh"

struct Verify {
    const float* projected;     // [m][z, CHANNELS, N_HEAD]
    const float* convolved;     // [m][x, B, C]
    const float* a;             // [N_HEAD]
    const float* dt;            // the same
    const float* d;             // the same
    float* state;               // [n_slots][N_HEAD][D_STATE][HEAD_DIM], only read
    float* kept;                // see kept_vectors
    float* out;                 // [m][N_HEAD][HEAD_DIM]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t m;
    uint32_t n_slots;
};

// A block takes COLUMNS columns of a head, and the rows of a slot that begin at its own.
KERNEL_BOUNDS(mamba2_verify, Verify, SCAN_THREADS, 1) {
    alignas(16) SHARED Tile tiles[2];
    const uint32_t head = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    const uint32_t column = part * COLUMNS + threadIdx.x / 32 * 8 + threadIdx.x % 8;
    const HeadWeights w = {p.a[head], p.dt[head], p.d[head]};
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t first = blockIdx.y, slot = load_relaxed_u32(p.slots + first);
    if (first != 0 && load_relaxed_u32(p.slots + first - 1) == slot) return;
    uint32_t end = first + 1;
    while (end < p.m && load_relaxed_u32(p.slots + end) == slot) end++;
    const Rows rows = {p.projected, p.convolved, p.positions, p.slots, p.out, p.n_slots};
    const auto keep = [&](uint32_t m, const float* row, float u, float g) {
        if (slot >= p.n_slots) return;
        float* kept = p.kept + kept_vectors<N_HEAD, D_STATE, HEAD_DIM>(m, head);
        if (threadIdx.x % 32 < 8) kept[D_STATE + column] = u;
        if (part != 0) return;
        for (uint32_t i = threadIdx.x; i < D_STATE; i += SCAN_THREADS) kept[i] = row[i];
        if (threadIdx.x == 0) p.kept[kept_gate<MOST_ROWS, N_HEAD, D_STATE, HEAD_DIM>(m, head)] = g;
    };
    scan(tiles, rows, p.state, w, first, end, [](uint32_t, const float(&)[OWN]) {}, keep);
}

KERNEL_BOUNDS(mamba2_commit, Commit, THREADS, 1) {
    commit_matrices<MOST_ROWS, N_HEAD, D_STATE, HEAD_DIM>(p);
}
