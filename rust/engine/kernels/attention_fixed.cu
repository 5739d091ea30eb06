// out[r][h] = sum over t of softmax_t(scale * q[r][h] . K[t]) * V[t] over a cache of integers, for the
// GROUP query heads that share a KV head (GQA): the sum that Op::Attention states, on tensor cores. A block
// takes HEADS of them and some splits of one row's tokens (split-KV, as in flash-decoding); its teams of four
// warps take neighbouring token blocks at a time, which the first team joins in order (online softmax). Where
// several blocks share the heads of a row, the last to arrive joins their splits. With one row for each
// sequence it also stores the newest token, with NORM_ROPE after QK norm and RoPE.
//
// Keys and values stream through a ring of parts, the keys or the values of a token block a team. Scores: a warp
// has 16 tokens, rows of A; columns of B are the two bytes of Q of four heads, so that a lane has both
// bytes' sums of two tokens and one head. Values: a warp has some tiles of 16 dimensions, rows of A, and
// all tokens; columns of B are the two bytes of the weights. Where a warp's dimensions are blocks that
// hardly another has, it makes their weights by itself; else warps share them in shared memory.
//
// Where a value is the first numbers of its key (STORED is 1), a part is both, and is read again by
// transposes, whose rows are pairs of neighbours: they have other places in a tile.
//
// variant.cuh: Kv, N_HEAD, N_HEAD_KV, HEAD_DIM, VALUE_DIM, STORED (2: keys and values), WINDOW (tokens that a row sees, 0: all), HAS_SINKS, HEADS
// (of a block; a group's last may have fewer), TEAMS, MAX_SPLITS, RING (parts in shared memory), SINGLE_ROW (there
// is one row), BOTH_WAYS (a row's window is around it), CHOSEN (numbers of a row whose bits are the blocks of RATIO tokens that it
// sees; 0: it sees all), RATIO, NORM_ROPE, VALUES_NORMED, VALUES_ARE_KEYS, and what rotate.cuh needs.
#include "kv_fixed.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "rotate.cuh"

using Cache = Kv;
constexpr uint32_t GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t PARTS = (GROUP + HEADS - 1) / HEADS;  // blocks that share a group's heads
constexpr uint32_t HEAD_BLOCKS = N_HEAD_KV * PARTS;
constexpr uint32_t TILES = (HEADS + 3) / 4;              // of four heads
constexpr uint32_t COLUMNS = TILES * 8;                  // two bytes a head
constexpr uint32_t WARPS = PAGE_TOKENS / 16;  // of a team
constexpr uint32_t TEAM = WARPS * 32, THREADS = TEAMS * TEAM;
constexpr uint32_t BLOCKS = Cache::BLOCKS;
constexpr uint32_t CHUNKS = HEAD_DIM / 16, VALUE_CHUNKS = VALUE_DIM / 16;
constexpr uint32_t STEPS = (CHUNKS + 1) / 2;  // of 32 dimensions
constexpr uint32_t BLOCK_STEPS = Cache::GROUP / 32;
// Whether a warp makes the weights of its tiles by itself: then they are whole blocks side by side, where
// it has more than one.
constexpr bool OWN_WEIGHTS = Cache::GROUP == 32;
constexpr uint32_t LEAST_TILES = (VALUE_CHUNKS + WARPS - 1) / WARPS;
constexpr uint32_t WARP_TILES = OWN_WEIGHTS && LEAST_TILES > 1 ? (LEAST_TILES + 1) / 2 * 2 : LEAST_TILES;
constexpr uint32_t SHARED_BLOCKS = OWN_WEIGHTS ? 1 : (VALUE_DIM + Cache::GROUP - 1) / Cache::GROUP;
constexpr uint32_t STAGE = TEAMS * Cache::BYTES;
// Pages that are known ahead, twice as many as are looked up at a time.
constexpr uint32_t PAGES = 128;
static_assert(PAGES <= THREADS && RING * TEAMS < PAGES / 2, "a thread a page");
static_assert(RING * TEAMS <= 32, "a lane a team's share of a part");
// A single row has one block an SM, which may have more threads than two would leave registers.
constexpr bool MANY_THREADS = SINGLE_ROW && THREADS > 256;
// Of the last team, which has the least of the joining.
constexpr uint32_t ASKING_WARP = THREADS / 32 - 1;
constexpr uint32_t SPLIT_FLOATS = HEADS * (VALUE_DIM + 2);
static_assert(STORED == 2 ? VALUE_DIM == HEAD_DIM : VALUE_DIM <= HEAD_DIM && !NORM_ROPE, "values are in keys");
static_assert(MAX_SPLITS <= 32, "a lane a split");
static_assert(!NORM_ROPE || HEAD_DIM <= 256, "a warp has a head");
// Words of four dimensions of a head that a lane has: one of each span, or two neighbours.
constexpr uint32_t LANE_WORDS = NORM_ROPE ? 2 : Cache::SPANS;

