"""The script that proves compare on a GPU, here with runs of the simulated one; and the method that it slows."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit import compare
from perfkit.check import check_case
from perfkit.method import Case
from perfkit.registry import load_method
from perfkit.shape import Shape
from tests.fakeruns import fake_run

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("prove_compare", SCRIPTS / "prove_compare.py")
    assert spec is not None and spec.loader is not None
    module, before = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def simulate(monkeypatch: pytest.MonkeyPatch, script: Any, *, works: bool = True, run_noise: float = 0.0) -> list[Any]:
    """Take sweeps of the simulated GPU in place of real ones; a spin is a slowdown where it ``works``."""
    asked: list[Any] = []

    def sweep(out: Path, seed: int, flags: list[str], spins: Mapping[int, int] | None = None) -> compare.Run:
        asked.append((flags, spins))
        found = fake_run(
            out, seed=seed, flags={"method": f"conventional,replay,{script.SPUN}", "batch": "256", "window": "8"},
            slowdown={script.SPUN: 1.04} if spins and works else {}, fake={"noise": 0.001, "run_noise": run_noise},
        )  # fmt: skip
        return compare.load(str(found))

    monkeypatch.setattr(script, "sweep", sweep)
    return asked


def test_it_passes_where_compare_is_quiet_and_finds_the_slowdown(script, monkeypatch, tmp_path: Path, capsys):
    asked = simulate(monkeypatch, script)
    assert script.main(["--out", str(tmp_path / "runs"), "--runs", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["run0 run1", "run0 run2", "run1 run2"]
    # The id of a plug-in's case, and by it the simulated noise, depends on where the checkout lies.
    found = re.search(r"REGRESSION \(limit 3%\): B256 spun_decode\.py:METHOD \+(\d\.\d)%", lines[-3])
    assert found is not None and float(found[1]) == pytest.approx(4.0, abs=0.5)
    assert lines[-2].startswith("same code: 0 alarms, changes of 0.")
    assert lines[-1] == "slower by 4%: 1 of 1 case named, 0 others"
    flags, spins = asked[-1]
    assert flags == ["--model", "nemotron-super", "--batch", "64,256", "--window", "8,16"]
    # 540 us at 1980 MHz, and 4 % of them
    assert spins == {256: pytest.approx(0.04 * 540 * 1980, rel=0.02)}
    assert [spins for _, spins in asked[:-1]] == [None] * 3


def test_it_fails_where_a_slowdown_is_not_found(script, monkeypatch, tmp_path: Path, capsys):
    simulate(monkeypatch, script, works=False)
    assert script.main(["--out", str(tmp_path / "runs"), "--runs", "2"]) == 1
    assert "0 of 1 case named" in capsys.readouterr().out


@pytest.mark.parametrize("lacks", ["sm_clock_mhz", "time_us"])
def test_it_says_in_one_line_where_a_row_does_not_tell_how_many_cycles_to_spin(
    script, monkeypatch, tmp_path: Path, capsys, lacks: str
):
    asked = simulate(monkeypatch, script)
    simulated = script.sweep

    def sweep(*args: Any) -> compare.Run:
        run = simulated(*args)
        return replace(run, rows={key: {**row, lacks: None} for key, row in run.rows.items()})

    monkeypatch.setattr(script, "sweep", sweep)
    assert script.main(["--out", str(tmp_path / "runs")]) == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert re.search(rf"^prove_compare\.py: \S+run0: B256 spun_decode\.py:METHOD: no {lacks}, so how many cycles", err)
    assert len(asked) == 1  # no sweep was run in vain


def test_it_fails_where_runs_of_the_same_code_raise_alarms(script, monkeypatch, tmp_path: Path, capsys):
    simulate(monkeypatch, script, run_noise=0.02)
    assert script.main(["--out", str(tmp_path / "runs"), "--runs", "4"]) == 1
    assert "same code: 0 alarms" not in capsys.readouterr().out


def test_the_spun_method_meets_the_oracle_and_reads_its_cycles(script):
    case = Case(Shape("mamba2", 4, 2, 16, 16), script.SPUN, 3, input_dtype="float32")
    assert check_case(case, "cpu").reason is None
    cycles = type(load_method(script.SPUN)).launches.__globals__["cycles"]
    assert [cycles(batch, "64:5,256:70") for batch in (64, 256, 8)] == [5, 70, 1]
