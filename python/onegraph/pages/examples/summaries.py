"""Summarizes text files in one batch, with a progress bar.

    python summaries.py notes.txt letter.txt
    python summaries.py --model hf:user/repo:Q4_K_M --words 50 *.md

Only the first 2,000 tokens of a long text are read.
"""

import argparse
import sys
from pathlib import Path

import onegraph


def front(llm: onegraph.LLM, text: str, room: int) -> str:
    """The first `room` tokens of a text. What is longer than the context is a ContextError."""
    ids = llm.tokenize(text, add_special=False)
    return text if len(ids) <= room else llm.detokenize(ids[:room])


def summarize(args: argparse.Namespace) -> None:
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in args.files]

    # One object for all that is said about choosing tokens. Temperature 0 always takes the most
    # probable token, so that the same files give the same summaries. A word is one or two tokens.
    sampling = onegraph.Sampling(temperature=0, max_tokens=3 * args.words)

    with onegraph.LLM(args.model) as llm:
        ask = f"Summarize this text in one sentence of at most {args.words} words."
        # A conversation is a list of messages. A list of conversations runs as one batch.
        conversations = [
            [{"role": "user", "content": f"{ask}\n\n{front(llm, text, args.read)}"}]
            for text in texts
        ]
        # None draws a bar on a terminal, and nothing where the output goes elsewhere.
        bar = False if args.quiet else None
        results = llm.chat(conversations, sampling=sampling, progress=bar)

    for path, result in zip(args.files, results, strict=True):
        # A result prints as its text; `cut` says why a text that did not end by itself ended.
        print(f"{path}: {result.text.strip()}{'...' if result.cut else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Summarizes text files.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--model", default="smollm2", help="a file or a name  [smollm2]")
    parser.add_argument("--words", type=int, default=30, help="words per summary  [30]")
    parser.add_argument("--read", type=int, default=2000, help="maximum tokens of a text  [2000]")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    args = parser.parse_args()
    try:
        summarize(args)
    except (onegraph.Error, OSError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell says of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
