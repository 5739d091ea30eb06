// Device primitives. Each is one named inline function: PTX on a card, an exact host twin in the
// simulated driver (rust/ksim), which compiles the same kernels with g++. Only this file, warpgroup.cuh
// and the simulator's shim know which of the two they are in; a test greps the rest.
//
// A kernel is `KERNEL(name, Params) { ... p.field ... }`: one plain-data parameter struct, so that
// one description of a launch serves eager mode, capture, exec updates and the simulator.
#pragma once

#ifndef ONEGRAPH_SIM
// NVRTC has no <stdint.h>; these are glibc's types on x86-64, so overloads resolve alike.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

#define DEVICE static __device__ __forceinline__
#define PLAIN_KERNEL(name, Params) \
    extern "C" __global__ void name(const __grid_constant__ Params p)
#define PLAIN_KERNEL_BOUNDS(name, Params, threads, min_blocks)               \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks) name( \
        const __grid_constant__ Params p)
// Static shared memory: `SHARED float tile[32];` in a kernel's body, `alignas(16) SHARED ...` where
// vector accesses need it.
#define SHARED __shared__
// A table of numbers, in the card's memory: `TABLE uint16_t NAME[2] = {1, 2};`.
#define TABLE static __device__ const
#define ON_CARD(...) __VA_ARGS__
#define ON_HOST(...)
// NVRTC 12 knows no __builtin_offsetof; this is what its front end has for it.
#define OFFSET_OF(type, member) \
    ((unsigned long long)__INTADDR__(&(((type*)0)->member)))
#else
// DEVICE, PLAIN_KERNEL, PLAIN_KERNEL_BOUNDS, SHARED, TABLE and the integer types come from the shim,
// which is included before this file.
#define ON_CARD(...)
#define ON_HOST(...) __VA_ARGS__
#define OFFSET_OF(type, member) __builtin_offsetof(type, member)
#endif

#ifdef __CUDA_ARCH__
#define ARCH_AT_LEAST(cc) (__CUDA_ARCH__ >= (cc))
#else
#define ARCH_AT_LEAST(cc) 0
#endif

// In a build with STAMPS each block records time stamps: see stamps.cuh. The place for that
// comes behind the parameters.
#ifdef STAMPS
#define STAMPED(name, Params)                                   \
    struct name##_stamped {                                     \
        Params p;                                               \
        uint64_t* stamps;                                       \
    };                                                          \
    DEVICE void name##_body(const Params& p, uint64_t* stamps);
#define STAMPED_BODY(name, Params)           \
    {                                        \
        name##_body(p.p, p.stamps);          \
    }                                        \
    DEVICE void name##_body(const Params& p, uint64_t* stamps)
#define KERNEL(name, Params) \
    STAMPED(name, Params) PLAIN_KERNEL(name, name##_stamped) STAMPED_BODY(name, Params)
#define KERNEL_BOUNDS(name, Params, threads, min_blocks)                                          \
    STAMPED(name, Params)                                                                         \
    PLAIN_KERNEL_BOUNDS(name, name##_stamped, threads, min_blocks) STAMPED_BODY(name, Params)
#define STAMP(moment) stamp(stamps, moment)
#else
#define KERNEL(name, Params) PLAIN_KERNEL(name, Params)
// `threads`: most threads a block; `min_blocks`: blocks wanted on one SM, which caps registers.
#define KERNEL_BOUNDS(name, Params, threads, min_blocks) \
    PLAIN_KERNEL_BOUNDS(name, Params, threads, min_blocks)
#define STAMP(moment) ((void)0)
#endif

constexpr uint32_t FULL_WARP = 0xffffffffu;
constexpr float F16_MAX = 65504.0f;

// ---------------------------------------------------------------- bits

DEVICE uint32_t float_as_u32(float x) { return __float_as_uint(x); }
DEVICE float u32_as_float(uint32_t x) { return __uint_as_float(x); }
DEVICE float infinity_f32() { return __uint_as_float(0x7f800000u); }
DEVICE float nan_f32() { return __uint_as_float(0x7fc00000u); }

// PTX prmt: each nibble of `selector` picks a byte of {b, a}; its top bit replicates that byte's
// sign instead.
DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    ON_HOST(d = sim::prmt(a, b, selector);)
    ON_CARD(asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));)
    return d;
}

