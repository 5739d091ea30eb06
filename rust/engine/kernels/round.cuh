// What becomes of states behind a round: backend/cuda/lower/rounds.rs has the same structs.
#pragma once
#include "common.cuh"

// Of one layer.
struct Place {
    float* state;
    const float* kept;  // of the round's rows
};

struct Commit {
    const Place* places;        // [layers]
    const uint32_t* accepted;   // [m]: of a slot's first row how many of its rows count, else 0
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
};

DEVICE Place load_place(const Place* at) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
    return {reinterpret_cast<float*>(load_relaxed_u64(words)),
            reinterpret_cast<const float*>(load_relaxed_u64(words + 1))};
}
