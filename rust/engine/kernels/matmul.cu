// out[m][row] = weight[row] . x[m] for many rows of activations: a prompt's pass, on tensor cores.
// Weights are the units that the mat-vec reads (unit.cuh); x is hi + lo, two float16 (split.cu).
//
// A block has 64 rows of weights and N_TILE rows of x. 256 columns of weights at a time become
// float16 integers in shared memory, where they are exact; x comes 32 columns at a time, the next
// ones while these are multiplied. Several blocks share an SM: one unpacks while others multiply.
//
// The sum of one output, whatever the grid and the number of rows: per sub-block of SUB columns a
// chain of mma from zero, lo before hi, columns ascending; then fma(scale, chain, sum) and, where
// the type has offsets, fma(offset, sum of x, sum); sub-blocks ascending; at last the row's power of
// two. So it depends on the row's length and the type alone.
//
// variant.cuh: N_IN (a multiple of 32), N_TILE (128, 64 or 32), THREADS, TILES (of weights a block),
// SHARED_BYTES and what epilogue.cuh needs.
#include "epilogue.cuh"

constexpr uint32_t N_SB = (N_IN + UNIT_COLS - 1) / UNIT_COLS;
constexpr uint32_t N_BLOCKS = N_IN / 32;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t ROWS = TILES * UNIT_ROWS;
constexpr uint32_t WARPS_N = N_TILE / 32;              // a warp has 32 rows of x
constexpr uint32_t M_TILES = 4 / (WARPS / WARPS_N);    // and so many times 16 of weights
constexpr uint32_t A_BYTES = ROWS * UNIT_COLS * 2;
constexpr uint32_t SCALE_BYTES = 2 * (UNIT_COLS / 16) * ROWS * 4;
constexpr uint32_t X_BYTES = N_TILE * 128;
constexpr uint32_t X_STAGE = X_BYTES + N_TILE * 4;     // with the sums of the 32 columns
static_assert(SHARED_BYTES == A_BYTES + SCALE_BYTES + 2 * X_STAGE, "weights, scales, two stages of x");

struct Params {
    Segment segment[3];
    // Both have whole tiles of rows; what stands in those past m is read, and goes nowhere.
    const uint8_t* halves;  // [m][N_BLOCKS][hi, lo][32] float16
    const float* sums;      // [N_BLOCKS][stride]
    const float* unscale;   // [m]
    uint32_t m;
    uint32_t stride;
    // For the epilogue QKV.
    KvView kv;
    const float* cos_sin;       // [n_ctx][HEAD_DIM / 2][cos, sin]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
};

// Rows of 16-byte vectors in shared memory, the vector's number xored with the row's: the eight
// rows that one load or store takes then lie in different banks.
DEVICE uint32_t swizzled(uint32_t row, uint32_t vectors, uint32_t vector) {
    return (row * vectors + (vector ^ (row & 7))) * 16;
}

// Row of A for a place of a unit: places i and i + 4 are rows g and g + 8 of one mma, so that one
// thread gets both.
DEVICE uint32_t a_row(uint32_t unit, uint32_t lane, uint32_t j) {
    return unit / 2 * 16 + j * 8 + unit % 2 * 4 + lane % 4;
}

// Superblock `sb` of the block's rows to shared memory: a warp a unit.
template <typename T>
DEVICE void unpack_weights(const Segment& segment, uint32_t tile, uint32_t sb, uint8_t* a,
                           float* scale, float* offset) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
// Both units of a warp at once, where registers allow.
#pragma unroll (N_SEGMENTS == 1 ? 2 : 1)
    for (uint32_t u = warp; u < TILES; u += WARPS) {
        if (tile + u >= segment.tiles) break;
        const uint8_t* unit =
            segment.units + (static_cast<uint64_t>(tile + u) * N_SB + sb) * T::UNIT_BYTES;
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t row = a_row(u, lane, j);
            uint32_t h[16];
            float s[32 / T::SUB], o[32 / T::SUB];
            T::scales(unit, lane, j, s, o);
            const float factor = T::halves(unit, lane, j, h);
#pragma unroll
            for (uint32_t i = 0; i < 32 / T::SUB; i++) {
                const uint32_t at = (lane / 4 * (32 / T::SUB) + i) * ROWS + row;
                scale[at] = mul_rn(s[i], factor);
                if constexpr (T::OFFSETS) offset[at] = o[i];
            }
#pragma unroll
            for (uint32_t v = 0; v < 4; v++) {
                *reinterpret_cast<uint4*>(a + swizzled(row, 32, lane / 4 * 4 + v)) =
                    make_uint4(h[4 * v], h[4 * v + 1], h[4 * v + 2], h[4 * v + 3]);
            }
        }
    }
}

