"""The search: the fastest correct candidate wins, the rest is accounted for, the store survives damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_measure import FakeDevice

from perfkit.measure import Subject
from perfkit.method import Case, Config
from perfkit.shape import Shape
from perfkit.tune import Store, Tuned, search

A, B, C = Config.of(rows=16, warps=1), Config.of(rows=16, warps=2), Config.of(rows=32, warps=4)
CASE = Case(Shape("mamba2", 4, 2, 16, 16), "conventional", 3)


def make(device: FakeDevice, wrong: tuple[Config, ...] = ()):  # type: ignore[no-untyped-def]
    def build(config: Config) -> Subject:
        if config in wrong:
            raise ValueError("out differs from the default configuration's by 1e-2\nsecond line")
        return device.subject(str(config))

    return build


def test_fastest_wins_and_the_default_is_timed_beside_it() -> None:
    device = FakeDevice({str(A): 12.0, str(B): 10.0, str(C): 30.0})
    tuned = search([A, B, C], make(device), device)
    assert tuned.config == B
    assert tuned.time_us == pytest.approx(10.0, rel=0.01)
    assert tuned.default_us == pytest.approx(12.0, rel=0.01)
    assert tuned.tried == 3


def test_a_wrong_candidate_is_never_timed_however_fast() -> None:
    device = FakeDevice({str(A): 12.0, str(B): 1.0, str(C): 30.0})
    tuned = search([A, B, C], make(device, wrong=(B,)), device)
    assert tuned.config == A
    assert str(B) not in device.log
    assert tuned.rejected == {str(B): "ValueError: out differs from the default configuration's by 1e-2"}


def test_no_candidate_works() -> None:
    device = FakeDevice({})
    with pytest.raises(RuntimeError, match="no launch configuration works: ValueError: out differs"):
        search([A, B], make(device, wrong=(A, B)), device)


def test_out_of_memory_is_not_a_reason_to_try_the_next_candidate() -> None:
    def build(config: Config) -> Subject:
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        search([A, B], build, FakeDevice({}))


LOST = "CUDA error: an illegal memory access was encountered"


def test_a_candidate_that_loses_the_context_ends_the_search_and_is_named() -> None:
    device, tried = FakeDevice({str(A): 12.0, str(B): 10.0, str(C): 30.0}), []

    def build(config: Config) -> Subject:
        tried.append(config)
        if config == B:
            raise RuntimeError(f"{LOST}\nmore lines")
        return device.subject(str(config))

    with pytest.raises(RuntimeError, match=LOST) as caught:
        search([A, B, C], build, device)
    assert caught.value.__notes__ == ["in rows=16 warps=2"]
    assert tried == [A, B]  # on a lost context C would fail too, and be blamed


def test_a_candidate_that_loses_the_context_when_it_is_timed_is_named() -> None:
    device = FakeDevice({str(A): 12.0, str(B): 10.0, str(C): 30.0})

    def fault() -> None:
        raise RuntimeError(LOST)

    def build(config: Config) -> Subject:
        subject = device.subject(str(config))
        return replace(subject, run=fault) if config == C else subject

    with pytest.raises(RuntimeError, match=LOST) as caught:
        search([A, B, C], build, device)
    assert caught.value.__notes__ == ["in rows=32 warps=4"]


def test_store_round_trip_and_damage(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "tuned.json")
    key = Store.key(CASE, "NVIDIA H200", {"triton": "3.6.0"}, [A, B], "digest")
    assert store.get(key) is None
    store.put(key, Tuned(B, 10.0, 12.0, 3, {}), "label")
    found = store.get(key)
    assert found is not None and (found.config, found.time_us, found.default_us) == (B, 10.0, 12.0)
    store.path.write_text("{ not json")
    assert store.get(key) is None
    store.put(key, Tuned(A, 11.0, None, 1, {}), "label")
    assert store.get(key) is not None


def test_store_key_changes_with_everything_that_matters() -> None:
    keys = {
        Store.key(CASE, "NVIDIA H200", {"triton": "3.6.0"}, [A, B], "digest"),
        Store.key(CASE, "NVIDIA H100", {"triton": "3.6.0"}, [A, B], "digest"),
        Store.key(CASE, "NVIDIA H200", {"triton": "3.7.1"}, [A, B], "digest"),
        Store.key(CASE, "NVIDIA H200", {"triton": "3.6.0"}, [A], "digest"),
        Store.key(CASE, "NVIDIA H200", {"triton": "3.6.0"}, [A, B], "other"),
    }
    assert len(keys) == 5


def test_config_text_round_trip() -> None:
    assert Config.parse(str(A)) == A
    assert Config.parse("-") == Config()
