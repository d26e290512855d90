"""Measured roofs: the fastest quiet configuration at each size, and a file that the loader and the model read."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from roofsbench import FACTS, GRAPH_US, L2_GB_S, LAUNCH_US, NODE_US, RATES, TFLOPS, FakeBench

from perfkit import roofs
from perfkit.errors import DeviceError, InputError
from perfkit.kernels import l2
from perfkit.kernels.stream import CONFIGS, PLACE, STREAMS
from perfkit.profiles import load_gpu, read_roofs
from perfkit.profiles.roofs import RATE_KINDS, ROOF_KINDS
from perfkit.roofline import roofs_for
from perfkit.roofline.roof import KINDS, MIXES, measured_roofs
from perfkit.roofs.points import FULL, MIB, QUICK, Plan
from perfkit.roofs.products import PRODUCTS

SMALL = Plan((1 << 20,), (), (), 0.1)


def _data(bench: FakeBench | None = None, plan: Plan = FULL) -> dict:
    return roofs.found_data("h200-sxm", FACTS, roofs.measure(bench or FakeBench(), plan))


def test_everything_is_measured_in_turn_and_told() -> None:
    told: list[tuple[str, str, int]] = []
    found = roofs.measure(FakeBench(), tell=lambda *event: told.append(event))
    assert len(found.points) == 4 * 7 + 5 * 4 and len(found.l2) == 4 and len(found.rates) == 3
    assert {total for _, _, total in told} == {len(told)} == {1 + 48 + 4 + 3}
    assert [name for name, _, _ in told[:2]] == ["launches", "read 1 MiB"]
    assert [name for name, _, _ in told[-4:]] == ["l2 30 MiB", "bf16 products", "tf32 products", "fp32 products"]
    assert told[0][1] == "6.04 us, node of a graph 1.50 us, graph 11.4 us"
    assert told[-3][1] == "700 TFLOP/s at 1650 MHz, 700 W"
    assert told[1][1].endswith("], tile=2048 warps=1") and " GB/s [" in told[1][1]
    assert {point.config for point in found.points} == {CONFIGS[1]}
    assert {point.config for point in found.l2} == {l2.CONFIGS[2]}
    assert [point.moved / found.l2_bytes for point in found.l2] == [1 / 16, 1 / 8, 1 / 4, 1 / 2]


def test_points_become_a_file_that_gives_the_true_roofs(tmp_path: Path) -> None:
    path = tmp_path / "h200-sxm-roofs.yaml"
    data = _data()
    path.write_text(roofs.document(data), encoding="utf-8")
    read = read_roofs(path)
    assert roofs.check_document(roofs.document(data), "h200-sxm") == read
    assert (read["schema"], read["name"], read["memory_mib"], read["driver"]) == (2, "NVIDIA H200", 143771, "580.159")
    assert (read["torch"], read["triton"], read["power_limit_w"], read["gpu_uuid"]) == ("2.11.0", "3.6.0", 700.0, None)
    assert (read["launch_us"], read["graph_node_us"], read["graph_us"]) == (LAUNCH_US, NODE_US, GRAPH_US)
    assert (read["runs"], read["spread"], read["throttled"]) == (1, None, 0)
    assert (read["sm_clock_mhz"], read["sm_clock_max_mhz"], read["memory_clock_max_mhz"]) == (1965.0, 1980.0, 3201.0)
    assert read["l2_mib"] == 60.0
    assert read["notes"] == "SM clock 1965 to 1965 MHz while bandwidths were measured"
    assert [point["kind"] for point in read["points"]] == sorted(
        (point["kind"] for point in data["points"]), key=ROOF_KINDS.index
    )
    assert [point["bytes"] for point in read["points"] if point["kind"] == "copy"] == list(FULL.sizes)
    assert [point["bytes"] >> 20 for point in read["points"] if point["kind"] == "1r8w"] == [90, 270, 1080, 2160]
    assert all(point["lo"] < point["bandwidth_gb_s"] < point["hi"] for point in read["points"])
    found = roofs_for(load_gpu("h200-sxm"), read)
    assert found.calibrated and found.graph_node_us == 1.5
    assert found.read_gb_s == pytest.approx(4500, rel=5e-3)
    assert found.inplace_gb_s == pytest.approx(3900, rel=5e-3)
    for moved in (2 << 20, 128 << 20):  # between the points, and without the node's own cost
        assert found.time_us(moved, 0) == pytest.approx(moved / 4500e3, rel=2e-2)
        assert found.time_us(moved / 2, moved / 2) == pytest.approx(moved / 3900e3, rel=2e-2)
        assert found.time_us(moved / 9, moved / 9 * 8) == pytest.approx(moved / 3850e3, rel=2e-2)
        assert found.time_us(moved / 5 * 4, moved / 5) == pytest.approx(moved / 4300e3, rel=2e-2)
    assert found.l2_gb_s(10 << 20) == pytest.approx(L2_GB_S, rel=2e-3)
    assert {kind: found.rate(kind) for kind in TFLOPS} == TFLOPS
    assert [(rate["capped"], rate["power_w"], rate["size"]) for rate in read["rates"]] == [
        (1.0, 699.5, 8192), (0.0, 699.5, 8192), (0.0, 699.5, 8192)]  # fmt: skip


def test_kinds_are_those_that_files_may_have_and_the_model_reads() -> None:
    assert set(STREAMS) == set(KINDS) == set(ROOF_KINDS) == set(RATES)
    several = {kind: stream for kind, stream in STREAMS.items() if stream.places > 1}
    assert {kind: stream.writes / (stream.reads + stream.writes) for kind, stream in several.items()} == MIXES
    shares = [STREAMS[kind].writes / (STREAMS[kind].reads + STREAMS[kind].writes) for kind in ROOF_KINDS]
    assert shares == sorted(shares)
    assert tuple(PRODUCTS) == RATE_KINDS == tuple(kind for kind, one in PRODUCTS.items() if one.kind == kind)


def test_sizes_of_several_places_are_whole_places_and_fit_where_the_others_do() -> None:
    for stream in (STREAMS[kind] for kind in MIXES):
        for moved in FULL.mix_sizes:
            n = stream.elements(moved)
            assert n % PLACE == 0 and 4 * n * (stream.reads + stream.writes) == moved
        assert stream.footprint(max(FULL.mix_sizes)) <= max(FULL.sizes)
        assert stream.footprint(max(QUICK.mix_sizes)) <= max(QUICK.sizes)


def test_small_memory_leaves_large_sizes_out() -> None:
    points = roofs.measure(FakeBench(memory=256 << 20)).points
    largest = {kind: max(point.moved for point in points if point.kind == kind) >> 20 for kind in STREAMS}
    assert largest == dict.fromkeys(("read", "write", "inplace", "copy"), 256) | dict.fromkeys(MIXES, 270)
    points = roofs.measure(FakeBench(memory=512 << 20), Plan((1 << 30, 1 << 20), (), (), 0.1)).points
    # Half of it read, the same half written.
    assert {point.moved >> 20 for point in points if point.kind == "inplace"} == {1, 1024}
    with pytest.raises(DeviceError, match="too little free GPU memory for a stream of 1 MiB"):
        roofs.measure(FakeBench(memory=1000))


def test_throttled_configurations_do_not_count() -> None:
    found = roofs.measure(FakeBench(throttled=[CONFIGS[1]]), SMALL)
    assert found.points[0].config != CONFIGS[1] and found.points[0].dropped == 10
    assert roofs.found_data("h200-sxm", FACTS, found)["throttled"] == 40  # of four kinds
    silent = replace(found, l2=(replace(found.points[0], dropped=None),))
    assert roofs.found_data("h200-sxm", FACTS, silent)["throttled"] is None  # not none
    with pytest.raises(DeviceError, match=r"all 40 samples of read 1 MiB \(power cap\)"):
        roofs.measure(FakeBench(throttled=CONFIGS), SMALL)


def test_a_wrong_document_is_refused() -> None:
    data = _data(plan=SMALL)
    text = roofs.document(data)
    with pytest.raises(InputError, match="bandwidth_gb_s"):
        roofs.check_document(text.replace("bandwidth_gb_s: ", "bandwidth_gb_s: -", 1), "h200-sxm")
    only_reads = [point for point in data["points"] if point["kind"] == "read"]
    with pytest.raises(InputError, match="needs points of kind read, and of inplace or copy"):
        roofs.check_document(roofs.document({**data, "points": only_reads}), "h200-sxm")


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    """One quick measurement: bandwidths of DRAM are below the datasheet's, those of L2 and of products plausible."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "perfkit", "roofline", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = tmp_path.glob("*-roofs.yaml")
    data = read_roofs(path)
    gpu = load_gpu(data["gpu"])
    assert path.name == f"{gpu.key}-roofs.yaml"
    found = measured_roofs(gpu.key, data)
    assert 0.1 < found.graph_node_us < found.launch_us + 10
    assert all(point["bandwidth_gb_s"] < gpu.bandwidth_gb_s for point in data["points"])  # cold: never L2's bandwidth
    assert found.read_gb_s > found.inplace_gb_s > 0.5 * gpu.bandwidth_gb_s
    assert [share for share, _ in found.mixes] == list(MIXES.values())
    assert all(0.5 * gpu.bandwidth_gb_s < mix.plateau_gb_s < found.read_gb_s for _, mix in found.mixes)
    assert found.l2_gb_s(gpu.l2_mb * MIB / 4) > found.read_gb_s
    stated = {"bf16": gpu.bf16_tflops, "tf32": gpu.tf32_tflops, "fp32": gpu.fp32_tflops}
    for kind, peak in stated.items():
        assert found.rate(kind) is not None and 0.3 * peak < found.rate(kind) < 1.1 * peak, kind
