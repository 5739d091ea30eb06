"""The page at the root: what it is made of, and how it works in a real browser."""

import contextlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from onegraph import LLM
from onegraph.server import asgi
from onegraph.server.page import SCRIPTS
from support import calls, scripted
from support.browsing import Page
from support.serving import Served, runs, serving, until

pytestmark = pytest.mark.thorough


PARTS = resources.files("onegraph.server").joinpath("chat")
OWN = [PARTS.joinpath(name) for name in SCRIPTS]


def test_it_is_for_browsers_and_asks_nobody_else(served: Served) -> None:
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    status, given = served.get("/", accept=browser)
    assert status == 200 and given.startswith("<!doctype html>")
    assert served.get("/", accept="*/*") == (200, "Ollama is running")
    # A comment of HTML within a script would change where the script ends.
    assert len(given) < 210_000 and "<!--" not in given
    assert len(re.findall("<script", given)) >= 2 == len(re.findall("</script", given))
    vendored = PARTS.joinpath("vendored.js").read_text(encoding="utf-8")
    own = given.replace(vendored, "").replace("http://www.w3.org/2000/svg", "")
    assert all(each.read_text(encoding="utf-8") in given for each in OWN)
    assert {each.name for each in PARTS.iterdir()} - set(SCRIPTS) == {
        "index.html",
        "style.css",
        "vendored.js",
    }
    assert not re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"^ *//.*$", "", own, flags=re.M))
    assert not re.findall(r"\b(?:src|href(?!=\"#)|style)=|innerHTML|insertAdjacent|\beval\b", own)
    assert not re.findall(r"\bon\w+=", own)
    assert not re.findall(r"\bfetch\(|XMLHttp|import\(|WebSocket|sendBeacon", vendored)


def test_a_chat_in_a_browser(browser: Any, smol_served: Served, smol: LLM) -> None:
    from selenium.webdriver import Keys

    page = Page(browser, smol_served.url)
    until(lambda: page.model() == "smollm2")
    # It is used by the keyboard alone: the field has the focus from the beginning.
    page.keys(Keys.ALT, "s")
    for name, value in [("system", "Be brief."), ("temperature", "0"), ("max_tokens", "8")]:
        page.find(name).send_keys(value)
    page.keys(Keys.ALT, "s")
    question = "Why is <b>the sky blue?"
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    page.driver.switch_to.active_element.send_keys(question, Keys.ENTER)
    until(lambda: page.notes() != [] and page.idle())
    plain = smol.chat(said, temperature=0.0, max_tokens=8)
    assert page.texts("user") == [question]
    assert page.run("return said()") == [said[1], {"role": "assistant", "content": plain.text}]
    assert page.texts("assistant") != [""]
    (note,) = page.notes()
    assert re.search(r"^8 tokens at [\d.]+ per second, first after \d+ ms; \d+ tokens read, ", note)
    assert "cut off by max_tokens" in note
    # Another turn, whose beginning is kept.
    page.driver.switch_to.active_element.send_keys("And", Keys.SHIFT + Keys.ENTER)
    page.driver.switch_to.active_element.send_keys("then?", Keys.ENTER)
    until(lambda: len(page.notes()) == 2 and page.idle())
    assert page.texts("user")[1] == "And\nthen?"
    kept = re.search(r"tokens read, (\d+) from cache", page.notes()[1])
    assert kept and int(kept[1]) > 10
    # Again: the same, as it is greedy.
    before = page.texts("assistant")
    page.keys(Keys.ALT, "r")
    until(lambda: len(page.notes()) == 2 and page.notes()[1] != "" and page.idle())
    assert page.texts("assistant") == before
    # A reload keeps it, with its numbers.
    notes = page.notes()
    page.driver.refresh()
    assert page.texts("assistant") == before and page.notes() == notes
    page.keys(Keys.ALT, Keys.ARROW_UP)
    field = page.driver.switch_to.active_element
    assert field.get_attribute("value") == "And\nthen?"
    field.send_keys(Keys.ESCAPE)
    assert page.texts("assistant") == before
    page.keys(Keys.ALT, "n")
    assert page.texts("user") == []
    was = page.run("return getComputedStyle(document.body).backgroundColor")
    page.keys(Keys.ALT, "t")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != was
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_escape_stops_an_answer(browser: Any, smol_served: Served, smol: LLM) -> None:
    from selenium.webdriver import Keys

    page = Page(browser, smol_served.url)
    page.find("ask").send_keys("Count from one to one thousand, in words.", Keys.ENTER)
    until(lambda: page.seen("assistant", ".body p") != [])
    page.keys(Keys.ESCAPE)
    until(lambda: runs(smol) == 0)
    until(page.idle)
    assert page.notes() == ["Stopped"]


