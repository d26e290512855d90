"""The columns of a result: one row per case, each column with its type, whether it may be empty, and what it means.

Other people's scripts read these columns: adding one at the end is no break, renaming or reordering is. Rows are plain
dicts; an absent value is None, never NaN, so that a row is always JSON.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from perfkit.errors import ExitCode, worst
from perfkit.method import Case

SCHEMA_VERSION = 1

STATUSES = ("ok", "skipped", "oom", "crashed", "timeout", "error", "incorrect", "throttled")
#: Statuses that a resumed run keeps; it runs the others again.
FINISHED = ("ok", "skipped", "incorrect")
#: Statuses of cases that ended without an answer (exit code 3).
INCOMPLETE = tuple(status for status in STATUSES if status not in FINISHED)
SOURCES = ("measured", "recorded", "predicted")
CHECKED = ("gpu", "interpreter", "no")
STOP_REASONS = ("converged", "max_samples", "max_time")
LIMITS = ("DRAM", "L2", "launch", "chain", "ALU")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``type`` is str, int or float; ``allowed`` lists the words that a text column may hold."""

    name: str
    type: type
    description: str
    allowed: tuple[str, ...] | None = None
    nullable: bool = True


def _required(name: str, kind: type, description: str, allowed: tuple[str, ...] | None = None) -> Column:
    return Column(name, kind, description, allowed, nullable=False)


_COLUMNS = (
    _required("schema_version", int, "version of these columns"),
    _required("case_id", str, "12 hexadecimal digits of the case's sha256"),
    _required("group_id", str, "shared by the cases that were compared with each other"),
    Column("model", str, "model key; empty for a bare shape"),
    _required("family", str, "mamba2, gdn or kda", ("mamba2", "gdn", "kda")),
    Column("gpu", str, "GPU key; the driver's name for a GPU without a profile"),
    Column("gpu_uuid", str, "UUID of the GPU that was timed"),
    _required("method", str, "method key, or FILE.py:METHOD"),
    _required("phase", str, "decode (T = 1) or verify (T > 1)", ("decode", "verify")),
    _required("batch", int, "sequences per step"),
    _required("n_layers", int, "layers whose states take turns in the timed graph"),
    Column("window", int, "L in committed tokens; empty for methods without a replay buffer"),
    _required("draft_len", int, "T, positions per step"),
    _required("accepted", float, "mean tokens that a step commits"),
    _required("acceptance", str, "the acceptance: n, T, mean:X, p:RATES; of a tree T is the longest path"),
    Column("tree", str, "draft tree; empty for a chain"),
    _required("flush_phase", str, "rows flush together (aligned) or spread out (staggered)", ("aligned", "staggered")),
    _required("input_dtype", str, "dtype of the inputs"),
    _required("state_dtype", str, "dtype of the state, or of the high precision checkpoint"),
    _required("read_dtype", str, "dtype in which a step that does not flush reads the checkpoint"),
    _required("source", str, "measured here, recorded (shipped) or predicted", SOURCES),
    _required("status", str, "how the case ended", STATUSES),
    Column("reason", str, "why the status is not ok"),
    _required("checked", str, "where the kernel was compared with its oracle", CHECKED),
    Column("time_us", float, "median time per step and layer, flushes included"),
    Column("time_us_lo", float, "lower end of its 95 % interval"),
    Column("time_us_hi", float, "upper end of its 95 % interval"),
    Column("time_p99_us", float, "99th percentile of the times of single steps, stamped by the GPU"),
    Column("n_samples", int, "samples kept"),
    Column("n_throttled", int, "samples dropped because the GPU throttled; empty if the driver does not say"),
    Column("stop_reason", str, "why sampling ended", STOP_REASONS),
    Column("time_nonflush_us", float, "time of a step that does not flush"),
    Column("time_flush_us", float, "time of a step that flushes"),
    Column("tokens_per_s", float, "committed tokens per second through one layer: batch x accepted / time_us"),
    Column("launches", float, "kernel launches per step, mean over a period"),
    Column("bytes_read_model", float, "exact bytes read per step, mean over a period"),
    Column("bytes_write_model", float, "exact bytes written per step, mean over a period"),
    Column("bytes_read_paper", float, "bytes read per step in the paper's convention"),
    Column("bytes_write_paper", float, "bytes written per step in the paper's convention"),
    Column("bytes_read_dram", float, "bytes read from DRAM per step, by hardware counters"),
    Column("bytes_write_dram", float, "bytes written to DRAM per step, by hardware counters"),
    Column("flops_model", float, "floating-point operations per step, mean over a period"),
    Column("intensity", float, "flops_model per byte of bytes_read_model + bytes_write_model"),
    Column("bandwidth_gb_s", float, "model bytes per time_us, in 10^9 bytes per second"),
    Column("roof_gb_s", float, "bandwidth ceiling for this mix of reads and writes"),
    Column("roof_source", str, "measured or datasheet", ("measured", "datasheet")),
    Column("roof_fraction", float, "share of the ceiling reached, counted in the useful minimum of bytes"),
    Column("limit", str, "what bounds the time", LIMITS),
    Column("predicted_us", float, "the latency model's time per step and layer"),
    Column("predicted_lo", float, "lower end of its 95 % interval"),
    Column("predicted_hi", float, "upper end of its 95 % interval"),
    Column("prediction_error", float, "predicted_us / time_us - 1"),
    Column("baseline", str, "case_id of the control of the same group"),
    Column("speedup", float, "the control's time over this case's"),
    Column("conventional_steps", float, "time in units of one tuned conventional decode step"),
    Column("launch_config", str, "launch configuration, name=value pairs"),
    Column("registers", int, "registers per thread, the most of any kernel of the step"),
    Column("l2_state", str, "cold: the working set is many times L2; warm: it fits", ("cold", "warm")),
    Column("rel_error", float, "relative Frobenius error against the oracle, worst step"),
    # Added at the end: not part of the first contract.
    Column("n_v_heads", int, "value heads of the layer"),
    Column("n_k_heads", int, "key heads of the layer"),
    Column("d_v", int, "rows of a head's state"),
    Column("d_k", int, "columns of a head's state"),
    Column("options", str, "method-specific options, JSON object"),
    Column("speedup_lo", float, "lower end of the speedup's 95 % interval, paired by round"),
    Column("speedup_hi", float, "upper end of the speedup's 95 % interval"),
    Column("time_default_us", float, "time with the default launch configuration; over time_us: the gain of tuning"),
    Column("time_warm_us", float, "time with everything resident in L2"),
    Column("aa_difference", float, "relative difference between two series of the same method in the same rounds"),
    Column("serial", float, "longest chain of dependent state updates in a step"),
    Column("spill_bytes", int, "bytes of registers spilled, the most of any kernel of the step"),
    Column("shared_bytes", int, "shared memory per block, the most of any kernel of the step"),
    Column("memory_per_request", int, "bytes that one more request needs in this layer"),
    Column("useful_bytes", float, "the least bytes that any method must move for such a step"),
    Column("steps_per_sample", int, "steps in the timed graph"),
    Column("sm_clock_mhz", float, "SM clock during timing, median"),
    Column("throttle_reasons", str, "why samples were dropped"),
)

