"""Answers a question from text files, and quotes the passages used.

    python rag.py "How long is the warranty?" manual.txt terms.txt
    python rag.py "How long is it covered?" manual.txt \\
        --embedder qwen3-embedding:0.6b

Passages are found by BM25, a count of shared words: rare words count more, long passages less. It
needs no second model, but misses passages that use other words. An embedding model finds
them: with --embedder, passages are ranked by their vectors.
"""

import argparse
import math
import re
import sys
from collections import Counter
from pathlib import Path

import onegraph

TASK = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
ASK = "Answer the question from these passages alone.\n\n{passages}\n\nQuestion: {question}"


def passages(path: Path) -> list[tuple[str, str]]:
    """The paragraphs of a file, each with the file and the line that it begins at."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.finditer(r"\S.*(?:\n.*\S.*)*", text)
    return [(f"{path}:{text.count(chr(10), 0, m.start()) + 1}", m[0]) for m in found]


def scores(question: str, texts: list[str]) -> list[float]:
    """BM25 of each text, with the usual constants; 0 where it has no word of the question."""
    counts = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(count.total() for count in counts) / max(1, len(counts)) or 1
    found = [0.0] * len(texts)
    for word in set(re.findall(r"\w+", question.lower())):
        having = sum(word in count for count in counts)
        rare = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for i, count in enumerate(counts):
            long = 1.2 * (0.25 + 0.75 * count.total() / mean)
            found[i] += rare * 2.2 * count[word] / (count[word] + long)
    return found


def nearness(embedder: str, question: str, texts: list[str]) -> list[float]:
    """The cosine of the question's vector and that of each text."""
    with onegraph.LLM(embedder) as llm:
        # Qwen3-Embedding's instruction, for questions alone; another model's page has its own.
        asked = llm.embed(TASK + question)
        return [float(cosine) for cosine in llm.embed(texts, truncate=True) @ asked]


def answer(args: argparse.Namespace) -> None:
    known = [passage for path in args.files for passage in passages(path)]
    texts = [text for _, text in known]
    if args.embedder and texts:
        found = nearness(args.embedder, args.question, texts)
    else:
        found = scores(args.question, texts)
    ranked = zip(found, known, strict=True)
    best = sorted(ranked, key=lambda pair: -pair[0])[: args.top]
    sources = [passage for score, passage in best if score > 0]
    if not sources:  # better no answer than one that was made up
        sys.exit("no passage has a word of the question")

    read = "\n\n".join(text for _, text in sources)
    messages = [{"role": "user", "content": ASK.format(passages=read, question=args.question)}]
    with onegraph.LLM(args.model, max_batch=1) as llm:
        print(llm.chat(messages, temperature=0, max_tokens=200))
    for place, text in sources:
        print(f"\n{place}\n> " + text.replace("\n", "\n> "))


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers a question from text files.")
    parser.add_argument("question")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--model", default="smollm2", help="a file or a name  [smollm2]")
    parser.add_argument("--embedder", help="a model that ranks passages by meaning")
    parser.add_argument("--top", type=int, default=3, help="passages to read  [3]")
    args = parser.parse_args()
    try:
        answer(args)
    except (onegraph.Error, OSError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell says of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
