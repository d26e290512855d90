"""What an implementation adds to the bound from bytes: a few physical parameters, fitted to measured times.

    time = launches x node + (1 + record_share x records) x (overhead + walk x tiles + body / efficiency)

body is the larger of memory at its roof, arithmetic and the chain of updates (:mod:`perfkit.roofline.latency`).
The parameters belong to the kernels of one method and phase, and not to a model or a GPU:

``overhead_us``   the chain of dependent trips of one program beyond the roof's own ramp (slot, state, store).
``walk_us``       the same where a program walks down its heads' rows: so much for each tile of 16 rows of d_v.
``record_share``  what each record that the buffer's tile holds adds to a program. Kernels hold records in tiles of
                  a power of two, so the window counts rounded up; between powers of two this is read off the kernels
                  and not measured.
``efficiency``    share of the roof that large batches approach.

Each method has two or three of them (:data:`FORMS`); the others have no effect. They are fitted with L2 cold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError

Array = NDArray[np.float64]

#: Name of each parameter: the value without effect, where a fit starts, and what it may be.
PARAMETERS: Mapping[str, tuple[float, float, tuple[float, float]]] = {
    "overhead_us": (0.0, 1.0, (0.0, 100.0)),
    "walk_us": (0.0, 1.0, (0.0, 100.0)),
    "record_share": (0.0, 0.001, (0.0, 1.0)),
    "efficiency": (1.0, 0.9, (0.01, 1.0)),
}
#: The parameters of a method's kernels. Conventional programs each hold one tile; replay's walk down their heads.
FORMS: Mapping[str, tuple[str, ...]] = {"replay": ("walk_us", "record_share", "efficiency")}
DEFAULT_FORM = ("overhead_us", "efficiency")
#: Rows of a tile in a walk.
TILE_ROWS = 16
#: Least relative spread of a time about its prediction. Rows of one model do not show how models differ: a fit to one
#: model's conventional rows left 0.6 % and missed another model's by 2.5 % (RMS). Chosen after seeing that.
MIN_SPREAD = 0.025
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The fitted parameters of one method's kernels.

    Attributes:
        family: mamba2, gdn or kda.
        method: its key.
        phase: decode or verify.
        gpu: key of the GPU that the rows are from.
        overhead_us: see the module, as the next three.
        walk_us: µs per tile of 16 rows.
        record_share: per record.
        efficiency: 0 to 1.
        spread: relative spread of measured times about the fit.
        width: half width of the 95 % interval of a predicted time, as a factor less 1.
        intervals: 95 % interval of each fitted parameter.
    """

    family: str
    method: str
    phase: str
    gpu: str
    overhead_us: float = 0.0
    walk_us: float = 0.0
    record_share: float = 0.0
    efficiency: float = 1.0
    spread: float = MIN_SPREAD
    width: float = 2 * MIN_SPREAD
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def time_us(self, launch_us: Any, body_us: Any, d_v: Any = 0, window: Any = None) -> Any:
        """Return the time of a step; numbers or arrays that broadcast.

        Args:
            launch_us: launches x node.
            body_us: what the step takes at its roof.
            d_v: rows of a head's state.
            window: of the replay buffer; None for a method without one.
        """
        fixed = self.overhead_us + self.walk_us * np.ceil(np.asarray(d_v) / TILE_ROWS)
        return launch_us + self.slowdown(window) * (fixed + np.asarray(body_us) / self.efficiency)

    def slowdown(self, window: Any) -> Any:
        """Return 1 + record_share x records that the buffer's tile holds."""
        return 1.0 + self.record_share * tile_of(window)

    def fixed_us(self, d_v: Any = 0, window: Any = None) -> Any:
        """Return what a step takes beyond launches and the roof, whatever the batch."""
        return self.time_us(0.0, 0.0, d_v, window)


def tile_of(window: Any) -> Any:
    """Return the power of two that holds ``window`` records; 0 for None."""
    return 0.0 if window is None else 2.0 ** np.ceil(np.log2(np.maximum(window, 1)))


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time and what the bound says about it.

    Attributes:
        time_us: measured, mean of a step.
        launch_us: launches x node.
        body_us: at the roof, mean of a step.
        d_v: rows of a head's state.
        window: None for a method without one.
        model: its key.
        batch: rows.
    """

    time_us: float
    launch_us: float
    body_us: float
    d_v: int
    window: int | None
    model: str
    batch: int


def predicted(found: Efficiency, observations: Sequence[Observation]) -> Array:
    """Return the fit's time of each observation."""
    return np.array([found.time_us(o.launch_us, o.body_us, o.d_v, o.window) for o in observations], dtype=np.float64)


