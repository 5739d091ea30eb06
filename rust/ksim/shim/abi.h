// What the simulated driver and a compiled kernel object know of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define KSIM_ABI 1
#define KSIM_MAX_THREADS 1024u
// Groups of KSIM_MAX_THREADS stacks that the driver lends: one for the running block, two for the
// blocks of it, two for those of the next grid, that start early.
#define KSIM_STACK_SLOTS 5u
#define KSIM_EARLY_BLOCKS 2u

// Exported by every KERNEL as NAME_ksim.
struct ksim_kernel {
    void (*run)(const void* params);
    uint32_t param_bytes;
    uint32_t max_threads;
    uint32_t min_blocks;
};

struct ksim_launch {
    const struct ksim_kernel* kernel;
    const char* name;
    const void* params;
    uint32_t grid[3];
    uint32_t block[3];
    // Room for the launch's dynamic shared memory of each stack slot: it ends at a guard page.
    char* dynamic_shared[KSIM_STACK_SLOTS];
    uint32_t dynamic_shared_bytes;
    // Launched with programmatic stream serialization: every block has to wait.
    uint32_t programmatic;
    // First of the KSIM_EARLY_BLOCKS stack slots that its early blocks use.
    uint32_t early_slot;
    // 0: blocks, warps and lanes in ascending order; else each run has an order of its own.
    uint64_t seed;
    char* stacks;
    size_t stack_bytes;
    // The object says what went wrong here.
    char* message;
    size_t message_bytes;
};

// Exported by every kernel object as ksim_object.
struct ksim_object {
    uint32_t abi;
    uint32_t static_shared_bytes;
    // Starts the first blocks, up to their griddepcontrol.wait.
    void* (*begin)(const struct ksim_launch* launch);
    // Runs a grid to its end: `early` is what begin returned, or null. Returns a CUresult.
    int (*run)(const struct ksim_launch* launch, void* early);
    // Gives up what begin returned.
    void (*drop)(void* early);
    // Where a signal handler lets the interrupted thread continue, on a stack of its own.
    void (*fault)(int code);
};
