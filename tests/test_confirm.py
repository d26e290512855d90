"""What was timed must still be what was checked; a fault belongs to the case whose turn it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench import CONVENTIONAL, Interpreted, few

from perfkit import bench, pacing, worker
from perfkit.bench import Group
from perfkit.check import Outcome, check_case
from perfkit.confirm import Unlike, confirm
from perfkit.method import Case
from perfkit.registry import load_method
from perfkit.session import Session
from perfkit.tune import Store

PLANTED = Path(__file__).with_name("planted_methods.py")


def planted(name: str) -> Case:
    """Return a case of a planted method that remembers nothing yet."""
    case = replace(CONVENTIONAL, method=f"{PLANTED}:{name}")
    vars(load_method(case.method)).update(calls=0, kept={})
    return case


class One:
    def time_us(self, run: Any) -> float:
        run()
        return 1.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    """A device on which all runs take a microsecond, two steps each; nothing is searched, checked or timed beside."""
    few(monkeypatch)
    monkeypatch.setattr(pacing, "MIN_STEPS", 2)
    monkeypatch.setattr(bench, "check_once", lambda *arguments, **named: Outcome(0.0, None, 0))
    monkeypatch.setattr(bench, "beside", lambda *arguments: ({}, {}))
    device = Interpreted()
    device.clock = One()  # type: ignore[assignment]
    return device


def request(*cases: Case) -> dict[str, Any]:
    return {"op": "group", "group_id": "g", "cases": [case.to_dict() for case in cases]}


def run(device: Interpreted, tmp_path: Path, *cases: Case) -> list[dict[str, Any]]:
    """Return the events of a worker on the device."""
    events: list[dict[str, Any]] = []
    settings = {"min_samples": 2, "max_samples": 2, "seed": 1, "tune": False}

    def run_group(request: Any, emit: Any) -> None:
        with torch.no_grad():
            group = Group(settings, emit, device, Store(tmp_path / "tuned.json"))
            group.run([Case.from_dict(data) for data in request["cases"]])

    worker.handle(request(*cases), run_group, events.append)
    return events


def results(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["case_id"]: event for event in events if event["event"] == "result"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("CACHES_BY_VERSION", "output 0 of what was timed differs by"),
        ("CACHES_LATE", "output 0 of what was timed stays the same for other inputs: a cached output"),
        ("STOPS_LATE", "output 0 of what was timed is not a number"),
    ],
)
def test_a_case_that_does_not_do_its_work_when_timed_gets_no_time(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    case = planted(name)
    monkeypatch.setattr(type(load_method(case.method)), "after", 3, raising=False)  # no check comes first here
    found = results(run(device, tmp_path, CONVENTIONAL, case))
    assert (found[case.id]["status"], found[case.id]["row"]) == ("incorrect", {})
    assert reason in found[case.id]["reason"]
    control = found[CONVENTIONAL.id]
    assert (control["status"], control["row"]["time_us"]) == ("ok", 0.5)


@pytest.mark.parametrize("name", ["CACHES_BY_VERSION", "CACHES_LATE", "STOPS_LATE"])
def test_a_check_alone_does_not_find_it(name: str) -> None:
    assert check_case(planted(name), "cpu", count_bytes=False).reason is None


def test_such_a_control_is_nobodys_baseline(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirmed(session: Session, *arguments: Any) -> None:
        if session.case.method == "conventional":
            raise Unlike("planted")

    monkeypatch.setattr(bench, "confirm", confirmed)
    other = planted("RIGHT_CONVENTIONAL")
    found = results(run(device, tmp_path, CONVENTIONAL, other))
    assert (found[CONVENTIONAL.id]["status"], found[CONVENTIONAL.id]["reason"]) == ("incorrect", "planted")
    assert found[other.id]["status"] == "ok"
    assert "speedup" not in found[other.id]["row"]


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

    def faulty(self: Group, item: Any) -> bool:
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
    events = run(device, tmp_path, CONVENTIONAL, bad, last)
    (result,) = results(events).values()
    assert (result["case_id"], result["status"]) == (bad.id, "error")
    assert "illegal memory access" in result["reason"]
    assert events[-1] == {"event": "done", "group_id": "g", "fatal": True}


def test_memory_is_not_asked_back_of_a_context_that_is_lost(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(device, "release", lambda: pytest.fail("the context is lost"))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(bench, "check_once", fault)
    events = run(device, tmp_path, CONVENTIONAL, planted("RIGHT_CONVENTIONAL"))
    (result,) = results(events).values()
    assert (result["case_id"], result["status"]) == (CONVENTIONAL.id, "error")
