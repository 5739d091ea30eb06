// Mamba-2's scan: mamba2.cuh. The first block takes the rows of prompts, each behind it one that is a sequence
// of its own.
//
// variant.cuh: N_HEAD, N_GROUP, HEAD_DIM, D_STATE, COLUMNS.
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "mamba2.cuh"

struct Params {
    const float* projected;     // [m][z, CHANNELS, N_HEAD]
    const float* convolved;     // [m][x, B, C]
    const float* a;             // [N_HEAD]
    const float* dt;            // the same
    const float* d;             // the same
    float* state;               // [n_slots][N_HEAD][D_STATE][HEAD_DIM]
    float* out;                 // [m][N_HEAD][HEAD_DIM]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t n_slots;
    uint32_t first;  // rows of the first block
};

KERNEL_BOUNDS(mamba2, Params, SCAN_THREADS, 1) {
    alignas(16) SHARED Tile tiles[2];
    const uint32_t head = blockIdx.x / PARTS;
    const uint32_t column = blockIdx.x % PARTS * COLUMNS + threadIdx.x / 32 * 8 + threadIdx.x % 8;
    const HeadWeights w = {p.a[head], p.dt[head], p.d[head]};
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t first = blockIdx.y == 0 ? 0 : p.first + blockIdx.y - 1;
    const uint32_t end = blockIdx.y == 0 ? p.first : first + 1;
    const Rows rows = {p.projected, p.convolved, p.positions, p.slots, p.out, p.n_slots};
    const auto leave = [&](uint32_t slot, const float(&s)[OWN]) {
        if (slot >= p.n_slots) return;
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++) *state_at(p.state, slot, head, column, j) = s[j];
    };
    scan(tiles, rows, p.state, w, first, end, leave, [](uint32_t, const float*, float, float) {});
}
