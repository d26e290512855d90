"""The page: one offline file with everything escaped, and a command that refuses bad input in one line."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from perfkit.errors import InputError
from perfkit.reports import build_report, figures, header
from perfkit.reports.output import check_writable
from perfkit.reports.page import render, script_json
from perfkit.reports.points import points_csv
from perfkit.reports.runs import Run
from perfkit.reports.table import table_data
from tests.reportdata import frame, manifest, rows, write_run

KINDS = ("measured", "predicted", "mixed", "failed", "empty", "one", "sections", "hostile")


class Page(HTMLParser):
    """Collects tags, attributes, the text a reader sees, and script contents by id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self._id, self._inside = "", {}, "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside, self._id = tag, dict(attrs).get("id") or ""

    def handle_endtag(self, tag):
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data):
        if not self._inside:
            self.text += data
        elif self._inside == "script" and self._id:
            self.scripts[self._id] = self.scripts.get(self._id, "") + data

    @property
    def table(self) -> str:
        """The JSON of the table of all rows."""
        return gzip.decompress(base64.b64decode(self.scripts["table-data"])).decode()

    @property
    def words(self) -> str:
        return " ".join(self.text.replace("\u00a0", " ").split())


def test_no_card_advises_what_a_sweep_does_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfkit.reports import findings, page

    said = findings.answer(frame("measured"))
    assert page._cards(said)[-1] == ("A/A noise floor", "–", "not in these rows")
    assert page._cards(findings.answer(frame("measured"), 0.001))[-1] == (
        "A/A noise floor", "0.10 %", "difference of a method with itself",
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Build each kind of page once."""
    built: dict[str, tuple[Path, Page]] = {}
    folder = tmp_path_factory.mktemp("reports")

    def get(kind: str) -> tuple[Path, Page]:
        if kind not in built:
            out = folder / f"{kind}.html"
            build_report([write_run(folder / kind, frame(kind))], out)
            built[kind] = out, Page(out.read_text(encoding="utf-8"))
        return built[kind]

    return get


@pytest.mark.parametrize("kind", ["measured", "mixed"])
def test_a_page_of_intervals_that_reach_zero_has_all_its_figures(page, tmp_path: Path, kind: str) -> None:
    data = frame(kind)
    for name in ("time_us_lo", "predicted_lo"):
        data.loc[data[name].notna(), name] = 0.0
    out = tmp_path / "zero.html"
    build_report([write_run(tmp_path / "run", data)], out)
    parsed, whole = Page(out.read_text(encoding="utf-8")), page(kind)[1]
    assert not re.search(r"[:,\[]-?(NaN|Infinity)", parsed.scripts["figures-data"] + parsed.table)
    drawn, others = (json.loads(one.scripts["figures-data"]) for one in (parsed, whole))
    assert len(drawn) == len(others) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_page_is_one_small_offline_file_without_nan(page, kind: str) -> None:
    path, parsed = page(kind)
    assert path.stat().st_size < 8e6
    assert not re.search(r"\bnan\b|\bNone\b|<NA>|\bundefined\b", parsed.words, re.IGNORECASE)
    assert not re.search(r"[:,\[]NaN", parsed.scripts["figures-data"] + parsed.table)
    for tag, attrs in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
        assert tag not in ("iframe", "object", "embed", "base")
    assert sum(tag == "script" for tag, _ in parsed.tags) <= 5
    policy = next(a["content"] for t, a in parsed.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'") and "http" not in policy
    css = path.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert "url(" not in css and "@import" not in css


def test_plotly_is_inlined_once_and_only_where_there_are_figures(page) -> None:
    assert page("measured")[0].read_text(encoding="utf-8").count("Licensed under the MIT license\n*/") >= 1
    assert page("measured")[0].stat().st_size > 4e6
    assert page("sections")[0].stat().st_size - page("measured")[0].stat().st_size < 1e6
    assert page("failed")[0].stat().st_size < 2e5


def test_header_and_first_screen(page) -> None:
    words = page("measured")[1].words
    for expected in (
        "nemotron-super on h200", "NVIDIA H200 (h200)", "GPU-0000-test", "580.1",
        "SM 1,965 MHz while timing, SM at most 1,980 MHz",
        "float32", "conventional of the same group", "perfkit sweep --model nemotron-super --gpu auto", "40 ok, 1 oom",
        "1 case ended as oom: needs 190 GB, 138 GB free.", "Break-even batch", "A/A noise floor", "0.30 %",
        "0123456789ab",
    ):  # fmt: skip
        assert expected in words, expected
    assert words.index("faster than conventional at B = 256") < words.index("Evidence")


def test_header_says_what_ran_and_where_runs_differ() -> None:
    verify = rows(batches=(64, 256), windows=(16,), phase="verify", draft_len=4, acceptance="3", n_throttled=2)
    runs = [
        Run("decode", frame(), manifest()),
        Run("verify", pd.DataFrame([row | {"method": "mine.py:METHOD"} if row["window"] else row for row in verify]),
            manifest(gpu={"name": "NVIDIA H200", "driver": "590.2"})),
    ]  # fmt: skip
    words = Page(render(runs)).words
    for expected in (
        "perfkit's Triton kernels of conventional and replay, Triton 3.7.1",
        "perfkit's Triton kernels of conventional and plug-in mine.py:METHOD, Triton 3.7.1",
        "decode; B = 1, 2, …, 1,024; L = 8, 16, 32; T = 1; aligned flushes; 1 layer",
        "verify; B = 64, 256; L = 16; T = 4; accepted 3; aligned flushes; 1 layer",
        "Driver580.1590.2", "verify: Throttled: 8 samples in 4 cases",
    ):  # fmt: skip
        assert expected in words, expected
    assert words.count("State dtype") == 1 and words.count("Driver") == 1


def test_table_of_answers_has_the_time_of_what_it_names() -> None:
    parts = []
    for t in (2, 4, 8):
        part = rows(batches=(256,), windows=(16,), phase="verify", draft_len=t, acceptance="1")
        slow = [row | {name: row[name] * 3 for name in ("time_us", "time_us_lo", "time_us_hi")} for row in part]
        parts += [row | {name: f"{t}{row[name]}" for name in ("group_id", "case_id", "baseline")}
                  for row in (part[0], slow[1])]  # fmt: skip
    parts = [row | {"speedup": None} for row in parts]
    argv = ["perfkit", "sweep", "--out", "/x", "--seed", "1"]
    words = Page(render([Run("run", pd.DataFrame(parts), manifest(argv=argv))])).words
    base = parts[0]["time_us"]
    assert f"T = 8conventional{base:.0f} µsnone: replay at L = 16 0." in words
    assert "perfkit sweep --seed 1" in words and "/x" not in words


@pytest.mark.parametrize("place", [["--out", "/x"], ["-o", "/x"], ["--out=/x"]])
def test_a_command_says_nothing_of_where_it_wrote(place: list[str]) -> None:
    assert header.command({"argv": ["/bin/perfkit", "plan", *place, "--gpu", "b300"]}) == "perfkit plan --gpu b300"


def test_many_workloads_are_one_card_and_a_table_and_fold_their_figures() -> None:
    parts = [rows(batches=(256,), windows=(16,), phase="verify", draft_len=t, acceptance="1") for t in (2, 4, 8)]
    alone = rows(batches=(256,), windows=())
    names = ("group_id", "case_id", "baseline")
    data = pd.DataFrame([row | {name: f"{i}{row[name]}" for name in names}
                         for i, part in enumerate([alone, *parts]) for row in part])  # fmt: skip
    parsed = Page(render([Run("run", data, {})]))
    folds = [attrs for tag, attrs in parsed.tags if tag == "details"]
    assert len(folds) == 4 and ["open" in attrs for attrs in folds] == [True, False, False, False]
    assert sum("card" in (attrs.get("class") or "") for tag, attrs in parsed.tags if tag == "dl") == 1
    first = parsed.words.index("verify, T = 2")
    assert first < parsed.words.index("verify, T = 4") < parsed.words.index("verify, T = 8")
    assert "there is nothing to compare it with" not in parsed.words[:first]
    assert "Only one batch was run, so nothing is drawn over batch" in parsed.words
    assert not any("batch-time" in name for name in json.loads(parsed.scripts["figures-data"]))


def test_predicted_pages_say_so(page) -> None:
    words = page("predicted")[1].words
    assert "is predicted to be" in words and "Nothing was timed: every time in this report is predicted" in words


def test_one_section_per_model_and_gpu(page) -> None:
    words = page("sections")[1].words
    for place in ("nemotron-super on h200", "nemotron-nano on h200", "nemotron-super on b200"):
        assert f"Evidence: {place}" in words
    drawn = [name.partition("-w0-")[2] for name in json.loads(page("sections")[1].scripts["figures-data"])]
    assert drawn.count("batch-time") == 3 and drawn.count("batch-roof") == 2  # predictions reach no roof
    assert "No case has a fraction of its roof: perfkit sweep --model nemotron-super" in words


def test_what_is_missing_is_said_once_with_the_command_that_adds_it() -> None:
    parts = [rows(batches=(1, 2), windows=(16,), draft_len=2, acceptance=a, group_id=f"g{a}") for a in ("1", "2")]
    parsed = Page(render([Run("run", pd.DataFrame([row for part in parts for row in part]), {})]))
    found = [tag for tag, attrs in parsed.tags if tag == "div" and attrs.get("class") == "missing"]
    said = "No method was run at two windows: perfkit sweep --model nemotron-super --draft 2 --window"
    assert len(found) == 1 and parsed.words.count(said) == 1
    parts.append([row | {"window": 32.0} for row in parts[0] if row["window"] is not None])
    parsed = Page(render([Run("run", pd.DataFrame([row for part in parts for row in part]), {})]))
    assert "No method was run at two windows (accepted 2): perfkit sweep" in parsed.words


def test_points_of_a_figure_are_those_of_the_rows() -> None:
    data = frame("mixed")
    read = list(csv.DictReader(io.StringIO(points_csv(figures.batch_time(data)))))
    for source, count, names in (
        ("measured", 6, ("time_us", "time_us_lo", "time_us_hi")),
        ("recorded", 40, ("time_us", "time_us_lo", "time_us_hi")),
        ("predicted", 40, ("predicted_us", "predicted_lo", "predicted_hi")),
    ):
        lines = [line for line in read if line["evidence"] == source]
        rows = data if source == "predicted" else data[data["source"].eq(source)]
        assert 0 < len(lines) <= count
        for line in lines:
            method, _, window = line["series"].partition(" L = ")
            batch = rows[rows["method"].eq(method) & rows["batch"].eq(float(line["batch B (sequences)"]))]
            row = (batch[batch["window"].eq(float(window))] if window else batch).iloc[0]
            values = [line[name] for name in ("time per step and layer (µs)", "low", "high")]
            expected = [row[name] for name in names]
            assert [float(value) for value in values if value] == pytest.approx(expected[: sum(map(bool, values))])
            assert line["details"].startswith(f"B = {row['batch']:.0f}; ")
    hostile = points_csv(figures.batch_time(frame("hostile")))
    assert "<b onmouseover=alert(3)>" in hostile and "&lt;" not in hostile


def test_hostile_text_is_harmless(page) -> None:
    path, parsed = page("hostile")
    assert "<script>alert(1)</script>" in parsed.text  # shown as text
    assert not any(tag == "img" for tag, _ in parsed.tags)
    assert not any(name.startswith("on") for _, attrs in parsed.tags for name in attrs)
    assert "alert(1)</script>" not in path.read_text(encoding="utf-8")
    assert json.loads(parsed.table)  # no early end of the script element


def test_script_json_cannot_leave_its_element() -> None:
    text = script_json({"a": "</script><!--&\u2028"})
    assert not set(text) & set("<>&\u2028") and json.loads(text) == {"a": "</script><!--&\u2028"}
    with pytest.raises(ValueError, match="JSON"):
        script_json([float("nan")])


def test_a_changed_time_changes_the_page(tmp_path: Path) -> None:
    data = frame()
    first = build_report([write_run(tmp_path / "a", data)], tmp_path / "a.html").read_text(encoding="utf-8")
    data.loc[data["case_id"].eq("c0256032"), ["time_us", "time_us_lo", "time_us_hi"]] = [200.0, 199.0, 201.0]
    second = build_report([write_run(tmp_path / "b", data)], tmp_path / "b.html").read_text(encoding="utf-8")
    assert "Run replay at L = 16 from" in Page(first).words and "Run replay at L = 32 from" in Page(second).words


def test_table_holds_every_row_and_value() -> None:
    data = frame()
    table = table_data(data)
    assert table["columns"] == list(data.columns) and table["rows"] == len(data) == 41
    for name, column in zip(table["columns"], table["data"], strict=True):
        values = column * len(data) if len(column) == 1 else column
        expected = [None if pd.isna(v) else v for v in data[name]]
        assert values == expected, name
    shown = [table["columns"][i] for i in table["main"]]
    assert {"method", "status", "reason", "time_us", "speedup"} <= set(shown) and "case_id" not in shown


def test_several_runs_keep_their_names(tmp_path: Path) -> None:
    first = write_run(tmp_path / "before", pd.DataFrame(rows()))
    second = write_run(tmp_path / "after", pd.DataFrame(rows(seed=7)), manifest(aa_floor=0.01))
    parsed = Page(build_report([first, second], tmp_path / "both.html").read_text(encoding="utf-8"))
    assert "Reproduce before" in parsed.words and "Reproduce after" in parsed.words and "80 rows" in parsed.words
    table = json.loads(parsed.table)
    assert set(table["data"][table["columns"].index("run")]) == {"before", "after"}
    names = {t.get("name") for f in json.loads(parsed.scripts["figures-data"]).values() for t in f["data"]}
    assert "conventional, before, measured" in names and "conventional, after, measured" in names


def test_a_run_without_manifest_is_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "bare", frame())
    (run / "manifest.json").unlink()
    parsed = Page(build_report([run], tmp_path / "bare.html").read_text(encoding="utf-8"))
    assert "the command was not recorded" in parsed.words


def cli(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "perfkit", "report", *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_command_writes_into_the_run_and_prints_json(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", frame())
    done = cli(run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(run / "report.html") and (run / "report.html").stat().st_size > 4e6
    assert "faster than conventional at B = 256" in done.stderr
    done = cli(run, "-o", "mine.html", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (
        said["report"] == "mine.html"
        and said["rows"] == 41
        and said["bytes"] == (tmp_path / "mine.html").stat().st_size
    )
    assert said["answers"][0]["method"] == "replay" and said["answers"][0]["window"] == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "run"]


def bad(tmp_path: Path, case: str) -> tuple[list[object], str]:
    run = write_run(tmp_path / "run", frame("one"))
    if case == "no such run":
        return [tmp_path / "missing"], "no such run, file o"
    if case == "no results":
        (tmp_path / "empty").mkdir()
        return [tmp_path / "empty"], "not a run"
    if case == "schema":
        (run / "results.parquet").unlink()
        table = run / "results.csv"
        table.write_text(re.sub(r"(?m)^1,", "7,", table.read_text()))
        return [run], "schema_version"
    if case == "no folder":
        return [run, "-o", tmp_path / "nowhere" / "x.html"], "--out"
    if case == "a folder":
        (tmp_path / "d.html").mkdir()
        return [run, "-o", tmp_path / "d.html"], "--out"
    return [run, "-o", tmp_path / "x.pdf"], "*.html"


@pytest.mark.parametrize("case", ["no such run", "no results", "schema", "no folder", "a folder", "not html"])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, case: str) -> None:
    args, expected = bad(tmp_path, case)
    done = cli(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr and len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert not done.stdout and not list(tmp_path.rglob("*.html.*")) and not (tmp_path / "run" / "report.html").exists()


def test_unwritable_place_is_found_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(InputError, match=r"--out: .*cannot be written: Permission denied"):
        check_writable(tmp_path / "x.html")


def test_reports_import_without_torch_pandas_or_plotly() -> None:
    heavy = "{'torch', 'pandas', 'plotly', 'scipy'}"
    code = f"import sys, perfkit.reports, perfkit.cli.report; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
