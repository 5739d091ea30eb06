"""Graphs: what can be asked of them, changed in them, and in which order they run."""

import ctypes as c
from pathlib import Path

import numpy as np
import pytest
from support.card import Card, KernelNodeParams, params
from support.card_process import Script

STEP = """
struct P { uint32_t* x; uint32_t add; uint32_t mul; };
KERNEL(k, P) { pdl_wait(); *p.x = *p.x * p.mul + p.add; }
KERNEL(other, P) { pdl_wait(); *p.x = *p.x + 1000 * p.add; }
"""


@pytest.fixture
def card(any_card: Card) -> Card:
    """All of this holds on a real card too."""
    return any_card


def chain(
    card: Card, x: object, stream: c.c_void_p, kernels: list[c.c_void_p], first: int = 1
) -> c.c_void_p:
    with card.capture(stream) as captured:
        for i, kernel in enumerate(kernels):
            card.launch(
                kernel, 1, 1, params(x=x, add=first + i, mul=10), stream=stream, programmatic=i > 0
            )
    return captured[0]


def test_replay_equals_eager_every_time(card: Card) -> None:
    stream = card.stream()
    kernel = card.kernel(STEP)
    x = card.upload(np.zeros(1, np.uint32))
    executable = card.instantiate(chain(card, x, stream, [kernel] * 3))
    expected = 0
    for _ in range(4):
        card.replay(executable, stream)
        for i in range(3):
            expected = (expected * 10 + 1 + i) & 0xFFFFFFFF
        assert x.read(np.uint32)[0] == expected


def test_copies_and_fills_are_nodes(card: Card) -> None:
    stream = card.stream()
    kernel = card.kernel(STEP)
    x, y = card.upload(np.zeros(1, np.uint32)), card.alloc(4)
    host, host_pointer = card.pinned(np.uint32, 1)
    with card.capture(stream) as captured:
        card.call("cuMemsetD32Async", c.c_uint64(x.address), 7, c.c_size_t(1), stream)
        card.launch(kernel, 1, 1, params(x=x, add=1, mul=2), stream=stream, programmatic=True)
        card.call(
            "cuMemcpyDtoDAsync_v2",
            c.c_uint64(y.address),
            c.c_uint64(x.address),
            c.c_size_t(4),
            stream,
        )
        card.call(
            "cuMemcpyDtoHAsync_v2",
            c.c_void_p(host_pointer.address),
            c.c_uint64(y.address),
            c.c_size_t(4),
            stream,
        )
    graph = captured[0]
    types = []
    for node in card.nodes(graph):
        kind = c.c_int()
        card.call("cuGraphNodeGetType", node, c.byref(kind))
        types.append(kind.value)
    assert types == [2, 0, 1, 1]
    # Only a kernel can wait programmatically, and only for a kernel.
    assert card.edges(graph) == [(0, 1, 0, 0), (1, 2, 0, 0), (2, 3, 0, 0)]
    host[0] = 0
    card.replay(card.instantiate(graph), stream)
    card.synchronize(stream)
    assert host[0] == 15


