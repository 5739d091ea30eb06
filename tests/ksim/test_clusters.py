"""Clusters: their blocks meet, and store in each other's shared memory; what a card would answer
with garbage or a hang is an error."""

from __future__ import annotations

import numpy as np
import pytest
from support.card import Card, CudaError, params
from support.card_process import Script

#: Each block tells every other of its cluster its number; all add up what they were told, twice.
EXCHANGE = """
struct P { float* sums; };
KERNEL(k, P) {
    float* told = dynamic_shared<float>();
    uint64_t* met = reinterpret_cast<uint64_t*>(told + 8);
    const uint32_t rank = cluster_rank();
    if (threadIdx.x == 0) {
        barrier_init(met, 1);
        barrier_init(met + 1, 1);
        barrier_init_fence();
    }
    cluster_arrive_relaxed();
    cluster_wait();
    for (uint32_t round = 0; round < 2; round++) {
        if (threadIdx.x == 0) barrier_expect(met + round, 16);
        if (threadIdx.x < 4) {
            const float told_it = blockIdx.x + 100.0f * round;
            store_async(told + 4 * round + rank, threadIdx.x, told_it, met + round);
        }
        barrier_wait(met + round, 0);
        if (threadIdx.x == 0) {
            float sum = 0.0f;
            for (uint32_t i = 0; i < 4; i++) sum += told[4 * round + i];
            p.sums[2 * blockIdx.x + round] = sum;
        }
    }
}
"""

#: The beginning of a kernel of a cluster of two whose blocks may store.
BEGUN = """
    float* told = dynamic_shared<float>();
    uint64_t* met = reinterpret_cast<uint64_t*>(told + 4);
    if (threadIdx.x == 0) barrier_init(met, 1);
    cluster_arrive();
    cluster_wait();
"""


def exchanged(blocks: int) -> list[float]:
    """What each block's sums are."""
    sums = []
    for block in range(blocks):
        first = block // 4 * 4
        own = sum(range(first, first + 4))
        sums += [float(own), own + 400.0]
    return sums


def test_blocks_of_a_cluster_tell_each_other(card: Card) -> None:
    sums = card.alloc(24 * 2 * 4)
    card.launch(card.kernel(EXCHANGE), 24, 64, params(sums=sums), shared=64, cluster=4)
    card.synchronize()
    assert sums.read(np.float32).tolist() == exchanged(24)


@pytest.mark.parametrize("seed", ["0", "5"])
def test_clusters_overlap_as_blocks_do(seed: str, script: Script) -> None:
    """Of three grids in flight, in a graph."""
    source = EXCHANGE.replace(
        "cluster_arrive_relaxed();", "pdl_wait(); pdl_trigger(); cluster_arrive_relaxed();", 1
    )
    done = script(
        f'''
k = card.kernel("""{source}""")
sums = [card.alloc(24 * 2 * 4) for _ in range(5)]
stream = card.stream()
with card.capture(stream) as captured:
    for each in sums:
        card.launch(k, 24, 64, params(sums=each), shared=64, cluster=4, stream=stream,
                    programmatic=True)
card.replay(card.instantiate(captured[0]), stream)
card.synchronize(stream)
print([each.read(np.float32).tolist() for each in sums])
''',
        KSIM_PDL="early",
        KSIM_SEED=seed,
    )
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == [exchanged(24)] * 5


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            BEGUN.replace("cluster_arrive();", "").replace("cluster_wait();", "")
            + "store_async(told, 1, 1.0f, met);",
            "block 1 of the cluster, which may not have begun",
        ),
        (
            BEGUN + "if (cluster_rank() == 0) store_async(told, 1, 1.0f, met);",
            "block 1 of the cluster, which has ended",
        ),
        (BEGUN + "store_async(told + 16, 1, 1.0f, met);", "4 bytes at"),
        (BEGUN + "store_async(told, 2, 1.0f, met);", "block 2 of a cluster of 2"),
        (
            BEGUN
            + "if (cluster_rank() == 1) { if (threadIdx.x == 0) store_async(told, 0, 1.0f, met); "
            "cluster_arrive(); cluster_wait(); } else { cluster_arrive(); cluster_wait(); }",
            "ended with 1 bulk copies that nobody waited for",
        ),
        (
            BEGUN + "if (threadIdx.x == 0) barrier_expect(met, 4); barrier_wait(met, 0);",
            "waits for a phase of the barrier",
        ),
        ("cluster_arrive(); cluster_arrive();", "a second time without cluster_wait()"),
        ("cluster_wait();", "cluster_wait() without cluster_arrive()"),
        (
            "if (cluster_rank() == 0) { cluster_arrive(); cluster_wait(); } else if "
            "(threadIdx.x == 0) { __syncthreads(); }",
            "barrier divergence",
        ),
    ],
)
def test_what_breaks_the_rules_is_told(body: str, words: str, card: Card) -> None:
    kernel = card.kernel(f"struct P {{ uint32_t unused; }}; KERNEL(k, P) {{ {body} }}")
    card.launch(kernel, 2, 64, params(unused=0), shared=64, cluster=2)
    message = card.message()
    with pytest.raises(CudaError):
        card.synchronize()
    assert words in message


def test_what_is_stored_is_there_behind_its_phase(card: Card) -> None:
    kernel = card.kernel(f"""
    struct P {{ float* seen; }};
    KERNEL(k, P) {{
        {BEGUN}
        if (threadIdx.x == 0) store_async(told, 1 - cluster_rank(), 7.0f, met);
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x == 0) p.seen[2 * blockIdx.x] = told[0];
        if (threadIdx.x == 0) barrier_expect(met, 4);
        barrier_wait(met, 0);
        if (threadIdx.x == 0) p.seen[2 * blockIdx.x + 1] = told[0];
    }}""")
    seen = card.alloc(16)
    card.launch(kernel, 2, 64, params(seen=seen), shared=64, cluster=2)
    card.synchronize()
    before, behind = seen.read(np.float32).reshape(2, 2).T
    assert np.isnan(before).all() and (behind == 7.0).all()


def test_blocks_that_have_ended_are_not_waited_for(card: Card) -> None:
    kernel = card.kernel("""
    struct P { uint32_t* passed; };
    KERNEL(k, P) {
        if (threadIdx.x >= 32) return;
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x == 0) p.passed[blockIdx.x] = 1;
    }""")
    passed = card.upload(np.zeros(4, np.uint32))
    card.launch(kernel, 4, 64, params(passed=passed), cluster=4)
    card.synchronize()
    assert passed.read(np.uint32).tolist() == [1] * 4


@pytest.mark.parametrize(("grid", "cluster"), [(24, 16), (10, 4)])
def test_sizes_that_no_card_has(grid: int, cluster: int, card: Card) -> None:
    sums = card.alloc(24 * 2 * 4)
    with pytest.raises(CudaError) as caught:
        card.launch(card.kernel(EXCHANGE), grid, 64, params(sums=sums), shared=64, cluster=cluster)
    assert caught.value.code == 912
    assert f"clusters of {cluster} blocks, of a grid of {grid}" in card.message()


def test_older_cards_have_none(script: Script) -> None:
    done = script(
        """
k = card.kernel("struct P { uint32_t unused; }; KERNEL(k, P) {}")
try:
    card.launch(k, 4, 32, params(unused=0), cluster=4)
except Exception as error:
    print(error)
""",
        KSIM_SM="86",
    )
    assert "clusters need compute capability 9.0, this is 8.6" in done.stdout, done.stderr
