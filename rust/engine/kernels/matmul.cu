// out[m][row] = weight[row] . x[m] for several rows of activations and weights that are small
// integers: the sum that Op::MatVec states, on tensor cores, for a batch's step and for a prompt.
// Weights are tiles (weight_tile.cuh), whose words are fragments of A as they are; x comes from split.cu.
//
// A block has BLOCK_TILES tiles of weights and BLOCK_X tiles of eight rows of x, and of the columns
// all or, where SPLITS > 1, some parts (split-K): then the parts' sums go to memory, and of the blocks
// of one output the last to arrive adds them in order. Superblocks of both stream through a ring of
// RING stages (a multistage pipeline; two are a double buffer).
//
// By experts, rows are pairs that experts.cu has put in order: a block of rows has one expert, and those
// that none has leave at once.
//
// variant.cuh: WARPGROUPS, WARPS_R x WARPS_N warps, of W_TILES tiles of weights and N_TILES of x each,
// RING, SPLITS, COPY_WEIGHTS (threads), MIN_BLOCKS, SHARED_BYTES, NORM, X_SUMS, X_OFFSETS and what epilogue.cuh
// needs.
#include "epilogue.cuh"
#include "norm.cuh"
constexpr bool FEW_ROWS = false;
#include "superblock.cuh"
#include "warpgroup.cuh"

constexpr uint32_t THREADS = 32 * WARPS_R * WARPS_N;
constexpr uint32_t BLOCK_TILES = WARPS_R * W_TILES;
constexpr uint32_t BLOCK_X = WARPS_N * N_TILES;
constexpr uint32_t ROWS = BLOCK_X * X_TILE_ROWS;

constexpr uint32_t X_STAGE = BLOCK_X * XTile::BYTES;
constexpr uint32_t STAGE = BLOCK_TILES * LARGEST_TILE + X_STAGE;
// Sums of the parts that have ended, where one block has them all: touched once a part, they would only
// keep registers from the loop.
constexpr uint32_t TOTAL_BYTES = SPLITS > 1 ? 0 : THREADS * W_TILES * N_TILES * 16;
static_assert(SHARED_BYTES == RING * STAGE + TOTAL_BYTES, "stages of weights and x, and sums");
static_assert(RING >= 2, "one is copied while another is read");
static_assert(!WARPGROUPS || (HAS_WARPGROUPS && W_TILES == 1 && WARPS_R % 4 == 0),
              "four warps have the same x");

struct Params {
    Segment segment[MOST_SEGMENTS];
    const uint8_t* tiles;  // [N_SB][n_tiles], n_tiles a multiple of BLOCK_X
    const float* squares;  // [m][N_SB]
    float* partial;        // [N_PARTS] sums of all blocks, where SPLITS > 1
    uint32_t* tickets;     // one a block of outputs, zero between launches
    float eps;
    uint32_t m;
    uint32_t n_tiles;
    uint32_t unused;
    Experts experts;
    QkvRotation rotation;
};

// Floats of one part's sums of all blocks.
DEVICE uint64_t part_floats() {
    return static_cast<uint64_t>(gridDim.x) * gridDim.y * THREADS * (sizeof(Sums) / 4);
}

DEVICE float4 add_rn(const float4& a, const float4& b) {
    return make_float4(add_rn(a.x, b.x), add_rn(a.y, b.y), add_rn(a.z, b.z), add_rn(a.w, b.w));
}

