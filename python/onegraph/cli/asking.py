"""What an answer of `onegraph run` is asked for with beside its sampling: tools of a Python file,
and how much the model is to think."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from onegraph import LLM
from onegraph.answers import ToolCall
from onegraph.cli.terminal import say
from onegraph.conversations import thinking
from onegraph.errors import ArgumentError, FileError
from onegraph.functions import described
from onegraph.results import Result
from onegraph.streams import Stream

__all__ = ["MOST_ROUNDS", "Asking", "Thinking", "functions_of"]

#: Answers that call tools, before one without them.
MOST_ROUNDS = 16
#: Characters of a result that are shown; the model reads all of it.
SHOWN = 200
#: The name that the file of tools has as a module.
MODULE = "onegraph_tools"

Function = Callable[..., Any]


@dataclass
class Asking:
    """What all answers of a run have in common."""

    tools: Sequence[Function] = ()
    #: Variables of the chat template.
    variables: dict[str, Any] | None = None

    def ask(
        self,
        llm: LLM,
        messages: list[dict[str, Any]],
        sampling: dict[str, Any],
        show: Callable[[Stream], None],
    ) -> Result:
        """The answer to a conversation, behind those that call tools, whose calls are run."""
        for left in range(MOST_ROUNDS, -1, -1):
            if self.tools and not left:
                say(f"{MOST_ROUNDS} answers called tools: the next must answer without", err=True)
            with llm.chat(
                messages,
                [*self.tools] or None,
                tool_choice="auto" if left else "none",
                template_kwargs=self.variables,
                stream=True,
                **sampling,
            ) as stream:
                show(stream)
            assert stream.result is not None
            result = stream.result
            for wrong in result.invalid_tool_calls:
                say(f"{wrong.name}: invalid call: {wrong.reason}", err=True)
            if not result.tool_calls:
                break
            messages = [*messages, result.message, *map(self._replied, result.tool_calls)]
        return result

    def _replied(self, call: ToolCall) -> dict[str, Any]:
        """Runs a call, and shows it. A model mends many of its mistakes if it is told of them."""
        given = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in call.arguments.items()
        )
        say(click.style(f"{call.name}({given})", dim=True), err=True)
        try:
            found = call.run()
            if inspect.isawaitable(found):
                found = asyncio.run(_awaited(found))
            message = call.reply(found)
        except ArgumentError as e:  # of what the model gave
            message = call.reply(f"error: {e}")
        except (Exception, SystemExit) as e:
            file = inspect.getfile(self.tools[0])
            say(f"{_place(e, file)}: {_named(e)}", err=True)
            message = call.reply(f"error: {_named(e)}")
        said = message["content"]
        cut = f"{said[:SHOWN]}... ({len(said):,} characters)" if len(said) > SHOWN else said
        say(click.style(f"-> {cut}", dim=True), err=True)
        return message


async def _awaited(found: Any) -> Any:
    return await found


def functions_of(path: Path) -> list[Function]:
    """The functions of a Python file that are tools: public, made there, with a docstring. Raises
    `ArgumentError` with file and line where it cannot be run or a function cannot be described."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise ArgumentError(f"--tools {path}: must be a Python file, FILE.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # annotations of dataclasses are looked up there
    sys.path.insert(0, str(path.resolve().parent))  # as where `python FILE.py` runs it
    try:
        spec.loader.exec_module(module)
    except SyntaxError as e:
        raise ArgumentError(f"--tools {e.filename}:{e.lineno}: {_named(e, e.msg)}") from e
    except (Exception, SystemExit) as e:
        if isinstance(e, OSError) and not path.is_file():
            raise FileError(f"cannot read --tools {path}: {e.strerror}; give a path") from e
        raise ArgumentError(f"--tools {_place(e, str(path))}: {_named(e)}") from e
    public = [
        each
        for name, each in vars(module).items()
        if name[0] != "_" and inspect.isfunction(each) and each.__module__ == MODULE
    ]
    found: list[Function] = [each for each in public if inspect.getdoc(each)]
    if bare := [each.__name__ for each in public if each not in found]:
        say(f"{path}: not offered, for lack of a docstring: {', '.join(bare)}", err=True)
    if not found:
        raise ArgumentError(
            f"--tools {path}: has no public function with a docstring, which tells the model "
            "when to call it"
        )
    for each in found:
        described(each, f"--tools {path}:{inspect.getsourcelines(each)[1]}")
    return found


def _place(e: BaseException, path: str) -> str:
    """The file and the last line of it that an error went through."""
    frames = traceback.extract_tb(e.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == Path(path)]
    return f"{path}:{lines[-1]}" if lines else path


def _named(e: BaseException, said: object = None) -> str:
    return f"{type(e).__name__}: {e if said is None else said}"


class Thinking(NamedTuple):
    """How much a model is to think, as `--think` says it."""

    said: str = ""
    variables: dict[str, Any] | None = None
    #: Tokens of reasoning at most.
    budget: int | None = None

    @classmethod
    def of(cls, said: str | None) -> Thinking:
        if said is None:
            return cls()
        word = {"true": "on", "false": "off"}.get(said, said)
        if word in ("on", "off"):
            return cls(said, thinking(word == "on"))
        if word in ("low", "medium", "high"):
            return cls(said, thinking(effort=word))
        if word.isascii() and word.isdecimal():
            return cls(said, thinking(True), int(word))
        raise click.UsageError(
            f"--think {said}: must be on, off, low, medium, high, or a number of tokens; "
            "--think by itself goes behind the prompt"
        )

    def check(self, llm: LLM) -> None:
        """Refuses what the model's chat template cannot do."""
        if self.variables is None:
            return
        thinks, on = llm._thinks(), self.variables["enable_thinking"]
        if on and not thinks:
            raise click.UsageError(
                f"--think {self.said}: the chat template of {llm.path.name} has no reasoning; "
                "leave it out, or use a model that reasons"
            )
        if on or not thinks:
            return
        hi = [{"role": "user", "content": "Hi"}]
        if llm._rendered(hi, None, False, thinking(True)) == llm._rendered(
            hi, None, False, self.variables
        ):
            raise click.UsageError(
                f"--think {self.said}: the chat template of {llm.path.name} has no switch for it; "
                "--think 0 ends the reasoning at once"
            )