// How many parts may be missing behind those that are waited for.
struct AfterKeys {
    static constexpr int value = RING < 2 ? 0 : RING - 2;
};
struct AfterValues {
    static constexpr int value = RING - 1;
};

struct Params {
    const float* q;  // [m][N_HEAD * HEAD_DIM]
    float* out;      // [m][N_HEAD * VALUE_DIM]
    // [m][N_HEAD_KV * HEAD_DIM]: the newest tokens, no two of one sequence; or null: they are stored. Of keys
    // alone, where these have values.
    const float* k;
    const float* v;
    KvView kv;
    const uint32_t* positions;  // [m]; BOTH_WAYS: [m][2], the first and the last that a row sees
    const uint32_t* slots;      // [m]
    // [m][N_HEAD_KV][PARTS]: sums [MAX_SPLITS][HEADS][VALUE_DIM], then maxima and weights
    // [MAX_SPLITS][HEADS]
    float* partial;
    uint32_t* tickets;  // [m][N_HEAD_KV][PARTS], zero between launches
    const float* sinks; // [N_HEAD]: one more score each, of value 0; or null
    const float* chosen;  // [m][CHOSEN], or null
    // With NORM_ROPE: [HEAD_DIM] each, [n_ctx][HALF][cos, sin].
    const float* q_weight;
    const float* k_weight;
    const float* cos_sin;
    float eps;
    float scale;        // times log2(e) / (64 * 32639)
    uint32_t shares;    // blocks that share the splits of a row and of its heads
    uint32_t located;   // 1: positions and slots were there before the preceding kernel began
};

// The tiles of 16 dimensions of a warp.
DEVICE uint32_t tile_of(uint32_t warp, uint32_t i) {
    return OWN_WEIGHTS ? warp * WARP_TILES + i : warp + WARPS * i;
}

// The dimension that row r * 8 + g of a tile is.
DEVICE uint32_t dim_of(uint32_t tile, uint32_t r, uint32_t g) {
    return tile * 16 + (STORED == 2 ? r * 8 + g : 2 * g + r);
}

// Adds the products of a row's bytes, of which the first are signed.
template <bool IS_SIGNED>
DEVICE void multiply(int32_t (&sums)[Cache::LIMBS][TILES][4], uint32_t tile,
                     const uint32_t (&limbs)[Cache::LIMBS][4], const uint32_t (&column)[2]) {
    int32_t(&first)[4] = sums[0][tile];
    mma_m16n8k32_s32<true, IS_SIGNED>(first, limbs[0], column, first);
#pragma unroll
    for (uint32_t limb = 1; limb < Cache::LIMBS; limb++) {
        int32_t(&next)[4] = sums[limb][tile];
        mma_m16n8k32_s32<false, IS_SIGNED>(next, limbs[limb], column, next);
    }
}

// Maximum, sum of weights and of values of some tokens; a lane has its head of each tile.
struct Sums {
    float most[TILES], weight[TILES], values[WARP_TILES][TILES][2];
    bool is_empty;
};

DEVICE void join_sums(Sums& all, const Sums& next) {
    if (next.is_empty) return;
    if (all.is_empty) {
        all = next;
        return;
    }
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
        const Join both = join(all.most[t], next.most[t]);
        all.weight[t] = fma_rn(next.weight[t], both.new_share, mul_rn(all.weight[t], both.old_share));
#pragma unroll
        for (uint32_t i = 0; i < WARP_TILES; i++) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                float& sum = all.values[i][t][r];
                sum = fma_rn(next.values[i][t][r], both.new_share, mul_rn(sum, both.old_share));
            }
        }
    }
}

