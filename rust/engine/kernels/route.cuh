// The experts that a row goes to, as Op::Route states it, by logits that are first multiplied by a
// factor; where RANKS_SCALED, each weight is then multiplied by its expert's own, as Op::ScaleRanks does.
//
// Include it behind variant.cuh: ROUTE_EXPERTS, ROUTE_RANKS, GATING, BIASED, RENORMALIZE, RANKS_SCALED,
// LOGIT_FACTOR_BITS (a float32).
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

// Scores as integers of the same order: numbers by size, 0 and -0 alike, and below them what is none.
// Below all, that which is not to be chosen.
constexpr uint32_t NO_KEY = 0, NAN_KEY = 1;

// 1, as a float32.
constexpr uint32_t ONE = 0x3f800000u;

DEVICE bool is_nan(float x) { return x != x; }

DEVICE uint32_t key_of(float score) {
    if (is_nan(score)) return NAN_KEY;
    const uint32_t bits = float_as_u32(add_rn(score, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Asks for what the choice reads of the model's, before the preceding kernels have ended; by a warp.
DEVICE void expect_route([[maybe_unused]] const RouteParams& p, [[maybe_unused]] uint32_t lane) {
    constexpr uint32_t LINE = 32;  // of floats
    for (uint32_t i = lane * LINE; i < ROUTE_EXPERTS; i += 32 * LINE) {
        if constexpr (BIASED) prefetch_l2(p.bias + i);
        if constexpr (RANKS_SCALED) prefetch_l2(p.scales + i);
    }
}

// Chooses for row m; by all lanes of a warp. Where it leaves nothing for others, only up to the rank
// `last`. Returns the expert of rank `lane`.
DEVICE uint32_t route_row(const RouteParams& p, uint32_t m, uint32_t lane, bool leaves = true,
                          uint32_t last = 0) {
    const float* logits = p.logits + static_cast<uint64_t>(m) * ROUTE_EXPERTS;
    float* out = p.out + static_cast<uint64_t>(m) * (2 * ROUTE_RANKS);
    float logit[LANE_EXPERTS];
    float top = -infinity_f32();
    bool nan = false;
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t id = i * 32 + lane;
        logit[i] = -infinity_f32();
        if (id < ROUTE_EXPERTS) logit[i] = load_relaxed_f32(logits + id);
        if (id < ROUTE_EXPERTS && LOGIT_FACTOR_BITS != ONE) {
            logit[i] = mul_rn(logit[i], u32_as_float(LOGIT_FACTOR_BITS));
        }
        nan = nan || is_nan(logit[i]);
        top = logit[i] > top ? logit[i] : top;
    }
    top = warp_max_f32(top);
    const bool bad = __ballot_sync(FULL_WARP, nan) != 0 || !(fabsf(top) < infinity_f32());
    float sum = 0.0f;
    if constexpr (GATING == GATING_SOFTMAX) {
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
            if (i * 32 + lane >= ROUTE_EXPERTS) break;
            sum = add_rn(sum, exp_down_f32(sub_rn(logit[i], top)));
        }
        sum = warp_sum_f32(sum);
    }
    auto gate = [&](float l) {
        if constexpr (GATING == GATING_SOFTMAX) return div_rn(exp_down_f32(sub_rn(l, top)), sum);
        if constexpr (GATING == GATING_SIGMOID) return sigmoid_f32(l);
        return l;
    };
    uint32_t key[LANE_EXPERTS];
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t id = i * 32 + lane;
        key[i] = NO_KEY;
        if (id >= ROUTE_EXPERTS) break;
        float score = logit[i];
        if constexpr (BIASED) score = add_rn(gate(score), p.bias[id]);
        key[i] = key_of(score);
    }
    // Of this lane's ranks: the expert, and its logit, then its weight.
    uint32_t chosen[LANE_RANKS] = {};
    float weight[LANE_RANKS] = {};
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
        const uint32_t all = ROUTE_RANKS - slot * 32 < 32 ? ROUTE_RANKS - slot * 32 : 32;
        const uint32_t ranks = leaves || last >= all ? all : last + 1;
#pragma unroll 1
        for (uint32_t rank = 0; rank < ranks; rank++) {
            uint32_t best = NO_KEY, own = 0;
            float of_best = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
                if (key[i] > best) best = key[i], own = i * 32 + lane, of_best = logit[i];
            }
            // Of those that are alike the one with the lowest id.
            const uint32_t most = warp_max_u32(best);
            const uint32_t id = ~warp_max_u32(best == most ? ~own : 0u);
#pragma unroll
            for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
                if (i * 32 + lane == id) key[i] = NO_KEY;
            }
            const float its = __shfl_sync(FULL_WARP, of_best, id % 32);
            if (lane == rank) chosen[slot] = id, weight[slot] = its;
        }
    }
    if (!leaves) return chosen[0];
    // Of this lane's ranks: asked for here, as all that follows goes from lane to lane.
    float scales[LANE_RANKS] = {};
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_RANKS; slot++) {
        if (RANKS_SCALED && slot * 32 + lane < ROUTE_RANKS) scales[slot] = p.scales[chosen[slot]];
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
        for (float& w : weight) w = gate(w);
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
        out[rank] = static_cast<float>(chosen[slot]);
        float w = bad ? nan_f32() : mul_rn(weight[slot], p.scale);
        if constexpr (RANKS_SCALED) w = mul_rn(w, scales[slot]);
        out[ROUTE_RANKS + rank] = w;
    }
    return chosen[0];
}
