"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from page_browser import Opened
    from playwright.sync_api import Browser


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the cache of the person who runs them; the processes they start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A script starts `make test &` with SIGINT ignored; the processes that tests interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a file: while it is there, this thread can run no other event loop."""
    from page_browser import CHROMIUM, FLAGS, playwright

    with playwright.sync_playwright() as driver:
        own = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield own
        own.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """A fresh page, which must have shown no error in the end."""
    from page_browser import Opened

    own = Opened(browser)
    yield own
    own.close()
