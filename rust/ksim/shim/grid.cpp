// Grids, clusters and blocks in flight: see grid.h.
namespace sim {

Grid* grid;
// Whose contents the static shared section holds, where several blocks are in flight.
static Block* resident;

void pdl_wait() {
    block->waited = true;
    self->waited = true;
    if (!grid->released) wait_as(AT_PDL);
}

void pdl_trigger() {
    if (block->triggered) return;
    block->triggered = true;
    grid->passed++;
    if (!block->stops) return;
    block->stage = STOPPED;
    Fiber* from = self;
    wake(*from);
    announce_switch(from, false, nullptr);
    ksim_swap(&from->sp, scheduler_sp);
    arrive(from);
}

void keep_read(const void* address, uint32_t bytes) {
    size_t needed = grid->read_bytes + sizeof(EarlyRead) + bytes;
    if (needed > grid->read_room) {
        grid->read_room = 2 * needed;
        grid->reads = static_cast<char*>(realloc(grid->reads, grid->read_room));
    }
    EarlyRead read = {address, bytes, block->linear};
    memcpy(grid->reads + grid->read_bytes, &read, sizeof read);
    memcpy(grid->reads + grid->read_bytes + sizeof read, address, bytes);
    grid->read_bytes = needed;
}

static bool has_come(const uint64_t* flag, uint64_t value, const uint64_t* abort) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE) >= value ||
           __atomic_load_n(abort, __ATOMIC_ACQUIRE) != 0;
}

void wait_for_peer(const uint64_t* flag, uint64_t value, const uint64_t* abort) {
    check_global("a wait", flag, sizeof *flag);
    if (has_come(flag, value, abort)) return;
    self->flag = flag;
    self->abort = abort;
    self->flag_value = value;
    wait_as(AT_PEER);
}

// Wakes the threads whose words have come.
static bool wake_from_peers(Block* b) {
    bool any = false;
    for (uint32_t i = 0; i < b->threads; i++) {
        Fiber& fiber = b->fibers[i];
        if (fiber.state != AT_PEER || !has_come(fiber.flag, fiber.flag_value, fiber.abort)) continue;
        fiber.state = READY;
        b->warp[i / 32].ready |= 1u << (i % 32);
        any = true;
    }
    return any;
}

static inline Cluster& cluster() { return grid->cluster[first_of_cluster()]; }

// Ends the phase where no thread is missing.
static void try_to_end(Cluster& c) {
    if (c.missing > 0) return;
    c.phase++;
    c.missing = c.live;
    for (uint32_t rank = 0; rank < launch->cluster; rank++) {
        Block* b = grid->block[first_of_cluster() + rank];
        for (uint32_t w = 0; w < b->warps; w++) {
            b->warp[w].ready |= b->meeting[w];
            b->meeting[w] = 0;
        }
    }
}

void cluster_arrive() {
    Cluster& c = cluster();
    if (self->arrived) {
        fail(KSIM_LAUNCH_FAILED, "cluster_arrive(): a second time without cluster_wait()");
    }
    self->arrived = true;
    self->cluster_phase = c.phase;
    c.missing--;
    try_to_end(c);
}

void cluster_wait() {
    if (!self->arrived) fail(KSIM_LAUNCH_FAILED, "cluster_wait() without cluster_arrive()");
    self->arrived = false;
    if (cluster().phase != self->cluster_phase) return;
    block->meeting[self->linear / 32] |= 1u << (self->linear % 32);
    wait_as(AT_CLUSTER);
}

// Who ends is not waited for.
static void leave_cluster() {
    if (launch->cluster == 1) return;
    Cluster& c = cluster();
    c.live--;
    if (self->arrived && self->cluster_phase == c.phase) return;
    c.missing--;
    try_to_end(c);
}

void* of_rank(const void* address, uint32_t rank, size_t bytes) {
    const char* own = launch->dynamic_shared[block->slot];
    const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - own);
    if (offset > launch->dynamic_shared_bytes || launch->dynamic_shared_bytes - offset < bytes) {
        fail(KSIM_ILLEGAL_ADDRESS, "%zu bytes at %p are not dynamic shared memory of this block",
             bytes, address);
    }
    if (rank >= launch->cluster) {
        fail(KSIM_ILLEGAL_ADDRESS, "block %u of a cluster of %u", rank, launch->cluster);
    }
    const Block* other = grid->block[first_of_cluster() + rank];
    if (other->stage == STARTED) {
        fail(KSIM_ILLEGAL_ADDRESS,
             "shared memory of block %u of the cluster, which may not have begun: no barrier of the "
             "cluster came before", rank);
    }
    if (other->stage == EMPTY) {
        fail(KSIM_ILLEGAL_ADDRESS, "shared memory of block %u of the cluster, which has ended", rank);
    }
    return launch->dynamic_shared[other->slot] + offset;
}

// ---------------------------------------------------------------- blocks

