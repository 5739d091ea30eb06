// Rewrites rows in the file's encoding as tiles: a warp a tile, once, at load.
//
// variant.cuh: Segment0, the type.
#include "weight_tile.cuh"
#include "variant.cuh"

struct Params {
    const uint64_t* rows;  // [tiles * 16] addresses of rows; 0 where a tile is padded
    uint8_t* weights;      // [tiles][n_sb]
    uint32_t tiles;
    uint32_t n_sb;
    uint32_t n_in;
    uint32_t unused;
};

KERNEL(repack, Params) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t tile = static_cast<uint64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (tile >= static_cast<uint64_t>(p.tiles) * p.n_sb) return;
    const uint64_t row_tile = tile / p.n_sb;
    const uint32_t sb = static_cast<uint32_t>(tile % p.n_sb);
    const uint8_t* rows[TILE_ROWS];
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        rows[r] = reinterpret_cast<const uint8_t*>(p.rows[row_tile * TILE_ROWS + r]);
    }
    Segment0::repack(p.weights + tile * Segment0::TILE_BYTES, lane, rows, sb, p.n_in);
}
