// out[m][row] = weight[row] . x[m] for weights that are floats: the sum that Op::MatVec states for
// these, in float32. A lane of a warp has the chain of columns l, l + 32, ... of some rows, each for
// MAX_M rows of x; at the end the chains are folded. x comes through shared memory, CHUNK superblocks at
// a time, weights straight from memory, or, where they are few for few rows of x, through shared memory
// too: then they are there before the preceding kernel has ended. Where there are few rows of weights,
// COMPUTING warps of a block multiply, so that more blocks have some, and all of them fetch x.
//
// With NORM, x is first multiplied by the norm's weight and the result by 1/rms(x). With ROUTES, the sums
// are logits of experts: the block that ends last chooses each row's.
//
// variant.cuh: COMPUTING, STAGED (bytes of weights of a warp in shared memory, or 0), MAX_M (rows of x a block, a power of two up to the number of warps), PAIRS (of
// rows a warp: 1 to 8, a power of two), CHUNK, SHARED_BYTES, NORM, ROUTES, and what epilogue.cuh and
// route.cuh need.
#include "epilogue.cuh"
#include "norm.cuh"
#include "route.cuh"

constexpr uint32_t WARPS = 8, THREADS = 32 * WARPS;
static_assert(MAX_M <= WARPS && WARPS % MAX_M == 0, "warps stage a row of x");
static_assert(COMPUTING >= 1 && COMPUTING <= WARPS, "of all warps");
constexpr uint32_t X_BYTES = MAX_M * CHUNK * TILE_COLS * 4;
static_assert(SHARED_BYTES == X_BYTES + COMPUTING * STAGED, "x, weights");
static_assert(STAGED == 0 || (RANKS == 0 && PAIRS == 1), "two rows of weights");

struct Params {
    Segment segment[MOST_SEGMENTS];
    const float* x;     // [m][N_IN]
    const float* norm;  // [N_IN]
    float eps;
    uint32_t m;
    Experts experts;
    QkvRotation rotation;
    RouteParams route;  // of all rows, where ROUTES
    uint32_t* tickets;  // zero between launches
};

