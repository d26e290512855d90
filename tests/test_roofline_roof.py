"""Roofs and predicted times, against what one H200 SXM did and against physical sense."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.method import Step
from perfkit.profiles import load_gpu
from perfkit.roofline import efficiency_for, predict, roofs_for, shipped_roofs
from perfkit.roofline.roof import INPLACE_EFFICIENCY, RAMP_US, READ_EFFICIENCY, Curve, datasheet_roofs, measured_roofs


@dataclass(frozen=True)
class FakeGpu:
    key: str = "h200-sxm"
    bandwidth_gb_s: float | None = 4800.0
    fp32_tflops: float | None = 67.0
    bf16_tflops: float | None = 989.4
    l2_mb: float | None = 60.0
    boost_clock_mhz: float | None = 1980.0


H200 = FakeGpu()
STATE = 4 * 128 * 64 * 128  # one sequence's state in a Nemotron-3-Super layer, bytes
MEASURED = {  # H200: reads 4.53, in place 3.99 TB/s at 2.1 GB
    "gpu": "h200-sxm",
    "points": [
        {"kind": "read", "bytes": 4_000_000, "bandwidth_gb_s": 1200.0},
        {"kind": "read", "bytes": 64_000_000, "bandwidth_gb_s": 3700.0},
        {"kind": "read", "bytes": 2_100_000_000, "bandwidth_gb_s": 4260.0},
        {"kind": "read", "bytes": 2_100_000_000, "bandwidth_gb_s": 4530.0},
        {"kind": "write", "bytes": 2_100_000_000, "bandwidth_gb_s": 4440.0},
        {"kind": "inplace", "bytes": 8_000_000, "bandwidth_gb_s": 1700.0},
        {"kind": "inplace", "bytes": 2_100_000_000, "bandwidth_gb_s": 3990.0},
    ],
    "launch_us": 4.2,
    "graph_node_us": 1.9,
}


def test_shares_of_a_datasheet_are_what_ships_of_the_h200() -> None:
    roofs, stated = shipped_roofs(load_gpu("h200-sxm")), 4800.0
    size = 2 << 30
    assert size / float(roofs.time_us(size, 0)) / 1e3 / stated == pytest.approx(READ_EFFICIENCY, rel=0.015)
    assert size / float(roofs.time_us(size / 2, size / 2)) / 1e3 / stated == pytest.approx(INPLACE_EFFICIENCY, rel=0.01)


def test_datasheet_roofs_are_the_h200_s() -> None:
    roofs = datasheet_roofs("h200-sxm", 4800.0)
    assert (roofs.source, roofs.calibrated) == ("datasheet", False)
    assert roofs.read_gb_s == pytest.approx(4666, rel=1e-3)
    assert roofs.inplace_gb_s == pytest.approx(4205, rel=1e-3)
    assert roofs.write_gb_s == pytest.approx(3827, rel=1e-3)  # 1 / (2 / 4205 - 1 / 4666)
    assert roofs.bandwidth_gb_s(1e12, 0) == pytest.approx(4666, rel=1e-3)
    assert roofs.bandwidth_gb_s(1e12, 1e12) == pytest.approx(4205, rel=1e-3)


def test_datasheet_roofs_are_like_the_measured_ones() -> None:
    stated, measured = datasheet_roofs("h200-sxm", 4800.0), roofs_for(load_gpu("h200-sxm"))
    assert measured.calibrated
    assert stated.graph_node_us == pytest.approx(measured.graph_node_us, rel=0.01)
    for mib in (1, 4, 16, 64, 256, 1024, 2048):
        size = mib * 2**20
        assert stated.time_us(size, 0) == pytest.approx(measured.time_us(size, 0), rel=0.1), mib
        assert stated.time_us(size / 2, size / 2) == pytest.approx(measured.time_us(size / 2, size / 2), rel=0.1), mib


def test_measured_roofs() -> None:
    roofs = measured_roofs("h200-sxm", MEASURED)
    assert roofs.calibrated
    assert (roofs.launch_us, roofs.graph_node_us) == (4.2, 1.9)
    # A node's cost is taken off, the fastest configuration counts, the plateau is kept.
    assert roofs.read.time_us(2.1e9) == pytest.approx(2.1e9 / 4.53e6, abs=1e-6)
    assert roofs.read.time_us(64e6) == pytest.approx(64e6 / 3.7e6 - 1.9)
    assert roofs.read.time_us(4.2e9) == pytest.approx(2 * 2.1e9 / 4.53e6)
    assert roofs.time_us(1.05e9, 1.05e9) == pytest.approx(2.1e9 / 3.99e6, rel=1e-6)
    assert roofs.bandwidth_gb_s(4e6, 0) < 0.75 * roofs.read_gb_s


def test_a_file_without_launch_costs_takes_the_stated_ones() -> None:
    roofs = measured_roofs("h200-sxm", {**MEASURED, "launch_us": None, "graph_node_us": None})
    assert (roofs.launch_us, roofs.graph_node_us) == (4.0, 0.5)


def test_copy_stands_in_for_in_place() -> None:
    points = [
        {"kind": "read", "bytes": 1e9, "bandwidth_gb_s": 4000},
        {"kind": "copy", "bytes": 1e9, "bandwidth_gb_s": 3500},
    ]
    assert measured_roofs("x", {"points": points}).inplace_gb_s == pytest.approx(3500, rel=0.01)


def test_reads_and_writes_add_up_to_half_and_no_worse_after() -> None:
    roofs = datasheet_roofs("h200-sxm", 4800.0)
    assert roofs.write is None
    base = roofs.time_us(1e9, 0)
    slope = roofs.time_us(1e9, 1e9) - base
    for writes in (0.25e9, 0.5e9, 0.75e9):
        assert roofs.time_us(1e9, writes) - base == pytest.approx(slope * writes / 1e9, rel=1e-3)
    assert roofs.bandwidth_gb_s(1e9, 8e9) == pytest.approx(roofs.bandwidth_gb_s(4.5e9, 4.5e9), rel=1e-9)


def test_past_half_what_is_written_more_than_read_runs_at_the_write_roof() -> None:
    points = [{"kind": kind, "bytes": 1e9, "bandwidth_gb_s": roof}
              for kind, roof in (("read", 4000), ("inplace", 3200), ("write", 3600))]  # fmt: skip
    roofs = measured_roofs("x", {"points": points, "graph_node_us": 1e-9})
    assert roofs.bandwidth_gb_s(0, 1e9) == pytest.approx(3600)
    assert roofs.bandwidth_gb_s(1e9, 1e9) == pytest.approx(3200)
    # A snapshot step at T = 8 reads one state and writes eight: one of each in place, seven more.
    assert roofs.time_us(1e9, 8e9) == pytest.approx(2e9 / 3.2e6 + 7e9 / 3.6e6)
    assert roofs.time_us(1e9, 0.5e9) == pytest.approx(0.5e9 / 4e6 + 1e9 / 3.2e6)
    mixes = np.linspace(0, 1, 101)
    times = roofs.time_us(1e9 * (1 - mixes), 1e9 * mixes)
    assert np.all(np.abs(np.diff(times)) < 2)  # no jump where one curve hands over to the next
    without = measured_roofs("x", {"points": points[:2], "graph_node_us": 1e-9})
    assert without.write is None
    assert without.bandwidth_gb_s(0, 1e9) == pytest.approx(3200)
    shipped = roofs_for(load_gpu("h200-sxm"))
    assert shipped.bandwidth_gb_s(0, 2147483648) == pytest.approx(4683, abs=1)
    # One read and eight writes: slower than either alone.
    assert shipped.bandwidth_gb_s(1e9, 8e9) == pytest.approx(3913, abs=4)


ONE_SIZE = {"read": 4600, "inplace": 4200, "1r2w": 4000, "1r4w": 3900, "1r8w": 3850, "write": 4600}


def _one_size(*kinds: str) -> Any:
    points = [{"kind": kind, "bytes": 9e9, "bandwidth_gb_s": ONE_SIZE[kind]} for kind in kinds]
    return measured_roofs("x", {"points": points, "graph_node_us": 1e-9})


def test_measured_mixes_are_knots_of_the_share_of_writes() -> None:
    roofs = _one_size("1r8w", *ONE_SIZE)
    assert [share for share, _ in roofs.mixes] == [2 / 3, 4 / 5, 8 / 9]
    for writes, expected in ((0, 4600), (1, 4200), (2, 4000), (4, 3900), (8, 3850), (1e12, 4600)):
        assert roofs.bandwidth_gb_s(9e9 / (1 + writes), 9e9 * writes / (1 + writes)) == pytest.approx(expected)
    # Between neighbours the time of the same bytes is linear in the share: w = 17/18 is half way from 8/9 to 1.
    assert roofs.time_us(0.5e9, 8.5e9) == pytest.approx((9e9 / 3.85e6 + 9e9 / 4.6e6) / 2)
    assert roofs.time_us(3.75e9, 5.25e9) == pytest.approx((9e9 / 4.2e6 + 9e9 / 4e6) / 2)
    # Up to half nothing depends on mixes.
    assert roofs.time_us(6e9, 2e9) == pytest.approx(_one_size("read", "inplace").time_us(6e9, 2e9))


def test_mixes_below_half_bend_the_line_between_reads_and_in_place() -> None:
    points = {**ONE_SIZE, "4r1w": 4100, "2r1w": 4000}
    data = [{"kind": kind, "bytes": 9e9, "bandwidth_gb_s": roof} for kind, roof in points.items()]
    roofs = measured_roofs("x", {"points": data, "graph_node_us": 1e-9})
    assert [share for share, _ in roofs.mixes] == [1 / 5, 1 / 3, 2 / 3, 4 / 5, 8 / 9]
    for reads, writes, expected in ((1, 0, 4600), (4, 1, 4100), (2, 1, 4000), (1, 1, 4200), (1, 2, 4000)):
        total = reads + writes
        assert roofs.bandwidth_gb_s(9e9 * reads / total, 9e9 * writes / total) == pytest.approx(expected)
    assert roofs.time_us(0.9 * 9e9, 0.1 * 9e9) == pytest.approx((9e9 / 4.6e6 + 9e9 / 4.1e6) / 2)


def test_missing_mixes_are_skipped() -> None:
    some = _one_size("read", "inplace", "1r8w", "write")
    assert some.time_us(1e9, 8e9) == pytest.approx(9e9 / 3.85e6)
    # w = 25/36 is half way from 1/2 to 8/9.
    assert some.time_us(2.75e9, 6.25e9) == pytest.approx((9e9 / 4.2e6 + 9e9 / 3.85e6) / 2)
    no_write = _one_size("read", "inplace", "1r2w")
    assert no_write.bandwidth_gb_s(0, 9e9) == no_write.bandwidth_gb_s(3e9, 6e9) == pytest.approx(4000)
    without = _one_size("read", "inplace", "write")
    assert without.mixes == ()
    assert without.time_us(1e9, 8e9) == pytest.approx(2e9 / 4.2e6 + 7e9 / 4.6e6)


def test_below_its_sizes_a_mix_has_the_shape_of_in_place() -> None:
    points = [{"kind": "1r8w", "bytes": size, "bandwidth_gb_s": roof} for size, roof in ((9e7, 3600), (9e8, 3800))]
    roofs = measured_roofs("h200-sxm", {**MEASURED, "points": [*MEASURED["points"], *points]})
    assert roofs.time_us(1e7, 8e7) == pytest.approx(9e7 / 3.8e6)  # the node's cost off, but not above its best
    ratio = roofs.time_us(1e7, 8e7) / roofs.time_us(4.5e7, 4.5e7)
    for moved in (1e3, 1e6, 8e6, 5e7):
        assert roofs.time_us(moved / 9, moved / 9 * 8) == pytest.approx(ratio * roofs.time_us(moved / 2, moved / 2))
    assert roofs.bandwidth_gb_s(1e9, 8e9) == pytest.approx(3800)
    times = roofs.time_us(np.geomspace(1, 1e10, 500), 8 * np.geomspace(1, 1e10, 500))
    assert np.all(np.diff(times) >= 0)


def test_mixes_broadcast() -> None:
    roofs = _one_size(*ONE_SIZE)
    reads, writes = np.array([[0.0], [1e9], [3e9]]), np.array([0.0, 1e6, 1e9, 8e9])
    many = roofs.time_us(reads, writes)
    assert many.shape == (3, 4) and many[0, 0] == 0
    assert many == pytest.approx(np.array([[roofs.time_us(r, w) for w in writes] for r in reads[:, 0]]))


@given(st.floats(0, 1e11), st.floats(0, 1e11), st.floats(1, 1e10))
def test_more_bytes_never_take_less_time(read: float, write: float, more: float) -> None:
    roofs = datasheet_roofs("x", 4800.0)
    time = roofs.time_us(read, write)
    assert roofs.time_us(read + more, write) >= time * (1 - 1e-9)
    assert roofs.time_us(read, write + more) >= time * (1 - 1e-9)
    # Two measured curves have intercepts of their own, so only more of the same mix is sure to take longer.
    measured = measured_roofs("h200-sxm", MEASURED)
    assert measured.time_us(2 * read, 2 * write) >= measured.time_us(read, write) * (1 - 1e-9)


def test_nothing_takes_no_time() -> None:
    roofs = datasheet_roofs("x", 4800.0)
    assert roofs.time_us(0, 0) == 0
    assert np.isnan(roofs.bandwidth_gb_s(0, 0))
    assert isinstance(roofs.time_us(1, 0), float)


def test_curve_beats_no_roof_of_its_own() -> None:
    curve = Curve.measured([(1e6, 4000.0), (1e9, 4000.0)], node_us=2.0)
    assert curve.time_us(1e6) == pytest.approx(0.25)  # not 0.25 - 2
    assert np.all(np.diff(curve.time_us(np.geomspace(1, 1e11, 500))) >= 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"points": []}, "needs points"),
        ({"points": None}, "needs points"),
        ({"points": [{"kind": "sideways", "bytes": 1, "bandwidth_gb_s": 1}]}, "points[0].kind"),
        ({"points": ["read"]}, "points[0].kind"),
        ({"points": [{"kind": "read", "bytes": 0, "bandwidth_gb_s": 1}]}, "points[0].bytes"),
        ({"points": [{"kind": "read", "bytes": 1, "bandwidth_gb_s": "4.5e3"}]}, "points[0].bandwidth_gb_s"),
        ({"graph_node_us": -1}, "graph_node_us"),
        ({"launch_us": float("nan")}, "launch_us"),
    ],
)
def test_malformed_files_are_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        measured_roofs("h200-sxm", {**MEASURED, **change})
    assert says in str(caught.value)
    assert "h200-sxm-roofs.yaml" in str(caught.value)


def test_roofs_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    assert roofs_for(H200, MEASURED).source == "measured"
    files: dict[str, Any] = {"h200-sxm": MEASURED}
    monkeypatch.setitem(sys.modules, "perfkit.profiles", SimpleNamespace(find_roofs=files.get))
    assert roofs_for(H200).source == "measured"
    assert roofs_for(FakeGpu(key="other")).source == "datasheet"
    with pytest.raises(InputError, match="unheard-of"):
        roofs_for(FakeGpu(key="unheard-of", bandwidth_gb_s=None))


def test_every_gpu_has_roofs() -> None:
    from perfkit.profiles import list_gpus

    for gpu in list_gpus():
        roofs = roofs_for(gpu)
        assert 0.5 * gpu.bandwidth_gb_s < roofs.inplace_gb_s < roofs.read_gb_s < gpu.bandwidth_gb_s, gpu.key
        prediction = predict(gpu, roofs, conventional(64))
        assert 0 < prediction.lo <= prediction.us < prediction.hi
        assert (prediction.lo == prediction.us) == roofs.calibrated
        assert prediction.limit in ("DRAM", "ALU")


def conventional(batch: int) -> Step:
    return Step(batch * STATE, batch * STATE, batch * 128 * 40_896)


@pytest.mark.parametrize(
    ("batch", "measured_us"),
    [(1, 4.6), (4, 11.1), (16, 38.1), (256, 559.0), (256, 547.0)],  # conventional decode, one H200, cold L2, CUDA graph
)
def test_conventional_decode_on_an_h200(batch: int, measured_us: float) -> None:
    roofs = datasheet_roofs("h200-sxm", 4800.0)
    known = efficiency_for("mamba2", "conventional", "decode")
    predicted = predict(H200, roofs, conventional(batch), efficiency=known)
    assert predicted.lo < measured_us < predicted.hi
    assert predicted.us == pytest.approx(measured_us, rel=0.08)
    assert predict(H200, roofs, conventional(batch)).us < measured_us  # the bound alone


@pytest.mark.parametrize(("draft_len", "measured_us"), [(2, 820.0), (4, 1390.0), (8, 2526.0)])
def test_snapshots_on_an_h200(draft_len: int, measured_us: float) -> None:
    state = 256 * STATE
    step = Step(state, draft_len * state, draft_len * 256 * 128 * 40_896, serial=draft_len)
    predicted = predict(H200, datasheet_roofs("h200-sxm", 4800.0), step)
    assert 0.9 * measured_us < predicted.us < measured_us < predicted.hi  # a bound
    assert predicted.limit == "DRAM"


@pytest.mark.parametrize(("h", "measured_us"), [(0, 287.0), (7, 288.0), (14, 310.0)])
def test_replay_decode_on_an_h200(h: int, measured_us: float) -> None:
    record = 256 * (128 * 64 * 2 + 8 * 128 * 2 + 128 * 4)
    step = Step(256 * STATE + (h + 1) * record, record, 256 * 128 * (2 * 8192 + 2 * (h + 1) * 192))
    predicted = predict(H200, datasheet_roofs("h200-sxm", 4800.0), step)
    assert predicted.lo < measured_us < predicted.hi  # a roof: the probe kernels were throwaway
    assert predicted.us < measured_us


def test_limits() -> None:
    roofs = datasheet_roofs("h200-sxm", 4800.0)
    assert predict(H200, roofs, conventional(256)).limit == "DRAM"
    assert predict(H200, roofs, Step(1000, 1000, 1000, launches=4)).limit == "launch"
    assert predict(H200, roofs, Step(1e6, 1e6, 1e6, serial=64)).limit == "chain"
    assert predict(H200, roofs, Step(1e6, 1e6, 1e12)).limit == "ALU"
    assert predict(H200, roofs, conventional(4), l2="warm").limit == "L2"
    assert predict(H200, roofs, conventional(64), l2="warm").limit == "DRAM"  # 268 MB do not fit
    warm, cold = predict(H200, roofs, conventional(4), l2="warm"), predict(H200, roofs, conventional(4))
    assert warm.us < cold.us
    assert predict(H200, roofs, conventional(4), l2="warm", working_set=400e6) == cold
    with pytest.raises(InputError, match="tepid"):
        predict(H200, roofs, conventional(4), l2="tepid")


def _with(**more: Any) -> Any:
    return measured_roofs("h200-sxm", {**MEASURED, **more})


def test_measured_l2_and_rates_go_before_the_stated_ones() -> None:
    plain = _with()
    assert plain.l2_gb_s(1e6) is None and plain.rate("fp32") is None
    l2 = [{"bytes": size * 2**20, "bandwidth_gb_s": rate} for size, rate in ((8, 9000.0), (4, 8000.0), (32, 6000.0))]
    found = _with(l2=l2, rates=[{"kind": "fp32", "tflops": 48.0}, {"kind": "bf16", "tflops": 700.0}])
    assert [found.l2_gb_s(size * 2**20) for size in (1, 4, 6, 8, 20, 64)] == [8000, 8000, 8500, 9000, 7500, 6000]
    assert (found.rate("bf16"), found.rate("tf32")) == (700.0, None)
    step = conventional(4)  # 16 MiB each way: its state stays
    held = 4 * STATE
    warm = predict(H200, found, step, l2="warm")
    assert warm.limit == "L2"
    assert warm.us == pytest.approx(plain.graph_node_us + RAMP_US + 2 * held / found.l2_gb_s(held) / 1e3)
    stated = predict(H200, plain, step, l2="warm").us
    assert stated == pytest.approx(plain.graph_node_us + RAMP_US + 2 * held / (1.5 * plain.read_gb_s) / 1e3)
    heavy = Step(1e6, 1e6, 1e12)
    assert predict(H200, plain, heavy).us == pytest.approx(1.9 + 1e12 / (0.5 * 67e6))
    assert predict(H200, found, heavy).us == pytest.approx(1.9 + 1e12 / (5 / 6 * 48e6))
    assert predict(FakeGpu(fp32_tflops=None), found, heavy).limit == "ALU"


def test_roofs_say_whose_they_are() -> None:
    assert datasheet_roofs("x", 4800.0).described == "datasheet, uncalibrated"
    assert _with(origin="here", date="2026-11-30").described == "measured here 2026-11-30"
    assert _with(origin="shipped", date="2026-11-30").described == "shipped, measured 2026-11-30"
    assert _with(file="a/b.yaml").described == "a/b.yaml, measured"
    assert _with(origin="here", date="2026-11-30", file="x.yaml").provenance() == {
        "source": "measured", "origin": "here", "date": "2026-11-30", "text": "measured here 2026-11-30",
    }  # fmt: skip


def test_the_shipped_roofs_are_those_of_everybody(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A user's own file goes before the shipped one, except where rows that ship are derived."""
    from perfkit.profiles import roofs_folder

    gpu = load_gpu("h200-sxm")
    shipped = roofs_for(gpu)
    assert (shipped.origin, shipped.source) == ("shipped", "measured")
    monkeypatch.setenv("PERFKIT_ROOFS", str(tmp_path))
    assert roofs_folder() == tmp_path
    points = "".join(f"  - {{kind: {kind}, bytes: 2e9, bandwidth_gb_s: 4000}}\n" for kind in ("read", "inplace"))
    text = f"schema: 2\ngpu: h200-sxm\nsource: a test\ndate: 2026-12-01\npoints:\n{points}"
    (tmp_path / "h200-sxm-roofs.yaml").write_text(text)
    own = roofs_for(gpu)
    assert (own.origin, own.described, own.read_gb_s) == ("here", "measured here 2026-12-01", pytest.approx(4000))
    assert own.file == str(tmp_path / "h200-sxm-roofs.yaml")
    assert shipped_roofs(gpu) == dataclasses.replace(shipped, file=None)
    assert roofs_for(load_gpu("b200")).described == shipped_roofs(load_gpu("b200")).described


