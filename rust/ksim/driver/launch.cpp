// Kernel launches: what a launch may ask for, the memory a grid runs in, and the signals that say
// it went astray.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"

int device_attribute(int which);

namespace {

constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t PAGE = 4096;
constexpr size_t SHARED_ROOM = 256 << 10;
constexpr size_t EMERGENCY_BYTES = 64 << 10;
constexpr size_t STACKS_BYTES = STACK_BYTES * KSIM_STACKS * KSIM_DEPTH;
constexpr size_t SHARED_BYTES = (SHARED_ROOM + PAGE) * KSIM_BLOCKS * KSIM_DEPTH;

// Stacks for the fibers, dynamic shared memory for the blocks, and a stack to fall back on: of each
// of the places that grids in flight have.
struct Ground {
    char* stacks = nullptr;
    char* shared = nullptr;
    char* emergency = nullptr;
    char* signal_stack = nullptr;
    unsigned guarded[KSIM_DEPTH] = {};

    static char* reserve(size_t bytes, int protection) {
        void* got = mmap(nullptr, bytes, protection,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) {
            say("no address space for %zu bytes of stacks", bytes);
            abort();
        }
        return static_cast<char*>(got);
    }

    Ground() {
        stacks = reserve(STACKS_BYTES, PROT_READ | PROT_WRITE);
        shared = reserve(SHARED_BYTES + PAGE, PROT_NONE);
        for (size_t slot = 0; slot < KSIM_DEPTH * KSIM_BLOCKS; slot++) {
            mprotect(shared + slot * (SHARED_ROOM + PAGE), SHARED_ROOM, PROT_READ | PROT_WRITE);
        }
        emergency = reserve(EMERGENCY_BYTES, PROT_READ | PROT_WRITE);
        signal_stack = reserve(EMERGENCY_BYTES, PROT_READ | PROT_WRITE);
    }

    char* shared_for(unsigned place, unsigned block, size_t bytes) const {
        char* end = shared + (place * KSIM_BLOCKS + block) * (SHARED_ROOM + PAGE) + SHARED_ROOM;
        return end - (bytes + 127) / 128 * 128;
    }

    char* stacks_of(unsigned place) const { return stacks + place * KSIM_STACKS * STACK_BYTES; }

    // The lowest page of each stack that is used cannot be touched.
    void guard(unsigned place, unsigned threads) {
        for (; guarded[place] < threads; guarded[place]++) {
            mprotect(stacks_of(place) + guarded[place] * STACK_BYTES, PAGE, PROT_NONE);
        }
    }
};

// Of the device whose work is being run.
Ground& ground() {
    static Ground* each[MOST_DEVICES];
    Ground*& own = each[active_device];
    if (!own) own = new Ground;
    return *own;
}

// ---------------------------------------------------------------- signals

struct Running {
    const ksim_object* object;
    ksim_launch* launch;
};
thread_local Running* running = nullptr;

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[sizeof SIGNALS / sizeof SIGNALS[0]];

void on_signal(int signal, siginfo_t* info, void* raw) {
    ucontext_t* context = static_cast<ucontext_t*>(raw);
    Running* grid = running;
    if (!grid) {
        // Not a kernel's: whoever was here before deals with it.
        for (size_t i = 0; i < sizeof SIGNALS / sizeof SIGNALS[0]; i++) {
            if (SIGNALS[i] == signal) sigaction(signal, &previous[i], nullptr);
        }
        return;
    }
    uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    char* message = grid->launch->message;
    size_t room = grid->launch->message_bytes;
    const char* verb = context->uc_mcontext.gregs[REG_ERR] & 2 ? "write to" : "read from";
    uintptr_t stacks = reinterpret_cast<uintptr_t>(ground().stacks);
    uintptr_t shared = reinterpret_cast<uintptr_t>(ground().shared);
    int code = CUDA_ERROR_ILLEGAL_ADDRESS;
    if (signal == SIGFPE) {
        code = CUDA_ERROR_LAUNCH_FAILED;
        snprintf(message, room, "integer division by zero, or its result out of range");
    } else if (signal == SIGILL) {
        code = CUDA_ERROR_ILLEGAL_INSTRUCTION;
        snprintf(message, room, "illegal instruction");
    } else if (info->si_code == SI_KERNEL && address == 0) {
        code = CUDA_ERROR_MISALIGNED_ADDRESS;
        snprintf(message, room, "a misaligned vector access, or an address that cannot be");
    } else if (address - stacks < STACKS_BYTES) {
        code = CUDA_ERROR_HARDWARE_STACK_ERROR;
        snprintf(message, room, "stack overflow: a thread has %zu bytes", STACK_BYTES - PAGE);
    } else if (address - shared < SHARED_BYTES) {
        snprintf(message, room, "out of bounds: %s 0x%zx, beyond the block's shared memory", verb,
                 address);
    } else {
        snprintf(message, room, "out of bounds: %s 0x%zx: %s", verb, address,
                 describe_address(address).c_str());
    }
    greg_t* registers = context->uc_mcontext.gregs;
    registers[REG_RDI] = code;
    registers[REG_RIP] = reinterpret_cast<greg_t>(grid->object->fault);
    registers[REG_RSP] = reinterpret_cast<greg_t>(ground().emergency + EMERGENCY_BYTES - 72);
}

void catch_signals() {
    for (size_t i = 0; i < sizeof SIGNALS / sizeof SIGNALS[0]; i++) {
        struct sigaction now;
        sigaction(SIGNALS[i], nullptr, &now);
        if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_signal) continue;
        previous[i] = now;
        struct sigaction ours = {};
        ours.sa_sigaction = on_signal;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGNALS[i], &ours, nullptr);
    }
}

