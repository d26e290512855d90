"""The wheel: it holds what it needs, and works installed, outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without anything of this process's environment that could find the checkout."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "COV_"))}
    child = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert child.returncode == 0, f"{command}: {child.returncode}\n{child.stdout}\n{child.stderr}"
    return child


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build in place would leave folders behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    shutil.copytree(root / "perfkit", source / "perfkit", ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, cwd=source)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment with the wheel; what perfkit depends on comes from the tests' own."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    python = venv / "bin" / "python"
    call(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=venv.parent
    )  # fmt: skip
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv).stdout.strip()
    # A plain path: .pth files in there, such as an editable install of the checkout, are not followed.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = call(python, "-c", "import perfkit; print(perfkit.__file__)", cwd=venv).stdout.strip()
    assert Path(where).is_relative_to(venv)
    return venv / "bin"


def test_wheel_holds_every_file_of_the_package(root: Path, wheel: Path) -> None:
    expected = {
        str(path.relative_to(root))
        for path in (root / "perfkit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected - names == set()
    inside = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in inside} == {"perfkit"}
    for kind in (".yaml", ".py", "py.typed"):
        assert any(name.endswith(kind) for name in inside)
    assert any(name.startswith("perfkit/reports/templates/") for name in inside)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_list(installed: Path, tmp_path: Path) -> None:
    models = json.loads(call(installed / "perfkit", "list", "models", "--json", cwd=tmp_path).stdout)
    assert "nemotron-super" in {key for model in models for key in (model["key"], *model["aliases"])}
    methods = json.loads(call(installed / "perfkit", "list", "methods", "--json", cwd=tmp_path).stdout)
    assert {("mamba2", "conventional"), ("mamba2", "replay")} <= {(m["family"], m["key"]) for m in methods}


def test_traffic(installed: Path, tmp_path: Path) -> None:
    args = ("traffic", "--model", "nemotron-super", "--window", "16", "--json")
    data = json.loads(call(installed / "perfkit", *args, cwd=tmp_path).stdout)
    assert data["ratio_paper"] == pytest.approx(0.5812, abs=5e-5)
    assert data["state_bytes_per_sequence"] == 167_772_160


def test_report(installed: Path, tmp_path: Path) -> None:
    from reportdata import frame, write_run

    run = write_run(tmp_path / "run", frame("measured"))
    page = tmp_path / "page.html"
    call(installed / "perfkit", "report", run, "-o", page, cwd=tmp_path)
    text = page.read_text()
    assert "nemotron-super" in text
    assert "Plotly.newPlot" in text or "plotly" in text.lower()


def test_module_runs_as_a_program(installed: Path, tmp_path: Path) -> None:
    assert call(installed / "python", "-m", "perfkit", "--version", cwd=tmp_path).stdout == "perfkit 0.1.0\n"
