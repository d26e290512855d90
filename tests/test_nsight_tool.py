"""Nsight Compute is found where it is installed, with the module that belongs to it, or said to be missing."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from perfkit import doctor
from perfkit.errors import DeviceError, ExitCode, InputError
from perfkit.nsight import tool
from perfkit.nsight.processes import descendants, kill_orphan


def script(path: Path, text: str = "echo 'Version 2025.3.1.0 (build 1) (public-release)'") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def module(home: Path) -> Path:
    (home / "extras/python").mkdir(parents=True)
    (home / "extras/python/ncu_report.py").touch()
    return home / "extras/python"


def test_path_comes_first_then_the_newest_of_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert tool.find_ncu(tmp_path) is None
    old = script(tmp_path / "usr/local/cuda-12.4/bin/ncu")
    assert tool.find_ncu(tmp_path) == str(old)
    for version in ("2024.3.2", "2025.10.1", "2025.9.1"):
        script(tmp_path / f"opt/nvidia/nsight-compute/{version}/ncu")
    (tmp_path / "opt/nvidia/nsight-compute/2026.1.1").mkdir()
    newest = tmp_path / "opt/nvidia/nsight-compute/2025.10.1/ncu"
    assert tool.find_ncu(tmp_path) == str(newest)
    newest.chmod(0o644)
    assert tool.find_ncu(tmp_path) == str(tmp_path / "opt/nvidia/nsight-compute/2025.9.1/ncu")
    mine = script(tmp_path / "bin/ncu")
    assert tool.find_ncu(tmp_path) == str(mine)


def test_the_module_is_that_of_the_version_that_runs(tmp_path: Path) -> None:
    home = tmp_path / "opt/nvidia/nsight-compute/2025.3.1"
    ncu, folder = script(home / "ncu"), module(home)
    deep = script(home / "target/linux-desktop-glibc_2_11_3-x64/ncu")
    link = tmp_path / "bin/ncu"
    link.parent.mkdir()
    link.symlink_to(ncu)
    for path in (ncu, deep, link):
        assert tool.python_folder(str(path), "2025.3.1.0", tmp_path) == folder
    # The toolkit's is a script beside the folders of several versions.
    wrapper = script(tmp_path / "usr/local/cuda-13.0/bin/ncu")
    module(tmp_path / "usr/local/cuda-13.0/nsight-compute-2025.2.0")
    assert tool.python_folder(str(wrapper), "2025.3.1.0", tmp_path) == folder
    newer = module(tmp_path / "usr/local/cuda-13.0/nsight-compute-2025.3.1")
    assert tool.python_folder(str(wrapper), "2025.3.1.0", tmp_path) in (folder, newer)
    assert tool.python_folder(str(wrapper), "2026.1.0.0", tmp_path) is None
    assert tool.open_tool(str(ncu)) == tool.Tool(str(ncu), "2025.3.1.0", folder)


def test_missing_and_broken_tools_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "find_ncu", lambda: None)
    with pytest.raises(DeviceError, match=r"not on PATH.*install NVIDIA Nsight Compute.*--ncu") as caught:
        tool.open_tool()
    assert caught.value.exit_code is ExitCode.INCOMPLETE
    with pytest.raises(InputError, match="--ncu: '/no/ncu': is not a program"):
        tool.open_tool("/no/ncu")
    broken = script(tmp_path / "ncu", "echo 'libnvperf_host.so: cannot open shared object file' >&2; exit 127")
    with pytest.raises(DeviceError, match=r"--version: libnvperf_host.so: cannot open"):
        tool.open_tool(str(broken))


def test_the_doctor_looks_where_profile_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu = script(tmp_path / "nsight/ncu")
    monkeypatch.setenv("PATH", f"{ncu.parent}:/usr/bin:/bin")
    found = next(doctor._ncu())
    assert (found.state, found.remedy) == ("ok", "")
    assert found.detail == f"2025.3.1.0 at {ncu}, no ncu_report: reports are read as CSV"
    monkeypatch.setattr(tool, "find_ncu", lambda: None)
    found = next(doctor._ncu())
    assert found.state == "missing" and "perfkit profile" in found.detail
    assert found.remedy.startswith("install NVIDIA Nsight Compute")


def test_an_orphan_is_killed_only_if_it_is_the_one(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # it has just been started
            time.sleep(0.01)
        kill_orphan(process.pid, "6")
        assert process.poll() is None
        kill_orphan(process.pid, "60")
        assert process.wait(timeout=10) == -9
    kill_orphan(2**22 + 1, "60")  # no such process


def test_descendants_are_found_in_whatever_session(tmp_path: Path) -> None:
    for pid, parent, name in ((10, 1, "ncu"), (11, 10, "a) b (c"), (12, 11, "python"), (13, 1, "other")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0")
    assert descendants(10, tmp_path) == [11, 12] and descendants(13, tmp_path) == []
