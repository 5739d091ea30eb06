// out[row] = weight[row] . x for one row of activations and weights that are small integers: the sum
// that Op::MatVec states, on tensor cores. Weights stream once from memory, as units (unit.cuh),
// through a ring in shared memory that is filled before the wait for the preceding kernel.
//
// An mma has eight columns of B and one row of x two limbs, so B is block-diagonal: column pair t has
// the limbs of the columns of chain t's sub-block and zeros elsewhere. Sixteen mma then leave lane
// quarter t the exact sums of chain t (step 2), which it folds into p (steps 3 and 4). These go to
// shared memory, and after a barrier a thread takes each of a row's parts through its superblocks
// in order (steps 4 and 5). Which warp computed what does not matter to any of it.
//
// With NORM, x is first multiplied by the norm's weight and the result by 1/rms(x). With a GATE, x is what
// Op::SigmoidMul lets through, by ONE_GATE or GATE_EACH, or, for NORM_GATE, what Op::SwiGlu lets through of
// groups that Op::RmsNorm has normalized.
//
// By experts, gridDim.y is the pairs: each block has one of them, and its expert's weights alone; where it
// CHOOSES, it finds out by itself which expert that is, and the first block leaves the choice for others.
// With MIXES it sums up what all experts of the row give, as Op::MixExperts states it: where they are
// CHAINED, a block has its tiles of all of them, one rank's superblocks behind another's; else, of the
// blocks that have the same tiles the one that ends last does it.
//
// Where it SHARES, one rank more, the last, is of an expert that every row goes to: its weights are
// segment 1, and what it gives goes where that segment says, or, where they are CHAINED, is added behind
// the mix; its x there is a row of its own, let through by one gate.
//
// variant.cuh: WARPS_K (warps that share a row), WARPS_R (groups of these), RING (units in flight
// a warp), AHEAD (those of them that are asked for before x), ROUND (tiles of a group between two
// barriers), SETS (of sums: 2 where there are several rounds), MINIMUMS (sums of x for these, of a
// superblock: 8, or 16 where a type has as many), HOLDS_COLUMNS (of x, in registers while a superblock's
// tiles pass), SHARED_BYTES, NORM, GATE, GATE_GROUP, CHOOSES, MIXES, CHAINED, SHARES, ADDS, EPILOGUE, ORDER,
// N_SEGMENTS, Segment0.., for the epilogue QKV: HEAD_DIM, N_HEAD_KV, Kv, and what route.cuh needs.
#include "epilogue.cuh"
#include "fixed.cuh"
#include "mix.cuh"
#include "norm.cuh"
#include "route.cuh"

// Ranks, with the expert that every row goes to.
constexpr uint32_t ALL_RANKS = RANKS + SHARES;
// Superblocks of a tile that a block has.
constexpr uint32_t ALL_SB = (CHAINED ? ALL_RANKS : 1) * N_SB;
constexpr uint32_t SB_WARP = (ALL_SB + WARPS_K - 1) / WARPS_K;
constexpr uint32_t WARPS = WARPS_K * WARPS_R;
constexpr uint32_t THREADS = 32 * WARPS;

constexpr uint32_t STAGE = LARGEST_UNIT;
static_assert(WARPS_K <= ALL_SB, "every warp has a superblock");
static_assert(!CHAINED || (RANKS > 0 && ALL_RANKS <= 32 && !NORM), "a lane a rank");
static_assert(!SHARES || RANKS > 0, "beside experts");
static_assert(!(CHAINED || SHARES) || N_SEGMENTS == 1 + SHARES, "a segment of its own");
static_assert(!MIXES || CHAINED || !SHARES, "added behind a mix in order");
static_assert(!CHOOSES || (RANKS > 0 && RANKS <= 32 && !CHAINED), "a lane a rank");

