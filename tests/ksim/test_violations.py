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


#: Two products of ones in a group, one more in the next; `fault` says what is wrong.
PRODUCTS = """
#include "warpgroup.cuh"
struct P { const uint8_t* b; float* out; uint32_t fault; };
KERNEL_BOUNDS(k, P, 128, 1) {
    if constexpr (HAS_WARPGROUPS) {
        SHARED uint64_t arrived;
        uint8_t* shared = dynamic_shared<uint8_t>();
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        auto is = [&](uint32_t fault) { return p.fault == fault; };
        if (threadIdx.x == 0) {
            barrier_init(&arrived, 1);
            barrier_init_fence();
            bulk_copy(to_shared_address(shared), p.b, 2048, &arrived);
            if (!is(DATA_ARRIVES_LATE)) barrier_expect(&arrived, 2048);
        }
        __syncthreads();
        if (!is(DATA_ARRIVES_LATE)) barrier_wait(&arrived, 0);
        CoreMatrix b = core_matrix(to_shared_address(shared), 256);
        float first[4][4], second[4][4];
        uint32_t a[4] = {ONES, ONES, ONES, ONES};
        auto put = [&](uint32_t to, float x) { p.out[to * 128 + threadIdx.x] = x; };
        if (!is(NO_FENCE)) wgmma_fence();
        wgmma_k16_f16_f32(first, a, b, false);
        if (is(C_IS_WRITTEN)) first[0][0] = 1.0f;
        wgmma_k16_f16_f32(first, a, b, true);
        if (!is(NO_COMMIT)) wgmma_commit();
        if (is(ANOTHER_WARP) && warp == 3) b = b + 1024;
        if (is(ANOTHER_LANE) && lane == 3) b = b + 1024;
        wgmma_fence();
        wgmma_k16_f16_f32(second, a, b, false);
        if (!is(NO_LAST_COMMIT)) wgmma_commit();
        if (is(DATA_ARRIVES_LATE) && threadIdx.x == 0) barrier_expect(&arrived, 2048);
        if (is(B_IS_OVERWRITTEN) && warp == 3) shared[lane] = 0;
        if (is(A_IS_OVERWRITTEN)) a[2] = 0;
        wgmma_wait<1>();
        settle_registers(first);
        put(0, first[3][3]);
        put(1, second[0][0]);
        if (!is(NO_WAIT)) wgmma_wait<0>();
        settle_registers(second);
        put(2, second[0][0]);
    }
}
"""
CHANGED = "changed under a product: it was not there yet when the product was issued, or was over"
WRITTEN = "of a product under way were written before its wgmma_wait()"
FAULTS = {
    "NO_FENCE": "wgmma of a group that has no wgmma_fence()",
    "NO_LAST_COMMIT": "the thread ended with 1 products under way: no wgmma_commit()",
    "NO_WAIT": "the thread ended with 1 products under way: no wgmma_wait() for their group",
    "DATA_ARRIVES_LATE": CHANGED,
    "B_IS_OVERWRITTEN": CHANGED,
    "A_IS_OVERWRITTEN": f"registers of A {WRITTEN}",
    "C_IS_WRITTEN": f"registers {WRITTEN}",
    "ANOTHER_LANE": "where other lanes have",
    "ANOTHER_WARP": "warp 3 issued other products of wgmma than the others of its warpgroup",
    "NO_COMMIT": "",
}


def products(card: Card, fault: int) -> Buffer:
    """By thread, a sum of the first group once it had ended, one of the second then, and one of the
    second when that had ended too."""
    numbers = "".join(f"constexpr uint32_t {name} = {i};\n" for i, name in enumerate(FAULTS, 1))
    text = f"#include <stdint.h>\nconstexpr uint32_t ONES = 0x3c003c00;\n{numbers}{PRODUCTS}"
    out = card.alloc(4 * 3 * 128)
    kernel = card.function(card.load(card.compile(text, arch="sm_90a")), "k")
    ones = card.upload(np.ones(1024, np.float16))
    card.launch(kernel, 1, 128, params(b=ones, out=out, fault=fault), shared=2048)
    return out


@pytest.mark.parametrize("fault", [name for name, message in FAULTS.items() if message])
def test_a_product_of_a_warpgroup_that_a_card_may_get_wrong(card: Card, fault: str) -> None:
    products(card, 1 + list(FAULTS).index(fault))
    expect(card, 719, FAULTS[fault])


def test_a_product_is_poison_until_its_group_was_waited_for(card: Card) -> None:
    first, early, second = products(card, 0).read(np.float32).reshape(3, 128)
    assert (first == 32).all() and np.isnan(early).all() and (second == 16).all()


def test_products_that_were_not_committed_belong_to_the_next_group(card: Card) -> None:
    without = products(card, 1 + list(FAULTS).index("NO_COMMIT"))
    first, early, second = without.read(np.float32).reshape(3, 128)
    assert np.isnan(first).all() and np.isnan(early).all() and (second == 16).all()
