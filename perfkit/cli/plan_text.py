"""What a person reads of a plan: a ranked table, then a line for each thing to know, the answer first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from perfkit.cli.common import cell, out_console
from perfkit.cli.plan_run import Report
from perfkit.plan import Answer, Flip, OnGpu, Point, Question, Row, engine_settings
from perfkit.plan.advice import advice, limit
from perfkit.plan.cautions import LEFT_OUT, not_in_doubt, warnings
from perfkit.plan.words import brief, dtype, named, off, rate, short, times
from perfkit.progress import count
from perfkit.roofline import TERMS
from perfkit.roofline.efficiency import OURS

#: Lines beneath the table are no longer than this, however wide the terminal.
WIDTH = 120
LABEL = 12
#: Flips at fewer requests are found to one; larger ones lie within a sixteenth (:mod:`perfkit.plan.flips`).
EXACT = 32
_TIMES = ("step ms", "p99 ms", "tok/s", "±")
_TEXTS = ("", "GPU", "method", "choice", "state", "gain", "verdict", "roofs")
_MARKS = {"change": "<-choose", "no change": "<-keep"}
_TERM = {"ssm": "SSM", "weights": "weights", "kv": "KV", "draft": "drafting", "rows": "rows", "fixed": "fixed",
         "comm": "all-reduce"}  # fmt: skip


def show(report: Report, *, breakdown: bool) -> None:
    """Print a plan."""
    found = report.answer
    asked = found.table.question
    for line in header(asked):
        _wrapped("", line)
    states = len(asked.state_dtypes) > 1
    _table(columns(states), [cells(row, found, states) for row in report.rows])
    _wrapped("answer", advice(found))
    for label, line in lines(report):
        _wrapped(label, line)
    if breakdown and report.terms is not None:
        _breakdown(report)
    if report.front is not None:
        _pareto(report.front)
    if report.gpus is not None:
        _gpus(report.gpus)


def _wrapped(label: str, text: str) -> None:
    """Print a labelled line, folded to the terminal with its text kept in one column."""
    width = min(out_console().width, WIDTH)
    first = f"{label:<{LABEL}}" if label else ""
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first),
                              break_on_hyphens=False, break_long_words=False):  # fmt: skip
        print(line)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print a table; columns are aligned to the right but for :data:`_TEXTS`, and lines are never folded."""
    lines = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    left = [name in _TEXTS for name in columns]

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, left, strict=True)
        return "  ".join(
            f"{text:<{width}}" if to_left else f"{text:>{width}}" for text, width, to_left in placed
        ).rstrip()

    console = out_console()
    if title is not None:
        console.print(Text(f"\n{title}", style="italic"), soft_wrap=True)
    console.print(Text(line(columns), style="bold"), soft_wrap=True)
    for cells in lines:
        console.print(Text(line(cells)), soft_wrap=True)


def header(asked: Question) -> Iterator[str]:
    """Yield what was asked for, and what is assumed."""
    calibrated = "" if asked.roofs.calibrated else ", uncalibrated GPU"
    gpus = f"{asked.tp} x {asked.gpu.key}" if asked.tp > 1 else asked.gpu.key
    yield (f"PREDICTED{calibrated}, decode only: {asked.model.key} on {gpus}, {count(asked.concurrency, 'request')} of "
           f"{count(asked.context, 'token')}")  # fmt: skip
    rates = ""
    if asked.drafts.rates:
        rates = f", drafts accepted {', '.join(f'{one:.2f}'.lstrip('0') for one in asked.drafts.rates)}"
    whose = f", kernels of {', '.join(asked.impls)}" if asked.impls != (OURS,) else ""
    routing = f", {asked.routing} routing" if asked.model.moe_experts else ""
    yield (f"state {'/'.join(map(dtype, asked.state_dtypes))}, KV {dtype(asked.kv_dtype)}{routing}, memory by "
           f"{asked.engine.key}, rows flush {asked.flush_phase}{rates}{whose}")  # fmt: skip


