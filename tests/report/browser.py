"""A page in a real browser, and what went wrong on it."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _absent(what: str) -> NoReturn:
    """In CI a browser is part of what is tested."""
    reason = f"{what} is missing: apt-get install chromium, uv sync"
    if os.environ.get("CI", "") not in ("", "0", "false"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A browser; without one the tests that need it are skipped, and fail in CI."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        _absent("a browser")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _absent("playwright")
    with sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = driver.chromium.launch(executable_path=program, args=[*options, "--disable-gpu"])
        yield chromium
        chromium.close()


class Watched:
    """A page, and what went wrong on it."""

    def __init__(self, page: Any):
        self.page = page
        self.wrong: list[str] = []
        page.on("console", lambda message: self.wrong.append(message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("requestfailed", lambda request: self.wrong.append(f"failed: {request.url}"))
        page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(f"requested: {url}")

    def figure(self, name: str) -> list[dict[str, Any]]:
        """The traces of a figure."""
        return self.page.evaluate(f"document.getElementById('{name}').data")

    def map(self) -> np.ndarray:
        """The cells of the map, from the lowest row on."""
        return np.array([[np.nan if v is None else v for v in line] for line in self.figure("map")[0]["z"]], float)

    def until(self, condition: str) -> None:
        """Waits for a condition. Playwright's own way evaluates text in the page, which the page forbids."""
        for _ in range(200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never came true: {condition}")

    def hover(self, row: int, column: int, words: str) -> None:
        """Moves the mouse to a cell, and waits for what the page says of it."""
        self.page.mouse.move(*self.cell(row, column))
        self.until(f"document.getElementById('map-status').innerText.includes({json.dumps(words)})")

    def click(self, row: int, column: int, words: str) -> None:
        """Clicks on a cell, as slowly as people do: Plotly looks at most every 50 ms where the mouse is."""
        self.hover(row, column, words)
        self.page.mouse.click(*self.cell(row, column))

    def pins(self, count: int) -> None:
        """Waits for so many pinned cells."""
        self.until(f"document.querySelectorAll('#pins li').length === {count}")

    def text(self, name: str) -> str:
        return self.page.locator(f"#{name}").inner_text()

    def cell(self, row: int, column: int) -> tuple[float, float]:
        """Where a cell is on the screen."""
        x, y = self.page.evaluate(
            """([row, column]) => {
              const map = document.getElementById("map");
              const { xaxis, yaxis } = map._fullLayout;
              const box = map.getBoundingClientRect();
              const place = (axis, edges, i) => axis._offset + axis.c2p((edges[i] + edges[i + 1]) / 2);
              const { x, y } = map.data[0];
              return [box.x + place(xaxis, x, column), box.y + place(yaxis, y, row)];
            }""",
            [row, column],
        )
        return x, y

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@contextlib.contextmanager
def opened(browser, path: Path, width: int = 1280) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    watched = Watched(context.new_page())
    watched.page.goto(path.absolute().as_uri())
    watched.page.wait_for_selector("body[data-ready]", timeout=30_000, state="attached")
    yield watched
    context.close()