SCHEMA = MappingProxyType({column.name: column for column in _COLUMNS})
COLUMNS = tuple(SCHEMA)


def clean(value: Any) -> Any:
    """Return plain JSON data: numpy numbers become Python's, NaN and infinities None, tuples lists, paths text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return clean(value.tolist())
    raise TypeError(f"not JSON data: {type(value).__name__}")


def dumps(value: Any) -> str:
    """Return one line of JSON with sorted keys and no NaN."""
    return json.dumps(clean(value), sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(", ", ": "))


def coerce(name: str, value: Any) -> Any:
    """Return the value as its column stores it; None for NaN and infinities.

    Raises:
        ValueError: an unknown column, a value of another type or not among the allowed words, None where required.
    """
    column = SCHEMA.get(name)
    if column is None:
        near = difflib.get_close_matches(name, COLUMNS, 1)
        raise ValueError(f"unknown column {name!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    value = clean(value)
    if value is None:
        if column.nullable:
            return None
        raise ValueError(f"{name}: must not be empty")
    right = isinstance(value, str) if column.type is str else isinstance(value, (int, float))
    if isinstance(value, bool) or not right or (column.type is int and value != int(value)):
        raise ValueError(f"{name}: {value!r} is not {column.type.__name__}")
    if column.allowed is not None and value not in column.allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(column.allowed)}")
    return column.type(value)


def check_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete row in column order, values as their columns store them; absent columns are None.

    Raises:
        ValueError: what :func:`coerce` raises, or an ``incorrect`` case with a time.
    """
    for name in row:
        if name not in SCHEMA:
            coerce(name, None)
    out = {name: coerce(name, row.get(name)) for name in COLUMNS}
    if out["status"] == "incorrect" and out["time_us"] is not None:
        raise ValueError("an incorrect kernel gets no time")
    return out


def empty_row() -> dict[str, Any]:
    """Return a row of None in column order, with the schema version."""
    return dict.fromkeys(COLUMNS) | {"schema_version": SCHEMA_VERSION}


def make_row(case: Case, **columns: Any) -> dict[str, Any]:
    """Return the row of a case: what follows from the case is filled in, ``columns`` give the rest.

    ``status`` and ``source`` must be given; ``checked`` is ``no`` unless given. A column given as None leaves what
    follows from the case.

    Raises:
        ValueError: a column that does not exist, or a value that its column cannot hold.
        InputError: the case's acceptance is none.
    """
    from perfkit.roofline.acceptance import mean_accepted

    shape = case.shape
    row = empty_row() | {
        "case_id": case.id,
        "group_id": case.group_id,
        "family": shape.family,
        "method": case.method,
        "phase": case.phase,
        "batch": case.batch,
        "n_layers": case.n_layers,
        "window": case.window,
        "draft_len": case.draft_len,
        "accepted": mean_accepted(case.acceptance, case.depth),
        "acceptance": case.acceptance,
        "tree": case.tree,
        "flush_phase": case.flush_phase,
        "input_dtype": case.input_dtype,
        "state_dtype": case.state_dtype,
        "read_dtype": case.reads,
        "checked": "no",
        "n_v_heads": shape.n_v_heads,
        "n_k_heads": shape.n_k_heads,
        "d_v": shape.d_v,
        "d_k": shape.d_k,
        "options": dumps(dict(case.options)) if case.options else None,
    }
    row |= {name: value for name, value in columns.items() if value is not None or name not in SCHEMA}
    return check_row(row)


def exit_code(statuses: Iterable[str]) -> ExitCode:
    """Return the exit code of a run with these statuses: 1 if any is incorrect, 3 if any did not finish, else 0."""
    codes = [ExitCode.OK]
    for status in statuses:
        if status == "incorrect":
            codes.append(ExitCode.FAILED)
        elif status in INCOMPLETE:
            codes.append(ExitCode.INCOMPLETE)
    return worst(*codes)


def columns_table() -> str:
    """Return the columns as a Markdown table, for the documentation."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for column in _COLUMNS:
        kind = column.type.__name__ + (" or empty" if column.nullable else "")
        words = f" ({', '.join(column.allowed)})" if column.allowed and len(column.allowed) > 2 else ""
        lines.append(f"| `{column.name}` | {kind} | {column.description}{words} |")
    return "\n".join(lines) + "\n"
