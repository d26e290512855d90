"""Roofs files: typed, refused in one line where something is wrong, and the user's own before those that ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfkit.errors import InputError
from perfkit.profiles import find_roofs, load_roofs, read_roofs, roofs_folder

ROOFS = """\
gpu: h200-sxm
gpu_uuid: GPU-1a2b
driver: 580.159
date: 2026-11-29
torch: 2.11.0
triton: 3.6.0
source: perfkit roofline on one H200
launch_us: 2.1
graph_node_us: 1.4
points:
  - {kind: read, bytes: 2.1e9, bandwidth_gb_s: 4500, lo: 4480, hi: 4530}
  - {kind: inplace, bytes: 2147483648, bandwidth_gb_s: 3990}
  - {kind: 1r8w, bytes: 2264924160, bandwidth_gb_s: 3850}
"""


def test_roofs_are_read_and_typed(tmp_path: Path) -> None:
    (tmp_path / "h200-sxm-roofs.yaml").write_text(ROOFS, encoding="utf-8")
    roofs = load_roofs("h200-sxm", tmp_path)
    assert roofs is not None
    assert (roofs["driver"], roofs["date"], roofs["torch"]) == ("580.159", "2026-11-29", "2.11.0")
    assert (roofs["launch_us"], roofs["graph_node_us"], roofs["notes"]) == (2.1, 1.4, None)
    assert roofs["points"] == [
        {"kind": "read", "bytes": 2_100_000_000, "bandwidth_gb_s": 4500.0, "lo": 4480.0, "hi": 4530.0, "config": None},
        {"kind": "inplace", "bytes": 2**31, "bandwidth_gb_s": 3990.0, "lo": None, "hi": None, "config": None},
        {"kind": "1r8w", "bytes": 2_264_924_160, "bandwidth_gb_s": 3850.0, "lo": None, "hi": None, "config": None},
    ]
    json.dumps(roofs, allow_nan=False)


def test_no_roofs_is_none(tmp_path: Path) -> None:
    assert load_roofs("h200-sxm", tmp_path) is None
    assert load_roofs("no-such-gpu") is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu: h200-sxm", "gpu: b200", "gpu: 'b200': is not the GPU of the file name (allowed: h200-sxm)"),
        ("launch_us: 2.1", "launch: 2.1", "launch: unknown field; did you mean launch_us?"),
        ("launch_us: 2.1", "launch_us: -2", "launch_us: -2: must be at least 0"),
        ("source: perfkit roofline on one H200\n", "", "source: missing"),
        ("kind: read", "kind: reed", "points[0].kind: 'reed': unknown value (allowed: read, 4r1w, 2r1w, inplace, "),
        ("bytes: 2.1e9", "bytes: 0", "points[0].bytes: 0: must be at least 1"),
        ("bytes: 2.1e9, ", "", "points[0].bytes: missing"),
        ("3990", ".nan", "points[1].bandwidth_gb_s: nan: must be a finite number"),
        ("3990", "0", "points[1].bandwidth_gb_s: 0: must be above 0"),
        ("lo: 4480", "lo: 4510", "points[0].bandwidth_gb_s: 4500.0: must lie between lo and hi"),
        ("hi: 4530", "high: 4530", "points[0].high: unknown field"),
        (ROOFS[ROOFS.index("points:") :], "points: []\n", "points: must be a list of at least one point"),
    ],
)
def test_bad_roofs_are_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "h200-sxm-roofs.yaml"
    assert old in ROOFS
    path.write_text(ROOFS.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_roofs("h200-sxm", tmp_path)
    assert str(caught.value).startswith(f"{path}: {expected}")


SCHEMA_2 = """\
schema: 2
gpu: h200-sxm
name: NVIDIA H200
memory_mib: 143771
source: a test
runs: 2
spread: 0.004
throttled: 0
sm_clock_mhz: 1980
sm_clock_max_mhz: 1980
power_limit_w: 700
l2_mib: 60
launch_us: 16.7
graph_node_us: 0.5
graph_us: 11.4
points:
  - {kind: read, bytes: 2147483648, bandwidth_gb_s: 4600, config: tile=1024 warps=4}
  - {kind: 4r1w, bytes: 2147483648, bandwidth_gb_s: 4300}
l2:
  - {bytes: 3932160, bandwidth_gb_s: 7000.5, lo: 6990, hi: 7010, config: tile=2048 warps=4 programs=8}
