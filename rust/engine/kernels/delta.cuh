// A row of the gated delta rule as Op::DeltaNet states it, for steps, prompts and rounds. A block has
// COLUMNS columns of a head's state in registers; a warp has eight columns, and four chains of each:
// lane = chain * 8 + column. Behind variant.cuh: N_HEAD, N_HEAD_K, GROUPED, HEAD_DIM, COLUMNS, ROOT.
#pragma once
#include "matrix.cuh"
#include "norm.cuh"

constexpr uint32_t CHAINS = 4;
constexpr uint32_t CHAIN = HEAD_DIM / CHAINS;
constexpr uint32_t WARPS = COLUMNS / 8;
constexpr uint32_t HEADS = 2 * N_HEAD_K + N_HEAD;
constexpr uint32_t PARTS = HEAD_DIM / COLUMNS;
static_assert(HEAD_DIM % COLUMNS == 0 && HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "lanes of a head");
static_assert(WARPS >= 2, "a warp for queries, one for keys");

// The head of queries and keys that a head of values takes.
DEVICE uint32_t key_head(uint32_t head) {
    return GROUPED ? head / (N_HEAD / N_HEAD_K) : head % N_HEAD_K;
}

// The direction of a head, of which a lane of the warp has eight numbers: a query's, or a key's.
DEVICE void make_direction(float (&v)[8], bool is_key, float eps) {
    const float sum = superblock_squares(v);
    const float f = root_factor(add_rn(sum, eps));
    const float factor = mul_rn(f, is_key ? 1.0f : ROOT);
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) v[e] = mul_rn(v[e], factor);
}

// The directions of a query and of a key, by a warp each: `load(e)` gives the lane's numbers from e on, of
// eight. To be read behind a barrier.
template <typename Load>
DEVICE void set_directions(float (&direction)[2][HEAD_DIM], float eps, Load load) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp >= 2) return;
    const bool has_direction = lane * 8 < HEAD_DIM;
    float v[8] = {};
#pragma unroll
    for (uint32_t e = 0; e < 8; e += 4) {
        if (!has_direction) break;
        const float4 f = load(e);
        v[e] = f.x, v[e + 1] = f.y, v[e + 2] = f.z, v[e + 3] = f.w;
    }
    make_direction(v, warp != 0, eps);
#pragma unroll
    for (uint32_t e = 0; e < 8; e++) {
        if (has_direction) direction[warp][lane * 8 + e] = v[e];
    }
}

// The sum of four chains, the same in all lanes of a column.
DEVICE float chains_sum(float y) {
    y = add_rn(y, __shfl_xor_sync(FULL_WARP, y, 8));
    return add_rn(y, __shfl_xor_sync(FULL_WARP, y, 16));
}

// Brings the lane's chain of a column forward by a row with these gates and value, and gives what the row
// has of the column; `w` is then what the update has of it.
DEVICE float advance(float (&s)[CHAIN], const float (&direction)[2][HEAD_DIM], float g, float b, float v,
                     float& w) {
    const uint32_t chain = threadIdx.x % 32 / 8;
    float u = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j++) u = fma_rn(s[j], direction[1][j * CHAINS + chain], u);
    w = mul_rn(fma_rn(-g, chains_sum(u), v), b);
    float y = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j++) {
        s[j] = updated(s[j], direction[1][j * CHAINS + chain], w, g);
        y = fma_rn(s[j], direction[0][j * CHAINS + chain], y);
    }
    return chains_sum(y);
}
