// The KV cache on the card: pages of 64 tokens x one KV head, found through the page table at every
// step. Inside a page, keys lie [head_dim / 8][token][8], so that a thread per token reads 16 bytes
// beside its neighbour's; values lie [token][head_dim]. Page 0 is nobody's.
#pragma once
#include "common.cuh"
// PAGE_TOKENS, and PADDING_SLOT, the slot of rows that only fill a batch up: nothing of them is
// stored, and that is no error.
#include "host.cuh"

// Takes note of the bits of |x| where they are the largest: those of NaN are larger than infinity's.
DEVICE void note_size(float x, uint32_t& most) {
    const uint32_t bits = float_as_u32(fabsf(x));
    most = most > bits ? most : bits;
}

// How keys and values are stored: up to LARGEST in size, of which `store` takes note. What is beyond
// becomes that, and NaN 0: its sequence ends, but rows before it, which have weights of 0 for it, would be
// NaN too, and the first of them be told of.
struct KvF32 {
    static constexpr float LARGEST = 3.4028235e38f;
    using Element = float;
    DEVICE float load(float v) { return v; }
    DEVICE float store(float v, uint32_t& most) {
        note_size(v, most);
        return v == v ? fminf(fmaxf(v, -LARGEST), LARGEST) : 0.0f;
    }
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
    static constexpr float LARGEST = F16_MAX;
    using Element = uint16_t;
    DEVICE float load(uint16_t v) { return f16_to_f32(v); }
    DEVICE uint16_t store(float v, uint32_t& most) {
        note_size(v, most);
        return f32_to_f16_sat(v == v ? v : 0.0f);
    }
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
    uint64_t* reports;           // [n_slots], in host memory: see report
    uint32_t pages_per_slot;
    uint32_t n_slots;
    uint32_t n_ctx;
    uint32_t n_pages;
    uint32_t number;             // of the op that stores, in the pass
    uint32_t unused;
};

// exp(sink - top), of a sink beside the scores of a cache of floats, whose largest is given. NaN where that
// is -infinity, as queries that are infinite have it: the sink would have all the weight, and hide it.
DEVICE float sink_share(float sink, float top, float of_scores) {
    return of_scores > -infinity_f32() ? expf(add_rn(sink, -top)) : nan_f32();
}

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

// Tells the host of keys or values of a token, where they are no numbers that the cache holds; `most` is
// the bits of the largest. Finite ones were stored as less than they are, which is sticky: the host
// clears it when the sequence has ended.
template <typename Kv>
DEVICE void kv_tell(const KvView& kv, uint32_t slot, uint32_t position, uint32_t most) {
    if (most <= float_as_u32(Kv::LARGEST)) return;
    if (most < float_as_u32(infinity_f32())) {
        store_release_sys_u64(kv.saturated + slot, 1);
    } else {
        report(kv.reports + slot, position, kv.number, false, most);
    }
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
