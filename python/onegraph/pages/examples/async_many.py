"""Many requests at once with asyncio: whole results, a stream that ends early, a timeout.

    python async_many.py
    python async_many.py --seconds 2 "Red is" "Blue is" "Green is"

No thread waits for a request, so a program can have thousands in flight. Requests beyond
`max_batch` wait for their turn.
"""

import argparse
import asyncio
import sys

import onegraph

PROMPTS = ["The sea is", "The moon is", "A forest is", "A desert is", "Snow is"]


async def at_once(llm: onegraph.LLM, prompts: list[str]) -> None:
    """All of them together. Each gives a Result, as `llm.generate` does."""
    asked = [llm.agenerate(prompt, max_tokens=16, echo=True) for prompt in prompts]
    for result in await asyncio.gather(*asked):
        print(f"{result.text!r} ({result.usage.completion_tokens} tokens)")


async def first_sentence(llm: onegraph.LLM, prompt: str) -> None:
    """The pieces of one as they come. Leaving the block cancels what is not made yet."""
    async with llm.agenerate(prompt, echo=True, max_tokens=None) as stream:
        async for piece in stream:
            print(piece.text, end="", flush=True)
            if "." in piece.text or "\n" in piece.text:
                break
    print("\nleft the stream after a sentence")


async def in_time(llm: onegraph.LLM, prompt: str, seconds: float) -> None:
    """At most so long. The time limit cancels the request, and its place is free again."""
    try:
        # ignore_eos goes on where the text would end: this runs until somebody stops it.
        endless = llm.agenerate(prompt, max_tokens=None, ignore_eos=True)
        result = await asyncio.wait_for(endless, seconds)
        print(f"made {result.usage.completion_tokens} tokens, until the context was full")
    except TimeoutError:
        print(f"cancelled after {seconds:g} s")


async def run(args: argparse.Namespace) -> None:
    with onegraph.LLM(args.model, max_batch=4) as llm:
        await at_once(llm, args.prompts)
        await first_sentence(llm, args.prompts[0])
        await in_time(llm, args.prompts[-1], args.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many requests at once.")
    parser.add_argument("prompts", nargs="*", default=PROMPTS, metavar="PROMPT")
    parser.add_argument("--model", default="smollm2", help="a file or a name  [smollm2]")
    parser.add_argument("--seconds", type=float, default=1.0, help="time limit  [1]")
    args = parser.parse_args()
    try:
        asyncio.run(run(args))
    except onegraph.Error as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell says of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
