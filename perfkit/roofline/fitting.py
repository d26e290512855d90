"""Fitting efficiencies (:mod:`perfkit.roofline.efficiency`) to measured times."""

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
    DEFAULT_SHARED,
    OPTIONAL,
    PARAMETERS,
    PRIOR_FREEDOM,
    PRIOR_SPREAD,
    SHARED,
    SIBLINGS,
    WIDEST,
    Efficiency,
    form,
    tile_of,
)

Array = NDArray[np.float64]
#: family, method, phase, key of the GPU.
Key = tuple[str, str, str, str]
#: Weight of a flush step's time beside the mean's: it is one of many steps, and tuned for less.
FLUSH_WEIGHT = 0.3


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
    """Return the share of measured times inside the fit's 95 % interval, which is wider at long windows."""
    widths = found.width_at([one.window or 0 for one in observations])
    return float(np.mean(np.abs(np.log1p(errors(found, observations))) <= np.log1p(widths)))


def _clusters(observations: Sequence[Observation]) -> list[tuple[str, int, int]]:
    """Return the models, batches and T of the times: windows and acceptances of one share their errors."""
    return list(dict.fromkeys((o.model, o.batch, o.draft_len) for o in observations))


def enough(method: str, phase: str, observations: Sequence[Observation]) -> bool:
    """Say whether the times are of enough batches or T for a fit of the method's parameters.

    Parameters that no time tells from the rest are done without.
    """
    short, _ = _by_width(observations)
    return len(_clusters(short)) >= _least(method, phase)


def _least(method: str, phase: str) -> int:
    """Return the clusters of times that the parameters need which a fit cannot do without."""
    return len([name for name in form(method, phase) if name not in OPTIONAL[phase]])


