// How many rows of each slot of a round count, for what goes by that behind the draw: those that
// sample_accept took a token from.
//
// variant.cuh: MOST_ROWS, RING_STEPS.
#include "common.cuh"
#include "variant.cuh"

struct Params {
    const uint64_t* ring;   // [RING_STEPS][max_rows], mapped host memory: number of the step, then the record
    const uint32_t* step;   // of the draw
    const uint32_t* slots;  // [m]
    uint32_t* accepted;     // [m]: of a slot's first row how many of its rows count, else 0
    uint32_t m;
    uint32_t max_rows;
    uint32_t n_slots;
    uint32_t unused;
};

constexpr uint32_t RECORD_LIVE = 1u << 31;

// A block has all rows, a thread each.
KERNEL_BOUNDS(accepted, Params, MOST_ROWS, 1) {
    SHARED uint32_t slots[MOST_ROWS];
    SHARED bool counts[MOST_ROWS];
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t row = threadIdx.x;
    if (row < p.m) {
        const uint32_t number = load_relaxed_u32(p.step);
        const uint64_t word = load_relaxed_u64(p.ring + (number % RING_STEPS) * p.max_rows + row);
        slots[row] = load_relaxed_u32(p.slots + row);
        counts[row] = word >> 32 == number && (word & RECORD_LIVE) != 0 && slots[row] < p.n_slots;
    }
    __syncthreads();
    if (row >= p.m) return;
    const bool is_first = row == 0 || slots[row - 1] != slots[row];
    uint32_t n = 0;
    if (is_first) {
        while (row + n < p.m && slots[row + n] == slots[row] && counts[row + n]) n++;
    }
    p.accepted[row] = n;
}
