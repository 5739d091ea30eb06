"""The CUDA driver and NVRTC through ctypes: enough to compile, launch, capture and replay."""

import ctypes as c
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

KERNELS = Path(__file__).resolve().parents[2] / "rust" / "engine" / "kernels"
# The headers of primitives, which alone know the card's own instructions and the simulator.
PRIMITIVES = {name: (KERNELS / name).read_text() for name in ("common.cuh", "warpgroup.cuh")}

STATS = [
    "allocations",
    "allocation_bytes",
    "peak_bytes",
    "host_allocations",
    "host_bytes",
    "registrations",
    "modules",
    "graphs",
    "execs",
    "streams",
    "events",
    "contexts",
    "programs",
    "calls",
    "launches",
    "graph_launches",
    "copies",
    "compiles",
    "violations",
]
LIVE = [
    "allocations",
    "host_allocations",
    "registrations",
    "modules",
    "graphs",
    "execs",
    "streams",
    "events",
    "contexts",
    "programs",
]


def real_nvrtc() -> Path | None:
    """The real compiler: ONEGRAPH_TEST_NVRTC, or that of the wheel nvidia-cuda-nvrtc-cu12."""
    named = os.environ.get("ONEGRAPH_TEST_NVRTC")
    if named:
        return Path(named)
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    folders = list(found.submodule_search_locations or []) if found else []
    return next((f for d in folders for f in Path(d).glob("lib/libnvrtc.so.1*")), None)


class CudaError(Exception):
    def __init__(self, call: str, code: int, name: str, message: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {message}")
        self.call, self.code, self.name, self.message = call, code, name, message


class CompileError(Exception):
    pass


class LaunchAttribute(c.Structure):
    _fields_ = [("id", c.c_uint), ("pad", c.c_char * 4), ("value", c.c_int), ("rest", c.c_int * 15)]


class LaunchConfig(c.Structure):
    _fields_ = [
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("stream", c.c_void_p),
        ("attrs", c.POINTER(LaunchAttribute)),
        ("num_attrs", c.c_uint),
    ]


class KernelNodeParams(c.Structure):
    _fields_ = [
        ("func", c.c_void_p),
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("params", c.POINTER(c.c_void_p)),
        ("extra", c.c_void_p),
        ("kern", c.c_void_p),
        ("ctx", c.c_void_p),
    ]


class EdgeData(c.Structure):
    _fields_ = [("from_port", c.c_ubyte), ("to_port", c.c_ubyte), ("type", c.c_ubyte)] + [
        (f"reserved{i}", c.c_ubyte) for i in range(5)
    ]


def params(**fields: Any) -> c.Structure:
    """A kernel's parameter struct: a Buffer is a pointer, an int u32, a float f32."""
    types: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, Buffer | Pointer):
            types.append((name, c.c_uint64))
        elif isinstance(value, float | np.floating):
            types.append((name, c.c_float))
        else:
            types.append((name, c.c_uint32))
    made = type("Params", (c.Structure,), {"_fields_": types})()
    for name, value in fields.items():
        setattr(made, name, value.address if isinstance(value, Buffer | Pointer) else value)
    return made


class Pointer:
    def __init__(self, address: int) -> None:
        self.address = address


