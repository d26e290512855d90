"""One timing run per GPU: two at once would measure each other."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perfkit.errors import DeviceError


def lock_folder() -> Path:
    """Return where locks lie: the same for all runs of a user on this machine, whatever their working directory.

    Other users' runs do not meet here; they show up as foreign processes on the GPU.
    """
    return Path(tempfile.gettempdir()) / f"perfkit-{os.getuid()}"


@contextlib.contextmanager
def gpu_lock(uuid: str, folder: Path | None = None, timeout_s: float = 0.0) -> Iterator[None]:
    """Hold the GPU for timing. The system releases the lock when the process ends, however it ends.

    Args:
        uuid: of the physical GPU; MIG instances of one GPU share its bandwidth and so its lock.
        folder: where locks lie, by default :func:`lock_folder`.
        timeout_s: how long to wait for another run.

    Raises:
        DeviceError: another run holds it; names its process id.
    """
    from filelock import FileLock, Timeout

    folder = folder or lock_folder()
    name = re.sub(r"[^A-Za-z0-9-]", "_", uuid)
    holder = folder / f"{name}.pid"  # beside the lock: opening a lock file may truncate it
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock", timeout=timeout_s)
        lock.acquire()
    except Timeout as error:
        pid = "unknown"
        with contextlib.suppress(OSError):
            pid = holder.read_text().strip() or pid
        raise DeviceError(
            f"another perfkit run (pid {pid}) is timing this GPU; wait or choose another with CUDA_VISIBLE_DEVICES"
        ) from error
    except OSError as error:
        raise DeviceError(f"cannot lock the GPU in {folder}: {error.strerror or error}; set TMPDIR") from error
    try:
        with contextlib.suppress(OSError):  # who holds it is for a message alone
            holder.write_text(f"{os.getpid()}\n")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()
