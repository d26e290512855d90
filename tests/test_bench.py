"""A group from tuning to results, in the interpreter, on a device whose clock charges what each step really did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit import bench, beside, pacing, steptimes, tune, tuning
from perfkit.bench import Group
from perfkit.device import Monitor
from perfkit.errors import DeviceError
from perfkit.kernels.ring import committed_h
from perfkit.method import Case, Config
from perfkit.registry import get_method
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.tune import Store

SHAPE = Shape("mamba2", 1, 1, 16, 16)
CONVENTIONAL = Case(SHAPE, "conventional", 1, input_dtype="float32")
REPLAY = Case(SHAPE, "replay", 1, 4, input_dtype="float32")
#: µs of one step of one copy.
CONVENTIONAL_US, OUTPUT_US, FLUSH_US = 10.0, 5.0, 12.0
SETTINGS = {"min_samples": 3, "max_samples": 3, "seed": 1}


class ChargingClock:
    """Runs the work and returns what its steps cost; knows nothing of samples, units or graphs."""

    def __init__(self) -> None:
        self.spent = 0.0

    def time_us(self, run: Callable[[], object]) -> float:
        self.spent = 0.0
        run()
        return self.spent


class Interpreted:
    """Stands for a GPU whose L2 the tiny states fill or do not, as a test likes."""

    torch_device = "cpu"
    name = "interpreter"

    def __init__(self, l2_bytes: int = 1) -> None:
        self.l2_bytes = l2_bytes
        self.clock = ChargingClock()

    def release(self) -> None:
        pass

    def monitor(self) -> Any:
        return Monitor("")


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps and samples of everything: the interpreter is slow."""
    monkeypatch.setattr(pacing, "MIN_STEPS", 4)
    monkeypatch.setattr(beside, "SIDE_SAMPLES", 2)
    monkeypatch.setattr(beside, "WARM_STEPS", 8)
    monkeypatch.setattr(steptimes, "STEPS_A_REPLAY", 4)
    monkeypatch.setattr(steptimes, "STEP_TIMES", 8)
    monkeypatch.setattr(steptimes, "MIN_REPLAYS", 1)
    monkeypatch.setattr(tune, "ROUNDS", 1)
    monkeypatch.setattr(tune, "FINAL_ROUNDS", 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interpreted]:
    device = Interpreted()
    plain = Session.step

    def charged(self: Session, index: int = 0, copy: int = 0) -> int:
        if self.method.windowed:
            cursor = self.copies[copy]["cursor"][self.copies[copy]["slots"].long()]
            flushes = committed_h(cursor).flatten()[0] + 1 >= (self.case.window or 1)
            device.clock.spent += FLUSH_US if flushes else OUTPUT_US
        else:
            device.clock.spent += CONVENTIONAL_US
        return plain(self, index, copy)

    monkeypatch.setattr(Session, "step", charged)
    few(monkeypatch)
    for method in (get_method("mamba2", "conventional"), get_method("mamba2", "replay")):
        monkeypatch.setattr(method, "configs", lambda case, method=method: type(method).configs(method, case)[:2])
    yield device


def run(device: Interpreted, cases: list[Case], tmp_path: Path) -> dict[str, dict[str, Any]]:
    events: list[dict[str, Any]] = []
    Group(SETTINGS, events.append, device, Store(tmp_path / "tuned.json")).run(cases)
    results = [event for event in events if event["event"] == "result"]
    assert sorted(event["case_id"] for event in results) == sorted(case.id for case in cases)
    return {event["case_id"]: event for event in results}


def test_times_cover_whole_periods_and_split_into_flush_and_non_flush(device: Interpreted, tmp_path: Path) -> None:
    results = run(device, [CONVENTIONAL, REPLAY], tmp_path)
    control, replay = results[CONVENTIONAL.id]["row"], results[REPLAY.id]["row"]
    assert control["time_us"] == pytest.approx(CONVENTIONAL_US)
    mean = (3 * OUTPUT_US + FLUSH_US) / 4
    assert replay["time_us"] == pytest.approx(mean)
    assert replay["time_nonflush_us"] == pytest.approx(OUTPUT_US)
    assert replay["time_flush_us"] == pytest.approx(FLUSH_US)
    assert replay["speedup"] == pytest.approx(CONVENTIONAL_US / mean)
    assert (control["speedup"], control["aa_difference"]) == (1.0, 0.0)
    assert replay["checked"] == "gpu" and 0 < replay["rel_error"] < 2e-6
    assert (replay["launches"], replay["steps_per_sample"], replay["l2_state"]) == (1.0, 4, "cold")
    assert results[REPLAY.id]["samples"]["time_us"] == pytest.approx([mean] * 3)
    assert results[REPLAY.id]["samples"]["step_us"] == [OUTPUT_US] * 3 + [FLUSH_US] + [OUTPUT_US] * 3 + [FLUSH_US]
    assert mean < replay["time_p99_us"] <= FLUSH_US
    assert control["time_p99_us"] == CONVENTIONAL_US


