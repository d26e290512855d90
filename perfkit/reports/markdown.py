"""A report as a table for a pull request, in GitHub's markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.reports import findings, header, select
from perfkit.reports.runs import Run, distinct, merged, noise_floor
from perfkit.reports.sections import answered
from perfkit.reports.text import MISSING, integer, interval, is_missing, number, times

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("method", "L", "T", "B", "time per step and layer (µs)", "gain over the baseline", "source")
_ALIGNED = ("---", "--:", "--:", "--:", "---", "---", "---")


def markdown(runs: Sequence[Run]) -> str:
    """Return for each model on each GPU the answers and one table: at each batch every method at its fastest window.

    Intervals are of 95 %. Kinds of evidence stay apart, each in lines of its own; warnings follow at the end.
    """
    data = select.prepare(merged(runs))
    out = []
    for model, gpu, rows in select.sections(data):
        parts = list(select.workloads(rows))
        out += [f"### {escaped(f'{model} on {gpu}')}", ""]
        answers = [item for part in parts for item in answered(*part, noise_floor(runs))]
        for workload, answer in answers:
            said = f"**{escaped(answer.headline.rstrip('.'))}.** {escaped(answer.advice)}".rstrip()
            out.append(f"- {escaped(workload)}: {said}" if len(answers) > 1 else said)
        body = [[escaped(workload), *cells] for workload, part in parts for cells in _rows(part)]
        table = [("workload", *COLUMNS), ("---", *_ALIGNED), *body] if body else []
        out += ["", *(_line(line if len(parts) > 1 else line[1:]) for line in table), ""]
    if not out:
        out = [f"**{escaped(findings.nothing(data))}**", ""]
    for name, run in zip(distinct([run.name for run in runs]), runs, strict=True):
        said_of = f"{escaped(name)}: " if len(runs) > 1 else ""
        out += [f"- {said_of}{escaped(text)}" for text in header.warnings(run.frame, run.manifest)]
    return "\n".join(out).rstrip("\n") + "\n"


def escaped(text: str) -> str:
    """Return text that markdown shows as it is, on one line."""
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _rows(part: pd.DataFrame) -> Iterator[list[str]]:
    """Yield the cells of the fastest window of each method, draft tree and source at each batch."""
    several = part["run"].nunique() > 1
    for source in select.SOURCES:
        rows = select.as_evidence(part, source)
        rows = rows[rows["source"].eq(source) & rows["us"].gt(0)]
        best = rows.sort_values("us", kind="stable").drop_duplicates(["method", "batch", "read_dtype", "run"])
        control = select.is_baseline(best)
        order = best.assign(_later=~control).sort_values(["batch", "_later", "method", "us"], kind="stable")
        for row in order.itertuples(index=False):
            yield _cells(row, source, several)


def _cells(row: Any, source: str, several: bool) -> list[str]:
    parts = [row.method, "" if row.read_dtype in (None, row.state_dtype) else f"{row.read_dtype} reads"]
    parts.append(str(row.run) if several else "")
    gain = f"{times(row.gain)} {interval(row.gain_lo, row.gain_hi, lambda v: f'{v:.2f}')}"
    if row.case_id is not None and row.case_id == row.baseline:
        gain = "baseline"
    return [
        escaped(", ".join(filter(None, parts))),
        integer(row.window) if not is_missing(row.window) else MISSING,
        integer(row.draft_len),
        integer(row.batch),
        f"{number(row.us)} {escaped(interval(row.us_lo, row.us_hi))}".rstrip(),
        escaped(gain),
        source,
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
