"""Primitives through the real compiler, which needs no card, and where the simulator is known."""

import ctypes as c
import re
from pathlib import Path

import pytest
from support.card import PRIMITIVES, Card, real_nvrtc

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

# Every primitive once.
EVERYTHING = """
#include "warpgroup.cuh"
struct P { const float* x; float* y; uint32_t* w; uint64_t* r; uint32_t n; };
KERNEL_BOUNDS(everything, P, 256, 1) {
    SHARED uint64_t barrier;
    pdl_trigger();
    uint4 q = load_stream_u32x4(p.x);
    pdl_wait();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = load_relaxed_f32(p.x + i) + load_relaxed_f32x4(p.x).x + u32_as_float(q.x);
    v = warp_sum_f32(v);
    v += load_relaxed_u32x4(p.x).x + warp_max_u32(i);
    v = sub_rn(div_rn(sqrt_rn(v), mul_rn(v, 3.0f)), add_rn(fma_rn(v, v, v), 1.0f));
    uint16_t h = f32_to_f16(v);
    uint32_t hh = add_f16x2(add_f16x2(h, h), prmt(h, h, 0x1032));
    hh = fma_f16x2(hh, hh, f32_to_f16(v));
    hh ^= f32x2_to_f16x2(v, v + 1) ^ pack_f16x2(h, h) ^ float_as_u32(v);
    uint32_t a[4] = {hh, hh, hh, hh};
    float d[4], z[4] = {0, 0, 0, 0};
    mma_m16n8k16_f16_f32(d, a, a, z);
    int32_t sums[4] = {1, 2, 3, 4};
    mma_m16n8k32_s32<true, true>(sums, a, a, sums);
    mma_m16n8k32_s32<true, false>(sums, a, a, sums);
    mma_m16n8k32_s32<false, true>(sums, a, a, sums);
    mma_m16n8k32_s32<false, false>(sums, a, a, sums);
    d[2] += fma_sat(v, sums[0] + sums[3], d[3]);
    uint8_t* s = dynamic_shared<uint8_t>();
    cp_async_16(s + 1024, p.x);
    prefetch_l2(p.x);
    cp_async_commit();
    cp_async_wait<0>();
    if constexpr (HAS_BULK_COPIES) {
        if (threadIdx.x == 0) {
            barrier_init(&barrier, 2);
            barrier_init_fence();
            barrier_expect(&barrier, 64);
            bulk_copy(to_shared_address(s + 4096), p.x, 32, &barrier);
            bulk_copy_once(to_shared_address(s + 4128), p.x, 32, &barrier);
            barrier_arrive(&barrier);
            if (!barrier_ended(&barrier, 0)) barrier_wait(&barrier, 0);
        }
        compiler_fence();
    }
    if constexpr (HAS_CLUSTERS) {
        cluster_arrive_relaxed();
        cluster_wait();
        store_async(s, cluster_rank(), v, &barrier);
        store_async(s, 0, make_float2(v, v), &barrier);
        store_async(s, 0, make_float4(v, v, v, v), &barrier);
        cluster_arrive();
        cluster_wait();
    }
    if constexpr (HAS_WARPGROUPS) {
        float sums[4][4];
        const CoreMatrix b = core_matrix(to_shared_address(s), 256) + 16;
        wgmma_stored();
        wgmma_fence();
        wgmma_k16_f16_f32(sums, a, b, false);
        wgmma_commit();
        wgmma_wait<0>();
        settle_registers(sums);
        int32_t whole[4][4];
        wgmma_fence();
        wgmma_k32_s32<true, true>(whole, a, b, false);
        wgmma_k32_s32<true, false>(whole, a, b, true);
        wgmma_k32_s32<false, true>(whole, a, b, true);
        wgmma_k32_s32<false, false>(whole, a, b, true);
        wgmma_commit();
        wgmma_wait<0>();
        settle_registers(whole);
        d[opaque_u32(2) % 4] += sums[3][3] + whole[3][3];
    }
    ldmatrix_x4(a, s + (threadIdx.x % 32) * 16);
    d[1] += a[1];
    ldmatrix_x4_trans(a, s + (threadIdx.x % 32) * 16);
    d[1] += a[2];
    delay_block();
    linger(PLACING_NS + sm_id());
    if (atomic_inc_acq_rel_wrap(p.w, gridDim.x - 1) == gridDim.x - 1) {
        store_away(p.y, v);
        store_away(reinterpret_cast<float4*>(p.y), make_float4(v, v, v, v));
        store_release_sys_u64(p.r, global_timer());
        wait_for_card(p.r, i, p.r + 1);
        raise_to_u64(p.r, i);
        report(p.r, i, 3, i % 2, float_as_u32(v));
    }
    uint32_t seen = load_relaxed_u64(p.r) + load_relaxed_u32x2(p.r).x + load_relaxed_u32(p.w);
    p.w[9] = seen;
    p.y[i] = d[0] + d[1] + d[2] + f16x2_low(hh) + f16x2_high(hh) + f16_to_f32(h) + a[0] +
             bf16_to_f32(h) + warp_sum_f32(v) + warp_max_f32(v) + infinity_f32() +
             nan_f32();
}
"""


