// Products of warpgroups, which run behind their issue: as late as a wait allows, when no thread of the
// block can go on otherwise. Until then the registers that they fill are poison. Operands that change
// meanwhile are an error, as are products without a fence and products without a wait.
#pragma once

namespace sim {

// C += A * B for A of 16 rows of 32 bytes a warp, in registers, and B in shared memory: eight columns of
// 16 bytes side by side, the next eight `column_stride` bytes on, their next 16 bytes `row_stride`.
struct ProductShape {
    const unsigned char* b;
    uint32_t column_stride, row_stride;
    uint32_t chunks;  // of eight columns
    uint32_t type;
    uint32_t adds;    // or else begins at zero
    uint32_t group;
};

static inline void wgmma_fence() { self->fenced = true; }

// A group has a fence of its own.
static inline void wgmma_commit() {
    self->product_group++;
    self->fenced = false;
}

void wgmma(void* d, const uint32_t* a, ProductShape shape);

void wgmma_wait(uint32_t pending);

}  // namespace sim
