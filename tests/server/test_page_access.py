"""The chat page for everybody: by axe-core, by keyboard, in light and dark, wide and on a phone."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from support import scripted
from support.browsing import Page
from support.serving import Served, serving, until

pytestmark = pytest.mark.thorough

HERE = Path(__file__).resolve().parents[2] / ".ci" / "vendored"

ANSWER = """### Sky

A *word*, `code` and [a link](https://example.org/).

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x: int) -> str:  # why
    return "y" * 2
```

> said
"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core of the version that the manifest has."""
    if shutil.which("npm") is None:
        pytest.skip("no npm: a machine with Node.js has it")
    folder = tmp_path_factory.mktemp("axe")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm did not have axe-core: {done.stderr[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = scripted.write(tmp_path_factory.mktemp("sky") / "sky.gguf", [ANSWER])
    with LLM(path, device="cpu") as llm, serving(asgi({"sky": llm})) as served:
        yield served


@pytest.fixture
def screen(browser: Any) -> Iterator[Any]:
    """Sets the size of the screen and its kind."""

    def size(width: int, touch: bool) -> None:
        shape = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": touch}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": touch})

    yield size
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def violations(page: Page) -> list[str]:
    return list(
        page.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document).then(({ violations }) => done("
            "violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`))))"
        )
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_axe_finds_nothing(
    browser: Any, painter: Served, screen: Any, axe: str, theme: str, width: int
) -> None:
    from selenium.webdriver import Keys

    screen(width, width < 800)
    page = Page(browser, painter.url)
    page.run("localStorage.setItem('theme', arguments[0])", theme)
    browser.refresh()
    until(lambda: page.model() == "sky")
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    assert page.run("return document.documentElement.className") == theme
    found = {"start": violations(page)}
    page.fill("ask", "Why?")
    page.press("#send")
    until(lambda: page.notes() != [] and page.idle())
    found["chat"] = violations(page)
    page.keys(Keys.ALT, "r")
    until(lambda: page.seen_in(".count") != [] and page.idle())
    page.run("opened = chat.id; drawList(); notice('wrong', { wrong: true, action: 'Undo' })")
    page.press("[data-role=user] [title=Edit]")
    found["edit"] = violations(page)
    if width < 800:
        page.press("#show-chats")
        found["list"] = violations(page)
        page.press("#hide-chats")
    page.press("#show-settings")
    found["settings"] = violations(page)
    assert found == {each: [] for each in found}
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_on_a_phone_controls_have_one_row_and_enter_makes_a_line(
    browser: Any, painter: Served, screen: Any
) -> None:
    from selenium.webdriver import Keys

    screen(390, True)
    page = Page(browser, painter.url)
    until(lambda: page.model() == "sky")
    shown = page.run(
        "return [...document.querySelectorAll('header > *')].filter((each) => each.offsetWidth)"
        ".map((each) => each.getBoundingClientRect())"
    )
    assert len({round(each["y"] + each["height"] / 2) for each in shown}) == 1
    assert all(each["x"] >= 0 and each["x"] + each["width"] <= 390 for each in shown)
    # A finger hits what is 40 pixels high.
    assert min(each["height"] for each in shown) >= 40
    page.find("ask").send_keys("a", Keys.ENTER, "b")
    assert page.find("ask").get_attribute("value") == "a\nb"
    page.press("#send")
    until(lambda: page.notes() != [] and page.idle())
    assert page.texts("user") == ["a\nb"]
    # The list is a drawer, out of the way until it is asked for.
    assert not page.find("new").is_displayed()
    page.press("#show-chats")
    assert page.find("new").is_displayed()
    page.keys(Keys.ESCAPE)
    assert not page.find("new").is_displayed()


def test_a_notice_and_a_longer_field_leave_the_end_in_sight(
    browser: Any, painter: Served, screen: Any
) -> None:
    screen(390, False)
    page = Page(browser, painter.url)
    until(lambda: page.model() == "sky")
    page.say("Why? " * 150)
    until(lambda: page.notes() != [] and page.idle())

    def hidden() -> int:
        """Pixels of the conversation below what is seen."""
        main = "document.querySelector('main')"
        return int(
            page.run(f"const m = {main}; return m.scrollHeight - m.scrollTop - m.clientHeight")
        )

    assert page.run("return document.querySelector('main').scrollTop") > 100
    page.run("notice('wrong '.repeat(40), { wrong: true })")
    until(lambda: hidden() <= 1)
    page.run("notice(''); $('ask').value = 'a\\n'.repeat(9)")
    until(lambda: hidden() <= 1)
    # Who reads further up stays there.
    page.run("document.querySelector('main').scrollTop = 30; notice('wrong', {})")
    page.run("return new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
    assert page.run("return document.querySelector('main').scrollTop") == 30


def test_the_user_and_the_model_are_apart_at_a_glance(
    browser: Any, painter: Served, screen: Any
) -> None:
    screen(1400, False)
    page = Page(browser, painter.url)
    until(lambda: page.model() == "sky")
    page.say("Why?")
    until(lambda: page.notes() != [] and page.idle())
    user, model = (
        page.run(
            "const found = document.querySelector(arguments[0]);"
            "return [found.getBoundingClientRect().x, getComputedStyle(found).backgroundColor]",
            f"[data-role={role}] .body",
        )
        for role in ("user", "assistant")
    )
    assert user[0] > model[0] and user[1] != model[1]
    assert page.seen("assistant", "h2") == ["sky"] and page.seen("user", "h2") == ["You"]
