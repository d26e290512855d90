"""Makes Triton's interpreter about twice as fast on small kernels, and changes nothing of what it computes.

Two habits of it cost more than the arithmetic of small kernels. Each call of a device function replaces the language's
functions anew, by looking through everything that the language has, although the launch around it has done so. And each
operation builds a table of all dtypes to look one up. Here both are done once: a launch's first call with a language
module replaces its functions, the others find that done.

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
