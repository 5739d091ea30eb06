// Attention of a prompt's rows over a cache of integers: the sum that Op::Attention states, on tensor
// cores. A block has ROWS query rows, the GROUP heads of neighbouring tokens that share a KV head, and
// goes through the pages of their sequence; a warp has 16 of them, all tokens of a page and all
// dimensions, so that weights stay in the registers of the lanes that scores are in.
//
// Token blocks are joined as in FlashAttention (online softmax), by splits: a row whose splits are longer than
// a token block joins each to those before, which are in `out` until all are. With bulk copies one thread
// fetches pages and warps proceed independently, or by WARPGROUPS, whose products are those of four warps.
//
// variant.cuh: WARPGROUPS, Kv, N_HEAD, N_HEAD_KV, HEAD_DIM (a multiple of 16, at most 128), VALUE_DIM (the same), STORED, WINDOW (tokens
// that a row sees, 0: all), HAS_SINKS, THREADS, ROWS (queries a block, 16 a warp), STAGES (pages in shared
// memory), SHARED_BYTES, MAX_SPLITS.
#include "kv_fixed.cuh"
#include "math.cuh"
#include "variant.cuh"
#include "warpgroup.cuh"

using Cache = Kv;
constexpr uint32_t LIMBS = Cache::LIMBS;
constexpr uint32_t GROUP = N_HEAD / N_HEAD_KV;
constexpr uint32_t WARPS = THREADS / 32;
static_assert(ROWS == WARPS * 16 && HEAD_DIM <= 128, "a warp has 16 queries");
static_assert(STORED == 2 && VALUE_DIM == HEAD_DIM, "values of their own");
// Blocks of 32 dimensions are steps of keys.
static_assert(LIMBS == 1 ? Cache::GROUP == 32 : Cache::BLOCKS == 1, "a scale at hand");
constexpr uint32_t BLOCK_DIMS = Cache::GROUP / 8;  // tiles of a block
constexpr uint32_t CHUNKS = HEAD_DIM / 16;
constexpr uint32_t STEPS = (CHUNKS + 1) / 2;      // of 32 dimensions
constexpr uint32_t TOKENS = PAGE_TOKENS / 8;      // tiles of eight tokens
constexpr uint32_t DIMS = HEAD_DIM / 8;           // tiles of eight dimensions
constexpr uint32_t STAGE = 2 * Cache::BYTES;
// Whether queries stay in registers: those of wider heads would take too many, and lie behind the pages,
// [warp][step][upper, lower bytes][lane] of 16 bytes.
constexpr bool KEEPS_QUERIES = HEAD_DIM <= 64;
static_assert(SHARED_BYTES == STAGES * STAGE + (KEEPS_QUERIES ? 0 : ROWS * STEPS * 64), "both");

static_assert(!WARPGROUPS || (HAS_WARPGROUPS && LIMBS == 2 && WARPS % 4 == 0), "two bytes a number");
// Pages that are asked for before the first is there: of four one less than there is room for, so that the
// thread that asks does not wait for the last warp of those before.
constexpr uint32_t AHEAD = HAS_BULK_COPIES && STAGES > 3 ? STAGES - 2 : STAGES - 1;
// Tiles of tokens, and then of dimensions, that a warpgroup multiplies at once.
constexpr uint32_t TOKENS_AT_ONCE = 4;
constexpr uint32_t DIMS_AT_ONCE = DIMS % 4 == 0 ? 4 : 2;

// Products of some tiles: of the upper bytes, of upper ones with lower ones, and of the lower ones.
template <uint32_t TILES>
struct ByteSums {
    int32_t hh[TILES][4], mid[TILES][4], ll[TILES][4];
};

