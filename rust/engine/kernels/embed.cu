// out[r] = weight[tokens[r]], from the units that the LM head reads too. A block a row, a warp a
// superblock at a time.
//
// With `state`, the row is a sequence that decodes: its token and position come from there, and
// position and slot go to where the step's other kernels read them. A sequence that has ended is a
// padding row: nothing of it is stored.
//
// variant.cuh: N_IN, Segment0.
#include "unit.cuh"
#include "kv.cuh"
#include "state.cuh"
#include "variant.cuh"

struct Params {
    const uint8_t* units;
    float* out;  // [m][N_IN]
    uint32_t* tokens;
    uint32_t* positions;
    uint32_t* slots;
    const SlotState* state;        // or null
    const uint32_t* state_slots;   // [m], which state each row has
    uint32_t n_rows;               // of the table
    uint32_t unused;
};

KERNEL(embed, Params) {
    using T = Segment0;
    constexpr uint32_t N_SB = (N_IN + UNIT_COLS - 1) / UNIT_COLS;
    uint32_t m = blockIdx.x, lane = threadIdx.x % 32;
    pdl_wait();
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
    uint32_t at = token % 8;
    for (uint32_t sb = threadIdx.x / 32; sb < N_SB; sb += blockDim.x / 32) {
        if (lane % 4 != at % 4) continue;
        const uint8_t* unit =
            p.units + (static_cast<uint64_t>(token / 8) * N_SB + sb) * T::UNIT_BYTES;
        float w[2][32], s[2][32 / T::SUB], o[2][32 / T::SUB];
        for (int j = 0; j < 2; j++) {
            T::unpack(unit, lane, j, w[j]);
            T::scales(unit, lane, j, s[j], o[j]);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint32_t k = sb * UNIT_COLS + lane / 4 * 32 + i;
            int h = i / T::SUB;
            float weight = at / 4 ? w[1][i] : w[0][i];
            float scale = at / 4 ? s[1][h] : s[0][h], offset = at / 4 ? o[1][h] : o[0][h];
            // As the mat-vec does with an activation of one.
            weight = mul_rn(mul_rn(weight, X_SCALE), T::chain_scale(T::chain(i)));
            if (k < N_IN) p.out[static_cast<uint64_t>(m) * N_IN + k] = fma_rn(scale, weight, offset);
        }
    }
}
