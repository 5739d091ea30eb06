// out[m][row] = weight[row] . x[m] for up to eight rows of activations and weights that are small
// integers: the sum that Op::MatVec states, on tensor cores, for the steps of a small batch on cards with
// clusters. Weights are tiles (weight_tile.cuh), whose words are fragments of A as they are.
//
// A cluster has some tiles of sixteen rows of weights, and each of its blocks the columns of one part: it
// makes integers of x there, which no other kernel or block then has to, and a warp takes a tile, or a group
// of two neighbours, through the superblocks of the part in order (split-K). The sums of the parts meet in
// distributed shared memory: block i ends rows i and i + 8 of every tile, so each warp writes its sums to the block that ends
// them, and when all are there a thread adds up the parts of such a pair, in order.
//
// Weights stream once from memory through a ring a warp in shared memory, which is filled before the wait
// for the preceding kernel. With NORM, x is first multiplied by the norm's weight and the result by
// 1/rms(x): each block sends its part of a row's squares to the others.
//
// variant.cuh: ROWS (of x, at most), WARPS, W_TILES (tiles of a group; every matrix has whole groups), RING (superblocks of groups
// in flight a warp), AHEAD (those of them that are asked for before x), ROUND (groups a warp between two
// cluster barriers), SETS (of sums: 2 where there are several rounds), SHARED_BYTES, NORM, X_SUMS,
// X_OFFSETS, WARPGROUPS (none), N_TILES (one) and what epilogue.cuh needs.
#include "epilogue.cuh"
#include "norm.cuh"
constexpr bool FEW_ROWS = ROWS < 8;
#include "superblock.cuh"

constexpr uint32_t THREADS = 32 * WARPS;
constexpr uint32_t STAGE = W_TILES * LARGEST_TILE;
// Groups of tiles of a cluster between two cluster barriers, and their tiles.
constexpr uint32_t GROUPS = WARPS * ROUND;
constexpr uint32_t BATCH = GROUPS * W_TILES;
// Superblocks of the longest part.
constexpr uint32_t PART_SB = (N_SB + N_PARTS - 1) / N_PARTS;
// Rows of x of a superblock that a warp makes integers of.
constexpr uint32_t ITEMS = (PART_SB * ROWS + WARPS - 1) / WARPS;
// Sums of a pair of rows of a tile, [ROWS][2].
constexpr uint32_t PAIR = 2 * ROWS;
constexpr uint32_t SET = N_PARTS * BATCH * PAIR;

static_assert(HAS_CLUSTERS && HAS_BULK_COPIES && !WARPGROUPS, "of 9.0 and above");
static_assert(N_PARTS == TILE_ROWS / 2, "a block ends a pair of every tile");
static_assert(N_TILES == 1 && RANKS == 0, "a tile of x");
static_assert(BATCH * ROWS <= THREADS && THREADS % ROWS == 0, "a thread ends one pair a round");
static_assert(ROWS <= X_TILE_ROWS && ROWS % 2 == 0, "in pairs");
static_assert(SHARED_BYTES == WARPS * RING * STAGE + PART_SB * XTile::BYTES + N_SB * ROWS * 4 +
                                  SETS * (SET * 4 + 8),
              "rings, x, squares, sums and their barriers");

struct Params {
    Segment segment[MOST_SEGMENTS];
    const float* x;     // [m][N_IN]
    const float* norm;  // [N_IN]
    float eps;
    uint32_t m;
    Overflows overflows;
    QkvRotation rotation;
};

// Stores them in block g, of those of m rows that this lane has.
DEVICE void store_sums(float* to, uint32_t g, uint32_t q, uint32_t m, const Sums& y, uint64_t* barrier) {
#pragma unroll
    for (int w = 0; w < W_TILES; w++) {
        const float4 both = make_float4(y[w][0][0], y[w][0][2], y[w][0][1], y[w][0][3]);
        if (2 * q < m) store_async(to + w * PAIR + 4 * q, g, both, barrier);
    }
}

