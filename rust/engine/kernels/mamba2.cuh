// Rows of Mamba-2's scan as Mamba2 of rust/engine/src/plan/mamba2.rs states it, for steps, prompts and rounds. A
// block has COLUMNS columns of a head's state in registers; a warp has eight columns, and four lanes share
// each: lane = quarter * 8 + column. Of every 16 rows a lane has the four from 4 * quarter on, a chain each.
//
// Rows come to shared memory in tiles, the next one's loads under way while a tile is computed.
//
// Behind variant.cuh: N_HEAD, N_GROUP, HEAD_DIM, D_STATE, COLUMNS.
#pragma once
#include "matrix.cuh"

constexpr uint32_t INNER = N_HEAD * HEAD_DIM;
constexpr uint32_t CHANNELS = INNER + 2 * N_GROUP * D_STATE;
constexpr uint32_t PROJECTED = INNER + CHANNELS + N_HEAD;
constexpr uint32_t PARTS = HEAD_DIM / COLUMNS;
constexpr uint32_t SCAN_THREADS = COLUMNS / 8 * 32;
// Rows of the state that a lane has.
constexpr uint32_t OWN = D_STATE / 4;
static_assert(HEAD_DIM % COLUMNS == 0 && COLUMNS % 8 == 0 && D_STATE % 16 == 0, "lanes of a head");
static_assert(N_HEAD % N_GROUP == 0, "as many heads in each group");

// Rows of a tile, as many as its threads can have under way, and of each the numbers that a block takes: B, C, then
// x and z of its columns.
constexpr uint32_t TILE = COLUMNS / 4;
constexpr uint32_t X_AT = 2 * D_STATE, Z_AT = X_AT + COLUMNS, NUMBERS = Z_AT + COLUMNS;
constexpr uint32_t FOURS = TILE * NUMBERS / 4;
constexpr uint32_t FOURS_EACH = (FOURS + SCAN_THREADS - 1) / SCAN_THREADS;

struct Tile {
    float numbers[TILE][NUMBERS];
    float step[TILE], stays[TILE];
    uint32_t slot[TILE], begins[TILE];
};

// What a thread has on its way to a tile: numbers, and of one of its rows the rest.
struct Fetched {
    float4 numbers[FOURS_EACH];
    float t;
    uint32_t slot, position;
};

// Where a block's rows are.
struct Rows {
    const float* projected;     // [m][z, CHANNELS, N_HEAD]
    const float* convolved;     // [m][x, B, C]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    float* out;                 // [m][N_HEAD][HEAD_DIM]
    uint32_t n_slots;
};

// What a head has of its own.
struct HeadWeights {
    float a, dt, d;
};

DEVICE float4 load_z(const float* from) {
    if constexpr (PROJECTED % 4 == 0) return load_relaxed_f32x4(from);
    return make_float4(load_relaxed_f32(from), load_relaxed_f32(from + 1), load_relaxed_f32(from + 2),
                       load_relaxed_f32(from + 3));
}

DEVICE void fetch(Fetched& f, const Rows& p, uint32_t first, uint32_t end, uint32_t head) {
    const uint32_t part = head * HEAD_DIM + blockIdx.x % PARTS * COLUMNS;
    const uint32_t group = head / (N_HEAD / N_GROUP);
#pragma unroll
    for (uint32_t n = 0; n < FOURS_EACH; n++) {
        const uint32_t four = threadIdx.x + n * SCAN_THREADS;
        const uint32_t m = first + four / (NUMBERS / 4), at = four % (NUMBERS / 4) * 4;
        if (four >= FOURS || m >= end) continue;
        const float* row = p.convolved + static_cast<uint64_t>(m) * CHANNELS;
        if (at < D_STATE) {
            f.numbers[n] = load_relaxed_f32x4(row + INNER + group * D_STATE + at);
        } else if (at < X_AT) {
            f.numbers[n] = load_relaxed_f32x4(row + INNER + (N_GROUP + group - 1) * D_STATE + at);
        } else if (at < Z_AT) {
            f.numbers[n] = load_relaxed_f32x4(row + part + at - X_AT);
        } else {
            f.numbers[n] = load_z(p.projected + static_cast<uint64_t>(m) * PROJECTED + part + at - Z_AT);
        }
    }
    const uint32_t m = first + threadIdx.x;
    if (threadIdx.x >= TILE || m >= end) return;
    f.t = load_relaxed_f32(p.projected + static_cast<uint64_t>(m) * PROJECTED + INNER + CHANNELS + head);
    f.slot = load_relaxed_u32(p.slots + m);
    f.position = load_relaxed_u32(p.positions + m);
}

