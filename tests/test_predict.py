"""Small cases for the interpreter, and predicted rows from what their checks say."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfkit import checking, predict
from perfkit.cases import Group
from perfkit.method import Case
from perfkit.progress import Progress
from perfkit.shape import Shape
from perfkit.sweep import SETTINGS, Sweep

STUB = Path(__file__).with_name("stub_worker.py")
SUPER = Shape("mamba2", 128, 8, 64, 128)
CASES = (
    Case(SUPER, "conventional", 256),
    Case(SUPER, "replay", 256, window=16),
    Case(SUPER, "replay", 256, window=32),
)


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def plan(tmp_path: Path) -> Sweep:
    settings = {**SETTINGS, "seed": 0, "self_check": False, "dir": str(tmp_path)}
    groups = (Group(CASES[0].group_id, CASES),)
    return Sweep("predict", "interpret", {"key": "m"}, {"key": "h200", "name": "H200"}, groups, settings)


def test_small_cases_keep_what_decides_the_kernel():
    small = predict.small_case(Case(SUPER, "replay", 256, window=16, state_dtype="bfloat16", options=(("alias", "A"),)))
    assert small == Case(Shape("mamba2", 2, 1, 64, 32), "replay", 3, window=4, state_dtype="bfloat16",
                         input_dtype="float16")  # fmt: skip
    nano = predict.small_case(Case(Shape("mamba2", 96, 96, 80, 16), "conventional", 1, input_dtype="float32"))
    assert nano == Case(Shape("mamba2", 1, 1, 80, 16), "conventional", 3, input_dtype="float32")
    assert predict.small_case(Case(SUPER, "replay", 1, window=16, draft_len=6)).window == 8


def test_each_method_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checking, "worker_argv", lambda mode: [sys.executable, str(STUB)])
    checks = predict.check_kernels(plan(tmp_path), None, Progress(), None)
    assert [(case.method, check.status, check.checked) for case, check in checks.items()] == [
        ("conventional", "ok", "interpreter"), ("replay", "ok", "interpreter")]  # fmt: skip
    assert predict.failed_checks(checks) == []


def test_one_kernel_is_not_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checking, "worker_argv", lambda mode: [sys.executable, str(STUB)])
    notes = Notes()
    alone = replace(plan(tmp_path), groups=(Group(CASES[0].group_id, CASES[:1]),))
    predict.check_kernels(alone, None, notes, None)
    assert notes.notes[0] == "checking 1 kernel on small shapes in the interpreter"


def test_without_an_interpreter_it_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checking, "worker_argv", lambda mode: [sys.executable, str(STUB), "--dead"])
    notes = Notes()
    assert predict.check_kernels(plan(tmp_path), None, notes, None) == {}
    assert notes.notes[1].startswith(
        "kernels are not checked: the worker ended before it was ready: exit code 1: no dev"
    )
    row = predict.predicted_row(plan(tmp_path), CASES[1], None)
    assert (row["checked"], row["status"]) == ("no", "ok")
    assert 200 < row["time_us"] < 400


@pytest.mark.parametrize(
    ("check", "status", "checked", "timed"),
    [
        (predict.Check("ok", None, 1e-7), "ok", "interpreter", True),
        (predict.Check("incorrect", "relative error 1", 1.0), "incorrect", "interpreter", False),
        (predict.Check("timeout", "took longer than 60 s"), "ok", "no", True),
        (predict.Check("error", "ValueError: x"), "ok", "no", True),
    ],
)
def test_what_a_check_means_for_the_row(tmp_path: Path, check, status, checked, timed):
    row = predict.predicted_row(plan(tmp_path), CASES[1], check)
    assert (row["status"], row["checked"], row["time_us"] is not None) == (status, checked, timed)
    assert row["source"] == "predicted"
    if check.status != "ok":
        assert check.reason in row["reason"]


def test_recorded_rows_are_of_the_sweeps_cases_and_keep_their_id():
    known = {case.id: case for case in CASES}
    rows = [
        {"case_id": CASES[0].id, "source": "measured", "time_us": 560.0, "manifest": {}},
        {"case_id": CASES[0].id, "source": "measured", "time_us": 559.0, "manifest": {}, "future_column": 1},
        {"case_id": "0123456789ab", "source": "measured", "time_us": 1.0},
    ]
    assert predict.match_recorded(rows, known) == [
        {"case_id": CASES[0].id, "source": "recorded", "time_us": 559.0, "schema_version": 1}]  # fmt: skip


def test_a_recorded_control_is_of_the_run_that_it_was_compared_in():
    """Runs of verify steps time the same conventional step too; theirs must not stand beside decode's replay."""
    known = {case.id: case for case in CASES}
    decode, verify = {"hash": "decode"}, {"hash": "verify"}
    rows = [{"case_id": case.id, "time_us": 531.0, "manifest": decode} for case in CASES]
    rows.append({"case_id": CASES[0].id, "time_us": 527.0, "manifest": verify})
    for order in (rows, rows[::-1]):
        found = predict.match_recorded(order, known)
        assert {row["time_us"] for row in found} == {531.0}
        # In the order of the cases, whatever that of runs and rows is.
        assert [row["case_id"] for row in found] == [case.id for case in CASES]