def test_what_is_wrong_is_said_on_the_page(browser: Any, llm: LLM) -> None:
    from selenium.webdriver import Keys

    with serving(asgi({"tiny": llm}, api_keys=["sesame"])) as served:
        page = Page(browser, served.url)
        # Without a key the field for it is opened, and has the focus.
        until(lambda: page.driver.switch_to.active_element.get_attribute("id") == "key")
        # Also on a phone, where the settings cover the notice.
        assert page.find("about-key").text.startswith("The server asks for a key.")
        assert page.find("greeting").text == "onegraph" and page.find("about").text == ""
        page.driver.switch_to.active_element.send_keys("sesame", Keys.TAB)
        until(lambda: page.model() == "tiny")
        page.find("temperature").send_keys("hot", Keys.ESCAPE)
        page.say("tea")
        until(lambda: page.notice() != "" and page.idle())
        assert page.notice() == "temperature = 'hot': must be a number"
        # What was refused waits in the field; sent again, it is one turn and not two in a row.
        assert page.find("ask").get_attribute("value") == "tea"
        assert page.run("return said()") == [] and page.texts("user") == []
        assert page.find("welcome").is_displayed()
        page.keys(Keys.ALT, "s")
        page.fill("temperature", "0")
        page.fill("max_tokens", "4")
        page.keys(Keys.ALT, "s")
        page.fill("ask", "")
        page.say("two teas")
        until(lambda: page.notes() != [] and page.idle())
        assert [each["role"] for each in page.run("return said()")] == ["user", "assistant"]
        assert page.texts("user") == ["two teas"] and page.notice() == ""
        assert page.seen_in(".count") == []
        # An answer stays where another one is refused.
        answer = page.texts("assistant")
        page.run("document.getElementById('temperature').value = 'hot'")
        page.keys(Keys.ALT, "r")
        until(lambda: page.notice() != "" and page.idle())
        assert page.texts("assistant") == answer
        browser.get_log("browser")
    with contextlib.suppress(Exception):
        browser.get("about:blank")


def test_reasoning_folds_and_a_call_is_answered_at_the_page(
    browser: Any, adder: calls.Scripted
) -> None:
    from selenium.webdriver import Keys

    page = Page(browser, adder.served.url)
    page.keys(Keys.ALT, "s")
    page.fill("tools", json.dumps([calls.ADD]))
    page.keys(Keys.ALT, "s")
    page.say(calls.ASKED[0]["content"])
    until(lambda: page.notes() != [] and page.idle())
    assert page.texts("assistant") == ["I add."]
    assert page.seen("assistant", ".calls h3") == ["Calls add"]
    assert page.seen("assistant", ".calls pre") == ['{\n  "a": 31,\n  "b": 8\n}']
    # The reasoning is there for who opens it, by a key.
    fold = page.driver.find_element("css selector", "[data-role=assistant] details")
    shown = fold.find_element("tag name", "p")
    assert not shown.is_displayed()
    fold.find_element("tag name", "summary").send_keys(Keys.ENTER)
    assert shown.is_displayed() and shown.text == "so"
    # The field asks for what the call gives, and the model goes on from it; also after a reload.
    page.driver.refresh()
    assert page.find("ask").get_attribute("placeholder") == "What does add return?"
    until(lambda: page.model() == "adder")
    page.say("39")
    until(lambda: len(page.notes()) == 2 and page.idle())
    assert page.texts("assistant") == ["I add.", "31 plus 8 is 39."]
    assert page.find("ask").get_attribute("placeholder") == "Message adder"
    said = page.run("return said()")
    assert said[2] == {
        "role": "tool",
        "content": "39",
        "tool_call_id": said[1]["tool_calls"][0]["id"],
    }
    assert adder.llm.prompts[-1] == adder.expected(said[:3])
    # Again from the result.
    page.keys(Keys.ALT, "r")
    until(lambda: page.driver.find_elements("css selector", ".count") != [] and page.idle())
    assert page.texts("assistant")[1] == "31 plus 8 is 39."


