// CUDA's built-in functions.
#pragma once

// ---------------------------------------------------------------- block and warp

static inline void __syncthreads(int line = __builtin_LINE()) {
    sim::meet(false, line);
}
static inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    return static_cast<int>(sim::meet(predicate != 0, line));
}
static inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
    return __syncthreads_count(predicate, line) != 0;
}
static inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
    return __syncthreads_count(predicate, line) == static_cast<int>(sim::block->threads);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    sim::warp_operation(sim::SYNC, mask, 0, 0);
}
// The lanes that may have met: with one fiber running at a time, only the caller is sure.
static inline unsigned __activemask() { return 1u << (sim::self->linear % 32); }

namespace sim {
template <typename T>
static inline uint64_t to_bits(T v) {
    static_assert(sizeof(T) <= 8, "warp operations carry at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof(T));
    return bits;
}
template <typename T>
static inline T from_bits(uint64_t bits) {
    T v;
    memcpy(&v, &bits, sizeof(T));
    return v;
}
template <typename T>
static inline T shuffle(uint32_t kind, unsigned mask, T v, uint32_t by, int width) {
    if (width <= 0 || width > 32 || (width & (width - 1))) {
        fail(KSIM_LAUNCH_FAILED, "%s: width %d is no power of two up to 32", name_of(kind), width);
    }
    uint64_t operand = (by > 0xff ? 0xff : by) | (static_cast<uint64_t>(width) << 8);
    return from_bits<T>(warp_operation(kind, mask, to_bits(v), operand));
}
}  // namespace sim

template <typename T>
static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    return sim::shuffle(sim::SHUFFLE, mask, v, static_cast<uint32_t>(lane) & 31, width);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return sim::shuffle(sim::SHUFFLE_UP, mask, v, by, width);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return sim::shuffle(sim::SHUFFLE_DOWN, mask, v, by, width);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
    return sim::shuffle(sim::SHUFFLE_XOR, mask, v, static_cast<uint32_t>(lanes), width);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(sim::warp_operation(sim::BALLOT, mask, predicate != 0, 0));
}
static inline int __any_sync(unsigned mask, int predicate) {
    return static_cast<int>(sim::warp_operation(sim::ANY, mask, predicate != 0, 0));
}
static inline int __all_sync(unsigned mask, int predicate) {
    return static_cast<int>(sim::warp_operation(sim::ALL, mask, predicate != 0, 0));
}
template <typename T>
static inline unsigned __match_any_sync(unsigned mask, T v) {
    return static_cast<unsigned>(sim::warp_operation(sim::MATCH_ANY, mask, sim::to_bits(v), 0));
}
template <typename T>
static inline unsigned __match_all_sync(unsigned mask, T v, int* all) {
    unsigned met =
        static_cast<unsigned>(sim::warp_operation(sim::MATCH_ALL, mask, sim::to_bits(v), 0));
    *all = met != 0;
    return met;
}

#define KSIM_REDUCE(name, T, kind)                                                         \
    static inline T name(unsigned mask, T v) {                                             \
        return static_cast<T>(sim::warp_operation(kind, mask, static_cast<unsigned>(v), 0)); \
    }
KSIM_REDUCE(__reduce_add_sync, unsigned, sim::REDUCE_ADD)
KSIM_REDUCE(__reduce_add_sync, int, sim::REDUCE_ADD)
KSIM_REDUCE(__reduce_min_sync, unsigned, sim::REDUCE_MIN)
KSIM_REDUCE(__reduce_min_sync, int, sim::REDUCE_MIN_SIGNED)
KSIM_REDUCE(__reduce_max_sync, unsigned, sim::REDUCE_MAX)
KSIM_REDUCE(__reduce_max_sync, int, sim::REDUCE_MAX_SIGNED)
KSIM_REDUCE(__reduce_and_sync, unsigned, sim::REDUCE_AND)
KSIM_REDUCE(__reduce_or_sync, unsigned, sim::REDUCE_OR)
KSIM_REDUCE(__reduce_xor_sync, unsigned, sim::REDUCE_XOR)

// ---------------------------------------------------------------- bits

