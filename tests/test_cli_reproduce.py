"""``perfkit reproduce table3`` and the counters that ship: from a run to the table, and from a run to the package."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from nsighthelp import facts, install, small_plan

from perfkit import registry, results
from perfkit.cli import app
from perfkit.errors import InputError
from perfkit.method import Case, Point
from perfkit.nsight.table3 import table3
from perfkit.nsight.tool import open_tool
from perfkit.profiles import counters as tables
from perfkit.profiles import load_measured, load_model
from perfkit.profiles.counters import case_columns, load_counters, read_counters, write_counters
from perfkit.profiles.published import load_paper
from perfkit.profiling import Profiler, conclude

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def script(name: str) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of profile at the paper's batch, counted by the stand-in."""
    plan, folder = small_plan("snapshot,activation_replay,replay", "8", batch="256", accepted="7"), tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("STANDIN_STEPS", str(facts(tmp_path / "steps.json", plan.groups)))
    monkeypatch.setenv("STANDIN_SCALE", json.dumps({"snapshot nonflush": [1.0, 0.995]}))
    manifest = plan.manifest(["/home/me/bin/perfkit", "profile", "--out", "/home/me/run"]) | {
        "command": "profile", "ncu": "2025.3.1.0", "known": {}, "git": None,
    }  # fmt: skip
    Profiler(plan, open_tool(str(install(tmp_path))), folder).run()
    conclude(plan, folder)
    results.write_manifest(folder, manifest | {"ended": results.utc_now(), "statuses": {"ok": 3}})
    return folder


