"""The manifest of a run: what was to be run, where and with what, and a hash that says whether two runs are the same.

Everything here comes from package metadata and the file system: torch, triton and CUDA are not imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from perfkit.files import read_json, write_text
from perfkit.results.schema import SCHEMA_VERSION, clean, dumps
from perfkit.results.version import check_schema

NAME = "manifest.json"
PACKAGES = ("perfkit", "torch", "triton", "numpy", "scipy", "pandas", "pyarrow", "plotly", "nvidia-ml-py", "nvtx")


def write_manifest(run_dir: str | Path, manifest: Mapping[str, Any]) -> Path:
    """Write ``manifest.json`` atomically, with the schema version; returns its path.

    Raises:
        WriteError: the folder cannot be written.
        TypeError: a value that is not JSON data.
    """
    import json

    path = Path(run_dir) / NAME
    data = clean({**manifest, "schema": SCHEMA_VERSION})
    write_text(path, json.dumps(data, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")
    return path


def read_manifest(run_dir: str | Path) -> dict[str, Any]:
    """Return the manifest of a run.

    Raises:
        InputError: not a run folder, not JSON, or of another schema version.
    """
    path = Path(run_dir) / NAME
    data = read_json(path, missing="not a run of perfkit: no manifest.json")
    check_schema(data.get("schema"), file=path, field="schema")
    return data


def manifest_hash(
    *,
    model: Any,
    gpu: str | None,
    gpu_uuid: str | None,
    seed: int,
    timing: Mapping[str, Any],
    case_ids: Sequence[str],
    kernels: str | None = None,
    torch: str | None = None,
    triton: str | None = None,
) -> str:
    """Return the sha256 of everything that decides what a run's numbers mean.

    Args:
        model: the resolved model, a dataclass or a mapping.
        gpu: GPU key.
        gpu_uuid: None for a prediction.
        seed: of inputs and resampling.
        timing: the stopping rule and the other timing settings.
        case_ids: in the order in which they run.
        kernels: digest of the kernels' source; by default :func:`kernels_digest`.
        torch: version; by default the installed one.
        triton: version; by default the installed one.
    """
    if dataclasses.is_dataclass(model) and not isinstance(model, type):
        model = dataclasses.asdict(model)
    identity = {
        "schema": SCHEMA_VERSION,
        "model": model,
        "gpu": gpu,
        "gpu_uuid": gpu_uuid,
        "seed": seed,
        "timing": dict(timing),
        "case_ids": list(case_ids),
        "kernels": kernels or kernels_digest(),
        "torch": torch or version("torch"),
        "triton": triton or version("triton"),
    }
    return hashlib.sha256(dumps(identity).encode()).hexdigest()


def kernels_digest(extra: Iterable[str | Path] = (), *, root: Path | None = None) -> str:
    """Return the sha256 of the source of ``perfkit/kernels``, and of further files such as plug-ins.

    Paths are part of it relative to the folder, so it does not depend on where perfkit is installed.
    """
    folder = root or Path(__file__).parents[1] / "kernels"
    digest = hashlib.sha256()
    files = [(path.relative_to(folder).as_posix(), path) for path in folder.rglob("*.py")]
    files += [(Path(path).name, Path(path)) for path in extra]
    for name, path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def version(package: str) -> str | None:
    """Return the installed version of a package, None if it is absent; the package is not imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def utc_now() -> str:
    """Return the time as the journal and the manifest write it: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def environment(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a manifest records about the command and the machine: no host name, no user name.

    Keys: argv, git ({revision, modified} or None), packages, python, platform, host_kind, cpu_count, started, ended.
    """
    return {
        "argv": list(sys.argv if argv is None else argv),
        "git": git_revision(),
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host_kind": host_kind(),
        "cpu_count": os.cpu_count(),
        "started": utc_now(),
        "ended": None,
    }


def git_revision(folder: Path | None = None) -> dict[str, Any] | None:
    """Return the revision of perfkit's own checkout and whether files were modified; None for an installed package."""
    root = folder or Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        modified = git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
        return {"revision": git("rev-parse", "HEAD"), "modified": bool(modified)}
    except (OSError, subprocess.SubprocessError):
        return None


def host_kind(root: Path = Path("/")) -> str:
    """Return bare, vm, container or container in vm: what may share the machine without being seen."""
    container = any((root / name).exists() for name in (".dockerenv", "run/.containerenv")) or any(
        name in os.environ for name in ("KUBERNETES_SERVICE_HOST", "container")
    )
    try:
        cpuinfo = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return "container" if container else "unknown"
    virtual = any(line.startswith("flags") and " hypervisor" in line for line in cpuinfo.splitlines())
    if container:
        return "container in vm" if virtual else "container"
    return "vm" if virtual else "bare"
