// The choice of blocks of RATIO tokens that attention sees.
//   block_scores   of each whole block: its mean key, normalized and rotated, with the heads of a row's query; a
//                  warp a block
//   choose_blocks  the bits of the TOP blocks of the largest scores, and of the one that is not whole; a block of
//                  threads a row
//
// variant.cuh: Kv, HEAD_DIM, N_HEAD, HALF (pairs that are rotated), RATIO, N_BLOCKS (room for scores of a row), WORDS
// (room for numbers of 64 tokens' bits), TOP.
#include "kv_fixed.cuh"
#include "norm.cuh"
#include "variant.cuh"

using Cache = Kv;
constexpr uint32_t WARPS = 8;
constexpr uint32_t THREADS = WARPS * 32;
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "a superblock");

struct ScoreParams {
    const float* q;        // [m][N_HEAD][HEAD_DIM]
    float* out;            // [m][N_BLOCKS]
    const float* weight;   // [HEAD_DIM]
    const float* cos_sin;  // [n_ctx][HALF][cos, sin]
    KvView kv;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    float eps;
    uint32_t unused;
};

DEVICE uint32_t whole_blocks(uint32_t tokens) {
    return tokens / RATIO < N_BLOCKS ? tokens / RATIO : N_BLOCKS;
}

KERNEL_BOUNDS(block_scores, ScoreParams, THREADS, 1) {
    SHARED float keys[WARPS][HEAD_DIM];
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = blockIdx.y;
    float* key = keys[warp];
    const uint32_t slot = load_relaxed_u32(p.slots + m), position = load_relaxed_u32(p.positions + m);
    const uint32_t blocks = whole_blocks(position < p.kv.n_ctx ? position + 1 : p.kv.n_ctx);
    const float* q = p.q + static_cast<uint64_t>(m) * (N_HEAD * HEAD_DIM);
    float* out = p.out + static_cast<uint64_t>(m) * N_BLOCKS;
#pragma unroll 1
    for (uint32_t b = blockIdx.x * WARPS + warp; b < blocks; b += gridDim.x * WARPS) {
        const uint32_t first = b * RATIO;
        const uint32_t page = kv_page(p.kv, slot, first);
        if (page == 0) {
            if (lane == 0) out[b] = 0.0f;
            continue;
        }
        const uint8_t* from = Cache::head<1>(p.kv.k, page, 0);
        for (uint32_t word = lane; word < HEAD_DIM / 4; word += 32) {
            float sum[4] = {};
#pragma unroll
            for (uint32_t t = 0; t < RATIO; t++) {
                const uint32_t token = first % PAGE_TOKENS + t;
                uint32_t limbs[Cache::LIMBS];
#pragma unroll
                for (uint32_t l = 0; l < Cache::LIMBS; l++) {
                    const uint8_t* at = from + l * Cache::PLANE + Cache::key_at(token, word * 4);
                    limbs[l] = load_relaxed_u32(reinterpret_cast<const uint32_t*>(at));
                }
                const uint16_t bits = *reinterpret_cast<const uint16_t*>(
                    from + Cache::scale_at(token, word * 4 / Cache::GROUP));
                const float scale = Cache::scale(bits);
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    int32_t k = static_cast<int8_t>(limbs[0] >> 8 * i);
                    if constexpr (Cache::LIMBS == 2) {
                        k = k * 256 + static_cast<int32_t>(limbs[Cache::LIMBS - 1] >> 8 * i & 255);
                    }
                    // Exact: at most 16 bits by 11.
                    const float x = mul_rn(static_cast<float>(k), scale);
                    sum[i] = t == 0 ? x : add_rn(sum[i], x);
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                key[word * 4 + i] = mul_rn(sum[i], 1.0f / static_cast<float>(RATIO));
            }
        }
        __syncwarp();
        float v[8] = {};
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) {
            if (lane * 8 < HEAD_DIM) v[e] = key[lane * 8 + e];
        }
        const float squares = superblock_squares(v);
        const float factor = rms_factor<1>(&squares, HEAD_DIM, p.eps);
        if (lane * 8 < HEAD_DIM) {
#pragma unroll
            for (uint32_t e = 0; e < 8; e++) {
                key[lane * 8 + e] = mul_rn(mul_rn(v[e], factor), p.weight[lane * 8 + e]);
            }
        }
        __syncwarp();
        const float* angles = p.cos_sin + static_cast<uint64_t>(first) * (HALF * 2);
        for (uint32_t i = lane; i < HALF; i += 32) {
            const float c = angles[2 * i], s = angles[2 * i + 1];
            const float x = key[i], y = key[i + HALF];
            key[i] = fma_rn(x, c, -mul_rn(y, s));
            key[i + HALF] = fma_rn(x, s, mul_rn(y, c));
        }
        __syncwarp();
        float score = 0.0f;
#pragma unroll
        for (uint32_t h = 0; h < N_HEAD; h++) {
            float y = 0.0f;
            for (uint32_t d = lane; d < HEAD_DIM; d += 32) {
                y = fma_rn(key[d], load_relaxed_f32(q + h * HEAD_DIM + d), y);
            }
            y = warp_sum_f32(y);
            y = y > 0.0f ? y : 0.0f;
            score = h == 0 ? y : add_rn(score, y);
        }
        if (lane == 0) out[b] = score == score ? score : 0.0f;
        // The next block's key takes this one's place.
        __syncwarp();
    }
}

