"""Launches of one step that follow each other closely: the second is under way while the first one ends.

Between two launches the GPU does nothing for about two microseconds, a good part of a step at small batches. On compute
capability 9.0 and later the second one's programs can be launched while the first one's end; they wait for all that it
wrote before they look at anything. Steps do not overlap: the first launch of a step waits for what came before it, as
any other kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from perfkit.kernels.lang import HAVE_TRITON, tl, triton
from perfkit.method import Launch

if HAVE_TRITON:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: First compute capability whose kernels can wait for the launch before them.
FIRST = 90
#: Compute capabilities whose products of 64 rows take memory that a kernel has, and no function.
TENSOR_MEMORY = range(100, 110)
#: Constants of launches that depend on the compute capability (0: no GPU): whether a launch is followed closely,
#: whether it follows so, and whether what a loop does is a function when compiled, too.
_TOLD: dict[str, Callable[[int], bool]] = {
    "FOLLOWED": lambda cc: cc >= FIRST,
    "FOLLOWS": lambda cc: cc >= FIRST,
    "APART": lambda cc: apart(cc),
}


def apart(cc: int) -> bool:
    """Return whether what a loop does can be a function when compiled, too, whatever its products are."""
    return cc not in TENSOR_MEMORY


def capability(tensors: Mapping[str, Any]) -> int:
    """Return the compute capability of the device of a method's tensors, 0 where that is no GPU or has no data."""
    return _capability(str(getattr(tensors["state"], "device", "cpu")))


@cache
def _capability(device: str) -> int:
    if not device.startswith("cuda"):
        return 0
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def close_pair(first: Launch, second: Launch, cc: int) -> tuple[Launch, Launch]:
    """Return two launches, the second one following the first closely if that compute capability can.

    Kernels take FOLLOWED or FOLLOWS as a constant, and begin with :func:`let_follow` or :func:`follow`.
    """
    first = replace(first, constexprs={**first.constexprs, "FOLLOWED": False})
    second = replace(second, constexprs={**second.constexprs, "FOLLOWS": False})
    return compiled_for(first, cc), compiled_for(second, cc)


def compiled_for(launch: Launch, cc: int) -> Launch:
    """Return a launch as it is on a GPU of that compute capability, whatever its tensors are on."""
    told = {name: known(cc) for name, known in _TOLD.items() if name in launch.constexprs}
    if not told:
        return launch
    config = {name: value for name, value in launch.config.items() if name != "launch_pdl"}
    closely = {"launch_pdl": True} if told.get("FOLLOWS") else {}
    return replace(launch, constexprs={**launch.constexprs, **told}, config={**config, **closely})


@triton.jit
def let_follow(FOLLOWED: tl.constexpr):
    """Let the next launch's programs start as soon as there is room for them."""
    if FOLLOWED:
        gdc_launch_dependents()


@triton.jit
def follow(FOLLOWS: tl.constexpr):
    """Wait for the launch before this one, and for all that it wrote."""
    if FOLLOWS:
        gdc_wait()
