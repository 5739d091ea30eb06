// Which expert a block of rows multiplies with, where a product is one by experts. Such rows are pairs
// of a row of the batch and a rank, counted through: pair p is rank p % RANKS of row p / RANKS.
//
// Pairs of a few rows are each a block of rows of their own. Those of more rows are grouped by
// experts.cu, so that an expert's weights are read once for all that chose it.
//
// Include it behind variant.cuh: RANKS (0: all rows multiply with one matrix), RANKED (whether each pair has a row of x
// of its own), GROUPED, ROWS_OF_EXPERT (of a block that has one), N_EXPERT.
#pragma once
#include "common.cuh"
// NO_EXPERT and NO_PAIR.
#include "host.cuh"

struct Experts {
    const float* routes;      // [rows][2][RANKS]: ids, then weights
    const uint32_t* experts;  // [blocks of rows], where GROUPED: NO_EXPERT from some block on
    const uint32_t* pairs;    // [blocks of rows][rows of a block], where GROUPED, or NO_PAIR
};

// The expert that a number in the place of an id stands for.
DEVICE uint32_t id_of(float id) {
    return id >= 0.0f && id < static_cast<float>(N_EXPERT) ? static_cast<uint32_t>(id) : 0;
}

DEVICE uint32_t id_of_pair(const float* routes, uint32_t pair) {
    constexpr uint32_t ranks = RANKS ? RANKS : 1;
    return id_of(load_relaxed_f32(routes + pair / ranks * (2 * ranks) + pair % ranks));
}

// The expert of a block of rows; its matrix is this many tiles' tiles from the first. To be asked
// behind the wait for the preceding kernels.
DEVICE uint32_t expert_of([[maybe_unused]] const Experts& experts, [[maybe_unused]] uint32_t block) {
    if constexpr (RANKS == 0) return 0;
    if constexpr (GROUPED) return load_relaxed_u32(experts.experts + block);
    return id_of_pair(experts.routes, block);
}

// The pair that row m of a launch is, or the row itself where there are no experts.
DEVICE uint32_t pair_of([[maybe_unused]] const Experts& experts, uint32_t m) {
    if constexpr (RANKS > 0 && GROUPED) return load_relaxed_u32(experts.pairs + m);
    return m;
}

// The row of x of a pair, and the row of the batch.
DEVICE uint32_t row_of_x(uint32_t pair) {
    return RANKS > 0 && !RANKED ? pair / (RANKS ? RANKS : 1) : pair;
}
DEVICE uint32_t row_of_batch(uint32_t pair) { return RANKS > 0 ? pair / (RANKS ? RANKS : 1) : pair; }
