"""What a capture forbids, and what it answers to that."""

import ctypes as c
from collections.abc import Callable

import numpy as np
import pytest
from support.card import Buffer, Card, CudaError, params

FILL = """
struct P { float* x; uint32_t at; };
KERNEL(k, P) { p.x[p.at] = 1; }
"""


@pytest.fixture
def card(any_card: Card) -> Card:
    """All of this holds on a real card too."""
    return any_card


#: The documentation of the capture modes calls these unsafe, or the stream's work that they ask for
#: has not been queued.
FORBIDDEN = [
    ("cuMemAlloc_v2", lambda card, x, s: card.alloc(16)),
    ("cuMemFree_v2", lambda card, x, s: x.free()),
    ("cuCtxSynchronize", lambda card, x, s: card.synchronize()),
    ("cuStreamSynchronize", lambda card, x, s: card.synchronize(s)),
    ("cuStreamQuery", lambda card, x, s: card.call("cuStreamQuery", s)),
    ("cuMemHostAlloc", lambda card, x, s: card.pinned(np.uint8, 16)),
]
#: Nothing is promised of these: a driver may do them. The simulator is strict.
UNSPECIFIED = [
    ("cuMemcpyDtoH_v2", lambda card, x, s: x.read(np.uint8)),
    ("cuModuleLoadData", lambda card, x, s: card.load(card.compile("__device__ int x;"))),
]


@pytest.mark.parametrize(("name", "act"), FORBIDDEN + UNSPECIFIED)
def test_unsafe_calls_end_a_capture(
    card: Card, name: str, act: Callable[[Card, Buffer, c.c_void_p], object]
) -> None:
    x, stream = card.alloc(64), card.stream()
    kernel = card.kernel(FILL)
    graphs = card.stats()["graphs"] if card.simulated else 0
    answers = [0, 0, 0]
    try:
        with card.capture(stream):
            try:
                act(card, x, stream)
            except CudaError as refused:
                assert refused.call == name
                answers[0] = refused.code
            try:
                card.launch(kernel, 1, 1, params(x=x, at=0), stream=stream)
            except CudaError as refused:
                answers[1] = refused.code
    except CudaError as refused:
        assert refused.call == "cuStreamEndCapture"
        answers[2] = refused.code
    said = f"{name}, a launch and the end of the capture answered {answers}"
    if card.simulated or name in dict(FORBIDDEN):
        assert answers == [900, 901, 901], said
    else:
        # Whatever it is, capture and call agree: 900 and 906 end it, success leaves it as it was.
        assert answers == [0, 0, 0] or (answers[0] in (900, 906) and answers[1:] == [901] * 2), said
    assert not card.simulated or card.stats()["graphs"] == graphs
    # The stream is in working order again.
    card.launch(kernel, 1, 1, params(x=card.alloc(16), at=0), stream=stream)
    card.synchronize(stream)


def test_the_legacy_stream_is_no_part_of_a_capture(card: Card) -> None:
    stream = c.c_void_p()
    card.call("cuStreamCreate", c.byref(stream), 0)
    x = card.alloc(16)
    kernel = card.kernel(FILL)
    with pytest.raises(CudaError) as ended, card.capture(stream):
        with pytest.raises(CudaError) as caught:
            card.launch(kernel, 1, 1, params(x=x, at=0))
        assert caught.value.code == 906
    assert ended.value.code == 901
    with pytest.raises(CudaError) as caught:
        card.call("cuStreamBeginCapture_v2", None, 0)
    assert caught.value.code == 900


def test_relaxed_captures_allow_allocation(card: Card) -> None:
    stream = card.stream()
    kernel = card.kernel(FILL)
    with card.capture(stream, mode=2) as captured:
        x = card.alloc(16)
        card.launch(kernel, 1, 1, params(x=x, at=1), stream=stream)
    card.replay(card.instantiate(captured[0]), stream)
    assert x.read(np.float32)[1] == 1


def test_forks_have_to_join(card: Card) -> None:
    one, two = card.stream(), card.stream()
    event = c.c_void_p()
    card.call("cuEventCreate", c.byref(event), 0)
    kernel = card.kernel(FILL)
    x = card.alloc(64)
    with pytest.raises(CudaError) as caught, card.capture(one):
        card.launch(kernel, 1, 1, params(x=x, at=0), stream=one)
        card.call("cuEventRecord", event, one)
        card.call("cuStreamWaitEvent", two, event, 0)
        card.launch(kernel, 1, 1, params(x=x, at=1), stream=two)
    assert caught.value.code == 904
    card.call("cuEventRecord", event, two)
    with pytest.raises(CudaError) as ended, card.capture(one):
        with pytest.raises(CudaError) as caught:
            card.call("cuStreamWaitEvent", one, event, 0)
        assert caught.value.code == 905
    assert ended.value.code == 901