def columns(states: bool) -> list[str]:
    """Return the names of the table's columns."""
    return ["method", "T", "L", *(["state"] if states else []), "MB/req", "fits", "runs", *_TIMES, ""]


def cells(row: Row, found: Answer, states: bool) -> list[Any]:
    """Return a row under :func:`columns`."""
    asked = found.table.question
    notes = []
    if row == found.chosen:
        notes.append(_MARKS.get(found.verdict, "<-?"))
    if row.waves > 1:
        notes.append(f"{asked.concurrency - row.runs:,} wait")
    if not row.within_sla:
        notes.append("over limit")
    return [row.method, row.draft_len, row.window, *([dtype(row.state_dtype)] if states else []),
            round(row.request_bytes / 1e6), row.fits, row.runs, *_times(row), ", ".join(notes)]  # fmt: skip


def _times(row: Row) -> list[str]:
    """Return the cells of :data:`_TIMES`."""
    return [
        f"{row.step_ms:.1f}",
        f"{row.p99_ms:.1f}",
        f"{'≤' if row.is_bound else ''}{rate(row.tokens_per_s)}",
        off(row),
    ]


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """Yield label and text of everything to know below the table and the answer."""
    found = report.answer
    asked = found.table.question
    if report.within is not None:
        point = report.within
        yield "limit", (f"{limit(asked)}: at most {rate(point.tokens_per_s)} tok/s, {point.batch:,} requests at "
                        f"once with {_point_name(point)}, {point.step_ms:.1f} ms a step")  # fmt: skip
    elif asked.sla_ms is not None:
        yield "limit", f"{limit(asked)}: nothing keeps it at any batch"
    if report.terms is not None:
        yield "step", _step(report)
    if report.window is not None:
        yield "window", _window(report)
    if report.even is not None:
        yield "break-even", _even(report)
    if found.verdict != "over the limit":  # nobody should set what breaks it
        yield "settings", _settings(found)
    yield "flips", _flips(found, report.flipped)
    yield "± holds", f"kernels and roofs; not {not_in_doubt(found)}"
    yield "left out", LEFT_OUT
    for text in warnings(found):
        yield "note", text
    for what, reason in found.table.skipped:
        yield "skipped", f"{what}: {reason}"


def _step(report: Report) -> str:
    terms = report.terms
    assert terms is not None
    asked = report.answer.table.question
    step = terms.steps[asked.context]
    parts = [f"{_TERM[name]} {step[name]:.1f}" for name in TERMS if step[name] >= 0.05]
    text = f"conventional, {count(terms.batch, 'request')}: {', '.join(parts)} ms"
    if terms.crossover is None:
        return f"{text}; no attention"
    return f"{text}; attention takes as long as the state from {_tokens(terms.crossover)} tokens on"


def _tokens(count: float) -> str:
    return f"{round(count, -3):,.0f}" if count >= 10_000 else f"{round(count, -2):,.0f}"


def _window(report: Report) -> str:
    window = report.window
    assert window is not None
    star = f"Eq. 16 {window.star:.1f}" if window.star is not None else "Eq. 16 none (T > M_S/r)"
    parts = [f"L = {window.window}; {star}, fewest bytes {window.bytes_best}, fastest of all {window.time_best}"
             f" ({_costs(1 / (1 + window.off_best) - 1)})"]  # fmt: skip
    for other in (window.half, window.double):
        if other is not None:
            fits = other.fits - window.fits
            room = f", fits {abs(fits):,} {'more' if fits > 0 else 'fewer'}" if fits else ""
            parts.append(f"L = {other.window} {_costs(other.cost)}{room}")
    return "; ".join(parts)


def _costs(cost: float) -> str:
    if abs(cost) < 0.0005:
        return "is as fast"
    return f"is {cost:.1%} slower" if cost > 0 else f"is {-cost:.1%} faster"


