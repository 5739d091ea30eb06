// Streams, events and the queue behind them. Work runs when it is queued, or, with KSIM_LAZY, when
// something waits for it: then only what that wait covers.
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>

#include "driver.h"

double now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

namespace {

uint64_t next_serial = 1;

void run_front(Stream* stream) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    for (const Point& point : work.after) {
        if (alive(point.stream) || (point.stream && point.stream->is_legacy)) {
            flush(point.stream, point.serial);
        }
    }
    if (!stream->context->sticky) execute(work, stream->context, stream, true);
    stream->done_serial = work.serial;
}

// Streams that a lazy run could still make progress on, in order of their oldest work.
Stream* oldest_pending(Context* context) {
    Stream* oldest = nullptr;
    auto consider = [&](Stream* stream) {
        if (stream->queue.empty() || (context && stream->context != context)) return;
        if (!oldest || stream->queue.front().serial < oldest->queue.front().serial) {
            oldest = stream;
        }
    };
    for (Stream* stream : live<Stream>()) consider(stream);
    for (Context* each : live<Context>()) consider(each->legacy);
    return oldest;
}

// Runs what is pending once the host has made no call for a while: it may be polling memory.
class IdleRunner {
public:
    static void start() {
        static IdleRunner one;
    }
    static std::atomic<double> last_call;

private:
    IdleRunner() {
        if (settings().lazy_ms <= 0) return;
        thread = std::thread([this] {
            std::unique_lock<std::mutex> guard(mutex);
            while (!stop) {
                wake.wait_for(guard, std::chrono::milliseconds(settings().lazy_ms));
                std::lock_guard<std::recursive_mutex> driver(driver_lock);
                if (now_ms() - last_call.load() >= settings().lazy_ms) make_progress();
            }
        });
    }
    ~IdleRunner() {
        {
            std::lock_guard<std::mutex> guard(mutex);
            stop = true;
        }
        wake.notify_all();
        if (thread.joinable()) thread.join();
    }
    std::mutex mutex;
    std::condition_variable wake;
    bool stop = false;
    std::thread thread;
};
std::atomic<double> IdleRunner::last_call{0};

