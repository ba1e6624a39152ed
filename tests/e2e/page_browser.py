"""Pages in a real browser that reaches nothing but files of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = playwright.expect
CHROMIUM = shutil.which("chromium") or ""
if not CHROMIUM:
    pytest.skip("needs chromium", allow_module_level=True)
# Neither a graphics card nor the network is there to be looked for.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Opened:
    """A page, and what went wrong in it."""

    def __init__(self, browser: Browser, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def goto(self, path: Path, fragment: str = "") -> Page:
        self.page.goto(path.as_uri() + fragment)
        return self.page

    def close(self) -> None:
        """Whatever a test did: no error in the console, and nothing was asked for but files."""
        self.context.close()
        assert self.problems == []
        assert [url for url in self.requests if not url.startswith(("file:", "blob:", "about:"))] == []
