"""Taking rows out of shipped files: what goes, what the manifest then says, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_scripts import script

from perfkit.profiles import load_measured
from perfkit.profiles.measured import MEASURED

NAME, WHY = "kimi-linear-verify-h200", "its kernel is another one since"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (*MEASURED.glob(f"{NAME}.*"), *MEASURED.glob("*-counters.*")):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_rows_go_and_the_manifest_says_which_and_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv_file, manifest_file = folder / f"{NAME}.csv", folder / f"{NAME}.manifest.json"
    lines, before = csv_file.read_text(encoding="utf-8").splitlines(), json.loads(manifest_file.read_text("utf-8"))
    where = ["--directory", str(folder), "--why", WHY]
    assert script("leave_out").main([NAME, "method=snapshot,replay", "draft_len=8", *where]) == 0
    gone = capsys.readouterr().out.split()
    assert len(gone) == 4
    kept = [line for line in lines if line.split(",")[1] not in gone]
    assert csv_file.read_text(encoding="utf-8").splitlines() == kept and len(kept) == len(lines) - 4
    after = json.loads(manifest_file.read_text(encoding="utf-8"))
    assert after["left_out"] == [*before.get("left_out", []), {"case_ids": gone, "why": WHY}]
    assert after["case_ids"] == [case for case in before["case_ids"] if case not in gone]
    assert after["statuses"]["ok"] == before["statuses"]["ok"] - 4
    assert {name: value for name, value in after.items() if before.get(name) != value}.keys() == {
        "left_out", "case_ids", "statuses"
    }  # fmt: skip
    assert {row["case_id"] for row in load_measured(directory=folder)} == set(after["case_ids"])


def test_counters_have_rows_too(folder: Path) -> None:
    name = next(folder.glob("*-counters.csv")).stem
    assert script("leave_out").main([name, "method=snapshot", "--directory", str(folder), "--why", WHY]) == 0
    text = (folder / f"{name}.csv").read_text(encoding="utf-8")
    assert ",snapshot," not in text and ",replay," in text


def test_a_case_with_two_rows_goes_whole_and_a_file_is_never_emptied(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counters of replay decode have two rows of one case: the step that flushes, and the others."""
    name = next(folder.glob("*-counters.csv")).stem
    before = (folder / f"{name}.csv").read_bytes()
    for where, says in (("family=mamba2", "every row is meant"), ("step=flush", "some rows of a case")):
        assert script("leave_out").main([name, where, "--directory", str(folder), "--why", WHY]) == 2
        assert says in capsys.readouterr().err
    assert (folder / f"{name}.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-run", "method=replay"], "NAME: is not there"),
        ([NAME, "metod=replay"], "has no such column"),
        ([NAME, "method=reply"], "no row is meant"),
        ([NAME, "batch=256"], "every row is meant"),
        ([NAME, "replay"], "is no condition"),
    ],
)
def test_what_makes_no_sense_changes_nothing_and_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert script("leave_out").main([*words, "--directory", str(folder), "--why", WHY]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