class Nvrtc:
    """The real compiler, which needs no card."""

    def __init__(self) -> None:
        path = real_nvrtc()
        if path is None:
            pytest.skip("pip install 'nvidia-cuda-nvrtc-cu12>=12.9', or set ONEGRAPH_TEST_NVRTC")
        self.lib = c.CDLL(str(path))

    def compile(self, source: str, *options: str) -> tuple[int, str]:
        program = c.c_void_p()
        n = len(PRIMITIVES)
        bodies = (c.c_char_p * n)(*[text.encode() for text in PRIMITIVES.values()])
        names = (c.c_char_p * n)(*[name.encode() for name in PRIMITIVES])
        self.lib.nvrtcCreateProgram(c.byref(program), source.encode(), b"test.cu", n, bodies, names)
        words = (c.c_char_p * len(options))(*[o.encode() for o in options])
        code = self.lib.nvrtcCompileProgram(program, len(options), words)
        size = c.c_size_t()
        self.lib.nvrtcGetProgramLogSize(program, c.byref(size))
        log = c.create_string_buffer(size.value)
        self.lib.nvrtcGetProgramLog(program, log)
        self.lib.nvrtcDestroyProgram(c.byref(program))
        return code, log.value.decode()


def test_every_primitive_is_here() -> None:
    text = "".join(PRIMITIVES.values())
    defined = r"^(?:ON_CARD\()?DEVICE [\w<> ]+[ *](\w+)\(|^LOAD_RELAXED\(\w+, (\w+)"
    primitives = [one or other for one, other in re.findall(defined, text, re.MULTILINE)]
    assert len(primitives) > 40
    halves = {"shared_address"}  # the card's of another
    assert halves < set(primitives)
    missing = [p for p in primitives if not re.search(rf"\b{p}\b", EVERYTHING)]
    assert set(missing) == halves


@pytest.mark.parametrize("delay", [(), ("-DONEGRAPH_DELAY_SEED=7",)], ids=["plain", "delay"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_primitive_compiles_for_every_card(arch: int, delay: tuple[str, ...]) -> None:
    # As the engine asks for it: what 9.0 alone has is in an architecture of its own.
    target = f"--gpu-architecture=sm_{arch}{'a' if arch == 90 else ''}"
    code, log = Nvrtc().compile(EVERYTHING, target, "--std=c++17", "--ptxas-options=-v", *delay)
    assert code == 0, log
    assert "warning" not in log
    assert "0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.parametrize("arch", [75, 90])
def test_every_primitive_has_its_twin(card: Card, arch: int) -> None:
    image = card.compile(EVERYTHING, "-DONEGRAPH_DELAY_SEED=7", arch=f"sm_{arch}")
    assert len(image) > 1000


def test_only_the_primitives_and_the_shim_know_the_simulator() -> None:
    found = set()
    for folder in ("rust/engine", "rust/python", "python"):
        for path in (ROOT / folder).rglob("*"):
            # The engine's own tests may ask the simulated card what it counted; the engine may not.
            tests = (ROOT / "rust" / "engine" / "tests") in path.parents
            if path.suffix in {".cu", ".cuh", ".rs", ".py", ".h"} and path.is_file() and not tests:
                text = path.read_text()
                if re.search(r"\bONEGRAPH_SIM\b|\bsim::|\bksim", text):
                    found.add(str(path.relative_to(ROOT)))
    assert found == {f"rust/engine/kernels/{name}" for name in PRIMITIVES}


def test_kernels_hold_no_assembly_and_no_bare_qualifiers() -> None:
    """What a kernel needs beyond plain C++ is a named primitive, or it has no twin."""
    kernels = sorted((ROOT / "rust" / "engine").rglob("*.cu*"))
    assert kernels
    for path in kernels:
        if path.name in PRIMITIVES:
            continue
        text = re.sub(r"//[^\n]*", "", path.read_text())
        bare = re.findall(r"\basm\b|\b__shared__\b|\b__global__\b|\b__CUDA_ARCH__\b", text)
        assert not bare, f"{path}: {bare}"
