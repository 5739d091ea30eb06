// out[row] = weight[row] . x for one row of activations and weights that are small integers: the sum
// that Op::MatVec states, on tensor cores. Weights stream once from memory, as tiles (weight_tile.cuh),
// through a ring in shared memory that is filled before the wait for the preceding kernel.
//
// A warp's sums of a superblock (row_superblock.cuh) go to shared memory, and after a barrier a thread
// takes each of a row's parts through its superblocks in order (step 5). Which warp computed what
// does not matter to any of it.
//
// With NORM, x is first multiplied by the norm's weight and the result by 1/rms(x). With a GATE, x is what
// Op::SigmoidMul lets through, by ONE_GATE or GATE_EACH, or, for NORM_GATE, what Op::SwiGlu lets through of
// groups that Op::RmsNorm has normalized.
//
// By experts, gridDim.y is the ranks: each block has one of them, and its expert's weights alone; gridDim.z is
// the rows, where there are SEVERAL. Where it CHOOSES, it finds out by itself which expert that is, and the
// first block of a row leaves the choice for others.
// With MIXES it sums up what all experts of the row give, as Op::MixExperts states it: where they are
// CHAINED, a block has its tiles of all of them, one rank's superblocks behind another's; else, of the
// blocks that have the same tiles the one that ends last does it.
//
// Where it SHARES, one rank more, the last, is of an expert that every row goes to: its weights are
// segment 1, and what it gives goes where that segment says, or, where they are CHAINED, is added behind
// the mix; its x there is a row of its own, let through by one gate.
//
// variant.cuh: WARPS_K (warps that share a row), WARPS_R (groups of these), RING (tiles in flight
// a warp), AHEAD (those of them that are asked for before x), ROUND (tiles of a group between two
// barriers), SETS (of sums: 2 where there are several rounds), MINIMUMS (sums of x for these, of a
// superblock: none, 8, 16, or 24 for both), HOLDS_COLUMNS (of x, in registers while a superblock's
// tiles pass), SHARED_BYTES, NORM, GATE, GATE_GROUP, CHOOSES, MIXES, CHAINED, SHARES, ADDS, SEVERAL, EPILOGUE,
// ORDER, N_SEGMENTS, Segment0.., for the epilogue QKV: HEAD_DIM, and what route.cuh needs.
#include "epilogue.cuh"
#include "fixed.cuh"
#include "mix.cuh"
#include "norm.cuh"
#include "route.cuh"
#include "row_superblock.cuh"

// Ranks, with the expert that every row goes to.
constexpr uint32_t ALL_RANKS = RANKS + SHARES;
// Superblocks of a tile that a block has.
constexpr uint32_t ALL_SB = (CHAINED ? ALL_RANKS : 1) * N_SB;
constexpr uint32_t SB_WARP = (ALL_SB + WARPS_K - 1) / WARPS_K;
constexpr uint32_t WARPS = WARPS_K * WARPS_R;
constexpr uint32_t THREADS = 32 * WARPS;

constexpr uint32_t STAGE = LARGEST_TILE;
static_assert(WARPS_K <= ALL_SB, "every warp has a superblock");
static_assert(!CHAINED || (RANKS > 0 && ALL_RANKS <= 32 && !NORM), "a lane a rank");
static_assert(!SHARES || RANKS > 0, "beside experts");
static_assert(!SEVERAL || RANKS > 0, "rows of experts");
static_assert(!(CHAINED || SHARES) || N_SEGMENTS == 1 + SHARES, "a segment of its own");
static_assert(!MIXES || CHAINED || !SHARES, "added behind a mix in order");
static_assert(!CHOOSES || (RANKS > 0 && RANKS <= 32 && !CHAINED), "a lane a rank");

