// Loads, stores and asynchronous copies. A copy happens as late as its wait allows, and its target
// is poisoned until then, so that reading it early, or overwriting its source, shows.
#pragma once

namespace sim {

template <typename T>
static inline T load(const void* address) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % sizeof(T), 0)) {
        fail(KSIM_MISALIGNED_ADDRESS, "a load of %zu bytes from %p", sizeof(T), address);
    }
    return *static_cast<const volatile T*>(address);
}

#define KSIM_LOAD_PARTS(T, ...)                                                            \
    template <>                                                                            \
    inline T load<T>(const void* address) {                                                \
        if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % sizeof(T), 0)) {       \
            fail(KSIM_MISALIGNED_ADDRESS, "a load of %zu bytes from %p", sizeof(T), address); \
        }                                                                                  \
        T v;                                                                               \
        asm volatile("" ::: "memory");                                                     \
        v = *static_cast<const T*>(address);                                               \
        return v;                                                                          \
    }
KSIM_LOAD_PARTS(uint2)
KSIM_LOAD_PARTS(uint4)

template <typename T>
static inline void store_release(T* address, T value) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) % sizeof(T), 0)) {
        fail(KSIM_MISALIGNED_ADDRESS, "a store of %zu bytes to %p", sizeof(T),
             static_cast<void*>(address));
    }
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

static inline uint32_t atomic_inc_wrap(uint32_t* address, uint32_t last) {
    uint32_t old = *address;
    *address = old >= last ? 0 : old + 1;
    return old;
}

static inline void* dynamic_shared() { return launch->dynamic_shared[block->slot]; }

static inline bool in_shared(const void* address, size_t bytes) {
    const char* at = static_cast<const char*>(address);
    const char* dynamic = launch->dynamic_shared[block->slot];
    return (at >= dynamic && at + bytes <= dynamic + launch->dynamic_shared_bytes) ||
           (at >= __start_ksim_shared && at + bytes <= __stop_ksim_shared);
}

static inline void check_shared(const char* what, const void* address, size_t bytes) {
    if (!in_shared(address, bytes)) {
        fail(KSIM_ILLEGAL_ADDRESS, "%s: %zu bytes at %p are not shared memory of this block", what,
             bytes, address);
    }
}

// ---------------------------------------------------------------- cp.async

struct AsyncCopy {
    void* shared;
    const void* global;
    uint32_t bytes;
    uint32_t read;
    uint32_t group;
};

static void cp_async(void* shared, const void* global, uint32_t bytes, uint32_t read) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes) {
        fail(KSIM_MISALIGNED_ADDRESS, "cp_async of %u bytes from %p to %p", bytes, global, shared);
    }
    if (read > bytes) fail(KSIM_LAUNCH_FAILED, "cp_async reads %u of %u bytes", read, bytes);
    check_shared("cp_async", shared, bytes);
    if (self->copy_count == self->copy_room) {
        self->copy_room = self->copy_room ? self->copy_room * 2 : 16;
        self->copies =
            static_cast<AsyncCopy*>(realloc(self->copies, self->copy_room * sizeof(AsyncCopy)));
    }
    self->copies[self->copy_count++] = {shared, global, bytes, read, self->copy_group};
    memset(shared, 0xff, bytes);
}

static inline void cp_async_commit() { self->copy_group++; }

// Does the copies of all groups before `before_group`.
static void finish_copies(Fiber& fiber, uint32_t before_group) {
    uint32_t done = 0;
    while (done < fiber.copy_count && fiber.copies[done].group < before_group) {
        const AsyncCopy& copy = fiber.copies[done++];
        memcpy(copy.shared, copy.global, copy.read);
        memset(static_cast<char*>(copy.shared) + copy.read, 0, copy.bytes - copy.read);
    }
    if (done == 0) return;
    fiber.copy_count -= done;
    memmove(fiber.copies, fiber.copies + done, fiber.copy_count * sizeof(AsyncCopy));
}

