"""The cursor h, committed records in the replay buffer before a step: its flush rules and stationary distribution.

Decode (T = 1): the step with h + 1 = L flushes, folds the current token too and stores no record; h is 0..L-1.
Verify: the step with h + T > L flushes the h committed records and stores T; the next step starts at h = a.
Of a draft tree T is here its depth, the most tokens that a step can commit.
A verify method without a window keeps what the step before committed, so its h is that a (:func:`committed_chain`).

Between two flushes h only grows, by independent steps of a, so a cycle of verify is a renewal process started at 0:
with u(h) = P(a cycle visits h), u(0) = 1, u(h) = sum_a P(a) u(h - a), every h <= L - T is visited u(h) times a cycle,
and each cycle ends in exactly one flush step. u does not depend on L, so one recursion serves every window, and the
stationary probability of a step is its visits divided by the steps of a cycle: exact, nothing is iterated to a limit.

Source: paper, Alg. 1, Alg. 2, App. D.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline.acceptance import pmf_mean

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps of one or of many windows and how often each happens in the long run.

    Several windows lie one after the other in the flat arrays, so that one call of a byte model evaluates all.

    Attributes:
        h: [steps] int64, committed records before the step.
        flush: [steps] bool, whether the step flushes.
        probability: [steps] float64, sums to 1 within each window.
        window: [steps] int64, the window L that the step belongs to.
        starts: [windows] int64, where each window's steps begin in the flat arrays.
        draft_len: T.
        accepted: mean number of tokens a step commits.
    """

    h: IntArray
    flush: NDArray[np.bool_]
    probability: FloatArray
    window: IntArray
    starts: IntArray
    draft_len: int
    accepted: float

    @property
    def windows(self) -> IntArray:
        """The windows, in order."""
        return self.window[self.starts]

    def mean(self, values: Any) -> FloatArray:
        """Return the expectation per step of ``values`` ([steps] or a scalar) in each window: [windows]."""
        weighted = np.broadcast_to(np.asarray(values, dtype=np.float64), self.h.shape) * self.probability
        return np.add.reduceat(weighted, self.starts)

    @property
    def flush_rate(self) -> FloatArray:
        """Flushes per step: [windows]; exactly 1 where every step flushes, as at L = T, and 0 where none does."""
        every = np.minimum.reduceat(self.flush, self.starts)
        return np.where(every, 1.0, np.minimum(self.mean(self.flush), 1.0))

    @property
    def steps_per_cycle(self) -> FloatArray:
        """Mean steps from one flush to the next: [windows]."""
        return 1.0 / self.flush_rate

    @property
    def tokens_per_cycle(self) -> FloatArray:
        """Mean tokens committed from one flush to the next (Wald's identity): [windows]."""
        return self.accepted * self.steps_per_cycle


def flushes(h: Any, window: Any, draft_len: int) -> Any:
    """Return whether a step with ``h`` committed records flushes. Source: paper, Alg. 1 (T = 1), App. D.1 (T > 1).

    Verify at T = 1 keeps its own rule (:func:`verify_chain`); this is what the two phases do.
    """
    return h + 1 == window if draft_len == 1 else h + draft_len > window


def decode_chain(window: Any) -> Chain:
    """Return the cycle of decode: h = 0..L-1, each as often as the others, the last one flushes.

    Args:
        window: L, or several.

    Raises:
        InputError: a window is below 1.
    """
    windows = _checked(window, 1)
    starts = np.concatenate(([0], np.cumsum(windows)[:-1])).astype(np.int64)
    owner = np.repeat(np.arange(len(windows)), windows)
    h = np.arange(int(windows.sum()), dtype=np.int64) - starts[owner]
    each = windows[owner]
    return Chain(h, h + 1 == each, 1.0 / each, each, starts, 1, 1.0)


def verify_chain(window: Any, draft_len: int, pmf: FloatArray) -> Chain:
    """Return the stationary distribution of verify steps for an acceptance.

    Args:
        window: L, or several; each at least T.
        draft_len: T.
        pmf: [T], P(a = 1..T), as :func:`perfkit.roofline.acceptance.acceptance_pmf` returns it.

    Raises:
        InputError: T > L, or the mass function is not one of T values.
    """
    windows = _checked(window, draft_len)
    pmf = _checked_pmf(pmf, draft_len)
    renewal = renewal_probabilities(pmf, int(windows.max()))
    starts = np.concatenate(([0], np.cumsum(windows)[:-1])).astype(np.int64)
    owner = np.repeat(np.arange(len(windows)), windows)
    each = windows[owner]
    h = np.arange(int(windows.sum()), dtype=np.int64) - starts[owner] + 1  # 1..L
    flush = h + draft_len > each
    visits = np.where(flush, 0.0, renewal[h])
    # A flush step at h is entered from h - a <= L - T with probability P(a): summed over a, T terms at most.
    for accepted, probability in enumerate(pmf, start=1):
        before = h - accepted
        entered = flush & (before >= 0) & (before + draft_len <= each)
        visits[entered] += probability * renewal[before[entered]]
    steps = np.add.reduceat(visits, starts)
    keep = visits > 0  # at constant a most h are never visited; every window keeps its flush step
    kept_starts = np.concatenate(([0], np.cumsum(np.add.reduceat(keep.astype(np.int64), starts))[:-1])).astype(np.int64)
    return Chain(
        h[keep],
        flush[keep],
        (visits / steps[owner])[keep],
        each[keep],
        kept_starts,
        draft_len,
        pmf_mean(pmf),
    )