static void swap_static_shared(Block* next) {
    if (resident == next) return;
    if (resident && resident->static_shared) {
        memcpy(resident->static_shared, __start_ksim_shared, static_shared_bytes());
    }
    if (next->static_shared) {
        memcpy(__start_ksim_shared, next->static_shared, static_shared_bytes());
    }
    resident = next;
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static Block* make_block(uint32_t slot) {
    Block* made = static_cast<Block*>(calloc(1, sizeof(Block)));
    made->slot = slot;
    made->threads = launch->block[0] * launch->block[1] * launch->block[2];
    made->warps = (made->threads + 31) / 32;
    made->fibers = static_cast<Fiber*>(calloc(made->threads, sizeof(Fiber)));
    if (launch->blocks > 1 && static_shared_bytes()) {
        made->static_shared = static_cast<char*>(malloc(static_shared_bytes()));
    }
    uint32_t i = 0;
    for (uint32_t z = 0; z < launch->block[2]; z++) {
        for (uint32_t y = 0; y < launch->block[1]; y++) {
            for (uint32_t x = 0; x < launch->block[0]; x++, i++) {
                made->fibers[i].index = {x, y, z};
                made->fibers[i].linear = i;
            }
        }
    }
    return made;
}

static void free_block(Block* b) {
    if (!b) return;
    if (resident == b) resident = nullptr;
    for (uint32_t i = 0; i < b->threads; i++) free(b->fibers[i].copies);
    free(b->fibers);
    free(b->bulk);
    free(b->late);
    for (Products& of : b->products) free_products(of);
    free(b->static_shared);
    free(b);
}

static inline uint3 index_of(uint32_t linear) {
    return {linear % launch->grid[0], linear / launch->grid[0] % launch->grid[1],
            linear / launch->grid[0] / launch->grid[1]};
}

static void select_block(Block* b) {
    swap_static_shared(b);
    block = b;
    blockIdx = b->index;
}

// Makes `b` the grid's next block, its threads at their start, its memory poisoned.
static void start_block(Block* b) {
    const uint32_t number = grid->started++, size = launch->cluster;
    b->linear = grid->order ? grid->order[number / size] * size + number % size : number;
    b->index = index_of(b->linear);
    b->live = b->threads;
    b->stage = STARTED;
    b->stops = launch->blocks > 1 && number + launch->blocks >= grid->blocks;
    b->waited = b->triggered = false;
    b->descending = launch->seed && (mix(launch->seed + b->linear) & 1);
    b->free_stacks = 0;
    b->fresh_stack = 0;
    b->bulk_count = 0;
    select_block(b);
    memset(&b->barrier, 0, sizeof(b->barrier));
    memset(b->meeting, 0, sizeof(b->meeting));
    if (static_shared_bytes()) memset(__start_ksim_shared, 0xff, static_shared_bytes());
    if (launch->dynamic_shared_bytes) {
        memset(launch->dynamic_shared[b->slot], 0xff, launch->dynamic_shared_bytes);
    }
    for (uint32_t w = 0; w < b->warps; w++) {
        uint32_t lanes = b->threads - w * 32;
        uint32_t all = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        b->warp[w] = {all, all, 0};
        Products& of = b->products[w];
        of.count = of.ended = of.waiting = of.issued = 0;
    }
    for (uint32_t i = 0; i < b->threads; i++) {
        Fiber& fiber = b->fibers[i];
        fiber.state = READY;
        fiber.waited = false;
        fiber.arrived = false;
        fiber.copy_count = 0;
        fiber.copy_group = 0;
        fiber.product_count = fiber.product_group = 0;
        fiber.fenced = false;
        fiber.fake_stack = nullptr;
        fiber.sp = nullptr;
    }
}

// Runs the selected block's fibers until none can go on, or it stops.
static void run_ready() {
    bool any;
    do {
        any = false;
        for (uint32_t n = 0; n < block->warps; n++) {
            uint32_t w = block->descending ? block->warps - 1 - n : n;
            while (block->warp[w].ready) {
                Fiber* fiber = take_ready(w);
                if (!fiber->sp) give_stack(fiber);
                enter(fiber);
                announce_switch(nullptr, false, fiber);
                ksim_swap(&scheduler_sp, fiber->sp);
#if KSIM_ASAN
                __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
                self = nullptr;
                if (error || block->stage == STOPPED) return;
                any = true;
            }
        }
        // As late as it may be.
        if (!any) any = run_products();
    } while (any && !error);
}

static void end_block() {
    if (block->bulk_count) {
        record(KSIM_LAUNCH_FAILED, "the block ended with %u bulk copies that nobody waited for",
               block->bulk_count);
    }
    compare_products();
    deliver();
    if (launch->programmatic && !block->waited) {
        record(KSIM_LAUNCH_FAILED,
               "launched programmatically, but no thread of the block called pdl_wait(): the grid "
               "may end before its predecessor");
    }
    grid->ended++;
    grid->passed += !block->triggered;
    block->stage = EMPTY;
}

// Runs the selected block until it stops, waits for the grid before or for its cluster, or ends.
static void run_block() {
    if (grid->released && block->stage != EMPTY) {
        for (uint32_t i = 0; i < block->threads; i++) {
            if (block->fibers[i].state == AT_PDL) wake(block->fibers[i]);
        }
    }
    block->stage = RUNNING;
    run_ready();
    if (error || block->stage == STOPPED) return;
    if (block->live == 0) {
        end_block();
        return;
    }
    bool at_pdl = false, meets = false, is_away = false;
    for (uint32_t i = 0; i < block->threads; i++) {
        const State state = block->fibers[i].state;
        at_pdl |= state == AT_PDL;
        is_away |= state == AT_PEER;
        // A phase may end by what others of a cluster store.
        meets |= state == AT_CLUSTER || (state == AT_PHASE && launch->cluster > 1);
    }
    if (at_pdl && !grid->released) {
        block->stage = WAITING;
    } else if (is_away) {
        block->stage = AWAY;
    } else if (meets) {
        block->stage = MEETING;
    } else {
        report_deadlock();
    }
}

static bool has_ready(const Block* b) {
    uint32_t ready = 0;
    for (uint32_t w = 0; w < b->warps; w++) ready |= b->warp[w].ready;
    return ready != 0;
}

// Starts the cluster whose first block has place `slot`, if that is empty and there is one left.
static void start_cluster(Grid* g, uint32_t slot) {
    const uint32_t size = launch->cluster;
    if (slot % size || g->started == g->blocks) return;
    for (uint32_t i = slot; i < slot + size; i++) {
        if (!g->block[i]) g->block[i] = make_block(i);
        if (g->block[i]->stage != EMPTY) return;
    }
    for (uint32_t i = slot; i < slot + size; i++) start_block(g->block[i]);
    const uint32_t threads = size * g->block[slot]->threads;
    g->cluster[slot] = {0, threads, threads};
}

// ---------------------------------------------------------------- for the driver

static void select_grid(Grid* g) {
    grid = g;
    launch = g->launch;
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    error = g->error;
    self = nullptr;
#if KSIM_ASAN
    scheduler_bottom = nullptr;
#endif
}

static void* open_grid(const ksim_launch* l) {
    Grid* g = static_cast<Grid*>(calloc(1, sizeof(Grid)));
    g->launch = l;
    g->blocks = l->grid[0] * l->grid[1] * l->grid[2];
    if (!l->seed || l->in_order) return g;
    const uint32_t clusters = g->blocks / l->cluster;
    g->order = static_cast<uint32_t*>(malloc(clusters * sizeof(uint32_t)));
    for (uint32_t i = 0; i < clusters; i++) g->order[i] = i;
    for (uint32_t i = clusters; i > 1; i--) {
        uint32_t j = static_cast<uint32_t>(mix(l->seed ^ (i * 0x10001ull)) % i);
        uint32_t swapped = g->order[i - 1];
        g->order[i - 1] = g->order[j];
        g->order[j] = swapped;
    }
    return g;
}

static int release_grid(void* handle) {
    Grid* g = static_cast<Grid*>(handle);
    select_grid(g);
    g->released = true;
    for (size_t at = 0; at < g->read_bytes && !error;) {
        EarlyRead read;
        memcpy(&read, g->reads + at, sizeof read);
        at += sizeof read;
        if (memcmp(read.address, g->reads + at, read.bytes) != 0) {
            blockIdx = index_of(read.block);
            record(KSIM_LAUNCH_FAILED,
                   "read %u bytes at %p before its pdl_wait(): a grid that had not ended wrote them "
                   "afterwards",
                   read.bytes, read.address);
        }
        at += read.bytes;
    }
    free(g->reads);
    g->reads = nullptr;
    g->read_bytes = g->read_room = 0;
    return g->error = error;
}

static ksim_progress advance_grid(void* handle, int to_end, int* code) {
    Grid* g = static_cast<Grid*>(handle);
    select_grid(g);
    bool any = to_end || g->passed < g->blocks;
    while (any && !error) {
        any = false;
        for (uint32_t i = 0; i < launch->blocks && !error; i++) {
            start_cluster(g, i);
            Block* b = g->block[i];
            if (!b) break;
            if (b->stage == EMPTY) continue;
            if (b->stage == WAITING && !g->released) continue;
            if (b->stage == MEETING && !has_ready(b)) continue;
            if (b->stage == AWAY && !wake_from_peers(b)) continue;
            if (b->stage == STOPPED && !to_end) continue;
            select_block(b);
            run_block();
            any = true;
        }
    }
    for (uint32_t i = 0; i < launch->blocks && to_end && g->released && !error; i++) {
        if (!g->block[i] || g->block[i]->stage != MEETING) continue;
        select_block(g->block[i]);
        report_deadlock();
    }
    *code = g->error = error;
    if (error) return KSIM_FAILED;
    if (g->ended == g->blocks) return KSIM_ENDED;
    if (g->passed == g->blocks && !to_end) return KSIM_TRIGGERED;
    for (const Block* b : g->block) {
        if (b && b->stage == AWAY) return KSIM_PEERS;
    }
    return g->passed == g->blocks ? KSIM_TRIGGERED : KSIM_WAITS;
}

static void close_grid(void* handle) {
    Grid* g = static_cast<Grid*>(handle);
    for (Block* b : g->block) free_block(b);
    free(g->order);
    free(g->reads);
    free(g);
}

}  // namespace sim
