// The experts that a row goes to, as Op::Route states it, by logits that are first multiplied by a
// factor; where RANKS_SCALED, each weight is then multiplied by its expert's own, as Op::ScaleRanks does.
//
// Include it behind variant.cuh: ROUTE_EXPERTS, ROUTE_RANKS, GATING, BIASED, RENORMALIZE, RANKS_SCALED,
// LOGIT_FACTOR_BITS (a float32), ROUTE_GROUPS (1: experts have none), ROUTE_GROUPS_USED.
#pragma once
#include "math.cuh"

struct RouteParams {
    const float* logits;  // [m][ROUTE_EXPERTS]
    const float* bias;    // [ROUTE_EXPERTS], where BIASED
    const float* scales;  // the same, where RANKS_SCALED
    float* out;           // [m][2][ROUTE_RANKS]
    float scale;
    uint32_t m;
};

// Of each lane: it has the experts l, l + 32, ..., and the ranks likewise.
constexpr uint32_t LANE_EXPERTS = (ROUTE_EXPERTS + 31) / 32, LANE_RANKS = (ROUTE_RANKS + 31) / 32;

// Scores as integers of the same order: numbers by size, 0 and -0 alike; NaN below them; experts that must
// not be chosen below all.
constexpr uint32_t NO_KEY = 0, NAN_KEY = 1;

// 1, as a float32.
constexpr uint32_t ONE = 0x3f800000u;

DEVICE bool is_nan(float x) { return x != x; }

DEVICE uint32_t key_of(float score) {
    if (is_nan(score)) return NAN_KEY;
    const uint32_t bits = float_as_u32(add_rn(score, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// What key_of was made of, but for the sign of a zero.
DEVICE float score_of(uint32_t key) {
    if (key == NAN_KEY) return nan_f32();
    return u32_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// Prefetches the model's data that routing reads, before the preceding kernels have ended; by a warp.
DEVICE void expect_route([[maybe_unused]] const RouteParams& p, [[maybe_unused]] uint32_t lane) {
    constexpr uint32_t LINE = 32;  // of floats
    for (uint32_t i = lane * LINE; i < ROUTE_EXPERTS; i += 32 * LINE) {
        if constexpr (BIASED) prefetch_l2(p.bias + i);
        if constexpr (RANKS_SCALED) prefetch_l2(p.scales + i);
    }
}

// A lane's share of a row's logits, -infinity behind the last.
struct Logits {
    float of[LANE_EXPERTS];
};

DEVICE Logits logits_of(const RouteParams& p, uint32_t m, uint32_t lane) {
    Logits logits;
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t id = i * 32 + lane;
        logits.of[i] = -infinity_f32();
        if (id >= ROUTE_EXPERTS) continue;
        logits.of[i] = load_relaxed_f32(p.logits + static_cast<uint64_t>(m) * ROUTE_EXPERTS + id);
        if (LOGIT_FACTOR_BITS != ONE) logits.of[i] = mul_rn(logits.of[i], u32_as_float(LOGIT_FACTOR_BITS));
    }
    return logits;
}

// What a logit's gate is made with, and whether the row has none: where a logit is not finite.
struct Gates {
    float top, sum;
    bool bad;
};

DEVICE Gates gates_of(const Logits& logits, uint32_t lane) {
    Gates gates = {-infinity_f32(), 0.0f, false};
    bool bad = false;
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        // Behind the last is -infinity.
        bad = bad || (!(fabsf(logits.of[i]) < infinity_f32()) && i * 32 + lane < ROUTE_EXPERTS);
        gates.top = logits.of[i] > gates.top ? logits.of[i] : gates.top;
    }
    gates.top = warp_max_f32(gates.top);
    gates.bad = __ballot_sync(FULL_WARP, bad) != 0;
    if constexpr (GATING == GATING_SOFTMAX) {
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
            if (i * 32 + lane >= ROUTE_EXPERTS) break;
            gates.sum = add_rn(gates.sum, exp_down_f32(sub_rn(logits.of[i], gates.top)));
        }
        gates.sum = warp_sum_f32(gates.sum);
    }
    return gates;
}

DEVICE float gate_of(const Gates& gates, float logit) {
    if constexpr (GATING == GATING_SOFTMAX) {
        return div_rn(exp_down_f32(sub_rn(logit, gates.top)), gates.sum);
    }
    if constexpr (GATING == GATING_SIGMOID) return sigmoid_f32(logit);
    return logit;
}

// A choice for a row, as far as it is made: a lane's experts, the one to choose next in front, of those that
// are alike the one with the lower number; and what is chosen, the expert of rank `lane` in a lane.
struct Choice {
    Logits logits;
    Gates gates;  // where BIASED
    uint32_t key[LANE_EXPERTS], id[LANE_EXPERTS];
    uint32_t chosen[LANE_RANKS];
};

// Leaves the experts of the groups that are chosen; a lane has a group.
DEVICE void leave_groups(Choice& of, uint32_t lane) {
    constexpr uint32_t SIZE = ROUTE_EXPERTS / ROUTE_GROUPS;
    static_assert(ROUTE_GROUPS <= 32 && ROUTE_EXPERTS % ROUTE_GROUPS == 0, "a lane a group");
    uint32_t own = NO_KEY;
#pragma unroll 1
    for (uint32_t group = 0; group < ROUTE_GROUPS; group++) {
        // The largest of its keys, of equals the first, but for one expert.
        auto largest = [&](uint32_t but, uint32_t& most) {
            uint32_t key = NO_KEY, id = ~0u;
#pragma unroll
            for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
                const bool is_its = of.id[i] / SIZE == group && of.id[i] != but;
                if (is_its && of.key[i] > key) key = of.key[i], id = of.id[i];
            }
            most = warp_max_u32(key);
            return ~warp_max_u32(key == most ? ~id : 0u);
        };
        uint32_t key, next;
        const uint32_t first = largest(~0u, key);
        if constexpr (BIASED) {
            largest(first, next);
            key = key_of(add_rn(score_of(key), score_of(next)));
        }
        if (lane == group) own = key;
    }
    uint32_t chosen = 0;
#pragma unroll 1
    for (uint32_t n = 0; n < ROUTE_GROUPS_USED; n++) {
        const uint32_t most = warp_max_u32(own);
        const uint32_t group = ~warp_max_u32(own == most ? ~lane : 0u);
        chosen |= 1u << group;
        if (lane == group) own = NO_KEY;
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        if (of.id[i] < ROUTE_EXPERTS && !(chosen >> of.id[i] / SIZE & 1)) of.key[i] = NO_KEY;
    }
}

