"""Measured roofs: the fastest quiet configuration at each size, and a file that the loader and the model read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from perfkit import device, roofs
from perfkit.errors import DeviceError
from perfkit.kernels.stream import CONFIGS, PLACE, STREAMS, Stream
from perfkit.measure import Series
from perfkit.method import Config
from perfkit.profiles import load_gpu, load_roofs
from perfkit.profiles.roofs import ROOF_KINDS
from perfkit.roofline import roofs_for
from perfkit.roofline.roof import KINDS, MIXES, measured_roofs

RATES = {"read": 4500.0, "4r1w": 4300.0, "2r1w": 4100.0, "inplace": 3900.0, "copy": 4000.0, "write": 4300.0,
         "1r2w": 4000.0, "1r4w": 3950.0, "1r8w": 3850.0}  # fmt: skip
NODE_US = 1.5
FACTS = {"uuid": "GPU-1a2b", "driver": "580.159", "torch": "2.11.0", "triton": "3.6.0"}


class FakeBench:
    """node + bytes / rate for the second configuration, 20 % more for the others, 0.1 % noise."""

    def __init__(self, memory: int = 1 << 34, throttled: Sequence[Config] = ()) -> None:
        self.memory, self.throttled = memory, throttled

    def largest(self) -> int:
        return self.memory

    def stream(self, stream: Stream, moved: int, configs: Sequence[Config]) -> dict[Config, Series]:
        rng = np.random.default_rng(moved)
        found = {}
        for config in configs:
            time = (NODE_US + moved / RATES[stream.kind] / 1e3) * (1.0 if config == CONFIGS[1] else 1.2)
            samples = list(time * np.exp(0.001 * rng.standard_normal(10)))
            if config in self.throttled:
                found[config] = Series(throttled=samples, reasons={"power cap"}, clocks=[1200])
            else:
                found[config] = Series(times=samples, rounds=list(range(10)), clocks=[1965] * 10)
        return found


def _write(folder: Path, points: list[roofs.Point]) -> Path:
    text = roofs.document("h200-sxm", FACTS, points, launch_us=6.04321, graph_node_us=NODE_US, l2_bytes=60 << 20)
    assert roofs.check_document(text, "h200-sxm")["gpu"] == "h200-sxm"
    path = folder / "h200-sxm-roofs.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_points_become_a_file_that_gives_the_true_roofs(tmp_path: Path) -> None:
    seen: list[roofs.Point] = []
    points = roofs.measure_points(FakeBench(), progress=seen.append)
    assert seen == points and len(points) == 4 * 7 + 5 * 4
    assert {point.config for point in points} == {CONFIGS[1]}
    _write(tmp_path, points)
    data = load_roofs("h200-sxm", tmp_path)
    assert data is not None
    assert (data["gpu_uuid"], data["driver"], data["torch"], data["triton"]) == (
        "GPU-1a2b",
        "580.159",
        "2.11.0",
        "3.6.0",
    )
    assert (data["launch_us"], data["graph_node_us"]) == (6.043, 1.5)
    assert (
        "8 times L2 (60 MiB)" in data["source"]
        and data["notes"] == "0 throttled samples dropped; SM clock 1965 to 1965 MHz"
    )
    assert [point["bytes"] for point in data["points"] if point["kind"] == "copy"] == list(roofs.SIZES)
    assert [point["bytes"] >> 20 for point in data["points"] if point["kind"] == "1r8w"] == [90, 270, 1080, 2160]
    assert all(point["lo"] < point["bandwidth_gb_s"] < point["hi"] for point in data["points"])
    found = roofs_for(load_gpu("h200-sxm"), data)
    assert found.calibrated and found.graph_node_us == 1.5
    assert found.read_gb_s == pytest.approx(4500, rel=5e-3)
    assert found.inplace_gb_s == pytest.approx(3900, rel=5e-3)
    for moved in (2 << 20, 128 << 20):  # between the points, and without the node's own cost
        assert found.time_us(moved, 0) == pytest.approx(moved / 4500e3, rel=2e-2)
        assert found.time_us(moved / 2, moved / 2) == pytest.approx(moved / 3900e3, rel=2e-2)
        assert found.time_us(moved / 9, moved / 9 * 8) == pytest.approx(moved / 3850e3, rel=2e-2)


def test_kinds_are_those_that_files_may_have_and_the_model_reads() -> None:
    assert set(STREAMS) == set(KINDS) == set(ROOF_KINDS)
    several = {kind: stream for kind, stream in STREAMS.items() if stream.places > 1}
    assert {kind: stream.writes / (stream.reads + stream.writes) for kind, stream in several.items()} == MIXES


def test_sizes_of_several_places_are_whole_places_and_fit_where_the_others_do() -> None:
    for stream in (STREAMS[kind] for kind in MIXES):
        for moved in roofs.MIX_SIZES:
            n = stream.elements(moved)
            assert n % PLACE == 0 and 4 * n * (stream.reads + stream.writes) == moved
        assert stream.footprint(max(roofs.MIX_SIZES)) <= max(roofs.SIZES)
        assert stream.footprint(max(roofs.QUICK_MIX_SIZES)) <= max(roofs.QUICK_SIZES)


def test_small_memory_leaves_large_sizes_out() -> None:
    points = roofs.measure_points(FakeBench(memory=256 << 20))
    largest = {kind: max(point.moved for point in points if point.kind == kind) >> 20 for kind in STREAMS}
    assert largest == dict.fromkeys(("read", "write", "inplace", "copy"), 256) | dict.fromkeys(MIXES, 270)
    assert {
        point.moved >> 20
        for point in roofs.measure_points(FakeBench(memory=512 << 20), (1 << 30, 1 << 20), ())
        if point.kind in ("inplace",)
    } == {1, 1024}  # half of it read, the same half written
    with pytest.raises(DeviceError, match="too little free GPU memory for a stream of 1 MiB"):
        roofs.measure_points(FakeBench(memory=1000))


def test_throttled_configurations_do_not_count() -> None:
    point = roofs.measure_points(FakeBench(throttled=[CONFIGS[1]]), [1 << 20])[0]
    assert point.config != CONFIGS[1] and point.dropped == 10
    with pytest.raises(DeviceError, match=r"all 40 samples of read 1 MiB \(power cap\)"):
        roofs.measure_points(FakeBench(throttled=CONFIGS), [1 << 20])


def test_a_wrong_document_is_refused() -> None:
    points = roofs.measure_points(FakeBench(), [1 << 20])
    text = roofs.document("h200-sxm", FACTS, points, launch_us=6.0, graph_node_us=1.0, l2_bytes=1)
    with pytest.raises(Exception, match="bandwidth_gb_s"):
        roofs.check_document(text.replace("bandwidth_gb_s: ", "bandwidth_gb_s: -", 1), "h200-sxm")
    only_reads = [point for point in points if point.kind == "read"]
    text = roofs.document("h200-sxm", FACTS, only_reads, launch_us=6.0, graph_node_us=1.0, l2_bytes=1)
    with pytest.raises(Exception, match="needs points of kind read, and of inplace or copy"):
        roofs.check_document(text, "h200-sxm")


def _facts(**changes: object) -> device.DeviceFacts:
    fields = dict.fromkeys(device.DeviceFacts.__dataclass_fields__, None) | {
        "name": "NVIDIA H200", "memory_total_mib": 143771, "clock_reasons": (), "processes": ()}  # fmt: skip
    return device.DeviceFacts(**(fields | changes))  # type: ignore[arg-type]


def test_only_whole_gpus_with_a_profile_are_measured() -> None:
    assert roofs.known_gpu(_facts()).key == "h200-sxm"
    with pytest.raises(DeviceError, match="MIG instance"):
        roofs.known_gpu(_facts(mig_uuid="MIG-1"))
    with pytest.raises(DeviceError, match="no profile for NVIDIA H900 with 143771 MiB"):
        roofs.known_gpu(_facts(name="NVIDIA H900"))


def test_without_a_gpu_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    def nothing() -> None:
        raise DeviceError("there is no NVIDIA GPU")

    monkeypatch.setattr(roofs, "visible_gpu", nothing)
    assert roofs.main(["--out", str(tmp_path / "roofs.yaml")]) == 3
    assert capsys.readouterr().err == "perfkit: there is no NVIDIA GPU\n"
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_cannot_be_written_is_found_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(roofs, "visible_gpu", _facts)
    assert roofs.main(["--out", str(tmp_path / "no" / "roofs.yaml")]) == 2
    assert capsys.readouterr().err == f"perfkit: --out: '{tmp_path / 'no'}': no such folder\n"


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "perfkit.roofs", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = tmp_path.glob("*-roofs.yaml")
    gpu = load_gpu(path.name.removesuffix("-roofs.yaml"))
    data = load_roofs(gpu.key, tmp_path)
    assert data is not None
    found = measured_roofs(gpu.key, data)
    assert 0.1 < found.graph_node_us < found.launch_us + 10
    assert gpu.bandwidth_gb_s is not None
    assert all(point["bandwidth_gb_s"] < gpu.bandwidth_gb_s for point in data["points"])  # cold: never L2's bandwidth
    assert found.read_gb_s > found.inplace_gb_s > 0.5 * gpu.bandwidth_gb_s
    assert [share for share, _ in found.mixes] == [2 / 3, 4 / 5, 8 / 9]
    assert all(0.5 * gpu.bandwidth_gb_s < mix.plateau_gb_s < found.read_gb_s for _, mix in found.mixes)
