"""What ``perfkit plan`` answers for, held against published figures: each with the limit that it must stay within.

A row is of one published cell. Of a range, which stands for what is not published, the end that is further off counts.
What was read off a cell is no test of it: such a row says so in its basis, and passes by itself. Misses come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perfkit.paper.ours import Predicted
from perfkit.paper.predicted import predicted_cause, predicted_value
from perfkit.profiles import load_gpu, load_model
from perfkit.profiles.published import PaperCell, load_paper
from perfkit.roofline import Capacity, request_budget, request_memory

#: How far the model may be off, as a share, by what it predicts.
LIMITS = {"capacity": 0.01, "nano": 0.04, "step": 0.10, "kernel": 0.15, "serving": 0.12}
NANO, SUPER = "nemotron-3-nano-4b", "nemotron-3-super-120b-a12b"
QWEN4, QWEN122 = "qwen3.5-4b", "qwen3.5-122b-a10b"
STATES_BUDGET = "the memory that the engine sets aside is read off this count"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """A published figure beside ours.

    Attributes:
        name: what it is.
        published: the figure.
        ours: ours; of a range the end that is further off.
        low: the least of ours.
        high: the largest.
        ratio: ours over published.
        limit: how far from 1 it may be.
        passed: whether it is not further.
        test: whether nothing of it went into ours.
        basis: what ours rests on where not all that it takes is published; None where nothing does.
        cause: of a miss: what the same gives under other assumptions; None where it passes.
        source: of the published figure.
    """

    name: str
    published: float
    ours: float
    low: float
    high: float
    ratio: float
    limit: float
    passed: bool
    test: bool
    basis: str | None
    cause: str | None
    source: str


def check_plan() -> tuple[CheckRow, ...]:
    """Return all figures that ``perfkit plan`` answers for, misses first, then by how much of the limit is used up."""
    rows = [*_capacities(), *_steps(), *_kernels(), *_serving()]
    return tuple(sorted(rows, key=lambda row: (row.passed, -abs(row.ratio - 1) / row.limit)))


def render_checks(rows: Sequence[CheckRow]) -> str:
    """Return the rows as a table of plain text, with notes and a count under it."""
    notes: list[str] = []
    lines = [check_columns(), *(check_line(row, notes) for row in rows)]
    text = [["-" if one is None else str(one) for one in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    shown = ["  ".join(one.ljust(width) for one, width in zip(line, widths, strict=True)).rstrip() for line in text]
    shown += [f"[{at}] {note}" for at, note in enumerate(notes, 1)]
    missed = sum(not row.passed for row in rows)
    tests = sum(row.test for row in rows)
    shown.append(f"{len(rows)} figures, {tests} of them no part of what ours was made from: {missed} missed, "
                 f"{len(rows) - missed} within their limits")  # fmt: skip
    return "\n".join(shown)


def check_columns() -> tuple[str, ...]:
    """Return the names of the columns of :func:`check_line`."""
    return ("figure", "published", "ours", "ratio", "limit", "verdict", "published by")


def check_line(row: CheckRow, notes: list[str]) -> tuple[Any, ...]:
    """Return the cells of a row; basis and cause are added to ``notes`` and referred to by number."""
    numbers = []
    for words in (row.cause, row.basis):
        if words:
            if words not in notes:
                notes.append(words)
            numbers.append(f"[{notes.index(words) + 1}]")
    verdict = "miss" if not row.passed else "within" if row.test else "not a test"
    ours = _short(row.low) if _short(row.low) == _short(row.high) else f"{_short(row.low)}..{_short(row.high)}"
    return (row.name, _short(row.published), ours, f"{row.ratio:.3f}", f"{row.limit:.0%}",
            " ".join([verdict, *numbers]), row.source)  # fmt: skip


def check_document(rows: Iterable[CheckRow]) -> list[dict[str, Any]]:
    """Return the rows as plain data."""
    return [asdict(row) for row in rows]


def _capacities() -> list[CheckRow]:
    """Requests that fit on a B300, with one amount set aside for all: that which Super's count with snapshots states.

    No source says what the engine sets aside beside weights and drafter. One number read off one count leaves the
    other three as tests.
    """
    cells = [cell for cell in load_paper("capacity").cells if cell.quantity == "requests"]
    (stated,) = (cell for cell in cells if (cell.models, cell.method) == ((SUPER,), "snapshot"))
    reserve = reserve_gb(stated)
    basis = f"{reserve:.2f} GB set aside, as {stated.low:g} requests of {_name(SUPER)} with snapshots state"
    rows = []
    for cell in cells:
        fits = float(_capacity(cell, reserve).fits)
        rows.append(_row(f"requests that fit, {_name(cell.models[0])} {cell.method} T = {cell.draft_lens[0]}", cell,
                         "capacity", Predicted(low=fits, high=fits, basis=STATES_BUDGET if cell is stated else basis,
                                               reasons=(STATES_BUDGET,) if cell is stated else ())))  # fmt: skip
    return rows


def reserve_gb(cell: PaperCell) -> float:
    """Return what the engine sets aside by a published count of requests: the middle of what gives that count."""
    assert cell.low is not None
    free = _capacity(cell, 0.0)
    return (free.budget.requests - (cell.low + 0.5) * free.memory.total) / 1e9


def _capacity(cell: PaperCell, reserve: float) -> Capacity:
    model, engine = load_model(cell.models[0]), cell.engine or "vllm"
    memory = request_memory(model, str(cell.method), context=cell.context or 1, engine=engine,
                            draft_len=cell.draft_lens[0], window=cell.windows[0] if cell.windows else None,
                            drafter=True)  # fmt: skip
    budget = request_budget(model, load_gpu(str(cell.gpu)), engine=engine, drafter=True, reserve_gb=reserve)
    return Capacity(budget, memory)


def _steps() -> list[CheckRow]:
    wanted = [(NANO, batch) for batch in (1, 32, 128, 256, 512)] + [(SUPER, 256), (QWEN4, 256), (QWEN122, 256)]
    rows = []
    for model, batch in wanted:
        (cell,) = (one for one in load_paper("table6").cells
                   if (one.models, one.batches, one.state_dtype, one.baseline)
                   == ((model,), (batch,), "float32", "conventional, tuned"))  # fmt: skip
        name = f"whole step, replay over conventional, {_name(model)} on {cell.gpu}, B = {batch}"
        rows.append(_row(name, cell, "nano" if model == NANO else "step"))
    return rows


def _kernels() -> list[CheckRow]:
    wanted = ("snapshot", "stree", "fused_recovery")
    cells = [one for one in load_paper("fig7").cells if one.quantity == "kernel_us" and one.method in wanted]
    return [_row(f"kernel us, {cell.method} of {cell.implementation}, {_name(SUPER)} on {cell.gpu}, B = 256, T = 4",
                 cell, "kernel") for cell in cells]  # fmt: skip


def _serving() -> list[CheckRow]:
    cells = [one for one in load_paper("table9").cells
             if one.baseline == "speculative decoding with snapshots" and one.source == "vLLM pull request 49887"
             and one.batches in ((256,), (512,)) and one.draft_lens in ((2,), (4,))]  # fmt: skip
    return [_row(f"serving, replay over snapshots, {_name(QWEN122)} on {cell.gpu}, B = {cell.batches[0]}, "
                 f"T = {cell.draft_lens[0]}", cell, "serving") for cell in cells]  # fmt: skip


def _row(name: str, cell: PaperCell, kind: str, ours: Predicted | None = None) -> CheckRow:
    found = predicted_value(cell) if ours is None else ours
    assert isinstance(found, Predicted) and cell.low is not None
    published = cell.low
    end = max((found.low, found.high), key=lambda one: abs(math.log(one / published)))
    ratio = end / published
    passed = abs(ratio - 1) <= LIMITS[kind]
    cause = None if passed or ours is not None else predicted_cause(cell, found)
    return CheckRow(
        name=name, published=published, ours=end, low=found.low, high=found.high, ratio=ratio,
        limit=LIMITS[kind], passed=passed, test=not found.reasons, basis=found.basis, cause=cause,
        source=f"{cell.source}, {cell.where}",
    )  # fmt: skip


def _name(key: str) -> str:
    model = load_model(key)
    return model.aliases[0] if model.aliases else model.key


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
