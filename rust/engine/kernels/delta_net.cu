// The gated delta rule as Op::DeltaNet states it, over rows that are sequences of their own. A block takes
// COLUMNS columns of a head's state of a row, which its threads hold in registers.
//
// Where it CONVOLVES, queries, keys and values are what Op::ShortConv makes of a row: each block finds out
// those that it has. What the convolution keeps of values is the block's to
// bring up to date, of queries and keys that of the block that has read them last.
//
// variant.cuh: N_HEAD, N_HEAD_K, GROUPED, HEAD_DIM, COLUMNS, ROOT (1 / sqrt(HEAD_DIM)), CONVOLVES, TAPS.
#include "kv.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "delta.cuh"

constexpr uint32_t CHANNELS = HEADS * HEAD_DIM;
constexpr uint32_t KEPT = TAPS - 1;
// The power of two from n on.
constexpr int power_from(uint32_t n) { return n > 1 ? 2 * power_from((n + 1) / 2) : 1; }
// Of queries and keys that a thread convolves, neighbours: a power of two divides a head.
constexpr int OWN = power_from((2 * HEAD_DIM + WARPS * 32 - 1) / (WARPS * 32));
static_assert(HEAD_DIM % OWN == 0 && OWN * WARPS * 32 >= 2 * HEAD_DIM, "all of both, apart");
static_assert(!CONVOLVES || N_HEAD % N_HEAD_K == 0, "as many blocks for each head of keys");
// Blocks of the heads that share a head of queries and keys.
constexpr uint32_t SHARERS = N_HEAD / N_HEAD_K * PARTS;

// The convolution before, where it CONVOLVES.
struct Convolution {
    const float* weight;  // [CHANNELS][TAPS]
    float* state;         // [n_slots][KEPT][CHANNELS], the oldest first
    uint32_t* tickets;    // [m][N_HEAD_K], zero between launches
};

struct Params {
    const float* qkv;    // [m][HEADS][HEAD_DIM]: queries, keys, values; or what they are convolved of
    const float* alpha;  // [m][N_HEAD]
    const float* beta;   // the same
    const float* a;      // [N_HEAD]
    const float* dt;     // the same
    float* state;        // [n_slots][N_HEAD][HEAD_DIM][HEAD_DIM]
    float* out;          // [m][N_HEAD][HEAD_DIM]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    float eps;
    uint32_t n_slots;
    Convolution conv;
};

// Channels of the convolution, N neighbours: what is kept of each, then the newest.
template <int N>
struct Window {
    float weight[N][TAPS], last[N][TAPS];
};

template <int N>
DEVICE void ask_weights(Window<N>& w, const Convolution& conv, uint32_t channel) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (uint32_t j = 0; j < TAPS; j++) w.weight[n][j] = conv.weight[(channel + n) * TAPS + j];
    }
}

// `begins`: nothing came before.
template <int N>
DEVICE void ask_window(Window<N>& w, const float* state, const float* row, uint32_t channel, bool begins) {
#pragma unroll
    for (uint32_t j = 0; j < TAPS; j++) {
        const float* from = (j < KEPT ? state + j * CHANNELS : row) + channel;
        const bool is_zero = j < KEPT && begins;
        if constexpr (N % 2 == 0) {
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                uint2 f = make_uint2(0, 0);
                if (!is_zero) f = load_relaxed_u32x2(from + n);
                w.last[n][j] = u32_as_float(f.x), w.last[n + 1][j] = u32_as_float(f.y);
            }
        } else {
#pragma unroll
            for (int n = 0; n < N; n++) w.last[n][j] = is_zero ? 0.0f : load_relaxed_f32(from + n);
        }
    }
}

template <int N>
DEVICE void convolve(const Window<N>& w, float (&y)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < TAPS; j++) sum = fma_rn(w.weight[n][j], w.last[n][j], sum);
        y[n] = mul_rn(sum, sigmoid_f32(sum));
    }
}

template <int N>
DEVICE void leave_window(const Window<N>& w, float* state, uint32_t channel) {
#pragma unroll
    for (uint32_t j = 0; j < KEPT; j++) {
#pragma unroll
        for (int n = 0; n < N; n++) state[j * CHANNELS + channel + n] = w.last[n][j + 1];
    }
}

