// A thread block as fibers of one OS thread. Each runs until it has to wait for others; the one
// that arrives last at a meeting does its work and goes on. Only one fiber runs at a time, so plain
// globals say which, of which block and grid (grid.h).
#pragma once

#if !defined(__x86_64__)
#error "the simulated driver switches fibers on x86-64 only"
#endif

// Of other libraries.
#pragma GCC visibility push(default)
#if defined(__SANITIZE_ADDRESS__)
#define KSIM_ASAN 1
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* save, const void** bottom, size_t* size);
extern "C" void __asan_unpoison_memory_region(const volatile void* address, size_t size);
#else
#define KSIM_ASAN 0
#endif

extern "C" void* malloc(size_t);
extern "C" void* calloc(size_t, size_t);
extern "C" void* realloc(void*, size_t);
extern "C" void free(void*);
#pragma GCC visibility pop

extern "C" char __start_ksim_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_ksim_shared[] __attribute__((weak, visibility("hidden")));

namespace sim {

enum State : uint8_t { READY, AT_WARP, AT_BARRIER, AT_PHASE, AT_PDL, AT_CLUSTER, AT_PRODUCTS, AT_PEER, DONE };

// Of a block: none of it, it has yet to begin, some of it can run, it waits for the grid before or for
// others of its cluster or for other devices, it stopped at its trigger.
enum Stage : uint8_t { EMPTY, STARTED, RUNNING, WAITING, MEETING, AWAY, STOPPED };

struct AsyncCopy;
struct BulkCopy;
struct LateStore;
struct Product;

struct Fiber {
    // Null until it has started, which is when it gets a stack.
    void* sp;
    char* stack;
    uint3 index;
    uint32_t linear;
    State state;
    bool waited;
    // Whether it has arrived at the cluster's barrier and has yet to wait there, and in which phase.
    bool arrived;
    uint32_t cluster_phase;
    int line;
    // The warp operation it waits at.
    uint32_t kind;
    uint32_t mask;
    uint64_t in;
    uint64_t operand;
    uint64_t out;
    // The word of another device that it waits for, from which value on, and one that ends all waits.
    const uint64_t* flag;
    const uint64_t* abort;
    uint64_t flag_value;
    // Its cp.async copies, oldest first; those of group g are complete once `group - g` allows.
    AsyncCopy* copies;
    uint32_t copy_count, copy_room, copy_group;
    // Products of its warpgroup that it has issued, groups that it has committed, and whether a fence came
    // before the group under way.
    uint32_t product_count, product_group;
    bool fenced;
    void* fake_stack;
};

struct Warp {
    uint32_t ready;
    uint32_t live;
    uint32_t waiting;
};

// A warp's products that are under way, oldest first.
struct Products {
    Product** queue;
    uint32_t count, room;
    // Those before them.
    uint32_t ended;
    // Lanes at wgmma_wait().
    uint32_t waiting;
    // A sum of all that were issued, the same for the warps of a warpgroup.
    uint64_t issued;
};

struct Barrier {
    uint32_t arrived;
    int line;
    uint32_t votes;
    uint32_t result;
    uint32_t waiting[KSIM_MAX_THREADS / 32];
};

struct Block {
    uint3 index;
    uint32_t linear;
    // Its place among the blocks of the grid in flight.
    uint32_t slot;
    uint32_t threads;
    uint32_t warps;
    uint32_t live;
    Stage stage;
    // Whether it stops where it triggers.
    bool stops;
    bool waited;
    bool triggered;
    bool descending;
    char* static_shared;
    Fiber* fibers;
    // Stacks that are free again, and the first that was never used by this block.
    char* free_stack[KSIM_MAX_THREADS];
    uint32_t free_stacks;
    uint32_t fresh_stack;
    Warp warp[KSIM_MAX_THREADS / 32];
    Products products[KSIM_MAX_THREADS / 32];
    Barrier barrier;
    // Lanes that wait for the cluster.
    uint32_t meeting[KSIM_MAX_THREADS / 32];
    // Its bulk copies under way.
    BulkCopy* bulk;
    uint32_t bulk_count, bulk_room;
    // Its stores to other devices that these do not see yet.
    LateStore* late;
    uint32_t late_count, late_room;
};

extern Fiber* self;
extern Block* block;
extern const ksim_launch* launch;

static inline size_t static_shared_bytes() {
    return static_cast<size_t>(__stop_ksim_shared - __start_ksim_shared);
}

void wait_as(State state);

// Ends the grid with `code` and says why; what the fibers had in hand is dropped.
[[noreturn]] void fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// ---------------------------------------------------------------- barriers

// Counts the fiber in; it goes on once all threads of the block have arrived. Returns how many did
// with `vote`.
uint32_t meet(bool vote, int line);

}  // namespace sim