// While it exists, faults of this thread are the grid's.
class Guarded {
public:
    Guarded(const ksim_object* object, ksim_launch* launch) : grid{object, launch} {
        catch_signals();
        stack_t ours = {};
        ours.ss_sp = ground().signal_stack;
        ours.ss_size = EMERGENCY_BYTES;
        sigaltstack(&ours, &before);
        running = &grid;
    }
    ~Guarded() {
        running = nullptr;
        sigaltstack(&before, nullptr);
    }

private:
    Running grid;
    stack_t before = {};
};

// ---------------------------------------------------------------- grids in flight

struct Flight {
    ksim_launch launch = {};
    // Of the stream or graph that it is the newest work of.
    const void* owner = nullptr;
    Context* context = nullptr;
    const ksim_object* object = nullptr;
    std::vector<unsigned char> params;
    std::string name;
    char message[1024] = "";
    void* grid = nullptr;
    unsigned place = 0;

    ~Flight() { object->close(grid); }
};
// Oldest first: it waits for none of its own device.
std::deque<std::unique_ptr<Flight>>& flights() {
    static std::deque<std::unique_ptr<Flight>> each[MOST_DEVICES];
    return each[active_device];
}
uint64_t launch_count = 0;

uint64_t launch_seed() {
    return settings().seed ? settings().seed * 0x9e3779b97f4a7c15ull + ++launch_count : 0;
}

std::unique_ptr<Flight> take_off(const Work& work, const void* owner, Context* context) {
    auto flight = std::make_unique<Flight>();
    flight->owner = owner;
    flight->context = context;
    flight->object = work.function->module->info;
    flight->params = work.params;
    flight->name = work.function->name;
    bool taken[KSIM_DEPTH] = {};
    for (const auto& other : flights()) taken[other->place] = true;
    while (taken[flight->place]) flight->place++;
    ksim_launch& launch = flight->launch;
    launch.kernel = work.function->kernel;
    launch.name = flight->name.c_str();
    launch.params = flight->params.data();
    memcpy(launch.grid, work.grid, sizeof launch.grid);
    memcpy(launch.block, work.block, sizeof launch.block);
    launch.dynamic_shared_bytes = work.shared_bytes;
    launch.programmatic = work.programmatic;
    launch.seed = launch_seed();
    launch.released = &released_stores;
    launch.in_order = settings().devices > 1;
    launch.stacks = ground().stacks_of(flight->place);
    launch.stack_bytes = STACK_BYTES;
    launch.message = flight->message;
    launch.message_bytes = sizeof flight->message;
    unsigned threads = work.block[0] * work.block[1] * work.block[2];
    launch.cluster = work.cluster;
    launch.blocks = settings().early ? std::min(KSIM_BLOCKS, KSIM_STACKS / threads) : 1;
    // Whole clusters.
    launch.blocks = std::max(launch.blocks / work.cluster, 1u) * work.cluster;
    for (unsigned i = 0; i < launch.blocks; i++) {
        launch.dynamic_shared[i] = ground().shared_for(flight->place, i, work.shared_bytes);
    }
    ground().guard(flight->place, launch.blocks * threads);
    flight->grid = flight->object->open(&launch);
    return flight;
}

