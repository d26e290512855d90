"""Groups of verify cases on a device whose clock charges what each stub's step did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench import Interpreted, few
from verify_stubs import FLUSH_US, OUTPUT_US, SNAPSHOT_US, Log, stubs, verify_case

from perfkit import bench, pacing, steptimes, tuning
from perfkit.bench import Group
from perfkit.check import Outcome
from perfkit.method import ACCEPTANCE_STEPS, Case
from perfkit.pacing import flush_cycle, graph_steps, part_steps, tuning_steps
from perfkit.priming import draw
from perfkit.registry import get_method
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.steptimes import Plan
from perfkit.tune import Store
from perfkit.tuning import few_rows

SETTINGS = {"min_samples": 3, "max_samples": 3, "seed": 1}
CONTROL, REPLAY = verify_case("snapshot"), verify_case()  # L = 16, T = 4, a = 3: a cycle of five steps
MEAN_US = (4 * OUTPUT_US + FLUSH_US) / 5


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    few(monkeypatch)
    monkeypatch.setattr(bench, "check_once", lambda *arguments, **named: Outcome(1e-7, None, 1))
    with stubs(monkeypatch) as log:
        yield log


def run(log: Log, cases: list[Case], tmp_path: Path, l2_bytes: int = 1) -> dict[str, dict[str, Any]]:
    device = Interpreted(l2_bytes)
    device.clock = log  # type: ignore[assignment]
    events: list[dict[str, Any]] = []
    Group(SETTINGS, events.append, device, Store(tmp_path / "tuned.json")).run(cases)
    results = [event for event in events if event["event"] == "result"]
    assert sorted(event["case_id"] for event in results) == sorted(case.id for case in cases)
    return {event["case_id"]: event for event in results}


def test_a_verify_group_is_tuned_timed_and_compared_with_snapshots(log: Log, tmp_path: Path) -> None:
    results = run(log, [CONTROL, REPLAY], tmp_path)
    control, replay = results[CONTROL.id]["row"], results[REPLAY.id]["row"]
    assert control["time_us"] == pytest.approx(SNAPSHOT_US)
    assert control["time_default_us"] == pytest.approx(SNAPSHOT_US + 4.0)
    assert (control["launch_config"], control["speedup"], control["aa_difference"]) == ("rows=2", 1.0, 0.0)
    assert "time_nonflush_us" not in control and "time_flush_us" not in control
    assert replay["time_us"] == pytest.approx(MEAN_US)
    assert replay["time_nonflush_us"] == pytest.approx(OUTPUT_US)
    assert replay["time_flush_us"] == pytest.approx(FLUSH_US)
    assert replay["speedup"] == pytest.approx(SNAPSHOT_US / MEAN_US)
    assert (replay["steps_per_sample"], replay["launches"]) == (5, 1.0)


def test_every_step_flushes_where_a_cycle_is_one_step(log: Log, tmp_path: Path) -> None:
    case = verify_case(window=4, acceptance="T")
    row = run(log, [case], tmp_path)[case.id]["row"]
    assert row["time_us"] == row["time_flush_us"] == pytest.approx(FLUSH_US)
    assert "time_nonflush_us" not in row and "speedup" not in row


def test_aligned_flushes_are_in_the_tail_and_staggered_ones_are_not(log: Log, tmp_path: Path) -> None:
    aligned = verify_case(batch=10)
    staggered = replace(aligned, flush_phase="staggered")
    first = run(log, [aligned], tmp_path)[aligned.id]
    second = run(log, [staggered], tmp_path)[staggered.id]
    assert first["row"]["time_us"] == pytest.approx(second["row"]["time_us"]) == pytest.approx(MEAN_US)
    assert first["row"]["time_p99_us"] == pytest.approx(FLUSH_US, rel=0.1)
    assert second["row"]["time_p99_us"] == pytest.approx(MEAN_US)
    assert first["samples"]["step_us"][:5] == [OUTPUT_US] * 4 + [FLUSH_US]
    assert second["samples"]["step_us"] == pytest.approx([MEAN_US] * len(second["samples"]["step_us"]))
    assert "time_nonflush_us" not in second["row"] and "time_flush_us" not in second["row"]


def test_random_acceptance_is_timed_over_all_that_is_drawn_by_every_method(log: Log, tmp_path: Path) -> None:
    cases = [verify_case(key, acceptance="mean:2.5") for key in ("snapshot", "replay")]
    results = run(log, cases, tmp_path)
    drawn = draw(cases[0], 1).accepted.tolist()
    assert [results[case.id]["row"]["steps_per_sample"] for case in cases] == [ACCEPTANCE_STEPS] * 2
    read = [(step, tuple(row)) for step, _, row in log.steps if min(row) > 0]
    assert {step % ACCEPTANCE_STEPS for step, _ in read} == set(range(ACCEPTANCE_STEPS))
    assert all(list(row) == drawn[step % ACCEPTANCE_STEPS] for step, row in read)
    assert "time_nonflush_us" not in results[cases[1].id]["row"]


def test_a_search_is_shared_by_all_acceptances_and_flush_phases(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(log, [REPLAY], tmp_path)
    text = (tmp_path / "tuned.json").read_text()
    assert "tuned at acceptance 3 aligned" in text and " T4" in text
    plain = tuning.search
    monkeypatch.setattr(tuning, "search", lambda *arguments, **named: pytest.fail("searched again"))
    for changes in ({"acceptance": "1"}, {"acceptance": "mean:2.5"}, {"flush_phase": "staggered"}):
        case = replace(REPLAY, **changes)
        assert run(log, [case], tmp_path)[case.id]["row"]["time_default_us"] > 0
    searched: list[int] = []
    monkeypatch.setattr(tuning, "search", lambda *found, **named: searched.append(1) or plain(*found, **named))
    for changes in ({"window": 8}, {"draft_len": 5}, {"tree": "0,0,1", "acceptance": "2"}):
        case = replace(REPLAY, **changes)
        assert run(log, [case], tmp_path)[case.id]["status"] == "ok"
    assert len(searched) == 3


def test_a_configuration_that_does_not_run_does_not_end_the_case(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Session.step

    def step(self: Session, index: int = 0, copy: int = 0) -> int:
        if self.config["rows"] == 1:
            raise RuntimeError("out of resource: shared memory")
        return plain(self, index, copy)

    monkeypatch.setattr(Session, "step", step)
    row = run(log, [REPLAY], tmp_path)[REPLAY.id]["row"]
    assert row["launch_config"] == "rows=2" and row["time_us"] == pytest.approx(MEAN_US)
    assert "time_default_us" not in row


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, RuntimeError])
def test_memory_that_one_case_lacks_is_not_the_end_of_the_group(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    plain, kept = Session.capture, []

    def capture(self: Session, steps: Any) -> Any:
        if self.method.key == "snapshot":
            kept.append(self)
            raise error("CUDA error: out of memory")
        return plain(self, steps)

    monkeypatch.setattr(Session, "capture", capture)
    monkeypatch.setattr(bench, "tune_session", lambda session, *rest: tuning.untuned(session))
    results = run(log, [CONTROL, REPLAY], tmp_path)
    assert results[CONTROL.id]["status"] == "oom"
    assert results[REPLAY.id]["row"]["time_us"] == pytest.approx(MEAN_US)
    assert results[REPLAY.id]["row"].get("speedup") is None
    assert kept and all(not session.copies for session in kept)  # its memory is the others'


def test_memory_is_let_go_of_once_a_case_has_its_result(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    plain = bench.beside

    def beside(session: Session, *rest: Any) -> Any:
        held.append(sum(len(item.copies) > 0 for item in sessions))
        return plain(session, *rest)

    sessions: list[Session] = []
    make = bench.Session
    monkeypatch.setattr(bench, "Session", lambda *a, **k: sessions.append(make(*a, **k)) or sessions[-1])
    monkeypatch.setattr(bench, "beside", beside)
    run(log, [CONTROL, REPLAY], tmp_path)
    assert held == [2, 1] and not any(item.copies for item in sessions)


@pytest.mark.parametrize(("l2_bytes", "copies"), [(1, 1), (400, 6)])
def test_steps_and_copies(log: Log, tmp_path: Path, l2_bytes: int, copies: int) -> None:
    case = verify_case("snapshot")
    assert pacing.cold_copies(case, registry_method(case), l2_bytes) == copies
    row = run(log, [case], tmp_path, l2_bytes)[case.id]["row"]
    assert row["time_us"] == row["time_p99_us"] == pytest.approx(SNAPSHOT_US)
    assert row.get("time_warm_us") is None


def registry_method(case: Case) -> Any:
    return bench.registry.get_method(case.shape.family, case.method, case.phase)


class Fixed:
    """A method of some period that moves some bytes, half of them reads."""

    def __init__(self, period: int, moved: float) -> None:
        self._period, self._moved = period, moved

    def period(self, case: Case) -> int:
        return self._period

    def step(self, shape: Any, point: Any, h: Any, flush: Any) -> Any:
        from perfkit.method import Step

        return Step(self._moved / 2, self._moved / 2, 0)


@pytest.mark.parametrize(
    ("period", "moved", "copies", "steps"),
    [
        (1, 1e6, 1, 16), (5, 1e6, 1, 20), (64, 1e6, 1, 64), (1, 1e9, 1, 16),
        (1, 2e9, 1, 10), (1, 18e9, 1, 2), (1, 1e12, 1, 2), (5, 2e9, 1, 10), (5, 18e9, 1, 5), (64, 18e9, 1, 64),
        (1, 1e9, 2, 10), (3, 1e9, 20, 3),
    ],
)  # fmt: skip
def test_a_graph_has_whole_periods_and_ends_in_time(period: int, moved: float, copies: int, steps: int) -> None:
    assert graph_steps(verify_case(), Fixed(period, moved), copies) == steps  # type: ignore[arg-type]


def test_a_long_run_of_random_acceptance_rests_and_is_tuned_by_few_steps() -> None:
    long = Fixed(64, 13e9)
    case = replace(verify_case(), acceptance="mean:2.5")
    assert graph_steps(case, long, 1) == 64  # type: ignore[arg-type]
    assert part_steps(case, long, 1) == 4  # type: ignore[arg-type]
    assert tuning_steps(case, long, 1) == 8  # type: ignore[arg-type]
    short = Fixed(64, 1e6)
    assert part_steps(case, short, 1) > 64 and tuning_steps(case, short, 1) == 64  # type: ignore[arg-type]
    assert tuning_steps(verify_case(), Fixed(5, 18e9), 1) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("period", "copies", "plan"),
    [
        (1, 1, Plan(1, 32, 7)), (5, 1, Plan(5, 35, 6)), (64, 1, Plan(64, 64, 4)), (127, 1, Plan(127, 127, 3)),
        (1, 105, Plan(1, 1, 3)), (64, 105, Plan(0, 64, 3)), (5, 8, Plan(5, 5, 5)),
    ],
)  # fmt: skip
def test_at_least_a_hundred_single_steps_in_whole_periods(period: int, copies: int, plan: Plan) -> None:
    found = Plan.of(period, copies)
    assert found == plan
    assert found.steps % period == found.lead % period == 0
    assert found.steps * copies >= steptimes.STEPS_A_REPLAY and found.steps * copies * found.replays >= 100


def test_when_rows_flush_together() -> None:
    method = get_method("mamba2", "replay")  # decode's: only that it has a window matters
    assert [flush_cycle(verify_case(acceptance=a), method) for a in ("1", "3", "T", "mean:2.5")] == [13, 5, 4, None]
    assert flush_cycle(verify_case(flush_phase="staggered"), method) is None
    assert flush_cycle(verify_case(tree="0,0,1,1,2", draft_len=6, acceptance="T"), method) == 5
    decode = Case(Shape("mamba2", 1, 1, 16, 16), "replay", 1, 7)
    assert flush_cycle(decode, method) == 7
    assert flush_cycle(replace(decode, flush_phase="staggered"), method) is None
    assert flush_cycle(replace(decode, method="conventional"), get_method("mamba2", "conventional")) is None


def test_a_view_of_the_first_rows_has_everything_that_goes_by_row(log: Log) -> None:
    case = verify_case(tree="0,0,1,1,2", draft_len=6, acceptance="mean:2")
    session = Session(case, "cpu")
    session.tensors["out"].normal_()
    view = few_rows(session, 2)
    for name in ("slots", "drafts", "x", "dt", "out", "ancestors"):
        assert torch.equal(view[name], session.tensors[name][:2]), name
    for name in ("accepted", "path"):
        assert torch.equal(view[name], session.tensors[name][:, :2]), name
    for name in ("state", "cursor", "a"):
        assert view[name] is session.tensors[name]
