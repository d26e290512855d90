"""Pages in a real browser: they draw in both schemes, ask for nothing, fit a phone, and the table works."""

from __future__ import annotations

import csv
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from perfkit.reports import build_report
from tests.browser import BACKGROUNDS, OVERLAPS, Watched, browser, opened, settle
from tests.reportdata import frame, rows, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def started(chromium: str):
    with browser(chromium) as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")

    def get(kind: str) -> Path:
        out = folder / f"{kind}.html"
        return out if out.exists() else build_report([write_run(folder / kind, frame(kind))], out)

    return get


@pytest.fixture(scope="module")
def shown(started, report):
    """A page of each kind is opened once; tests ask for a width and a scheme, and leave it as they found it."""
    with ExitStack() as stack:
        pages: dict[str, Watched] = {}

        def get(kind: str, *, width: int = 1200, scheme: str = "light") -> Watched:
            if kind not in pages:
                pages[kind] = stack.enter_context(opened(started, report(kind), width=width, scheme=scheme))
            settle(pages[kind].page, width, scheme)
            return pages[kind]

        yield get


@pytest.mark.parametrize("kind", ["measured", "predicted", "mixed", "hostile"])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_every_figure_draws_and_nothing_leaves_the_page(shown, kind: str, scheme: str) -> None:
    seen = shown(kind, scheme=scheme)
    plots = seen.page.locator(".plot").count()
    drawn = seen.page.evaluate(
        "[...document.querySelectorAll('.plot')].filter((p) => p.querySelector('.main-svg .trace, .main-svg .table'))"
        ".length"
    )
    assert plots == drawn >= 4
    assert seen.console == [] and seen.errors == [] and seen.requests == []
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS[scheme]
    if kind == "measured":
        colour = seen.page.evaluate("document.querySelector('#s0-w0-batch-time').data.at(-1).marker.color")
        assert colour == {"light": "#0072b2", "dark": "#56b4e9"}[scheme]


@pytest.mark.parametrize("kind", ["failed", "empty", "one"])
def test_odd_runs_open_without_errors(started, report, kind: str) -> None:
    with opened(started, report(kind), width=360) as seen:
        assert seen.console == [] and seen.errors == [] and seen.requests == []
        assert seen.page.locator("#answer h2").count() == 1
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("kind", ["measured", "mixed", "hostile"])
def test_no_sideways_scroll_on_a_phone(shown, kind: str) -> None:
    page = shown(kind, width=360).page
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.check("#all-columns")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.uncheck("#all-columns")
    wide = page.evaluate("[...document.querySelectorAll('.plot')].filter(p => p.scrollWidth > p.clientWidth).length")
    assert wide == 0


@pytest.mark.parametrize(("kind", "width"), [("measured", 1200), ("mixed", 1200), ("measured", 800), ("mixed", 360)])
def test_labels_do_not_overlap(shown, kind: str, width: int) -> None:
    page = shown(kind, width=width).page
    assert page.locator(".annotation-text-g").count() > 3
    assert page.evaluate(OVERLAPS) == []


def column(page, name: str) -> list[str]:
    return page.evaluate(
        """(name) => { const head = [...document.querySelectorAll('#rows th')];
        const i = head.findIndex((th) => th.textContent.replace(/ [▲▼]$/, '') === name);
        return [...document.querySelectorAll('#rows tbody tr')].map((tr) => tr.cells[i].textContent); }""",
        name,
    )


def test_table_sorts_and_filters(shown) -> None:
    seen = shown("measured")
    page = seen.page
    assert page.locator("#shown").text_content() == "1–41 of 41 rows"
    head = page.locator("#rows th button", has_text="time_us").first
    head.click()
    values = column(page, "time_us")
    numbers = [float(value) for value in values if value]
    assert numbers == sorted(numbers) and values[-1] == "" and len(numbers) == 40
    page.keyboard.press("Enter")  # the header keeps the focus
    values = column(page, "time_us")
    numbers = [float(value) for value in values if value]
    assert numbers == sorted(numbers, reverse=True) and values[-1] == ""
    assert page.locator("th[aria-sort=descending]").count() == 1
    page.fill("#search", "conventional 256")
    assert column(page, "method") == ["conventional"] and column(page, "batch") == ["256"]
    page.fill("#search", "")
    page.select_option("select[data-column=status]", label="oom")
    assert column(page, "reason") == ["needs 190 GB, 138 GB free"]
    page.fill("#search", "no such word")
    assert page.locator("#shown").text_content() == "no row matches"
    page.fill("#search", "")
    page.select_option("select[data-column=status]", label="all")
    assert seen.errors == []


