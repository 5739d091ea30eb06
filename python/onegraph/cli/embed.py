"""`onegraph embed`: texts as vectors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from onegraph import LLM
from onegraph.cli import piped
from onegraph.cli.files import text_of
from onegraph.cli.options import MODEL, given, model_options
from onegraph.cli.terminal import debug_option, progress
from onegraph.errors import FileError
from onegraph.hub.cache import whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Endings of files to write.
FORMS = (".jsonl", ".npy")


@click.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--file",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Text file to embed, after any TEXT. May be repeated.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this .jsonl or .npy file.  [default: JSON lines on standard output]",
)
@click.option(
    "--pooling",
    help="last: the state of the last token; mean: of all tokens; cls: of an encoder's first token."
    "  [default: the file's]",
)
@click.option("--dimensions", type=int, help="Keep only the first N numbers.  [default: all]")
@click.option("--no-normalize", is_flag=True, help="Do not scale vectors to length 1.")
@click.option("--truncate", is_flag=True, help="Truncate a text that is too long.")
@model_options
@debug_option
def command(
    model: str,
    texts: tuple[str, ...],
    file: tuple[Path, ...],
    output: Path | None,
    pooling: Literal["last", "mean", "cls"] | None,
    dimensions: int | None,
    no_normalize: bool,
    truncate: bool,
    **options: Any,
) -> None:
    """Compute the embedding of each TEXT, with a MODEL trained for embeddings.

    Without TEXT and --file, each line of standard input is a text. The output is a line of JSON per
    text, {"text": TEXT, "embedding": [...]}, or {"file": PATH, "embedding": [...]} for a file, with
    enough digits to recover the float32 exactly. A .npy file holds a float32 array with a row per
    text, for `numpy.load`.
    """
    if output is not None and output.suffix not in FORMS:
        raise click.UsageError(f"--output {output}: must end in {' or '.join(FORMS)}")
    found = [("text", text, text) for text in texts]
    found += [("file", os.fspath(path), text_of(path)) for path in file]
    if not found:
        if sys.stdin is not None and sys.stdin.isatty():
            raise click.UsageError("give a TEXT, --file, or piped lines of text")
        found = [("text", line, line) for line in piped.needed("TEXT").split("\n")]
    for kind, _, text in found:
        if kind == "text":
            piped.check_utf8(text)
    with LLM(model, progress=progress(), **given(MODEL, options)) as llm:
        vectors = llm.embed(
            [text for _, _, text in found],
            pooling=pooling,
            dimensions=dimensions,
            normalize=not no_normalize,
            truncate=truncate,
        )
    if output is None:
        for line in _lines(found, vectors):
            sys.stdout.write(line)
    else:
        _write(output, found, vectors)


def _lines(found: list[tuple[str, str, str]], vectors: NDArray[np.float32]) -> Iterator[str]:
    for (kind, name, _), vector in zip(found, vectors, strict=True):
        numbers = ", ".join(format(number, ".9g") for number in vector.tolist())
        yield f'{{"{kind}": {json.dumps(name)}, "embedding": [{numbers}]}}\n'


def _write(path: Path, found: list[tuple[str, str, str]], vectors: NDArray[np.float32]) -> None:
    import numpy as np

    try:
        with whole(path) as out:
            if path.suffix == ".npy":
                np.save(out, vectors)
            else:
                out.writelines(line.encode() for line in _lines(found, vectors))
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot write {path}: {reason}; give another path") from e