KERNEL_BOUNDS(matvec_floats, Params, THREADS, 1) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* x = dynamic_shared<float>();  // [MAX_M][CHUNK][TILE_COLS]
    SHARED float squares[NORM ? MAX_M * N_SB : 1];
    const uint32_t m0 = blockIdx.y * MAX_M;
    const uint32_t total = all_tiles(p);
    // This warp's pairs of rows: first_pair and following of one tile.
    const uint32_t item = (blockIdx.x * COMPUTING + warp) * PAIRS;
    const uint32_t tile = warp < COMPUTING ? item / 8 : total, first_pair = item % 8;

    float acc[PAIRS][2][MAX_M] = {};
    uint8_t* staged = dynamic_shared<uint8_t>() + X_BYTES + warp * STAGED;  // of a computing warp
    // Weights are constant; by experts, preceding kernels choose which of them.
    if constexpr (STAGED > 0) {
        if (tile < total) {
            with_segment(p, tile, [&](auto type, const Segment& segment, int, uint32_t own) {
                using T = decltype(type);
                constexpr uint32_t ROW = T::TILE_BYTES / TILE_ROWS;
                const uint8_t* weights =
                    segment.weights + static_cast<uint64_t>(own) * N_SB * T::TILE_BYTES;
                // A lane copies what it will read itself.
#pragma unroll 4
                for (uint32_t i = 0; i < N_SB * 2; i++) {
                    const uint32_t row = first_pair + i % 2 * 8;
                    const uint8_t* from = weights + i / 2 * T::TILE_BYTES + row * ROW;
#pragma unroll
                    for (uint32_t at = lane * 16; at < ROW; at += 512) {
                        cp_async_16(staged + i * ROW + at, from + at);
                    }
                }
            });
        }
        cp_async_commit();
    } else if constexpr (RANKS == 0 && PAIRS == 1 && MAX_M == 1) {
        if (tile < total) {
            with_segment(p, tile, [&](auto type, const Segment& segment, int, uint32_t own) {
                using T = decltype(type);
                constexpr uint32_t ROW = T::TILE_BYTES / TILE_ROWS, LINES = ROW / 128;
                const uint8_t* weights =
                    segment.weights + static_cast<uint64_t>(own) * N_SB * T::TILE_BYTES;
                for (uint32_t i = lane; i < N_SB * 2 * LINES; i += 32) {
                    const uint32_t sb = i / (2 * LINES), row = first_pair + i / LINES % 2 * 8;
                    prefetch_l2(weights + sb * T::TILE_BYTES + row * ROW + i % LINES * 128);
                }
            });
        }
    }
    if constexpr (ROUTES) {
        if (blockIdx.x == 0 && warp == 0) expect_route(p.route, lane);
    }
    pdl_wait();
    pdl_trigger();
    const uint32_t expert = expert_of(p.experts, blockIdx.y);
    if (RANKS > 0 && expert == NO_EXPERT) return;
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < N_SB; chunk += CHUNK) {
        if (chunk > 0) __syncthreads();
        const uint32_t n = warp % MAX_M, m = m0 + n;
        const uint32_t pair = m < p.m ? pair_of(p.experts, m) : NO_PAIR;
#pragma unroll 2
        for (uint32_t c = warp / MAX_M; c < CHUNK && chunk + c < N_SB; c += WARPS / MAX_M) {
            const uint32_t k = (chunk + c) * TILE_COLS + lane * 8;
            const float* from = p.x + static_cast<uint64_t>(row_of_x(pair)) * N_IN + k;
            float v[8] = {};
            if (pair != NO_PAIR) {
                if constexpr (N_IN % 4 == 0) {
#pragma unroll
                    for (uint32_t e = 0; e < 8; e += 4) {
                        if (k + e >= N_IN) break;
                        const float4 f = load_relaxed_f32x4(from + e);
                        v[e] = f.x, v[e + 1] = f.y, v[e + 2] = f.z, v[e + 3] = f.w;
                    }
                } else {
#pragma unroll
                    for (uint32_t e = 0; e < 8; e++) {
                        if (k + e < N_IN) v[e] = load_relaxed_f32(from + e);
                    }
                }
            }
            if constexpr (NORM) {
                const float square = superblock_squares(v);
                if (lane == 0) squares[n * N_SB + chunk + c] = square;
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) {
                    v[e] = k + e < N_IN ? mul_rn(v[e], p.norm[k + e]) : 0.0f;
                }
            }
            float4* to = reinterpret_cast<float4*>(x + (n * CHUNK + c) * TILE_COLS + lane * 8);
            to[0] = make_float4(v[0], v[1], v[2], v[3]);
            to[1] = make_float4(v[4], v[5], v[6], v[7]);
        }
        if constexpr (STAGED > 0) cp_async_wait<0>();
        __syncthreads();
        if (tile >= total) continue;
        with_segment(p, tile, [&](auto type, const Segment& segment, int, uint32_t own) {
            using T = decltype(type);
            const uint8_t* weights =
                segment.weights +
                ((static_cast<uint64_t>(expert) * segment.tiles + own) * N_SB + chunk) * T::TILE_BYTES;
#pragma unroll (PAIRS * MAX_M == 1 ? 4 : 2)
            for (uint32_t c = 0; c < CHUNK; c++) {
                if (chunk + c >= N_SB) break;
                float w[PAIRS][2][8];
#pragma unroll
                for (uint32_t pair = 0; pair < PAIRS; pair++) {
#pragma unroll
                    for (uint32_t r = 0; r < 2; r++) {
                        if constexpr (STAGED > 0) {
                            constexpr uint32_t ROW = T::TILE_BYTES / TILE_ROWS;
                            T::load(staged + ((chunk + c) * 2 + r) * ROW, lane, 0, w[pair][r]);
                        } else {
                            T::load(weights + c * T::TILE_BYTES, lane, first_pair + pair + 8 * r,
                                    w[pair][r]);
                        }
                    }
                }
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    // Columns that are not there take no part, not even as zeros.
                    if (N_IN % TILE_COLS && (chunk + c) * TILE_COLS + i * 32 + lane >= N_IN) break;
#pragma unroll
                    for (uint32_t n = 0; n < MAX_M; n++) {
                        const float xv = x[(n * CHUNK + c) * TILE_COLS + i * 32 + lane];
#pragma unroll
                        for (uint32_t pair = 0; pair < PAIRS; pair++) {
#pragma unroll
                            for (uint32_t r = 0; r < 2; r++) {
                                acc[pair][r][n] = fma_rn(w[pair][r][i], xv, acc[pair][r][n]);
                            }
                        }
                    }
                }
            }
        });
    }
    delay_block();
    if (tile < total) {
        // A lane ends pair and row number `lane`, and 32 further on.
#pragma unroll
        for (uint32_t begin = 0; begin < PAIRS * MAX_M; begin += 32) {
            float a = 0.0f, b = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) {
                if (begin + i >= PAIRS * MAX_M) break;
                const uint32_t pair = (begin + i) / MAX_M, n = (begin + i) % MAX_M;
                const float first = warp_sum_f32(acc[pair][0][n]);
                const float second = warp_sum_f32(acc[pair][1][n]);
                if (lane == i) a = first, b = second;
            }
            const uint32_t n = (begin + lane) % MAX_M, m = m0 + n;
            const uint32_t at = first_pair + (begin + lane) / MAX_M;
            if (begin + lane >= PAIRS * MAX_M || m >= p.m) continue;
            const uint32_t pair = pair_of(p.experts, m);
            if (RANKS > 0 && pair == NO_PAIR) continue;
            if constexpr (NORM) {
                const float factor = rms_factor<N_SB>(squares + n * N_SB, N_IN, p.eps);
                a = mul_rn(a, factor);
                b = mul_rn(b, factor);
            }
            with_segment(p, tile, [&](auto, const Segment& segment, int number, uint32_t own) {
                const Rotation rotation = rotation_in(p.rotation, number, own, at, position_of(p.rotation, m));
                finish_pair(segment, expert, number, own, at, pair, a, b, rotation);
            });
        }
    }
    if constexpr (ROUTES) {
        SHARED uint32_t ticket;
        __syncthreads();
        if (threadIdx.x == 0) ticket = atomic_inc_acq_rel_wrap(p.tickets, gridDim.x - 1);
        __syncthreads();
        if (ticket == gridDim.x - 1 && warp < p.m) route_row(p.route, warp, lane);
    }
}
