// The gated delta rule of delta_net.cu over the rows of prompts, which follow each other. A block takes
// COLUMNS columns of a head's state over all of them: its last warps produce tiles of ROWS rows in shared
// memory, directions and gates ready, while its first ones run the rule over the tile before, in which
// order every number depends on the last. Blocks behind the first of a head take a row that is a sequence
// of its own.
//
// A warp has 16 columns: a lane two of them, and of each one chain of four. What a row has of a column and
// what the next row needs of it are summed in one pass over the state.
//
// Bytes: qkv and out once from memory, qkv again from L2 for each block of a head. Operations: 8 a number of
// the state and row. A row costs what a warp alone on a scheduler takes for its 16 columns, 0.4 us on an
// H200: it issues a float operation every other cycle, and a head has no more chains for a second warp.
//
// variant.cuh: N_HEAD, N_HEAD_K, GROUPED, HEAD_DIM, COLUMNS, ROOT (1 / sqrt(HEAD_DIM)).
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "delta.cuh"

constexpr uint32_t ROWS = HEAD_DIM <= 128 ? 8 : 4;
// Neighbours that a lane has, of eight lanes, and what a warp has.
constexpr uint32_t OWN = 2, ACROSS = 8 * OWN;
constexpr uint32_t CONSUMERS = COLUMNS / ACROSS * 32;
constexpr uint32_t PRODUCER_WARPS = 4, PRODUCERS = 32 * PRODUCER_WARPS;
// Of a tile: directions that a warp of producers makes, and four values each that a thread copies.
constexpr uint32_t DIRECTIONS = 2 * ROWS / PRODUCER_WARPS;
constexpr uint32_t VALUES = (ROWS * COLUMNS / 4 + PRODUCERS - 1) / PRODUCERS;
static_assert(COLUMNS % ACROSS == 0 && 2 * ROWS % PRODUCER_WARPS == 0 && ROWS <= 32, "whole warps");

struct Params {
    const float* qkv;    // [m][HEADS][HEAD_DIM]: queries, keys, values
    const float* alpha;  // [m][N_HEAD]
    const float* beta;   // the same
    const float* a;      // [N_HEAD]
    const float* dt;     // the same
    float* state;        // [n_slots][N_HEAD][HEAD_DIM][HEAD_DIM]
    float* out;          // [m][N_HEAD][HEAD_DIM]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    float eps;
    uint32_t n_slots;
    uint32_t first;  // rows of the first block
    uint32_t unused;
};

// A row as the rule reads it. Numbers of directions lie so that a chain's four next ones are neighbours,
// and those of four chains too.
struct Row {
    float query[HEAD_DIM], key[HEAD_DIM];
};
DEVICE uint32_t place(uint32_t i) { return i / 16 * 16 + i % CHAINS * 4 + i / CHAINS % 4; }

struct alignas(16) Tile {
    Row rows[ROWS];
    float values[ROWS][COLUMNS];
    float decay[ROWS], rate[ROWS];
    uint32_t slots[ROWS];
    bool begins[ROWS];
};

// What a block's threads have in common.
struct Block {
    uint32_t head, key;  // of values, of queries and keys
    uint32_t column;     // the first
    uint32_t begin, end; // rows
};

// What a thread has of the tile that it fetches.
struct Fetched {
    float directions[DIRECTIONS][8];
    float4 values[VALUES];
    float alpha, beta;
    uint32_t slot, position;
};

DEVICE uint32_t producer() { return threadIdx.x - CONSUMERS; }
DEVICE bool has_numbers() { return threadIdx.x % 32 * 8 < HEAD_DIM; }
// Row and kind, 1 of keys, of one of a warp's directions.
DEVICE uint2 direction_of(uint32_t i) {
    const uint32_t number = producer() / 32 + i * PRODUCER_WARPS;
    return make_uint2(number / 2, number % 2);
}