def test_unknown_fields_drop_their_term() -> None:
    bare = FakeGpu(fp32_tflops=None, l2_mb=None, boost_clock_mhz=None)
    roofs = datasheet_roofs("x", 4800.0)
    assert predict(bare, roofs, Step(1e6, 1e6, 1e15)).limit != "ALU"
    assert predict(bare, roofs, conventional(4), l2="warm").limit == "DRAM"


def test_uncalibrated_is_less_sure() -> None:
    step = conventional(256)
    for known in (None, efficiency_for("mamba2", "conventional", "decode")):
        rough = predict(H200, datasheet_roofs("h200-sxm", 4800.0), step, efficiency=known)
        sure = predict(H200, measured_roofs("h200-sxm", MEASURED), step, efficiency=known)
        assert sure.hi / sure.lo < rough.hi / rough.lo
        assert rough.lo < rough.us < rough.hi


def test_launches_add() -> None:
    roofs = datasheet_roofs("x", 4800.0)
    one, three = predict(H200, roofs, Step(1e8, 0, 0)), predict(H200, roofs, Step(1e8, 0, 0, launches=3))
    assert three.us - one.us == pytest.approx(1.0)


def test_arrays_are_each_scalar() -> None:
    roofs = measured_roofs("h200-sxm", MEASURED)
    batches = np.array([1, 4, 256, 2048])
    many = predict(H200, roofs, Step(batches * STATE, batches * STATE, batches * 128 * 40_896))
    for index, batch in enumerate(batches):
        one = predict(H200, roofs, conventional(int(batch)))
        assert (many.us[index], many.lo[index], many.hi[index]) == pytest.approx((one.us, one.lo, one.hi))
        assert many.limit[index] == one.limit
