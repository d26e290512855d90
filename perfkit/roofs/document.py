"""What was measured as a roofs file: plain data with the fields of :mod:`perfkit.profiles.roofs`, and its text."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfkit import __version__
from perfkit.kernels import l2, stream
from perfkit.profiles.roofs import RATE_KINDS, ROOF_KINDS, SCHEMA, read_roofs, roofs_name
from perfkit.roofs.points import MIB, Found, Point, Rate

#: Where each field comes from, in the order of the file; lists come after them.
_TEXTS = ("gpu", "name", "driver", "date", "torch", "triton", "source", "notes")
_FIELDS = ("memory_mib", "runs", "spread", "throttled", "sm_clock_mhz", "sm_clock_max_mhz",
           "memory_clock_max_mhz", "power_limit_w", "l2_mib", "launch_us", "graph_node_us", "graph_us")  # fmt: skip
_SOURCE = (
    "perfkit {version}, perfkit roofline. points: Triton streams over random FP32 data, each the fastest of {streams} "
    "launch configurations, median of CUDA graphs of about 4 ms or more, launches rotating through buffers of at least "
    "8 times L2; 1rNw reads once and writes to N places, Nr1w reads N places and writes one. l2: a working set of that "
    "many bytes read again and again past L1, each program a part of its own, the fastest of up to {l2s}. rates: "
    "cuBLAS products of random matrices through torch, sustained; bf16 sums in FP32, fp32 is IEEE; capped is the share "
    "of samples at the power cap. lo and hi: 95 % bootstrap interval. launch_us: an empty Triton kernel launched from "
    "Python; graph_node_us: one more in a graph; graph_us: a graph of one"
)


def found_data(gpu: str, facts: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """Return the data of one run.

    Args:
        gpu: the profile's key.
        facts: ``name, memory_total_mib, driver, sm_clock_max_mhz, memory_clock_max_mhz, power_limit_w`` of the GPU,
            ``torch`` and ``triton`` versions.
        found: what was measured.
    """
    everything = (*found.points, *found.l2)
    clocks = [point.clock_mhz for point in everything if point.clock_mhz is not None]
    spread = f"{min(clocks):.0f} to {max(clocks):.0f} MHz while bandwidths were measured" if clocks else "unknown"
    return {
        "schema": SCHEMA,
        "gpu": gpu,
        "name": facts.get("name"),
        "memory_mib": facts.get("memory_total_mib"),
        "driver": facts.get("driver"),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "torch": facts.get("torch"),
        "triton": facts.get("triton"),
        "source": _SOURCE.format(version=__version__, streams=len(stream.CONFIGS), l2s=len(l2.CONFIGS)),
        "notes": f"SM clock {spread}",
        "runs": 1,
        "spread": None,
        "throttled": _total([*(point.dropped for point in everything), *(one.dropped for one in found.rates)]),
        "sm_clock_mhz": statistics.median(clocks) if clocks else None,
        "sm_clock_max_mhz": facts.get("sm_clock_max_mhz"),
        "memory_clock_max_mhz": facts.get("memory_clock_max_mhz"),
        "power_limit_w": facts.get("power_limit_w"),
        "l2_mib": found.l2_bytes / MIB,
        "launch_us": found.costs.launch_us,
        "graph_node_us": found.costs.graph_node_us,
        "graph_us": found.costs.graph_us,
        "points": [{"kind": point.kind, **_bandwidth(point)} for point in
                   sorted(found.points, key=lambda point: (ROOF_KINDS.index(point.kind), point.moved))],
        "l2": [_bandwidth(point) for point in found.l2],
        "rates": [_rate(one) for one in sorted(found.rates, key=lambda one: RATE_KINDS.index(one.kind))],
    }  # fmt: skip


def _total(counts: Sequence[int | None]) -> int | None:
    """Return how many samples were dropped in all; None where the driver does not say it of each."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _bandwidth(point: Point) -> dict[str, Any]:
    rate = point.bandwidth_gb_s
    return {"bytes": point.moved, "bandwidth_gb_s": rate.value, "lo": rate.lo, "hi": rate.hi,
            "config": str(point.config)}  # fmt: skip


def _rate(one: Rate) -> dict[str, Any]:
    return {"kind": one.kind, "tflops": one.tflops.value, "lo": one.tflops.lo, "hi": one.tflops.hi, "size": one.size,
            "sm_clock_mhz": one.clock_mhz, "power_w": one.power_w, "capped": one.capped}  # fmt: skip


def document(data: Mapping[str, Any]) -> str:
    """Return the text of a roofs file; figures have as many digits as they are known to."""
    lines = [f"schema: {data['schema']}"]
    lines += [f"{name}: {_scalar(data[name])}" for name in (*_TEXTS, *_FIELDS) if data.get(name) is not None]
    for name in ("points", "l2", "rates"):
        if data.get(name):
            lines += [f"{name}:", *(f"  - {_flow(item)}" for item in data[name])]
    return "\n".join(lines) + "\n"


def _flow(item: Mapping[str, Any]) -> str:
    """Return a mapping on one line."""
    return "{" + ", ".join(f"{name}: {_scalar(value)}" for name, value in item.items() if value is not None) + "}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else f"{value:.6g}"
    return str(value)


def check_document(text: str, gpu: str) -> dict[str, Any]:
    """Return a roofs file as it will be read.

    Raises:
        InputError: it would be refused.
    """
    from perfkit.roofline.roof import measured_roofs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / roofs_name(gpu)
        path.write_text(text, encoding="utf-8")
        roofs = read_roofs(path)
    measured_roofs(gpu, roofs)
    return roofs