def _by_width(observations: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Return the times of windows up to :data:`WIDEST`, or without one, and those beyond."""
    beyond = [o for o in observations if (o.window or 0) > WIDEST]
    return [o for o in observations if (o.window or 0) <= WIDEST], beyond


def fit(key: Key, observations: Sequence[Observation], shared: Mapping[str, float] | None = None) -> Efficiency:
    """Fit a method's parameters by relative least squares.

    Windows and acceptances of one model, batch and T share their errors (one kernel, one tuner), so they count as one
    cluster: in the parameters' intervals (sandwich estimate from the Jacobian) and in the degrees of freedom of the
    spread. The spread is drawn towards what kernels have shown (PRIOR_SPREAD) by as much as PRIOR_FREEDOM clusters.
    Windows beyond :data:`WIDEST` give the parameter ``wide`` alone, a mean over models and windows.

    Args:
        key: family, method, phase, GPU.
        observations: their times.
        shared: parameters that verify kernels share with decode, and their values.

    Raises:
        InputError: fewer clusters than the parameters that a fit cannot do without.
    """
    from scipy.optimize import least_squares
    from scipy.stats import t

    family, method, phase, gpu = key
    names = form(method, phase)
    everything = observations
    observations, beyond = _by_width(observations)
    clusters = _clusters(observations)
    if not enough(method, phase, observations):
        least = _least(method, phase)
        raise InputError(f"needs times at {least} batches or T or more", field=f"{family} {method} {phase}",
                         value=len(clusters))  # fmt: skip
    stack, measured = _Stack.of(observations), np.array([o.time_us for o in observations])
    flushed = np.array([o.flush_us or np.nan for o in observations])
    apart = np.isfinite(flushed) & np.isfinite(stack.flushes(Efficiency(family, method, phase, gpu)))
    if "record_share" in OPTIONAL[phase] and len({tile_of(o.window or 0) for o in observations}) < 2:
        names = tuple(name for name in names if name != "record_share")
    # Windows of one cluster tell that share, which takes no cluster from the others.
    within = {"record_share"} & {*OPTIONAL[phase]}
    # A mean says next to nothing of what a flush takes, and times that few do not tell it from the rest.
    if not apart.any() or len(clusters) < len({*names} - within):
        names = tuple(name for name in names if name != "flush")

    def made(values: Iterable[float]) -> Efficiency:
        given: dict[str, Any] = dict(shared or {}) | dict(zip(names, map(float, values), strict=True))
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

    def snapped(values: Array) -> Array:
        """Return values with those that all but lie on their lower limit put there."""
        return np.where(values - low < 1e-4 * np.subtract(high, low), low, values)

    values = snapped(found.x)
    free = len(clusters) - len({*names} - within)
    freedom = free + PRIOR_FREEDOM
    squares = len(clusters) * float(np.mean(found.fun[: len(observations)] ** 2))
    spread = math.sqrt((PRIOR_FREEDOM * PRIOR_SPREAD**2 + squares) / freedom)
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, freedom))
    which = np.array([clusters.index((o.model, o.batch, o.draft_len)) for o in observations])
    if "flush" in names:
        which = np.concatenate((which, which[apart]))
    half = quantile * _standard_errors(found.jac, found.fun, which, spread)
    ends = np.maximum(values - half, low), np.minimum(snapped(values + half), high)
    intervals = {name: (float(lo), float(hi)) for name, lo, hi in zip(names, *ends, strict=True)}
    one = replace(made(values), spread=spread, width=math.expm1(quantile * spread), freedom=float(freedom),
                  intervals=intervals, batches=tuple(sorted({o.batch for o in everything})))  # fmt: skip
    return _with_wide(one, beyond) if beyond and "record_share" in names else one


def _with_wide(found: Efficiency, beyond: Sequence[Observation]) -> Efficiency:
    """Return a fit with what windows beyond :data:`WIDEST` take over what the rest of it says of them."""
    from scipy.stats import t

    low, high = PARAMETERS["wide"][2]
    over = -np.log1p(errors(replace(found, wide=1.0), beyond))
    models = [o.model for o in beyond]
    # Windows of a model share its kernel; two models or more say how far another may be off.
    means = np.array([np.mean(over[[one == model for one in models]]) for model in dict.fromkeys(models)])
    value = float(np.mean(means))
    freedom = max(len(means) - 1, 1)
    scatter = float(np.std(means, ddof=1)) if len(means) > 1 else found.spread
    half = float(t.ppf(0.5 + CONFIDENCE / 2, freedom)) * scatter / math.sqrt(len(means))
    ends = [float(np.clip(math.exp(x), low, high)) for x in (value, value - half, value + half)]
    return replace(found, wide=ends[0], intervals={**found.intervals, "wide": (ends[1], ends[2])})


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
    """Fit every method that has enough times; decode first, for verify kernels share parameters of it.

    ``done`` keeps what was fitted, so that sets of observations which have most methods in common share their fits.
    """
    done = {} if done is None else done
    fits: dict[Key, Efficiency] = {}
    for phase in ("decode", "verify"):
        for key in sorted(key for key in observations if key[2] == phase):
            family, method, _, gpu = key
            if not enough(method, phase, observations[key]):
                continue
            shared: dict[str, float] = {}
            if phase == "verify":
                lender, names = SHARED.get(method, DEFAULT_SHARED)
                decode = fits.get((family, lender, "decode", gpu))
                shared = {name: getattr(decode, name) for name in names} if decode is not None else {}
            same = (key, *map(id, observations[key]), *shared.items())
            if same not in done:
                done[same] = fit(key, observations[key], shared)
            fits[key] = done[same]
        if phase == "decode":
            fits |= _lent_wide(fits)
    return tuple(fits[key] for key in sorted(fits))


def _lent_wide(fits: Mapping[Key, Efficiency]) -> dict[Key, Efficiency]:
    """Return the decode fits of families without a long window of their own, each with its siblings' mean ``wide``."""
    lent = {}
    for key, mine in fits.items():
        family, method, phase, gpu = key
        if "record_share" in mine.intervals and "wide" not in mine.intervals:
            others = (fits.get((one, method, phase, gpu)) for one in SIBLINGS.get(family, ()))
            known = [math.log(one.wide) for one in others if one is not None and "wide" in one.intervals]
            if known:
                lent[key] = replace(mine, wide=math.exp(float(np.mean(known))))
    return lent
