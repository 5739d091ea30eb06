// Devices and contexts.
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace {

struct Primary {
    Context* context = nullptr;
    unsigned flags = 0;
};
std::map<CUdevice, Primary> primaries;
thread_local std::vector<Context*> context_stack;

bool valid_device(CUdevice device) { return device >= 0 && device < settings().devices; }

Context* make_context(CUdevice device, unsigned flags, bool primary) {
    Context* context = new Context;
    context->device = device;
    context->flags = flags;
    context->primary = primary;
    context->legacy = new Stream;
    context->legacy->context = context;
    context->legacy->is_legacy = true;
    live<Context>().insert(context);
    stats.contexts++;
    return context;
}

void destroy_context(Context* context) {
    flush_all(context);
    check_red_zones("the context's destruction");
    destroy_context_contents(context);
    delete context->legacy;
    live<Context>().erase(context);
    stats.contexts--;
    // The struct stays: a stale handle is recognised by its absence from the live set.
}

struct Limits {
    int shared_optin, shared_per_multiprocessor, threads_per_multiprocessor, blocks;
};

Limits limits() {
    int sm = settings().sm;
    if (sm < 80) return {65536, 65536, 1024, 16};
    if (sm == 80 || sm == 87) return {166912, 167936, 2048, 32};
    if (sm == 86 || sm == 89) return {101376, 102400, 1536, sm == 89 ? 24 : 16};
    if (sm >= 120) return {101376, 102400, 1536, 24};
    return {232448, 233472, 2048, 32};
}

// CUdevice_attribute and its value; 0 for any other.
int attribute(int which) {
    Limits l = limits();
    switch (which) {
        case 1: return 1024;                          // threads a block
        case 2: case 3: return 1024;                  // block dimensions x, y
        case 4: return 64;                            // block dimension z
        case 5: return 2147483647;                    // grid dimension x
        case 6: case 7: return 65535;                 // grid dimensions y, z
        case 8: return 49152;                         // shared memory a block
        case 9: return 65536;                         // constant memory
        case 10: return 32;                           // warp size
        case 11: return 2147483647;                   // pitch
        case 12: return 65536;                        // registers a block
        case 13: return 1500000;                      // clock, kHz
        case 14: return 512;                          // texture alignment
        case 15: return 1;                            // copies overlap kernels
        case 16: return settings().multiprocessors;
        case 19: return 1;                            // maps host memory
        case 31: return 1;                            // concurrent kernels
        case 36: return 2000000;                      // memory clock, kHz
        case 37: return 1024;                         // memory bus, bits
        case 38: return 4 << 20;                      // L2 bytes
        case 39: return l.threads_per_multiprocessor;
        case 40: return 2;                            // copy engines
        case 41: return 1;                            // unified addressing
        case 75: return settings().sm / 10;
        case 76: return settings().sm % 10;
        case 78: return 1;                            // stream priorities
        case 79: case 80: return 1;                   // L1 caches
        case 81: return l.shared_per_multiprocessor;
        case 82: return 65536;                        // registers a multiprocessor
        case 90: return 1;                            // compute preemption
        case 91: return 1;                            // host pointers of registered memory
        case 97: return l.shared_optin;
        case 99: return 1;                            // host registration
        case 106: return l.blocks;
        case 111: return settings().sm < 80 ? 0 : 1024;  // shared memory that the system keeps
        case 129: return 0;
        default: return 0;
    }
}

}  // namespace

template <typename T>
std::set<T*>& live() {
    static std::set<T*> one;
    return one;
}
template std::set<Context*>& live<Context>();
template std::set<Stream*>& live<Stream>();
template std::set<Event*>& live<Event>();
template std::set<Module*>& live<Module>();
template std::set<Function*>& live<Function>();
template std::set<Graph*>& live<Graph>();
template std::set<Node*>& live<Node>();
template std::set<Exec*>& live<Exec>();

Context* current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

int device_attribute(int which) { return attribute(which); }

void destroy_context_contents(Context* context) {
    auto modules = live<Module>();
    for (Module* module : modules) {
        if (module->context == context) unload_module(module);
    }
    auto streams = live<Stream>();
    for (Stream* stream : streams) {
        if (stream->context == context) destroy_stream(stream);
    }
    auto events = live<Event>();
    for (Event* event : events) {
        if (event->context != context) continue;
        live<Event>().erase(event);
        stats.events--;
        delete event;
    }
    auto execs = live<Exec>();
    for (Exec* exec : execs) {
        if (exec->context != context) continue;
        live<Exec>().erase(exec);
        stats.execs--;
        delete exec;
    }
    free_context_memory(context);
}

// ---------------------------------------------------------------- devices

