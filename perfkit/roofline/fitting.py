"""Fitting efficiencies to measured times, and what the fits say of times that they have not seen.

Rows are held out by model and method together, never at random: windows and acceptances of one kernel share its errors,
and a fit that has seen the others of a group knows them. What a method does on a model is then predicted from the same
method on other models of the family, or where there is none from another family's (:func:`borrowed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline.efficiency import (
    CONFIDENCE,
    DEFAULT_WAIT,
    PARAMETERS,
    PRIOR_FREEDOM,
    PRIOR_SPREAD,
    WAITS,
    Efficiency,
    borrowed,
    form,
)

Array = NDArray[np.float64]
#: family, method, phase, key of the GPU.
Key = tuple[str, str, str, str]
#: Weight of a flush step's time beside the mean's: it is one of many steps, and tuned for less.
FLUSH_WEIGHT = 0.3
#: The interval that held-out rows are counted in.
HELD_OUT_CONFIDENCE = 0.90
#: As perfkit.profiles.measured has it.
UNTRIED_LOAN = 1.0
#: Median |x| of a normal distribution, for the scale of loans: one bad kernel says nothing of the others.
_MEDIAN_NORMAL = 0.6745


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One measured time, and what the bound says about the kinds of step whose mean it is.

    Attributes:
        time_us: measured, mean of a step.
        launch_us: launches x node; a number, or [kinds] of each kind of step.
        body_us: memory at the roof, or the chain; as ``launch_us``.
        d_v: rows of a head's state.
        window: None for a method without one.
        model: its key.
        batch: rows.
        alu_us: the FLOPs at the rates that they can reach; as ``launch_us``.
        draft_len: T.
        weight: share of the steps that are of each kind; they add up to 1.
        flush: whether a kind of step flushes, or of a mean step the share of its bytes that such rows move.
        flush_us: measured, mean of the steps that flush; None where it was not told apart.
        case_id: of the row.
    """

    time_us: float
    launch_us: Any
    body_us: Any
    d_v: int
    window: int | None
    model: str
    batch: int
    alu_us: Any = 0.0
    draft_len: int = 1
    weight: Any = 1.0
    flush: Any = False
    flush_us: float | None = None
    case_id: str = ""


@dataclass(frozen=True, slots=True)
class _Stack:
    """Kinds of step of many observations, one after the other, so that a fit evaluates them at once."""

    launch: Array
    body: Array
    alu: Array
    weight: Array
    flush: Array
    d_v: Array
    window: Array | None
    starts: NDArray[np.intp]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> _Stack:
        parts = [
            np.broadcast_arrays(*(np.atleast_1d(x) for x in (o.launch_us, o.body_us, o.alu_us, o.weight, o.flush)))
            for o in observations
        ]
        sizes = [len(part[0]) for part in parts]
        columns = [np.concatenate([part[i] for part in parts]) for i in range(5)]
        launch, body, alu, weight, flush = (np.asarray(column, dtype=np.float64) for column in columns)
        rows = np.repeat([float(o.d_v) for o in observations], sizes)
        windows = None
        if all(o.window is not None for o in observations):
            windows = np.repeat([float(o.window or 1) for o in observations], sizes)
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.intp)
        return cls(launch, body, alu, weight, flush, rows, windows, starts)

    def times(self, found: Efficiency) -> Array:
        """Return the time of each kind of step."""
        times = found.time_us(self.launch, self.body, self.d_v, self.alu, self.window, self.flush)
        return np.asarray(times, dtype=np.float64)

    def means(self, found: Efficiency) -> Array:
        """Return the mean time of each observation's step."""
        return np.add.reduceat(self.weight * self.times(found), self.starts)

    def flushes(self, found: Efficiency) -> Array:
        """Return the mean time of each observation's steps in which all rows flush; NaN where there are none."""
        weight = self.weight * (self.flush == 1.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(
                np.add.reduceat(weight * self.times(found), self.starts) / np.add.reduceat(weight, self.starts)
            )


def predicted(found: Efficiency, observations: Sequence[Observation]) -> Array:
    """Return the fit's time of each observation, in microseconds."""
    return _Stack.of(observations).means(found)


def errors(found: Efficiency, observations: Sequence[Observation]) -> Array:
    """Return predicted / measured - 1."""
    return np.asarray(predicted(found, observations) / [o.time_us for o in observations] - 1.0, dtype=np.float64)


def covered(found: Efficiency, observations: Sequence[Observation]) -> float:
    """Return the share of measured times inside the fit's 95 % interval."""
    return float(np.mean(np.abs(np.log1p(errors(found, observations))) <= math.log1p(found.width)))


def _clusters(observations: Sequence[Observation]) -> list[tuple[str, int, int]]:
    """Return the models, batches and T of the times: windows and acceptances of one share their errors."""
    return list(dict.fromkeys((o.model, o.batch, o.draft_len) for o in observations))


def enough(method: str, phase: str, observations: Sequence[Observation]) -> bool:
    """Say whether the times are of enough batches or T for a fit of the method's parameters."""
    return len(_clusters(observations)) >= len(form(method, phase))


def fit(key: Key, observations: Sequence[Observation], waits: Mapping[str, float] | None = None) -> Efficiency:
    """Fit a method's parameters by relative least squares.

    Windows and acceptances of one model, batch and T share their errors (one kernel, one tuner), so they count as one
    cluster: in the parameters' intervals (sandwich estimate from the Jacobian) and in the degrees of freedom of the
    spread. The spread is drawn towards what kernels have shown (PRIOR_SPREAD) by as much as PRIOR_FREEDOM clusters.

    Args:
        key: family, method, phase, GPU.
        observations: their times.
        waits: what verify kernels wait for whatever the batch: a parameter and its value.

    Raises:
        InputError: fewer clusters than parameters.
    """
    from scipy.optimize import least_squares
    from scipy.stats import t

    family, method, phase, gpu = key
    names = form(method, phase)
    clusters = _clusters(observations)
    if not enough(method, phase, observations):
        raise InputError(f"needs times at {len(names)} batches or T or more", field=f"{family} {method} {phase}",
                         value=len(clusters))  # fmt: skip
    stack, measured = _Stack.of(observations), np.array([o.time_us for o in observations])
    flushed = np.array([o.flush_us or np.nan for o in observations])
    apart = np.isfinite(flushed) & np.isfinite(stack.flushes(Efficiency(family, method, phase, gpu)))
    if not apart.any():  # its mean says next to nothing of what a flush takes
        names = tuple(name for name in names if name != "flush")

    def made(values: Iterable[float]) -> Efficiency:
        given: dict[str, Any] = dict(waits or {}) | dict(zip(names, map(float, values), strict=True))
        return Efficiency(family, method, phase, gpu, **given)

    def residuals(values: Array) -> Array:
        one = made(values)
        off = stack.means(one) / measured - 1.0
        if "flush" not in names:
            return np.asarray(off)
        return np.concatenate((off, FLUSH_WEIGHT * (stack.flushes(one)[apart] / flushed[apart] - 1.0)))

    low, high = zip(*(PARAMETERS[name][2] for name in names), strict=True)
    start = [PARAMETERS[name][1] for name in names]
    found = least_squares(residuals, start, bounds=(low, high), x_scale=start,
                          xtol=1e-12, ftol=1e-12, gtol=1e-12)  # fmt: skip
    values = np.array([lo if x - lo < 1e-6 * (hi - lo) else x for x, lo, hi in zip(found.x, low, high, strict=True)])
    free = len(clusters) - len(names)
    freedom = free + PRIOR_FREEDOM
    squares = len(clusters) * float(np.mean(found.fun[: len(observations)] ** 2))
    spread = math.sqrt((PRIOR_FREEDOM * PRIOR_SPREAD**2 + squares) / freedom)
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, freedom))
    which = np.array([clusters.index((o.model, o.batch, o.draft_len)) for o in observations])
    if "flush" in names:
        which = np.concatenate((which, which[apart]))
    half = quantile * _standard_errors(found.jac, found.fun, which, spread)
    intervals = {name: (max(float(x - h), lo), min(float(x + h), hi))
                 for name, x, h, lo, hi in zip(names, values, half, low, high, strict=True)}  # fmt: skip
    return replace(made(values), spread=spread, width=math.expm1(quantile * spread), freedom=float(freedom),
                   intervals=intervals, batches=tuple(sorted({o.batch for o in observations})))  # fmt: skip


