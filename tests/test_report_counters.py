"""Reports of a run with the counters of its cases beside it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from reportdata import frame, manifest, write_run

from perfkit.cli import app
from perfkit.reports import header
from perfkit.reports.page import render
from perfkit.reports.runs import load_all
from perfkit.reports.table import table_data


def counted(folder: Path, **changes: object) -> Path:
    """A run of profile: three rows of the measured cases, without times."""
    rows = frame("measured").iloc[:3].assign(**changes).reset_index(drop=True)
    rows["bytes_read_dram"], rows["bytes_write_dram"] = [1e9, 2e9, None], [3e8, 4e8, None]
    for name in ("time_us", "time_us_lo", "time_us_hi", "time_p99_us", "speedup"):
        rows[name] = None
    rows.loc[2, "status"] = "timeout"
    return write_run(folder, rows, manifest(command="profile", ncu="2025.3.1.0"))


def test_counters_fill_the_rows_of_the_same_case_and_gpu(tmp_path: Path) -> None:
    timed = write_run(tmp_path / "timed", frame("measured"), manifest(command="sweep"))
    (run,) = load_all([timed, counted(tmp_path / "counters")])
    assert run.frame["bytes_read_dram"].iloc[:2].tolist() == [1e9, 2e9]
    assert run.frame["bytes_write_dram"].iloc[:2].tolist() == [3e8, 4e8]
    assert run.frame["bytes_read_dram"].iloc[2:].isna().all() and run.frame["time_us"].iloc[0] > 0
    facts = dict(header.facts(run.frame, run.manifest))
    assert facts["Counters"] == "2 rows by counters, ncu 2025.3.1.0"
    page = render([run])
    table = table_data(run.frame)
    assert "bytes_read_dram" in [table["columns"][i] for i in table["main"]] and "2 rows by counters" in page
    (other,) = load_all([timed, counted(tmp_path / "elsewhere", gpu="b200")])
    assert other.frame["bytes_read_dram"].isna().all() and "counters" not in other.manifest


def test_a_run_of_counters_alone_has_a_page(tmp_path: Path, capsys) -> None:
    run = counted(tmp_path / "counters")
    (loaded,) = load_all([run])
    assert isinstance(loaded.frame, pd.DataFrame) and len(loaded.frame) == 3
    assert app.run(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    assert "1 case ended as timeout" in (tmp_path / "page.html").read_text()
