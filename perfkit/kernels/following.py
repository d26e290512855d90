"""Launches of one step that follow each other closely: the second is under way while the first one ends.

Between two launches the GPU does nothing for about two microseconds, a good part of a step at small batches. On compute
capability 9.0 and later the second one's programs can be launched while the first one's end; they wait for all that it
wrote before they look at anything. Steps do not overlap: the first launch of a step waits for what came before it, as
any other kernel does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from perfkit.kernels.lang import HAVE_TRITON, tl, triton
from perfkit.method import Launch

if HAVE_TRITON:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: First compute capability whose kernels can wait for the launch before them.
FIRST = 90
#: Constants of a pair of launches: whether the first one is followed closely, whether the second one follows so.
_FOLLOWED, _FOLLOWS = "FOLLOWED", "FOLLOWS"


def following(tensors: Mapping[str, Any]) -> bool:
    """Return whether the device of a method's tensors can launch so; tensors without data are on none."""
    return _can_follow(str(getattr(tensors["state"], "device", "cpu")))


@cache
def _can_follow(device: str) -> bool:
    if not device.startswith("cuda"):
        return False
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= FIRST


def close_pair(first: Launch, second: Launch, follows: bool) -> tuple[Launch, Launch]:
    """Return two launches, the second one following the first closely if it can.

    Kernels take FOLLOWED or FOLLOWS as a constant, and begin with :func:`let_follow` or :func:`follow`.
    """
    return _told(first, _FOLLOWED, follows), _told(second, _FOLLOWS, follows)


def compiled_for(launch: Launch, target_cc: int) -> Launch:
    """Return a launch as it would be on a GPU of that compute capability, whatever its tensors are on."""
    for name in (_FOLLOWED, _FOLLOWS):
        if name in launch.constexprs:
            launch = _told(launch, name, target_cc >= FIRST)
    return launch


def _told(launch: Launch, name: str, value: bool) -> Launch:
    config = {key: one for key, one in launch.config.items() if key != "launch_pdl"}
    closely = {"launch_pdl": True} if value and name == _FOLLOWS else {}
    return replace(launch, constexprs={**launch.constexprs, name: value}, config={**config, **closely})


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
