// out[m][row] = weight[row] . x[m] for a few rows of activations: the kernel that decode is made
// of. Weights stream once from memory, as units (unit.cuh), through a ring in shared memory that is
// filled before the wait for the preceding kernel; activations stay float32.
//
// The sum of one output, whatever the grid, the ring or the number of rows: a lane adds the
// products of its 32 columns of a superblock in CHAINS fused chains, folds those, applies scale and
// offset; its superblocks in ascending order; then lanes at distance 16, 8, 4 (the sub-blocks); then
// the WARPS_K warps in order. WARPS_K depends on N_IN alone.
//
// With NORM, x is first multiplied by the norm's weight and the result by 1/rms(x).
//
// variant.cuh: MAX_M, N_IN, WARPS_K, WARPS_R (row groups a block), RING (units in flight a warp),
// ROUND (tiles between two barriers), SHARED_BYTES, NORM, EPILOGUE, ORDER, N_SEGMENTS, Segment0.., and for the
// epilogue QKV: HEAD_DIM, N_HEAD_KV, Kv.
#include "epilogue.cuh"
#include "norm.cuh"

constexpr uint32_t N_SB = (N_IN + UNIT_COLS - 1) / UNIT_COLS;
constexpr uint32_t SB_WARP = (N_SB + WARPS_K - 1) / WARPS_K;
constexpr uint32_t WARPS = WARPS_K * WARPS_R;
constexpr uint32_t THREADS = 32 * WARPS;

// Units of a tile that are unrolled: addresses become constants, code stays in the cache.
constexpr int UNROLL = N_SEGMENTS == 1 && MAX_M == 1 && SB_WARP <= 4 ? SB_WARP : 1;

constexpr uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
constexpr uint32_t STAGE =
    max_u32(Segment0::UNIT_BYTES, max_u32(Segment1::UNIT_BYTES, Segment2::UNIT_BYTES));

// A sub-block of 32 activations is padded to 36 words: the eight that a warp reads at a time then
// lie in different banks.
constexpr uint32_t X_SUB = 36;
constexpr uint32_t X_SB = 8 * X_SUB;
constexpr uint32_t SUMS_SB = 24;  // 16 sums of 16 columns, then 8 of 32
static_assert(SHARED_BYTES == WARPS * RING * STAGE + N_SB * MAX_M * (X_SB + SUMS_SB + 1) * 4 +
                                  2 * WARPS_R * ROUND * MAX_M * WARPS_K * UNIT_ROWS * 4,
              "rings, x, its sums and squares, parts");

struct Params {
    Segment segment[3];
    const float* x;     // [m][N_IN]
    const float* norm;  // [N_IN]
    float eps;
    uint32_t m;
    // For the epilogue QKV.
    KvView kv;
    const float* cos_sin;       // [n_ctx][HEAD_DIM / 2][cos, sin]
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    uint32_t located;  // 1: positions and slots were there before the preceding kernel began
    uint32_t unused;
};

template <typename T>
DEVICE void accumulate(const uint8_t* unit, uint32_t lane, const float* x, const float* sums,
                       float (&acc)[MAX_M][2]) {
    float w[2][32], s[2][32 / T::SUB], o[2][32 / T::SUB];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        T::unpack(unit, lane, j, w[j]);
        T::scales(unit, lane, j, s[j], o[j]);
    }
