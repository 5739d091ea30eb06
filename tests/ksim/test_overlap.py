"""Programmatic launches overlap as they may on a card: a kernel starts once every block of the one
before has triggered, three are in flight, and what goes wrong then shows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.card_process import Script

EARLY = {"KSIM_PDL": "early"}

# Kernels that log what they do: 1 before the wait, 2 at the end, the number of the launch above.
TRACE = """
SOURCE = '''
struct P {{ uint32_t* next; uint32_t* log; uint32_t number; }};
static __device__ void say(const P& p, uint32_t what) {{
    p.log[atomicAdd(p.next, 1)] = p.number * 10 + what;
}}
KERNEL(k, P) {{ {body} }}'''
k = card.kernel(SOURCE)
log, next = card.alloc(16384), card.upload(np.zeros(1, np.uint32))
stream = card.stream()
def queue():
    for i in range({kernels}):
        card.launch(k, {blocks}, 1, params(next=next, log=log, number=i), stream=stream,
                    programmatic=True)
{run}
card.synchronize(stream)
print(log.read(np.uint32)[:next.read(np.uint32)[0]].tolist())
"""
GRAPH = """
with card.capture(stream) as captured:
    queue()
card.replay(card.instantiate(captured[0]), stream)
"""

FIRST = "say(p, 1); pdl_trigger(); pdl_wait(); say(p, 2);"
BEHIND = "say(p, 1); pdl_wait(); pdl_trigger(); say(p, 2);"
NEVER = "say(p, 1); pdl_wait(); say(p, 2);"


def trace(
    script: Script, body: str, *, kernels: int = 4, blocks: int = 3, run: str = GRAPH, **env: str
) -> list[tuple[int, int]]:
    """(launch, what) of each line of the log."""
    text = TRACE.format(body=body, kernels=kernels, blocks=blocks, run=run)
    done = script(text, **(EARLY | env))
    assert done.returncode == 0, done.stderr
    log: list[int] = eval(done.stdout)
    assert len(log) == kernels * blocks * 2
    return [divmod(line, 10) for line in log]


def in_flight(log: list[tuple[int, int]], blocks: int) -> int:
    """Most kernels that had started and not ended."""
    started, ended, most = set(), dict.fromkeys({n for n, _ in log}, 0), 0
    for number, what in log:
        started.add(number)
        ended[number] += what == 2
        most = max(most, sum(ended[n] < blocks for n in started))
    return most


@pytest.mark.parametrize("seed", ["0", "3"])
@pytest.mark.parametrize(("body", "most"), [(FIRST, 3), (BEHIND, 2), (NEVER, 1)])
@pytest.mark.parametrize("blocks", [3, 40])
def test_a_kernel_starts_when_all_before_it_have_triggered(
    body: str, most: int, blocks: int, seed: str, script: Script
) -> None:
    log = trace(script, body, blocks=blocks, KSIM_SEED=seed)
    waits = {n: [at for at, line in enumerate(log) if line == (n, 1)] for n in range(4)}
    ends = {n: [at for at, line in enumerate(log) if line == (n, 2)] for n in range(4)}
    assert all(len(lines) == blocks for lines in [*waits.values(), *ends.values()])
    for before, after in pairwise(range(4)):
        assert max(ends[before]) < min(ends[after]), "a wait returned too soon"
        assert max(waits[before]) < min(waits[after]), "started before all had triggered"
    # Of 40 blocks not all find room to trigger before the kernel ahead of theirs has ended.
    assert in_flight(log, blocks) == (most if blocks == 3 else min(most, 2))


def test_queued_launches_overlap_as_captured_ones_do(script: Script) -> None:
    queued = trace(script, FIRST, run="queue()", KSIM_LAZY="1")
    assert in_flight(queued, 3) == 3
    # What is between them ends what has started.
    apart = """
queue()
event = c.c_void_p()
card.call("cuEventCreate", c.byref(event), 0)
card.call("cuEventRecord", event, stream)
queue()
"""
    text = TRACE.format(body=FIRST, kernels=1, blocks=1, run=apart)
    done = script(text, **EARLY, KSIM_LAZY="1")
    assert done.stdout.strip() == "[1, 2, 1, 2]", done.stderr
    assert in_flight(trace(script, FIRST, run="queue()", KSIM_LAZY="1", KSIM_PDL=""), 3) == 1


# A chain of three over x, y and z: each kernel may do something before its wait. K0 fills x from
# the input, K1 copies x to y, K2 copies y to z, each adding one.
CHAIN = """
SOURCE = '''
struct P {{ const uint32_t* from; uint32_t* to; uint32_t* other; uint32_t number; }};
KERNEL(k, P) {{
    SHARED uint64_t barrier;
    alignas(16) SHARED uint32_t box[32];
    const uint32_t t = threadIdx.x;
    uint32_t seen = 0;
    {before}
    pdl_wait();
    {after}
    p.to[t] = load_relaxed_u32(p.from + t) + 1 + 0 * seen;
}}'''
k = card.kernel(SOURCE)
a, x, y, z = [card.upload(np.arange(32, dtype=np.uint32) + 100 * i) for i in range(4)]
chain = [(a, x, {others[0]}), (x, y, {others[1]}), (y, z, {others[2]})]
stream = card.stream()
with card.capture(stream) as captured:
    for i, (source, target, other) in enumerate(chain):
        card.launch(k, 1, 32, params(**{{"from": source}}, to=target, other=other, number=i),
                    stream=stream, programmatic=True)