// What went wrong in `flight` ends all that are in flight.
void crash(Flight& flight, int code) {
    CUresult result = static_cast<CUresult>(code);
    violation("%s: %s", error_name(result), flight.message);
    fail_context(flight.context, result);
    flights().clear();
}

ksim_progress advance(Flight& flight, bool to_end) {
    int code = 0;
    ksim_progress progress;
    {
        Guarded guarded(flight.object, &flight.launch);
        progress = flight.object->advance(flight.grid, to_end, &code);
    }
    if (progress == KSIM_FAILED) crash(flight, code);
    return progress;
}

void release(Flight& flight) {
    int code;
    {
        Guarded guarded(flight.object, &flight.launch);
        code = flight.object->release(flight.grid);
    }
    if (code) crash(flight, code);
}

// Runs the oldest to its end, which the next has waited for, once the others have done what they may
// without it.
void land_oldest() {
    auto& own = flights();
    for (size_t i = own.size(); i-- > 1;) {
        if (advance(*own[i], true) == KSIM_FAILED) return;
    }
    ksim_progress progress;
    while ((progress = advance(*own.front(), true)) == KSIM_PEERS) yield_device();
    if (progress == KSIM_FAILED) return;
    own.pop_front();
    if (!own.empty()) release(*own.front());
}

// Whether a grid that may overlap with the newest may start: all of its blocks have triggered, which
// they may do without having waited.
bool has_triggered(Flight& newest) {
    if (flights().size() >= KSIM_DEPTH) return false;
    const ksim_progress progress = advance(newest, false);
    return progress != KSIM_WAITS && progress != KSIM_PEERS;
}

bool still_loaded(const Work& work) {
    return alive(work.function) && work.function->id == work.function_id;
}

// A pointer to this process's ordinary memory, which no device can follow.
bool is_host_pointer(uint64_t value) {
    if (value < (1ull << 40) || value >= (1ull << 47)) return false;
    if (locate(value).place != Place::Pageable) return false;
    unsigned char resident;
    return mincore(reinterpret_cast<void*>(value & ~(PAGE - 1)), 1, &resident) == 0;
}

}  // namespace

void land() {
    while (!flights().empty()) land_oldest();
}

