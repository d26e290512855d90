"""Runs that read counters, under a stand-in for ncu: what it counts, and every way in which it fails."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nsighthelp import alive, facts, install, small_plan

from perfkit import results
from perfkit.errors import DeviceError, ExitCode, InputError
from perfkit.method import Case
from perfkit.nsight.tool import open_tool
from perfkit.nsight.watch import Patience
from perfkit.profiles.counters import read_counters
from perfkit.profiling import Profiler, conclude, groups_of
from perfkit.runner import OutOfTime
from perfkit.shape import Shape
from perfkit.sweep import Sweep


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STANDIN_PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("STANDIN_STEPS", str(tmp_path / "steps.json"))
    return install(tmp_path)


def profiler(ncu: Path, plan: Sweep, run: Path, **more: Any) -> Profiler:
    facts(run.parent / "steps.json", plan.groups)
    run.mkdir(exist_ok=True)
    results.write_manifest(run, plan.manifest(["perfkit", "profile"]) | {"command": "profile"})
    return Profiler(plan, open_tool(str(ncu)), run, **more)


def statuses(run: Path) -> dict[str, str]:
    return {
        record["row"]["method"]: record["status"] for record in results.Journal(run / "cases.jsonl").read().values()
    }


def test_launches_of_a_step_are_summed_and_joined_on_the_case(ncu: Path, tmp_path: Path) -> None:
    plan, run = small_plan("all", "1,2"), tmp_path / "run"
    profiler(ncu, plan, run).run()
    rows, counters = conclude(plan, run)
    assert {row["status"] for row in rows} == {"ok"} and len(rows) == len(plan.cases)
    assert len(list((run / "ncu").glob("*.ncu-rep"))) == 2  # one start a group: decode, verify
    by_key = {(row["method"], row["draft_len"], row["step"]): row for row in counters}
    assert ("replay", 1, "flush") in by_key and ("replay", 2, "nonflush") in by_key
    three = by_key["activation_replay", 2, "nonflush"]
    assert three["launches"] == 3
    assert three["bytes_read_dram"] == pytest.approx(three["bytes_read_model"])
    assert three["l2_hit_pct"] == pytest.approx(50) and three["registers"] == 64 and three["read_by"] == "ncu_report"
    assert three["profiled_us"] == pytest.approx((three["bytes_read_model"] + three["bytes_write_model"]) / 4e3)
    decode = next(row for row in rows if row["method"] == "replay" and row["phase"] == "decode")
    flush, other = by_key["replay", 1, "flush"], by_key["replay", 1, "nonflush"]
    assert (flush["h"], other["h"]) == (15, 7)
    expected = flush["bytes_write_dram"] / 16 + other["bytes_write_dram"] * 15 / 16
    assert decode["bytes_write_dram"] == pytest.approx(expected)
    assert decode["bytes_write_dram"] == pytest.approx(decode["bytes_write_model"], rel=1e-9)
    assert decode["bytes_read_dram"] == pytest.approx(
        decode["bytes_read_model"], rel=1e-9
    )  # h = 7 is the mean of 0..14
    assert decode["time_us"] is None  # a time under the profiler is no time of a step
    assert [one["case_id"] for one in read_counters(run / "counters.csv")] == [one["case_id"] for one in counters]
    detail = json.loads((run / "counters" / f"{three['case_id']}.json").read_text())
    assert [one["kernel"] for one in detail["launches"]["nonflush"]] == [
        f"_activation_replay_kernel_{i}" for i in range(3)
    ]
    assert "device__attribute_clock_rate" not in detail["launches"]["nonflush"][0]["values"]
    assert set(results.load_run(run)["case_id"]) == set(plan.cases)


def test_without_the_module_a_report_is_read_as_csv(ncu: Path, tmp_path: Path) -> None:
    plan, run = small_plan("replay", "1"), tmp_path / "run"
    (ncu.parent / "extras/python/ncu_report.py").unlink()
    profiler(ncu, plan, run).run()
    _, counters = conclude(plan, run)
    assert {row["read_by"] for row in counters} == {"csv"}
    assert [row["bytes_read_dram"] for row in counters] == pytest.approx(
        [row["bytes_read_model"] for row in counters], abs=0.01
    )


def test_a_metric_of_ones_own_is_kept_with_its_unit(ncu: Path, tmp_path: Path) -> None:
    from perfkit.nsight.metrics import select

    plan, run = small_plan("conventional", "1", metrics=list(select("dram,smsp__inst_executed.sum"))), tmp_path / "run"
    profiler(ncu, plan, run).run()
    (row,) = conclude(plan, run)[1]
    assert row["l2_bytes"] is None and row["registers"] is None
    (launch,) = json.loads((run / "counters" / f"{row['case_id']}.json").read_text())["launches"]["nonflush"]
    assert launch["values"]["smsp__inst_executed.sum"] == 7e6 and launch["units"] == {"smsp__inst_executed.sum": "inst"}


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("perm", ["ERR_NVGPUCTRPERM", "run as root", "NVreg_RestrictProfilingToAdminUsers=0"]),
        ("busy", ["another tool holds this GPU's counters", "dcgmi profile --pause"]),
        ("metric", ["knows no metric dram__bytes_read.sum", "--metrics dram"]),
        ("option", ["2025.3.1.0 refuses an option", "--clock-control"]),
        ("nothing", ["none inside an NVTX range", "pip install nvtx"]),
        ("empty", ["1.ncu-rep is empty", "--metrics dram"]),
        ("noreport", ["ncu made no report", "1.log"]),
        ("start", ["No module named 'torch'", "1.log"]),
    ],
)
def test_what_no_case_survives_is_one_line_with_the_remedy(
    mode: str, words: list[str], ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", mode)
    started = time.monotonic()
    with pytest.raises(DeviceError) as caught:
        profiler(ncu, small_plan("conventional", "1"), tmp_path / "run").run()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and caught.value.exit_code is ExitCode.INCOMPLETE
    assert time.monotonic() - started < 10 and alive(tmp_path / "pids") == []
    assert not (tmp_path / "run" / "cases.jsonl").exists()


def test_a_metric_that_the_user_named_is_bad_input(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "metric")
    monkeypatch.setenv("STANDIN_METRIC", "sm__no_such.sum")
    with pytest.raises(InputError, match=r"--metrics: 'sm__no_such.sum': this Nsight Compute knows no such metric"):
        profiler(ncu, small_plan("conventional", "1"), tmp_path / "run").run()


def test_a_target_that_never_gets_ready_is_ended(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "deaf")
    with pytest.raises(DeviceError, match=r"did not get its target ready within 0.5 s; see .*1\.log"):
        profiler(ncu, small_plan("conventional", "1"), tmp_path / "run", patience=Patience(start_s=0.5)).run()
    assert alive(tmp_path / "pids") == []


def test_a_report_that_never_comes_ends_the_run(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "mute")
    with pytest.raises(DeviceError, match=r"was ended without its report; see .*1\.log"):
        profiler(ncu, small_plan("conventional", "1"), tmp_path / "run", patience=Patience(report_s=0.5)).run()
    assert alive(tmp_path / "pids") == []


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
def test_a_case_that_hangs_is_ended_with_all_its_processes_and_costs_itself(
    mode: str, ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second case of each start hangs; a stubborn ncu writes no report then, so the first case runs again."""
    monkeypatch.setenv("STANDIN", mode)
    monkeypatch.setenv("STANDIN_AT", "1")
    plan, run = small_plan("snapshot,fused_recovery,stree", "2"), tmp_path / "run"
    patience = Patience(case_s=0.4, report_s=0.4)
    profiler(ncu, plan, run, patience=patience).run()
    found = statuses(run)
    assert found["fused_recovery"] == "timeout"
    assert sorted(found.values()) == (["ok", "ok", "timeout"] if mode == "hang" else ["ok", "timeout", "timeout"])
    assert alive(tmp_path / "pids") == []
    record = next(r for r in results.Journal(run / "cases.jsonl").read().values() if r["status"] == "timeout")
    assert "took too long under ncu" in record["reason"]


