"""Makes Triton's interpreter two to three times as fast on small kernels, and changes nothing of what it computes.

Three habits of it cost more than the arithmetic of small kernels. Each call of a device function replaces the
language's functions anew, by looking through everything that the language has, although the launch around it has done
so. Each operation builds a table of all dtypes to look one up. And each value wraps the numbers of its shape one by
one, and writes out the name of its type, which nobody reads. Here these are done once: a launch's first call with a
language module replaces its functions, the others find that done, and values of one shape share what says so.

These are private parts of Triton, so they are taken as they are in the versions that perfkit supports; where one looks
different, nothing is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

_PARTS = ("_patch_lang", "_LangPatchScope", "_get_np_dtype", "GridExecutor", "tl")


def quicken(interpreter: Any) -> bool:
    """Change ``triton.runtime.interpreter`` in this process; returns whether it was as expected."""
    if getattr(interpreter, "_perfkit_quick", False):
        return True
    if not all(hasattr(interpreter, name) for name in _PARTS) or _parameters(interpreter._patch_lang) != ["fn"]:
        return False
    _replace_once_a_launch(interpreter)
    interpreter._get_np_dtype = _looked_up(interpreter.tl, interpreter._get_np_dtype)
    share_shapes(interpreter.tl.core)
    interpreter._perfkit_quick = True
    return True


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _replace_once_a_launch(interpreter: Any) -> None:
    """Let a launch replace the functions of each language module once, however many device functions it calls."""
    replace, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    modules = (interpreter.tl, interpreter.tl.core)
    done: set[int] = set()
    uses: dict[Any, frozenset[int]] = {}

    def once(fn: Any) -> Any:
        if fn not in uses:
            seen = {id(value) for value in fn.__globals__.values() if inspect.ismodule(value)}
            uses[fn] = frozenset(seen & {id(module) for module in modules})
        if uses[fn] and uses[fn] <= done:
            return interpreter._LangPatchScope()  # of no changes
        scope = replace(fn)
        done.update(uses[fn])
        return scope

    @wraps(launch)
    def anew(self: Any, *args: Any, **kwargs: Any) -> Any:
        done.clear()
        try:
            return launch(self, *args, **kwargs)
        finally:
            done.clear()

    interpreter._patch_lang = once
    interpreter.GridExecutor.__call__ = anew


def _looked_up(tl: Any, find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``find`` with what it found for scalars kept; a block has its element's."""
    kept: dict[Any, Any] = {}

    def np_dtype(dtype: Any) -> Any:
        if isinstance(dtype, tl.block_type):
            dtype = dtype.element_ty
        if isinstance(dtype, tl.pointer_type):
            return find(dtype)
        if dtype not in kept:
            kept[dtype] = find(dtype)
        return kept[dtype]

    return np_dtype


def share_shapes(core: Any) -> bool:
    """Let values and block types of one shape share its wrapped numbers; returns whether they were as expected."""
    if not all(hasattr(core, name) for name in ("block_type", "tensor", "constexpr", "int32")):
        return False
    block_type, tensor = core.block_type, core.tensor
    of_type, of_value = block_type.__init__, tensor.__init__
    if _parameters(of_type) != ["self", "element_ty", "shape"] or _parameters(of_value) != ["self", "handle", "type"]:
        return False
    types: dict[tuple[int, ...], tuple[Any, Any]] = {}
    values: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        if key not in types:
            of_type(self, element_ty, shape)
            types[key] = self.shape, self.numel
            return
        self.element_ty = element_ty
        self.shape, self.numel = types[key]

    def make_value(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in values:
            of_value(self, handle, type)
            values[key] = self.shape, self.numel
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = values[key]

    def made() -> list[tuple[Any, ...]]:
        """Make types and values twice, since only the second shares, and show them."""
        blocks = [block_type(core.int32, [4, 2]) for _ in range(2)]
        tensors = [tensor(None, one) for one in (*blocks, core.int32, core.int32)]
        return [_shown(one, one) for one in blocks] + [(*_shown(one, one.type), str(one.dtype)) for one in tensors]

    plain = made()
    block_type.__init__, tensor.__init__ = make_type, make_value
    block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>", lambda self, value: None)
    if made() == plain:
        return True
    block_type.__init__, tensor.__init__ = of_type, of_value
    del block_type.name
    return False


def _shown(value: Any, type: Any) -> tuple[Any, ...]:
    return vars(value).keys() - {"name"}, str(value.shape), str(value.numel), str(type)
