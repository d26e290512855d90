"""Scripts over finished runs and shipped rows: steps by h, roof columns computed again."""

from __future__ import annotations

import csv
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfkit import results
from perfkit.profiles.measured import MEASURED

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SHIPPED = "nemotron-nano-verify-h200"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_steps_by_h(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """L = 16, T = 4, a = 3: h = 3, 6, 9, 12 and a flush at 15."""
    row = {"case_id": "one", "method": "replay", "phase": "verify", "status": "ok", "accepted": 3.0, "window": 16.0,
           "draft_len": 4, "flush_phase": "aligned", "tree": None}  # fmt: skip
    others = [row | changes for changes in ({"method": "stree"}, {"accepted": 2.5}, {"flush_phase": "staggered"},
                                            {"tree": "0,0,1"}, {"status": "oom"})]  # fmt: skip
    monkeypatch.setattr(results, "load_run", lambda run: pd.DataFrame([row, *others]))
    times = [1.0, 2, 3, 4, 9, 1, 2, 3, 4, 9, 1.4, 2, 3, 4, 9.5]
    monkeypatch.setattr(results, "read_samples", lambda run, case_id: {"step_us": times})
    assert script("steps_by_h").main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "T4 a3 L16  3:1.0 6:2.0 9:3.0 12:4.0 15:9.0*\n"


def test_shipped_rows_have_the_roofs_and_predictions_that_ship() -> None:
    assert script("rederive_shipped").main(["--check"]) == 0


def change(file: Path, column: str, factor: float) -> None:
    """Multiply one number of the first row."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    rows[0][column] = repr(float(rows[0][column]) * factor)
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_what_differs_is_written_again_and_other_bytes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rederive, file = script("rederive_shipped"), tmp_path / f"{SHIPPED}.csv"
    for suffix in (".csv", ".manifest.json"):
        shutil.copy(MEASURED / f"{SHIPPED}{suffix}", tmp_path)
    shipped = file.read_text()
    change(file, "roof_gb_s", 1.1)
    changed = file.read_text()
    assert rederive.main(["--directory", str(tmp_path), "--check"]) == 1
    assert file.read_text() == changed and capsys.readouterr().out == f"{file}\n"
    assert rederive.main(["--directory", str(tmp_path)]) == 0
    assert file.read_text() == shipped
    change(file, "bytes_read_model", 1.1)
    assert rederive.main(["--directory", str(tmp_path)]) == 2
    assert "bytes_read_model" in capsys.readouterr().err
