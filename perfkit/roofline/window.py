"""The best window: Eq. 16's continuous optimum, the discrete one by evaluating a cost, and what a wrong one costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline.cursor import phase_chain
from perfkit.roofline.traffic import record_bytes as paper_record_bytes
from perfkit.roofline.traffic import replay_chain_counts, state_bytes, traffic_per_token
from perfkit.shape import Shape

#: A cost per committed token of each window: bytes, microseconds.
Cost = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def l_star(
    shape: Shape, draft_len: Any = 1, accepted: Any = 1, record_bytes: Any = None, element_bytes: Any = 4
) -> Any:
    """Return L* = sqrt(2 a (M_S / r - T)); 0 where records are so large that the smallest window is best.

    It minimizes the paper's traffic per committed token, not limited to whole windows or to L >= T.
    Source: paper, Eq. 16.
    """
    record = paper_record_bytes(shape) if record_bytes is None else record_bytes
    excess = np.maximum(state_bytes(shape, element_bytes) / np.asarray(record) - draft_len, 0.0)
    return np.sqrt(2 * np.asarray(accepted) * excess)


def best_window(cost: Cost, windows: Any) -> int:
    """Return the window of least cost; of equals, the smallest.

    Args:
        cost: [windows] int64 -> [windows] float64; NaN where a window is impossible.
        windows: the candidates.

    Raises:
        InputError: no candidate has a cost.
    """
    candidates = np.unique(np.asarray(windows, dtype=np.int64))
    costs = np.asarray(cost(candidates), dtype=np.float64) if candidates.size else np.array([])
    if not np.any(np.isfinite(costs)):
        raise InputError("no window to choose from", field="window", value=candidates.tolist())
    return int(candidates[np.nanargmin(costs)])


def off_cost(cost: Cost, window: int, windows: Any) -> float:
    """Return what ``window`` costs more than the best of ``windows``, as a fraction of the best: 0.006 is 0.6 %."""
    best = best_window(cost, windows)
    pair = np.asarray(cost(np.array([best, window], dtype=np.int64)), dtype=np.float64)
    return float(pair[1] / pair[0] - 1)


def paper_cost(
    shape: Shape, draft_len: int = 1, accepted: float = 1.0, *, element_bytes: Any = 4, record: Any = None
) -> Cost:
    """Return Eq. 15 as a cost: bytes of one head per committed token, cycles of exactly L / a steps."""

    def cost(windows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(traffic_per_token(shape, windows, draft_len, accepted, element_bytes, record))

    return cost


def chain_cost(
    shape: Shape, draft_len: int, pmf: NDArray[np.float64], *, element_bytes: Any = 4, record: Any = None
) -> Cost:
    """Return the paper's bytes over the cursor's real cycle as a cost: bytes of one head per committed token.

    ``pmf`` [depth] is over what a step commits; of a tree its depth is below ``draft_len``, the nodes.
    """

    def cost(windows: NDArray[np.int64]) -> NDArray[np.float64]:
        chain = replace(phase_chain(windows, len(pmf), pmf), draft_len=draft_len)
        return np.asarray(replay_chain_counts(shape, chain, element_bytes, record).total / chain.accepted)

    return cost
