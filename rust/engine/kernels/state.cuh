// The state of a sequence that decodes, on the card: read and advanced by the graph itself, set by
// the host when a request starts (backend/cuda/lower/params.rs has the same struct).
#pragma once
#include "common.cuh"

struct SlotState {
    uint64_t seed;
    uint64_t share;        // of the mass that top-p keeps, times 2^32; 2^32: all
    const uint32_t* stop;  // [n_stop]
    const uint32_t* bias;  // offsets by tile, then entries: see sample.cu; null: none
    uint32_t token;        // the last one, input of the next step
    uint32_t position;     // where that token stands
    uint32_t live;         // 0: the step changes nothing of this slot
    uint32_t generated;    // tokens drawn so far
    uint32_t max_tokens;
    uint32_t n_stop;
    uint32_t only_biased;  // 1: only tokens with a bias of +inf are left
    uint32_t window;       // penalties look at the last so many tokens; 0: there are no penalties
    uint32_t top_k;        // 0: all
    uint32_t least_key;    // order_key of the lowest z that min-p keeps
    float temperature;
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint64_t constrained;  // 1: a draw's row of masks says which tokens it may choose
};
