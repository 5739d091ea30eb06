// Grids in flight. Launched programmatically, a grid may start once every block of the one before
// has triggered or ended, and its griddepcontrol.wait returns once that one has ended. The driver
// says which grid runs; to show what may go wrong it lets a successor start as early as it may:
//
// - A block stops where its first thread triggers, with whatever its other threads have yet to do,
//   until the successor has run as far as it can. All blocks stop there, or, of a grid with more than
//   may be in flight, the last to start.
// - A block of a grid whose predecessor has not ended runs as far as its threads go without it.
// - What it reads meanwhile by the shim's loads and copies is kept, and compared when the
//   predecessor has ended: who reads what another grid has yet to write is told of it.
//
// Blocks of a cluster start together. Each runs until it has to wait for others of them.
#pragma once

namespace sim {

// The barrier of a cluster.
struct Cluster {
    uint32_t phase;
    // Threads that have not ended, and those of them that have yet to arrive.
    uint32_t live, missing;
};

// Of memory read before the wait; `bytes` of it follow.
struct EarlyRead {
    const void* address;
    uint32_t bytes;
    uint32_t block;
};

struct Grid {
    const ksim_launch* launch;
    // Of clusters. Null: in order.
    uint32_t* order;
    Block* block[KSIM_BLOCKS];
    // By place of the first block.
    Cluster cluster[KSIM_BLOCKS];
    uint32_t blocks, started, ended;
    // Blocks that have triggered or ended.
    uint32_t passed;
    bool released;
    int error;
    char* reads;
    size_t read_bytes, read_room;
};

extern Grid* grid;

// ---------------------------------------------------------------- of a kernel

void pdl_wait();

void pdl_trigger();

void keep_read(const void* address, uint32_t bytes);

// Of global memory, now or at any time until its copy is waited for.
static inline void note_read(const void* address, uint32_t bytes) {
    if (__builtin_expect(!grid->released, 0)) keep_read(address, bytes);
}

// Until another device has stored that value, or a larger one: the driver runs the others meanwhile. Or
// until `abort` is not zero.
void wait_for_peer(const uint64_t* flag, uint64_t value, const uint64_t* abort);

// ---------------------------------------------------------------- clusters

static inline uint32_t cluster_rank() { return block->slot % launch->cluster; }

static inline uint32_t first_of_cluster() { return block->slot - cluster_rank(); }

void cluster_arrive();

void cluster_wait();

// The place of `address`, of this block's dynamic shared memory, in that of block `rank` of the cluster.
void* of_rank(const void* address, uint32_t rank, size_t bytes);

}  // namespace sim