// p of a superblock: [16 rows], padded.
constexpr uint32_t P_SB = TILE_ROWS + 4;
constexpr uint32_t P_TILE = ALL_SB * P_SB;
static_assert(SHARED_BYTES == WARPS * (RING * STAGE + SB_WARP * X_SB) + 2 * ALL_SB * 4 +
                                  SETS * WARPS_R * ROUND * P_TILE * 4,
              "rings, x, its factors and squares, p");

// Lanes that have a group of x, or a warp's.
constexpr uint32_t GROUP_LANES = GATE == NORM_GATE ? GATE_GROUP / 8 : 32;
static_assert(GATE == UNGATED || (!NORM && RANKS == 0), "one way to x");

struct Gated {
    const float* by;      // [N_IN], or one number
    const float* weight;  // [GATE_GROUP]
    float eps;
    uint32_t unused;
};

// Of the expert that every row goes to, where they are CHAINED.
struct SharedExpert {
    const float* x;     // [rows][N_IN]
    const float* gate;  // [rows]
    uint32_t product;   // its number in the pass
    uint32_t unused;
};

struct Params {
    Segment segment[MOST_SEGMENTS];
    const float* x;     // [rows][N_IN], or as many as there are pairs
    const float* norm;  // [N_IN]
    float eps;
    uint16_t located;  // 1: positions and slots were there before the preceding kernel began
    uint16_t early;    // 1: so was what the sums are added to
    Gated gated;
    Overflows overflows;
    Experts experts;
    SharedExpert shared;
    QkvRotation rotation;
    RouteParams route;  // where it CHOOSES
    float* mixed;       // [rows][rows of the segment], where MIXES; where it ADDS, it adds to what is there
    uint32_t* tickets;  // [rows][gridDim.x], zero between launches, where MIXES without CHAINED
};

// Whether a tile's place is asked for again as soon as the tile is in registers, before it is multiplied:
// where a warp has several superblocks of a tile, and registers. (27B 6,792 -> 6,624 us a step on an H200.
// Where it has one, loads that are spread over the products are worth more: 3B 1,067 -> 1,086 us.)
constexpr bool READS_FIRST = HOLDS_COLUMNS && SB_WARP > 1;

// What a lane's eight values of x become on the way, of the gates g and a weight of the norm.
DEVICE void pass_gate([[maybe_unused]] float (&v)[8], [[maybe_unused]] const float (&g)[8],
                      [[maybe_unused]] const float (&weight)[8], [[maybe_unused]] float eps) {
    if constexpr (GATE == ONE_GATE || GATE == GATE_EACH) {
        const float one = finite_sigmoid_f32(g[0]);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = mul_rn(v[e], GATE == ONE_GATE ? one : finite_sigmoid_f32(g[e]));
    }
    if constexpr (GATE == NORM_GATE) {
        float squares[1] = {0.0f};
#pragma unroll
        for (int e = 0; e < 8; e++) squares[0] = fma_rn(v[e], v[e], squares[0]);
        // As over a whole warp whose other lanes have zeros.
#pragma unroll
        for (uint32_t distance = GROUP_LANES / 2; distance != 0; distance /= 2) {
            squares[0] = add_rn(squares[0], __shfl_xor_sync(FULL_WARP, squares[0], distance));
        }
        const float factor = rms_factor<1>(squares, GATE_GROUP, eps);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = swiglu_f32(g[e], mul_rn(mul_rn(v[e], factor), weight[e]));
    }
}

// The rotation of a pair, wherever its tile is.
DEVICE Rotation rotation_of(const Params& p, uint32_t tile, uint32_t at, uint32_t position) {
    Rotation rotation = {1.0f, 0.0f};
    with_segment(p, tile, [&](auto, const Segment&, int number, uint32_t own) {
        rotation = rotation_in(p.rotation, number, own, at, position);
    });
    return rotation;
}

// Calls f with the type and the segment of a rank's weights.
template <typename F>
DEVICE void with_rank(const Params& p, uint32_t rank, F f) {
    if (SHARES && rank == RANKS) {
        f(Segment1{}, p.segment[1]);
        return;
    }
    f(Segment0{}, p.segment[0]);
}

