// When a block came to which moment, in a build with STAMPS: what `onegraph graph --stamps` shows.
#pragma once
#include "common.cuh"
#include "host.cuh"

// The moment of this block: thread 0 writes it to [blocks][STAMP_WORDS], of which the first word is the
// number of the SM.
DEVICE void stamp(uint64_t* stamps, uint32_t moment) {
    if (threadIdx.x != 0) return;
    const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint64_t* its = stamps + static_cast<uint64_t>(block) * STAMP_WORDS;
    its[moment] = global_timer();
    if (moment == STAMP_BEGUN) its[0] = sm_id();
}
