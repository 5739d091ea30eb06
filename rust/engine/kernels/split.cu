// Rows of activations as integers in the order of matmul.cu: a block a superblock of eight rows, a
// warp a row. With NORM, x is multiplied by the norm's weight, and the sums of its squares are left for
// the end of the product.
//
// By experts, a row is the one of its pair, and blocks of rows that no expert has are left as they are.
//
// variant.cuh: N_IN, NORM, X_SUMS, X_OFFSETS, WARPGROUPS, and what experts.cuh needs.
#include "norm.cuh"
#include "variant.cuh"
#include "experts.cuh"
#include "x_tile.cuh"

constexpr uint32_t N_SB = (N_IN + 255) / 256;

struct Params {
    const float* x;     // [m][N_IN]
    const float* norm;  // [N_IN]
    uint8_t* tiles;     // [N_SB][gridDim.y] tiles of eight rows
    float* squares;     // [m][N_SB]
    Overflows overflows;
    Experts experts;
    uint32_t m;  // rows; what follows them in the last tile is zero
    uint32_t unused;
};

KERNEL_BOUNDS(split, Params, 256, 1) {
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32;
    const uint32_t sb = blockIdx.x, m = blockIdx.y * 8 + row;
    const uint32_t k = sb * 256 + lane * 8;
    float norm[8];
#pragma unroll
    for (int e = 0; e < 8; e++) norm[e] = NORM && k + e < N_IN ? p.norm[k + e] : 0.0f;
    pdl_wait();
    pdl_trigger();

    if (RANKS > 0 && expert_of(p.experts, blockIdx.y * 8 / ROWS_OF_EXPERT) == NO_EXPERT) return;
    const uint32_t pair = m < p.m ? pair_of(p.experts, m) : NO_PAIR;

    float v[8] = {};
    if (pair != NO_PAIR) {
        load_columns<N_IN>(p.x + static_cast<uint64_t>(row_of_x(pair)) * N_IN, k, v);
    }
    if constexpr (NORM) {
        const float square = superblock_squares(v);
        if (lane == 0 && pair != NO_PAIR) p.squares[static_cast<uint64_t>(m) * N_SB + sb] = square;
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = mul_rn(v[e], norm[e]);
    }
    const Fixed fixed = fixed_point(v);
    delay_block();
    if (overflows(fixed) && lane == 0) report_overflow(p.overflows, row_of_batch(pair), fixed);
    uint8_t* tile = p.tiles + (static_cast<uint64_t>(sb) * gridDim.y + blockIdx.y) * XTile::BYTES;
    store_in_tile(tile, row, lane, fixed);
}
