"""On a GPU with Nsight Compute: counters of real steps agree with the declared bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.errors import DeviceError
from perfkit.nsight.tool import open_tool

ROOT = Path(__file__).resolve().parent.parent
#: Decode and two verify steps of several launches, flush and non-flush; two starts of ncu.
WHAT = ("--model", "nemotron-super", "--batch", "256", "--draft", "1,4", "--method",
        "conventional,replay,stree,activation_replay")  # fmt: skip


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_counters_agree_with_the_declared_bytes(tmp_path: Path) -> None:
    try:
        open_tool()
    except DeviceError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "perfkit", "profile", *WHAT, "--out", str(tmp_path / "run"), "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, cwd=ROOT)
    if "ERR_NVGPUCTRPERM" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["contradicted"] == []
    steps = {(row["method"], row["draft_len"], row["step"]): row for row in found["counters"]}
    assert len(steps) == 7 and steps["replay", 1, "flush"]["h"] == 15
    assert {row["verdict"] for row in steps.values()} <= {"agrees", "dirty lines"}
    flush, other = steps["replay", 4, "flush"], steps["replay", 4, "nonflush"]
    assert flush["bytes_write_dram"] > other["bytes_write_dram"] + 0.9e9  # the states of the batch, 1.07 GB
    assert all(0 < row["profiled_us"] < 1e5 and 16 <= row["registers"] <= 255 for row in steps.values())