KERNEL_BOUNDS(attention_fixed, Params, THREADS, MANY_THREADS ? 1 : 2) {
    // Words of four dimensions, of four tokens: rows begin in banks of their own.
    SHARED uint32_t query[COLUMNS][STEPS * 8 + 4];
    SHARED uint32_t all_weights[TEAMS][SHARED_BLOCKS][COLUMNS][PAGE_TOKENS / 4 + 4];
    SHARED float all_parts[TEAMS][TILES * 4][PAGE_TOKENS + 8];
    SHARED uint32_t newest[STORED][Cache::LIMBS][CHUNKS * 4];
    SHARED uint16_t newest_scales[STORED][BLOCKS];
    SHARED float factors[TILES * 4];
    SHARED uint32_t is_number[TILES * 4];
    SHARED float all_tops[TEAMS][WARPS][TILES * 4];
    SHARED float all_largest[TEAMS][WARPS][SHARED_BLOCKS][TILES * 4];
    SHARED int all_shares[TEAMS][WARPS][TILES * 4];
    // What later teams hand the first, a thread to the one in its place.
    SHARED Sums handed[TEAMS > 1 ? TEAMS - 1 : 1][TEAMS > 1 ? TEAM : 1];
    // With CHOSEN, behind the pages: which blocks of them are seen.
    SHARED uint32_t pages[CHOSEN ? 2 * PAGES : PAGES];
    SHARED uint64_t arrived[RING];
    SHARED float2 shares_of[HEADS][MAX_SPLITS];
    SHARED float weight_of[HEADS][MAX_SPLITS];
    SHARED float2 sink_shares[HEADS];
    SHARED float sink_weights[HEADS];
    SHARED uint32_t ticket;
    uint8_t* ring = dynamic_shared<uint8_t>();

    STAMP(STAMP_BEGUN);
    // Blocks behind the last share only hold their place, so that the successor's find one on each SM.
    const uint32_t own = blockIdx.x % HEAD_BLOCKS, number_of_share = blockIdx.x / HEAD_BLOCKS;
    const uint32_t head = own / PARTS, m = blockIdx.z;
    // The first of its heads, and how many they are.
    const uint32_t first_head = own % PARTS * HEADS;
    const uint32_t heads = PARTS == 1 || GROUP - first_head > HEADS ? HEADS : GROUP - first_head;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, quarter = lane % 4;
    const uint32_t team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM, warp = thread / 32;
    auto& weights = all_weights[team];
    auto& parts = all_parts[team];
    auto& tops = all_tops[team];
    auto& largest = all_largest[team];
    auto& shares = all_shares[team];
    // Where each row is a sequence of its own, all but q and the newest token is from earlier steps.
    const bool stores = p.k != nullptr;
    if (!p.located) pdl_wait();
    const uint32_t slot = load_relaxed_u32(p.slots + m);
    const uint32_t position = load_relaxed_u32(p.positions + (BOTH_WAYS ? 2 * m + 1 : m));
    // A position outside the cache is reported; here it must only not be read.
    const uint32_t n = position < p.kv.n_ctx ? position + 1 : p.kv.n_ctx;
    const uint32_t seen_from = BOTH_WAYS ? load_relaxed_u32(p.positions + 2 * m) : first_seen<WINDOW>(n);
    const uint32_t start = seen_from / PAGE_TOKENS;
    // Token blocks, to the last, and splits of those from the first that has a token in the window.
    const uint32_t split_token_blocks = token_blocks_of_split<MAX_SPLITS>(n - start * PAGE_TOKENS);
    const uint32_t token_blocks = (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const uint32_t splits = (token_blocks - start + split_token_blocks - 1) / split_token_blocks;
    // What the teams take at once is one block's: nothing is left to join.
    const uint32_t shares_wanted = splits <= TEAMS ? 1 : p.shares;
    const uint32_t block_splits = (splits + shares_wanted - 1) / shares_wanted;
    const uint32_t blocks = (splits + block_splits - 1) / block_splits;
    const uint32_t first_token_block = start + number_of_share * block_splits * split_token_blocks;
    const bool is_idle = first_token_block >= token_blocks;
    uint32_t end_token_block = first_token_block + block_splits * split_token_blocks;
    end_token_block = end_token_block < token_blocks ? end_token_block : token_blocks;

    // Of the model and of earlier steps too; before the pages, behind which they would be late.
    float q_weight[8] = {}, k_weight[8] = {};
    Angles angles = {};
    if constexpr (NORM_ROPE) {
        if (lane * 8 < HEAD_DIM) {
            load_norm(p.q_weight, lane, q_weight);
            load_norm(p.k_weight, lane, k_weight);
        }
        const uint64_t known = position < p.kv.n_ctx ? position : 0;
        angles = angles_of(p.cos_sin + known * (HALF * 2), lane);
    }

    auto find_page = [&](uint32_t number) {
        const uint32_t token_block = first_token_block + number;
        pages[number % PAGES] = token_block < end_token_block ? kv_page(p.kv, slot, token_block * PAGE_TOKENS) : 0;
        if constexpr (CHOSEN > 0) {
            const float* seen = p.chosen + static_cast<uint64_t>(m) * CHOSEN + token_block;
            const bool is_known = token_block < end_token_block && token_block < CHOSEN;
            pages[PAGES + number % PAGES] = is_known ? static_cast<uint32_t>(load_relaxed_f32(seen)) : 0;
        }
    };
    // A team's page of a part, of which keys are even and values odd ones, where both are stored; where it comes
    // from and lies.
    auto page_of = [&](uint32_t part, uint32_t t) {
        const uint32_t number = part / STORED * TEAMS + t;
        return first_token_block + number < end_token_block ? pages[number % PAGES] : 0;
    };
    auto source_of = [&](uint32_t part, uint32_t page) {
        return Cache::head<N_HEAD_KV>(part % STORED ? p.kv.v : p.kv.k, page, head);
    };
    auto stage_of = [&](uint32_t part, uint32_t t) {
        return ring + part % RING * STAGE + t * Cache::BYTES;
    };
    // Asks for some parts. By bulk copies a lane of one warp asks for a team's share of one: what all
    // threads did was a fifth of their instructions.
    auto ask = [&](uint32_t first, uint32_t n) {
        if constexpr (HAS_BULK_COPIES) {
            if (threadIdx.x / 32 != ASKING_WARP) return;
            const uint32_t part = first + lane / TEAMS, t = lane % TEAMS;
            const uint32_t page = lane < n * TEAMS ? page_of(part, t) : 0;
            const uint32_t mapped = __ballot_sync(FULL_WARP, page != 0) >> (lane - t) & ((1u << TEAMS) - 1);
            uint64_t* barrier = arrived + part % RING;
            if (lane < n * TEAMS && t == 0) {
                barrier_expect(barrier, static_cast<uint32_t>(__popc(mapped)) * Cache::BYTES);
            }
            __syncwarp();
            if (page == 0) return;
            bulk_copy(to_shared_address(stage_of(part, t)), source_of(part, page), Cache::BYTES, barrier);
        } else {
#pragma unroll 1
            for (uint32_t i = 0; i < n * TEAMS; i++) {
                const uint32_t part = first + i / TEAMS, t = i % TEAMS, page = page_of(part, t);
                for (uint32_t at = threadIdx.x * 16; page && at < Cache::BYTES; at += THREADS * 16) {
                    cp_async_16(stage_of(part, t) + at, source_of(part, page) + at);
                }
                // One a part, also where there is nothing: they are counted.
                if (t + 1 == TEAMS) cp_async_commit();
            }
        }
    };
    // A part that may be read behind it by the whole block, where `pending` later ones may be missing.
    auto arrive = [&](uint32_t part, auto pending) {
        if constexpr (HAS_BULK_COPIES) {
            barrier_wait(arrived + part % RING, part / RING % 2);
        } else {
            cp_async_wait<decltype(pending)::value>();
            __syncthreads();
        }
    };

    if (HAS_BULK_COPIES && threadIdx.x == 0) {
        for (uint32_t i = 0; i < RING; i++) barrier_init(arrived + i, 1);
        barrier_init_fence();
    }
    if (threadIdx.x < PAGES) find_page(threadIdx.x);
    __syncthreads();
    ask(0, RING);
    STAMP(STAMP_ASKED);
    if (p.located) pdl_wait();
    STAMP(STAMP_WAITED);
    pdl_trigger();
    if (is_idle) {
        if (stores && gridDim.z == 1) linger(PLACING_NS);
        STAMP(STAMP_ENDED);
        return;
    }

    const uint64_t head_row = static_cast<uint64_t>(m) * N_HEAD + head * GROUP + first_head;
    // Written so that two registers are one where values are as wide as keys.
    const uint64_t row = head_row * HEAD_DIM, out_row = STORED == 2 ? row : head_row * VALUE_DIM;
    const bool has_newest = stores && end_token_block == token_blocks && position < p.kv.n_ctx;
    if (stores && end_token_block == token_blocks && !has_newest && threadIdx.x == 0) {
        kv_refuse(p.kv, slot, position);
    }
    for (uint32_t h = threadIdx.x / 32; h < TILES * 4; h += THREADS / 32) {
        float x[LANE_WORDS][4];
        uint32_t most = 0;
        auto word_of = [&](uint32_t b) {
            return NORM_ROPE ? lane * 2 + b : b * (Cache::SPAN / 4) + lane;
        };
#pragma unroll
        for (uint32_t b = 0; b < LANE_WORDS; b++) {
            const uint32_t dim = word_of(b) * 4;
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (h < heads && dim < HEAD_DIM) four = load_relaxed_f32x4(p.q + row + h * HEAD_DIM + dim);
            x[b][0] = four.x, x[b][1] = four.y, x[b][2] = four.z, x[b][3] = four.w;
        }
        if (NORM_ROPE && h < heads) {
            float v[8];
#pragma unroll
            for (uint32_t e = 0; e < 8; e++) v[e] = x[e / 4 % LANE_WORDS][e % 4];
            norm_and_rotate(v, q_weight, angles, HEAD_DIM, p.eps, lane);
#pragma unroll
            for (uint32_t e = 0; e < 8; e++) x[e / 4 % LANE_WORDS][e % 4] = v[e];
        }
#pragma unroll
        for (uint32_t b = 0; b < LANE_WORDS; b++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t bits = float_as_u32(fabsf(x[b][i]));
                most = most > bits ? most : bits;
            }
        }
        const QueryScale scale = query_scale(warp_max_u32(most), p.scale);
#pragma unroll
        for (uint32_t b = 0; b < LANE_WORDS; b++) {
            const uint32_t word = word_of(b);
#pragma unroll
            for (int i = 0; i < 4; i++) x[b][i] = scale.is_number ? x[b][i] : 0.0f;
            uint32_t hi, lo;
            query_limbs(x[b], scale.to_integers, hi, lo);
            if (word < STEPS * 8) query[2 * h][word] = hi, query[2 * h + 1][word] = lo;
        }
        if (lane == 0) factors[h] = scale.factor, is_number[h] = scale.is_number;
    }
    if (has_newest) {
        const uint32_t page = kv_page(p.kv, slot, position);
        if (page == 0 && threadIdx.x == 0) kv_refuse(p.kv, slot, position);
        uint32_t most = 0;
        for (uint32_t task = (THREADS - 1 - threadIdx.x) / 32; task < STORED * Cache::SPANS;
             task += THREADS / 32) {
            const uint32_t is_value = task % STORED, dim = task / STORED * Cache::SPAN + lane * 4;
            const float* from = (is_value && !VALUES_ARE_KEYS ? p.v : p.k) +
                                (static_cast<uint64_t>(m) * N_HEAD_KV + head) * HEAD_DIM;
            float x[4] = {};
            if (NORM_ROPE && (VALUES_NORMED || !is_value)) {
                float v[8] = {};
#pragma unroll
                for (uint32_t e = 0; e < 8; e += 4) {
                    if (lane * 8 >= HEAD_DIM) break;
                    const float4 four = load_relaxed_f32x4(from + lane * 8 + e);
                    v[e] = four.x, v[e + 1] = four.y, v[e + 2] = four.z, v[e + 3] = four.w;
                }
                if (is_value) {
                    norm_head(v, HEAD_DIM, p.eps);
                } else {
                    norm_and_rotate(v, k_weight, angles, HEAD_DIM, p.eps, lane);
                }
                // To the lanes that encode them.
                const int owner = static_cast<int>(dim / 8 % 32);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float first = __shfl_sync(FULL_WARP, v[i], owner);
                    const float second = __shfl_sync(FULL_WARP, v[4 + i], owner);
                    x[i] = dim >= HEAD_DIM ? 0.0f : lane % 2 ? second : first;
                }
            } else if (dim < HEAD_DIM) {
                const float4 four = load_relaxed_f32x4(from + dim);
                x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
            }
            uint32_t limbs[Cache::LIMBS];
            const uint16_t scale = Cache::encode(x, limbs, most);
            if (dim >= HEAD_DIM) continue;
            const uint32_t block = dim / Cache::GROUP;
            const bool begins = dim % Cache::GROUP == 0;
            if (begins) newest_scales[is_value][block] = scale;
#pragma unroll
            for (uint32_t limb = 0; limb < Cache::LIMBS; limb++) {
                newest[is_value][limb][dim / 4] = limbs[limb];
            }
            if (page == 0 || first_head > 0) continue;
            uint8_t* to = Cache::head<N_HEAD_KV>(is_value ? p.kv.v : p.kv.k, page, head);
            if (begins) Cache::put_scale(to, position % PAGE_TOKENS, block, scale);
            Cache::put(to, is_value, position % PAGE_TOKENS, dim, limbs);
        }
        if (page != 0 && first_head == 0) kv_tell<Cache>(p.kv, slot, position, most);
    }
    __syncthreads();
    STAMP(STAMP_READY);
    uint32_t columns[TILES][STEPS][2];
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            const uint32_t* column = query[t * 8 + g] + step * 8 + quarter;
            columns[t][step][0] = column[0];
            columns[t][step][1] = 2 * step + 1 < CHUNKS ? column[4] : 0;
        }
    }

    float* partial =
        p.partial + (static_cast<uint64_t>(m) * HEAD_BLOCKS + own) * (MAX_SPLITS * SPLIT_FLOATS);
    float2* partial_tops = reinterpret_cast<float2*>(partial + MAX_SPLITS * HEADS * VALUE_DIM);
    // A split's sums, for the block that joins them.
    auto leave = [&](const Sums& sums, uint32_t number) {
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint32_t h = t * 4 + quarter;
            if (h >= heads) continue;
            if (warp == 0 && g == 0) {
                partial_tops[number * HEADS + h] = sums.is_empty
                    ? make_float2(CHOSEN ? -infinity_f32() : 0.0f, 0.0f) : make_float2(sums.most[t], sums.weight[t]);
            }
#pragma unroll
            for (uint32_t i = 0; i < WARP_TILES; i++) {
                const uint32_t tile = tile_of(warp, i);
                if (tile >= VALUE_CHUNKS) break;
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    const uint32_t dim = dim_of(tile, r, g);
                    partial[(number * HEADS + h) * VALUE_DIM + dim] =
                        sums.is_empty ? 0.0f : sums.values[i][t][r];
                }
            }
        }
    };
    Sums split, total;
    split.is_empty = total.is_empty = true;
    // Of the split at hand: its number among all, and how many of its token blocks are still to come.
    uint32_t split_number = number_of_share * block_splits, token_blocks_left = split_token_blocks;
    // Which row of a matrix this lane gives ldmatrix_x4 the address of.
    const uint32_t matrix_row = lane / 8 % 2 * 8 + lane % 8, second = lane / 16;

