"""Which row to run, what it gains over what engines do without a replay buffer, and whether that clears the doubt.

The doubt is about kernels: the roofs, the engine's own time and acceptance are the same on both sides of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from perfkit.plan.question import Question
from perfkit.plan.rows import Choice, Row, Table, compare

Verdict = Literal["change", "no change", "unproven", "over the limit"]
#: What engines do today: a gain is over the better of them.
STANDARD = ("conventional", "snapshot")
#: A gain below this is none, however sure: it is what runs of one binary differ by over days.
LEAST_GAIN = 1.01


@dataclass(frozen=True, slots=True)
class Ratio:
    """Throughput of one row over another's.

    Attributes:
        value: of the predictions.
        lo: lower end by what is not known of either's kernels.
        hi: upper end.
    """

    value: float
    lo: float
    hi: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a plan says.

    Attributes:
        table: what was compared.
        best: the row of most throughput that keeps the limit.
        baseline: the best row of the standard methods; None where none of them runs.
        plain: conventional decode, one token a step; None where it was not asked for or does not fit.
        gain: of ``best`` over ``baseline``; None without one.
        verdict: ``change``: the gain clears the doubt; ``no change``: it does not, or there is none; ``unproven``:
            bytes promise one and the kernels of one side were never timed; ``over the limit``: nothing keeps it.
    """

    table: Table
    best: Row
    baseline: Row | None
    plain: Row | None
    gain: Ratio | None
    verdict: Verdict

    @property
    def chosen(self) -> Row:
        """The row to run: the baseline where nothing better is proven."""
        return self.best if self.verdict != "no change" or self.baseline is None else self.baseline


def answer(question: Question) -> Answer:
    """Return what to run.

    Raises:
        InputError: as :func:`perfkit.plan.rows.compare`.
    """
    return judge(compare(question))


def judge(table: Table) -> Answer:
    """Return what a table says."""
    first = table.choices[0]
    best = first.row()
    standard = _first(table, lambda choice: choice.method in STANDARD)
    plain = _first(table, lambda choice: choice.method == "conventional")
    if standard is None:
        return Answer(table, best, None, None, None, "change" if first.within_sla else "over the limit")
    baseline = best if standard is first else standard.row()
    plain_row = baseline if plain is standard else plain.row() if plain is not None else None
    gain = ratio(best, baseline)
    return Answer(table, best, baseline, plain_row, gain, _verdict(best, baseline, gain))


def ratio(over: Row, under: Row) -> Ratio:
    """Return the throughput of a row over another's, with what is not known of their kernels."""
    value = over.tokens_per_s / under.tokens_per_s
    if over == under:
        return Ratio(1.0, 1.0, 1.0)
    down = math.hypot(math.log(over.kernel_hi_ms / over.step_ms), math.log(under.step_ms / under.kernel_lo_ms))
    up = math.hypot(math.log(over.step_ms / over.kernel_lo_ms), math.log(under.kernel_hi_ms / under.step_ms))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def _verdict(best: Row, baseline: Row, gain: Ratio) -> Verdict:
    if not best.within_sla:
        return "over the limit"
    if best is baseline or gain.value < LEAST_GAIN:
        return "no change"
    if gain.lo > 1 or not baseline.within_sla:
        return "change"
    return "unproven" if best.is_bound or baseline.is_bound else "no change"


def _first(table: Table, wanted: Callable[[Choice], bool]) -> Choice | None:
    return next((choice for choice in table.choices if wanted(choice)), None)
