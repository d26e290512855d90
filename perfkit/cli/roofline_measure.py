"""The parent's side of measuring roofs: a worker process for each run, what they found put together and saved."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import device, results
from perfkit.child import Child, Ended, worker_argv, worker_env
from perfkit.cli.common import say
from perfkit.errors import DeviceError, InputError
from perfkit.profiles import roofs_folder, roofs_name
from perfkit.progress import Progress, make_progress
from perfkit.roofs import Comparison, check_document, combine, compare, document
from perfkit.runner import signals_as_interrupts

if TYPE_CHECKING:
    from perfkit.device import DeviceFacts
    from perfkit.profiles import Gpu

START_S = 180.0
#: A worker that has measured nothing for so long hangs.
SILENT_S = 120.0
#: What the driver says of a GPU that goes into the file.
_FACTS = ("name", "memory_total_mib", "driver", "sm_clock_max_mhz", "memory_clock_max_mhz", "power_limit_w")


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out: roofs with the fields of a file, where they were saved or why not, the runs that differ most."""

    data: Mapping[str, Any]
    saved: Path | None
    unsaved: str | None
    agreement: Comparison | None


def measure(
    gpu: Gpu, facts: DeviceFacts, *, out: Path | None, quick: bool, repeat: int, tolerance: float
) -> Measured:  # fmt: skip
    """Measure the GPU, as often as asked, and save what came out.

    Args:
        gpu: its profile.
        facts: what the driver says of it.
        out: a file or a folder; None for the user's own roofs, which have to agree and to be complete.
        quick: few sizes.
        repeat: runs.
        tolerance: by how much roofs of two runs may differ, a share.

    Raises:
        InputError: the place for the roofs cannot be written; nothing was measured.
        DeviceError: another run uses the GPU, or the measurement failed.
    """
    path = target(out, gpu.key)
    if out is not None or not quick:
        check_writable(path, out)
    for process in facts.foreign():
        say(f"another process (pid {process.pid}) uses this GPU: roofs may come out low")
    progress = make_progress()
    runs = []
    with signals_as_interrupts(), device.gpu_lock(facts.uuid):
        try:
            for index in range(repeat):
                name = f"run {index + 1} of {repeat}: " if repeat > 1 else ""
                progress.note(f"{name}measuring {facts.name}")
                runs.append(measure_once(gpu, facts, progress, name, quick=quick, runs=repeat if index == 0 else 0))
        finally:
            progress.close()
    data = combine(runs)
    text = document(data)
    data = check_document(text, gpu.key)
    agreement = _widest(runs)
    unsaved = None
    if out is None and quick:
        unsaved = "not saved: --quick has few sizes; --out says where to"
    elif out is None and agreement is not None and agreement.spread > tolerance:
        unsaved = "not saved: the runs differ; see that nothing else uses the GPU, and measure again"
    if unsaved is None:
        results.write_text(path, text)
    return Measured(data, path if unsaved is None else None, unsaved, agreement)


def _widest(runs: list[dict[str, Any]]) -> Comparison | None:
    """Return the comparison of the two runs that differ most."""
    pairs = [compare(a, b) for index, a in enumerate(runs) for b in runs[index + 1 :]]
    return max(pairs, key=lambda pair: pair.spread, default=None)


def target(out: Path | None, gpu_key: str) -> Path:
    """Return the file for the roofs of a GPU."""
    if out is None:
        return roofs_folder() / roofs_name(gpu_key)
    return out / roofs_name(gpu_key) if out.is_dir() else out


def check_writable(path: Path, out: Path | None) -> None:
    """Find out now, not after the measurement, whether a file can be written; the user's own folder is created.

    Raises:
        InputError: it cannot.
    """
    try:
        if out is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        hint = "" if out is not None else "; --out says where else"
        raise InputError(f"cannot write: {error.strerror or error}{hint}", field="--out", value=str(path)) from None


def measure_once(
    gpu: Gpu, facts: DeviceFacts, progress: Progress, name: str, *, quick: bool, runs: int
) -> dict[str, Any]:
    """Return what a worker process measures; it is gone afterwards, however it ends.

    Args:
        gpu: the profile.
        facts: of the GPU.
        progress: is told of every figure.
        name: of the run, before the name of each figure.
        quick: few sizes.
        runs: how many there are, in the first one: ``progress`` learns how many figures they have; 0 in others.

    Raises:
        DeviceError: the worker says why it cannot, dies, or hangs.
    """
    child = Child(worker_argv("roofs"), worker_env("cuda", facts.visible))
    settings = {"gpu": gpu.key, "quick": quick, "facts": {fact: getattr(facts, fact) for fact in _FACTS}}
    try:
        child.wait_ready(START_S)
        child.send({"op": "group", "group_id": "roofs", "cases": [], "settings": settings})
        last = time.monotonic()
        while True:
            event = child.next_event(0.25)
            if event is None:
                if time.monotonic() - last > SILENT_S:
                    raise DeviceError(f"nothing was measured for {SILENT_S:g} s: the GPU hangs; see nvidia-smi")
                continue
            last = time.monotonic()
            kind = event.get("event")
            if kind == "figure":
                if runs:
                    progress.begin(int(event["total"]) * runs)
                    runs = 0
                progress.case_done(f"{name}{event['name']}", "ok", {"text": event["text"]}, None)
                progress.phase(f"{name}{event['name']}", event["text"], 0, 0)  # a bar shows the last figure
            elif kind == "roofs":
                found: dict[str, Any] = event["found"]
                return found
            elif kind in ("failed", "error", "done"):
                raise DeviceError(str(event.get("reason") or "the worker measured nothing, and does not say why"))
    except Ended:
        raise DeviceError(f"the worker ended: {child.death()}") from None
    finally:
        child.kill()
