"""The GPU's bench on a device whose true times are known: per launch, per pass over L2, per node; cold and warm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit.device import Monitor, Verdict
from perfkit.errors import DeviceError
from perfkit.kernels import l2, stream
from perfkit.kernels.stream import CONFIGS, STREAMS, Stream
from perfkit.method import Config
from perfkit.roofs import bench, measure
from perfkit.roofs.points import MIB, Plan
from perfkit.stats import Stopping

L2_BYTES, SMS = 4 * MIB, 12
GRAPH_US, NODE_US, LAUNCH_US = 10.0, 1.5, 16.0
RATES = {"read": 2000.0, "l2": 6000.0}  # others: 1500 GB/s


class Device:
    """Time passes as kernels are launched; in a graph a launch costs its node, outside as much as Python takes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.start_us = LAUNCH_US
        self.seen: list[tuple[str, int]] = []  # kind and address of what each launch of a stream touches
        self.compiled: list[Sequence[Callable[[], None]]] = []

    def kernel(self, us: float = 0.0) -> None:
        self.now += self.start_us + us

    def stream(self, one: Stream, a: Any, b: Any, config: Config) -> None:
        n = a.numel() // one.places
        moved = n * stream.ELEMENT_BYTES * (one.reads + one.writes)
        if one.buffers * n * stream.ELEMENT_BYTES <= 64 * MIB:  # not of the spin at the start
            self.seen.append((one.kind, a.data_ptr()))
        slow = 1.0 if config == CONFIGS[2] else 1.25
        self.kernel(slow * moved / RATES.get(one.kind, 1500.0) / 1e3)

    def l2(self, a: Any, b: Any, reads: int, sms: int, config: Config) -> None:
        assert sms == SMS and b.numel() >= sms * config["programs"]
        moved = reads * sms * config["programs"] * config["tile"] * 4
        slow = 1.0 if config == l2.CONFIGS[0] else 1.5
        self.kernel(slow * moved / RATES["l2"] / 1e3)

    def capture(self, work: Callable[[], object]) -> Any:
        def replay() -> None:
            self.now += GRAPH_US
            self.start_us = NODE_US
            work()
            self.start_us = LAUNCH_US

        return SimpleNamespace(replay=replay)

    def time_us(self, run: Callable[[], object]) -> float:
        before = self.now
        run()
        return self.now - before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    properties = SimpleNamespace(L2_cache_size=L2_BYTES, multi_processor_count=SMS)
    monkeypatch.setattr(bench, "gpu_properties", lambda: properties)
    monkeypatch.setattr(bench, "capture", made.capture)
    monkeypatch.setattr(bench, "CudaClock", lambda: made)
    monkeypatch.setattr(bench, "empty_launch", lambda a: made.kernel)
    monkeypatch.setattr(bench, "compile_launches", made.compiled.append)
    monkeypatch.setattr(bench, "WARMUP_S", 0.0)
    monkeypatch.setattr(bench, "RULE", Stopping(min_samples=2, max_samples=2))
    monkeypatch.setattr(bench.l2, "launch", lambda *args: partial(made.l2, *args))
    monkeypatch.setattr(Stream, "launch", lambda *args: partial(made.stream, *args))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 34, 1 << 34))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def _bench(largest: int = 64 * MIB) -> bench.GpuBench:
    return bench.GpuBench(Monitor("none"), largest, device="cpu")


@pytest.mark.parametrize("kind", ["read", "copy", "4r1w", "1r8w"])
@pytest.mark.parametrize("moved", [1 * MIB, 45 * MIB])
def test_the_time_of_a_launch_is_one_of_many_nodes(device: Device, kind: str, moved: int) -> None:
    made = _bench()
    one = STREAMS[kind]
    found = made.stream(one, moved, CONFIGS)
    true_us = NODE_US + one.elements(moved) * 4 * (one.reads + one.writes) / RATES.get(kind, 1500.0) / 1e3
    # What a graph costs once is spread over so many nodes that it does not show: under 0.5 %.
    assert found[CONFIGS[2]].interval().value == pytest.approx(true_us, rel=5e-3)
    assert found[CONFIGS[0]].interval().value == pytest.approx(true_us + (true_us - NODE_US) / 4, rel=5e-3)
    # Cold: before a launch comes back to a buffer, others have moved many times L2.
    addresses = [address for seen, address in device.seen if seen == kind]
    distinct = len(set(addresses))
    footprint = one.footprint(moved)
    assert distinct * footprint >= min(bench.COLD_L2 * L2_BYTES, made.largest() // footprint * footprint)
    assert addresses[-distinct:] == sorted(set(addresses))


@pytest.mark.parametrize("share", [1 / 16, 1 / 4, 1 / 2])
def test_l2_is_read_again_and_again_and_timed_per_pass(device: Device, share: float) -> None:
    held = l2.whole_tiles(round(share * L2_BYTES))
    found = _bench().l2_read(held, l2.CONFIGS)
    assert list(found) == l2.apart(held, SMS, l2.CONFIGS)  # in others, programs share what they read
    for config, series in found.items():
        slow = 1.0 if config == l2.CONFIGS[0] else 1.5
        assert series.interval().value == pytest.approx(slow * held / RATES["l2"] / 1e3, rel=2e-2)


def test_streams_are_compiled_ahead_all_at_once(device: Device) -> None:
    _bench()
    (launches,) = device.compiled
    assert {(launch.args[0], launch.args[3]) for launch in launches} == {
        (one, config) for one in STREAMS.values() for config in CONFIGS
    }


def test_costs_are_told_apart(device: Device) -> None:
    costs = _bench().costs()
    assert costs.launch_us == pytest.approx(LAUNCH_US)
    assert costs.graph_node_us == pytest.approx(NODE_US)
    assert costs.graph_us == pytest.approx(GRAPH_US + NODE_US)


def test_all_of_it_together(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIZE", 128)
    made = _bench(32 * MIB)
    assert made.largest() == 64 * MIB  # twice what must be cold
    monkeypatch.setattr(made, "kinds_of_products", lambda: ("fp32",))
    device.kernel(1.0)
    monkeypatch.setattr(device, "time_us", lambda run, timed=device.time_us: timed(run) or 50e3)  # products take 50 ms
    found = measure(made, Plan((1 * MIB, 32 * MIB), (45 * MIB,), (1 / 4,), 0.1))
    assert {point.kind for point in found.points} == set(STREAMS)
    reads = [point for point in found.points if point.kind == "read"]
    assert [point.config for point in reads] == [CONFIGS[2]] * 2
    assert found.l2_bytes == L2_BYTES and found.l2[0].config == l2.CONFIGS[0]
    assert found.rates[0].tflops.value == pytest.approx(2 * 128**3 / 50e3 / 1e6)
    assert {point.dropped for point in (*found.points, *found.l2)} | {found.rates[0].dropped} == {None}  # no driver


def test_little_memory_makes_a_small_pool(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20 * MIB, 1 << 34))
    assert _bench().largest() == 16 * MIB


def test_throttled_empty_kernels_are_an_error(device: Device) -> None:
    made = _bench()
    made._monitor = SimpleNamespace(snapshot=lambda: None, judge=lambda *_: Verdict(True, ("power cap",), 1200))
    with pytest.raises(DeviceError, match="throttled while empty kernels were timed"):
        made.costs()
