"""Throughput of more requests than fit: an engine runs them in waves, and a step of each wave takes its own time.

Requests of one length that arrive together run as many at once as fit, to their end; the last wave may be small, and
then reads all weights for few. Source: vLLM pull request 47576.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perfkit.errors import InputError


def waves_us(step_us: Callable[[Any], Any], concurrency: Any, fits: Any) -> Any:
    """Return the time in which each request makes one step, all waves together, in microseconds; arrays broadcast.

    Args:
        step_us: the time of a step in which so many requests run.
        concurrency: requests.
        fits: how many run at once at most.

    Raises:
        InputError: fewer than one of either.
    """
    wanted, cap = np.asarray(concurrency), np.asarray(fits)
    for field, value in (("concurrency", wanted), ("fits", cap)):
        if not np.all(value >= 1):
            raise InputError("must be at least 1", field=field, value=value.min().item())
    full, left = np.divmod(wanted, cap)
    last = np.where(left > 0, step_us(np.maximum(left, 1)), 0.0)
    return (np.where(full > 0, full * step_us(np.minimum(cap, wanted)), 0.0) + last)[()]


def served_tokens_per_s(
    step_us: Callable[[Any], Any],
    concurrency: Any,
    fits: Any,
    *,
    accepted: Any = 1.0,
    tokens: Any = float("inf"),
    request_us: Any = 0.0,
) -> Any:
    """Return the tokens per second of requests that arrive together; arrays broadcast.

    Args:
        step_us: the time of a step in which so many requests run.
        concurrency: requests.
        fits: how many run at once at most.
        accepted: tokens that a step commits of each request, on average.
        tokens: that each request generates; must be finite where ``request_us`` is not 0.
        request_us: what each request costs once, on top of its steps: prefill, which no step has.

    Raises:
        InputError: as :func:`waves_us`, or ``request_us`` without ``tokens``.
    """
    if np.any(np.asarray(request_us) > 0) and not np.all(np.isfinite(tokens)):
        raise InputError("how many tokens each request generates must be known beside request_us", field="tokens")
    per_token = waves_us(step_us, concurrency, fits) / accepted + np.multiply(concurrency, request_us) / tokens
    return (concurrency / per_token * 1e6)[()]