def errors(found: Efficiency, observations: Sequence[Observation]) -> Array:
    """Return predicted / measured - 1."""
    return np.asarray(predicted(found, observations) / [o.time_us for o in observations] - 1.0, dtype=np.float64)


def covered(found: Efficiency, observations: Sequence[Observation]) -> float:
    """Return the share of measured times inside the fit's interval."""
    return float(np.mean(np.abs(np.log1p(errors(found, observations))) <= math.log1p(found.width)))


def _clusters(observations: Sequence[Observation]) -> list[tuple[str, int]]:
    """Return the models and batches of the times: windows, draft lengths and acceptances of one share their errors."""
    return list(dict.fromkeys((o.model, o.batch) for o in observations))


def enough(method: str, observations: Sequence[Observation]) -> bool:
    """Say whether the times are at enough batches for a fit of the method's parameters."""
    return len(_clusters(observations)) >= len(FORMS.get(method, DEFAULT_FORM)) + 2


def fit(family: str, method: str, phase: str, gpu: str, observations: Sequence[Observation]) -> Efficiency:
    """Fit a method's parameters by relative least squares.

    Windows of one model and batch share their errors (one kernel, one tuner), so they count as one cluster: in the
    parameters' intervals (sandwich estimate from the Jacobian) and in the degrees of freedom of the spread.

    Raises:
        InputError: fewer than two clusters more than parameters.
    """
    from scipy.optimize import least_squares
    from scipy.stats import t

    names = FORMS.get(method, DEFAULT_FORM)
    clusters = _clusters(observations)
    free = len(clusters) - len(names)
    if not enough(method, observations):
        raise InputError(f"needs times at {len(names) + 2} batches or more", field=f"{family} {method} {phase}",
                         value=len(clusters))  # fmt: skip

    def made(values: Iterable[float]) -> Efficiency:
        given: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
        return Efficiency(family, method, phase, gpu, **given)

    def residuals(values: Array) -> Array:
        return errors(made(values), observations)

    low, high = zip(*(PARAMETERS[name][2] for name in names), strict=True)
    start = [PARAMETERS[name][1] for name in names]
    found = least_squares(residuals, start, bounds=(low, high), x_scale=start,
                          xtol=1e-12, ftol=1e-12, gtol=1e-12)  # fmt: skip
    ratio = len(clusters) / free
    spread = max(MIN_SPREAD, math.sqrt(float(np.mean(found.fun**2)) * ratio))
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, free))
    which = np.array([clusters.index((o.model, o.batch)) for o in observations])
    slopes: Array = np.asarray(found.jac, dtype=np.float64)
    scores = np.array([slopes[which == i].T @ found.fun[which == i] for i in range(len(clusters))])
    bread = np.linalg.inv(slopes.T @ slopes)
    half = quantile * np.sqrt(np.diag(bread @ (scores.T @ scores) @ bread) * ratio)
    intervals = {name: (max(float(x - h), lo), min(float(x + h), hi))
                 for name, x, h, lo, hi in zip(names, found.x, half, low, high, strict=True)}  # fmt: skip
    return replace(made(found.x), spread=spread, width=quantile * spread, intervals=intervals)


def from_entry(entry: Mapping[str, Any]) -> Efficiency:
    """Return the fit that an entry of :func:`perfkit.profiles.load_efficiency` holds."""
    given = entry["parameters"]
    return Efficiency(
        **{name: entry[name] for name in ("family", "method", "phase", "gpu", "spread", "width")},
        **{name: item["value"] for name, item in given.items()},
        intervals={name: (item["lo"], item["hi"]) for name, item in given.items()},
    )


@cache
def shipped() -> tuple[Efficiency, ...]:
    """Return the fits that ship with perfkit."""
    from perfkit.profiles import load_efficiency

    return tuple(map(from_entry, load_efficiency()))


def efficiency_for(family: str, method: str, phase: str, gpu: str | None = None) -> Efficiency | None:
    """Return what is known of a method's kernels: on that GPU, else on any; None for a method never measured."""
    known = [one for one in shipped() if (one.family, one.method, one.phase) == (family, method, phase)]
    return next((one for one in known if one.gpu == gpu), known[0] if known else None)
