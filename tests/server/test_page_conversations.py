"""Conversations on the chat page: kept, branched, exported, and read as a stranger's."""

import json
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

ANSWERS = ("The **first** answer.", "A second one, `x`.", "And 3 <b>of</b> them.")


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = scripted.write(tmp_path_factory.mktemp("teller") / "teller.gguf", ANSWERS)
    with LLM(path, device="cpu") as llm, serving(asgi({"teller": llm})) as served:
        yield served


@pytest.fixture
def page(browser: Any, teller: Served) -> Page:
    found = Page(browser, teller.url)
    until(lambda: found.model() == "teller")
    return found


def ask(page: Page, text: str) -> None:
    before = len(page.texts("assistant"))
    page.say(text)
    until(lambda: len(page.notes()) > before and page.idle())


def hold(page: Page) -> None:
    """Keeps the next request of the page from the server until `release`."""
    code = "window.plain = fetch; fetch = (...a) => new Promise((go) => { window.held = [go, a]; })"
    page.run(code)


def release(page: Page, answer: str = "plain(...held[1])") -> None:
    page.run(f"fetch = plain; {answer}.then(held[0])")


def kept(page: Page) -> list[dict[str, Any]]:
    """The conversations in the browser's storage."""
    code = "return Object.keys(localStorage).filter((k) => k.startsWith('chat:'))"
    found = page.run(f"{code}.map((k) => localStorage[k])")
    return [json.loads(each) for each in found]


def put(page: Page, conversation: Any) -> None:
    """Keeps a conversation as another tab would, and begins the page anew."""
    text = conversation if isinstance(conversation, str) else json.dumps(conversation)
    page.run("localStorage.setItem('chat:other', arguments[0])", text)
    page.driver.refresh()
    until(lambda: page.model() == "teller")


def chat(**more: Any) -> dict[str, Any]:
    turns = [
        {"id": "a", "parent": None, "role": "user", "content": "hi"},
        {"id": "b", "parent": "a", "role": "assistant", "content": "ho"},
    ]
    return {"id": "other", "title": "Other", "updated": 1, "turns": turns, "leaf": "b", **more}


def test_the_opening_screen_names_the_model_and_offers_three_prompts(page: Page) -> None:
    assert page.find("greeting").text == "teller"
    assert page.find("about").text == "Ready, with a context of 4,096 tokens"
    assert page.find("ask").get_attribute("placeholder") == "Message teller"
    prompts = page.seen_in("#prompts button")
    assert len(prompts) == 3
    page.press("#prompts li:nth-child(2) button")
    until(lambda: page.notes() != [] and page.idle())
    assert page.texts("user") == [prompts[1]] and not page.find("welcome").is_displayed()
    assert page.seen("assistant", "strong") == ["first"]


def test_waiting_is_shown_until_the_first_token(page: Page) -> None:
    hold(page)
    page.say("tea")
    assert page.seen("assistant", ".waiting") == ["Waiting for teller"]
    assert page.find("stop").is_displayed() and not page.find("send").is_displayed()
    release(page, "plain('v1/none')")
    until(page.idle)
    assert page.seen("assistant", ".waiting") == [] and page.notice() != ""


def test_an_answer_that_ends_leaves_what_is_above_as_it_is(page: Page) -> None:
    hold(page)
    page.say("tea")
    page.run("$('log').firstElementChild.mark = 1")
    release(page)
    until(lambda: page.notes() != [] and page.idle())
    assert page.run("return $('log').firstElementChild.mark") == 1
    assert page.seen("assistant", ".tools button") != []


def test_a_message_is_edited_and_both_branches_stay(page: Page) -> None:
    from selenium.webdriver import Keys

    ask(page, "one")
    ask(page, "two")
    page.press("[data-role=user] [title=Edit]")
    field = page.driver.switch_to.active_element
    field.send_keys(" and a half", Keys.ENTER)
    until(lambda: page.texts("user") == ["one and a half"] and page.notes() != [] and page.idle())
    assert page.seen("user", ".count") == ["2 / 2"]
    page.press("[title='Previous version']")
    assert page.texts("user") == ["one", "two"] and len(page.notes()) == 2
    # Regenerated answers are branches too, and a reload keeps where one is.
    page.keys(Keys.ALT, "r")
    until(lambda: page.seen("assistant", ".count") == ["2 / 2"] and page.idle())
    page.driver.refresh()
    assert page.texts("user") == ["one", "two"]
    assert page.seen_in(".count") == ["1 / 2", "2 / 2"]
    # An answer that is edited is what the model said.
    page.press("article:last-child [title=Edit]")
    field = page.driver.switch_to.active_element
    field.clear()
    field.send_keys("Mine.")
    page.press(".edit button:last-child")
    assert page.run("return said().at(-1)") == {"role": "assistant", "content": "Mine."}
    assert page.seen("assistant", ".count") == ["3 / 3"] and page.idle()


