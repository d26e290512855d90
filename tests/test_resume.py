"""--resume: what is tried again, what is refused. How runs end early is in tests/test_faults.py."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from perfkit import results
from perfkit.cli import app
from tests.sweephelp import SMALL, environment, half_a_run, journal


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("PERFKIT_WORKER_MODE", "PERFKIT_FAKE"):
        monkeypatch.setenv(name, environment()[name])
    monkeypatch.chdir(tmp_path)


def ids(run: Path) -> list[str]:
    return list(results.load_run(run)["case_id"])


def resume(run: Path, *args: str) -> int:
    return app.run(["sweep", "--resume", str(run), *args])


def test_a_group_that_was_half_written_runs_again_as_a_whole(tmp_path: Path):
    run = tmp_path / "run"
    half_a_run(run, signal.SIGKILL, *SMALL, records=3)
    lines = (run / "cases.jsonl").read_text().splitlines(keepends=True)
    (run / "cases.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # killed while it wrote the third
    assert resume(run) == 0
    records = journal(run)
    assert [record["attempt"] for record in records] == [1, 1, 2, 2, 1, 1, 1, 1]
    assert len(ids(run)) == len(set(ids(run))) == 6
    assert (run / "report.html").exists()


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
