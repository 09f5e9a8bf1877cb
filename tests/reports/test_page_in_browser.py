"""The page in a real browser: it draws, filters, follows the keyboard, and runs nothing of the user's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.reports.findings import Site
from pytest_inplace.reports.page import build
from pytest_inplace.reports.parity import Divergence
from tests.reports import made_up

sync_api = pytest.importorskip("playwright.sync_api", reason="drives the browser")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no browser to be had: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Write a page, open it from disk, and see that no error came and nothing was fetched."""
    troubles: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})

    def open_page(records: list[dict[str, Any]], fragment: str = "") -> Any:
        file = tmp_path / "page.html"
        file.write_text(build.page(records, {"torch": "2.13.0"}, str(tmp_path)), encoding="utf-8")
        tab = context.new_page()
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        tab.on(
            "request", lambda r: troubles.append(r.url) if not r.url.startswith(("file:", "data:")) else None
        )
        tab.goto(file.as_uri() + fragment)
        tab.wait_for_selector("html[data-ready]", state="attached")
        return tab

    yield open_page
    context.close()
    assert troubles == []


def some_records(tmp_path: Path) -> list[dict[str, Any]]:
    made_up.source(tmp_path)
    write = made_up.site(9, function="clip")
    first = made_up.finding(1, modified=write, saved=made_up.site(5))
    accepted = made_up.finding(3, accepted="baseline")
    return [
        made_up.record("tests/test_a.py::test_one", first),
        made_up.record("tests/test_b.py::test_two", made_up.finding(14, code="INP203"), accepted),
        made_up.record("tests/test_b.py::test_three"),
        made_up.record("tests/test_c.py::test_four", reason="RuntimeError: no"),
    ]


def shown(tab: Any) -> int:
    return int(tab.locator("#list .row:visible").count())


def test_a_finding_is_drawn(opened: Any, tmp_path: Path) -> None:
    tab = opened(some_records(tmp_path))
    assert tab.title() == "3 findings - pytest-inplace"
    assert "INP102" in tab.locator("#detail h2").inner_text()
    steps = tab.locator(".timeline li b").all_inner_texts()
    assert steps == ["saved for MulBackward0", "overwritten", "used by backward"]
    assert tab.locator(".sides figure").count() == 2
    marks = tab.locator("figure mark").all_inner_texts()
    assert marks[:2] == ["h5", "h9"]
    assert tab.locator(".sides figure .no").first.inner_text() == "2"
    assert "A cell is 3 \N{MULTIPLICATION SIGN} 2 elements" in tab.locator("#detail").inner_text()
    assert tab.locator("svg .r").count() == 3 * 20
    assert tab.locator(".bar span").count() == 8
    colours = tab.evaluate(
        "() => { const c = document.querySelector('canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; const s = new Set();"
        "for (let i = 0; i < d.length; i += 4) s.add([d[i], d[i+1], d[i+2], d[i+3]].join()); return s.size; }"
    )
    assert colours >= 10


def test_hostile_text_does_nothing(opened: Any, tmp_path: Path) -> None:
    made_up.source(tmp_path)
    hostile = made_up.HOSTILE
    write = Site("model.py", 5, hostile, made_up.SOURCE.splitlines()[4], 4, 6, qualname=hostile)
    finding = made_up.finding(1, modified=write, fix=hostile, note=hostile, raised=hostile)
    tab = opened([made_up.record(f"t.py::{hostile}", finding), made_up.record("u", reason=hostile)])
    tab.click("#tab-tests")
    tab.wait_for_timeout(100)
    assert tab.title() == "1 finding - pytest-inplace"
    assert tab.locator("img, #detail script, #list script").count() == 0
    assert tab.locator(".fix").inner_text() == hostile


