// The KV cache on the card: pages of 64 tokens x one KV head, found through the page table at every
// step. Page 0 is never allocated. How a page keeps them: kv_fixed.cuh.
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
