"""Single steps by stamps, and candidates compiled ahead: both with either Triton; on a GPU stamps agree with events."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from compilehelp import python_with, run_child, targets_of
from compileparts import OLD, PINNED

from perfkit import steptimes


@pytest.mark.parametrize("version", [PINNED, OLD])
def test_the_stamp_compiles_once_for_every_gpu(version: str) -> None:
    targets = targets_of(version)
    found = run_child(python_with(version), "compile_child.py", "stamps", *map(str, targets))
    assert found["kernels"] == len(targets)  # one a target, whatever the index
    for item in found["found"]:
        assert (item["timer"], item["stores"], item["spills"]) == (1, 1, 0), item


@pytest.mark.parametrize("version", [PINNED, OLD])
def test_candidates_compile_ahead_and_errors_wait_for_the_launch(version: str) -> None:
    assert run_child(python_with(version), "compile_child.py", "ahead") == {"kernels": 3, "warps": [1, 2, 4]}


def test_stamps_become_step_times_without_what_a_stamp_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's part replaced by a script: 2 µs a stamp, steps of 10 and 30 µs, one replay throttled."""
    import torch

    now = [0]

    def stamp(out: Any, index: int) -> None:
        now[0] += 2000
        out[index] = now[0]

    class Replay:
        def __init__(self, work: Any) -> None:
            self.replay = work

    class FakeSession:
        device = torch.device("cpu")
        copies = (None, None)
        restored = 0

        def run(self, steps: Any) -> None:
            for index in steps:
                for copy in (0, 1):
                    self.step(index, copy)

        def step(self, index: int, copy: int) -> None:
            now[0] += 30_000 if index % 4 == 3 else 10_000

        def restore(self, saved: Any) -> None:
            self.restored += 1
            now[0] += 500_000

    class Throttles:
        n = 0

        def snapshot(self) -> int:
            self.n += 1
            return self.n

        def judge(self, before: int, after: int) -> Any:
            return type("Verdict", (), {"throttled": before == 1})

    monkeypatch.setattr(steptimes, "stamp", stamp)
    monkeypatch.setattr(steptimes, "capture", Replay)
    session = FakeSession()
    found = steptimes._stamped(session, steptimes.Plan(4, 8, 3), [], Throttles())  # type: ignore[arg-type]
    assert found.stamp_us == 2.0
    assert found.times_us == ([10.0] * 6 + [30.0] * 2) * 2 * 2  # two replays kept
    assert session.restored == 3


@pytest.mark.gpu
def test_stamps_agree_with_events_on_a_gpu() -> None:
    found = run_child(sys.executable, "gpu_timing.py")
    assert 0.2 < found["stamp_us"] < 20
    assert found["mean_us"] == pytest.approx(found["events_us"], rel=0.1, abs=1.0)
    assert found["staggered_p99_us"] < found["aligned_p99_us"]
    assert found["aligned_p99_us"] == pytest.approx(found["flush_us"], rel=0.15)
