// Asynchronous copies and their barriers: see copies.h.
namespace sim {

struct LateStore {
    void* address;
    uint32_t bytes;
    char value[16];
};

void store_late(void* address, const void* value, uint32_t bytes) {
    check_global("a store to another device", address, bytes);
    if (block->late_count == block->late_room) {
        block->late_room = block->late_room ? 2 * block->late_room : 64;
        block->late = static_cast<LateStore*>(
            realloc(block->late, block->late_room * sizeof(LateStore)));
    }
    LateStore& late = block->late[block->late_count++];
    late.address = address;
    late.bytes = bytes;
    memcpy(late.value, value, bytes);
}

void deliver() {
    for (uint32_t i = 0; i < block->late_count; i++) {
        memcpy(block->late[i].address, block->late[i].value, block->late[i].bytes);
    }
    block->late_count = 0;
}

struct AsyncCopy {
    void* shared;
    const void* global;
    uint32_t bytes;
    uint32_t read;
    uint32_t group;
};

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

void cp_async(void* shared, const void* global, uint32_t bytes, uint32_t read) {
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

void cp_async_wait(uint32_t pending) {
    finish_copies(*self, self->copy_group > pending ? self->copy_group - pending : 0);
}

static inline Phase phase_of(const Block* b, const uint64_t* barrier) {
    if (b == block || !in_dynamic(b, barrier, 8)) check_shared("a barrier", barrier, 8);
    Phase phase;
    memcpy(&phase, barrier, 8);
    if (!phase.made || phase.zero) {
        fail(KSIM_LAUNCH_FAILED, "the barrier at %p was not initialised", static_cast<const void*>(barrier));
    }
    return phase;
}

// Ends the phase where all has arrived and all copies were asked for, which happen now: a thread that reads
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

void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    check_shared("barrier_init", barrier, 8);
    Phase phase = {0, arrivals, arrivals, 1, 0, 0};
    memcpy(barrier, &phase, 8);
}

void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    Phase phase = phase_of(block, barrier);
    if (phase.missing == 0) fail(KSIM_LAUNCH_FAILED, "more arrivals than a phase has");
    phase.bytes += bytes;
    phase.missing--;
    try_to_end(block, barrier, phase);
}

void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16) {
        fail(KSIM_MISALIGNED_ADDRESS, "bulk_copy of %u bytes from %p to %p", bytes, global, shared);
    }
    check_shared("bulk_copy", shared, bytes);
    check_global("bulk_copy", global, 16);
    note_read(global, bytes);
    add_copy(block, {barrier, shared, global, bytes, {}});
}

void store_async(void* at, uint32_t rank, const void* value, uint32_t bytes, uint64_t* barrier) {
    Block* other = grid->block[first_of_cluster() + rank % launch->cluster];
    BulkCopy copy = {static_cast<uint64_t*>(of_rank(barrier, rank, 8)), of_rank(at, rank, bytes),
                     nullptr, bytes, {}};
    memcpy(copy.value, value, bytes);
    add_copy(other, copy);
}

bool barrier_ended(uint64_t* barrier, uint32_t number) {
    return phase_of(block, barrier).number != number;
}

void barrier_wait(uint64_t* barrier, uint32_t number) {
    if (barrier_ended(barrier, number)) return;
    self->in = reinterpret_cast<uintptr_t>(barrier);
    wait_as(AT_PHASE);
}

}  // namespace sim
