"""NVTX ranges in the domain ``perfkit``, so that a trace of a sweep reads by itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

DOMAIN = "perfkit"


@cache
def _nvtx() -> Any:
    try:
        import nvtx
    except ImportError:
        logging.getLogger(__name__).warning("nvtx is not installed: ranges are not marked (pip install nvtx)")
        return None
    return nvtx


@contextmanager
def mark(name: str) -> Iterator[None]:
    """Mark what runs inside as the range ``perfkit: name``; without the nvtx package it says so once and goes on."""
    nvtx = _nvtx()
    if nvtx is None:
        yield
        return
    with nvtx.annotate(message=name, domain=DOMAIN):
        yield
