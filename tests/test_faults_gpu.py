"""Faults that only a GPU can show, each in a real sweep: how each ends is in a table, as in tests/test_faults.py.

The table has two halves, a sweep each, which ``-k wrong`` and ``-k lost`` run alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfkit import results
from perfkit.device import gpu_lock, visible_gpu
from tests.sweephelp import ROOT, journal, wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
TESTS = Path(__file__).parent
POINT = ("--model", "nemotron-super", "--batch", "256", "--window", "8")


@dataclass(frozen=True)
class Fault:
    """A plug-in, and how its case ends beside a control that is timed all the same.

    Attributes:
        what: it does.
        method: of a file in tests/.
        status: of its case.
        reason: a pattern for what is said of it.
    """

    what: str
    method: str
    status: str
    reason: str


#: Seconds that a case may take where some hang: compiling and checking a case takes less than half of them, a hang all.
#: Where none does, what a sweep allows a case costs nothing.
TIMEOUT_S = 30
WRONG = (
    Fault("returns NaN", "planted_methods.py:RETURNS_NAN", "incorrect", "step 0: output error inf"),
    # Captured before the inputs of step 3 are written, it hands out step 2's output, which has none of the row that sat
    # that step out.
    Fault("returns a cached output where inputs did not change", "planted_methods.py:CACHES_BY_VERSION", "incorrect",
          "step 3: output error inf .*; NaN or inf in 1 of 8 outputs"),
    # A graph asks for launches once, so it is in the timed graph that this starts, which still computes a few steps.
    Fault("returns a cached output once it was checked", "planted_methods.py:CACHES_LATE", "incorrect",
          "output 0 of what was timed differs by"),
    Fault("does nothing once it was checked", "planted_methods.py:STOPS_LATE", "incorrect",
          "output 0 of what was timed is not a number"),
)  # fmt: skip
LOST = (
    Fault("touches memory that is not its own", "planted_gpu.py:STRAYS", "error", "illegal memory access"),
    Fault("does so only when it is timed", "planted_gpu.py:STRAYS_WHEN_TIMED", "error", "illegal memory access"),
    Fault("never ends", "planted_gpu.py:HANGS", "timeout", f"took longer than {TIMEOUT_S} s"),
    Fault("never ends when it is timed", "planted_gpu.py:HANGS_WHEN_TIMED", "timeout",
          f"took longer than {TIMEOUT_S} s"),
)  # fmt: skip
HALVES = {"wrong": WRONG, "lost": LOST}
#: Flags and exit code of each half's sweep.
FLAGS = {"wrong": (), "lost": ("--timeout", str(TIMEOUT_S))}
CODES = {"wrong": 1, "lost": 3}
Swept = tuple[int, str, dict[str, dict[str, Any]]]


def environment() -> dict[str, str]:
    hidden = ("TRITON_INTERPRET", "PERFKIT_WORKER_MODE")
    return {name: value for name, value in os.environ.items() if name not in hidden} | {"PYTHONPATH": str(ROOT)}


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "perfkit", "sweep", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip


def sweep(run: Path, *args: str) -> Swept:
    """Run a sweep; return its exit code, stderr and the rows by method. Each planned case has exactly one."""
    process = start(*args, "--out", str(run))
    _, err = process.communicate(timeout=800)
    assert "Traceback" not in err
    frame = results.load_run(run)
    assert list(frame["case_id"]) == results.read_manifest(run)["case_ids"]
    rows = json.loads(frame.to_json(orient="records"))
    return process.returncode, err, {row["method"].rpartition("/")[2]: row for row in rows}


def methods(faults: tuple[Fault, ...]) -> str:
    return ",".join(["conventional", *(f"{TESTS / fault.method}" for fault in faults)])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Swept]:
    """Sweep a half, once: a control and plug-ins, wrong ones that it times with the rest, or ones that end a worker."""
    where = tmp_path_factory.mktemp("gpu")

    @cache
    def ran(half: str) -> Swept:
        return sweep(where / half, *POINT, *FLAGS[half], "--method", methods(HALVES[half]))

    return ran


@pytest.mark.parametrize(
    ("half", "fault"),
    [pytest.param(half, fault, id=f"{half}: {fault.what}") for half, faults in HALVES.items() for fault in faults],
)
def test_how_it_ends(swept: Callable[[str], Swept], half: str, fault: Fault) -> None:
    code, err, rows = swept(half)
    assert code == CODES[half]
    row, control = rows[fault.method], rows["conventional"]
    assert (row["status"], row["time_us"]) == (fault.status, None)
    assert re.search(fault.reason, row["reason"])
    name = fault.method.rpartition("/")[2]
    lines = [line for line in err.splitlines() if f"{name}: {fault.status}: " in line]
    assert len(lines) == 1 and re.search(fault.reason, lines[0])
    assert (control["status"], control["checked"]) == ("ok", "gpu") and control["time_us"] > 0


def test_memory_that_no_gpu_has_is_out_of_memory_and_the_next_group_runs(tmp_path: Path) -> None:
    args = ("--model", "nemotron-super", "--method", "conventional", "--batch", "262144,1")
    code, _, _ = sweep(tmp_path / "run", *args)
    assert code == 3
    ended = {record["row"]["batch"]: record for record in journal(tmp_path / "run")}
    assert (ended[262144]["status"], ended[1]["status"]) == ("oom", "ok")
    assert "out of memory" in ended[262144]["reason"].lower()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_of(process: subprocess.Popen[str]) -> int:
    """Return the process id of a sweep's worker once there is one."""
    deadline = time.monotonic() + 120
    while True:
        for child in children(process.pid):
            if b"perfkit.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    args = ("--model", "nemotron-super", "--method", "conventional", "--batch", "64,128,256")
    process = start(*args, "--out", str(tmp_path / "run"))
    yield process, tmp_path / "run"
    process.kill()
    process.wait()


