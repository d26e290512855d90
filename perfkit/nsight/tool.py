"""Nsight Compute on this machine: its command line, its version, its Python module, and whether counters are open."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perfkit.errors import DeviceError, InputError

DRIVER_PARAMS = Path("/proc/driver/nvidia/params")
INSTALL = "install NVIDIA Nsight Compute (the CUDA toolkit has it too), or name its ncu with --ncu"
OPEN_COUNTERS = ("run as root (in a container with --cap-add=SYS_ADMIN), or set the driver's module option "
                 "NVreg_RestrictProfilingToAdminUsers=0 and reload it")  # fmt: skip
#: Where installers put it, beside PATH.
_PLACES = ("usr/local/cuda/bin/ncu", "usr/local/cuda-*/bin/ncu", "usr/local/NVIDIA-Nsight-Compute*/ncu",
           "opt/nvidia/nsight-compute/*/ncu")  # fmt: skip
_VERSION = re.compile(r"\bVersion\s+(\d+(?:\.\d+)+)")
#: Seconds that ``ncu --version`` may take.
_VERSION_S = 60


@dataclass(frozen=True, slots=True)
class Tool:
    """Nsight Compute as it is installed.

    Attributes:
        path: of ``ncu``.
        version: as it says, ``2025.3.1.0``; None if it says none.
        python: the folder that holds its module ``ncu_report``; None if there is none, and reports are read as CSV.
    """

    path: str
    version: str | None = None
    python: Path | None = None


def find_ncu(root: Path = Path("/")) -> str | None:
    """Return the path of Nsight Compute's command line, None where there is none: from PATH, else the newest below."""
    if path := shutil.which("ncu"):
        return path
    found = [path for place in _PLACES for path in sorted(root.glob(place), key=_numbers)]
    return next((str(path) for path in reversed(found) if os.access(path, os.X_OK)), None)


def open_tool(path: str | None = None) -> Tool:
    """Return the tool at ``path``, by default the one that :func:`find_ncu` finds.

    Raises:
        InputError: there is nothing to run at the path given.
        DeviceError: Nsight Compute is not installed, or does not start.
    """
    if path is not None and shutil.which(path) is None:
        raise InputError("is not a program", field="--ncu", value=path)
    found = path or find_ncu()
    if found is None:
        raise DeviceError(f"Nsight Compute (ncu) is not on PATH nor in its usual places; {INSTALL}")
    version = ncu_version(found)
    return Tool(found, version, python_folder(found, version))


def ncu_version(path: str) -> str | None:
    """Return what ``ncu --version`` says; None if it says no version.

    Raises:
        DeviceError: it does not start, fails, or takes too long.
    """
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace",
                              timeout=_VERSION_S, stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no answer within {_VERSION_S} s"
        raise DeviceError(f"{path} --version: {reason}; {INSTALL}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise DeviceError(f"{path} --version: {last}; {INSTALL}")
    match = _VERSION.search(done.stdout)
    return match[1] if match else None


def python_folder(path: str, version: str | None = None, root: Path = Path("/")) -> Path | None:
    """Return the folder of the module ``ncu_report`` that belongs to an ``ncu``, None if there is none.

    It is ``extras/python`` under the folder of Nsight Compute. What is on PATH may be a link into that folder, the
    program deep inside it, or a script of the CUDA toolkit beside it; of several versions the one that runs counts.
    """
    real = Path(shutil.which(path) or path).resolve()
    for folder in list(real.parents)[:4]:
        if (folder / "extras/python/ncu_report.py").is_file():
            return folder / "extras/python"
    beside = [*real.parent.parent.glob("nsight-compute-*"), *root.glob("opt/nvidia/nsight-compute/*")]
    found = [folder for folder in sorted(beside, key=_numbers) if (folder / "extras/python/ncu_report.py").is_file()]
    if version is not None:
        short = ".".join(version.split(".")[:3])
        found = [folder for folder in found if folder.name.endswith(short)]
    return found[-1] / "extras/python" if found else None


def _numbers(path: Path) -> list[int]:
    """Order paths by the numbers in them: 2024.10 comes after 2024.2."""
    return [int(number) for number in re.findall(r"\d+", str(path))]


def counters_restricted(params: Path = DRIVER_PARAMS) -> bool | None:
    """Say whether the driver lets only administrators read counters; None where there is no driver to ask."""
    try:
        text = params.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "RmProfilingAdminOnly":
            return value.strip() != "0"
    return None