// The same with wgmma, for one tile of weights a warp: products one after another, of the minimums, then of
// sub-blocks in order. Where registers are for two sets of sums, the next sub-block is multiplied while one is
// drained; elsewhere other warpgroups are.
template <typename T>
DEVICE void add_superblock_by_warpgroup(const uint8_t* tile, const uint8_t* x, SharedAddress x_at,
                                        uint32_t lane, Sums& y) {
    using OfT = Terms<T>;
    constexpr int EACH = 64 / T::SUB;  // sub-blocks of a quarter
    // A thread's registers, and what two sets, y, p and fragments take.
    constexpr int ALL = 65536 / (THREADS * MIN_BLOCKS), HAS = ALL < 255 ? ALL : 255;
    constexpr int TWO = 4 * (2 * N_TILES + 2 * OfT::COUNT * N_TILES + 2 * OfT::PRODUCTS) + 48;
    constexpr int SETS = TWO > HAS ? 1 : 2;
    constexpr int MINIMUMS = T::OFFSETS == SHARED_OFFSETS ? 1 : 0;
    constexpr int PRODUCTS = MINIMUMS + 4 * EACH;
    const uint32_t g = lane / 4, q = lane % 4;
    const CoreMatrix matrices = core_matrix(x_at, XTile::BYTES);
    __syncwarp();
    const typename T::Row rows[2] = {T::row(tile, g), T::row(tile, g + 8)};
    float sums[SETS][OfT::COUNT][N_TILES][4];
    OfT terms[SETS];
    [[maybe_unused]] uint32_t minimum[EIGHTS<T> + 1][4];
    Sums p = {};
    auto fragments = [&](int j) {
        if (j < 4 * EACH) terms[j % SETS].set(T::load(tile, lane, j * T::SUB / 64), j);
    };
    auto multiply_next = [&](int product) {
        if (product >= PRODUCTS) return;
        auto& its = sums[product % SETS];
        const int j = product - MINIMUMS;
        wgmma_fence();
        if (j < 0) {
#pragma unroll
            for (int k = 0; k < EIGHTS<T>; k++) {
                wgmma_k16_f16_f32(its[0], minimum[k], matrices + sums_of<T>(k), k > 0);
            }
        } else {
#pragma unroll
            for (int i = 0; i < OfT::PRODUCTS; i++) {
                const CoreMatrix b = matrices + (j * OfT::STEPS + OfT::step(i)) * 256;
                wgmma_k16_f16_f32(its[OfT::term(i)], terms[j % SETS].a[i], b, !OfT::begins(i));
            }
        }
        wgmma_commit();
    };
    auto drain = [&](const auto& its, int j) {
        const auto quarter = [&](int r) { return T::quarter(rows[r], j / EACH); };
        const float scale[2] = {T::scale(quarter(0), j % EACH), T::scale(quarter(1), j % EACH)};
        [[maybe_unused]] float offset[2];
        if constexpr (T::OFFSETS == OWN_OFFSETS) {
            for (int r = 0; r < 2; r++) offset[r] = T::offset(quarter(r), j % EACH);
        }
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            [[maybe_unused]] float2 of_x;
            if constexpr (T::OFFSETS == OWN_OFFSETS) {
                of_x = *reinterpret_cast<const float2*>(x + n * XTile::BYTES + XTile::OFFSETS +
                                                        j * (X_TILE_ROWS * 4) + q * 8);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float sum = its[0][n][e];
                if constexpr (OfT::COUNT == 2) sum = add_rn(sum, its[OfT::COUNT - 1][n][e]);
                float& own = p[0][n][e];
                own = fma_rn(scale[e / 2], sum, own);
                if constexpr (T::OFFSETS == OWN_OFFSETS) {
                    own = fma_rn(offset[e / 2], e % 2 ? of_x.y : of_x.x, own);
                }
            }
        }
    };
    if constexpr (MINIMUMS > 0) {
#pragma unroll
        for (int k = 0; k < EIGHTS<T>; k++) minimums<T>(tile, g, q, k, minimum[k]);
    }
    for (int j = 0; j < SETS; j++) fragments(j);
    multiply_next(0);
#pragma unroll
    for (int product = 0; product < PRODUCTS; product++) {
        const int j = product - MINIMUMS;
        if constexpr (SETS == 2) multiply_next(product + 1);
        if (SETS == 2 && product + 1 < PRODUCTS) {
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        auto& its = sums[product % SETS];
#pragma unroll
        for (int i = 0; i < OfT::COUNT; i++) settle_registers(its[i]);
        if (j < 0) {
            if constexpr (MINIMUMS > 0) {
                const float dmin[2] = {T::dmin(tile, g), T::dmin(tile, g + 8)};
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) p[0][n][e] = mul_rn(-dmin[e / 2], its[0][n][e]);
                }
            }
        } else {
            fragments(j + SETS);
            drain(its, j);
        }
        if constexpr (SETS == 1) multiply_next(product + 1);
    }
    end_superblock(x, q, p, y);
}

// A superblock's place in the ring, and the phase of its barriers.
struct RingSlot {
    uint32_t stage, phase;

    RingSlot next() const {
        return stage + 1 == RING ? RingSlot{0, phase ^ 1} : RingSlot{stage + 1, phase};
    }
    RingSlot last() const { return stage == 0 ? RingSlot{RING - 1, phase ^ 1} : RingSlot{stage - 1, phase}; }
};