def test_a_worker_that_is_killed_costs_one_case(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, run = running
    worker = worker_of(process)
    wait_for(run, 1, process)
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 3
    ended = sorted(record["status"] for record in journal(run))
    assert ended == ["crashed", "ok", "ok"]
    assert err.count("crashed: SIGKILL") == 1


def test_a_parent_that_is_killed_takes_its_worker_along_and_its_run_goes_on(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    process, run = running
    worker = worker_of(process)
    wait_for(run, 1, process)
    process.kill()
    process.wait()
    first = journal(run)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "sweep", "--resume", str(run)], env=environment(), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert journal(run)[: len(first)] == first
    assert [record["status"] for record in journal(run)] == ["ok"] * 3


def test_a_gpu_that_another_run_holds_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with gpu_lock(visible_gpu().uuid):
        process = start(*POINT, "--out", str(tmp_path / "run"))
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (3, "")
    assert f"another perfkit run (pid {os.getpid()}) is timing this GPU" in err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_spin_of_ten_percent_shows_as_091(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra launch takes a tenth of the control's time, what it costs to launch included."""
    spec = importlib.util.spec_from_file_location("prove_compare", ROOT / "scripts" / "prove_compare.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    plain, spun = "conventional", script.SPUN
    rows = {row["method"]: row for row in script.sweep(tmp_path / "plain", 0, POINT).rows.values()}
    if not rows[plain]["sm_clock_mhz"]:
        pytest.skip("NVML does not tell the SM clock, by which cycles are counted")
    wanted_us = 0.1 * rows[plain]["time_us"] - (rows[spun]["time_us"] - rows[plain]["time_us"])
    cycles = round(wanted_us * rows[plain]["sm_clock_mhz"])
    again = {row["method"]: row for row in script.sweep(tmp_path / "spun", 1, POINT, {256: cycles}).rows.values()}
    assert again[spun]["status"] == "ok"
    assert again[spun]["speedup"] == pytest.approx(1 / 1.1, abs=0.01)
    assert again[spun]["speedup_hi"] - again[spun]["speedup_lo"] < 0.01
    assert again[plain]["aa_difference"] == pytest.approx(0, abs=0.01)
