"""One family's methods, file by file: the registry loads all families, which takes longer than a plan does."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from perfkit.method import Method


@cache
def built_in(family: str, key: str, phase: str) -> Method | None:
    """Return the method that ships with perfkit, what :func:`perfkit.registry.get_method` returns; None without one."""
    name = f"perfkit.kernels.{family}.{key}_{phase}"
    if find_spec(f"perfkit.kernels.{family}") is None or find_spec(name) is None:
        return None
    method = import_module(name).METHOD
    return method if isinstance(method, Method) else None
