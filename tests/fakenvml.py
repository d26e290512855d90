"""A stand-in for the pynvml module: GPUs as a test describes them."""

from __future__ import annotations

import types
from dataclasses import dataclass, field

MIB = 1024 * 1024


class NVMLError(Exception):
    pass


@dataclass
class Instance:
    uuid: str
    name: str = "NVIDIA H200 MIG 1g.18gb"
    memory_mib: int = 16384


@dataclass
class Gpu:
    uuid: str
    name: str = "NVIDIA H200"
    mig: bool | None = False
    instances: list[Instance] = field(default_factory=list)
    reasons: int = 0
    clock: int = 1980
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    memory_mib: int = 143771
    unsupported: tuple[str, ...] = ()


class FakeNvml:
    """The functions of pynvml that perfkit calls; ``old`` lacks the newer names."""

    NVMLError = NVMLError

    def __init__(self, *gpus: Gpu, init_error: str | None = None, old: bool = False) -> None:
        self.gpus, self.init_error, self.started, self.calls = list(gpus), init_error, 0, []
        if not old:
            self.nvmlDeviceGetCurrentClocksEventReasons = self._reasons
        self.nvmlDeviceGetCurrentClocksThrottleReasons = self._reasons

    def _ask(self, handle, name):
        self.calls.append(name)
        assert self.started > 0, "NVML was not started"
        if name in getattr(handle, "unsupported", ()):
            raise NVMLError("Not Supported")
        return handle

    def nvmlInit(self):
        if self.init_error:
            raise NVMLError(self.init_error)
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        return handle.name

    def nvmlDeviceGetMigMode(self, handle):
        if handle.mig is None:
            raise NVMLError("Not Supported")
        return [int(handle.mig), int(handle.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle.instances):
            raise NVMLError("Not Found")
        return handle.instances[index]

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._ask(handle, "nvmlDeviceGetMemoryInfo")
        return types.SimpleNamespace(total=handle.memory_mib * MIB, used=512 * MIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlSystemGetDriverVersion(self):
        return b"580.159.03"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlDeviceGetClockInfo(self, handle, kind):
        self._ask(handle, "nvmlDeviceGetClockInfo")
        return {1: handle.clock, 2: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return {1: 1980, 2: 3201}[kind]

    def _reasons(self, handle):
        return self._ask(handle, "reasons").reasons

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._ask(handle, "nvmlDeviceGetPowerUsage") and 71234

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 31

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [
            types.SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)
            for pid, mib in getattr(handle, "processes", [])
        ]