struct ChooseParams {
    const float* scores;  // [m][N_BLOCKS], not negative
    float* out;           // [m][WORDS]
    const uint32_t* positions;  // [m]
};

constexpr uint32_t OF_WORD = 64 / RATIO;

KERNEL_BOUNDS(choose_blocks, ChooseParams, THREADS, 1) {
    SHARED uint32_t sums[2][WARPS];
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t m = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t tokens = load_relaxed_u32(p.positions + m) + 1;
    const uint32_t blocks = whole_blocks(tokens);
    const float* scores = p.scores + static_cast<uint64_t>(m) * N_BLOCKS;
    // Bits of what is not negative are in the order of the numbers.
    auto key = [&](uint32_t b) { return float_as_u32(load_relaxed_f32(scores + b)); };
    // Sums of all threads, which alternate between two places: one barrier is enough.
    uint32_t place = 0;
    auto sum_of_all = [&](uint32_t own, uint32_t& before) {
        uint32_t sum = own;
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint32_t other = __shfl_up_sync(FULL_WARP, sum, distance);
            if (lane >= distance) sum += other;
        }
        if (lane == 31) sums[place][warp] = sum;
        __syncthreads();
        uint32_t all = 0;
        before = sum - own;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            before += w < warp ? sums[place][w] : 0;
            all += sums[place][w];
        }
        place ^= 1;
        return all;
    };
    auto count = [&](uint32_t least) {
        uint32_t own = 0, before;
        for (uint32_t b = threadIdx.x; b < blocks; b += THREADS) own += key(b) >= least ? 1 : 0;
        return sum_of_all(own, before);
    };
    const bool is_whole = blocks <= TOP;
    // The largest number that TOP scores reach, and how many of its equals are chosen.
    uint32_t threshold = 0, left = 0;
    if (!is_whole) {
#pragma unroll 1
        for (uint32_t bit = 1u << 30; bit > 0; bit /= 2) {
            if (count(threshold | bit) >= TOP) threshold |= bit;
        }
        left = TOP - count(threshold + 1);
    }
    uint32_t taken = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < WORDS; first += THREADS) {
        const uint32_t word = first + threadIdx.x;
        uint32_t bits = 0, equals = 0;
        for (uint32_t j = 0; j < OF_WORD; j++) {
            const uint32_t b = word * OF_WORD + j;
            if (word >= WORDS || b >= blocks) break;
            const uint32_t its = is_whole ? 0 : key(b);
            if (is_whole || its > threshold) bits |= 1u << j;
            if (!is_whole && its == threshold) equals |= 1u << j;
        }
        uint32_t before;
        const uint32_t all = sum_of_all(static_cast<uint32_t>(__popc(equals)), before);
        before += taken, taken += all;
        for (uint32_t j = 0; j < OF_WORD; j++) {
            if (!(equals >> j & 1)) continue;
            if (before < left) bits |= 1u << j;
            before++;
        }
        if (tokens % RATIO > 0 && tokens / RATIO / OF_WORD == word) bits |= 1u << tokens / RATIO % OF_WORD;
        if (word < WORDS) p.out[static_cast<uint64_t>(m) * WORDS + word] = static_cast<float>(bits);
    }
}
