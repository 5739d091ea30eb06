// Stores k[r] and v[r] as token positions[r] of the sequence slots[r], as 16-bit block fixed point: a warp
// a block of up to 64 dimensions. A position outside the cache or a page that is not mapped writes
// nothing and raises the error word; a number that is too large becomes the largest and raises the
// slot's word. A block of threads a row.
//
// variant.cuh: N_HEAD_KV, HEAD_DIM.
#include "kv_fixed.cuh"
#include "variant.cuh"

struct Params {
    const float* k;  // [m][N_HEAD_KV * HEAD_DIM]
    const float* v;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    KvView kv;
};

KERNEL(kv_scatter_fixed, Params) {
    using Cache = KvFixed<HEAD_DIM>;
    constexpr uint32_t TASKS = N_HEAD_KV * Cache::BLOCKS * 2;
    const uint32_t lane = threadIdx.x % 32;
    pdl_wait();
    pdl_trigger();
    const uint32_t m = blockIdx.x;
    const uint32_t position = load_relaxed_u32(p.positions + m);
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    const uint32_t page = kv_page(p.kv, slot, position);
    if (page == 0) {
        if (threadIdx.x == 0) kv_refuse(p.kv, slot, position);
        return;
    }
    const uint32_t token = position % PAGE_TOKENS;
    uint32_t saturated = 0;
    delay_block();
    for (uint32_t task = threadIdx.x / 32; task < TASKS; task += blockDim.x / 32) {
        const bool is_value = task % 2;
        const uint32_t head = task / 2 / Cache::BLOCKS, block = task / 2 % Cache::BLOCKS;
        const uint32_t dim = block * Cache::GROUP + lane * 2;
        const bool inside = dim < HEAD_DIM;
        const uint64_t from = (static_cast<uint64_t>(m) * N_HEAD_KV + head) * HEAD_DIM + dim;
        const float* row = is_value ? p.v : p.k;
        float x[2] = {};
        if (inside) x[0] = load_relaxed_f32(row + from), x[1] = load_relaxed_f32(row + from + 1);
        int16_t k[2];
        const uint8_t exponent = Cache::encode(x, k, saturated);
        uint8_t* to = Cache::head<N_HEAD_KV>(is_value ? p.kv.v : p.kv.k, page, head);
        if (lane == 0) to[Cache::exponent_at(token, block)] = exponent;
        if (!inside) continue;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t at = is_value ? Cache::values_at(token / 2, dim + i) + token % 2 * 2
                                         : Cache::key_at(token, dim) + i * 2;
            *reinterpret_cast<int16_t*>(to + at) = k[i];
        }
    }
    if (saturated) kv_saturate(p.kv, slot);
}
