"""What Nsight Compute is asked about each launch, in which unit it answers, and how launches make one number a step.

Source: Nsight Compute, Profiling Guide, metrics reference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from perfkit.errors import InputError

#: How launches of one step make one number: added up, the largest, or the mean weighted by time or by L2 bytes.
Total = Literal["sum", "max", "by time", "by L2 bytes"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as Nsight Compute has it.
        column: of counter tables.
        total: how launches of one step make one number.
        needed: without it a launch says nothing; the others may be absent.
    """

    name: str
    column: str
    total: Total
    needed: bool = False


TIME = Metric("gpu__time_duration.sum", "profiled_us", "sum", needed=True)
L2_BYTES = Metric("lts__t_bytes.sum", "l2_bytes", "sum")
METRICS = (
    Metric("dram__bytes_read.sum", "bytes_read_dram", "sum", needed=True),
    Metric("dram__bytes_write.sum", "bytes_write_dram", "sum", needed=True),
    TIME,
    L2_BYTES,
    Metric("lts__t_sector_hit_rate.pct", "l2_hit_pct", "by L2 bytes"),
    Metric("sm__warps_active.avg.pct_of_peak_sustained_active", "occupancy_pct", "by time"),
    Metric("dram__throughput.avg.pct_of_peak_sustained_elapsed", "dram_pct", "by time"),
    Metric("sm__throughput.avg.pct_of_peak_sustained_elapsed", "sm_pct", "by time"),
    Metric("launch__registers_per_thread", "registers", "max"),
)
#: What ``--metrics`` takes for a list of names.
SETS = MappingProxyType({"all": METRICS, "dram": tuple(metric for metric in METRICS if metric.needed)})
_NAME = re.compile(r"[a-z0-9]+__[A-Za-z0-9_.]+")

#: Factor to the base unit: bytes, microseconds, percent, one.
_UNITS = MappingProxyType(
    {
        "": 1.0, "%": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
        "nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6,
        "register/thread": 1.0,
    }
)  # fmt: skip


def select(text: str) -> tuple[str, ...]:
    """Return the names of the metrics for ``--metrics``: the needed ones first, each once.

    Args:
        text: ``all``, ``dram`` (bytes and time alone), names as Nsight Compute has them, or a list of these.

    Raises:
        InputError: something that is neither.
    """
    names = [metric.name for metric in SETS["dram"]]
    for item in (part.strip() for part in text.split(",")):
        if item in SETS:
            names += [metric.name for metric in SETS[item]]
        elif _NAME.fullmatch(item):
            names.append(item)
        else:
            raise InputError("is not a metric", field="--metrics", value=item,
                             allowed=[*SETS, "names of `ncu --query-metrics`"])  # fmt: skip
    return tuple(dict.fromkeys(names))


def is_own(name: str) -> bool:
    """Say whether a metric is one that perfkit asks for by itself."""
    return any(metric.name == name for metric in METRICS)


def to_base(value: float | None, unit: str) -> float | None:
    """Return a value in bytes, microseconds, percent or ones; None stays None, as do NaN and units never heard of."""
    factor = _UNITS.get(unit.strip())
    if value is None or factor is None or not math.isfinite(value):
        return None
    return value * factor


def total(metric: Metric, launches: Sequence[Mapping[str, float | None]]) -> float | None:
    """Return one number for the launches of a step, None if any launch lacks the metric.

    Args:
        metric: which one.
        launches: values by metric name, in base units.
    """
    values = [launch.get(metric.name) for launch in launches]
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        return None
    if metric.total == "sum":
        return math.fsum(known)
    if metric.total == "max":
        return max(known)
    weight = TIME if metric.total == "by time" else L2_BYTES
    weights = [launch.get(weight.name) or 0.0 for launch in launches]
    if not any(weights):
        return known[0] if len(known) == 1 else None
    return math.fsum(w * v for w, v in zip(weights, known, strict=True)) / math.fsum(weights)
