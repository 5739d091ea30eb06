// Reads a buffer once, as fast as the card can: the peak that kernels are measured by.
#include "common.cuh"

struct ReadParams {
    const uint4* from;
    // [gridDim.x * blockDim.x]
    uint32_t* sums;
    // Vectors of 16 bytes in `from`.
    uint64_t n;
};

// sums[thread] = the sum of the words that the thread reads: what is used is not left unread.
KERNEL(read_sum, ReadParams) {
    uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    uint64_t i = thread;
    // Eight loads under way at a time.
    for (; i + 7 * threads < p.n; i += 8 * threads) {
        uint4 v[8];
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) v[j] = load_stream_u32x4(p.from + i + j * threads);
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) sum += v[j].x + v[j].y + v[j].z + v[j].w;
    }
    for (; i < p.n; i += threads) {
        uint4 v = load_stream_u32x4(p.from + i);
        sum += v.x + v.y + v.z + v.w;
    }
    p.sums[thread] = sum;
}
