"""The arithmetic of speeds, on what real servers answered: `recorded/README.md` says how."""

import json
from pathlib import Path

import pytest
from onegraph.bench.engines import llama_server, ollama
from onegraph.bench.measurement import EarlyEnd, EngineError, Measurement, seconds
from onegraph.bench.stream import Line

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> list[Line]:
    lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()
    return [Line(*json.loads(line)) for line in lines]


def last(name: str) -> dict:
    text = recorded(name)[-1].text
    return json.loads(text.removeprefix("data:"))


@pytest.mark.parametrize("name", ["ollama_plain", "ollama_new_engine_plain"])
def test_ollamas_nanoseconds_are_n_minus_one_steps(name: str) -> None:
    said = last(name)
    found = ollama.measurement(recorded(name))
    assert (found.n_prompt, found.n_generated) == (12, said["eval_count"])
    assert found.decode_rate == pytest.approx(
        (said["eval_count"] - 1) / (said["eval_duration"] / 1e9), rel=1e-12
    )
    assert found.prompt_rate == pytest.approx(12e9 / said["prompt_eval_duration"], rel=1e-12)
    # The server's own figure counts a token whose time it does not count.
    own = said["eval_count"] / said["eval_duration"] * 1e9
    assert own / found.decode_rate == pytest.approx(said["eval_count"] / (said["eval_count"] - 1))


def test_the_callers_clock_agrees_with_ollamas() -> None:
    found = ollama.measurement(recorded("ollama_plain"))
    # Two busy cores and HTTP between the two clocks.
    assert found.wall_decode_rate == pytest.approx(found.decode_rate, rel=0.1)
    assert found.first_token_seconds > found.prompt_seconds
    assert found.text.startswith(" the ship's crew")


def test_a_prompt_that_ollama_kept_has_no_rate() -> None:
    fresh = ollama.measurement(recorded("ollama_plain"))
    naive = ollama.measurement(recorded("ollama_cached")).prompt_rate
    assert naive > 10 * fresh.prompt_rate  # it counts tokens that it did not read
    known = ollama.measurement(recorded("ollama_cached"), n_kept=12)
    assert known.prompt_rate is None and known.prompt_seconds is None
    # What it generates is another matter: each step was done.
    assert known.decode_rate is not None and known.text == fresh.text


def test_one_token_has_no_step_to_time() -> None:
    assert "eval_duration" not in last("ollama_one_token")
    for found in [
        ollama.measurement(recorded("ollama_one_token")),
        llama_server.measurement(recorded("llama_server_one_token")),
    ]:
        assert found.n_generated == 1
        assert found.decode_rate is None and found.wall_decode_rate is None
        assert found.first_token_seconds > 0
        found.check(11, 1, "engine")


def test_ollama_tells_its_tokens_where_it_is_asked() -> None:
    plain = ollama.measurement(recorded("ollama_plain"))
    found = ollama.measurement(recorded("ollama_tokens"))
    assert plain.pieces is None and len(found.pieces) == found.n_generated == 16
    assert b"".join(found.pieces).decode() == found.text


@pytest.mark.parametrize("name", ["ollama_early_stop", "ollama_new_engine_early_stop"])
def test_an_early_end_is_refused_with_both_counts(name: str) -> None:
    found = ollama.measurement(recorded(name))
    with pytest.raises(
        EarlyEnd, match=r"generated 3 of 64 tokens.*another prompt, or a smaller -n"
    ):
        found.check(18, 64, "ollama")


@pytest.mark.parametrize("name", ["ollama_no_tokens", "ollama_new_engine_no_tokens"])
def test_a_first_token_that_ends_the_text_is_an_early_end(name: str) -> None:
    found = ollama.measurement(recorded(name))
    assert (found.text, found.first_token_seconds, found.decode_rate) == ("", None, None)
    with pytest.raises(EarlyEnd, match="generated 1 of 16"):
        found.check(21, 16, "ollama")


def test_an_answer_without_a_count_is_an_early_end() -> None:
    assert "eval_count" not in last("ollama_empty_prompt")
    with pytest.raises(EarlyEnd, match=r"no eval_count.*another prompt or model"):
        ollama.measurement(recorded("ollama_empty_prompt"))


def test_an_error_in_mid_stream_is_said_with_the_servers_words() -> None:
    with pytest.raises(EngineError, match=r"after 5 parts.*unexpected EOF; see the log"):
        ollama.measurement(recorded("ollama_runner_died"))


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(EngineError, match=r"ollama's answer ended after 5 parts.*see its log"):
        ollama.measurement(recorded("ollama_server_died"))
    with pytest.raises(EngineError, match="llama-server's answer ended after 5 parts"):
        llama_server.measurement(recorded("llama_server_died"))
    for name in ["ollama_plain", "ollama_cached"]:
        with pytest.raises(EngineError, match="ended after 16 parts"):
            ollama.measurement(recorded(name)[:-1])


def test_other_counts_of_the_prompt_are_refused() -> None:
    found = ollama.measurement(recorded("ollama_plain"))
    with pytest.raises(EngineError, match=r"ollama counts 12 tokens in the prompt, onegraph 13"):
        found.check(13, 16, "ollama")


def test_llama_cpps_milliseconds_are_n_minus_one_steps() -> None:
    timings = last("llama_server_plain")["timings"]
    found = llama_server.measurement(recorded("llama_server_plain"))
    assert found.decode_rate == pytest.approx(1e3 * 15 / timings["predicted_ms"], rel=1e-12)
    # It has come to the same view of its clock.
    assert found.decode_rate == pytest.approx(timings["predicted_per_second"], rel=1e-9)
    assert found.prompt_rate == pytest.approx(timings["prompt_per_second"], rel=1e-9)
    assert (found.n_prompt, found.n_cached, len(found.tokens)) == (12, 0, 16)


def test_llama_cpp_says_what_it_kept() -> None:
    timings = last("llama_server_kept")["timings"]
    found = llama_server.measurement(recorded("llama_server_kept"))
    assert (found.n_prompt, found.n_cached) == (14, 13)
    assert found.prompt_rate == pytest.approx(1e3 / timings["prompt_ms"], rel=1e-12)


def test_llama_cpp_that_ends_early() -> None:
    with pytest.raises(EarlyEnd, match=r"generated \d+ of 128 tokens"):
        found = llama_server.measurement(recorded("llama_server_early_stop"))
        found.check(found.n_prompt, 128, "llama-server")
    with pytest.raises(EarlyEnd, match="generated 1 of 16 tokens"):
        llama_server.measurement(recorded("llama_server_no_tokens")).check(21, 16, "llama-server")


def test_a_clock_that_stood_still_gives_no_rate() -> None:
    still = Measurement(12, 0, 16, 0.0, 0.0, 0.1, 0.0, None, "text")
    for rate in ["decode_rate", "wall_decode_rate", "prompt_rate"]:
        with pytest.raises(EngineError, match=r"tokens of \w+ in 0.0 seconds: the clock did"):
            getattr(still, rate)


@pytest.mark.parametrize("wrong", [-1, 1.5, "12", None, True])
def test_a_duration_of_another_form_is_refused(wrong: object) -> None:
    with pytest.raises(EngineError, match=r"eval_duration is .*not a number of nanoseconds"):
        seconds(wrong, "eval_duration")


@pytest.mark.parametrize("text", ["<html>", "[1, 2]", "[" * 100_000])
def test_another_program_at_the_address_is_noticed(text: str) -> None:
    with pytest.raises(EngineError, match=r"is it another program\?"):
        ollama.measurement([Line(0.1, text)])
