// States that are a matrix a head, S[i][c] of KEYS rows and VALUES columns, in a round: what it keeps of a
// row, and how states go forward by what was kept.
#pragma once
#include "round.cuh"

// A number of the state behind a row.
DEVICE float updated(float s, float k, float w, float g) { return fma_rn(k, w, mul_rn(g, s)); }

// What a round of up to MOST rows keeps: [MOST][HEADS][k, w], KEYS and VALUES numbers, then g, [MOST][HEADS].
template <uint32_t HEADS, uint32_t KEYS, uint32_t VALUES>
DEVICE uint64_t kept_vectors(uint32_t m, uint32_t head) {
    return (static_cast<uint64_t>(m) * HEADS + head) * (KEYS + VALUES);
}
template <uint32_t MOST, uint32_t HEADS, uint32_t KEYS, uint32_t VALUES>
DEVICE uint64_t kept_gate(uint32_t m, uint32_t head) {
    return kept_vectors<HEADS, KEYS, VALUES>(MOST, 0) + static_cast<uint64_t>(m) * HEADS + head;
}

// Neighbours in a row of a head's state that a thread has, and the threads of a block.
constexpr uint32_t NEAR = 4;
constexpr uint32_t THREADS = 256;
// Of these a thread has so many: enough loads under way.
constexpr uint32_t EACH = 4;

// A block takes a part of a head's state of the slot whose rows begin at its own.
template <uint32_t MOST, uint32_t HEADS, uint32_t KEYS, uint32_t VALUES>
DEVICE void commit_matrices(const Commit& p) {
    constexpr uint32_t SIZE = KEYS * VALUES;
    constexpr uint32_t BLOCKS = (SIZE + THREADS * NEAR * EACH - 1) / (THREADS * NEAR * EACH);
    static_assert(VALUES % NEAR == 0 && (KEYS + VALUES) % NEAR == 0, "neighbours are of one row");
    pdl_wait();
    pdl_trigger();
    delay_block();
    const uint32_t head = blockIdx.x / BLOCKS, m = blockIdx.y;
    const uint32_t accepted = load_relaxed_u32(p.accepted + m);
    if (accepted == 0) return;
    const Place place = load_place(p.places + blockIdx.z);
    const bool begins = load_relaxed_u32(p.positions + m) == 0;
    const uint64_t matrix = static_cast<uint64_t>(load_relaxed_u32(p.slots + m)) * HEADS + head;
    float* state = place.state + matrix * SIZE;
    const uint32_t first = (blockIdx.x % BLOCKS * EACH * THREADS + threadIdx.x) * NEAR;
    float4 s[EACH];
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
        const uint32_t at = first + n * (THREADS * NEAR);
        s[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (at < SIZE && !begins) s[n] = load_relaxed_f32x4(state + at);
    }
    for (uint32_t row = m; row < m + accepted; row++) {
        const float* kept = place.kept + kept_vectors<HEADS, KEYS, VALUES>(row, head);
        const float g = load_relaxed_f32(place.kept + kept_gate<MOST, HEADS, KEYS, VALUES>(row, head));
#pragma unroll
        for (uint32_t n = 0; n < EACH; n++) {
            const uint32_t at = first + n * (THREADS * NEAR);
            if (at >= SIZE) break;
            const float k = load_relaxed_f32(kept + at / VALUES);
            const float4 w = load_relaxed_f32x4(kept + KEYS + at % VALUES);
            s[n].x = updated(s[n].x, k, w.x, g);
            s[n].y = updated(s[n].y, k, w.y, g);
            s[n].z = updated(s[n].z, k, w.z, g);
            s[n].w = updated(s[n].w, k, w.w, g);
        }
    }
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
        const uint32_t at = first + n * (THREADS * NEAR);
        if (at < SIZE) *reinterpret_cast<float4*>(state + at) = s[n];
    }
}
