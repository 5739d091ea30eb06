"""The chat page in a real browser, as somebody uses it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER = shutil.which("chromium"), shutil.which("chromedriver")


def started(downloads: str) -> Iterator[Any]:
    """A browser that puts what it downloads into a folder."""
    if None in BROWSER:
        pytest.skip("no chromium and chromedriver here: `apt-get install chromium-driver`")
    pytest.importorskip("selenium", reason="no selenium: `pip install .[thorough]` brings it")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER[0] or ""
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": downloads})
    driver = webdriver.Chrome(options, webdriver.ChromeService(BROWSER[1]))
    driver.set_window_size(1000, 800)
    yield driver
    driver.quit()


class Page:
    """What somebody at the page does and sees."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        driver.get(url)
        self.run("localStorage.clear(); sessionStorage.clear()")
        driver.refresh()

    def run(self, code: str, *given: Any) -> Any:
        return self.driver.execute_script(code, *given)

    def model(self) -> str:
        return str(self.run("return document.getElementById('model').value"))

    def press(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def find(self, name: str) -> Any:
        return self.driver.find_element("id", name)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver)
        *held, last = keys
        for key in held:
            chain.key_down(key)
        chain.send_keys(last)
        for key in held:
            chain.key_up(key)
        chain.perform()

    def texts(self, role: str) -> list[str]:
        return self.seen(role, ".body")

    def seen(self, role: str, selector: str) -> list[str]:
        """The texts of what is in messages of a role."""
        return self.seen_in(f"[data-role={role}] {selector}")

    def seen_in(self, selector: str) -> list[str]:
        """The texts of all that a selector finds."""
        found = "[...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return list(self.run(f"return {found}", selector))

    def fill(self, name: str, text: str) -> None:
        self.find(name).clear()
        self.find(name).send_keys(text)

    def say(self, text: str) -> None:
        from selenium.webdriver import Keys

        self.find("ask").send_keys(text, Keys.ENTER)

    def notes(self) -> list[str]:
        return self.seen("assistant", "small:not([hidden])")

    def notice(self) -> str:
        return str(self.run("return document.querySelector('#notice span')?.textContent ?? ''"))

    def idle(self) -> bool:
        return bool(self.run("return running === null && !document.getElementById('send').hidden"))
