"""The window of a choice: by Eq. 16, by bytes over the cursor's real cycle, by predicted time; what a wrong one costs.

Costs are of the whole step's throughput, all that run at once included: a longer window fits fewer requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.plan.answer import Answer
from perfkit.plan.drafts import Drafts
from perfkit.plan.question import WINDOWS
from perfkit.plan.rows import Block, Row, compare
from perfkit.roofline import l_star
from perfkit.roofline import record_bytes as paper_record_bytes
from perfkit.shape import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Other:
    """Another window.

    Attributes:
        window: L.
        cost: time per token over that of the chosen one, less 1; negative where it is faster.
        fits: requests that fit.
    """

    window: int
    cost: float
    fits: int


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """Why this window.

    Attributes:
        window: the chosen one, among those that the engine takes and memory allows.
        fits: requests that fit with it.
        star: Eq. 16's L*; None where it has no optimum (T > M_S / r).
        bytes_best: the window that moves least bytes per token over the real cycle.
        time_best: the fastest of all, whatever the engine takes.
        off_best: what the chosen one costs over that, as a fraction.
        half: half the window; None where T does not fit into it.
        double: twice the window; None beyond those compared.
    """

    window: int
    fits: int
    star: float | None
    bytes_best: int
    time_best: int
    off_best: float
    half: Other | None
    double: Other | None


def window_choice(found: Answer, row: Row) -> WindowChoice | None:
    """Return why a row has its window; None for a method without one."""
    if row.window is None:
        return None
    block = all_windows(found, row)
    running = np.maximum(block.runs, 1)
    tokens = np.where(block.fits > 0, block.tokens_per_s(running), 0.0)
    bytes_per_token = block.layer.mean_bytes(found.table.question.concurrency)
    here = int(np.flatnonzero(block.windows == row.window)[0])
    best = int(np.argmax(tokens))
    asked, shape = found.table.question, found.table.question.model.shape
    record = paper_record_bytes(shape, DTYPE_BYTES[asked.input_dtype])
    star = float(l_star(shape, row.draft_len, row.accepted, record, DTYPE_BYTES[row.state_dtype]))

    def other(window: int) -> Other | None:
        at = np.flatnonzero(block.windows == window)
        if not at.size or not tokens[at[0]]:
            return None
        return Other(window, float(tokens[here] / tokens[at[0]] - 1), int(block.fits[at[0]]))

    return WindowChoice(
        window=row.window, fits=row.fits, star=star or None, bytes_best=int(block.windows[np.argmin(bytes_per_token)]),
        time_best=int(block.windows[best]), off_best=float(tokens[best] / tokens[here] - 1),
        half=other(row.window // 2), double=other(row.window * 2),
    )  # fmt: skip


def all_windows(found: Answer, row: Row) -> Block:
    """Return the block of a row over all windows, whatever the engine takes."""
    asked = found.table.question
    windows = sorted({*(window for window in WINDOWS if window >= row.draft_len), row.window or 1})
    only = asked.but(windows=tuple(windows), drafts=Drafts((row.draft_len,), asked.drafts.rates),
                     methods=(row.method,), state_dtypes=(row.state_dtype,), sla_ms=None)  # fmt: skip
    return compare(only).blocks[0]