KSIM_API CUresult cuDeviceGetCount(int* count) {
    Entry entry("cuDeviceGetCount", 0);
    if (entry.code) return entry.code;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = settings().devices;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    Entry entry("cuDeviceGet", 0);
    if (entry.code) return entry.code;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    Entry entry("cuDeviceGetName", 0);
    if (entry.code) return entry.code;
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, static_cast<size_t>(length), "Simulated sm_%d", settings().sm);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDeviceGetAttribute(int* value, int which, CUdevice device) {
    Entry entry("cuDeviceGetAttribute", 0);
    if (entry.code) return entry.code;
    if (!value || which <= 0 || which >= 1000) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute(which);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    Entry entry("cuDeviceTotalMem_v2", 0);
    if (entry.code) return entry.code;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = settings().memory;
    return CUDA_SUCCESS;
}

static CUresult device_uuid(const char* name, CUuuid* uuid, CUdevice device) {
    Entry entry(name, 0);
    if (entry.code) return entry.code;
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "simulated card ", 15);
    uuid->bytes[15] = static_cast<unsigned char>(device);
    return CUDA_SUCCESS;
}
KSIM_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    return device_uuid("cuDeviceGetUuid_v2", uuid, device);
}
KSIM_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return device_uuid("cuDeviceGetUuid", uuid, device);
}

KSIM_API CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
    Entry entry("cuDeviceGetPCIBusId", 0);
    if (entry.code) return entry.code;
    if (!id || length < 13) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    Entry entry("cuDeviceCanAccessPeer", 0);
    if (entry.code) return entry.code;
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device) || !valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && settings().peers;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    Entry entry("cuCtxEnablePeerAccess", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    Context* own = current_context();
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(peer) || peer == own) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == own->device || !settings().peers) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    return own->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

// ---------------------------------------------------------------- primary contexts

KSIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    Entry entry("cuDevicePrimaryCtxRetain", 0);
    if (entry.code) return entry.code;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = primaries[device];
    if (!primary.context) primary.context = make_context(device, primary.flags, true);
    primary.context->references++;
    *context = primary.context;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    Entry entry("cuDevicePrimaryCtxRelease_v2", RELEASES);
    if (!valid_device(device)) return entry.released(CUDA_ERROR_INVALID_DEVICE);
    Primary& primary = primaries[device];
    if (!primary.context) {
        violation("the primary context of device %d is released once too often", device);
        return entry.released(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (--primary.context->references == 0) {
        destroy_context(primary.context);
        primary.context = nullptr;
    }
    return entry.released();
}

KSIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    Entry entry("cuDevicePrimaryCtxReset_v2", RELEASES);
    if (!valid_device(device)) return entry.released(CUDA_ERROR_INVALID_DEVICE);
    Primary& primary = primaries[device];
    if (primary.context) {
        // Who holds the context keeps it: empty, and in working order again.
        destroy_context_contents(primary.context);
        primary.context->sticky = CUDA_SUCCESS;
    }
    return entry.released();
}

KSIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    Entry entry("cuDevicePrimaryCtxGetState", 0);
    if (entry.code) return entry.code;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = primaries[device].flags;
    *active = primaries[device].context != nullptr;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    Entry entry("cuDevicePrimaryCtxSetFlags_v2", 0);
    if (entry.code) return entry.code;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    primaries[device].flags = flags;
    if (primaries[device].context) primaries[device].context->flags = flags;
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- current context

KSIM_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    Entry entry("cuCtxCreate_v2", 0);
    if (entry.code) return entry.code;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *context = make_context(device, flags, false);
    context_stack.push_back(*context);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxDestroy_v2(CUcontext context) {
    Entry entry("cuCtxDestroy_v2", RELEASES);
    if (!alive(context) || context->primary) return entry.released(CUDA_ERROR_INVALID_CONTEXT);
    destroy_context(context);
    if (current_context() == context) context_stack.pop_back();
    return entry.released();
}

KSIM_API CUresult cuCtxSetCurrent(CUcontext context) {
    Entry entry("cuCtxSetCurrent", 0);
    if (entry.code) return entry.code;
    if (context && !alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context_stack.empty()) context_stack.pop_back();
    if (context) context_stack.push_back(context);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxGetCurrent(CUcontext* context) {
    Entry entry("cuCtxGetCurrent", 0);
    if (entry.code) return entry.code;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = current_context();
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    Entry entry("cuCtxPushCurrent_v2", 0);
    if (entry.code) return entry.code;
    if (!alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(context);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    Entry entry("cuCtxPopCurrent_v2", RELEASES);
    if (context_stack.empty()) return entry.released(CUDA_ERROR_INVALID_CONTEXT);
    if (context) *context = context_stack.back();
    context_stack.pop_back();
    return entry.released();
}

KSIM_API CUresult cuCtxGetDevice(CUdevice* device) {
    Entry entry("cuCtxGetDevice", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = current_context()->device;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxGetFlags(unsigned* flags) {
    Entry entry("cuCtxGetFlags", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = current_context()->flags;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version) {
    Entry entry("cuCtxGetApiVersion", 0);
    if (entry.code) return entry.code;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    if (context && !alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    Entry entry("cuCtxGetStreamPriorityRange", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuCtxSynchronize() {
    Entry entry("cuCtxSynchronize", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    if (entry.code) return entry.code;
    Context* context = current_context();
    flush_all(context);
    if (!context->sticky && !check_red_zones("cuCtxSynchronize")) {
        fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return context->sticky;
}
