"""What a card would answer with garbage, a hang or a late error is an error here."""

import ctypes as c

import numpy as np
import pytest
from support.card import Buffer, Card, CudaError, Pointer, params
from support.card_process import Script

FILL = """
struct P { float* x; uint32_t at; };
KERNEL(k, P) { p.x[p.at] = 1; }
"""
READ = """
struct P { const float* x; float* y; uint32_t at; };
KERNEL(k, P) { *p.y = load_relaxed_f32(p.x + p.at); }
"""


def expect(card: Card, code: int, *parts: str) -> CudaError:
    """The next synchronisation reports `code`; it is sticky, as on a card."""
    message = card.message()
    with pytest.raises(CudaError) as caught:
        card.synchronize()
    assert caught.value.code == code, message
    for part in parts:
        assert part in message
    with pytest.raises(CudaError) as again:
        card.alloc(16)
    assert again.value.code == code
    return caught.value


def test_write_past_the_pages_of_an_allocation(card: Card) -> None:
    x = card.alloc(4096)
    card.launch(card.kernel(FILL), 1, 1, params(x=x, at=1024 + 5))
    expect(
        card,
        700,
        "kernel k, block (0,0,0), thread (0,0,0): out of bounds: write to",
        "20 bytes past the end of an allocation of 4096 bytes",
    )


def test_read_before_an_allocation(card: Card) -> None:
    x, y = card.alloc(4096), card.alloc(4)
    card.launch(card.kernel(READ), 1, 1, params(x=Pointer(x.address - 8), y=y, at=0))
    expect(card, 700, "out of bounds: read from", "8 bytes before an allocation of 4096 bytes")


def test_write_within_the_last_256_bytes_is_found_at_the_next_wait(card: Card) -> None:
    x = card.alloc(100)
    card.launch(card.kernel(FILL), 1, 1, params(x=x, at=27))
    with pytest.raises(CudaError) as caught:
        card.synchronize()
    assert caught.value.code == 700
    assert "8 bytes past the end of the 100-byte allocation" in caught.value.message


def test_use_after_free(card: Card) -> None:
    x = card.alloc(4096)
    kernel = card.kernel(FILL)
    x.free()
    card.launch(kernel, 1, 1, params(x=x, at=0))
    expect(card, 700, "in a device allocation of 4096 bytes that was freed")


def test_null_pointer(card: Card) -> None:
    card.launch(card.kernel(FILL), 1, 1, params(x=Pointer(0), at=3))
    expect(card, 700, "write to 0xc: a null pointer")


def test_ordinary_host_memory_in_the_parameters(card: Card) -> None:
    array = np.zeros(1 << 16, np.float32)
    card.launch(card.kernel(FILL), 1, 1, params(x=Pointer(array.ctypes.data), at=0))
    expect(card, 700, "a pointer to ordinary host memory", "at byte 0")


def test_misaligned_vector_load(card: Card) -> None:
    x, y = card.alloc(64), card.alloc(4)
    kernel = card.kernel("""
    struct P { const uint32_t* x; uint32_t* y; };
    KERNEL(k, P) { *p.y = load_stream_u32x4(p.x).x; }""")
    card.launch(kernel, 1, 1, params(x=Pointer(x.address + 4), y=y))
    expect(card, 716, "a load of 16 bytes")


@pytest.mark.parametrize(
    "access",
    [
        "*p.y = load_relaxed_u32(s)",
        "*p.y = load_stream_u32x4(dynamic_shared<uint32_t>()).x",
        "store_release_sys_u64(reinterpret_cast<uint64_t*>(s), 1)",
        "*p.y = atomic_inc_acq_rel_wrap(s, 1)",
        "cp_async_16(s, s + 4)",
    ],
    ids=["load", "dynamic", "store", "atomic", "copy"],
)
def test_shared_memory_is_no_global_memory(card: Card, access: str) -> None:
    """What the card's instructions for global memory refuse, a pointer of the host would allow."""
    kernel = card.kernel(f"""
    struct P {{ uint32_t* y; }};
    KERNEL(k, P) {{
        alignas(16) SHARED uint32_t s[8];
        for (uint32_t i = 0; i < 8; i++) s[i] = 0;
        {access};
    }}""")
    card.launch(kernel, 1, 1, params(y=card.alloc(4)), shared=128)
    expect(card, 717, "global memory", "shared memory")


def test_shared_memory_has_an_end(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t at; };
    KERNEL(k, P) { dynamic_shared<float>()[p.at] = 1; }""")
    card.launch(kernel, 1, 1, params(at=31), shared=128)
    card.synchronize()
    card.launch(kernel, 1, 1, params(at=32), shared=128)
    expect(card, 700, "beyond the block's shared memory")


def test_shared_memory_is_poison_at_each_blocks_start(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t* out; };
    KERNEL(k, P) {
        SHARED uint32_t fixed[32];
        uint32_t* dynamic = dynamic_shared<uint32_t>();
        p.out[blockIdx.x * 32 + threadIdx.x] = fixed[threadIdx.x] & dynamic[threadIdx.x];
        fixed[threadIdx.x] = dynamic[threadIdx.x] = 0;
    }""")
    out = card.alloc(4 * 96)
    card.launch(kernel, 3, 32, params(out=out), shared=128)
    assert (out.read(np.uint32) == 0xFFFFFFFF).all()


