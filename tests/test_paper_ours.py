"""Ours beside the published numbers: what is comparable and what is not, on made rows, and that rows decide."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit.cli import app
from perfkit.paper import Ours, Rows, compare_table, differences, text
from perfkit.paper.ours import Compared, compared
from perfkit.paper.rows import kernel_value
from perfkit.profiles import measured
from perfkit.profiles.published import PaperCell, PaperTable, load_paper

MODEL = "nemotron-3-nano-4b"
MANIFEST = {"started": "2026-12-01T00:00:00Z", "settings": {"tune": True}, "hash": "run"}


def cell(**changes: Any) -> PaperCell:
    """Table 7's 1.80 of Nemotron-3-Nano, with changes."""
    (found,) = [one for one in load_paper("fig9").cells if one.models == (MODEL,) and one.low == 1.80]
    return replace(found, **changes)


def row(method: str, time_us: float, **changes: Any) -> dict[str, Any]:
    """A row of a run on the published GPU with the published kernels."""
    return {
        "model": MODEL, "gpu": "h100-sxm", "method": method, "batch": 256, "draft_len": 1, "acceptance": "1",
        "window": 16 if method == "replay" else None, "state_dtype": "float32", "read_dtype": "float32", "tree": None,
        "flush_phase": "aligned", "status": "ok", "source": "measured", "time_us": time_us, "time_default_us": time_us,
        "group_id": "g", "case_id": f"{method} {time_us}", "manifest": MANIFEST, "implementation": "ReplaySSM in vLLM",
    } | changes  # fmt: skip


def pair(**changes: Any) -> Rows:
    """A conventional step and replay, 1.8 times as fast."""
    return Rows("measured", (row("conventional", 180.0, **changes), row("replay", 100.0, **changes)))


def one(paper: PaperCell, rows: Rows) -> Compared:
    """The cell beside ours."""
    (found,) = compare_table(PaperTable("fig9", "t", (paper,)), rows)
    return found


def test_the_same_thing_is_comparable() -> None:
    found = one(cell(), pair())
    assert (found.ratio, found.reasons, found.verdict) == ((1.0, 1.0), (), "agrees")
    assert found.ours is not None and (found.ours.kind, found.ours.date) == ("measured", "2026-12-01")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "h200-sxm"}, "GPU h200-sxm, not h100-sxm"),
        ({"implementation": None}, "implementation perfkit, not ReplaySSM in vLLM"),
        ({"manifest": MANIFEST | {"settings": {"tune": False}}},
         "baseline conventional, default, not conventional, tuned"),
        ({"routing": "identical"}, "routing identical, not none"),
    ],
)  # fmt: skip
def test_what_differs_makes_it_not_comparable_and_both_are_shown(changes: dict[str, Any], reason: str) -> None:
    found = one(cell(), pair(**changes))
    assert (found.reasons, found.verdict) == ((reason,), "not comparable")
    assert found.ratio == (1.0, 1.0)
    shown = text([found])
    assert f"not comparable: {reason}" in shown.notes
    (line,) = shown.lines
    assert {"1.8", "1.00"} <= set(line) and line[-1] == "not comparable [1]"


def test_a_comparable_number_that_is_off_is_a_miss_and_comes_first() -> None:
    table = PaperTable("fig9", "t", (cell(lost="the plot is an image", low=None, high=None), cell(),
                                     cell(low=1.5, high=1.5), cell(low=1.2, high=1.2), cell(gpu="b300"),
                                     cell(batches=(64,))))  # fmt: skip
    found = compare_table(table, pair())
    assert [item.verdict for item in found] == ["miss", "miss", "agrees", "not comparable", "not measured",
                                                "not published"]  # fmt: skip
    assert [item.cell.low for item in found[:2]] == [1.2, 1.5]
    assert found[-1].ratio is None and found[-1].ours is not None
    assert found[4].absent is not None and "--batch 64 --window 16 --draft 1" in found[4].absent


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(4.0, None, "agrees"), (4.6, None, "miss"), (None, 4.5, "agrees"), (None, 4.0, "miss"), (4.2, 4.4, "agrees"),
     (0.0, 0.0, "miss")],
)  # fmt: skip
def test_open_ranges_are_bounds(low: float | None, high: float | None, verdict: str) -> None:
    paper = cell(low=low, high=high, gpu=None, implementation="formula", baseline=None)
    ours = Ours(kind="model", low=4.3, high=4.3, gpu=None, implementation="formula", baseline=None)
    assert differences(paper, ours) == ()
    assert compared(paper, ours, None).verdict == verdict