KERNEL_BOUNDS(delta_net, Params, WARPS * 32, 1) {
    SHARED float direction[2][HEAD_DIM];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t chain = lane / 8;
    const uint32_t head = blockIdx.x / PARTS, key = key_head(head);
    const uint32_t column = blockIdx.x % PARTS * COLUMNS + warp * 8 + lane % 8;
    const float a = p.a[head], dt = p.dt[head];
    // Of queries, of keys, a warp each; and of values, which all lanes of a column have.
    const uint32_t direction_at = (warp * N_HEAD_K + key) * HEAD_DIM + lane * 8;
    const uint32_t value_at = (2 * N_HEAD_K + head) * HEAD_DIM + column;
    alignas(16) SHARED float convolved[CONVOLVES ? 2 * HEAD_DIM : 1];
    [[maybe_unused]] Window<OWN> of_direction;
    [[maybe_unused]] Window<1> of_value;
    const uint32_t own = threadIdx.x * OWN;
    const uint32_t own_at = (own / HEAD_DIM * N_HEAD_K + key) * HEAD_DIM + own % HEAD_DIM;
    if constexpr (CONVOLVES) {
        if (own < 2 * HEAD_DIM) ask_weights(of_direction, p.conv, own_at);
        ask_weights(of_value, p.conv, value_at);
    }
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t m = blockIdx.y;
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    const bool begins = slot >= p.n_slots || load_relaxed_u32(p.positions + m) == 0;
    const float* row = p.qkv + static_cast<uint64_t>(m) * CHANNELS;
    if constexpr (CONVOLVES) {
        const float* state = p.conv.state + static_cast<uint64_t>(slot) * (KEPT * CHANNELS);
        if (own < 2 * HEAD_DIM) ask_window(of_direction, state, row, own_at, begins);
        ask_window(of_value, state, row, value_at, begins);
    }
    auto at = [&](uint32_t j) {
        const uint64_t matrix = static_cast<uint64_t>(slot) * N_HEAD + head;
        return p.state + (matrix * HEAD_DIM + j * CHAINS + chain) * HEAD_DIM + column;
    };
    float s[CHAIN];
#pragma unroll
    for (uint32_t j = 0; j < CHAIN; j++) s[j] = begins ? 0.0f : load_relaxed_f32(at(j));
    if constexpr (CONVOLVES) {
        if (own < 2 * HEAD_DIM) {
            float y[OWN];
            convolve(of_direction, y);
#pragma unroll
            for (int n = 0; n < OWN; n++) convolved[own + n] = y[n];
        }
        __syncthreads();
    }
    set_directions(direction, p.eps, [&](uint32_t e) {
        const float* from = convolved + warp * HEAD_DIM + lane * 8 + e;
        return CONVOLVES ? *reinterpret_cast<const float4*>(from)
                         : load_relaxed_f32x4(row + direction_at + e);
    });
    __syncthreads();
    [[maybe_unused]] uint32_t ticket = 0;
    if (CONVOLVES && threadIdx.x == 0) {
        ticket = atomic_inc_acq_rel_wrap(p.conv.tickets + m * N_HEAD_K + key, SHARERS - 1);
    }
    const uint64_t number = static_cast<uint64_t>(m) * N_HEAD + head;
    const float g = decay_f32(a, add_rn(load_relaxed_f32(p.alpha + number), dt));
    const float b = finite_sigmoid_f32(load_relaxed_f32(p.beta + number));
    float v[1];
    if constexpr (CONVOLVES) {
        convolve(of_value, v);
    } else {
        v[0] = load_relaxed_f32(row + value_at);
    }
    float w;
    const float y = advance(s, direction, g, b, v[0], w);
    if (chain == 0) p.out[number * HEAD_DIM + column] = slot < p.n_slots ? y : 0.0f;
    if (slot < p.n_slots) {
#pragma unroll
        for (uint32_t j = 0; j < CHAIN; j++) *at(j) = s[j];
    }
    if constexpr (CONVOLVES) {
        SHARED bool is_last;
        if (threadIdx.x == 0) is_last = ticket == SHARERS - 1;
        __syncthreads();
        if (slot >= p.n_slots) return;
        float* state = p.conv.state + static_cast<uint64_t>(slot) * (KEPT * CHANNELS);
        // All lanes of a column have read it: they have met since, over its sums.
        if (chain == 0) leave_window(of_value, state, value_at);
        if (is_last && own < 2 * HEAD_DIM) leave_window(of_direction, state, own_at);
    }
}
