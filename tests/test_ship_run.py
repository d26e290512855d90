"""Shipping a run: what the loader and predictions then find, what stays behind, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from perfkit import results
from perfkit.cases import build_groups, parse_spec
from perfkit.predict import match_recorded
from perfkit.profiles import load_measured, load_model, to_dict
from perfkit.sweep import SETTINGS, Recorder, Sweep, base_row, finish

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "ship_run.py"
SPEC = importlib.util.spec_from_file_location("ship_run", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
ship_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ship_run)

GPU = {"key": "h200-sxm", "name": "NVIDIA H200", "uuid": "GPU-1a2b", "driver": "580.159", "visible": "GPU-1a2b",
       "index": 0, "processes": [{"pid": 17, "memory_mib": 3}], "power_w": 90.0}  # fmt: skip
ARGV = ["/home/me/perfkit/__main__.py", "sweep", "--model", "nemotron-super", "--batch", "64,256", "--window", "16",
        "--out", "/home/me/out", "--seed=0"]  # fmt: skip
MODEL = "nemotron-3-super-120b-a12b"
TIMES = {("conventional", 64): 140.0, ("replay", 64): 82.0, ("conventional", 256): 547.0, ("replay", 256): 302.0}


def _plan() -> Sweep:
    model = load_model("nemotron-super")
    spec = parse_spec(preset="default", method=None, batch="64,256", window="16", draft=None, accepted=None,
                      flush_phase=None, input_dtype=None, state_dtype=None, layers=None, self_check=False,
                      model_state_dtype=model.state_dtype)  # fmt: skip
    groups = tuple(build_groups(model.shape, spec))
    return Sweep("measure", "cuda", to_dict(model), GPU, groups, {**SETTINGS, "seed": 0, "self_check": False})


def _run(folder: Path, ended: bool = True, facts: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A made-up run, as a sweep writes it; ``changes`` replaces columns of the replay row at batch 256."""
    plan = _plan()
    folder.mkdir()
    recorder = Recorder(plan, folder)
    for case in plan.cases.values():
        row = base_row(plan, case, "ok", None) | {"time_us": TIMES[case.method, case.batch], "checked": "gpu",
                                                  "n_samples": 40, "registers": 64}  # fmt: skip
        if (case.method, case.batch) == ("replay", 256):
            row |= changes
        recorder.write(case, row)
    finish(plan, folder)
    extra = {"ended": results.utc_now() if ended else None, "statuses": {"ok": 4}, "aa_floor": 0.002}
    manifest = plan.manifest(ARGV) | {"worker": {"gpu": "NVIDIA H200"}} | extra
    results.write_manifest(folder, manifest | {"git": None} | (facts or {}))
    return folder


def test_what_ships_is_what_was_measured(tmp_path: Path, capsys) -> None:
    run, shipped = _run(tmp_path / "run"), tmp_path / "shipped"
    assert ship_run.main([str(run), "--name", "super-test", "--directory", str(shipped)]) == 0
    out, _ = capsys.readouterr()
    assert out.split() == [str(shipped / "super-test.csv"), str(shipped / "super-test.manifest.json")]
    header = (shipped / "super-test.csv").read_text().splitlines()[0]
    assert tuple(header.split(",")) == results.COLUMNS

    rows = load_measured(MODEL, "h200-sxm", directory=shipped)
    assert {(row["method"], row["batch"]): row["time_us"] for row in rows} == TIMES
    assert {row["source"] for row in rows} == {"measured"} and {row["registers"] for row in rows} == {64}
    best = next(row for row in rows if row["time_us"] == 302.0)
    assert best["speedup"] == pytest.approx(547 / 302) and best["window"] == 16
    for row, known in zip(rows, results.load_run(run).to_dict("records"), strict=True):
        assert row["roof_fraction"] == known["roof_fraction"] and row["case_id"] == known["case_id"]

    recorded = match_recorded(rows, _plan().cases)
    assert len(recorded) == 4 and {row["source"] for row in recorded} == {"recorded"}
    assert [results.check_row(row)["time_us"] for row in recorded] == [row["time_us"] for row in rows]


def test_the_manifest_names_no_machine(tmp_path: Path) -> None:
    _, file = ship_run.ship(_run(tmp_path / "run"), None, tmp_path)
    assert file.name == f"{MODEL}-h200-sxm.manifest.json"
    text = file.read_text()
    manifest = json.loads(text)
    assert manifest["argv"] == ["perfkit", "sweep", "--model", "nemotron-super", "--batch", "64,256", "--window", "16",
                                "--seed=0"]  # fmt: skip
    assert manifest["gpu"]["uuid"] == "GPU-1a2b" and "processes" not in manifest["gpu"]
    assert manifest["platform"] in ("Linux", "macOS") and "worker" not in manifest and "groups" not in manifest
    assert "/home" not in text
    assert manifest["git"] == results.git_revision()  # the kernels here are those of the run
    assert load_measured(directory=tmp_path)[0]["manifest"]["hash"] == _plan().hash()


