"""A race: engines that do the same work on the same file, in turn, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from onegraph.bench import machine
from onegraph.bench.cases import Case
from onegraph.bench.engines import Adapter, MissingError, Prompt, Running, Settings, Setup, find
from onegraph.bench.fidelity import GREEDY_BAR, Check, agreement, answered, check
from onegraph.bench.load import Load, Watch
from onegraph.bench.measurement import EarlyEnd, EngineError, Measurement
from onegraph.bench.prompts import exact
from onegraph.bench.statistics import Ratio, ratio
from onegraph.errors import ArgumentError
from onegraph.llm import LLM

__all__ = ["OURS", "Entrant", "Result", "measured_here", "missing", "run"]

OURS = "onegraph"
#: Rounds that may be given up because an engine's text ended early, for each that counts.
SPARE = 4
#: Lengths of the fixed text's start and of the answer that is checked.
CHECK_PROMPT, CHECK_TOKENS = 48, 32

Told = Callable[[str, int, int | None], None]


@dataclass
class Entrant:
    """An engine of a race, and how it went."""

    name: str
    settings: Settings | None = None
    #: One for each round; empty where it failed.
    rounds: list[Measurement] = field(default_factory=list)
    #: Part of its greedy tokens that are onegraph's first choice; None where it gives no text.
    agreement: float | None = None
    #: Why it has no rounds.
    failure: str | None = None

    @property
    def decode_rates(self) -> list[float]:
        """By the engine's own clock, else by the caller's."""
        rates = [m.decode_rate or m.wall_decode_rate for m in self.rounds]
        return [r for r in rates if r is not None]

    @property
    def wall_decode_rates(self) -> list[float]:
        """By the caller's clock."""
        return [r for m in self.rounds if (r := m.wall_decode_rate) is not None]

    @property
    def prompt_rates(self) -> list[float]:
        """By the engine's own clock."""
        return [r for m in self.rounds if (r := m.prompt_rate) is not None]

    @property
    def first_token_seconds(self) -> list[float]:
        """By the caller's clock, from the request on."""
        return [m.first_token_seconds for m in self.rounds if m.first_token_seconds is not None]

    @property
    def ok(self) -> bool:
        """Whether it ran, and its output is ours as far as that can be told."""
        right = self.agreement is None or self.agreement >= GREEDY_BAR
        return self.failure is None and bool(self.rounds) and right


@dataclass
class Result:
    """One case of a race."""

    case: Case
    ours: Entrant
    others: list[Entrant]
    check: Check
    #: What else ran on the machine before and behind the rounds, and the card's clock.
    load: Load

    def decode_ratio(self, other: Entrant) -> Ratio | None:
        """How many times the other's decode rate ours is."""
        return _ratio(self.ours.decode_rates, other.decode_rates)

    def prompt_ratio(self, other: Entrant) -> Ratio | None:
        """The same of the prompt."""
        return _ratio(self.ours.prompt_rates, other.prompt_rates)


def _ratio(ours: list[float], theirs: list[float]) -> Ratio | None:
    return ratio(ours, theirs) if ours and len(ours) == len(theirs) else None


def measured_here(llm: LLM, prompt: Prompt, n: int, *, to_the_end: bool = False) -> Measurement:
    """One generation of this engine, by the clock of the caller and its own.

    `to_the_end` lets the model end its text, as an engine that cannot be told otherwise does.
    """
    begin = time.perf_counter()
    first = last = None
    ids = list(prompt.tokens)
    with llm.generate(
        ids, stream=True, max_tokens=n, temperature=0, ignore_eos=not to_the_end
    ) as stream:
        for piece in stream:
            if piece.token_ids:
                last = time.perf_counter()
                first = first or last
    result = stream.result
    assert result is not None
    used, took = result.usage, result.timings
    return Measurement(
        n_prompt=used.prompt_tokens,
        n_cached=0,
        n_generated=used.completion_tokens,
        prompt_seconds=took.prefill_seconds,
        decode_seconds=took.decode_seconds,
        first_token_seconds=first - begin if first else None,
        wall_decode_seconds=last - first if first and last else None,
        tokens=tuple(result.token_ids),
        text=result.text,
        rate_without_sampling=took.decode_tokens_per_second_without_sampling,
    )


def missing(against: Sequence[str]) -> dict[str, str]:
    """Of these engines those that are not on this machine, with how to get each."""
    found = [_find(name) for name in dict.fromkeys(against)]
    return {one.name: one.failure for one in found if isinstance(one, Entrant) and one.failure}


