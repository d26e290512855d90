"""Before and after in one report: the verdicts of ``perfkit compare``, worst first, and runs that do not compare."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from perfkit import compare
from perfkit.cli import app
from perfkit.reports.changes import changes
from perfkit.reports.page import render
from perfkit.reports.runs import load_all
from tests.fakeruns import fake_run
from tests.reportdata import rows, write_run

FLAGS = {"batch": "64", "window": "8,16"}


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of a simulated GPU; in the second replay takes 6 % more."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        fake_run(folder / "before", flags=FLAGS),
        fake_run(folder / "after", flags=FLAGS, seed=1, slowdown={"replay": 1.06}),
    ]


def test_page_has_the_verdicts_of_compare(before_and_after: list[Path]) -> None:
    loaded = load_all(before_and_after)
    (change,) = changes(loaded)
    expected = compare.compare(*(compare.load(str(path)) for path in before_and_after))
    assert change.verdict == "slower" == expected.verdict and change.rows == compare.rows(expected)
    page = render(loaded)
    words = html.unescape(re.sub(r"<[^>]*>", " ", page.split("<script")[0]))
    text = " ".join(words.replace("\u00a0", " ").split())
    assert "after against before: of 2 cases 2 slower" in text
    assert text.index("after against before") < text.index("Before and after: before →") < text.index("Evidence: ")
    cards = page.count('class="cards"')
    assert cards == 2  # the answer of each run, not the best of both
    for row in change.rows:
        assert " ".join(cell for cell in row if cell) in text
    changed = [float(row[2].rstrip("%")) for row in change.rows]
    assert changed == sorted(changed, reverse=True) and changed[0] == pytest.approx(6, abs=1)


def test_command_says_and_returns_what_changed(
    before_and_after: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["report", *map(str, before_and_after), "--csv", str(tmp_path / "x.csv"), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["changes"]
    assert said["verdict"] == "slower" and said["base"] == "before" and said["new"] == "after"


def test_runs_of_other_places_are_not_compared_and_others_say_why(tmp_path: Path) -> None:
    first = pd.DataFrame(rows(batches=(1,)))
    others = {
        "b": pd.DataFrame(rows(batches=(1,), gpu="b200")),
        "c": pd.DataFrame(rows("predicted", batches=(1,))),
        "d": first.assign(**{name: first[name] + "x" for name in ("case_id", "baseline", "group_id")}),
    }
    folders = [write_run(tmp_path / name, data) for name, data in {"a": first, **others}.items()]
    loaded = load_all(folders)
    (change,) = changes(loaded)
    assert (change.base, change.new, change.verdict) == ("a", "d", "none")
    assert "d does not compare with a: nothing to compare" in change.headline
    assert "d does not compare with a" in render([loaded[0], loaded[3]])
