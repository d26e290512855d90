"""Which row to run, what it gains over what engines do without a replay buffer, and whether that clears the doubt.

The doubt is about kernels: the roofs, the engine's own time and acceptance are the same on both sides of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from perfkit.plan.question import Question
from perfkit.plan.rows import Choice, Row, Spread, Table, compare

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


@dataclass(frozen=True)
class Answer:
    """What a plan says.

    Attributes:
        table: what was compared.
        first: the choice of most throughput that keeps the limit.
        standard: the best choice of the standard methods; None where none of them runs.
        gain: of ``first`` over ``standard``; None without one.
        verdict: ``change``: the gain clears the doubt, or the limit is kept that ``standard`` breaks; ``no change``: it
            does not, or there is none; ``unproven``: bytes promise one and the kernels of one side were never timed;
            ``over the limit``: nothing keeps it.
    """

    table: Table
    first: Choice
    standard: Choice | None
    gain: Ratio | None
    verdict: Verdict

    @property
    def choice(self) -> Choice:
        """What to run: the standard method where nothing better is proven."""
        return self.first if self.verdict != "no change" or self.standard is None else self.standard

    @cached_property
    def best(self) -> Row:
        """The row of ``first``."""
        return self.first.row()

    @cached_property
    def baseline(self) -> Row | None:
        """The row of ``standard``."""
        if self.standard is self.first:
            return self.best
        return self.standard.row() if self.standard is not None else None

    @cached_property
    def plain(self) -> Row | None:
        """Conventional decode, one token a step; None where it was not asked for or does not fit."""
        return _row(self, _first(self.table, lambda choice: choice.method == "conventional"))

    @property
    def chosen(self) -> Row:
        """The row to run."""
        return self.best if self.choice is self.first or self.baseline is None else self.baseline


def answer(question: Question) -> Answer:
    """Return what to run.

    Raises:
        InputError: as :func:`perfkit.plan.rows.compare`.
    """
    return judge(compare(question))


def judge(table: Table) -> Answer:
    """Return what a table says."""
    first = table.choices[0]
    standard = _first(table, lambda choice: choice.method in STANDARD)
    if standard is None:
        return Answer(table, first, None, None, "change" if first.within_sla else "over the limit")
    gain = Ratio(1.0, 1.0, 1.0) if standard is first else ratio(first.spread, standard.spread)
    return Answer(table, first, standard, gain, _verdict(first, standard, gain))


def ratio(over: Spread, under: Spread) -> Ratio:
    """Return the throughput of a row over another's, with what is not known of their kernels."""
    value = over.tokens_per_s / under.tokens_per_s
    down = math.hypot(math.log(over.down), math.log(under.up))
    up = math.hypot(math.log(over.up), math.log(under.down))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def _verdict(first: Choice, standard: Choice, gain: Ratio) -> Verdict:
    if not first.within_sla:
        return "over the limit"
    if first is standard:
        return "no change"
    if not standard.within_sla:  # whatever it gives
        return "unproven" if first.is_bound else "change"
    if gain.value < LEAST_GAIN:
        return "no change"
    if gain.lo > 1:
        return "change"
    return "unproven" if first.is_bound or standard.is_bound else "no change"


def _row(found: Answer, choice: Choice | None) -> Row | None:
    if choice is None:
        return None
    return found.best if choice is found.first else found.baseline if choice is found.standard else choice.row()


def _first(table: Table, wanted: Callable[[Choice], bool]) -> Choice | None:
    return next((choice for choice in table.choices if wanted(choice)), None)
