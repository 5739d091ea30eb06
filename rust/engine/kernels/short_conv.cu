// out[r][c] = sum over j of weight[c][j] * x_(r - TAPS + 1 + j)[c], over the tokens of r's sequence; what
// came before the rows is in the state of its slot. With gates x[r] has three parts, b, c and u: the
// convolution is of b * u, and out[r] is c times it.
//
// With a DILATION the inputs are so many tokens apart. RECENT: out[r] is these inputs themselves, the newest first.
//
// A thread takes a channel of a tile of ROWS rows. A run is the rows of one sequence. The block whose tile
// a run begins in is the only one that reads the run's state, so it computes the run's first KEPT rows
// even where they lie in the next tile, and then replaces the state. In a step each row is a run.
//
// variant.cuh: CHANNELS, TAPS, DILATION, SILU, GATES, RECENT, HAS_BIAS, ROW (values of a row of x), FIRST (the
// first of those that are convolved), ROWS.
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"

constexpr uint32_t KEPT = (TAPS - 1) * DILATION;
static_assert(ROWS == 1 || ROWS >= KEPT, "rows left to the tile before reach no further");

struct Params {
    const float* x;       // [m][ROW]
    const float* weight;  // [CHANNELS][TAPS], or null: RECENT
    const float* bias;    // [CHANNELS], or null
    float* state;         // [n_slots][KEPT][CHANNELS], the oldest first
    float* out;           // [m][CHANNELS], or [m][TAPS][CHANNELS]: RECENT
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t n_slots;
    uint32_t m;
};

// What the convolution is of.
DEVICE float input(const Params& p, uint32_t m, uint32_t c) {
    const float* x = p.x + static_cast<uint64_t>(m) * ROW + FIRST + c;
    const float b = load_relaxed_f32(x);
    return GATES ? mul_rn(b, load_relaxed_f32(x + 2 * CHANNELS)) : b;
}

// The row behind the last of a run that row m belongs to: a run's rows are neighbours.
DEVICE uint32_t run_end(const Params& p, uint32_t m, uint32_t slot) {
    uint32_t in = m, out = p.m;
    while (out - in > 1) {
        const uint32_t step = (out - in + 31) / 32;
        const uint32_t at = in + (threadIdx.x % 32 + 1) * step;
        const bool belongs = at < out && load_relaxed_u32(p.slots + at) == slot;
        const uint32_t inside = in + static_cast<uint32_t>(__popc(__ballot_sync(FULL_WARP, belongs))) * step;
        out = out < inside + step ? out : inside + step;
        in = inside;
    }
    return out;
}

KERNEL(short_conv, Params) {
    pdl_wait();
    pdl_trigger();
    // Lanes behind the last channel keep it company: they search with the others.
    const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    const bool is_channel = thread < CHANNELS;
    const uint32_t c = is_channel ? thread : CHANNELS - 1;
    delay_block();
    float weight[TAPS], last[KEPT + 1];
    const float bias = HAS_BIAS ? p.bias[c] : 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < TAPS; j++) weight[j] = RECENT ? 0.0f : p.weight[c * TAPS + j];
    const uint32_t first = blockIdx.y * ROWS;
    const uint32_t rows = p.m - first < ROWS ? p.m - first : ROWS;
    float in[ROWS];
    uint32_t its[ROWS];
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i < rows) its[i] = load_relaxed_u32(p.slots + first + i), in[i] = input(p, first + i, c);
    }
    uint32_t slot = its[0];
    auto at = [&](uint32_t j) {
        return p.state + (static_cast<uint64_t>(slot) * KEPT + j) * CHANNELS + c;
    };
    // Where the run of `slot` begins, if in this tile.
    uint32_t start = 0;
    bool is_own = false;
    auto begin = [&](uint32_t m, uint32_t its) {
        slot = its, start = m, is_own = true;
        const bool begins = slot >= p.n_slots || load_relaxed_u32(p.positions + m) == 0;
#pragma unroll
        for (uint32_t j = 0; j < KEPT; j++) last[j] = begins ? 0.0f : load_relaxed_f32(at(j));
    };
    auto leave = [&]() {
        if (!is_own || !is_channel || slot >= p.n_slots) return;
#pragma unroll
        for (uint32_t j = 0; j < KEPT; j++) *at(j) = last[j];
    };
    auto take = [&](uint32_t m, float newest, bool is_other_tiles) {
        last[KEPT] = newest;
        float y = bias;
        if constexpr (RECENT) {
#pragma unroll
            for (uint32_t j = 0; j < TAPS; j++) {
                const uint64_t to = (static_cast<uint64_t>(m) * TAPS + j) * CHANNELS + c;
                if (is_channel && !is_other_tiles) p.out[to] = slot < p.n_slots ? last[KEPT - j] : 0.0f;
            }
        } else {
#pragma unroll
            for (uint32_t j = 0; j < TAPS; j++) y = fma_rn(weight[j], last[j * DILATION], y);
        }
        if (SILU) y = mul_rn(y, sigmoid_f32(y));
        if (GATES) y = mul_rn(y, load_relaxed_f32(p.x + static_cast<uint64_t>(m) * ROW + FIRST + CHANNELS + c));
        if (!RECENT && is_channel && !is_other_tiles) {
            p.out[static_cast<uint64_t>(m) * CHANNELS + c] = slot < p.n_slots ? y : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < KEPT; j++) last[j] = last[j + 1];
    };
    // How many rows before the tile belong to the run of its first row, of the KEPT nearest.
    uint32_t back = 0;
    if constexpr (ROWS > 1) {
#pragma unroll
        for (uint32_t k = 1; k <= KEPT; k++) {
            const bool belongs = first >= k && load_relaxed_u32(p.slots + first - k) == slot;
            back += back == k - 1 && belongs ? 1 : 0;
        }
        if (back > 0) {
#pragma unroll
            for (uint32_t j = 0; j < KEPT; j++) {
                last[j] = j + back < KEPT ? 0.0f : input(p, first + j - KEPT, c);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i >= rows) break;
        if (i == 0 ? back == 0 : its[i] != slot) {
            leave();
            begin(first + i, its[i]);
        }
        take(first + i, in[i], !is_own && back + i < KEPT && slot < p.n_slots);
    }
    if constexpr (ROWS > 1) {
        if (is_own && slot < p.n_slots) {
            uint32_t m = first + rows;
            auto goes_on = [&]() { return m < p.m && load_relaxed_u32(p.slots + m) == slot; };
            for (; m - start < KEPT && goes_on(); m++) take(m, input(p, m, c), false);
            if (goes_on()) {
                const uint32_t end = run_end(p, m, slot);
#pragma unroll
                for (uint32_t j = 0; j < KEPT; j++) last[j] = input(p, end + j - KEPT, c);
            }
        }
    }
    leave();
}
