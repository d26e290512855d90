"""The conventional step by term over the context, and where attention overtakes the state. Source: paper, Fig. 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfkit.plan.answer import Answer
from perfkit.roofline import TERMS

#: From 1,024 tokens in steps of four, and no further than this.
FIRST, LAST = 1024, 2**18


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A conventional decode step.

    Attributes:
        batch: requests in it.
        steps: terms in milliseconds by context.
        crossover: tokens of context at which attention takes as long as the state-space layers; None without it.
    """

    batch: int
    steps: Mapping[int, Mapping[str, float]]
    crossover: float | None


def breakdown(found: Answer) -> Breakdown | None:
    """Return the conventional step of the load that was asked for; None where it was not compared.

    The batch stays that of the context asked for: at longer ones fewer requests fit.
    """
    plain = found.plain
    if plain is None:
        return None
    asked = found.table.question
    block = next(one for one in found.table.blocks
                 if one.method.key == "conventional" and one.state_dtype == plain.state_dtype)  # fmt: skip
    most = min(asked.model.max_context or LAST, LAST)
    contexts = sorted({asked.context, *(FIRST << shift for shift in range(0, 9, 2) if FIRST << shift <= most)})
    steps: dict[int, dict[str, float]] = {}
    for context in contexts:
        whole = block.whole(plain.layer_us, plain.runs, context)
        steps[context] = {str(name): float(whole.terms[name]) / 1e3 for name in TERMS}
    tokens = float(block.step.crossover_tokens(plain.layer_us, plain.runs, slowdown=asked.slowdown))
    return Breakdown(plain.runs, steps, tokens if asked.model.n_attn_layers else None)
