"""Groups of real verify kernels in the interpreter, from priming to results, on tiny shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench import Interpreted, few

from perfkit import bench, tuning
from perfkit.bench import Group
from perfkit.check import Outcome
from perfkit.kernels.ring import committed_h
from perfkit.method import Case, Point, constant_acceptance
from perfkit.priming import draw, prime
from perfkit.registry import methods
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.tune import Store

SHAPE = Shape("mamba2", 1, 1, 16, 16)
BASE = Case(SHAPE, "", 2, draft_len=3, acceptance="2", input_dtype="float32")
KEYS = {method.key: method for method in methods("mamba2", "verify")}


def case_of(key: str, **changes: Any) -> Case:
    return replace(BASE, method=key, window=6 if KEYS[key].windowed else None, **changes)


class Counting:
    """A clock that charges a microsecond a step."""

    def __init__(self) -> None:
        self.spent = 0.0

    def time_us(self, run: Any) -> float:
        self.spent = 0.0
        run()
        return self.spent


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interpreted]:
    few(monkeypatch)
    device, plain = Interpreted(), Session.step
    device.clock = Counting()  # type: ignore[assignment]

    def charged(self: Session, index: int = 0, copy: int = 0) -> int:
        device.clock.spent += 1.0
        return plain(self, index, copy)

    monkeypatch.setattr(Session, "step", charged)
    for method in KEYS.values():
        monkeypatch.setattr(method, "configs", lambda case, method=method: type(method).configs(method, case)[:2])
    yield device


def test_every_method_of_a_group_gets_a_time(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case_of(key) for key in KEYS]
    check = bench.check_once  # seconds a method here, and other tests check them all: one goes through it

    def checked(case: Case, *arguments: Any, **named: Any) -> Outcome:
        return check(case, *arguments, **named) if case.method == "snapshot" else Outcome(0.0, None, 0)

    monkeypatch.setattr(bench, "check_once", checked)
    events: list[dict[str, Any]] = []
    settings = {"min_samples": 2, "max_samples": 2, "seed": 1}
    with torch.no_grad():
        Group(settings, events.append, device, Store(tmp_path / "tuned.json")).run(cases)
    results = {event["case_id"]: event for event in events if event["event"] == "result"}
    for case in cases:
        result = results[case.id]
        assert result["status"] == "ok", (case.method, result["reason"])
        row = result["row"]
        assert row["time_us"] == row["time_p99_us"] == 1.0
        assert row["launches"] == pytest.approx(float(KEYS[case.method].step(SHAPE, Point.of(case), 2, False).launches))
        assert row["speedup"] == 1.0 or "snapshot" not in KEYS
        assert row["steps_per_sample"] % KEYS[case.method].period(case) == 0


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("changes", [{"acceptance": "mean:2"}, {"flush_phase": "staggered"},
                                     {"tree": "0,0", "acceptance": "2"}])  # fmt: skip
def test_configurations_agree_after_a_few_steps(
    key: str, changes: dict[str, Any], device: Interpreted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RANDOM_STEPS", 3)
    case = case_of(key, **changes)
    if KEYS[key].supports(case) is not None:
        pytest.skip(str(KEYS[key].supports(case)))
    session = Session(case, "cpu")
    prime(session, 1)
    saved = session.snapshot()
    found = []
    for session.config in KEYS[key].configs(case):
        found.append(tuning._answers(session, saved))
    for answers in found:
        assert answers["out"].isfinite().all() and answers["state"].isfinite().all()
        for name, value in answers.items():
            assert torch.allclose(value, found[0][name], rtol=1e-4, atol=1e-5), name


@pytest.mark.skipif("replay" not in KEYS, reason="no replay verify")
def test_rows_of_replay_are_in_the_phase_that_they_were_primed_for() -> None:
    case = case_of("replay", batch=4, flush_phase="staggered")
    assert constant_acceptance(case) == 2  # L = 6, T = 3: h is 2, then the step at 4 flushes
    session = Session(case, "cpu")
    prime(session, 1)
    cursor = session.tensors["cursor"][session.tensors["slots"].long()]
    assert committed_h(cursor).flatten().tolist() == [2, 0, 2, 0]  # before the two that are pending
    assert draw(case, 1).accepted.tolist() == session.tensors["accepted"].tolist()
