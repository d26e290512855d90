"""The methods' part of ``perfkit traffic``: the table of App. A.1, and what of it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.method import Case, Method, Step
    from perfkit.roofline.state_traffic import StateTraffic

#: Recorded times are quoted at the batch asked for, else at this one.
REFERENCE_BATCH = 256
NO_TREE = "takes no draft tree"


def case_of(method: Method, template: Case) -> Case:
    """Return the template as a case of the method."""
    from dataclasses import replace

    return replace(template, method=method.key, window=template.window if method.windowed else None)


def method_steps(method: Method, template: Case) -> tuple[Step, Step]:
    """Return a method's exact step, averaged over the cursor's cycle or over acceptance, and the paper's count."""
    from perfkit.derive import case_chain
    from perfkit.method import Point
    from perfkit.roofline import expected

    case = case_of(method, template)
    point = Point.of(case)
    exact = expected(lambda h, flush: method.step(case.shape, point, h, flush), case_chain(case, method))
    return exact, method.paper(case.shape, point)


def method_rows(methods: Sequence[Method], template: Case) -> list[dict[str, Any]]:
    """Return a row for each method in the order of App. A.1; of verify also for those that have no kernels here."""
    from perfkit.registry import absent
    from perfkit.roofline import STATE_TRAFFIC

    rows = {method.key: _row(method, template) for method in methods}
    for item in absent(template.shape.family, template.phase):
        rows.setdefault(item.key, {"method": item.key, "phase": item.phase, "source": item.source,
                                   "reason": item.reason, "registered": False})  # fmt: skip
    if template.shape.family == "mamba2" and template.phase == "verify":
        for key, counts in STATE_TRAFFIC.items():
            if key != "conventional" and key not in rows:
                rows[key] = _analytic_row(key, counts, template)
    order = list(STATE_TRAFFIC)
    return sorted(rows.values(), key=lambda row: order.index(row["method"]) if row["method"] in order else len(order))


def _row(method: Method, template: Case) -> dict[str, Any]:
    """Return one method's numbers, or the reason why it cannot run at this point."""
    from perfkit.roofline import STATE_TRAFFIC

    row: dict[str, Any] = {"method": method.key, "phase": method.phase, "source": method.source, "reason": None,
                           "registered": True}  # fmt: skip
    unfit = NO_TREE if template.tree is not None and not method.trees else None
    reason = unfit or method.supports(case_of(method, template))
    if reason:
        return {**row, "reason": reason}
    exact, paper = method_steps(method, template)
    moved = float(exact.bytes_read) + float(exact.bytes_write)
    counts = STATE_TRAFFIC.get(method.key)
    reads, writes = state_counts(counts, template) if counts is not None else (None, None)
    return {
        **row,
        "bytes_read": float(exact.bytes_read),
        "bytes_write": float(exact.bytes_write),
        "bytes_read_paper": float(paper.bytes_read),
        "bytes_write_paper": float(paper.bytes_write),
        "flops": float(exact.flops),
        "intensity": float(exact.flops) / moved,
        "launches": float(exact.launches),
        "state_reads": reads,
        "state_writes": writes,
        "serial": float(exact.serial),
    }


def _analytic_row(key: str, counts: StateTraffic, template: Case) -> dict[str, Any]:
    """Return what the paper's table says about a strategy without kernels here."""
    from perfkit.shape import DTYPE_BYTES

    row: dict[str, Any] = {"method": key, "phase": template.phase, "source": "paper, App. A.1", "reason": None,
                           "registered": False}  # fmt: skip
    if template.tree is not None and not counts.trees:
        return {**row, "reason": NO_TREE}
    reads, writes = state_counts(counts, template)
    state = template.batch * template.shape.state_elements * DTYPE_BYTES[template.state_dtype]
    unknown = dict.fromkeys(("bytes_read", "bytes_write", "flops", "intensity"))
    return row | unknown | {
        "bytes_read_paper": reads * state, "bytes_write_paper": writes * state, "launches": float(counts.launches),
        "state_reads": reads, "state_writes": writes,
        "serial": float(counts.chain(template.draft_len, replayed(template))),
    }  # fmt: skip