def run(
    setup: Setup,
    cases: Sequence[Case],
    against: Sequence[str],
    *,
    rounds: int,
    version: str,
    warm_up: bool = True,
    told: Told | None = None,
) -> Iterator[Result]:
    """Runs each case and gives it as soon as it is done; a round that does not count goes before
    the others unless `warm_up` is false.

    An engine that is missing or fails is reported in its `Entrant.failure`, and the rest goes on.
    """
    if wrong := [c for c in cases if c.n_prompt + c.n_depth < 2 or c.n_gen < 2]:
        raise ArgumentError(
            f"{wrong[0].name or 'a test'}: needs a prompt and at least 2 generated tokens; "
            "set -p and -n"
        )
    found = [_find(name) for name in dict.fromkeys(against)]
    # The engines work in processes of their own, which are no load by others.
    watch = machine.watch(setup.device, pause=True)
    with (
        LLM(
            setup.model,
            device=setup.device,
            n_ctx=setup.n_ctx,
            max_batch=1,
            threads=setup.threads,
            # Nobody keeps a prompt from one round to the next.
            prefix_cache=False,
            progress=told,
        ) as llm,
        ExitStack() as stack,
    ):
        checked = check(llm)
        engines = [_start(one, setup, stack, told) for one in found]
        for entrant, running in engines:
            if running is not None:
                _check_output(llm, entrant, running)
        total = rounds * len(cases)
        for number, case in enumerate(cases):
            ours = Entrant(OURS, Settings(OURS, version, llm.device))
            here = [(replace(e, rounds=[]), running) for e, running in engines]

            def tell(done: int, case: Case = case, before: int = number * rounds) -> None:
                if told:
                    told(f"round of {case.name}", before + done, total)

            _case(llm, case, ours, here, rounds, tell, watch, warm_up)
            yield Result(case, ours, [entrant for entrant, _ in here], checked, watch.end())


def _find(name: str) -> Adapter | Entrant:
    try:
        return find(name)
    except MissingError as e:
        return Entrant(name, failure=str(e))


def _start(
    one: Adapter | Entrant, setup: Setup, stack: ExitStack, told: Told | None
) -> tuple[Entrant, Running | None]:
    if isinstance(one, Entrant):
        return one, None
    if told:
        told(f"loading in {one.name}", 0, None)
    try:
        running = stack.enter_context(one.start(setup))
    except EngineError as e:
        return Entrant(one.name, failure=str(e)), None
    return Entrant(one.name, running.settings), running


def _check_output(llm: LLM, entrant: Entrant, running: Running) -> None:
    """Lets an engine go on from a fixed text and asks how far that is what is expected here. Warms
    it up, too."""
    for seed in range(SPARE):
        prompt = exact(llm.tokenizer, min(CHECK_PROMPT, llm.n_ctx - CHECK_TOKENS), seed)
        try:
            made = running.answer(prompt, CHECK_TOKENS)
        except EarlyEnd:
            continue
        except EngineError as e:
            entrant.failure = str(e)
            return
        answer = answered(llm, made)
        if answer is None:
            return  # it gives no text at all
        if len(answer) >= CHECK_TOKENS // 2:
            entrant.agreement = agreement(llm, prompt.tokens, answer)
            return
    entrant.failure = f"its texts end within {CHECK_TOKENS // 2} tokens: nothing to check or time"


def _case(
    llm: LLM,
    case: Case,
    ours: Entrant,
    others: list[tuple[Entrant, Running | None]],
    rounds: int,
    tell: Callable[[int], None],
    watch: Watch,
    warm_up: bool,
) -> None:
    length, n = case.n_depth + case.n_prompt, case.n_gen
    seed = 1
    spare = SPARE * (rounds + 1)
    early: dict[str, str] = {}
    # The first round warms up and does not count.
    done = -1 if warm_up else 0
    while done < rounds:
        tell(max(done, 0))
        if done == 0:
            watch.begin()
        racing = [(e, r) for e, r in others if r is not None and e.failure is None]
        prompt = exact(llm.tokenizer, length, seed)
        seed += 1
        ends = [e for e, r in racing if not r.ignores_end]
        if ends and spare > 0 and measured_here(llm, prompt, n, to_the_end=True).n_generated < n:
            spare -= 1
            for entrant in ends:
                early[entrant.name] = "the model ends its text before -n tokens"
            continue
        got: list[tuple[Entrant, Measurement]] = []
        try:
            # Who begins changes, so that nobody always runs behind the same one.
            order: list[tuple[Entrant, Running | None]] = [(ours, None), *racing]
            at = seed % len(order)
            for entrant, running in order[at:] + order[:at]:
                try:
                    got.append((entrant, _measure(llm, entrant, running, prompt, n)))
                except EarlyEnd as e:
                    if spare > 0:
                        raise
                    entrant.failure = str(e)
                except EngineError as e:
                    entrant.failure = str(e)
        except EarlyEnd:
            spare -= 1
            continue
        if done >= 0:
            for entrant, measurement in got:
                entrant.rounds.append(measurement)
        done += 1
    for entrant, _ in others:
        if entrant.failure is not None:
            entrant.rounds.clear()


def _measure(
    llm: LLM, entrant: Entrant, running: Running | None, prompt: Prompt, n: int
) -> Measurement:
    made = measured_here(llm, prompt, n) if running is None else running.generate(prompt, n)
    made.check(len(prompt.tokens), n, entrant.name)
    return made
