"""From changes to verdicts: a correction for many cases, what counts as the same, what counts as a regression.

One false alarm fails a build, so what is limited is the chance that a comparison of a run with its like raises any:
Holm's correction, which holds whatever the cases have in common (a control, a clock). A false discovery rate would let
a false alarm pass beside every twenty true ones. The limit is 1 %, so that twenty comparisons of runs of the same code
raise at most one alarm, rather than one on average.

Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from perfkit.compare.evidence import Change

Verdict = Literal["slower", "faster", "same", "ambiguous", "missing"]
#: Worst first; ``missing`` is a case that has no ratio in one of the runs.
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "ambiguous", "same", "missing")
#: Chance that a comparison of two runs of the same code calls any case slower or faster.
ALPHA = 0.01
#: What runs of the same code are taken to differ by beyond what their samples show, as a share, where no larger A/A
#: difference is stored: half of one percent, to which a sweep measures its times.
FLOOR = 0.005
#: A case is the same where its interval lies within this share, or within four floors if that is more.
SAME, SAME_FLOORS = 0.02, 4.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number: with those below a level, the chance of any error is that level."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(order) - rank)))
        adjusted[index] = highest
    return adjusted


def margin(floor: float) -> float:
    """Return the share within which a case whose group has this floor counts as the same."""
    return max(SAME, SAME_FLOORS * floor)


def verdict(change: Change, p_adjusted: float) -> Verdict:
    """Return what can be said of a change.

    ``slower`` or ``faster`` is significantly more than the floor; ``same`` has its whole interval within the margin;
    ``ambiguous`` is neither: samples are too few or too noisy to tell.
    """
    if p_adjusted < ALPHA:
        return "slower" if change.value > 0 else "faster"
    limit = math.log1p(margin(change.floor))
    near = change.lo > -1 and -limit <= math.log1p(change.lo) and math.log1p(change.hi) <= limit
    return "same" if near else "ambiguous"


def is_regression(change: Change, found: Verdict, percent: float) -> bool:
    """Say whether a case fails ``--fail-on-regression PERCENT``: it is slower, and the middle of its interval above it.

    That it is slower at all is certain: noise alone gets no case there, as the correction asks for some four standard
    errors beyond the floor. On which side of the limit a slowdown lies is then judged by what is likelier. To ask for
    the whole interval would let through what is above the limit in fact, the more so the noisier a run is.
    """
    return found == "slower" and change.value * 100 > percent


def may_be_regression(change: Change, found: Verdict, percent: float) -> bool:
    """Say whether a case that does not fail may still be above the limit: its interval reaches there."""
    return found != "faster" and change.hi * 100 > percent and not is_regression(change, found, percent)