def download(page, tmp_path: Path, act) -> tuple[str, list[dict[str, str]]]:
    """Return the name and the lines of the CSV that an action saves."""
    with page.expect_download() as caught:
        act()
    saved = tmp_path / "saved.csv"
    caught.value.save_as(saved)
    with saved.open(newline="", encoding="utf-8") as file:
        return caught.value.suggested_filename, list(csv.DictReader(file))


def test_csv_holds_the_frame(shown, tmp_path: Path) -> None:
    page = shown("measured").page
    page.fill("#search", "conventional")  # the CSV has all rows whatever is shown
    name, read = download(page, tmp_path, lambda: page.click("#csv"))
    page.fill("#search", "")
    assert name == "perfkit-results.csv"
    data = frame()
    assert len(read) == len(data)
    for line, (_, row) in zip(read, data.iterrows(), strict=True):
        for name in ("time_us", "batch", "case_id", "reason", "roof_fraction", "method"):
            value = row[name]
            assert line[name] == "" if pd.isna(value) else (
                float(line[name]) == value if isinstance(value, (int, float)) else line[name] == value
            ), name  # fmt: skip


def test_csv_of_a_figure_holds_its_rows(shown, tmp_path: Path) -> None:
    page = shown("measured").page
    page.locator("button[data-figure=s0-w0-batch-time]").focus()
    name, read = download(page, tmp_path, lambda: page.keyboard.press("Enter"))
    assert name == "s0-w0-batch-time.csv"
    data = frame().query("status == 'ok'")
    found = {
        (line["series"], float(line["batch B (sequences)"])): line for line in read if line["evidence"] == "measured"
    }
    assert len(found) == len(data) == 40
    for row in data.itertuples():
        line = found["conventional" if row.method == "conventional" else f"replay L = {row.window:.0f}", row.batch]
        values = [float(line[column]) for column in ("time per step and layer (µs)", "low", "high")]
        assert values == pytest.approx([row.time_us, row.time_us_lo, row.time_us_hi])


def test_hostile_text_runs_nothing(shown) -> None:
    seen = shown("hostile")
    said = []
    seen.page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    seen.page.check("#all-columns")
    seen.page.locator("#s0-w0-batch-time .legendtoggle").first.hover()
    assert said == [] and seen.errors == [] and seen.page.locator("img").count() == 0
    seen.page.uncheck("#all-columns")


def test_five_thousand_rows_open_quickly(started, tmp_path: Path) -> None:
    data = [
        row
        | {
            "case_id": f"{i}-{row['case_id']}",
            "baseline": f"{i}-{row['baseline']}",
            "group_id": f"{i}{row['group_id']}",
        }
        for i in range(125)
        for row in rows(seed=i, acceptance="1", state_dtype=("float32", "bfloat16", "float16")[i % 3])
    ]
    assert len(data) == 5000
    out = build_report([write_run(tmp_path / "many", pd.DataFrame(data))], tmp_path / "many.html")
    assert out.stat().st_size < 8e6
    with opened(started, out, scroll=False) as seen:
        page = seen.page
        assert page.locator("#shown").text_content() == "1–50 of 5000 rows"
        milliseconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        assert milliseconds < 4000
        # What is far below waits until somebody comes near, and its place has its height already.
        page.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
        last = page.locator(".plot").last
        assert last.locator("svg").count() == 0
        height = page.evaluate("document.documentElement.scrollHeight")
        last.scroll_into_view_if_needed()
        last.locator("svg.main-svg .trace").first.wait_for(state="attached")
        assert page.evaluate("document.documentElement.scrollHeight") == height
        assert page.locator(".plot:not(:has(svg))").count() > 0  # those in between were passed over
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".plot:not(:has(svg))").count() == 0


def test_print_is_light_and_fits(shown, tmp_path: Path) -> None:
    seen = shown("measured", scheme="dark")
    out = tmp_path / "report.pdf"
    seen.page.pdf(path=str(out), format="A4", print_background=True)
    assert out.read_bytes().startswith(b"%PDF") and seen.errors == []
    seen.page.emulate_media(media="print", color_scheme="dark")
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not seen.page.locator("#tools").is_visible() and not seen.page.locator("button.points").first.is_visible()
    seen.page.emulate_media(media="screen")