def test_copies_make_a_small_state_cold_and_times_stay_per_step(device: Interpreted, tmp_path: Path) -> None:
    device.l2_bytes = 400  # a state has 1 KB
    assert pacing.cold_copies(CONVENTIONAL, get_method("mamba2", "conventional"), device.l2_bytes) > 1
    row = run(device, [CONVENTIONAL], tmp_path)[CONVENTIONAL.id]["row"]
    assert row["time_us"] == pytest.approx(CONVENTIONAL_US)


def test_a_wrong_kernel_gets_no_time_and_the_others_do(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = type(get_method("mamba2", "replay")).committed

    def off(self: Any, case: Case, tensors: Any, step: int = 0) -> Any:
        return reference(self, case, tensors, step) * (1.001 if step else 1.0)

    monkeypatch.setattr(type(get_method("mamba2", "replay")), "committed", off)
    results = run(device, [CONVENTIONAL, REPLAY], tmp_path)
    assert results[REPLAY.id]["status"] == "incorrect"
    assert "state error" in results[REPLAY.id]["reason"]
    assert "time_us" not in results[REPLAY.id]["row"]
    assert results[CONVENTIONAL.id]["status"] == "ok"


def test_out_of_memory_ends_that_case_only(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Session.snapshot

    def tight(self: Session) -> Any:
        if self.method.windowed:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore lines")
        return plain(self)

    monkeypatch.setattr(Session, "snapshot", tight)
    results = run(device, [CONVENTIONAL, REPLAY], tmp_path)
    assert results[REPLAY.id]["status"] == "oom"
    assert results[REPLAY.id]["reason"].startswith("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert "\n" not in results[REPLAY.id]["reason"]
    assert results[CONVENTIONAL.id]["row"]["time_us"] == pytest.approx(CONVENTIONAL_US)


@pytest.mark.parametrize(("flush_phase", "bad"), [("aligned", 1), ("staggered", 0)], ids=["search", "priming"])
def test_a_configuration_that_loses_the_context_is_named_by_its_case(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_phase: str, bad: int
) -> None:
    case, method = replace(REPLAY, batch=2, flush_phase=flush_phase), get_method("mamba2", "replay")
    (only,) = method.configs(case)
    configs = [only, Config.of(**{**dict(only.values), "warps": 2 * only["warps"]})]
    monkeypatch.setattr(method, "configs", lambda case: configs)
    culprit, plain, lost = configs[bad], Session.step, []

    def faulty(self: Session, index: int = 0, copy: int = 0) -> int:
        if lost or self.config == culprit:
            lost.append(self.config)
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")
        return plain(self, index, copy)

    monkeypatch.setattr(Session, "step", faulty)
    result = run(device, [case], tmp_path)[case.id]
    reason = f"RuntimeError: CUDA error: an illegal memory access was encountered (in {culprit})"
    assert (result["status"], result["reason"]) == ("error", reason)
    assert lost == [culprit]  # nothing more ran on the context


def test_unsupported_is_skipped_with_its_reason(device: Interpreted, tmp_path: Path) -> None:
    odd = Case(Shape("mamba2", 1, 1, 16, 24), "conventional", 1, input_dtype="float32")
    result = run(device, [odd], tmp_path)[odd.id]
    assert (result["status"], result["reason"]) == ("skipped", "d_k = 24 is not a power of two")


def test_a_speedup_needs_a_control(device: Interpreted, tmp_path: Path) -> None:
    row = run(device, [REPLAY], tmp_path)[REPLAY.id]["row"]
    assert row["time_us"] > 0 and row.get("speedup") is None


def test_a_failure_beside_the_main_time_keeps_it(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("capture failed")

    monkeypatch.setattr(beside, "flush_times", broken)
    result = run(device, [REPLAY], tmp_path)[REPLAY.id]
    assert result["status"] == "ok" and result["row"]["time_us"] > 0
    assert "time_nonflush_us" not in result["row"]
    assert result["row"]["time_p99_us"] > 0  # the other times beside it are still there
    monkeypatch.setattr(bench, "beside", broken)
    result = run(device, [REPLAY], tmp_path)[REPLAY.id]
    assert result["status"] == "ok" and result["row"].get("time_p99_us") is None


def test_the_fastest_agreeing_configuration_is_kept_and_found_again(
    device: Interpreted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = get_method("mamba2", "conventional").configs(CONVENTIONAL)
    plain = Session.step

    def charged(self: Session, index: int = 0, copy: int = 0) -> int:
        device.clock.spent += 1.0 if self.config == slow else 0.0
        return plain(self, index, copy)

    monkeypatch.setattr(Session, "step", charged)
    row = run(device, [CONVENTIONAL], tmp_path)[CONVENTIONAL.id]["row"]
    assert Config.parse(row["launch_config"]) == fast
    assert row["time_default_us"] == pytest.approx(row["time_us"] * 1.1)
    monkeypatch.setattr(tuning, "search", lambda *arguments, **named: pytest.fail("searched again"))
    assert run(device, [CONVENTIONAL], tmp_path)[CONVENTIONAL.id]["row"]["launch_config"] == str(fast)


def test_worker_entry_point_checks_the_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="torch sees no CUDA device"):
        bench.info()
