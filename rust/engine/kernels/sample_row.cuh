// A row of logits and its slot, as the kernels of sample.cu share them: what they pass on, how tokens are
// read, and the end of a row. Its constants are those of sample.cu.
#pragma once
#include "sample.cuh"
#include "state.cuh"
#include "variant.cuh"

constexpr int WARPS = 8;
constexpr uint32_t THREADS = 32 * WARPS;
static_assert(TILE == 4 * THREADS, "a thread has four neighbouring tokens");
static_assert(BINS == 8 * THREADS, "a thread has eight neighbouring bins");
constexpr uint32_t TILES = (N_VOCAB + TILE - 1) / TILE;
constexpr uint32_t PADDED = (N_VOCAB + 3) / 4 * 4;
constexpr uint32_t MASK_WORDS = (N_VOCAB + 63) / 64 * 2;

enum Phase : uint32_t { DONE, DRAW, FILTER };
enum Gather : uint32_t { GATHER_NONE, GATHER_LIST, GATHER_SCAN };
enum Finish : uint32_t { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_FAILED };
constexpr uint32_t RECORD_LIVE = 1u << 31;
constexpr uint32_t RECORD_FINISH = 28;
constexpr uint32_t RECORD_BANNED = 1u << 27;  // of a failure: no token was left
constexpr uint32_t RECORD_TOKEN = (1u << 23) - 1;
constexpr uint32_t NONE = 0xffffffffu;
// Of a count: the token stands in the prompt. Of an entry of the history: it stands there for the
// last time.
constexpr uint32_t IN_PROMPT = 1u << 31;
// As the key of a rank, above that of any float: a logit that no sampler can order.
constexpr uint32_t KEY_BAD = 0xffffffffu;
constexpr uint32_t BAD_ADJUSTED = 1u << 31;  // it became so by bias or penalties

// What the kernels of one step pass on about a row.
struct alignas(128) Row {
    uint64_t threshold;         // the lowest rank that survives
    uint64_t seed, share;
    uint64_t mass_k;      // mass of the bins above bin_k, or all of it
    uint64_t mass_first;  // mass of the bins above `first`
    uint32_t phase, gather;
    uint32_t number;      // of this step
    uint32_t index, top_k;
    uint32_t bin_k, rank_k;  // top-k ends at that many tokens into this bin, NONE: it keeps all
    uint32_t first, last;    // the bins where top-p may end
    uint32_t listed;
    uint32_t tickets[4];
    float most, temperature;
    uint32_t drawn;  // where drafts are verified: the token, or with RECORD_LIVE why there is none
};
static_assert(sizeof(Row) == 128, "the host makes room for it");

struct Params {
    const float* logits;    // [rows][N_VOCAB]
    const uint32_t* slots;  // [rows]
    SlotState* state;
    uint32_t* counts;       // [slots][N_VOCAB]: times generated; top bit: in the prompt
    uint32_t* history;      // [slots][N_CTX]: what leaves the counts with the token at a position
    float* y;               // [rows][PADDED]
    Row* rows;
    uint64_t* partial;      // [rows][MAX_BLOCKS]
    uint32_t* bin_counts;   // [rows][BINS]
    uint64_t* bin_masses;
    uint64_t* list;         // [rows][LIST]
    uint64_t* ring;         // [RING_STEPS][max_rows], mapped host memory
    uint32_t* step;         // steps done
    // Where drafts are verified, of each row: its token and where that stands. [rows]
    const uint32_t* tokens;
    const uint32_t* positions;
    // Of a constrained slot: bit id % 32 of word id / 32 is 1 for a token that may be chosen.
    const uint32_t* masks;  // [rows][MASK_WORDS], mapped host memory
    uint32_t max_rows;
    uint32_t unused;
};

// ---------------------------------------------------------------- tokens of a row

DEVICE void load_logits(const float* row, uint32_t first, float l[4]) {
    if (N_VOCAB % 4 == 0) {
        if (first < N_VOCAB) {
            float4 v = load_relaxed_f32x4(row + first);
            l[0] = v.x, l[1] = v.y, l[2] = v.z, l[3] = v.w;
        } else {
            l[0] = l[1] = l[2] = l[3] = -infinity_f32();
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            l[i] = first + i < N_VOCAB ? load_relaxed_f32(row + first + i) : -infinity_f32();
        }
    }
}

// z of four neighbours; -inf behind the vocabulary.
DEVICE void load_z(const float* y, uint32_t first, float most, float temperature, float z[4]) {
    if (first < PADDED) {
        float4 v = load_relaxed_f32x4(y + first);
        z[0] = v.x, z[1] = v.y, z[2] = v.z, z[3] = v.w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            z[i] = add_rn(div_rn(sub_rn(z[i], most), temperature), 0.0f);
        }
    } else {
        z[0] = z[1] = z[2] = z[3] = -infinity_f32();
    }
}

// Bins of width 1/73 from z = 0 down; the last one takes the rest, all of it below -28 and without
// mass.
DEVICE uint32_t bin_of(float z) {
    return static_cast<uint32_t>(fminf(mul_rn(-z, 73.0f), static_cast<float>(BINS - 1)));
}
// ---------------------------------------------------------------- the end of a row

// What the end needs, loaded early: it does not change before.
struct Before {
    uint32_t slot, position, generated, max_tokens, window, n_stop;
    const uint32_t* stop;
};

DEVICE Before load_before(const SlotState* s, uint32_t slot) {
    Before b;
    b.slot = slot;
    b.position = load_relaxed_u32(&s->position);
    b.generated = load_relaxed_u32(&s->generated);
    b.max_tokens = load_relaxed_u32(&s->max_tokens);
    b.window = load_relaxed_u32(&s->window);
    b.n_stop = load_relaxed_u32(&s->n_stop);
    b.stop = load_pointer(&s->stop);
    return b;
}