// Products of a warpgroup: A's numbers have the bytes hi and lo, STEPS times 32 of them; B's upper bytes are
// in core matrices `b`, those of the next step `step_bytes` on, the lower ones PLANE behind. The sums of
// AT_ONCE tiles of TILES are made one, and go to `done` with the first one's number, while the next are
// multiplied.
template <bool a_signed, uint32_t TILES, uint32_t AT_ONCE, uint32_t STEPS, typename Done>
DEVICE void multiply_bytes(const uint32_t (&hi)[STEPS][4], const uint32_t (&lo)[STEPS][4], CoreMatrix b,
                           uint32_t step_bytes, uint32_t exponent, Done done) {
    constexpr uint32_t ROUNDS = TILES / AT_ONCE;
    static_assert(TILES % AT_ONCE == 0, "all tiles");
    ByteSums<AT_ONCE> sets[2];
    auto begin = [&](uint32_t round) {
        auto& sums = sets[round % 2];
        wgmma_fence();
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            const CoreMatrix upper = b + (round * AT_ONCE * 128 + step * step_bytes);
            const CoreMatrix lower = upper + Cache::PLANE;
            wgmma_k32_s32<a_signed, true>(sums.hh, hi[step], upper, step > 0);
            wgmma_k32_s32<a_signed, true>(sums.mid, lo[step], upper, step > 0);
            wgmma_k32_s32<a_signed, false>(sums.mid, hi[step], lower, true);
            wgmma_k32_s32<a_signed, false>(sums.ll, lo[step], lower, step > 0);
        }
        wgmma_commit();
    };
    begin(0);
#pragma unroll
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (round + 1 < ROUNDS) {
            begin(round + 1);
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        auto& sums = sets[round % 2];
        settle_registers(sums.hh);
        settle_registers(sums.mid);
        settle_registers(sums.ll);
        float whole[AT_ONCE][4];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                whole[i][e] = limbs_sum(sums.hh[i][e], sums.mid[i][e], sums.ll[i][e], exponent);
            }
        }
        done(round * AT_ONCE, whole);
    }
}

// Whether no row looks at more token blocks than there may be splits.
constexpr bool SHORT = WINDOW != 0 && WINDOW <= (MAX_SPLITS - 1) * PAGE_TOKENS + 1;

struct Params {
    const float* q;  // [m][N_HEAD * HEAD_DIM]
    float* out;      // the same
    KvView kv;
    const uint32_t* positions;  // [m]
    const uint32_t* slots;      // [m]
    const float* sinks;         // [N_HEAD]: one more score each, of value 0; or null
    float scale;                // times log2(e) / (64 * 32639)
    uint32_t m;
};

// Whether a row sees less of a token block than all of it.
struct Whole {
    static constexpr bool masked = false;
};
struct Masked {
    static constexpr bool masked = true;
};

// Of both rows of a lane the largest of the four lanes that have them.
DEVICE void largest_of_quarters(float (&of)[2]) {
#pragma unroll
    for (uint32_t mask = 1; mask < 4; mask *= 2) {
#pragma unroll
        for (int r = 0; r < 2; r++) of[r] = fmaxf(of[r], __shfl_xor_sync(FULL_WARP, of[r], mask));
    }
}

KERNEL_BOUNDS(prompt_attention_fixed, Params, THREADS, 1) {
    SHARED uint32_t row_slot[ROWS], row_length[ROWS];
    SHARED uint64_t arrived[STAGES], used[STAGES];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4;
    const uint32_t head = blockIdx.x, first_row = blockIdx.y * ROWS;
    const uint32_t rows = p.m * GROUP - first_row < ROWS ? p.m * GROUP - first_row : ROWS;
    uint8_t* stages = dynamic_shared<uint8_t>();
    if (HAS_BULK_COPIES && threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            barrier_init(arrived + i, 1);
            barrier_init(used + i, WARPS);
        }
        barrier_init_fence();
    }
    pdl_wait();
    pdl_trigger();

    if (threadIdx.x < ROWS) {
        uint32_t slot = PADDING_SLOT, length = 0;
        if (threadIdx.x < rows) {
            const uint32_t m = (first_row + threadIdx.x) / GROUP;
            slot = load_relaxed_u32(p.slots + m);
            length = load_relaxed_u32(p.positions + m) + 1;
            // A position outside the cache was reported by the scatter.
            if (length > p.kv.n_ctx || length == 0) length = p.kv.n_ctx;
        }
        row_slot[threadIdx.x] = slot;
        row_length[threadIdx.x] = length;
    }

    // This lane's part of the queries g and g + 8 of its warp, as products want A: bytes of Q.
    const uint32_t mine[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
    auto address = [&](uint32_t row) {
        const uint32_t at = first_row + row;
        return (static_cast<uint64_t>(at / GROUP) * N_HEAD + head * GROUP + at % GROUP) * HEAD_DIM;
    };
    uint32_t q_hi[STEPS][4], q_lo[STEPS][4];
    float factor[2];
    bool is_number[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float q[STEPS][2][4];
        uint32_t most = 0;
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (mine[r] < rows && 2 * step + half < CHUNKS) {
                    four = load_relaxed_f32x4(p.q + address(mine[r]) + (2 * step + half) * 16 +
                                              quarter * 4);
                }
                q[step][half][0] = four.x, q[step][half][1] = four.y;
                q[step][half][2] = four.z, q[step][half][3] = four.w;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t bits = float_as_u32(fabsf(q[step][half][i]));
                    most = most > bits ? most : bits;
                }
            }
        }
