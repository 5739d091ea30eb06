// Graphs: questions about them, instantiation, updates and replay.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"

int node_type_of(const Node* node);
void destroy_graph(Graph* graph);

namespace {

bool contains(Function* function, uint64_t id) { return alive(function) && function->id == id; }

CUresult check_graph(CUgraph graph) {
    if (!alive(graph)) {
        violation("a graph handle that is not alive: %p", static_cast<void*>(graph));
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return graph->capturing ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

CUresult check_exec(CUgraphExec exec) {
    if (alive(exec)) return CUDA_SUCCESS;
    violation("an executable graph that is not alive: %p", static_cast<void*>(exec));
    return CUDA_ERROR_INVALID_HANDLE;
}

Exec* instantiate(Graph* graph, unsigned long long flags) {
    Exec* exec = new Exec;
    exec->context = current_context();
    exec->nodes = std::make_shared<Nodes>();
    exec->flags = flags;
    for (const auto& node : graph->nodes) {
        exec->nodes->push_back(node->work);
        exec->sources.push_back(node.get());
    }
    live<Exec>().insert(exec);
    stats.execs++;
    return exec;
}

// A replay that is still queued keeps the nodes as they were.
Nodes& nodes_to_change(Exec* exec) {
    if (exec->nodes.use_count() > 1) exec->nodes = std::make_shared<Nodes>(*exec->nodes);
    return *exec->nodes;
}

// An order that respects the edges: as captured, or with a seed any other.
std::vector<size_t> replay_order(const Nodes& nodes) {
    std::vector<size_t> order;
    std::vector<size_t> missing(nodes.size());
    std::vector<std::vector<size_t>> dependents(nodes.size());
    std::vector<size_t> ready;
    for (size_t i = 0; i < nodes.size(); i++) {
        missing[i] = nodes[i].edges.size();
        for (const auto& edge : nodes[i].edges) dependents[edge.first].push_back(i);
        if (missing[i] == 0) ready.push_back(i);
    }
    uint64_t state = settings().seed;
    while (!ready.empty()) {
        size_t pick = 0;
        if (state) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            pick = static_cast<size_t>((state >> 33) % ready.size());
        }
        size_t node = ready[pick];
        ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(pick));
        order.push_back(node);
        for (size_t next : dependents[node]) {
            if (--missing[next] == 0) ready.push_back(next);
        }
        if (!state) std::sort(ready.begin(), ready.end());
    }
    return order;
}

}  // namespace

void execute_graph(const Nodes& nodes, Context* context) {
    std::vector<size_t> order = replay_order(nodes);
    for (size_t i = 0; i < order.size() && !context->sticky; i++) {
        const auto& edges = nodes[order[i]].edges;
        bool overlaps = i > 0 && edges == std::vector<std::pair<size_t, bool>>{{order[i - 1], true}};
        execute(nodes[order[i]], context, &nodes, overlaps);
    }
    land();
}

// ---------------------------------------------------------------- questions

KSIM_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
    Entry entry("cuGraphCreate", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    *out = new Graph;
    live<Graph>().insert(*out);
    stats.graphs++;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphDestroy(CUgraph graph) {
    Entry entry("cuGraphDestroy", RELEASES);
    if (CUresult code = check_graph(graph)) return entry.released(code);
    destroy_graph(graph);
    return entry.released();
}

KSIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    Entry entry("cuGraphGetNodes", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_graph(graph)) return code;
    if (nodes) {
        for (size_t i = 0; i < *count; i++) {
            nodes[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
        }
    }
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    Entry entry("cuGraphGetRootNodes", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_graph(graph)) return code;
    size_t found = 0;
    for (const auto& node : graph->nodes) {
        if (!node->edges.empty()) continue;
        if (nodes && found < *count) nodes[found] = node.get();
        found++;
    }
    *count = found;
    return CUDA_SUCCESS;
}

static CUresult graph_edges(const char* call, CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count) {
    Entry entry(call, NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!count || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    // Room for none is refused, as driver 580 does.
    if (from && *count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_graph(graph)) return code;
    size_t found = 0;
    for (const auto& node : graph->nodes) {
        for (const Edge& edge : node->edges) {
            // Their number may be asked for, but not the edges without the data that they have.
            if (from && !data && edge.data.type) return CUDA_ERROR_LOSSY_QUERY;
            if (from && found < *count) {
                from[found] = edge.from;
                to[found] = node.get();
                if (data) data[found] = edge.data;
            }
            found++;
        }
    }
    *count = found;
    return CUDA_SUCCESS;
}
KSIM_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                  size_t* count) {
    return graph_edges("cuGraphGetEdges", graph, from, to, nullptr, count);
}
KSIM_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                     CUgraphEdgeData* data, size_t* count) {
    return graph_edges("cuGraphGetEdges_v2", graph, from, to, data, count);
}

