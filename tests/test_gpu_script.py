"""scripts/gpu.sh with a Python that only writes down what it is asked: parts, failures, packed results."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUB = r"""#!/usr/bin/env bash
set -- "${@//$'\n'/ }"
echo "$* | ROOFS=${PERFKIT_ROOFS:-} GPU_TESTS=${PERFKIT_GPU_TESTS:-} INTERPRET=${TRITON_INTERPRET:-}" >>"$CALLS"
case "$*" in
    *device*) exit "${NO_GPU:-0}" ;;
    *roofline*--quick) exit 3 ;;
    *roofline*) echo 'gpu: x' >"$5/x-roofs.yaml" ;;
    *sweep*broken*) exit 3 ;;
    *sweep* | *profile*) while [ "$1" != --out ]; do shift; done; mkdir -p "$2/samples"; echo rows >"$2/results.csv"
             echo '{}' >"$2/samples/a.json" ;;
esac
"""


def _script(tmp_path: Path, *args: str, **extra: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    stub, calls = tmp_path / "python", tmp_path / "calls"
    stub.write_text(STUB)
    stub.chmod(0o755)
    calls.touch()
    env = (
        os.environ | {"PYTHON": str(stub), "CALLS": str(calls), "TRITON_INTERPRET": "1", "PERFKIT_ROOFS": "own"} | extra
    )
    command = ["bash", str(ROOT / "scripts" / "gpu.sh"), *args]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60)
    return done, calls.read_text().splitlines()[1:]  # the first looks for the GPU


def test_every_part_runs_and_results_are_packed(tmp_path: Path) -> None:
    sweeps = ("--sweep", "nemotron-super --batch 1,2", "--sweep", "nemotron-super", "--sweep", "at/my.config.json")
    done, calls = _script(tmp_path, "--tests", "--roofs", *sweeps, "--out", "out")
    assert done.returncode == 0, done.stderr
    tests, roofs, first, second, third = calls
    assert "-m pytest -q -p no:cacheprovider -m gpu" in tests and tests.endswith(" GPU_TESTS=1 INTERPRET=")
    out = tmp_path / "out"
    assert roofs == f"-m perfkit roofline --out {out} --repeat 2 | ROOFS=own GPU_TESTS= INTERPRET="
    assert all("| ROOFS=own " in call for call in (first, second, third))
    assert f"sweep --model nemotron-super --batch 1,2 --out {out}/nemotron-super |" in first
    assert f"--out {out}/nemotron-super-2 |" in second
    assert f"--model at/my.config.json --out {out}/my.config |" in third
    assert (out / "x-roofs.yaml").read_text() == "gpu: x\n"
    with tarfile.open(out / "nemotron-super-2.tar.gz") as packed:
        assert {"nemotron-super-2/results.csv", "nemotron-super-2/samples/a.json"} <= set(packed.getnames())
    table = done.stdout.splitlines()[-7:]
    assert [line.split()[:2] for line in table if " ok " in line][:2] == [["gpu", "ok"], ["tests", "ok"]]
    assert sum(" ok " in line for line in table) == 6
    assert (out / "gpu.log").read_text() == done.stdout


def test_sweeps_go_by_the_roofs_where_asked(tmp_path: Path) -> None:
    done, (roofs, sweep) = _script(tmp_path, "--use-roofs", "--sweep", "good", "--out", "out")
    assert done.returncode == 0 and (tmp_path / "out" / "x-roofs.yaml").exists()
    assert "| ROOFS=own " in roofs and f"| ROOFS={tmp_path / 'out'} " in sweep


def test_counters_come_after_the_sweeps_in_a_folder_of_their_own(tmp_path: Path) -> None:
    profiles = ("--profile", "nemotron-super --draft 1,4,8", "--sweep", "nemotron-super", "--profile", "nemotron-super")
    done, calls = _script(tmp_path, *profiles, "--quick", "--out", "out")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert [call.partition(" | ")[0] for call in calls] == [
        f"-m perfkit sweep --model nemotron-super --preset quick --out {out}/nemotron-super",
        f"-m perfkit profile --model nemotron-super --draft 1,4,8 --out {out}/nemotron-super-counters",
        f"-m perfkit profile --model nemotron-super --out {out}/nemotron-super-counters-2",
    ]
    assert (out / "nemotron-super-counters-2.tar.gz").exists()


def test_a_failing_part_does_not_stop_the_others(tmp_path: Path) -> None:
    done, calls = _script(tmp_path, "--quick", "--roofs", "--sweep", "broken", "--sweep", "good", "--out", "out")
    assert done.returncode == 1
    assert len(calls) == 3 and "--preset quick" in calls[1]
    words = [line.split()[:-2] for line in done.stdout.splitlines()[-5:-1]]
    assert words == [["gpu", "ok"], ["roofs", "exit", "3"], ["sweep", "broken", "exit", "3"], ["sweep", "good", "ok"]]
    assert (tmp_path / "out" / "good.tar.gz").exists() and not (tmp_path / "out" / "broken.tar.gz").exists()


def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    done, calls = _script(tmp_path, "--tests", "--out", "out", NO_GPU="1")
    assert done.returncode == 1 and calls == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "nothing to do"),
        (("--out",), "--out needs a value"),
        (("--frobnicate",), "unknown argument: --frobnicate"),
        (("--tests", "--out", "out", "--wheels", "no"), "--wheels: no wheel in no"),
        (("--tests", "--out", "/proc/no"), "--out cannot be written"),
    ],
)
def test_bad_usage(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    done, calls = _script(tmp_path, *args)
    assert done.returncode == 2 and words in done.stderr and calls == []
    assert "scripts/gpu.sh [--out DIR]" in done.stderr


def test_flags_of_a_sweep_are_passed_on_as_they_are(tmp_path: Path) -> None:
    flags = "--draft 2,4,8 --accepted 1,T,p:.88,.62 --tree 0,0,1,1 --window 8..64:x2 --flush-phase staggered --method *"
    done, calls = _script(tmp_path, "--sweep", f"nemotron-super {flags}", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert f"sweep --model nemotron-super {flags} --out {tmp_path}/out/nemotron-super |" in calls[0]
