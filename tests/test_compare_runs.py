"""perfkit compare on runs of the simulated GPU and on what ships: alarms, regressions, refusals, what it says."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from perfkit import compare, results
from perfkit.cli import app
from perfkit.profiles import measured_files
from perfkit.reports.changes import Change
from tests.fakeruns import QUIET, fake_run
from tests.sweephelp import FAKE, SMALL
from tests.test_layers import modules_after

ONE_BATCH = {"batch": "256", "window": "8,16,32"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two batches and two windows, as others are compared with."""
    return fake_run(tmp_path_factory.mktemp("runs") / "base")


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same cases in which replay takes 4 % more."""
    return fake_run(tmp_path_factory.mktemp("runs") / "slower", seed=1, slowdown={"replay": 1.04})


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Run ``perfkit compare`` and return its exit code and what it printed."""
    capsys.readouterr()
    code = app.run(["compare", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    code, out, err = run(capsys, *args, "--json")
    assert err == ""
    assert "NaN" not in out and "Infinity" not in out
    data = json.loads(out)
    assert data["exit_code"] == code
    return data


def by_case(data: dict) -> dict[str, dict]:
    return {case["case"]: case for case in data["cases"]}


def copied(run_dir: Path, to: Path) -> Path:
    shutil.copytree(run_dir, to)
    return to


def edit(run_dir: Path, **changes: object) -> Path:
    """Change columns of all rows of a run."""
    frame = pd.read_csv(run_dir / "results.csv", dtype="string", keep_default_na=False)
    (run_dir / "results.parquet").unlink(missing_ok=True)
    frame.assign(**changes).to_csv(run_dir / "results.csv", index=False)
    return run_dir


def with_manifest(run_dir: Path, **changes: object) -> Path:
    path = run_dir / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return run_dir


# -- what it must show -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.001, 0.01], ids=["as an H200", "noisy"])
def test_twenty_comparisons_of_the_same_code_raise_at_most_one_alarm(tmp_path: Path, noise: float):
    fakes = {"noise": noise, "run_noise": 0.0005}  # and each case of each run is off by what no sample shows
    folders = [fake_run(tmp_path / f"run{seed}", seed=seed, flags=ONE_BATCH, fake=fakes) for seed in range(7)]
    runs = [compare.load(str(folder)) for folder in folders]
    pairs = list(itertools.combinations(runs, 2))[:20]
    found = [compare.compare(first, second, fail_on=0.0) for first, second in pairs]
    assert [len(one.cases) for one in found] == [3] * 20
    assert {case.base.evidence.kind for one in found for case in one.cases} == {"samples"}
    alarms = [one for one in found if one.counts["slower"] or one.counts["faster"] or one.regressions]
    assert len(alarms) <= 1
    if noise == 0.001:
        assert all(one.verdict == "same" for one in found)  # the samples are good enough to say so


def test_an_injected_slowdown_of_four_percent_exits_1_with_the_case_named(tmp_path: Path, monkeypatch, capsys):
    """Two sweeps of the command line; in the second, one case of six is 4 % slower."""
    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    settings = FAKE | {"fake": QUIET}
    monkeypatch.setenv("PERFKIT_FAKE", json.dumps(settings))
    monkeypatch.setattr("perfkit.cli.sweep_run._report", lambda run_dir: None)  # pages take their time
    before, after = tmp_path / "before", tmp_path / "after"
    assert app.run(["sweep", *SMALL, "--out", str(before)]) == 0
    rows = results.load_run(before)
    victim = rows[rows["batch"].eq(256) & rows["window"].eq(16)]["case_id"].item()
    monkeypatch.setenv("PERFKIT_FAKE", json.dumps(settings | {"slowdown": {victim: 1.04}}))
    assert app.run(["sweep", *SMALL, "--seed", "1", "--out", str(after)]) == 0

    code, out, _ = run(capsys, before, after, "--fail-on-regression", "3")
    assert code == 1
    *_, last = out.splitlines()
    assert last.startswith(
        "4 cases: 1 slower, 0 faster, 0 ambiguous, 3 same, 0 missing; REGRESSION (limit 3%): B256 L16"
    )
    assert "L8" not in last and "B1 " not in last
    assert out.splitlines()[2].startswith("B256 L16 replay  slower")
    assert run(capsys, before, after, "--fail-on-regression", "5")[0] == 0
    assert run(capsys, before, after)[0] == 0  # without a gate nothing fails
    assert run(capsys, before, before, "--fail-on-regression", "3")[0] == 0

    data = document(capsys, before, after, "--fail-on-regression", "3")
    assert (data["regressions"], data["verdict"], data["exit_code"]) == ([victim], "regression", 1)
    case = by_case(data)["B256 L16 replay"]
    assert case["case_id"] == victim
    assert case["change"] == pytest.approx(0.04, abs=0.003)
    assert case["change_lo"] < 0.04 < case["change_hi"]
    assert case["new"]["ratio"] / case["base"]["ratio"] == pytest.approx(1 + case["change"])
    assert (case["floor"], case["base"]["evidence"]) == (0.005, "samples")
    assert case["p_adjusted"] < 1e-4
    assert {one["verdict"] for one in data["cases"] if one["case_id"] != victim} == {"same"}


def test_a_case_that_is_no_longer_ok_is_a_regression(base: Path, tmp_path: Path, capsys):
    statuses = {"oom": "oom", "error": "error", "incorrect": "incorrect", "throttle": "throttled"}
    rows = results.load_run(base)
    ids = list(rows[rows["window"].notna()]["case_id"])
    faults = dict(zip(ids, statuses, strict=True))
    broken = fake_run(tmp_path / "new", faults=faults, max_samples=20)
    data = document(capsys, base, broken, "--fail-on-regression", "50")
    assert (data["exit_code"], sorted(data["regressions"])) == (1, sorted(ids))
    for case in data["cases"]:
        status = statuses[faults[case["case_id"]]]
        assert (case["verdict"], case["base"]["status"], case["new"]["status"]) == ("missing", "ok", status)
        assert case["reason"].startswith(f"{status} in NEW (")
    code, out, _ = run(capsys, base, broken)
    assert code == 0
    assert [line.split()[3] for line in out.splitlines()[2:6]] == ["missing"] * 4
    # What was broken before cannot break again, and nothing is left to compare.
    code, out, err = run(capsys, broken, base, "--fail-on-regression", "3")
    assert (code, out) == (2, "")
    assert "no case has a ratio in both runs; B64 L8 replay: oom in BASE (planted: out of memory)" in err


def test_one_case_that_broke_among_others_that_are_the_same_is_the_verdict(base: Path, tmp_path: Path, capsys):
    rows = results.load_run(base)
    victim = rows[rows["batch"].eq(64) & rows["window"].eq(8)]["case_id"].item()
    data = document(capsys, base, fake_run(tmp_path / "new", faults={victim: "oom"}))
    assert (data["counts"]["same"], data["counts"]["missing"]) == (3, 1)
    assert (data["verdict"], data["exit_code"]) == ("missing", 0)


def test_a_run_that_was_cut_short_does_not_pass(base: Path, tmp_path: Path, capsys):
    short = fake_run(tmp_path / "new", drop=("replay",))
    data = document(capsys, base, short, "--fail-on-regression", "3")
    assert data["exit_code"] == 1
    assert {(case["verdict"], case["new"]["status"], case["regression"]) for case in data["cases"]} == {
        ("missing", "unfinished", True)
    }


def test_a_smaller_run_is_compared_where_it_has_cases(base: Path, tmp_path: Path, capsys):
    small = fake_run(tmp_path / "new", flags={"batch": "64", "window": "8"})
    code, out, _ = run(capsys, base, small, "--fail-on-regression", "3")
    assert code == 0
    assert "4 cases in BASE alone" in out  # two of batch 256, its control, one of batch 64
    assert out.splitlines()[-1] == "5 cases: 0 slower, 0 faster, 0 ambiguous, 1 same, 4 missing; no regression above 3%"
    assert "5 cases in" not in run(capsys, small, base)[1]
    assert "4 cases in NEW alone" in run(capsys, small, base)[1]
    assert "absent in NEW" in run(capsys, base, small, "--all")[1]


def test_a_control_that_fails_takes_the_ratios_of_its_group_along(base: Path, tmp_path: Path, capsys):
    broken = fake_run(tmp_path / "new", faults={"conventional": "oom"})
    data = document(capsys, base, broken, "--fail-on-regression", "3")
    cases = by_case(data)
    assert data["exit_code"] == 1
    assert sorted(data["regressions"]) == sorted(cases[f"B{batch} conventional"]["case_id"] for batch in (64, 256))
    assert cases["B64 L8 replay"]["verdict"] == "missing"
    assert cases["B64 L8 replay"]["reason"] == "its control is oom in NEW"
    assert cases["B64 L8 replay"]["new"]["status"] == "ok"


def without(run_dir: Path, to: Path, **columns: object) -> Path:
    """Copy a run that was not asked for the cases of one method, of some batches."""
    frame = pd.read_csv(run_dir / "results.csv", dtype="string", keep_default_na=False)
    gone = pd.concat([frame[name].eq(str(value)) for name, value in columns.items()], axis=1).all(axis=1)
    assert gone.any()
    edited = copied(run_dir, to)
    (edited / "results.parquet").unlink()
    frame[~gone].to_csv(edited / "results.csv", index=False)
    return with_manifest(edited, case_ids=list(frame[~gone]["case_id"]))


@pytest.mark.parametrize("side", ["BASE", "NEW"])
def test_a_group_whose_control_was_not_asked_for_does_not_pass_unsaid(base: Path, tmp_path: Path, capsys, side: str):
    lacks = without(base, tmp_path / "lacks", method="conventional", batch=256)
    pair = (lacks, base) if side == "BASE" else (base, lacks)
    code, out, _ = run(capsys, *pair, "--fail-on-regression", "3")
    assert code == 0
    said = "WARNING    2 cases not compared, though ok in both runs: B256 L16 replay, B256 L8 replay (its control is "
    assert f"{said}absent in {side})" in out.splitlines()
    counts, *rest = out.splitlines()[-1].split("; ")
    assert counts == "5 cases: 0 slower, 0 faster, 0 ambiguous, 2 same, 3 missing"
    assert rest == ["1 of 2 groups not compared", "no regression above 3%"]
    assert run(capsys, *pair)[1].splitlines()[-1].endswith("; 1 of 2 groups not compared; MISSING")
    data = document(capsys, *pair, "--fail-on-regression", "3")
    named = {case["case_id"]: case["group_id"] for case in data["cases"] if case["uncompared"]}
    assert set(data["uncompared"]) == set(named) and len(named) == 2
    assert data["uncompared_groups"] == sorted(set(named.values()))
    assert data["verdict"] == "missing"
    advice = Change("a", "b", compare.compare(*(compare.load(str(path)) for path in pair))).advice
    assert advice.startswith("Not compared: B256 L16 replay (its control is absent in ")
    whole = document(capsys, base, base)
    assert (whole["uncompared"], whole["uncompared_groups"], whole["verdict"]) == ([], [], "same")


def test_a_regression_beside_a_group_without_its_control_still_fails(base, slower, tmp_path: Path, capsys):
    lacks = without(slower, tmp_path / "lacks", method="conventional", batch=256)
    code, out, _ = run(capsys, base, lacks, "--fail-on-regression", "3")
    assert code == 1
    assert "3 missing; 1 of 2 groups not compared; REGRESSION (limit 3%): B64 L" in out.splitlines()[-1]


def test_nothing_compared_is_bad_input_that_says_why(base: Path, tmp_path: Path, capsys):
    lacks = without(base, tmp_path / "lacks", method="conventional")
    for gate in ((), ("--fail-on-regression", "3")):
        code, out, err = run(capsys, base, lacks, *gate)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert (
            "nothing to compare: no case has a ratio in both runs; "
            "B64 L8 replay: its control is absent in NEW, and so of 3 cases more" in err
        )
    # Nobody expects a time of what is skipped in both runs, and the ratio of a control is 1.
    frame = pd.read_csv(base / "results.csv", dtype="string", keep_default_na=False)
    status = frame["status"].where(frame["method"].ne("replay"), "skipped")
    skips = edit(copied(base, tmp_path / "skips"), status=status)
    code, out, err = run(capsys, skips, skips)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "nothing to compare: no case has a time in either run: each is skipped, or is a control" in err


# -- controls --------------------------------------------------------------------------------------------------------


def test_a_control_that_got_slower_is_warned_of(base: Path, tmp_path: Path, capsys):
    slow = fake_run(tmp_path / "new", seed=1, slowdown={"conventional": 1.05})
    data = document(capsys, base, slow)
    assert {case["verdict"] for case in data["cases"]} == {"faster"}  # which only looks so:
    assert {round(case["time_change"], 2) for case in data["cases"]} == {0.0}
    assert [control["large"] for control in data["controls"]] == [True, True]
    assert [control["change"] for control in data["controls"]] == pytest.approx([0.05, 0.05], abs=0.002)
    out = run(capsys, base, slow)[1]
    assert "WARNING    the control itself moved: B" in out


def test_what_slows_all_methods_alike_does_not_show_in_ratios_and_is_said(base: Path, tmp_path: Path, capsys):
    slow = fake_run(tmp_path / "new", seed=1, slowdown={"conventional": 1.05, "replay": 1.05})
    code, out, _ = run(capsys, base, slow, "--fail-on-regression", "3")
    assert code == 0
    assert "4 cases of these groups not slower by ratio but in absolute time" in out
    assert "4 same" in out


def test_a_control_within_the_margin_is_no_warning(base: Path, tmp_path: Path, capsys):
    new = fake_run(tmp_path / "new", seed=1, slowdown={"conventional": 1.01, "replay": 1.01})
    out = run(capsys, base, new)[1]
    assert "WARNING" not in out
    assert "+1.0%, the most of 2 (informational: absolute times move with GPU, clocks and driver)" in out


# -- evidence --------------------------------------------------------------------------------------------------------


def test_without_samples_the_stored_intervals_are_used_and_it_is_said(base: Path, slower: Path, tmp_path, capsys):
    bare = copied(slower, tmp_path / "new")
    shutil.rmtree(bare / "samples")
    data = document(capsys, base, bare, "--fail-on-regression", "3")
    assert {(case["base"]["evidence"], case["new"]["evidence"]) for case in data["cases"]} == {("samples", "intervals")}
    assert len(data["regressions"]) == 4
    said = "intervals  NEW ships no samples: stored 95 % intervals in their place"
    assert said in run(capsys, base, bare)[1]
    assert "ships no samples" not in run(capsys, base, slower)[1]
    (bare / "samples").mkdir()
    for case in data["cases"][1:]:
        for case_id in (case["case_id"], _control(base, case)):
            shutil.copy(slower / "samples" / f"{case_id}.json", bare / "samples")
    assert "NEW ships no samples of 1 case: stored" in run(capsys, base, bare)[1]


def _control(run_dir: Path, case: dict) -> str:
    rows = results.load_run(run_dir)
    return rows[rows["case_id"].eq(case["case_id"])]["baseline"].item()


def test_files_of_results_are_runs_too(base: Path, capsys):
    assert run(capsys, base / "results.csv", base / "results.parquet")[0] == 0
    data = document(capsys, base / "results.csv", base)
    assert data["base"]["samples"] and data["base"]["facts"] == data["new"]["facts"]


def test_a_shipped_measurement_is_found_by_name(capsys):
    data = document(capsys, "nemotron-super-h200", "nemotron-super-h200", "--fail-on-regression", "3")
    rows = results.load_run(measured_files()["nemotron-super-h200"])
    assert data["counts"] == {"slower": 0, "faster": 0, "ambiguous": 0, "same": rows["window"].notna().sum(),
                              "missing": 0}  # fmt: skip
    assert {case["change"] for case in data["cases"]} == {0.0}
    assert {case["new"]["evidence"] for case in data["cases"]} == {"intervals"}
    assert data["base"]["gpus"] == ["h200-sxm"]


def test_an_a_a_difference_raises_the_floor_of_its_group(base: Path, tmp_path: Path, capsys):
    fakes = {"fake": {"noise": 0.0}, "flags": {"self_check": True}}
    first = fake_run(tmp_path / "first", **fakes)
    rows = results.load_run(first)
    (second,) = rows[rows["options"].fillna("").str.contains('"B"') & rows["batch"].eq(64)]["case_id"]
    new = fake_run(tmp_path / "new", slowdown={second: 1.03}, **fakes)
    data = document(capsys, first, new)
    floors = {case["batch"]: case["floor"] for case in data["cases"]}
    assert floors == {64: pytest.approx(0.03), 256: 0.005}
    assert len(data["cases"]) == 4  # neither of the controls, A or B, is a case
    assert "floor      0.5%, up to 3.0% in 2 cases by their A/A difference: " in run(capsys, first, new)[1]
    # A run without --self-check has its control under another id, and the same group.
    assert document(capsys, base, first)["counts"]["same"] == 4


def test_a_case_that_may_be_above_the_limit_is_named(base: Path, tmp_path: Path, capsys):
    noisy = {"noise": 0.02}
    first = fake_run(tmp_path / "first", fake=noisy, max_samples=10)
    new = fake_run(tmp_path / "new", seed=1, fake=noisy, max_samples=10, slowdown={"replay": 1.02})
    data = document(capsys, first, new, "--fail-on-regression", "3")
    assert data["exit_code"] == 0 and data["undecided"]
    out = run(capsys, first, new, "--fail-on-regression", "3")[1]
    assert "may be above 3%" in out and "undecided  B" in out


# -- what is refused -------------------------------------------------------------------------------------------------


def test_different_gpus_are_refused_without_force(base: Path, tmp_path: Path, capsys):
    other = edit(copied(base, tmp_path / "new"), gpu="b200")
    code, out, err = run(capsys, base, other)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "not comparable by the GPU: h200-sxm in BASE, b200 in NEW; --force compares the ratios" in err
    code, out, _ = run(capsys, base, other, "--force")
    assert code == 0
    assert "forced     not comparable by the GPU: h200-sxm in BASE, b200 in NEW" in out


def test_another_gpu_of_the_same_model_is_a_note(base: Path, tmp_path: Path, capsys):
    other = edit(copied(base, tmp_path / "new"), gpu_uuid="GPU-01234567-89ab")
    code, out, _ = run(capsys, base, other)
    assert code == 0
    assert "differs    GPU GPU-fa4e -> GPU-0123" in out


def test_another_schema_version_is_refused_without_force(base: Path, tmp_path: Path, capsys):
    other = with_manifest(edit(copied(base, tmp_path / "new"), schema_version="2"), schema=2)
    code, out, err = run(capsys, base, other, "--fail-on-regression", "3")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "by the schema version: 1 in BASE, 2 in NEW, 1 here; --force" in err
    data = document(capsys, base, other, "--force")
    assert data["counts"]["same"] == 4
    assert {case["new"]["evidence"] for case in data["cases"]} == {"intervals"}  # its samples may mean anything
    both = edit(copied(other, tmp_path / "both"), gpu="b200")
    assert "by the GPU: " in (err := run(capsys, base, both)[2]) and " and by the schema version: " in err


def test_what_cannot_be_compared_is_one_line(base: Path, tmp_path: Path, capsys):
    nano = edit(fake_run(tmp_path / "nano", flags=ONE_BATCH | {"batch": "8"}), model="other")
    alone = fake_run(tmp_path / "alone", flags={"method": "conventional"})
    twice = tmp_path / "twice.csv"
    text = (base / "results.csv").read_text().splitlines()
    twice.write_text("\n".join([*text, text[-1]]) + "\n")
    predicted = edit(copied(base, tmp_path / "predicted"), source="predicted")
    cases = [
        (
            (base, nano),
            "no case of one run is in the other: BASE has nemotron-3-super-120b-a12b at B=64..256, T=1, NEW",
        ),
        ((base, alone), "only controls are in both runs, whose ratio is 1 by definition"),
        ((base, twice), "is there twice; compare one run with one other"),
        ((base, predicted), "'predicted': nothing here was measured"),
        ((base, tmp_path / "gone"), "no such run, file or shipped measurement (allowed: kimi-linear-h200, "),
        ((tmp_path, base), "not a run of perfkit"),
        ((base, base, "--fail-on-regression", "-1"), "--fail-on-regression: -1.0: must be a number of percent"),
        ((base, base, "--floor", "inf"), "--floor: inf: must be a number of percent"),
        ((base, base, "--json", "--markdown"), "--json, --markdown: choose one of them"),
    ]
    for args, message in cases:
        code, out, err = run(capsys, *args)
        assert (code, out, len(err.splitlines())) == (2, "", 1), args
        assert message in err


# -- what it says ----------------------------------------------------------------------------------------------------


def test_the_table_folds_what_is_the_same_and_has_the_worst_first(base: Path, tmp_path: Path, capsys):
    rows = results.load_run(base).set_index(["batch", "window"])["case_id"]
    new = fake_run(tmp_path / "new", seed=1,
                   slowdown={rows[64, 8]: 1.05, rows[256, 8]: 1.08, rows[64, 16]: 0.9})  # fmt: skip
    out = run(capsys, base, new)[1].splitlines()
    assert [line[:15].strip() for line in out[2:5]] == ["B256 L8 replay", "B64 L8 replay", "B64 L16 replay"]
    assert out[5].startswith("1 case the same, ")
    assert out[-1] == "4 cases: 2 slower, 1 faster, 0 ambiguous, 1 same, 0 missing; MIXED"
    everything = run(capsys, base, new, "--all")[1].splitlines()
    assert [line[:15].strip() for line in everything[2:6]] == [
        "B256 L8 replay", "B64 L8 replay", "B256 L16 replay", "B64 L16 replay"]  # fmt: skip
    assert not any("the same, " in line for line in everything)


def test_cases_of_one_name_are_told_apart(tmp_path: Path, capsys):
    flags = {"batch": "256", "window": "8", "input_dtype": "bfloat16,float16"}
    first = fake_run(tmp_path / "first", flags=flags)
    names = by_case(document(capsys, first, first))
    assert sorted(names) == sorted(f"B256 L8 replay {case['case_id']}" for case in names.values())


def test_a_file_that_lies_beside_a_manifest_is_not_of_that_run(base: Path, tmp_path: Path, capsys):
    folder = copied(base, tmp_path / "new")
    (folder / "results.csv").rename(folder / "mine.csv")
    data = document(capsys, base, folder / "mine.csv")
    assert data["new"]["facts"]["driver"] is None and not data["new"]["samples"]


def test_markdown_is_a_table_under_its_verdict(base: Path, slower: Path, capsys):
    code, out, _ = run(capsys, base, slower, "--markdown", "--fail-on-regression", "3")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("**4 cases: 4 slower") and lines[0].endswith("**")
    assert lines[4].startswith("| case | verdict | change |")
    assert {line.count("|") for line in lines[4:10]} == {len(compare.COLUMNS) + 1}
    assert all(line.startswith("- ") for line in lines[11:])


def test_the_floor_can_be_set(base: Path, slower: Path, capsys):
    assert document(capsys, base, slower, "--floor", "5")["counts"]["slower"] == 0
    found = document(capsys, base, slower, "--floor", "0")
    assert found["counts"]["slower"] == 4 and found["settings"]["floor"] == 0.0


def test_neither_torch_nor_triton_is_imported(base: Path, slower: Path, tmp_path: Path):
    status, names = modules_after(["compare", str(base), str(slower), "--fail-on-regression", "3"], tmp_path)
    assert status == 1
    assert not {"torch", "triton"} & names