#pragma unroll
        for (uint32_t mask = 1; mask < 4; mask *= 2) {
            const uint32_t other = __shfl_xor_sync(FULL_WARP, most, mask);
            most = most > other ? most : other;
        }
        const QueryScale scale = query_scale(most, p.scale);
        factor[r] = scale.factor, is_number[r] = scale.is_number;
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    q[step][half][i] = scale.is_number ? q[step][half][i] : 0.0f;
                }
                query_limbs(q[step][half], scale.to_integers, q_hi[step][2 * half + r],
                            q_lo[step][2 * half + r]);
            }
        }
    }

    uint4* queries = reinterpret_cast<uint4*>(stages + STAGES * STAGE) + warp * STEPS * 64 + lane;
    if constexpr (!KEEPS_QUERIES) {
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            const auto& hi = q_hi[step];
            const auto& lo = q_lo[step];
            queries[step * 64] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
            queries[step * 64 + 32] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
        }
    }
    // The bytes of its queries that a step of a product takes.
    auto query = [&](uint32_t step, uint32_t (&hi)[4], uint32_t (&lo)[4]) {
        if constexpr (KEEPS_QUERIES) {
#pragma unroll
            for (int i = 0; i < 4; i++) hi[i] = q_hi[step][i], lo[i] = q_lo[step][i];
        } else {
            const uint4 upper = queries[step * 64], lower = queries[step * 64 + 32];
            hi[0] = upper.x, hi[1] = upper.y, hi[2] = upper.z, hi[3] = upper.w;
            lo[0] = lower.x, lo[1] = lower.y, lo[2] = lower.z, lo[3] = lower.w;
        }
    };

    // Of a row's tokens that are not in `out` yet: the largest score, the sum of weights, of values.
    float most[2] = {-infinity_f32(), -infinity_f32()}, weight[2] = {}, o[DIMS][4] = {};
    // Of those in `out`.
    float all_most[2] = {-infinity_f32(), -infinity_f32()}, all_weight[2] = {};
    __syncthreads();

    // Rows are fewer than 2^31, which the compiler does not know: else it would make this again and again.
    [[maybe_unused]] const uint32_t exponent = TWO_TO_23 | p.m >> 31;
    uint32_t fetched = 0, done = 0;  // pages, of all sequences
    bool is_next_here = false;
    // Neighbouring rows of one sequence go through its pages together.
