// Stores k[r] and v[r] as token positions[r] of the sequence slots[r], in blocks of 32 values: a warp
// a block. A position outside the cache or a page that is not mapped writes nothing and raises the
// error word; a number that is too large for a block becomes the largest and raises the slot's word.
// A block of threads a row.
//
// variant.cuh: N_HEAD_KV, HEAD_DIM.
#include "kv_blocks.cuh"
#include "variant.cuh"

struct Params {
    const float* k;  // [m][N_HEAD_KV * HEAD_DIM]
    const float* v;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    KvView kv;
};

KERNEL(kv_scatter_blocks, Params) {
    using Cache = KvBlocks<HEAD_DIM>;
    constexpr uint32_t WIDTH = N_HEAD_KV * HEAD_DIM;
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
    for (uint32_t i = threadIdx.x; i < WIDTH; i += blockDim.x) {
        const uint32_t head = i / HEAD_DIM, dim = i % HEAD_DIM;
        const uint64_t from = static_cast<uint64_t>(m) * WIDTH + i;
        uint16_t scale;
        uint8_t* keys = Cache::head<N_HEAD_KV>(p.kv.k, page, head);
        keys[kv_key_at<HEAD_DIM>(token, dim)] =
            Cache::quantize(load_relaxed_f32(p.k + from), scale, saturated);
        if (dim % 32 == 0) *Cache::key_scale(keys, token, dim) = scale;
        uint8_t* values = Cache::head<N_HEAD_KV>(p.kv.v, page, head);
        values[kv_value_at<HEAD_DIM>(token, dim)] =
            Cache::quantize(load_relaxed_f32(p.v + from), scale, saturated);
        if (dim % 32 == 0) *Cache::value_scale(values, token, dim) = scale;
    }
    if (saturated) kv_saturate(p.kv, slot);
}