def test_conversations_are_listed_renamed_and_deleted(page: Page) -> None:
    from selenium.webdriver import Keys

    ask(page, "tea or coffee?")
    page.press("#new")
    ask(page, "the other")
    assert page.seen_in("#list .title") == ["the other", "tea or coffee?"]
    page.press("#list li:nth-child(2) .row button")
    assert page.texts("user") == ["tea or coffee?"]
    page.press("#list li:nth-child(2) [aria-expanded]")
    page.press("#list .actions button")
    name = "</script><script>alert(1)</script>"
    page.driver.switch_to.active_element.send_keys(name, Keys.ENTER)
    assert page.seen_in("#list .current .title") == [name]
    page.driver.refresh()
    assert page.seen_in("#list .current .title") == [name] and name in page.driver.title
    page.press("#list .current [aria-expanded]")
    page.press("#list .actions .wrong")
    assert page.seen_in("#list .title") == ["the other"] and page.texts("user") == []
    # Undone, it is there again.
    page.press("#notice button")
    assert sorted(page.seen_in("#list .title")) == sorted([name, "the other"])


def test_what_is_exported_can_be_read_and_imported(page: Page, downloads: Path) -> None:
    ask(page, "one: two?")
    page.press("#list [aria-expanded]")
    for label in ("JSON", "Markdown"):
        page.press(f"[aria-label='Export as {label}']")
    until(lambda: {"one-two.json", "one-two.md"} <= {each.name for each in downloads.iterdir()})
    text = (downloads / "one-two.md").read_text()
    assert text == f"# one: two?\n\n## You\n\none: two?\n\n## Model\n\n{ANSWERS[0]}\n"
    exported = json.loads((downloads / "one-two.json").read_text())
    (same,) = kept(page)
    assert exported == same
    page.find("file").send_keys(str(downloads / "one-two.json"))
    until(lambda: len(page.seen_in("#list .title")) == 2)
    assert page.texts("user") == ["one: two?"]
    assert len({each["id"] for each in kept(page)}) == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{", "JSON"),
        ("null", "no list of at most"),
        (chat(turns=[]), "it has no turns"),
        (chat(turns=[None]), ""),
        (chat(turns=[{"id": "a", "parent": "a", "role": "user", "content": "x"}]), "whose parent"),
        (
            chat(turns=[{"id": "a", "parent": None, "role": "system", "content": ""}]),
            "unknown role",
        ),
        (chat(turns=[{"id": "a", "parent": None, "role": "constructor", "content": ""}]), "role"),
        (chat(turns=[{"id": "a", "parent": None, "role": "user", "content": {}}]), "without text"),
        (
            chat(turns=[{"id": 'a"]', "parent": None, "role": "user", "content": ""}]),
            "without an id",
        ),
        (chat(turns=[{**chat()["turns"][0], "tool_calls": [{"id": 1, "function": {}}]}]), "a call"),
        (chat(turns=[chat()["turns"][0]] * 2), "id of its own"),
        (chat(turns=chat()["turns"] * 3000), "at most 5000"),
    ],
)
def test_what_is_no_conversation_is_neither_imported_nor_shown(
    page: Page, tmp_path: Path, given: Any, why: str
) -> None:
    text = given if isinstance(given, str) else json.dumps(given)
    (tmp_path / "given.json").write_text(text)
    page.find("file").send_keys(str(tmp_path / "given.json"))
    until(lambda: page.notice().startswith("given.json cannot be imported: "))
    assert why in page.notice() and kept(page) == []
    put(page, text)
    assert page.seen_in("#list .title") == []
    ask(page, "still here?")
    assert page.seen_in("#list .title") == ["still here?"]


def test_more_than_a_conversation_has_is_left_out(page: Page, tmp_path: Path) -> None:
    turns = [{**chat()["turns"][0], "__proto__": {"x": 1}, "onload": "x", "note": 7}]
    made = chat(turns=turns, title=7, leaf="none", __proto__={"polluted": True})
    (tmp_path / "given.json").write_text(json.dumps(made))
    page.find("file").send_keys(str(tmp_path / "given.json"))
    until(lambda: page.texts("user") == ["hi"])
    (same,) = kept(page)
    assert same.keys() == {"id", "title", "updated", "turns", "leaf"} and same["leaf"] == "a"
    assert same["title"] == "" and same["turns"] == [chat()["turns"][0]]
    assert page.run("return ({}).polluted") is None


def test_a_turn_that_nobody_answered_is_no_second_in_a_row(page: Page) -> None:
    from selenium.webdriver import Keys

    put(page, chat(turns=chat()["turns"][:1], leaf="a"))
    page.press("#list .row button")
    ask(page, "ho")
    assert [each["content"] for each in page.run("return said()")] == ["ho", ANSWERS[0]]
    # Both stay, and the first can have its answer yet.
    page.press("[title='Previous version']")
    assert page.texts("user") == ["hi"] and page.texts("assistant") == []
    page.keys(Keys.ALT, "r")
    until(lambda: page.notes() != [] and page.idle())
    assert [each["content"] for each in page.run("return said()")] == ["hi", ANSWERS[0]]


