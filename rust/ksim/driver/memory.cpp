// Device and pinned host memory. Every allocation has pages of its own, ends (to 256 bytes) at a
// page that cannot be touched, starts poisoned with 0xff, and is never given the address of an
// earlier one, so strays fault instead of finding something.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t GUARD = 16 * PAGE;
constexpr size_t ALIGNMENT = 256;
constexpr size_t POISON_FILE = 16 << 20;
constexpr unsigned char CANARY = 0xa5;
constexpr size_t REMEMBERED = 8192;

struct Allocation {
    Context* context;
    uintptr_t address;
    size_t bytes;
    uintptr_t map;
    size_t map_bytes;
    unsigned flags;
    bool damaged;
};

struct Freed {
    uintptr_t map;
    size_t map_bytes;
    uintptr_t address;
    size_t bytes;
};

std::map<uintptr_t, Allocation> device_allocations;
std::map<uintptr_t, Allocation> host_allocations;
std::map<uintptr_t, Allocation> registrations;
struct Global {
    Module* module;
    size_t bytes;
};
std::map<uintptr_t, Global> globals;
std::deque<Freed> freed;

struct Arena {
    uintptr_t base = 0;
    size_t bytes = 0;
    size_t used = 0;
};
Arena arena;

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

int poison_file() {
    static int file = [] {
        int made = memfd_create("ksim poison", MFD_CLOEXEC);
        std::vector<unsigned char> block(1 << 20, 0xff);
        for (size_t at = 0; made >= 0 && at < POISON_FILE; at += block.size()) {
            if (pwrite(made, block.data(), block.size(), static_cast<off_t>(at)) < 0) abort();
        }
        return made;
    }();
    return file;
}

// Private pages that read as poison until they are written; untouched ones cost nothing.
bool map_poison(uintptr_t at, size_t bytes) {
    for (size_t done = 0; done < bytes; done += POISON_FILE) {
        size_t part = bytes - done < POISON_FILE ? bytes - done : POISON_FILE;
        void* got = mmap(reinterpret_cast<void*>(at + done), part, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file(), 0);
        if (got == MAP_FAILED) return false;
    }
    return true;
}

bool reserve_arena() {
    if (arena.base) return true;
    for (size_t bytes = size_t{1} << 42; bytes >= size_t{1} << 36; bytes /= 2) {
        void* got = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
        if (got == MAP_FAILED) continue;
        arena = {reinterpret_cast<uintptr_t>(got), bytes, 0};
        return true;
    }
    say("no address space for simulated device memory");
    return false;
}

using AsanRegion = void (*)(const volatile void*, size_t);
void asan_mark(const char* function, uintptr_t address, size_t bytes) {
    void* found = dlsym(RTLD_DEFAULT, function);
    if (found && bytes) {
        reinterpret_cast<AsanRegion>(found)(reinterpret_cast<void*>(address), bytes);
    }
}

// Fills and fences what lies between the allocation and its pages' ends.
void lay_red_zones(const Allocation& a) {
    uintptr_t end = a.address + a.bytes;
    memset(reinterpret_cast<void*>(a.map), CANARY, a.address - a.map);
    memset(reinterpret_cast<void*>(end), CANARY, a.map + a.map_bytes - end);
    asan_mark("__asan_poison_memory_region", a.map, a.address - a.map);
    asan_mark("__asan_poison_memory_region", end, a.map + a.map_bytes - end);
}

__attribute__((no_sanitize("address"))) uintptr_t first_damage(uintptr_t from, uintptr_t to) {
    for (uintptr_t at = from; at < to; at++) {
        if (*reinterpret_cast<volatile unsigned char*>(at) != CANARY) return at;
    }
    return 0;
}

bool check(Allocation& a, const char* when) {
    if (a.damaged) return true;
    uintptr_t before = first_damage(a.map, a.address);
    uintptr_t after = first_damage(a.address + a.bytes, a.map + a.map_bytes);
    if (!before && !after) return true;
    a.damaged = true;
    if (after) {
        violation("out of bounds: found at %s, %zu bytes past the end of the %zu-byte allocation "
                  "at 0x%zx something was written",
                  when, after - (a.address + a.bytes), a.bytes, a.address);
    } else {
        violation("out of bounds: found at %s, %zu bytes before the %zu-byte allocation at 0x%zx "
                  "something was written",
                  when, a.address - before, a.bytes, a.address);
    }
    return false;
}

using Table = std::map<uintptr_t, Allocation>;

const Allocation* find(const Table& table, uintptr_t address) {
    auto after = table.upper_bound(address);
    if (after == table.begin()) return nullptr;
    const Allocation& a = std::prev(after)->second;
    return address < a.address + a.bytes || (a.bytes == 0 && address == a.address) ? &a : nullptr;
}