#pragma unroll
    for (int m = 0; m < MAX_M; m++) {
        const float4* at = reinterpret_cast<const float4*>(x + m * X_SB + lane / 4 * X_SUB);
        float chain[2][T::CHAINS] = {};
        // Half of the sub-block at a time: more would not fit the registers.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (h == 1) compiler_fence();
            float xv[16];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float4 v = at[h * 4 + i];
                xv[4 * i] = v.x, xv[4 * i + 1] = v.y, xv[4 * i + 2] = v.z, xv[4 * i + 3] = v.w;
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int i = h * 16; i < h * 16 + 16; i++) {
                    chain[j][T::chain(i)] = fma_rn(w[j][i], xv[i % 16], chain[j][T::chain(i)]);
                }
            }
            if (T::SUB == 32 && h == 0) continue;
            float sum = T::SUB == 16 ? sums[m * SUMS_SB + lane / 4 * 2 + h]
                                     : sums[m * SUMS_SB + 16 + lane / 4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float dot = chain[j][0];
#pragma unroll
                for (int c = 1; c < T::CHAINS; c++) {
                    dot = fma_rn(chain[j][c], T::chain_scale(c), dot);
                }
                constexpr int last = 32 / T::SUB - 1;  // of the scales
                acc[m][j] = fma_rn(s[j][h < last ? h : last], dot, acc[m][j]);
                acc[m][j] = fma_rn(o[j][h < last ? h : last], sum, acc[m][j]);
#pragma unroll
                for (int c = 0; c < T::CHAINS; c++) chain[j][c] = 0.0f;
            }
        }
    }
}

// Calls f with the segment of a tile, its number and the tile's place in it.
template <typename F>
DEVICE void with_segment(const Params& p, uint32_t tile, F f) {
    if (N_SEGMENTS == 1 || tile < p.segment[0].tiles) {
        f(Segment0{}, p.segment[0], 0, tile);
        return;
    }
    tile -= p.segment[0].tiles;
    if (N_SEGMENTS == 2 || tile < p.segment[1].tiles) {
        f(Segment1{}, p.segment[1], 1, tile);
        return;
    }
    f(Segment2{}, p.segment[2], 2, tile - p.segment[1].tiles);
}

// Calls f with the type of a tile; types that are alike share their code.
template <typename F>
DEVICE void with_type(const Params& p, uint32_t tile, F f) {
    const uint32_t first = p.segment[0].tiles;
    if constexpr (N_SEGMENTS > 1 && !SAME<Segment0, Segment1>) {
        if (tile >= first && (N_SEGMENTS == 2 || tile < first + p.segment[1].tiles)) {
            f(Segment1{});
            return;
        }
    }
    if constexpr (N_SEGMENTS > 2 && !SAME<Segment0, Segment2>) {
        if (tile >= first + p.segment[1].tiles) {
            f(Segment2{});
            return;
        }
    }
    f(Segment0{});
}

// The rotation of a pair, wherever its tile is.
DEVICE Rotation rotation_of(const Params& p, uint32_t tile, uint32_t at, uint32_t position) {
    Rotation rotation = {1.0f, 0.0f};
    with_segment(p, tile, [&](auto, const Segment&, int number, uint32_t own) {
        rotation = rotation_in(p, number, own, at, position);
    });
    return rotation;
}

// Two blocks fit an SM where one row is computed: this kernel's and, early, its successor's. (The
// compiler does not manage that in 64 registers from compute capability 10.0 on.)
constexpr int MIN_BLOCKS = MAX_M == 1 && STAGE < 4096 && !ARCH_AT_LEAST(1000) ? 2 : 1;

