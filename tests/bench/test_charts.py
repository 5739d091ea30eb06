"""Charts show the spread of what was measured: read from their bars and whiskers."""

from typing import Any

import pytest
from onegraph.bench import charts
from onegraph.bench.cases import Case
from onegraph.bench.fidelity import Check
from onegraph.bench.load import Load
from onegraph.bench.measurement import Measurement
from onegraph.bench.race import Entrant, Result
from onegraph.bench.statistics import mean, sample_stddev

pytest.importorskip("matplotlib")

TEST = {"n_prompt": 0, "n_gen": 8, "n_depth": 0}


def whiskers(axes: Any) -> list[tuple[float, float]]:
    """Both ends of the whiskers of each bar, from the top."""
    (lines,) = (c for container in axes.containers for c in getattr(container, "lines", [])[2:])
    return [(float(a[0]), float(b[0])) for (a, b) in lines[0].get_segments()]


def bars(axes: Any) -> list[float]:
    return [float(bar.get_width()) for bar in axes.patches]


def ends(samples: list[float]) -> tuple[float, float]:
    return mean(samples) - sample_stddev(samples), mean(samples) + sample_stddev(samples)


def test_bench_draws_the_deviation_of_each_test() -> None:
    samples = [[100.0, 130.0, 90.0], [40.0, 41.0]]
    records = [
        TEST
        | {"n_seq": 1, "mode": "cpu", "gpu_info": "", "cpu_info": "a processor", "n_gen": n}
        | {"samples_ts": s, "avg_ts": mean(s), "stddev_ts": sample_stddev(s)}
        for n, s in zip((8, 16), samples, strict=True)
    ]
    figure = charts.figure(records, "model")
    (axes,) = figure.axes
    assert bars(axes) == pytest.approx([mean(s) for s in samples])
    assert whiskers(axes) == [pytest.approx(ends(s)) for s in samples]
    assert figure.get_supxlabel() == "bars: mean; whiskers: sample standard deviation"
    once = charts.figure([r | {"samples_ts": [40.0]} for r in records], "model")
    assert once.get_supxlabel() == "one repetition: its spread is not known"


def test_a_race_draws_the_deviation_of_each_engine() -> None:
    samples = {"onegraph": [100.0, 130.0, 90.0], "ollama": [40.0, 41.0, 44.0]}
    machine = {"gpu": None, "cpu": "a processor"}
    records = [
        TEST
        | {"engine": name, "failure": None, "machine": machine, "samples_ts": rates}
        | {"samples_ts_prompt": [10 * r for r in rates], "samples_first_token_ms": rates}
        for name, rates in samples.items()
    ]
    figure = charts.figure(records, "model")
    assert len(figure.axes) == 3
    for axes, factor in zip(figure.axes, (1, 10, 1), strict=True):
        scaled = [[factor * r for r in rates] for rates in samples.values()]
        assert bars(axes) == pytest.approx([mean(s) for s in scaled])
        assert whiskers(axes) == [pytest.approx(ends(s)) for s in scaled]


def measured(steps_a_second: float) -> Measurement:
    return Measurement(8, 0, 9, 0.1, 8 / steps_a_second, 0.1, 8 / steps_a_second, None, "text")


def test_the_terminals_chart_says_the_least_and_the_most() -> None:
    pytest.importorskip("plotext")
    ours = Entrant("onegraph", rounds=[measured(100), measured(130)])
    other = Entrant("ollama", rounds=[measured(40), measured(44)])
    check = Check(0.0, 1.0, "one against another", 32)
    result = Result(Case(8, 9), ours, [other], check, Load(2, None, None, None))
    drawn = charts.terminal([result])
    assert drawn is not None
    assert "onegraph 100.0 to 130.0" in drawn and "ollama 40.0 to 44.0" in drawn
    assert "least to most, mean" in drawn and max(map(len, drawn.splitlines())) <= 80
