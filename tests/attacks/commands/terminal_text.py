"""Text of a file that steers the terminal it is shown on, or reads other than it is.

Escape sequences retitle a window or write to the clipboard; C1 controls are the same in one
character; bidirectional controls turn text around, so that another name is read; what has no width
hides in a name.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import command_lines
from command_lines import Command

sys.path.append(str(Path(__file__).resolve().parents[1]))

from hostile_gguf import STRING, File, model

#: Sets a title, rings, turns text, hides in it.
HOSTILE = "\x1b]0;owned\x07\x9b31m\u202efugg.\u2066\u200b\u2028"
NEVER = ["\x1b]", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028"]
SHOWN = "<U\\+202E>fugg"

CHAT = """import onegraph
with onegraph.LLM("{path}", device="cpu", threads=1) as llm:
    llm.chat([{{"role": "user", "content": "Hi"}}], max_tokens=1)
"""


def write(folder: Path) -> Iterator[Command]:
    raises = folder / "raises.gguf"

    def change(file: File) -> None:
        template = "{{ raise_exception('" + HOSTILE + "') }}"
        file.metadata["tokenizer.chat_template"] = (STRING, template)
        file.metadata["general.name"] = (STRING, HOSTILE)

    raises.write_bytes(model(change))
    # A name cannot end a path: no slash, and no byte 0.
    named = folder / f"{HOSTILE}.gguf"
    named.write_bytes(model(lambda _: None))

    def onegraph(name: str, *argv: str, code: int = 0) -> Command:
        return Command(name, ["-m", "onegraph", *argv], SHOWN, code, never=NEVER)

    cpu = ["--device", "cpu", "--threads", "1"]
    yield onegraph("error", "run", raises.name, "Hi", *cpu, code=1)
    yield onegraph("debug", "run", raises.name, "Hi", *cpu, "--debug", code=1)
    yield Command("traceback", ["-c", CHAT.format(path=raises.name)], SHOWN, never=NEVER)
    yield onegraph("info", "info", raises.name)
    yield onegraph("info-json", "info", named.name, "--json")
    yield onegraph("pull", "pull", named.name)
    yield onegraph("log", "run", named.name, "ab", "--raw", "--max-tokens", "1", *cpu, "-v")
    yield onegraph("wrong-use", "run", named.name, "Hi", "--system", "x", *cpu, code=2)
    yield onegraph("missing", "info", f"{HOSTILE}-is-not-here.gguf", code=1)


if __name__ == "__main__":
    command_lines.main(write)