KERNEL_BOUNDS(matvec, Params, THREADS, MIN_BLOCKS) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t wk = warp % WARPS_K, wr = warp / WARPS_K;
    uint8_t* ring = dynamic_shared<uint8_t>() + warp * (RING * STAGE);
    float* x = reinterpret_cast<float*>(dynamic_shared<uint8_t>() + WARPS * RING * STAGE);
    float* sums = x + N_SB * MAX_M * X_SB;           // x is [superblock][m][X_SB]
    float* squares = sums + N_SB * MAX_M * SUMS_SB;  // sums is [superblock][m][SUMS_SB]
    float* parts = squares + N_SB * MAX_M;           // squares is [m][superblock]
    SHARED uint32_t row_position[MAX_M], row_slot[MAX_M], row_page[MAX_M];
    constexpr uint32_t PART = MAX_M * WARPS_K * 8;   // parts is [2][WARPS_R][ROUND][m][WARPS_K][8]

    uint32_t total = p.segment[0].tiles;
    if (N_SEGMENTS > 1) total += p.segment[1].tiles;
    if (N_SEGMENTS > 2) total += p.segment[2].tiles;
    const uint32_t groups = gridDim.x * WARPS_R, first = blockIdx.x * WARPS_R;
    auto tiles_of = [&](uint32_t group) {
        return group < total ? (total - 1 - group) / groups + 1 : 0;
    };
    const uint32_t my_tiles = tiles_of(first + wr), block_tiles = tiles_of(first);

    // The ring: unit u is superblock wk + (u % SB_WARP) * WARPS_K of this group's tile u / SB_WARP.
    // A stage is asked for again as soon as it was read, so one place serves both ends.
    const SharedAddress ring_lane = to_shared_address(ring) + lane * 16;
    int32_t left = my_tiles * SB_WARP;  // units to ask for
    uint32_t next_sb = 0;
    // Of one segment.
    constexpr uint32_t UNIT = Segment0::UNIT_BYTES;
    const int64_t next_tile = (static_cast<int64_t>(groups) * N_SB - SB_WARP * WARPS_K) * UNIT;
    const uint8_t* next_unit = p.segment[0].units + lane * 16 +
                               (static_cast<uint64_t>(first + wr) * N_SB + wk) * UNIT;
    // Of more.
    uint32_t unit_vectors = 0, tile_number = first + wr;
    auto issue = [&](uint32_t stage) {
        const SharedAddress to = ring_lane + stage;
        const bool is_unit = N_SB % WARPS_K == 0 || wk + next_sb * WARPS_K < N_SB;
        if constexpr (N_SEGMENTS == 1) {
            if (left > 0 && is_unit) {
#pragma unroll
                for (uint32_t i = 0; i < (UNIT / 16 + 31) / 32; i++) {
                    if (i * 32 + 32 <= UNIT / 16 || lane < UNIT / 16 % 32) {
                        cp_async_16(to + i * 512, next_unit + i * 512);
                    }
                }
            }
            next_unit += WARPS_K * UNIT;
        } else {
            if (next_sb == 0 && left > 0) {
                with_segment(p, tile_number, [&](auto type, const Segment& segment, int,
                                                 uint32_t tile) {
                    using T = decltype(type);
                    uint64_t unit = static_cast<uint64_t>(tile) * N_SB + wk;
                    next_unit = segment.units + unit * T::UNIT_BYTES + lane * 16;
                    unit_vectors = T::UNIT_BYTES / 16;
                });
                tile_number += groups;
            }
            if (left > 0 && is_unit) {
#pragma unroll 1
                for (uint32_t i = 0; i < (STAGE / 16 + 31) / 32; i++) {
                    if (i * 32 + lane < unit_vectors) cp_async_16(to + i * 512, next_unit + i * 512);
                }
            }
            next_unit += WARPS_K * 16 * unit_vectors;
        }
        cp_async_commit();
        left--;
        if (++next_sb == SB_WARP) {
            next_sb = 0;
            if (N_SEGMENTS == 1) next_unit += next_tile;
        }
    };
