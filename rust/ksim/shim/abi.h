// What the simulated driver and a compiled kernel object know of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define KSIM_ABI 4
#define KSIM_MAX_THREADS 1024u
// Grids in flight: one that has still to end, its successor and that one's successor.
#define KSIM_DEPTH 3u
// Blocks of one grid in flight, and the stacks that all their threads have: enough for a cluster of eight
// blocks of 640 threads.
#define KSIM_BLOCKS 16u
#define KSIM_STACKS 5120u

// Exported by every kernel as NAME_ksim.
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
    // Blocks of a cluster, side by side in x: in flight together, which may write to each other's dynamic
    // shared memory.
    uint32_t cluster;
    // Room for each block's dynamic shared memory: it ends at a guard page.
    char* dynamic_shared[KSIM_BLOCKS];
    uint32_t dynamic_shared_bytes;
    // Launched with programmatic stream serialization: every block has to wait.
    uint32_t programmatic;
    // Most blocks in flight, whole clusters. 1: each runs to its end. More: the last ones stop where they trigger.
    uint32_t blocks;
    // Blocks are started in ascending order: those that wait for other devices' must not wait for each other.
    uint32_t in_order;
    // Counts the stores that other devices may wait for.
    uint64_t* released;
    // 0: blocks, warps and lanes in ascending order; else each run has an order of its own.
    uint64_t seed;
    char* stacks;  // KSIM_STACKS
    size_t stack_bytes;
    // The object says what went wrong here.
    char* message;
    size_t message_bytes;
};

enum ksim_progress {
    // Its blocks wait for the grid before it.
    KSIM_WAITS,
    // Its blocks wait for what another device stores.
    KSIM_PEERS,
    // Every block has triggered or ended: its successor may start.
    KSIM_TRIGGERED,
    KSIM_ENDED,
    KSIM_FAILED,
};

// Exported by every kernel object as ksim_object.
struct ksim_object {
    uint32_t abi;
    uint32_t static_shared_bytes;
    // A grid none of whose blocks has started. The launch outlives it.
    void* (*open)(const struct ksim_launch* launch);
    // The grid before it has ended and griddepcontrol.wait returns. Zero, or a CUresult.
    int (*release)(void* grid);
    // Runs what can run: until all have triggered, or, `to_end`, as far as it goes. A failure's
    // CUresult is in `code`.
    enum ksim_progress (*advance)(void* grid, int to_end, int* code);
    void (*close)(void* grid);
    // Where a signal handler lets the interrupted thread continue, on a stack of its own.
    void (*fault)(int code);
};
