"""llama-bench's tests on this engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onegraph import _native
from onegraph.bench.cases import Case, context
from onegraph.bench.fidelity import Check, check
from onegraph.bench.load import Load, Watch
from onegraph.bench.memory import Peak, read_peak
from onegraph.bench.prompts import random_tokens
from onegraph.bench.statistics import mean, sample_stddev
from onegraph.errors import InternalError
from onegraph.llm import LLM
from onegraph.results import Timings
from onegraph.sampling import resolve

__all__ = ["GRAPHS", "Outcome", "Repetition", "measure", "run"]

#: What `cuda_graph` is called in tables.
GRAPHS = {"full": "graph", "none": "eager"}

#: Called with what is going on, repetitions done and repetitions in all.
Told = Callable[[str, int, int | None], None]


#: Part of the sequences that run on average, below which their clocks do not tell the rate of all.
ALL_TOGETHER = 0.95

#: Steps of all sequences that tell it.
LEAST_STEPS = 32


@dataclass(frozen=True, slots=True)
class Window:
    """What several sequences made, from where all had begun to where the first one ended."""

    n_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """One timed repetition of a test."""

    #: Tokens that the test counts: those of prompts and the generated ones.
    n_tokens: int
    seconds: float
    #: The same without the time for choosing tokens and making text; None for a prompt alone.
    seconds_without_sampling: float | None
    #: Part of the sequences that ran while they were timed, on average.
    together: float = 1.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.n_tokens / self.seconds


@dataclass(frozen=True)
class Outcome:
    """A test's repetitions and what is needed to read them."""

    case: Case
    #: "cpu", "graph" or "eager".
    mode: str
    repetitions: list[Repetition]
    check: Check
    #: Bytes of weights that a step reads, and of keys and values for each position before it.
    weight_bytes: int
    kv_bytes_per_position: int
    peak: Peak | None
    started: str
    #: What else ran on the machine, and the card's clock.
    load: Load
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each repetition."""
        return [r.rate for r in self.repetitions]

    @property
    def rates_without_sampling(self) -> list[float] | None:
        """The same without sampling and text; None for a prompt alone."""
        times = [r.seconds_without_sampling for r in self.repetitions]
        if any(t is None for t in times):
            return None
        return [r.n_tokens / t for r, t in zip(self.repetitions, times, strict=True) if t]

    @property
    def together(self) -> float:
        """Part of the sequences that ran while they were timed, in the repetition with least."""
        return min(r.together for r in self.repetitions)

    @property
    def samples_ns(self) -> list[int]:
        """Duration of each repetition, in nanoseconds."""
        return [round(r.seconds * 1e9) for r in self.repetitions]

    @property
    def avg_ts(self) -> float:
        """Mean of the rates."""
        return mean(self.rates)

    @property
    def stddev_ts(self) -> float:
        """Sample standard deviation of the rates."""
        return sample_stddev(self.rates)

    @property
    def bytes_per_step(self) -> int | None:
        """Bytes that one decode step must read, keys and values of every sequence among them, on
        average over the test; None for a prompt."""
        if self.case.n_gen == 0 or self.case.n_prompt:
            return None
        # Step i sees i tokens behind those of the depth, or behind the one that begins a text.
        seen = (self.case.n_depth or 1) + (self.case.n_gen + 1) / 2
        return round(self.weight_bytes + self.case.n_seq * seen * self.kv_bytes_per_position)

    @property
    def bytes_per_second(self) -> float | None:
        """What is read in a second of decoding; None for a prompt."""
        if self.bytes_per_step is None:
            return None
        return self.bytes_per_step * self.avg_ts / self.case.n_seq


def run(
    model: Path,
    cases: Sequence[Case],
    *,
    repetitions: int,
    modes: Sequence[str],
    options: dict[str, Any],
    started: Callable[[], str],
    watch: Watch,
    warm_up: bool = True,
    told: Told | None = None,
) -> Iterator[Outcome]:
    """Runs every case in every mode ("full" and "none" of `cuda_graph`), each as soon as asked for.

    `options` are further arguments of `LLM`. One mode is loaded at a time, checked, and then timed:
    an untimed repetition first unless `warm_up` is false, then `repetitions`, each with fresh
    random tokens.
    """
    info = json.loads(_native.model_info(model))
    decode = info["decode"]
    n_ctx = context(cases, info["shape"]["n_ctx_train"], 64)
    total = len(cases) * repetitions * len(modes)
    done = 0
    peak: Peak | None = None
    for graph in modes:
        arguments = options | {"n_ctx": n_ctx, "max_batch": max(c.n_seq for c in cases)}
        # What is timed is computed, each time.
        arguments["prefix_cache"] = False
        with LLM(model, cuda_graph=graph, progress=told, **arguments) as llm:
            mode = "cpu" if llm.device == "cpu" else GRAPHS[graph]
            checked = check(llm)
            if peak is None:
                from onegraph.bench.machine import n_threads

                peak = read_peak(llm.device, n_threads(options.get("threads")))
            for case in cases:
                begin = started()
                if warm_up:
                    # Untimed: what is compiled at first use is no part of any test.
                    _run_once(llm, case, seed=0)
                watch.begin()
                timed = []
                for number in range(repetitions):
                    if told:
                        told(f"{case.name} ({mode})", done, total)
                    timed.append(measure(llm, case, seed=number + 1))
                    done += 1
                yield Outcome(
                    case=case,
                    mode=mode,
                    repetitions=timed,
                    check=checked,
                    weight_bytes=int(decode["weight_bytes"]),
                    kv_bytes_per_position=int(decode["kv_bytes_per_position"]),
                    peak=peak,
                    started=begin,
                    load=watch.end(),
                    settings={"device": llm.device, "n_ctx": llm.n_ctx},
                )
        if mode == "cpu":
            return  # there are no graphs: every mode is this one


def measure(llm: LLM, case: Case, seed: int) -> Repetition:
    """One repetition, from an empty cache but for the tokens of the depth."""
    return _repetition(case, *_run_once(llm, case, seed))


def _run_once(llm: LLM, case: Case, seed: int) -> tuple[list[Timings], Window | None]:
    """Timings of a test's sequences, and what several made while all ran. That of a prompt begins
    behind the tokens of the depth, which the same sequence holds."""
    first = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
    length = case.n_depth + (case.n_prompt or (0 if case.n_depth else 1))
    # The prompt's pass yields a token itself: one more than the steps that are timed.
    n = case.n_gen + 1
    options = resolve({"max_tokens": n, "temperature": 0, "ignore_eos": True})
    timed_from = case.n_depth if case.n_prompt else 0
    generations = [
        # Another seed for each sequence: equal prompts would share their keys and values.
        llm._engine.submit(
            random_tokens(length, llm.n_vocab, seed * 1_000_003 + row, first),
            options,
            timed_from=timed_from,
        )
        for row in range(case.n_seq)
    ]
    ended: dict[int, _native.Generated] = {}
    window = None
    if case.n_seq > 1 and case.n_gen:
        for number, generation in enumerate(generations):
            _given(generation, number, ended, waits=True)
        # The last one may have waited: what the others made meanwhile does not count.
        for number, generation in enumerate(generations[:-1]):
            _given(generation, number, ended)
        begin = time.perf_counter()
        if not ended:
            # They end in the order in which they came, or several at once.
            ended[0] = generations[0].collect()
            seconds = time.perf_counter() - begin
            made = len(ended[0].token_ids)
            for number, generation in enumerate(generations[1:], 1):
                made += _given(generation, number, ended)
            window = Window(made, seconds)
    times = []
    for number, generation in enumerate(generations):
        whole = ended.get(number) or generation.collect()
        made = whole.usage[1]
        if made != n:
            raise InternalError(f"{case.name} generated {made} of {n} tokens")
        times.append(Timings(*whole.timings))
    return times, window


def _given(
    generation: _native.Generation,
    number: int,
    ended: dict[int, _native.Generated],
    waits: bool = False,
) -> int:
    """How many tokens it has made since it was last asked, one at least if this `waits`; its last
    piece goes to `ended`."""
    made = 0
    while number not in ended:
        part = generation.next() if waits and not made else generation.poll()
        if part is None:
            break
        made += len(part.token_ids)
        if part.finish_reason:
            ended[number] = part
    return made


def _together(times: Sequence[Timings]) -> tuple[float, float]:
    """Seconds in which all sequences make their tokens, at the rate that they have while all run,
    and how large a part of them did run then, on average.

    Those that begin first wait between two steps for the prompts of the others, and end before
    them. So what counts is the span from where the last one begins to the end, and of each sequence
    the part of its tokens that it made in there if it was as fast before as on average. It was
    slower: what this gives is never too short.
    """
    begun = [t.queue_seconds + t.prefill_seconds for t in times]
    ended = [begin + t.decode_seconds for begin, t in zip(begun, times, strict=True)]
    span = max(ended) - max(begun)
    inside = [max(0.0, end - max(begun)) for end in ended]
    made = [
        own / t.decode_seconds if t.decode_seconds else 1.0
        for own, t in zip(inside, times, strict=True)
    ]
    ran = sum(inside) / (span * len(times)) if span else 1.0
    return span * len(times) / sum(made), ran


def _repetition(case: Case, times: Sequence[Timings], window: Window | None = None) -> Repetition:
    """What was timed. Where sequences begin one after another, those that began first are as slow
    as the prompts of the others made them, so what is counted while all ran is the rate, if that
    is `LEAST_STEPS` steps; it is known to one step, which for fewer is less than the clocks say."""
    steps = case.n_gen * case.n_seq
    decode, together = _together(times)
    if window and together < ALL_TOGETHER and window.n_tokens >= LEAST_STEPS * case.n_seq:
        decode, together = steps * window.seconds / window.n_tokens, 1.0
    last = min(times, key=lambda t: t.decode_seconds)
    share = decode / last.decode_seconds if last.decode_seconds else 1.0
    plain = case.n_gen / last.decode_tokens_per_second_without_sampling * share if steps else 0.0
    if not case.n_prompt:
        return Repetition(steps, decode, plain, together)
    prompt = times[0].prefill_seconds
    if not case.n_gen:
        return Repetition(case.n_prompt, prompt, None)
    return Repetition(case.n_prompt + steps, prompt + decode, prompt + plain)