#pragma unroll 1
    for (uint32_t u = 0; u < RING; u++) issue(u * STAGE);

    // The norm's weight is of the model too: it goes to where x will be multiplied with it.
    if constexpr (NORM) {
#pragma unroll 1
        for (uint32_t sb = warp; sb < N_SB; sb += WARPS) {
            uint32_t k = sb * UNIT_COLS + lane * 8;
            float* to = x + sb * MAX_M * X_SB + lane / 4 * X_SUB + lane % 4 * 8;
#pragma unroll
            for (uint32_t e = 0; e < 8; e++) to[e] = k + e < N_IN ? p.norm[k + e] : 0.0f;
        }
    }

    // Where the rows are, and what a thread's first pair is rotated by: kept in shared memory, for
    // registers are short, but read by that thread alone.
    constexpr uint32_t FIRST_PAIRS = EPILOGUE == EPILOGUE_QKV ? WARPS_R * ROUND * MAX_M * 4 : 1;
    SHARED Rotation first_rotation[FIRST_PAIRS];
    auto locate = [&]() {
        if constexpr (EPILOGUE == EPILOGUE_QKV) {
            if (threadIdx.x < p.m) {
                const uint32_t position = load_relaxed_u32(p.positions + threadIdx.x);
                const uint32_t slot = load_relaxed_u32(p.slots + threadIdx.x);
                row_position[threadIdx.x] = position;
                row_slot[threadIdx.x] = slot;
                row_page[threadIdx.x] = kv_page(p.kv, slot, position);
            }
            if (threadIdx.x < FIRST_PAIRS) {
                const uint32_t m = threadIdx.x / 4 % MAX_M, i = threadIdx.x / (4 * MAX_M) % ROUND;
                const uint32_t group = threadIdx.x / (4 * MAX_M * ROUND);
                if (m < p.m && i < tiles_of(first + group)) {
                    first_rotation[threadIdx.x] =
                        rotation_of(p, first + group + i * groups, threadIdx.x % 4,
                                    load_relaxed_u32(p.positions + m));
                }
            }
        }
    };
    if (p.located) locate();
    pdl_wait();
    if (!p.located) locate();
    // Now, while every SM has a block of this kernel: the successor's then find one place on each.
    // Later, SMs that end first would take two of them. (At the last load: 8B 449 instead of 513
    // tokens per second on an H200, 3B 836 instead of 904, 1B 1825 instead of 1953.)
    pdl_trigger();

    // x, a warp a superblock: lane l takes columns 8l..8l+7. Where a warp has several, all are
    // asked for before the first is used.
    constexpr uint32_t ROUNDS = (N_SB + WARPS - 1) / WARPS;
    constexpr uint32_t AT_ONCE = MAX_M > 1 ? 1 : ROUNDS < 4 ? ROUNDS : 4;
