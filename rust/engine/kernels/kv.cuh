// The KV cache on the card: pages of 64 tokens x one KV head, found through the page table at every
// step. Inside a page, keys lie [head_dim / 8][token][8], so that a thread per token reads 16 bytes
// beside its neighbour's; values lie [token][head_dim]. Page 0 is nobody's.
#pragma once
#include "common.cuh"
// PAGE_TOKENS, and PADDING_SLOT, the slot of rows that only fill a batch up: nothing of them is
// stored, and that is no error.
#include "host.cuh"

// How keys and values are stored.
struct KvF32 {
    using Element = float;
    DEVICE float load(float v) { return v; }
    DEVICE float store(float v, uint32_t&) { return v; }
    // Eight or four consecutive elements, as loaded and as numbers.
    struct Eight {
        float4 a, b;
    };
    DEVICE Eight load8(const float* at) {
        return {load_relaxed_f32x4(at), load_relaxed_f32x4(at + 4)};
    }
    DEVICE void expand8(const Eight& e, float (&v)[8]) {
        v[0] = e.a.x, v[1] = e.a.y, v[2] = e.a.z, v[3] = e.a.w;
        v[4] = e.b.x, v[5] = e.b.y, v[6] = e.b.z, v[7] = e.b.w;
    }
    using Four = float4;
    DEVICE Four load4(const float* at) { return load_relaxed_f32x4(at); }
    DEVICE void expand4(const Four& e, float (&v)[4]) {
        v[0] = e.x, v[1] = e.y, v[2] = e.z, v[3] = e.w;
    }
};

struct KvF16 {
    using Element = uint16_t;
    DEVICE float load(uint16_t v) { return f16_to_f32(v); }
    DEVICE uint16_t store(float v, uint32_t& saturated) { return f32_to_f16_sat(v, saturated); }
    using Eight = uint4;
    DEVICE Eight load8(const uint16_t* at) { return load_relaxed_u32x4(at); }
    DEVICE void expand8(const Eight& e, float (&v)[8]) {
        uint32_t words[4] = {e.x, e.y, e.z, e.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = f16x2_low(words[i]);
            v[2 * i + 1] = f16x2_high(words[i]);
        }
    }
    using Four = uint2;
    DEVICE Four load4(const uint16_t* at) { return load_relaxed_u32x2(at); }
    DEVICE void expand4(const Four& e, float (&v)[4]) {
        v[0] = f16x2_low(e.x), v[1] = f16x2_high(e.x);
        v[2] = f16x2_low(e.y), v[3] = f16x2_high(e.y);
    }
};

// What a kernel needs to find tokens; `k` and `v` are one layer's pools.
struct KvView {
    void* k;
    void* v;
    const uint32_t* page_table;  // [slot][pages_per_slot], 0 where nothing is mapped
    uint64_t* error;             // in host memory: 1 + position << 32 | slot of a refused token
    uint64_t* saturated;         // [n_slots], in host memory: not 0 where a number was too large
    uint32_t pages_per_slot;
    uint32_t n_slots;
    uint32_t n_ctx;
    uint32_t n_pages;
};

// The page of a position, or 0 where the position is outside the cache or not mapped.
DEVICE uint32_t kv_page(const KvView& kv, uint32_t slot, uint32_t position) {
    if (slot >= kv.n_slots || position >= kv.n_ctx) return 0;
    uint64_t entry = static_cast<uint64_t>(slot) * kv.pages_per_slot + position / PAGE_TOKENS;
    uint32_t page = load_relaxed_u32(kv.page_table + entry);
    return page < kv.n_pages ? page : 0;
}

// The first token that a row of n tokens sees: those of a window, its own included; 0: all.
template <uint32_t WINDOW>
DEVICE uint32_t first_seen(uint32_t n) {
    if constexpr (WINDOW == 0) return 0;
    return n > WINDOW ? n - WINDOW : 0;
}

// Tells the host that a token was refused. One 8-byte store: reports do not mix.
DEVICE void kv_refuse(const KvView& kv, uint32_t slot, uint32_t position) {
    if (slot == PADDING_SLOT) return;
    store_release_sys_u64(kv.error, ((static_cast<uint64_t>(position) << 32) | slot) + 1);
}

// Tells the host that a key or value of the sequence was stored as less than it is. Sticky: the
// host clears it when the sequence has ended.
DEVICE void kv_saturate(const KvView& kv, uint32_t slot) {
    store_release_sys_u64(kv.saturated + slot, 1);
}

// Index of the first element of a page's head; 64 bits, caches are larger than 4 GiB.
template <int N_HEAD_KV, int HEAD_DIM>
DEVICE uint64_t kv_head_at(uint32_t page, uint32_t head) {
    return (static_cast<uint64_t>(page) * N_HEAD_KV + head) * (PAGE_TOKENS * HEAD_DIM);
}

template <int HEAD_DIM>
DEVICE uint32_t kv_key_at(uint32_t token, uint32_t dim) {
    return (dim / 8 * PAGE_TOKENS + token) * 8 + dim % 8;
}

template <int HEAD_DIM>
DEVICE uint32_t kv_value_at(uint32_t token, uint32_t dim) {
    return token * HEAD_DIM + dim;
}
