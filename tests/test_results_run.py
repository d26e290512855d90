"""A run on disk: journal, manifest, folder, frames, samples."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from perfkit import results
from perfkit.errors import InputError
from perfkit.method import Case
from perfkit.results import Journal
from perfkit.shape import Shape

SHAPE = Shape("mamba2", n_v_heads=4, n_k_heads=2, d_v=8, d_k=16)
CASES = [Case(SHAPE, "conventional", 4), Case(SHAPE, "replay", 4, window=8), Case(SHAPE, "replay", 4, window=16)]


def row_of(case: Case, **columns) -> dict:
    return results.make_row(case, **{"status": "ok", "source": "measured", "time_us": 1.25, **columns})


def record(case: Case, status: str = "ok", **fields) -> dict:
    return {"case_id": case.id, "group_id": case.group_id, "attempt": 1, "status": status, "reason": None,
            "started": "2026-01-01T00:00:00.000Z", "ended": "2026-01-01T00:00:01.000Z", "row": row_of(case),
            **fields}  # fmt: skip


@pytest.fixture
def journal(tmp_path) -> Journal:
    journal = Journal(tmp_path / "cases.jsonl")
    for case in CASES:
        journal.append(record(case))
    return journal


# -- journal ---------------------------------------------------------------------------------------------------------


def test_line_has_exactly_the_published_fields(journal):
    line = json.loads(journal.path.read_text().splitlines()[0])
    assert set(line) == {"schema", "case_id", "group_id", "attempt", "status", "reason", "started", "ended", "row"}
    assert line["schema"] == 1
    assert line["row"]["method"] == "conventional"


def test_last_record_of_a_case_wins_and_order_is_that_of_the_first(journal):
    journal.append(record(CASES[0], "oom", attempt=2, reason="other process 61 GB"))
    read = journal.read()
    assert list(read) == [case.id for case in CASES]
    assert (read[CASES[0].id]["status"], read[CASES[0].id]["attempt"]) == ("oom", 2)
    assert journal.finished() == {CASES[1].id, CASES[2].id}
    assert (journal.attempts(CASES[0].id), journal.attempts("absent")) == (2, 0)


def test_missing_and_empty_journals_are_empty(tmp_path):
    assert Journal(tmp_path / "none.jsonl").read() == {}
    (tmp_path / "empty.jsonl").touch()
    assert Journal(tmp_path / "empty.jsonl").read() == {}


@pytest.mark.parametrize("tail", [b'{"schema": 1, "case_id": "abc', b"\x00\x00\x00", b"{", b"1"])
def test_unfinished_last_line_is_dropped_and_cut_off_before_the_next(journal, tail):
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + tail)
    again = Journal(journal.path)
    assert list(again.read()) == [case.id for case in CASES]
    assert journal.path.read_bytes() == whole + tail  # reading changes nothing
    again.append(record(CASES[0], "error"))
    assert journal.path.read_bytes().startswith(whole + b'{"attempt"')
    assert again.read()[CASES[0].id]["status"] == "error"


def test_every_cut_of_the_last_line_leaves_the_other_records(journal):
    data = journal.path.read_bytes()
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(start, len(data) - 1, 7):
        journal.path.write_bytes(data[:end])
        assert list(Journal(journal.path).read()) == [CASES[0].id, CASES[1].id]


def test_whole_last_record_without_its_newline_is_kept(journal):
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[:-1])
    again = Journal(journal.path)
    assert len(again.read()) == 3
    again.append(record(CASES[0], "error"))
    assert len(journal.path.read_text().splitlines()) == 4
    assert again.read()[CASES[0].id]["status"] == "error"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": 1, "case_id"', "line 2: .*: not JSON"),
        ("", "line 2: .*not JSON"),
        ("[1]", "line 2: 'list': must be a JSON object"),
        ('{"schema": 1, "status": "ok", "row": {}}', "line 2: case_id: 'None': must be str"),
        ('{"schema": 1, "case_id": "a", "status": "ok", "row": [1]}', r"line 2: row: '\[1\]': must be dict"),
        ('{"schema": 1, "case_id": "a", "status": "fine", "row": {}}', "line 2: status: 'fine': unknown .*allowed: ok"),
        ('{"schema": 2, "case_id": "a", "status": "ok"}', r"line 2: schema: 2: .*another schema.*\(allowed: 1\)"),
        ('{"case_id": "a", "status": "ok"}', "line 2: schema: 'missing'"),
    ],
)
def test_bad_line_in_the_middle_is_refused_by_number(journal, line, message):
    lines = journal.path.read_text().splitlines()
    lines[1] = line
    journal.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=rf"^{re.escape(str(journal.path))}: {message}") as caught:
        Journal(journal.path).read()
    assert "\n" not in str(caught.value)


def test_bad_last_line_that_is_finished_is_refused(journal):
    with journal.path.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(InputError, match=r"line 4: '\{broken': not JSON"):
        Journal(journal.path).read()


@pytest.mark.parametrize("bad", [{"case_id": 3}, {"status": "fine"}, {"status": None}, {"extra": 1}])
def test_append_refuses_what_is_not_a_record(journal, bad):
    before = journal.path.read_bytes()
    with pytest.raises(ValueError, match="not a journal record"):
        journal.append(record(CASES[0]) | bad)
    assert journal.path.read_bytes() == before


def test_nan_never_reaches_the_file(journal):
    journal.append(record(CASES[0], row={"time_us": float("nan")}))
    assert journal.read()[CASES[0].id]["row"] == {"time_us": None}
    assert "NaN" not in journal.path.read_text()


def test_append_to_a_full_disk_is_one_line(journal, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cases\.jsonl: cannot write: No space left on device$"):
        journal.append(record(CASES[0]))


def _append_forever(path: str) -> None:
    journal = Journal(path)
    for attempt in range(1_000_000):
        journal.append(record(CASES[attempt % 3], attempt=attempt))


def test_killed_writer_leaves_a_readable_journal(tmp_path):
    path = tmp_path / "cases.jsonl"
    process = multiprocessing.get_context("fork").Process(target=_append_forever, args=(str(path),))
    process.start()
    try:
        deadline = time.monotonic() + 20
        while (not path.exists() or path.stat().st_size < 50_000) and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert len(Journal(path).read()) == 3


# -- manifest --------------------------------------------------------------------------------------------------------


def test_manifest_round_trip_and_schema(tmp_path):
    path = results.write_manifest(tmp_path, {"seed": 3, "gpu": None, "dir": Path("a/b"), "x": float("nan")})
    assert path == tmp_path / "manifest.json"
    assert results.read_manifest(tmp_path) == {"schema": 1, "seed": 3, "gpu": None, "dir": "a/b", "x": None}
    assert [item.name for item in tmp_path.iterdir()] == ["manifest.json"]  # no temporary file stays


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not a run of perfkit: no manifest.json"),
        ("{", "not JSON"),
        ("[]", "'list': must be a JSON object"),
        ('{"schema": 7}', r"schema: 7: written in another schema version \(allowed: 1\)"),
        ('{"seed": 7}', "schema: 'missing': written in another schema version"),
    ],
)
def test_bad_manifest_is_bad_input(tmp_path, content, message):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        results.read_manifest(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value) and "\n" not in str(caught.value)


IDENTITY = {"model": {"key": "m", "n_layers": 2}, "gpu": "h200", "gpu_uuid": "GPU-1", "seed": 0,
            "timing": {"min_samples": 10, "target_half_width": 0.005}, "case_ids": ["a", "b"], "kernels": "k",
            "torch": "2.11.0", "triton": "3.6.0"}  # fmt: skip


def test_hash_depends_on_everything_that_decides_the_numbers_and_not_on_order_of_keys():
    base = results.manifest_hash(**IDENTITY)
    assert re.fullmatch("[0-9a-f]{64}", base)
    changes = [{"model": {"key": "m", "n_layers": 3}}, {"gpu": "b200"}, {"gpu_uuid": None}, {"seed": 1},
               {"timing": {"min_samples": 11, "target_half_width": 0.005}}, {"case_ids": ["b", "a"]},
               {"kernels": "j"}, {"torch": "2.13.0"}, {"triton": "3.7.1"}]  # fmt: skip
    hashes = {results.manifest_hash(**{**IDENTITY, **change}) for change in changes}
    assert len(hashes) == len(changes) and base not in hashes
    swapped = {**IDENTITY, "timing": {"target_half_width": 0.005, "min_samples": 10}}
    assert results.manifest_hash(**swapped) == base
    assert results.manifest_hash(**{**IDENTITY, "model": SHAPE}) != base  # a dataclass is taken by its fields


def test_hash_is_sha256_of_sorted_json():
    import hashlib

    text = json.dumps({**IDENTITY, "schema": 1}, sort_keys=True)
    assert results.manifest_hash(**IDENTITY) == hashlib.sha256(text.encode()).hexdigest()


def test_kernels_digest_follows_content_and_names_alone(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "gdn").mkdir(parents=True)
        (tmp_path / name / "gdn" / "replay.py").write_text("x = 1\n")
        (tmp_path / name / "gdn" / "notes.txt").write_text(name)
    one, two = (results.kernels_digest(root=tmp_path / name) for name in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "gdn" / "replay.py").write_text("x = 2\n")
    assert results.kernels_digest(root=tmp_path / "two") != one
    plugin = tmp_path / "mine.py"
    plugin.write_text("METHOD = 1\n")
    assert results.kernels_digest([plugin], root=tmp_path / "one") != one
    assert results.kernels_digest() == results.kernels_digest()


def test_environment_is_json_without_names_of_host_or_user():
    facts = results.environment(["perfkit", "sweep"])
    assert facts["argv"] == ["perfkit", "sweep"]
    assert facts["packages"]["numpy"] == results.version("numpy")
    assert facts["ended"] is None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", facts["started"])
    json.dumps(facts, allow_nan=False)
    assert results.version("no-such-package-at-all") is None


def test_git_revision_of_a_checkout_and_of_none(tmp_path):
    assert results.git_revision(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    clean = results.git_revision(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", clean["revision"]) and clean["modified"] is False
    (tmp_path / "a").write_text("2")
    assert results.git_revision(tmp_path)["modified"] is True


def test_host_kind(tmp_path, monkeypatch):
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)
    assert results.host_kind(tmp_path) == "unknown"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu avx512f\n")
    assert results.host_kind(tmp_path) == "bare"
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu hypervisor avx512f\n")
    assert results.host_kind(tmp_path) == "vm"
    (tmp_path / ".dockerenv").touch()
    assert results.host_kind(tmp_path) == "container in vm"


# -- the folder ------------------------------------------------------------------------------------------------------


def test_default_name_is_utc_and_counts_up(tmp_path):
    now = datetime(2026, 3, 4, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    first = results.default_run_dir("nemotron-super", "h200", now, tmp_path)
    assert first == tmp_path / "20260303T230203Z-nemotron-super-h200"
    first.mkdir()
    second = results.default_run_dir("nemotron-super", "h200", now, tmp_path)
    assert second.name == "20260303T230203Z-nemotron-super-h200-2"
    second.mkdir()
    assert results.default_run_dir("nemotron-super", "h200", now, tmp_path).name.endswith("-h200-3")
    odd = results.default_run_dir("../my model", "NVIDIA/X", datetime(2026, 1, 1, tzinfo=UTC))
    assert odd == Path("runs/20260101T000000Z-my-model-NVIDIA-X")


def test_new_and_empty_folders_are_taken(tmp_path):
    assert results.prepare_run_dir(tmp_path / "a" / "b").is_dir()
    assert list(results.prepare_run_dir(tmp_path / "a" / "b").iterdir()) == []


def test_folder_with_something_in_it_or_a_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(InputError, match="--out: is not empty"):
        results.prepare_run_dir(tmp_path)
    with pytest.raises(InputError, match="--out: is a file, not a folder"):
        results.prepare_run_dir(tmp_path / "x")
    with pytest.raises(InputError, match=r"x/y: --out: cannot be written: .*/x is a file$"):
        results.prepare_run_dir(tmp_path / "x" / "y")
    assert (tmp_path / "x").read_text() == "mine"


def test_unwritable_folder_is_found_at_once_and_nothing_stays(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"^/proc/no/run: --out: cannot be written"):
        results.prepare_run_dir("/proc/no/run")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        results.prepare_run_dir(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_one_writer_at_a_time(tmp_path):
    second = results.writing(tmp_path)
    with results.writing(tmp_path), pytest.raises(InputError, match="another perfkit is writing"):
        second.__enter__()
    with results.writing(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


# -- frames ----------------------------------------------------------------------------------------------------------


def rows() -> list[dict]:
    return [
        row_of(CASES[0], time_us=0.1 + 0.2, launch_config="BV=16 num_warps=1", n_samples=2**53 + 1),
        row_of(CASES[1], reason='a "quoted", reason\nof two lines; µs ×'),
        row_of(CASES[2], time_us=None, status="oom", reason="other process 61 GB"),
    ]


@pytest.mark.parametrize("source", ["parquet", "csv", "journal"])
def test_run_reads_the_same_from_each_source(tmp_path, source):
    journal = Journal(tmp_path / "cases.jsonl")
    for case, row in zip(CASES, rows(), strict=True):
        journal.append(record(case, row["status"], row=row))
    results.write_frame(tmp_path, rows())
    if source != "parquet":
        (tmp_path / "results.parquet").unlink()
    if source == "journal":
        (tmp_path / "results.csv").unlink()
    frame = results.load_run(tmp_path)
    assert list(frame.columns) == list(results.COLUMNS)
    dtypes = {name: str(frame[name].dtype) for name in ("method", "batch", "window", "time_us", "registers")}
    assert dtypes == {"method": "string", "batch": "Int64", "window": "Int64", "time_us": "float64",
                      "registers": "Int64"}  # fmt: skip
    for got, want in zip(frame.to_dict("records"), rows(), strict=True):
        for name, value in want.items():
            if value is None:
                assert got[name] is None or got[name] != got[name] or str(got[name]) == "<NA>", name
            else:
                assert got[name] == value, name


def test_files_are_the_same_bytes_for_the_same_rows(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first, second = results.write_frame(tmp_path / "a", rows()), results.write_frame(tmp_path / "b", rows())
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert sorted(item.name for item in (tmp_path / "a").iterdir()) == ["results.csv", "results.parquet"]


def test_csv_is_plain(tmp_path):
    results.write_frame(tmp_path, rows())
    data = (tmp_path / "results.csv").read_bytes()
    assert b"\r" not in data
    assert data.splitlines()[0].decode().split(",") == list(results.COLUMNS)
    assert b"0.30000000000000004" in data and b"nan" not in data.lower() and b"None" not in data


def test_frame_refuses_a_case_twice_and_bad_rows_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="case_id twice"):
        results.write_frame(tmp_path, [rows()[0], rows()[0]])
    with pytest.raises(ValueError, match="unknown column"):
        results.write_frame(tmp_path, [rows()[0] | {"tme": 1}])
    with pytest.raises(InputError, match="cannot write: No such file or directory"):
        results.write_frame(tmp_path / "absent", rows())
    assert list(tmp_path.iterdir()) == []


def test_failure_half_way_keeps_the_old_files(tmp_path, monkeypatch):
    results.write_frame(tmp_path, rows())
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    monkeypatch.setattr("perfkit.results.frame.write_csv", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        results.write_frame(tmp_path, rows()[:1])
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before
    results.discard_frame(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_columns_are_kept_and_missing_extras_are_empty(tmp_path):
    results.write_frame(tmp_path, rows())
    import pandas as pd

    raw = pd.read_csv(tmp_path / "results.csv").drop(columns=["throttle_reasons"]).assign(future=[1, 2, 3])
    path = tmp_path / "shipped.csv"
    raw.to_csv(path, index=False)
    frame = results.load_run(path)
    assert list(frame.columns) == [*results.COLUMNS, "future"]
    assert frame["throttle_reasons"].isna().all()


def test_empty_run(tmp_path):
    results.write_frame(tmp_path, [])
    assert len(results.load_run(tmp_path)) == 0
    results.discard_frame(tmp_path)
    (tmp_path / "cases.jsonl").touch()
    assert list(results.load_run(tmp_path).columns) == list(results.COLUMNS)


@pytest.mark.parametrize("name", ["results.parquet", "results.csv", "cases.jsonl"])
def test_another_schema_version_is_refused_by_name(tmp_path, name):
    import pandas as pd

    frame = pd.DataFrame([row | {"schema_version": 2} for row in rows()])
    if name == "results.parquet":
        frame.to_parquet(tmp_path / name)
    elif name == "results.csv":
        frame.to_csv(tmp_path / name, index=False)
    else:
        line = json.dumps(record(CASES[0]) | {"schema": 2})
        (tmp_path / name).write_text(line + "\n")
    with pytest.raises(InputError, match=rf"{name}: .*schema.*: 2: written in another .* \(allowed: 1\)"):
        results.load_run(tmp_path)


def test_damaged_files_are_bad_input(tmp_path):
    with pytest.raises(InputError, match="not a run of perfkit"):
        results.load_run(tmp_path)
    with pytest.raises(InputError, match="no such run"):
        results.load_run(tmp_path / "absent")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="no case of this run is finished yet"):
        results.load_run(tmp_path)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"results\.csv: schema_version: column is missing"):
        results.load_run(tmp_path)
    (tmp_path / "results.csv").write_text("schema_version,case_id,batch\n1,a,many\n")
    with pytest.raises(InputError, match=r"results\.csv: batch: not int"):
        results.load_run(tmp_path)
    (tmp_path / "results.csv").write_text("")
    with pytest.raises(InputError, match="not a CSV file"):
        results.load_run(tmp_path)
    (tmp_path / "results.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="not a Parquet file") as caught:
        results.load_run(tmp_path)
    assert "\n" not in str(caught.value)


# -- samples ---------------------------------------------------------------------------------------------------------


def test_samples_round_trip(tmp_path):
    results.write_samples(tmp_path, "abc", [1.5, 0.1 + 0.2])
    assert results.read_samples(tmp_path, "abc") == {"time_us": [1.5, 0.1 + 0.2]}
    results.write_samples(tmp_path, "abc", {"time_us": [1.0], "round": [3]})
    assert results.read_samples(tmp_path, "abc") == {"time_us": [1.0], "round": [3]}
    assert results.read_samples(tmp_path, "none") == {}
    (tmp_path / "samples" / "abc.json").write_text('{"schema": 2}')
    with pytest.raises(InputError, match="schema: 2"):
        results.read_samples(tmp_path, "abc")


def test_importing_results_loads_no_heavy_package():
    code = ("import sys, perfkit.results; heavy = {'pandas', 'pyarrow', 'scipy', 'torch', 'triton', 'filelock'}; "
            "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_plain_rows_have_none_where_a_value_is_absent() -> None:
    import pandas as pd

    frame = pd.DataFrame({"window": pd.array([16, None], dtype="Int64"), "time_us": [1.5, float("nan")],
                          "tree": pd.array([None, "0,0"], dtype="string")})  # fmt: skip
    assert results.plain_rows(frame) == [
        {"window": 16, "time_us": 1.5, "tree": None}, {"window": None, "time_us": None, "tree": "0,0"}
    ]  # fmt: skip
    assert results.plain_rows(frame.head(0)) == []
