// Experts: which of them rows go to, the grouping of rows by them, and the weighted sums of what they
// give, as Op::Route and Op::MixExperts state them.
//
// variant.cuh: what experts.cuh needs, of route GATING, BIASED, RENORMALIZE, of mix ADDS.
#include "math.cuh"
#include "variant.cuh"
#include "experts.cuh"

struct RouteParams {
    const float* logits;  // [m][N_EXPERT]
    const float* bias;    // [N_EXPERT], where BIASED
    float* out;           // [m][2][RANKS]
    float scale;
    uint32_t m;
};

constexpr uint32_t LANE_EXPERTS = (N_EXPERT + 31) / 32;

DEVICE bool is_nan(float x) { return x != x; }

// Whether a is chosen before b, whose id is the higher one.
DEVICE bool is_before(float a, uint32_t id_a, float b, uint32_t id_b) {
    if (is_nan(a) != is_nan(b)) return is_nan(b);
    if (is_nan(a) || a == b) return id_a < id_b;
    return a > b;
}

// A warp a row; lane l has the experts l, l + 32, ....
KERNEL_BOUNDS(route, RouteParams, 256, 1) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t m = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    pdl_wait();
    pdl_trigger();
    if (m >= p.m) return;
    const float* logits = p.logits + static_cast<uint64_t>(m) * N_EXPERT;
    float* out = p.out + static_cast<uint64_t>(m) * (2 * RANKS);
    float logit[LANE_EXPERTS], score[LANE_EXPERTS];
    float top = -infinity_f32();
    bool nan = false;
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t id = i * 32 + lane;
        logit[i] = id < N_EXPERT ? load_relaxed_f32(logits + id) : -infinity_f32();
        nan = nan || is_nan(logit[i]);
        top = logit[i] > top ? logit[i] : top;
    }
#pragma unroll
    for (uint32_t n = 16; n > 0; n /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, top, n);
        top = other > top ? other : top;
    }
    const bool bad = __ballot_sync(FULL_WARP, nan) != 0 || !(fabsf(top) < infinity_f32());
    float sum = 0.0f;
    if constexpr (GATING == GATING_SOFTMAX) {
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
            if (i * 32 + lane < N_EXPERT) sum = add_rn(sum, exp_down_f32(sub_rn(logit[i], top)));
        }
        sum = warp_sum_f32(sum);
    }
    auto gate = [&](float l) {
        if constexpr (GATING == GATING_SOFTMAX) return div_rn(exp_down_f32(sub_rn(l, top)), sum);
        if constexpr (GATING == GATING_SIGMOID) return sigmoid_f32(l);
        return l;
    };
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t id = i * 32 + lane;
        score[i] = logit[i];
        if constexpr (BIASED) {
            if (id < N_EXPERT) score[i] = add_rn(gate(logit[i]), p.bias[id]);
        }
    }
    // A bit for each of the lane's experts that is taken, or is not there.
    uint32_t taken = 0;
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        if (i * 32 + lane >= N_EXPERT) taken |= 1u << i;
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        // The lane's best, of which the id is NO_EXPERT where it has none left.
        float best = nan_f32(), of_best = 0.0f;
        uint32_t id = NO_EXPERT;
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
            const uint32_t own = i * 32 + lane;
            if (!(taken >> i & 1) && is_before(score[i], own, best, id)) {
                best = score[i], of_best = logit[i], id = own;
            }
        }
#pragma unroll
        for (uint32_t n = 16; n > 0; n /= 2) {
            const float its = __shfl_xor_sync(FULL_WARP, best, n);
            const float of_its = __shfl_xor_sync(FULL_WARP, of_best, n);
            const uint32_t its_id = __shfl_xor_sync(FULL_WARP, id, n);
            if (is_before(its, its_id, best, id)) best = its, of_best = of_its, id = its_id;
        }
        if (id % 32 == lane) taken |= 1u << (id / 32);
        if (lane == 0) {
            out[rank] = static_cast<float>(id);
            out[RANKS + rank] = gate(of_best);
        }
    }
    if (lane != 0) return;
    float* weights = out + RANKS;
    auto sum_in_order = [&]() {
        float all = weights[0];
        for (uint32_t j = 1; j < RANKS; j++) all = add_rn(all, weights[j]);
        return all;
    };
    if constexpr (GATING == GATING_SELECTED_SOFTMAX) {
        float most = -infinity_f32();
        for (uint32_t j = 0; j < RANKS; j++) most = weights[j] > most ? weights[j] : most;
        for (uint32_t j = 0; j < RANKS; j++) weights[j] = exp_down_f32(sub_rn(weights[j], most));
        const float all = sum_in_order();
        for (uint32_t j = 0; j < RANKS; j++) weights[j] = div_rn(weights[j], all);
    }
    if constexpr (RENORMALIZE) {
        const float all = sum_in_order();
        const float divisor = all > 6.103515625e-5f ? all : 6.103515625e-5f;
        for (uint32_t j = 0; j < RANKS; j++) weights[j] = div_rn(weights[j], divisor);
    }
    for (uint32_t j = 0; j < RANKS; j++) {
        weights[j] = bad ? nan_f32() : mul_rn(weights[j], p.scale);
    }
}

struct MixParams {
    const float* x;       // [m][RANKS][width]
    const float* routes;  // [m][2][RANKS]
    float* out;           // [m][width]
    uint32_t m;
    uint32_t width;
};

// y = w_0 x_0, then fma(w_j, x_j, y); out = y or, where it ADDS, out += y. A thread a number.
KERNEL(mix, MixParams) {
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint64_t n = static_cast<uint64_t>(p.m) * p.width;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t e = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < n;
         e += stride) {
        const uint64_t row = e / p.width, at = e % p.width;
        const float* weights = p.routes + row * (2 * RANKS) + RANKS;
        const float* x = p.x + row * RANKS * p.width + at;
        float y = mul_rn(load_relaxed_f32(weights), load_relaxed_f32(x));
        for (uint32_t j = 1; j < RANKS; j++) {
            const float of_rank = load_relaxed_f32(x + static_cast<uint64_t>(j) * p.width);
            y = fma_rn(load_relaxed_f32(weights + j), of_rank, y);
        }
        p.out[e] = ADDS ? add_rn(load_relaxed_f32(p.out + e), y) : y;
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