// ---------------------------------------------------------------- float32, never contracted

DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub_rn(float a, float b) { return __fadd_rn(a, -b); }
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float sqrt_rn(float a) { return __fsqrt_rn(a); }

// fma_rn held to 0..1; NaN becomes 0.
DEVICE float fma_sat(float a, float b, float c) {
    float d;
    ON_HOST(d = __fmaf_rn(a, b, c); d = d > 0.0f ? d < 1.0f ? d : 1.0f : 0.0f;)
    ON_CARD(asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));)
    return d;
}

// ---------------------------------------------------------------- float16, as bits

DEVICE uint16_t f32_to_f16(float x) {
    uint16_t h;
    ON_HOST(h = sim::f32_to_f16(x);)
    ON_CARD(asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));)
    return h;
}

DEVICE float f16_to_f32(uint16_t h) {
    float x;
    ON_HOST(x = sim::f16_to_f32(h);)
    ON_CARD(asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));)
    return x;
}

DEVICE uint32_t pack_f16x2(uint16_t low, uint16_t high) {
    return static_cast<uint32_t>(low) | (static_cast<uint32_t>(high) << 16);
}
DEVICE uint32_t f32x2_to_f16x2(float low, float high) {
    return pack_f16x2(f32_to_f16(low), f32_to_f16(high));
}
DEVICE float f16x2_low(uint32_t v) { return f16_to_f32(static_cast<uint16_t>(v)); }
DEVICE float f16x2_high(uint32_t v) { return f16_to_f32(static_cast<uint16_t>(v >> 16)); }
DEVICE float bf16_to_f32(uint16_t h) { return __uint_as_float(static_cast<uint32_t>(h) << 16); }

// a + b on two halves, one rounding each.
DEVICE uint32_t add_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    ON_HOST(d = sim::add_f16x2(a, b);)
    ON_CARD(asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));)
    return d;
}

// a * b + c on two halves, one rounding each.
DEVICE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    ON_HOST(d = sim::fma_f16x2(a, b, c);)
    ON_CARD(asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));)
    return d;
}

// ---------------------------------------------------------------- programmatic dependent launch

// Returns when the preceding kernel has completed and its writes are visible. Every thread that
// touches this step's data, and one thread of every block, calls it before any early return,
// write or dependent read: otherwise this grid may end before its predecessor and the next
// kernel's wait guards nothing. Before it only weights, norm weights and full old pages are read.
// Does nothing below compute capability 9.0, where kernels are not launched programmatically.
DEVICE void pdl_wait() {
    ON_HOST(sim::pdl_wait();)
#if ARCH_AT_LEAST(900)
    ON_CARD(asm volatile("griddepcontrol.wait;" ::: "memory");)
#endif
}

// Lets the next kernel of the stream start its part before pdl_wait().
DEVICE void pdl_trigger() {
    ON_HOST(sim::pdl_trigger();)
#if ARCH_AT_LEAST(900)
    ON_CARD(asm volatile("griddepcontrol.launch_dependents;" ::: "memory");)
#endif
}

// ---------------------------------------------------------------- global memory

// Keeps the compiler from moving memory accesses across it; no instruction.
DEVICE void compiler_fence() { asm volatile("" ::: "memory"); }

// v, of which the compiler knows no more than its type: a loop over it is not unrolled, whatever its
// body becomes part of.
DEVICE uint32_t opaque_u32(uint32_t v) {
    ON_CARD(asm volatile("" : "+r"(v));)
    return v;
}

// A pointer likewise: one to shared memory stays in a register, where the compiler would make it anew at
// each use.
template <typename T>
DEVICE T* opaque_pointer(T* p) {
    ON_CARD(asm volatile("" : "+l"(p));)
    return p;
}

