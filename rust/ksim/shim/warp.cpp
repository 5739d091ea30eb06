// Warp operations: see warp.h.
namespace sim {

static void multiply_fragments(Fiber* lanes);
static void load_matrices(Fiber* lanes, bool transposed);

const char* name_of(uint32_t kind) {
    static const char* const names[] = {
        "__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
        "__ballot_sync", "__any_sync", "__all_sync", "__match_any_sync", "__match_all_sync",
        "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
        "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync",
        "warp_sum_f32", "warp_max_f32", "mma_m16n8k16_f16_f32", "mma_m16n8k32_s32",
        "ldmatrix_x4", "ldmatrix_x4_trans",
    };
    return names[kind];
}

// `operand` of a shuffle: the distance, lane or lane mask in the low byte, the width above it.
static inline uint32_t shuffle_source(uint32_t kind, uint32_t lane, uint64_t operand) {
    uint32_t by = static_cast<uint32_t>(operand & 0xff);
    uint32_t width = static_cast<uint32_t>(operand >> 8);
    uint32_t first = lane & ~(width - 1);
    uint32_t last = first + width - 1;
    switch (kind) {
        case SHUFFLE: return first + by % width;
        case SHUFFLE_UP: return lane >= first + by ? lane - by : lane;
        case SHUFFLE_DOWN: return lane + by <= last ? lane + by : lane;
        default: return (lane ^ by) <= last ? lane ^ by : lane;
    }
}

static uint64_t reduce(uint32_t kind, uint64_t a, uint64_t b) {
    uint32_t x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
    switch (kind) {
        case REDUCE_ADD: return x + y;
        case REDUCE_MIN: return x < y ? x : y;
        case REDUCE_MAX: return x > y ? x : y;
        case REDUCE_MIN_SIGNED: return static_cast<int32_t>(x) < static_cast<int32_t>(y) ? x : y;
        case REDUCE_MAX_SIGNED: return static_cast<int32_t>(x) > static_cast<int32_t>(y) ? x : y;
        case REDUCE_AND: return x & y;
        case REDUCE_OR: return x | y;
        default: return x ^ y;
    }
}

// Lanes at distance 16 first, then 8, 4, 2, 1: what the shuffles of the card give in every lane.
static float butterfly(Fiber* lanes, bool sum) {
    float v[32];
    for (int i = 0; i < 32; i++) v[i] = bits_to_float(lanes[i].in);
    for (int distance = 16; distance; distance /= 2) {
        for (int i = 0; i < distance; i++) {
            v[i] = sum ? v[i] + v[i + distance] : fmaxf(v[i], v[i + distance]);
        }
    }
    return v[0];
}

static __attribute__((noinline)) void complete(uint32_t kind, uint32_t mask, Fiber* lanes) {
    uint64_t all = 0;
    uint32_t first = __builtin_ctz(mask);
    switch (kind) {
        case SYNC: return;
        case SHUFFLE:
        case SHUFFLE_UP:
        case SHUFFLE_DOWN:
        case SHUFFLE_XOR:
            for (uint32_t m = mask; m; m &= m - 1) {
                uint32_t lane = __builtin_ctz(m);
                uint32_t source = shuffle_source(kind, lane, lanes[lane].operand);
                if (!(mask >> source & 1)) {
                    fail(KSIM_LAUNCH_FAILED, "%s: lane %u reads lane %u, which mask %08x leaves out",
                         name_of(kind), lane, source, mask);
                }
                lanes[lane].out = lanes[source].in;
            }
            return;
        case BALLOT:
        case ANY:
        case ALL:
            for (uint32_t m = mask; m; m &= m - 1) {
                uint32_t lane = __builtin_ctz(m);
                all |= static_cast<uint64_t>(lanes[lane].in != 0) << lane;
            }
            if (kind == ANY) all = all != 0;
            if (kind == ALL) all = all == mask;
            break;
        case MATCH_ANY:
            for (uint32_t m = mask; m; m &= m - 1) {
                uint32_t lane = __builtin_ctz(m);
                lanes[lane].out = 0;
                for (uint32_t n = mask; n; n &= n - 1) {
                    uint32_t other = __builtin_ctz(n);
                    if (lanes[other].in == lanes[lane].in) lanes[lane].out |= 1u << other;
                }
            }
            return;
        case MATCH_ALL:
            all = mask;
            for (uint32_t m = mask; m; m &= m - 1) {
                if (lanes[__builtin_ctz(m)].in != lanes[first].in) all = 0;
            }
            break;
        case SUM_F32: all = float_to_bits(butterfly(lanes, true)); break;
        case MAX_F32: all = float_to_bits(butterfly(lanes, false)); break;
        case MMA:
        case MMA_BYTES: multiply_fragments(lanes); return;
        case LDMATRIX: load_matrices(lanes, false); return;
        case LDMATRIX_TRANS: load_matrices(lanes, true); return;
        default:
            all = lanes[first].in;
            for (uint32_t m = mask & (mask - 1); m; m &= m - 1) {
                all = reduce(kind, all, lanes[__builtin_ctz(m)].in);
            }
    }
    for (uint32_t m = mask; m; m &= m - 1) lanes[__builtin_ctz(m)].out = all;
}

uint64_t warp_operation(uint32_t kind, uint32_t mask, uint64_t in,
                                      uint64_t operand) {
    uint32_t lane = self->linear % 32;
    Warp& warp = block->warp[self->linear / 32];
    Fiber* lanes = self - lane;
    uint32_t others = mask & ~(1u << lane);
    if (!(mask >> lane & 1)) {
        fail(KSIM_LAUNCH_FAILED, "%s: lane %u calls it with mask %08x, which leaves it out",
             name_of(kind), lane, mask);
    }
    if (others & ~warp.live) {
        fail(KSIM_LAUNCH_FAILED, "%s: mask %08x names lanes %08x that have exited or never were",
             name_of(kind), mask, others & ~warp.live);
    }
    self->in = in;
    self->operand = operand;
    self->kind = kind;
    self->mask = mask;
    if (others & ~warp.waiting) {
        warp.waiting |= 1u << lane;
        wait_as(AT_WARP);
        return self->out;
    }
    for (uint32_t m = others; m; m &= m - 1) {
        uint32_t other = __builtin_ctz(m);
        if (lanes[other].mask != mask || lanes[other].kind != kind) {
            fail(KSIM_LAUNCH_FAILED, "lane %u waits at %s of mask %08x, lane %u at %s of mask %08x",
                 lane, name_of(kind), mask, other, name_of(lanes[other].kind), lanes[other].mask);
        }
    }
    complete(kind, mask, lanes);
    warp.waiting &= ~others;
    warp.ready |= others;
    return self->out;
}

// Why no fiber of the selected block can go on.
static void report_deadlock() {
    uint32_t exited = 0, at_barrier = 0, at_cluster = 0, exited_one = 0;
    const Fiber* barrier = nullptr;
    const Fiber* at_warp = nullptr;
    const Fiber* at_phase = nullptr;
    const Fiber* at_products = nullptr;
    for (uint32_t i = 0; i < block->threads; i++) {
        const Fiber& fiber = block->fibers[i];
        if (fiber.state == DONE) exited++, exited_one = i;
        if (fiber.state == AT_BARRIER) at_barrier++, barrier = &fiber;
        if (fiber.state == AT_CLUSTER) at_cluster++;
        if (fiber.state == AT_WARP) at_warp = &fiber;
        if (fiber.state == AT_PHASE) at_phase = &fiber;
        if (fiber.state == AT_PRODUCTS) at_products = &fiber;
    }
    char where[64] = "";
    if (barrier && barrier->line) snprintf(where, sizeof where, " (line %d)", barrier->line);
    if (at_warp) {
        uint32_t here = block->warp[at_warp->linear / 32].waiting;
        record(KSIM_LAUNCH_FAILED,
               "deadlock: thread %u waits at %s for lanes %08x of mask %08x; %u threads wait at a "
               "barrier%s, %u have exited",
               at_warp->linear, name_of(at_warp->kind), at_warp->mask & ~here, at_warp->mask,
               at_barrier, where, exited);
    } else if (at_products) {
        record(KSIM_LAUNCH_FAILED, "deadlock: thread %u waits at wgmma_wait for lanes %08x of its warp",
               at_products->linear, ~block->products[at_products->linear / 32].waiting);
    } else if (at_phase) {
        record(KSIM_LAUNCH_FAILED,
               "deadlock: thread %u waits for a phase of the barrier at %p that never ends",
               at_phase->linear, reinterpret_cast<void*>(at_phase->in));
    } else if (at_cluster) {
        record(KSIM_LAUNCH_FAILED,
               "deadlock: %u of %u threads wait for their cluster, of which some never arrive",
               at_cluster, block->threads);
    } else if (barrier && exited) {
        record(KSIM_LAUNCH_FAILED,
               "barrier divergence: %u of %u threads wait at a barrier%s, %u have exited (thread %u)",
               at_barrier, block->threads, where, exited, exited_one);
    } else {
        record(KSIM_LAUNCH_FAILED,
               "deadlock: %u of %u threads wait at a barrier%s, none can go on", at_barrier,
               block->threads, where);
    }
}

}  // namespace sim
