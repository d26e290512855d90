"""Shipped measurements: typed cells, and the manifest beside each CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.errors import InputError
from perfkit.profiles import load_measured

HEADER = "schema_version,case_id,model,gpu,method,batch,window,accepted,acceptance,time_us,status,registers,extra"


def _write(folder: Path, *lines: str, name: str = "run", manifest: str | None = '{"hash": "abc"}') -> Path:
    path = folder / f"{name}.csv"
    path.write_text("\n".join((HEADER, *lines)) + "\n", encoding="utf-8")
    if manifest is not None:
        (folder / f"{name}.manifest.json").write_text(manifest, encoding="utf-8")
    return path


def test_no_rows_where_there_are_no_files(tmp_path: Path) -> None:
    assert load_measured(directory=tmp_path) == []
    assert load_measured(directory=tmp_path / "nowhere") == []


def test_shipped_rows_load() -> None:
    for row in load_measured():
        assert row["model"] and row["gpu"] and isinstance(row["manifest"], dict)
    assert load_measured("no-such-model") == []


def test_cells_are_typed_by_their_column(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "1,123456789012,m,g,replay,256,16.0,1,1,302,ok,,0.5",
        "1,1e5678901234,m,g,conventional,1,,3.5,mean:3.5,4.25,ok,64,abc",
    )
    first, second = load_measured(directory=tmp_path)
    assert first == {
        "schema_version": 1, "case_id": "123456789012", "model": "m", "gpu": "g", "method": "replay", "batch": 256,
        "window": 16, "accepted": 1.0, "acceptance": "1", "time_us": 302.0, "status": "ok", "registers": None,
        "extra": 0.5, "manifest": {"hash": "abc"},
    }  # fmt: skip
    assert [type(first[name]) for name in ("batch", "window", "accepted", "time_us")] == [int, int, float, float]
    assert second["case_id"] == "1e5678901234"  # a hexadecimal id, not a number
    assert (second["window"], second["registers"], second["extra"]) == (None, 64, "abc")


def test_rows_are_chosen_by_model_and_gpu(tmp_path: Path) -> None:
    _write(tmp_path, "1,a,m1,g1,x,1,,1,1,1,ok,,", "1,b,m2,g1,x,1,,1,1,1,ok,,", name="one")
    _write(tmp_path, "1,c,m1,g2,x,1,,1,1,1,ok,,", name="two", manifest='{"hash": "def"}')
    ids = lambda *args: [row["case_id"] for row in load_measured(*args, directory=tmp_path)]  # noqa: E731
    assert ids() == ["a", "b", "c"]
    assert ids("m1") == ["a", "c"]
    assert ids(None, "g1") == ["a", "b"]
    assert ids("m1", "g2") == ["c"]
    assert load_measured("m1", "g2", tmp_path)[0]["manifest"] == {"hash": "def"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1,a,m,g,x,many,,1,1,1,ok,,", "line 3: batch: 'many': must be a number"),
        ("1,a,m,g,x,1.5,,1,1,1,ok,,", "line 3: batch: '1.5': must be a whole number"),
        ("1,a,m,g,x,1,,1,1,nan,ok,,", "line 3: time_us: 'nan': must be a number"),
        ("1,a,m,g,x,1,,1,1,1,ok", "line 3: has 11 cells, not 13"),
        ('1,"a,m', "line 3: not valid CSV: unexpected end of data"),
    ],
)
def test_a_bad_cell_names_its_line_and_column(tmp_path: Path, line: str, expected: str) -> None:
    path = _write(tmp_path, "1,a,m,g,x,1,,1,1,1,ok,,", line)
    with pytest.raises(InputError) as caught:
        load_measured(directory=tmp_path)
    assert str(caught.value) == f"{path}: {expected}"


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [(None, "no such file"), ("{", "line 1: not valid JSON"), ("[]", "must be a JSON object")],
)
def test_a_csv_needs_its_manifest(tmp_path: Path, manifest: str | None, expected: str) -> None:
    _write(tmp_path, "1,a,m,g,x,1,,1,1,1,ok,,", manifest=manifest)
    with pytest.raises(InputError, match=expected) as caught:
        load_measured(directory=tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "run.manifest.json"))