// This thread's of the first stop tokens, or NONE: no token.
DEVICE uint32_t load_stop_token(const Before& b) {
    return threadIdx.x < b.n_stop ? load_relaxed_u32(b.stop + threadIdx.x) : NONE;
}

DEVICE void write_record(const Params& p, uint32_t row, uint32_t number, uint32_t word) {
    store_release_sys_u64(p.ring + (number % RING_STEPS) * p.max_rows + row,
                          static_cast<uint64_t>(number) << 32 | word);
}

// The window moves on to `token`, at `position`; sampler/seen.rs has the same and says what an entry
// is. A window that no sequence outgrows holds all of it, and needs no history.
DEVICE void count(const Params& p, const Before& b, uint32_t position, uint32_t token) {
    uint32_t* counts = p.counts + static_cast<uint64_t>(b.slot) * N_VOCAB;
    if (b.window < N_CTX) {
        uint32_t* history = p.history + static_cast<uint64_t>(b.slot) * N_CTX;
        if (position >= b.window) {
            uint32_t entry = load_relaxed_u32(history + (position - b.window));
            uint32_t id = entry & ~IN_PROMPT;
            if (id < N_VOCAB) {
                uint32_t seen = load_relaxed_u32(counts + id);
                counts[id] = entry & IN_PROMPT ? seen & ~IN_PROMPT : seen - 1;
            }
        }
        history[position] = token;
    }
    // After that: it may be the same token.
    counts[token] = load_relaxed_u32(counts + token) + 1;
}

// By a whole block; returns whether the sequence has ended.
DEVICE bool finish(const Params& p, uint32_t row, uint32_t number, const Before& b,
                   uint32_t stop_token, uint32_t token) {
    bool hit = stop_token == token;
    for (uint32_t i = threadIdx.x + THREADS; i < b.n_stop; i += THREADS) {
        hit |= load_relaxed_u32(b.stop + i) == token;
    }
    bool stopped = __syncthreads_or(hit) != 0;
    uint32_t position = b.position + 1, generated = b.generated + 1;
    uint32_t end = stopped ? FINISH_STOP
                   : generated >= b.max_tokens || position + 1 >= N_CTX ? FINISH_LENGTH
                                                                          : FINISH_NONE;
    if (threadIdx.x != 0) return end != FINISH_NONE;
    SlotState* s = p.state + b.slot;
    s->token = token;
    s->position = position;
    s->generated = generated;
    if (end != FINISH_NONE) s->live = 0;
    if (b.window) count(p, b, position, token);
    write_record(p, row, number, RECORD_LIVE | end << RECORD_FINISH | token);
    return end != FINISH_NONE;
}

// By a whole block: the token of a row, the slot's at once, or with others for sample_accept.
DEVICE void take_token(const Params& p, Row* r, uint32_t row, uint32_t number, const Before& b,
                       uint32_t stop_token, uint32_t token) {
    if (!VERIFIES) finish(p, row, number, b, stop_token, token);
    if (VERIFIES && threadIdx.x == 0) r->drawn = token;
}

// Tokens of the draft before this row's: how far it stands behind the slot's position.
DEVICE uint32_t drafted_before(const Params& p, uint32_t row, const Before& b) {
    return VERIFIES ? load_relaxed_u32(p.positions + row) - b.position : 0;
}

// The count of `id` that was `seen`, once the row's draft before it has moved the window on as `count`
// does.
DEVICE uint32_t seen_with_draft(const Params& p, uint32_t row, uint32_t drafted, const Before& b,
                                uint32_t id, uint32_t seen) {
    const uint32_t* draft = p.tokens + row - drafted;  // its first entry is the token drawn last
    const uint32_t* history = p.history + static_cast<uint64_t>(b.slot) * N_CTX;
    for (uint32_t i = 1; i <= drafted; i++) {
        uint32_t position = b.position + i;
        if (b.window < N_CTX && position >= b.window) {
            uint32_t from = position - b.window;
            uint32_t entry = from > b.position ? load_relaxed_u32(draft + (from - b.position))
                                               : load_relaxed_u32(history + from);
            if ((entry & ~IN_PROMPT) == id) seen = entry & IN_PROMPT ? seen & ~IN_PROMPT : seen - 1;
        }
        seen += load_relaxed_u32(draft + i) == id;
    }
    return seen;
}

// By all blocks of a row, each with the largest of its own: whether this block is the last to arrive, and then
// the largest of all of them.
DEVICE bool arrives_last(const Params& p, uint32_t row, uint32_t* arrivals, uint32_t& ticket,
                         uint64_t* scratch, uint64_t best) {
    best = block_max_u64<WARPS>(best, scratch);
    if (threadIdx.x == 0) {
        p.partial[static_cast<uint64_t>(row) * MAX_BLOCKS + blockIdx.x] = best;
        ticket = atomic_inc_acq_rel_wrap(arrivals, gridDim.x - 1);
    }
    __syncthreads();
    return ticket == gridDim.x - 1;
}
DEVICE uint64_t row_max(const Params& p, uint32_t row, uint64_t* scratch) {
    uint64_t best = 0;
    for (uint32_t i = threadIdx.x; i < gridDim.x; i += THREADS) {
        best = larger(best, load_relaxed_u64(p.partial + static_cast<uint64_t>(row) * MAX_BLOCKS + i));
    }
    return block_max_u64<WARPS>(best, scratch);
}
