// What a model drafts by itself, on the card: in front of a round its drafter guesses, behind every pass it
// follows. A round has ROWS rows of each sequence, neighbours: the token drawn last, then the drafted ones.
//   draft_begin  makes up the rows of a round and of its first guess
//   draft_next   takes the largest logit of each sequence, of equals the first, as its next drafted token
//   draft_rows   finds of each row of a step or round the token that follows it
//   draft_drawn  the same of the rows that prompts drew from
//   draft_keep   keeps the row that a sequence's next guess goes by
// A drafter that goes by tokens alone has the first two, and N_EMBD is 0.
//
// variant.cuh: N_VOCAB logits a row, of which N_TOKENS are of tokens of the model; N_EMBD, MOVES, THREADS.
#include "kv.cuh"
#include "sample.cuh"
#include "state.cuh"
#include "variant.cuh"

constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t NONE = 0xffffffffu;
constexpr bool BY_ROWS = N_EMBD > 0;

struct Begin {
    const uint32_t* sequences;  // [n]: slots; n_slots for none
    const SlotState* state;
    const float* kept;  // [n_slots][N_EMBD]
    float* hidden;      // [n][N_EMBD]
    // Of the guess. [n]
    uint32_t* tokens;
    uint32_t* positions;
    uint32_t* slots;
    // Of the round. [n][rows]
    uint32_t* row_tokens;
    uint32_t* row_positions;
    uint32_t* row_slots;
    uint32_t* row_sequences;
    uint32_t rows;
    uint32_t n_slots;
    uint32_t n_ctx;
    uint32_t unused;
};

// A block a sequence.
KERNEL(draft_begin, Begin) {
    pdl_wait();
    pdl_trigger();
    const uint32_t i = blockIdx.x, slot = load_relaxed_u32(p.sequences + i);
    const SlotState* s = p.state + slot;
    const bool live = slot < p.n_slots && load_relaxed_u32(&s->live) != 0;
    const uint32_t position = live ? load_relaxed_u32(&s->position) : 0;
    const uint32_t token = live ? load_relaxed_u32(&s->token) : 0;
    // Rows that could draw no token are padding.
    const uint32_t left = live ? load_relaxed_u32(&s->max_tokens) - load_relaxed_u32(&s->generated) : 0;
    delay_block();
    for (uint32_t row = threadIdx.x; row < p.rows; row += blockDim.x) {
        const uint32_t at = i * p.rows + row;
        if (row == 0) p.row_tokens[at] = token;
        p.row_positions[at] = position + row;
        p.row_slots[at] = row < left && position + row < p.n_ctx ? slot : PADDING_SLOT;
        p.row_sequences[at] = slot;
    }
    if (threadIdx.x == 0) {
        p.tokens[i] = token;
        // By rows, that before the token.
        p.positions[i] = live ? position - BY_ROWS : 0;
        p.slots[i] = live ? slot : PADDING_SLOT;
    }
    if constexpr (!BY_ROWS) return;
    for (uint32_t c = threadIdx.x; c < N_EMBD; c += blockDim.x) {
        const uint64_t from = static_cast<uint64_t>(slot) * N_EMBD + c;
        p.hidden[static_cast<uint64_t>(i) * N_EMBD + c] = live ? load_relaxed_f32(p.kept + from) : 0.0f;
    }
}

struct Next {
    const float* logits;  // [n][N_VOCAB]
    uint64_t* partial;    // [n][blocks]
    uint32_t* tickets;    // [n]
    uint32_t* tokens;     // [n]
    uint32_t* positions;
    uint32_t* slots;
    uint32_t* row_tokens;       // [n][rows]
    const uint32_t* row_slots;  // [n][rows]
    uint32_t rows;
    uint32_t row;  // that the token is of
};