// Of row m, nothing chosen; by all lanes of a warp, as what follows.
DEVICE Choice choice_of(const RouteParams& p, uint32_t m, uint32_t lane) {
    Choice of = {};
    of.logits = logits_of(p, m, lane);
    if constexpr (BIASED) of.gates = gates_of(of.logits, lane);
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t id = i * 32 + lane;
        of.id[i] = id;
        of.key[i] = NO_KEY;
        if (id >= ROUTE_EXPERTS) continue;
        float score = of.logits.of[i];
        if constexpr (BIASED) score = add_rn(gate_of(of.gates, score), p.bias[id]);
        of.key[i] = key_of(score);
    }
    if constexpr (ROUTE_GROUPS > 1) leave_groups(of, lane);
    // Batcher's odd-even mergesort.
#pragma unroll
    for (uint32_t size = 1; size < LANE_EXPERTS; size *= 2) {
#pragma unroll
        for (uint32_t apart = size; apart > 0; apart /= 2) {
#pragma unroll
            for (uint32_t a = 0; a + apart < LANE_EXPERTS; a++) {
                const uint32_t b = a + apart;
                const bool is_pair = a >= apart % size && (a - apart % size) / apart % 2 == 0 &&
                                     a / (2 * size) == b / (2 * size);
                if (!is_pair) continue;
                const uint32_t key_a = of.key[a], key_b = of.key[b], id_a = of.id[a], id_b = of.id[b];
                const bool swaps = key_b > key_a || (key_b == key_a && id_b < id_a);
                of.key[a] = swaps ? key_b : key_a, of.id[a] = swaps ? id_b : id_a;
                of.key[b] = swaps ? key_a : key_b, of.id[b] = swaps ? id_a : id_b;
            }
        }
    }
    return of;
}