CUresult check_launch(Work& work, void** params, void** extra, const char* name) {
    if (!alive(work.function)) {
        violation("%s: the function's module has been unloaded", name);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const Function& function = *work.function;
    work.function_id = function.id;
    uint64_t threads = uint64_t{work.block[0]} * work.block[1] * work.block[2];
    uint64_t blocks = uint64_t{work.grid[0]} * work.grid[1] * work.grid[2];
    if (threads == 0 || blocks == 0 || threads > KSIM_MAX_THREADS || work.block[2] > 64 ||
        work.grid[0] > 2147483647u || work.grid[1] > 65535 || work.grid[2] > 65535 ||
        blocks > UINT32_MAX) {
        violation("%s of %s: grid %u,%u,%u of blocks %u,%u,%u is beyond the device", name,
                  function.name.c_str(), work.grid[0], work.grid[1], work.grid[2], work.block[0],
                  work.block[1], work.block[2]);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (threads > function.kernel->max_threads) {
        violation("%s of %s: %llu threads a block, its launch bound is %u", name,
                  function.name.c_str(), static_cast<unsigned long long>(threads),
                  function.kernel->max_threads);
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    // Eight blocks are what every card of 9.0 on has room for.
    if (work.cluster == 0 || work.cluster > 8 || work.grid[0] % work.cluster) {
        violation("%s of %s: clusters of %u blocks, of a grid of %u", name, function.name.c_str(),
                  work.cluster, work.grid[0]);
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    if (work.cluster * threads > KSIM_STACKS) {
        violation("%s of %s: %u blocks of %llu threads are more than are simulated together", name,
                  function.name.c_str(), work.cluster, static_cast<unsigned long long>(threads));
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    unsigned fixed = function.module->info->static_shared_bytes;
    unsigned granted = static_cast<unsigned>(function.max_dynamic_shared);
    if (work.shared_bytes > granted && work.shared_bytes + uint64_t{fixed} > 49152) {
        violation("%s of %s: %u bytes of dynamic shared memory beside %u static ones; without "
                  "cuFuncSetAttribute a block has 49152",
                  name, function.name.c_str(), work.shared_bytes, fixed);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const void* source = params ? params[0] : nullptr;
    if (extra) {
        size_t bytes = 0;
        for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) source = extra[i + 1];
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
                bytes = *static_cast<size_t*>(extra[i + 1]);
            }
        }
        if (params || bytes != function.kernel->param_bytes) {
            violation("%s of %s: %zu bytes of parameters, it takes %u", name,
                      function.name.c_str(), bytes, function.kernel->param_bytes);
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (!source) return CUDA_ERROR_INVALID_VALUE;
    const unsigned char* bytes = static_cast<const unsigned char*>(source);
    work.params.assign(bytes, bytes + function.kernel->param_bytes);
    return CUDA_SUCCESS;
}

void execute_kernel(const Work& work, const void* owner, bool overlaps, Context* context) {
    if (!still_loaded(work)) {
        violation("a queued kernel's module has been unloaded");
        fail_context(context, CUDA_ERROR_INVALID_PC);
        return;
    }
    for (size_t at = 0; at + 8 <= work.params.size(); at += 8) {
        uint64_t value;
        memcpy(&value, work.params.data() + at, 8);
        if (!is_host_pointer(value)) continue;
        violation("kernel %s: its parameters hold a pointer to ordinary host memory, 0x%llx at "
                  "byte %zu",
                  work.function->name.c_str(), static_cast<unsigned long long>(value), at);
        fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    stats.launches++;
    auto& own = flights();
    overlaps &= settings().early && work.programmatic && !own.empty() && own.back()->owner == owner;
    while (!own.empty() && !(overlaps && has_triggered(*own.back()))) land_oldest();
    if (context->sticky) return;
    own.push_back(take_off(work, owner, context));
    if (own.size() == 1) release(*own.back());
    if (settings().early) {
        advance(*own.back(), false);
    } else {
        land();
    }
}

// ---------------------------------------------------------------- calls

static CUresult launch_kernel(const char* call, Work&& work, CUstream handle, void** params,
                              void** extra) {
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    work.kind = WorkKind::Kernel;
    if ((code = check_launch(work, params, extra, call))) return code;
    if (work.function->module->context != stream->context) {
        violation("%s: the function is of another context", call);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return submit(stream, std::move(work), call);
}

KSIM_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared_bytes, CUstream stream,
                                 void** params, void** extra) {
    Entry entry("cuLaunchKernel", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    Work work;
    work.function = function;
    work.grid[0] = grid_x, work.grid[1] = grid_y, work.grid[2] = grid_z;
    work.block[0] = block_x, work.block[1] = block_y, work.block[2] = block_z;
    work.shared_bytes = shared_bytes;
    return launch_kernel(entry.name, std::move(work), stream, params, extra);
}

KSIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                   void** params, void** extra) {
    Entry entry("cuLaunchKernelEx", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!config || (config->attribute_count && !config->attributes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Work work;
    work.function = function;
    work.grid[0] = config->grid_x, work.grid[1] = config->grid_y, work.grid[2] = config->grid_z;
    work.block[0] = config->block_x, work.block[1] = config->block_y;
    work.block[2] = config->block_z;
    work.shared_bytes = config->shared_bytes;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const CUlaunchAttribute& attribute = config->attributes[i];
        switch (attribute.id) {
            case CU_LAUNCH_ATTRIBUTE_IGNORE:
            case CU_LAUNCH_ATTRIBUTE_PRIORITY:
            case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: break;
            case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
                if (attribute.value.flag && settings().sm < 90) {
                    violation("programmatic launches need compute capability 9.0, this is %d.%d",
                              settings().sm / 10, settings().sm % 10);
                    return CUDA_ERROR_NOT_SUPPORTED;
                }
                work.programmatic = attribute.value.flag != 0;
                break;
            case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
                const unsigned* size = attribute.value.dimensions;
                if (size[1] != 1 || size[2] != 1) {
                    violation("clusters are simulated along x only");
                    return CUDA_ERROR_NOT_SUPPORTED;
                }
                if (size[0] > 1 && settings().sm < 90) {
                    violation("clusters need compute capability 9.0, this is %d.%d",
                              settings().sm / 10, settings().sm % 10);
                    return CUDA_ERROR_NOT_SUPPORTED;
                }
                work.cluster = size[0];
                break;
            }
            case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
                if (!attribute.value.flag) break;
                violation("cooperative launches are not simulated");
                return CUDA_ERROR_NOT_SUPPORTED;
            default:
                violation("launch attribute %u is not simulated", attribute.id);
                return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return launch_kernel(entry.name, std::move(work), config->stream, params, extra);
}
