"""What a report gives beside its page: CSV, tables in markdown, pictures; and runs that ship, by their names."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from perfkit.cli import app
from perfkit.errors import ExitCode
from perfkit.reports.markdown import markdown
from perfkit.reports.runs import Run, load_all
from tests.reportdata import frame, rows, write_run


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Run ``perfkit report`` in this process; returns its exit code and what it printed."""
    capsys.readouterr()
    code = app.run(["report", *map(str, args)])
    return code, *capsys.readouterr()


def test_csv_has_every_row_and_column_of_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = frame(), pd.DataFrame(rows(batches=(1, 2), seed=7))
    folders = [write_run(tmp_path / "before", first), write_run(tmp_path / "after", second)]
    out = tmp_path / "rows.csv"
    code, said, _ = run(capsys, *folders, "--csv", out)
    assert code == 0 and said.split() == [str(out)]
    assert not list(tmp_path.rglob("*.html"))  # an export alone
    with out.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [line["run"] for line in read] == ["before"] * 41 + ["after"] * 8
    for line, row in zip(read, [*first.to_dict("records"), *second.to_dict("records")], strict=True):
        for name in ("time_us", "batch", "case_id", "reason", "time_us_hi"):
            expected = row[name]
            assert line[name] == ("" if pd.isna(expected) else line[name])
            assert pd.isna(expected) or line[name] == expected or float(line[name]) == expected


def cells(text: str) -> list[dict[str, str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_markdown_has_each_method_at_its_fastest_window() -> None:
    data = frame("mixed")
    text = markdown([Run("run", data, {})])
    found = cells(text)
    times = {
        (line["method"], line["B"], line["source"]): line["time per step and layer (µs)"].split(" ")[0]
        for line in found
    }
    assert len(times) == len(found)
    for source, column in (("measured", "time_us"), ("recorded", "time_us")):
        here = data[data["source"].eq(source)]
        for (method, batch), group in here.groupby(["method", "batch"]):
            assert float(times[method, f"{batch:.0f}", source].replace(",", "")) == pytest.approx(
                group[column].min(), rel=5e-3
            )
    best = next(line for line in found if (line["method"], line["B"], line["source"]) == ("replay", "256", "measured"))
    assert best["L"] == "16" and best["T"] == "1"
    assert re.fullmatch(r"\d\.\d\d× \\\[\d\.\d\d, \d\.\d\d\\\]", best["gain over the baseline"])
    assert any(line["gain over the baseline"] == "baseline" for line in found)
    data.loc[data["case_id"].eq("mc0256016"), ["time_us", "time_us_lo", "time_us_hi"]] = [123.0, 122.0, 124.0]
    assert "| 123 \\[122, 124\\] |" in markdown([Run("run", data, {})])


def test_markdown_shows_hostile_text_as_it_is_and_prints_tables_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = frame("hostile")
    data["model"] = "<script>|x|</script>\n[a](http://b)"
    code, said, _ = run(capsys, write_run(tmp_path / "run", data), "--markdown")
    assert code == 0 and "<script>" not in said and "<b" not in said and r"\[a\](http://b)" in said
    head, *lines = [line for line in said.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {head.count("|")}


def test_pictures_need_kaleido_and_say_so_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", frame("one"))
    monkeypatch.setattr("perfkit.reports.png.find_spec", lambda name: None)
    code, said, error = run(capsys, folder, "--png", tmp_path / "png", "--csv", tmp_path / "x.csv")
    assert code == ExitCode.INCOMPLETE and said == ""
    assert len(error.splitlines()) == 1 and "pip install kaleido" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_pictures_are_named_as_the_figures_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", frame("one"))
    monkeypatch.setattr("perfkit.reports.png.find_spec", lambda name: object())
    given: list[tuple[int, str]] = []
    monkeypatch.setattr(
        "plotly.io.write_images",
        lambda figures, paths, **sizes: given.extend(zip(sizes["height"], paths, strict=True)),
    )
    code, said, _ = run(capsys, folder, "--png", tmp_path / "png")
    assert code == 0 and said.split() == [path for _, path in given]
    assert str(tmp_path / "png" / "s0-w0-batch-time.png") in said and all(height > 400 for height, _ in given)

    def fail(*args: object, **sizes: object) -> None:
        raise RuntimeError("Kaleido requires Google Chrome\nmore")

    monkeypatch.setattr("plotly.io.write_images", fail)
    code, said, error = run(capsys, folder, "--png", tmp_path / "png")
    assert code == ExitCode.INCOMPLETE and len(error.splitlines()) == 1 and "requires Google Chrome" in error


def test_shipped_measurements_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    (loaded,) = load_all([Path("nemotron-super-h200")])
    assert set(loaded.frame["source"]) == {"recorded"} and loaded.manifest["gpu"]["name"] == "NVIDIA H200"
    code, _, error = run(capsys, "no-such-thing", "--csv", "x.csv")
    assert code == ExitCode.USAGE and "nemotron-super-h200" in error


def test_json_names_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", frame("one"))
    code, said, _ = run(capsys, folder, "--csv", tmp_path / "rows.csv", "--json")
    data = json.loads(said)
    assert code == 0 and data["csv"] == str(tmp_path / "rows.csv") and data["report"] is None and data["rows"] == 1
    assert run(capsys, folder, "--markdown", "--json")[0] == ExitCode.USAGE
