"""How the program ends: exit codes, one line of error, lazy commands."""

from __future__ import annotations

import importlib
import inspect
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit.cli import app, common
from perfkit.errors import DeviceError, ExitCode, IncorrectError, InputError


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in app.COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary in out


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_summary_is_first_line_of_docstring(name: str) -> None:
    function = app.load_command(name)
    assert (inspect.getdoc(function) or "").splitlines()[0] == app.COMMANDS[name].summary


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert app.COMMANDS[name].summary in out
    assert "--json" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == 0
    assert capsys.readouterr().out == "perfkit 0.1.0\n"


def test_no_arguments_show_the_overview_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Commands:" in captured.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plot"], ["No such command 'plot'"]),
        (["--bogus"], ["--bogus"]),
        (["list"], ["what", "perfkit list --help"]),
        (["list", "cars"], ["cars", "models", "gpus", "methods", "runs", "measured"]),
        (["list", "models", "--bogus"], ["--bogus"]),
        (["list", "models", "--model"], ["--model"]),
        (["doctor", "extra"], ["extra"]),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("perfkit: error: ")
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err


def test_examples_in_help_keep_their_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def doctor() -> None:
        """First line.

        Examples:
            perfkit doctor
            perfkit doctor --json
        """

    monkeypatch.setattr(app, "load_command", lambda name: doctor)
    assert app.run(["doctor", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Examples:")
    assert lines[start + 1 : start + 3] == ["perfkit doctor", "perfkit doctor --json"]


def command_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, result: object = None) -> None:
    def doctor() -> object:
        if error is not None:
            raise error
        return result

    monkeypatch.setattr(app, "load_command", lambda name: doctor)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("must be at least 1", field="--batch", value=0), 2, "--batch: 0: must be at least 1"),
        (DeviceError("no NVIDIA driver"), 3, "no NVIDIA driver"),
        (IncorrectError("replay disagrees"), 1, "replay disagrees"),
        (ValueError("a\nb"), 3, "ValueError: a b (PERFKIT_DEBUG=1 shows the traceback)"),
    ],
)
def test_errors_become_one_line_and_a_code(
    error: Exception, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PERFKIT_DEBUG", raising=False)
    command_raising(monkeypatch, error)
    assert app.run(["doctor"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"perfkit: error: {line}\n"
    assert captured.out == ""


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PERFKIT_DEBUG", "1")
    command_raising(monkeypatch, ValueError("boom"))
    assert app.run(["doctor"]) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("perfkit: error: ValueError: boom\n")


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command_raising(monkeypatch, KeyboardInterrupt())
    assert app.run(["doctor"]) == 130
    assert capsys.readouterr().err == "perfkit: interrupted\n"


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1), (124, 124), (ExitCode.INCOMPLETE, 3)])
def test_a_command_returns_its_exit_code(result: object, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command_raising(monkeypatch, None, result)
    assert app.run(["doctor"]) == code


def test_system_exit_of_a_library_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    command_raising(monkeypatch, SystemExit(7))
    assert app.run(["doctor"]) == 7


def test_closed_pipe_is_quiet() -> None:
    script = f"{sys.executable} -m perfkit --help; echo code $? >&2"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    child = subprocess.run(["bash", "-c", f"( {script} ) | true"], capture_output=True, text=True, timeout=60, env=env)
    # Whether the reader left before or after the text was written is a race; a traceback is wrong either way.
    assert child.stderr in ("code 141\n", "code 0\n")


def test_write_to_closed_pipe_exits_141(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command_raising(monkeypatch, BrokenPipeError())
    assert app.run(["doctor"]) == 141
    assert capsys.readouterr().err == ""


def test_every_command_is_a_function_of_its_own_module() -> None:
    for name, command in app.COMMANDS.items():
        assert command.module == f"perfkit.cli.{name}"
        assert hasattr(importlib.import_module(command.module), command.function)


@pytest.mark.slow
def test_help_takes_less_time_than_importing_pandas() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("COV_")}

    def seconds(*args: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *args], check=True, capture_output=True, env=env, timeout=120)
        return time.perf_counter() - started

    for args in (("-m", "perfkit", "--help"), ("-c", "import pandas")):  # bytecode and page cache
        seconds(*args)
    helps, imports = [], []
    for _ in range(5):  # interleaved: what else the machine does hits both
        helps.append(seconds("-m", "perfkit", "--help"))
        imports.append(seconds("-c", "import pandas"))
    assert statistics.median(helps) < statistics.median(imports)


def test_print_json_has_no_nan_and_knows_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    import numpy as np

    from perfkit.shape import Shape

    common.print_json(
        {
            "nan": float("nan"), "inf": np.float32("inf"), "int": np.int64(3), "float": np.float64(0.5),
            "bool": np.bool_(True), "array": np.array([[1.0, np.nan]]), "path": Path("a/b"), "code": ExitCode.USAGE,
            "shape": Shape("mamba2", 4, 2, 64, 128), "tuple": (1, None), "set": {"b", "a"}, 5: "key", "text": "×",
        }
    )  # fmt: skip
    out = capsys.readouterr().out
    assert json.loads(out) == {
        "nan": None, "inf": None, "int": 3, "float": 0.5, "bool": True, "array": [[1.0, None]], "path": "a/b",
        "code": 2, "shape": {"family": "mamba2", "n_v_heads": 4, "n_k_heads": 2, "d_v": 64, "d_k": 128},
        "tuple": [1, None], "set": ["a", "b"], "5": "key", "text": "×",
    }  # fmt: skip
    assert out.isascii()
    assert "NaN" not in out


def test_print_json_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="object"):
        common.to_plain({"x": object()})


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (True, "yes"), (12345, "12,345"), (0.58123, "0.5812"), (4800.0, "4,800"),
     (("a", "b"), "a, b"), ((), "-"), ("x", "x")],
)  # fmt: skip
def test_cell(value: object, text: str) -> None:
    assert common.cell(value) == text


def test_a_narrow_terminal_cuts_no_number(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    common.print_table(["name", "bytes", "note"], [["conventional", 167_772_160, "one two three"]])
    out = capsys.readouterr().out
    assert "conventional" in out
    assert "167,772,160" in out
    assert "three" in out
    assert "…" not in out


def test_piped_table_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a long note " * 15
    common.print_table(["name", "note"], [["[x]", long]])
    out = capsys.readouterr().out
    assert long.strip() in out
    assert "[x]" in out
    assert "\x1b" not in out
