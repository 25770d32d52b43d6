"""The page in a real browser: laptop and phone, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline.report.figures import AuditSummary, Figures, Ranked
from posthouse.pipeline.report.page import render_page
from tests.pipeline.report.sample import HOSTILE, NAMES, make_sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = which("chromium")
MEASURE = Path(__file__).with_name("measure.js").read_text()
WIDTHS = {"laptop": (1280, 800), "tablet": (820, 1100), "phone": (390, 844)}
NOTHING: dict[str, list[str]] = {"overlaps": [], "clipped": [], "faint": [], "small": []}

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: run scripts/setup as root"),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Shown:
    """A page that was opened, with everything it complained about."""

    def __init__(self, browser: Browser, path: Path, size: tuple[int, int], scheme: str) -> None:
        width, height = size
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
        )
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda failure: self.complaints.append(str(failure)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri(), wait_until="load")

    def _dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def scrolls_sideways(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


def written(folder: Path, figures: Figures) -> Path:
    path = folder / "report.html"
    path.write_text(render_page(figures), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(WIDTHS))
def test_page_is_readable_at_every_width_in_both_schemes(
    browser: Browser, tmp_path: Path, size: str, scheme: str
) -> None:
    audit = AuditSummary(9_000, (Ranked("seq_gap", 2, "records are missing between two that are there"),))
    path = written(tmp_path, make_sample(audit=audit))
    shown = Shown(browser, path, WIDTHS[size], scheme)
    assert shown.complaints == []
    assert shown.requests == [path.as_uri()]
    assert not shown.scrolls_sideways()
    assert shown.page.evaluate(MEASURE) == NOTHING
    assert shown.page.locator("svg:visible").count() == 7
    shown.page.close()


def test_dark_and_light_are_different_pages_to_the_eye(browser: Browser, tmp_path: Path) -> None:
    path = written(tmp_path, make_sample())
    colours = set()
    for scheme in ("light", "dark"):
        shown = Shown(browser, path, WIDTHS["laptop"], scheme)
        colours.add(shown.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        shown.page.close()
    assert len(colours) == 2


def test_link_shows_the_trace_that_was_hidden_and_the_measure_accepts_it(browser: Browser, tmp_path: Path) -> None:
    shown = Shown(browser, written(tmp_path, make_sample()), WIDTHS["phone"], "light")
    traces = shown.page.locator("section.trace:visible")
    assert traces.count() == 0
    shown.page.get_by_role("link", name="trace").first.click()
    assert traces.count() == 1
    assert "message.accepted" in traces.inner_text()
    assert not shown.scrolls_sideways()
    assert shown.page.evaluate(MEASURE) == NOTHING
    shown.page.close()


def test_page_prints_light_from_a_dark_screen(browser: Browser, tmp_path: Path) -> None:
    shown = Shown(browser, written(tmp_path, make_sample()), WIDTHS["laptop"], "dark")
    shown.page.emulate_media(media="print")
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert shown.page.evaluate(MEASURE) == NOTHING
    shown.page.close()


@pytest.mark.parametrize("size", ["laptop", "phone"])
def test_hostile_and_endless_names_neither_run_nor_break_the_page(browser: Browser, tmp_path: Path, size: str) -> None:
    path = written(tmp_path, make_sample(names=(*HOSTILE, *NAMES)))
    shown = Shown(browser, path, WIDTHS[size], "light")
    assert shown.complaints == []
    assert shown.page.title() == "posthouse report"
    assert shown.page.locator("h1").count() == 1
    assert shown.page.locator("img, script").count() == 0
    assert not shown.scrolls_sideways()
    assert shown.page.evaluate(MEASURE) == NOTHING
    shown.page.close()


@pytest.mark.parametrize("days", [1, 3, 45])
def test_short_and_long_histories_keep_their_labels_apart(browser: Browser, tmp_path: Path, days: int) -> None:
    path = written(tmp_path, make_sample(days=days))
    for size in ("laptop", "phone"):
        shown = Shown(browser, path, WIDTHS[size], "light")
        assert shown.page.evaluate(MEASURE) == NOTHING
        shown.page.close()


def test_empty_lake_makes_a_page_too(browser: Browser, tmp_path: Path) -> None:
    shown = Shown(browser, written(tmp_path, Figures(made_at_s=0)), WIDTHS["phone"], "dark")
    assert shown.complaints == []
    assert not shown.scrolls_sideways()
    assert shown.page.evaluate(MEASURE) == NOTHING
    shown.page.close()


def test_the_measure_itself_sees_faint_clipped_and_overlapping_labels(browser: Browser, tmp_path: Path) -> None:
    """The control: a page that is broken on purpose is found to be."""
    path = tmp_path / "broken.html"
    labels = '<text x="10" y="20">one</text><text x="12" y="21">two</text><text x="900" y="20">away</text>'
    faint = '<p style="color:#ccc;background:#fff">faint</p>'
    drawing = f'<svg viewBox="0 0 200 50" width="200" height="50">{labels}</svg>'
    path.write_text(f'<!DOCTYPE html><section style="width:300px">{drawing}{faint}</section>')
    shown = Shown(browser, path, WIDTHS["laptop"], "light")
    found = shown.page.evaluate(MEASURE)
    assert found["overlaps"] and found["clipped"] == ["away"] and found["faint"]
    shown.page.close()
