// How fibers are switched, meet and end: see fiber.h.
// Stores the stack pointer in *save and continues where `next` was stored. Callee-saved registers
// live on the stack meanwhile; the rounding mode is everyone's.
extern "C" void ksim_swap(void** save, void* next) __attribute__((visibility("hidden")));
asm(R"(
    .text
    .p2align 4
    .globl ksim_swap
    .hidden ksim_swap
    .type ksim_swap, @function
ksim_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size ksim_swap, .-ksim_swap
)");

namespace sim {

Fiber* self;
Block* block;
const ksim_launch* launch;
static void* scheduler_sp;
static int error;
#if KSIM_ASAN
static void* scheduler_fake;
static const void* scheduler_bottom;
static size_t scheduler_bytes;
#endif


static void finish_copies(Fiber& fiber, uint32_t before_group);
static void leave_products();
static void leave_cluster();
[[noreturn]] static void fiber_main();

static inline void announce_switch(Fiber* from, bool dying, Fiber* to) {
#if KSIM_ASAN
    void** save = dying ? nullptr : from ? &from->fake_stack : &scheduler_fake;
    if (to) {
        __sanitizer_start_switch_fiber(save, to->stack, launch->stack_bytes);
    } else {
        __sanitizer_start_switch_fiber(save, scheduler_bottom, scheduler_bytes);
    }
#else
    (void)from, (void)dying, (void)to;
#endif
}

// First thing on a stack that was switched to. The scheduler's is known by whom it switches to first.
static inline void arrive(Fiber* at) {
#if KSIM_ASAN
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(at->fake_stack, &bottom, &bytes);
    if (!scheduler_bottom) {
        scheduler_bottom = bottom;
        scheduler_bytes = bytes;
    }
#else
    (void)at;
#endif
}

static inline void enter(Fiber* fiber) {
    self = fiber;
    threadIdx = fiber->index;
}

// Gives a fiber that starts a stack whose first frame returns into fiber_main.
static void give_stack(Fiber* fiber) {
    if (block->free_stacks) {
        fiber->stack = block->free_stack[--block->free_stacks];
    } else {
        size_t index = static_cast<size_t>(block->slot) * block->threads + block->fresh_stack++;
        fiber->stack = launch->stacks + index * launch->stack_bytes;
    }
#if KSIM_ASAN
    __asan_unpoison_memory_region(fiber->stack, launch->stack_bytes);
#endif
    // Stacks lie a power of two apart: spread their tops over the cache's sets.
    size_t color = reinterpret_cast<uintptr_t>(fiber->stack) / launch->stack_bytes % 48 * 64;
    void** frame = reinterpret_cast<void**>(fiber->stack + launch->stack_bytes - color) - 8;
    for (int r = 0; r < 6; r++) frame[r] = nullptr;
    frame[6] = reinterpret_cast<void*>(fiber_main);
    frame[7] = nullptr;
    fiber->sp = frame;
}

// Takes the next fiber of a warp that can run; it must have one.
static inline Fiber* take_ready(uint32_t warp_number) {
    Warp& warp = block->warp[warp_number];
    uint32_t lane = block->descending ? 31 - __builtin_clz(warp.ready) : __builtin_ctz(warp.ready);
    warp.ready &= ~(1u << lane);
    return &block->fibers[warp_number * 32 + lane];
}

// Leaves the running fiber for another of its warp, or for the scheduler.
static __attribute__((noinline)) void leave(bool dying) {
    Fiber* from = self;
    uint32_t number = from->linear / 32;
    void* ignored;
    if (block->warp[number].ready) {
        Fiber* to = take_ready(number);
        if (!to->sp) give_stack(to);
        if (dying) block->free_stack[block->free_stacks++] = from->stack;
        enter(to);
        announce_switch(from, dying, to);
        ksim_swap(dying ? &ignored : &from->sp, to->sp);
    } else {
        if (dying) block->free_stack[block->free_stacks++] = from->stack;
        announce_switch(from, dying, nullptr);
        ksim_swap(dying ? &ignored : &from->sp, scheduler_sp);
    }
    arrive(from);
}

void wait_as(State state) {
    self->state = state;
    leave(false);
    self->state = READY;
}

static inline void wake(Fiber& fiber) {
    block->warp[fiber.linear / 32].ready |= 1u << (fiber.linear % 32);
}

// Ends the grid with `code`; what the fibers had in hand is dropped. Returns for the scheduler only.
static void record_arguments(int code, const char* format, va_list arguments) {
    if (error) return;
    error = code;
    int used = 0;
    if (self) {
        used = snprintf(launch->message, launch->message_bytes,
                        "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): ", launch->name,
                        blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
                        threadIdx.z);
    } else {
        used = snprintf(launch->message, launch->message_bytes, "kernel %s, block (%u,%u,%u): ",
                        launch->name, blockIdx.x, blockIdx.y, blockIdx.z);
    }
    if (used > 0 && static_cast<size_t>(used) < launch->message_bytes) {
        vsnprintf(launch->message + used, launch->message_bytes - used, format, arguments);
    }
}

static __attribute__((format(printf, 2, 3))) void record(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_arguments(code, format, arguments);
    va_end(arguments);
}

void fail(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_arguments(code, format, arguments);
    va_end(arguments);
    void* ignored;
    announce_switch(self, true, nullptr);
    ksim_swap(&ignored, scheduler_sp);
    __builtin_unreachable();
}

// The driver's signal handler sends the interrupted thread here, on a stack lent for the purpose,
// after it has written what happened to the message.
static void fault(int code) {
    static char what[512];
    snprintf(what, sizeof what, "%s", launch->message);
    record(code, "%s", what);
    void* ignored;
    announce_switch(self, true, nullptr);
    ksim_swap(&ignored, scheduler_sp);
    __builtin_unreachable();
}

[[noreturn]] static void fiber_main() {
    arrive(self);
    while (true) {
        launch->kernel->run(launch->params);
        finish_copies(*self, UINT32_MAX);
        leave_products();
        self->state = DONE;
        block->live--;
        leave_cluster();
        Warp& warp = block->warp[self->linear / 32];
        warp.live &= ~(1u << (self->linear % 32));
        // A thread that has not started yet can have this stack without a switch.
        if (!warp.ready) break;
        Fiber* next = take_ready(self->linear / 32);
        if (next->sp) {
            warp.ready |= 1u << (next->linear % 32);
            break;
        }
        next->stack = self->stack;
        next->sp = self->sp;
        enter(next);
    }
    leave(true);
    __builtin_unreachable();
}

static void release(Barrier& barrier) {
    barrier.arrived = 0;
    barrier.line = 0;
    barrier.result = barrier.votes;
    barrier.votes = 0;
    for (uint32_t w = 0; w < block->warps; w++) {
        block->warp[w].ready |= barrier.waiting[w];
        barrier.waiting[w] = 0;
    }
}

uint32_t meet(bool vote, int line) {
    Barrier& barrier = block->barrier;
    if (barrier.arrived == 0) {
        barrier.line = line;
    } else if (barrier.line != line) {
        fail(KSIM_LAUNCH_FAILED,
             "barrier divergence: threads of one block wait at __syncthreads in line %d and in "
             "line %d",
             line, barrier.line);
    }
    barrier.votes += vote;
    if (++barrier.arrived == block->threads) {
        release(barrier);
    } else {
        barrier.waiting[self->linear / 32] |= 1u << (self->linear % 32);
        self->line = line;
        wait_as(AT_BARRIER);
    }
    return barrier.result;
}

}  // namespace sim