#pragma unroll 1
    for (uint32_t begin = 0; begin < rows;) {
        const uint32_t slot = row_slot[begin];
        uint32_t end = begin, longest = 0, shortest = row_length[begin];
        while (end < rows && row_slot[end] == slot) {
            longest = row_length[end] > longest ? row_length[end] : longest;
            shortest = row_length[end] < shortest ? row_length[end] : shortest;
            // Rows of one token are alike.
            end += GROUP - (first_row + end) % GROUP;
        }
        // Tokens that a row sees, none outside this sequence, its first token block and the token blocks of its splits.
        auto length_of = [&, begin](uint32_t row) {
            const bool here = row >= begin && row < end && row < rows;
            return here ? row_length[row % ROWS] : 0;
        };
        uint32_t length[2], split_token_blocks[2], left[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            length[r] = length_of(mine[r]);
            const uint32_t start = first_seen<WINDOW>(length[r]) / PAGE_TOKENS;
            split_token_blocks[r] = SHORT ? 1 : token_blocks_of_split<MAX_SPLITS>(length[r] - start * PAGE_TOKENS);
            left[r] = split_token_blocks[r];  // token blocks of a split that are still to come
        }
        // Registers are scarce: they are made from the lengths again.
        auto seen_from = [&](int r) { return first_seen<WINDOW>(length[r]); };
        auto start = [&](int r) { return seen_from(r) / PAGE_TOKENS; };
        begin = end;
        const uint32_t shorter = length[0] < length[1] ? length[0] : length[1];
        const uint32_t latest = seen_from(0) < seen_from(1) ? seen_from(1) : seen_from(0);

        const uint32_t pages = (longest + PAGE_TOKENS - 1) / PAGE_TOKENS;
        const uint32_t first_page = first_seen<WINDOW>(shortest) / PAGE_TOKENS;
        // Pages that are not mapped count for nothing; as a rule there is none.
        uint32_t unmapped = 0;
        for (uint32_t i = first_page + threadIdx.x; i < pages; i += THREADS) {
            unmapped |= kv_page(p.kv, slot, i * PAGE_TOKENS) == 0;
        }
        const bool has_gaps = __syncthreads_or(unmapped);
        // Of the 64 rows that multiply together, two a lane.
        [[maybe_unused]] uint32_t group_longest = 0, group_shortest = 0;
        if constexpr (WARPGROUPS) {
            const uint32_t row = warp / 4 * 64 + lane;
            const uint32_t a = length_of(row), b = length_of(row + 32);
            group_longest = warp_max_u32(a < b ? b : a);
            group_shortest = ~warp_max_u32(~(a < b ? a : b));
        }
        // Others fetched pages that are not there.
        if (!HAS_BULK_COPIES) fetched = done;
        const uint32_t before = fetched;
        // Where the card has bulk copies one thread fetches pages, or a lane of each warp, round robin: no
        // warpgroup has all of the work then, and the other waits for it. (Registers for the first alone are
        // fewer.) An entry of the page table is asked for when the thread fetches its page before that, and
        // looked at when it is needed.
        constexpr uint32_t FETCHERS = WARPGROUPS ? WARPS : 1;
        uint32_t entry = 0;
        auto look_up = [&](uint32_t number) {
            if (number >= pages || slot >= p.kv.n_slots) return;
            const uint64_t at = static_cast<uint64_t>(slot) * p.kv.pages_per_slot + number;
            entry = load_relaxed_u32(p.kv.page_table + at);
        };
        auto fetch = [&]() {
            const uint32_t number = first_page + fetched - before, place = fetched % STAGES;
            // Where one thread fetches, it alone counts: others need no register for that.
            const bool is_another = HAS_BULK_COPIES && FETCHERS == 1 && threadIdx.x != 0;
            if (is_another || (HAS_BULK_COPIES && number >= pages)) return;
            const uint32_t fetcher = fetched++ % FETCHERS;
            if (FETCHERS > 1 && (lane != 0 || fetcher != warp)) return;
            const uint32_t page = number < pages && entry < p.kv.n_pages ? entry : 0;
            look_up(number + FETCHERS);
            uint8_t* stage = stages + place * STAGE;
            const uint8_t* keys = Cache::head<N_HEAD_KV>(p.kv.k, page, head);
            const uint8_t* values = Cache::head<N_HEAD_KV>(p.kv.v, page, head);
            if constexpr (HAS_BULK_COPIES) {
                const uint32_t round = (fetched - 1) / STAGES;
                if (round > 0) barrier_wait(used + place, (round - 1) % 2);
                barrier_expect(arrived + place, page == 0 ? 0 : STAGE);
                if (page == 0) return;
                bulk_copy(to_shared_address(stage), keys, Cache::BYTES, arrived + place);
                bulk_copy(to_shared_address(stage + Cache::BYTES), values, Cache::BYTES,
                          arrived + place);
            } else {
                for (uint32_t i = threadIdx.x * 16; page != 0 && i < Cache::BYTES; i += THREADS * 16) {
                    cp_async_16(stage + i, keys + i);
                    cp_async_16(stage + Cache::BYTES + i, values + i);
                }
                cp_async_commit();
            }
        };
        if (!HAS_BULK_COPIES || (lane == 0 && warp < FETCHERS)) look_up(first_page + (warp - before) % FETCHERS);
#pragma unroll 1
        for (uint32_t i = 0; i < AHEAD; i++) fetch();
#pragma unroll 1
        for (uint32_t number = first_page; number < pages; number++) {
            const uint32_t place = done % STAGES, phase = done / STAGES % 2;
            const uint32_t first = number * PAGE_TOKENS;
            if constexpr (HAS_BULK_COPIES) {
                fetch();
                if (!is_next_here) barrier_wait(arrived + place, phase);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();
                fetch();
            }
            done++;
            auto look_for_next = [&]() {
                if constexpr (WARPGROUPS) {
                    is_next_here = barrier_ended(arrived + done % STAGES, done / STAGES % 2);
                }
            };
            is_next_here = false;
            const uint8_t* keys = stages + place * STAGE;
            const uint8_t* values = keys + Cache::BYTES;
            // Of one lane, for the compiler to know that it is all lanes': a descriptor is the warp's.
            [[maybe_unused]] const SharedAddress its_stage =
                to_shared_address(stages) + __shfl_sync(FULL_WARP, place, 0) * STAGE;
            auto looks = [&](int r) {
                return length[r] > first && (WINDOW == 0 || start(r) <= number);
            };
            auto token_block = [&](auto kind) {
                constexpr bool masked = decltype(kind)::masked;
                auto sees = [&](uint32_t tile, uint32_t e) {
                    const uint32_t token = first + tile * 8 + quarter * 2 + e % 2;
                    return !masked || (token < length[e / 2] &&
                                       (WINDOW == 0 || token >= seen_from(e / 2)));
                };
                // Scores, then weights, of eight tokens a tile.
                float s[TOKENS][4], top[2] = {-infinity_f32(), -infinity_f32()};
                auto see = [&](uint32_t n) {
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        if (!sees(n, e)) s[n][e] = -infinity_f32();
                    }
#pragma unroll
                    for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                };
                // Of keys with a scale each.
                [[maybe_unused]] auto scale = [&](uint32_t n, const float (&sums)[4]) {
                    const float2 scales = Cache::scales_at(keys, n * 4 + quarter, 0);
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        s[n][e] = mul_rn(sums[e], e % 2 ? scales.y : scales.x);
                    }
                    see(n);
                };
                if constexpr (WARPGROUPS) {
                    // Dimensions behind the last are zeros of the query's, whatever lies there.
                    uint32_t hi[STEPS][4], lo[STEPS][4];
#pragma unroll
                    for (uint32_t step = 0; step < STEPS; step++) query(step, hi[step], lo[step]);
                    multiply_bytes<true, TOKENS, TOKENS_AT_ONCE>(
                        hi, lo, core_matrix(its_stage, 128, PAGE_TOKENS * 16), 2 * PAGE_TOKENS * 16, exponent,
                        [&](uint32_t from, const float (&sums)[TOKENS_AT_ONCE][4]) {
#pragma unroll
                            for (uint32_t i = 0; i < TOKENS_AT_ONCE; i++) scale(from + i, sums[i]);
                        });
                } else {
#pragma unroll
                    for (uint32_t two = 0; two < TOKENS; two += 2) {
                        int32_t hh[2][4] = {}, mid[2][4] = {}, ll[2][4] = {};
#pragma unroll
                        for (uint32_t step = 0; step < STEPS; step++) {
                            const bool whole = 2 * step + 1 < CHUNKS;
                            const uint32_t chunk = 2 * step + (whole ? lane / 8 % 2 : 0);
                            uint32_t hi[4], lo[4];
                            query(step, hi, lo);
                            if constexpr (LIMBS == 1) {
                                uint32_t b[4];  // two chunks of eight tokens, and of the next
                                ldmatrix_x4(b, keys + (chunk * PAGE_TOKENS + (two + lane / 16) * 8 +
                                                       lane % 8) * 16);
#pragma unroll
                                for (uint32_t i = 0; i < 2; i++) {
                                    int32_t of_hi[4] = {}, of_lo[4] = {};
                                    mma_m16n8k32_s32<true, true>(of_hi, hi, b + 2 * i, of_hi);
                                    mma_m16n8k32_s32<true, true>(of_lo, lo, b + 2 * i, of_lo);
                                    const float2 scales =
                                        Cache::scales_at(keys, (two + i) * 4 + quarter, step);
#pragma unroll
                                    for (uint32_t e = 0; e < 4; e++) {
                                        const float sum = limbs_sum(of_hi[e], of_lo[e]);
                                        const float scale = e % 2 ? scales.y : scales.x;
                                        float& score = s[two + i][e];
                                        score = step == 0 ? mul_rn(sum, scale) : fma_rn(sum, scale, score);
                                    }
                                }
                                continue;
                            }
#pragma unroll
                            for (uint32_t i = 0; i < 2; i++) {
                                uint32_t b[4];  // upper bytes of two chunks, lower ones
                                ldmatrix_x4(b, keys + lane / 16 * Cache::PLANE +
                                                   (chunk * PAGE_TOKENS + (two + i) * 8 + lane % 8) * 16);
                                mma_m16n8k32_s32<true, true>(hh[i], hi, b, hh[i]);
                                mma_m16n8k32_s32<true, true>(mid[i], lo, b, mid[i]);
                                mma_m16n8k32_s32<true, false>(mid[i], hi, b + 2, mid[i]);
                                mma_m16n8k32_s32<true, false>(ll[i], lo, b + 2, ll[i]);
                            }
                        }
#pragma unroll
                        for (uint32_t i = 0; i < 2; i++) {
                            if constexpr (LIMBS == 1) {
                                see(two + i);
                                continue;
                            }
                            float sums[4];
#pragma unroll
                            for (uint32_t e = 0; e < 4; e++) {
                                sums[e] = limbs_sum(hh[i][e], mid[i][e], ll[i][e], exponent);
                            }
                            scale(two + i, sums);
                        }
                    }
                }
                largest_of_quarters(top);
                TokenBlockTop tops[2];
                if constexpr (WARPGROUPS) {
                    token_block_tops(top, factor, tops);
                } else {
                    // With fewer registers at a time.
#pragma unroll
                    for (int r = 0; r < 2; r++) tops[r] = token_block_top(top[r], factor[r]);
                }
                // Times the scales of a block of values.
                auto weigh = [&](const float (&from)[4], float (&to)[4], uint32_t n, uint32_t block) {
                    const float2 scales = Cache::scales_at(values, n * 4 + quarter, block);
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        to[e] = mul_rn(from[e], e % 2 ? scales.y : scales.x);
                        if (!sees(n, e)) to[e] = 0.0f;
                    }
                };
                int share[2] = {};
