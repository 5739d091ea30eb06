// Loads, stores and asynchronous copies. A copy happens as late as its wait allows, and its target
// is poisoned until then, so that reading it early, or overwriting its source, shows.
#pragma once

namespace sim {

static inline void* dynamic_shared() { return launch->dynamic_shared[block->slot]; }

static inline bool in_dynamic(const Block* b, const void* address, size_t bytes) {
    const char* at = static_cast<const char*>(address);
    const char* dynamic = launch->dynamic_shared[b->slot];
    return at >= dynamic && at + bytes <= dynamic + launch->dynamic_shared_bytes;
}

static inline bool in_shared(const void* address, size_t bytes) {
    const char* at = static_cast<const char*>(address);
    return in_dynamic(block, address, bytes) ||
           (at >= __start_ksim_shared && at + bytes <= __stop_ksim_shared);
}

static inline void check_shared(const char* what, const void* address, size_t bytes) {
    if (!in_shared(address, bytes)) {
        fail(KSIM_ILLEGAL_ADDRESS, "%s: %zu bytes at %p are not shared memory of this block", what,
             bytes, address);
    }
}

// Of what instructions of global memory take.
static inline void check_global(const char* what, const void* address, size_t bytes) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % bytes, 0)) {
        fail(KSIM_MISALIGNED_ADDRESS, "%s of %zu bytes, at %p", what, bytes, address);
    }
    if (__builtin_expect(in_shared(address, 1), 0)) {
        fail(KSIM_INVALID_ADDRESS_SPACE, "%s of %zu bytes of global memory, at %p: shared memory",
             what, bytes, address);
    }
}

template <typename T>
static inline T load(const void* address) {
    check_global("a load", address, sizeof(T));
    note_read(address, sizeof(T));
    return *static_cast<const volatile T*>(address);
}

#define KSIM_LOAD_PARTS(T, ...)                     \
    template <>                                     \
    inline T load<T>(const void* address) {         \
        check_global("a load", address, sizeof(T)); \
        note_read(address, sizeof(T));              \
        T v;                                        \
        asm volatile("" ::: "memory");              \
        v = *static_cast<const T*>(address);        \
        return v;                                   \
    }
KSIM_LOAD_PARTS(uint2)
KSIM_LOAD_PARTS(uint4)

// Stores of a block to another device, which come when a thread of the block next stores with release, or
// else when the block ends.
void store_late(void* address, const void* value, uint32_t bytes);
void deliver();

template <typename T>
static inline void store_release(T* address, T value) {
    check_global("a store", address, sizeof(T));
    deliver();
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
    ++*launch->released;
}

static inline uint32_t atomic_inc_wrap(uint32_t* address, uint32_t last) {
    check_global("an atomic increment", address, 4);
    uint32_t old = *address;
    *address = old >= last ? 0 : old + 1;
    return old;
}

static inline void atomic_max(uint64_t* address, uint64_t value) {
    check_global("an atomic maximum", address, 8);
    if (*address < value) __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

// ---------------------------------------------------------------- cp.async

void cp_async(void* shared, const void* global, uint32_t bytes, uint32_t read);

static inline void cp_async_commit() { self->copy_group++; }

void cp_async_wait(uint32_t pending);

// ---------------------------------------------------------------- bulk copies and their barriers

void barrier_init(uint64_t* barrier, uint32_t arrivals);

void barrier_expect(uint64_t* barrier, uint32_t bytes);

static inline void barrier_arrive(uint64_t* barrier) { barrier_expect(barrier, 0); }

void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier);

// Stores `bytes` at the place that `at`, in this block's dynamic shared memory, has in that of block
// `rank`, where `barrier` has its place too and counts them.
void store_async(void* at, uint32_t rank, const void* value, uint32_t bytes, uint64_t* barrier);

bool barrier_ended(uint64_t* barrier, uint32_t number);

void barrier_wait(uint64_t* barrier, uint32_t number);

static inline uint64_t global_timer() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace sim