def test_filters(opened: Any, tmp_path: Path) -> None:
    tab = opened(some_records(tmp_path))
    assert shown(tab) == 3
    for control, value, count in [
        ("#state", "latent", 1), ("#state", "accepted", 1), ("#module", "tests/test_b.py", 2),
        ("#file", "model.py", 1), ("#rule", "INP102", 1),
    ]:  # fmt: skip
        tab.select_option(control, value)
        assert shown(tab) == count, (control, value)
        assert tab.locator("#shown").inner_text() == f"{count} of 3 findings shown"
        tab.select_option(control, "")
    tab.fill("#search", "TEST_ONE clip")
    assert shown(tab) == 1
    tab.keyboard.press("Escape")
    assert shown(tab) == 3
    tab.click("#tab-tests")
    assert shown(tab) == 4
    tab.select_option("#state", "unchecked")
    assert tab.locator("#list .row:visible").inner_text().endswith("RuntimeError: no")


def test_the_keyboard_alone_is_enough(opened: Any, tmp_path: Path) -> None:
    tab = opened(some_records(tmp_path))
    first = tab.locator("#detail h2").inner_text()
    tab.keyboard.press("j")
    second = tab.locator("#detail h2").inner_text()
    assert second != first
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#detail h2").inner_text() not in (first, second)
    tab.keyboard.press("k")
    assert tab.locator("#detail h2").inner_text() == second
    tab.keyboard.press("/")
    tab.keyboard.type("test_two")
    assert shown(tab) == 2
    tab.keyboard.press("Escape")
    tab.focus("#tab-findings")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute("#tab-tests", "aria-selected") == "true"
    assert shown(tab) == 4
    reached = set()
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"theme", "search", "rule", "state", "module", "file", "row test"} <= reached


def test_dark_and_light(opened: Any, tmp_path: Path) -> None:
    tab = opened(some_records(tmp_path))
    background = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(background)
    tab.keyboard.press("t")
    dark = tab.evaluate(background)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")
    tab.click("#theme")
    assert tab.evaluate(background) == light
    tab.emulate_media(color_scheme="dark")
    tab.reload()
    assert tab.evaluate(background) == dark


def test_every_finding_has_an_address(opened: Any, tmp_path: Path) -> None:
    records = some_records(tmp_path)
    headlines = [f["headline"] for f in build.data(records, {}, str(tmp_path))["findings"]]
    for i, headline in enumerate(headlines):
        assert opened(records, f"#f{i}").locator("#detail h2").inner_text() == headline


def test_odd_findings_are_drawn_and_no_findings_are_said(opened: Any) -> None:
    bare = made_up.finding(
        1, saved=None, modified=None, used=None, values=None, gradients=(), relative_error=None
    )
    tab = opened([made_up.record("t", bare)])
    assert "No place in the source is known." in tab.locator("#detail").inner_text()
    apart = Divergence("cuda", "the loss", "double precision", 1.0, 0.1, "aten.gelu", "forward", ("f32[2]",))
    tab = opened([made_up.record("t", made_up.finding(1, code="INP301", divergence=apart))])
    assert "first compared value that differs: the loss" in tab.locator(".words").inner_text()
    assert "pytest 't' --inplace-parity=cuda" in tab.locator("#detail").inner_text()
    tab = opened([made_up.record("t")])
    assert tab.locator("#detail").inner_text() == "There are no findings."
    assert tab.locator("#verdict").inner_text() == "1 test checked, 0 findings"
    assert opened([]).locator("#verdict").inner_text() == "0 tests checked, 0 findings"


def test_a_narrow_window_scrolls_one_way_only(opened: Any, tmp_path: Path) -> None:
    tab = opened(some_records(tmp_path))
    tab.set_viewport_size({"width": 360, "height": 700})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_thousand_findings_open_in_time(browser: Any, tmp_path: Path) -> None:
    """Under 2 seconds of the page's own thread, whatever else the machine does meanwhile."""
    file = tmp_path / "page.html"
    file.write_text(build.page(made_up.records(1000), {}, str(tmp_path)), encoding="utf-8")
    tab = browser.new_page()
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]", state="attached")
    metrics = session.send("Performance.getMetrics")["metrics"]
    busy = {metric["name"]: metric["value"] for metric in metrics}["TaskDuration"]
    assert 0 < busy < 2
    assert shown(tab) == 1000
    tab.select_option("#rule", "INP102")
    assert 0 < shown(tab) < 1000
    tab.close()
