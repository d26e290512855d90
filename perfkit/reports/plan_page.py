"""A plan as one offline page: the answer and what it rests on, the ranked table, and three figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.plan import Answer, Frames
from perfkit.plan.advice import advice, reason
from perfkit.plan.words import named, off, rate
from perfkit.reports.figures import PLAN_FIGURES
from perfkit.reports.page import figure_words, fill
from perfkit.reports.text import count, integer, interval, sentence, times

TABLE_COLUMNS = (
    "chosen", "method", "draft_len", "window", "state_dtype", "accepted", "request_bytes", "fits", "runs", "waves",
    "step_ms", "p99_ms", "tokens_per_s", "tokens_per_s_lo", "tokens_per_s_hi", "basis", "within_sla",
)  # fmt: skip
#: How the page marks what an answer says, by its verdict.
_LOOKS = {"change": "faster", "no change": "same", "unproven": "nothing", "over the limit": "nothing"}
#: Lines that are no reason for doubt stand among the facts, in this order.
_FACTS = ("limit", "window", "break-even", "step", "± holds")
_PREDICTED = (
    "Everything on this page is predicted, from bytes, roofs and fitted kernels: nothing was run for it, and what was "
    "timed elsewhere is named below."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What ``perfkit plan`` prints.

    Attributes:
        columns: of the ranked table.
        rows: its cells.
        assumed: precisions, routing, memory and drafts, in one line.
        lines: (label, text) of everything below the table.
        command: the command line, None if it is not known.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    assumed: str
    lines: Sequence[tuple[str, str]]
    command: str | None


@dataclass(frozen=True, slots=True)
class _Said:
    verdict: str
    headline: str
    advice: str
    source: str = "predicted"


def render_plan(found: Answer, made: Frames, words: Words) -> str:
    """Return the page of a plan as HTML."""
    asked = found.table.question
    drawn: dict[str, Any] = {}
    built = [(name, build(getattr(made, name.removeprefix("plan-")))) for name, build in PLAN_FIGURES]
    gpu = f"{asked.tp} x {asked.gpu.key}" if asked.tp > 1 else asked.gpu.key
    load = f"{count(asked.concurrency, 'request')} of {count(asked.context, 'token')}"
    lines: dict[str, list[str]] = {}
    for label, line in words.lines:
        lines.setdefault(label, []).append(line)
    under = (("settings", "Settings"), ("flips", "What flips it"), ("left out", "Left out"))
    section = {
        "id": "plan", "model": asked.model.key, "gpu": gpu, "folded": False, "across": [], "left_out": 0,
        "heading": f"What may be chosen: {asked.model.key} on {gpu}", "table_name": "Choices",
        "cards": [{"workload": load, "answer": _said(found), "cards": _cards(found),
                   "notes": [f"{name}: {text}" for label, name in under for text in lines.get(label, [])]}],
        "others": words.rows, "table_class": "ranked",
        "parts": [{"workload": "", "figures": [figure_words(*item, drawn) for item in built if item[1].data]}],
        "cases": f"Predicted; {count(len(made.rows), 'choice')} compared, each at its best window",
        "missing": [
            *(("Fronts: nothing keeps the limit at any batch, T and precision", None) for _, figure in built
              if not figure.data),
            (f"Times of kernels on a {asked.gpu.key}, to hold this against", _sweep(found)),
        ],
    }  # fmt: skip
    doubts = [_PREDICTED, *map(sentence, lines.get("note", [])),
              *(f"Skipped: {text}" for text in lines.get("skipped", []))]  # fmt: skip
    facts = [("Model", asked.model.key), ("GPU", gpu), ("Roofs", str(asked.roofs.provenance()["text"])),
             ("Load", load), ("Assumed", sentence(words.assumed)),
             *((sentence(name), sentence(text)) for name in _FACTS for text in lines.get(name, []))]  # fmt: skip
    return fill(
        f"Plan for {asked.model.key} on {gpu}, {load}", made.rows, drawn,
        lead=None, sections=[section], changes=[], answer_columns=words.columns,
        runs=[{"name": "plan", "command": words.command}], warnings=doubts, facts={"same": facts, "different": []},
        table_columns=TABLE_COLUMNS,
    )  # fmt: skip


def _said(found: Answer) -> _Said:
    """Return the sentence of an answer, and below it what a gain is made of."""
    whole, base = advice(found), found.baseline
    why = reason(found.best, base) if base is not None else ""
    headline = whole.removesuffix(f": {why}.")
    return _Said(_LOOKS[found.verdict], headline, f"{sentence(why)}." if headline != whole else "")


def _cards(found: Answer) -> list[tuple[str, str, str]]:
    """Return the numbers of the first screen: (name, value, note)."""
    row, base = found.chosen, found.baseline
    waits = found.table.question.concurrency - row.runs
    cards = [("Run", named(row), f"{integer(row.runs)} at once" + (f", {integer(waits)} wait" if waits else "")),
             ("Tokens per second", f"{'≤ ' if row.is_bound else ''}{rate(row.tokens_per_s)}", off(row))]  # fmt: skip
    if found.gain is not None and base is not None and found.best is not base:
        span = interval(found.gain.lo, found.gain.hi, lambda end: f"{end:.2f}")
        cards.append((f"Gain of {found.best.method}", times(found.gain.value), f"{span} against {named(base)}"))
    tokens = f", commits {row.accepted:.2f} tokens" if row.draft_len > 1 else ""
    cards.append(("Step", f"{row.step_ms:.1f} ms", f"p99 {row.p99_ms:.1f} ms{tokens}"))
    cards.append(("Requests that fit", integer(row.fits), f"{row.request_bytes / 1e6:,.0f} MB each"))
    return cards


def _sweep(found: Answer) -> str:
    """Return the sweep, to be run on that GPU, that times what was compared."""
    asked = found.table.question
    lengths = [length for length in asked.drafts.lengths if length > 1]
    drafts = f" --draft {','.join(map(str, lengths))}" if lengths else ""
    return f"perfkit sweep --model {asked.model.key}{drafts} --method {','.join(asked.methods)}"