def test_a_speedup_is_of_one_group_and_of_measured_rows() -> None:
    assert (
        kernel_value(cell(), Rows("measured", (row("conventional", 180.0), row("replay", 100.0, group_id="h")))) is None
    )
    for changes in ({"source": "predicted"}, {"status": "incorrect"}, {"state_dtype": "float16"}, {"window": 8}):
        assert (
            kernel_value(cell(), Rows("measured", (row("conventional", 180.0), row("replay", 100.0, **changes))))
            is None
        )
    later = MANIFEST | {"started": "2026-12-02T00:00:00Z", "hash": "later"}
    rows = (*pair().rows, *pair(manifest=later).rows[:1], row("replay", 90.0, manifest=later))
    found = kernel_value(cell(), Rows("recorded", rows))
    assert found is not None and (found.low, found.date) == (2.0, "2026-12-02")


def test_a_range_over_points_is_ours_only_if_all_are_there() -> None:
    rows = Rows("measured", (*pair().rows, row("conventional", 100.0, batch=64, group_id="h"),
                             row("replay", 80.0, batch=64, group_id="h")))  # fmt: skip
    found = kernel_value(cell(batches=(64, 256)), rows)
    assert found is not None and (found.low, found.high) == (1.25, 1.8)
    assert kernel_value(cell(batches=(32, 64, 256)), rows) is None
    other = Rows("measured", (*pair().rows, *(dict(made, gpu="h200-sxm") for made in rows.rows[2:])))
    assert kernel_value(cell(batches=(64, 256)), other) is None  # never over two GPUs


def test_acceptance_is_that_which_was_published() -> None:
    (paper,) = [one for one in load_paper("fig4").cells if one.acceptances == ("T",)]
    made = [row("replay", 100.0, model=paper.models[0], draft_len=8, acceptance=accepted, conventional_steps=steps)
            for accepted, steps in (("1", 0.5), ("T", 0.9), ("mean:2.5", 7.0))]  # fmt: skip
    found = kernel_value(paper, Rows("measured", tuple(made)))
    assert found is not None and found.low == found.high == 0.9
    every = kernel_value(replace(paper, acceptances=()), Rows("measured", tuple(made)))
    assert every is not None and (every.low, every.high) == (0.5, 0.9)


def ratios(capsys: pytest.CaptureFixture[str]) -> tuple[float, str]:
    """The ratio of Nemotron-3-Nano at L = 16 in Figure 9: of --json, and of the table."""
    assert app.run(["reproduce", "fig9", "--json"]) == 0
    (found,) = [one for one in json.loads(capsys.readouterr().out)["cells"]
                if one["models"] == [MODEL] and one["published"]["low"] == 1.8]  # fmt: skip
    assert found["ours"]["kind"] == "recorded" and not found["comparable"]
    assert app.run(["reproduce", "fig9"]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "nemotron-nano" in one and " 1.8 " in one]
    return found["ratio"][0], line


def test_a_shipped_row_that_changes_changes_the_printed_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, line = ratios(capsys)
    assert before == pytest.approx(0.992, abs=5e-3) and " 0.99 " in line
    for end in ("csv", "manifest.json"):
        shutil.copy(measured.MEASURED / f"nemotron-nano-h200.{end}", tmp_path)
    path = tmp_path / "nemotron-nano-h200.csv"
    header, *lines = path.read_text().splitlines()
    names = header.split(",")
    rows = [dict(zip(names, one.split(","), strict=True)) for one in lines]
    (shipped,) = [one for one in rows if (one["method"], one["batch"], one["window"]) == ("replay", "256", "16")]
    shipped["speedup"] = str(float(shipped["speedup"]) * 1.1)
    path.write_text("\n".join([header, *(",".join(one.values()) for one in rows)]) + "\n")
    monkeypatch.setattr(measured, "MEASURED", tmp_path)
    after, line = ratios(capsys)
    assert after == pytest.approx(1.1 * before) and f" {after:.2f} " in line


@pytest.mark.parametrize("name", ["fig10", "table7"])
def test_the_commands_for_what_is_not_measured_are_taken(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    absent = {item.absent for item in compare_table(load_paper(name), Rows("recorded", ())) if item.absent}
    commands = {part for words in absent for part in words.split("; ", 1)[-1].split(" && ") if "perfkit sweep" in part}
    assert commands
    for command in commands:
        assert app.run([*shlex.split(command)[1:], "--gpu", "b300", "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert "replay" in out and "cases in" in out


def test_what_perfkit_does_not_run_says_so() -> None:
    for name, words in (("table2", "outputs of whole models"), ("fig11", "lower-precision checkpoint")):
        found = compare_table(load_paper(name), Rows("recorded", ()))
        assert all(item.ours is None and words in (item.absent or "") for item in found)


def test_formulas_agree_with_the_paper() -> None:
    for name in ("appc", "table5", "table3", "capacity"):
        found = compare_table(load_paper(name), Rows("recorded", ()))
        assert {item.verdict for item in found} <= {"agrees", "not published"}
        assert all(item.ours is None or item.ours.kind == "model" for item in found)
    values = {
        (item.cell.quantity, item.cell.draft_lens): item.ours
        for item in compare_table(load_paper("appc"), Rows("recorded", ()))
    }
    window = values["formula_window", (4,)]
    assert window is not None and window.low == pytest.approx(23.73, abs=5e-3)