// A superblock of x: both limbs of a sub-block, padded so that the four that a warp reads at a time lie
// in different banks; then the parts of its sums for minimums, MINIMUMS of them, [2][8] words for
// eight, and as offsets, [8] floats.
constexpr uint32_t X_SUB = 2 * LIMB_BYTES + 16;
constexpr uint32_t X_SUMS = 8 * X_SUB;
constexpr uint32_t X_OFFSETS = X_SUMS + MINIMUMS / 8 * 64;
// Behind these the sums of both limbs over sixteen columns, [16][2] floats, with which integers that are
// stored above what they are give their sums without a subtraction each.
constexpr uint32_t X_LIMBS = X_OFFSETS + 32;
constexpr uint32_t X_SB = X_LIMBS + 128;
constexpr bool NEEDS_LIMBS =
    Segment0::ABOVE > 0 || Segment1::ABOVE > 0 || Segment2::ABOVE > 0 || Segment3::ABOVE > 0;
// p of a superblock: [4 chains][16 rows], padded.
constexpr uint32_t P_SB = 4 * UNIT_ROWS + 4;
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
    const float* x;     // [N_IN]
    const float* gate;  // one number
    uint32_t product;   // its number in the pass
    uint32_t unused;
};

struct Params {
    Segment segment[MOST_SEGMENTS];
    const float* x;     // [N_IN]
    const float* norm;  // [N_IN]
    float eps;
    uint16_t located;  // 1: positions and slots were there before the preceding kernel began
    uint16_t early;    // 1: so was what the sums are added to
    Gated gated;
    Overflows overflows;
    Experts experts;
    SharedExpert shared;
    KvTarget to;
    RouteParams route;  // where it CHOOSES
    float* mixed;       // [rows of the segment], where MIXES; where it ADDS, it adds to what is there
    uint32_t* tickets;  // [gridDim.x], zero between launches, where MIXES without CHAINED
};

// Whether a unit's place is asked for again as soon as the unit is in registers, before it is multiplied:
// where a warp has several superblocks of a tile, and registers. (27B 6,792 -> 6,624 us a step on an H200.
// Where it has one, loads that are spread over the products are worth more: 3B 1,067 -> 1,086 us.)
constexpr bool READS_FIRST = HOLDS_COLUMNS && SB_WARP > 1;

// A superblock of x as a lane's share of B: b[step] of the sixteen, zero but for those of its own chain.
struct Columns {
    uint32_t b[16][2];
};

template <typename T>
DEVICE Columns columns_of(const uint8_t* x_sb, uint32_t lane) {
    Columns x;
    const uint32_t own = lane / 8;
    const uint8_t* from = x_sb + lane % 8 * 16;  // limb and quarter
    if constexpr (T::SUB == 32) {
        // Sub-blocks own and own + 4, two steps each.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 v = *reinterpret_cast<const uint4*>(from + (own + 4 * i) * X_SUB);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const bool mine = own == t;
                x.b[8 * i + 2 * t][0] = mine ? v.x : 0;
                x.b[8 * i + 2 * t][1] = mine ? v.y : 0;
                x.b[8 * i + 2 * t + 1][0] = mine ? v.z : 0;
                x.b[8 * i + 2 * t + 1][1] = mine ? v.w : 0;
            }
        }
    } else {
        // Steps own, own + 4, ..., a sub-block of 16 each.
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint2 v = *reinterpret_cast<const uint2*>(from + (own / 2 + 2 * i) * X_SUB +
                                                            own % 2 * 8);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                x.b[4 * i + t][0] = own == t ? v.x : 0;
                x.b[4 * i + t][1] = own == t ? v.y : 0;
            }
        }
    }
    return x;
}

// Keeps them in registers: else the compiler chooses between x and zero anew for each unit, 32 of some 290
// instructions.
DEVICE void hold(Columns& x) {
#pragma unroll
    for (int n = 0; n < 16; n++) {
        x.b[n][0] = opaque_u32(x.b[n][0]);
        x.b[n][1] = opaque_u32(x.b[n][1]);
    }
}