// One block's part of one segment; `first` is its first tile.
template <typename T>
DEVICE void multiply(const Params& p, const Segment& segment, uint32_t first, uint32_t m0,
                     float (&total)[M_TILES][4][4]) {
    constexpr uint32_t SUBS = 32 / T::SUB;  // sub-blocks of 32 columns
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t warp_n = warp % WARPS_N, warp_m = warp / WARPS_N;
    uint8_t* a = dynamic_shared<uint8_t>();
    float* scale = reinterpret_cast<float*>(a + A_BYTES);
    float* offset = scale + SCALE_BYTES / 8;
    uint8_t* stages = a + A_BYTES + SCALE_BYTES;

    // x of 32 columns: a thread always copies the same vector of its rows.
    const uint32_t x_row = threadIdx.x / 8, x_vector = threadIdx.x % 8;
    const uint8_t* x_from =
        p.halves + static_cast<uint64_t>(m0 + x_row) * (N_BLOCKS * 128) + x_vector * 16;
    const uint32_t x_to = swizzled(x_row, 8, x_vector);
    auto issue = [&](uint32_t block) {
        uint8_t* stage = stages + block % 2 * X_STAGE;
#pragma unroll
        for (uint32_t i = 0; i < N_TILE / 16; i++) {
            cp_async_16(stage + x_to + i * 16 * 128,
                        x_from + static_cast<uint64_t>(i * 16) * (N_BLOCKS * 128) + block * 128);
        }
        if constexpr (T::OFFSETS) {
            if (threadIdx.x < N_TILE / 4) {
                cp_async_16(stage + X_BYTES + threadIdx.x * 16,
                            p.sums + static_cast<uint64_t>(block) * p.stride + m0 + threadIdx.x * 4);
            }
        }
        cp_async_commit();
    };

    // Weights are the model's: the first ones are unpacked before the wait.
    unpack_weights<T>(segment, first, 0, a, scale, offset);
    pdl_wait();
    pdl_trigger();
    issue(0);

    // Rows and vectors of this lane's addresses for ldmatrix.
    const uint32_t a_lane_row = warp_m * M_TILES * 16 + lane / 8 % 2 * 8 + lane % 8;
    const uint32_t a_lane_vector = lane / 16;
    const uint32_t b_lane_row = warp_n * 32 + lane % 8, b_lane_vector = lane / 8;

#pragma unroll 1
    for (uint32_t block = 0; block < N_BLOCKS; block++) {
        cp_async_wait<0>();
        __syncthreads();
        if (block + 1 < N_BLOCKS) issue(block + 1);
        const uint32_t sub = block % 8;
        if (sub == 0 && block > 0) {
            unpack_weights<T>(segment, first, block / 8, a, scale, offset);
            __syncthreads();
        }
        const uint8_t* x = stages + block % 2 * X_STAGE;
        const float* x_sums =
            reinterpret_cast<const float*>(x + X_BYTES) + warp_n * 32 + lane % 4 * 2;

        uint32_t b[2][4][4];  // lo and hi; 8 rows of x each; four times 8 columns
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            const uint32_t row = b_lane_row + n * 8;
            ldmatrix_x4(b[0][n], x + swizzled(row, 8, 4 + b_lane_vector));
            ldmatrix_x4(b[1][n], x + swizzled(row, 8, b_lane_vector));
        }
#pragma unroll
        for (uint32_t t = 0; t < M_TILES; t++) {
            uint32_t w[2][4];
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                ldmatrix_x4(w[k], a + swizzled(a_lane_row + t * 16, 32,
                                               sub * 4 + k * 2 + a_lane_vector));
            }
            const uint32_t place = (warp_m * M_TILES + t) * 16 + lane / 4;
#pragma unroll
            for (uint32_t i = 0; i < SUBS; i++) {
                float chain[4][4] = {};
                // Step by step over all rows of x: neighbours do not wait for each other.
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
                    for (uint32_t k = i * 2 / SUBS; k < (i + 1) * 2 / SUBS; k++) {
#pragma unroll
                        for (uint32_t n = 0; n < 4; n++) {
                            mma_m16n8k16_f16_f32(chain[n], w[k], &b[half][n][2 * k], chain[n]);
                        }
                    }
                }
                const float* s = scale + (sub * SUBS + i) * ROWS + place;
                const float* o = offset + (sub * SUBS + i) * ROWS + place;
#pragma unroll
                for (uint32_t n = 0; n < 4; n++) {
                    float* sum = total[t][n];
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        sum[e] = fma_rn(s[e / 2 * 8], chain[n][e], sum[e]);
                    }
                    if constexpr (T::OFFSETS) {
                        const float2 of_x = *reinterpret_cast<const float2*>(x_sums + n * 8);
                        sum[0] = fma_rn(o[0], of_x.x, sum[0]);
                        sum[1] = fma_rn(o[0], of_x.y, sum[1]);
                        sum[2] = fma_rn(o[8], of_x.x, sum[2]);
                        sum[3] = fma_rn(o[8], of_x.y, sum[3]);
                    }
                }
            }
        }
    }
}