// What a block computes of one segment: its parts' sums, in memory, or those of all, in shared memory.
template <typename T>
DEVICE void multiply(const Params& p, const Segment& segment, [[maybe_unused]] uint32_t expert,
                     uint32_t first, float* partial, float* norm_factors, uint64_t* filled,
                     uint64_t* emptied) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t warp_r = warp % WARPS_R, warp_n = WARPS_N > 1 ? warp / WARPS_R : 0;
    uint8_t* base = dynamic_shared<uint8_t>();
    constexpr uint32_t VECTORS = T::TILE_BYTES / 16;
    const uint32_t part0 = blockIdx.z * N_PARTS / SPLITS, part1 = (blockIdx.z + 1) * N_PARTS / SPLITS;
    const uint32_t sb0 = first_sb(part0), sb1 = first_sb(part1);
    const uint32_t own_tiles = segment.tiles - first < BLOCK_TILES ? segment.tiles - first : BLOCK_TILES;

    const uint32_t n_sb = sb1 - sb0;
    // Superblock i of the block's: weights of its tiles, and x.
    const uint8_t* weights_from =
        segment.weights +
        ((static_cast<uint64_t>(expert) * segment.tiles + first) * N_SB + sb0) * T::TILE_BYTES;
    const uint8_t* x_from =
        p.tiles + (static_cast<uint64_t>(sb0) * p.n_tiles + blockIdx.x * BLOCK_X) * XTile::BYTES;
    // Into a stage of the ring.
    auto copy_weights = [&](uint32_t i, uint32_t to) {
        const SharedAddress stage = to_shared_address(base) + to * STAGE;
        const uint8_t* from = weights_from + i * T::TILE_BYTES;
        if constexpr (HAS_BULK_COPIES) {
            // A warp's own tiles.
            if (lane || warp_n || i >= n_sb) return;
            const uint32_t begin = warp_r * W_TILES;
            const uint32_t end = begin + W_TILES < own_tiles ? begin + W_TILES : own_tiles;
            barrier_expect(filled + to, begin < end ? (end - begin) * T::TILE_BYTES : 0);
#pragma unroll
            for (uint32_t w = 0; w < W_TILES; w++) {
                const uint32_t tile = begin + w;
                if (tile >= end) break;
                bulk_copy(stage + tile * LARGEST_TILE, from + tile * (N_SB * T::TILE_BYTES),
                          T::TILE_BYTES, filled + to);
            }
        } else {
            if (threadIdx.x >= COPY_WEIGHTS) return;
            for (uint32_t v = threadIdx.x; i < n_sb && v < own_tiles * VECTORS; v += COPY_WEIGHTS) {
                const uint32_t tile = v / VECTORS, vector = v % VECTORS;
                cp_async_16(stage + tile * LARGEST_TILE + vector * 16,
                            from + (static_cast<uint64_t>(tile) * N_SB * VECTORS + vector) * 16);
            }
            cp_async_commit();
        }
    };
    auto copy_x = [&](uint32_t i, uint32_t to) {
        const SharedAddress stage = to_shared_address(base) + to * STAGE + BLOCK_TILES * LARGEST_TILE;
        const uint8_t* from = x_from + static_cast<uint64_t>(i) * p.n_tiles * XTile::BYTES;
        if constexpr (HAS_BULK_COPIES) {
            if (threadIdx.x || i >= n_sb) return;
            barrier_expect(filled + to, X_STAGE);
            bulk_copy(stage, from, X_STAGE, filled + to);
        } else {
            // Other threads than those of weights, so that neither copy waits for the other.
            if (threadIdx.x < COPY_WEIGHTS) return;
            for (uint32_t v = threadIdx.x - COPY_WEIGHTS; i < n_sb && v < X_STAGE / 16;
                 v += THREADS - COPY_WEIGHTS) {
                cp_async_16(stage + v * 16, from + v * 16);
            }
            cp_async_commit();
        }
    };
    if constexpr (HAS_BULK_COPIES) {
        if (threadIdx.x == 0) {
            for (uint32_t i = 0; i < RING; i++) {
                // Those of weights, and that of x.
                barrier_init(filled + i, WARPS_R + 1);
                barrier_init(emptied + i, THREADS);
            }
            barrier_init_fence();
        }
        __syncthreads();
    }
    // Weights are the model's: they are asked for before the wait.
    constexpr uint32_t AHEAD = HAS_BULK_COPIES ? RING : RING - 1;
