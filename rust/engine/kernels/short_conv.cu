// out[r][c] = sum over j of weight[c][j] * x_(r - TAPS + 1 + j)[c], over the tokens of r's sequence; what
// came before the rows is in the state of its slot. A thread takes a channel, the first block some
// rows in order, those of prompts, and each behind it one that is a sequence of its own.
//
// With gates x[r] has three parts, b, c and u: the convolution is of b * u, and out[r] is c times it.
//
// variant.cuh: CHANNELS, TAPS, SILU, GATES, HAS_BIAS, ROW (values of a row of x), FIRST (the first of those
// that are convolved).
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"

constexpr uint32_t KEPT = TAPS - 1;

struct Params {
    const float* x;       // [m][ROW]
    const float* weight;  // [CHANNELS][TAPS]
    const float* bias;    // [CHANNELS], or null
    float* state;         // [n_slots][KEPT][CHANNELS], the oldest first
    float* out;           // [m][CHANNELS]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t n_slots;
    uint32_t first;  // rows of the first block
};

KERNEL(short_conv, Params) {
    pdl_wait();
    pdl_trigger();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= CHANNELS) return;
    delay_block();
    float weight[TAPS], last[TAPS];
    const float bias = HAS_BIAS ? p.bias[c] : 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < TAPS; j++) weight[j] = p.weight[c * TAPS + j];
    const uint32_t first = blockIdx.y == 0 ? 0 : p.first + blockIdx.y - 1;
    const uint32_t end = blockIdx.y == 0 ? p.first : first + 1;
    uint32_t slot = PADDING_SLOT;
    auto at = [&](uint32_t j) {
        return p.state + (static_cast<uint64_t>(slot) * KEPT + j) * CHANNELS + c;
    };
    auto leave = [&]() {
        if (slot >= p.n_slots) return;
#pragma unroll
        for (uint32_t j = 0; j < KEPT; j++) *at(j) = last[j];
    };
    for (uint32_t m = first; m < end; m++) {
        const uint32_t its = load_relaxed_u32(p.slots + m);
        if (m == first || its != slot) {
            leave();
            slot = its;
            const bool begins = slot >= p.n_slots || load_relaxed_u32(p.positions + m) == 0;
#pragma unroll
            for (uint32_t j = 0; j < KEPT; j++) last[j] = begins ? 0.0f : load_relaxed_f32(at(j));
        }
        const float* x = p.x + static_cast<uint64_t>(m) * ROW + FIRST + c;
        last[KEPT] = load_relaxed_f32(x);
        if (GATES) last[KEPT] = mul_rn(last[KEPT], load_relaxed_f32(x + 2 * CHANNELS));
        float y = bias;
#pragma unroll
        for (uint32_t j = 0; j < TAPS; j++) y = fma_rn(weight[j], last[j], y);
        if (SILU) y = mul_rn(y, sigmoid_f32(y));
        if (GATES) y = mul_rn(y, load_relaxed_f32(x + CHANNELS));
        p.out[static_cast<uint64_t>(m) * CHANNELS + c] = slot < p.n_slots ? y : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < KEPT; j++) last[j] = last[j + 1];
    }
    leave();
}