#pragma unroll 1
    for (uint32_t step = 0; first_token_block + step * TEAMS < end_token_block; step++) {
        const uint32_t number = step * TEAMS, part = STORED * step, token_block = first_token_block + number + team;
        uint8_t *keys = stage_of(part, team), *values = stage_of(part + STORED - 1, team);
        const uint32_t seen = token_block < end_token_block ? n - token_block * PAGE_TOKENS : 0;
        const uint32_t live = seen < PAGE_TOKENS ? seen : PAGE_TOKENS;
        const uint32_t blocks_seen = CHOSEN ? pages[(CHOSEN ? PAGES : 0) + (number + team) % PAGES] : 1;
        auto sees = [&](uint32_t at) {
            const bool is_chosen = CHOSEN == 0 || (blocks_seen >> at / RATIO & 1);
            return at < live && is_chosen && (WINDOW == 0 || token_block * PAGE_TOKENS + at >= seen_from);
        };
        if (number % (PAGES / 2) == 0 && number > 0 && threadIdx.x < PAGES / 2) {
            find_page(number + PAGES / 2 + threadIdx.x);
        }
        arrive(part, AfterKeys());
        const bool is_mapped = token_block < end_token_block && pages[(number + team) % PAGES] != 0 &&
            blocks_seen != 0;
        // The copy began before the newest token was there.
        const bool patches = has_newest && first_token_block + number + TEAMS >= token_blocks;
        auto put_newest = [&](uint8_t* page, uint32_t is_value) {
            if (token_block + 1 != token_blocks) return;
            const uint32_t token = position % PAGE_TOKENS;
            for (uint32_t i = thread; i < CHUNKS * 4; i += TEAM) {
                uint32_t limbs[Cache::LIMBS];
#pragma unroll
                for (uint32_t l = 0; l < Cache::LIMBS; l++) limbs[l] = newest[is_value][l][i];
                Cache::put(page, is_value, token, i * 4, limbs);
            }
            if (thread < BLOCKS) {
                Cache::put_scale(page, token, thread, newest_scales[is_value][thread]);
            }
        };
        if (patches) {
            put_newest(keys, 0);
            __syncthreads();
        }
        float y[TILES][2];
        const uint32_t token[2] = {warp * 16 + g, warp * 16 + g + 8};
#pragma unroll
        for (uint32_t b = 0; b < BLOCKS; b++) {
            int32_t sums[Cache::LIMBS][TILES][4] = {};
#pragma unroll
            for (uint32_t k = b * BLOCK_STEPS; k < STEPS && k < (b + 1) * BLOCK_STEPS; k++) {
                const bool whole = 2 * k + 1 < CHUNKS;
                const uint32_t chunk = 2 * k + (whole ? second : 0);
                const uint8_t* at = keys + (chunk * PAGE_TOKENS + warp * 16 + matrix_row) * 16;
                uint32_t limbs[Cache::LIMBS][4];
#pragma unroll
                for (uint32_t l = 0; l < Cache::LIMBS; l++) {
                    ldmatrix_x4(limbs[l], at + l * Cache::PLANE);
                    if (!whole) limbs[l][2] = limbs[l][3] = 0;
                }
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) multiply<true>(sums, t, limbs, columns[t][k]);
            }
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const uint16_t* scales_at =
                    reinterpret_cast<const uint16_t*>(keys + Cache::scale_at(token[r], b));
                const float k_scale = Cache::scale(*scales_at);
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    const float sum = row_sum(sums, t, r);
                    y[t][r] = b == 0 ? mul_rn(sum, k_scale) : fma_rn(sum, k_scale, y[t][r]);
                }
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                if (!sees(token[r])) y[t][r] = -infinity_f32();
            }
            float top = fmaxf(y[t][0], y[t][1]);