def test_other_kernels_get_no_revision(tmp_path: Path) -> None:
    _, file = ship_run.ship(_run(tmp_path / "run", facts={"hash": "0" * 64}), "x", tmp_path)
    assert json.loads(file.read_text())["git"] is None


def test_shipping_again_keeps_the_revision_that_ran(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    _, file = ship_run.ship(run, "x", tmp_path)
    manifest = json.loads(file.read_text())
    manifest["git"] = {"revision": "f" * 40, "modified": False}
    file.write_text(json.dumps(manifest))
    ship_run.ship(run, "x", tmp_path, force=True)
    assert json.loads(file.read_text())["git"]["revision"] == "f" * 40


def test_arguments_lose_folders_and_outputs() -> None:
    argv = [
        "/x/bin/perfkit",
        "sweep",
        "--out=/x/y",
        "--model=/x/models/config.json",
        "--resume",
        "/x/z",
        "--batch",
        "1",
    ]
    assert ship_run.plain_argv(argv) == ["perfkit", "sweep", "--model=config.json", "--batch", "1"]


@pytest.mark.parametrize(
    ("changes", "facts", "ended", "words"),
    [
        ({"source": "predicted"}, {}, True, "source: 'predicted': only measured rows ship"),
        ({"status": "crashed", "time_us": None}, {}, True, "1 bad cases"),
        ({"status": "incorrect", "time_us": None}, {}, True, "incorrect); --force ships them as they are"),
        ({"method": "plug.py:METHOD"}, {}, True, "method: 'plug.py:METHOD': is not one of perfkit's methods"),
        ({"status": "oom", "time_us": None, "reason": "see /home/me/log"}, {}, True, "holds a path of the machine"),
        ({}, {}, False, "ended: has not finished"),
        ({}, {"mode": "predict", "worker_mode": "interpret"}, True, "'predict, interpret': was not measured on a GPU"),
        ({}, {"worker_mode": "fake"}, True, "'measure, fake': was not measured on a GPU"),
        ({}, {"case_ids": ["0" * 12]}, True, "1 of 1 cases have no row"),
        ({}, {"gpu": {"key": None}}, True, "gpu.key: is a GPU without a profile"),
        ({}, {"settings": {"site": "x /home/me"}}, True, "manifest.settings.site"),
    ],
)
def test_what_must_not_ship(tmp_path: Path, capsys, changes: dict, facts: dict, ended: bool, words: str) -> None:
    run, shipped = _run(tmp_path / "run", ended, facts, **changes), tmp_path / "shipped"
    assert ship_run.main([str(run), "--directory", str(shipped)]) == 2
    _, err = capsys.readouterr()
    assert words in err and err.count("\n") == 1
    assert not shipped.exists()


def test_force_ships_bad_cases_and_replaces(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", status="crashed", time_us=None)
    ship_run.ship(run, "x", tmp_path, force=True)
    with pytest.raises(Exception, match="bad cases"):
        ship_run.ship(run, "x", tmp_path)
    ship_run.ship(run, "x", tmp_path, force=True)
    assert [row["status"] for row in load_measured(directory=tmp_path)].count("crashed") == 1
    with pytest.raises(Exception, match=r"x\.csv: is there already"):
        ship_run.ship(_run(tmp_path / "good"), "x", tmp_path)


def test_roofs_that_ship_later_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.profiles.find_roofs", lambda key: None)
    run = _run(tmp_path / "run")
    points = [{"kind": kind, "bytes": 2**31, "bandwidth_gb_s": rate} for kind, rate in
              (("read", 4000.0), ("inplace", 4000.0))]  # fmt: skip
    monkeypatch.setattr("perfkit.profiles.load_roofs", lambda key: {"gpu": key, "points": points})
    ship_run.ship(run, "old", tmp_path / "old")
    ship_run.ship(run, "new", tmp_path / "new", fresh=True)
    old, new = (load_measured(directory=tmp_path / name) for name in ("old", "new"))
    assert {row["roof_source"] for row in old} == {"datasheet"} and {row["roof_source"] for row in new} == {"measured"}
    row = next(row for row in new if (row["method"], row["batch"]) == ("conventional", 256))
    assert row["roof_gb_s"] == pytest.approx(4000.0)
    assert row["roof_fraction"] == pytest.approx(row["useful_bytes"] / 4000e3 / 547.0)
    for before, after in zip(old, new, strict=True):
        changed = {name for name in results.COLUMNS if before[name] != after[name]}
        assert changed <= set(ship_run.ROOF_COLUMNS)
    monkeypatch.setattr("perfkit.derive.derive", lambda rows, *_: [row | {"bytes_read_model": 1.0} for row in rows])
    with pytest.raises(Exception, match="the byte model has changed"):
        ship_run.ship(run, "more", tmp_path, fresh=True)
