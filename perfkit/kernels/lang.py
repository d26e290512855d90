"""The kernel language: Triton where it is installed, else a stand-in that can be imported but not launched.

Method files write ``from perfkit.kernels.lang import triton, tl``. Their declarations (buffers, launches, bytes) then
work on machines without Triton (planning, listing, reports); only launching a kernel fails there, with a remedy.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from perfkit.errors import DeviceError
from perfkit.kernels.interpreting import quicken

_REMEDY = "Triton is not installed: install a torch build that brings it (Linux), or `pip install triton`"


class AbsentKernel:
    """What ``triton.jit`` makes of a function where Triton is absent: a name and a source, no launch."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__
        self.__module__ = fn.__module__

    def __getitem__(self, grid: Any) -> AbsentKernel:
        return self

    def run(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to launch.

        Raises:
            DeviceError: always.
        """
        raise DeviceError(f"cannot launch {self.__name__}: {_REMEDY}")

    __call__ = run


class AbsentTriton:
    """The part of Triton's host API that method files use."""

    __version__ = "absent"

    @staticmethod
    def jit(fn: Any = None, **options: Any) -> Any:
        """Wrap a kernel, as ``@triton.jit`` or ``@triton.jit(...)``."""
        return AbsentKernel if fn is None else AbsentKernel(fn)

    @staticmethod
    def cdiv(x: int, y: int) -> int:
        """Return x / y rounded up."""
        return -(-x // y)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        """Return the smallest power of two that is at least n; 0 for n < 1, as Triton does."""
        return 1 << (n - 1).bit_length() if n > 0 else 0


class AbsentLanguage:
    """Stands for ``triton.language`` in annotations and defaults: any attribute is its own name."""

    class constexpr:
        """A compile-time argument or constant."""

        def __init__(self, value: Any) -> None:
            self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"tl.{name}"


triton: Any = AbsentTriton()
tl: Any = AbsentLanguage()
with suppress(ImportError):
    triton, tl = import_module("triton"), import_module("triton.language")

#: Whether kernels can be interpreted, compiled or launched at all in this environment.
HAVE_TRITON = not isinstance(triton, AbsentTriton)
if HAVE_TRITON and triton.knobs.runtime.interpret:
    quicken(import_module("triton.runtime.interpreter"))

__all__ = ["HAVE_TRITON", "tl", "triton"]