def test_too_much_shared_memory_is_refused_at_the_launch(card: Card) -> None:
    kernel = card.kernel("struct P { uint32_t n; };\nKERNEL(k, P) {}")
    with pytest.raises(CudaError, match="50000 bytes of dynamic shared memory") as caught:
        card.launch(kernel, 1, 32, params(n=0), shared=50000)
    assert caught.value.code == 1
    card.call("cuFuncSetAttribute", kernel, 8, 100_000)
    card.launch(kernel, 1, 32, params(n=0), shared=100_000)
    with pytest.raises(CudaError, match="the device has 232448"):
        card.call("cuFuncSetAttribute", kernel, 8, 240_000)


def test_launch_bounds_and_dimensions(card: Card) -> None:
    kernel = card.kernel("struct P { uint32_t n; };\nKERNEL_BOUNDS(k, P, 64, 1) {}")
    with pytest.raises(CudaError, match="its launch bound is 64") as caught:
        card.launch(kernel, 1, 65, params(n=0))
    assert caught.value.code == 701
    for grid, block in (((0, 1, 1), 32), ((1, 70000, 1), 32), ((1, 1, 1), 1025)):
        with pytest.raises(CudaError) as caught:
            card.launch(kernel, grid, block, params(n=0))
        assert caught.value.code == 1


