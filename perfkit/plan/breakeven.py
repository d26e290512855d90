"""From which batch on a choice beats the standard method of its phase: state-space layers at the same T."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.plan.answer import Answer
from perfkit.plan.drafts import Drafts
from perfkit.plan.rows import Row, compare

#: Batches that are tried at least.
BATCHES = 1024


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The batch from which on a method pays; None where it never does.

    Attributes:
        method: its key.
        against: the standard method of the phase.
        draft_len: T of both.
        window: L.
        batch: predicted.
        surely: where the gain clears what is not known of both kernels, by the rule of an answer
            (:func:`perfkit.plan.answer.ratio`).
        at_best: where it may be one by the same.
    """

    method: str
    against: str
    draft_len: int
    window: int | None
    batch: int | None
    surely: int | None
    at_best: int | None


def break_even(found: Answer, row: Row) -> BreakEven | None:
    """Return from which batch on a row's method beats conventional decode, or snapshots where it verifies.

    None for one of these itself, or where there is none to compare with.
    """
    control = "conventional" if row.draft_len == 1 else "snapshot"
    if row.method == control:
        return None
    asked = found.table.question
    only = asked.but(methods=(control, row.method), drafts=Drafts((row.draft_len,), asked.drafts.rates), sla_ms=None,
                     windows=(row.window,) if row.window else (), state_dtypes=(row.state_dtype,))  # fmt: skip
    try:
        blocks = {block.method.key: block for block in compare(only).blocks}
    except InputError:
        return None
    if set(blocks) != {control, row.method}:
        return None
    batches = np.arange(1, max(BATCHES, asked.concurrency) + 1)
    mine, theirs = (blocks[key].layer.times(batches[:, None]) for key in (row.method, control))
    gain = np.log(theirs.us / mine.us)[:, 0]
    down = np.hypot(np.log(mine.kernel_hi / mine.us), np.log(theirs.us / theirs.kernel_lo))[:, 0]
    up = np.hypot(np.log(mine.us / mine.kernel_lo), np.log(theirs.kernel_hi / theirs.us))[:, 0]
    return BreakEven(
        row.method, control, row.draft_len, row.window, batch=_from(batches, gain > 0),
        surely=_from(batches, gain > down), at_best=_from(batches, gain > -up),
    )  # fmt: skip


def _from(batches: NDArray[np.int64], wins: NDArray[np.bool_]) -> int | None:
    """Return the batch from which on it wins at every larger one."""
    if not wins[-1]:
        return None
    losses = np.flatnonzero(~wins)
    return int(batches[losses[-1] + 1] if losses.size else batches[0])
