// Settings, statistics, error names and the gate that every call passes.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

std::recursive_mutex driver_lock;
Stats stats;

namespace {

long long number(const char* name, long long standard) {
    const char* text = getenv(name);
    if (!text || !*text) return standard;
    char* end = nullptr;
    long long value = strtoll(text, &end, 0);
    if (*end) {
        fprintf(stderr, "ksim: %s=%s is no number\n", name, text);
        abort();
    }
    return value;
}

bool is(const char* name, const char* value) {
    const char* text = getenv(name);
    return text && strcmp(text, value) == 0;
}

Settings read_settings() {
    Settings s;
    s.devices = std::min(static_cast<int>(number("KSIM_DEVICES", 1)), MOST_DEVICES);
    s.peers = number("KSIM_PEERS", 1) != 0;
    s.sm = static_cast<int>(number("KSIM_SM", 90));
    s.multiprocessors = static_cast<int>(number("KSIM_MULTIPROCESSORS", 8));
    s.driver_version = static_cast<int>(number("KSIM_DRIVER_VERSION", 12080));
    s.memory = static_cast<size_t>(number("KSIM_MEMORY", 8ll << 30));
    s.seed = static_cast<uint64_t>(number("KSIM_SEED", 0));
    s.lazy = number("KSIM_LAZY", 0) != 0;
    s.lazy_ms = static_cast<int>(number("KSIM_LAZY_MS", 50));
    s.early = is("KSIM_PDL", "early");
    s.verbose = number("KSIM_VERBOSE", 0) != 0;
    s.check_leaks = is("KSIM_LEAKS", "fail");
    return s;
}

std::string last_message;

void print(const char* format, va_list arguments) {
    char line[2048];
    vsnprintf(line, sizeof line, format, arguments);
    last_message = line;
    fprintf(stderr, "ksim: %s\n", line);
}

struct Injection {
    long long remaining = number("KSIM_FAIL_CALL", 0);
    CUresult code = static_cast<CUresult>(number("KSIM_FAIL_CODE", CUDA_ERROR_UNKNOWN));
};
Injection& injection() {
    static Injection one;
    return one;
}

// After these the context is lost, as on the card.
bool is_sticky(CUresult code) {
    return code == CUDA_ERROR_ECC_UNCORRECTABLE ||
           (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_FAILED &&
            code != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES &&
            code != CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE &&
            code != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
            code != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
            code != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

bool initialized = false;

struct ErrorName {
    CUresult code;
    const char* name;
    const char* text;
};
const ErrorName error_names[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {CUDA_ERROR_UNSUPPORTED_LIMIT, "CUDA_ERROR_UNSUPPORTED_LIMIT",
     "limit is not supported on this architecture"},
    {CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
     "shared object initialization failed"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CUDA_ERROR_LOSSY_QUERY, "CUDA_ERROR_LOSSY_QUERY",
     "the answer would leave out what this call cannot express"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT",
     "the launch timed out and was terminated"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     "cannot set while device is active in this process"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_HARDWARE_STACK_ERROR, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
     "an illegal instruction was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
     "operation not supported on global/shared address space"},
    {CUDA_ERROR_INVALID_PC, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorName* find_error(CUresult code) {
    for (const ErrorName& entry : error_names) {
        if (entry.code == code) return &entry;
    }
    return nullptr;
}

}  // namespace

const Settings& settings() {
    static const Settings one = read_settings();
    return one;
}

void say(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
}

void violation(const char* format, ...) {
    stats.violations++;
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
}

void verbose(const char* format, ...) {
    if (!settings().verbose) return;
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
}

const char* error_name(CUresult code) {
    const ErrorName* found = find_error(code);
    return found ? found->name : "an unnamed error";
}

CUresult fail_context(Context* context, CUresult code) {
    if (context && is_sticky(code) && !context->sticky) context->sticky = code;
    return code;
}

Entry::Entry(const char* call, unsigned flags) : name(call), lock(driver_lock) {
    if (flags & ALWAYS) return;
    stats.calls++;
    verbose("%s", call);
    CUresult refusal = CUDA_SUCCESS;
    Context* context = current_context();
    Injection& injected = injection();
    if (injected.remaining > 0 && --injected.remaining == 0) {
        say("%s fails with %s, as asked for", call, error_name(injected.code));
        refusal = injected.code;
        fail_context(context, refusal);
    } else if (!initialized && strcmp(call, "cuInit") != 0) {
        refusal = CUDA_ERROR_NOT_INITIALIZED;
    } else if (flags & NEEDS_CONTEXT) {
        if (!context) {
            refusal = CUDA_ERROR_INVALID_CONTEXT;
        } else if (!alive(context)) {
            refusal = CUDA_ERROR_CONTEXT_IS_DESTROYED;
        } else if (context->sticky) {
            refusal = context->sticky;
        }
    }
    if (!refusal && flags & UNSAFE_IN_CAPTURE) {
        if (Capture* capture = forbidding_capture()) {
            violation("%s may synchronise, which a capture under way forbids", call);
            invalidate(capture, call);
            refusal = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    (flags & RELEASES ? pending : code) = refusal;
}

Entry::~Entry() = default;

// ---------------------------------------------------------------- driver calls

KSIM_API CUresult cuInit(unsigned flags) {
    Entry entry("cuInit", 0);
    if (entry.code) return entry.code;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (settings().devices <= 0) return CUDA_ERROR_NO_DEVICE;
    initialized = true;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuDriverGetVersion(int* version) {
    Entry entry("cuDriverGetVersion", ALWAYS);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = settings().driver_version;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGetErrorName(CUresult code, const char** name) {
    const ErrorName* found = find_error(code);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = found ? found->name : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

KSIM_API CUresult cuGetErrorString(CUresult code, const char** text) {
    const ErrorName* found = find_error(code);
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = found ? found->text : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---------------------------------------------------------------- the simulator's own calls

// The n-th counted call from now (1: the next) returns `code` without doing its work; calls that
// release something do it and then return `code`. 0 takes a request back.
KSIM_API void ksimFailAfter(long long n, CUresult code) {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    injection().remaining = n;
    injection().code = code;
}

// Calls that can be chosen to fail, so far.
KSIM_API unsigned long long ksimCallCount() {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    return stats.calls;
}

// Fills at most `bytes` of the counters and returns how many bytes there are.
KSIM_API size_t ksimStats(void* out, size_t bytes) {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    memcpy(out, &stats, bytes < sizeof stats ? bytes : sizeof stats);
    return sizeof stats;
}

// The last line that was printed.
KSIM_API const char* ksimLastMessage() {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    return last_message.c_str();
}

// Prints what is still allocated and returns how many things that is.
KSIM_API unsigned long long ksimReportLeaks() {
    std::lock_guard<std::recursive_mutex> guard(driver_lock);
    const struct {
        const char* what;
        uint64_t count;
    } kinds[] = {
        {"device allocations", stats.allocations},
        {"host allocations", stats.host_allocations},
        {"host registrations", stats.registrations},
        {"modules", stats.modules},
        {"graphs", stats.graphs},
        {"executable graphs", stats.execs},
        {"streams", stats.streams},
        {"events", stats.events},
        {"contexts", stats.contexts},
        {"compiler programs", stats.programs},
    };
    unsigned long long total = 0;
    for (const auto& kind : kinds) {
        if (!kind.count) continue;
        say("leak: %llu %s", static_cast<unsigned long long>(kind.count), kind.what);
        total += kind.count;
    }
    return total;
}

namespace {
struct AtExit {
    ~AtExit() {
        if (settings().check_leaks && ksimReportLeaks()) _exit(86);
    }
} at_exit;
}  // namespace
