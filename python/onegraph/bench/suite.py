"""llama-bench's tests on this engine."""

from __future__ import annotations

import json
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
from onegraph.errors import InternalError, OutOfMemoryError
from onegraph.graphs import GraphMode, GraphOptions
from onegraph.llm import LLM
from onegraph.results import Timings
from onegraph.sampling import resolve

__all__ = ["GRAPHS", "Outcome", "Repetition", "measure", "run"]

#: What a `GraphOptions.mode` is called in tables.
GRAPHS = {"full": "graph", "none": "eager"}

#: Called with what is going on, repetitions done and repetitions in all.
Told = Callable[[str, int, int | None], None]


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
    modes: Sequence[GraphMode],
    options: dict[str, Any],
    started: Callable[[], str],
    watch: Watch,
    warm_up: bool = True,
    told: Told | None = None,
) -> Iterator[Outcome]:
    """Runs every case in every mode of graphs ("full" and "none"), each as soon as asked for.

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
        with LLM(model, graph=GraphOptions(mode=graph), progress=told, **arguments) as llm:
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
    """One repetition, from an empty cache but for the tokens of the depth.

    Raises `OutOfMemoryError` where the sequences do not all fit in the cache together.
    """
    return _repetition(case, _run_once(llm, case, seed))


def _run_once(llm: LLM, case: Case, seed: int) -> list[Timings]:
    """Timings of a test's sequences, of which none takes a step before all have begun. That of a
    prompt begins behind the tokens of the depth, which the same sequence holds."""
    first = llm.tokenizer.bos_id if llm.tokenizer.add_bos else None
    length = case.n_depth + (case.n_prompt or (0 if case.n_depth else 1))
    # The prompt's pass yields a token itself: one more than the steps that are timed.
    n = case.n_gen + 1
    options = resolve({"max_tokens": n, "temperature": 0, "ignore_eos": True})
    timed_from = case.n_depth if case.n_prompt else 0
    before = llm.stats().preemptions
    generations = [
        # Another seed for each sequence: equal prompts would share their keys and values.
        llm._engine.submit(
            random_tokens(length, llm.n_vocab, seed * 1_000_003 + row, first),
            options,
            timed_from=timed_from,
            together=case.n_seq if case.n_seq > 1 else 0,
        )
        for row in range(case.n_seq)
    ]
    times = []
    try:
        for generation in generations:
            whole = generation.collect()
            made = whole.usage[1]
            if made != n:
                raise InternalError(f"{case.name} generated {made} of {n} tokens")
            times.append(Timings(*whole.timings))
    except OutOfMemoryError as e:
        raise _too_many(case, str(e.args[0])) from e
    finally:
        for generation in generations:
            generation.cancel()
    if stepped := llm.stats().preemptions - before:
        raise _too_many(case, f"{stepped} preemptions, because the pages ran out")
    return times


def _too_many(case: Case, why: str) -> OutOfMemoryError:
    """That the sequences of a test cannot all run all the time: there is no rate of them."""
    tokens = case.n_ctx - (case.n_depth > 0)
    return OutOfMemoryError(
        f"{case.name}: {case.n_seq} sequences of {tokens} tokens do not all run "
        f"together ({why.removeprefix('out of memory: ')}), so no rate; reduce -npl, -n or "
        "-d, or use a smaller --kv-type"
    )


def _repetition(case: Case, times: Sequence[Timings]) -> Repetition:
    """What was timed: sequences take their first step together, and their last, so that all run
    all the time. Some may be told late of the token before it."""
    steps = case.n_gen * case.n_seq
    longest = max(times, key=lambda t: t.decode_seconds)
    decode = longest.decode_seconds
    together = sum(t.decode_seconds for t in times) / (decode * len(times) or 1.0)
    plain = case.n_gen / longest.decode_tokens_per_second_without_sampling if steps else 0.0
    if not case.n_prompt:
        return Repetition(steps, decode, plain, together)
    prompt = times[0].prefill_seconds
    if not case.n_gen:
        return Repetition(case.n_prompt, prompt, None)
    return Repetition(case.n_prompt + steps, prompt + decode, prompt + plain)