// Loads of what an earlier kernel or another block wrote: never cached in L1, never moved across
// pdl_wait() or a barrier by the compiler.
#define LOAD_RELAXED(Value, name, Address, PTX, ...)                                              \
    DEVICE Value name(Address address) {                                                          \
        Value v;                                                                                  \
        ON_HOST(v = sim::load<Value>(address);)                                                   \
        ON_CARD(asm volatile("ld.relaxed.gpu.global" PTX : __VA_ARGS__ : "l"(address) : "memory");) \
        return v;                                                                                 \
    }
LOAD_RELAXED(uint32_t, load_relaxed_u32, const uint32_t*, ".u32 %0, [%1];", "=r"(v))
LOAD_RELAXED(uint64_t, load_relaxed_u64, const uint64_t*, ".u64 %0, [%1];", "=l"(v))
LOAD_RELAXED(uint2, load_relaxed_u32x2, const void*, ".v2.u32 {%0, %1}, [%2];", "=r"(v.x), "=r"(v.y))
LOAD_RELAXED(uint4, load_relaxed_u32x4, const void*, ".v4.u32 {%0, %1, %2, %3}, [%4];", "=r"(v.x),
             "=r"(v.y), "=r"(v.z), "=r"(v.w))
#undef LOAD_RELAXED

DEVICE float load_relaxed_f32(const float* address) {
    return __uint_as_float(load_relaxed_u32(reinterpret_cast<const uint32_t*>(address)));
}

DEVICE float4 load_relaxed_f32x4(const void* address) {
    uint4 v = load_relaxed_u32x4(address);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

// Loads of weights: read once a step, so they leave L1 alone. Volatile, so that a load written
// before pdl_wait() is issued before it. Only for memory that no kernel in flight writes.
DEVICE uint4 load_stream_u32x4(const void* address) {
    uint4 v;
    ON_HOST(v = sim::load<uint4>(address);)
    ON_CARD(asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));)
    return v;
}

// The host polls with an acquire load: all this thread wrote, or saw, before is visible first.
DEVICE void store_release_sys_u64(uint64_t* address, uint64_t value) {
    ON_HOST(sim::store_release<uint64_t>(address, value);)
    ON_CARD(asm volatile("st.release.sys.global.u64 [%0], %1;"
                         ::"l"(address), "l"(value) : "memory");)
}

// Stores to memory of another card: seen there behind a later store_release_sys_u64 of this thread, or of one
// that a barrier lies between.
DEVICE void store_away(float4* address, float4 value) {
    ON_HOST(sim::store_late(address, &value, sizeof value);)
    ON_CARD(*address = value;)
}
DEVICE void store_away(float* address, float value) {
    ON_HOST(sim::store_late(address, &value, sizeof value);)
    ON_CARD(*address = value;)
}

// Returns once another card has stored `value`, or more, and what it wrote before is visible; or once
// `abort`, a word of the host, is not zero.
DEVICE void wait_for_card(const uint64_t* flag, uint64_t value, const uint64_t* abort) {
    ON_HOST(sim::wait_for_peer(flag, value, abort);)
    ON_CARD(
        uint64_t seen;
        for (uint32_t looks = 1;; looks++) {
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
            if (seen >= value) break;
            if (looks % 1024) continue;
            asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(abort) : "memory");
            if (seen) break;
        })
}

// Raises the word to `value` if that is larger. The host reads it after a later kernel has reported, and
// clears it when no kernel that may write it runs.
DEVICE void raise_to_u64(uint64_t* address, uint64_t value) {
    ON_HOST(sim::atomic_max(address, value);)
    ON_CARD(asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;"
                         ::"l"(address), "l"(value) : "memory");)
}

// Reports to the host a number of `most`, the bits of its magnitude, at a position of a sequence whose word
// this is; `is_input`: of the input of the op `number`, else of what it stores. Of several reports the
// first position's stays, of these the first op's, of these its input's.
DEVICE void report(uint64_t* word, uint32_t position, uint32_t number, bool is_input, uint32_t most) {
    const uint32_t op = (0xffffu - number) << 16 | (is_input ? 0x8000u : 0) | most >> 16;
    const uint64_t value = static_cast<uint64_t>(~position) << 32 | op;
    if (load_relaxed_u64(word) < value) raise_to_u64(word, value);
}

