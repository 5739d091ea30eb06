// The simulated driver's state and the functions its files share. Everything here is guarded by
// one lock, which each entry point takes (see Entry).
#pragma once
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../shim/abi.h"
#include "cuda_types.h"

#define KSIM_API extern "C" __attribute__((visibility("default")))

// ---------------------------------------------------------------- settings

struct Settings {
    int devices;
    bool peers;
    int sm;
    int multiprocessors;
    int driver_version;
    size_t memory;
    uint64_t seed;
    bool lazy;
    int lazy_ms;
    bool early;
    bool verbose;
    bool check_leaks;
};
const Settings& settings();
// Prints a line on standard error and keeps it for ksimLastMessage.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The same for what a caller did wrong: counted as a violation.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));
void verbose(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---------------------------------------------------------------- statistics

// What ksimStats fills; the order is its interface.
struct Stats {
    uint64_t allocations, allocation_bytes, peak_bytes;
    uint64_t host_allocations, host_bytes, registrations;
    uint64_t modules, graphs, execs, streams, events, contexts, programs;
    uint64_t calls, launches, graph_launches, copies, compiles;
    uint64_t violations;
};
extern Stats stats;

// ---------------------------------------------------------------- work

enum class WorkKind { Kernel, Copy, Fill, Host, Record, Wait, Empty, Graph };

struct Work;
using Nodes = std::vector<Work>;

// Where a stream stood: that of `serial` is done, and all before it on that stream.
struct Point {
    Stream* stream = nullptr;
    uint64_t serial = 0;
};

struct Work {
    WorkKind kind = WorkKind::Empty;
    // Kernel
    Function* function = nullptr;
    uint64_t function_id = 0;
    unsigned grid[3] = {1, 1, 1};
    unsigned block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    unsigned cluster = 1;
    bool programmatic = false;
    std::vector<unsigned char> params;
    // Copy and Fill: `target` from `source` or from a pattern of `width` bytes.
    uintptr_t target = 0;
    uintptr_t source = 0;
    size_t bytes = 0;
    uint32_t pattern = 0;
    unsigned width = 1;
    std::shared_ptr<std::vector<unsigned char>> staged;
    // Host
    CUhostFn host = nullptr;
    void* host_data = nullptr;
    // Record
    Event* event = nullptr;
    // Graph
    std::shared_ptr<const Nodes> nodes;
    // What has to be done first, beyond the stream's own order.
    std::vector<Point> after;
    // In a graph: earlier nodes by number, and whether the edge is programmatic.
    std::vector<std::pair<size_t, bool>> edges;
    uint64_t serial = 0;
};

// ---------------------------------------------------------------- objects

struct Capture;

struct Context {
    CUdevice device = 0;
    // Contexts whose memory its kernels may use.
    std::set<Context*> peers;
    bool primary = false;
    unsigned references = 0;
    unsigned flags = 0;
    CUresult sticky = CUDA_SUCCESS;
    Stream* legacy = nullptr;
};

struct Stream {
    Context* context = nullptr;
    unsigned flags = 0;
    int priority = 0;
    bool is_legacy = false;
    std::deque<Work> queue;
    uint64_t last_serial = 0;
    uint64_t done_serial = 0;
    std::shared_ptr<Capture> capture;
    std::vector<Node*> frontier;
};

struct Event {
    Context* context = nullptr;
    unsigned flags = 0;
    Point point;
    bool recorded = false;
    double milliseconds = 0;
    std::shared_ptr<Capture> capture;
    std::vector<Node*> captured;
};

struct Module {
    Context* context = nullptr;
    void* object = nullptr;
    const ksim_object* info = nullptr;
    std::string path;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Function {
    Module* module = nullptr;
    std::string name;
    const ksim_kernel* kernel = nullptr;
    uint64_t id = 0;
    int max_dynamic_shared = 0;
    int carveout = -1;
};

struct Edge {
    Node* from;
    CUgraphEdgeData data;
};

struct Node {
    Graph* graph = nullptr;
    Work work;
    std::vector<Edge> edges;
    size_t index = 0;
    void* param_pointer = nullptr;
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    bool capturing = false;
};

struct Exec {
    Context* context = nullptr;
    std::shared_ptr<Nodes> nodes;
    std::vector<Node*> sources;
    unsigned long long flags = 0;
};

struct Capture {
    Graph* graph = nullptr;
    Stream* origin = nullptr;
    std::set<Stream*> streams;
    int mode = 0;
    std::thread::id thread;
    uint64_t id = 0;
    bool invalidated = false;
};

// ---------------------------------------------------------------- entry points

enum EntryFlags : unsigned {
    NEEDS_CONTEXT = 1,
    // May synchronise: forbidden while a capture that forbids it is under way.
    UNSAFE_IN_CAPTURE = 2,
    // Gives something back: does its work whatever happens, and reports the error afterwards.
    RELEASES = 4,
    // Works before cuInit and is never chosen to fail.
    ALWAYS = 8,
};

// First line of every entry point: takes the lock, counts the call, and says in `code` why the call
// must not go on (an injected failure, a broken context, a capture).
class Entry {
public:
    Entry(const char* name, unsigned flags);
    ~Entry();
    // What a releasing call returns.
    CUresult released(CUresult result = CUDA_SUCCESS) const {
        return pending ? pending : result;
    }
    CUresult code = CUDA_SUCCESS;
    const char* name;

private:
    std::unique_lock<std::recursive_mutex> lock;
    CUresult pending = CUDA_SUCCESS;
};

extern std::recursive_mutex driver_lock;
const char* error_name(CUresult code);

// ---------------------------------------------------------------- shared between files

Context* current_context();
template <typename T>
std::set<T*>& live();
template <typename T>
bool alive(T* object) {
    return object && live<T>().count(object);
}
void destroy_context_contents(Context* context);

// Memory. A range is device memory, pinned host memory, or pageable host memory.
enum class Place { Device, Pinned, Pageable };
struct Range {
    Place place;
    // From the address to the end of its allocation; unlimited for pageable memory.
    size_t room;
};
Range locate(uintptr_t address);
// Says where an address lies with respect to what is and was allocated.
std::string describe_address(uintptr_t address);
bool check_red_zones(const char* when);
void free_context_memory(Context* context);
// Variables of a module are device memory too.
void add_global(Module* module, uintptr_t address, size_t bytes);
void drop_globals(Module* module);

// Streams.
Stream* resolve_stream(CUstream stream, CUresult& code);
// Queues work behind the stream's own and runs it, or adds it to the capture under way.
CUresult submit(Stream* stream, Work work, const char* name);
// Runs what is queued: all of it, one stream's, or a stream's up to a point.
void flush_all(Context* context);
// Lets other devices run, from work of this one that waits for them.
void yield_device();
// The device whose work is being run.
extern CUdevice active_device;
extern uint64_t released_stores;
constexpr int MOST_DEVICES = 8;
void flush(Stream* stream, uint64_t upto = UINT64_MAX);
// Runs one piece of pending work, for calls that ask about progress.
void make_progress();
void destroy_stream(Stream* stream);
CUresult capture_submit(Stream* stream, Work&& work, const char* name);
CUresult capture_record(Stream* stream, Event* event);
CUresult capture_wait(Stream* stream, Event* event);
// The capture that forbids an unsafe call of this thread, if any.
Capture* forbidding_capture();
void invalidate(Capture* capture, const char* name);
double now_ms();

// Kernels.
CUresult check_launch(Work& work, void** params, void** extra, const char* name);
// `owner` is the stream or graph that it is of; `overlaps`: what that ran last is all it waits for.
void execute_kernel(const Work& work, const void* owner, bool overlaps, Context* context);
// Ends the kernels that have started: before anything else runs, and before the host goes on.
void land();
void unload_module(Module* module);
void execute_graph(const Nodes& nodes, Context* context);
void execute(const Work& work, Context* context, const void* owner, bool overlaps);
CUresult fail_context(Context* context, CUresult code);
