"""The parent: crashes, hangs, memory, errors; every case one record, a group's results from one run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from perfkit.cases import Group
from perfkit.child import Child, worker_env
from perfkit.errors import DeviceError, ExitCode
from perfkit.method import Case
from perfkit.progress import Progress
from perfkit.runner import Limits, OutOfTime, Runner
from perfkit.shape import Shape

STUB = Path(__file__).with_name("stub_worker.py")
SHAPE = Shape("mamba2", 4, 1, 16, 16)


class Seen(Progress):
    def __init__(self) -> None:
        self.cases: list[tuple[str, str]] = []

    def case_done(self, label, status, row, reason):
        self.cases.append((label, status))


def group(*does: str) -> Group:
    cases = tuple(Case(shape=SHAPE, method="conventional", batch=1, window=i + 1, options=(("do", do),))
                  for i, do in enumerate(does))  # fmt: skip
    return Group(cases[0].group_id, cases)


def runner(tmp_path: Path, progress: Progress | None = None, *flags: str, **limits) -> Runner:
    def spawn() -> Child:
        return Child([sys.executable, str(STUB), *flags], worker_env("fake"), tmp_path / "log")

    return Runner(spawn, {"dir": str(tmp_path)}, Limits(**limits), progress or Progress())


def requests(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "requests").read_text().splitlines()]


def test_a_good_group_is_one_request(tmp_path: Path):
    point = group("ok", "print", "ok")
    with runner(tmp_path) as run:
        records = run.run_group(point)
    assert [r["case_id"] for r in records] == [case.id for case in point.cases]
    assert [r["status"] for r in records] == ["ok"] * 3
    assert records[1]["row"]["time_us"] == 5.0
    assert records[1]["samples"] == {"time_us": [5.0]}
    assert records[0]["started"] <= records[0]["ended"]
    assert len(requests(tmp_path)) == 1


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [
        ("crash", "crashed", "SIGSEGV: about to fall"),
        ("exit", "crashed", "exit code 7"),
        ("oom", "oom", "MemoryError: needs 190 GB"),
        ("error", "error", "ValueError: two lines"),
        ("silent", "error", "without a result"),
        ("poison", "error", "illegal memory access"),
        ("fall", "error", "AcceleratorError: no luck"),
    ],
)
def test_what_goes_wrong_ends_one_case_and_the_rest_comes_from_one_run(tmp_path: Path, do, status, reason):
    point = group("ok", do, "ok", "ok")
    seen = Seen()
    with runner(tmp_path, seen) as run:
        records = run.run_group(point)
    assert [r["case_id"] for r in records] == [case.id for case in point.cases]
    assert [r["status"] for r in records] == ["ok", status, "ok", "ok"]
    assert reason in records[1]["reason"]
    assert "\n" not in records[1]["reason"]
    ids = [case.id for case in point.cases]
    assert requests(tmp_path) == [ids, [ids[0], ids[2], ids[3]]]
    pids = {r["row"]["pid"] for r in records if r["status"] == "ok"}
    assert len(pids) == 1
    assert len(seen.cases) == 4  # shown once each, although one ran twice


def test_a_hang_is_killed_and_the_group_goes_on(tmp_path: Path):
    point = group("hang", "ok")
    started = time.monotonic()
    with runner(tmp_path, case_s=0.6) as run:
        records = run.run_group(point)
    assert [r["status"] for r in records] == ["timeout", "ok"]
    assert records[0]["reason"] == "took longer than 0.6 s"
    assert time.monotonic() - started < 30


def test_a_hang_after_a_failure_is_not_the_next_cases(tmp_path: Path):
    with runner(tmp_path, case_s=0.6) as run:
        assert [r["status"] for r in run.run_group(group("stuck", "ok"))] == ["error", "ok"]


def test_every_case_bad(tmp_path: Path):
    with runner(tmp_path) as run:
        records = run.run_group(group("oom", "crash", "error", "crash"))
    assert [r["status"] for r in records] == ["oom", "crashed", "error", "crashed"]


def test_a_worker_that_died_between_groups_is_replaced(tmp_path: Path):
    with runner(tmp_path) as run:
        run.run_group(group("ok"))
        run._child._process.kill()
        run._child._process.wait()
        assert [r["status"] for r in run.run_group(group("ok", "ok"))] == ["ok", "ok"]


def test_a_worker_that_ends_before_it_is_ready(tmp_path: Path):
    with runner(tmp_path, None, "--dead") as run, pytest.raises(DeviceError, match=r"no device here.*tried twice"):
        run.run_group(group("ok"))


def test_a_worker_that_is_never_ready(tmp_path: Path):
    with (
        runner(tmp_path, None, "--mute", start_s=0.5) as run,
        pytest.raises(DeviceError, match=r"not ready after 0.5 s"),
    ):
        run.start()


def test_max_time_stops_inside_a_group(tmp_path: Path):
    run = runner(tmp_path, stop_at=time.monotonic() + 0.5)
    with pytest.raises(OutOfTime) as error, run:
        run.run_group(group("ok", "hang"))
    assert error.value.exit_code == ExitCode.MAX_TIME == 124
    assert run._child is None
