"""The GPU as its driver sees it (NVML): which one CUDA uses, its facts, its clocks while timing, and a lock.

Nothing here starts CUDA, and nothing imports torch: the parent process of a sweep uses this package.
"""

from perfkit.device.clocklog import CLOCK_LOG, ClockLog, clock_summary
from perfkit.device.facts import DeviceFacts, Process, available, usable_gpu, visible_gpu
from perfkit.device.lock import gpu_lock, lock_folder
from perfkit.device.monitor import Monitor, Snapshot, Verdict
from perfkit.device.reasons import REASONS, THROTTLING, decode, throttling
from perfkit.device.visible import SelectionError, Visible

__all__ = [
    "CLOCK_LOG",
    "REASONS",
    "THROTTLING",
    "ClockLog",
    "DeviceFacts",
    "Monitor",
    "Process",
    "SelectionError",
    "Snapshot",
    "Verdict",
    "Visible",
    "available",
    "clock_summary",
    "decode",
    "gpu_lock",
    "lock_folder",
    "throttling",
    "usable_gpu",
    "visible_gpu",
]
