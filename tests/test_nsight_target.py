"""The program under Nsight Compute: which ranges it marks around which launches, and what it tells."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from perfkit.kernels import ring
from perfkit.method import Case, Config
from perfkit.nsight import target
from perfkit.nsight.command import COUNTED
from perfkit.nsight.steps import counted_steps, rows_before
from perfkit.priming import prime
from perfkit.session import Session
from perfkit.shape import Shape

SMALL = Shape("mamba2", 1, 1, 16, 16)


class Recorder:
    """Ranges as they are entered and left, and events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.stack: list[str] = []
        self.entered: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def mark(self, name: str) -> Iterator[None]:
        self.stack.append(name)
        self.entered.append(tuple(self.stack))
        yield
        self.stack.pop()


def run(case: Case, config: Config | None = None) -> Recorder:
    seen = Recorder()
    assert target.Target("cpu", 0, seen.events.append, seen.mark, None).run(case, config)
    return seen


def test_only_the_counted_steps_are_inside_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush and non-flush of replay: the launches of these two steps, and of no other, run inside."""
    case = Case(SMALL, "replay", 2, 4, draft_len=2, input_dtype="float16")
    seen = Recorder()
    outside: list[int] = []
    real = Session.step

    def step(self: Session, index: int = 0, copy: int = 0) -> int:
        assert not seen.stack
        outside.append(index)
        return real(self, index, copy)

    monkeypatch.setattr(Session, "step", step)
    assert target.Target("cpu", 0, seen.events.append, seen.mark, None).run(case, None)
    method = Session(case, "cpu").method
    first, second = counted_steps(case, method)
    assert (first.kind, first.h, second.kind, second.h) == ("nonflush", 1, "flush", 3)
    assert outside == [63, *(index for index in range(second.index) if index != first.index)]  # the first one primes
    names = [f"perfkit/replay/verify/{kind}/B2-L4-T2-a1" for kind in ("nonflush", "flush")]
    assert seen.entered == [(COUNTED,), (COUNTED, names[0]), (COUNTED,), (COUNTED, names[1])]
    kinds = [event["event"] for event in seen.events]
    assert kinds == ["begin", "step", "step", "done"]
    assert [event["launches"] for event in seen.events[1:3]] == [2, 2]
    assert seen.events[-1]["config_source"] == "default"


def test_a_given_configuration_is_used() -> None:
    case = Case(SMALL, "conventional", 1, input_dtype="float16")
    config = Config.of(rows=8, warps=1)
    assert run(case, config).events[-1] == {"event": "done", "case_id": case.id, "config": "rows=8 warps=1",
                                            "config_source": "given"}  # fmt: skip


def test_a_case_that_fails_says_so_and_the_next_one_runs() -> None:
    case = Case(SMALL, "conventional", 1, input_dtype="float16")
    failed = run(case, Config.of(rows=3, warps=1)).events[-1]  # no power of two
    assert (failed["event"], failed["status"], failed["fatal"]) == ("failed", "error", False)
    assert "\n" not in failed["reason"]


@pytest.mark.parametrize(
    "case",
    [
        Case(SMALL, "replay", 5, 3, flush_phase="staggered", input_dtype="float16"),
        Case(SMALL, "replay", 3, 4, draft_len=3, acceptance="mean:2", input_dtype="float16"),
        Case(SMALL, "replay", 3, 5, draft_len=2, flush_phase="staggered", input_dtype="float16"),
    ],
    ids=["staggered decode", "random acceptance", "staggered verify"],
)
def test_rows_out_of_step_hold_what_the_cursors_of_the_session_hold(case: Case) -> None:
    session = Session(case, "cpu")
    prime(session, 0)
    (counted,) = counted_steps(case, session.method)
    assert counted.kind == "mixed" and counted.h is None
    for index in range(counted.index):
        session.step(index)
    cursor = session.tensors["cursor"][session.tensors["slots"].long()][:, 0]
    held = ring.committed_h(cursor).numpy().astype(np.int64)
    if case.phase == "verify":
        held += session.tensors["accepted"][counted.index].numpy()
    found, flush = rows_before(case, session.method, counted.index, 0)
    assert found.tolist() == held.tolist()
    longest = (case.window or 0) - (1 if case.phase == "decode" else case.draft_len)
    assert flush.tolist() == ((held == longest) if case.phase == "decode" else (held > longest)).tolist()
    assert len(set(found.tolist())) > 1


def test_without_nvtx_torch_marks_and_without_either_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert target.marker()[0] == "nvtx"
    monkeypatch.setitem(sys.modules, "nvtx", None)

    def absent(name: str) -> None:  # as torch without CUDA says
        raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    monkeypatch.setattr(torch.cuda.nvtx, "range", absent)
    with pytest.raises(target.DeviceError, match=r"NVTX ranges cannot be marked.*-m pip install nvtx"):
        target.marker()
    names: list[str] = []

    @contextlib.contextmanager
    def ranges(name: str) -> Iterator[None]:
        names.append(name)
        yield

    monkeypatch.setattr(torch.cuda.nvtx, "range", ranges)
    kind, mark = target.marker()
    with mark("perfkit/x"):
        pass
    assert kind == "torch" and names == [COUNTED, "perfkit/x"]
