// Mixture of experts: routing (top-k gating), grouping of rows by expert, and the weighted sums of the
// experts' outputs, as Op::Route and Op::MixExperts state them.
//
// variant.cuh: what experts.cuh, mix.cuh and route.cuh need.
#include "math.cuh"
#include "variant.cuh"
#include "experts.cuh"
#include "mix.cuh"
#include "route.cuh"

// A warp a row.
KERNEL_BOUNDS(route, RouteParams, 256, 1) {
    const uint32_t m = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (threadIdx.x < 32) expect_route(p, threadIdx.x);
    pdl_wait();
    pdl_trigger();
    if (m < p.m) route_row(p, m, threadIdx.x % 32);
}

struct MixParams {
    const float* x;       // [m][RANKS][width]
    const float* routes;  // [m][2][RANKS]
    float* out;           // [m][width]
    uint32_t m;
    uint32_t width;
};

// A thread a number.
KERNEL(mix, MixParams) {
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint64_t n = static_cast<uint64_t>(p.m) * p.width;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t e = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < n;
         e += stride) {
        const uint64_t row = e / p.width;
        mix_column(p.routes + row * (2 * RANKS), p.x + row * RANKS * p.width,
                   p.out + row * p.width, p.width, static_cast<uint32_t>(e % p.width));
    }
}

struct GroupParams {
    const float* routes;  // [m][2][RANKS]
    uint32_t* experts;    // [blocks]
    uint32_t* pairs;      // [blocks][ROWS_OF_EXPERT]
    uint32_t m;
    uint32_t blocks;      // as many as there may be at most
};

// Of the one block: as many as there is shared memory for the counts of.
constexpr uint32_t GROUP_WARPS = N_EXPERT <= 256 ? 32 : N_EXPERT <= 512 ? 16 : 8;
constexpr uint32_t GROUP_THREADS = 32 * GROUP_WARPS;

// Sorts the pairs of all rows by expert, each expert's from a block of rows of its own on, in their
// order. Warps take pairs 32 at a time, those that follow each other: each counts them by expert, the
// counts are added up over warps and experts, then each places its own.
KERNEL_BOUNDS(group, GroupParams, GROUP_THREADS, 1) {
    SHARED uint32_t before[GROUP_WARPS][N_EXPERT];  // pairs of the expert
    SHARED uint32_t total[N_EXPERT];
    SHARED uint32_t first[N_EXPERT + 1];  // block of rows
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t n = p.m * RANKS;
    const uint32_t portion = ((n + 31) / 32 + GROUP_WARPS - 1) / GROUP_WARPS * 32;
    const uint32_t begin = warp * portion;
    const uint32_t end = n < begin + portion ? n : begin + portion;
    for (uint32_t i = lane; i < N_EXPERT; i += 32) before[warp][i] = 0;
    pdl_wait();
    pdl_trigger();
    __syncwarp();
    // Calls f with a lane's pair, its expert and the lanes that have the same; counts them behind it.
    auto each = [&](auto f) {
        for (uint32_t at = begin; at < end; at += 32) {
            const uint32_t pair = at + lane;
            const uint32_t expert = pair < end ? id_of_pair(p.routes, pair) : N_EXPERT;
            const uint32_t same = __match_any_sync(FULL_WARP, expert);
            if (expert < N_EXPERT) f(pair, expert, same);
            __syncwarp();
            if (expert < N_EXPERT && same >> lane == 1) {
                before[warp][expert] += static_cast<uint32_t>(__popc(same));
            }
            __syncwarp();
        }
    };
    each([](uint32_t, uint32_t, uint32_t) {});
    __syncthreads();
    for (uint32_t expert = threadIdx.x; expert < N_EXPERT; expert += GROUP_THREADS) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < GROUP_WARPS; w++) {
            const uint32_t count = before[w][expert];
            before[w][expert] = sum;
            sum += count;
        }
        total[expert] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        uint32_t sum = 0;
        for (uint32_t at = 0; at < N_EXPERT; at += 32) {
            const uint32_t expert = at + lane;
            const uint32_t own =
                expert < N_EXPERT ? (total[expert] + ROWS_OF_EXPERT - 1) / ROWS_OF_EXPERT : 0;
            uint32_t up_to = own;
#pragma unroll
            for (uint32_t distance = 1; distance < 32; distance *= 2) {
                const uint32_t lower = __shfl_up_sync(FULL_WARP, up_to, distance);
                if (lane >= distance) up_to += lower;
            }
            if (expert < N_EXPERT) first[expert] = sum + up_to - own;
            sum += __shfl_sync(FULL_WARP, up_to, 31);
        }
        if (lane == 0) first[N_EXPERT] = sum;
    }
    __syncthreads();
    each([&](uint32_t pair, uint32_t expert, uint32_t same) {
        const uint32_t lower = static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
        p.pairs[first[expert] * ROWS_OF_EXPERT + before[warp][expert] + lower] = pair;
    });
    for (uint32_t expert = warp; expert < N_EXPERT; expert += GROUP_WARPS) {
        const uint32_t its = first[expert], next = first[expert + 1];
        for (uint32_t block = its + lane; block < next; block += 32) p.experts[block] = expert;
        const uint32_t rest = its * ROWS_OF_EXPERT + total[expert];
        for (uint32_t at = rest + lane; at < next * ROWS_OF_EXPERT; at += 32) p.pairs[at] = NO_PAIR;
    }
    for (uint32_t block = first[N_EXPERT] + threadIdx.x; block < p.blocks; block += GROUP_THREADS) {
        p.experts[block] = NO_EXPERT;
    }
}