void drop_device(Table::iterator at) {
    Allocation& a = at->second;
    check(a, "its release");
    asan_mark("__asan_unpoison_memory_region", a.map, a.map_bytes);
    mmap(reinterpret_cast<void*>(a.map), a.map_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    freed.push_back({a.map, a.map_bytes, a.address, a.bytes});
    if (freed.size() > REMEMBERED) freed.pop_front();
    stats.allocations--;
    stats.allocation_bytes -= round_up(a.bytes, ALIGNMENT);
    device_allocations.erase(at);
}

void drop_host(Table::iterator at) {
    Allocation& a = at->second;
    check(a, "its release");
    asan_mark("__asan_unpoison_memory_region", a.map, a.map_bytes);
    munmap(reinterpret_cast<void*>(a.map - GUARD), a.map_bytes + 2 * GUARD);
    stats.host_allocations--;
    stats.host_bytes -= a.bytes;
    host_allocations.erase(at);
}

CUresult allocate(CUdeviceptr* out, size_t bytes) {
    size_t rounded = round_up(bytes, ALIGNMENT);
    if (rounded < bytes || rounded > settings().memory ||
        stats.allocation_bytes > settings().memory - rounded) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!reserve_arena()) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t map_bytes = round_up(rounded, PAGE);
    if (arena.bytes - arena.used < map_bytes + GUARD) {
        // Addresses have run out: begin again, behind nothing that is still in use.
        if (!device_allocations.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
        arena.used = 0;
        freed.clear();
    }
    uintptr_t map = arena.base + arena.used + GUARD;
    if (!map_poison(map, map_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    arena.used += map_bytes + GUARD;
    Allocation a = {current_context(), map + map_bytes - rounded, bytes, map, map_bytes, 0, false};
    lay_red_zones(a);
    device_allocations[a.address] = a;
    stats.allocations++;
    stats.allocation_bytes += rounded;
    if (stats.allocation_bytes > stats.peak_bytes) stats.peak_bytes = stats.allocation_bytes;
    *out = a.address;
    return CUDA_SUCCESS;
}

// That `bytes` from a device pointer lie in one allocation.
CUresult check_device_range(const char* call, CUdeviceptr address, size_t bytes) {
    Range range = locate(address);
    if (range.place == Place::Pageable || range.room < bytes) {
        violation("%s: %zu bytes at 0x%llx: %s", call, bytes, address,
                  describe_address(address).c_str());
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult check_host_range(const char* call, const void* address, size_t bytes) {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    Range range = locate(at);
    if (range.place == Place::Device) {
        violation("%s: 0x%zx is device memory where host memory is meant", call, at);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (range.room < bytes) {
        violation("%s: %zu bytes at 0x%zx: %s", call, bytes, at, describe_address(at).c_str());
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // namespace

Range locate(uintptr_t address) {
    if (const Allocation* a = find(device_allocations, address)) {
        return {Place::Device, a->address + a->bytes - address};
    }
    for (const Table* table : {&host_allocations, &registrations}) {
        if (const Allocation* a = find(*table, address)) {
            return {Place::Pinned, a->address + a->bytes - address};
        }
    }
    auto global = globals.upper_bound(address);
    if (global != globals.begin()) {
        --global;
        if (address - global->first < global->second.bytes) {
            return {Place::Device, global->first + global->second.bytes - address};
        }
    }
    if (arena.base && address >= arena.base && address < arena.base + arena.bytes) {
        return {Place::Device, 0};
    }
    return {Place::Pageable, SIZE_MAX};
}

void add_global(Module* module, uintptr_t address, size_t bytes) {
    globals[address] = {module, bytes};
}

void drop_globals(Module* module) {
    for (auto at = globals.begin(); at != globals.end();) {
        at = at->second.module == module ? globals.erase(at) : std::next(at);
    }
}

std::string describe_address(uintptr_t address) {
    char text[200];
    if (const Allocation* a = find(device_allocations, address)) {
        snprintf(text, sizeof text, "byte %zu of a device allocation of %zu bytes",
                 address - a->address, a->bytes);
        return text;
    }
    if (const Allocation* a = find(host_allocations, address)) {
        snprintf(text, sizeof text, "byte %zu of a host allocation of %zu bytes",
                 address - a->address, a->bytes);
        return text;
    }
    for (auto at = freed.rbegin(); at != freed.rend(); ++at) {
        if (address >= at->map && address < at->map + at->map_bytes) {
            snprintf(text, sizeof text, "in a device allocation of %zu bytes that was freed",
                     at->bytes);
            return text;
        }
    }
    if (address < PAGE) return "a null pointer";
    const Allocation* best = nullptr;
    size_t distance = SIZE_MAX;
    bool past = false;
    for (const Table* table : {&device_allocations, &host_allocations}) {
        auto after = table->upper_bound(address);
        if (after != table->end() && after->second.address - address < distance) {
            best = &after->second;
            distance = best->address - address;
            past = false;
        }
        if (after != table->begin()) {
            const Allocation& before = std::prev(after)->second;
            size_t beyond = address - (before.address + before.bytes);
            if (beyond < distance) best = &before, distance = beyond, past = true;
        }
    }
    if (best && distance < (size_t{1} << 30)) {
        snprintf(text, sizeof text, "%zu bytes %s an allocation of %zu bytes", distance,
                 past ? "past the end of" : "before", best->bytes);
        return text;
    }
    return "no memory of the device's";
}

bool check_red_zones(const char* when) {
    bool whole = true;
    for (Table* table : {&device_allocations, &host_allocations}) {
        for (auto& entry : *table) whole = check(entry.second, when) && whole;
    }
    return whole;
}

void free_context_memory(Context* context) {
    for (auto at = device_allocations.begin(); at != device_allocations.end();) {
        auto next = std::next(at);
        if (at->second.context == context) drop_device(at);
        at = next;
    }
    for (auto at = host_allocations.begin(); at != host_allocations.end();) {
        auto next = std::next(at);
        if (at->second.context == context) drop_host(at);
        at = next;
    }
    for (auto at = registrations.begin(); at != registrations.end();) {
        auto next = std::next(at);
        if (at->second.context == context) {
            registrations.erase(at);
            stats.registrations--;
        }
        at = next;
    }
}

// ---------------------------------------------------------------- device memory

KSIM_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    Entry entry("cuMemGetInfo_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    *total = settings().memory;
    *free = settings().memory - stats.allocation_bytes;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
    Entry entry("cuMemAlloc_v2", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    if (entry.code) return entry.code;
    if (!out || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(out, bytes);
}

KSIM_API CUresult cuMemFree_v2(CUdeviceptr address) {
    Entry entry("cuMemFree_v2", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE | RELEASES);
    if (address == 0) return entry.released();
    if (current_context()) flush_all(current_context());
    auto found = device_allocations.find(address);
    if (found == device_allocations.end()) {
        violation("cuMemFree_v2 of 0x%llx: %s", address, describe_address(address).c_str());
        return entry.released(CUDA_ERROR_INVALID_VALUE);
    }
    bool whole = check(found->second, "its release");
    drop_device(found);
    if (!whole) return entry.released(fail_context(current_context(), CUDA_ERROR_ILLEGAL_ADDRESS));
    return entry.released();
}

// ---------------------------------------------------------------- host memory

KSIM_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
    Entry entry("cuMemHostAlloc", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    if (entry.code) return entry.code;
    if (!out || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    size_t map_bytes = round_up(bytes, PAGE);
    if (map_bytes < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    void* got = mmap(nullptr, map_bytes + 2 * GUARD, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t map = reinterpret_cast<uintptr_t>(got) + GUARD;
    if (!map_poison(map, map_bytes)) {
        munmap(got, map_bytes + 2 * GUARD);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Allocation a = {current_context(), map, bytes, map, map_bytes, flags, false};
    lay_red_zones(a);
    host_allocations[map] = a;
    stats.host_allocations++;
    stats.host_bytes += bytes;
    *out = reinterpret_cast<void*>(map);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
    return cuMemHostAlloc(out, bytes, 0);
}

KSIM_API CUresult cuMemFreeHost(void* address) {
    Entry entry("cuMemFreeHost", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE | RELEASES);
    if (current_context()) flush_all(current_context());
    auto found = host_allocations.find(reinterpret_cast<uintptr_t>(address));
    if (found == host_allocations.end()) {
        violation("cuMemFreeHost of %p, which is no live host allocation", address);
        return entry.released(CUDA_ERROR_INVALID_VALUE);
    }
    drop_host(found);
    return entry.released();
}

KSIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* address, unsigned flags) {
    Entry entry("cuMemHostGetDevicePointer_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    if (locate(reinterpret_cast<uintptr_t>(address)).place != Place::Pinned) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = reinterpret_cast<uintptr_t>(address);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
    Entry entry("cuMemHostGetFlags", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    const Allocation* a = find(host_allocations, reinterpret_cast<uintptr_t>(address));
    if (!flags || !a) return CUDA_ERROR_INVALID_VALUE;
    *flags = a->flags;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
    Entry entry("cuMemHostRegister_v2", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    if (entry.code) return entry.code;
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (!address || bytes == 0 || at + bytes < at) return CUDA_ERROR_INVALID_VALUE;
    auto after = registrations.upper_bound(at);
    bool overlaps = after != registrations.end() && after->first < at + bytes;
    if (find(registrations, at) || overlaps || find(host_allocations, at)) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    registrations[at] = {current_context(), at, bytes, at, bytes, flags, false};
    stats.registrations++;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuMemHostUnregister(void* address) {
    Entry entry("cuMemHostUnregister", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE | RELEASES);
    if (current_context()) flush_all(current_context());
    if (!registrations.erase(reinterpret_cast<uintptr_t>(address))) {
        violation("cuMemHostUnregister of %p, which is not registered", address);
        return entry.released(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    stats.registrations--;
    return entry.released();
}

// ---------------------------------------------------------------- copies

namespace {

enum class Direction { HostToDevice, DeviceToHost, DeviceToDevice };

CUresult copy(const char* call, Direction direction, uintptr_t target, uintptr_t source,
              size_t bytes, CUstream handle, bool waits) {
    Entry entry(call, waits ? NEEDS_CONTEXT | UNSAFE_IN_CAPTURE : NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (bytes == 0) return CUDA_SUCCESS;
    if (!target || !source) return CUDA_ERROR_INVALID_VALUE;
    CUresult code = direction == Direction::HostToDevice
                        ? check_host_range(call, reinterpret_cast<void*>(source), bytes)
                        : check_device_range(call, source, bytes);
    if (code) return code;
    code = direction == Direction::DeviceToHost
               ? check_host_range(call, reinterpret_cast<void*>(target), bytes)
               : check_device_range(call, target, bytes);
    if (code) return code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    Work work;
    work.kind = WorkKind::Copy;
    work.target = target;
    work.source = source;
    work.bytes = bytes;
    bool capturing = stream->capture != nullptr;
    if (direction == Direction::HostToDevice && settings().lazy && !capturing && !waits &&
        locate(source).place == Place::Pageable) {
        // Pageable memory is read before the call returns.
        const unsigned char* from = reinterpret_cast<const unsigned char*>(source);
        work.staged = std::make_shared<std::vector<unsigned char>>(from, from + bytes);
    }
    code = submit(stream, std::move(work), call);
    if (code || capturing) return code;
    // Pageable memory is written before the call returns.
    if (waits || (direction == Direction::DeviceToHost && locate(target).place != Place::Pinned)) {
        flush(stream);
    }
    return waits ? current_context()->sticky : CUDA_SUCCESS;
}

CUresult fill(const char* call, CUdeviceptr target, uint32_t pattern, unsigned width, size_t count,
              CUstream handle, bool waits) {
    Entry entry(call, waits ? NEEDS_CONTEXT | UNSAFE_IN_CAPTURE : NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (count == 0) return CUDA_SUCCESS;
    if (target % width || count > SIZE_MAX / width) return CUDA_ERROR_INVALID_VALUE;
    CUresult code = check_device_range(call, target, count * width);
    if (code) return code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    Work work;
    work.kind = WorkKind::Fill;
    work.target = target;
    work.bytes = count * width;
    work.pattern = pattern;
    work.width = width;
    return submit(stream, std::move(work), call);
}

uintptr_t number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

KSIM_API CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t bytes) {
    return copy("cuMemcpyHtoD_v2", Direction::HostToDevice, target, number(source), bytes, nullptr,
                true);
}
KSIM_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes,
                                       CUstream stream) {
    return copy("cuMemcpyHtoDAsync_v2", Direction::HostToDevice, target, number(source), bytes,
                stream, false);
}
KSIM_API CUresult cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t bytes) {
    return copy("cuMemcpyDtoH_v2", Direction::DeviceToHost, number(target), source, bytes, nullptr,
                true);
}
KSIM_API CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes,
                                       CUstream stream) {
    return copy("cuMemcpyDtoHAsync_v2", Direction::DeviceToHost, number(target), source, bytes,
                stream, false);
}
KSIM_API CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
    return copy("cuMemcpyDtoD_v2", Direction::DeviceToDevice, target, source, bytes, nullptr,
                true);
}
KSIM_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes,
                                       CUstream stream) {
    return copy("cuMemcpyDtoDAsync_v2", Direction::DeviceToDevice, target, source, bytes, stream,
                false);
}
KSIM_API CUresult cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count) {
    return fill("cuMemsetD8_v2", target, value, 1, count, nullptr, true);
}
KSIM_API CUresult cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count) {
    return fill("cuMemsetD16_v2", target, value, 2, count, nullptr, true);
}
KSIM_API CUresult cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count) {
    return fill("cuMemsetD32_v2", target, value, 4, count, nullptr, true);
}
KSIM_API CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count,
                                  CUstream stream) {
    return fill("cuMemsetD8Async", target, value, 1, count, stream, false);
}
KSIM_API CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count,
                                   CUstream stream) {
    return fill("cuMemsetD16Async", target, value, 2, count, stream, false);
}
KSIM_API CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count,
                                   CUstream stream) {
    return fill("cuMemsetD32Async", target, value, 4, count, stream, false);
}
