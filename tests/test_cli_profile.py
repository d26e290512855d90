"""``perfkit profile`` as people type it: bad input, what would run, runs under the stand-in, the worst of a run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nsighthelp import facts, install

from perfkit import results
from perfkit.cli import app, profile_run, sweep_plan, sweep_run
from perfkit.cli.profile_run import Options

SMALL = ["profile", "--model", "nemotron-super", "--batch", "64", "--draft", "1", "--method", "conventional,replay"]
FLAGS = {"batch": "64", "window": "16", "draft": "1", "method": "conventional,replay", "accepted": None, "tree": (),
         "flush_phase": None, "input_dtype": None, "state_dtype": None}  # fmt: skip


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine with a GPU and Nsight Compute, both made up."""
    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    monkeypatch.setenv("STANDIN_STEPS", str(tmp_path / "steps.json"))
    monkeypatch.chdir(tmp_path)
    plan = profile_run.plan_axes("nemotron-super", FLAGS, None, Options("all", "all", 0, 300.0))
    facts(tmp_path / "steps.json", plan.sweep.groups)
    return str(install(tmp_path))


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = app.run([str(arg) for arg in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "--model: is missing"),
        (["--model", "nemotron-super", "--worst", "3"], "--worst: needs the RUN whose cases these are"),
        (["somewhere", "--worst", "3", "--batch", "4"], "--batch: cases come from RUN; leave this out"),
        (["somewhere"], "--worst: is missing"),
        (["somewhere", "--worst", "0"], "--worst: 0: must be at least 1"),
        (["somewhere", "--worst", "1"], "not a run of perfkit"),
        (["--resume", "somewhere", "--metrics", "dram"], "--metrics: --resume takes everything from the run"),
        (["--resume", "somewhere"], "not a run of perfkit"),
        (["--model", "nemotron-super", "--cache-control", "some"], "'some': unknown (allowed: all, none)"),
        (["--model", "nemotron-super", "--metrics", "full"], "--metrics: 'full': is not a metric"),
        (["--model", "nemotron-super", "--draft", "1", "--accepted", "2"], "--accepted: '2': a decode step commits"),
        (["--model", "nemotron-super", "--method", "replay", "--draft", "1", "--config", "rows=4"],
         "--config: 'rows=4': is no launch configuration of replay decode"),
        (["--model", "nemotron-super", "--timeout", "0"], "--timeout: 0.0: must be above 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "profile", *args)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_or_ncu_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_plan, "usable_gpu", lambda: (None, []))
    code, out, err = call(capsys, *SMALL)
    assert (code, out) == (3, "") and "no usable GPU here (perfkit doctor says why)" in err and "--dry-run" in err
    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    monkeypatch.setattr("perfkit.nsight.tool.find_ncu", lambda: None)
    code, out, err = call(capsys, *SMALL)
    assert (code, out) == (3, "") and "install NVIDIA Nsight Compute" in err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_command_lines_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default set has every method there is, decode and verify, flush and nonflush, in three starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_plan, "usable_gpu", lambda: (None, []))
    code, out, _ = call(capsys, "profile", "--model", "nemotron-super", "--dry-run", "--json")
    found = json.loads(out)
    assert code == 0 and list(tmp_path.iterdir()) == []
    steps = {(case["case"], step["kind"]) for case in found["cases"] for step in case["steps"]}
    for words in ("B256 conventional", "B256 T4 a3 stree_released", "B256 T8 a7 fused_recovery"):
        assert (words, "nonflush") in steps
    for words in ("B256 L16 replay", "B256 T4 a3 L16 replay", "B256 T8 a7 L16 replay"):
        assert {(words, "nonflush"), (words, "flush")} <= steps
    assert (found["n_cases"], found["n_steps"], len(found["commands"])) == (16, 19, 3)
    (first, *_) = found["commands"]
    pairs = set(pairwise(first))
    assert {("--cache-control", "all"), ("--clock-control", "none"), ("--target-processes", "application-only"),
            ("--nvtx-include", "perfkit@perfkit-counters/")} <= pairs  # fmt: skip
    code, out, _ = call(capsys, *SMALL, "--dry-run", "--metrics", "dram", "--cache-control", "none")
    assert "B64 L16 replay" in out and "nonflush h=7, flush h=15" in out and "--cache-control none" in out
    assert out.splitlines()[-1].startswith("2 cases, 3 steps, 3 launches in 1 start of ncu: about ")


def test_a_run_has_its_table_and_its_files(ncu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *SMALL, "--ncu", ncu, "--out", tmp_path / "run")
    assert code == 0, err
    assert "[2/2] B64 L16 replay: ok" in err
    lines = out.splitlines()
    assert lines[0].strip() == "Bytes of one step of the batch in one layer"
    assert [line.split()[1] for line in lines[2:5]] == ["conventional", "replay", "replay"]
    assert lines[5] == "2/2 cases counted"
    assert lines[6].startswith(
        "COUNTED   Fake GPU GPU-fa4e, driver fake, ncu 2025.3.1.0; L2 flushed before each launch"
    )
    assert lines[7].startswith("read      agrees in 3 of 3 steps; off by +0.00% at most")
    assert (
        "agrees in 3 of 3 steps" in lines[8]
        and lines[9] == "config    2 default; perfkit sweep finds and keeps tuned ones"
    )
    assert "perfkit reproduce table3" in lines[10]
    run = tmp_path / "run"
    manifest = results.read_manifest(run)
    assert (manifest["command"], manifest["ncu"], manifest["statuses"]) == ("profile", "2025.3.1.0", {"ok": 2})
    assert manifest["ended"] and manifest["settings"]["cache_control"] == "all"
    assert {path.name for path in run.iterdir()} == {"manifest.json", "cases.jsonl", "results.csv", "results.parquet",
                                                     "counters.csv", "counters", "ncu"}  # fmt: skip


def test_a_contradicted_count_exits_1_and_json_names_it(
    ncu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STANDIN_SCALE", json.dumps({"replay flush": [1.25, 1.0]}))
    code, out, _ = call(capsys, *SMALL, "--ncu", ncu, "--out", tmp_path / "run", "--json")
    found = json.loads(out)
    assert code == 1
    assert [row["verdict"] for row in found["counters"]] == ["agrees", "agrees", "contradicts"]
    (line,) = found["contradicted"]
    assert line.startswith("replay decode T=1 flush: declares to read ") and line.endswith("+25.0%")


@pytest.mark.parametrize(
    ("mode", "code", "words"), [("perm", 3, "ERR_NVGPUCTRPERM"), ("metric", 2, "knows no such metric")]
)
def test_a_tool_that_cannot_count_is_one_line(
    mode: str, code: int, words: str, ncu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("STANDIN", mode)
    monkeypatch.setenv("STANDIN_METRIC", "sm__no_such.sum")
    found, out, err = call(capsys, *SMALL, "--ncu", ncu, "--out", tmp_path / "run")
    assert (found, out) == (code, "") and words in err.splitlines()[-1]
    assert (tmp_path / "run").exists() == (code == 3)  # the log tells more; bad input leaves nothing


def test_a_hang_is_a_timeout_and_the_run_can_be_resumed(
    ncu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STANDIN", "hang")
    monkeypatch.setenv("STANDIN_AT", "1")
    code, out, _ = call(capsys, *SMALL, "--ncu", ncu, "--out", tmp_path / "run", "--timeout", "0.5")
    assert code == 3 and "1/2 cases counted, 1 timeout (took too long under ncu" in out
    assert f"profile --resume {tmp_path / 'run'}" in out
    monkeypatch.setenv("STANDIN", "good")
    code, out, _ = call(capsys, "profile", "--resume", tmp_path / "run", "--ncu", ncu)
    assert code == 0 and "2/2 cases counted" in out


def test_the_worst_predicted_cases_of_a_run_are_counted_as_they_were_timed(
    ncu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_run, "_report", lambda run_dir: None)
    fake = {"max_samples": 10, "min_samples": 5, "slowdown": {"replay": 1.5}}
    monkeypatch.setenv("PERFKIT_FAKE", json.dumps(fake))
    sweep = ["sweep", *SMALL[1:-2], "--method", "replay", "--window", "16,32", "--out", str(tmp_path / "sweep")]
    assert call(capsys, *sweep)[0] == 0
    monkeypatch.delenv("PERFKIT_FAKE")
    chosen = profile_run.plan_worst(tmp_path / "sweep", 2, Options("all", "all", 0, 300.0))
    facts(tmp_path / "steps.json", chosen.sweep.groups)
    frame = results.load_run(tmp_path / "sweep").sort_values("prediction_error", key=abs, ascending=False)
    assert list(chosen.known) == list(frame["case_id"][:2])
    code, out, err = call(
        capsys, "profile", tmp_path / "sweep", "--worst", "2", "--ncu", ncu, "--out", tmp_path / "run"
    )
    assert code == 0, err
    said = [line for line in out.splitlines() if ": predicted " in line]
    assert len(said) == 2 and all("measured" in line and "the bytes agree, so it is how they are moved" in line
                                  for line in said)  # fmt: skip
    rows: list[dict[str, Any]] = results.load_run(tmp_path / "run").to_dict("records")
    assert {row["case_id"] for row in rows} == set(chosen.known)
    code, _, err = call(capsys, "profile", tmp_path / "run", "--worst", "1", "--ncu", ncu)
    assert code == 2 and "is not the run of a sweep" in err