// Three blocks fit the shared memory of data-centre SMs from 9.0 on; where several types meet, and
// from 10.0 on, registers allow two.
constexpr uint32_t MIN_BLOCKS =
    N_SEGMENTS == 1 && ARCH_AT_LEAST(900) && !ARCH_AT_LEAST(1000) ? 3 : 2;

KERNEL_BOUNDS(matmul, Params, THREADS, MIN_BLOCKS) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t m0 = blockIdx.x * N_TILE;

    // Which segment: each begins a block of its own.
    uint32_t number = 0, group = blockIdx.y;
#pragma unroll
    for (uint32_t i = 0; i + 1 < N_SEGMENTS; i++) {
        const uint32_t groups = (p.segment[i].tiles + TILES - 1) / TILES;
        if (number == i && group >= groups) {
            number = i + 1;
            group -= groups;
        }
    }
    const Segment& segment = p.segment[N_SEGMENTS > 1 ? number : 0];
    const uint32_t first = group * TILES;

    float total[M_TILES][4][4] = {};
    auto other = [&](auto type, uint32_t which) {
        using T = decltype(type);
        if constexpr (!SAME<T, Segment0>) {
            if (number == which) {
                multiply<T>(p, segment, first, m0, total);
                return true;
            }
        }
        return false;
    };
    if (!other(Segment1{}, 1) && !other(Segment2{}, 2)) {
        multiply<Segment0>(p, segment, first, m0, total);
    }

    delay_block();
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t m = m0 + warp % WARPS_N * 32 + n * 8 + lane % 4 * 2 + e;
            if (m >= p.m) continue;
            const float unscale = load_relaxed_f32(p.unscale + m);
            // Not all rows' places at once: they would not fit the registers.
            compiler_fence();
            uint32_t position = 0, slot = 0, page = 0;
            if constexpr (EPILOGUE == EPILOGUE_QKV) {
                position = load_relaxed_u32(p.positions + m);
                slot = load_relaxed_u32(p.slots + m);
                page = kv_page(p.kv, slot, position);
            }
#pragma unroll
            for (uint32_t t = 0; t < M_TILES; t++) {
                const uint32_t tile =
                    first + (warp / WARPS_N * M_TILES + t) * 2 + lane / 16;
                if (tile >= segment.tiles) continue;
                const float a = mul_rn(total[t][n][e], unscale);
                const float b = mul_rn(total[t][n][e + 2], unscale);
                const uint32_t at = lane / 4 % 4;
                if constexpr (EPILOGUE == EPILOGUE_QKV) {
                    const Rotation rotation = rotation_in(p, number, tile, at, position);
                    if (number == 2) {
                        finish_qkv<ORDER_NATURAL>(p, segment, number, tile, at, m, a, b, position,
                                                  slot, page, rotation);
                    } else {
                        finish_qkv<ORDER>(p, segment, number, tile, at, m, a, b, position, slot,
                                          page, rotation);
                    }
                } else {
                    finish(segment, tile, at, m, a, b);
                }
            }
        }
    }
}