// Whether the columns of a superblock are the same registers for all segments.
constexpr bool ONE_KIND = Segment0::SUB == Segment1::SUB && Segment0::SUB == Segment2::SUB &&
                          Segment0::SUB == Segment3::SUB && !(NEEDS_HALVES && NEEDS_BYTES);

// Small blocks leave room for one of the successor's. Light ones, which ask for all their tiles before x,
// begin beside a predecessor of 512 threads: 80 registers each let both in.
constexpr int MIN_BLOCKS = THREADS > 256 ? 1 : AHEAD == RING ? 3 : 2;

// Threads that registers are counted for: where columns are not held, those of a light block of 256 threads
// of 80 registers beside it too, whose share is 5 of 16. (1B 499 -> 469 us a step on an H200. By experts some
// products need more: 30B 1,605 -> 1,550 without. More threads would keep too few.)
constexpr bool LEAVES_REGISTERS =
    !HOLDS_COLUMNS && THREADS > 256 && THREADS <= 512 && RANKS == 0;
constexpr uint32_t BOUND = LEAVES_REGISTERS ? THREADS * 16 / 11 / 32 * 32 : THREADS;

KERNEL_BOUNDS(matvec, Params, BOUND, MIN_BLOCKS) {
    STAMP(STAMP_BEGUN);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t wk = warp % WARPS_K, wr = warp / WARPS_K;
    uint8_t* base = dynamic_shared<uint8_t>();
    uint8_t* ring = base + warp * (RING * STAGE);
    uint8_t* x = base + WARPS * RING * STAGE + warp * (SB_WARP * X_SB);  // of this warp
    float* factors = reinterpret_cast<float*>(base + WARPS * (RING * STAGE + SB_WARP * X_SB));
    float* squares = factors + ALL_SB;  // [ALL_SB], as factors
    float* sums = squares + ALL_SB;     // [SETS][WARPS_R][ROUND][ALL_SB][P_SB]

    // Whether all of the block's tiles are those of the expert that every row goes to, which lie behind the
    // others'; and whether a superblock is of it.
    const bool has_shared = SHARES && !CHAINED && blockIdx.y == RANKS;
    const uint32_t skipped = has_shared ? p.segment[0].tiles : 0;
    auto is_shared = [&](uint32_t sb) { return CHAINED && SHARES && sb / N_SB == RANKS; };

    const uint32_t total = !SHARES ? all_tiles(p) : has_shared ? p.segment[1].tiles : p.segment[0].tiles;
    const uint32_t groups = gridDim.x * WARPS_R, first = blockIdx.x * WARPS_R;
    auto tiles_of = [&](uint32_t group) {
        return group < total ? (total - 1 - group) / groups + 1 : 0;
    };
    const uint32_t my_tiles = tiles_of(first + wr), block_tiles = tiles_of(first);

    const uint32_t m = SEVERAL ? blockIdx.z : 0;
    // Where they are CHAINED, or shared, the row's first.
    const uint32_t own_rank = RANKS > 0 && !CHAINED && !has_shared ? blockIdx.y : 0;
    const uint32_t pair = m * RANKS + own_rank;

    // Where the row is, asked for before the tiles: behind them it would arrive late.
    uint32_t position = 0;
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (p.located) position = position_of(p.rotation, 0);
    }

    // The norm's weight is of the model too.
    float norm[SB_WARP][8];
    if constexpr (NORM) {
#pragma unroll
        for (uint32_t s = 0; s < SB_WARP; s++) {
            const uint32_t k = (wk + s * WARPS_K) * TILE_COLS + lane * 8;
#pragma unroll
            for (uint32_t e = 0; e < 8; e += 4) {
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (k + e < N_IN) four = *reinterpret_cast<const float4*>(p.norm + k + e);
                norm[s][e] = four.x, norm[s][e + 1] = four.y;
                norm[s][e + 2] = four.z, norm[s][e + 3] = four.w;
            }
        }
    }

    // x: all of the warp's superblocks are asked for before the first is used.
    float raw[SB_WARP][8];
    constexpr uint32_t GATES = GATE == GATE_EACH || GATE == NORM_GATE ? SB_WARP : 1;
    float gates[GATES][8] = {};
    [[maybe_unused]] float shared_gate = 0.0f;
    auto ask_x = [&]() {
#pragma unroll
        for (uint32_t s = 0; s < SB_WARP; s++) {
            const uint32_t sb = wk + s * WARPS_K, chained = CHAINED ? sb / N_SB : 0;
            // What lies behind the row is not there.
            const uint32_t k = sb < ALL_SB ? sb % N_SB * TILE_COLS + lane * 8 : N_IN;
            const uint32_t row = row_of_x(pair + (sb < ALL_SB ? chained : 0));
            const float* from = p.x + static_cast<uint64_t>(row) * N_IN;
            if (is_shared(sb)) {
                from = p.shared.x + static_cast<uint64_t>(m) * N_IN;
                shared_gate = load_relaxed_f32(p.shared.gate + m);
            }
            load_columns<N_IN>(from, k, raw[s]);
            if constexpr (GATE == GATE_EACH || GATE == NORM_GATE) {
                load_columns<N_IN>(p.gated.by, k, gates[s % GATES]);
            }
        }
        if constexpr (GATE == ONE_GATE) gates[0][0] = load_relaxed_f32(p.gated.by);
    };

    float gate_weight[8] = {};
    if constexpr (GATE == NORM_GATE) {
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) gate_weight[e] = p.gated.weight[lane * 8 % GATE_GROUP + e];
    }

    // The ring: of each round the warp's superblocks, wk + s WARPS_K, one after another, each of all
    // tiles, so that a superblock of x is loaded once a round. A stage is asked for again as soon as it
    // was read, so one place serves both ends.
    const uint32_t n_sb = (ALL_SB - wk + WARPS_K - 1) / WARPS_K;
    const SharedAddress ring_warp = to_shared_address(ring);
    SHARED uint64_t all_arrived[WARPS][RING];
    uint64_t* arrived = opaque_pointer(all_arrived[warp]);
    uint32_t next_round = 0, next_sb = 0, next_tile = 0, expert = 0;
    float share = 0.0f;  // of the sum, of the rank that is this lane's, where they are CHAINED
    auto issue = [&](uint32_t place) {
        if (next_round + next_tile < my_tiles) {
            const uint32_t tile = skipped + first + wr + (next_round + next_tile) * groups;
            const uint32_t sb = wk + next_sb * WARPS_K;
            const uint8_t* from;
            uint32_t vectors;
            const auto find = [&](auto type, const Segment& segment, uint32_t its, uint32_t own) {
                constexpr uint32_t BYTES = decltype(type)::TILE_BYTES;
                vectors = BYTES / 16;
                const uint64_t whole = static_cast<uint64_t>(its) * segment.tiles + own;
                from = segment.weights + (whole * N_SB + (CHAINED ? sb % N_SB : sb)) * BYTES;
            };
            if constexpr (CHAINED) {
                const uint32_t its = __shfl_sync(FULL_WARP, expert, sb / N_SB);
                with_rank(p, sb / N_SB, [&](auto type, const Segment& segment) {
                    find(type, segment, its, tile);
                });
            } else {
                with_segment(p, tile, [&](auto type, const Segment& segment, int, uint32_t own) {
                    find(type, segment, expert, own);
                });
            }
            if constexpr (HAS_BULK_COPIES) {
                if (lane == 0) {
                    barrier_expect(arrived + place, vectors * 16);
                    bulk_copy_once(ring_warp + place * STAGE, from, vectors * 16, arrived + place);
                }
            } else {
                const SharedAddress to = ring_warp + place * STAGE + lane * 16;
                from += lane * 16;
#pragma unroll
                for (uint32_t i = 0; i < (STAGE / 16 + 31) / 32; i++) {
                    if (i * 32 + lane < vectors) cp_async_16(to + i * 512, from + i * 512);
                }
            }
            const uint32_t in_round = my_tiles - next_round < ROUND ? my_tiles - next_round : ROUND;
            if (++next_tile == in_round) {
                next_tile = 0;
                if (++next_sb == n_sb) {
                    next_sb = 0;
                    next_round += ROUND;
                }
            }
        }
        if constexpr (!HAS_BULK_COPIES) cp_async_commit();
    };
    // Returns when the tile in that place is there for the warp.
    auto arrive = [&](uint32_t place, uint32_t phase) {
        if constexpr (HAS_BULK_COPIES) {
            barrier_wait(arrived + place, phase);
        } else {
            cp_async_wait<RING - 1>();
            __syncwarp();
        }
    };
    if constexpr (HAS_BULK_COPIES) {
        if (lane == 0) {
            for (uint32_t u = 0; u < RING; u++) barrier_init(arrived + u, 1);
            barrier_init_fence();
        }
        __syncwarp();
    }
    [[maybe_unused]] Choice choice;
    // By experts, preceding kernels choose the weights: x is asked for
    // together with that.
    if constexpr (RANKS > 0) {
        // Of a rank each lane, where all are the block's.
        constexpr uint32_t KNOWN = CHAINED ? ALL_RANKS : 1;
        SHARED uint32_t experts[KNOWN];
        SHARED float shares[KNOWN];
        if (CHOOSES && warp == 0) expect_route(p.route, lane);
        pdl_wait();
        ask_x();
        // One warp asks: all of them would wait for each other at one line of memory.
        if (warp == 0) {
            if (has_shared) {
                if (lane == 0) experts[0] = 0;
            } else if constexpr (CHOOSES) {
                choice = choice_of(p.route, m, lane);
                choose(choice, lane, 0, own_rank + 1);
                if (lane == own_rank) experts[0] = choice.chosen[0];
            } else if (lane < KNOWN) {
                const bool is_chosen = !CHAINED || lane < RANKS;
                experts[lane] = is_chosen ? expert_of(p.experts, CHAINED ? pair + lane : pair) : 0;
                if (CHAINED && is_chosen) {
                    shares[lane] = load_relaxed_f32(p.experts.routes + m * (2 * RANKS) + RANKS + lane);
                }
            }
        }
        __syncthreads();
        expert = experts[lane < KNOWN ? lane : 0];
        share = shares[lane < KNOWN ? lane : 0];
    }
