// Stores k[r] and v[r] as token positions[r] of the sequence slots[r]. A position outside the cache
// or a page that is not mapped writes nothing and raises the error word; a number that is too large
// for the cache becomes the largest, and the host is told. A block a row.
//
// variant.cuh: N_HEAD_KV, HEAD_DIM, Kv.
#include "kv.cuh"
#include "variant.cuh"

struct Params {
    const float* k;  // [m][N_HEAD_KV * HEAD_DIM]
    const float* v;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    KvView kv;
};

KERNEL(kv_scatter, Params) {
    constexpr uint32_t WIDTH = N_HEAD_KV * HEAD_DIM;
    pdl_wait();
    pdl_trigger();
    uint32_t m = blockIdx.x;
    uint32_t position = load_relaxed_u32(p.positions + m), slot = load_relaxed_u32(p.slots + m);
    uint32_t page = kv_page(p.kv, slot, position);
    if (page == 0) {
        if (threadIdx.x == 0) kv_refuse(p.kv, slot, position);
        return;
    }
    auto* keys = static_cast<Kv::Element*>(p.kv.k);
    auto* values = static_cast<Kv::Element*>(p.kv.v);
    uint32_t token = position % PAGE_TOKENS;
    uint32_t most = 0;
    delay_block();
    for (uint32_t i = threadIdx.x; i < WIDTH; i += blockDim.x) {
        uint32_t head = i / HEAD_DIM, dim = i % HEAD_DIM;
        uint64_t base = kv_head_at<N_HEAD_KV, HEAD_DIM>(page, head);
        uint64_t from = static_cast<uint64_t>(m) * WIDTH + i;
        const float k = load_relaxed_f32(p.k + from), v = load_relaxed_f32(p.v + from);
        keys[base + kv_key_at<HEAD_DIM>(token, dim)] = Kv::store(k, most);
        values[base + kv_value_at<HEAD_DIM>(token, dim)] = Kv::store(v, most);
    }
    kv_tell<Kv>(p.kv, slot, position, most);
}