class Buffer:
    def __init__(self, card: "Card", bytes: int) -> None:
        self.card, self.bytes = card, bytes
        address = c.c_uint64()
        card.call("cuMemAlloc_v2", c.byref(address), c.c_size_t(bytes))
        self.address = address.value

    def write(self, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        self.card.call(
            "cuMemcpyHtoD_v2",
            c.c_uint64(self.address),
            array.ctypes.data_as(c.c_void_p),
            c.c_size_t(array.nbytes),
        )

    def read(self, dtype: Any, count: int = -1) -> np.ndarray:
        item = np.dtype(dtype).itemsize
        out = np.empty(self.bytes // item if count < 0 else count, dtype)
        self.card.call(
            "cuMemcpyDtoH_v2",
            out.ctypes.data_as(c.c_void_p),
            c.c_uint64(self.address),
            c.c_size_t(out.nbytes),
        )
        return out

    def free(self) -> None:
        self.card.call("cuMemFree_v2", c.c_uint64(self.address))


class Card:
    """One device, simulated or real, its primary context current in this thread."""

    def __init__(self, libcuda: Path, nvrtc: Path | None = None) -> None:
        if libcuda.is_dir():
            libcuda, nvrtc = libcuda / "libcuda.so", libcuda / "libnvrtc.so"
        self.lib = c.CDLL(str(libcuda))
        self.nvrtc = c.CDLL(str(nvrtc))
        self.simulated = hasattr(self.lib, "ksimStats")
        self.context = c.c_void_p()
        if self.simulated:
            self.lib.ksimLastMessage.restype = c.c_char_p
            self.lib.ksimStats.restype = c.c_size_t
            self.lib.ksimCallCount.restype = c.c_uint64
            self.lib.ksimReportLeaks.restype = c.c_uint64

    def open(self) -> "Card":
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", c.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        return self

    def close(self) -> None:
        self.lib.cuDevicePrimaryCtxRelease_v2(0)

    def code(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.lib, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code:
            text = c.c_char_p()
            self.lib.cuGetErrorName(code, c.byref(text))
            raise CudaError(name, code, (text.value or b"").decode(), self.message())

    def message(self) -> str:
        return (self.lib.ksimLastMessage() or b"").decode() if self.simulated else ""

    def stats(self) -> dict[str, int]:
        values = (c.c_uint64 * len(STATS))()
        assert self.lib.ksimStats(values, c.sizeof(values)) == c.sizeof(values)
        return dict(zip(STATS, values, strict=True))

    def live(self) -> dict[str, int]:
        """What is allocated; empty when all is released."""
        stats = self.stats()
        return {name: stats[name] for name in LIVE if stats[name]}

    # ------------------------------------------------------------ kernels

    def compile(
        self,
        source: str,
        *options: str,
        arch: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        headers = PRIMITIVES if headers is None else headers
        arch = arch or self.arch()
        program = c.c_void_p()
        bodies = (c.c_char_p * max(len(headers), 1))(*[h.encode() for h in headers.values()])
        names = (c.c_char_p * max(len(headers), 1))(*[h.encode() for h in headers])
        code = self.nvrtc.nvrtcCreateProgram(
            c.byref(program), source.encode(), b"test.cu", len(headers), bodies, names
        )
        assert code == 0, code
        try:
            words = [f"--gpu-architecture={arch}", "--std=c++17", *options]
            array = (c.c_char_p * len(words))(*[w.encode() for w in words])
            code = self.nvrtc.nvrtcCompileProgram(program, len(words), array)
            size = c.c_size_t()
            self.nvrtc.nvrtcGetProgramLogSize(program, c.byref(size))
            log = c.create_string_buffer(size.value)
            self.nvrtc.nvrtcGetProgramLog(program, log)
            self.log = log.value.decode()
            if code:
                raise CompileError(f"{code}: {self.log}")
            cubin = not arch.startswith("compute")
            kind = "CUBIN" if cubin else "PTX"
            getattr(self.nvrtc, f"nvrtcGet{kind}Size")(program, c.byref(size))
            image = c.create_string_buffer(size.value)
            getattr(self.nvrtc, f"nvrtcGet{kind}")(program, image)
            return image.raw
        finally:
            self.nvrtc.nvrtcDestroyProgram(c.byref(program))

    def arch(self) -> str:
        if not self.context:
            return "sm_90"
        major, minor = c.c_int(), c.c_int()
        self.call("cuDeviceGetAttribute", c.byref(major), 75, 0)
        self.call("cuDeviceGetAttribute", c.byref(minor), 76, 0)
        return f"sm_{major.value}{minor.value}"

    def load(self, image: bytes) -> c.c_void_p:
        module = c.c_void_p()
        self.call("cuModuleLoadData", c.byref(module), image)
        return module

    def function(self, module: c.c_void_p, name: str) -> c.c_void_p:
        function = c.c_void_p()
        self.call("cuModuleGetFunction", c.byref(function), module, name.encode())
        return function

    def kernel(self, source: str, name: str = "k", *options: str) -> c.c_void_p:
        text = source if "common.cuh" in source else '#include "common.cuh"\n' + source
        return self.function(self.load(self.compile(text, *options)), name)

    def launch(
        self,
        function: c.c_void_p,
        grid: int | tuple[int, int, int],
        block: int | tuple[int, int, int],
        parameters: c.Structure,
        *,
        shared: int = 0,
        stream: c.c_void_p | None = None,
        programmatic: bool = False,
        cluster: int = 1,
    ) -> None:
        grid = (grid, 1, 1) if isinstance(grid, int) else grid
        block = (block, 1, 1) if isinstance(block, int) else block
        attributes = (LaunchAttribute * 2)()
        if programmatic:
            attributes[0] = LaunchAttribute(id=6, value=1)
        if cluster != 1:
            sizes = (c.c_int * 15)(1, 1)
            attributes[1] = LaunchAttribute(id=4, value=cluster, rest=sizes)
        config = LaunchConfig(
            (c.c_uint * 3)(*grid),
            (c.c_uint * 3)(*block),
            shared,
            stream,
            attributes,
            len(attributes),
        )
        pointers = (c.c_void_p * 1)(c.addressof(parameters))
        self.call("cuLaunchKernelEx", c.byref(config), function, pointers, None)

    # ------------------------------------------------------------ memory

    def alloc(self, bytes: int) -> Buffer:
        return Buffer(self, bytes)

    def upload(self, array: np.ndarray) -> Buffer:
        buffer = Buffer(self, array.nbytes)
        buffer.write(array)
        return buffer

    def pinned(self, dtype: Any, count: int) -> tuple[np.ndarray, Pointer]:
        pointer = c.c_void_p()
        size = np.dtype(dtype).itemsize * count
        self.call("cuMemHostAlloc", c.byref(pointer), c.c_size_t(size), 2)
        assert pointer.value
        memory = (c.c_ubyte * size).from_address(pointer.value)
        return np.frombuffer(memory, dtype), Pointer(pointer.value)

    # ------------------------------------------------------------ streams and graphs

    def stream(self) -> c.c_void_p:
        stream = c.c_void_p()
        self.call("cuStreamCreate", c.byref(stream), 1)
        return stream

    def synchronize(self, stream: c.c_void_p | None = None) -> None:
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", stream)

    @contextmanager
    def capture(self, stream: c.c_void_p, mode: int = 0) -> Iterator[list[c.c_void_p]]:
        """Captures the body; the list then holds the graph."""
        made: list[c.c_void_p] = []
        self.call("cuStreamBeginCapture_v2", stream, mode)
        graph = c.c_void_p()
        try:
            yield made
        except BaseException:
            self.code("cuStreamEndCapture", stream, c.byref(graph))
            raise
        self.call("cuStreamEndCapture", stream, c.byref(graph))
        made.append(graph)

    def instantiate(self, graph: c.c_void_p) -> c.c_void_p:
        made = c.c_void_p()
        self.call("cuGraphInstantiateWithFlags", c.byref(made), graph, c.c_uint64(0))
        return made

    def replay(self, graph: c.c_void_p, stream: c.c_void_p) -> None:
        self.call("cuGraphLaunch", graph, stream)

    def nodes(self, graph: c.c_void_p) -> list[c.c_void_p]:
        count = c.c_size_t()
        self.call("cuGraphGetNodes", graph, None, c.byref(count))
        nodes = (c.c_void_p * max(count.value, 1))()
        self.call("cuGraphGetNodes", graph, nodes, c.byref(count))
        return [c.c_void_p(node) for node in nodes[: count.value]]

    def edges(self, graph: c.c_void_p) -> list[tuple[int, int, int, int]]:
        """(from, to, type, from_port) of each edge, nodes by number."""
        number = {node.value: i for i, node in enumerate(self.nodes(graph))}
        count = c.c_size_t()
        self.call("cuGraphGetEdges_v2", graph, None, None, None, c.byref(count))
        room = max(count.value, 1)
        sources, targets = (c.c_void_p * room)(), (c.c_void_p * room)()
        data = (EdgeData * room)()
        self.call("cuGraphGetEdges_v2", graph, sources, targets, data, c.byref(count))
        return [
            (number[sources[i]], number[targets[i]], data[i].type, data[i].from_port)
            for i in range(count.value)
        ]
