"""What every test shares: the interpreter, one thread per worker, and skips that say why."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

#: Set by scripts/gpu.sh: this process runs the tests marked ``gpu`` and no others, and may use the GPU itself.
GPU_TESTS = os.environ.get("PERFKIT_GPU_TESTS") == "1"

# Before triton, numpy or torch is imported, here or by a test module: both read their environment only once. Tests
# marked ``gpu`` start processes of their own with TRITON_INTERPRET removed, so they run under `pytest -m gpu` too.
if "triton" in sys.modules:
    raise RuntimeError("triton was imported before tests/conftest.py could set TRITON_INTERPRET")
if GPU_TESTS:
    os.environ.pop("TRITON_INTERPRET", None)
else:
    os.environ["TRITON_INTERPRET"] = "1"
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
# A user's settings must not change what tests see.
for _name in ("PERFKIT_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "PERFKIT_CACHE"):
    os.environ.pop(_name, None)
os.environ["PERFKIT_ROOFS"] = os.devnull  # nor roofs that the user measured: no folder, so none

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
try:
    from hypothesis import settings
except ModuleNotFoundError:  # as on a machine that only runs the tests marked gpu
    pass
else:
    # The machine may be busy: what takes long is seen by the suite's own limit.
    settings.register_profile("perfkit", deadline=None)
    settings.load_profile("perfkit")


def _has_gpu() -> bool:
    """True if NVML finds a GPU. torch is not asked: its CUDA context would live in this process."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount()) > 0
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return False


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome executable, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Where only GPU tests run, leave files without one alone: they interpret, and may import what is not there."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if GPU_TESTS and is_test and "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests whose machine is not this one, each with its reason."""
    if GPU_TESTS:
        if not _has_gpu():
            raise pytest.UsageError("PERFKIT_GPU_TESTS is set, but there is no CUDA GPU on this machine")
        others = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.get_closest_marker("gpu")]
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests and not _has_gpu():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU on this machine"))
    browser_tests = [item for item in items if item.get_closest_marker("browser")]
    if browser_tests and find_chromium() is None:
        for item in browser_tests:
            item.add_marker(pytest.mark.skip(reason="no Chromium on this machine"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium; tests that use it carry the marker ``browser``."""
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine")
    return path


@pytest.fixture(autouse=True)
def _no_remembered_checks() -> None:
    """A process that sweeps remembers which kernels were right; a test may have changed them since."""
    import sys

    check = sys.modules.get("perfkit.check")
    if check is not None:
        check._outcomes.cache_clear()
