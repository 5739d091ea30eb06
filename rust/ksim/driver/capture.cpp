// Stream capture: work becomes nodes, a stream's order and events become edges.
#include <algorithm>

#include "driver.h"

namespace {

uint64_t next_capture = 1;

std::vector<Capture*> captures_under_way() {
    std::set<Capture*> seen;
    for (Stream* stream : live<Stream>()) {
        if (stream->capture) seen.insert(stream->capture.get());
    }
    return {seen.begin(), seen.end()};
}

thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

int node_type(WorkKind kind) {
    switch (kind) {
        case WorkKind::Kernel: return CU_GRAPH_NODE_TYPE_KERNEL;
        case WorkKind::Copy: return CU_GRAPH_NODE_TYPE_MEMCPY;
        case WorkKind::Fill: return CU_GRAPH_NODE_TYPE_MEMSET;
        case WorkKind::Host: return CU_GRAPH_NODE_TYPE_HOST;
        default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

void merge(std::vector<Node*>& into, const std::vector<Node*>& from) {
    for (Node* node : from) {
        if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
    }
}

void mark_ancestors(Node* node, std::set<Node*>& seen) {
    std::vector<Node*> open = {node};
    while (!open.empty()) {
        Node* at = open.back();
        open.pop_back();
        if (!seen.insert(at).second) continue;
        for (const Edge& edge : at->edges) open.push_back(edge.from);
    }
}

}  // namespace

int node_type_of(const Node* node) { return node_type(node->work.kind); }

Capture* forbidding_capture() {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return nullptr;
    for (Capture* capture : captures_under_way()) {
        if (capture->invalidated) continue;
        if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
            thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
            return capture;
        }
        if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
            capture->thread == std::this_thread::get_id()) {
            return capture;
        }
    }
    return nullptr;
}

void invalidate(Capture* capture, const char* name) {
    if (!capture->invalidated) say("%s invalidates the capture under way", name);
    capture->invalidated = true;
}

