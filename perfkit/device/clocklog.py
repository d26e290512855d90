"""Clocks, power and throttling over a whole run: the driver is asked once a second, one line of CSV each time.

Samples are judged one by one where they are taken (:mod:`perfkit.device.monitor`); this says how the GPU fared while
the run lasted, and who else came to use it.
"""

from __future__ import annotations

import contextlib
import csv
import threading
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import IO, Any

from perfkit.device.facts import MEMORY_CLOCK, REASON_FUNCTIONS, SM_CLOCK
from perfkit.device.nvml import first, gpu_by_uuid, optional, read, session
from perfkit.device.reasons import THROTTLING, decode, throttling
from perfkit.errors import DeviceError

CLOCK_LOG = "clock.csv"
INTERVAL_S = 1.0
#: ``reasons``: why clocks are held down, in words, "none", or empty where the driver does not say; ``others``: how many
#: processes use the GPU that are not this run's.
COLUMNS = ("time", "sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "reasons", "others")
_BETWEEN = "; "


class ClockLog:
    """A thread that appends to a CSV file while the block runs; without a driver, or for another GPU, it does nothing.

    Args:
        uuid: of the physical GPU.
        path: of the file; what a run wrote before it was interrupted stays.
        own: returns the process ids of the run's workers.
        say: told once of each process that comes to use the GPU, and why a log ends early.
        interval_s: between readings; one is taken first, and one last.
        nvml: another module, for tests.
    """

    def __init__(
        self, uuid: str, path: Path, own: Callable[[], Collection[int]] = tuple, say: Callable[[str], None] = print,
        interval_s: float = INTERVAL_S, nvml: Any = None,
    ) -> None:  # fmt: skip
        self._uuid, self._path, self._own, self._say = uuid, path, own, say
        self._interval_s, self._module = interval_s, nvml
        self._stack = contextlib.ExitStack()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock log", daemon=True)
        self._file: IO[str] | None = None
        self._nvml: Any = None
        self._gpu: Any = None
        self._before: set[int] = set()
        self._told: set[int] = set()

    def __enter__(self) -> ClockLog:
        try:
            self._nvml = self._stack.enter_context(session(self._module))
        except DeviceError:
            return self
        self._gpu = gpu_by_uuid(self._nvml, self._uuid)
        if self._gpu is None:
            return self
        self._before = set(self._pids())  # none of the run's own is there yet
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._stack.enter_context(self._path.open("a", encoding="utf-8", newline=""))
            self._begin(self._file)
        except OSError as error:
            self._end(error)
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._take()
        with contextlib.suppress(OSError):
            self._stack.close()

    def _begin(self, file: IO[str]) -> None:
        """Write the header, or end a line that a killed run left unfinished."""
        if not file.tell():
            self._write(COLUMNS)
        elif not self._path.read_bytes().endswith(b"\n"):
            file.write("\n")

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._take()

    def _take(self) -> None:
        if self._file is None:
            return
        nvml, gpu = self._nvml, self._gpu
        milliwatts, mask = read(nvml, "nvmlDeviceGetPowerUsage", gpu), first(nvml, REASON_FUNCTIONS, gpu)
        self._write([
            datetime.now(UTC).isoformat(timespec="milliseconds"), read(nvml, "nvmlDeviceGetClockInfo", gpu, SM_CLOCK),
            read(nvml, "nvmlDeviceGetClockInfo", gpu, MEMORY_CLOCK), optional(milliwatts, lambda value: value / 1000),
            read(nvml, "nvmlDeviceGetTemperature", gpu, 0),
            optional(mask, lambda value: _BETWEEN.join(decode(value)) or "none"), len(self._others()),
        ])  # fmt: skip

    def _write(self, values: Collection[Any]) -> None:
        assert self._file is not None
        try:
            csv.writer(self._file, lineterminator="\n").writerow(values)
            self._file.flush()
        except (OSError, ValueError) as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._file = None
        self._say(f"clocks are not logged any more: {self._path}: {getattr(error, 'strerror', None) or error}")

    def _pids(self) -> dict[int, Any]:
        """Return who computes on the GPU, with their memory in bytes or None."""
        found = read(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._gpu, default=())
        return {int(item.pid): item.usedGpuMemory for item in found}

    def _others(self) -> list[int]:
        """Return the processes that are not this run's; of those that came since it began it says so, once."""
        found, own = self._pids(), set(self._own())
        came = [pid for pid in found if pid not in self._before | own]
        if own and not own & set(found):
            came = came[1:]  # in a container the driver may know our worker by another number
        for pid in set(came) - self._told:
            memory = optional(found[pid], lambda size: f" with {size / 1e9:.0f} GB")
            self._say(f"another process (pid {pid}{memory or ''}) has come to use this GPU: times may suffer")
        self._told |= set(came)
        return [pid for pid in found if pid in self._before or pid in came]


def clock_summary(path: Path) -> dict[str, Any] | None:
    """Return what a log says, None where there is none or it holds no reading.

    Keys: ``readings``, and how many of them were ``busy`` and ``throttled``; ``reasons``, the latter by reason;
    ``others``, processes at most; ``sm_clock_mhz``, ``memory_clock_mhz``, ``power_w`` and ``temperature_c``, each min,
    median and max of the readings at which the GPU was busy, since an idle one clocks down, or None.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            readings = [row for row in csv.DictReader(file) if row.get("others")]  # a last line may be unfinished
    except OSError:
        return None
    if not readings:
        return None
    words = [row["reasons"].split(_BETWEEN) for row in readings]
    busy = [row for row, found in zip(readings, words, strict=True) if "idle" not in found]
    bad = set(throttling(THROTTLING))
    return {
        "readings": len(readings), "busy": len(busy),
        **{name: _spread(busy, name) for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")},
        "throttled": sum(not bad.isdisjoint(found) for found in words),
        "reasons": dict(Counter(one for found in words for one in found if one in bad).most_common()),
        "others": max(int(row["others"]) for row in readings),
    }  # fmt: skip


def _spread(readings: list[dict[str, str]], name: str) -> dict[str, float] | None:
    values = [float(row[name]) for row in readings if row[name]]
    return {"min": min(values), "median": median(values), "max": max(values)} if values else None
