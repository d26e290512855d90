"""Pages in a real browser: they draw in both schemes, ask for nothing, fit a phone, and the table works."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from perfkit.reports import build_report
from tests.browser import browser, opened
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


COUNT = """() => {
  const plots = [...document.querySelectorAll('.plot')];
  return [plots.length, plots.filter((plot) => plot.querySelector('svg.main-svg .trace')).length];
}"""


@pytest.mark.parametrize("kind", ["measured", "predicted", "mixed", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_draws_and_nothing_leaves_the_page(started, report, kind: str, scheme: str) -> None:
    with opened(started, report(kind), scheme=scheme) as seen:
        plots, drawn = seen.page.evaluate(COUNT)
        assert plots == drawn == (4 if kind == "predicted" else 5)
        assert seen.console == [] and seen.errors == [] and seen.requests == []
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        plot = seen.page.evaluate("document.querySelector('.plot .main-svg').style.background")
        assert background == plot == ("rgb(20, 24, 30)" if scheme == "dark" else "rgb(255, 255, 255)")


@pytest.mark.parametrize("kind", ["failed", "empty", "one"])
def test_odd_runs_open_without_errors(started, report, kind: str) -> None:
    with opened(started, report(kind)) as seen:
        assert seen.console == [] and seen.errors == [] and seen.requests == []
        assert seen.page.locator("#answer h2").count() == 1


def test_plots_follow_the_scheme_while_the_page_is_open(started, report) -> None:
    with opened(started, report("measured")) as seen:
        colour = "document.querySelector('#s0-w0-batch-time').data.at(-1).marker.color"
        light = seen.page.evaluate(colour)
        seen.page.emulate_media(color_scheme="dark")
        seen.page.wait_for_selector("body[data-drawn=dark]")
        assert (light, seen.page.evaluate(colour)) == ("#0072b2", "#56b4e9")


@pytest.mark.parametrize("kind", ["mixed", "sections", "hostile", "failed"])
def test_no_sideways_scroll_on_a_phone(started, report, kind: str) -> None:
    with opened(started, report(kind), width=360, height=740) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 360
        seen.page.check("#all-columns")
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 360
        wide = seen.page.evaluate(
            "[...document.querySelectorAll('.plot')].filter(p => p.scrollWidth > p.clientWidth).length"
        )
        assert wide == 0


OVERLAPS = """() => {
  const hits = [];
  for (const plot of document.querySelectorAll('.plot')) {
    const boxes = [...plot.querySelectorAll('.annotation-text-g')].map(
      (g) => [g.textContent, g.getBoundingClientRect()]);
    for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        hits.push(`${plot.id}: ${boxes[i][0]} / ${boxes[j][0]}`);
    }
  }
  return hits;
}"""


@pytest.mark.parametrize(("kind", "width"), [("measured", 1200), ("mixed", 1200), ("measured", 800), ("mixed", 360)])
def test_labels_do_not_overlap(started, report, kind: str, width: int) -> None:
    with opened(started, report(kind), width=width) as seen:
        assert seen.page.locator(".annotation-text-g").count() > 3
        assert seen.page.evaluate(OVERLAPS) == []


def column(page, name: str) -> list[str]:
    return page.evaluate(
        """(name) => { const head = [...document.querySelectorAll('#rows th')];
        const i = head.findIndex((th) => th.textContent.replace(/ [▲▼]$/, '') === name);
        return [...document.querySelectorAll('#rows tbody tr')].map((tr) => tr.cells[i].textContent); }""",
        name,
    )


def test_table_sorts_and_filters(started, report) -> None:
    with opened(started, report("measured")) as seen:
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
        assert seen.errors == []


def test_csv_holds_the_frame(started, report, tmp_path: Path) -> None:
    with opened(started, report("measured")) as seen:
        seen.page.fill("#search", "conventional")  # the CSV has all rows whatever is shown
        with seen.page.expect_download() as caught:
            seen.page.click("#csv")
        saved = tmp_path / "saved.csv"
        caught.value.save_as(saved)
        assert caught.value.suggested_filename == "perfkit-results.csv"
    data = frame()
    with saved.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(data)
    for line, (_, row) in zip(read, data.iterrows(), strict=True):
        for name in ("time_us", "batch", "case_id", "reason", "roof_fraction", "method"):
            value = row[name]
            assert line[name] == "" if pd.isna(value) else (
                float(line[name]) == value if isinstance(value, (int, float)) else line[name] == value
            ), name  # fmt: skip


def test_hostile_text_runs_nothing(started, report) -> None:
    with opened(started, report("hostile")) as seen:
        said = []
        seen.page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        seen.page.check("#all-columns")
        seen.page.locator("#s0-w0-batch-time .legendtoggle").first.hover()
        assert said == [] and seen.errors == [] and seen.page.locator("img").count() == 0


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
        last = page.locator(".plot").last
        assert last.locator("svg").count() == 0
        height = page.evaluate("document.documentElement.scrollHeight")
        last.scroll_into_view_if_needed()
        last.locator("svg.main-svg .trace").first.wait_for(state="attached")
        assert page.evaluate("document.documentElement.scrollHeight") == height
        assert page.locator(".plot:not(:has(svg))").count() > 0  # those in between were passed over
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".plot:not(:has(svg))").count() == 0


def test_print_is_light_and_fits(started, report, tmp_path: Path) -> None:
    with opened(started, report("measured"), scheme="dark") as seen:
        out = tmp_path / "report.pdf"
        seen.page.pdf(path=str(out), format="A4", print_background=True)
        assert out.read_bytes().startswith(b"%PDF") and seen.errors == []
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not seen.page.locator("#tools").is_visible()
