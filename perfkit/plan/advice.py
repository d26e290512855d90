"""One sentence: what to run, what it gains, and what the gain is made of."""

from __future__ import annotations

from perfkit.plan.answer import STANDARD, Answer, ratio
from perfkit.plan.question import Question
from perfkit.plan.rows import Row
from perfkit.plan.words import named, times
from perfkit.progress import count
from perfkit.roofline.efficiency import OURS


def advice(found: Answer) -> str:
    """Return the sentence of an answer."""
    asked, best, base = found.table.question, found.best, found.baseline
    if found.verdict == "over the limit":
        return (f"Nothing keeps {limit(asked)} with {count(asked.concurrency, 'request')}: the best, {named(best)}, "
                f"{_takes(asked, best)}.")  # fmt: skip
    if base is None or found.gain is None:
        return f"Run {named(best)}; nothing that engines do without it was compared."
    if found.verdict == "no change":
        if best is base:
            return f"{_standard(found, base)}{_runner_up(found)}."
        return (f"Change nothing: {named(best)} would give {times(found.gain)} the tokens/s of {named(base)}, which "
                "does not clear what is not known of their kernels.")  # fmt: skip
    if found.verdict == "unproven":
        return (f"Measure before changing: by bytes {named(best)} gives {times(found.gain)} the tokens/s of "
                f"{named(base)}, but {_unknown(asked, best if best.is_bound else base)}.")  # fmt: skip
    plain = found.plain
    more = ""
    if plain is not None and plain is not base and plain.key != base.key:
        more = f", {ratio(best.spread, plain.spread).value:.2f}x those of conventional decode"
    if not base.within_sla:
        return (f"Run {named(best)}: it keeps {limit(asked)}, and the best without a replay buffer, {named(base)}, "
                f"{_takes(asked, base)}; {times(found.gain)} its tokens/s{more}: {reason(best, base)}.")  # fmt: skip
    return f"Run {named(best)}: {times(found.gain)} the tokens/s of {named(base)}{more}: {reason(best, base)}."


def reason(best: Row, base: Row) -> str:
    """Return what a gain is made of: state-space layers, tokens a step, requests at once."""
    ssm, under = best.terms["ssm"], base.terms["ssm"]
    parts = [f"its state-space layers take {ssm:.1f} of {best.step_ms:.1f} ms, there {under:.1f} of {base.step_ms:.1f}"]
    if abs(best.accepted - base.accepted) > 0.005:
        parts.append(f"a step commits {best.accepted:.2f} tokens for {base.accepted:.2f}")
    if best.runs != base.runs:
        parts.append(f"{best.runs:,} requests run at once for {base.runs:,}")
    return ", ".join(parts)


def limit(asked: Question) -> str:
    """Return the limit in words."""
    what = "a p99 step" if asked.sla_on == "step" else "a token"
    return f"{what} within {asked.sla_ms:g} ms"


def _takes(asked: Question, row: Row) -> str:
    """Return what a row takes of what the limit is on."""
    return f"takes {row.p99_ms if asked.sla_on == 'step' else row.token_ms:.1f} ms"


def _standard(found: Answer, base: Row) -> str:
    """Return that a method of engines is best: nothing to change, or drafts that engines have."""
    plain = found.plain
    if plain is None or plain.key == base.key:
        return f"Change nothing: {named(base)} is the fastest of what was compared"
    return (f"Run {named(base)}, as engines do: {times(ratio(base.spread, plain.spread))} the tokens/s of conventional "
            "decode, and no replay buffer is faster")  # fmt: skip


def _runner_up(found: Answer) -> str:
    """Return what the best of the other methods would give."""
    base = found.best
    other = next((one for one in found.table.choices if one.method not in STANDARD), None)
    if other is None:
        return ""
    row = other.row()
    return f"; {named(row)} would give {times(ratio(row.spread, base.spread))} its tokens/s"


def _unknown(asked: Question, row: Row) -> str:
    """Return whose kernels of a row no time is known of, and what would give one."""
    what = f"{row.method} at T = {row.draft_len}"
    if OURS not in asked.impls:  # a sweep here times ours
        return (f"no time is published of {' or '.join(asked.impls)}'s kernels of {what} (--impl "
                f"{','.join((*asked.impls, OURS))} takes ours there)")  # fmt: skip
    draft = f" --draft {row.draft_len}" if row.draft_len > 1 else ""
    sweep = f"perfkit sweep --model {asked.model.key}{draft} on a {asked.gpu.key}"
    return f"the kernels of {what} were never timed ({sweep})"
