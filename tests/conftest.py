"""What holds for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rankscope.model.border import raise_bugs

if TYPE_CHECKING:
    from page_browser import Opened
    from playwright.sync_api import Browser


GARBAGE_THRESHOLD = 50_000  # objects; with Python's 700 the collector takes a fifth of the time


def pytest_configure() -> None:
    """What a shell starts in the background ignores interrupts, and so would all processes that the tests interrupt.

    On a busy machine an example may take any time.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("busy machine", settings.default, deadline=None)
    settings.load_profile("busy machine")
    gc.set_threshold(GARBAGE_THRESHOLD)
    raise_bugs()  # users get a report without the file or the rule that failed; here every bug is seen


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is marked `cases`, the first case is quick and the others are slow."""
    seen: set[object] = set()
    for item in items:
        if item.get_closest_marker("cases"):
            function = getattr(item, "function", None)
            if function in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(function)


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: the collector of garbage need not look at them again and again."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # some extensions complain about what is still there when the interpreter ends


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the cache of the person who runs them; the processes they start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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
