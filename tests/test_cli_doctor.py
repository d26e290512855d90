"""``perfkit doctor``: what works, what does not, and that it never raises."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfkit import doctor
from perfkit.cli import app
from perfkit.device import DeviceFacts, Process
from perfkit.doctor import Finding
from perfkit.errors import DeviceError
from perfkit.profiles import read_roofs
from perfkit.profiles.measured import MEASURED


def findings(runs: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.examine(runs)}


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the children by answers that a test may change."""
    answers: dict[str, Any] = {
        "interpret": {
            "torch": {"ok": True, "detail": {"version": "2.13.0", "cuda": None, "available": False, "devices": 0}},
            "interpreter": {"ok": True, "detail": "works"},
        },
        "compile": {"compile": {"sm_80": {"ok": True, "detail": "1 byte"}, "sm_90": {"ok": True, "detail": "1 byte"}}},
    }
    monkeypatch.setattr(doctor, "_probe", answers.__getitem__)
    return answers


@pytest.mark.slow
def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real children: what runs this suite must pass the doctor."""
    assert app.run(["doctor", "--json", "--runs", str(tmp_path / "runs")]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is True
    by_name = {finding["name"]: finding for finding in data["findings"]}
    for name in ("python", "packages", "profiles", "runs folder", "torch", "interpreter", "triton", "compile targets"):
        assert by_name[name]["state"] == "ok", by_name[name]
    assert by_name["compile targets"]["detail"] == "sm_80, sm_90, sm_100, sm_103, sm_120"
    assert {"gpu", "ncu", "counters", "nvtx", "chromium"} <= set(by_name)
    for finding in by_name.values():
        assert (finding["remedy"] == "") == (finding["state"] == "ok"), finding
    assert not (tmp_path / "runs").exists()


def test_text_has_a_line_a_finding(
    tmp_path: Path, no_children: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["doctor", "--runs", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.lstrip().startswith("->")]
    assert all(line.split()[0] in ("ok", "missing", "broken") for line in lines)
    assert "compile targets" in "".join(lines)


def test_missing_package_is_broken_and_exits_3(
    tmp_path: Path, no_children: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "pyarrow" else real(name))
    assert app.run(["doctor", "--json", "--runs", str(tmp_path)]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False
    packages = next(finding for finding in data["findings"] if finding["name"] == "packages")
    assert packages["state"] == "broken"
    assert "pyarrow" in packages["detail"]
    assert packages["remedy"].endswith("pip install pyarrow")


def test_no_torch(tmp_path: Path, no_children: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "torch" else real(name))
    found = findings(tmp_path)
    assert (found["torch"].state, found["torch"].required) == ("broken", True)
    assert "interpreter" not in found


def test_torch_that_does_not_import(tmp_path: Path, no_children: dict[str, Any]) -> None:
    no_children["interpret"] = {"torch": {"ok": False, "detail": "ImportError: libtorch.so"}}
    found = findings(tmp_path)
    assert found["torch"].state == "broken"
    assert "libtorch.so" in found["torch"].detail


def test_child_that_crashes(tmp_path: Path, no_children: dict[str, Any]) -> None:
    no_children["interpret"] = {"failed": "the child ended with signal 11: "}
    no_children["compile"] = {"failed": "no answer within 180 s"}
    found = findings(tmp_path)
    assert "signal 11" in found["torch"].detail
    assert found["compile targets"].state == "broken"


def test_interpreter_and_target_that_fail(tmp_path: Path, no_children: dict[str, Any]) -> None:
    no_children["interpret"]["interpreter"] = {"ok": False, "detail": "ValueError: wrong numbers"}
    no_children["compile"]["compile"]["sm_90"] = {"ok": False, "detail": "no ptxas"}
    found = findings(tmp_path)
    assert (found["interpreter"].state, found["interpreter"].required) == ("broken", True)
    assert found["compile targets"].state == "broken"
    assert "sm_80" in found["compile targets"].detail
    assert "sm_90: no ptxas" in found["compile targets"].detail


def test_triton_that_does_not_go_with_torch(
    tmp_path: Path, no_children: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "triton_wanted", lambda: "3.6.0")
    found = findings(tmp_path)
    assert found["triton"].state == "broken"
    assert found["triton"].remedy.endswith("triton==3.6.0")


def test_wanted_triton_is_read_from_the_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["filelock", "triton==3.6.0; platform_system == 'Linux'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: lines)
    assert doctor.triton_wanted() == "3.6.0"
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["filelock"])
    assert doctor.triton_wanted() is None


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").is_dir(), reason="needs a folder root cannot write")
def test_unwritable_runs_folder(tmp_path: Path, no_children: dict[str, Any]) -> None:
    # Not even root may create files in /proc.
    folder = Path("/proc/self") if os.geteuid() == 0 else tmp_path / "locked"
    if os.geteuid() != 0:
        folder.mkdir(mode=0o500)
    found = findings(folder / "runs")["runs folder"]
    assert found.state == "broken"
    assert str(folder.resolve()) in found.detail
    assert "--out" in found.remedy


def test_little_space(tmp_path: Path, no_children: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    assert findings(tmp_path)["runs folder"].state == "missing"


@pytest.mark.parametrize(
    ("text", "restricted"),
    [
        ("RmProfilingAdminOnly: 1\n", True),
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n", False),
        ("nothing: 1\n", None),
    ],
)
def test_counters(text: str, restricted: bool | None, tmp_path: Path) -> None:
    params = tmp_path / "params"
    params.write_text(text)
    assert doctor.counters_restricted(params) is restricted
    assert doctor.counters_restricted(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("restricted", "uid", "state"),
    [(True, 1000, "missing"), (True, 0, "ok"), (False, 1000, "ok"), (None, 0, "missing")],
)
def test_counters_finding(
    restricted: bool | None, uid: int, state: str, tmp_path: Path, no_children: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(doctor, "counters_restricted", lambda: restricted)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: uid)
    found = findings(tmp_path)["counters"]
    assert found.state == state
    if state == "missing" and restricted:
        assert "NVreg_RestrictProfilingToAdminUsers=0" in found.remedy


def facts(**changes: Any) -> DeviceFacts:
    values = dict.fromkeys(DeviceFacts.__dataclass_fields__) | {
        "index": 0, "name": "NVIDIA H200", "uuid": "GPU-1a2b", "visible": "GPU-1a2b", "driver": "580.1", "cuda": "13.0",
        "compute_capability": "9.0", "memory_total_mib": 143771, "clock_reasons": (), "processes": (),
    }  # fmt: skip
    return DeviceFacts(**values | changes)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, no_children: dict[str, Any]) -> dict[str, Any]:
    """Pretend that there is a GPU; a test may change its facts."""
    changes: dict[str, Any] = {}
    monkeypatch.setattr("perfkit.device.visible_gpu", lambda: facts(**changes))
    no_children["interpret"]["torch"]["detail"] |= {"cuda": "13.0", "available": True, "devices": 1}
    return changes


def test_known_gpu(tmp_path: Path, gpu: dict[str, Any]) -> None:
    found = findings(tmp_path)
    assert found["gpu"].state == "ok"
    assert found["gpu"].detail == "h200-sxm: NVIDIA H200, 143,771 MiB, driver 580.1, CUDA 13.0, GPU-1a2b"
    assert found["gpu is free"].state == "ok"
    assert found["torch with gpu"].state == "ok"


def test_whose_roofs_are_used(tmp_path: Path, gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(tmp_path)["roofs"]
    assert (found.state, found.remedy) == ("missing", "perfkit roofline")
    own = tmp_path / "h200-sxm-roofs.yaml"
    date = read_roofs(MEASURED / own.name)["date"]
    assert found.detail == f"this GPU's were not measured; used are: shipped, measured {date}"
    monkeypatch.setenv("PERFKIT_ROOFS", str(tmp_path))
    own.write_text((MEASURED / own.name).read_text().replace(date, "2026-12-24"))
    found = findings(tmp_path)["roofs"]
    assert (found.state, found.detail) == ("ok", "measured here 2026-12-24")
    own.write_text("schema: 5\n")
    found = findings(tmp_path)["roofs"]
    assert found.state == "broken" and str(own) in found.detail and not found.required
    gpu["name"] = "NVIDIA Z9000"
    assert "roofs" not in findings(tmp_path)


def test_unknown_gpu_is_named_not_guessed(tmp_path: Path, gpu: dict[str, Any]) -> None:
    gpu["name"] = "NVIDIA Z9000"
    found = findings(tmp_path)["gpu"]
    assert found.state == "missing"
    assert "NVIDIA Z9000" in found.detail
    assert "no profile" in found.detail


def test_mig_instance_is_named(tmp_path: Path, gpu: dict[str, Any]) -> None:
    gpu["mig_uuid"] = "MIG-1"
    assert "MIG instance" in findings(tmp_path)["gpu"].detail


def test_busy_gpu(tmp_path: Path, gpu: dict[str, Any]) -> None:
    gpu["processes"] = (Process(pid=1, memory_mib=61_000),)
    found = findings(tmp_path)["gpu is free"]
    assert found.state == "missing"
    assert "61,000 MiB" in found.detail


def test_cpu_build_of_torch_beside_a_gpu(tmp_path: Path, gpu: dict[str, Any], no_children: dict[str, Any]) -> None:
    no_children["interpret"]["torch"]["detail"] |= {"cuda": None, "available": False, "devices": 0}
    found = findings(tmp_path)["torch with gpu"]
    assert found.state == "broken"
    assert "CPU build" in found.detail


def test_no_gpu(tmp_path: Path, no_children: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> DeviceFacts:
        raise DeviceError("no NVIDIA driver answers")

    monkeypatch.setattr("perfkit.device.visible_gpu", none)
    found = findings(tmp_path)
    assert (found["gpu"].state, found["gpu"].required) == ("missing", False)
    assert "predicts" in found["gpu"].remedy
    assert "torch with gpu" not in found


def test_a_check_that_raises_is_a_line(
    tmp_path: Path, no_children: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_check() -> Iterator[Finding]:
        raise RuntimeError("unforeseen\nthing")
        yield

    monkeypatch.setattr(doctor, "_nvtx", broken_check)
    found = findings(tmp_path)
    assert found["broken check"].state == "broken"
    assert found["broken check"].detail == "RuntimeError: unforeseen thing"
    assert "chromium" in found
