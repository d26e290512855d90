"""Do two measurements of a GPU's roofs agree: every figure of one beside that of the other, and runs put together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.errors import InputError
from perfkit.roofs.points import MIB

#: Shown, not judged: Python's speed and the driver are in them, and they are no roof of the GPU.
COSTS = ("launch_us", "graph_node_us", "graph_us")


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two measurements; ``unit`` is GB/s, TFLOP/s or us."""

    name: str
    unit: str
    base: float
    new: float

    @property
    def change(self) -> float:
        """The new one over the base, less 1."""
        return self.new / self.base - 1

    @property
    def size(self) -> float:
        """How far the larger is above the smaller: the same whichever is the base."""
        return max(self.base, self.new) / min(self.base, self.new) - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures that two measurements both have: roofs, which are judged, and costs, which are shown."""

    roofs: tuple[Difference, ...]
    costs: tuple[Difference, ...]

    @property
    def largest(self) -> Difference:
        """The roof that differs most."""
        return max(self.roofs, key=lambda one: one.size)

    @property
    def spread(self) -> float:
        """By how much it differs."""
        return self.largest.size


def compare(base: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Return every figure that two roofs files both have, of one kind of GPU.

    Raises:
        InputError: different GPUs, or no figure in common.
    """
    if base["gpu"] != new["gpu"]:
        raise InputError(f"roofs of another GPU, not of {new['gpu']}", field="gpu", value=base["gpu"])
    before, after = _figures(base), _figures(new)
    roofs = tuple(Difference(name, unit, before[name][1], value)
                  for name, (unit, value) in after.items() if name in before)  # fmt: skip
    if not roofs:
        raise InputError("no figure in common with it: other sizes and kinds", field="points")
    costs = tuple(Difference(name, "us", base[name], new[name]) for name in COSTS if base.get(name) and new.get(name))
    return Comparison(roofs, costs)


def _figures(data: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Return unit and value of every figure that a second run should find again, by name."""
    found = {f"{point['kind']} {_size(point)}": ("GB/s", point["bandwidth_gb_s"]) for point in data["points"]}
    found |= {f"L2 {_size(point)}": ("GB/s", point["bandwidth_gb_s"]) for point in data["l2"]}
    return found | {f"{rate['kind']} products": ("TFLOP/s", rate["tflops"]) for rate in data["rates"]}


def _size(point: Mapping[str, Any]) -> str:
    return f"{point['bytes'] / MIB:.4g} MiB"


def combine(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several runs as one file: the mean of each figure, its interval around all of theirs.

    Args:
        runs: of one GPU by one plan, at least one.

    Raises:
        ValueError: their figures are not the same ones.
    """
    first = dict(runs[0])
    if len(runs) == 1:
        return first
    for name in ("points", "l2", "rates"):
        first[name] = [_merged(items) for items in zip(*(run[name] for run in runs), strict=True)]
    for name in (*COSTS, "sm_clock_mhz"):
        values = [run[name] for run in runs if run.get(name) is not None]
        first[name] = statistics.fmean(values) if values else None
    pairs = [compare(a, b) for index, a in enumerate(runs) for b in runs[index + 1 :]]
    dropped = [run["throttled"] for run in runs]
    first["throttled"] = None if None in dropped else sum(dropped)
    first["notes"] = "; ".join(dict.fromkeys(run["notes"] for run in runs))
    return first | {"runs": len(runs), "spread": max(pair.spread for pair in pairs)}


def _merged(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one figure of several runs."""
    merged = dict(items[0])
    for item in items[1:]:
        if (item.get("kind"), item.get("bytes")) != (merged.get("kind"), merged.get("bytes")):
            raise ValueError(f"runs of different figures: {merged} and {item}")
    for name in ("bandwidth_gb_s", "tflops", "sm_clock_mhz", "power_w", "capped"):
        values = [item[name] for item in items if item.get(name) is not None]
        if values:
            merged[name] = statistics.fmean(values)
    merged["lo"] = min(item["lo"] for item in items)
    merged["hi"] = max(item["hi"] for item in items)
    return merged