def _standard_errors(jacobian: Any, residuals: Array, which: NDArray[Any], spread: float) -> Array:
    """Return the parameters' standard errors by clusters, of few no smaller than the spread of their times allows.

    Args:
        jacobian: [residuals, parameters].
        residuals: [residuals].
        which: [residuals], the cluster of each.
        spread: of times about the fit.
    """
    slopes: Array = np.asarray(jacobian, dtype=np.float64)
    number = int(which.max()) + 1
    bread = np.linalg.pinv(slopes.T @ slopes)
    scores = np.array([slopes[which == i].T @ residuals[which == i] for i in range(number)])
    sandwich = np.diag(bread @ (scores.T @ scores) @ bread) * number / max(number - slopes.shape[1], 1)
    if number > slopes.shape[1] + 1:
        return np.asarray(np.sqrt(sandwich))
    # Each cluster is one time as far as its errors go.
    rows = np.array([slopes[which == i].mean(axis=0) for i in range(number)])
    return np.asarray(np.sqrt(np.maximum(sandwich, np.diag(np.linalg.pinv(rows.T @ rows)) * spread**2)))


def fit_all(
    observations: Mapping[Key, Sequence[Observation]], done: dict[tuple[Any, ...], Efficiency] | None = None
) -> tuple[Efficiency, ...]:
    """Fit every method that has enough times; decode first, whose waits the verify kernels share.

    ``done`` keeps what was fitted, so that sets of observations which have most methods in common share their fits.
    """
    done = {} if done is None else done
    fits: dict[Key, Efficiency] = {}
    for key in sorted(observations, key=lambda key: (key[2], key)):
        family, method, phase, gpu = key
        if not enough(method, phase, observations[key]):
            continue
        waits = {}
        if phase == "verify":
            lender, name = WAITS.get(method, DEFAULT_WAIT)
            decode = fits.get((family, lender, "decode", gpu))
            waits = {name: getattr(decode, name)} if decode is not None else {}
        same = (key, *map(id, observations[key]), *waits.items())
        if same not in done:
            done[same] = fit(key, observations[key], waits)
        fits[key] = done[same]
    return tuple(fits[key] for key in sorted(fits))


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
            width = _width_at(found, HELD_OUT_CONFIDENCE)
            for one, us in zip(rows, predicted(found, rows), strict=True):
                out.append(HeldOut(key, model, one.case_id, one.time_us, float(us), float(us) / width,
                                   float(us) * width, found.lender))  # fmt: skip
    return out


def _width_at(found: Efficiency, confidence: float) -> float:
    """Return the factor of the interval at another confidence: as much narrower as the quantiles of its spread are."""
    from scipy.stats import t

    share = float(t.ppf(0.5 + confidence / 2, found.freedom) / t.ppf(0.5 + CONFIDENCE / 2, found.freedom))
    return float((1.0 + found.width) ** share)


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
