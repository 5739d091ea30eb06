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

template <typename T>
static inline void store_release(T* address, T value) {
    check_global("a store", address, sizeof(T));
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

static inline uint32_t atomic_inc_wrap(uint32_t* address, uint32_t last) {
    check_global("an atomic increment", address, 4);
    uint32_t old = *address;
    *address = old >= last ? 0 : old + 1;
    return old;
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
    check_global("cp_async", global, bytes);
    note_read(global, read);
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

// ---------------------------------------------------------------- bulk copies and their barriers

struct BulkCopy {
    uint64_t* barrier;
    void* shared;
    // Null: what another block of the cluster stored, `value`.
    const void* global;
    uint32_t bytes;
    unsigned char value[16];
};

// What the 64 bits of a barrier in shared memory mean here.
struct Phase {
    uint64_t number : 1;    // of the phase under way
    uint64_t arrivals : 11; // that end a phase
    uint64_t missing : 11;  // of this one
    uint64_t made : 1;      // barrier_init was called: poison has this bit set too, but not `zero`
    uint64_t zero : 8;
    int64_t bytes : 32;     // promised, less those of copies that were asked for
};

static inline Phase phase_of(const Block* b, const uint64_t* barrier) {
    if (b == block || !in_dynamic(b, barrier, 8)) check_shared("a barrier", barrier, 8);
    Phase phase;
    memcpy(&phase, barrier, 8);
    if (!phase.made || phase.zero) {
        fail(KSIM_LAUNCH_FAILED, "the barrier at %p was not initialised", static_cast<const void*>(barrier));
    }
    return phase;
}

static inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    check_shared("barrier_init", barrier, 8);
    Phase phase = {0, arrivals, arrivals, 1, 0, 0};
    memcpy(barrier, &phase, 8);
}

// Ends the phase where all has arrived and all copies were asked for, which happen now: whoever reads
// their targets earlier reads poison.
static void try_to_end(Block* b, uint64_t* barrier, Phase phase) {
    if (phase.missing == 0 && phase.bytes == 0) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < b->bulk_count; i++) {
            const BulkCopy& copy = b->bulk[i];
            if (copy.barrier == barrier) {
                memcpy(copy.shared, copy.global ? copy.global : copy.value, copy.bytes);
            } else {
                b->bulk[left++] = copy;
            }
        }
        b->bulk_count = left;
        phase.number ^= 1;
        phase.missing = phase.arrivals;
        for (uint32_t i = 0; i < b->threads; i++) {
            Fiber& fiber = b->fibers[i];
            if (fiber.state == AT_PHASE && fiber.in == reinterpret_cast<uintptr_t>(barrier)) {
                fiber.state = READY;
                b->warp[i / 32].ready |= 1u << (i % 32);
            }
        }
    }
    memcpy(barrier, &phase, 8);
}

static void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    Phase phase = phase_of(block, barrier);
    if (phase.missing == 0) fail(KSIM_LAUNCH_FAILED, "more arrivals than a phase has");
    phase.bytes += bytes;
    phase.missing--;
    try_to_end(block, barrier, phase);
}

static inline void barrier_arrive(uint64_t* barrier) { barrier_expect(barrier, 0); }

// A copy into the shared memory of `b`, which happens when its barrier's phase ends.
static void add_copy(Block* b, const BulkCopy& copy) {
    if (b->bulk_count == b->bulk_room) {
        b->bulk_room = b->bulk_room ? b->bulk_room * 2 : 16;
        b->bulk = static_cast<BulkCopy*>(realloc(b->bulk, b->bulk_room * sizeof(BulkCopy)));
    }
    b->bulk[b->bulk_count++] = copy;
    memset(copy.shared, 0xff, copy.bytes);
    Phase phase = phase_of(b, copy.barrier);
    phase.bytes -= copy.bytes;
    try_to_end(b, copy.barrier, phase);
}

static void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16) {
        fail(KSIM_MISALIGNED_ADDRESS, "bulk_copy of %u bytes from %p to %p", bytes, global, shared);
    }
    check_shared("bulk_copy", shared, bytes);
    check_global("bulk_copy", global, 16);
    note_read(global, bytes);
    add_copy(block, {barrier, shared, global, bytes, {}});
}

// Stores `bytes` at the place that `at`, in this block's dynamic shared memory, has in that of block
// `rank`, where `barrier` has its place too and counts them.
static void store_async(void* at, uint32_t rank, const void* value, uint32_t bytes, uint64_t* barrier) {
    Block* other = grid->block[first_of_cluster() + rank % launch->cluster];
    BulkCopy copy = {static_cast<uint64_t*>(of_rank(barrier, rank, 8)), of_rank(at, rank, bytes),
                     nullptr, bytes, {}};
    memcpy(copy.value, value, bytes);
    add_copy(other, copy);
}

static inline bool barrier_ended(uint64_t* barrier, uint32_t number) {
    return phase_of(block, barrier).number != number;
}

static void barrier_wait(uint64_t* barrier, uint32_t number) {
    if (barrier_ended(barrier, number)) return;
    self->in = reinterpret_cast<uintptr_t>(barrier);
    wait_as(AT_PHASE);
}

static inline uint64_t global_timer() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace sim
