"""What a step costs beyond bytes and FLOPs: an engine's own time, per step, per token row and per draft pass.

No engine publishes these as such, so nothing is assumed: left out, they are 0. :data:`OVERHEAD_ESTIMATES` has what can
be derived from publications, with where it comes from; whoever passes one says so by passing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from types import MappingProxyType

from perfkit.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """An engine's fixed times, in microseconds.

    Attributes:
        step_us: t0, of a step: scheduling, launches, sampling.
        row_us: c, of each of its B * T token rows: activations, convolution windows, sampling.
        pass_us: m, of each of the T - 1 draft passes, beyond the weights that it reads.
        source: where they come from.

    Raises:
        InputError: one that is negative or not finite.
    """

    step_us: float = 0.0
    row_us: float = 0.0
    pass_us: float = 0.0
    source: str = "none: bytes and FLOPs alone"

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.name != "source"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InputError("must be at least 0 us", field=name, value=value)


NO_OVERHEADS = Overheads()
#: The one estimate there is. It was read off the whole-step figures of Nano-4B, standard decoding, L = 16, and so is no
#: test of them; for other models and GPUs it is a transfer. What a draft pass costs besides its weights is in no
#: publication.
OVERHEAD_ESTIMATES: Mapping[str, Overheads] = MappingProxyType(
    {
        "vllm": Overheads(
            step_us=1300.0,
            row_us=5.0,
            source="estimated from the whole-step speedups of vLLM pull request 48018 (Nemotron-3 Nano 4B, one H100)",
        )
    }
)
