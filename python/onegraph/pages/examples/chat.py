"""A chat that streams its answers and remembers the conversation.

    python chat.py
    python chat.py --model ollama:qwen2.5:1.5b --system "You answer in rhymes."

Ctrl-C stops an answer; an empty line or Ctrl-D exits.
"""

import argparse
import contextlib
import sys
from typing import Any

import onegraph

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  gives input() the arrow keys


def answer(llm: onegraph.LLM, messages: list[dict[str, Any]], sampling: onegraph.Sampling) -> str:
    """Prints the answer to a conversation as it is made, and gives it back."""
    said = ""
    # Leaving the stream, by Ctrl-C too, cancels what is not made yet.
    with (
        contextlib.suppress(KeyboardInterrupt),
        llm.chat(messages, stream=True, sampling=sampling) as stream,
    ):
        for piece in stream:
            said += piece.text
            print(piece.text, end="", flush=True)
    print()
    return said


def talk(args: argparse.Namespace) -> None:
    sampling = onegraph.Sampling(seed=args.seed, max_tokens=args.max_tokens)
    # A model has no memory: with each turn it is given all the turns before it.
    messages = [{"role": "system", "content": args.system}] if args.system else []
    with onegraph.LLM(args.model, max_batch=1) as llm, contextlib.suppress(EOFError):
        while text := input("> "):
            messages.append({"role": "user", "content": text})
            try:
                said = answer(llm, messages, sampling)
                messages.append({"role": "assistant", "content": said})
            except onegraph.ContextError as e:  # it says how much is too much
                print(
                    f"{e}\nThe conversation was cleared, except for the system message.",
                    file=sys.stderr,
                )
                del messages[bool(args.system) :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Chats with a model.")
    parser.add_argument("--model", default="smollm2", help="a file or a name  [smollm2]")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--seed", type=int, help="makes answers reproducible")
    parser.add_argument("--max-tokens", type=int, help="maximum tokens of an answer  [no limit]")
    args = parser.parse_args()
    try:
        talk(args)
    except onegraph.Error as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell says of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
