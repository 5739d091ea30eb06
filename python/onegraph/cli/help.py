"""`onegraph help`: opens a page of the documentation, the files of `onegraph/pages`."""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from onegraph.cli.terminal import debug_option

__all__ = ["PAGES", "Page", "pages", "rendered"]

#: The folder of the pages: a file there is a topic, and so is a folder with a README.md.
PAGES = Path(__file__).parents[1] / "pages"

#: Lines longer than this are hard to read, however wide the terminal.
WIDEST = 100

_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:`[^`]*`|[^\[\]`])+)\]\((?P<target>[^()\s]+)\)")


class Page(NamedTuple):
    """A topic."""

    topic: str
    path: Path
    #: Its first heading.
    title: str
    #: The first sentence under that, as plain text.
    summary: str


def pages() -> dict[str, Page]:
    """Every page there is, by topic, in alphabetical order."""
    found = {path.stem: path for path in PAGES.glob("*.md")}
    found |= {path.parent.name: path for path in PAGES.glob("*/README.md")}
    return {topic: _page(topic, found[topic]) for topic in sorted(found)}


def _page(topic: str, path: Path) -> Page:
    title, paragraph = topic, ""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if line.startswith("# ") and not paragraph:
            title = line[2:].strip()
        elif line and not line.startswith(("#", "<!--")):
            paragraph += " " + line
        elif paragraph:
            break
    plain = _LINK.sub(r"\g<text>", paragraph.strip()).replace("`", "").replace("**", "")
    return Page(topic, path, title, re.split(r"(?<=[.?!]) ", plain, maxsplit=1)[0])


def _topics(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    words = [*pages(), *_commands(ctx)]
    return [CompletionItem(word) for word in words if word.startswith(begun)]


def _commands(ctx: click.Context) -> list[str]:
    root = ctx.find_root()
    return root.command.list_commands(root) if isinstance(root.command, click.Group) else []


@click.command()
@click.argument("topic", required=False, shell_complete=_topics)
@debug_option
@click.pass_context
def command(ctx: click.Context, topic: str | None) -> None:
    """Show the documentation about TOPIC; without TOPIC, list the topics.

    The name of a command shows its help. If standard output is not a terminal, a page is printed as
    Markdown.
    """
    known = pages()
    if topic is None:
        _list(known)
    elif topic in known:
        _open(known[topic])
    elif topic in _commands(ctx):
        root = ctx.find_root()
        assert isinstance(root.command, click.Group)
        named = root.command.get_command(root, topic)
        assert named is not None
        named.make_context(topic, ["--help"], parent=root)  # ends here, as --help does
    else:
        near = difflib.get_close_matches(topic.lower(), [*known, *_commands(ctx)], n=1)
        listed = f"`onegraph help` says what each page is about: {', '.join(known)}"
        remedy = f"did you mean `onegraph help {near[0]}`?" if near else listed
        raise click.UsageError(f"No page or command {topic!r}: {remedy}", ctx)


def _list(known: dict[str, Page]) -> None:
    """A line for each page: what a terminal has room for, elsewhere all of it, for `grep`."""
    formatter = click.HelpFormatter(width=None if sys.stdout.isatty() else 10_000)
    room = formatter.width - max(map(len, known)) - 4
    with formatter.section("Pages"):
        formatter.write_dl(
            [
                (page.topic, textwrap.shorten(page.summary, room, placeholder=" ..."))
                for page in known.values()
            ]
        )
    formatter.write_paragraph()
    formatter.write_text(
        "`onegraph help TOPIC` opens one; `onegraph help COMMAND` is `onegraph COMMAND --help`."
    )
    click.echo(formatter.getvalue(), nl=False)


def _open(page: Page) -> None:
    if not sys.stdout.isatty():
        click.echo(page.path.read_bytes(), nl=False)
        return
    from rich.console import Console

    screen = Console()
    text = rendered(page, min(screen.width, WIDEST))
    # A line is left for the prompt of the shell.
    if text.count("\n") < screen.height:
        click.echo(text, nl=False)
    else:
        click.echo_via_pager(text)


def rendered(page: Page, width: int) -> str:
    """A page as a terminal shows it, `width` columns wide."""
    from onegraph.cli import markdown

    return markdown.render(_resolved(page), width)


def _resolved(page: Page) -> str:
    """Its Markdown, with links to files as what a reader of a terminal can do about them."""
    topics = {other.path.resolve(): other.topic for other in pages().values()}

    def resolved(link: re.Match[str]) -> str:
        text, target = link["text"], link["target"].partition("#")[0]
        if "://" in target:
            return link[0]
        if not target:  # a heading of this page
            return text
        path = Path(page.path.parent, target).resolve()
        if path in topics:
            return f"{text} (`onegraph help {topics[path]}`)"
        return f"{text} (`{path}`)" if path.is_file() else text

    lines, fence = [], ""
    for line in page.path.read_text(encoding="utf-8").splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        lines.append(line if fence else _LINK.sub(resolved, line))
    return "\n".join(lines)
