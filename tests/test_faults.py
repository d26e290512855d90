"""Everything that can go wrong while cases run, planted: how each ends is in three tables, one line a fault.

``IN_A_CASE``: one of two cases of a group goes wrong, on the simulated GPU with real workers. ``IN_NUMBERS``: kernels
in the interpreter compute something else, when they are checked or only when they are timed. ``AROUND``: what happens
to the run as a whole. ``tests/test_faults_gpu.py`` has those that only a GPU can show.

Of every fault: the status of its case, exactly one status for each planned case, the exit code, and one line that says
what happened. What is not finished is so after ``--resume``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_bench import CONVENTIONAL

from perfkit import bench, device, results
from perfkit.cli import app
from perfkit.fake import UUID
from perfkit.registry import load_method
from tests.quickgroup import PLANTED, events_of, planted, quick_device, results_of
from tests.sweephelp import FAKE, half_a_run, journal

SUPER = ("--model", "nemotron-super", "--window", "8")


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


def perfkit(*args: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.run(list(args))
    assert "Traceback" not in err.getvalue()
    return Ran(code, out.getvalue(), err.getvalue())


def statuses(run: Path) -> dict[str, str]:
    """Return the status of every case of a finished run by case_id; each planned case has exactly one."""
    frame = results.load_run(run)
    frame = frame[frame["source"] != "recorded"]
    assert list(frame["case_id"]) == results.read_manifest(run)["case_ids"]
    assert set(frame["status"]) <= set(results.STATUSES)
    assert frame["reason"].notna().tolist() == (frame["status"] != "ok").tolist()
    assert not frame["time_us"][~frame["status"].isin(["ok", "throttled"])].notna().any()
    return dict(zip(frame["case_id"], frame["status"], strict=True))


@contextlib.contextmanager
def faked(where: Path, **settings: Any) -> Iterator[pytest.MonkeyPatch]:
    """Sweep the simulated GPU from a folder, without reports: they are not what is tested here, and slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        patch.setenv("PERFKIT_WORKER_MODE", "fake")
        patch.setenv("PERFKIT_FAKE", json.dumps(FAKE | settings))
        patch.setattr("perfkit.cli.sweep_run._report", lambda run_dir: None)
        yield patch


# -- in a case -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InACase:
    """A fault of the simulated GPU.

    Attributes:
        what: happens.
        planted: as :mod:`perfkit.fake` calls it.
        method: where.
        status: of its case; the other case of the group is ok.
        code: of a sweep with this fault.
        reason: a pattern for what the one line says after the status.
    """

    what: str
    planted: str
    status: str
    code: int
    reason: str
    method: str = "replay"


IN_A_CASE = (
    InACase("a kernel touches memory that is not its own", "fault", "error", 3,
            "RuntimeError: CUDA error: an illegal memory access was encountered"),
    InACase("the same while it is checked", "fault@check", "error", 3, "RuntimeError: CUDA error: an illegal memory"),
    InACase("a kernel never ends", "hang", "timeout", 3, "took longer than 5 s"),
    InACase("memory runs out", "oom", "oom", 3, "planted: out of memory"),
    InACase("memory runs out while it is timed", "oom@time", "oom", 3, "planted: out of memory"),
    InACase("a method raises an exception", "raise", "error", 3, "RuntimeError: planted"),
    InACase("a launch is refused", "error", "error", 3, "RuntimeError: planted"),
    InACase("a time is not a number", "nan", "error", 3, "planted: a time is not a number"),
    InACase("the GPU throttles all the time", "throttle", "throttled", 3, "40 of 40 samples dropped: power cap"),
    InACase("a worker is killed in mid-case", "crash", "crashed", 3, "SIGKILL"),
    InACase("a worker is killed while it checks", "crash@check", "crashed", 3, "SIGKILL"),
    InACase("a worker ends by itself", "exit", "crashed", 3, "exit code 139"),
    InACase("the control's worker is killed", "crash", "crashed", 3, "SIGKILL", method="conventional"),
    InACase("numbers are wrong", "incorrect", "incorrect", 1, "planted: relative error 1.0 above 0.01"),
)  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[InACase, tuple[Ran, list[dict[str, Any]], str]]:
    """What a sweep of all faults of one exit code says, with the journal of each fault's group and its case's name.

    One sweep has a group for each fault: it must survive all of them.
    """
    found: dict[InACase, tuple[Ran, list[dict[str, Any]], str]] = {}
    for code in sorted({fault.code for fault in IN_A_CASE}):
        faults = [fault for fault in IN_A_CASE if fault.code == code]
        where = tmp_path_factory.mktemp(f"code{code}")
        args = (*SUPER, "--batch", ",".join(str(n + 1) for n in range(len(faults))), "--timeout", "5")
        with faked(where) as patch:
            plan = json.loads(perfkit("sweep", *args, "--dry-run", "--json").out)
            cases = [
                next(case for case in group["cases"] if fault.method in case["case"])
                for fault, group in zip(faults, plan["groups"], strict=True)
            ]
            plants = {case["case_id"]: fault.planted for fault, case in zip(faults, cases, strict=True)}
            patch.setenv("PERFKIT_FAKE", json.dumps(FAKE | {"faults": plants}))
            ran = perfkit("sweep", *args, "--out", "run")
            statuses(where / "run")
            records = journal(where / "run")
        for fault, case, group in zip(faults, cases, plan["groups"], strict=True):
            mine = [record for record in records if record["group_id"] == group["group_id"]]
            found[fault] = (ran, mine, case["case"])
    return found