def test_table_3_has_the_papers_count_the_published_cells_and_ours(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["reproduce", "table3", str(run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["tables"]
    rows = {(row["method"], row["step"]): row for row in found["rows"]}
    snapshot = rows["snapshot", "nonflush"]
    assert (snapshot["state_units"], snapshot["published_gb"], snapshot["verdict"]) == ("1R + 8W", 9.7, "agrees")
    assert snapshot["paper_gb"] == pytest.approx(9.663676416)  # 9 · 1.073741824
    assert snapshot["dram_write_gb"] == pytest.approx(0.995 * (snapshot["exact_gb"] - snapshot["dram_read_gb"]))
    assert snapshot["ratio"] == pytest.approx(snapshot["dram_gb"] / 9.663676416)
    assert rows["replay", "flush"]["published_gb"] == 2.1 and rows["replay", "nonflush"]["published_gb"] == 1.1
    for row in found["rows"]:  # our count is the one that the published cells were rounded from
        assert round(row["paper_gb"], 1) == row["published_gb"]
    assert app.run(["reproduce", "table3", str(run)]) == 0
    out = capsys.readouterr().out
    assert "state traffic of one step per layer, GB; nemotron-3-super-120b-a12b, B = 256 on NVIDIA H200" in out
    assert "cells as a digest of the paper quotes them" in out


def test_without_counters_the_count_stands_alone_and_one_line_says_which_command_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "MEASURED", tmp_path)
    assert app.run(["reproduce", "table3"]) == 0
    out = capsys.readouterr().out
    assert "DRAM counters: not measured; where there is a GPU: perfkit profile --model nemotron-super" in out
    (line,) = [line for line in out.splitlines() if line.startswith("state bytes of snapshot")]
    assert line.split()[-8:] == ["8", "-", "9.7", "9.664", "GB", "model", "1.00", "agrees"]
    assert app.run(["reproduce", "table3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"] == [] and {cell["ours"]["kind"] for cell in found["cells"] if cell["ours"]} == {"model"}
    assert app.run(["reproduce", "table3", str(tmp_path)]) == 2
    assert "not a run of perfkit" in capsys.readouterr().err


def test_counters_ship_and_are_found_and_times_stay_without_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = tmp_path / "shipped"
    assert script("ship_run").main([str(run), "--name", "super-h200", "--directory", str(shipped)]) == 0
    files = [shipped / f"super-h200-counters.{end}" for end in ("csv", "manifest.json")]
    assert capsys.readouterr().out.split() == list(map(str, files))
    assert load_measured(directory=shipped) == []
    assert script("rederive_shipped").main(["--directory", str(shipped), "--check"]) == 0
    assert "counters" not in script("fit_efficiency").document(shipped)
    rows = load_counters("nemotron-3-super-120b-a12b", "h200-sxm", shipped)
    assert [row["bytes_read_dram"] for row in rows] == [
        row["bytes_read_dram"] for row in read_counters(run / "counters.csv")
    ]
    assert rows[0]["manifest"]["ncu"] == "2025.3.1.0" and load_counters("another", None, shipped) == []
    assert "/home" not in files[1].read_text() and json.loads(files[1].read_text())["argv"][:2] == [
        "perfkit",
        "profile",
    ]
    monkeypatch.setattr(tables, "MEASURED", shipped)
    assert app.run(["reproduce", "table3"]) == 0
    assert "(shipped)" in capsys.readouterr().out


def test_what_is_no_table_of_counters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    with pytest.raises(InputError, match="no such table of counters"):
        read_counters(path)
    path.write_text("case_id,step,launches\nab,nonflush,two\n")
    with pytest.raises(InputError, match="line 2: launches: 'two': not int"):
        read_counters(path)
    path.write_text("case_id,time_us\nab,1\n")
    with pytest.raises(InputError, match="line 2: is not a table of counters"):
        read_counters(path)
    row = dict.fromkeys(tables.COLUMNS) | {"case_id": "ab", "step": "flush", "share": 1 / 3, "launches": 2}
    write_counters(path, [row])
    assert read_counters(path) == [row]


def test_a_case_has_the_mean_over_its_steps_or_nothing() -> None:
    steps = [{"share": 0.75, "bytes_read_dram": 4.0, "bytes_write_dram": 0.0},
             {"share": 0.25, "bytes_read_dram": 8.0, "bytes_write_dram": 2.0}]  # fmt: skip
    assert case_columns(steps) == {"bytes_read_dram": 5.0, "bytes_write_dram": 0.5}
    assert case_columns(steps[:1]) == {"bytes_read_dram": None, "bytes_write_dram": None}


def test_counters_are_of_the_byte_model_as_it_is(run: Path) -> None:
    """A declared count that changes makes counters that ship a comparison with another count: count again then."""
    for row in [*read_counters(run / "counters.csv"), *load_counters()]:
        if row["step"] == "mixed":
            continue
        shape = load_model(row["model"]).shape
        case = Case(shape, row["method"], row["batch"], row["window"], row["draft_len"], row["acceptance"],
                    row["flush_phase"], row["tree"], row["input_dtype"], row["state_dtype"],
                    None if row["read_dtype"] == row["state_dtype"] else row["read_dtype"])  # fmt: skip
        assert case.id == row["case_id"]
        method: Any = registry.get_method(row["family"], row["method"], row["phase"])
        declared = method.step(shape, Point.of(case), row["h"], row["step"] == "flush")
        assert (row["bytes_read_model"], row["bytes_write_model"]) == pytest.approx(
            (float(declared.bytes_read), float(declared.bytes_write)), rel=1e-12
        )


def test_trees_and_other_batches_are_no_rows_of_table_3() -> None:
    row = {"batch": 64, "tree": None}
    assert table3([row, {"batch": 256, "tree": "0,0"}], load_paper("table3")) == []


def test_alone_it_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "what", "it", "is", "published", "of"]
    assert {"fig1", "fig4", "fig11", "table3", "table7", "capacity"} <= {line.split()[0] for line in lines}
    assert app.run(["reproduce", "--json"]) == 0
    assert {"name": "fig4", "published": 3, "cells": 7}.items() <= json.loads(capsys.readouterr().out)[3].items()


def test_a_bad_name_is_one_line_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["reproduce", "fig99"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "'fig99': is not among the published figures (allowed: fig1, fig2" in captured.err


def test_a_run_of_a_sweep_takes_the_place_of_what_ships(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from reportdata import frame, write_run

    rows = frame("measured").assign(model="nemotron-3-super-120b-a12b", gpu="h200-sxm")
    folder = write_run(tmp_path / "sweep", rows)
    assert app.run(["reproduce", "fig9", str(folder), "--json"]) == 0
    ours = [cell["ours"] for cell in json.loads(capsys.readouterr().out)["cells"] if cell["ours"]]
    assert ours and {(one["kind"], one["run"]) for one in ours} == {("measured", str(folder))}
    assert app.run(["reproduce", "fig9", str(run)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
