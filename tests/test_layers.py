"""Each module imports only from what stands above it, nested or not, absolute or relative; and torch stays out."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: perfkit's layers, top first. A module or package may import from those before it, never from those after it.
LAYERS = (
    "errors", "files", "cache", "shape", "tree", "profiles", "roofline", "method", "kernels", "registry", "presets",
    "cases", "derive", "refit", "stats", "device", "ranges", "measure", "spec", "samples", "session", "touched",
    "tolerance", "checker", "verify_checker", "check", "ptxas", "compiled", "specialize", "compile", "tune", "results",
    "trace", "cuda", "pacing", "priming", "tuning", "confirm", "steptimes", "beside", "bench", "roofs", "fake",
    "nsight", "worker", "child", "progress", "runner", "checking", "sweep", "predict", "verify_table", "summary",
    "lastlines", "profiling", "compare", "paper", "plan", "precision", "probe", "doctor", "reports", "cli", "__main__",
)  # fmt: skip


def module_name(package: Path, file: Path) -> str:
    """Return the dotted name of a file below ``package``'s parent."""
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything a file imports, wherever in it; relative names are resolved."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from perfkit import cases` names a module of the package, `from perfkit.cases import x` does not.
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(package: Path) -> list[str]:
    """Return one line for each import that goes the wrong way, and for each module that has no layer."""
    found = []
    for file in sorted(package.rglob("*.py")):
        name = module_name(package, file)
        parts = name.split(".")
        if len(parts) == 1:
            continue  # perfkit/__init__.py: everything may import it
        where = file.relative_to(package.parent)
        if parts[1] not in LAYERS:
            found.append(f"{where}: {parts[1]} has no layer; give it one in LAYERS")
            continue
        for line, target in imported(file, name):
            other = target.split(".")
            if other[0] != package.name or len(other) < 2 or other[1] not in LAYERS:
                continue
            if LAYERS.index(other[1]) > LAYERS.index(parts[1]):
                found.append(f"{where}:{line}: {parts[1]} imports {target}, which stands below it")
    return found


def top_level_imports(file: Path) -> set[str]:
    """Return the packages a file imports when it is itself imported: not those inside functions."""
    found: set[str] = set()
    stack: list[ast.AST] = [ast.parse(file.read_text(), filename=str(file))]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            stack.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
        stack.extend(ast.iter_child_nodes(node))
    return found


def test_layers(root: Path) -> None:
    assert violations(root / "perfkit") == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("kernels/gdn/deep/x.py", "def f():\n    from ....runner import run\n", "kernels imports perfkit.runner.run"),
        ("kernels/mamba2/deep/nested.py", "from .... import cli\n", "kernels imports perfkit.cli"),
        ("profiles/importers/hf.py", "import perfkit.cases as cases\n", "profiles imports perfkit.cases"),
        ("roofline/window.py", "from perfkit import method\n", "roofline imports perfkit.method"),
        ("reports/figures/__init__.py", "from ...cli.common import cell\n", "reports imports perfkit.cli.common.cell"),
        ("shape.py", "x = importlib.import_module('perfkit.kernels.ring')\n", "shape imports perfkit.kernels.ring"),
        ("mystery.py", "", "mystery has no layer"),
    ],
)  # fmt: skip
def test_planted_violation_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    package = tmp_path / "perfkit"
    path = package / file
    path.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    path.write_text(text)
    found = violations(package)
    assert len(found) == 1
    assert complaint in found[0]
    assert file in found[0]


def test_allowed_imports_are_not_found(tmp_path: Path) -> None:
    package = tmp_path / "perfkit"
    (package / "kernels" / "mamba2").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels" / "mamba2" / "x.py").write_text(
        "from perfkit import __version__\nfrom ...method import Method\nfrom ..lang import tl\nimport numpy, errors\n"
    )
    assert violations(package) == []


@pytest.mark.parametrize("folder", ["kernels", "roofline", "profiles"])
def test_no_torch_at_module_level(root: Path, folder: str) -> None:
    files = sorted((root / "perfkit" / folder).rglob("*.py"))
    assert files
    assert [str(file) for file in files if "torch" in top_level_imports(file)] == []


def test_top_level_imports_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "try:\n    import torch.nn\nexcept ImportError:\n    pass\n"
        "def f():\n    import scipy\nclass A:\n    import yaml\n"
    )
    assert top_level_imports(file) == {"torch", "yaml"}


def modules_after(args: list[str], cwd: Path) -> tuple[int, set[str]]:
    """Run a command in a child and return its exit code and the top-level packages it has imported."""
    code = (
        "import json, sys, perfkit.cli.app as app\n"
        "code = app.run(json.loads(sys.argv[1]))\n"
        "print(json.dumps([code, sorted({name.split('.')[0] for name in sys.modules})]), file=sys.stderr)\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-c", code, json.dumps(args)], capture_output=True, text=True, cwd=cwd, env=env, timeout=60
    )
    status, names = json.loads(child.stderr.splitlines()[-1])
    return status, set(names)


HEAVY = {"torch", "triton", "pandas", "scipy", "plotly", "pyarrow", "numpy", "jinja2"}


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    status, names = modules_after(["--help"], tmp_path)
    assert status == 0
    assert not HEAVY & names


@pytest.mark.parametrize(
    "args",
    [
        ["list", "models"],
        ["list", "gpus"],
        ["list", "methods"],
        ["list", "measured"],
        ["list", "runs"],
        ["traffic", "--model", "nemotron-super", "--window", "16", "--json"],
        ["sweep", "--help"],
        ["check", "--help"],
        ["profile", "--model", "nemotron-super", "--draft", "1", "--dry-run"],
        ["reproduce", "--help"],
        ["reproduce"],
        ["reproduce", "fig4"],
        ["reproduce", "capacity", "--json"],
        ["report", "--help"],
        ["roofline", "--gpu", "h200"],
        ["doctor", "--help"],
    ],
    ids=" ".join,
)
def test_command_runs_without_torch(args: list[str], tmp_path: Path) -> None:
    status, names = modules_after(args, tmp_path)
    assert status == 0
    assert "torch" not in names


def test_report_runs_without_torch(tmp_path: Path) -> None:
    from reportdata import frame, write_run

    run = write_run(tmp_path / "run", frame("measured"))
    status, names = modules_after(["report", str(run), "-o", str(tmp_path / "page.html")], tmp_path)
    assert status == 0
    assert not {"torch", "triton"} & names
    assert (tmp_path / "page.html").stat().st_size > 100_000
