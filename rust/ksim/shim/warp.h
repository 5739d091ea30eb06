// Warp operations: the lanes of a mask meet, the last to arrive works out every lane's result.
#pragma once

namespace sim {

enum Kind : uint32_t {
    SYNC, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR, BALLOT, ANY, ALL, MATCH_ANY, MATCH_ALL,
    REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_MIN_SIGNED, REDUCE_MAX_SIGNED, REDUCE_AND,
    REDUCE_OR, REDUCE_XOR, SUM_F32, MAX_F32, MMA, MMA_BYTES, LDMATRIX,
    LDMATRIX_TRANS,
};

const char* name_of(uint32_t kind);

static inline float bits_to_float(uint64_t bits) {
    uint32_t low = static_cast<uint32_t>(bits);
    float f;
    memcpy(&f, &low, 4);
    return f;
}

static inline uint32_t float_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

uint64_t warp_operation(uint32_t kind, uint32_t mask, uint64_t in, uint64_t operand);

static inline float warp_sum_f32(float v) {
    return bits_to_float(warp_operation(SUM_F32, 0xffffffffu, float_to_bits(v), 0));
}
static inline float warp_max_f32(float v) {
    return bits_to_float(warp_operation(MAX_F32, 0xffffffffu, float_to_bits(v), 0));
}

}  // namespace sim