rates:
  - {kind: bf16, tflops: 701, lo: 699, hi: 703, size: 8192, sm_clock_mhz: 1650, power_w: 699.5, capped: 1}
  - {kind: fp32, tflops: 50.5}
"""


def test_schema_2_has_l2_rates_and_what_the_gpu_did(tmp_path: Path) -> None:
    path = tmp_path / "anything.yaml"
    path.write_text(SCHEMA_2, encoding="utf-8")
    roofs = read_roofs(path)
    assert (roofs["schema"], roofs["memory_mib"], roofs["runs"], roofs["spread"]) == (2, 143771, 2, 0.004)
    assert (roofs["graph_us"], roofs["sm_clock_mhz"], roofs["l2_mib"], roofs["throttled"]) == (11.4, 1980.0, 60.0, 0)
    assert [point["config"] for point in roofs["points"]] == ["tile=1024 warps=4", None]
    assert roofs["l2"] == [{"bytes": 3932160, "bandwidth_gb_s": 7000.5, "lo": 6990.0, "hi": 7010.0,
                            "config": "tile=2048 warps=4 programs=8"}]  # fmt: skip
    assert roofs["rates"][0] == {"kind": "bf16", "tflops": 701.0, "lo": 699.0, "hi": 703.0, "size": 8192,
                                 "sm_clock_mhz": 1650.0, "power_w": 699.5, "capped": 1.0}  # fmt: skip
    assert roofs["rates"][1]["power_w"] is None
    roofs["points"] = None  # a caller's own: the next one reads the file
    assert len(read_roofs(path)["points"]) == 2
    path.write_text(SCHEMA_2.replace("spread: 0.004", "spread: 0.04"), encoding="utf-8")
    assert read_roofs(path)["spread"] == 0.04  # not one that was kept


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema: 2", "schema: 3",
         "schema: '3': another schema version; measure again with `perfkit roofline` (allowed: 1, 2)"),
        ("schema: 2", "schema: true", "schema: 'True': another schema version"),
        ("kind: bf16", "kind: bf8", "rates[0].kind: 'bf8': unknown value (allowed: bf16, tf32, fp32)"),
        ("tflops: 701", "tflops: 690", "rates[0].tflops: 690.0: must lie between lo and hi"),
        (", tflops: 50.5", "", "rates[1].tflops: missing"),
        ("capped: 1", "capped: -1", "rates[0].capped: -1: must be at least 0"),
        ("bytes: 3932160", "size: 3932160", "l2[0].size: unknown field"),
        ("bandwidth_gb_s: 7000.5, ", "", "l2[0].bandwidth_gb_s: missing"),
        ("runs: 2", "runs: 1.5", "runs: 1.5: must be a whole number"),
        ("l2:\n", "l2: 7\nother:\n", "other: unknown field"),
    ],
)  # fmt: skip
def test_bad_files_of_schema_2_are_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "x.yaml"
    assert old in SCHEMA_2
    path.write_text(SCHEMA_2.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_roofs(path)
    assert str(caught.value).startswith(f"{path}: {expected}")


def test_the_users_own_go_before_those_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = find_roofs("h200-sxm")
    assert shipped is not None and shipped["origin"] == "shipped"
    assert shipped["file"].endswith("/profiles/measured/h200-sxm-roofs.yaml")
    monkeypatch.setenv("PERFKIT_ROOFS", str(tmp_path))
    assert find_roofs("h200-sxm") == shipped
    (tmp_path / "h200-sxm-roofs.yaml").write_text(SCHEMA_2, encoding="utf-8")
    own = find_roofs("h200-sxm")
    assert own is not None and own["origin"] == "here" and own["file"] == str(tmp_path / "h200-sxm-roofs.yaml")
    assert own["spread"] == 0.004
    assert find_roofs("b200") is None
    assert load_roofs("h200-sxm") == {name: value for name, value in shipped.items() if name not in ("origin", "file")}
    (tmp_path / "h200-sxm-roofs.yaml").write_text("schema: 9\n", encoding="utf-8")
    with pytest.raises(InputError, match="another schema version"):  # not silently others
        find_roofs("h200-sxm")


def test_where_the_users_own_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFKIT_ROOFS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert roofs_folder() == Path("/data/perfkit/roofs")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert roofs_folder() == Path("/home/x/.local/share/perfkit/roofs")
