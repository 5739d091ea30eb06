"""Markdown on the chat page: what it becomes, and that no text of a model becomes markup."""

from typing import Any

import pytest
from support.browsing import Page
from support.serving import Served, until

pytestmark = pytest.mark.thorough

TEXT = """# Sky

Blue *light* is **scattered**, see `1/x` and [here](https://example.org/a).

1. one
2. two
   - inner

- [x] done

| a | b |
|---|--:|
| 1<br>2 | R&amp;D |

> quoted, by [whom] [![b](https://example.org/b.png)](https://example.org/c)

[whom]: https://example.org/d

---

```python
def f(x): return "y"
```
"""


@pytest.fixture
def page(browser: Any, served: Served) -> Page:
    found = Page(browser, served.url)
    until(lambda: found.model() == "tiny")
    return found


def shown(page: Page, text: str) -> Any:
    """The element that shows a text."""
    return page.run(
        "window.into ??= document.createElement('div'); $('log').append(into);"
        "write(into, arguments[0]); return into",
        text,
    )


def test_markdown_becomes_elements(page: Page) -> None:
    into = shown(page, TEXT)

    def texts(selector: str) -> list[str]:
        return [each.text for each in into.find_elements("css selector", selector)]

    assert texts("h3") == ["Sky"] and texts("em") == ["light"] and texts("strong") == ["scattered"]
    assert texts("p > code") == ["1/x"] and texts("blockquote p") == ["quoted, by whom b"]
    assert texts("ol > li > ul > li") == ["inner"] and texts("li.task") == ["\u2611 done"]
    assert texts("th") == ["a", "b"] and texts("td") == ["1\n2", "R&D"]
    assert len(into.find_elements("css selector", "td.right")) == 1 and texts("hr") == [""]
    links = into.find_elements("css selector", "a")
    assert [each.get_attribute("href")[-1] for each in links] == ["a", "d", "c"]
    assert {each.get_attribute("rel") for each in links} == {"noopener noreferrer"}
    assert texts(".code .bar span") == ["python"]
    assert texts(".hl-keyword") == ["def", "return"] and texts(".hl-string") == ['"y"']


def test_a_block_of_code_is_copied(page: Page) -> None:
    shown(page, TEXT)
    page.run("window.copied = []; copy = async (text) => { copied.push(text); }")
    page.press("button.copy")
    until(lambda: page.run("return copied") == ['def f(x): return "y"'])
    until(lambda: page.seen_in("button.copy") == ["Copied"])


def test_text_that_comes_in_parts_is_shown_as_in_one(page: Page) -> None:
    # What is complete keeps its elements, so that nothing flickers and what is selected stays so.
    same = page.run(
        """
        const text = arguments[0], grown = document.createElement("div");
        const seen = new Map();
        let changed = 0;
        for (let n = 1; n <= text.length; n++) {
          write(grown, text.slice(0, n));
          const first = grown.firstElementChild;
          if (n > 8 && seen.get("first") !== first) changed += 1;
          seen.set("first", first);
        }
        const whole = document.createElement("div");
        write(whole, text);
        return [grown.isEqualNode(whole), changed];
        """,
        TEXT,
    )
    assert same == [True, 0]
    # The block that grows is the same block.
    assert page.run(
        """
        const into = document.createElement("div");
        write(into, "```js\\nlet a");
        const code = into.querySelector("pre");
        write(into, "```js\\nlet a = 1;\\nlet b");
        return code === into.querySelector("pre") && code.textContent === "let a = 1;\\nlet b";
        """
    )


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)> text <svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>\n\n<math><mtext></form>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java&#115;cript:alert(1))",
    "[a](<java\tscript:alert(1)>) [d](data:text/html,<script>alert(1)</script>)",
    "[e](vbscript:x) [f](//elsewhere) [g](/v1/models) <javascript:alert(1)>",
    "![x](https://example.org/x.png) ![y](javascript:alert(1))",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\n<b>\n```',
    "| <img src=x> | <script> |\n|--|--|\n| <style>*{display:none}</style> | <iframe> |",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;b&#62; &#0; &#x110000; &constructor;",
    "[x]: javascript:alert(1)\n\n[x] [x][x]",
    "<style>body { display: none }</style><base href=//elsewhere><form action=//elsewhere>",
    '<a href="javascript:alert(1)" style="position:fixed;inset:0" id="ask">x</a>',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_markup(page: Page, text: str) -> None:
    into = shown(page, text)
    names = page.run(
        "return [...arguments[0].querySelectorAll('*')].flatMap((each) =>"
        "  [each.localName, ...[...each.attributes].map(({ name }) => `@${name}`)])",
        into,
    )
    allowed = "p a br div span button pre code table thead tbody tr th td strong em"
    given = "class type scope tabindex role aria-label href target rel"
    assert set(names) <= {*allowed.split(), *(f"@{name}" for name in given.split())}
    links = page.run("return [...arguments[0].querySelectorAll('a')].map((a) => a.href)", into)
    assert set(links) <= {"https://example.org/x.png"}
    if text.startswith("<"):
        assert page.run("return arguments[0].textContent", into).startswith(text.split("\n")[0])


@pytest.mark.parametrize(
    "text",
    [
        ">" * 5000 + "a",
        "\n".join(" " * (2 * i) + "- a" for i in range(150)),
        "[" * 5000,
        "|a" * 300 + "|\n" + "|-" * 300 + "|\n" + ("|1" * 300 + "|\n") * 100,
        "```python\n" + "x = (1, 'a')\n" * 8000 + "```",
        "**a" * 2000,
    ],
    ids=["quotes", "lists", "brackets", "table", "code", "emphasis"],
)
def test_text_that_is_deep_or_long_is_shown(page: Page, text: str) -> None:
    into = shown(page, text)
    assert page.run("return arguments[0].textContent.length > 0", into)
    # A huge table scrolls within itself.
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_browser_itself_refuses_markup(page: Page) -> None:
    for code in ("document.body.innerHTML = '<b>x</b>'", "document.write('<b>x</b>')"):
        refused = page.run(f"try {{ {code}; return '' }} catch (wrong) {{ return wrong.name }}")
        assert refused == "TypeError"
    page.run("return fetch('https://example.org/').catch(() => null)")
    said = [entry["message"] for entry in page.driver.get_log("browser")]
    assert any("Content Security Policy" in each for each in said)
