"""The page of a plan: the answer first, the words of the command, three figures; and it opens in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfkit.cli.app import run
from perfkit.plan import Answer
from perfkit.plan.advice import advice
from perfkit.plan.cautions import LEFT_OUT
from perfkit.reports import select
from perfkit.reports.plan_page import Words, render_plan
from perfkit.reports.sections import sections
from tests.browser import OVERLAPS, browser, opened, settle
from tests.plandata import found, made
from tests.reportdata import frame
from tests.test_report_page import Page

ARGS = ("--model", "nemotron-super", "--gpu", "b300", "--acceptance", ".88,.62,.40")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plan") / "plan.html"
    assert run(["plan", *ARGS, "-o", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_the_page_says_what_the_command_says(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *ARGS, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    said = page.words.replace("\u00a0", " ")
    headline, _, why = data["advice"].rpartition(": ")
    places = [said.index(text) for text in (
        headline, why[1:], "Settings: replay at T = 4", "What flips it: acceptance of draft 3", f"Left out: {LEFT_OUT}",
        "MB/req", "← choose", "Everything on this page is predicted", "Uncalibrated", "Eq. 16",
        "What may be chosen", "All rows",
    )]  # fmt: skip
    assert places == sorted(places)
    for text in data["warnings"]:
        assert text[1:] in said
    rows = json.loads(page.table)
    column = rows["data"][rows["columns"].index("tokens_per_s")]
    assert column == pytest.approx([row["tokens_per_s"] for row in data["rows"]])
    assert list(json.loads(page.scripts["figures-data"])) == ["plan-front", "plan-capacity", "plan-context"]
    assert "perfkit sweep --model nemotron-3-super-120b-a12b --draft 2,3,4 --method" in said


def words(answer: Answer) -> str:
    text = Words(columns=["method"], rows=[["<b>x"]], assumed="a", lines=[("skipped", "x: <i>y")], command=None)
    return Page(render_plan(answer, made(), text)).words.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("given", "looks"),
    [({}, "Run replay"), ({"gpu": "h200-sxm", "acceptance": None, "concurrency": 1}, "Change nothing")],
)
def test_every_verdict_has_its_sentence(given: dict, looks: str) -> None:
    answer = found(**given)
    said = words(answer)
    assert advice(answer).rstrip(".").partition(":")[0] in said and looks in said
    assert "<b>x" in said and "Skipped: x: <i>y" in said and "the command was not recorded" in said


def test_json_names_the_page_and_bad_places_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out, complaint in (("plan.txt", "must be an HTML file"), ("no/plan.html", "its folder does not exist")):
        assert run(["plan", *ARGS, "-o", str(tmp_path / out)]) == 2
        assert complaint in capsys.readouterr().err
    assert run(["plan", "--paper-check", "-o", str(tmp_path / "plan.html")]) == 2
    assert "--paper-check: has no page" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    out = tmp_path / "one.html"
    assert run(["plan", *ARGS[:4], "--json", "-o", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(out) and out.exists()


def test_a_report_of_a_run_names_the_plan_of_its_model_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ALONE", "_ACROSS"):  # the figures of a run say nothing of it
        monkeypatch.setattr(f"perfkit.reports.sections.{name}", ())
    data = frame("one")
    for rows, known in ((data, True), (data.assign(model="<script>"), False), (data.assign(gpu=None), False)):
        (section,) = sections(select.prepare(rows), None)
        commands = [command for _, command in section.missing]
        assert ("perfkit plan --model nemotron-3-super-120b-a12b --gpu h200-sxm -o plan.html" in commands) == known
        assert known or not any("perfkit plan" in (command or "") for command in commands)


@pytest.mark.browser
def test_it_opens_in_both_themes_and_fits_a_phone(written: Path, chromium: str) -> None:
    with browser(chromium) as started, opened(started, written) as seen:
        page = seen.page
        for scheme, width in (("light", 1200), ("dark", 360)):
            settle(page, width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.locator(".plot .main-svg .trace").count() > 10
            assert page.evaluate(OVERLAPS) == []
        assert page.locator("#shown").text_content() == "1–8 of 8 rows" and page.locator("tr.bad").count() == 0
        assert (seen.console, seen.errors, seen.requests) == ([], [], [])
