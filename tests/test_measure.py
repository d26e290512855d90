"""Interleaved rounds: order, pairing, stopping, throttled samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from perfkit.measure import Subject, interleave
from perfkit.stats import Stopping, by_round, ratio_interval


class FakeDevice:
    """A device whose clock is the truth: the running subject's mean times noise, and a drift common to all."""

    def __init__(self, means: dict[str, float], noise: float = 0.002, drift: float = 0.0, seed: int = 0) -> None:
        self.means, self.noise, self.drift = means, noise, drift
        self.random = np.random.default_rng(seed)
        self.log: list[str] = []
        self.prepared: list[str] = []
        self.now = ""

    def subject(self, name: str, units: int = 1) -> Subject:
        def run() -> None:
            self.now = name
            self.log.append(name)

        return Subject(name, run, lambda: self.prepared.append(name), units)

    def time_us(self, run: object) -> float:
        run()  # type: ignore[operator]
        drift = 1 + self.drift * len(self.log)
        return self.means[self.now] * drift * float(np.exp(self.random.normal(0, self.noise)))


@dataclass
class Verdict:
    throttled: bool
    reasons: tuple[str, ...] = ("power cap",)
    sm_clock_mhz: int | None = 1980
    known: bool = True


class EveryThird:
    """A monitor that finds every third sample throttled."""

    def __init__(self) -> None:
        self.count = 0

    def snapshot(self) -> None:
        return None

    def judge(self, before: None, after: None) -> Verdict:
        self.count += 1
        return Verdict(self.count % 3 == 0)


def test_rounds_alternate_and_restore_before_every_sample() -> None:
    device = FakeDevice({"a": 10.0, "b": 20.0})
    interleave([device.subject("a"), device.subject("b")], Stopping(min_samples=4, max_samples=4), device, warmup=1)
    assert device.log == ["a", "b"] + ["a", "b", "b", "a"] * 2
    assert device.prepared == device.log


def test_times_are_per_unit_and_cover_the_truth() -> None:
    device = FakeDevice({"a": 320.0})
    series = interleave([device.subject("a", units=32)], Stopping(), device)["a"]
    interval = series.interval()
    assert interval.lo <= 10.0 * 1.002 and interval.hi >= 10.0 * 0.998
    assert interval.value == pytest.approx(10.0, rel=0.005)
    assert series.stop_reason == "converged"


def test_paired_ratio_survives_drift_that_breaks_unpaired_medians() -> None:
    device = FakeDevice({"base": 100.0, "new": 50.0}, noise=0.001, drift=0.01)
    rule = Stopping(min_samples=40, max_samples=40)
    series = interleave([device.subject("base"), device.subject("new")], rule, device)
    ratio = ratio_interval(*(by_round(s.rounds, s.times, 40) for s in (series["base"], series["new"])))
    assert ratio.value == pytest.approx(2.0, rel=0.005)


def test_throttled_samples_are_dropped_counted_and_their_rounds_left_out() -> None:
    device = FakeDevice({"a": 10.0})
    series = interleave([device.subject("a")], Stopping(min_samples=10, max_samples=20), device, EveryThird())["a"]
    assert len(series.throttled) == (len(series.times) + len(series.throttled)) // 3 > 0
    assert all(index % 3 != 2 for index in series.rounds)
    assert series.reasons == {"power cap"}
    assert series.clock_mhz == 1980
    assert series.known


def test_what_the_driver_does_not_say_is_not_known() -> None:
    rule, device = Stopping(min_samples=3, max_samples=3), FakeDevice({"a": 10.0})

    class OnceMute(EveryThird):
        def judge(self, before: None, after: None) -> Verdict:
            verdict = super().judge(before, after)
            return Verdict(False, (), None, known=False) if self.count == 2 else verdict

    for monitor in (None, OnceMute()):
        assert not interleave([device.subject("a")], rule, device, monitor)["a"].known


def test_a_subject_that_never_converges_stops_at_the_limit_and_says_so() -> None:
    device = FakeDevice({"noisy": 10.0, "calm": 10.0})
    device.noise = 0.5
    rule = Stopping(min_samples=10, max_samples=30, target_half_width=1e-6)
    series = interleave([device.subject("noisy")], rule, device)["noisy"]
    assert series.stop_reason == "max_samples"
    assert len(series.times) == 30


def test_always_throttled_ends_and_rests_a_second_at_most_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("perfkit.measure.time.sleep", rests.append)
    device = FakeDevice({"a": 10.0})

    class Always(EveryThird):
        def judge(self, before: None, after: None) -> Verdict:
            return Verdict(True)

    series = interleave([device.subject("a")], Stopping(min_samples=2, max_samples=5), device, Always())["a"]
    assert series.times == [] and len(series.throttled) == 10
    assert series.stop_reason == "max_samples"
    assert rests == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]


def test_a_long_run_is_timed_in_parts_with_rests_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("perfkit.measure.time.sleep", rests.append)
    done: list[str] = []

    class Parts:
        def time_us(self, run: Any) -> float:
            run()
            return 100.0 * len(done)

    parts = (lambda: done.append("a"), lambda: done.append("b"))
    subject = Subject("long", lambda: done.append("whole"), lambda: None, 4, parts)
    assert subject.time_us(Parts()) == pytest.approx(300.0)
    assert done == ["a", "b"] and rests == [pytest.approx(200e-6)]
    assert Subject("short", lambda: done.append("whole"), lambda: None, 1).time_us(Parts()) == pytest.approx(300.0)


def test_a_gpu_at_its_power_cap_gets_rests_until_samples_count_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each throttled round doubles the rest, up to a second; each clean one halves it, down to none."""
    rests: list[float] = []
    monkeypatch.setattr("perfkit.measure.time.sleep", rests.append)
    device = FakeDevice({"a": 10.0, "b": 20.0})

    class HotFor(EveryThird):
        """Throttled for the first seven samples: three rounds of two and one of a fourth."""

        def judge(self, before: None, after: None) -> Verdict:
            self.count += 1
            return Verdict(self.count <= 7)

    rule = Stopping(min_samples=12, max_samples=12)
    series = interleave([device.subject("a"), device.subject("b")], rule, device, HotFor())
    assert rests == [0.05, 0.1, 0.2, 0.4, 0.2, 0.1, 0.05]
    assert [len(one.throttled) for one in series.values()] == [3, 4] and len(series["a"].times) >= 12
