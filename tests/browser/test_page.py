"""The page shows what the metrics say, to everybody, and nothing that it shows becomes markup."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
import headrace_server as hs

from .chromium import Missing, chromium
from .feeds import buckets, segments, trained

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>"
_PATIENCE_S = 40


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with chromium() as one:
            yield one
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server(browser: Any) -> Iterator[hs.Server]:
    feeds = {"speech": segments(), "slow": buckets()}
    with hs.run(feeds, partitions=2, workers=2, http="127.0.0.1:0") as one:
        yield one


class Page:
    """A page, and the errors that the browser reported."""

    def __init__(self, browser: Any, address: str, **more: Any) -> None:
        self.context = browser.new_context(**more)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append("a dialog"))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]")

    def rows(self, table: str) -> list[list[str]]:
        """The texts of a table's cells."""
        script = "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent.trim()))"
        found: list[list[str]] = self.page.locator(f"#{table}").evaluate(script)
        return found

    def counts(self) -> dict[str, str]:
        return dict(self.rows("counts"))

    def choose(self, feed: str) -> None:
        self.page.get_by_role("button", name=feed).click()

    def eventually(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.page.inner_text("body")
            self.page.wait_for_timeout(200)


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Page]]:
    pages: list[Page] = []

    def open_page(address: str | None, **more: Any) -> Page:
        assert address is not None
        pages.append(Page(browser, address, **more))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()


def metric(server: hs.Server, name: str, **labels: str) -> float:
    with urllib.request.urlopen(f"{server.http_address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    given = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    found = re.search(rf"^{name}{{{re.escape(given)}}} (\S+)$", text, re.MULTILINE)
    assert found, (name, given)
    return float(found[1])


def plain(n: float) -> str:
    return f"{n:,.0f}"


def test_its_figures_are_those_of_the_metrics(server, opened):
    with trained(server.address, ("speech", 0.02), ("slow", 0.0)) as stop:
        page = opened(server.http_address)
        page.eventually(lambda: len(page.rows("trainers")) == 1)
        page.eventually(lambda: "Trainers" in page.page.inner_text("#verdict-text"))
        page.choose("slow")
        page.eventually(lambda: "and map function" in page.page.inner_text("#verdict-text"))
        assert "the limit" in page.page.inner_text("#flow")
        stop.set()
    for feed in ("slow", "speech"):
        page.choose(feed)
        page.eventually(lambda: bool(page.page.is_visible("#trainers-none")))
        assert not page.page.is_visible("#trainers")
        done = metric(server, "headrace_batches_committed_total", feed=feed)
        rows = metric(server, "headrace_rows_committed_total", feed=feed)
        assert page.counts()["batches done"] == plain(done) and done > 0
        assert page.counts()["rows done"] == plain(rows)
    page.choose("slow")

    def padding() -> dict[str, float]:
        return {row[0]: float(row[2].split()[0]) for row in page.rows("buckets")}

    def same(bucket: str) -> bool:
        """The workers still make a little ahead."""
        ratio = metric(server, "headrace_padding_ratio", feed="slow", bucket=bucket)
        return abs(padding()[bucket] - 100 * ratio) <= 0.51

    for bucket in padding():
        page.eventually(lambda bucket=bucket: same(bucket))  # type: ignore[misc]
    assert len(padding()) >= 2 and page.troubles == []


def test_it_asks_nobody_but_its_server(server, opened):
    page = opened(server.http_address)
    assert page.asked and server.http_address is not None
    assert all(url.startswith((server.http_address, "data:")) for url in page.asked), page.asked
    assert page.troubles == []


def test_it_keeps_the_last_minutes_itself(server, opened):
    page = opened(server.http_address)
    path = "#plots section:first-child path"
    drawn = "all => Math.max(...all.map(p => p.getAttribute('d').length))"
    page.eventually(lambda: page.page.eval_on_selector_all(path, drawn) > 30)
    assert page.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1100, 1280])
def test_it_fits_every_screen(server, opened, scheme, width):
    page = opened(
        server.http_address, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    for feed in ("speech", "slow"):
        page.choose(feed)
        wide = page.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, feed
        boxes = ".channel *, .station *" if width > 640 else ".scroll, .channel *, .station *"
        cut = page.page.eval_on_selector_all(
            boxes,
            """all => all.filter(n => n.offsetParent && n.clientWidth
               && n.scrollWidth > n.clientWidth + 1).map(n => n.textContent)""",
        )
        assert cut == [], feed


def test_it_can_be_used_by_keys_and_tells_readers_what_is_what(server, opened):
    page = opened(server.http_address)
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    pressed = page.page.locator("nav button[aria-pressed=true]")
    assert pressed.inner_text() == "slow" and page.page.title() == "slow · headrace"
    assert page.page.url.endswith("#slow")
    labels = page.page.eval_on_selector_all(
        "#plots svg", "all => all.map(s => s.getAttribute('aria-label'))"
    )
    assert len(labels) == 3 and all("; now " in label for label in labels)
    assert page.page.get_by_role("status").count() == 1
    assert page.page.locator("th:not([scope])").count() == 0


def test_what_others_say_is_shown_and_never_obeyed(server, opened, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: HOSTILE)
    pipeline = hs.from_examples([{"i": 1}]).map("tests.browser.test_page:hostile").repeat(None)
    with hs.run(pipeline.batch(1), http="127.0.0.1:0") as other:
        with headrace.connect(other.address, timeout=30) as feed:
            page = opened(other.http_address)
            page.eventually(lambda: HOSTILE in page.page.inner_text("#trainers"))
            with pytest.raises(headrace.HeadraceError):
                list(feed)
        page.eventually(lambda: HOSTILE in page.page.inner_text("#verdict-text"))
        page.eventually(lambda: HOSTILE in page.page.inner_text("#events"))
        assert page.page.locator("img").count() == 0
        assert page.troubles == []


def hostile(example: dict[str, Any]) -> dict[str, Any]:
    hostile.calls = getattr(hostile, "calls", 0) + 1  # type: ignore[attr-defined]
    if hostile.calls > 400:  # type: ignore[attr-defined]
        raise ValueError(HOSTILE)
    return example


def test_a_server_that_is_gone_is_told_of_and_what_was_known_stays(browser, opened):
    with hs.run(hs.from_examples([{"i": 1}]).repeat(None).batch(1), http="127.0.0.1:0") as other:
        page = opened(other.http_address)
        assert not page.page.is_visible("#lost")
    page.eventually(lambda: page.page.is_visible("#lost"))
    assert "has not answered since" in page.page.inner_text("#lost")
    assert "batches done" in page.counts()