// Takes a ticket and returns its number: 0..last, then 0 again, so the counter resets itself. The
// block that draws `last` sees what the other ticket holders wrote before theirs; a block calls
// it from one thread, after a barrier.
DEVICE uint32_t atomic_inc_acq_rel_wrap(uint32_t* address, uint32_t last) {
    uint32_t old;
    ON_HOST(old = sim::atomic_inc_wrap(address, last);)
    ON_CARD(asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                         : "=r"(old) : "l"(address), "r"(last) : "memory");)
    return old;
}

// ---------------------------------------------------------------- asynchronous copies to shared

// Address of shared memory as the PTX instructions want it.
ON_CARD(DEVICE uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
})

// An address in shared memory that arithmetic stays cheap on.
ON_CARD(using SharedAddress = uint32_t;)
ON_HOST(using SharedAddress = uint8_t*;)
DEVICE SharedAddress to_shared_address(void* shared) {
    ON_HOST(return static_cast<uint8_t*>(shared);)
    ON_CARD(return shared_address(shared);)
}

// 16 aligned bytes; visible to this thread after cp_async_wait, to others after a barrier too.
// Below compute capability 8.0 the copy happens at once.
DEVICE void cp_async_16(SharedAddress shared, const void* global) {
    ON_HOST(sim::cp_async(shared, global, 16, 16);)
#if ARCH_AT_LEAST(800)
    ON_CARD(asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         ::"r"(shared), "l"(global) : "memory");)
#else
    ON_CARD(uint4 v = load_relaxed_u32x4(global);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                         ::"r"(shared), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");)
#endif
}
DEVICE void cp_async_16(void* shared, const void* global) {
    cp_async_16(to_shared_address(shared), global);
}

// Asks for the 128 bytes around `at` to be near by the time that they are read.
DEVICE void prefetch_l2([[maybe_unused]] const void* at) {
    ON_CARD(asm volatile("prefetch.global.L2 [%0];" ::"l"(at));)
}

DEVICE void cp_async_commit() {
    ON_HOST(sim::cp_async_commit();)
#if ARCH_AT_LEAST(800)
    ON_CARD(asm volatile("cp.async.commit_group;" ::: "memory");)
#endif
}

// Waits until at most `pending` of this thread's newest groups are under way.
template <int pending>
DEVICE void cp_async_wait() {
    ON_HOST(sim::cp_async_wait(pending);)
#if ARCH_AT_LEAST(800)
    ON_CARD(asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");)
#endif
}

// Bulk copies, from compute capability 9.0 on: one thread copies kilobytes, and others wait for them at a
// barrier in shared memory, `uint64_t`, which counts arrivals and bytes. A barrier's phases
// are numbered 0, 1, 0, ... `barrier_wait` returns once the phase of that number has ended.
constexpr bool HAS_BULK_COPIES = ARCH_AT_LEAST(900);

DEVICE void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    ON_HOST(sim::barrier_init(barrier, arrivals);)
    ON_CARD(asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                         ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");)
}

// Behind all barrier_init, before a barrier of the block.
DEVICE void barrier_init_fence() {
    ON_CARD(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");)
}

// One arrival that promises `bytes` of copies.
DEVICE void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    ON_HOST(sim::barrier_expect(barrier, bytes);)
    ON_CARD(asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                         ::"r"(shared_address(barrier)), "r"(bytes) : "memory");)
}

DEVICE void barrier_arrive(uint64_t* barrier) {
    ON_HOST(sim::barrier_arrive(barrier);)
    ON_CARD(asm volatile("mbarrier.arrive.shared.b64 _, [%0];"
                         ::"r"(shared_address(barrier)) : "memory");)
}

DEVICE void barrier_wait(uint64_t* barrier, uint32_t phase) {
    ON_HOST(sim::barrier_wait(barrier, phase);)
    ON_CARD(
        uint32_t ended;
        do {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
                "selp.u32 %0, 1, 0, p; }"
                : "=r"(ended) : "r"(shared_address(barrier)), "r"(phase) : "memory");
        } while (!ended);)
}

