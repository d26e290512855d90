"""The best that batch, T, method, window and precision allow together: throughput against a user's own speed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfkit.plan.question import Question
from perfkit.plan.rows import Block, compare

#: Largest batch that is tried for a limit.
MOST = 2048


@dataclass(frozen=True, slots=True)
class Point:
    """One load and choice.

    Attributes:
        batch: requests that run at once.
        method: its key.
        draft_len: T.
        window: L; None without one.
        state_dtype: of the checkpoint.
        tokens_per_s: of all requests.
        user_tokens_per_s: of one.
        step_ms: mean step.
        p99_ms: 99th percentile by how many rows flush.
    """

    batch: int
    method: str
    draft_len: int
    window: int | None
    state_dtype: str
    tokens_per_s: float
    user_tokens_per_s: float
    step_ms: float
    p99_ms: float


def points(question: Question) -> list[Point]:
    """Return for each batch and block the point of its best window, of those that fit and keep the limit.

    Batches are powers of two, what was asked for, and the most that fit.
    """
    return [point for block in compare(question).blocks for point in _of(block, _batches(block))]


def within_limit(question: Question) -> Point | None:
    """Return the point of most throughput that keeps the question's limit, at any batch up to :data:`MOST`."""
    found = [point for block in compare(question).blocks
             for point in _of(block, np.arange(1, min(int(block.fits.max()), MOST) + 1))]  # fmt: skip
    return max(found, key=lambda point: point.tokens_per_s, default=None)


def front(found: list[Point]) -> list[Point]:
    """Return the points that no other beats in both throughput and a user's speed, by ascending throughput."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda one: (one.tokens_per_s, one.user_tokens_per_s), reverse=True):
        if not kept or point.user_tokens_per_s > kept[-1].user_tokens_per_s:
            kept.append(point)
    return kept[::-1]


def _batches(block: Block) -> NDArray[np.int64]:
    most = int(block.fits.max())
    powers = [1 << shift for shift in range(most.bit_length()) if 1 << shift <= most]
    return np.array(sorted({*powers, most, min(block.question.concurrency, most)} - {0}), dtype=np.int64)


def _of(block: Block, loads: NDArray[np.int64]) -> list[Point]:
    asked, batches = block.question, loads[:, None]
    if not loads.size:
        return []
    times = block.layer.times(batches)
    mean = np.asarray(block.whole(times.us, batches).us) / 1e3
    p99 = np.asarray(block.whole(times.p99, batches).us) / 1e3
    limited = p99 if asked.sla_on == "step" else mean / block.layer.accepted
    allowed = batches <= block.fits
    if asked.sla_ms is not None:
        allowed &= limited <= asked.sla_ms
    step = np.where(allowed, mean, np.inf)
    best = np.argmin(step, axis=1)
    return [
        Point(batch=int(batches[i, 0]), method=block.method.key, draft_len=block.draft_len,
              window=int(block.windows[w]) or None, state_dtype=block.state_dtype,
              tokens_per_s=float(batches[i, 0] * block.layer.accepted / step[i, w] * 1e3),
              user_tokens_per_s=float(block.layer.accepted / step[i, w] * 1e3), step_ms=float(step[i, w]),
              p99_ms=float(p99[i, w]))
        for i, w in enumerate(best) if np.isfinite(step[i, w])
    ]  # fmt: skip
