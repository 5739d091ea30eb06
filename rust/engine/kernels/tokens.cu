// out[r] = tokens[r] + 1, as a whole number: 0 is no token. With `state` a row is a sequence that decodes, whose
// token comes from there, as in embed.cu. A thread a row.
#include "state.cuh"

struct Params {
    float* out;              // [m]
    const uint32_t* tokens;  // [m]
    const SlotState* state;  // or null
    const uint32_t* state_slots;  // [m]
    uint32_t m;
    uint32_t unused;
};

KERNEL(tokens, Params) {
    pdl_wait();
    pdl_trigger();
    const uint32_t m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= p.m) return;
    delay_block();
    uint32_t token;
    if (p.state) {
        const SlotState* state = p.state + load_relaxed_u32(p.state_slots + m);
        token = load_relaxed_u32(&state->live) != 0 ? load_relaxed_u32(&state->token) : 0;
    } else {
        token = load_relaxed_u32(p.tokens + m);
    }
    p.out[m] = static_cast<float>(token + 1);
}