// Chooses the experts of ranks from `first` on, those before being chosen, up to `end`.
DEVICE void choose(Choice& of, uint32_t lane, uint32_t first, uint32_t end) {
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
#pragma unroll 1
        for (; first < end && first < 32 * (slot + 1); first++) {
            const uint32_t most = warp_max_u32(of.key[0]);
            const uint32_t id = ~warp_max_u32(of.key[0] == most ? ~of.id[0] : 0u);
            const bool is_own = of.id[0] == id;
#pragma unroll
            for (uint32_t i = 0; i + 1 < LANE_EXPERTS; i++) {
                of.key[i] = is_own ? of.key[i + 1] : of.key[i];
                of.id[i] = is_own ? of.id[i + 1] : of.id[i];
            }
            if (is_own) of.key[LANE_EXPERTS - 1] = NO_KEY;
            if (lane == first % 32) of.chosen[slot] = id;
        }
    }
}

// Leaves for others a choice of all ranks.
DEVICE void leave_choice(const RouteParams& p, uint32_t m, uint32_t lane, const Choice& of) {
    float* out = p.out + static_cast<uint64_t>(m) * (2 * ROUTE_RANKS);
    const Gates gates = BIASED ? of.gates : gates_of(of.logits, lane);
    // Of this lane's ranks: the expert's logit, then its weight.
    float weight[LANE_RANKS] = {};
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
            const float logit = __shfl_sync(FULL_WARP, of.logits.of[i], of.chosen[slot] % 32);
            if (of.chosen[slot] / 32 == i) weight[slot] = logit;
        }
    }
    // Of this lane's ranks: asked for here, as all that follows goes from lane to lane.
    float scales[LANE_RANKS] = {};
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
        if (RANKS_SCALED && slot * 32 + lane < ROUTE_RANKS) scales[slot] = p.scales[of.chosen[slot]];
    }
    // Calls f with each of the weights in order.
    auto each = [&](auto f) {
#pragma unroll
        for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
            const uint32_t ranks = ROUTE_RANKS - slot * 32 < 32 ? ROUTE_RANKS - slot * 32 : 32;
            for (uint32_t rank = 0; rank < ranks; rank++) {
                f(__shfl_sync(FULL_WARP, weight[slot], static_cast<int>(rank)));
            }
        }
    };
    auto sum_in_order = [&]() {
        float all = 0.0f;
        bool is_first = true;
        each([&](float w) {
            all = is_first ? w : add_rn(all, w);
            is_first = false;
        });
        return all;
    };
    if constexpr (GATING == GATING_SELECTED_SOFTMAX) {
        float most = -infinity_f32();
        each([&](float w) { most = w > most ? w : most; });
        for (float& w : weight) w = exp_down_f32(sub_rn(w, most));
        const float all = sum_in_order();
        for (float& w : weight) w = div_rn(w, all);
    } else {
        for (float& w : weight) w = gate_of(gates, w);
    }
    if constexpr (RENORMALIZE) {
        const float all = sum_in_order();
        const float divisor = all > 6.103515625e-5f ? all : 6.103515625e-5f;
        for (float& w : weight) w = div_rn(w, divisor);
    }
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
        const uint32_t rank = slot * 32 + lane;
        if (rank >= ROUTE_RANKS) break;
        out[rank] = static_cast<float>(of.chosen[slot]);
        float w = gates.bad ? nan_f32() : mul_rn(weight[slot], p.scale);
        if constexpr (RANKS_SCALED) w = mul_rn(w, scales[slot]);
        out[ROUTE_RANKS + rank] = w;
    }
}

// Chooses for row m, and leaves that for others.
DEVICE void route_row(const RouteParams& p, uint32_t m, uint32_t lane) {
    Choice choice = choice_of(p, m, lane);
    choose(choice, lane, 0, ROUTE_RANKS);
    leave_choice(p, m, lane, choice);
}