def replayed(template: Case) -> float:
    """Return the tokens that a step replays on average: those of the step before, none where that committed all."""
    import numpy as np

    from perfkit.roofline import acceptance_pmf

    pmf = acceptance_pmf(template.acceptance, template.depth)
    return float(pmf[:-1] @ np.arange(1, template.depth))


def state_counts(counts: StateTraffic, template: Case) -> tuple[float, float]:
    """Return R and W of a step: flushes as often as the cursor's chain has them, states read again in a tree."""
    from perfkit.method import Point
    from perfkit.roofline import acceptance_pmf, phase_chain

    flush_rate = 0.0
    if counts.writes_per_flush:
        pmf = acceptance_pmf(template.acceptance, template.depth)
        flush_rate = float(phase_chain(template.window, template.depth, pmf).flush_rate[0])
    reads, writes = counts.counts(template.draft_len, flush_rate)
    again = Point.of(template).rereads if counts.writes_per_draft else 0
    return float(reads + again), float(writes)


def recorded_times(model: str, template: Case) -> dict[str, list[dict[str, Any]]]:
    """Return the shipped times by method, one for each GPU: {gpu, batch, window, time_us, time_us_lo, time_us_hi}.

    Rows are of this model, T, tree, acceptance and dtypes, rows in step; at the batch asked for, else at the reference
    batch, else at the largest; at the window asked for, else at the fastest.
    """
    from perfkit.profiles import load_measured

    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in load_measured(model):
        if row.get("status") == "ok" and row.get("time_us") and _is_of(row, template):
            found.setdefault((row["method"], row["gpu"]), []).append(row)
    times: dict[str, list[dict[str, Any]]] = {}
    for (method, gpu), rows in found.items():
        batches = {row["batch"] for row in rows}
        batch = next((b for b in (template.batch, REFERENCE_BATCH) if b in batches), max(batches))
        here = [row for row in rows if row["batch"] == batch]
        best = min(here, key=lambda row: (row["window"] not in (None, template.window), row["time_us"]))
        names = ("window", "time_us", "time_us_lo", "time_us_hi")
        times.setdefault(method, []).append({"gpu": gpu, "batch": batch} | {name: best.get(name) for name in names})
    return times


def _is_of(row: Mapping[str, Any], template: Case) -> bool:
    from perfkit.errors import InputError
    from perfkit.roofline import resolve_acceptance

    same = {"draft_len": template.draft_len, "tree": template.tree, "phase": template.phase, "flush_phase": "aligned",
            "input_dtype": template.input_dtype, "state_dtype": template.state_dtype, "n_layers": 1}  # fmt: skip
    if any(row.get(name) != value for name, value in same.items()):
        return False
    try:
        return resolve_acceptance(str(row.get("acceptance")), template.depth) == template.acceptance
    except InputError:
        return False


def print_verify(rows: Sequence[Mapping[str, Any]], window: int) -> None:
    """Print the table of App. A.1, with a column for each GPU on which any of the methods was timed."""
    from perfkit.cli.common import print_table

    gpus = list(dict.fromkeys((time["gpu"], time["batch"]) for row in rows for time in row["times"]))
    lines = []
    for row in rows:
        total = [None if row[f"bytes_read{kind}"] is None else row[f"bytes_read{kind}"] + row[f"bytes_write{kind}"]
                 for kind in ("_paper", "")]  # fmt: skip
        times = {(time["gpu"], time["batch"]): _time_cell(time, window) for time in row["times"]}
        lines.append([row["method"], row["launches"], row["state_reads"], row["state_writes"], *total, row["serial"],
                      row["flops"], *(times.get(gpu) for gpu in gpus)])  # fmt: skip
    columns = ["method", "launches", "R", "W", "bytes, paper", "bytes, exact", "serial steps", "FLOPs"]
    columns += [f"us on {gpu} at B={batch}, recorded" for gpu, batch in gpus]
    print_table(
        columns, lines, title="One verify step of the batch in one layer; R, W: the state read, written; App. A.1"
    )


def _time_cell(time: Mapping[str, Any], window: int) -> float | str:
    if time["window"] in (None, window):
        return float(time["time_us"])
    return f"{time['time_us']:.4g} (L={time['window']})"
