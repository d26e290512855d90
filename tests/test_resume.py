"""Kill it, stop it, run out of time: what was done stays done, and --resume gives the rows of an undisturbed run."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from perfkit import results
from perfkit.cli import app
from tests.sweephelp import SMALL, environment, journal, start


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("PERFKIT_WORKER_MODE", "PERFKIT_FAKE"):
        monkeypatch.setenv(name, environment()[name])
    monkeypatch.chdir(tmp_path)


def wait_for(run: Path, records: int, process) -> None:
    """Wait until the journal has some records."""
    deadline = time.monotonic() + 60
    while len(journal(run)) < records:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ids(run: Path) -> list[str]:
    return list(results.load_run(run)["case_id"])


def half_a_run(run: Path, number: signal.Signals, records: int = 3) -> tuple[int, str, str]:
    """Start a sweep of two slow groups; send it a signal once the first has ended."""
    process = start(*SMALL, "--out", str(run), fake={"sleep_s": 0.4})
    wait_for(run, records, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def resume(run: Path, *args: str) -> int:
    return app.run(["sweep", "--resume", str(run), *args])


def test_killed_and_resumed_covers_the_same_cases_each_once(tmp_path: Path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert app.run(["sweep", *SMALL, "--out", str(whole)]) == 0
    code, _, _ = half_a_run(broken, signal.SIGKILL)
    assert code == -signal.SIGKILL
    first = journal(broken)
    assert len(first) == 3
    assert not (broken / "results.csv").exists()
    assert resume(broken) == 0
    assert ids(broken) == ids(whole)
    assert len(set(ids(broken))) == 6
    assert set(results.load_run(broken)["status"]) == {"ok"}
    assert journal(broken)[:3] == first  # what was done was not done again
    assert [record["attempt"] for record in journal(broken)] == [1] * 6
    assert (broken / "report.html").exists()


def test_a_group_that_was_half_written_runs_again_as_a_whole(tmp_path: Path):
    run = tmp_path / "run"
    half_a_run(run, signal.SIGKILL)
    lines = (run / "cases.jsonl").read_text().splitlines(keepends=True)
    (run / "cases.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # killed while it wrote the third
    assert resume(run) == 0
    records = journal(run)
    assert [record["attempt"] for record in records] == [1, 1, 2, 2, 1, 1, 1, 1]
    assert len(ids(run)) == len(set(ids(run))) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_is_130_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals):
    run = tmp_path / "run"
    code, out, err = half_a_run(run, number)
    assert code == 130
    assert out == ""
    last = err.splitlines()[-1]
    assert number.name in last
    assert "1 of 2 groups are done" in last
    assert last.endswith(f"perfkit sweep --resume {run}")
    assert "Traceback" not in err
    assert len(journal(run)) == 3
    assert resume(run) == 0
    assert len(ids(run)) == 6


def test_max_time_is_124_and_resumable(tmp_path: Path, capsys):
    process = start(*SMALL, "--out", str(tmp_path / "run"), "--max-time", "1.5", fake={"sleep_s": 1.0})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 124
    assert "--max-time is over" in err.splitlines()[-1]
    assert "0 of 2 groups are done" in err.splitlines()[-1]


def test_resume_of_a_finished_run_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    run = tmp_path / "run"
    assert app.run(["sweep", *SMALL, "--out", str(run)]) == 0
    before = journal(run)
    frame = (run / "results.csv").read_bytes()
    assert resume(run) == 0
    assert journal(run) == before
    assert (run / "results.csv").read_bytes() == frame


def test_resume_tries_what_failed_again_with_its_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tmp_path / "run"
    monkeypatch.setenv("PERFKIT_FAKE", environment(faults={"replay": "oom"})["PERFKIT_FAKE"])
    assert app.run(["sweep", "--model", "nemotron-super", "--batch", "1", "--window", "8", "--out", str(run)]) == 3
    assert resume(run) == 3
    assert [record["attempt"] for record in journal(run)] == [1, 1, 2, 2]
    assert len(ids(run)) == 2


@pytest.fixture
def finished(tmp_path: Path, capsys) -> Path:
    run = tmp_path / "run"
    assert app.run(["sweep", "--model", "nemotron-super", "--batch", "1", "--window", "8", "--out", str(run)]) == 0
    capsys.readouterr()
    return run


def refused(run: Path, capsys) -> str:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert resume(run) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    return err


def test_a_bad_line_in_the_middle_is_refused_by_number(finished: Path, capsys):
    path = finished / "cases.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{oops", *lines[1:]]) + "\n")
    err = refused(finished, capsys)
    assert f"{path}: line 2: " in err


def test_a_journal_of_another_schema_is_refused(finished: Path, capsys):
    path = finished / "cases.jsonl"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    err = refused(finished, capsys)
    assert "another schema version" in err and "99" in err


def _edit(run: Path, **changes) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 99}, "another schema version"),
        ({"command": "profile"}, "is not the run of a sweep"),
        ({"groups": [{"group_id": "x"}]}, "damaged: KeyError"),
        ({"groups": 5}, "damaged: TypeError"),
        ({"hash": "0" * 64}, "kernels, torch, triton or the plan are not those that this run started with"),
        ({"settings": {"seed": 5}}, "start a new one"),
    ],
)
def test_a_manifest_that_is_not_this_runs_is_refused(finished: Path, capsys, changes, words):
    _edit(finished, **changes)
    assert words in refused(finished, capsys)


def test_another_gpu_is_refused(finished: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perfkit.sweep.Sweep.hash", lambda self: "same")
    monkeypatch.setattr("perfkit.device.usable_gpu", lambda: None)
    _edit(finished, worker_mode="cuda", hash="same")
    assert "was measured on GPU-fa4e0000-0000-0000-0000-000000000000; here is None" in refused(finished, capsys)


def test_two_writers_are_refused(finished: Path, capsys):
    with results.writing(finished):
        assert resume(finished) == 2
    assert "another perfkit is writing" in capsys.readouterr()[1]
