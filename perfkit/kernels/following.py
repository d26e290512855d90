"""Launches of one step that follow each other closely: the second is under way while the first one ends.

Between two launches the GPU does nothing for about two microseconds, a good part of a step at small batches. On compute
capability 9.0 and later the second one's programs can be launched while the first one's end; they wait for all that it
wrote before they look at anything. Steps do not overlap: the first launch of a step waits for what came before it, as
any other kernel does.
"""

from __future__ import annotations

from dataclasses import replace

from perfkit.kernels.lang import HAVE_TRITON, tl, triton
from perfkit.kernels.targets import compiled_for
from perfkit.method import Launch

if HAVE_TRITON:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def close_pair(first: Launch, second: Launch, cc: int) -> tuple[Launch, Launch]:
    """Return two launches, the second one following the first closely if that compute capability can.

    Kernels take FOLLOWED or FOLLOWS as a constant, and begin with :func:`let_follow` or :func:`follow`.
    """
    first = replace(first, constexprs={**first.constexprs, "FOLLOWED": False})
    second = replace(second, constexprs={**second.constexprs, "FOLLOWS": False})
    return compiled_for(first, cc), compiled_for(second, cc)


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