card.replay(card.instantiate(captured[0]), stream)
card.synchronize(stream)
print(x.read(np.uint32)[5], y.read(np.uint32)[5], z.read(np.uint32)[5])
"""
RIGHT = "6 7 8"


def chain(
    script: Script,
    *,
    before: str = "",
    after: str = "pdl_trigger();",
    others: tuple[str, str, str] = ("z", "z", "x"),
    **env: str,
) -> tuple[str, str]:
    """What comes out, and what the driver says."""
    done = script(CHAIN.format(before=before, after=after, others=others), **(EARLY | env))
    return done.stdout.strip(), done.stderr


def test_a_chain_that_keeps_the_rules_gives_what_it_gives_in_order(script: Script) -> None:
    for before, after in [("", "pdl_trigger();"), ("pdl_trigger();", ""), ("", "")]:
        assert chain(script, before=before, after=after, KSIM_PDL="") == (RIGHT, "")
        assert chain(script, before=before, after=after) == (RIGHT, "")


TOO_SOON = "before its pdl_wait(): a grid that had not ended wrote them afterwards"
# The third kernel reads what the first one writes.
TWO_BACK = "if (p.number == 2) seen = load_relaxed_u32(p.other + t);"


def test_the_output_of_two_kernels_back_is_safe_until_kernels_trigger_before_they_wait(
    script: Script,
) -> None:
    assert chain(script, before=TWO_BACK) == (RIGHT, "")
    _, said = chain(script, before="pdl_trigger();" + TWO_BACK, after="")
    assert "kernel k, block (0,0,0): read 4 bytes" in said and TOO_SOON in said


BULK = """
    if (p.number == 1 && t == 0) {
        barrier_init(&barrier, 1);
        barrier_init_fence();
        barrier_expect(&barrier, 128);
        bulk_copy(to_shared_address(box), p.from, 128, &barrier);
    }"""
ARRIVES = "pdl_trigger(); if (p.number == 1 && t == 0) barrier_wait(&barrier, 0);"
ASYNC = "if (p.number == 1 && t < 8) cp_async_16(box + 4 * t, p.from + 4 * t);"


@pytest.mark.parametrize(
    ("before", "after", "bytes"),
    [
        ("if (p.number == 1) seen = load_relaxed_u32(p.from + t);", "pdl_trigger();", 4),
        ("if (p.number == 1) seen = __ldg(p.from + t);", "pdl_trigger();", 4),
        ("if (p.number == 1) seen = load_stream_u32x4(p.from).x;", "pdl_trigger();", 16),
        (ASYNC, "pdl_trigger();", 16),
        # It arrives after the wait, which the simulator would do last.
        (BULK, ARRIVES, 128),
    ],
    ids=["load", "ldg", "stream", "cp.async", "bulk"],
)
def test_reading_the_predecessors_output_before_the_wait_is_reported(
    before: str, after: str, bytes: int, script: Script
) -> None:
    assert chain(script, before=before, after=after, KSIM_PDL="") == (RIGHT, "")
    _, said = chain(script, before=before, after=after)
    assert f"read {bytes} bytes at 0x" in said and TOO_SOON in said


def test_overwriting_before_the_wait_what_a_kernel_in_flight_reads_shows(script: Script) -> None:
    """The successor, and where kernels trigger first, the successor's successor."""
    spoils = "if (p.number == {}) p.other[t] = 1000;"
    one = {"before": spoils.format(1), "others": ("z", "a", "z")}
    two = {"before": "pdl_trigger();" + spoils.format(2), "after": "", "others": ("z", "z", "a")}
    for case in (one, two):
        assert chain(script, **case, KSIM_PDL="") == (RIGHT, "")
        assert chain(script, **case)[0] not in ("", RIGHT)
    # Two back and no trigger before a wait: what it overwrites was read.
    assert chain(script, before=spoils.format(2), others=("z", "z", "a")) == (RIGHT, "")


def test_a_thread_that_does_not_wait_shows_though_its_block_does(script: Script) -> None:
    """Its block keeps the grid from ending, but what the thread reads may be of before."""
    skips = "if (t >= 16) { p.to[t] = load_relaxed_u32(p.from + t) + 1; return; }"
    assert chain(script, before=skips, KSIM_PDL="") == (RIGHT, "")
    assert TOO_SOON in chain(script, before=skips)[1]


def test_a_kernel_that_ends_without_a_wait_is_reported(script: Script) -> None:
    """A wait for it would not have waited for the kernel before it."""
    _, said = chain(script, before="if (p.number == 1) return;")
    assert "no thread of the block called pdl_wait()" in said