#pragma unroll
            for (uint32_t mask = 4; mask < 32; mask *= 2) {
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, mask));
            }
            if (g == 0) tops[warp][t * 4 + quarter] = top;
        }
        __syncthreads();
        // These keys, and the values before them, are not read any more.
        const bool both = RING > 1 && number > 0;
        if constexpr (STORED == 2) {
            ask(part + RING - both, 1 + both);
            arrive(part + 1, AfterValues());
            if (patches) {
                put_newest(values, 1);
                __syncthreads();
            }
        } else if (both) {
            ask(part + RING - 1, 1);
        }
        float v_scale[SHARED_BLOCKS][2];
        Sums next;
        next.is_empty = false;
#pragma unroll
        for (uint32_t b = 0; b < SHARED_BLOCKS && !OWN_WEIGHTS; b++) {
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const uint16_t* scales_at =
                    reinterpret_cast<const uint16_t*>(values + Cache::scale_at(token[r], b));
                v_scale[b][r] = sees(token[r]) ? Cache::scale(*scales_at) : 0.0f;
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint32_t h = t * 4 + quarter;
            float top = tops[0][h];
#pragma unroll
            for (uint32_t w = 1; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
            const TokenBlockTop block_top = token_block_top(top, factors[h]);
            next.most[t] = block_top.most;
            int share = 0;
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const float z = fma_sat(y[t][r], block_top.factor, block_top.bias);
                y[t][r] = sees(token[r]) ? exp2_unit_f32(z) : 0.0f;
                if (OWN_WEIGHTS) parts[h][token[r]] = y[t][r];
                share += static_cast<int>(rint_product(y[t][r], 4194304.0f));
            }
#pragma unroll
            for (uint32_t mask = 4; mask < 32; mask *= 2) {
                share += __shfl_xor_sync(FULL_WARP, share, mask);
            }
            if (g == 0) shares[warp][h] = share;
#pragma unroll
            for (uint32_t b = 0; b < SHARED_BLOCKS && !OWN_WEIGHTS; b++) {
                float top_value =
                    fmaxf(mul_rn(y[t][0], v_scale[b][0]), mul_rn(y[t][1], v_scale[b][1]));
#pragma unroll
                for (uint32_t mask = 4; mask < 32; mask *= 2) {
                    top_value = fmaxf(top_value, __shfl_xor_sync(FULL_WARP, top_value, mask));
                }
                if (g == 0) largest[warp][b][h] = top_value;
            }
        }
        __syncthreads();
        float o_scale[SHARED_BLOCKS][TILES];
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint32_t h = t * 4 + quarter;
            int share = shares[0][h];
