"""What the driver says about the GPU: name, UUID, memory, clocks, temperature, who else uses it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from perfkit.device.nvml import first, optional, read, session, text
from perfkit.device.reasons import decode
from perfkit.device.visible import SelectionError, Visible, instances, resolve
from perfkit.errors import DeviceError

MIB = 1024 * 1024
REASON_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
#: Values of nvmlClockType_t.
SM_CLOCK, MEMORY_CLOCK = 1, 2


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses the GPU; its memory is unknown where the driver does not say."""

    pid: int
    memory_mib: int | None

    def __str__(self) -> str:
        """Say which process it is and what it holds: ``pid 4242 with 62,464 MiB``."""
        return f"pid {self.pid}" + ("" if self.memory_mib is None else f" with {self.memory_mib:,} MiB")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One GPU at one moment. What this GPU, driver or user may not ask is None.

    Attributes:
        index: NVML's number, by PCI bus.
        name: as the driver gives it; of a MIG instance, its own name.
        uuid: of the physical GPU.
        visible: value of ``CUDA_VISIBLE_DEVICES`` that selects exactly this device.
        driver: driver version.
        cuda: highest CUDA version of the driver, such as "13.0".
        compute_capability: such as "9.0".
        memory_total_mib: of the MIG instance, if it is one.
        memory_used_mib: by everyone.
        sm_clock_mhz: now; an idle GPU clocks down, so it says nothing about the clock under load.
        sm_clock_max_mhz: the highest.
        memory_clock_mhz: now.
        memory_clock_max_mhz: the highest.
        clock_reasons: why clocks are held down now, in words.
        power_w: now.
        power_limit_w: enforced.
        temperature_c: of the GPU.
        processes: everyone who computes on it.
        mig_uuid: of the MIG instance, None for a whole GPU.
    """

    index: int
    name: str
    uuid: str
    visible: str
    driver: str | None
    cuda: str | None
    compute_capability: str | None
    memory_total_mib: int | None
    memory_used_mib: int | None
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    memory_clock_mhz: int | None
    memory_clock_max_mhz: int | None
    clock_reasons: tuple[str, ...]
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    processes: tuple[Process, ...]
    mig_uuid: str | None = None

    @property
    def is_mig(self) -> bool:
        """True for a MIG instance: its share of bandwidth is not the GPU's."""
        return self.mig_uuid is not None

    def foreign(self, own: Collection[int] = ()) -> tuple[Process, ...]:
        """Return the processes that are not ours (``own`` and this one).

        Inside a container the driver may give process ids of the host, so ask before the worker starts: then every
        process is somebody else's.
        """
        return tuple(process for process in self.processes if process.pid != os.getpid() and process.pid not in own)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, for the manifest."""
        return asdict(self) | {"clock_reasons": list(self.clock_reasons), "is_mig": self.is_mig,
                               "processes": [asdict(item) for item in self.processes]}  # fmt: skip


def visible_gpu(environ: Mapping[str, str] | None = None, nvml: Any = None) -> DeviceFacts:
    """Return the facts of the first device that CUDA would use. CUDA itself is not started.

    Raises:
        DeviceError: no driver, no nvidia-ml-py, no GPU, or ``CUDA_VISIBLE_DEVICES`` does not name one; says what to do.
    """
    environ = os.environ if environ is None else environ
    with session(nvml) as api:
        visible = resolve(api, environ)
        if visible is None:
            hidden = api.nvmlDeviceGetCount() > 0
            raise DeviceError("CUDA_VISIBLE_DEVICES hides every GPU; unset it" if hidden else "there is no NVIDIA GPU")
        return describe(api, visible)


def usable_gpu(environ: Mapping[str, str] | None = None, nvml: Any = None) -> DeviceFacts | None:
    """Return the facts of the first device that CUDA would use, None if there is none here.

    Raises:
        SelectionError: there are GPUs, but ``CUDA_VISIBLE_DEVICES`` names none of them or could mean several.
    """
    environ = os.environ if environ is None else environ
    try:
        with session(nvml) as api:
            visible = resolve(api, environ)
            return describe(api, visible) if visible is not None else None
    except DeviceError as error:
        if isinstance(error, SelectionError):
            raise
        return None


def available(nvml: Any = None) -> bool:
    """Say whether a driver answers and there is at least one GPU, visible to CUDA or not."""
    try:
        with session(nvml) as api:
            return bool(api.nvmlDeviceGetCount())
    except DeviceError:
        return False


def describe(nvml: Any, visible: Visible) -> DeviceFacts:
    """Return the facts of a device of a started NVML."""
    gpu = nvml.nvmlDeviceGetHandleByIndex(visible.index)
    part = dict(instances(nvml, gpu)).get(visible.mig_uuid) if visible.mig_uuid else gpu
    memory = read(nvml, "nvmlDeviceGetMemoryInfo", part)
    capability = read(nvml, "nvmlDeviceGetCudaComputeCapability", gpu)
    name = read(nvml, "nvmlDeviceGetName", part) or nvml.nvmlDeviceGetName(gpu)
    cuda = read(nvml, "nvmlSystemGetCudaDriverVersion")
    return DeviceFacts(
        index=visible.index,
        name=text(name),
        uuid=visible.uuid,
        visible=visible.token,
        driver=optional(read(nvml, "nvmlSystemGetDriverVersion"), text),
        cuda=optional(cuda, lambda number: f"{number // 1000}.{number % 1000 // 10}"),
        compute_capability=optional(capability, lambda pair: f"{pair[0]}.{pair[1]}"),
        memory_total_mib=optional(memory, lambda info: int(info.total) // MIB),
        memory_used_mib=optional(memory, lambda info: int(info.used) // MIB),
        sm_clock_mhz=read(nvml, "nvmlDeviceGetClockInfo", gpu, SM_CLOCK),
        sm_clock_max_mhz=read(nvml, "nvmlDeviceGetMaxClockInfo", gpu, SM_CLOCK),
        memory_clock_mhz=read(nvml, "nvmlDeviceGetClockInfo", gpu, MEMORY_CLOCK),
        memory_clock_max_mhz=read(nvml, "nvmlDeviceGetMaxClockInfo", gpu, MEMORY_CLOCK),
        clock_reasons=decode(first(nvml, REASON_FUNCTIONS, gpu) or 0),
        power_w=optional(read(nvml, "nvmlDeviceGetPowerUsage", gpu), lambda milliwatts: milliwatts / 1000),
        power_limit_w=optional(
            read(nvml, "nvmlDeviceGetEnforcedPowerLimit", gpu), lambda milliwatts: milliwatts / 1000
        ),
        temperature_c=read(nvml, "nvmlDeviceGetTemperature", gpu, 0),
        processes=tuple(
            Process(int(item.pid), optional(item.usedGpuMemory, lambda size: int(size) // MIB))
            for item in read(nvml, "nvmlDeviceGetComputeRunningProcesses", part, default=())
        ),
        mig_uuid=visible.mig_uuid,
    )