def test_a_crash_names_the_kernel_and_a_resumed_run_counts_what_is_left(
    ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", "crash")
    monkeypatch.setenv("STANDIN_AT", "1")
    plan, run = small_plan("snapshot,stree", "2"), tmp_path / "run"
    profiler(ncu, plan, run).run()
    assert statuses(run) == {"snapshot": "ok", "stree": "crashed"}
    record = next(r for r in results.Journal(run / "cases.jsonl").read().values() if r["status"] == "crashed")
    assert record["reason"] == 'LaunchFailed; Failed to profile "_replay_decode_kernel" in process 7'
    rows, counters = conclude(plan, run)
    assert results.exit_code(row["status"] for row in rows) is ExitCode.INCOMPLETE and len(counters) == 1
    monkeypatch.setenv("STANDIN", "good")
    profiler(ncu, plan, run).run()
    assert statuses(run) == {"snapshot": "ok", "stree": "ok"}
    assert len(conclude(plan, run)[1]) == 2
    last = json.loads((run / "ncu" / "2.plan.json").read_text())
    assert [item["case"]["method"] for item in last["cases"]] == ["stree"]  # what was counted is not counted again


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("oom", "oom", "tried 190 GB"),
        ("poison", "error", "illegal memory access"),
        ("partial", "error", "the report has 1 of the 2 launches in perfkit/stree/verify"),
    ],
)
def test_a_case_that_fails_leaves_the_others_alone(
    mode: str, status: str, words: str, ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", mode)
    monkeypatch.setenv("STANDIN_AT", "1")
    run = tmp_path / "run"
    profiler(ncu, small_plan("snapshot,stree", "2"), run).run()
    assert statuses(run) == {"snapshot": "ok", "stree": status}
    assert words in next(r["reason"] for r in results.Journal(run / "cases.jsonl").read().values() if r["reason"])


def test_the_time_limit_ends_it_all(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN", "hang")
    patience = Patience(stop_at=time.monotonic() + 0.8)
    with pytest.raises(OutOfTime, match="--max-time is over"):
        profiler(ncu, small_plan("conventional", "1"), tmp_path / "run", patience=patience).run()
    assert alive(tmp_path / "pids") == []


def test_the_real_target_runs_under_ncu(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in the interpreter; the stand-in makes counters of what the target told."""
    monkeypatch.setenv("STANDIN", "run")
    case = Case(Shape("mamba2", 1, 1, 16, 16), "replay", 1, 2, input_dtype="float16")
    plan, run = replace(small_plan(), groups=groups_of([case])), tmp_path / "run"
    profiler(ncu, plan, run, device="cpu").run()
    rows, counters = conclude(plan, run)
    assert [row["status"] for row in rows] == ["ok"], rows[0]["reason"]
    assert [(row["step"], row["h"], row["config_source"]) for row in counters] == [
        ("nonflush", 0, "default"), ("flush", 1, "default"),
    ]  # fmt: skip
    assert rows[0]["launch_config"] == counters[0]["launch_config"]