// A row of blocks a sequence: the last to arrive has what all have found.
KERNEL_BOUNDS(draft_next, Next, THREADS, 2) {
    SHARED uint64_t scratch[WARPS];
    SHARED uint32_t ticket;
    pdl_wait();
    pdl_trigger();
    const uint32_t i = blockIdx.y;
    const float* logits = p.logits + static_cast<uint64_t>(i) * N_VOCAB;
    delay_block();
    uint64_t best = 0;
    for (uint32_t id = blockIdx.x * THREADS + threadIdx.x; id < N_TOKENS; id += gridDim.x * THREADS) {
        best = larger(best, rank_of(load_relaxed_f32(logits + id), id));
    }
    best = block_max_u64<WARPS>(best, scratch);
    uint64_t* partial = p.partial + static_cast<uint64_t>(i) * gridDim.x;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = best;
        ticket = atomic_inc_acq_rel_wrap(p.tickets + i, gridDim.x - 1);
    }
    __syncthreads();
    if (ticket != gridDim.x - 1) return;
    best = 0;
    for (uint32_t b = threadIdx.x; b < gridDim.x; b += THREADS) {
        best = larger(best, load_relaxed_u64(partial + b));
    }
    best = block_max_u64<WARPS>(best, scratch);
    if (threadIdx.x != 0) return;
    const uint32_t token = rank_id(best), at = i * p.rows + p.row;
    p.row_tokens[at] = token;
    p.tokens[i] = token;
    p.positions[i] = load_relaxed_u32(p.positions + i) + MOVES;
    p.slots[i] = load_relaxed_u32(p.row_slots + at);
}

struct Rows {
    const uint32_t* tokens;     // [m]
    const uint32_t* positions;  // [m]
    const uint32_t* sequences;  // [m]: slots, those of one neighbours; n_slots for none
    const SlotState* state;
    uint32_t* next;  // [m]
    uint32_t* keeps;  // [m]: the slot that keeps the row, or NONE
    uint32_t m;
    uint32_t n_slots;
};

// A thread a row.
KERNEL(draft_rows, Rows) {
    pdl_wait();
    pdl_trigger();
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.m) return;
    delay_block();
    const uint32_t slot = load_relaxed_u32(p.sequences + row);
    uint32_t next = 0, keeps = NONE;
    if (slot < p.n_slots) {
        uint32_t first = row;
        while (first > 0 && load_relaxed_u32(p.sequences + first - 1) == slot) first--;
        const SlotState* s = p.state + slot;
        // Where the token drawn last stands, behind the last row that counts.
        const uint32_t end = load_relaxed_u32(&s->position), begin = load_relaxed_u32(p.positions + first);
        const uint32_t last = end > begin ? first + (end - begin - 1) : first;
        const bool has_next = row + 1 < p.m && load_relaxed_u32(p.sequences + row + 1) == slot;
        if (row == last) {
            next = load_relaxed_u32(&s->token);
            keeps = slot;
        } else if (has_next) {
            next = load_relaxed_u32(p.tokens + row + 1);
        }
    }
    p.next[row] = next;
    p.keeps[row] = keeps;
}

struct Drawn {
    const uint32_t* rows;       // [m]: of the pass
    const uint32_t* sequences;  // [m]
    const SlotState* state;
    uint32_t* next;   // by row of the pass
    uint32_t* keeps;
    uint32_t m;
    uint32_t n_slots;
};

// A thread a row that was drawn from.
KERNEL(draft_drawn, Drawn) {
    pdl_wait();
    pdl_trigger();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.m) return;
    delay_block();
    const uint32_t row = load_relaxed_u32(p.rows + i), slot = load_relaxed_u32(p.sequences + i);
    if (slot >= p.n_slots) return;
    p.next[row] = load_relaxed_u32(&p.state[slot].token);
    p.keeps[row] = slot;
}

struct Keep {
    const float* rows;      // [m][N_EMBD]
    const uint32_t* keeps;  // [m]
    float* kept;            // [n_slots][N_EMBD]
};

// A block a row.
KERNEL(draft_keep, Keep) {
    pdl_wait();
    pdl_trigger();
    const uint32_t row = blockIdx.x, slot = load_relaxed_u32(p.keeps + row);
    if (slot == NONE) return;
    delay_block();
    for (uint32_t c = threadIdx.x; c < N_EMBD; c += blockDim.x) {
        const uint64_t from = static_cast<uint64_t>(row) * N_EMBD + c;
        p.kept[static_cast<uint64_t>(slot) * N_EMBD + c] = load_relaxed_f32(p.rows + from);
    }
}
