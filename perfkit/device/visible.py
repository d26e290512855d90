"""Which GPU CUDA will use: ``CUDA_VISIBLE_DEVICES`` resolved to the driver's own UUID.

NVML numbers GPUs by PCI bus and knows nothing of the variable; sampling NVML's number 0 while CUDA runs elsewhere is an
old mistake. CUDA by default numbers the fastest GPU first, so with GPUs of different models a number alone does not say
which one is meant: then perfkit asks instead of guessing.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.device.nvml import read, text
from perfkit.errors import DeviceError

VARIABLE = "CUDA_VISIBLE_DEVICES"


class SelectionError(DeviceError):
    """There are GPUs, but the environment names none of them, or could mean several."""


@dataclass(frozen=True, slots=True)
class Visible:
    """The first device that CUDA sees: its physical GPU and, where it is one, its MIG instance."""

    index: int
    uuid: str
    mig_uuid: str | None = None

    @property
    def token(self) -> str:
        """What to set ``CUDA_VISIBLE_DEVICES`` to, so that a child uses this device and no other."""
        return self.mig_uuid or self.uuid


def resolve(nvml: Any, environ: Mapping[str, str]) -> Visible | None:
    """Return the first device visible to CUDA, None if there is none.

    Raises:
        SelectionError: the variable names a device that is not there, or a number that could mean several.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    uuids = [text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    value = environ.get(VARIABLE)
    if not handles:
        return None
    if value is None:
        return _whole(nvml, handles, uuids, 0)
    token = value.split(",")[0].strip()
    if token in ("", "-1", "NoDevFiles"):
        return None
    if token.isdecimal():
        index = int(token)
        if index >= len(handles):
            raise SelectionError(f"{VARIABLE}={value}: there are only {len(handles)} GPUs (0..{len(handles) - 1})")
        names = {text(nvml.nvmlDeviceGetName(handle)) for handle in handles}
        if len(names) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise SelectionError(
                f"{VARIABLE}={value}: GPUs of different models ({', '.join(sorted(names))}) have no fixed order; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID (nvidia-smi -L)"
            )
        return _whole(nvml, handles, uuids, index)
    if token.startswith("MIG-"):
        return _instance(nvml, handles, uuids, token, value)
    matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(token)]
    if len(matches) != 1:
        problem = "no GPU has this UUID" if not matches else "several GPUs have UUIDs that start so"
        raise SelectionError(f"{VARIABLE}={value}: {problem} (there are: {', '.join(uuids)})")
    return _whole(nvml, handles, uuids, matches[0])


def mig_enabled(nvml: Any, handle: Any) -> bool:
    """Say whether a GPU is split into instances."""
    mode = read(nvml, "nvmlDeviceGetMigMode", handle)
    return bool(mode and mode[0])


def instances(nvml: Any, handle: Any) -> list[tuple[str, Any]]:
    """Return UUID and handle of each MIG instance of a GPU."""
    found = []
    for index in range(read(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle, default=0)):
        instance = read(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if instance is not None:
            found.append((text(nvml.nvmlDeviceGetUUID(instance)), instance))
    return found


def _whole(nvml: Any, handles: list[Any], uuids: list[str], index: int) -> Visible:
    """Return a GPU; of one that is split CUDA sees the first instance only."""
    if not mig_enabled(nvml, handles[index]):
        return Visible(index, uuids[index])
    found = instances(nvml, handles[index])
    if not found:
        raise SelectionError(f"{uuids[index]} is in MIG mode but has no instance; make one with nvidia-smi mig -cgi")
    return Visible(index, uuids[index], found[0][0])


def _instance(nvml: Any, handles: list[Any], uuids: list[str], token: str, value: str) -> Visible:
    every = [(i, uuid) for i, handle in enumerate(handles) for uuid, _ in instances(nvml, handle)]
    matches = [(index, uuid) for index, uuid in every if uuid.startswith(token)]
    if len(matches) != 1:
        problem = "no MIG instance has this UUID" if not matches else "several MIG instances have UUIDs that start so"
        raise SelectionError(
            f"{VARIABLE}={value}: {problem} (there are: {', '.join(uuid for _, uuid in every) or 'none'})"
        )
    index, uuid = matches[0]
    return Visible(index, uuids[index], uuid)
