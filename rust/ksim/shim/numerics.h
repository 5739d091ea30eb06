// Exact twins of the device's arithmetic. The object is compiled without contraction, so a + b * c
// is two roundings unless fmaf is called by name.
#pragma once

namespace sim {

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef short H8 __attribute__((vector_size(16)));
typedef float F8 __attribute__((vector_size(32)));

static inline F4 halves_to_floats(uint32_t v) {
    I4 bits = {static_cast<int32_t>(v), 0, 0, 0};
    return __builtin_ia32_vcvtph2ps(reinterpret_cast<H8>(bits));
}

// To nearest, ties to even; every NaN becomes the card's, 0x7fff.
static inline uint32_t floats_to_halves(F4 v) {
    H8 halves = __builtin_ia32_vcvtps2ph(v, 0);
    uint32_t bits = static_cast<uint32_t>(reinterpret_cast<I4>(halves)[0]);
    I4 nan = v != v;
    if (__builtin_expect(nan[0], 0)) bits = (bits & 0xffff0000u) | 0x7fffu;
    if (__builtin_expect(nan[1], 0)) bits = (bits & 0xffffu) | 0x7fff0000u;
    return bits;
}

static inline uint16_t f32_to_f16(float x) {
    F4 v = {x, 0, 0, 0};
    return static_cast<uint16_t>(floats_to_halves(v));
}
static inline float f16_to_f32(uint16_t h) { return halves_to_floats(h)[0]; }

// Rounding a float32 sum of two halves once more to a half is harmless: 24 >= 2 * 11 + 2.
static inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
    return floats_to_halves(halves_to_floats(a) + halves_to_floats(b));
}

// A float32 has the product of two halves whole; their sum is rounded to it and then to a half, which
// kernels use only where the result is a half anyway.
static inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    F4 x = halves_to_floats(a), y = halves_to_floats(b), z = halves_to_floats(c), d = {};
    for (int i = 0; i < 2; i++) d[i] = __builtin_fmaf(x[i], y[i], z[i]);
    return floats_to_halves(d);
}

static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (static_cast<uint64_t>(b) << 32) | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t nibble = selector >> (4 * i) & 15;
        uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        d |= byte << (8 * i);
    }
    return d;
}

// ---------------------------------------------------------------- tensor cores

// Of a product: HALVES, or bytes, unsigned but for these.
enum Operands : uint32_t { HALVES = 0, BYTES = 1, A_SIGNED = 2, B_SIGNED = 4 };

static inline uint32_t bytes_of(bool a_signed, bool b_signed) {
    return BYTES + (a_signed ? A_SIGNED : 0) + (b_signed ? B_SIGNED : 0);
}

struct Fragments {
    void* d;
    const uint32_t* a;
    const uint32_t* b;
    const void* c;
};

static inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                const float c[4]) {
    Fragments fragments = {d, a, b, c};
    warp_operation(MMA, 0xffffffffu, reinterpret_cast<uint64_t>(&fragments), HALVES);
}

static inline void mma_m16n8k32(int32_t d[4], const uint32_t a[4], const uint32_t b[2],
                                const int32_t c[4], bool a_signed, bool b_signed) {
    Fragments fragments = {d, a, b, c};
    warp_operation(MMA_BYTES, 0xffffffffu, reinterpret_cast<uint64_t>(&fragments),
                   bytes_of(a_signed, b_signed));
}

static inline void ldmatrix_x4(uint32_t d[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16) {
        fail(KSIM_MISALIGNED_ADDRESS, "ldmatrix_x4 from %p: rows are 16-byte aligned", row);
    }
    warp_operation(LDMATRIX, 0xffffffffu, reinterpret_cast<uint64_t>(d),
                   reinterpret_cast<uint64_t>(row));
}

static inline void ldmatrix_x4_trans(uint32_t d[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16) {
        fail(KSIM_MISALIGNED_ADDRESS, "ldmatrix_x4_trans from %p: rows are 16-byte aligned", row);
    }
    warp_operation(LDMATRIX_TRANS, 0xffffffffu, reinterpret_cast<uint64_t>(d),
                   reinterpret_cast<uint64_t>(row));
}

}  // namespace sim
