// The gated delta rule as Op::DeltaNet states it. A block takes COLUMNS columns of a head's state, which
// its threads hold in registers over some rows in order: the first block those of prompts, each behind it
// one that is a sequence of its own. A warp has eight columns, and four chains of each:
// lane = chain * 8 + column.
//
// variant.cuh: N_HEAD, N_HEAD_K, HEAD_DIM, COLUMNS, ROOT (1 / sqrt(HEAD_DIM)).
#include "kv.cuh"
#include "math.cuh"
#include "norm.cuh"
#include "variant.cuh"

constexpr uint32_t CHAINS = 4;
constexpr uint32_t CHAIN = HEAD_DIM / CHAINS;
constexpr uint32_t WARPS = COLUMNS / 8;
constexpr uint32_t HEADS = 2 * N_HEAD_K + N_HEAD;
static_assert(HEAD_DIM % COLUMNS == 0 && HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "lanes of a head");
static_assert(WARPS >= 2, "a warp for queries, one for keys");

struct Params {
    const float* qkv;    // [m][HEADS][HEAD_DIM]: queries, keys, values
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
    uint32_t first;  // rows of the first block
    uint32_t unused;
};

// The sum of four chains, the same in all lanes of a column.
DEVICE float chains_sum(float y) {
    y = add_rn(y, __shfl_xor_sync(FULL_WARP, y, 8));
    return add_rn(y, __shfl_xor_sync(FULL_WARP, y, 16));
}

KERNEL_BOUNDS(delta_net, Params, WARPS * 32, 1) {
    // Of a row and of the next one: queries, keys.
    SHARED float directions[2][2][HEAD_DIM];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t chain = lane / 8;
    constexpr uint32_t PARTS = HEAD_DIM / COLUMNS;
    const uint32_t head = blockIdx.x / PARTS, key = head % N_HEAD_K;
    const uint32_t column = blockIdx.x % PARTS * COLUMNS + warp * 8 + lane % 8;
    const float a = p.a[head], dt = p.dt[head];
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t first = blockIdx.y == 0 ? 0 : p.first + blockIdx.y - 1;
    const uint32_t end = blockIdx.y == 0 ? p.first : first + 1;
    uint32_t slot = PADDING_SLOT;
    float s[CHAIN];
    auto at = [&](uint32_t j) {
        const uint64_t matrix = static_cast<uint64_t>(slot) * N_HEAD + head;
        return p.state + (matrix * HEAD_DIM + j * CHAINS + chain) * HEAD_DIM + column;
    };
    auto leave = [&]() {
        if (slot >= p.n_slots) return;
#pragma unroll
        for (uint32_t j = 0; j < CHAIN; j++) *at(j) = s[j];
    };
    for (uint32_t m = first; m < end; m++) {
        const uint32_t its = load_relaxed_u32(p.slots + m);
        if (m == first || its != slot) {
            leave();
            slot = its;
            const bool begins = slot >= p.n_slots || load_relaxed_u32(p.positions + m) == 0;
#pragma unroll
            for (uint32_t j = 0; j < CHAIN; j++) s[j] = begins ? 0.0f : load_relaxed_f32(at(j));
        }
        const uint64_t row = static_cast<uint64_t>(m) * HEADS * HEAD_DIM;
        auto& direction = directions[(m - first) % 2];
        if (warp < 2) {
            const float* from = p.qkv + row + (warp * N_HEAD_K + key) * HEAD_DIM;
            float v[8] = {};
#pragma unroll
            for (uint32_t e = 0; e < 8; e += 4) {
                if (lane * 8 + e >= HEAD_DIM) break;
                const float4 f = load_relaxed_f32x4(from + lane * 8 + e);
                v[e] = f.x, v[e + 1] = f.y, v[e + 2] = f.z, v[e + 3] = f.w;
            }
            const float sum = superblock_squares(v);
            const float f = div_rn(1.0f, sqrt_rn(add_rn(sum, p.eps)));
            const float factor = mul_rn(f, warp == 0 ? ROOT : 1.0f);
#pragma unroll
            for (uint32_t e = 0; e < 8; e++) {
                if (lane * 8 + e < HEAD_DIM) direction[warp][lane * 8 + e] = mul_rn(v[e], factor);
            }
        }
        // Of the row before last all have read by now: they met at the row before.
        __syncthreads();
        const uint64_t number = static_cast<uint64_t>(m) * N_HEAD + head;
        const float g =
            decay_f32(a, add_rn(load_relaxed_f32(p.alpha + number), dt));
        const float b = sigmoid_f32(load_relaxed_f32(p.beta + number));
        const float v = load_relaxed_f32(p.qkv + row + (2 * N_HEAD_K + head) * HEAD_DIM + column);
        float u = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < CHAIN; j++) u = fma_rn(s[j], direction[1][j * CHAINS + chain], u);
        const float w = mul_rn(fma_rn(-g, chains_sum(u), v), b);
        float y = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < CHAIN; j++) {
            s[j] = fma_rn(direction[1][j * CHAINS + chain], w, mul_rn(g, s[j]));
            y = fma_rn(s[j], direction[0][j * CHAINS + chain], y);
        }
        y = chains_sum(y);
        if (chain == 0) p.out[number * HEAD_DIM + column] = slot < p.n_slots ? y : 0.0f;
    }
    leave();
}