// Whether `barrier_wait` would return at once: asked early, so that the answer is there when it is needed.
DEVICE bool barrier_ended(uint64_t* barrier, uint32_t phase) {
    uint32_t ended;
    ON_HOST(ended = sim::barrier_ended(barrier, phase);)
    ON_CARD(asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(ended) : "r"(shared_address(barrier)), "r"(phase) : "memory");)
    return ended;
}

// Addresses and `bytes` are multiples of 16.
DEVICE void bulk_copy(SharedAddress shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    ON_HOST(sim::bulk_copy(shared, global, bytes, barrier);)
    ON_CARD(asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(shared), "l"(global), "r"(bytes), "r"(shared_address(barrier)) : "memory");)
}

// The same of data that is not read again soon: L2 evicts it first and keeps what is read again.
DEVICE void bulk_copy_once(SharedAddress shared, const void* global, uint32_t bytes,
                           uint64_t* barrier) {
    ON_HOST(sim::bulk_copy(shared, global, bytes, barrier);)
    ON_CARD(
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;"
            ::"r"(shared), "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
            : "memory");)
}

// ---------------------------------------------------------------- clusters

// From compute capability 9.0 on blocks may be launched in clusters, which are in flight together and
// write to each other's dynamic shared memory.
constexpr bool HAS_CLUSTERS = ARCH_AT_LEAST(900);

// The block's number in its cluster.
DEVICE uint32_t cluster_rank() {
    uint32_t rank;
    ON_HOST(rank = sim::cluster_rank();)
    ON_CARD(asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));)
    return rank;
}

