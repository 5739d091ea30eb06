// Of several cards: out[r][piece][rank] = x[r][piece] of that card. Each block stores its share of x where the
// other cards look for it, says so behind that, and waits for theirs.
//
// What comes from others lands in memory of its own, by turns in one of two halves: a card may store its
// part of the next exchange while this one still takes the last one's, but not of the one behind that,
// before which it waits for all blocks of this one's next.
//
// variant.cuh: CARDS, PIECE (numbers of a piece that a card has), PIECES (of a row).
#include "common.cuh"
#include "host.cuh"
#include "variant.cuh"

constexpr uint32_t GROUP = PIECE % 4 == 0 ? 4 : 1;  // numbers that a thread has at a time
constexpr uint32_t GROUPS = PIECE / GROUP;

struct Params {
    const float* x;  // [m][PIECES][PIECE]
    float* out;      // [m][PIECES][CARDS][PIECE]
    // By card, there: [2][MOST_CARDS][capacity], by parity and by whom it is from.
    float* landing[MOST_CARDS];
    // By card, there: [MOST_CARDS][MOST_BLOCKS], the last exchange whose part has come, by whom it is from.
    uint64_t* flags[MOST_CARDS];
    uint64_t* count;        // exchanges so far
    uint32_t* ticket;       // zero between launches
    const uint64_t* abort;  // a word of the host: not zero once a card has failed
    uint64_t capacity;
    uint32_t n;  // groups of x
    uint32_t rank;
};

DEVICE float load(const float* at) { return load_relaxed_f32(at); }
DEVICE float4 load(const float4* at) { return load_relaxed_f32x4(at); }

template <uint32_t n>
struct Numbers {
    using Type = float;
};
template <>
struct Numbers<4> {
    using Type = float4;
};
using Value = Numbers<GROUP>::Type;

KERNEL_BOUNDS(exchange, Params, 256, 1) {
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint64_t number = load_relaxed_u64(p.count) + 1;
    const uint64_t half = number % 2 * MOST_CARDS;
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    const Value* x = reinterpret_cast<const Value*>(p.x);
    auto place = [&](uint32_t i, uint32_t card) {
        const uint64_t piece = i / GROUPS;
        return reinterpret_cast<Value*>(p.out) + (piece * CARDS + card) * GROUPS + i % GROUPS;
    };
    auto landing = [&](uint32_t card, uint32_t from) {
        return reinterpret_cast<Value*>(p.landing[card] + (half + from) * p.capacity);
    };
    for (uint32_t i = first; i < p.n; i += stride) {
        const Value value = load(x + i);
        *place(i, p.rank) = value;
#pragma unroll
        for (uint32_t card = 0; card < CARDS; card++) {
            if (card == p.rank) continue;
            store_away(landing(card, p.rank) + i, value);
        }
    }
    __syncthreads();
    const uint32_t card = threadIdx.x;
    if (card < CARDS && card != p.rank) {
        store_release_sys_u64(p.flags[card] + p.rank * MOST_BLOCKS + blockIdx.x, number);
        wait_for_card(p.flags[p.rank] + card * MOST_BLOCKS + blockIdx.x, number, p.abort);
    }
    // Behind the last block's: until then some may still read it.
    if (threadIdx.x == CARDS && atomic_inc_acq_rel_wrap(p.ticket, gridDim.x - 1) == gridDim.x - 1) {
        *p.count = number;
    }
    __syncthreads();
    for (uint32_t i = first; i < p.n; i += stride) {
#pragma unroll
        for (uint32_t card = 0; card < CARDS; card++) {
            if (card == p.rank) continue;
            *place(i, card) = load(landing(p.rank, card) + i);
        }
    }
}
