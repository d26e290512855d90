"""From launches that Nsight Compute saw to a row for each counted step of a case, and the detail of each launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.errors import DeviceError
from perfkit.method import Case, Method
from perfkit.nsight import metrics
from perfkit.nsight.command import CLOCK_CONTROL
from perfkit.nsight.report import Profiled
from perfkit.nsight.steps import CountedStep, counted_steps, exact_step, paper_bytes, range_name


class Incomplete(DeviceError):
    """A report that lacks launches of a case, or what was asked about them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What all rows of a run share.

    Attributes:
        model, gpu, gpu_uuid: as in results.
        seed: of the run.
        cache_control: as ``ncu`` was told.
        ncu: its version.
    """

    model: str | None
    gpu: str | None
    gpu_uuid: str | None
    seed: int
    cache_control: str
    ncu: str | None


@dataclass(frozen=True, slots=True)
class Ran:
    """What the target told of a case: launches of each counted step by range, and the configuration.

    Attributes:
        launches: range -> launches, in the order in which the steps ran.
        whole: ranges in which each launch is exactly one kernel.
        config, source: launch configuration, and where it is from.
        l2_bytes: size of the GPU's L2.
    """

    launches: Mapping[str, int]
    whole: frozenset[str]
    config: str
    source: str
    l2_bytes: int | None


def by_range(launches: Sequence[Profiled], ran: Sequence[Ran]) -> dict[str, list[Profiled]]:
    """Return the launches of each counted step, by the name of its range.

    Where the report names no range, launches go to the steps in the order in which they ran, if their number is right.

    Args:
        launches: of a report, in order.
        ran: the cases that ran, in order.
    """
    names = [name for case in ran for name in case.launches]
    found: dict[str, list[Profiled]] = {name: [] for name in names}
    for launch in launches:
        for name in launch.ranges:
            if name in found:
                found[name].append(launch)
    if any(found.values()) or len(launches) != sum(n for case in ran for n in case.launches.values()):
        return found
    rest = iter(launches)
    return {name: [next(rest) for _ in range(n)] for case in ran for name, n in case.launches.items()}


def case_rows(
    case: Case, method: Method, origin: Origin, ran: Ran, found: Mapping[str, Sequence[Profiled]], read_by: str
) -> list[dict[str, Any]]:
    """Return a row of :data:`perfkit.profiles.counters.COLUMNS` for each counted step of a case.

    Args:
        case: that ran.
        method: its method.
        origin: of the run.
        ran: what the target told.
        found: launches by range.
        read_by: how the report was read.

    Raises:
        Incomplete: launches of a step are missing, or DRAM bytes or times of one.
    """
    rows = []
    for step in counted_steps(case, method):
        name = range_name(case, step.kind)
        launches = found.get(name, ())
        wanted = ran.launches.get(name)
        if not launches or wanted is None or (name in ran.whole and len(launches) != wanted):
            raise Incomplete(f"the report has {len(launches)} of the {wanted} launches in {name}")
        rows.append(
            {**_case_columns(case, origin), **_step_columns(case, method, step, origin.seed), **_totals(launches),
             "launches": len(launches), "launch_config": ran.config, "config_source": ran.source,
             "l2_capacity": ran.l2_bytes, "cache_control": origin.cache_control, "clock_control": CLOCK_CONTROL,
             "ncu": origin.ncu, "read_by": read_by}
        )  # fmt: skip
    return rows


def _case_columns(case: Case, origin: Origin) -> dict[str, Any]:
    return {
        "case_id": case.id, "model": origin.model, "family": case.shape.family, "gpu": origin.gpu,
        "gpu_uuid": origin.gpu_uuid, "method": case.method, "phase": case.phase, "batch": case.batch,
        "window": case.window, "draft_len": case.draft_len, "acceptance": case.acceptance, "tree": case.tree,
        "flush_phase": case.flush_phase, "input_dtype": case.input_dtype, "state_dtype": case.state_dtype,
        "read_dtype": case.reads,
    }  # fmt: skip


def _step_columns(case: Case, method: Method, step: CountedStep, seed: int) -> dict[str, Any]:
    exact = exact_step(case, method, step, seed)
    reads, writes = paper_bytes(case, method, step)
    return {
        "step": step.kind, "share": step.share, "h": step.h, "bytes_read_paper": reads, "bytes_write_paper": writes,
        "bytes_read_model": float(exact.bytes_read), "bytes_write_model": float(exact.bytes_write),
    }  # fmt: skip


def _totals(launches: Sequence[Profiled]) -> dict[str, Any]:
    values = [launch.values for launch in launches]
    totals: dict[str, Any] = {metric.column: metrics.total(metric, values) for metric in metrics.METRICS}
    for metric in metrics.METRICS:
        if metric.needed and totals[metric.column] is None:
            lacking = next(launch for launch in launches if launch.values.get(metric.name) is None)
            raise Incomplete(f"ncu has no value of {metric.name} for {lacking.kernel}")
    if totals["registers"] is not None:
        totals["registers"] = round(totals["registers"])
    return totals


def detail(case: Case, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Sequence[Profiled]]) -> dict[str, Any]:
    """Return what is kept of a case beside its rows: every launch with all that was asked about it, as JSON data."""
    launches = {
        row["step"]: [
            {"kernel": one.kernel, "values": dict(one.values), "units": dict(one.units)}
            for one in found[range_name(case, row["step"])]
        ]
        for row in rows
    }
    return {"case_id": case.id, "rows": [dict(row) for row in rows], "launches": launches}
