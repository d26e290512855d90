"""What works on this machine, what does not, and why: the checks behind ``perfkit doctor``.

Nothing here raises: a check that fails in a way nobody foresaw is itself a broken line. torch is imported only in a
child, so that a slow or crashing install costs a line and not the command.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perfkit.errors import DeviceError, one_line
from perfkit.nsight.tool import DRIVER_PARAMS, OPEN_COUNTERS, counters_restricted, open_tool
from perfkit.results import version

if TYPE_CHECKING:
    from perfkit.device import DeviceFacts
    from perfkit.profiles import Gpu

State = Literal["ok", "missing", "broken"]

#: Distributions without which some command fails; what each is for is in pyproject.toml.
REQUIRED = ("numpy", "scipy", "pandas", "pyarrow", "plotly", "pyyaml", "jinja2", "typer", "rich", "filelock")
PROBE_TIMEOUT_S = 180
MIN_FREE_GB = 2.0
PREDICTS = "without it `perfkit sweep` predicts and checks kernels in the interpreter"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor.

    Attributes:
        name: what was looked at.
        state: ok; missing: something optional is not here; broken: here, and does not work.
        detail: what was found.
        remedy: what to do about it; empty when ok.
        required: perfkit does not work without it.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""
    required: bool = False


def examine(runs: Path) -> Iterator[Finding]:
    """Yield the findings of this machine, cheap ones first. ``runs`` is where run folders will go."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _profiles,
        lambda: _runs_folder(runs),
        _torch_and_interpreter,
        _triton_and_targets,
        _gpu,
        _ncu,
        _nvtx,
        _chromium,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            name = getattr(check, "__name__", "check").strip("_<>").replace("_", " ")
            yield Finding(name, "broken", one_line(error), "please report this as a bug of perfkit")


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        yield Finding("python", "ok", f"{text}; Triton and its kernels need Linux", required=True)
    else:
        yield Finding("python", "ok", text, required=True)


def _packages() -> Iterator[Finding]:
    found = {name: version(name) for name in REQUIRED}
    absent = [name for name, number in found.items() if number is None]
    if absent:
        remedy = f"{sys.executable} -m pip install {' '.join(absent)}"
        yield Finding("packages", "broken", f"not installed: {', '.join(absent)}", remedy, required=True)
    else:
        yield Finding("packages", "ok", ", ".join(f"{k} {v}" for k, v in found.items()), required=True)


def _profiles() -> Iterator[Finding]:
    from perfkit.errors import PerfkitError
    from perfkit.profiles import list_gpus, list_models

    try:
        detail = f"{len(list_models())} models, {len(list_gpus())} GPUs"
    except PerfkitError as error:
        yield Finding("profiles", "broken", str(error), "correct that file", required=True)
    else:
        yield Finding("profiles", "ok", detail, required=True)


def _runs_folder(runs: Path) -> Iterator[Finding]:
    parent = runs.resolve()
    while not parent.exists():
        parent = parent.parent
    free_gb = shutil.disk_usage(parent).free / 1e9
    detail = f"{runs.resolve()}, {free_gb:,.0f} GB free"
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        reason = f"{detail}; cannot write in {parent}: {error.strerror}"
        yield Finding("runs folder", "broken", reason, "run from a folder you may write in, or give sweep --out DIR")
        return
    if free_gb < MIN_FREE_GB:
        yield Finding("runs folder", "missing", detail, f"free some space: less than {MIN_FREE_GB:g} GB is left")
    else:
        yield Finding("runs folder", "ok", detail)


@cache
def _probe(mode: str) -> Mapping[str, Any]:
    """Run :mod:`perfkit.probe` in a child. Its Triton cache is empty, so that compiling really compiles."""
    with tempfile.TemporaryDirectory(prefix="perfkit-doctor-") as folder:
        env = {**os.environ, "TRITON_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        env.pop("TRITON_INTERPRET", None)
        if mode == "interpret":
            env["TRITON_INTERPRET"] = "1"
        # The child finds this very perfkit, also when it runs from a checkout that is not installed.
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent.parent), *_python_path()])
        command = [sys.executable, "-m", "perfkit.probe", mode]
        try:
            child = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no answer within {PROBE_TIMEOUT_S} s"}
    if child.returncode != 0:
        last = child.stderr.strip().splitlines()[-1:] or [""]
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        return {"failed": f"the child ended with {how}: {last[0][:160]}"}
    answers: dict[str, Any] = json.loads(child.stdout)
    return answers


def _python_path() -> list[str]:
    return [item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item]


def _torch_and_interpreter() -> Iterator[Finding]:
    installed = version("torch")
    if installed is None:
        remedy = f"{sys.executable} -m pip install torch"
        yield Finding("torch", "broken", "not installed; tensors of kernels and checks are torch's", remedy, True)
        return
    answers = _probe("interpret")
    if "failed" in answers:
        yield Finding("torch", "broken", f"{installed}; {answers['failed']}", "reinstall torch", required=True)
        return
    torch = answers["torch"]
    if not torch["ok"]:
        yield Finding("torch", "broken", f"{installed}: {torch['detail']}", "reinstall torch", required=True)
        return
    build = f"CUDA {torch['detail']['cuda']}" if torch["detail"]["cuda"] else "CPU build"
    yield Finding("torch", "ok", f"{torch['detail']['version']}, {build}", required=True)
    interpreter = answers["interpreter"]
    state: State = "ok" if interpreter["ok"] else "broken"
    yield Finding("interpreter", state, interpreter["detail"], "" if interpreter["ok"] else "reinstall triton", True)