@pytest.mark.parametrize("fault", IN_A_CASE, ids=lambda fault: fault.what)
def test_in_a_case(swept: dict[InACase, tuple[Ran, list[dict[str, Any]], str]], fault: InACase) -> None:
    ran, records, name = swept[fault]
    assert ran.code == fault.code
    ended = {record["row"]["method"]: record for record in records}
    assert len(records) == len(ended) == 2
    bad = ended.pop(fault.method)
    assert (bad["status"], bad["row"]["time_us"]) == (fault.status, None)
    assert re.fullmatch(fault.reason + ".*", bad["reason"])
    (good,) = ended.values()
    assert good["status"] == "ok" and good["row"]["time_us"] > 0
    (line,) = [line for line in ran.lines if f" {name}: " in line]
    assert re.fullmatch(rf"\[\d+/\d+\] {name}: {fault.status}: {fault.reason}.*", line)


def test_what_a_sweep_of_them_says_last(swept: dict[InACase, tuple[Ran, list[dict[str, Any]], str]]) -> None:
    ran = swept[IN_A_CASE[0]][0]
    counts = next(line for line in ran.out.splitlines() if " ok, " in line)
    number = sum(fault.code == 3 for fault in IN_A_CASE)
    assert counts.startswith(f"{number}/{2 * number} ok, ")
    for status in ("crashed", "timeout", "oom", "error", "throttled"):
        count = sum(fault.status == status for fault in IN_A_CASE)
        assert f", {count} {status} (" in counts
    assert re.search(r"; 40 samples throttled \(power cap\); A/A floor \d\.\d%$", counts)
    assert re.search(r"\ncontrol   failed at B=13: crashed \(SIGKILL\); no speedups there\n", ran.out)
    assert ran.out.splitlines()[-1].endswith("resume perfkit sweep --resume run") or "--resume run" in ran.out


# -- in numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InNumbers:
    """A plug-in of ``tests/planted_methods.py`` that computes something else.

    Attributes:
        what: it does.
        name: in that file.
        reason: how the reason starts.
    """

    what: str
    name: str
    reason: str
    status = "incorrect"


