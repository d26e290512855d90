"""Ranges around what a process does: NVTX in the domain ``perfkit``, and spans for the trace of a sweep.

A name says what happens and, after a slash, to what; a case is ``<method>/<phase>/B…-L…-T…``. In a sweep these nest:

* ``plan``, ``group/<id>``, ``results``, ``report`` in the parent, and what it waits for: ``wait/gpu``, ``wait/worker``,
  ``wait/end of worker``;
* ``group/<id>`` in a worker, in it ``case/…`` with ``tune/…`` and ``check/…``, ``case/…`` with ``capture/…``, then
  ``warm-up`` and ``timing`` with ``warm-up/…`` and ``sample/…`` of each case, ``confirm/…``, ``beside/…``; where a long
  sample rests ``wait/rest``, and ``wait/cool`` after a round with a throttled one;
* ``launch/<kernel>``, once a case: how long the host took to enqueue it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from perfkit.cases import draft_words, is_plugin
from perfkit.method import Case

DOMAIN = "perfkit"


@dataclass(frozen=True, slots=True)
class Span:
    """A range that has ended.

    Attributes:
        name: of the range.
        start_ns: by ``time.monotonic_ns()``, which all processes of a machine share.
        end_ns: the same.
        args: what else is known about it, JSON data.
    """

    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)


_LISTENER: ContextVar[Callable[[Span], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[Span], None]) -> Iterator[None]:
    """Tell ``listener`` of every range of this thread that ends inside."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def listened() -> bool:
    """Say whether somebody listens: what is marked for a trace alone need not be done otherwise."""
    return _LISTENER.get() is not None


@cache
def _nvtx() -> Any:
    try:
        import nvtx
    except ImportError:
        logging.getLogger(__name__).warning("nvtx is not installed: ranges are not marked (pip install nvtx)")
        return None
    return nvtx


@contextmanager
def mark(name: str, /, **args: Any) -> Iterator[None]:
    """Mark what runs inside as the range ``name``, for NVTX and for whoever listens.

    Without the nvtx package it says so once and goes on. ``args`` are for the listener alone.
    """
    nvtx, listener = _nvtx(), _LISTENER.get()
    start_ns = time.monotonic_ns()
    try:
        if nvtx is None:
            yield
        else:
            with nvtx.annotate(message=name, domain=DOMAIN):
                yield
    finally:
        if listener is not None:
            listener(Span(name, start_ns, time.monotonic_ns(), args))


def case_name(case: Case) -> str:
    """Return how ranges name a case: ``replay/decode/B256-L16-T1``, ``snapshot/verify/B64-T4-aT``.

    >>> from perfkit.shape import Shape
    >>> case_name(Case(Shape("mamba2", 128, 8, 64, 128), "replay", 256, 16))
    'replay/decode/B256-L16-T1'
    """
    method = case.method.rpartition("/")[2] if is_plugin(case.method) else case.method
    drafts = draft_words(case.draft_len, case.acceptance, case.tree) or [f"T{case.draft_len}"]
    more = [
        "" if case.flush_phase == "aligned" else case.flush_phase,
        "" if case.state_dtype == "float32" else case.state_dtype,
        str(case.option("alias") or ""),
    ]
    words = [f"B{case.batch}", "" if case.window is None else f"L{case.window}", *drafts, *more]
    return f"{method}/{case.phase}/{'-'.join(word for word in words if word)}"
