// out[r] = weight[tokens[r]] * scale, from the tiles that the LM head reads too. A block a row.
//
// With `state`, the row is a sequence that decodes: its token and position come from there, and
// position and slot go to where the step's other kernels read them. A sequence that has ended is a
// padding row: nothing of it is stored.
//
// variant.cuh: N_IN, Segment0.
#include "weight_tile.cuh"
#include "kv.cuh"
#include "state.cuh"
#include "variant.cuh"
#include "expand.cuh"

struct Params {
    const uint8_t* weights;
    float* out;  // [m][N_IN]
    uint32_t* tokens;
    uint32_t* positions;
    uint32_t* slots;
    const SlotState* state;        // or null
    const uint32_t* state_slots;   // [m], which state each row has
    uint32_t n_rows;               // of the table
    float scale;
};

KERNEL(embed, Params) {
    using T = Segment0;
    const uint32_t m = blockIdx.x;
    STAMP(STAMP_BEGUN);
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    uint32_t token;
    if (p.state) {
        const uint32_t slot = load_relaxed_u32(p.state_slots + m);
        const SlotState* state = p.state + slot;
        const bool live = load_relaxed_u32(&state->live) != 0;
        token = live ? load_relaxed_u32(&state->token) : 0;
        if (threadIdx.x == 0) {
            p.positions[m] = live ? load_relaxed_u32(&state->position) : 0;
            p.slots[m] = live ? slot : PADDING_SLOT;
        }
    } else {
        token = load_relaxed_u32(p.tokens + m);
    }
    if (token >= p.n_rows) token = 0;  // the host refuses such tokens
    const uint64_t tile = token / TILE_ROWS;
    const uint8_t* weights = p.weights + tile * N_SB * T::TILE_BYTES;
    float* out = p.out + static_cast<uint64_t>(m) * N_IN;
    if constexpr (T::INTEGERS) {
        expand_integers<T>(weights, token % TILE_ROWS, p.scale, out, 0, N_IN);
    } else {
        expand_floats<T>(weights, token % TILE_ROWS, p.scale, out, 0, N_IN);
    }
    STAMP(STAMP_ENDED);
}