CHECKED = (
    InNumbers("returns NaN", "RETURNS_NAN", "step 0: output error inf"),
    InNumbers("returns wrong numbers", "FORGETS_SKIP", "step 0: output error "),
    InNumbers("returns the output of the call before", "CACHES", "step 1: output error "),
    InNumbers("does nothing in a step", "SKIPS_A_LAUNCH", "step 1: output error inf"),
)
#: These pass their check where no step is a replay, as ``test_a_check_alone_does_not_find_it`` of tests/test_confirm.py
#: shows.
TIMED = (
    InNumbers("returns a cached output where inputs did not change", "CACHES_BY_VERSION",
              "output 0 of what was timed differs by "),
    InNumbers("returns a cached output once it was checked", "CACHES_LATE",
              "output 0 of what was timed stays the same for other inputs: a cached output"),
    InNumbers("does nothing once it was checked", "STOPS_LATE", "output 0 of what was timed is not a number"),
)  # fmt: skip
IN_NUMBERS = (*CHECKED, *TIMED)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A sweep without a GPU, which checks all of them in the interpreter."""
    methods = ",".join(f"{PLANTED}:{fault.name}" for fault in CHECKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("numbers"))
        patch.delenv("PERFKIT_WORKER_MODE", raising=False)
        patch.setattr("perfkit.device.usable_gpu", lambda: None)
        patch.setattr("perfkit.cli.sweep_run._report", lambda run_dir: None)
        ran = perfkit("sweep", *SUPER, "--batch", "4", "--method", methods, "--json", "--out", "run")
        assert list(statuses(Path("run")).values()) == ["ok", *["incorrect"] * len(CHECKED)]
    return ran


@pytest.mark.parametrize("fault", CHECKED, ids=lambda fault: fault.what)
def test_in_numbers_that_are_checked(checked: Ran, fault: InNumbers) -> None:
    assert checked.code == 1
    rows = {row["method"].rpartition(":")[2]: row for row in json.loads(checked.out)["rows"]}
    row = rows[fault.name]
    assert (row["status"], row["time_us"], row["checked"]) == (fault.status, None, "interpreter")
    assert row["reason"].startswith(fault.reason)
    (line,) = [line for line in checked.lines if line.startswith("check: ") and f":{fault.name} " in line]
    assert f": incorrect: {fault.reason}" in line
    assert rows["conventional"]["status"] == "ok" and rows["conventional"]["time_us"] > 0


@pytest.mark.parametrize("fault", TIMED, ids=lambda fault: fault.what)
def test_in_numbers_when_timed(fault: InNumbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, gpu = planted(fault.name), quick_device(monkeypatch)
    monkeypatch.setattr(bench, "beside", lambda *arguments: ({}, {}))
    monkeypatch.setattr(type(load_method(case.method)), "after", 3, raising=False)  # no check comes first here
    found = results_of(events_of(gpu, tmp_path, CONVENTIONAL, case))
    bad, good = found[case.id], found[CONVENTIONAL.id]
    assert (bad["status"], bad["row"]) == (fault.status, {})
    assert bad["reason"].startswith(fault.reason)
    assert (good["status"], good["row"]["time_us"]) == ("ok", 0.5)
    assert results.exit_code([bad["status"], good["status"]]) == 1


# -- around the run --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Around:
    """Something that happens to a run as a whole.

    Attributes:
        what: happens.
        inject: makes it happen, in a folder of its own, and returns what the command left.
        code: its exit code; negative: the signal that killed it.
        line: a pattern for the last line of stderr; None where nothing can be said any more.
        left: groups of two cases that are done; None where there must be no run folder.
    """

    what: str
    inject: Callable[[Path], Ran]
    code: int
    line: str | None
    left: int | None


TWO, SIX = ("--batch", "1,4"), ("--batch", "1,2,4,8,16,32")


def stopped(number: signal.Signals) -> Callable[[Path], Ran]:
    def inject(where: Path) -> Ran:
        return Ran(*half_a_run(where / "run", number, *SUPER, *TWO))

    return inject


def out_of_time(where: Path) -> Ran:
    with faked(where):
        return perfkit("sweep", *SUPER, *TWO, "--out", "run", "--max-time", "0.01")


@contextlib.contextmanager
def files_of(size: int) -> Iterator[None]:
    """No file of this process and its children may grow beyond a size: writes fail as on a full disk.

    The error is EFBIG instead of ENOSPC. It binds root too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full_disk(size: int, *args: str) -> Callable[[Path], Ran]:
    def inject(where: Path) -> Ran:
        with faked(where), files_of(size):
            return perfkit("sweep", *SUPER, *args, "--out", "run")

    return inject


def read_only(folder: Callable[[Path], Path]) -> Callable[[Path], Ran]:
    def inject(where: Path) -> Ran:
        with faked(where):
            return perfkit("sweep", *SUPER, *TWO, "--out", str(folder(where) / "run"))

    return inject


def without_write_permission(where: Path) -> Path:
    where.chmod(0o555)
    if os.access(where, os.W_OK):
        pytest.skip("permissions do not bind this user")
    return where


def read_only_later(where: Path) -> Ran:
    """A run has ended early, and now nothing can be made in its folder: here its lock's name is taken by a folder."""
    out_of_time(where)
    (where / "run" / ".lock").mkdir()
    try:
        with faked(where):
            return perfkit("sweep", "--resume", "run")
    finally:
        (where / "run" / ".lock").rmdir()


