// Stores k[r] and v[r] as token positions[r] of the sequence slots[r], as integers with scales: a warp up to
// 128 dimensions. A position outside the cache or a page that is not mapped writes nothing and raises the
// error word; a number that is too large becomes the largest, and is reported to the host. A block of threads a
// row.
//
// variant.cuh: N_HEAD_KV, HEAD_DIM, STORED (2: keys and values; 1: keys, which have values in them), Kv.
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
    using Cache = Kv;
    constexpr uint32_t TASKS = N_HEAD_KV * Cache::SPANS * STORED;
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
    uint32_t most = 0;
    delay_block();
    for (uint32_t task = threadIdx.x / 32; task < TASKS; task += blockDim.x / 32) {
        const bool is_value = task % STORED;
        const uint32_t head = task / STORED / Cache::SPANS, span = task / STORED % Cache::SPANS;
        const uint32_t dim = span * Cache::SPAN + lane * 4;
        const uint64_t from = (static_cast<uint64_t>(m) * N_HEAD_KV + head) * HEAD_DIM + dim;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (dim < HEAD_DIM) four = load_relaxed_f32x4((is_value ? p.v : p.k) + from);
        float x[4] = {four.x, four.y, four.z, four.w};
        uint32_t limbs[Cache::LIMBS];
        const uint16_t scale = Cache::encode(x, limbs, most);
        if (dim >= HEAD_DIM) continue;
        uint8_t* to = Cache::head<N_HEAD_KV>(is_value ? p.kv.v : p.kv.k, page, head);
        if (dim % Cache::GROUP == 0) Cache::put_scale(to, token, dim / Cache::GROUP, scale);
        Cache::put(to, is_value, token, dim, limbs);
    }
    kv_tell<Cache>(p.kv, slot, position, most);
}