def test_storage_that_is_full_or_off_is_said_and_the_chat_goes_on(page: Page) -> None:
    page.run(
        "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }"
    )
    ask(page, "one")
    assert "no room to keep this conversation" in page.notice()
    ask(page, "two")
    assert page.texts("user") == ["one", "two"] and kept(page) == []
    page.run("Storage.prototype.getItem = () => { throw new DOMException('', 'SecurityError'); }")
    page.press("#new")
    ask(page, "three")
    assert page.texts("user") == ["three"]


def test_two_tabs_keep_what_either_says(page: Page) -> None:
    ask(page, "one")
    first = page.driver.current_window_handle
    page.run("return window.open(location.href) && 0")
    (second,) = {*page.driver.window_handles} - {first}
    try:
        page.driver.switch_to.window(second)
        until(lambda: page.model() == "teller")
        page.run("openChat(storedChats()[0].id)")
        ask(page, "from the second")
        page.driver.switch_to.window(first)
        until(lambda: page.run("return chat.turns.length") == 4)
        assert page.texts("user") == ["one"]
        ask(page, "from the first")
        assert page.seen("user", ".count") == ["2 / 2"]
        (both,) = kept(page)
        assert len(both["turns"]) == 6
        # A title that one gives is not undone by what the other keeps.
        page.driver.switch_to.window(second)
        until(lambda: page.run("return chat.turns.length") == 6)
        page.run("renameChat(chat, 'Tea')")
        page.driver.switch_to.window(first)
        until(lambda: page.driver.title.startswith("Tea"))
        ask(page, "and again")
        assert [each["title"] for each in kept(page)] == ["Tea"]
        # Deleted in one, it is not written again by the other.
        page.run("deleteChat(chat)")
        page.driver.switch_to.window(second)
        until(lambda: page.texts("user") == [])
        assert "deleted in another tab" in page.notice() and kept(page) == []
    finally:
        page.driver.switch_to.window(second)
        page.driver.close()
        page.driver.switch_to.window(first)


def test_what_another_tab_did_while_an_answer_came_is_kept(page: Page) -> None:
    ask(page, "one")
    # Written by this tab itself, so that it is not told of it.
    code = """
        const key = PREFIX + chat.id, there = JSON.parse(localStorage[key]);
        there.turns.push({ id: "x", parent: null, role: "user", content: "another's" });
        localStorage[key] = JSON.stringify(there);
    """
    page.run(code)
    ask(page, "two")
    (both,) = kept(page)
    assert [each["content"] for each in both["turns"] if each["role"] == "user"] == [
        "one",
        "two",
        "another's",
    ]
    page.run("localStorage.removeItem(PREFIX + chat.id)")
    ask(page, "three")
    assert kept(page) == []


def test_settings_show_the_defaults_and_survive_a_reload(page: Page, teller: Served) -> None:
    _, props = teller.get("/props")
    params = props["default_generation_settings"]["params"]
    page.press("#show-settings")
    until(lambda: page.find("top_k").get_attribute("placeholder") not in ("", None))
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty"):
        assert float(page.find(name).get_attribute("placeholder")) == params[name]
        label = page.seen_in(f"label[for={name}]")[0]
        assert label.endswith(f" {name}") and len(label.split()) > 1
    page.fill("top_k", "7")
    page.press("#hide-settings")
    page.driver.refresh()
    assert page.find("top_k").get_attribute("value") == "7"
    assert page.driver.switch_to.active_element.get_attribute("id") == "ask"


def test_an_answer_that_ends_leaves_a_title_that_is_being_typed(page: Page) -> None:
    from selenium.webdriver import Keys

    ask(page, "one")
    hold(page)
    page.say("two")
    page.press("#list [aria-expanded]")
    page.press("#list .actions button")
    field = page.driver.switch_to.active_element
    field.send_keys("Tea")
    release(page)
    until(lambda: len(page.notes()) == 2 and page.idle())
    assert page.driver.switch_to.active_element == field
    field.send_keys("s", Keys.ENTER)
    assert page.seen_in("#list .title") == ["Teas"] and page.driver.title.startswith("Teas")
    assert page.run("return chat.turns.length") == 4


def test_a_page_that_comes_back_has_what_it_kept_once(page: Page) -> None:
    ask(page, "one")
    said = page.run("return said()")
    page.run(
        "fetch = (path, { signal }) => new Promise((go, fail) =>"
        "  signal.addEventListener('abort', () => fail(signal.reason)))"
    )
    page.say("two")
    page.run("dispatchEvent(new Event('pagehide'))")
    until(page.idle)
    assert page.run("return said()") == said and page.texts("user") == ["one"]
    assert page.find("ask").get_attribute("value") == "two"
    (same,) = kept(page)
    assert len(same["turns"]) == 2


def test_a_conversation_under_the_key_of_another_is_not_shown(page: Page) -> None:
    put(page, chat(id="another"))
    assert page.seen_in("#list .title") == []


def test_a_reload_in_the_midst_keeps_what_was_said(page: Page) -> None:
    page.run("fetch = () => new Promise(() => {})")
    page.say("tea?")
    until(lambda: not page.idle())
    page.driver.refresh()
    assert page.find("ask").get_attribute("value") == "tea?" and kept(page) == []
