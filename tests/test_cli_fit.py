"""``perfkit fit``: what it prints, where it saves, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from perfkit.cli.app import run as main
from perfkit.profiles import load_efficiency
from perfkit.profiles.measured import EFFICIENCY, MEASURED, load_held_out
from perfkit.roofline import efficiency_for


def shipped_run(folder: Path, name: str) -> Path:
    """Write a shipped table as a run of one's own, whose rows were measured."""
    folder.mkdir()
    text = (MEASURED / f"{name}.csv").read_text(encoding="utf-8")
    (folder / "results.csv").write_text(text.replace(",recorded,", ",measured,"), encoding="utf-8")
    (folder / "manifest.json").write_bytes((MEASURED / f"{name}.manifest.json").read_bytes())
    return folder


def test_shipped_rows_are_fitted_and_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERFKIT_ROOFS", str(tmp_path / "own"))
    assert main(["fit"]) == 0
    text = capsys.readouterr().out
    assert "mamba2 replay decode" in text and "kda snapshot verify" in text
    said = load_held_out()
    assert said is not None
    assert f"held out   {said['n']:.0f} rows" in text
    shown = re.search(r"95th percentile ([\d.]+)%", text)
    assert shown is not None and float(shown[1]) == pytest.approx(100 * said["p95"], abs=0.06)
    assert "written anew" not in text
    assert text.count("replay decode") >= 6  # the worst ten
    assert not (tmp_path / "own").exists()


def test_every_fitted_parameter_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["fit", "--show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "fitted on h200-sxm"
    for entry in load_efficiency():
        line = next(line for line in lines if line.startswith(f"{entry['family']} {entry['method']} {entry['phase']} "))
        for name, item in entry["parameters"].items():
            if item["lo"] < item["hi"] and item["value"] > 0:
                assert f"{item['value']:.3g} [" in line, name


def test_ones_own_run_is_saved_and_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    monkeypatch.setenv("PERFKIT_ROOFS", str(own))
    run = shipped_run(tmp_path / "run", "nemotron-nano-h200")
    shipped = efficiency_for("mamba2", "replay", "decode", "h200-sxm")
    assert main(["fit", str(run), "--show"]) == 0
    assert not own.exists()
    assert "held out   nothing: it takes times of two models" in capsys.readouterr().out
    assert main(["fit", str(run), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["held_out"] is None and document["file"] == EFFICIENCY
    assert {(one["method"], one["phase"]) for one in document["fits"]} == {
        ("conventional", "decode"), ("replay", "decode")
    }  # fmt: skip
    (entry, _) = load_efficiency(own)
    assert entry["models"] == ["nemotron-3-nano-4b"] and entry["sources"] == ["run"]
    found = efficiency_for("mamba2", "replay", "decode", "h200-sxm")
    assert found is not None and shipped is not None and found != shipped
    # A phase that the run does not have is still predicted by what ships.
    verify = efficiency_for("mamba2", "replay", "verify", "h200-sxm")
    assert verify is not None and verify.lender is None


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shipped_run(tmp_path / "run", "nemotron-super-verify-t16-h200")
    for arguments, says in (
        (["fit", str(tmp_path / "none")], "no such run"),
        (["fit", str(run)], "no method was timed at enough batches"),
        (["fit", "--show", "--out", str(tmp_path / "x.yaml")], "leave one of them out"),
        (["fit", "--out", str(tmp_path)], "cannot write: Is a directory"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1
    text = (run / "results.csv").read_text(encoding="utf-8").replace(",measured,", ",predicted,")
    (run / "results.csv").write_text(text, encoding="utf-8")
    assert main(["fit", str(run)]) == 2
    assert "nothing was timed in it" in capsys.readouterr().err
