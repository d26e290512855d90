"""A plan as plain data: what ``--json`` and ``--csv`` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from perfkit.plan.advice import advice
from perfkit.plan.answer import Answer
from perfkit.plan.breakdown import Breakdown
from perfkit.plan.breakeven import BreakEven
from perfkit.plan.cautions import LEFT_OUT, warnings
from perfkit.plan.flips import Flip
from perfkit.plan.gpus import OnGpu
from perfkit.plan.pareto import Point
from perfkit.plan.question import Question
from perfkit.plan.rows import Row
from perfkit.plan.settings import engine_settings
from perfkit.plan.windows import WindowChoice

SCHEMA_VERSION = 1


def document(
    found: Answer, rows: Sequence[Row], *, window: WindowChoice | None, even: BreakEven | None,
    terms: Breakdown | None, flipped: Sequence[Flip], front: Sequence[Point] | None, gpus: Sequence[OnGpu] | None,
) -> dict[str, Any]:  # fmt: skip
    """Return everything that a plan says; keys are only ever added to."""
    asked = found.table.question
    return {
        "schema_version": SCHEMA_VERSION,
        "source": "predicted",
        "calibrated": asked.roofs.calibrated,
        "roofs": asked.roofs.provenance(),
        "question": asked_for(asked),
        "rows": [row_data(row) | {"chosen": row == found.chosen} for row in rows],
        "skipped": [{"what": what, "reason": reason} for what, reason in found.table.skipped],
        "verdict": found.verdict,
        "advice": advice(found),
        "choice": row_data(found.chosen),
        "best": row_data(found.best),
        "baseline": row_data(found.baseline) if found.baseline is not None else None,
        "gain": asdict(found.gain) if found.gain is not None else None,
        "settings": None if found.verdict == "over the limit" else engine_settings(asked, found.chosen),
        "window": asdict(window) if window is not None else None,
        "break_even": asdict(even) if even is not None else None,
        "conventional_step": {"batch": terms.batch, "crossover_tokens": terms.crossover,
                              "ms": [{"context": context, **step} for context, step in terms.steps.items()]}
        if terms is not None else None,
        "flips": [{"what": flip.what, "side": flip.side, "value": flip.value, "position": flip.position,
                   **_short(flip.answer)} for flip in flipped],
        "pareto": [asdict(point) for point in front] if front is not None else None,
        "gpus": [{"gpu": one.gpu.key, "reason": one.reason,
                  **(_short(one.answer) | {"choice": row_data(one.answer.chosen),
                                           "calibrated": one.answer.table.question.roofs.calibrated}
                     if one.answer is not None else {})} for one in gpus] if gpus is not None else None,
        "warnings": warnings(found),
        "left_out": LEFT_OUT,
    }  # fmt: skip


def asked_for(asked: Question) -> dict[str, Any]:
    """Return a question as plain data."""
    names = ("concurrency", "context", "windows", "methods", "state_dtypes", "input_dtype", "kv_dtype", "weight_dtype",
             "tp", "routing", "slowdown", "memory_gb", "utilization", "reserve_gb", "flush_phase", "impls", "sla_ms",
             "sla_on")  # fmt: skip
    drafts = {"draft_lens": asked.drafts.lengths, "acceptance": asked.drafts.rates}
    return {"model": asked.model.key, "gpu": asked.gpu.key, "engine": asked.engine.key, **drafts,
            **{name: getattr(asked, name) for name in names}, "overheads": asdict(asked.overheads)}  # fmt: skip


def row_data(row: Row) -> dict[str, Any]:
    """Return a row as flat data: its fields, its terms as ``term_*_ms``, and the ends of its throughput."""
    data = {item.name: getattr(row, item.name) for item in fields(row) if item.name != "terms"}
    return data | {"tokens_per_s_lo": row.tokens_lo, "tokens_per_s_hi": row.tokens_hi,
                   **{f"term_{name}_ms": value for name, value in row.terms.items()}}  # fmt: skip


def _short(found: Answer) -> dict[str, Any]:
    row = found.chosen
    return {"verdict": found.verdict, "method": row.method, "draft_len": row.draft_len, "window": row.window,
            "gain": asdict(found.gain) if found.gain is not None else None}  # fmt: skip
