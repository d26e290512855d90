"""The GPU of this process: what a group needs of it. Tests put a slow stand-in in its place."""

from __future__ import annotations

import gc
from typing import Any

import torch

from perfkit.device import Monitor, visible_gpu
from perfkit.errors import DeviceError
from perfkit.measure import Clock, CudaClock, gpu_properties


def info() -> dict[str, Any]:
    """Return the device's facts for the ready event.

    Raises:
        DeviceError: torch sees no GPU.
    """
    properties = gpu_properties()
    return {
        "gpu": properties.name,
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
    }


class Cuda:
    """The GPU with its clock, its memory and its monitor."""

    torch_device = "cuda"

    def __init__(self) -> None:
        properties = gpu_properties()
        self.name: str = properties.name
        self.l2_bytes: int = properties.L2_cache_size
        self.clock: Clock = CudaClock()

    def release(self) -> None:
        """Give memory of what is gone back to the device."""
        gc.collect()
        torch.cuda.empty_cache()

    def monitor(self) -> Any:
        """Return a context manager that watches clocks and throttling; it knows nothing where NVML is missing."""
        try:
            return Monitor(visible_gpu().uuid)
        except DeviceError:
            return Monitor("")


def out_of_memory(error: Exception) -> bool:
    """Say whether an exception tells of memory that could not be had, by torch or by CUDA itself."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def others_memory() -> str:
    """Return how much memory other processes hold, for the reason of an out-of-memory case."""
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    return f" (other processes {others / 1e9:.0f} GB)" if others > 2e9 else ""