#pragma unroll 1
    for (uint32_t u = 0; u < AHEAD; u++) issue(u);
    STAMP(STAMP_ASKED);
    // While what it asked for is on its way; and it has asked before the blocks of other ranks.
    if (CHOOSES && blockIdx.x == 0 && blockIdx.y == 0 && warp == 0) {
        choose(choice, lane, 1, ROUTE_RANKS);
        leave_choice(p.route, m, lane, choice);
    }

    auto mixed_row = [&]() { return p.mixed + static_cast<uint64_t>(m) * p.segment[0].rows; };
    // What the sums of a round are added to, of the pairs that this thread ends.
    constexpr uint32_t ENDS = (WARPS_R * ROUND * 8 * TILE_ROWS + THREADS - 1) / THREADS;
    Before before[ENDS] = {};
    auto ask_before = [&](uint32_t round) {
        if constexpr (CHAINED ? ADDS : EPILOGUE == EPILOGUE_ADD && RANKS == 0) {
#pragma unroll
            for (uint32_t j = 0; j < ENDS; j++) {
                const uint32_t e = threadIdx.x + j * THREADS;
                const uint32_t i = e / 128 % ROUND, group = e / (128 * ROUND);
                const uint32_t index = round * ROUND + i;
                if (lane % (CHAINED ? 8 : 16)) continue;
                if (group >= WARPS_R || index >= tiles_of(first + group)) continue;
                const uint32_t tile = first + group + index * groups;
                if constexpr (CHAINED) {
                    const uint32_t row = tile * TILE_ROWS + e / 16 % 8 + e / 8 % 2 * 8;
                    if (row < p.segment[0].rows) before[j].of[0] = load_relaxed_f32(mixed_row() + row);
                    continue;
                }
                with_segment(p, tile, [&](auto, const Segment& segment, int, uint32_t own) {
                    before[j] = before_of(segment, own, e / 16 % 8, pair);
                });
            }
        }
    };
    if (p.early) ask_before(0);
    if constexpr (RANKS == 0) pdl_wait();
    STAMP(STAMP_WAITED);
    // Now, while every SM has a block of this kernel: the successor's then find one place on each.
    // Later, SMs that end first would take two of them. (At the last load: 8B 449 instead of 513
    // tokens per second on an H200, 3B 836 instead of 904, 1B 1825 instead of 1953.)
    pdl_trigger();

    if constexpr (RANKS == 0) ask_x();
    // What pairs of the first round are rotated by, a thread a pair: needed behind the sums, where it is in
    // shared memory, for registers are short.
    constexpr uint32_t FIRST_PAIRS =
        EPILOGUE == EPILOGUE_QKV ? WARPS_R * ROUND * (TILE_ROWS / 2) : 1;
    static_assert(FIRST_PAIRS <= THREADS, "a thread a pair");
    SHARED Rotation first_rotation[FIRST_PAIRS];
    SHARED uint32_t row_position;
    Rotation rotation = {};
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (!p.located) position = position_of(p.rotation, 0);
        const uint32_t at = threadIdx.x % 8, i = threadIdx.x / 8 % ROUND;
        const uint32_t group = threadIdx.x / (8 * ROUND);
        if (threadIdx.x < FIRST_PAIRS && i < tiles_of(first + group)) {
            rotation = rotation_of(p, first + group + i * groups, at, position);
        }
    }
    // Behind x, which would wait for them.