KERNEL_BOUNDS(skinny, Params, THREADS, 1) {
    STAMP(STAMP_BEGUN);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = cluster_rank();
    uint8_t* base = dynamic_shared<uint8_t>();
    uint8_t* ring = base + warp * (RING * STAGE);
    uint8_t* x = base + WARPS * RING * STAGE;
    float* squares = reinterpret_cast<float*>(x + PART_SB * XTile::BYTES);  // [N_SB][ROWS]
    float* sums = squares + N_SB * ROWS;  // [SETS][N_PARTS][BATCH][PAIR]
    uint64_t* met = reinterpret_cast<uint64_t*>(sums + SETS * SET);  // [SETS]

    const uint32_t clusters = gridDim.x / N_PARTS, first = blockIdx.x / N_PARTS;
    const uint32_t total = all_tiles(p) / W_TILES;
    // Group i of the cluster is group first + i clusters; a warp has every WARPS-th of them.
    const uint32_t groups = first < total ? (total - 1 - first) / clusters + 1 : 0;
    const uint32_t my_groups = warp < groups ? (groups - 1 - warp) / WARPS + 1 : 0;
    const auto first_tile = [&](uint32_t i) { return (first + i * clusters) * W_TILES; };
    const uint32_t sb0 = first_sb(rank), n_sb = first_sb(rank + 1) - sb0;

    alignas(8) SHARED uint64_t arrived_of[WARPS][RING];
    uint64_t* arrived = arrived_of[warp];
    if (lane == 0) {
        for (uint32_t u = 0; u < RING; u++) barrier_init(arrived + u, 1);
        barrier_init_fence();
    }
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SETS; i++) barrier_init(met + i, 1);
        barrier_init_fence();
    }
    __syncwarp();
    // Behind this barrier of the cluster all of its blocks have begun, and have theirs.
    cluster_arrive_relaxed();

    // Asks for the next of the warp's tiles: its groups in order, of each the superblocks of the part.
    uint32_t next_group = 0, next_sb = 0;
    auto issue = [&](uint32_t place) {
        if (next_group >= my_groups) return;
        if (lane == 0) {
            const uint32_t tile = first_tile(warp + next_group * WARPS);
            with_segment(p, tile, [&](auto type, const Segment& segment, int, uint32_t own) {
                constexpr uint32_t BYTES = decltype(type)::TILE_BYTES;
                const uint64_t number = static_cast<uint64_t>(own) * N_SB + sb0 + next_sb;
                barrier_expect(arrived + place, W_TILES * BYTES);
#pragma unroll
                for (uint32_t w = 0; w < W_TILES; w++) {
                    bulk_copy_once(to_shared_address(ring + place * STAGE + w * LARGEST_TILE),
                                   segment.weights + (number + w * N_SB) * BYTES, BYTES, arrived + place);
                }
            });
        }
        if (++next_sb == n_sb) next_sb = 0, next_group++;
    };
    // Weights are the model's: they are asked for before the wait, as is the norm's.
#pragma unroll 1
    for (uint32_t u = 0; u < AHEAD; u++) issue(u);
    STAMP(STAMP_ASKED);

    // Superblock i / m of the part, of row i % m.
    const uint32_t items = n_sb * p.m;
    float norm[ITEMS][8];
    if constexpr (NORM) {
#pragma unroll
        for (uint32_t j = 0; j < ITEMS; j++) {
            const uint32_t i = warp + j * WARPS;
            const uint32_t k = i < items ? (sb0 + i / p.m) * TILE_COLS + lane * 8 : N_IN;
#pragma unroll
            for (uint32_t e = 0; e < 8; e += 4) {
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (k + e < N_IN) four = *reinterpret_cast<const float4*>(p.norm + k + e);
                norm[j][e] = four.x, norm[j][e + 1] = four.y;
                norm[j][e + 2] = four.z, norm[j][e + 3] = four.w;
            }
        }
    }
    pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();

    float raw[ITEMS][8];
#pragma unroll
    for (uint32_t j = 0; j < ITEMS; j++) {
        const uint32_t i = warp + j * WARPS, row = i < items ? i % p.m : 0;
        const uint32_t k = i < items ? (sb0 + i / p.m) * TILE_COLS + lane * 8 : N_IN;
        load_columns<N_IN>(p.x + static_cast<uint64_t>(row) * N_IN, k, raw[j]);
    }
    // The rest, behind x: what is asked for first arrives first.
#pragma unroll 1
    for (uint32_t u = AHEAD; u < RING; u++) issue(u);
    // The pair that this thread ends of a round: tile `ended` of it, row `m`.
    const uint32_t m = threadIdx.x % ROWS, ended = threadIdx.x / ROWS;
    // What it is added to or rotated by, of the first round asked for before the sums, and where it goes: in
    // shared memory, for registers are short.
    constexpr bool ROTATES = EPILOGUE == EPILOGUE_QKV;
    SHARED Rotation rotations[ROTATES ? THREADS : 1];
    SHARED uint32_t positions[ROTATES ? ROWS : 1];
    const uint32_t row_position = m < p.m ? position_of(p.rotation, m) : 0;
    if (ROTATES && threadIdx.x < ROWS) positions[m] = row_position;
    Before before = {};
    auto ask = [&](uint32_t round, uint32_t position) {
        const uint32_t i = round * GROUPS + ended / W_TILES;
        if (ended >= BATCH || i >= groups || m >= p.m) return;
        const uint32_t tile = first_tile(i) + ended % W_TILES;
        with_segment(p, tile, [&](auto, const Segment& segment, int number, uint32_t own) {
            before = before_of(segment, own, rank, m);
            if constexpr (ROTATES) {
                rotations[threadIdx.x] = rotation_in(p.rotation, number, own, rank, position);
            }
        });
    };
    ask(0, row_position);

    // All of the warp's rows side by side: each waits for lanes of its own. What lies behind the last is zeros.
    Fixed fixed[ITEMS];
