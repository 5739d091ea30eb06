// Hyper-connections: STREAMS rows of GROUP values side by side in the place of one.
//   mean_streams    the mean of the streams, each through a gate of its own; a thread a value
//   inject_streams  adds a row to each stream, times 2 sigmoid(gate / STREAMS); a thread a value of all streams
//   gate_streams    a row through a gate to each stream, by the product of the stream's key and query; a block
//                   a stream
//
// variant.cuh: GROUP, THREADS, STREAMS.
#include "math.cuh"
#include "variant.cuh"
#include "row.cuh"

constexpr float SHARE = 1.0f / static_cast<float>(STREAMS);

struct MeanParams {
    const float* x;     // [m][STREAMS][GROUP]
    const float* gate;  // the same
    float* out;         // [m][GROUP]
};

KERNEL(mean_streams, MeanParams) {
    pdl_wait();
    pdl_trigger();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= GROUP) return;
    delay_block();
    const uint64_t base = static_cast<uint64_t>(blockIdx.y) * STREAMS * GROUP + c;
    float x[STREAMS], gate[STREAMS];
#pragma unroll
    for (uint32_t s = 0; s < STREAMS; s++) {
        x[s] = load_relaxed_f32(p.x + base + s * GROUP);
        gate[s] = load_relaxed_f32(p.gate + base + s * GROUP);
    }
    float sum = mul_rn(x[0], finite_sigmoid_f32(gate[0]));
#pragma unroll
    for (uint32_t s = 1; s < STREAMS; s++) sum = add_rn(sum, mul_rn(x[s], finite_sigmoid_f32(gate[s])));
    p.out[static_cast<uint64_t>(blockIdx.y) * GROUP + c] = mul_rn(sum, SHARE);
}

struct InjectParams {
    const float* x;     // [m][GROUP]
    const float* gate;  // [m][STREAMS]
    float* streams;     // [m][STREAMS][GROUP]
};

KERNEL(inject_streams, InjectParams) {
    pdl_wait();
    pdl_trigger();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= GROUP) return;
    delay_block();
    const float x = load_relaxed_f32(p.x + static_cast<uint64_t>(blockIdx.y) * GROUP + c);
    const float* gate = p.gate + static_cast<uint64_t>(blockIdx.y) * STREAMS;
    float* streams = p.streams + static_cast<uint64_t>(blockIdx.y) * STREAMS * GROUP + c;
    float before[STREAMS], factor[STREAMS];
#pragma unroll
    for (uint32_t s = 0; s < STREAMS; s++) {
        before[s] = load_relaxed_f32(streams + s * GROUP);
        factor[s] = load_relaxed_f32(gate + s);
    }
#pragma unroll
    for (uint32_t s = 0; s < STREAMS; s++) {
        const float by = mul_rn(2.0f, finite_sigmoid_f32(mul_rn(factor[s], SHARE)));
        streams[s * GROUP] = add_rn(before[s], mul_rn(x, by));
    }
}

struct GateParams {
    const float* key;    // [m][STREAMS][GROUP]
    const float* query;  // the same
    const float* value;  // [m][GROUP]
    float* out;          // [m][STREAMS][GROUP]
    float scale;         // 1 / sqrt(GROUP)
    uint32_t unused;
};

KERNEL_BOUNDS(gate_streams, GateParams, THREADS, 1) {
    SHARED float sums[N_SB];
    Row key = {}, query = {}, value = {};
    pdl_wait();
    pdl_trigger();
    const uint64_t base = static_cast<uint64_t>(blockIdx.x) * GROUP;
    load_row(key, p.key + base);
    load_row(query, p.query + base);
    load_row(value, p.value + static_cast<uint64_t>(blockIdx.x / STREAMS) * GROUP);
#pragma unroll
    for (uint32_t s = 0; s < EACH; s++) {
        const uint32_t sb = threadIdx.x / 32 + s * WARPS;
        if (sb >= N_SB) break;
        float sum = 0.0f;
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) sum = fma_rn(key[s][e], query[s][e], sum);
        sum = warp_sum_f32(sum);
        if (threadIdx.x % 32 == 0) sums[sb] = sum;
    }
    __syncthreads();
    float sum = sums[0];
#pragma unroll
    for (uint32_t sb = 1; sb < N_SB; sb++) sum = add_rn(sum, sums[sb]);
    const float t = mul_rn(sum, p.scale);
    const float size = fabsf(t);
    const float root = sqrt_rn(size < 1e-6f ? 1e-6f : size);
    const float gate = finite_sigmoid_f32(t > 0.0f ? root : t < 0.0f ? -root : t);
    delay_block();
    set_row(value, [&](uint32_t s, uint32_t e) { return mul_rn(value[s][e], gate); });
    store_row(p.out + base, value);
}
