"""Conventional decode of Mamba-2 and a spin after it: a method that is slower by as much as is asked for, on a GPU.

    PERFKIT_SPIN_CYCLES=256:42000 perfkit sweep --model nemotron-super --method scripts/spun_decode.py:METHOD

PERFKIT_SPIN_CYCLES has BATCH:CYCLES pairs, cycles of the SM clock; a batch that is not named spins for one cycle, so
that the number of launches is the same with and without. On a CPU nothing spins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from perfkit.kernels.mamba2.conventional_decode import ConventionalDecode
from perfkit.method import Case, Config, Launch

VARIABLE = "PERFKIT_SPIN_CYCLES"


def cycles(batch: int, text: str) -> int:
    """Return how many cycles a step of a batch spins."""
    pairs = dict(pair.split(":") for pair in text.split(",") if pair)
    return int(pairs.get(str(batch), 1))


def spin(out: Any, count: int) -> None:
    """Enqueue a kernel that does nothing for so many cycles."""
    if out.is_cuda:
        import torch

        torch.cuda._sleep(count)


class SpunDecode(ConventionalDecode):
    """Conventional decode in two launches, the second one idle."""

    key = "spun"

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Yield the control's launch, and a spin."""
        yield from super().launches(case, config, tensors, step)
        yield Launch(spin, (), (tensors["out"], cycles(case.batch, os.environ.get(VARIABLE, ""))))


METHOD = SpunDecode()
