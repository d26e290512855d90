"""A launch as Triton's JIT would compile it on a GPU, by the JIT's own code, and the key of what that yields.

The key is a digest of all that the compiler is given: the sources of the kernel and of what it calls, types, alignment
and constants of its arguments, options, the target, versions of Triton and ptxas. Where in its file a function stands
is left out, unlike in Triton's own key: it goes into the binary's table of lines and nowhere else, so a kernel keeps
its key when what stands above it changes. Needs Triton, and a process that does not interpret.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.language.core import constexpr
from triton.runtime.jit import DependenciesFinder, JITFunction, create_function_from_signature

from perfkit.errors import DeviceError, InputError
from perfkit.kernels.targets import compiled_for
from perfkit.method import Launch

#: Changes when a key stands for something else, or when what is kept under one changes.
_FORMAT = "2"


@dataclass(frozen=True, slots=True)
class Specialized:
    """What the compiler is given for one launch.

    Attributes:
        name: of the kernel.
        target: of the compiler.
        config: the launch configuration, as text.
        key: 32 hexadecimal digits.
        source: the kernel with types, constants and alignment of its arguments.
        options: of the compiler.
    """

    name: str
    target: Any
    config: str
    key: str
    source: Any
    options: Any


def specialize(launch: Launch, target_cc: int) -> Specialized:
    """Return what Triton would compile for a launch; its tensors may be torch's or :class:`perfkit.spec.Spec`.

    Raises:
        DeviceError: this process interprets.
        InputError: the kernel is not a plain Triton function.
    """
    fn = _jit_function(launch)
    launch = compiled_for(launch, target_cc)
    backend, bind = _binder(fn, target_cc)
    keywords = {**launch.constexprs, **launch.config}
    bound, specialization, extra = bind(*launch.args, **keywords)
    options, signature, constants, attributes = fn._pack_args(backend, keywords, bound, specialization, extra)
    config = " ".join(
        f"{name}={value}" for name, value in keywords.items() if isinstance(value, int) and not isinstance(value, bool)
    )
    values = [(at, content(value) if isinstance(value, JITFunction) else value) for at, value in constants.items()]
    given = (_FORMAT, triton.__version__, backend.hash(), options.hash(), content(fn), sorted(signature.items()),
             sorted(attributes.items()), sorted(values), sorted(get_cache_invalidating_env_vars().items()))  # fmt: skip
    key = hashlib.sha256(repr(given).encode()).hexdigest()[:32]
    source = ASTSource(fn, signature, constants, attributes)
    return Specialized(launch.name, backend.target, config, key, source, options)


def _jit_function(launch: Launch) -> Any:
    if isinstance(launch.kernel, JITFunction):
        return launch.kernel
    if type(launch.kernel).__name__ == "InterpretedFunction":
        raise DeviceError("this process interprets kernels and cannot compile: unset TRITON_INTERPRET and start anew")
    raise InputError("is not a Triton function, so it cannot be compiled ahead", field="kernel", value=launch.name)


@cache
def _binder(fn: Any, target_cc: int) -> tuple[Any, Any]:
    backend = make_backend(GPUTarget("cuda", target_cc, 32))
    return backend, create_function_from_signature(fn.signature, fn.params, backend)


@cache
def content(fn: Any) -> str:
    """Return a digest of a Triton function's source and of all that it calls, without where they stand."""
    return _digest(fn, {})


def _digest(fn: Any, seen: dict[int, str]) -> str:
    fn = getattr(fn, "__func__", fn)  # of a method
    if id(fn) not in seen:
        seen[id(fn)] = fn.__name__  # until it is known: a function that calls itself
        finder = _Content(fn, seen)
        finder.visit(fn.parse())
        names = sorted(
            (name, repr(value)) for (name, _), (value, _) in finder.used_global_vals.items()
            if isinstance(value, constexpr)
        )  # fmt: skip
        text = repr((finder.ret, bool(getattr(fn, "noinline", False)), names))
        seen[id(fn)] = hashlib.sha256(text.encode()).hexdigest()
    return seen[id(fn)]


class _Content(DependenciesFinder):  # type: ignore[misc]  # Triton is not typed
    """Triton's own search for what a function depends on, but callees count by their content."""

    def __init__(self, fn: Any, seen: dict[int, str]) -> None:
        nonlocals = inspect.getclosurevars(fn.fn).nonlocals
        super().__init__(name=fn.__name__, globals=fn.__globals__, nonlocals=nonlocals, src=fn.src)
        self._seen = seen

    def _update_hash(self, func: Any) -> None:
        self.hasher.update(_digest(func, self._seen).encode())
