// Parts of rows side by side, and ids of all heads or experts of a row.
#include "common.cuh"

struct JoinParams {
    const float* x;  // [parts][first]
    const float* y;  // [parts][second]
    float* out;      // [parts][first + second]
    uint64_t n;      // of out
    uint32_t first;
    uint32_t second;
};

// Of each part what x has, then what y has.
KERNEL(join, JoinParams) {
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t width = p.first + p.second;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        const uint64_t part = i / width, at = i % width;
        const float* from = at < p.first ? p.x + part * p.first + at : p.y + part * p.second + at - p.first;
        p.out[i] = load_relaxed_f32(from);
    }
}

struct RouteAllParams {
    float* out;      // [m][2][ranks]
    uint32_t ranks;
    uint32_t unused;
};

// The ids of all, in order, then as many weights of 1; a block a row.
KERNEL(route_all, RouteAllParams) {
    pdl_wait();
    pdl_trigger();
    delay_block();
    float* out = p.out + static_cast<uint64_t>(blockIdx.x) * (2 * p.ranks);
    for (uint32_t i = threadIdx.x; i < p.ranks; i += blockDim.x) {
        out[i] = static_cast<float>(i);
        out[p.ranks + i] = 1.0f;
    }
}