def test_what_a_setting_has_that_is_no_json_is_said_before_it_is_sent(
    browser: Any, served: Served
) -> None:
    page = Page(browser, served.url)
    for name in ("tools", "schema"):
        page.run("toggleSettings()")
        page.fill(name, '{"a": ')
        page.run("toggleSettings()")
        page.say("tea")
        until(lambda: page.notice() != "" and page.idle())
        assert re.match(f"{name}: .*JSON", page.notice())
        page.run("toggleSettings()")
        page.fill(name, "")
        page.run("toggleSettings()")
        page.fill("ask", "")
        page.press("#new")


#: Stands between the page and the server: notes what is asked for.
WATCH = """
const plain = window.fetch;
window.asked = [];
window.fetch = (path, given) => {
  const body = given?.body && JSON.parse(given.body);
  if (body) {
    window.asked.push(structuredClone(body));
    delete body.response_format;
  }
  return plain(path, { ...given, body: body && JSON.stringify(body) });
};
"""


def test_an_answer_in_a_form_is_shown_with_a_line_for_each_value(
    browser: Any, tmp_path: Path
) -> None:
    # A number that a browser cannot hold, marks within texts, and nothing in brackets.
    answer = '{"n":12345678901234567891,"s":"a, \\"b\\": {[]}","l":[1.50,true],"e":{ },"v":[]}'
    schema = {"type": "object", "required": ["n"]}
    scripted.write(tmp_path / "form.gguf", [answer])
    with LLM(tmp_path / "form.gguf", device="cpu") as llm, serving(asgi({"form": llm})) as served:
        page = Page(browser, served.url)
        until(lambda: page.model() == "form")
        page.run("toggleSettings()")
        page.fill("schema", json.dumps(schema))
        page.run("toggleSettings()")
        page.run(WATCH)
        page.say("a form")
        until(lambda: page.notes() != [] and page.idle())
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        assert [body["response_format"] for body in page.run("return asked")] == [form]
        lines = [
            "{",
            '  "n": 12345678901234567891,',
            '  "s": "a, \\"b\\": {[]}",',
            '  "l": [',
            "    1.50,",
            "    true",
            "  ],",
            '  "e": {},',
            '  "v": []',
            "}",
        ]
        assert page.seen("assistant", "pre") == ["\n".join(lines)]
        page.driver.refresh()
        assert page.seen("assistant", "pre") == ["\n".join(lines)]
        # What was said is as the model said it.
        assert page.run("return said()[1].content") == answer
        for part in ('{"a": "b', '{"a": "\\\\', "[1, [", "}}"):
            made = page.run("return pretty(arguments[0])", part)
            assert re.sub(r"\s", "", made) == re.sub(r"\s", "", part)
        # A model may repeat a bracket until its context ends.
        assert page.run("return pretty('['.repeat(50_000)).length") < 5_000_000
    with contextlib.suppress(Exception):
        browser.get("about:blank")