DEVICE void fetch(const Params& p, const Block& block, uint32_t first, Fetched& f) {
    const uint32_t lane = threadIdx.x % 32;
    auto head = [&](uint32_t r, uint32_t number) {
        return p.qkv + (static_cast<uint64_t>(first + r) * HEADS + number) * HEAD_DIM;
    };
#pragma unroll
    for (uint32_t i = 0; i < DIRECTIONS; i++) {
        const uint2 which = direction_of(i);
#pragma unroll
        for (uint32_t e = 0; e < 8; e += 4) {
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + which.x < block.end && has_numbers()) {
                v = load_relaxed_f32x4(head(which.x, which.y * N_HEAD_K + block.key) + lane * 8 + e);
            }
            float* to = f.directions[i] + e;
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        const uint32_t at = (producer() + i * PRODUCERS) * 4, r = at / COLUMNS;
        if (r >= ROWS || first + r >= block.end) break;
        f.values[i] = load_relaxed_f32x4(head(r, 2 * N_HEAD_K + block.head) + block.column + at % COLUMNS);
    }
    const uint32_t m = first + producer();
    if (producer() >= ROWS || m >= block.end) return;
    const uint64_t number = static_cast<uint64_t>(m) * N_HEAD + block.head;
    f.slot = load_relaxed_u32(p.slots + m), f.position = load_relaxed_u32(p.positions + m);
    f.alpha = load_relaxed_f32(p.alpha + number), f.beta = load_relaxed_f32(p.beta + number);
}

// Makes of it what the rule reads.
DEVICE void put(const Params& p, float a, float dt, Fetched& f, Tile& tile) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < DIRECTIONS; i++) {
        const uint2 which = direction_of(i);
        float(&v)[8] = f.directions[i];
        make_direction(v, which.y != 0, p.eps);
        float* to = which.y != 0 ? tile.rows[which.x].key : tile.rows[which.x].query;
        if (!has_numbers()) continue;
        // The lane's eight numbers are two neighbours of each chain.
#pragma unroll
        for (uint32_t e = 0; e < CHAINS; e++) {
            *reinterpret_cast<float2*>(to + place(lane * 8 + e)) = make_float2(v[e], v[e + CHAINS]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        const uint32_t at = (producer() + i * PRODUCERS) * 4;
        if (at < ROWS * COLUMNS) *reinterpret_cast<float4*>(&tile.values[0][0] + at) = f.values[i];
    }
    const uint32_t r = producer();
    if (r >= ROWS) return;
    tile.decay[r] = decay_f32(a, add_rn(f.alpha, dt));
    tile.rate[r] = finite_sigmoid_f32(f.beta);
    tile.slots[r] = f.slot;
    tile.begins[r] = f.slot >= p.n_slots || f.position == 0;
}

// A lane's part of a sequence's state.
struct State {
    float s[CHAIN][OWN];
    uint32_t slot;
};

// The first of a lane's columns, of the block's, and its chain.
DEVICE uint32_t own_column() { return threadIdx.x / 32 * ACROSS + threadIdx.x % 8 * OWN; }
DEVICE uint32_t own_chain() { return threadIdx.x % 32 / 8; }

DEVICE float2* state_at(const Params& p, const Block& block, uint32_t slot, uint32_t j) {
    const uint64_t matrix = static_cast<uint64_t>(slot) * N_HEAD + block.head;
    float* row = p.state + (matrix * HEAD_DIM + j * CHAINS + own_chain()) * HEAD_DIM;
    return reinterpret_cast<float2*>(row + block.column + own_column());
}

DEVICE void leave(const Params& p, const Block& block, const State& of) {
    if (of.slot >= p.n_slots) return;
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j++) {
        *state_at(p, block, of.slot, j) = make_float2(of.s[j][0], of.s[j][1]);
    }
}

DEVICE void take(const Params& p, const Block& block, uint32_t slot, bool begins, State& of) {
    of.slot = slot;
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j++) {
        uint2 f = make_uint2(0, 0);
        if (!begins) f = load_relaxed_u32x2(state_at(p, block, slot, j));
        of.s[j][0] = u32_as_float(f.x), of.s[j][1] = u32_as_float(f.y);
    }
}

DEVICE void four(const float* from, float (&to)[4]) {
    const float4 f = *reinterpret_cast<const float4*>(from);
    to[0] = f.x, to[1] = f.y, to[2] = f.z, to[3] = f.w;
}

// The lane's chains of what a row needs of the state before it.
DEVICE void recall(const State& of, const Row& row, float (&u)[OWN]) {
    u[0] = u[1] = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j += 4) {
        float k[4];
        four(row.key + j * CHAINS + own_chain() * 4, k);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
#pragma unroll
            for (uint32_t n = 0; n < OWN; n++) u[n] = fma_rn(of.s[j + e][n], k[e], u[n]);
        }
    }
}