#pragma unroll 1
    for (uint32_t i = 0; i < AHEAD; i++) copy_weights(i, i);
    pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (uint32_t i = 0; i < AHEAD; i++) copy_x(i, i);
    if constexpr (NORM) {
        const uint32_t m = blockIdx.x * ROWS + threadIdx.x;
        if (threadIdx.x < ROWS && m < p.m) {
            float squares[N_SB];
#pragma unroll
            for (uint32_t sb = 0; sb < N_SB; sb++) {
                squares[sb] = load_relaxed_f32(p.squares + static_cast<uint64_t>(m) * N_SB + sb);
            }
            norm_factors[threadIdx.x] = rms_factor<N_SB>(squares, N_IN, p.eps);
        }
    }

    uint32_t i = 0;
    RingSlot slot = {0, 0};
    // On 9.0 a known number of parts would give each a copy of the warpgroups' long loop, more code than
    // is fetched in time. Elsewhere the loop is one anyway, and knowing the parts saves it registers.
    const uint32_t end_part = HAS_WARPGROUPS ? opaque_u32(part1) : part1;
#pragma unroll 1
    for (uint32_t part = part0; part < end_part; part++) {
        Sums y = {};
        const uint32_t end = first_sb(part + 1);
#pragma unroll 1
        for (; sb0 + i < end; i++) {
            if constexpr (HAS_BULK_COPIES) {
                // The superblock before this one was read by all: its stage is free for a later one.
                const RingSlot last = slot.last();
                if (i > 0 && i - 1 + RING < n_sb) {
                    // The thread that copies into it.
                    if (lane == 0 && (WARPS_N > 1 ? warp_n == 0 : warp == 0)) {
                        barrier_wait(emptied + last.stage, last.phase);
                    }
                    if constexpr (WARPS_N > 1) copy_weights(i - 1 + RING, last.stage);
                    copy_x(i - 1 + RING, last.stage);
                }
                barrier_wait(filled + slot.stage, slot.phase);
            } else {
                cp_async_wait<RING - 2>();
                __syncthreads();
                copy_weights(i + RING - 1, slot.last().stage);
                copy_x(i + RING - 1, slot.last().stage);
            }
            const uint8_t* at = base + slot.stage * STAGE;
            const uint8_t* weights = at + warp_r * W_TILES * LARGEST_TILE;
            const uint8_t* x = at + BLOCK_TILES * LARGEST_TILE + warp_n * N_TILES * XTile::BYTES;
            if constexpr (WARPGROUPS) {
                const SharedAddress x_at = to_shared_address(base) + slot.stage * STAGE +
                                           BLOCK_TILES * LARGEST_TILE + warp_n * N_TILES * XTile::BYTES;
                add_superblock_by_warpgroup<T>(weights, x, x_at, lane, y);
            } else {
                add_superblock<T>(weights, x, lane, y);
            }
            if constexpr (HAS_BULK_COPIES) {
                barrier_arrive(emptied + slot.stage);
                // Weights that a warp alone reads need not wait for the others.
                __syncwarp();
                if constexpr (WARPS_N == 1) copy_weights(i + RING, slot.stage);
            }
            slot = slot.next();
        }
#pragma unroll
        for (int w = 0; w < W_TILES; w++) {
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const uint32_t own = (w * N_TILES + n) * THREADS + threadIdx.x;
                float4 sum = make_float4(y[w][n][0], y[w][n][1], y[w][n][2], y[w][n][3]);
                if constexpr (SPLITS > 1) {
                    reinterpret_cast<float4*>(partial + part * part_floats())[own] = sum;
                } else {
                    float4* to = reinterpret_cast<float4*>(base + RING * STAGE) + own;
                    *to = part > 0 ? add_rn(*to, sum) : sum;
                }
            }
        }
    }
}

KERNEL_BOUNDS(matmul, Params, THREADS, MIN_BLOCKS) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    SHARED float norm_factors[ROWS];
    SHARED uint32_t last;
    // Of each stage; superblock i of the block's is phase i / RING of stage i % RING.
    alignas(8) SHARED uint64_t filled[RING], emptied[RING];

    uint32_t expert = 0;
    if constexpr (RANKS > 0) {
        pdl_wait();
        expert = expert_of(p.experts, blockIdx.x);
        if (expert == NO_EXPERT) return;
    }

    // Which segment: each begins a block of its own.
    uint32_t number = 0, group = blockIdx.y;