static inline unsigned __float_as_uint(float x) { return sim::float_to_bits(x); }
static inline int __float_as_int(float x) { return static_cast<int>(sim::float_to_bits(x)); }
static inline float __uint_as_float(unsigned x) { return sim::bits_to_float(x); }
static inline float __int_as_float(int x) { return sim::bits_to_float(static_cast<unsigned>(x)); }
static inline long long __double_as_longlong(double x) { return sim::from_bits<long long>(sim::to_bits(x)); }
static inline double __longlong_as_double(long long x) { return sim::from_bits<double>(sim::to_bits(x)); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x) {
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    return sim::prmt(a, b, selector & 0x7777u);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
static inline int __mulhi(int a, int b) {
    return static_cast<int>((static_cast<int64_t>(a) * b) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    uint64_t both = (static_cast<uint64_t>(high) << 32) | low;
    return static_cast<unsigned>(both << (by & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    uint64_t both = (static_cast<uint64_t>(high) << 32) | low;
    return static_cast<unsigned>(both >> (by & 31));
}

// ---------------------------------------------------------------- arithmetic

static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __frsqrt_rn(float a) {
    return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a)));
}
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
// The card's own are within 2 ulp of these. glibc has the names with two underscores taken.
static inline float rsqrtf(float a) { return __frsqrt_rn(a); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
static inline void sincospif(float x, float* s, float* c) {
    double angle = 3.14159265358979323846 * static_cast<double>(x);
    *s = static_cast<float>(sin(angle)), *c = static_cast<float>(cos(angle));
}

// To the nearest, to zero, down and up; out of range saturates and NaN is 0, as on the card.
namespace sim {
template <typename T>
static inline T to_integer(double x, double low, double high, T most) {
    if (!(x == x)) return 0;
    return x <= low ? static_cast<T>(low) : x >= high ? most : static_cast<T>(x);
}
static inline int to_int(double x) {
    return to_integer<int>(x, -2147483648.0, 2147483647.0, 2147483647);
}
static inline unsigned to_uint(double x) {
    return to_integer<unsigned>(x, 0.0, 4294967295.0, 4294967295u);
}
}  // namespace sim
static inline int __float2int_rn(float x) { return sim::to_int(nearbyint(static_cast<double>(x))); }
static inline int __float2int_rz(float x) { return sim::to_int(trunc(static_cast<double>(x))); }
static inline int __float2int_rd(float x) { return sim::to_int(floor(static_cast<double>(x))); }
static inline int __float2int_ru(float x) { return sim::to_int(ceil(static_cast<double>(x))); }
static inline unsigned __float2uint_rn(float x) {
    return sim::to_uint(nearbyint(static_cast<double>(x)));
}
static inline unsigned __float2uint_rz(float x) {
    return sim::to_uint(trunc(static_cast<double>(x)));
}
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

#define KSIM_MIN_MAX(T)                                        \
    static inline T min(T a, T b) { return a < b ? a : b; }    \
    static inline T max(T a, T b) { return a > b ? a : b; }
KSIM_MIN_MAX(int)
KSIM_MIN_MAX(unsigned)
KSIM_MIN_MAX(long)
KSIM_MIN_MAX(unsigned long)
KSIM_MIN_MAX(long long)
KSIM_MIN_MAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    }
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
    return c;
}

// ---------------------------------------------------------------- memory

template <typename T>
static inline T __ldg(const T* address) {
    sim::note_read(address, sizeof(T));
    return *address;
}
template <typename T>
static inline T __ldcg(const T* address) {
    sim::note_read(address, sizeof(T));
    return *address;
}
template <typename T>
static inline T __ldcs(const T* address) {
    sim::note_read(address, sizeof(T));
    return *address;
}
static inline void __threadfence_block() { asm volatile("" ::: "memory"); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// One fiber runs at a time, and the host has no business in these words meanwhile.
#define KSIM_ATOMIC(name, T, expression)             \
    static inline T name(T* address, T value) {      \
        T old = *address;                            \
        *address = (expression);                     \
        return old;                                  \
    }
#define KSIM_ATOMIC_INTEGERS(name, expression)       \
    KSIM_ATOMIC(name, int, expression)               \
    KSIM_ATOMIC(name, unsigned, expression)          \
    KSIM_ATOMIC(name, unsigned long long, expression) \
    KSIM_ATOMIC(name, unsigned long, expression)
KSIM_ATOMIC_INTEGERS(atomicAdd, old + value)
KSIM_ATOMIC_INTEGERS(atomicSub, old - value)
KSIM_ATOMIC_INTEGERS(atomicExch, value)
KSIM_ATOMIC_INTEGERS(atomicMin, old < value ? old : value)
KSIM_ATOMIC_INTEGERS(atomicMax, old > value ? old : value)
KSIM_ATOMIC_INTEGERS(atomicAnd, old & value)
KSIM_ATOMIC_INTEGERS(atomicOr, old | value)
KSIM_ATOMIC_INTEGERS(atomicXor, old ^ value)
KSIM_ATOMIC(atomicAdd, float, old + value)
KSIM_ATOMIC(atomicAdd, double, old + value)
KSIM_ATOMIC(atomicExch, float, value)
KSIM_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
KSIM_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

#define KSIM_ATOMIC_CAS(T)                                          \
    static inline T atomicCAS(T* address, T expected, T value) {    \
        T old = *address;                                           \
        if (old == expected) *address = value;                      \
        return old;                                                 \
    }
KSIM_ATOMIC_CAS(int)
KSIM_ATOMIC_CAS(unsigned)
KSIM_ATOMIC_CAS(unsigned long)
KSIM_ATOMIC_CAS(unsigned long long)

// ---------------------------------------------------------------- the rest

static inline long long clock64() { return static_cast<long long>(sim::global_timer()); }
static inline void __nanosleep(unsigned) {}
[[noreturn]] static inline void __trap() { sim::fail(KSIM_LAUNCH_FAILED, "%s", "__trap()"); }
#undef assert
#define assert(condition)                                                              \
    ((condition) ? (void)0                                                             \
                 : sim::fail(KSIM_ASSERT, "assertion failed in line %d: %s", __LINE__, \
                             #condition))