// p of the rows of a unit, [4 chains][16 rows]. Calls `was_read` when it needs the unit no more.
template <typename T, typename Read>
DEVICE void multiply(const uint8_t* unit, uint32_t lane, const uint8_t* x_sb, const Columns& x,
                     float* p_sb, Read was_read) {
    constexpr int SUBS = 64 / T::SUB;            // sub-blocks of a chain
    const uint32_t g = lane / 4, t = lane % 4;
    const typename T::Quants quants[4] = {T::load(unit, lane, 0), T::load(unit, lane, 1),
                                          T::load(unit, lane, 2), T::load(unit, lane, 3)};
    const typename T::Chain chains[2] = {T::chain(unit, g, t), T::chain(unit, g + 8, t)};
    [[maybe_unused]] uint32_t least[MINIMUMS / 8][4];
    [[maybe_unused]] float dmin[2];
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
#pragma unroll
        for (int k = 0; k < MINIMUMS / 8; k++) minimums<T, MINIMUMS>(unit, g, t, k, least[k]);
        dmin[0] = T::dmin(unit, g), dmin[1] = T::dmin(unit, g + 8);
    }
    if constexpr (READS_FIRST) was_read();
    // [v]: the sums of what vector v has of sub-blocks t + 4i, both limbs, rows g and g + 8: exact, so
    // that no product waits for more than three before it.
    float part[4][4] = {};
    if constexpr (T::ABOVE > 0) {
        static_assert((2 * T::ABOVE + 64) * T::SUB * 2048 < 1 << 24, "exact");
        const float2* limbs = reinterpret_cast<const float2*>(x_sb + X_LIMBS);
#pragma unroll
        for (int i = 0; i < SUBS; i++) {
            float2 sum;
            if constexpr (T::SUB == 16) {
                sum = limbs[t + 4 * i];
            } else {
                const float2 a = limbs[2 * (t + 4 * i)], b = limbs[2 * (t + 4 * i) + 1];
                sum = make_float2(add_rn(a.x, b.x), add_rn(a.y, b.y));
            }
            constexpr int STRIDE = 4 / SUBS;
            part[STRIDE * i][0] = part[STRIDE * i][2] = mul_rn(sum.x, static_cast<float>(T::ABOVE));
            part[STRIDE * i][1] = part[STRIDE * i][3] = mul_rn(sum.y, static_cast<float>(T::ABOVE));
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Two vectors at a time.
        const auto multiply_step = [&](int v, int n) {
            uint32_t a[4];
            if constexpr (T::ABOVE > 0) {
                T::stored_fragment(quants[v], n / 2, n % 2, a);
            } else {
                T::fragment(quants[v], n / 2, n % 2, a);
            }
            mma_m16n8k16_f16_f32(part[v], a, x.b[4 * v + n], part[v]);
        };
#pragma unroll
        for (int n = 0; n < 4; n++) {
            multiply_step(half, n);
            multiply_step(2 + half, n);
        }
    }
    // [i]: the sums of sub-block t + 4i.
    float sums[SUBS][4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
#pragma unroll
        for (int i = 0; i < SUBS; i++) {
            sums[i][e] = SUBS == 4 ? part[i][e] : add_rn(part[2 * i][e], part[2 * i + 1][e]);
        }
    }
    float p[2] = {};
    if constexpr (T::OFFSETS == SHARED_OFFSETS) {
        // Columns 0 and 1 of one more mma are the sums of minimums with the parts of the sums of x.
        const uint32_t* at = reinterpret_cast<const uint32_t*>(x_sb + X_SUMS) + g % 2 * 8 + t;
        float minimum[4] = {};
#pragma unroll
        for (int k = 0; k < MINIMUMS / 8; k++) {
            const uint32_t b[2] = {at[16 * k], at[16 * k + 4]};
            mma_m16n8k16_f16_f32(minimum, least[k], b, minimum);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float m = fma_rn(minimum[2 * r], 16384.0f, minimum[2 * r + 1]);
            p[r] = t == 0 ? mul_rn(-dmin[r], m) : 0.0f;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const auto& chain = chains[r];
#pragma unroll
        for (int i = 0; i < SUBS; i++) {
            const float sum = fma_rn(sums[i][2 * r], 4096.0f, sums[i][2 * r + 1]);
            p[r] = fma_rn(T::scale(chain, i), sum, p[r]);
            if constexpr (T::OFFSETS == OWN_OFFSETS) {
                const float* offsets = reinterpret_cast<const float*>(x_sb + X_OFFSETS);
                p[r] = fma_rn(T::offset(chain, i), offsets[t + 4 * i], p[r]);
            }
        }
        p_sb[t * UNIT_ROWS + g + 8 * r] = p[r];
    }
    if constexpr (!READS_FIRST) was_read();
}

// What a lane's eight values of x become on the way, of the gates g and a weight of the norm.
DEVICE void pass_gate([[maybe_unused]] float (&v)[8], [[maybe_unused]] const float (&g)[8],
                      [[maybe_unused]] const float (&weight)[8], [[maybe_unused]] float eps) {
    if constexpr (GATE == ONE_GATE || GATE == GATE_EACH) {
        const float one = sigmoid_f32(g[0]);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = mul_rn(v[e], GATE == ONE_GATE ? one : sigmoid_f32(g[e]));
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
        rotation = rotation_in(p.to, number, own, at, position);
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
                          Segment0::SUB == Segment3::SUB;

// Small blocks leave room for one of the successor's. Light ones, which ask for all their units before x,
// begin beside a predecessor of 512 threads: 80 registers each let both in.
constexpr int MIN_BLOCKS = THREADS > 256 ? 1 : AHEAD == RING ? 3 : 2;

KERNEL_BOUNDS(matvec, Params, THREADS, MIN_BLOCKS) {
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

    const uint32_t pair = RANKS > 0 && !CHAINED && !has_shared ? blockIdx.y : 0;

    // Where the row is, asked for before the units: behind them it would arrive late.
    uint32_t position = 0;
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (p.located) position = load_relaxed_u32(p.to.positions);
    }

    // The norm's weight is of the model too.
    float norm[SB_WARP][8];
    if constexpr (NORM) {
#pragma unroll
        for (uint32_t s = 0; s < SB_WARP; s++) {
            const uint32_t k = (wk + s * WARPS_K) * UNIT_COLS + lane * 8;
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
            const uint32_t sb = wk + s * WARPS_K, rank = CHAINED ? sb / N_SB : 0;
            // What lies behind the row is not there.
            const uint32_t k = sb < ALL_SB ? sb % N_SB * UNIT_COLS + lane * 8 : N_IN;
            const uint32_t row = row_of_x(pair + (sb < ALL_SB ? rank : 0));
            const float* from = p.x + static_cast<uint64_t>(row) * N_IN;
            if (is_shared(sb)) {
                from = p.shared.x;
                shared_gate = load_relaxed_f32(p.shared.gate);
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
            const uint8_t* unit;
            uint32_t vectors;
            const auto find = [&](auto type, const Segment& segment, uint32_t its, uint32_t own) {
                constexpr uint32_t UNIT = decltype(type)::UNIT_BYTES;
                vectors = UNIT / 16;
                const uint64_t whole = static_cast<uint64_t>(its) * segment.tiles + own;
                unit = segment.units + (whole * N_SB + (CHAINED ? sb % N_SB : sb)) * UNIT;
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
                    bulk_copy_once(ring_warp + place * STAGE, unit, vectors * 16, arrived + place);
                }
            } else {
                const SharedAddress to = ring_warp + place * STAGE + lane * 16;
                unit += lane * 16;
#pragma unroll
                for (uint32_t i = 0; i < (STAGE / 16 + 31) / 32; i++) {
                    if (i * 32 + lane < vectors) cp_async_16(to + i * 512, unit + i * 512);
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
    // Returns when the unit in that place is there for the warp.
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
    // By experts, which weights there are to read is the preceding kernels' to say: x is asked for
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
                const bool leaves = blockIdx.x == 0 && pair == 0;
                const uint32_t chosen = route_row(p.route, 0, lane, leaves, pair);
                if (lane == pair) experts[0] = chosen;
            } else if (lane < KNOWN) {
                const bool is_chosen = !CHAINED || lane < RANKS;
                experts[lane] = is_chosen ? expert_of(p.experts, CHAINED ? lane : pair) : 0;
                if (CHAINED && is_chosen) {
                    shares[lane] = load_relaxed_f32(p.experts.routes + RANKS + lane);
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

    // What the sums of a round are added to, of the pairs that this thread ends.
    constexpr uint32_t ENDS = (WARPS_R * ROUND * 8 * UNIT_ROWS + THREADS - 1) / THREADS;
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
                    const uint32_t row = tile * UNIT_ROWS + e / 16 % 8 + e / 8 % 2 * 8;
                    if (row < p.segment[0].rows) before[j].of[0] = load_relaxed_f32(p.mixed + row);
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
        EPILOGUE == EPILOGUE_QKV ? WARPS_R * ROUND * (UNIT_ROWS / 2) : 1;
    static_assert(FIRST_PAIRS <= THREADS, "a thread a pair");
    SHARED Rotation first_rotation[FIRST_PAIRS];
    SHARED Place place;
    Rotation rotation = {};
    Place found = {};
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (!p.located) position = load_relaxed_u32(p.to.positions);
        const uint32_t at = threadIdx.x % 8, i = threadIdx.x / 8 % ROUND;
        const uint32_t group = threadIdx.x / (8 * ROUND);
        if (threadIdx.x < FIRST_PAIRS && i < tiles_of(first + group)) {
            rotation = rotation_of(p, first + group + i * groups, at, position);
        }
        if (threadIdx.x == 0) found = place_of(p.to, 0);
    }
    // Behind x, which would wait for them.
#pragma unroll 1
    for (uint32_t u = AHEAD; u < RING; u++) issue(u);
#pragma unroll
    for (uint32_t s = 0; s < SB_WARP; s++) {
        const uint32_t sb = wk + s * WARPS_K;
        if (sb >= ALL_SB) break;
        if constexpr (GATE != UNGATED) pass_gate(raw[s], gates[s % GATES], gate_weight, p.gated.eps);
        if (is_shared(sb)) {
            const float one = sigmoid_f32(shared_gate);
#pragma unroll
            for (int e = 0; e < 8; e++) raw[s][e] = mul_rn(raw[s][e], one);
        }
        if constexpr (NORM) {
            const float square = superblock_squares(raw[s]);
            if (lane == 0 && wr == 0) squares[sb] = square;
#pragma unroll
            for (int e = 0; e < 8; e++) raw[s][e] = mul_rn(raw[s][e], norm[s][e]);
        }
        const Fixed fixed = fixed_point(raw[s]);
        if (overflows(fixed) && lane == 0) {
            Overflows to = p.overflows;
            if (is_shared(sb)) to.product = p.shared.product;
            report_overflow(to, row_of_batch(pair), fixed);
        }
        uint8_t* x_sb = x + s * X_SB;
        uint8_t* of_sub = x_sb + lane / 4 * X_SUB;
        store_fragments(fixed, lane, of_sub, of_sub + LIMB_BYTES);
        const int32_t sum = sub_block_sum(fixed);
        const auto store_parts = [&](uint32_t sub, int32_t sum) {
            uint32_t* parts = reinterpret_cast<uint32_t*>(x_sb + X_SUMS) + sub / 8 * 16 + sub % 8;
            parts[0] = eights(upper_part(sum));
            parts[8] = eights(lower_part(sum));
        };
        if constexpr (MINIMUMS > 8) {
            const int32_t sum = sub_block_sum<2>(fixed);
            if (lane % 2 == 0) store_parts(lane / 2, sum);
        }
        if constexpr (NEEDS_LIMBS) {
            const float2 limbs = limb_sums(fixed);
            if (lane % 2 == 0) reinterpret_cast<float2*>(x_sb + X_LIMBS)[lane / 2] = limbs;
        }
        if (lane % 4 == 0) {
            if constexpr (MINIMUMS == 8) store_parts(lane / 4, sum);
            reinterpret_cast<float*>(x_sb + X_OFFSETS)[lane / 4] = offset_sum(sum);
        }
        if (lane == 0 && wr == 0) factors[sb] = fixed.factor;
    }
    if constexpr (EPILOGUE == EPILOGUE_QKV) {
        if (threadIdx.x < FIRST_PAIRS) first_rotation[threadIdx.x] = rotation;
        if (threadIdx.x == 0) place = found;
    }
    __syncwarp();
    STAMP(STAMP_READY);

    uint32_t stage = 0, phase = 0;
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
            auto tiles = [&](auto columns_type, auto multiply_tile) {
                using T = decltype(columns_type);
                Columns columns = columns_of<T>(x_sb, lane);
                if constexpr (HOLDS_COLUMNS) hold(columns);
#pragma unroll 1
                for (uint32_t i = 0; i < in_round; i++) {
                    arrive(stage, phase);
                    multiply_tile(i, columns);
                    if (++stage == RING) stage = 0, phase ^= 1;
                }
            };
            if constexpr (ONE_KIND) {
                tiles(Segment0{}, [&](uint32_t i, const Columns& columns) {
                    with_type(p, from + (begin + i) * groups, [&](auto type) {
                        multiply<decltype(type)>(ring + stage * STAGE, lane, x_sb, columns,
                                                 p_sb + i * P_TILE, was_read);
                    });
                });
            } else {
                tiles(Segment0{}, [&](uint32_t i, const Columns&) {
                    with_type(p, from + (begin + i) * groups, [&](auto type) {
                        using T = decltype(type);
                        multiply<T>(ring + stage * STAGE, lane, x_sb, columns_of<T>(x_sb, lane),
                                    p_sb + i * P_TILE, was_read);
                    });
                });
            }
        }
        if ((round + 1) * ROUND >= block_tiles) STAMP(STAMP_SUMMED);
        __syncthreads();
        delay_block();
        float factor = 1.0f;
        if constexpr (NORM) factor = rms_factor<N_SB>(squares, N_IN, p.eps);
        // A lane has one part of one row; those of rows i and i + 8 are neighbours of eight.
#pragma unroll
        for (uint32_t j = 0; j < ENDS; j++) {
            const uint32_t e = threadIdx.x + j * THREADS;
            if (e >= WARPS_R * ROUND * 8 * UNIT_ROWS) break;
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
#pragma unroll
                        for (int t = 0; t < 4; t++) {
                            y = fma_rn(factors[sb], of_row[sb * P_SB + t * UNIT_ROWS], y);
                        }
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
                const uint32_t its = (first + group + index * groups) * UNIT_ROWS + row;
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
                p.mixed[its] = mixed;
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
                    rotation = round > 0 ? rotation_of(p, tile, at, place.position)
                                         : first_rotation[(group * ROUND + i) * 8 + at];
                }
                finish_pair(p.to, segment, expert, number, own, at, pair, a, b, place, rotation,
                            before[j]);
            });
        }
    }
    if constexpr (MIXES && !CHAINED) {
        SHARED uint32_t ticket;
        __syncthreads();
        if (threadIdx.x == 0) {
            ticket = atomic_inc_acq_rel_wrap(p.tickets + blockIdx.x, gridDim.y - 1);
        }
        __syncthreads();
        if (ticket == gridDim.y - 1) {
            const Segment& segment = p.segment[0];
            for (uint32_t e = threadIdx.x; e < block_tiles * (WARPS_R * UNIT_ROWS); e += THREADS) {
                const uint32_t group = e / UNIT_ROWS % WARPS_R, index = e / UNIT_ROWS / WARPS_R;
                const uint32_t tile = first + group + index * groups;
                const uint32_t row = tile * UNIT_ROWS + e % UNIT_ROWS;
                if (index >= tiles_of(first + group) || row >= segment.rows) continue;
                mix_column(p.experts.routes, segment.out, p.mixed, segment.rows, row);
            }
        }
    }
    // A place that is free before the successor's blocks have theirs would take two of them.
    if (block_tiles == 0) linger(PLACING_NS);
    STAMP(STAMP_ENDED);
}