def _even(report: Report) -> str:
    even = report.even
    assert even is not None
    name = f"{even.method} over {even.against} at T = {even.draft_len}"
    if even.batch is None:
        return f"{name}: at no batch"
    sure = f"surely from {even.surely:,}" if even.surely is not None else "not surely at any"
    return f"{name}: from batch {even.batch:,} on, {sure}"


def _settings(found: Answer) -> str:
    settings = engine_settings(found.table.question, found.chosen)
    order = ("num_speculative_tokens", "replay_buffer_length")
    shown = {name: settings[name] for name in (*order, *settings) if name in settings}
    return f"{named(found.chosen)}: " + ", ".join(f"{name}={value}" for name, value in shown.items())


def _flips(found: Answer, flipped: list[Flip]) -> str:
    if not flipped:
        asked = found.table.question
        tried = ["the other state precision" if len(asked.state_dtypes) == 1 else "",
                 "a lower acceptance" if found.choice.draft_len > 1 else "", "batch", "a longer context"]  # fmt: skip
        return f"nothing that was tried: {', '.join(one for one in tried if one)}"
    return "; ".join(f"{_condition(flip)}: {brief(flip.answer)}" for flip in flipped)


def _condition(flip: Flip) -> str:
    if flip.what == "state":
        return f"state {dtype(flip.value)}"
    if flip.what == "acceptance":
        return f"acceptance of draft {flip.position} below {flip.value:.2f}"
    if flip.what == "batch":
        about = "about " if flip.value >= EXACT else ""
        return f"{'fewer' if flip.side == 'below' else 'more'} than {about}{count(flip.value, 'request')}"
    return f"{flip.side} {f'about {_tokens(flip.value)}' if flip.value >= 1000 else flip.value} tokens of context"


def _point_name(point: Point) -> str:
    window = f" L = {point.window}" if point.window is not None else ""
    return f"{point.method} T = {point.draft_len}{window}, state {dtype(point.state_dtype)}"


def _breakdown(report: Report) -> None:
    terms = report.terms
    assert terms is not None
    shown = [name for name in TERMS if any(step[name] for step in terms.steps.values())]
    _table(["context", *(f"{_TERM[name]} ms" for name in shown), "step ms"],
           [[context, *(f"{step[name]:.1f}" for name in shown), f"{sum(step.values()):.1f}"]
            for context, step in terms.steps.items()],
           title=f"Predicted conventional step of {count(terms.batch, 'request')} by term")  # fmt: skip


def _pareto(front: list[Point]) -> None:
    _table(
        ["batch", "method", "T", "L", "state", "tok/s", "tok/s a user", "step ms", "p99 ms"],
        [[point.batch, point.method, point.draft_len, point.window, dtype(point.state_dtype), rate(point.tokens_per_s),
          f"{point.user_tokens_per_s:.0f}", f"{point.step_ms:.1f}", f"{point.p99_ms:.1f}"] for point in front],
        title="Predicted Pareto front: throughput against a user's speed",
    )  # fmt: skip


def _gpus(gpus: list[OnGpu]) -> None:
    lines: list[list[Any]] = []
    for one in gpus:
        if one.answer is None:
            continue
        row = one.answer.chosen
        gain = times(one.answer.gain) if one.answer.gain is not None else None
        calibrated = one.answer.table.question.roofs.calibrated
        lines.append([one.gpu.key, short(row), row.fits, row.runs, *_times(row), gain, one.answer.verdict,
                      "measured" if calibrated else "datasheet"])  # fmt: skip
    if lines:
        _table(["GPU", "choice", "fits", "runs", *_TIMES, "gain", "verdict", "roofs"], lines,
               title="Predicted on other GPUs; gain over the best without a replay buffer")  # fmt: skip
    for one in gpus:
        if one.answer is None:
            _wrapped(one.gpu.key, f" {one.reason}")