CUresult sync_result(Context* context, const char* call) {
    if (!context->sticky && !check_red_zones(call)) {
        fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return context->sticky;
}

// Waiting for a stream in a capture is an error and ends the capture.
CUresult refuse_capturing(Stream* stream, const char* call) {
    if (!stream->capture) return CUDA_SUCCESS;
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    violation("%s waits for a stream that is being captured", call);
    invalidate(stream->capture.get(), call);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

bool event_done(const Event* event) {
    const Point& point = event->point;
    bool there = alive(point.stream) || (point.stream && point.stream->is_legacy);
    return !event->recorded || !there || point.stream->done_serial >= point.serial;
}

// Large ranges of the device are cleared by pages that cost nothing until they are written.
void fill_bytes(unsigned char* target, int value, size_t bytes) {
    constexpr size_t PAGE = 4096, LARGE = size_t{1} << 30;
    uintptr_t at = reinterpret_cast<uintptr_t>(target), end = at + bytes;
    uintptr_t first = (at + PAGE - 1) / PAGE * PAGE, last = end / PAGE * PAGE;
    if (value != 0 || bytes < LARGE || locate(at).place != Place::Device ||
        mmap(reinterpret_cast<void*>(first), last - first, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
        memset(target, value, bytes);
        return;
    }
    memset(target, 0, first - at);
    memset(reinterpret_cast<void*>(last), 0, end - last);
}

}  // namespace

namespace {

// The pending work of one device, a thread of its own: it is left where its kernels wait for what
// another device stores.
struct Lane {
    ucontext_t own, back;
    char* stack = nullptr;
    Stream* stream = nullptr;
    bool busy = false;
};
Lane lanes[MOST_DEVICES];
bool in_lane = false;

constexpr size_t LANE_BYTES = 1 << 20;
// How long devices may wait for each other and for the host.
constexpr double PEERS_MS = 30e3;

void lane_main() {
    Lane& lane = lanes[active_device];
    while (true) {
        run_front(lane.stream);
        land();
        lane.busy = false;
        swapcontext(&lane.own, &lane.back);
    }
}

Stream* oldest_of_device(CUdevice device) {
    Stream* oldest = nullptr;
    for (Context* each : live<Context>()) {
        if (each->device != device) continue;
        Stream* stream = oldest_pending(each);
        if (stream && (!oldest || stream->queue.front().serial < oldest->queue.front().serial)) {
            oldest = stream;
        }
    }
    return oldest;
}

// Runs work of each device as far as it goes; whether any went on.
bool run_lanes() {
    bool any = false;
    for (CUdevice device = 0; device < settings().devices; device++) {
        Lane& lane = lanes[device];
        if (!lane.busy) {
            lane.stream = oldest_of_device(device);
            if (!lane.stream) continue;
            lane.busy = true;
            any = true;
        }
        if (!lane.stack) {
            lane.stack = static_cast<char*>(mmap(nullptr, LANE_BYTES, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
            getcontext(&lane.own);
            lane.own.uc_stack.ss_sp = lane.stack;
            lane.own.uc_stack.ss_size = LANE_BYTES;
            makecontext(&lane.own, lane_main, 0);
        }
        const uint64_t before = released_stores;
        active_device = device;
        in_lane = true;
        swapcontext(&lane.back, &lane.own);
        in_lane = false;
        any |= !lane.busy || released_stores != before;
    }
    return any;
}

// Runs the devices' work until that of a stream is done up to a serial.
void run_lanes_until(Stream* stream, uint64_t upto) {
    double since = now_ms();
    const uint64_t target = upto < stream->last_serial ? upto : stream->last_serial;
    while (stream->done_serial < target) {
        if (run_lanes()) {
            since = now_ms();
            continue;
        }
        if (now_ms() - since > PEERS_MS) {
            violation("device %d waits for what no other device stores", stream->context->device);
            abort();
        }
        // Others may still queue what this one waits for.
        driver_lock.unlock();
        usleep(100);
        driver_lock.lock();
        if (!alive(stream) && !stream->is_legacy) return;
    }
}

}  // namespace

CUdevice active_device = 0;
uint64_t released_stores = 0;

void yield_device() {
    if (!in_lane) {
        violation("a kernel waits for another device, and there is none");
        abort();
    }
    Lane& lane = lanes[active_device];
    swapcontext(&lane.own, &lane.back);
}

void flush(Stream* stream, uint64_t upto) {
    if (settings().devices > 1 && !in_lane) return run_lanes_until(stream, upto);
    if (stream->queue.empty() || stream->queue.front().serial > upto) return;
    while (!stream->queue.empty() && stream->queue.front().serial <= upto) run_front(stream);
    land();
}

void flush_all(Context* context) {
    if (settings().devices > 1 && !in_lane) {
        auto streams = live<Stream>();
        for (Stream* stream : streams) {
            if (!context || stream->context == context) flush(stream);
        }
        auto contexts = live<Context>();
        for (Context* each : contexts) {
            if (!context || each == context) flush(each->legacy);
        }
        return;
    }
    while (Stream* stream = oldest_pending(context)) run_front(stream);
    land();
}

void make_progress() {
    if (settings().devices > 1) {
        run_lanes();
        return;
    }
    if (Stream* stream = oldest_pending(nullptr)) run_front(stream);
    land();
}

Stream* resolve_stream(CUstream handle, CUresult& code) {
    Context* context = current_context();
    code = CUDA_SUCCESS;
    // 0 and CU_STREAM_LEGACY are one stream; CU_STREAM_PER_THREAD is not simulated.
    uintptr_t number = reinterpret_cast<uintptr_t>(handle);
    if (number <= 1) {
        for (Stream* stream : live<Stream>()) {
            if (stream->capture && stream->context == context &&
                !(stream->flags & CU_STREAM_NON_BLOCKING) &&
                stream->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
                violation("the legacy stream would wait for a stream that is being captured");
                invalidate(stream->capture.get(), "the legacy stream");
                code = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                return nullptr;
            }
        }
        return context->legacy;
    }
    if (number == 2 || !alive(handle)) {
        violation("a stream handle that is not alive: %p", static_cast<void*>(handle));
        code = CUDA_ERROR_INVALID_HANDLE;
        return nullptr;
    }
    if (handle->context != context) {
        violation("a stream of another context");
        code = CUDA_ERROR_INVALID_HANDLE;
        return nullptr;
    }
    return handle;
}

CUresult submit(Stream* stream, Work work, const char* name) {
    if (stream->capture) return capture_submit(stream, std::move(work), name);
    work.serial = next_serial++;
    stream->last_serial = work.serial;
    // The legacy stream and blocking streams wait for each other.
    if (stream->is_legacy) {
        for (Stream* other : live<Stream>()) {
            if (other->context == stream->context && !(other->flags & CU_STREAM_NON_BLOCKING)) {
                work.after.push_back({other, other->last_serial});
            }
        }
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
        work.after.push_back({stream->context->legacy, stream->context->legacy->last_serial});
    }
    stream->queue.push_back(std::move(work));
    if (settings().lazy) {
        IdleRunner::last_call = now_ms();
        IdleRunner::start();
    } else if (settings().devices > 1) {
        // As far as it goes: the host may have to queue more before it goes on.
        while (run_lanes()) {
        }
    } else {
        flush(stream);
    }
    return CUDA_SUCCESS;
}

void execute(const Work& work, Context* context, const void* owner, bool overlaps) {
    if (work.kind != WorkKind::Kernel) {
        land();
        if (context->sticky) return;
    }
    switch (work.kind) {
        case WorkKind::Kernel: execute_kernel(work, owner, overlaps, context); break;
        case WorkKind::Copy: {
            stats.copies++;
            const void* source = work.staged ? static_cast<const void*>(work.staged->data())
                                             : reinterpret_cast<const void*>(work.source);
            Range to = locate(work.target);
            Range from = work.staged ? Range{Place::Pinned, work.bytes} : locate(work.source);
            if (to.room < work.bytes || from.room < work.bytes) {
                violation("a queued copy of %zu bytes: target %s, source %s", work.bytes,
                          describe_address(work.target).c_str(),
                          describe_address(work.source).c_str());
                fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
                break;
            }
            memmove(reinterpret_cast<void*>(work.target), source, work.bytes);
            break;
        }
        case WorkKind::Fill: {
            if (locate(work.target).room < work.bytes) {
                violation("a queued fill of %zu bytes: %s", work.bytes,
                          describe_address(work.target).c_str());
                fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
                break;
            }
            unsigned char* target = reinterpret_cast<unsigned char*>(work.target);
            if (work.width == 1) {
                fill_bytes(target, static_cast<int>(work.pattern & 0xff), work.bytes);
            } else {
                for (size_t at = 0; at < work.bytes; at += work.width) {
                    memcpy(target + at, &work.pattern, work.width);
                }
            }
            break;
        }
        case WorkKind::Host: work.host(work.host_data); break;
        case WorkKind::Record:
            if (alive(work.event)) work.event->milliseconds = now_ms();
            break;
        case WorkKind::Graph:
            stats.graph_launches++;
            execute_graph(*work.nodes, context);
            break;
        case WorkKind::Wait:
        case WorkKind::Empty: break;
    }
}

void destroy_stream(Stream* stream) {
    flush(stream);
    if (stream->capture) {
        violation("cuStreamDestroy_v2 of a stream that is being captured");
        stream->capture->invalidated = true;
        stream->capture->streams.erase(stream);
    }
    live<Stream>().erase(stream);
    stats.streams--;
    delete stream;
}

// ---------------------------------------------------------------- streams

static CUresult create_stream(const char* call, CUstream* out, unsigned flags, int priority) {
    Entry entry(call, NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = new Stream;
    stream->context = current_context();
    stream->flags = flags;
    stream->priority = priority;
    live<Stream>().insert(stream);
    stats.streams++;
    *out = stream;
    return CUDA_SUCCESS;
}
KSIM_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
    return create_stream("cuStreamCreate", out, flags, 0);
}
KSIM_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    return create_stream("cuStreamCreateWithPriority", out, flags, priority);
}

KSIM_API CUresult cuStreamDestroy_v2(CUstream stream) {
    Entry entry("cuStreamDestroy_v2", NEEDS_CONTEXT | RELEASES);
    if (!alive(stream)) {
        violation("cuStreamDestroy_v2 of a stream that is not alive");
        return entry.released(CUDA_ERROR_INVALID_HANDLE);
    }
    destroy_stream(stream);
    return entry.released();
}

KSIM_API CUresult cuStreamSynchronize(CUstream handle) {
    Entry entry("cuStreamSynchronize", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code || (code = refuse_capturing(stream, entry.name))) return code;
    if (Capture* capture = forbidding_capture()) {
        violation("cuStreamSynchronize of another stream while a capture forbids it");
        invalidate(capture, entry.name);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    flush(stream);
    return sync_result(stream->context, entry.name);
}

KSIM_API CUresult cuStreamQuery(CUstream handle) {
    Entry entry("cuStreamQuery", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code || (code = refuse_capturing(stream, entry.name))) return code;
    if (stream->done_serial >= stream->last_serial) return stream->context->sticky;
    make_progress();
    return CUDA_ERROR_NOT_READY;
}

KSIM_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
    Entry entry("cuStreamGetCtx", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    Entry entry("cuStreamGetFlags", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    Entry entry("cuStreamGetPriority", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    Entry entry("cuLaunchHostFunc", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    Work work;
    work.kind = WorkKind::Host;
    work.host = function;
    work.host_data = data;
    return submit(stream, std::move(work), entry.name);
}

// ---------------------------------------------------------------- events

KSIM_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
    Entry entry("cuEventCreate", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    Event* event = new Event;
    event->context = current_context();
    event->flags = flags;
    live<Event>().insert(event);
    stats.events++;
    *out = event;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuEventDestroy_v2(CUevent event) {
    Entry entry("cuEventDestroy_v2", NEEDS_CONTEXT | RELEASES);
    if (!alive(event)) {
        violation("cuEventDestroy_v2 of an event that is not alive");
        return entry.released(CUDA_ERROR_INVALID_HANDLE);
    }
    live<Event>().erase(event);
    stats.events--;
    delete event;
    return entry.released();
}

static CUresult record_event(const char* call, CUevent event, CUstream handle) {
    Entry entry(call, NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    if (stream->capture) return capture_record(stream, event);
    Work work;
    work.kind = WorkKind::Record;
    work.event = event;
    event->capture = nullptr;
    event->captured.clear();
    event->recorded = true;
    event->point = {stream, next_serial};
    return submit(stream, std::move(work), call);
}
KSIM_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record_event("cuEventRecord", event, stream);
}
KSIM_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
    return record_event("cuEventRecordWithFlags", event, stream);
}

KSIM_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
    Entry entry("cuStreamWaitEvent", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    if (stream->capture || event->capture) return capture_wait(stream, event);
    if (!event->recorded) return CUDA_SUCCESS;
    Work work;
    work.kind = WorkKind::Wait;
    work.after.push_back(event->point);
    return submit(stream, std::move(work), entry.name);
}

KSIM_API CUresult cuEventQuery(CUevent event) {
    Entry entry("cuEventQuery", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (event_done(event)) return event->context->sticky;
    make_progress();
    return CUDA_ERROR_NOT_READY;
}

KSIM_API CUresult cuEventSynchronize(CUevent event) {
    Entry entry("cuEventSynchronize", NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
    if (entry.code) return entry.code;
    if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (!event_done(event)) flush(event->point.stream, event->point.serial);
    return sync_result(event->context, entry.name);
}

static CUresult elapsed_time(const char* call, float* milliseconds, CUevent start, CUevent end) {
    Entry entry(call, NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(start) || !alive(end)) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->recorded || !end->recorded ||
        (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!event_done(start) || !event_done(end)) return CUDA_ERROR_NOT_READY;
    *milliseconds = static_cast<float>(end->milliseconds - start->milliseconds);
    return CUDA_SUCCESS;
}
KSIM_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    return elapsed_time("cuEventElapsedTime_v2", milliseconds, start, end);
}
KSIM_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return elapsed_time("cuEventElapsedTime", milliseconds, start, end);
}
