"""What ships compiled: rows are found by content, are what compiling yields, and are written by `make compiled`."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compilehelp import python_with, run_child
from compileparts import OLD, PINNED, SUPER, point
from test_scripts import script

from perfkit.errors import InputError
from perfkit.profiles.compiled import COLUMNS, COMPILED, Compiled, compiled_files, compiled_text, load_compiled

ROW = Compiled("_one_kernel", 90, "TILE=64 num_warps=4", 4, 40, 0, 0, 0, 0, 9000, "9.9", "0" * 32)
HEAD = ",".join(COLUMNS)
LINE = f"{ROW.key},_one_kernel,90,TILE=64 num_warps=4,4,40,0,0,0,0,9000"


def test_rows_are_written_sorted_and_read_back(tmp_path: Path) -> None:
    rows = [replace(ROW, key=f"{i:032x}", cc=cc) for i, cc in enumerate((100, 90, 90))]
    path = tmp_path / "9.9.csv"
    path.write_text(compiled_text(rows), encoding="utf-8")
    assert path.read_text().splitlines()[0] == HEAD
    assert list(load_compiled("9.9", tmp_path).values()) == [rows[1], rows[2], rows[0]]
    assert path.read_text() == compiled_text(reversed(rows))
    assert compiled_files(tmp_path) == {"9.9": path}
    assert load_compiled("1.0", tmp_path) == {}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["key,kernel", "0,_one_kernel"], "line 1: 'key,kernel': has other columns (allowed: key, kernel, cc, "),
        ([HEAD, LINE + ",1"], "line 2: has 12 cells, not 11"),
        ([HEAD, LINE, LINE], f"line 3: key: '{ROW.key}': is there twice"),
        ([HEAD, LINE.replace(ROW.key, "0" * 31)], "line 2: key: '" + "0" * 31 + "': not 32 hexadecimal digits"),
        ([HEAD, LINE.replace(",40,", ",-1,")], "line 2: registers: '-1': must be a whole number"),
        ([HEAD, LINE.replace(",40,", ",,")], "line 2: registers: '': must be a whole number"),
        ([HEAD, LINE.replace("_one_kernel", "")], "line 2: kernel: '': must be a text that is not empty"),
    ],
)
def test_a_broken_table_is_refused_in_one_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "9.9.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_compiled("9.9", tmp_path)
    assert str(error.value).startswith(f"{path}: {message}") and "\n" not in str(error.value)


@pytest.mark.parametrize("version", compiled_files())
def test_what_ships_is_as_it_is_written(version: str) -> None:
    rows = load_compiled(version)
    assert (COMPILED / f"{version}.csv").read_text(encoding="utf-8") == compiled_text(rows.values())
    assert {row.cc for row in rows.values()} >= {90}
    assert all(0 < row.registers <= 255 and row.num_warps > 0 and row.cubin_bytes > 1000 for row in rows.values())


def test_reading_needs_neither_torch_nor_triton() -> None:
    code = ("import sys; from perfkit.profiles import compiled\n"
            "print(len(compiled.load_compiled(max(compiled.compiled_files(), default='0'))))\n"
            "print({'torch', 'triton', 'pandas', 'numpy'} & set(sys.modules))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[1] == "set()"


@pytest.mark.parametrize("version", [PINNED, OLD])
def test_a_row_cannot_vouch_for_another_kernel(version: str, tmp_path: Path) -> None:
    """A kernel that only stands elsewhere has the same key, and the same registers; all else makes another key."""
    found = run_child(python_with(version), "compile_keys.py", "keys", str(tmp_path))
    keys = found["keys"]
    same = [keys.pop(name) for name in ("as it is", "moved", "moved apart", "the same size")]
    assert len(set(same)) == 1
    assert len(keys) == 10 and len({same[0], *keys.values()}) == 11
    here, other, moved = found["compiled"]
    assert here["key"] == moved["key"] == same[0] != other["key"]
    assert {**here, "cubin_bytes": 0} == {**moved, "cubin_bytes": 0}


@pytest.mark.parametrize(("version", "wanted"), [(PINNED, 8), (OLD, 3)])
def test_shipped_rows_are_what_compiling_yields(version: str, wanted: int, tmp_path: Path) -> None:
    """Of some kernels, others whenever the tables change, with nothing known from before."""
    seed = hashlib.sha256(b"".join(path.read_bytes() for path in compiled_files().values())).hexdigest()
    found = run_child(python_with(version), "compile_keys.py", "sample", str(tmp_path), str(wanted), seed)["found"]
    if len(found) < wanted:
        pytest.skip(f"{len(found)} kernels of {wanted} ship for Triton {version}: make compiled")
    for shipped, made in found.values():
        assert abs(shipped.pop("cubin_bytes") / made.pop("cubin_bytes") - 1) < 0.02  # it holds the path of the source
        assert shipped == made


# The script.


def run_script(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    """Run it for one kernel."""
    module = script("compiled_tables")
    of = point("decode", SUPER, "conventional")
    monkeypatch.setattr(module, "shipped", lambda: [replace(of, cases=of.cases[-1:], configs="default")])
    monkeypatch.setattr(module, "old_python", lambda: Path(sys.executable))
    code: int = module.main(["--directory", str(folder), "--workers", "1", *arguments])
    return code


def test_tables_are_filled_checked_and_pruned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_script(monkeypatch, tmp_path, "--check") == 1
    assert "at least 1 row missing: make compiled" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert run_script(monkeypatch, tmp_path) == 0
    assert ": 1 row (1 new, 0 kept, 0 dropped)" in capsys.readouterr().out
    ((version, file),) = compiled_files(tmp_path).items()
    (row,) = load_compiled(version, tmp_path).values()
    changed = [replace(row, cubin_bytes=row.cubin_bytes + 1), replace(ROW, triton=version)]
    file.write_text(compiled_text(changed), encoding="utf-8")
    assert run_script(monkeypatch, tmp_path, "--check") == 0
    assert ": 1 row, complete; 1 that nothing asks for" in capsys.readouterr().out
    assert run_script(monkeypatch, tmp_path) == 0
    assert ": 1 row (0 new, 1 kept, 1 dropped)" in capsys.readouterr().out
    assert file.read_text(encoding="utf-8") == compiled_text(changed[:1])  # what stays is not touched


@pytest.mark.parametrize(
    ("arguments", "python", "message"),
    [(["--workers", "0"], "", "--workers: 0: must be at least 1"), ([], "/nowhere/python", "make compile-36")],
)
def test_script_refuses_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], python: str,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PERFKIT_TRITON36", python)
    module: Any = script("compiled_tables")
    assert module.main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and message in err
