"""Groups as on a GPU, in the interpreter, as quick as they can be: for what happens around the kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench import CONVENTIONAL, Interpreted, few

from perfkit import bench, pacing, worker
from perfkit.bench import Group
from perfkit.check import Outcome
from perfkit.method import Case
from perfkit.registry import load_method
from perfkit.tune import Store

PLANTED = Path(__file__).with_name("planted_methods.py")
SETTINGS = {"min_samples": 2, "max_samples": 2, "seed": 1, "tune": False}


class Microsecond:
    """A clock on which every run takes one."""

    def time_us(self, run: Any) -> float:
        run()
        return 1.0


def planted(name: str) -> Case:
    """Return a case of a planted method that remembers nothing yet."""
    case = replace(CONVENTIONAL, method=f"{PLANTED}:{name}")
    vars(load_method(case.method)).update(calls=0, kept={})
    return case


def quick_device(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    """Return a device on which runs have two steps and take a microsecond; nothing is searched or checked."""
    few(monkeypatch)
    monkeypatch.setattr(pacing, "MIN_STEPS", 2)
    monkeypatch.setattr(bench, "check_once", lambda *arguments, **named: Outcome(0.0, None, 0))
    device = Interpreted()
    device.clock = Microsecond()  # type: ignore[assignment]
    return device


def events_of(device: Interpreted, tmp_path: Path, *cases: Case, **settings: Any) -> list[dict[str, Any]]:
    """Return what a worker tells of a group on a device."""
    events: list[dict[str, Any]] = []
    given = SETTINGS | settings

    def run_group(request: Any, emit: Any) -> None:
        with torch.no_grad():
            group = Group(given, emit, device, Store(tmp_path / "tuned.json"))
            group.run([Case.from_dict(data) for data in request["cases"]])

    request = {"op": "group", "group_id": "g", "cases": [case.to_dict() for case in cases], "settings": given}
    worker.handle(request, run_group, events.append)
    return events


def results_of(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the results among events by case_id; no case has two."""
    found = [event for event in events if event["event"] == "result"]
    assert len(found) == len({event["case_id"] for event in found})
    return {event["case_id"]: event for event in found}