def triton_wanted() -> str | None:
    """Return the version of Triton that the installed torch names, None where it names none (its CPU builds)."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        text = requirement.split(";")[0].replace(" ", "")
        if text.startswith("triton=="):
            return text.removeprefix("triton==")
    return None


def _triton_and_targets() -> Iterator[Finding]:
    installed, wanted = version("triton"), triton_wanted()
    if installed is None:
        yield Finding("triton", "broken", "not installed", f"{sys.executable} -m pip install triton", required=True)
        return
    if wanted is not None and installed.split("+")[0] != wanted:
        remedy = f"{sys.executable} -m pip install triton=={wanted}"
        yield Finding("triton", "broken", f"{installed}, but this torch wants {wanted}", remedy)
    else:
        yield Finding("triton", "ok", installed, required=True)
    answers = _probe("compile")
    if "failed" in answers:
        yield Finding("compile targets", "broken", answers["failed"], "reinstall triton; it brings its own ptxas")
        return
    good = [target for target, answer in answers["compile"].items() if answer["ok"]]
    bad = [f"{target}: {answer['detail']}" for target, answer in answers["compile"].items() if not answer["ok"]]
    if bad:
        remedy = "reinstall triton; it brings its own ptxas (TRITON_PTXAS_PATH names another)"
        yield Finding("compile targets", "broken", "; ".join([*good, *bad])[:300], remedy)
    else:
        yield Finding("compile targets", "ok", ", ".join(good))


def _gpu() -> Iterator[Finding]:
    from perfkit.device import visible_gpu
    from perfkit.profiles import find_gpu

    try:
        facts = visible_gpu()
    except DeviceError as error:
        yield Finding("gpu", "missing", str(error), PREDICTS)
        return
    memory = f", {facts.memory_total_mib:,} MiB" if facts.memory_total_mib is not None else ""
    detail = f"{facts.name}{memory}, driver {facts.driver}, CUDA {facts.cuda}, {facts.uuid}"
    if facts.is_mig:
        remedy = "it is timed, but its share of bandwidth is in no profile, so it gets no roof and no prediction"
        yield Finding("gpu", "missing", f"{detail}; a MIG instance", remedy)
    elif (known := find_gpu(facts.name, facts.memory_total_mib)) is None:
        remedy = "it is timed; for roofs and predictions add a YAML file in perfkit/profiles/gpus"
        yield Finding("gpu", "missing", f"{detail}; perfkit has no profile of it", remedy)
    else:
        yield Finding("gpu", "ok", f"{known.key}: {detail}")
        yield _roofs(known)
    yield from _gpu_state(facts)
    yield from _torch_sees_it()


def _roofs(gpu: Gpu) -> Finding:
    from perfkit.errors import PerfkitError
    from perfkit.roofline import roofs_for

    try:
        roofs = roofs_for(gpu)
    except PerfkitError as error:
        return Finding("roofs", "broken", str(error), "perfkit roofline writes it anew; or remove that file")
    if roofs.origin == "here":
        return Finding("roofs", "ok", roofs.described)
    return Finding("roofs", "missing", f"this GPU's were not measured; used are: {roofs.described}", "perfkit roofline")


def _gpu_state(facts: DeviceFacts) -> Iterator[Finding]:
    used = "".join(f", {p.memory_mib:,} MiB" if p.memory_mib is not None else "" for p in facts.foreign())
    if facts.foreign():
        detail = f"{len(facts.foreign())} other processes compute on it{used}"
        yield Finding("gpu is free", "missing", detail, "wait for them: timings beside others are not to be trusted")
    else:
        yield Finding("gpu is free", "ok", "nobody else computes on it")


def _torch_sees_it() -> Iterator[Finding]:
    if version("torch") is None:
        return
    torch = _probe("interpret").get("torch", {})
    if not torch.get("ok"):
        return  # said already
    if torch["detail"]["available"]:
        yield Finding("torch with gpu", "ok", f"{torch['detail']['devices']} visible")
    elif torch["detail"]["cuda"] is None:
        remedy = "install a CUDA build of torch (https://pytorch.org/get-started/locally)"
        yield Finding("torch with gpu", "broken", "this torch is a CPU build", remedy)
    else:
        detail = f"torch for CUDA {torch['detail']['cuda']} finds no GPU"
        yield Finding("torch with gpu", "broken", detail, "the driver may be older than that CUDA: update either")


def _ncu() -> Iterator[Finding]:
    try:
        tool = open_tool()
    except DeviceError as error:
        detail, _, remedy = str(error).partition("; ")
        yield Finding("ncu", "missing", f"{detail}; `perfkit profile` needs it to read DRAM counters", remedy)
    else:
        how = f"ncu_report in {tool.python}" if tool.python is not None else "no ncu_report: reports are read as CSV"
        yield Finding("ncu", "ok", f"{tool.version or 'unknown version'} at {tool.path}, {how}")
    restricted = counters_restricted()
    if restricted is None:
        yield Finding("counters", "missing", f"no NVIDIA driver ({DRIVER_PARAMS} is not there)", "needs a GPU machine")
    elif restricted and os.geteuid() != 0:
        yield Finding("counters", "missing", "the driver lets only administrators read them", OPEN_COUNTERS)
    else:
        yield Finding("counters", "ok", "readable by administrators, as which you run" if restricted else "readable")


def _nvtx() -> Iterator[Finding]:
    if find_spec("nvtx") is None:
        yield Finding("nvtx", "missing", "ranges are not marked", f"{sys.executable} -m pip install nvtx")
    else:
        yield Finding("nvtx", "ok", version("nvtx") or "present")


def _chromium() -> Iterator[Finding]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next((path for path in map(shutil.which, names) if path), None)
    if path is None:
        yield Finding("chromium", "missing", "only tests of report pages use it", "apt-get install chromium")
    else:
        yield Finding("chromium", "ok", path)
