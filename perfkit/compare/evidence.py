"""What a run knows of one case's time over its control's, and what two runs together say of its change.

Everything is in natural logarithms: a change by the same factor up or down weighs the same, and a ratio of ratios is a
difference. Samples of a case and of its control were taken in interleaved rounds of one process, so their ratio is
taken round by round, where drift of the clocks cancels; two runs are independent, so between them nothing is paired.

The location is the mean without the tenth of the samples at either end, with the error that belongs to it: a rare
outlier leaves it alone, and its t statistic has a tail that can be trusted where many cases are corrected for, at one
in ten thousand and with ten samples, or five; ranks of five can tell no more than 1 in 126, a bootstrap no more than
it resamples. The degrees of freedom are those of the side that has fewer, which never finds too many: Welch's
approximation does in the far tail, where one run has few samples and the other many.

Source: Yuen 1974, "The two-sample trimmed t for unequal population variances"; Mickey and Brown 1966, "Bounds on the
distribution functions of the Behrens-Fisher statistic".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from perfkit.stats import LEVEL, by_round

#: Share of the samples that is left out at either end.
TRIM = 0.1
_TAIL = (1 - LEVEL) / 2
Kind = Literal["samples", "intervals"]
Row = Mapping[str, Any]
Series = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A case's time over its control's in one run.

    Attributes:
        log_ratio: natural logarithm of the ratio; above 0 the case is slower than the control.
        error: standard error of it; infinite where one sample is all there is.
        freedom: degrees of freedom of the error.
        n: samples behind it, None where the run does not say.
        kind: from the samples themselves, or from the intervals that rows store.
    """

    log_ratio: float
    error: float
    freedom: float
    n: int | None
    kind: Kind

    @property
    def ratio(self) -> float:
        """Time of the case over the control's."""
        return math.exp(self.log_ratio)


@dataclass(frozen=True, slots=True)
class Change:
    """How much a case's time over its control's changed from one run to another; 0.04 is 4 % slower.

    Attributes:
        value: the estimate.
        lo: lower end of the 95 % interval of the samples, moved out by the floor.
        hi: upper end.
        floor: by how much runs of the same code may differ; samples within a run cannot show it.
        p: probability of an estimate this far off, or further, if the truth were no further than the floor.
    """

    value: float
    lo: float
    hi: float
    floor: float
    p: float


def from_samples(case: Series, control: Series) -> Evidence | None:
    """Return the evidence of two series of samples, ratios taken within rounds that have a sample of each.

    Args:
        case: ``time_us`` and ``round`` of the case.
        control: the same of its control, timed in the same rounds.

    Returns:
        None where the series have no rounds, or none in common.
    """
    mine, base = _rounds(case), _rounds(control)
    if mine is None or base is None:
        return None
    n = max(*mine[0], *base[0]) + 1
    series = [by_round(rounds, times, n) for rounds, times in (mine, base)]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(series[0] / series[1])
    logs = logs[np.isfinite(logs)]
    return Evidence(*trimmed(logs), len(logs), "samples") if len(logs) else None


def _rounds(series: Series) -> tuple[list[int], list[float]] | None:
    rounds, times = series.get("round") or [], series.get("time_us") or []
    if not rounds or len(rounds) != len(times):
        return None
    return [int(one) for one in rounds], [math.nan if one is None else float(one) for one in times]


def trimmed(samples: ArrayLike) -> tuple[float, float, float]:
    """Return the trimmed mean of samples, its standard error and its degrees of freedom.

    The error is that of the winsorized samples, over those that are left. One sample has an infinite error.
    """
    values = np.sort(np.asarray(samples, np.float64))
    n = len(values)
    cut = int(TRIM * n)
    left = n - 2 * cut
    mean = float(values[cut : n - cut].mean())
    if left < 2:
        return mean, math.inf, 1.0
    winsorized = np.clip(values, values[cut], values[n - cut - 1])
    return mean, float(np.sqrt((n - 1) * winsorized.var(ddof=1) / (left * (left - 1)))), left - 1.0


def from_row(row: Row, control: Row) -> Evidence | None:
    """Return the evidence of stored intervals: of the speedup, paired by round, or else of both times.

    A row says how many samples its interval is from; with few of them the interval is wider than a normal one.
    """
    n = row.get("n_samples")
    freedom = max(1.0, n - 1.0) if n else math.inf
    width = _error(row, "speedup")
    if width is not None:
        return Evidence(-math.log(row["speedup"]), width, freedom, n, "intervals")
    if not row.get("time_us") or not control.get("time_us"):
        return None
    errors = [_error(one, "time_us") for one in (row, control)]
    error = math.hypot(*(math.inf if one is None else one for one in errors))
    return Evidence(math.log(row["time_us"] / control["time_us"]), error, freedom, n, "intervals")


def _error(row: Row, name: str) -> float | None:
    """Return the standard error of a logarithm from the 95 % interval of its column, None without one."""
    value, lo, hi = (row.get(f"{name}{end}") for end in ("", "_lo", "_hi"))
    if not value or not lo or not hi or not 0 < lo <= hi:
        return None
    return math.log(hi / lo) / 2 / float(stdtrit(math.inf, 1 - _TAIL))


def change(base: Evidence, new: Evidence, floor: float) -> Change:
    """Return the change from one run to another by a t-test of unequal variances that leaves room for the floor.

    The null hypothesis is that the true change is no further from none than ``floor`` (a share, such as 0.005).
    """
    off, limit = new.log_ratio - base.log_ratio, math.log1p(floor)
    error = math.hypot(base.error, new.error)
    freedom = min(base.freedom, new.freedom)
    reach = limit + (error * float(stdtrit(freedom, 1 - _TAIL)) if error else 0.0)
    lo, hi = (math.expm1(off + side * reach) if math.isfinite(reach) else side * math.inf for side in (-1, 1))
    return Change(math.expm1(off), lo, hi, floor, _p_value(abs(off), limit, error, freedom))


def _p_value(off: float, limit: float, error: float, freedom: float) -> float:
    if not math.isfinite(error):
        return 1.0
    if error == 0:
        return 0.0 if off > limit else 1.0
    near, far = (float(stdtr(freedom, -(off + side * limit) / error)) for side in (-1, 1))
    return min(1.0, near + far)