KSIM_API CUresult cuGraphNodeGetType(CUgraphNode node, int* type) {
    Entry entry("cuGraphNodeGetType", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(node)) return CUDA_ERROR_INVALID_HANDLE;
    *type = node_type_of(node);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
    Entry entry("cuGraphKernelNodeGetParams_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(node) || node->work.kind != WorkKind::Kernel) return CUDA_ERROR_INVALID_HANDLE;
    Work& work = node->work;
    node->param_pointer = work.params.data();
    *out = {work.function,    work.grid[0],  work.grid[1], work.grid[2],
            work.block[0],    work.block[1], work.block[2], work.shared_bytes,
            &node->param_pointer, nullptr,   nullptr,       current_context()};
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned) {
    Entry entry("cuGraphDebugDotPrint", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_graph(graph)) return code;
    FILE* file = fopen(path, "w");
    if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph\"\n");
    static const char* const names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY"};
    for (const auto& node : graph->nodes) {
        const Work& work = node->work;
        fprintf(file, "\"node_%zu\"[shape=\"record\" label=\"{%zu | %s", node->index, node->index,
                names[node_type_of(node.get())]);
        if (work.kind == WorkKind::Kernel) {
            fprintf(file, " | %s | grid %u,%u,%u block %u,%u,%u shared %u",
                    alive(work.function) ? work.function->name.c_str() : "unloaded", work.grid[0],
                    work.grid[1], work.grid[2], work.block[0], work.block[1], work.block[2],
                    work.shared_bytes);
        } else if (work.bytes) {
            fprintf(file, " | %zu bytes", work.bytes);
        }
        fprintf(file, "}\"];\n");
    }
    for (const auto& node : graph->nodes) {
        for (const Edge& edge : node->edges) {
            fprintf(file, "\"node_%zu\" -> \"node_%zu\"%s;\n", edge.from->index, node->index,
                    edge.data.type ? "[style=\"dashed\" label=\"programmatic\"]" : "");
        }
    }
    fprintf(file, "}\n}\n");
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// ---------------------------------------------------------------- instantiation and replay

KSIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph,
                                              unsigned long long flags) {
    Entry entry("cuGraphInstantiateWithFlags", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || flags & ~15ull) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_graph(graph)) return code;
    *out = instantiate(graph, flags);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph,
                                               CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
    Entry entry("cuGraphInstantiateWithParams", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!out || !params) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_graph(graph)) return code;
    *out = instantiate(graph, params->flags);
    params->error_node = nullptr;
    params->result = 0;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphExecGetFlags(CUgraphExec exec, unsigned long long* flags) {
    Entry entry("cuGraphExecGetFlags", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_exec(exec)) return code;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    Entry entry("cuGraphExecDestroy", RELEASES);
    if (CUresult code = check_exec(exec)) return entry.released(code);
    live<Exec>().erase(exec);
    stats.execs--;
    delete exec;
    return entry.released();
}

KSIM_API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
    Entry entry("cuGraphUpload", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (CUresult code = check_exec(exec)) return code;
    CUresult code;
    resolve_stream(handle, code);
    return code;
}

KSIM_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    Entry entry("cuGraphLaunch", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (CUresult code = check_exec(exec)) return code;
    CUresult code;
    Stream* stream = resolve_stream(handle, code);
    if (code) return code;
    // A graph keeps no module alive: this would run freed code on a card.
    for (const Work& work : *exec->nodes) {
        if (work.kind == WorkKind::Kernel && !contains(work.function, work.function_id)) {
            violation("cuGraphLaunch: the module of one of its kernels has been unloaded");
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    Work work;
    work.kind = WorkKind::Graph;
    work.nodes = exec->nodes;
    return submit(stream, std::move(work), entry.name);
}

KSIM_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS* params) {
    Entry entry("cuGraphExecKernelNodeSetParams_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check_exec(exec)) return code;
    if (!alive(node)) return CUDA_ERROR_INVALID_HANDLE;
    auto found = std::find(exec->sources.begin(), exec->sources.end(), node);
    if (found == exec->sources.end()) return CUDA_ERROR_INVALID_VALUE;
    size_t index = static_cast<size_t>(found - exec->sources.begin());
    if ((*exec->nodes)[index].kind != WorkKind::Kernel) return CUDA_ERROR_INVALID_VALUE;
    Work changed = (*exec->nodes)[index];
    changed.function = params->function;
    changed.grid[0] = params->grid_x, changed.grid[1] = params->grid_y;
    changed.grid[2] = params->grid_z;
    changed.block[0] = params->block_x, changed.block[1] = params->block_y;
    changed.block[2] = params->block_z;
    changed.shared_bytes = params->shared_bytes;
    if (CUresult code = check_launch(changed, params->params, params->extra, entry.name)) {
        return code;
    }
    nodes_to_change(exec)[index] = std::move(changed);
    return CUDA_SUCCESS;
}

KSIM_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                       CUgraphExecUpdateResultInfo* result) {
    Entry entry("cuGraphExecUpdate_v2", NEEDS_CONTEXT);
    if (entry.code) return entry.code;
    if (!result) return CUDA_ERROR_INVALID_VALUE;
    *result = {CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
    if (CUresult code = check_exec(exec)) return code;
    if (CUresult code = check_graph(graph)) return code;
    const Nodes& old = *exec->nodes;
    auto refuse = [&](int why, Node* node) {
        *result = {why, node, nullptr};
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    };
    if (graph->nodes.size() != old.size()) {
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
    }
    for (size_t i = 0; i < old.size(); i++) {
        Node* node = graph->nodes[i].get();
        if (node->work.edges != old[i].edges) {
            return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node);
        }
        if (node->work.kind != old[i].kind) {
            return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node);
        }
    }
    Nodes& nodes = nodes_to_change(exec);
    for (size_t i = 0; i < nodes.size(); i++) nodes[i] = graph->nodes[i]->work;
    *result = {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
    return CUDA_SUCCESS;
}