def committed_chain(pmf: FloatArray) -> Chain:
    """Return the steps of a verify method without a window: h = a with the probability of a; none flushes.

    Args:
        pmf: [T], P(a = 1..T); of a tree, T is its depth.
    """
    draft_len = len(np.atleast_1d(pmf))
    pmf = _checked_pmf(pmf, draft_len)
    h = np.flatnonzero(pmf).astype(np.int64) + 1
    return Chain(h, np.zeros(len(h), dtype=bool), pmf[h - 1] / pmf[h - 1].sum(), np.full(len(h), draft_len, np.int64),
                 np.zeros(1, dtype=np.int64), draft_len, pmf_mean(pmf))  # fmt: skip


def phase_chain(window: Any, draft_len: int, pmf: FloatArray) -> Chain:
    """Return the chain of the phase that T stands for: decode at T = 1, else verify."""
    return decode_chain(window) if draft_len == 1 else verify_chain(window, draft_len, pmf)


def renewal_probabilities(pmf: FloatArray, length: int) -> FloatArray:
    """Return u(0..length), the probability that sums of independent a hit each number: u(0) = 1."""
    draft_len = len(pmf)
    renewal = np.zeros(length + 1)
    renewal[0] = 1.0
    reversed_pmf = pmf[::-1]
    for h in range(1, length + 1):
        reach = min(h, draft_len)
        renewal[h] = reversed_pmf[draft_len - reach :] @ renewal[h - reach : h]
    return renewal


def flush_rates(windows: Any, draft_len: int, pmf: FloatArray) -> FloatArray:
    """Return verify's flushes per step for many windows at once, without building their chains.

    A cycle has one step for every visit to h = 1..L-T and one flush: 1 / (1 + sum u(1..L-T)).
    """
    checked = _checked(windows, draft_len)
    pmf = _checked_pmf(pmf, draft_len)
    visits = np.cumsum(renewal_probabilities(pmf, int(checked.max()) - draft_len))  # counts u(0) = 1: the flush
    return np.asarray(1.0 / visits[checked - draft_len])


def period(window: Any, draft_len: Any, accepted: Any) -> Any:
    """Return verify's steps per cycle at constant a: floor((L - T) / a) + 1, starting from h = a.

    Arrays broadcast. Source: paper, App. D.1.
    """
    return (np.asarray(window) - draft_len) // accepted + 1


def cycle(window: int, draft_len: int, accepted: int) -> IntArray:
    """Return h before each step of one verify cycle at constant a: a, 2a, ...; the last step flushes."""
    return accepted * np.arange(1, int(period(window, draft_len, accepted)) + 1, dtype=np.int64)


def _checked(window: Any, draft_len: int) -> IntArray:
    """Return the windows as [windows] int64, each at least T."""
    windows = np.atleast_1d(np.asarray(window))
    if draft_len < 1:
        raise InputError("must be at least 1", field="draft", value=draft_len)
    if windows.size == 0 or not np.issubdtype(windows.dtype, np.integer):
        raise InputError("must be a whole number", field="window", value=window)
    least = int(windows.min())
    if least < 1:
        raise InputError("must be at least 1", field="window", value=least)
    if least < draft_len:
        raise InputError(f"window smaller than the draft length T = {draft_len}", field="window", value=least)
    return windows.astype(np.int64)


def _checked_pmf(pmf: FloatArray, draft_len: int) -> FloatArray:
    """Return the mass function as float64, or say what is wrong with it."""
    pmf = np.asarray(pmf, dtype=np.float64)
    if pmf.shape != (draft_len,):
        raise InputError(f"needs {draft_len} probabilities, P(a = 1..T)", field="accepted", value=pmf.shape)
    if np.any(pmf < 0) or not np.isclose(pmf.sum(), 1.0, rtol=0, atol=1e-9):
        raise InputError("probabilities must be >= 0 and sum to 1", field="accepted", value=pmf.tolist())
    return pmf
