"""What a report shows of each model on each GPU: the answer of every workload, the figures, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit.reports import figures, findings, select
from perfkit.reports.figures import base
from perfkit.reports.figures.plan_rows import plan_command

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    Builder = tuple[str, Callable[[pd.DataFrame], go.Figure]]

#: A section draws the figures of so many workloads; the table has the rows of all, and the page says so.
MAX_WORKLOADS = 8
#: The figures that have batch as their axis.
OVER_BATCH = frozenset({"batch-time", "batch-speedup", "batch-roof"})


@dataclass(frozen=True, slots=True)
class Part:
    """One workload of a section: what sets it apart from the others, its figures by id."""

    workload: str
    figures: dict[str, go.Figure]


@dataclass(frozen=True, slots=True)
class Section:
    """One model on one GPU.

    Attributes:
        id: unique in the report.
        rows: all of them, prepared.
        answers: of every workload, each with what sets it apart.
        parts: the figures of at most :data:`MAX_WORKLOADS` of them.
        across: figures by id that set workloads beside each other.
        missing: (what is missing, the command that adds it or None).
        left_out: number of workloads without a part.
    """

    id: str
    model: str
    gpu: str
    rows: pd.DataFrame
    answers: tuple[tuple[str, findings.Answer], ...]
    parts: tuple[Part, ...]
    across: dict[str, go.Figure]
    missing: tuple[tuple[str, str | None], ...]
    left_out: int

    @property
    def figures(self) -> Iterator[tuple[str, go.Figure]]:
        """Every figure with its id, in the order of the page."""
        for part in self.parts:
            yield from part.figures.items()
        yield from self.across.items()


def sections(data: pd.DataFrame, floor: float | None) -> list[Section]:
    """Build the sections of prepared rows; ``floor`` is the A/A noise floor, a share."""
    return [_section(f"s{i}", *place, floor) for i, place in enumerate(select.sections(data))]


def _section(name: str, model: str, gpu: str, rows: pd.DataFrame, floor: float | None) -> Section:
    found = [(workload, part, answered(workload, part, floor)) for workload, part in select.workloads(rows)]
    # What compares methods goes before what only has a baseline.
    found.sort(key=lambda item: _is_bare(item[2][0][1]))
    answers = tuple(answer for *_, said in found for answer in said)
    parts = []
    lacks: list[tuple[str, str, str | None]] = []
    for i, (workload, part, said) in enumerate(found[:MAX_WORKLOADS]):
        builders = _ALONE if any(answer.verdict != "nothing" for _, answer in said) else ()
        # One point is no sweep; of a run of one workload it is all there is.
        if len(found) > 1 and part["batch"].nunique() < 2:
            builders = [item for item in builders if item[0] not in OVER_BATCH]
            lacks.append(("Only one batch was run, so nothing is drawn over batch", workload,
                          base.sweep_command(part, "--batch 1..512:x2")))  # fmt: skip
        drawn, empty = _build(f"{name}-w{i}", builders, part)
        parts.append(Part(workload, drawn))
        lacks += [(title, workload, command) for title, command in empty]
    across, empty = _build(name, _ACROSS if any(part.figures for part in parts) else (), rows)
    lacks += [(title, "", command) for title, command in (*empty, *_plan(model, gpu))]
    return Section(name, model, gpu, rows, answers, tuple(parts), across, tuple(_missing(lacks, len(parts))),
                   max(0, len(found) - MAX_WORKLOADS))  # fmt: skip


def answered(workload: str, part: pd.DataFrame, floor: float | None) -> list[tuple[str, findings.Answer]]:
    """Return the answer of a workload; of several runs one each, named, for the best of all would hide a change.

    A run that has only the baseline of what others compare has none.
    """
    runs = list(dict.fromkeys(part["run"].dropna()))
    if len(runs) < 2:
        return [(workload, findings.answer(part, floor))]
    said = [
        (", ".join(filter(None, (workload, run))), findings.answer(part[part["run"].eq(run)], floor)) for run in runs
    ]
    return [item for item in said if not _is_bare(item[1])] or said[:1]


def _is_bare(answer: findings.Answer) -> bool:
    return answer.verdict in ("alone", "nothing")


_ALONE: Sequence[Builder] = tuple(item for item in figures.FIGURES if item[0] not in figures.ACROSS_WORKLOADS)
_ACROSS: Sequence[Builder] = tuple(item for item in figures.FIGURES if item[0] in figures.ACROSS_WORKLOADS)


def _build(
    prefix: str, builders: Sequence[Builder], rows: pd.DataFrame
) -> tuple[dict[str, go.Figure], list[tuple[str, str | None]]]:
    """Return the figures that have data by id, and the title and the command of those that have none."""
    built = [(f"{prefix}-{name}", build(rows)) for name, build in builders]
    empty = [(figure.layout.meta["title"], figure.layout.meta["add"]) for _, figure in built if not figure.data]
    return {name: figure for name, figure in built if figure.data}, empty


def _plan(model: str, gpu: str) -> Iterator[tuple[str, str]]:
    """Yield what a run does not say of a model and a GPU that have profiles: what to run under a load."""
    from perfkit.errors import InputError
    from perfkit.profiles import load_gpu, load_model

    try:
        command = plan_command(load_model(model).key, load_gpu(gpu).key)
    except InputError:  # a model or GPU that this version does not know
        return
    yield "No load is in a run: what to run under one, and how many requests fit", command


def _missing(lacks: Iterable[tuple[str, str, str | None]], n_parts: int) -> Iterator[tuple[str, str | None]]:
    """Say each lack once; the workloads that have it are named unless all have."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for title, workload, command in lacks:
        found.setdefault((title, command), []).append(workload)
    for (title, command), names in found.items():
        yield title if len(names) == n_parts or not any(names) else f"{title} ({'; '.join(names)})", command