BARRIERS = {
    "exit before a barrier": (
        "if (threadIdx.x == 7) return; __syncthreads();",
        "barrier divergence: 63 of 64 threads wait at a barrier (line 4), 1 have exited (thread 7)",
    ),
    "two barriers": (
        "if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads();\n}",
        "barrier divergence: threads of one block wait at __syncthreads in line 7 and in line 5",
    ),
    "a shuffle of lanes that left": (
        "if (threadIdx.x < 7) return; __shfl_sync(FULL_WARP, 1, 0);",
        "__shfl_sync: mask ffffffff names lanes 0000007f that have exited or never were",
    ),
    "a caller outside its mask": (
        "__shfl_xor_sync(0xffff, 1, 1);",
        "lane 16 calls it with mask 0000ffff, which leaves it out",
    ),
    "a source outside the mask": (
        "if (threadIdx.x % 32 < 16) __shfl_sync(0xffff, 1, 20);",
        "reads lane 20, which mask 0000ffff leaves out",
    ),
    "two different operations": (
        "if (threadIdx.x % 2) __ballot_sync(FULL_WARP, 1); else __syncwarp();",
        "lane 31 waits at __ballot_sync of mask ffffffff, lane 0 at __syncwarp",
    ),
    "half a warp at a barrier": (
        "if (threadIdx.x < 16) __syncthreads(); else __syncwarp();",
        "deadlock: thread 31 waits at __syncwarp for lanes 0000ffff",
    ),
    "division by zero": ("p.x[0] = 7 / (int)(threadIdx.x * p.zero);", "integer division by zero"),
    "a trap": ("if (threadIdx.x == 9) __trap();", "thread (9,0,0): __trap()"),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_divergence_and_deadlock(card: Card, name: str) -> None:
    body, message = BARRIERS[name]
    kernel = card.kernel(f"struct P {{ float* x; uint32_t zero; }};\nKERNEL(k, P) {{\n{body}\n}}")
    card.launch(kernel, 2, 64, params(x=card.alloc(64), zero=0))
    expect(card, 719, message)


def test_an_assertion_has_its_own_error(card: Card) -> None:
    kernel = card.kernel("struct P { uint32_t n; };\nKERNEL(k, P) { assert(p.n > 3); }")
    card.launch(kernel, 1, 1, params(n=3))
    expect(card, 710, "p.n > 3")


def test_stack_overflow(card: Card) -> None:
    kernel = card.kernel(
        """
    struct P { uint32_t n; uint32_t* out; };
    __device__ __noinline__ uint32_t deep(uint32_t n) {
        volatile uint32_t local[1024];
        local[n % 1024] = n;
        return n ? deep(n - 1) + local[n % 1024] : 0;
    }
    KERNEL(k, P) { *p.out = deep(p.n); }"""
    )
    card.launch(kernel, 1, 1, params(n=1000, pad=0, out=card.alloc(4)))
    expect(card, 714, "stack overflow")


def test_programmatic_launch_needs_its_wait(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t early; };
    KERNEL(k, P) { if (blockIdx.x < p.early) return; pdl_wait(); }""")
    card.launch(kernel, 3, 32, params(early=0), programmatic=True)
    card.synchronize()
    card.launch(kernel, 3, 32, params(early=1))
    card.synchronize()
    card.launch(kernel, 3, 32, params(early=1), programmatic=True)
    expect(card, 719, "no thread of the block called pdl_wait()")


def test_a_context_is_usable_again_after_a_reset(card: Card) -> None:
    card.launch(card.kernel(FILL), 1, 1, params(x=Pointer(0), at=0))
    expect(card, 700)
    card.call("cuDevicePrimaryCtxReset_v2", 0)
    x = card.alloc(16)
    card.launch(card.kernel(FILL), 1, 1, params(x=x, at=2))
    assert x.read(np.float32)[2] == 1


# ---------------------------------------------------------------- allocations


def test_double_free(card: Card) -> None:
    x = card.alloc(64)
    x.free()
    with pytest.raises(CudaError, match="in a device allocation of 64 bytes that was freed"):
        x.free()


def test_free_of_a_pointer_into_the_middle(card: Card) -> None:
    x = card.alloc(64)
    with pytest.raises(CudaError, match="byte 16 of a device allocation of 64 bytes"):
        card.call("cuMemFree_v2", c.c_uint64(x.address + 16))


def test_copy_past_an_end(card: Card) -> None:
    x = card.alloc(64)
    with pytest.raises(CudaError, match=r"80 bytes at .*: byte 0 of a device allocation of 64"):
        x.write(np.zeros(20, np.float32))


def test_memory_is_limited_and_counted(card: Card) -> None:
    free, total = c.c_size_t(), c.c_size_t()
    card.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    assert free.value == total.value == 8 << 30
    big = card.alloc(5 << 30)
    card.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    assert free.value == 3 << 30
    with pytest.raises(CudaError) as caught:
        card.alloc((3 << 30) + 1)
    assert caught.value.code == 2
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    # Untouched pages cost nothing, and offsets beyond 2^32 work.
    kernel = card.kernel("""
    struct P { float* x; uint32_t high; };
    KERNEL(k, P) { p.x[(uint64_t{p.high} << 30) + 7] = 3; }""")
    card.launch(kernel, 1, 1, params(x=big, high=1))
    card.synchronize()
    tail = Buffer.__new__(Buffer)
    tail.card, tail.bytes, tail.address = card, 32, big.address + (4 << 30)
    assert tail.read(np.float32)[7] == 3
    big.free()
    card.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    assert free.value == total.value


def test_leaks_are_counted_and_can_fail_a_process(script: Script) -> None:
    body = """
x = card.alloc(64)
s = card.stream()
card.kernel("struct P { int n; };\\nKERNEL(k, P) {}")
print(card.live())
"""
    done = script(body, KSIM_LEAKS="fail")
    assert done.stdout.strip() == "{'allocations': 1, 'modules': 1, 'streams': 1, 'contexts': 1}"
    assert done.returncode == 86
    for line in ("leak: 1 device allocations", "leak: 1 modules", "leak: 1 streams"):
        assert f"ksim: {line}\n" in done.stderr
    done = script(body + "card.close()\n", KSIM_LEAKS="fail")
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- graphs outlive nothing


def test_a_graph_does_not_keep_its_module(card: Card) -> None:
    stream = card.stream()
    x = card.alloc(16)
    module = card.load(card.compile('#include "common.cuh"\n' + FILL))
    with card.capture(stream) as captured:
        card.launch(card.function(module, "k"), 1, 1, params(x=x, at=0), stream=stream)
    executable = card.instantiate(captured[0])
    card.call("cuModuleUnload", module)
    with pytest.raises(CudaError, match="has been unloaded"):
        card.replay(executable, stream)


def test_a_graph_does_not_keep_its_buffers(card: Card) -> None:
    stream = card.stream()
    x = card.alloc(16)
    kernel = card.kernel(FILL)
    with card.capture(stream) as captured:
        card.launch(kernel, 1, 1, params(x=x, at=0), stream=stream)
    executable = card.instantiate(captured[0])
    x.free()
    card.replay(executable, stream)
    expect(card, 700, "in a device allocation of 16 bytes that was freed")


def test_stale_handles(card: Card) -> None:
    stream = card.stream()
    card.call("cuStreamDestroy_v2", stream)
    for call in ("cuStreamDestroy_v2", "cuStreamSynchronize"):
        with pytest.raises(CudaError) as caught:
            card.call(call, stream)
        assert caught.value.code == 400


def test_a_damaged_image_is_refused(card: Card) -> None:
    image = bytearray(card.compile("__device__ int x;"))
    image[-100] ^= 1
    with pytest.raises(CudaError, match="the image is damaged") as caught:
        card.load(bytes(image))
    assert caught.value.code == 200
    with pytest.raises(CudaError, match="no image of the simulated compiler"):
        card.load(b"\x7fELF" + bytes(100))
    with pytest.raises(CudaError, match="an image for sm_100 on a device of sm_90") as caught:
        card.load(card.compile("__device__ int x;", arch="sm_100"))
    assert caught.value.code == 209
