"""What was timed must still be what was checked; a fault belongs to the case whose turn it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_bench import CONVENTIONAL, Interpreted

from perfkit import bench
from perfkit.check import check_case, check_once
from perfkit.confirm import Unlike, confirm
from perfkit.registry import load_method
from perfkit.session import Session
from tests.quickgroup import events_of, planted, quick_device, results_of


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    monkeypatch.setattr(bench, "beside", lambda *arguments: ({}, {}))
    return quick_device(monkeypatch)


@pytest.mark.parametrize("name", ["CACHES_BY_VERSION", "CACHES_LATE", "STOPS_LATE"])
def test_a_check_alone_does_not_find_it(name: str) -> None:
    """What does, and how such a case ends, is in tests/test_faults.py.

    On a GPU a check finds the first: ``test_a_cache_by_version_shows_in_replays`` of tests/test_check.py.
    """
    assert check_case(planted(name), "cpu", count_bytes=False).reason is None


def test_such_a_control_is_nobodys_baseline(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirmed(session: Session, *arguments: Any) -> None:
        if session.case.method == "conventional":
            raise Unlike("planted")

    monkeypatch.setattr(bench, "confirm", confirmed)
    other = planted("RIGHT_CONVENTIONAL")
    found = results_of(events_of(device, tmp_path, CONVENTIONAL, other))
    assert (found[CONVENTIONAL.id]["status"], found[CONVENTIONAL.id]["reason"]) == ("incorrect", "planted")
    assert found[other.id]["status"] == "ok"
    assert "speedup" not in found[other.id]["row"]


def test_a_kernel_that_no_configuration_makes_right_is_incorrect(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NaNs differ from each other, so a search has nothing to choose from."""
    case = planted("RETURNS_NAN")
    method = load_method(case.method)
    two = method.configs(case)[:2]
    monkeypatch.setattr(method, "configs", lambda case: two)
    monkeypatch.setattr(bench, "check_once", check_once)
    (result,) = results_of(events_of(device, tmp_path, case, tune=True)).values()
    assert (result["status"], result["row"]) == ("incorrect", {})
    assert result["reason"] == f"{two[0]}: step 0: output error inf > 2e-06; NaN or inf in 1 of 1 outputs"


@pytest.mark.parametrize("copies", [1, 3])
def test_every_copy_computes_and_new_inputs_show(copies: int) -> None:
    session = Session(CONVENTIONAL, "cpu", copies=copies)
    saved = session.snapshot()
    subject = session.subject("case", range(2), saved)
    subject.prepare()
    subject.run()
    confirm(session, saved, subject, 2)
    last = session.copies[-1]["out"]
    for factor, words in ((1.01, "differs by"), (float("nan"), "is not a number")):
        off = replace(subject, run=lambda factor=factor: (subject.run(), last.mul_(factor)))
        with pytest.raises(Unlike, match=f"output {copies - 1} of what was timed {words}"):
            confirm(session, saved, off, 2)


def test_steps_left_out_show_in_the_state() -> None:
    session = Session(CONVENTIONAL, "cpu")
    saved = session.snapshot()
    subject = session.subject("case", range(4), saved)
    doubled = replace(subject, run=lambda: (subject.run(), session.tensors["state"].mul_(1.001)))
    with pytest.raises(Unlike, match="state of what was timed differs"):
        confirm(session, saved, doubled, 4)


def test_outputs_that_ignore_their_inputs_are_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where launches one by one hand out the same."""
    session = Session(CONVENTIONAL, "cpu")
    saved = session.snapshot()
    subject = session.subject("case", range(2), saved)
    subject.run()
    kept = session.tensors["out"].clone()
    monkeypatch.setattr(Session, "step", lambda self, index=0, copy=0: bool(self.copies[copy]["out"].copy_(kept).numel))
    with pytest.raises(Unlike, match="stays the same for other inputs: a cached output"):
        confirm(session, saved, subject, 2)


@pytest.mark.parametrize("when", ["warm-up", "timing", "confirm"])
def test_a_fault_in_a_replay_ends_the_case_whose_replay_it_was(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """An illegal access shows when somebody waits for the device; whoever is asked then must be the one that ran."""
    bad, last = planted("RIGHT_CONVENTIONAL"), replace(CONVENTIONAL, options=(("alias", "B"),))
    ready = bench.Group._ready
    turn = {"warm-up": 1, "timing": 4, "confirm": 5}[when]  # of two runs, two samples and one more

    def faulty(self: Any, item: Any) -> bool:
        done = ready(self, item)
        run, runs = item.subject.run, []

        def fault() -> None:
            runs.append(1)
            if len(runs) == turn:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            run()

        if item.case.id == bad.id:
            item.subject = replace(item.subject, run=fault)
        return done

    monkeypatch.setattr(bench.Group, "_ready", faulty)
    events = events_of(device, tmp_path, CONVENTIONAL, bad, last)
    found = results_of(events)
    result = found.pop(bad.id)
    assert result["status"] == "error" and "illegal memory access" in result["reason"]
    assert [(one["case_id"], one["status"]) for one in found.values()] == (
        [(CONVENTIONAL.id, "ok")] if when == "confirm" else []  # the control is the first to be confirmed
    )
    assert events[-1] == {"event": "done", "group_id": "g", "fatal": True}


def test_memory_is_not_asked_back_of_a_context_that_is_lost(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(device, "release", lambda: pytest.fail("the context is lost"))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(bench, "check_once", fault)
    events = events_of(device, tmp_path, CONVENTIONAL, planted("RIGHT_CONVENTIONAL"))
    (result,) = results_of(events).values()
    assert (result["case_id"], result["status"]) == (CONVENTIONAL.id, "error")
