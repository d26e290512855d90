"""What fits say of times that they have not seen.

Rows are held out by model and method together, never at random: windows and acceptances of one kernel share its errors,
and a fit that has seen the others of a group knows them. What a method does on a model is then predicted from the same
method on other models of the family, or where there is none from another family's
(:func:`perfkit.roofline.efficiency.borrowed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.errors import InputError
from perfkit.roofline.efficiency import CONFIDENCE, UNTRIED_LOAN, Efficiency, borrowed
from perfkit.roofline.fitting import Key, Observation, errors, fit_all, predicted

#: The interval that held-out rows are counted in.
HELD_OUT_CONFIDENCE = 0.90
#: Median |x| of a normal distribution, for the scale of loans: one bad kernel says nothing of the others.
_MEDIAN_NORMAL = 0.6745


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What fits that have not seen a row's model and method say of it.

    Attributes:
        key: family, method, phase, GPU.
        model: its key.
        case_id: of the row.
        time_us: measured.
        predicted_us: predicted.
        lo: lower end of the 90 % interval.
        hi: upper end.
        lender: the family that the prediction is borrowed from; None where another model of the family was timed.
    """

    key: Key
    model: str
    case_id: str
    time_us: float
    predicted_us: float
    lo: float
    hi: float
    lender: str | None

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_us / self.time_us - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured time is inside the interval."""
        return self.lo <= self.time_us <= self.hi


def held_out(observations: Mapping[Key, Sequence[Observation]]) -> list[HeldOut]:
    """Return what is predicted of each row when its model's rows of the method are left out; in their order.

    Rows of a method that no other model was timed with, and no other family, are not among them.
    """
    out: list[HeldOut] = []
    done: dict[tuple[Any, ...], Efficiency] = {}
    for key, seen in observations.items():
        for model in dict.fromkeys(one.model for one in seen):
            rest = dict(observations)
            rest[key] = [one for one in seen if one.model != model]
            if not rest[key]:
                del rest[key]
            fits = fit_all(rest, done)
            found = next((one for one in fits if (one.family, one.method, one.phase, one.gpu) == key), None)
            if found is None:
                worth = loan(rest, fits)
                found = borrowed(*key[:3], fits, worth["width"] if worth is not None else UNTRIED_LOAN)
            if found is None:
                continue
            rows = [one for one in seen if one.model == model]
            for one, us in zip(rows, predicted(found, rows), strict=True):
                width = _width_at(found, one.window, HELD_OUT_CONFIDENCE)
                out.append(HeldOut(key, model, one.case_id, one.time_us, float(us), float(us) / width,
                                   float(us) * width, found.lender))  # fmt: skip
    return out


def _width_at(found: Efficiency, window: int | None, confidence: float) -> float:
    """Return the factor of the interval at another confidence: as much narrower as the quantiles of its spread are."""
    from scipy.stats import t

    share = float(t.ppf(0.5 + confidence / 2, found.freedom) / t.ppf(0.5 + CONFIDENCE / 2, found.freedom))
    return float((1.0 + found.width_at(window)) ** share)


def loan(observations: Mapping[Key, Sequence[Observation]], fits: Sequence[Efficiency]) -> dict[str, float] | None:
    """Return what borrowing from another family has been worth, as :func:`perfkit.profiles.measured.load_loan` does.

    None where no method was timed with two families. Each family's times of such a method are predicted from the
    other's.
    """
    from scipy.stats import t

    off = []
    for key, seen in observations.items():
        family, method, phase, _ = key
        others = [one for one in fits if (one.family, one.method, one.phase) != (family, method, phase)]
        found = borrowed(family, method, phase, others, 0.0)
        if found is not None:
            off.append(float(np.sqrt(np.mean(np.log1p(errors(found, seen)) ** 2))))
    if not off:
        return None
    scale = float(np.median(off)) / _MEDIAN_NORMAL
    return {"width": math.expm1(float(t.ppf(0.5 + CONFIDENCE / 2, len(off))) * scale), "n": len(off)}


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of held-out rows in a few numbers.

    Attributes:
        n: rows.
        median: of |predicted / measured - 1|.
        p95: 95th percentile of the same.
        covered: share of the rows inside the 90 % interval.
    """

    n: int
    median: float
    p95: float
    covered: float


def summary(rows: Sequence[HeldOut]) -> Summary:
    """Return the errors of held-out rows in a few numbers.

    Raises:
        InputError: there are none.
    """
    if not rows:
        raise InputError("nothing to hold out: times of two models or two families are needed", field="rows")
    off = np.abs([one.error for one in rows])
    return Summary(len(rows), float(np.median(off)), float(np.quantile(off, 0.95)),
                   float(np.mean([one.inside for one in rows])))  # fmt: skip
