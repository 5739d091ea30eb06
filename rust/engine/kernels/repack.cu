// Rewrites rows in the file's encoding as units: a warp a unit, once, at load.
//
// variant.cuh: Segment0, the type.
#include "unit.cuh"
#include "variant.cuh"

struct Params {
    const uint64_t* rows;  // [tiles * 8] addresses of rows; 0 where a tile is padded
    uint8_t* units;        // [tiles][n_sb]
    uint32_t tiles;
    uint32_t n_sb;
    uint32_t n_in;
    uint32_t unused;
};

KERNEL(repack, Params) {
    uint32_t lane = threadIdx.x % 32;
    uint64_t unit = static_cast<uint64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= static_cast<uint64_t>(p.tiles) * p.n_sb) return;
    uint64_t tile = unit / p.n_sb;
    uint32_t sb = static_cast<uint32_t>(unit % p.n_sb);
    const uint8_t* a = reinterpret_cast<const uint8_t*>(p.rows[tile * 8 + lane % 4]);
    const uint8_t* b = reinterpret_cast<const uint8_t*>(p.rows[tile * 8 + lane % 4 + 4]);
    Segment0::repack(p.units + unit * Segment0::UNIT_BYTES, lane, a, b,
                     sb * UNIT_COLS + lane / 4 * 32, p.n_in);
}