// Brings the state forward by a row, with w; y is what the row has of it, and u what the next row needs.
DEVICE void advance_both(State& of, const Row& row, const Row& next, const float (&w)[OWN], float g,
                         float (&y)[OWN], float (&u)[OWN]) {
    y[0] = y[1] = u[0] = u[1] = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j += 4) {
        const uint32_t from = j * CHAINS + own_chain() * 4;
        float k[4], q[4], of_next[4];
        four(row.key + from, k), four(row.query + from, q), four(next.key + from, of_next);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
#pragma unroll
            for (uint32_t n = 0; n < OWN; n++) {
                float& s = of.s[j + e][n];
                s = updated(s, k[e], w[n], g);
                y[n] = fma_rn(s, q[e], y[n]);
                u[n] = fma_rn(s, of_next[e], u[n]);
            }
        }
    }
}

DEVICE void run_tile(const Params& p, const Block& block, const Tile& tile, uint32_t first, State& of) {
    const uint32_t rows = block.end - first < ROWS ? block.end - first : ROWS;
    // Of the next row, asked for while the rule runs over this one.
    float u[OWN] = {}, g = tile.decay[0], b = tile.rate[0];
    uint32_t its = tile.slots[0];
    float2 v = *reinterpret_cast<const float2*>(&tile.values[0][own_column()]);
    for (uint32_t r = 0; r < rows; r++) {
        const bool is_new = its != of.slot || first + r == block.begin;
        if (is_new) {
            leave(p, block, of);
            take(p, block, its, tile.begins[r], of);
        }
        // Nobody summed up for the first row of a tile and of a sequence.
        if (is_new || r == 0) {
            recall(of, tile.rows[r], u);
            u[0] = chains_sum(u[0]), u[1] = chains_sum(u[1]);
        }
        const float w[OWN] = {mul_rn(fma_rn(-g, u[0], v.x), b), mul_rn(fma_rn(-g, u[1], v.y), b)};
        const uint32_t next = r + 1 < rows ? r + 1 : r;
        const float decay = g;
        its = tile.slots[next], g = tile.decay[next], b = tile.rate[next];
        v = *reinterpret_cast<const float2*>(&tile.values[next][own_column()]);
        float y[OWN];
        advance_both(of, tile.rows[r], tile.rows[next], w, decay, y, u);
        // All four side by side: each waits for lanes of its own.
        float sums[2 * OWN] = {u[0], u[1], y[0], y[1]};
#pragma unroll
        for (uint32_t apart = 8; apart <= 16; apart *= 2) {
#pragma unroll
            for (uint32_t i = 0; i < 2 * OWN; i++) {
                sums[i] = add_rn(sums[i], __shfl_xor_sync(FULL_WARP, sums[i], apart));
            }
        }
        u[0] = sums[0], u[1] = sums[1], y[0] = sums[2], y[1] = sums[3];
        if (own_chain() != 0) continue;
        const uint64_t number = static_cast<uint64_t>(first + r) * N_HEAD + block.head;
        float* out = p.out + number * HEAD_DIM + block.column + own_column();
        *reinterpret_cast<float2*>(out) =
            of.slot < p.n_slots ? make_float2(y[0], y[1]) : make_float2(0.0f, 0.0f);
    }
}

KERNEL_BOUNDS(delta_prompt, Params, CONSUMERS + PRODUCERS, 1) {
    SHARED Tile tiles[2];
    Block block;
    block.head = blockIdx.x / PARTS, block.key = key_head(block.head);
    block.column = blockIdx.x % PARTS * COLUMNS;
    block.begin = blockIdx.y == 0 ? 0 : p.first + blockIdx.y - 1;
    block.end = blockIdx.y == 0 ? p.first : block.begin + 1;
    const float a = p.a[block.head], dt = p.dt[block.head];
    pdl_wait();
    pdl_trigger();
    delay_block();
    const bool is_producer = threadIdx.x >= CONSUMERS;
    Fetched fetched = {};
    State state;
    state.slot = PADDING_SLOT;
    if (is_producer) fetch(p, block, block.begin, fetched);
    for (uint32_t first = block.begin, turn = 0; first < block.end; first += ROWS, turn ^= 1) {
        if (is_producer) {
            put(p, a, dt, fetched, tiles[turn]);
            fetch(p, block, first + ROWS, fetched);
        }
        // The tile is there; the one before it was read by all, and may be replaced.
        __syncthreads();
        if (!is_producer) run_tile(p, block, tiles[turn], first, state);
    }
    if (!is_producer) leave(p, block, state);
}
