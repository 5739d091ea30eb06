// The arithmetic of the sampler, which rust/engine/src/sampler.rs specifies bit for bit: ln and exp
// by fused multiply-adds, Philox, Gumbel noise, and tokens as integers in the order of sampling.
#pragma once
#include "math.cuh"

// In units of 2^-40 of the most probable token's.
DEVICE uint64_t mass_of(float z) {
    return z < -28.0f ? 0 : static_cast<uint64_t>(mul_rn(exp_f32(z), 1099511627776.0f));
}

// ---------------------------------------------------------------- random numbers

// Philox4x32-10 of the counter {group, index, 0, 0}.
DEVICE uint4 random_words(uint64_t seed, uint32_t index, uint32_t group) {
    uint32_t c0 = group, c1 = index, c2 = 0, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t a_low = c0 * 0xd2511f53u, a_high = __umulhi(c0, 0xd2511f53u);
        uint32_t b_low = c2 * 0xcd9e8d57u, b_high = __umulhi(c2, 0xcd9e8d57u);
        c0 = b_high ^ c1 ^ k0;
        c2 = a_high ^ c3 ^ k1;
        c1 = b_low;
        c3 = a_low;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

DEVICE float gumbel(uint32_t word) {
    constexpr float SCALE = 1.0f / 4294967296.0f, HALF = SCALE / 2.0f;
    float exponential;
    if (word < 0xc0000000u) {
        exponential = -ln_f32(fma_rn(static_cast<float>(word), SCALE, HALF));
    } else {
        float v = fma_rn(static_cast<float>(~word), SCALE, HALF);
        exponential = -ln_1p_reduced(-v);
    }
    return -ln_f32(exponential);
}

// ---------------------------------------------------------------- order

// An unsigned integer that orders as the floats do.
DEVICE uint32_t order_key(float x) {
    uint32_t bits = float_as_u32(x);
    return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
DEVICE float key_value(uint32_t key) {
    return u32_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

constexpr uint32_t KEY_OF_MINUS_INFINITY = 0x007fffffu;

// (value descending, id ascending) as one integer, larger first. Adding zero makes -0 equal 0.
DEVICE uint64_t rank_of(float value, uint32_t id) {
    return static_cast<uint64_t>(order_key(add_rn(value, 0.0f))) << 32 | ~id;
}
DEVICE uint32_t rank_key(uint64_t rank) { return static_cast<uint32_t>(rank >> 32); }
DEVICE uint32_t rank_id(uint64_t rank) { return ~static_cast<uint32_t>(rank); }

DEVICE float rank_z(uint64_t rank) { return key_value(rank_key(rank)); }

// ceil(total * share / 2^32), at least 1.
DEVICE uint64_t mass_wanted(uint64_t total, uint64_t share) {
    uint64_t low = total * share, high = __umul64hi(total, share);
    uint64_t wanted = (high << 32 | low >> 32) + ((low & 0xffffffffu) != 0);
    return wanted ? wanted : 1;
}

DEVICE const uint32_t* load_pointer(const uint32_t* const* address) {
    return reinterpret_cast<const uint32_t*>(
        load_relaxed_u64(reinterpret_cast<const uint64_t*>(address)));
}

DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// ---------------------------------------------------------------- reductions over integers

DEVICE uint64_t shuffle_xor_u64(uint64_t v, uint32_t lanes) {
    return __shfl_xor_sync(FULL_WARP, static_cast<unsigned long long>(v), static_cast<int>(lanes));
}

DEVICE uint64_t warp_max_u64(uint64_t v) {
#pragma unroll
    for (uint32_t lanes = 16; lanes != 0; lanes /= 2) v = larger(v, shuffle_xor_u64(v, lanes));
    return v;
}

DEVICE uint64_t warp_sum_u64(uint64_t v) {
#pragma unroll
    for (uint32_t lanes = 16; lanes != 0; lanes /= 2) v += shuffle_xor_u64(v, lanes);
    return v;
}

// Over a block of `warps` full warps, in every thread. `scratch` is shared memory for `warps`
// words; it is free again after the call.
template <int warps>
DEVICE uint64_t block_max_u64(uint64_t v, uint64_t* scratch) {
    v = warp_max_u64(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[0];
#pragma unroll
    for (int warp = 1; warp < warps; warp++) v = larger(v, scratch[warp]);
    __syncthreads();
    return v;
}

template <int warps>
DEVICE uint64_t block_sum_u64(uint64_t v, uint64_t* scratch) {
    v = warp_sum_u64(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int warp = 0; warp < warps; warp++) v += scratch[warp];
    __syncthreads();
    return v;
}

// Sum over the threads before this one.
template <int warps>
DEVICE uint64_t block_sum_before_u64(uint64_t v, uint64_t* scratch) {
    uint32_t lane = threadIdx.x % 32;
    uint64_t sum = v;
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
        uint64_t other = __shfl_up_sync(FULL_WARP, static_cast<unsigned long long>(sum), by);
        if (lane >= by) sum += other;
    }
    if (lane == 31) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    sum -= v;
#pragma unroll
    for (int warp = 0; warp < warps; warp++) {
        if (warp < static_cast<int>(threadIdx.x / 32)) sum += scratch[warp];
    }
    __syncthreads();
    return sum;
}