def busy_gpu(where: Path) -> Ran:
    with faked(where, fake={"lock": 1}) as patch:
        patch.setattr("perfkit.device.lock.lock_folder", lambda: where / "locks")
        with device.gpu_lock(UUID):
            ran = perfkit("sweep", *SUPER, *TWO, "--out", "run")
        assert not (where / "run").exists()
        assert perfkit("sweep", *SUPER, *TWO, "--out", "later").code == 0
    return ran


def two_writers(where: Path) -> Ran:
    out_of_time(where)
    with faked(where), results.writing(where / "run"):
        return perfkit("sweep", "--resume", "run")


def no_worker(where: Path) -> Ran:
    with faked(where) as patch:
        dead = [sys.executable, "-c", "raise SystemExit('no libcuda.so.1')"]
        patch.setattr("perfkit.sweep.worker_argv", lambda mode: dead)
        return perfkit("sweep", *SUPER, *TWO, "--out", "run")


GO_ON = r"go on with: (perfkit|python -m perfkit) sweep --resume \S*run"
AROUND = (
    Around("the parent is killed", stopped(signal.SIGKILL), -signal.SIGKILL, None, 1),
    Around("Ctrl-C", stopped(signal.SIGINT), 130,
           f"perfkit: error: interrupted by SIGINT; 1 of 2 groups are done; {GO_ON}", 1),
    Around("the parent is asked to end", stopped(signal.SIGTERM), 130,
           f"perfkit: error: interrupted by SIGTERM; 1 of 2 groups are done; {GO_ON}", 1),
    Around("--max-time is over", out_of_time, 124,
           f"perfkit: error: the time given with --max-time is over; 0 of 2 groups are done; {GO_ON}", 0),
    Around("the disk is full from the start", full_disk(0, *TWO), 2,
           "perfkit: error: run: --out: cannot be written: File too large", None),
    Around("the disk fills up before the plan is written", full_disk(2000, *TWO), 2,
           "perfkit: error: run/manifest.json: cannot write: File too large", None),
    Around("the disk fills up in mid-run", full_disk(18_000, *SIX), 3,
           f"perfkit: error: run/cases.jsonl: cannot write: File too large; 4 of 6 groups are done; {GO_ON}", 4),
    Around("the disk fills up when results are written", full_disk(15_000, *TWO), 3,
           rf"perfkit: error: run/results.parquet: cannot write: .*too large.*; 2 of 2 groups are done; {GO_ON}", 2),
    Around("the run folder is on a file system that nobody may write", read_only(lambda where: Path("/proc/self")), 2,
           "perfkit: error: /proc/self/run: --out: cannot be written: .*", None),
    Around("the run folder is read-only", read_only(without_write_permission), 2,
           "perfkit: error: .*/run: --out: cannot be written: Permission denied", None),
    Around("the run folder has become read-only", read_only_later, 2,
           "perfkit: error: run: cannot be written: Is a directory", 0),
    Around("another sweep times this GPU", busy_gpu, 3,
           rf"perfkit: error: another perfkit run \(pid {os.getpid()}\) is timing this GPU; "
           "wait or choose another with CUDA_VISIBLE_DEVICES", None),
    Around("another process writes to the run", two_writers, 2,
           "perfkit: error: run: another perfkit is writing to this run; wait for it", 0),
    Around("no worker gets ready", no_worker, 3,
           r"perfkit: error: the worker ended before it was ready: exit code 1: no libcuda.so.1 \(tried twice\); "
           f"0 of 2 groups are done; {GO_ON}", 0),
)  # fmt: skip


@pytest.mark.parametrize("fault", AROUND, ids=lambda fault: fault.what)
def test_around(fault: Around, tmp_path: Path) -> None:
    try:
        ran = fault.inject(tmp_path)
    finally:
        tmp_path.chmod(0o755)
    assert (ran.code, ran.out) == (fault.code, "")
    if fault.line is not None:
        assert re.fullmatch(fault.line, ran.lines[-1])
        assert sum(line.startswith("perfkit: ") for line in ran.lines) == 1
    run = tmp_path / "run"
    if fault.left is None:
        assert not run.exists()
        return
    assert not (run / "results.csv").exists()
    first = journal(run)[: 2 * fault.left]
    assert len(first) == 2 * fault.left
    with faked(tmp_path):
        assert perfkit("sweep", "--resume", "run").code == 0
    assert set(statuses(run).values()) == {"ok"}
    records, planned = journal(run), list(statuses(run))
    assert records[: len(first)] == first  # what was done was not done again
    assert [record["case_id"] for record in records[len(records) - len(planned) + len(first) :]] == planned[
        len(first) :
    ]