def test_fork_and_join(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t* x; uint32_t to; uint32_t a; uint32_t b; };
    KERNEL(k, P) { p.x[p.to] = p.x[p.a] + p.x[p.b]; }""")
    x = card.upload(np.array([1, 2, 0, 0, 0], np.uint32))
    one, two = card.stream(), card.stream()
    fork, join = c.c_void_p(), c.c_void_p()
    card.call("cuEventCreate", c.byref(fork), 2)
    card.call("cuEventCreate", c.byref(join), 2)
    with card.capture(one) as captured:
        card.call("cuEventRecord", fork, one)
        card.call("cuStreamWaitEvent", two, fork, 0)
        card.launch(kernel, 1, 1, params(x=x, to=2, a=0, b=1), stream=one)
        card.launch(kernel, 1, 1, params(x=x, to=3, a=1, b=1), stream=two)
        card.call("cuEventRecord", join, two)
        card.call("cuStreamWaitEvent", one, join, 0)
        card.launch(kernel, 1, 1, params(x=x, to=4, a=2, b=3), stream=one)
    # Nodes come in no order that is promised.
    edges = card.edges(captured[0])
    ends = [(*sorted(start for start, *_ in edges), *(end for _, end, *_ in edges))]
    assert ends in ([(0, 1, 2, 2)], [(0, 2, 1, 1)], [(1, 2, 0, 0)]), edges
    assert {tuple(data) for _, _, *data in edges} == {(0, 0)}, edges
    card.replay(card.instantiate(captured[0]), one)
    assert x.read(np.uint32).tolist() == [1, 2, 3, 4, 7]
    answer = card.code("cuEventQuery", join)
    # A captured event may not be asked about, and driver 580 says so by an error of its own.
    assert answer in ({907} if card.simulated else {1, 907}), f"cuEventQuery answered {answer}"


def test_kernel_parameters_of_a_node(card: Card) -> None:
    stream = card.stream()
    kernel = card.kernel(STEP)
    x = card.upload(np.zeros(1, np.uint32))
    graph = chain(card, x, stream, [kernel, kernel])
    executable = card.instantiate(graph)
    node = card.nodes(graph)[1]
    seen = KernelNodeParams()
    card.call("cuGraphKernelNodeGetParams_v2", node, c.byref(seen))
    assert seen.func == kernel.value
    assert list(seen.grid) == list(seen.block) == [1, 1, 1]
    values = c.cast(seen.params[0], c.POINTER(c.c_uint32))
    assert [values[2], values[3]] == [2, 10]
    changed = params(x=x, add=5, mul=100)
    pointers = (c.c_void_p * 1)(c.addressof(changed))
    seen.params = c.cast(pointers, c.POINTER(c.c_void_p))
    card.call("cuGraphExecKernelNodeSetParams_v2", executable, node, c.byref(seen))
    card.replay(executable, stream)
    assert x.read(np.uint32)[0] == 105, "1, then 1 * 100 + 5"


class UpdateResult(c.Structure):
    _fields_ = [("result", c.c_int), ("node", c.c_void_p), ("source", c.c_void_p)]


def test_exec_update_wants_the_same_shape(card: Card) -> None:
    stream = card.stream()
    kernel = card.kernel(STEP)
    owner = c.c_void_p()
    card.call("cuFuncGetModule", c.byref(owner), kernel)
    other = card.function(owner, "other")
    x = card.upload(np.zeros(1, np.uint32))
    executable = card.instantiate(chain(card, x, stream, [kernel, kernel]))

    def update(graph: c.c_void_p) -> tuple[int, int]:
        """The call's answer, and the reason."""
        result = UpdateResult()
        code = card.code("cuGraphExecUpdate_v2", executable, graph, c.byref(result))
        return code, result.result

    assert update(chain(card, x, stream, [kernel, other], first=3)) == (0, 0)
    card.replay(executable, stream)
    assert x.read(np.uint32)[0] == 3 + 4000
    assert update(chain(card, x, stream, [kernel] * 3)) == (910, 2), "more nodes"
    with card.capture(stream) as captured:
        card.call("cuMemsetD32Async", c.c_uint64(x.address), 7, c.c_size_t(1), stream)
        card.launch(kernel, 1, 1, params(x=x, add=1, mul=2), stream=stream)
    # The nodes are of other types, and so are their edges: either is a reason.
    found = update(captured[0])
    assert found == (910, 3) or (found == (910, 2) and not card.simulated), found
    # A refused update changes nothing.
    x.write(np.zeros(1, np.uint32))
    card.replay(executable, stream)
    assert x.read(np.uint32)[0] == 3 + 4000


def test_edges_with_data_need_the_new_call(card: Card) -> None:
    """Their number is no secret; the edges without their data are."""
    stream = card.stream()
    x = card.upload(np.zeros(1, np.uint32))
    graph = chain(card, x, stream, [card.kernel(STEP)] * 2)
    count = c.c_size_t()
    card.call("cuGraphGetEdges_v2", graph, None, None, None, c.byref(count))
    assert count.value == 1
    start, end = (c.c_void_p * 1)(), (c.c_void_p * 1)()
    lossy = 402
    answer = card.code("cuGraphGetEdges", graph, start, end, c.byref(count))
    assert answer == lossy, f"cuGraphGetEdges answered {answer}"
    answer = card.code("cuGraphGetEdges_v2", graph, start, end, None, c.byref(count))
    assert answer == lossy, f"cuGraphGetEdges_v2 answered {answer}"


def test_dot_dump(card: Card, tmp_path: Path) -> None:
    stream = card.stream()
    x = card.upload(np.zeros(1, np.uint32))
    graph = chain(card, x, stream, [card.kernel(STEP)] * 2)
    path = tmp_path / "graph.dot"
    card.call("cuGraphDebugDotPrint", graph, str(path).encode(), 0)
    text = path.read_text()
    assert text.startswith("digraph")
    assert text.count("->") == 1
    if card.simulated:
        assert text.count("KERNEL | k | grid 1,1,1 block 1,1,1 shared 0") == 2
        assert '"node_0" -> "node_1"[style="dashed" label="programmatic"];' in text


def test_independent_nodes_run_in_any_order(script: Script) -> None:
    """Two nodes without an edge write the same word: a seed shows the missing dependency."""
    body = """
    kernel = card.kernel('''
    struct P { uint32_t* x; uint32_t value; };
    KERNEL(k, P) { *p.x = p.value; }''')
    x = card.upload(np.zeros(1, np.uint32))
    one, two = card.stream(), card.stream()
    import ctypes as c
    fork, join = c.c_void_p(), c.c_void_p()
    card.call("cuEventCreate", c.byref(fork), 2)
    card.call("cuEventCreate", c.byref(join), 2)
    with card.capture(one) as captured:
        card.call("cuEventRecord", fork, one)
        card.call("cuStreamWaitEvent", two, fork, 0)
        card.launch(kernel, 1, 1, params(x=x, value=1), stream=one)
        card.launch(kernel, 1, 1, params(x=x, value=2), stream=two)
        card.call("cuEventRecord", join, two)
        card.call("cuStreamWaitEvent", one, join, 0)
    card.replay(card.instantiate(captured[0]), one)
    print(x.read(np.uint32)[0])
    """
    seen = {script(body, KSIM_SEED=str(seed)).stdout.strip() for seed in range(6)}
    assert seen == {"1", "2"}