#pragma unroll 1
    for (uint32_t round = 0; round < ROUNDS; round += AT_ONCE) {
        float v[AT_ONCE][MAX_M][8] = {};
#pragma unroll
        for (uint32_t t = 0; t < AT_ONCE; t++) {
            const uint32_t sb = warp + (round + t) * WARPS, k = sb * UNIT_COLS + lane * 8;
#pragma unroll
            for (int m = 0; m < MAX_M; m++) {
                if (m >= p.m) break;
                const float* from = p.x + static_cast<uint64_t>(m) * N_IN + k;
                if (N_IN % 4 == 0) {
#pragma unroll
                    for (int q = 0; q < 2; q++) {
                        if (k + 4 * q < N_IN) {
                            float4 f = load_relaxed_f32x4(from + 4 * q);
                            v[t][m][4 * q] = f.x, v[t][m][4 * q + 1] = f.y;
                            v[t][m][4 * q + 2] = f.z, v[t][m][4 * q + 3] = f.w;
                        }
                    }
                } else {
                    for (int e = 0; e < 8; e++) {
                        if (k + e < N_IN) v[t][m][e] = load_relaxed_f32(from + e);
                    }
                }
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < AT_ONCE; t++) {
            const uint32_t sb = warp + (round + t) * WARPS;
            if (sb >= N_SB) break;
            float* row0 = x + sb * MAX_M * X_SB + lane / 4 * X_SUB + lane % 4 * 8;
            float norm[8];
#pragma unroll
            for (int e = 0; e < 8; e++) norm[e] = NORM ? row0[e] : 1.0f;
#pragma unroll
            for (int m = 0; m < MAX_M; m++) {
                float square = 0.0f, sum = 0.0f;
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    if constexpr (NORM) {
                        square = fma_rn(v[t][m][e], v[t][m][e], square);
                        v[t][m][e] = mul_rn(v[t][m][e], norm[e]);
                    }
                    sum = add_rn(sum, v[t][m][e]);
                    row0[m * X_SB + e] = mul_rn(v[t][m][e], X_SCALE);
                }
                sum = add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 1));
                float* s = sums + (sb * MAX_M + m) * SUMS_SB;
                if (lane % 2 == 0) s[lane / 2] = sum;
                sum = add_rn(sum, __shfl_xor_sync(FULL_WARP, sum, 2));
                if (lane % 4 == 0) s[16 + lane / 4] = sum;
                if constexpr (NORM) {
                    square = warp_sum_f32(square);
                    if (lane == 0) squares[m * N_SB + sb] = square;
                }
            }
        }
    }
    __syncthreads();

    const float* x_warp = x + wk * MAX_M * X_SB;
    const float* sums_warp = sums + wk * MAX_M * SUMS_SB;
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t round = 0; round * ROUND < block_tiles; round++) {
        // Two sets of sums: the next round is written while this one is read.
        float* half = parts + (round % 2) * (WARPS_R * ROUND * PART);
#pragma unroll 1
        for (uint32_t i = 0; i < ROUND && round * ROUND + i < my_tiles; i++) {
            float acc[MAX_M][2] = {};
            with_type(p, first + wr + (round * ROUND + i) * groups, [&](auto type) {
                using T = decltype(type);
#pragma unroll UNROLL
                for (uint32_t s = 0; s < SB_WARP; s++) {
                    cp_async_wait<RING - 1>();
                    __syncwarp();
                    if (N_SB % WARPS_K == 0 || wk + s * WARPS_K < N_SB) {
                        accumulate<T>(ring + stage, lane, x_warp + s * (WARPS_K * MAX_M * X_SB),
                                      sums_warp + s * (WARPS_K * MAX_M * SUMS_SB), acc);
                    }
                    __syncwarp();
                    issue(stage);
                    stage = stage == (RING - 1) * STAGE ? 0 : stage + STAGE;
                }
            });
#pragma unroll
            for (int m = 0; m < MAX_M; m++) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float v = acc[m][j];
                    v = add_rn(v, __shfl_xor_sync(FULL_WARP, v, 16));
                    v = add_rn(v, __shfl_xor_sync(FULL_WARP, v, 8));
                    v = add_rn(v, __shfl_xor_sync(FULL_WARP, v, 4));
                    if (lane < 4) {
                        half[(wr * ROUND + i) * PART + (m * WARPS_K + wk) * 8 + lane + 4 * j] = v;
                    }
                }
            }
        }
        __syncthreads();
        delay_block();
        for (uint32_t e = threadIdx.x; e < WARPS_R * ROUND * MAX_M * 4; e += THREADS) {
            uint32_t at = e % 4, m = e / 4 % MAX_M, i = e / (4 * MAX_M) % ROUND;
            uint32_t group = e / (4 * MAX_M * ROUND);
            uint32_t index = round * ROUND + i;
            if (m >= p.m || index >= tiles_of(first + group)) continue;
            const float* part = half + (group * ROUND + i) * PART + m * WARPS_K * 8 + at;
            float a = part[0], b = part[4];
#pragma unroll
            for (uint32_t k = 1; k < WARPS_K; k++) {
                a = add_rn(a, part[k * 8]);
                b = add_rn(b, part[k * 8 + 4]);
            }
            if constexpr (NORM) {
                const float factor = rms_factor<N_SB>(squares + m * N_SB, N_IN, p.eps);
                a = mul_rn(a, factor);
                b = mul_rn(b, factor);
            }
            with_segment(p, first + group + index * groups,
                         [&](auto, const Segment& segment, [[maybe_unused]] int number,
                             uint32_t tile) {
                if constexpr (EPILOGUE == EPILOGUE_QKV) {
                    const uint32_t position = row_position[m], slot = row_slot[m];
                    const uint32_t page = row_page[m];
                    const Rotation rotation =
                        round > 0 || e >= THREADS
                            ? rotation_of(p, first + group + index * groups, at, position)
                            : first_rotation[e];
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
            });
        }
    }
}