#pragma unroll
            for (uint32_t w = 1; w < WARPS; w++) share += shares[w][h];
            next.weight[t] = token_block_weight(share, next.most[t]);
#pragma unroll
            for (uint32_t b = 0; b < SHARED_BLOCKS && !OWN_WEIGHTS; b++) {
                float top = largest[0][b][h];
#pragma unroll
                for (uint32_t w = 1; w < WARPS; w++) top = fmaxf(top, largest[w][b][h]);
                const ValueScale scale = value_scale(top);
                o_scale[b][t] = scale.step;
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    const float value = mul_rn(y[t][r], v_scale[b][r]);
                    const uint32_t w =
                        static_cast<uint32_t>(static_cast<int>(rint_product(value, scale.to_integers)));
                    const uint32_t at = warp * 16 + Cache::place(token[r]);
                    reinterpret_cast<uint8_t*>(weights[b][2 * h])[at] = static_cast<uint8_t>(w >> 8);
                    reinterpret_cast<uint8_t*>(weights[b][2 * h + 1])[at] = static_cast<uint8_t>(w);
                }
            }
        }
        if (!OWN_WEIGHTS) __syncthreads();
        uint32_t own[TILES][2][2];
#pragma unroll
        for (uint32_t i = 0; i < WARP_TILES; i++) {
            const uint32_t tile = tile_of(warp, i), b = tile * 16 / Cache::GROUP;
            if (tile >= VALUE_CHUNKS) break;
            if (OWN_WEIGHTS && i % 2 == 0) {
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    o_scale[0][t] = block_weights<Cache>(parts, values, b, t, own[t]);
                }
            }
            int32_t sums[Cache::LIMBS][TILES][4] = {};
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint8_t* at = STORED == 2
                    ? values + ((2 * k + second) * HEAD_DIM + tile * 16 + matrix_row) * 16
                    : values + (tile * PAGE_TOKENS + 32 * k + lane) * 16;
                uint32_t limbs[Cache::LIMBS][4];
