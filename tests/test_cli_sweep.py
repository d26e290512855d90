"""perfkit sweep end to end on the simulated GPU, and every way in which its input can be bad."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from perfkit import results
from perfkit.cli import app
from perfkit.fake import UUID
from tests.fakenvml import FakeNvml, Gpu, Instance
from tests.sweephelp import FAKE, SMALL, journal

_HERE = Path(__file__).parent


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Switch to the simulated GPU; call it to plant settings."""

    def use(**settings):
        monkeypatch.setenv("PERFKIT_FAKE", json.dumps(FAKE | settings))

    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    monkeypatch.chdir(tmp_path)
    use()
    return use


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A machine without a GPU, where nothing is checked (that takes a worker that interprets)."""
    monkeypatch.delenv("PERFKIT_WORKER_MODE", raising=False)
    monkeypatch.setattr("perfkit.device.usable_gpu", lambda: None)
    monkeypatch.setattr("perfkit.predict.check_kernels", lambda *args: {})
    monkeypatch.chdir(tmp_path)


def sweep(*args: str) -> int:
    return app.run(["sweep", *args])


def test_a_sweep_leaves_everything_that_a_run_has(fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(Gpu(UUID)))
    run = tmp_path / "run"
    assert sweep(*SMALL, "--out", str(run)) == 0
    assert {path.name for path in run.iterdir()} >= {
        "manifest.json", "cases.jsonl", "samples", "results.parquet", "results.csv", "report.html"}  # fmt: skip
    frame = results.load_run(run)
    assert list(frame["method"]) == ["conventional", "replay", "replay"] * 2
    assert set(frame["status"]) == {"ok"}
    assert set(frame["source"]) == {"measured"}
    assert frame["speedup"].notna().all()
    assert frame["predicted_us"].notna().all()
    manifest = results.read_manifest(run)
    assert manifest["case_ids"] == list(frame["case_id"])
    assert manifest["ended"] > manifest["started"]
    assert manifest["model"]["key"] == frame["model"][0]
    assert manifest["worker"]["mode"] == "fake"
    assert len(manifest["hash"]) == 64
    for case_id in manifest["case_ids"]:
        assert len(results.read_samples(run, case_id)["time_us"]) >= 5
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[1].startswith("B256 L16 replay")
    assert re.fullmatch(r"6/6 ok; 0 samples throttled; A/A floor [01]\.\d% at B=256, [01]\.\d% at worst", lines[2])
    assert lines[3] == "MEASURED  Fake GPU GPU-fa4e, driver fake, SM 1980 MHz, cold L2"
    assert lines[4].startswith("clock     SM 1980 MHz, memory 3201 MHz, 71 W, 31 C; throttled in 0 of ")
    assert len((run / "samples" / "clock.csv").read_text().splitlines()) == manifest["clock"]["readings"] + 1 >= 3
    assert lines[-1] == f"next      perfkit profile {run} --worst 3   ·   report {run}/report.html"
    assert "[6/6] B256 L16 replay" in err


def test_json_is_one_document_and_nothing_else(fake, tmp_path: Path, capsys):
    assert sweep(*SMALL, "--out", str(tmp_path / "run"), "--json", "--self-check") == 0
    out, _ = capsys.readouterr()
    document = json.loads(out)
    assert "NaN" not in out
    assert document["run_dir"] == str(tmp_path / "run")
    assert len(document["rows"]) == 8
    summary = document["summary"]
    assert summary["statuses"] == {"ok": 8}
    assert 0 <= summary["aa_floor"] < 0.02
    assert summary["best_window"]["eq16"] == pytest.approx(12.92, abs=0.005)
    assert summary["best_window"]["window"] in (8, 16)
    assert summary["control"]["method"] == "conventional"
    assert len(summary["best"]) == 2


def test_default_folder_is_named_after_model_and_gpu(fake, tmp_path: Path):
    assert sweep("--model", "nemotron-super", "--batch", "1", "--window", "8") == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("Z-nemotron-3-super-120b-a12b-h200-sxm")


def test_a_plugin_is_timed_in_the_same_group(fake, tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from perfkit.kernels.mamba2.conventional_decode import ConventionalDecode\n"
        "class Mine(ConventionalDecode):\n    source = 'mine'\n"
        "MINE = Mine()\n"
    )
    args = ("--model", "nemotron-super", "--batch", "8", "--window", "8", "--method", "mine.py:MINE")
    assert sweep(*args, "--out", "run") == 0
    frame = results.load_run("run")
    assert list(frame["method"]) == ["conventional", f"{tmp_path / 'mine.py'}:MINE"]
    assert frame["group_id"].nunique() == 1
    assert frame["speedup"].notna().all()


def test_dry_run_makes_nothing(fake, tmp_path: Path, capsys):
    assert sweep(*SMALL, "--out", str(tmp_path / "run"), "--dry-run") == 0
    out, _ = capsys.readouterr()
    assert "B256 L16 replay" in out
    assert "6 cases in 2 groups, 0 skipped: measure on Fake GPU" in out
    assert not (tmp_path / "run").exists()
    assert sweep(*SMALL, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr()[0])
    assert (plan["n_cases"], plan["n_groups"], plan["mode"]) == (6, 2, "measure")
    assert plan["groups"][1]["cases"][0]["memory_bytes"] > 2**30


def test_without_a_gpu_it_predicts_and_says_so(laptop, tmp_path: Path, capsys):
    assert sweep(*SMALL, "--out", "run") == 0
    out, err = capsys.readouterr()
    assert "no usable GPU here" in err and "predicting for NVIDIA H200" in err
    assert "PREDICTED NVIDIA H200" in out and "nothing was timed here" in out
    assert "MEASURED" not in out
    frame = results.load_run(tmp_path / "run")
    own = frame[frame["source"] != "recorded"]
    assert set(own["source"]) == {"predicted"}
    assert (own["time_us"] == own["predicted_us"]).all()
    assert set(own["gpu"]) == {"h200-sxm"}
    assert own["roof_fraction"].isna().all()


def test_on_a_laptop_every_kernel_is_checked_in_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
):
    monkeypatch.delenv("PERFKIT_WORKER_MODE", raising=False)
    monkeypatch.setattr("perfkit.device.usable_gpu", lambda: None)
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    assert sweep("--model", "nemotron-super", "--out", "run") == 0
    assert time.monotonic() - started < 90
    out, _ = capsys.readouterr()
    assert "kernels checked in the interpreter" in out
    frame = results.load_run("run")
    own = frame[frame["source"] == "predicted"]
    assert len(own) == 40
    assert set(own["checked"]) == {"interpreter"}
    assert (own["rel_error"] < 2e-6).all()


@pytest.mark.gpu
def test_on_a_gpu_it_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.delenv("PERFKIT_WORKER_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert sweep("--model", "nemotron-super", "--batch", "4,64", "--window", "16", "--self-check", "--out", "run") == 0
    out, _ = capsys.readouterr()
    assert "MEASURED" in out and "A/A floor" in out
    frame = results.load_run("run")
    assert set(frame["source"]) == {"measured"}
    assert set(frame["checked"]) == {"gpu"}
    assert set(frame["status"]) == {"ok"}
    assert (frame["time_us"] > 0).all() and (frame["n_samples"] >= 5).all()


def test_a_named_gpu_that_is_not_here_is_predicted(laptop, capsys):
    assert sweep("--model", "nemotron-super", "--batch", "64", "--window", "16", "--gpu", "b200", "--out", "run") == 0
    out, err = capsys.readouterr()
    assert "there is no usable GPU here: predicting for NVIDIA B200" in err
    assert "PREDICTED NVIDIA B200" in out
    assert "efficiencies fitted on h200-sxm" in out


def test_what_does_not_fit_a_gpu_is_not_predicted(laptop, capsys):
    args = ("--model", "nemotron-super", "--batch", "64,1048576", "--window", "16")
    assert sweep(*args, "--dry-run") == 0
    out, _ = capsys.readouterr()
    assert "skipped: needs 4,4" in out and "GB, h200-sxm has 150 GB" in out
    assert "2 cases in 2 groups, 2 skipped: predict for" in out
    assert sweep(*args, "--out", "run") == 0
    frame = results.load_run("run")
    own = frame[frame["source"] == "predicted"]
    assert list(own["status"]) == ["ok", "ok", "skipped", "skipped"]
    assert own["time_us"].isna().tolist() == [False, False, True, True]
    assert own["reason"].iloc[2].endswith("GB, h200-sxm has 150 GB")
    assert "2/4 ok, 2 skipped (needs 4,4" in capsys.readouterr()[0]


def test_a_gpu_that_is_here_says_itself_what_does_not_fit(fake, capsys):
    assert sweep("--model", "nemotron-super", "--batch", "1048576", "--window", "16", "--dry-run") == 0
    assert "2 cases in 1 group, 0 skipped" in capsys.readouterr()[0]
    assert sweep("--model", "nemotron-super", "--batch", "1", "--method", "conventional", "--dry-run") == 0
    assert "1 case in 1 group, 0 skipped" in capsys.readouterr()[0]


def test_a_resumed_prediction_is_of_one_model(laptop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from dataclasses import replace

    from perfkit import derive

    assert sweep(*SMALL, "--out", "run") == 0
    before = results.load_run("run")
    assert sweep("--resume", "run") == 0
    assert len(journal(tmp_path / "run")) == 6  # nothing has changed, nothing is written
    shipped = derive.efficiency_for

    def refitted(*args):
        return replace(shipped(*args), overhead_us=100.0)

    monkeypatch.setattr(derive, "efficiency_for", refitted)
    assert sweep("--resume", "run") == 0
    after = results.load_run("run")
    own = after[after["source"] == "predicted"]
    assert (own["time_us"] == own["predicted_us"]).all()
    assert (own["time_us"].to_numpy() > before[before["source"] == "predicted"]["time_us"].to_numpy() + 90).all()
    assert [record["attempt"] for record in journal(tmp_path / "run")] == [1] * 6 + [2] * 6


def test_recorded_rows_stand_beside_predictions(laptop, monkeypatch: pytest.MonkeyPatch, capsys):
    assert sweep("--model", "nemotron-super", "--batch", "256", "--window", "16", "--out", "first") == 0
    capsys.readouterr()
    shipped = results.load_run("first")
    rows = [row | {"source": "measured", "time_us": time, "speedup": None, "predicted_us": None, "manifest": {}}
            for row, time in zip(json.loads(shipped[shipped["source"] == "predicted"].to_json(orient="records")),
                                 (559.0, 302.0), strict=True)]  # fmt: skip
    monkeypatch.setattr("perfkit.profiles.load_measured", lambda model=None, gpu=None: rows)
    assert sweep("--model", "nemotron-super", "--batch", "256", "--window", "16", "--out", "second") == 0
    out, _ = capsys.readouterr()
    frame = results.load_run("second")
    assert sorted(frame["source"]) == ["predicted", "predicted", "recorded", "recorded"]
    recorded = frame[frame["source"] == "recorded"].set_index("method")
    assert recorded["speedup"]["replay"] == pytest.approx(559 / 302)
    assert recorded["prediction_error"].notna().all()
    assert "RECORDED  2 shipped rows" in out
    assert "against the recorded rows" in out


def test_a_kernel_that_is_wrong_gets_no_predicted_time(laptop, monkeypatch: pytest.MonkeyPatch):
    from perfkit import predict

    def checks(plan, *args):
        small = {predict.small_case(case) for case in plan.cases.values()}
        wrong = predict.Check("incorrect", "relative error 1.0", 1.0)
        return {case: wrong if case.method == "replay" else predict.Check("ok", None, 1e-7) for case in small}

    monkeypatch.setattr(predict, "check_kernels", checks)
    assert sweep("--model", "nemotron-super", "--batch", "64", "--window", "16", "--out", "run") == 1
    frame = results.load_run("run")
    frame = frame[frame["source"] == "predicted"].set_index("method")
    assert frame["status"].to_dict() == {"conventional": "ok", "replay": "incorrect"}
    assert set(frame["checked"]) == {"interpreter"}
    assert frame["time_us"].isna().to_dict() == {"conventional": False, "replay": True}


def test_a_kernel_that_crashes_its_check_is_predicted_but_not_well(laptop, monkeypatch: pytest.MonkeyPatch, capsys):
    from perfkit import predict

    def checks(plan, *args):
        small = {predict.small_case(case) for case in plan.cases.values()}
        bad = predict.Check("crashed", "SIGSEGV", None)
        return {case: bad if case.method == "replay" else predict.Check("ok", None, 1e-7) for case in small}

    monkeypatch.setattr(predict, "check_kernels", checks)
    assert sweep("--model", "nemotron-super", "--batch", "64", "--window", "16", "--out", "run") == 3
    out, err = capsys.readouterr()
    assert "not all kernels checked in the interpreter" in out
    assert "crashed: SIGSEGV" in err
    assert [check["status"] for check in results.read_manifest("run")["checks"]].count("crashed") == 1


def _bad_file(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), ("--model", "is missing")),
        (("--model", "gpt-17"), ("model", "'gpt-17'", "unknown model")),
        (("--model", "nemotron-super", "--gpu", "h300"), ("gpu", "'h300'", "unknown GPU")),
        (("--model", "nemotron-super", "--batch", "0"), ("--batch", "'0'", "at least 1")),
        (("--model", "nemotron-super", "--window", "0"), ("--window", "'0'", "at least 1")),
        (("--model", "nemotron-super", "--batch", "9" * 20), ("--batch", "at most 2147483647")),
        (("--model", "nemotron-super", "--seed", "-1"), ("--seed", "-1", "whole number from 0")),
        (("--model", "nemotron-super", "--draft", "8", "--window", "4"), ("--draft", "'8'", "--window 4", "at most L")),
        (
            ("--model", "nemotron-super", "--batch", "9999999"),
            ("no point of this sweep can run", "h200-sxm has 150 GB"),
        ),
        (("--model", "nemotron-super", "--method", "magic"), ("--method", "'magic'", "allowed: conventional")),
        (("--model", "nemotron-super", "--state-dtype", "fp33"), ("--state-dtype", "'fp33'")),
        (("--model", "nemotron-super", "--tree", "2,2"), ("--tree", "'2'", "must come before it")),
        (
            ("--model", "nemotron-super", "--tree", "0,0,1", "--draft", "8"),
            ("--draft", "'8'", "as many positions as nodes"),
        ),
        (("--model", "nemotron-super", "--draft", "4", "--accepted", "1,9"), ("accepted", "9", "1..4")),
        (("--model", "nemotron-super", "--read-dtype", "bf16"), ("--read-dtype", "not there yet")),
        (("--model", "nemotron-super", "--timeout", "0"), ("--timeout", "above 0")),
        (("--model", "nemotron-super", "--max-time", "-1"), ("--max-time", "above 0")),
        (("--model", "nemotron-super", "--preset", "bad.yaml"), ("bad.yaml", "colour", "unknown field")),
        (("--model", "list.json"), ("list.json", "object")),
        (("--model", "broken.yaml"), ("broken.yaml",)),
        (("--resume", "nowhere"), ("nowhere", "not a run of perfkit")),
        (("--resume", "nowhere", "--batch", "4"), ("--batch", "--resume takes everything")),
        (("--model", "nemotron-super", "--out", "list.json"), ("list.json", "is a file")),
        (("--model", "nemotron-super", "--out", "full"), ("full", "is not empty")),
        (("--model", "nemotron-super", "--out", "/proc/nowhere/run"), ("/proc/nowhere/run", "--out")),
        (("--model", "nemotron-super", "--colour", "red"), ("--colour",)),
    ],
)
def test_bad_input_is_one_line_and_code_two(laptop, tmp_path: Path, capsys, args, words):
    _bad_file(tmp_path, "list.json", "[1, 2]")
    _bad_file(tmp_path, "bad.yaml", "colour: red\n")
    _bad_file(tmp_path, "broken.yaml", "key: [\n")
    (tmp_path / "full").mkdir()
    _bad_file(tmp_path, "full/file", "")
    before = sorted(tmp_path.rglob("*"))
    assert sweep(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err
    assert sorted(tmp_path.rglob("*")) == before


VERIFY = ("--model", "nemotron-super", "--preset", "verify")


def test_a_family_without_verify_methods_is_said(laptop, monkeypatch: pytest.MonkeyPatch, capsys):
    from perfkit import registry

    decode = registry.methods("mamba2", "decode")
    monkeypatch.setattr(registry, "_all_methods", lambda: tuple(decode))
    assert sweep("--model", "nemotron-super", "--draft", "4") == 2
    assert "--draft: there are no mamba2 verify methods yet" in capsys.readouterr()[1]


@pytest.mark.parametrize(
    ("draft", "points"),
    [("1", {"conventional", "L2 replay"}), ("4", {"conventional", "T4 a1 snapshot", "T4 a1 L4 replay"})],
)
def test_a_preset_takes_fewer_drafts_than_its_methods_are_for(laptop, capsys, draft, points):
    assert sweep("--model", "nemotron-super", "--preset", "windows", "--draft", draft, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr()[0])
    assert {f"B256 {point}" for point in points} <= {
        case["case"] for group in plan["groups"] for case in group["cases"]
    }


def test_a_verify_sweep_predicts(laptop, capsys):
    assert sweep(*VERIFY, "--out", "run") == 0
    out, _ = capsys.readouterr()
    assert len(out.splitlines()) <= 29
    assert "recorded us, B=256" in out  # the shipped rows of the same points stand in for bounds
    frame = results.load_run("run")
    own = frame[frame["source"] == "predicted"]
    assert set(own["draft_len"]) == {1, 2, 4, 6, 8}
    assert own[own["draft_len"] == 1]["method"].tolist() == ["conventional"]
    assert own["acceptance"][own["draft_len"] == 2].unique().tolist() == ["1", "T"]
    assert own["acceptance"][own["draft_len"] == 8].unique().tolist() == ["1", "7", "T"]
    assert own["predicted_us"].notna().all() and own["bytes_read_model"].notna().all()
    snapshots = own[own["method"] == "snapshot"]
    assert (snapshots["speedup"] == 1).all()


def test_a_verify_sweep_is_timed_in_decode_steps(fake, capsys):
    args = ("--model", "nemotron-super", "--batch", "256", "--window", "16", "--draft", "4")
    assert sweep(*args, "--method", "replay", "--accepted", "T;p:.88,.62,.40", "--out", "run") == 0
    out, _ = capsys.readouterr()
    frame = results.load_run("run")
    assert frame["method"].tolist() == ["conventional", "snapshot", "replay", "snapshot", "replay"]
    assert frame["conventional_steps"].notna().all() and frame["speedup"].notna().all()
    assert frame["accepted"].tolist() == pytest.approx([1, 4, 4, 2.9, 2.9])
    assert frame["group_id"].nunique() == 3
    assert out.count("conventional steps") == 2
    assert "B256 T4 a2.9p L16 replay" in out and "measured us, B=256  T4 aT  T4 a2.9p" in out


def test_a_tree_is_timed_by_the_methods_that_take_one(fake, capsys):
    args = ("--model", "nemotron-super", "--batch", "4", "--window", "16", "--tree", "0,0,1,1", "--accepted", "T")
    assert sweep(*args, "--out", "run") == 0
    frame = results.load_run("run").set_index("method")
    assert frame["status"]["snapshot"] == frame["status"]["replay"] == "ok"
    assert (frame["draft_len"]["replay"], frame["tree"]["replay"], frame["accepted"]["replay"]) == (5, "0,0,1,1", 3)
    if "fused_recovery" in frame.index:
        assert (frame["status"]["fused_recovery"], frame["reason"]["fused_recovery"]) == (
            "skipped",
            "draft trees: the end state is the state after one path, and the replay runs a prefix",
        )
    assert "B4 tree5 aT L16 replay" in capsys.readouterr()[0]


def test_what_the_delta_rule_has_no_kernels_for_is_skipped_with_the_reason(fake, capsys):
    from perfkit import registry

    args = ("--model", "qwen3.5-4b", "--batch", "4", "--window", "16", "--draft", "4", "--accepted", "T")
    assert sweep(*args, "--method", "all", "--out", "run") == 0
    out, _ = capsys.readouterr()
    frame = results.load_run("run").set_index("method")
    skipped = frame[frame["status"] == "skipped"]
    reasons = {item.key: item.reason for item in registry.absent("gdn")}
    assert skipped["reason"].to_dict() == reasons
    assert set(frame["status"].drop(skipped.index)) == {"ok"}
    assert skipped["bytes_read_model"].isna().all() and skipped["time_us"].isna().all()
    assert f"3 skipped ({reasons['joint_attainment']})" in out
    assert sweep("--resume", "run") == 0
    assert sweep(*args, "--method", "joint_attainment", "--out", "alone") == 0
    assert results.load_run("alone")["method"].tolist() == ["conventional", "snapshot", "joint_attainment"]


def test_staggered_rows_are_planned_for_the_gpu(fake, capsys):
    assert sweep(*SMALL, "--flush-phase", "staggered", "--dry-run") == 0
    assert "6 cases in 2 groups, 0 skipped: measure on Fake GPU" in capsys.readouterr()[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{oops", "PERFKIT_FAKE: '{oops': not JSON"),
        ("[1]", "PERFKIT_FAKE: '[1]': must be a JSON object"),
        ('{"colour": 1}', "PERFKIT_FAKE: 'colour': unknown setting"),
        ('{"fake": 3}', "PERFKIT_FAKE: fake: '3': must be a JSON object"),
        ('{"fake": {"sleep": 3}}', "PERFKIT_FAKE: fake: 'sleep': unknown setting"),
        ('{"fake": {"noise": "loud"}}', "PERFKIT_FAKE: fake: noise: 'loud': must be a number"),
        ('{"faults": {"replay": "explode"}}', "faults: 'explode': unknown fault"),
        ('{"faults": {"replay": "nan@check"}}', "faults: 'nan@check': unknown fault"),
        ('{"max_samples": "many"}', "PERFKIT_FAKE: max_samples: 'many': must be a number"),
        ('{"tune": 1}', "PERFKIT_FAKE: tune: '1': must be true or false"),
    ],
)
def test_settings_of_the_simulated_gpu_are_input_too(fake, monkeypatch: pytest.MonkeyPatch, capsys, text, words):
    monkeypatch.setenv("PERFKIT_FAKE", text)
    assert sweep(*SMALL, "--out", "run") == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert words in err
    assert not Path("run").exists()


def test_help_has_examples(capsys):
    assert app.run(["sweep", "--help"]) == 0
    out, _ = capsys.readouterr()
    assert "--self-check" in out
    assert "perfkit sweep --model nemotron-super" in out


def test_who_else_uses_the_gpu_and_that_it_is_a_part_of_one_is_said(monkeypatch: pytest.MonkeyPatch):
    from perfkit.cli.sweep_plan import usable_gpu

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(Gpu(UUID, processes=[(4242, 62_464), (7, None)])))
    facts, notes = usable_gpu()
    assert notes == ["other processes use this GPU (pid 4242 with 62,464 MiB, pid 7): times may suffer"]
    assert facts["key"] == "h200-sxm" and facts["uuid"] == UUID
    parts = FakeNvml(Gpu(UUID, mig=True, instances=[Instance("MIG-1")]))
    monkeypatch.setitem(sys.modules, "pynvml", parts)
    facts, (note,) = usable_gpu()
    assert note.startswith(
        f"NVIDIA H200 MIG 1g.18gb is a MIG instance of {UUID}, a part of a GPU: it is timed, without"
    )
    assert facts["key"] is None and facts["visible"] == "MIG-1"


class Here:
    """A GPU as the driver describes it."""

    is_mig, memory_total_mib = False, 143771

    def __init__(self, name: str) -> None:
        self.name = name

    def foreign(self):
        return ()

    def to_dict(self):
        return {"name": self.name, "uuid": "GPU-9", "visible": "GPU-9", "memory_total_mib": 143771}


@pytest.mark.parametrize(
    ("name", "flag", "mode", "key", "note"),
    [
        ("NVIDIA H200", "auto", "measure", "h200-sxm", ""),
        ("NVIDIA H200", "h200", "measure", "h200-sxm", ""),
        ("NVIDIA H200", "b200", "predict", "b200", "this machine has NVIDIA H200: predicting for NVIDIA B200"),
        ("NVIDIA Z9", "auto", "measure", None, "no profile for NVIDIA Z9: it is timed, without roofs and predictions"),
        ("NVIDIA Z9", "h200", "predict", "h200-sxm", "this machine has NVIDIA Z9: predicting for NVIDIA H200"),
    ],
)
def test_which_gpu(laptop, monkeypatch: pytest.MonkeyPatch, capsys, name, flag, mode, key, note):
    from perfkit.cli.sweep_plan import choose_gpu
    from perfkit.profiles import load_gpu

    monkeypatch.setattr("perfkit.device.usable_gpu", lambda: Here(name))
    found = choose_gpu(flag)
    assert (found[0], found[2]["key"]) == (mode, load_gpu(key).key if key else None)
    assert found[2].get("uuid") == ("GPU-9" if mode == "measure" else None)
    assert len(found[3]) == (1 if note else 0) and note in " ".join(found[3])
    assert capsys.readouterr() == ("", "")  # said only once nothing can be bad input any more


def test_a_gpu_without_a_profile_is_timed_and_named(fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    facts = {"key": None, "name": "NVIDIA Z9", "uuid": "GPU-9"}
    monkeypatch.setattr("perfkit.cli.sweep_plan.choose_gpu", lambda gpu: ("measure", "fake", facts, []))
    assert sweep(*SMALL, "--out", "run") == 0
    out, _ = capsys.readouterr()
    assert "MEASURED  NVIDIA Z9 GPU-9" in out
    assert "best L    measured" in out and "exact model" not in out
    frame = results.load_run("run")
    assert set(frame["gpu"]) == {"NVIDIA Z9"}
    assert frame["roof_gb_s"].isna().all() and frame["bytes_read_model"].notna().all()
