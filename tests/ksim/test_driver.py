"""The driver as a process sees it: devices, versions, lazy work, injected failures."""

import numpy as np
import pytest
from support.card import Card, CompileError
from support.card_process import Script


def output(script: Script, body: str, **environment: str) -> str:
    done = script(body, opened=environment.pop("opened", "yes") == "yes", **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_device(script: Script) -> None:
    body = "print(card.code('cuInit', 0), card.code('cuDeviceGetCount', None))"
    assert output(script, body, opened="no", KSIM_DEVICES="0") == "100 3"


def test_calls_before_init_are_refused(script: Script) -> None:
    body = "print(card.code('cuDevicePrimaryCtxRetain', None, 0))"
    assert output(script, body, opened="no") == "3"


def test_devices_and_versions(script: Script) -> None:
    body = """
    import ctypes as c
    n, major, minor, name = c.c_int(), c.c_int(), c.c_int(), c.create_string_buffer(64)
    card.call("cuDeviceGetCount", c.byref(n)); print(n.value)
    card.call("cuDriverGetVersion", c.byref(n)); print(n.value)
    card.call("cuDeviceGetName", name, 64, 1); print(name.value.decode())
    card.call("cuDeviceGetAttribute", c.byref(major), 75, 1)
    card.call("cuDeviceGetAttribute", c.byref(minor), 76, 1)
    print(major.value, minor.value)
    card.nvrtc.nvrtcVersion(c.byref(major), c.byref(minor)); print(major.value, minor.value)
    card.nvrtc.nvrtcGetNumSupportedArchs(c.byref(n))
    archs = (c.c_int * n.value)(); card.nvrtc.nvrtcGetSupportedArchs(archs); print(list(archs))
    """
    lines = output(
        script,
        body,
        KSIM_DEVICES="2",
        KSIM_SM="86",
        KSIM_DRIVER_VERSION="12020",
        KSIM_NVRTC_VERSION="12.1",
    ).splitlines()
    assert lines[:5] == ["2", "12020", "Simulated sm_86", "8 6", "12 1"]
    assert lines[5] == "[75, 80, 86, 87, 89, 90, 100, 120]"


def test_programmatic_launches_need_capability_9(script: Script) -> None:
    body = """
    k = card.kernel("struct P { uint32_t n; };\\nKERNEL(k, P) { pdl_wait(); }", "k", arch="sm_86")
    card.launch(k, 1, 1, params(n=1))
    try:
        card.launch(k, 1, 1, params(n=1), programmatic=True)
    except CudaError as e:
        print(e.code, e.message)
    """.replace(', "k", arch="sm_86"', "").replace(
        "card.kernel(",
        "(lambda s: card.function(card.load(card.compile("
        "'#include \"common.cuh\"\\n' + s, arch='sm_86')), 'k'))(",
    )
    expected = "801 programmatic launches need compute capability 9.0, this is 8.6"
    assert output(script, body, KSIM_SM="86") == expected


def test_unsimulated_calls_are_refused_not_missing(card: Card) -> None:
    assert card.code("cuMemAllocManaged", None, 0, 0) == 801
    assert card.code("cuTexRefCreate", None) == 801


def test_a_missing_compiler_is_named(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KSIM_CACHE")
    monkeypatch.setenv("KSIM_CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="needs no-such-compiler, which is not on PATH"):
        card.compile("__device__ int x;")


def test_a_compile_error_is_in_the_log(card: Card) -> None:
    with pytest.raises(CompileError, match=r"test\.cu:3:.*no_such_function"):
        card.kernel("struct P { int x; };\nKERNEL(k, P) { no_such_function(p.x); }")
    with pytest.raises(CompileError, match="unrecognized option --fast"):
        card.compile("", "--fast")
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        card.compile("", arch="sm_12")


# ---------------------------------------------------------------- lazy work

LAZY = """
import time, ctypes as c
k = card.kernel('''
struct P { const uint32_t* x; uint32_t* y; };
KERNEL(k, P) { *p.y = *p.x + 1; }''')
x, y = card.upload(np.array([5], np.uint32)), card.upload(np.zeros(1, np.uint32))
stream = card.stream()
host, pointer = card.pinned(np.uint32, 1)
host[0] = 0
"""


def test_lazy_work_shows_a_read_that_does_not_wait(script: Script) -> None:
    body = (
        LAZY
        + """
card.launch(k, 1, 1, params(x=x, y=pointer), stream=stream)
early = host[0]
card.synchronize(stream)
print(early, host[0])
"""
    )
    assert output(script, body, KSIM_LAZY="1", KSIM_LAZY_MS="0") == "0 6"
    assert output(script, body) == "6 6"


def test_lazy_work_shows_host_memory_changed_too_soon(script: Script) -> None:
    body = (
        LAZY
        + """
def copy():
    card.call("cuMemcpyHtoDAsync_v2", c.c_uint64(y.address), c.c_void_p(pointer.address),
              c.c_size_t(4), stream)
host[0] = 1
copy()
host[0] = 2
card.synchronize(stream)
pinned = y.read(np.uint32)[0]
page = np.array([1], np.uint32)
card.call("cuMemcpyHtoDAsync_v2", c.c_uint64(y.address), page.ctypes.data_as(c.c_void_p),
          c.c_size_t(4), stream)
page[0] = 2
card.synchronize(stream)
print(pinned, y.read(np.uint32)[0])
"""
    )
    assert output(script, body, KSIM_LAZY="1", KSIM_LAZY_MS="0") == "2 1"


def test_lazy_streams_wait_only_for_what_they_depend_on(script: Script) -> None:
    body = (
        LAZY
        + """
other = card.stream()
event = c.c_void_p()
card.call("cuEventCreate", c.byref(event), 0)
card.launch(k, 1, 1, params(x=x, y=pointer), stream=stream)
card.call("cuEventRecord", event, stream)
card.launch(k, 1, 1, params(x=x, y=y), stream=other)
card.synchronize(other)
apart = host[0]
card.call("cuStreamWaitEvent", other, event, 0)
card.synchronize(other)
print(apart, host[0])
"""
    )
    assert output(script, body, KSIM_LAZY="1", KSIM_LAZY_MS="0") == "0 6"


def test_lazy_work_gets_done_while_the_host_polls(script: Script) -> None:
    polling = (
        LAZY
        + """
card.launch(k, 1, 1, params(x=x, y=pointer), stream=stream)
deadline = time.time() + 20
while host[0] == 0 and time.time() < deadline:
    time.sleep(0.001)
print(host[0])
"""
    )
    assert output(script, polling, KSIM_LAZY="1", KSIM_LAZY_MS="5") == "6"
    asking = (
        LAZY
        + """
card.launch(k, 1, 1, params(x=x, y=pointer), stream=stream)
asked = 0
while card.code("cuStreamQuery", stream) == 600:
    asked += 1
print(asked, host[0])
"""
    )
    assert output(script, asking, KSIM_LAZY="1", KSIM_LAZY_MS="0") == "1 6"


def test_a_queued_replay_keeps_its_parameters(script: Script) -> None:
    body = (
        LAZY
        + """
with card.capture(stream) as captured:
    card.launch(k, 1, 1, params(x=x, y=y), stream=stream)
graph = captured[0]
executable = card.instantiate(graph)
card.replay(executable, stream)
changed = params(x=x, y=pointer)
node = card.nodes(graph)[0]
seen = KernelNodeParams()
card.call("cuGraphKernelNodeGetParams_v2", node, c.byref(seen))
seen.params = c.cast((c.c_void_p * 1)(c.addressof(changed)), c.POINTER(c.c_void_p))
card.call("cuGraphExecKernelNodeSetParams_v2", executable, node, c.byref(seen))
card.synchronize(stream)
print(host[0], y.read(np.uint32)[0])
"""
    )
    assert output(script, body, KSIM_LAZY="1", KSIM_LAZY_MS="0") == "0 6"


# ---------------------------------------------------------------- schedules

RACE = """
k = card.kernel('''
struct P { uint32_t* x; };
KERNEL(k, P) {
    SHARED uint32_t box[64];
    box[threadIdx.x] = threadIdx.x;
    %s
    p.x[threadIdx.x] = box[63 - threadIdx.x];
}''')
x = card.alloc(256)
card.launch(k, 1, 64, params(x=x))
print((x.read(np.uint32) == 63 - np.arange(64)).all())
"""


def test_a_missing_barrier_shows(script: Script) -> None:
    for seed in range(4):
        assert output(script, RACE % "__syncthreads();", KSIM_SEED=str(seed)) == "True"
        assert output(script, RACE % "", KSIM_SEED=str(seed)) == "False"


def test_block_order_follows_the_seed(script: Script) -> None:
    body = """
    k = card.kernel('''
    struct P { uint32_t* next; uint32_t* order; };
    KERNEL(k, P) { p.order[atomicAdd(p.next, 1)] = blockIdx.x; }''')
    order = card.alloc(64)
    card.launch(k, 16, 1, params(next=card.upload(np.zeros(1, np.uint32)), order=order))
    print(order.read(np.uint32).tolist())
    """
    assert output(script, body) == str(list(range(16)))
    one, again, two = (output(script, body, KSIM_SEED=s) for s in ("1", "1", "2"))
    assert one == again != two
    assert sorted(eval(one)) == sorted(eval(two)) == list(range(16))


PDL = """
k = card.kernel('''
struct P { const uint32_t* weights; uint32_t* x; };
KERNEL(k, P) {
    SHARED uint32_t box[32];
    box[threadIdx.x] = load_relaxed_u32(p.weights + threadIdx.x);
    %s
    pdl_wait();
    uint32_t v = %s;
    __syncthreads();
    p.x[threadIdx.x] = v * 3 + box[31 - threadIdx.x];
}''')
weights = card.upload(np.arange(32, dtype=np.uint32))
x = card.upload(np.zeros(32, np.uint32))
stream = card.stream()
with card.capture(stream) as captured:
    for _ in range(5):
        card.launch(k, 3, 32, params(weights=weights, x=x), stream=stream, programmatic=True)
card.replay(card.instantiate(captured[0]), stream)
print(x.read(np.uint32)[:4].tolist())
"""


def test_early_starts_show_a_read_before_the_wait(script: Script) -> None:
    right = PDL % ("", "load_relaxed_u32(p.x + threadIdx.x)")
    wrong = PDL % ("uint32_t early = load_relaxed_u32(p.x + threadIdx.x);", "early")
    once = output(script, right)
    assert output(script, wrong) == once, "in order, nothing shows"
    assert output(script, right, KSIM_PDL="early") == once
    assert output(script, right, KSIM_PDL="early", KSIM_SEED="3") == once
    assert output(script, wrong, KSIM_PDL="early") != once


# ---------------------------------------------------------------- injected failures

PROGRAM = """
import ctypes as c

def program(card):
    '''Everything a backend does; gives back what it took, whatever happens.'''
    undo = []
    try:
        card.call("cuInit", 0)
        context = c.c_void_p()
        card.call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
        undo.append(("cuDevicePrimaryCtxRelease_v2", 0))
        card.call("cuCtxSetCurrent", context)
        module = c.c_void_p()
        card.call("cuModuleLoadData", c.byref(module), IMAGE)
        undo.append(("cuModuleUnload", module))
        k = card.function(module, "k")
        x = card.alloc(64)
        undo.append(("cuMemFree_v2", c.c_uint64(x.address)))
        x.write(np.zeros(16, np.uint32))
        stream = c.c_void_p()
        card.call("cuStreamCreate", c.byref(stream), 1)
        undo.append(("cuStreamDestroy_v2", stream))
        graph, executable = c.c_void_p(), c.c_void_p()
        card.call("cuStreamBeginCapture_v2", stream, 0)
        try:
            for _ in range(3):
                card.launch(k, 1, 1, params(x=x), stream=stream)
        finally:
            code = card.code("cuStreamEndCapture", stream, c.byref(graph))
            if graph:
                undo.append(("cuGraphDestroy", graph))
        if code:
            raise CudaError("cuStreamEndCapture", code, "", "")
        card.call("cuGraphInstantiateWithFlags", c.byref(executable), graph, c.c_uint64(0))
        undo.append(("cuGraphExecDestroy", executable))
        for _ in range(2):
            card.replay(executable, stream)
        card.synchronize(stream)
        return int(x.read(np.uint32)[0])
    finally:
        for name, *arguments in reversed(undo):
            card.code(name, *arguments)

IMAGE = card.compile('''#include "common.cuh"
struct P { uint32_t* x; };
KERNEL(k, P) { *p.x += 1; }''')
"""


@pytest.mark.parametrize("code", [2, 999, 719])
def test_any_call_can_fail_and_nothing_leaks(script: Script, code: int) -> None:
    body = (
        PROGRAM
        + f"""
before = card.lib.ksimCallCount()
assert program(card) == 6
calls = card.lib.ksimCallCount() - before
failed = 0
for n in range(1, calls + 1):
    card.lib.ksimFailAfter(c.c_longlong(n), {code})
    try:
        program(card)
    except CudaError as e:
        assert e.code in ({code}, 901), (n, e)
        failed += 1
    card.lib.ksimFailAfter(c.c_longlong(0), 0)
    assert card.live() == {{}}, (n, card.live())
    assert program(card) == 6, n
print(calls, failed)
"""
    )
    calls, failed = map(int, output(script, body, opened="no").split())
    assert calls >= 24
    # The releases at the end fail without anyone being told.
    assert calls - failed == 6


def test_a_failure_asked_for_by_the_environment(script: Script) -> None:
    body = PROGRAM + "\ntry: program(card)\nexcept CudaError as e: print(e.call, e.code)"
    done = output(script, body, opened="no", KSIM_FAIL_CALL="4", KSIM_FAIL_CODE="200")
    assert done == "cuModuleLoadData 200"


def test_compiler_calls_can_fail_too(card: Card) -> None:
    card.lib.ksimFailNvrtcAfter(2, 11)
    with pytest.raises(CompileError, match=r"^11"):
        card.compile("__device__ int x;")
    assert np.frombuffer(card.compile("__device__ int x;"), np.uint8)[0] == ord("K")
    assert "programs" not in card.live()