#pragma unroll
                for (uint32_t l = 0; l < Cache::LIMBS; l++) {
                    if constexpr (STORED == 2) {
                        ldmatrix_x4(limbs[l], at + l * Cache::PLANE);
                    } else {
                        // Of eight tokens each: this lane's two of dimensions 2g and 2g + 1.
                        uint32_t of[4];
                        ldmatrix_x4_trans(of, at + l * Cache::PLANE);
#pragma unroll
                        for (uint32_t i = 0; i < 4; i++) {
                            limbs[l][i] = prmt(of[i / 2 * 2], of[i / 2 * 2 + 1], i % 2 ? 0x7531 : 0x6420);
                        }
                    }
                }
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    if constexpr (OWN_WEIGHTS) {
                        multiply<false>(sums, t, limbs, own[t][k]);
                    } else {
                        const uint32_t* column = weights[b][t * 8 + g] + k * 8 + quarter;
                        const uint32_t w[2] = {column[0], column[4]};
                        multiply<false>(sums, t, limbs, w);
                    }
                }
            }
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                float of_scale = o_scale[0][t];
#pragma unroll
                for (uint32_t other = 1; other < SHARED_BLOCKS; other++) {
                    if (b == other) of_scale = o_scale[other][t];
                }
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    next.values[i][t][r] = mul_rn(row_sum(sums, t, r), of_scale);
                }
            }
        }
        next.is_empty = !is_mapped;
        if (TEAMS > 1 && team > 0) handed[team - 1][thread] = next;
        if (TEAMS > 1 || RING == 1) __syncthreads();
        if (RING == 1) ask(part + STORED, 1);
        if (team > 0) continue;
