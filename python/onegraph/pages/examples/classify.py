"""Classifies texts by the probabilities of the labels, without generating text.

    python classify.py "Works as described, very happy with it."
    python classify.py --labels sports,politics,cooking < headlines.txt

One step of the model per text: the most probable label as the next token wins. A small model is
often wrong; close probabilities show it.
"""

import argparse
import math
import sys

import onegraph

PROMPT = "{text}\nThe text above is best described by one word of {labels}. That word is:"


def shares(result: onegraph.Result, labels: list[str]) -> dict[str, float]:
    """The probability of each label: of all tokens that begin it and no other label."""
    assert result.logprobs is not None  # they were asked for
    found = dict.fromkeys(labels, 0.0)
    for token in result.logprobs[0].top:
        start = token.text.strip().lower()  # " Pos" and "positive" both begin "positive"
        begun = [label for label in labels if start and label.startswith(start)]
        if len(begun) == 1:
            found[begun[0]] += math.exp(token.logprob)
    return found


def classify(args: argparse.Namespace) -> None:
    labels = list(dict.fromkeys(label.strip().lower() for label in args.labels.split(",")))
    texts = args.texts or [line.strip() for line in sys.stdin if line.strip()]
    prompts = [PROMPT.format(text=text, labels=", ".join(labels)) for text in texts]

    # One token, and the 100 most probable ones in its place. A token that ends the text has no
    # entry of its own, so it must not end this one: ignore_eos.
    step = onegraph.Sampling(max_tokens=1, logprobs=100, temperature=0, ignore_eos=True)
    with onegraph.LLM(args.model) as llm:
        results = llm.generate(prompts, sampling=step) if prompts else []

    for text, result in zip(texts, results, strict=True):
        found = shares(result, labels)
        best, seen = max(found, key=found.__getitem__), sum(found.values())
        # Where the model thought of none of the labels, there is nothing to compare.
        print(f"{best} {found[best] / seen:4.0%}  {text}" if seen else f"?  {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Sorts texts into classes.")
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT", help="texts; by default, each line of standard input"
    )
    parser.add_argument("--labels", default="positive,negative", help="  [positive,negative]")
    parser.add_argument("--model", default="smollm2", help="a file or a name  [smollm2]")
    args = parser.parse_args()
    try:
        classify(args)
    except onegraph.Error as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell says of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
