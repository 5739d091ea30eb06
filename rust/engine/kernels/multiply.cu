// Multiplies float16 on the tensor cores and does nothing else: the peak that products are measured by.
#include "warpgroup.cuh"

// Threads of a block: a warpgroup.
constexpr uint32_t BLOCK = 128;
// Instructions that run behind one another, and of 16 columns the chunks of one.
constexpr int PRODUCTS = 8;
constexpr int CHUNKS = 8;
// 1.0 twice.
constexpr uint32_t ONES = 0x3c003c00;

struct MultiplyParams {
    // [gridDim.x * blockDim.x]
    float* sums;
    uint32_t rounds;
    uint32_t unused;
};

// sums[thread] = the sum of what the thread has of products of ones, which float32 holds exactly while
// it is below 2^24: 32 numbers, each of 16 ones an instruction that adds to it.
KERNEL(multiply_sum, MultiplyParams) {
    SHARED uint32_t ones[16 * 8 * CHUNKS / 2];
    const uint32_t a[4] = {ONES, ONES, ONES, ONES};
    float d[CHUNKS][4] = {};
    if constexpr (HAS_WARPGROUPS) {
        for (uint32_t i = threadIdx.x; i < 16 * 8 * CHUNKS / 2; i += BLOCK) ones[i] = ONES;
        wgmma_stored();
        __syncthreads();
        const CoreMatrix b = core_matrix(to_shared_address(ones), 256);
#pragma unroll 1
        for (uint32_t round = 0; round < p.rounds; round++) {
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < PRODUCTS; i++) wgmma_k16_f16_f32(d, a, b, true);
            wgmma_commit();
            wgmma_wait<0>();
            settle_registers(d);
        }
    } else {
        const uint32_t b[2] = {ONES, ONES};
#pragma unroll 1
        for (uint32_t round = 0; round < p.rounds; round++) {
#pragma unroll
            for (int i = 0; i < PRODUCTS; i++) mma_m16n8k16_f16_f32(d[i], a, b, d[i]);
        }
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) sum += (d[i][0] + d[i][1]) + (d[i][2] + d[i][3]);
    p.sums[blockIdx.x * BLOCK + threadIdx.x] = sum;
}