// The barrier of a cluster, for all of its threads: what was written before the one is there behind the
// other. Before it writes to another block a thread waits for a first one,
// behind which that block has begun.
DEVICE void cluster_arrive() {
    ON_HOST(sim::cluster_arrive();)
    ON_CARD(asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");)
}

// The same for a thread that has written nothing for others.
DEVICE void cluster_arrive_relaxed() {
    ON_HOST(sim::cluster_arrive();)
    ON_CARD(asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");)
}

DEVICE void cluster_wait() {
    ON_HOST(sim::cluster_wait();)
    ON_CARD(asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");)
}

// Writes to the place that `at`, in the block's dynamic shared memory, has in that of block `rank`, where
// `barrier` has its place too and counts the bytes: there once the phase that expects them has ended.
#if ARCH_AT_LEAST(900)
#define ON_CLUSTERS(...) ON_CARD(__VA_ARGS__)
#else
#define ON_CLUSTERS(...)
#endif
#define STORE_ASYNC(Value, PTX, ...)                                                              \
    DEVICE void store_async([[maybe_unused]] void* at, [[maybe_unused]] uint32_t rank,            \
                            [[maybe_unused]] Value v, [[maybe_unused]] uint64_t* barrier) {       \
        ON_HOST(sim::store_async(at, rank, &v, sizeof(v), barrier);)                              \
        ON_CLUSTERS(asm volatile(                                                                 \
            "{ .reg .u32 to, of; mapa.shared::cluster.u32 to, %0, %2; "                           \
            "mapa.shared::cluster.u32 of, %1, %2; "                                               \
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes" PTX ", [of]; }"          \
            ::"r"(shared_address(at)), "r"(shared_address(barrier)), "r"(rank), __VA_ARGS__       \
            : "memory");)                                                                         \
    }
STORE_ASYNC(float, ".f32 [to], %3", "f"(v))
STORE_ASYNC(float2, ".v2.f32 [to], {%3, %4}", "f"(v.x), "f"(v.y))
STORE_ASYNC(float4, ".v4.f32 [to], {%3, %4, %5, %6}", "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w))
#undef STORE_ASYNC
#undef ON_CLUSTERS

// ---------------------------------------------------------------- tensor cores

// d = a*b + c for A [16][16] row-major, B [16][8] column-major, C and D [16][8] float32. With
// g = lane/4, t = lane%4, each lane holds (low half first)
//   a[0] = A[g][2t,2t+1]    a[1] = A[g+8][2t,2t+1]  a[2] = A[g][2t+8,+9]  a[3] = A[g+8][2t+8,+9]
//   b[0] = B[2t,2t+1][g]    b[1] = B[2t+8,+9][g]
//   c, d: [0] = [g][2t]  [1] = [g][2t+1]  [2] = [g+8][2t]  [3] = [g+8][2t+1]
// The card adds the products of one instruction to c in fixed point and truncates; the twin adds
// them one by one, k ascending, rounding to nearest. So their bits differ, within the same bound; of
// integers whose sums stay below 2^24 both are exact (exact_sums.cu asks the card).
DEVICE void mma_m16n8k16_f16_f32(float d[4], const uint32_t a[4], const uint32_t b[2],
                                 const float c[4]) {
    ON_HOST(sim::mma_m16n8k16(d, a, b, c);)
#if ARCH_AT_LEAST(800)
    ON_CARD(asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
          "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));)
#else
    ON_CARD(
        float half_sum[4];
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
            : "=f"(half_sum[0]), "=f"(half_sum[1]), "=f"(half_sum[2]), "=f"(half_sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[2]), "r"(a[3]), "r"(b[1]),
              "f"(half_sum[0]), "f"(half_sum[1]), "f"(half_sum[2]), "f"(half_sum[3]));)
#endif
}

// d = a*b + c for A [16][32] row-major and B [32][8] column-major of bytes, C and D of 32-bit integers:
// exact, sums wrap around. With g and t as above each lane holds, the lowest byte first,
//   a[0] = A[g][4t..4t+3]  a[1] = A[g+8][4t..]  a[2] = A[g][4t+16..]  a[3] = A[g+8][4t+16..]
//   b[0] = B[4t..4t+3][g]  b[1] = B[4t+16..][g];  c, d as above
#if !ARCH_AT_LEAST(800)
#define MMA_8(TYPES, i, j, k)                                                                        \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." TYPES ".s32 {%0, %1}, {%2}, {%3}, {%4, %5};" \
                 : "=r"(sums[i]), "=r"(sums[i + 1])                                                  \
                 : "r"(a[j]), "r"(b[k]), "r"(sums[i]), "r"(sums[i + 1]))
#define MMA_BYTES(TYPES)                                                    \
    int32_t sums[4] = {c[0], c[1], c[2], c[3]};                             \
    MMA_8(TYPES, 0, 0, 0);                                                  \
    MMA_8(TYPES, 2, 1, 0);                                                  \
    MMA_8(TYPES, 0, 2, 1);                                                  \
    MMA_8(TYPES, 2, 3, 1);                                                  \
    d[0] = sums[0], d[1] = sums[1], d[2] = sums[2], d[3] = sums[3];
#else
#define MMA_BYTES(TYPES)                                                               \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." TYPES                        \
                 ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),   \
                   "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#endif
template <bool a_signed, bool b_signed>
DEVICE void mma_m16n8k32_s32(int32_t d[4], const uint32_t a[4], const uint32_t b[2],
                             const int32_t c[4]) {
    ON_HOST(sim::mma_m16n8k32(d, a, b, c, a_signed, b_signed);)
    ON_CARD(
        if constexpr (a_signed && b_signed) {
            MMA_BYTES("s8.s8")
        } else if constexpr (a_signed) {
            MMA_BYTES("s8.u8")
        } else if constexpr (b_signed) {
            MMA_BYTES("u8.s8")
        } else {
            MMA_BYTES("u8.u8")
        })
}
#undef MMA_BYTES
#undef MMA_8

// Four 8x8 matrices of 16-bit values from shared memory: lane 8j+i gives the address of row i of
// matrix j (16 aligned bytes); d[j] receives row lane/4, columns 2*(lane%4) and +1 of matrix j.
DEVICE void ldmatrix_x4(uint32_t d[4], const void* shared_row) {
    ON_HOST(sim::ldmatrix_x4(d, shared_row);)
    ON_CARD(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                         : "r"(shared_address(shared_row)) : "memory");)
}

// The same of the matrices' transposes: d[j] receives rows 2*(lane%4) and +1 of column lane/4.
DEVICE void ldmatrix_x4_trans(uint32_t d[4], const void* shared_row) {
    ON_HOST(sim::ldmatrix_x4_trans(d, shared_row);)
    ON_CARD(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                         : "r"(shared_address(shared_row)) : "memory");)
}

// ---------------------------------------------------------------- reductions

#define ACROSS_WARP(...) \
    _Pragma("unroll") for (uint32_t distance = 16; distance != 0; distance /= 2) { __VA_ARGS__ }

// Sum over the warp in every lane. The order is part of the definition: lanes at distance 16 are
// added first, then 8, 4, 2, 1; addition commutes, so all lanes hold the same bits.
DEVICE float warp_sum_f32(float v) {
    ON_HOST(v = sim::warp_sum_f32(v);)
    ON_CARD(ACROSS_WARP(v = __fadd_rn(v, __shfl_xor_sync(FULL_WARP, v, distance));))
    return v;
}

DEVICE float warp_max_f32(float v) {
    ON_HOST(v = sim::warp_max_f32(v);)
    ON_CARD(ACROSS_WARP(v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, distance));))
    return v;
}

