"""``perfkit list``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfkit.cli import app


def listed(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert app.run(["list", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    models = {model["key"]: model for model in listed(capsys, "models")}
    found = [m for m in models.values() if "nemotron-super" in (m["key"], *m["aliases"])]
    assert len(found) == 1
    assert (found[0]["n_ssm_layers"], found[0]["n_v_heads"], found[0]["d_v"], found[0]["d_k"]) == (40, 128, 64, 128)


def test_one_model_by_alias(capsys: pytest.CaptureFixture[str]) -> None:
    (model,) = listed(capsys, "models", "--model", "nemotron-nano")
    assert model["family"] == "mamba2"


def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {gpu["key"] for gpu in listed(capsys, "gpus")}
    (h200,) = listed(capsys, "gpus", "--gpu", "h200")
    assert h200["key"] in keys
    assert (h200["compute_capability"], h200["sm_count"]) == ("9.0", 132)


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    methods = listed(capsys, "methods", "--model", "nemotron-super")
    assert {method["family"] for method in methods} == {"mamba2"}
    decode = {method["key"]: method["windowed"] for method in methods if method["phase"] == "decode"}
    assert decode["conventional"] is False
    assert decode["replay"] is True
    assert all(method["source"] for method in methods)
    trees = {method["key"] for method in methods if method["family"] == "mamba2" and method["trees"]}
    assert trees == {"snapshot", "stree", "stree_released", "replay"}
    assert {method["reason"] for method in methods} == {None}


def test_methods_that_a_family_has_no_kernels_for_are_said_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    absent = {m["key"]: m["reason"] for m in listed(capsys, "methods", "--model", "qwen3.5-4b") if m["reason"]}
    assert list(absent) == ["joint_attainment", "stree", "stree_released"]
    assert app.run(["list", "methods", "--model", "qwen3.5-4b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [f"not for gdn verify: {key}: {reason}" for key, reason in absent.items()]
    assert not any(line.startswith("stree") for line in lines)


def test_measured_rows_name_their_manifest_and_each_is_there_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, "measured")
    rows = found["rows"]
    assert {row["source"] for row in rows} == {"recorded"}
    manifests = {manifest["hash"]: manifest for manifest in found["manifests"]}
    assert len(manifests) == len(found["manifests"]) == 19
    for row in rows:
        manifest = manifests[row["manifest"]]
        assert row["case_id"] in manifest["case_ids"] and row["gpu_uuid"] == manifest["gpu"]["uuid"]
    nano = listed(capsys, "measured", "--model", "nemotron-nano")
    assert [manifest["model"]["key"] for manifest in nano["manifests"]] == 5 * ["nemotron-3-nano-4b"]
    assert {row["manifest"] for row in nano["rows"]} == {manifest["hash"] for manifest in nano["manifests"]}
    assert listed(capsys, "measured", "--gpu", "b200") == {"rows": [], "manifests": []}


def test_table_of_measured_rows_tells_them_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["list", "measured", "--model", "nemotron-super"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"draft_len", "acceptance", "tree", "source"} <= set(lines[0].split())
    points = [line.split()[2:10] for line in lines[1:] if " verify " in line]
    assert len(points) > 70 and len({tuple(point) for point in points}) == len(points)
    assert lines[-1].startswith("runs, by the names that perfkit compare takes: kimi-linear-h200, ")
    assert lines[-1].count("-h200") == 19 and "counters" not in lines[-1]


def test_table_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [model["key"] for model in listed(capsys, "models")]
    assert app.run(["list", "models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == keys
    assert lines[0].split()[:3] == ["key", "name", "family"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["models", "--model", "gpt-17"], "gpt-17"),
        (["gpus", "--gpu", "h9000"], "h9000"),
        (["methods", "--model", "gpt-17"], "gpt-17"),
        (["runs", "--gpu", "h9000"], "h9000"),
        (["measured", "--gpu", "h9000"], "h9000"),
    ],
)
def test_unknown_names_are_one_line(args: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["list", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert word in captured.err
    assert "allowed" in captured.err


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["list", "runs", "--runs", str(tmp_path / "none")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "no runs found\n"


def write_run(
    folder: Path, *, finished: int, complete: bool, model: str = "nemotron-super", status: str = "ok"
) -> None:
    from perfkit.results import Journal, write_manifest

    folder.mkdir(parents=True)
    ids = [f"{n:012x}" for n in range(3)]
    write_manifest(folder, {"model": {"key": model}, "gpu": {"key": "h200-sxm"}, "started": "2026-01-02T03:04:05Z",
                            "case_ids": ids})  # fmt: skip
    journal = Journal(folder / "cases.jsonl")
    for case_id in ids[:finished]:
        journal.append({"case_id": case_id, "group_id": "g", "attempt": 1, "status": status, "reason": None,
                        "started": "2026-01-02T03:04:06Z", "ended": "2026-01-02T03:04:07Z", "row": {}})  # fmt: skip
    if complete:
        (folder / "results.csv").write_text("case_id\n")


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", finished=3, complete=True)
    write_run(tmp_path / "b", finished=1, complete=False)
    write_run(tmp_path / "d", finished=3, complete=True, status="crashed")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "manifest.json").write_text("[1, 2]")
    a, b, c, d = listed(capsys, "runs", "--runs", str(tmp_path))
    assert (a["run"], a["model"], a["gpu"], a["cases"], a["state"]) == (
        str(tmp_path / "a"), "nemotron-super", "h200-sxm", "3/3", "complete",
    )  # fmt: skip
    assert (b["cases"], b["state"]) == ("1/3", "resumable")
    assert (d["cases"], d["state"]) == ("3/3", "complete, 3 failed")
    assert c["model"] is None
    assert c["state"].startswith("unreadable: ")
    assert "manifest.json" in c["state"]


def test_runs_of_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from perfkit.profiles import load_model

    write_run(tmp_path / "a", finished=3, complete=True, model=load_model("nemotron-super").key)
    write_run(tmp_path / "b", finished=3, complete=True, model=load_model("nemotron-nano").key)
    (row,) = listed(capsys, "runs", "--runs", str(tmp_path), "--model", "nemotron-nano", "--gpu", "h200")
    assert row["run"] == str(tmp_path / "b")