static inline void cp_async_wait(uint32_t pending) {
    finish_copies(*self, self->copy_group > pending ? self->copy_group - pending : 0);
}

// ---------------------------------------------------------------- mbarriers and bulk copies

static uint64_t mbarrier_stepped(uint64_t word, uint32_t arrivals, int32_t bytes) {
    uint32_t count = static_cast<uint32_t>(word) & 0xffffu;
    uint32_t due = static_cast<uint32_t>(word >> 16) & 0xffffu;
    uint32_t high = static_cast<uint32_t>(word >> 32);
    uint32_t phase = high >> 31;
    if (arrivals > due) fail(KSIM_LAUNCH_FAILED, "more than %u arrivals at an mbarrier", count);
    due -= arrivals;
    uint32_t tx = (high + static_cast<uint32_t>(bytes)) & 0x7fffffffu;
    if (due == 0 && tx == 0) {
        phase ^= 1;
        due = count;
    }
    return (static_cast<uint64_t>((phase << 31) | tx) << 32) | (due << 16) | count;
}

static inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    check_shared("mbarrier_init", barrier, 8);
    if (arrivals == 0 || arrivals > 0xffff) {
        fail(KSIM_LAUNCH_FAILED, "mbarrier_init with %u arrivals", arrivals);
    }
    *barrier = arrivals | (arrivals << 16);
}

static inline void mbarrier_apply(uint64_t* barrier, uint32_t arrivals, int32_t bytes) {
    if (*barrier == 0xffffffffffffffffull) {
        fail(KSIM_LAUNCH_FAILED, "an mbarrier at %p is used before mbarrier_init",
             static_cast<void*>(barrier));
    }
    *barrier = mbarrier_stepped(*barrier, arrivals, bytes);
}

static inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    if (*barrier == 0xffffffffffffffffull) {
        fail(KSIM_LAUNCH_FAILED, "an mbarrier at %p is used before mbarrier_init",
             static_cast<void*>(barrier));
    }
    volatile uint64_t* word = barrier;
    while ((*word >> 63) == parity) {
        self->mbarrier = word;
        self->parity = parity;
        wait_as(AT_MBARRIER);
    }
}

static void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16) {
        fail(KSIM_MISALIGNED_ADDRESS,
             "bulk_copy_to_shared of %u bytes from %p to %p: multiples of 16", bytes, global,
             shared);
    }
    check_shared("bulk_copy_to_shared", shared, bytes);
    check_shared("bulk_copy_to_shared", barrier, 8);
    if (block->bulk_count == block->bulk_room) {
        block->bulk_room = block->bulk_room ? block->bulk_room * 2 : 16;
        block->bulk =
            static_cast<BulkCopy*>(realloc(block->bulk, block->bulk_room * sizeof(BulkCopy)));
    }
    // The copy itself is the scheduler's: a bad source has to fault here, in the thread at fault.
    for (uint32_t at = 0; at < bytes; at += 4096) load<uint8_t>(static_cast<const char*>(global) + at);
    if (bytes) load<uint8_t>(static_cast<const char*>(global) + bytes - 1);
    block->bulk[block->bulk_count++] = {shared, global, bytes, barrier};
    memset(shared, 0xff, bytes);
}

// Called where no fiber can go on: the oldest copy arrives.
static bool finish_one_bulk_copy() {
    if (block->bulk_count == 0) return false;
    BulkCopy copy = block->bulk[0];
    block->bulk_count--;
    memmove(block->bulk, block->bulk + 1, block->bulk_count * sizeof(BulkCopy));
    memcpy(copy.shared, copy.global, copy.bytes);
    *copy.mbarrier = mbarrier_stepped(*copy.mbarrier, 0, -static_cast<int32_t>(copy.bytes));
    wake_mbarrier_waiters();
    return true;
}

static inline uint64_t global_timer() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace sim