// The largest of the warp, in every lane.
DEVICE uint32_t warp_max_u32(uint32_t v) {
    ON_HOST(v = __reduce_max_sync(FULL_WARP, v);)
#if ARCH_AT_LEAST(800)
    ON_CARD(v = __reduce_max_sync(FULL_WARP, v);)
#else
    ON_CARD(ACROSS_WARP(const uint32_t other = __shfl_xor_sync(FULL_WARP, v, distance);
                        v = v > other ? v : other;))
#endif
    return v;
}

// The launch's dynamic shared memory, 128-byte aligned.
#ifndef ONEGRAPH_SIM
extern __shared__ __align__(128) unsigned char onegraph_dynamic_shared[];
#endif
template <typename T>
DEVICE T* dynamic_shared() {
    ON_HOST(return static_cast<T*>(sim::dynamic_shared());)
    ON_CARD(return reinterpret_cast<T*>(onegraph_dynamic_shared);)
}

// ---------------------------------------------------------------- time

// Nanoseconds; on the card in steps of its own.
DEVICE uint64_t global_timer() {
    uint64_t ns;
    ON_HOST(ns = sim::global_timer();)
    ON_CARD(asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");)
    return ns;
}

// What the blocks of a successor take to find their places, at most. (On an H100 600, 1,200 and 2,400 make
// 1,731, 1,683 and 1,702 us a step of Qwen3-30B-A3B, 1,828, 1,809 and 1,812 of Qwen3.5-35B-A3B, 1,983, 1,986
// and 1,988 of an 8B.)
constexpr uint32_t PLACING_NS = 1200;

// Returns after so many nanoseconds.
DEVICE void linger([[maybe_unused]] uint32_t ns) {
    ON_CARD(const uint64_t start = global_timer(); while (global_timer() - start < ns) {})
}

// The number of the SM.
DEVICE uint32_t sm_id() {
    uint32_t sm = 0;
    ON_CARD(asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));)
    return sm;
}

// In a delay-injection build (ONEGRAPH_DELAY_SEED defined) one block in eight, another set at each
// launch, sleeps `ns` here; put it before a kernel's stores. A correct step's bits do not change.
DEVICE void delay_block([[maybe_unused]] uint32_t ns = 20000) {
#ifdef ONEGRAPH_DELAY_SEED
    uint64_t start = global_timer();
    uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint32_t hash = (block + ONEGRAPH_DELAY_SEED + static_cast<uint32_t>(start >> 12)) * 2654435761u;
    if ((hash >> 29) == 0) { ON_CARD(while (global_timer() - start < ns) {}) }
#endif
}

#undef ACROSS_WARP
#undef ON_CARD
#undef ON_HOST

#ifdef STAMPS
#include "stamps.cuh"
#endif
