"""Whose kernels a plan is about, and what is known of them: timed here, on another GPU, in another family, or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from perfkit.profiles import Gpu
from perfkit.roofline import Efficiency, efficiency_for
from perfkit.roofline.efficiency import OURS, PARAMETERS

Basis = Literal["fitted", "carried", "lent", "bound"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """One method's kernels; two are equal that predict the same.

    Attributes:
        basis: fitted to times on this GPU, carried over from another, lent by another family's kernels, or a bound:
            what their bytes allow.
        efficiency: of them; None for a bound.
        impl: whose they are; None for a bound.
        source: the GPU or the family that the times are of.
        numbers: what a time depends on: the parameters and the width of the interval.
    """

    basis: Basis
    efficiency: Efficiency | None = field(default=None, compare=False)
    impl: str | None = None
    source: str | None = None
    numbers: tuple[float, ...] = ()

    @classmethod
    def of(cls, basis: Basis, efficiency: Efficiency, impl: str, source: str) -> Kernels:
        """Return kernels of which something is known."""
        numbers = (*(float(getattr(efficiency, name)) for name in PARAMETERS), efficiency.width)
        return cls(basis, efficiency, impl, source, numbers)


def kernels_of(family: str, method: str, phase: str, gpu: Gpu, impls: tuple[str, ...]) -> Kernels:
    """Return the kernels of the first of ``impls`` of which something is known.

    Raises:
        InputError: an implementation that nothing is known of.
    """
    found = [_known(family, method, phase, gpu, impl) for impl in impls]
    return next((one for one in found if one.basis != "bound"), found[0])


def _known(family: str, method: str, phase: str, gpu: Gpu, impl: str) -> Kernels:
    efficiency = efficiency_for(family, method, phase, gpu, impl)
    if efficiency is None:
        return Kernels("bound")
    if efficiency.lender is not None:
        return Kernels.of("lent", efficiency, impl, efficiency.lender)
    timed_on = efficiency.gpu if impl == OURS else _timed_on(family, method, phase, gpu, impl)
    return Kernels.of("fitted" if timed_on == gpu.key else "carried", efficiency, impl, timed_on)


@lru_cache(maxsize=64)
def _timed_on(family: str, method: str, phase: str, gpu: Gpu, impl: str) -> str:
    """Return the GPU that others' kernels were timed on: fits that are carried over bear the name of the new one."""
    from perfkit.roofline.implementations import load_implementations

    same = (entry for entry in load_implementations(impl, gpu)
            if (entry["family"], entry["method"], entry["phase"]) == (family, method, phase))  # fmt: skip
    return str(next(same).get("carried_from", gpu.key))