#pragma unroll
                for (uint32_t n = 0; n < TOKENS; n++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        uint32_t two[2];
#pragma unroll
                        for (uint32_t i = 0; i < 2; i++) {
                            float& its = s[n][2 * r + i];
                            its = exp2_unit_f32(fma_sat(its, tops[r].factor, tops[r].bias));
                            // Its bits are those of 2^23 and the integer.
                            two[i] = sees(n, 2 * r + i) ? float_as_u32(fma_rn(its, 4194304.0f, 8388608.0f))
                                                        : TWO_TO_23;
                        }
                        share[r] += static_cast<int>(two[0] + two[1]);
                    }
                    if (Cache::BLOCKS == 1) weigh(s[n], s[n], n, 0);
                }
                float old_share[2], new_share[2];
#pragma unroll
                for (uint32_t mask = 1; mask < 4; mask *= 2) {
#pragma unroll
                    for (int r = 0; r < 2; r++) share[r] += __shfl_xor_sync(FULL_WARP, share[r], mask);
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    share[r] -= static_cast<int>(TWO_TO_23 * (8 * TOKENS));
                    const bool is_seen = !masked || looks(r);
                    const Join both = join(most[r], tops[r].most);
                    old_share[r] = both.old_share, new_share[r] = is_seen ? both.new_share : 0.0f;
                    // Before its window a row has no largest score.
                    if (WINDOW != 0 && !is_seen) old_share[r] = 1.0f;
                    const float next = token_block_weight(share[r], is_seen ? tops[r].most : 0.0f);
                    weight[r] = fma_rn(next, new_share[r], mul_rn(weight[r], old_share[r]));
                }
                if (__any_sync(FULL_WARP, old_share[0] != 1.0f || old_share[1] != 1.0f)) {
#pragma unroll
                    for (uint32_t d = 0; d < DIMS; d++) {
#pragma unroll
                        for (uint32_t e = 0; e < 4; e++) o[d][e] = mul_rn(o[d][e], old_share[e / 2]);
                    }
                }
