"""A plan as data frames, for figures and notebooks: pandas is imported when frames are made, never by a plan itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from perfkit.plan.answer import Answer
from perfkit.plan.breakdown import FIRST, LAST
from perfkit.plan.document import row_data
from perfkit.plan.pareto import Point, front, points
from perfkit.plan.question import Question
from perfkit.plan.rows import Choice
from perfkit.roofline import TERMS
from perfkit.roofline.latency import WIDTH_UNCALIBRATED

if TYPE_CHECKING:
    import pandas as pd

#: Loads go up to so many times what fits, and beyond so many waves to the powers of two alone.
BEYOND, WAVES = 2, 12
_OF_A_LOAD = ("method", "draft_len", "window", "state_dtype", "basis", "fits", "runs", "waves", "tokens_per_s",
              "tokens_per_s_lo", "tokens_per_s_hi", "together_tokens_per_s")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frames:
    """What a plan says, each frame with ``source`` (predicted), ``model`` and ``gpu``.

    Attributes:
        rows: the table: a row for each choice, as ``--json`` has it, and ``chosen``.
        front: batch, method, T, precision and its best window, with ``tokens_per_s``, ``user_tokens_per_s``;
            ``on_front`` says whether no other of its precision beats it in both, ``chosen`` marks the answer.
        capacity: each choice over ``concurrency``: requests that fit, run and wait, waves, throughput with its ends.
        context: terms of a step over ``context`` in milliseconds, ``term_*_ms``, those of the state-space layers and
            of keys and values with their ends; the conventional step, and the chosen one or the best of the others.
    """

    rows: pd.DataFrame
    front: pd.DataFrame
    capacity: pd.DataFrame
    context: pd.DataFrame


def frames(found: Answer, fronts: Question | None = None) -> Frames:
    """Return an answer as frames.

    Args:
        found: the answer.
        fronts: what the front is looked for in, such as the same question with more precisions; by default the same.

    Raises:
        InputError: nothing of ``fronts`` can run.
    """
    import pandas as pd

    asked = found.table.question
    place = {"source": "predicted", "model": asked.model.key, "gpu": asked.gpu.key}

    def made(rows: Iterator[dict[str, Any]]) -> pd.DataFrame:
        return pd.DataFrame([{**place, **row} for row in rows])

    return Frames(
        rows=made({"chosen": row == found.chosen, **row_data(row)} for row in found.table.rows()),
        front=made(_front(found, fronts or asked)),
        capacity=made(_capacity(found)),
        context=made(_context(found)),
    )


def _front(found: Answer, asked: Question) -> Iterator[dict[str, Any]]:
    row = found.chosen
    chosen = Point(row.runs, row.method, row.draft_len, row.window, row.state_dtype, row.tokens_per_s,
                   1e3 / row.token_ms, row.step_ms, row.p99_ms)  # fmt: skip
    # The answer may run at another batch than those that are tried, or at another window that is as good.
    every = [point for point in points(asked) if _key(point) != _key(chosen)]
    every += [chosen] if row.within_sla else []
    # A narrower state beats a wider one at every load, so each precision has a front of its own.
    best = [
        point for state in asked.state_dtypes for point in front([one for one in every if one.state_dtype == state])
    ]
    for point in sorted(every, key=lambda one: (one.state_dtype != row.state_dtype, *_key(one)[1:], one.batch)):
        yield {**asdict(point), "on_front": point in best, "chosen": point is chosen}


def _key(point: Point) -> tuple[Any, ...]:
    return point.batch, point.method, point.draft_len, point.state_dtype


def _capacity(found: Answer) -> Iterator[dict[str, Any]]:
    asked = found.table.question
    most = BEYOND * max(asked.concurrency, *(int(choice.block.fits[choice.at]) for choice in found.table.choices))
    powers = [1 << shift for shift in range(most.bit_length())]
    for choice in found.table.choices:
        fits = int(choice.block.fits[choice.at])
        full = [fits * wave + more for wave in range(1, WAVES) for more in (0, 1) if fits * wave + more <= most]
        for load in sorted({*powers, asked.concurrency, *full, most}):
            data = row_data(replace(choice.block, question=asked.but(concurrency=load)).row(choice.at))
            yield {
                "concurrency": load, "asked": load == asked.concurrency, "chosen": choice is found.choice,
                "context": asked.context, "waits": load - data["runs"], **{name: data[name] for name in _OF_A_LOAD},
            }  # fmt: skip


def _context(found: Answer) -> Iterator[dict[str, Any]]:
    asked = found.table.question
    most = min(asked.model.max_context or LAST, LAST)
    contexts = sorted({asked.context, most, *(FIRST << shift for shift in range(9) if FIRST << shift <= most)})
    for choice in _beside_conventional(found):
        block, at, row = choice.block, choice.at, choice.row()
        times = block.layer.times(row.runs)
        layers = block.step.n_ssm * asked.slowdown / 1e3
        # Weights, keys and values are read at a roof that is in doubt where nobody measured it.
        doubt = 1.0 if asked.roofs.calibrated else 1 + WIDTH_UNCALIBRATED
        crossover = float(block.step.crossover_tokens(row.layer_us, row.runs, draft_len=row.draft_len,
                                                      slowdown=asked.slowdown))  # fmt: skip
        for context in contexts:
            terms = block.whole(row.layer_us, row.runs, context).terms
            ms = {name: float(terms[name]) / 1e3 for name in TERMS}
            yield {
                "method": row.method, "draft_len": row.draft_len, "window": row.window,
                "state_dtype": row.state_dtype, "basis": row.basis, "batch": row.runs, "accepted": row.accepted,
                "chosen": choice is found.choice, "context": context, "asked": context == asked.context,
                **{f"term_{name}_ms": value for name, value in ms.items()},
                "term_ssm_lo_ms": layers * float(times.lo[at]), "term_ssm_hi_ms": layers * float(times.hi[at]),
                "term_kv_lo_ms": ms["kv"] / doubt, "term_kv_hi_ms": ms["kv"] * doubt,
                "crossover_tokens": crossover if asked.model.n_attn_layers else None,
            }  # fmt: skip


def _beside_conventional(found: Answer) -> list[Choice]:
    """Return the conventional choice, where there is one, and the answer's, or of the others the best."""
    choices = found.table.choices
    plain = next((one for one in choices if one.method == "conventional"), None)
    order = sorted(choices, key=lambda one: one is not found.choice)
    other = next((one for one in order if one.method != "conventional"), None)
    return [one for one in (plain, other) if one is not None]
