// The convolution of short_conv.cu over a round's rows: those of a slot are neighbours, the token drawn last
// and its draft. What the state of a slot keeps stays as it is until it is known how many rows count:
//   conv_verify  as if all rows did; the inputs of each are kept in the round's memory
//   conv_commit  brings the state of each slot forward by the rows that count, of all layers alike
//
// variant.cuh: CHANNELS, TAPS, DILATION, SILU, GATES, RECENT, HAS_BIAS, ROW (values of a row of x), FIRST (the
// first of those that are convolved).
#include "kv.cuh"
#include "math.cuh"
#include "round.cuh"
#include "variant.cuh"

constexpr uint32_t KEPT = (TAPS - 1) * DILATION;

struct Verify {
    const float* x;       // [m][ROW]
    const float* weight;  // [CHANNELS][TAPS], or null: RECENT
    const float* bias;    // [CHANNELS], or null
    const float* state;   // [n_slots][KEPT][CHANNELS], the oldest first
    float* inputs;        // [m][CHANNELS]
    float* out;           // [m][CHANNELS], or [m][TAPS][CHANNELS]: RECENT
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t n_slots;
    uint32_t unused;
};

// A thread takes a channel of a row.
KERNEL(conv_verify, Verify) {
    pdl_wait();
    pdl_trigger();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (c >= CHANNELS) return;
    delay_block();
    const uint64_t at = static_cast<uint64_t>(m) * CHANNELS + c;
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    // Of RECENT the values of a row are as far apart as its channels are many.
    float* recent = p.out + static_cast<uint64_t>(m) * TAPS * CHANNELS + c;
    if (slot >= p.n_slots) {
        if (!RECENT) p.out[at] = 0.0f;
        for (uint32_t j = 0; RECENT && j < TAPS; j++) recent[j * CHANNELS] = 0.0f;
        return;
    }
    // Rows of the slot before this one, as far as they matter.
    uint32_t before = 0;
    while (before < KEPT && before < m && load_relaxed_u32(p.slots + m - 1 - before) == slot) before++;
    const bool begins = load_relaxed_u32(p.positions + m) == before;
    auto input = [&](uint32_t row) {
        const float* x = p.x + static_cast<uint64_t>(row) * ROW + FIRST + c;
        const float b = load_relaxed_f32(x);
        return GATES ? mul_rn(b, load_relaxed_f32(x + 2 * CHANNELS)) : b;
    };
    float y = HAS_BIAS ? p.bias[c] : 0.0f, newest = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < TAPS; j++) {
        const uint32_t back = KEPT - j * DILATION;
        if (back <= before) {
            newest = input(m - back);
        } else if (begins) {
            newest = 0.0f;
        } else {
            // What stands so far before the first row.
            const uint64_t kept = static_cast<uint64_t>(slot) * KEPT + (KEPT - (back - before));
            newest = load_relaxed_f32(p.state + kept * CHANNELS + c);
        }
        if constexpr (RECENT) {
            recent[back * CHANNELS] = newest;
        } else {
            y = fma_rn(p.weight[c * TAPS + j], newest, y);
        }
    }
    if (SILU) y = mul_rn(y, sigmoid_f32(y));
    if (GATES) y = mul_rn(y, load_relaxed_f32(p.x + static_cast<uint64_t>(m) * ROW + CHANNELS + c));
    if (!RECENT) p.out[at] = y;
    p.inputs[at] = newest;
}

// A thread takes a channel of a slot, whose rows begin at the block's.
KERNEL(conv_commit, Commit) {
    pdl_wait();
    pdl_trigger();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
    if (c >= CHANNELS) return;
    delay_block();
    const uint32_t accepted = load_relaxed_u32(p.accepted + m);
    if (accepted == 0) return;
    const Place place = load_place(p.places + blockIdx.z);
    const bool begins = load_relaxed_u32(p.positions + m) == 0;
    float* state = place.state + static_cast<uint64_t>(load_relaxed_u32(p.slots + m)) * (KEPT * CHANNELS) + c;
    const float* inputs = place.kept + static_cast<uint64_t>(m) * CHANNELS + c;
    // In order: what an entry takes of the state stands behind it.
#pragma unroll
    for (uint32_t j = 0; j < KEPT; j++) {
        const uint32_t from = j + accepted;
        float x = 0.0f;
        if (from >= KEPT) {
            x = load_relaxed_f32(inputs + static_cast<uint64_t>(from - KEPT) * CHANNELS);
        } else if (!begins) {
            x = load_relaxed_f32(state + from * CHANNELS);
        }
        state[j * CHANNELS] = x;
    }
}
