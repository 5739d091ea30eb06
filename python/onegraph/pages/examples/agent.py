"""An agent: a model that reads notes by calling functions, until it can answer.

    python agent.py --model ollama:qwen3:4b --folder notes "When is the tea harvest?"

It needs a model trained to call tools; `smollm2` is not. Calls are printed to standard error.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import onegraph


class Notes:
    """The text files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: path for path in sorted(folder.glob("*.txt"))}

    # What a model is told of a tool: the name, the docstring and the annotations.
    def list_notes(self) -> list[str]:
        """The names of all notes."""
        return list(self.files)

    def read_note(self, name: str, lines: int = 50) -> str:
        """The front of a note.

        name: one of those that list_notes gives
        lines: how many of its lines
        """
        # A name from a model is like one from a stranger: only these files are opened.
        if name not in self.files:
            raise ValueError(f"there is no note {name!r}")
        return "\n".join(self.files[name].read_text().splitlines()[:lines])


def reply(call: onegraph.ToolCall) -> dict[str, Any]:
    """The message with the result of a call. A model mends many of its mistakes if it is told."""
    print(f"{call.name} {call.arguments}", file=sys.stderr)
    try:
        return call.reply(call.run())
    except (ValueError, OSError) as e:  # onegraph's for arguments that do not fit is a ValueError
        return call.reply(f"error: {e}")


def answer(llm: onegraph.LLM, question: str, notes: Notes, turns: int) -> str:
    tools = [notes.list_notes, notes.read_note]
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(turns):
        result = llm.chat(messages, tools=tools, max_tokens=2000)
        if not result.tool_calls:
            return result.text
        messages += [result.message, *map(reply, result.tool_calls)]
    return f"no answer after {turns} turns"


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers from notes, which a model reads itself.")
    parser.add_argument("question")
    parser.add_argument("--model", required=True, help="a file or a name")
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="folder of *.txt files  [current]"
    )
    parser.add_argument("--turns", type=int, default=8, help="maximum turns  [8]")
    args = parser.parse_args()
    try:
        with onegraph.LLM(args.model, max_batch=1) as llm:
            print(answer(llm, args.question, Notes(args.folder), args.turns))
    except onegraph.Error as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
