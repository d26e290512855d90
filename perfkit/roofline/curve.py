"""A roof as time over bytes: small transfers do not reach a plateau, so the intercept is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLATEAU_BYTES = 1e12


@dataclass(frozen=True, slots=True)
class Curve:
    """Time over bytes moved, linear between its knots, of constant bandwidth beyond the last."""

    knot_bytes: tuple[float, ...]
    knot_us: tuple[float, ...]

    @classmethod
    def affine(cls, bandwidth_gb_s: float, ramp_us: float) -> Curve:
        """Return ramp + bytes / bandwidth."""
        return cls((0.0, _PLATEAU_BYTES), (ramp_us, ramp_us + _PLATEAU_BYTES / (bandwidth_gb_s * 1e3)))

    @classmethod
    def measured(cls, points: Sequence[tuple[float, float]], node_us: float, like: Curve | None = None) -> Curve:
        """Return the curve through (bytes, bandwidth_gb_s) points, each timed as one node of a graph.

        The node's own cost is taken off, as predictions add it for every launch, but never so much that a point
        would beat the best bandwidth of all. Below the smallest point the curve is that of ``like``, scaled to meet it;
        without one, a line with the slope of the best bandwidth.
        """
        ordered = sorted(points)
        best = max(bandwidth for _, bandwidth in ordered) * 1e3  # bytes per us
        times: list[float] = []
        for size, bandwidth in ordered:
            times.append(max(size / (bandwidth * 1e3) - node_us, size / best, *times[-1:]))
        sizes = [size for size, _ in ordered]
        if like is None:
            return cls((0.0, *sizes), (max(0.0, times[0] - sizes[0] / best), *times))
        scale = times[0] / float(like.time_us(sizes[0]))
        below = [(size, us * scale) for size, us in zip(like.knot_bytes, like.knot_us, strict=True) if size < sizes[0]]
        return cls((*(size for size, _ in below), *sizes), (*(us for _, us in below), *times))

    @property
    def plateau_gb_s(self) -> float:
        """Bandwidth of the largest transfer."""
        return self.knot_bytes[-1] / self.knot_us[-1] / 1e3

    def time_us(self, moved: Any) -> NDArray[np.float64]:
        """Return the time of moving ``moved`` bytes; nothing takes no time."""
        moved = np.asarray(moved, dtype=np.float64)
        inside = np.interp(moved, self.knot_bytes, self.knot_us)
        beyond = np.maximum(moved / self.knot_bytes[-1], 1.0)
        return np.where(moved > 0, inside * beyond, 0.0)