#pragma unroll
                for (uint32_t block = 0; block < Cache::BLOCKS; block++) {
                    float of_block[TOKENS][4], largest[2] = {};
                    auto& v = Cache::BLOCKS == 1 ? s : of_block;
#pragma unroll
                    for (uint32_t n = 0; n < TOKENS; n++) {
                        if (Cache::BLOCKS > 1) weigh(s[n], v[n], n, block);
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            largest[r] = fmaxf(largest[r], fmaxf(v[n][2 * r], v[n][2 * r + 1]));
                        }
                    }
                    largest_of_quarters(largest);
                    float grid[2], step_of[2];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const ValueScale scale = value_scale(largest[r]);
                        grid[r] = scale.to_integers, step_of[r] = scale.step;
                    }
                    // Bytes of the weights, as products want A.
                    uint32_t w_hi[2][4], w_lo[2][4];
#pragma unroll
                    for (uint32_t step = 0; step < 2; step++) {
#pragma unroll
                        for (uint32_t part = 0; part < 4; part++) {
                            const uint32_t r = part % 2, n = step * 4 + part / 2 * 2;
                            uint32_t w[4];
#pragma unroll
                            for (uint32_t i = 0; i < 4; i++) {
                                w[i] = float_as_u32(
                                    fma_rn(v[n + i / 2][2 * r + i % 2], grid[r], 8388608.0f));
                            }
                            split_bytes(w, w_hi[step][part], w_lo[step][part]);
                        }
                    }
                    // Both factors in one, where that is no smaller than any normal float.
                    float both_of[2];
                    bool small = false;
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        both_of[r] = mul_rn(step_of[r], new_share[r]);
                        small |= both_of[r] < 1.1754944e-38f && new_share[r] != 0.0f;
                    }
                    const bool apart = __any_sync(FULL_WARP, small);
                    if (block == 0) look_for_next();
                    // Of the dimensions from d on.
                    auto add = [&](uint32_t d, const auto& sums) {
                        constexpr uint32_t TILES = sizeof(sums) / sizeof(sums[0]);
                        if (apart) {
#pragma unroll
                            for (uint32_t i = 0; i < 4 * TILES; i++) {
                                const uint32_t e = i % 4;
                                float& its = o[d + i / 4][e];
                                its = fma_rn(mul_rn(sums[i / 4][e], step_of[e / 2]), new_share[e / 2], its);
                            }
                            return;
                        }
#pragma unroll
                        for (uint32_t i = 0; i < 4 * TILES; i++) {
                            float& its = o[d + i / 4][i % 4];
                            its = fma_rn(sums[i / 4][i % 4], both_of[i % 4 / 2], its);
                        }
                    };
                    if constexpr (WARPGROUPS) {
                        multiply_bytes<false, DIMS, DIMS_AT_ONCE>(
                            w_hi, w_lo, core_matrix(its_stage + Cache::BYTES, 128, HEAD_DIM * 16),
                            2 * HEAD_DIM * 16, exponent, add);
                    } else {
#pragma unroll
                        for (uint32_t d = block * BLOCK_DIMS;
                             d < DIMS && d < (block + 1) * BLOCK_DIMS; d++) {
                            int32_t hh[4] = {}, mid[4] = {}, ll[4] = {};
                            float of_tokens[1][4];
                            if constexpr (LIMBS == 1) {
                                uint32_t b[4];  // of 32 tokens, and of the next
                                ldmatrix_x4(b, values + (lane / 8 * HEAD_DIM + d * 8 + lane % 8) * 16);
#pragma unroll
                                for (uint32_t step = 0; step < 2; step++) {
                                    mma_m16n8k32_s32<false, true>(hh, w_hi[step], b + 2 * step, hh);
                                    mma_m16n8k32_s32<false, true>(ll, w_lo[step], b + 2 * step, ll);
                                }
#pragma unroll
                                for (uint32_t e = 0; e < 4; e++) of_tokens[0][e] = limbs_sum(hh[e], ll[e]);
                                add(d, of_tokens);
                                continue;
                            }
#pragma unroll
                            for (uint32_t step = 0; step < 2; step++) {
                                uint32_t b[4];
                                ldmatrix_x4(b, values + lane / 16 * Cache::PLANE +
                                                   ((2 * step + lane / 8 % 2) * HEAD_DIM + d * 8 +
                                                    lane % 8) * 16);
                                mma_m16n8k32_s32<false, true>(hh, w_hi[step], b, hh);
                                mma_m16n8k32_s32<false, true>(mid, w_lo[step], b, mid);
                                mma_m16n8k32_s32<false, false>(mid, w_hi[step], b + 2, mid);
                                mma_m16n8k32_s32<false, false>(ll, w_lo[step], b + 2, ll);
                            }
#pragma unroll
                            for (uint32_t e = 0; e < 4; e++) {
                                of_tokens[0][e] = limbs_sum(hh[e], mid[e], ll[e], exponent);
                            }
                            add(d, of_tokens);
                        }
                    }
                }
            };
            const bool is_mapped = !has_gaps || kv_page(p.kv, slot, first) != 0;
            // Of all rows that multiply together: no warp leaves the others.
            const bool are_here = WARPGROUPS ? first < group_longest
                                             : __any_sync(FULL_WARP, looks(0) || looks(1));
            if (is_mapped && are_here) {
                const bool is_partly_seen = WARPGROUPS
                    ? group_shortest < first + PAGE_TOKENS || first_seen<WINDOW>(group_longest) > first
                    : __any_sync(FULL_WARP, shorter < first + PAGE_TOKENS || latest > first);
                if (is_partly_seen) {
                    token_block(Masked());
                } else {
                    token_block(Whole());
                }
            }
            if constexpr (HAS_BULK_COPIES) {
                __syncwarp();
                if (lane == 0) barrier_arrive(used + place);
            }
            // Splits that end here, of rows whose splits are not single token blocks.
            bool ends[2], is_first[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                ends[r] = split_token_blocks[r] != 1 && looks(r) &&
                          (--left[r] == 0 || length[r] <= first + PAGE_TOKENS);
                is_first[r] = number - start(r) < split_token_blocks[r];
            }
            // What there is of rows is asked for at once, as of many as there are registers for: one wait.
            constexpr int ROWS_AT_ONCE = WARPGROUPS ? 2 : 1;