CUresult capture_submit(Stream* stream, Work&& work, const char* name) {
    Capture* capture = stream->capture.get();
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (work.kind == WorkKind::Graph) {
        violation("%s: graphs within graphs are not simulated", name);
        invalidate(capture, name);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    auto node = std::make_unique<Node>();
    node->graph = capture->graph;
    node->work = std::move(work);
    node->index = capture->graph->nodes.size();
    // A programmatic launch waits programmatically for the one kernel before it, fully for others.
    bool programmatic = node->work.kind == WorkKind::Kernel && node->work.programmatic &&
                        stream->frontier.size() == 1 &&
                        stream->frontier[0]->work.kind == WorkKind::Kernel;
    for (Node* from : stream->frontier) {
        CUgraphEdgeData data = {};
        if (programmatic) {
            data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
            data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        }
        node->edges.push_back({from, data});
        node->work.edges.push_back({from->index, programmatic});
    }
    stream->frontier = {node.get()};
    live<Node>().insert(node.get());
    capture->graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

CUresult capture_record(Stream* stream, Event* event) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->captured = stream->frontier;
    event->recorded = false;
    return CUDA_SUCCESS;
}

CUresult capture_wait(Stream* stream, Event* event) {
    if (stream->capture && stream->capture->invalidated) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (!event->capture) {
        if (!event->recorded) return CUDA_SUCCESS;
        violation("a captured stream waits for an event that was recorded outside the capture");
        invalidate(stream->capture.get(), "cuStreamWaitEvent");
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!stream->capture) {
        bool over = true;
        for (Capture* capture : captures_under_way()) over &= capture != event->capture.get();
        if (over || event->capture->invalidated) return CUDA_ERROR_CAPTURED_EVENT;
        if (stream->is_legacy) {
            violation("the legacy stream cannot be captured");
            invalidate(event->capture.get(), "cuStreamWaitEvent");
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
        stream->capture = event->capture;
        stream->capture->streams.insert(stream);
        stream->frontier.clear();
    } else if (stream->capture != event->capture) {
        violation("a wait would merge two captures");
        invalidate(stream->capture.get(), "cuStreamWaitEvent");
        invalidate(event->capture.get(), "cuStreamWaitEvent");
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    merge(stream->frontier, event->captured);
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- calls

KSIM_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    Entry entry("cuStreamBeginCapture_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (reinterpret_cast<uintptr_t>(stream) <= 1) {
        violation("the legacy stream cannot be captured");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (!alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->graph = new Graph;
    capture->graph->capturing = true;
    capture->origin = stream;
    capture->streams = {stream};
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->id = next_capture++;
    live<Graph>().insert(capture->graph);
    stats.graphs++;
    stream->capture = capture;
    stream->frontier.clear();
    return CUDA_SUCCESS;
}

void destroy_graph(Graph* graph) {
    for (auto& node : graph->nodes) live<Node>().erase(node.get());
    live<Graph>().erase(graph);
    stats.graphs--;
    delete graph;
}

KSIM_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* out) {
    Entry entry("cuStreamEndCapture", NEEDS_CONTEXT | RELEASES);
    if (out) *out = nullptr;
    if (!out) return entry.released(CUDA_ERROR_INVALID_VALUE);
    if (!alive(stream)) return entry.released(CUDA_ERROR_INVALID_HANDLE);
    if (!stream->capture) return entry.released(CUDA_ERROR_ILLEGAL_STATE);
    std::shared_ptr<Capture> capture = stream->capture;
    if (capture->origin != stream) return entry.released(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        capture->thread != std::this_thread::get_id()) {
        violation("a capture is ended by another thread than began it");
        return entry.released(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    CUresult code = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    std::set<Node*> joined;
    for (Node* node : stream->frontier) mark_ancestors(node, joined);
    for (Stream* each : capture->streams) {
        for (Node* node : each->frontier) {
            if (!code && !joined.count(node)) {
                violation("a stream forked into the capture was never joined back");
                code = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
            }
        }
    }
    for (Stream* each : capture->streams) {
        each->capture = nullptr;
        each->frontier.clear();
    }
    capture->graph->capturing = false;
    code = entry.released(code);
    if (code) {
        destroy_graph(capture->graph);
    } else {
        *out = capture->graph;
    }
    capture->graph = nullptr;
    return code;
}

static int capture_status(const Stream* stream) {
    if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

KSIM_API CUresult cuStreamIsCapturing(CUstream stream, int* status) {
    Entry entry("cuStreamIsCapturing", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    bool legacy = reinterpret_cast<uintptr_t>(stream) <= 1;
    if (!legacy && !alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
    *status = legacy ? CU_STREAM_CAPTURE_STATUS_NONE : capture_status(stream);
    return CUDA_SUCCESS;
}

static CUresult capture_info(const char* call, CUstream stream, int* status,
                             unsigned long long* id, CUgraph* graph,
                             const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                             size_t* count) {
    Entry entry(call, NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(stream)) return CUDA_ERROR_INVALID_HANDLE;
    *status = capture_status(stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (dependencies) *dependencies = stream->frontier.data();
    if (edges) *edges = nullptr;
    if (count) *count = stream->frontier.size();
    return CUDA_SUCCESS;
}
KSIM_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status, unsigned long long* id,
                                            CUgraph* graph, const CUgraphNode** dependencies,
                                            size_t* count) {
    return capture_info("cuStreamGetCaptureInfo_v2", stream, status, id, graph, dependencies,
                        nullptr, count);
}
KSIM_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int* status, unsigned long long* id,
                                            CUgraph* graph, const CUgraphNode** dependencies,
                                            const CUgraphEdgeData** edges, size_t* count) {
    return capture_info("cuStreamGetCaptureInfo_v3", stream, status, id, graph, dependencies,
                        edges, count);
}

KSIM_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    Entry entry("cuThreadExchangeStreamCaptureMode", 0);
    if (entry.code) return entry.code;
    if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}
