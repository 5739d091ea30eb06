"""Kernels through the real sequence: compile, load, launch, capture, replay."""

import ctypes

import numpy as np
import pytest
from support.card import Card, params

VECTOR = """
struct P { const float* x; const float* y; float* z; uint32_t n; };
KERNEL(k, P) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.z[i] = p.x[i] + p.y[i];
}
"""


@pytest.fixture
def card(any_card: Card) -> Card:
    """All of this holds on a real card too."""
    return any_card


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_vector_add(card: Card) -> None:
    x, y = rng().standard_normal((2, 1000), np.float32)
    z = card.alloc(4 * 1024)
    kernel = card.kernel(VECTOR)
    card.launch(kernel, 4, 256, params(x=card.upload(x), y=card.upload(y), z=z, n=1000))
    card.synchronize()
    got = z.read(np.float32)
    assert (got[:1000] == x + y).all()
    assert np.isnan(got[1000:]).all() or not card.simulated, "fresh memory is poison"


def test_indices_and_dimensions(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t* out; };
    KERNEL(k, P) {
        uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        __syncthreads();
        p.out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
            (blockIdx.z << 20 | blockIdx.y << 16 | blockIdx.x << 12 | threadIdx.z << 8 |
             threadIdx.y << 4 | threadIdx.x);
    }""")
    out = card.alloc(4 * 24 * 24)
    card.launch(kernel, (2, 3, 4), (4, 3, 2), params(out=out))
    expected = [
        bz << 20 | by << 16 | bx << 12 | z << 8 | y << 4 | x
        for bz in range(4) for by in range(3) for bx in range(2)
        for z in range(2) for y in range(3) for x in range(4)
    ]  # fmt: skip
    assert out.read(np.uint32).tolist() == expected


#: Warps in order, of sums in halves.
BLOCK_SUM = """
template <int warps>
DEVICE float block_sum(float v, float* scratch) {
    v = warp_sum_f32(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = scratch[0];
    for (int warp = 1; warp < warps; warp++) sum = add_rn(sum, scratch[warp]);
    return sum;
}
"""


def test_a_reduction_of_a_block_has_the_stated_order(card: Card) -> None:
    kernel = card.kernel(
        BLOCK_SUM
        + """
    struct P { const float* x; float* y; uint32_t n; };
    KERNEL_BOUNDS(k, P, 256, 1) {
        SHARED float scratch[8];
        float sum = 0;
        for (uint32_t i = threadIdx.x; i < p.n; i += 256) sum = add_rn(sum, p.x[i]);
        sum = block_sum<8>(sum, scratch);
        p.y[threadIdx.x] = sum;
    }"""
    )
    x = rng(1).standard_normal(5000).astype(np.float32)
    y = card.alloc(4 * 256)
    card.launch(kernel, 1, 256, params(x=card.upload(x), y=y, n=5000))
    lanes = np.zeros(256, np.float32)
    for start in range(0, 5000, 256):
        part = x[start : start + 256]
        lanes[: len(part)] += part
    warps = lanes.reshape(8, 32)
    for distance in (16, 8, 4, 2, 1):
        warps = warps[:, :distance] + warps[:, distance : 2 * distance]
    expected = np.float32(0)
    for warp in warps[:, 0]:
        expected = np.float32(expected + warp) if expected else warp
    assert (y.read(np.float32) == expected).all()


def test_warp_operations(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t* out; };
    KERNEL(k, P) {
        uint32_t lane = threadIdx.x, *out = p.out + lane * 16;
        out[0] = __shfl_sync(FULL_WARP, lane * 10, 3);
        out[1] = __shfl_sync(FULL_WARP, lane * 10, 3, 8);
        out[2] = __shfl_xor_sync(FULL_WARP, lane * 10, 5);
        out[3] = __shfl_up_sync(FULL_WARP, lane * 10, 2);
        out[4] = __shfl_down_sync(FULL_WARP, lane * 10, 2);
        out[5] = __ballot_sync(FULL_WARP, lane % 3 == 0);
        out[6] = __any_sync(FULL_WARP, lane == 31);
        out[7] = __all_sync(FULL_WARP, lane != 31);
        out[8] = __reduce_add_sync(FULL_WARP, lane);
        out[9] = __match_any_sync(FULL_WARP, lane / 4);
        out[10] = __shfl_sync(FULL_WARP, (unsigned long long)lane << 33, 7) >> 33;
        if (lane % 2) {
            out[11] = __shfl_xor_sync(0xaaaaaaaau, lane, 2);
        } else {
            out[11] = __reduce_max_sync(0x55555555u, lane);
        }
        __syncwarp();
        out[12] = __syncthreads_count(lane < 7);
        out[13] = __syncthreads_or(lane == 40);
        out[14] = __float_as_uint(warp_max_f32(lane == 9 ? 5.5f : -1.0f));
    }""")
    out = card.alloc(4 * 16 * 32)
    card.launch(kernel, 1, 32, params(out=out))
    got = out.read(np.uint32).reshape(32, 16)
    lane = np.arange(32)
    assert (got[:, 0] == 30).all()
    assert (got[:, 1] == (lane // 8 * 8 + 3) * 10).all()
    assert (got[:, 2] == (lane ^ 5) * 10).all()
    assert (got[:, 3] == np.where(lane >= 2, lane - 2, lane) * 10).all()
    assert (got[:, 4] == np.where(lane < 30, lane + 2, lane) * 10).all()
    assert (got[:, 5] == sum(1 << i for i in range(0, 32, 3))).all()
    assert (got[:, 6] == 1).all() and (got[:, 7] == 0).all()
    assert (got[:, 8] == 496).all()
    assert (got[:, 9] == (0xF << (lane // 4 * 4))).all()
    assert (got[:, 10] == 7).all()
    assert (got[:, 11] == np.where(lane % 2, lane ^ 2, 30)).all()
    assert (got[:, 12] == 7).all() and (got[:, 13] == 0).all()
    assert (got[:, 14].view(np.float32) == 5.5).all()


def test_mma_against_float64(card: Card) -> None:
    kernel = card.kernel("""
    struct P { const uint32_t* a; const uint32_t* b; const float* c; float* d; };
    KERNEL(k, P) {
        uint32_t g = threadIdx.x / 4, t = threadIdx.x % 4;
        uint32_t a[4] = {p.a[g * 8 + t], p.a[(g + 8) * 8 + t], p.a[g * 8 + t + 4],
                         p.a[(g + 8) * 8 + t + 4]};
        uint32_t b[2] = {p.b[g * 8 + t], p.b[g * 8 + t + 4]};
        float c[4] = {p.c[g * 8 + 2 * t], p.c[g * 8 + 2 * t + 1], p.c[(g + 8) * 8 + 2 * t],
                      p.c[(g + 8) * 8 + 2 * t + 1]};
        float d[4];
        mma_m16n8k16_f16_f32(d, a, b, c);
        p.d[g * 8 + 2 * t] = d[0], p.d[g * 8 + 2 * t + 1] = d[1];
        p.d[(g + 8) * 8 + 2 * t] = d[2], p.d[(g + 8) * 8 + 2 * t + 1] = d[3];
    }""")
    a = rng(2).standard_normal((16, 16)).astype(np.float16)
    b = rng(3).standard_normal((8, 16)).astype(np.float16)  # column-major
    c = rng(4).standard_normal((16, 8)).astype(np.float32)
    d = card.alloc(4 * 128)
    card.launch(kernel, 1, 32, params(a=card.upload(a), b=card.upload(b), c=card.upload(c), d=d))
    got = d.read(np.float32).reshape(16, 8)
    exact = a.astype(np.float64) @ b.astype(np.float64).T + c
    assert np.abs(got - exact).max() < 16 * 2**-24 * np.abs(exact).max()
    if not card.simulated:
        return
    # The order is part of the twin's definition: k ascending, one rounding each.
    sums = c.copy()
    for k in range(16):
        sums += a[:, k, None].astype(np.float32) * b[None, :, k].astype(np.float32)
    assert (got == sums).all()


@pytest.mark.parametrize("signed", [(True, True), (True, False), (False, True), (False, False)])
def test_mma_of_bytes_is_exact(card: Card, signed: tuple[bool, bool]) -> None:
    kernel = card.kernel(
        """
    struct P { const uint32_t* a; const uint32_t* b; const int32_t* c; int32_t* d; };
    KERNEL(k, P) {
        uint32_t g = threadIdx.x / 4, t = threadIdx.x % 4;
        uint32_t a[4] = {p.a[g * 8 + t], p.a[(g + 8) * 8 + t], p.a[g * 8 + t + 4],
                         p.a[(g + 8) * 8 + t + 4]};
        uint32_t b[2] = {p.b[g * 8 + t], p.b[g * 8 + t + 4]};
        int32_t c[4] = {p.c[g * 8 + 2 * t], p.c[g * 8 + 2 * t + 1], p.c[(g + 8) * 8 + 2 * t],
                        p.c[(g + 8) * 8 + 2 * t + 1]};
        int32_t d[4];
        mma_m16n8k32_s32<A_SIGNED, B_SIGNED>(d, a, b, c);
        p.d[g * 8 + 2 * t] = d[0], p.d[g * 8 + 2 * t + 1] = d[1];
        p.d[(g + 8) * 8 + 2 * t] = d[2], p.d[(g + 8) * 8 + 2 * t + 1] = d[3];
    }""".replace("A_SIGNED", str(signed[0]).lower()).replace("B_SIGNED", str(signed[1]).lower())
    )
    types = [np.int8 if s else np.uint8 for s in signed]
    a = rng(6).integers(0, 256, (16, 32), np.uint8).view(types[0])
    b = rng(7).integers(0, 256, (8, 32), np.uint8).view(types[1])  # column-major
    a[0], b[0] = np.iinfo(types[0]).max, np.iinfo(types[1]).max
    a[1], b[1] = np.iinfo(types[0]).min, np.iinfo(types[1]).min
    c = rng(8).integers(-(1 << 31), 1 << 31, (16, 8)).astype(np.int32)
    d = card.alloc(4 * 128)
    card.launch(kernel, 1, 32, params(a=card.upload(a), b=card.upload(b), c=card.upload(c), d=d))
    exact = a.astype(np.int64) @ b.astype(np.int64).T + c
    assert (d.read(np.int32).reshape(16, 8) == exact.astype(np.int32)).all()  # sums wrap around


def test_half_arithmetic_is_correctly_rounded(card: Card) -> None:
    kernel = card.kernel("""
    struct P { const uint32_t* x; uint32_t* out; uint32_t n; };
    KERNEL(k, P) {
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= p.n) return;
        uint32_t a = p.x[2 * i], b = p.x[2 * i + 1];
        p.out[2 * i] = add_f16x2(a, b);
        p.out[2 * i + 1] = f32x2_to_f16x2(f16x2_low(a), f16x2_high(a));
    }""")
    count = 20000
    bits = rng(5).integers(0, 1 << 16, (count, 2, 2), np.uint16)
    # Sums that cancel, wholly and but for the last bits.
    bits[: count // 2, 1] = bits[: count // 2, 0] ^ 0x8000
    bits[count // 4 : count // 2, 1] ^= bits[count // 4 : count // 2, 1] & 3
    x, out = card.upload(bits), card.alloc(8 * count)
    card.launch(kernel, (count + 127) // 128, 128, params(x=x, out=out, n=count))
    got = out.read(np.uint16).reshape(count, 2, 2)
    a, b = (bits[:, i].view(np.float16) for i in range(2))
    with np.errstate(all="ignore"):
        expected = [a + b, a]
    for i, values in enumerate(expected):
        seen = got[:, i].view(np.float16)
        nan = np.isnan(values)
        assert (np.isnan(seen) == nan).all(), i
        assert (got[:, i][nan] == 0x7FFF).all(), i
        same = (seen == values) | nan
        assert same.all(), (i, bits[~same.all(axis=1)][0])


def test_prmt_replicates_signs(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t* out; };
    KERNEL(k, P) {
        p.out[0] = prmt(0x44332211u, 0x88776655u, 0x7250u);
        p.out[1] = prmt(0x44338211u, 0x88776655u, 0xf981u);
        p.out[2] = __byte_perm(0x44332211u, 0x88776655u, 0x7250u);
    }""")
    out = card.alloc(12)
    card.launch(kernel, 1, 1, params(out=out))
    assert [hex(v) for v in out.read(np.uint32)] == ["0x88336611", "0xffff0082", "0x88336611"]


RMS_NORM = (
    BLOCK_SUM
    + """
struct P { const float* x; const float* w; float* y; uint32_t n; float eps; };
KERNEL_BOUNDS(k, P, 128, 1) {
    SHARED float scratch[4];
    pdl_wait();
    const float* x = p.x + blockIdx.x * p.n;
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < p.n; i += 128) {
        float v = load_relaxed_f32(x + i);
        squares = fma_rn(v, v, squares);
    }
    float scale = rsqrtf(block_sum<4>(squares, scratch) / p.n + p.eps);
    pdl_trigger();
    for (uint32_t i = threadIdx.x; i < p.n; i += 128) {
        p.y[blockIdx.x * p.n + i] = load_relaxed_f32(x + i) * scale * p.w[i];
    }
}
"""
)


def test_rms_norm(card: Card) -> None:
    x = rng(6).standard_normal((5, 576)).astype(np.float32)
    w = rng(7).standard_normal(576).astype(np.float32)
    y = card.alloc(x.nbytes)
    card.launch(
        card.kernel(RMS_NORM), 5, 128,
        params(x=card.upload(x), w=card.upload(w), y=y, n=576, eps=1e-5), programmatic=True,
    )  # fmt: skip
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
    assert np.abs(y.read(np.float32).reshape(5, 576) - exact).max() < 2e-6


ASYNC_RING = """
struct P { const float* x; float* y; uint32_t chunks; };
KERNEL(k, P) {
    alignas(16) SHARED float ring[3][4][128];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* x = p.x + warp * p.chunks * 128;
    auto fetch = [&](uint32_t c) {
        if (c < p.chunks) cp_async_16(&ring[c % 3][warp][lane * 4], x + c * 128 + lane * 4);
        cp_async_commit();
    };
    fetch(0);
    fetch(1);
    float sum = 0;
    for (uint32_t c = 0; c < p.chunks; c++) {
        fetch(c + 2);
        cp_async_wait<2>();
        __syncwarp();
        for (uint32_t i = 0; i < 4; i++) sum += ring[c % 3][warp][lane + 32 * i];
        __syncwarp();
    }
    sum = warp_sum_f32(sum);
    if (lane == 0) p.y[warp] = sum;
}
"""


#: C [64][N] of A [64][64] and of B of bytes, [4][N][16]: 16 rows of B, then the next, columns one
#: behind another, as a prompt's attention finds keys and values.
WARPGROUP = """
#include "warpgroup.cuh"
constexpr uint32_t N = COLUMNS;
struct P { const uint8_t* a; const uint8_t* b; int32_t* c; };
KERNEL_BOUNDS(k, P, 128, 1) {
    if constexpr (HAS_WARPGROUPS) {
        SHARED uint64_t arrived;
        uint8_t* shared = dynamic_shared<uint8_t>();
        if (threadIdx.x == 0) {
            barrier_init(&arrived, 1);
            barrier_init_fence();
            barrier_expect(&arrived, N * 64);
            bulk_copy(to_shared_address(shared), p.b, N * 64, &arrived);
        }
        __syncthreads();
        barrier_wait(&arrived, 0);
        const uint32_t g = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const CoreMatrix b = core_matrix(to_shared_address(shared), 128, N * 16);
        int32_t sums[N / 8][4];
        uint32_t a[2][4];
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                a[step][i] = *reinterpret_cast<const uint32_t*>(
                    p.a + (g + i % 2 * 8) * 64 + step * 32 + i / 2 * 16 + t * 4);
            }
        }
        wgmma_fence();
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
            wgmma_k32_s32<A_SIGNED, B_SIGNED>(sums, a[step], b + step * 2 * N * 16, step > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        settle_registers(sums);
#pragma unroll
        for (uint32_t n = 0; n < N / 8; n++) {
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                p.c[(g + e / 2 * 8) * N + n * 8 + 2 * t + e % 2] = sums[n][e];
            }
        }
    }
}
"""


@pytest.mark.parametrize("columns", [16, 32, 64])
@pytest.mark.parametrize("signed", [(True, True), (True, False), (False, True), (False, False)])
def test_products_of_warpgroups_are_exact(
    card: Card, signed: tuple[bool, bool], columns: int
) -> None:
    if card.arch() != "sm_90":
        pytest.skip("wgmma is of compute capability 9.0 alone")
    text = WARPGROUP.replace("A_SIGNED", str(signed[0]).lower())
    text = text.replace("B_SIGNED", str(signed[1]).lower()).replace("COLUMNS", str(columns))
    types = [np.int8 if s else np.uint8 for s in signed]
    a = rng(6).integers(0, 256, (64, 64), np.uint8).view(types[0])
    b = rng(7).integers(0, 256, (columns, 64), np.uint8).view(types[1])
    planes = np.ascontiguousarray(b.reshape(columns, 4, 16).transpose(1, 0, 2))
    c = card.alloc(4 * 64 * columns)
    kernel = card.function(card.load(card.compile(text, arch="sm_90a")), "k")
    card.launch(
        kernel, 1, 128, params(a=card.upload(a), b=card.upload(planes), c=c), shared=64 * columns
    )
    card.synchronize()
    expected = a.astype(np.int32) @ b.astype(np.int32).T
    assert (c.read(np.int32).reshape(64, columns) == expected).all()


@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_a_ring_of_asynchronous_copies(card: Card, chunks: int) -> None:
    x = rng(8).standard_normal((4, chunks * 128)).astype(np.float32)
    y = card.alloc(16)
    card.launch(card.kernel(ASYNC_RING), 1, 128, params(x=card.upload(x), y=y, chunks=chunks))
    assert np.allclose(y.read(np.float32), x.astype(np.float64).sum(1), atol=1e-4)


def test_whether_a_barriers_phase_has_ended_is_told_without_a_wait(card: Card) -> None:
    if int(card.arch().removeprefix("sm_")) < 90:
        pytest.skip("bulk copies are of compute capability 9.0 on")
    kernel = card.kernel("""
    struct P { const uint32_t* from; uint32_t* out; };
    KERNEL(k, P) {
        SHARED uint64_t arrived;
        alignas(16) SHARED uint32_t box[4];
        barrier_init(&arrived, 1);
        barrier_init_fence();
        p.out[0] = barrier_ended(&arrived, 0);
        barrier_expect(&arrived, 16);
        bulk_copy(to_shared_address(box), p.from, 16, &arrived);
        while (!barrier_ended(&arrived, 0)) {}
        p.out[1] = box[3];
        p.out[2] = barrier_ended(&arrived, 1);
    }""")
    out = card.alloc(12)
    values = np.arange(40, 44, dtype=np.uint32)
    card.launch(kernel, 1, 1, params(**{"from": card.upload(values)}, out=out))
    card.synchronize()
    assert out.read(np.uint32).tolist() == [0, 43, 0]


@pytest.mark.parametrize("load", ["ldmatrix_x4", "ldmatrix_x4_trans"])
def test_ldmatrix(card: Card, load: str) -> None:
    kernel = card.kernel(
        """
    struct P { uint32_t* out; };
    KERNEL(k, P) {
        alignas(16) SHARED uint16_t m[32][8];
        for (int i = 0; i < 8; i++) m[threadIdx.x][i] = threadIdx.x * 8 + i;
        __syncwarp();
        uint32_t d[4];
        LOAD(d, m[threadIdx.x]);
        for (int i = 0; i < 4; i++) p.out[threadIdx.x * 4 + i] = d[i];
    }""".replace("LOAD", load)
    )
    out = card.alloc(4 * 4 * 32)
    card.launch(kernel, 1, 32, params(out=out))
    got = out.read(np.uint16).reshape(32, 4, 2)
    matrix = np.arange(256).reshape(4, 8, 8)
    if load.endswith("trans"):
        matrix = matrix.transpose(0, 2, 1)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        assert (got[lane] == matrix[:, g, 2 * t : 2 * t + 2]).all()


TICKETS = """
struct P { float* partial; uint32_t* ticket; float* y; };
KERNEL(k, P) {
    SHARED uint32_t last;
    if (threadIdx.x == 0) p.partial[blockIdx.x] = blockIdx.x + 1;
    __syncthreads();
    if (threadIdx.x == 0) last = atomic_inc_acq_rel_wrap(p.ticket, gridDim.x - 1);
    __syncthreads();
    if (last != gridDim.x - 1 || threadIdx.x != 0) return;
    float sum = 0;
    for (uint32_t i = 0; i < gridDim.x; i++) sum += load_relaxed_f32(p.partial + i);
    *p.y = sum;
}
"""


def test_the_last_block_combines_and_the_ticket_resets_itself(card: Card) -> None:
    kernel = card.kernel(TICKETS)
    partial, y = card.alloc(4 * 9), card.alloc(4)
    ticket = card.upload(np.zeros(1, np.uint32))
    for _ in range(3):
        y.write(np.zeros(1, np.float32))
        card.launch(kernel, 9, 32, params(partial=partial, ticket=ticket, y=y))
        assert y.read(np.float32)[0] == 45
        assert ticket.read(np.uint32)[0] == 0


def test_variables_of_a_module(card: Card) -> None:
    source = """#include "common.cuh"
    __device__ uint32_t counter = 40;
    __constant__ float table[3] = {1, 2, 3};
    struct P { float* out; };
    KERNEL(k, P) { counter += 2; *p.out = table[2]; }"""
    image, out = card.compile(source), card.alloc(4)
    first, second = card.load(image), card.load(image)
    card.launch(card.function(first, "k"), 1, 1, params(out=out))
    assert out.read(np.float32)[0] == 3
    values = []
    for module in (first, second):
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        card.call(
            "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, b"counter"
        )
        assert size.value == 4
        value = ctypes.c_uint32()
        card.call("cuMemcpyDtoH_v2", ctypes.byref(value), address, ctypes.c_size_t(4))
        values.append(value.value)
    assert values == [42, 40], "each load has its own"


def test_macros_and_the_architecture_reach_the_kernel(card: Card) -> None:
    source = """#include "common.cuh"
    struct P { uint32_t* out; };
    KERNEL(NAME, P) { p.out[0] = N; p.out[1] = __CUDA_ARCH__; p.out[2] = ARCH_AT_LEAST(900); }"""
    for arch, expected in ((None, int(card.arch()[3:]) * 10), ("compute_80", 800)):
        image = card.compile(source, "-DNAME=scaled", "--define-macro=N=42", arch=arch)
        out = card.alloc(12)
        card.launch(card.function(card.load(image), "scaled"), 1, 1, params(out=out))
        assert out.read(np.uint32).tolist() == [42, expected, int(expected >= 900)]


def test_position_in_device_memory_advances_through_replays(card: Card) -> None:
    kernel = card.kernel(
        """
    struct P { uint32_t* position; uint64_t* ring; float* cache; };
    KERNEL(scatter, P) {
        pdl_wait();
        p.cache[load_relaxed_u32(p.position) * 4 + threadIdx.x] = threadIdx.x + 0.5f;
    }
    KERNEL(advance, P) {
        pdl_wait();
        uint32_t at = load_relaxed_u32(p.position);
        store_release_sys_u64(p.ring + at % 8, (uint64_t{at} << 32) | (100 + at));
        *p.position = at + 1;
    }""",
        "scatter",
    )
    owner = ctypes.c_void_p()
    card.call("cuFuncGetModule", ctypes.byref(owner), kernel)
    advance = card.function(owner, "advance")
    position = card.upload(np.zeros(1, np.uint32))
    ring, ring_pointer = card.pinned(np.uint64, 8)
    ring[:] = 0xFFFFFFFFFFFFFFFF
    cache = card.alloc(4 * 4 * 16)
    p = params(position=position, ring=ring_pointer, cache=cache)
    stream = card.stream()
    with card.capture(stream) as captured:
        card.launch(kernel, 1, 4, p, stream=stream)
        card.launch(advance, 1, 1, p, stream=stream, programmatic=True)
    # The parameters were copied at capture.
    ctypes.memset(ctypes.byref(p), 0, ctypes.sizeof(p))
    graph = captured[0]
    assert len(card.nodes(graph)) == 2
    assert card.edges(graph) == [(0, 1, 1, 1)], "a programmatic edge"
    executable = card.instantiate(graph)
    card.call("cuGraphDestroy", graph)
    assert position.read(np.uint32)[0] == 0, "capturing runs nothing"
    for step in range(10):
        card.replay(executable, stream)
        while ring[step % 8] >> 32 != step:
            pass
        assert ring[step % 8] == (step << 32) | (100 + step)
    card.synchronize(stream)
    assert position.read(np.uint32)[0] == 10
    got = cache.read(np.float32).reshape(16, 4)
    assert (got[:10] == [0.5, 1.5, 2.5, 3.5]).all()
    assert np.isnan(got[10:]).all() or not card.simulated