#pragma unroll
            for (int from = 0; from < 2; from += ROWS_AT_ONCE) {
                if (!ends[from] && !ends[from + ROWS_AT_ONCE - 1]) continue;
                float2 old[ROWS_AT_ONCE][DIMS];
#pragma unroll
                for (int i = 0; i < ROWS_AT_ONCE; i++) {
                    const float* out = p.out + address(mine[from + i]) + quarter * 2;
#pragma unroll
                    for (uint32_t d = 0; d < DIMS; d++) {
                        old[i][d] = make_float2(0.0f, 0.0f);
                        if (ends[from + i] && !is_first[from + i]) {
                            old[i][d] = *reinterpret_cast<const float2*>(out + d * 8);
                        }
                    }
                }
#pragma unroll
                for (int i = 0; i < ROWS_AT_ONCE; i++) {
                    const int r = from + i;
                    if (!ends[r]) continue;
                    const bool is_last = length[r] <= first + PAGE_TOKENS;
                    left[r] = split_token_blocks[r];
                    const Join both = join(all_most[r], most[r]);
                    all_weight[r] = fma_rn(weight[r], both.new_share, mul_rn(all_weight[r], both.old_share));
                    float* out = p.out + address(mine[r]) + quarter * 2;
#pragma unroll
                    for (uint32_t d = 0; d < DIMS; d++) {
                        float2 all = make_float2(o[d][2 * r], o[d][2 * r + 1]);
                        if (!is_first[r]) {
                            all.x = fma_rn(all.x, both.new_share, mul_rn(old[i][d].x, both.old_share));
                            all.y = fma_rn(all.y, both.new_share, mul_rn(old[i][d].y, both.old_share));
                        }
                        *reinterpret_cast<float2*>(out + d * 8) = all;
                        o[d][2 * r] = is_last ? all.x : 0.0f, o[d][2 * r + 1] = is_last ? all.y : 0.0f;
                    }
                    // Pages behind the last, of longer rows, are joined to all of them with a share of 0.
                    most[r] = is_last ? all_most[r] : -infinity_f32();
                    weight[r] = is_last ? all_weight[r] : 0.0f;
                }
            }
        }
        if constexpr (!HAS_BULK_COPIES) __syncthreads();
    }

    delay_block();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (mine[r] >= rows) continue;
        float* out = p.out + address(mine[r]) + quarter * 2;
        if constexpr (HAS_SINKS) {
            const Sink sink = sink_of(p.sinks[head * GROUP + (first_row + mine[r]) % GROUP]);
            const Join both = join(most[r], sink.most);
            weight[r] = fma_rn(sink.weight, both.new_share, mul_rn(weight[r], both.old_share));
#pragma unroll
            for (uint32_t d = 0; d < DIMS; d++) {
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) o[d][2 * r + i] = mul_rn(o[d][2 * r + i], both.old_share);
            }
        }
        const float divisor = is_number[r] ? weight[r] : nan_f32();
#pragma unroll
        for (uint32_t d = 0; d < DIMS; d++) {
            *reinterpret_cast<float2*>(out + d * 8) =
                make_float2(div_rn(o[d][2 * r], divisor), div_rn(o[d][2 * r + 1], divisor));
        }
    }
}