// To be read behind a barrier.
DEVICE void stage(Tile& tile, const Fetched& f, const HeadWeights& w) {
#pragma unroll
    for (uint32_t n = 0; n < FOURS_EACH; n++) {
        const uint32_t four = threadIdx.x + n * SCAN_THREADS;
        if (four < FOURS) reinterpret_cast<float4*>(&tile.numbers[0][0])[four] = f.numbers[n];
    }
    const uint32_t r = threadIdx.x;
    if (r >= TILE) return;
    const float step = softplus_f32(add_rn(f.t, w.dt)), exponent = mul_rn(w.a, step);
    tile.step[r] = step;
    tile.stays[r] = exponent > 0.0f ? 1.0f : exp_down_f32(exponent);
    tile.slot[r] = f.slot;
    tile.begins[r] = f.position == 0;
}

// The row of the state that is a lane's j-th.
DEVICE uint32_t state_row(uint32_t j) { return j / 4 * 16 + threadIdx.x % 32 / 8 * 4 + j % 4; }

// Brings a lane's part of a column forward by u of a row, and gives what the row has of the column.
DEVICE float advance(float (&s)[OWN], const float* row, float u, float g) {
    const uint32_t quarter = threadIdx.x % 32 / 8 * 4;
    float y[4] = {};
#pragma unroll
    for (uint32_t j = 0; j < OWN; j += 4) {
        const float4 b = *reinterpret_cast<const float4*>(row + j * 4 + quarter);
        const float4 c = *reinterpret_cast<const float4*>(row + D_STATE + j * 4 + quarter);
        const float k[4] = {b.x, b.y, b.z, b.w}, q[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            s[j + e] = updated(s[j + e], k[e], u, g);
            y[e] = fma_rn(s[j + e], q[e], y[e]);
        }
    }
    float sum = add_rn(add_rn(y[0], y[1]), add_rn(y[2], y[3]));
    sum = add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 8));
    return add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 16));
}

// The state of a lane, of a slot; zeros where its sequence begins or there is none.
DEVICE float* state_at(float* state, uint32_t slot, uint32_t head, uint32_t column, uint32_t j) {
    const uint64_t matrix = static_cast<uint64_t>(slot) * N_HEAD + head;
    return state + (matrix * D_STATE + state_row(j)) * HEAD_DIM + column;
}

// Rows from first to end. `leave(slot, s)` is told what a slot's last row leaves, and `keep(m, row, u, g)`
// how each row brings the state forward.
template <typename Leave, typename Keep>
DEVICE void scan(Tile (&tiles)[2], const Rows& p, float* state, const HeadWeights& w, uint32_t first,
                 uint32_t end, Leave leave, Keep keep) {
    const uint32_t lane = threadIdx.x % 32, head = blockIdx.x / PARTS;
    const uint32_t near = threadIdx.x / 32 * 8 + lane % 8;
    const uint32_t column = blockIdx.x % PARTS * COLUMNS + near;
    Fetched fetched = {};
    if (first >= end) return;
    fetch(fetched, p, first, end, head);
    float s[OWN];
    uint32_t slot = PADDING_SLOT;
    auto enter = [&](uint32_t its, bool begins) {
        slot = its;
        const bool is_zero = begins || slot >= p.n_slots;
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++) {
            s[j] = is_zero ? 0.0f : load_relaxed_f32(state_at(state, slot, head, column, j));
        }
    };
    enter(load_relaxed_u32(p.slots + first), load_relaxed_u32(p.positions + first) == 0);
    stage(tiles[0], fetched, w);
    __syncthreads();
    for (uint32_t tile = first, at = 0; tile < end; tile += TILE, at ^= 1) {
        const Tile& its = tiles[at];
        const bool goes_on = end - tile > TILE;
        if (goes_on) fetch(fetched, p, tile + TILE, end, head);
        for (uint32_t m = tile; m < end && m < tile + TILE; m++) {
            const uint32_t r = m - tile;
            if (its.slot[r] != slot) {
                leave(slot, s);
                enter(its.slot[r], its.begins[r] != 0);
            }
            const float* row = its.numbers[r];
            const float x = row[X_AT + near], u = mul_rn(its.step[r], x), g = its.stays[r];
            const float y = advance(s, row, u, g);
            keep(m, row, u, g);
            if (lane / 8 == 0) {
                const uint64_t to = (static_cast<uint64_t>(m) * N_HEAD + head) * HEAD_DIM + column;
                p.out[to] = slot < p.n_slots ? swiglu_f32(row[Z_AT + near], fma_rn(w.d, x, y)) : 0.0f;
            }
        }
        if (goes_on) stage(tiles[at ^ 1], fetched, w);
        __syncthreads();
    }
    leave(slot, s);
}