#pragma unroll 1
        for (uint32_t t = 0; t < TEAMS; t++) {
            const uint32_t its = first_token_block + number + t;
            if (its >= end_token_block) break;
            if (t > 0) next = handed[t - 1][thread];
            join_sums(split, next);
            token_blocks_left--;
            if (token_blocks_left != 0 && its + 1 != end_token_block) continue;
            if (blocks == 1) {
                join_sums(total, split);
            } else {
                leave(split, split_number);
            }
            split.is_empty = true;
            split_number++, token_blocks_left = split_token_blocks;
        }
    }

    STAMP(STAMP_SUMMED);
    delay_block();
    if (blocks == 1) {
        if (team > 0) return;
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint32_t h = t * 4 + quarter;
            if (h >= heads) continue;
            float weight = total.is_empty || !is_number[h] ? nan_f32() : total.weight[t];
            float old_share = 1.0f;
            if constexpr (HAS_SINKS) {
                const Sink sink = sink_of(p.sinks[head * GROUP + first_head + h]);
                const Join both = join(total.most[t], sink.most);
                old_share = both.old_share;
                weight = fma_rn(sink.weight, both.new_share, mul_rn(weight, old_share));
            }
#pragma unroll
            for (uint32_t i = 0; i < WARP_TILES; i++) {
                const uint32_t tile = tile_of(warp, i);
                if (tile >= VALUE_CHUNKS) break;
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    const uint32_t dim = dim_of(tile, r, g);
                    float sum = total.values[i][t][r];
                    if constexpr (HAS_SINKS) sum = mul_rn(sum, old_share);
                    p.out[out_row + h * VALUE_DIM + dim] = div_rn(sum, weight);
                }
            }
        }
        STAMP(STAMP_ENDED);
        return;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ticket = atomic_inc_acq_rel_wrap(p.tickets + m * HEAD_BLOCKS + own, blocks - 1);
    }
    __syncthreads();
    STAMP(STAMP_ENDED);
    if (ticket != blocks - 1) return;
    // Every split's maximum and its share of all, a warp a head.
    for (uint32_t h = threadIdx.x / 32; h < heads; h += THREADS / 32) {
        float most = -infinity_f32();
        if (lane < splits) {
            const uint2 top = load_relaxed_u32x2(partial_tops + lane * HEADS + h);
            most = u32_as_float(top.x);
            weight_of[h][lane] = u32_as_float(top.y);
        }
        float so_far = most;
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const float before = __shfl_up_sync(FULL_WARP, so_far, distance);
            if (lane >= distance) so_far = fmaxf(so_far, before);
        }
        float before = __shfl_up_sync(FULL_WARP, so_far, 1);
        before = lane == 0 ? most : before;
        if (lane < splits) {
            const Join both = join(before, most);
            shares_of[h][lane] = make_float2(both.old_share, both.new_share);
        }
        if constexpr (HAS_SINKS) {
            float all = __shfl_sync(FULL_WARP, so_far, 31);
            const Sink sink = sink_of(p.sinks[head * GROUP + first_head + h]);
            const Join both = join(all, sink.most);
            if (lane == 0) {
                sink_shares[h] = make_float2(both.old_share, both.new_share);
                sink_weights[h] = sink.weight;
            }
        }
    }
    __syncthreads();
    // Elements a thread, and splits that are on their way at a time.
    constexpr uint32_t ELEMENTS = HEADS * VALUE_DIM >= THREADS * 4 ? 4 : 2;
    constexpr uint32_t AHEAD = (THREADS > 256 ? 16 : 64) / ELEMENTS;
    for (uint32_t i = threadIdx.x * ELEMENTS; i < heads * VALUE_DIM; i += THREADS * ELEMENTS) {
        const uint32_t h = i / VALUE_DIM;
        float sum[ELEMENTS], weight = 0.0f;
#pragma unroll 1
        for (uint32_t first = 0; first < splits; first += AHEAD) {
            float next[AHEAD][ELEMENTS];
#pragma unroll
            for (uint32_t s = 0; s < AHEAD; s++) {
                if (first + s >= splits) break;
                const float* at = partial + (first + s) * (HEADS * VALUE_DIM) + i;
#pragma unroll
                for (uint32_t e = 0; e < ELEMENTS; e += 2) {
                    const uint2 two = load_relaxed_u32x2(at + e);
                    next[s][e] = u32_as_float(two.x), next[s][e + 1] = u32_as_float(two.y);
                }
            }
#pragma unroll
            for (uint32_t s = 0; s < AHEAD; s++) {
                if (first + s >= splits) break;
                const float2 share = shares_of[h][first + s];
                const bool is_first = first + s == 0;
                const float its = weight_of[h][first + s];
                weight = is_first ? its : fma_rn(its, share.y, mul_rn(weight, share.x));
#pragma unroll
                for (uint32_t e = 0; e < ELEMENTS; e++) {
                    sum[e] = is_first ? next[s][e]
                                      : fma_rn(next[s][e], share.y, mul_rn(sum[e], share.x));
                }
            }
        }
        if constexpr (HAS_SINKS) {
            const float2 share = sink_shares[h];
            weight = fma_rn(sink_weights[h], share.y, mul_rn(weight, share.x));
#pragma unroll
            for (uint32_t e = 0; e < ELEMENTS; e++) sum[e] = mul_rn(sum[e], share.x);
        }
        if (!is_number[h]) weight = nan_f32();
#pragma unroll
        for (uint32_t e = 0; e < ELEMENTS; e += 2) {
            *reinterpret_cast<float2*>(p.out + out_row + i + e) =
                make_float2(div_rn(sum[e], weight), div_rn(sum[e + 1], weight));
        }
    }
    STAMP(STAMP_ENDED);
}