#pragma unroll 1
    for (uint32_t u = AHEAD; u < RING; u++) issue(u);
    // All of the warp's superblocks side by side: each waits for lanes of its own. What lies behind the last is
    // zeros, and has a place too.
#pragma unroll
    for (uint32_t s = 0; s < SB_WARP; s++) {
        const uint32_t sb = wk + s * WARPS_K;
        if constexpr (GATE != UNGATED) pass_gate(raw[s], gates[s % GATES], gate_weight, p.gated.eps);
        if (is_shared(sb)) {
            const float one = finite_sigmoid_f32(shared_gate);
#pragma unroll
            for (int e = 0; e < 8; e++) raw[s][e] = mul_rn(raw[s][e], one);
        }
        if constexpr (NORM) {
            const float square = superblock_squares(raw[s]);
            if (lane == 0 && wr == 0 && sb < ALL_SB) squares[sb] = square;
#pragma unroll
            for (int e = 0; e < 8; e++) raw[s][e] = mul_rn(raw[s][e], norm[s][e]);
        }
    }
    Fixed fixed[SB_WARP];
#pragma unroll
    for (uint32_t s = 0; s < SB_WARP; s++) fixed[s] = fixed_point(raw[s]);
#pragma unroll
    for (uint32_t s = 0; s < SB_WARP; s++) store_row(fixed[s], lane, x + s * X_SB);
