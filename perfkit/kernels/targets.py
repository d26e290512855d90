"""What of a launch depends on the GPU that it is compiled for: constants of its kernel, by compute capability.

A method makes launches for the device of its tensors, and they are compiled for other GPUs, too: :func:`compiled_for`
says what they would have been there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from perfkit.method import Launch

#: First compute capability whose kernels can wait for the launch before them.
WAITING = 90
#: Compute capabilities whose products of 64 rows take memory that a kernel has, and no function.
TENSOR_MEMORY = range(100, 110)


def follows(cc: int) -> bool:
    """Return whether a launch can follow another closely (:mod:`perfkit.kernels.following`)."""
    return cc >= WAITING


def apart(cc: int) -> bool:
    """Return whether what a loop does can be a function when compiled, too, whatever its products are."""
    return cc not in TENSOR_MEMORY


#: The constants of kernels that these are.
TOLD: dict[str, Callable[[int], bool]] = {"FOLLOWED": follows, "FOLLOWS": follows, "APART": apart}


def device_of(tensors: Mapping[str, Any]) -> str:
    """Return the name of the device of a method's tensors; those without data are on none, which is called cpu."""
    return str(getattr(tensors["state"], "device", "cpu"))


def capability(tensors: Mapping[str, Any]) -> int:
    """Return the compute capability of the device of a method's tensors, 0 where that is no GPU or has no data."""
    return _capability(device_of(tensors))


@cache
def _capability(device: str) -> int:
    if not device.startswith("cuda"):
        return 0
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def compiled_for(launch: Launch, cc: int) -> Launch:
    """Return a launch as it is on a GPU of that compute capability, whatever its tensors are on."""
    told = {name: known(cc) for name, known in TOLD.items() if name in launch.constexprs}
    if not told:
        return launch
    config = {name: value for name, value in launch.config.items() if name != "launch_pdl"}
    closely = {"launch_pdl": True} if told.get("FOLLOWS") else {}
    return replace(launch, constexprs={**launch.constexprs, **told}, config={**config, **closely})