#pragma unroll
    for (uint32_t i = 0; i + 1 < N_SEGMENTS; i++) {
        const uint32_t groups = (p.segment[i].tiles + BLOCK_TILES - 1) / BLOCK_TILES;
        if (number == i && group >= groups) {
            number = i + 1;
            group -= groups;
        }
    }
    const Segment& segment = p.segment[N_SEGMENTS > 1 ? number : 0];
    const uint32_t first = group * BLOCK_TILES;
    const uint32_t block = blockIdx.x * gridDim.y + blockIdx.y;
    float* partial = p.partial + static_cast<uint64_t>(block) * THREADS * (sizeof(Sums) / 4);

    auto other = [&](auto type, uint32_t which) {
        using T = decltype(type);
        if constexpr (!SAME<T, Segment0>) {
            if (number == which) {
                multiply<T>(p, segment, expert, first, partial, norm_factors, filled, emptied);
                return true;
            }
        }
        return false;
    };
    if (!other(Segment1{}, 1) && !other(Segment2{}, 2) && !other(Segment3{}, 3)) {
        multiply<Segment0>(p, segment, expert, first, partial, norm_factors, filled, emptied);
    }
    delay_block();
    __syncthreads();
    if constexpr (SPLITS > 1) {
        if (threadIdx.x == 0) {
            last = atomic_inc_acq_rel_wrap(p.tickets + block, SPLITS - 1) == SPLITS - 1;
        }
        __syncthreads();
        if (!last) return;
    }
    Sums total;
#pragma unroll
    for (int w = 0; w < W_TILES; w++) {
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            const uint32_t own = (w * N_TILES + n) * THREADS + threadIdx.x;
            float4 sum;
            if constexpr (SPLITS > 1) {
                float4 y[N_PARTS];
#pragma unroll
                for (uint32_t i = 0; i < N_PARTS; i++) {
                    y[i] = load_relaxed_f32x4(partial + own * 4 + i * part_floats());
                }
                sum = y[0];
#pragma unroll
                for (uint32_t i = 1; i < N_PARTS; i++) sum = add_rn(sum, y[i]);
            } else {
                sum = reinterpret_cast<const float4*>(dynamic_shared<uint8_t>() + RING * STAGE)[own];
            }
            total[w][n][0] = sum.x, total[w][n][1] = sum.y;
            total[w][n][2] = sum.z, total[w][n][3] = sum.w;
        }
    }

    const uint32_t warp_r = warp % WARPS_R, warp_n = warp / WARPS_R, at = lane / 4;
    // Pairs of rows of weights that a lane ends, and of each tile of x the two rows that it has. What they
    // need from memory is asked for together, of so many tiles of x as leave registers: a wait each was a
    // third of what a block took for a matrix of 4,096 rows.
    constexpr uint32_t AT_ONCE = W_TILES * N_TILES <= 4 ? N_TILES : 4 / W_TILES;
    static_assert(N_TILES % AT_ONCE == 0, "all tiles");
#pragma unroll
    for (uint32_t begin = 0; begin < N_TILES; begin += AT_ONCE) {
        uint32_t pairs[AT_ONCE][2];
        uint32_t positions[AT_ONCE][2];
        Before before[AT_ONCE][2][W_TILES];
        Rotation rotations[AT_ONCE][2][W_TILES];
        auto each = [&](auto f) {
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
#pragma unroll
                for (uint32_t e = 0; e < 2; e++) {
                    f(i, e, (warp_n * N_TILES + begin + i) * X_TILE_ROWS + lane % 4 * 2 + e);
                }
            }
        };
        auto each_tile = [&](auto f) {
#pragma unroll
            for (uint32_t w = 0; w < W_TILES; w++) {
                const uint32_t tile = first + warp_r * W_TILES + w;
                if (tile < segment.tiles) f(w, tile);
            }
        };
        // Not all tiles' at once: they would not fit the registers.
        compiler_fence();
        each([&](uint32_t i, uint32_t e, uint32_t own) {
            // Rows that are none ask for what the first one has.
            const uint32_t m = blockIdx.x * ROWS + own;
            pairs[i][e] = m < p.m ? pair_of(p.experts, m) : NO_PAIR;
            positions[i][e] = position_of(p.rotation, m < p.m ? m : 0);
        });
        each([&](uint32_t i, uint32_t e, uint32_t) {
            each_tile([&](uint32_t w, uint32_t tile) {
                const uint32_t pair = pairs[i][e] == NO_PAIR ? 0 : pairs[i][e];
                before[i][e][w] = before_of(segment, tile, at, pair);
                rotations[i][e][w] = rotation_in(p.rotation, number, tile, at, positions[i][e]);
            });
        });
        compiler_fence();
        each([&](uint32_t i, uint32_t e, uint32_t own) {
            if (pairs[i][e] == NO_PAIR) return;
            const float factor = NORM ? norm_factors[own] : 1.0f;
            each_tile([&](uint32_t w, uint32_t tile) {
                float a = total[w][begin + i][e], b = total[w][begin + i][e + 2];
                if constexpr (NORM) a = mul_rn(a, factor), b = mul_rn(b, factor);
                finish_pair(segment, expert, number, tile, at, pairs[i][e], a, b, rotations[i][e][w],
                            before[i][e][w]);
            });
        });
    }
}