#pragma unroll
    for (uint32_t s = 0; s < SB_WARP; s++) {
        const uint32_t sb = wk + s * WARPS_K;
        if (lane == 0 && wr == 0 && sb < ALL_SB) factors[sb] = fixed[s].factor;
        if (overflows(fixed[s]) && lane == 0) {
            Overflows to = p.overflows;
            if (is_shared(sb)) to.product = p.shared.product;
            report_overflow(to, row_of_batch(pair), fixed[s]);
        }
    }
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (threadIdx.x < FIRST_PAIRS) first_rotation[threadIdx.x] = rotation;
        if (threadIdx.x == 0) row_position = position;
    }
    __syncwarp();
    STAMP(STAMP_READY);

    uint32_t stage = 0, phase = 0;
    float factor = 1.0f;
#pragma unroll 1
    for (uint32_t round = 0; round * ROUND < block_tiles; round++) {
        // Two sets of sums: the next round is written while this one is read.
        float* set = sums + (round % SETS) * (WARPS_R * ROUND * P_TILE);
        const uint32_t begin = round * ROUND;
        if (round > 0 || !p.early) ask_before(round);
        const uint32_t in_round =
            begin >= my_tiles ? 0 : my_tiles - begin < ROUND ? my_tiles - begin : ROUND;
#pragma unroll 1
        for (uint32_t s = 0; s < n_sb; s++) {
            const uint8_t* x_sb = x + s * X_SB;
            const uint32_t sb = wk + s * WARPS_K;
            float* p_sb = set + wr * ROUND * P_TILE + sb * P_SB;
            const uint32_t from = first + wr + (is_shared(sb) ? p.segment[0].tiles : skipped);
            auto was_read = [&]() {
                __syncwarp();
                issue(stage);
            };
            // By x as `columns_for` has it for a type.
            auto multiply_tiles = [&](auto columns_for) {
#pragma unroll 1
                for (uint32_t i = 0; i < in_round; i++) {
                    arrive(stage, phase);
                    with_type(p, from + (begin + i) * groups, [&](auto type) {
                        using T = decltype(type);
                        const auto& columns = columns_for(type);
                        multiply<T, READS_FIRST>(ring + stage * STAGE, lane, x_sb, columns,
                                                 p_sb + i * P_TILE, was_read);
                    });
                    if (++stage == RING) stage = 0, phase ^= 1;
                }
            };
            if constexpr (!ONE_KIND) {
                multiply_tiles([&](auto type) { return columns_of<decltype(type)>(x_sb, lane); });
            } else if constexpr (HOLDS_COLUMNS) {
                const Columns columns = held<Segment0>(columns_of<Segment0>(x_sb, lane));
                multiply_tiles([&](auto) -> const auto& { return columns; });
            } else {
                const auto columns = columns_of<Segment0>(x_sb, lane);
                multiply_tiles([&](auto) -> const auto& { return columns; });
            }
        }
        if ((round + 1) * ROUND >= block_tiles) STAMP(STAMP_SUMMED);
        __syncthreads();
        delay_block();
        if constexpr (NORM) {
            if (round == 0) factor = rms_factor<N_SB>(squares, N_IN, p.eps);
        }
        // A lane has one part of one row; those of rows i and i + 8 are neighbours of eight.
#pragma unroll
        for (uint32_t j = 0; j < ENDS; j++) {
            const uint32_t e = threadIdx.x + j * THREADS;
            if (e >= WARPS_R * ROUND * 8 * TILE_ROWS) break;
            const uint32_t part = e % 8, at = e / 16 % 8, row = at + e / 8 % 2 * 8;
            const uint32_t i = e / 128 % ROUND, group = e / (128 * ROUND);
            const uint32_t index = round * ROUND + i;
            if (index >= tiles_of(first + group)) continue;  // whole warps
            const float* of_row = set + (group * ROUND + i) * P_TILE + row;
            // Of the row, or of what the expert of a rank gives of it.
            auto sum_of = [&](uint32_t rank) {
                float y = 0.0f;
                if (part < N_PARTS) {
                    const uint32_t from = rank * N_SB;
                    for (uint32_t sb = from + part * N_SB / N_PARTS;
                         sb < from + (part + 1) * N_SB / N_PARTS; sb++) {
                        y = fma_rn(factors[sb], of_row[sb * P_SB], y);
                    }
                }
                float sum = __shfl_sync(FULL_WARP, y, lane & ~7u);
#pragma unroll
                for (uint32_t k = 1; k < N_PARTS; k++) {
                    sum = add_rn(sum, __shfl_sync(FULL_WARP, y, (lane & ~7u) | k));
                }
                return sum;
            };
            if constexpr (CHAINED) {
                const uint32_t its = (first + group + index * groups) * TILE_ROWS + row;
                auto given = [&](uint32_t rank) {
                    float sum = sum_of(rank);
                    const uint32_t of = __shfl_sync(FULL_WARP, expert, rank);
                    with_rank(p, rank, [&](auto, const Segment& segment) {
                        if (SCALED && segment.scale[0]) sum = mul_rn(sum, segment.scale[0][of]);
                        if (segment.bias[0] && its < segment.rows) {
                            sum = add_rn(sum, segment.bias[0][of * segment.rows + its]);
                        }
                    });
                    return sum;
                };
                float mixed = 0.0f;
#pragma unroll
                for (uint32_t rank = 0; rank < RANKS; rank++) {
                    const float sum = given(rank);
                    const float weight = __shfl_sync(FULL_WARP, share, rank);
                    mixed = rank == 0 ? mul_rn(weight, sum) : fma_rn(weight, sum, mixed);
                }
                if constexpr (ADDS) mixed = add_rn(before[j].of[0], mixed);
                if constexpr (SHARES) mixed = add_rn(mixed, given(RANKS));
                if (lane % 8 || its >= p.segment[0].rows) continue;
                mixed_row()[its] = mixed;
                continue;
            }
            float a = sum_of(0);
            float b = __shfl_sync(FULL_WARP, a, lane | 8);
            if (lane % 16) continue;
            if constexpr (NORM) {
                a = mul_rn(a, factor);
                b = mul_rn(b, factor);
            }
            const uint32_t tile = skipped + first + group + index * groups;
            with_segment(p, tile, [&](auto, const Segment& segment, int number, uint32_t own) {
                Rotation rotation = {};
                if constexpr (EPILOGUE == EPILOGUE_QKV) {
                    rotation = round > 0 ? rotation_of(p, tile, at, row_position)
                                         : first_rotation[(group * ROUND + i) * 8 + at];
                }
                finish_pair(segment, expert, number, own, at, has_shared ? m : pair, a, b, rotation,
                            before[j]);
            });
        }
    }
    if constexpr (MIXES && !CHAINED) {
        SHARED uint32_t ticket;
        __syncthreads();
        if (threadIdx.x == 0) {
            ticket = atomic_inc_acq_rel_wrap(p.tickets + m * gridDim.x + blockIdx.x, gridDim.y - 1);
        }
        __syncthreads();
        if (ticket == gridDim.y - 1) {
            const Segment& segment = p.segment[0];
            for (uint32_t e = threadIdx.x; e < block_tiles * (WARPS_R * TILE_ROWS); e += THREADS) {
                const uint32_t group = e / TILE_ROWS % WARPS_R, index = e / TILE_ROWS / WARPS_R;
                const uint32_t tile = first + group + index * groups;
                const uint32_t row = tile * TILE_ROWS + e % TILE_ROWS;
                if (index >= tiles_of(first + group) || row >= segment.rows) continue;
                const float* given = segment.out + static_cast<uint64_t>(m * RANKS) * segment.rows;
                mix_column(p.experts.routes + m * (2 * RANKS), given, mixed_row(), segment.rows, row);
            }
        }
    }
    // A place that is free before the successor's blocks have theirs would take two of them.
    if (block_tiles == 0) linger(PLACING_NS);
    STAMP(STAMP_ENDED);
}