#pragma unroll
    for (uint32_t j = 0; j < ITEMS; j++) {
        if constexpr (NORM) {
            const uint32_t i = warp + j * WARPS;
            const float square = superblock_squares(raw[j]);
            // Of the cluster, a lane a block; all of them have begun.
            if (j == 0 && i < items) cluster_wait();
            if (lane < N_PARTS && i < items) {
                store_async(squares + (sb0 + i / p.m) * ROWS + i % p.m, lane, square, met);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) raw[j][e] = mul_rn(raw[j][e], norm[j][e]);
        }
        fixed[j] = fixed_point(raw[j]);
    }
#pragma unroll
    for (uint32_t j = 0; j < ITEMS; j++) {
        const uint32_t i = warp + j * WARPS;
        if (i >= items) break;
        const uint32_t row = i % p.m, sb = i / p.m;
        if (overflows(fixed[j]) && lane == 0) report_overflow(p.overflows, row, fixed[j]);
        store_in_tile(x + sb * XTile::BYTES, row, lane, fixed[j]);
    }
    // Warps without a part of the norm.
    if (!NORM || warp >= items) cluster_wait();
    __syncthreads();
    STAMP(STAMP_READY);

    uint32_t stage = 0, phase = 0;
    float factor = 1.0f;
    const uint32_t g = lane / 4, q = lane % 4;
#pragma unroll 1
    for (uint32_t round = 0; round * GROUPS < groups; round++) {
        // A set that was read two rounds ago is free: the round between has ended here, for which every warp of
        // every block has stored its tiles, behind what it read.
        float* set = sums + round % SETS * SET;
        __syncwarp();
        if (threadIdx.x == 0) {
            const uint32_t left = groups - round * GROUPS, its = left < GROUPS ? left : GROUPS;
            const uint32_t of_norm = NORM && round == 0 ? N_SB * p.m * 4 : 0;
            const uint32_t rows = (p.m + 1) / 2 * 2;
            barrier_expect(met + round % SETS, its * W_TILES * N_PARTS * rows * 8 + of_norm);
        }
        if (round > 0) ask(round, positions[ROTATES ? m : 0]);
#pragma unroll 1
        for (uint32_t j = round * ROUND; j < my_groups && j < (round + 1) * ROUND; j++) {
            const uint32_t tile = first_tile(warp + j * WARPS);
            Sums y = {};
#pragma unroll 1
            for (uint32_t s = 0; s < n_sb; s++) {
                barrier_wait(arrived + stage, phase);
                with_type(p, tile, [&](auto type) {
                    add_superblock<decltype(type)>(ring + stage * STAGE, x + s * XTile::BYTES, lane, y);
                });
                __syncwarp();
                issue(stage);
                if (++stage == RING) stage = 0, phase ^= 1;
            }
            float* to = set + (rank * BATCH + (warp + (j - round * ROUND) * WARPS) * W_TILES) * PAIR;
            store_sums(to, g, q, p.m, y, met + round % SETS);
        }
        if ((round + 1) * GROUPS >= groups) STAMP(STAMP_SUMMED);
        delay_block();
        barrier_wait(met + round % SETS, round / SETS % 2);
        if constexpr (NORM) {
            if (round == 0) {
                float of_row[N_SB];
#pragma unroll
                for (uint32_t sb = 0; sb < N_SB; sb++) of_row[sb] = squares[sb * ROWS + m];
                factor = rms_factor<N_SB>(of_row, N_IN, p.eps);
            }
        }
        const uint32_t i = round * GROUPS + ended / W_TILES;
        if (ended >= BATCH || i >= groups || m >= p.m) continue;
        const float* sums_of_pair = set + ended * PAIR + 2 * m;
        float a, b;
#pragma unroll
        for (uint32_t part = 0; part < N_PARTS; part++) {
            const float* at = sums_of_pair + part * BATCH * PAIR;
            const float2 its = *reinterpret_cast<const float2*>(at);
            a = part == 0 ? its.x : add_rn(a, its.x);
            b = part == 0 ? its.y : add_rn(b, its.y);
        }
        if constexpr (NORM) a = mul_rn(a, factor), b = mul_rn(b, factor);
        const uint32_t tile = first_tile(i) + ended % W_TILES;
        const Rotation rotation = ROTATES ? rotations[threadIdx.x] : Rotation{1.0f, 0.0f};
        with_segment(p, tile, [&](auto, const Segment& segment, int number, uint32_t own) {
            finish_pair(segment, 0, number, own, rank, m, a, b, rotation, before);
        });
    }
    STAMP(STAMP_ENDED);
}
