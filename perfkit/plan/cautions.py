"""What to know before trusting a plan: what its times rest on, where its gain goes, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.errors import InputError
from perfkit.plan.answer import Answer, answer
from perfkit.plan.rows import Row
from perfkit.plan.words import dtype, named
from perfkit.roofline.efficiency import OURS

#: Precision keeps this share of a gain, or the other state erases it.
_ERASED = 0.5
#: The state's dtype in all rows that fits are made of.
TIMED_STATE = "float32"
#: A precision is worth a word from this ratio of throughputs on.
_FASTER = 1.02
LEFT_OUT = (
    "prefill and arrivals; the prefix cache: one engine's replay mode forces a cache strategy that raised time to "
    "first token up to 4.7 times elsewhere (production notes beside vLLM's pull requests): measure it before switching"
)


def not_in_doubt(found: Answer) -> str:
    """Return what the ± of a table does not hold."""
    asked = found.table.question
    own = asked.overheads.step_us or asked.overheads.row_us
    parts = ["acceptance", "matrix products and attention, which are taken to reach their roofs",
             "the engine's own time" if own else "an engine's own time, taken as 0",
             "drafting beyond its weights" if asked.drafts.lengths[-1] > 1 else "",
             "all-reduces (estimated)" if asked.tp > 1 else "", "a power cap (--slowdown)"]  # fmt: skip
    return ", ".join(part for part in parts if part)


def warnings(found: Answer) -> list[str]:
    """Return one line for each reason to doubt a plan."""
    return [*_basis(found), *_state(found), *_load(found), *_model(found)]


def _basis(found: Answer) -> Iterator[str]:
    asked = found.table.question
    seen: dict[tuple[str, ...], set[str]] = {}
    for choice in found.table.choices:
        kernels, name = choice.block.kernels, f"{choice.method} {'verify' if choice.draft_len > 1 else 'decode'}"
        seen.setdefault((kernels.basis, kernels.impl or "", kernels.source or ""), set()).add(name)
    if not asked.roofs.calibrated:
        yield f"uncalibrated: the roofs of {asked.gpu.key} are its datasheet's, not measured (perfkit roofline)"
    for (basis, impl, source), names in seen.items():
        owner = impl or (" or ".join(asked.impls) if OURS not in asked.impls else OURS)
        whose = f"{owner}'s kernels of" if owner != OURS else "kernels of"
        what = f"{whose} {asked.model.family} {', '.join(sorted(names))}"
        if basis == "carried":
            yield f"{what} were timed on {source} alone: carried over to {asked.gpu.key}"
        elif basis == "lent":
            yield f"{what} were never timed: predicted by those of {source}"
        elif basis == "bound":
            yield f"no time is known of {what}: ≤ is what their bytes allow, no prediction"
    yield from _extrapolated(found)
    others = [dtype(state) for state in asked.state_dtypes if state != TIMED_STATE]
    if others and any(choice.block.kernels.basis != "bound" for choice in found.table.choices):
        yield f"kernels were timed with {dtype(TIMED_STATE)} states alone: {', '.join(others)} by their bytes"


def _extrapolated(found: Answer) -> Iterator[str]:
    """Say which methods run at batches that their kernels were not timed at."""
    timed: dict[str, str] = {}
    beyond: dict[str, set[int]] = {}
    for choice in found.table.choices:
        known, runs = choice.block.kernels.efficiency, int(choice.block.runs[choice.at])
        if known is None or known.covers(runs):
            continue
        low, high = known.batches[0], known.batches[-1]
        name = f"{choice.method} {'verify' if choice.draft_len > 1 else 'decode'}"
        timed[name] = f"batches {low} to {high}" if low != high else f"batch {low} alone"
        beyond.setdefault(name, set()).add(runs)
    for batches in dict.fromkeys(timed.values()):
        names = sorted(name for name, one in timed.items() if one == batches)
        ran = sorted(set[int]().union(*(beyond[name] for name in names)))
        span = f"{ran[0]:,}" if len(ran) == 1 else f"{ran[0]:,} to {ran[-1]:,}"
        were = "was" if len(names) == 1 else "were"
        yield f"extrapolated: {', '.join(names)} {were} timed at {batches}, not at {span}"


def _state(found: Answer) -> Iterator[str]:
    """Say where a state of 16 bits, kept or possible, takes the gain away."""
    asked, gain = found.table.question, found.gain
    if len(asked.state_dtypes) != 1 or gain is None or found.baseline is None:
        return
    have = asked.state_dtypes[0]
    other = "float16" if have == "float32" else "float32"
    try:
        changed = answer(asked.but(state_dtypes=(other,)))
    except InputError:
        return
    if changed.gain is None:
        return
    parts = []
    narrow, wide = (changed.gain.value, gain.value) if have == "float32" else (gain.value, changed.gain.value)
    if narrow - 1 < _ERASED * (wide - 1):
        parts.append(f"replay's gain is {changed.gain.value:.2f}x and not {gain.value:.2f}x")
    faster = changed.best.tokens_per_s / found.best.tokens_per_s
    if faster > _FASTER:
        parts.append(f"{named(changed.best)} gives {faster:.2f}x the tokens/s, where the model's quality allows it")
    if parts:
        yield f"with {dtype(other)} states {', and '.join(parts)}"


def _load(found: Answer) -> Iterator[str]:
    asked, row = found.table.question, found.chosen
    if row.waves > 1:
        yield (f"{row.fits:,} requests of {asked.concurrency:,} fit: the others wait; if all come together they take "
               f"{row.waves} waves and {_rate(row)} tokens/s")  # fmt: skip
    if not asked.reserve_gb and asked.memory_gb is None:
        yield ("fits is an upper bound: an engine sets memory aside for activations and graphs; --reserve-gb 7 lands "
               "on counts that were published of a B300")  # fmt: skip
    drafts = asked.drafts.lengths[-1] > 1
    if drafts and not asked.drafter:
        cost = f"{asked.overheads.pass_us:g} us each" if asked.overheads.pass_us else "nothing"
        yield (f"{asked.model.key} has no draft layers of its own: drafts are taken to cost {cost}, and their memory "
               "is not counted")  # fmt: skip
    if asked.tp > 1:
        yield "all-reduces are estimated from the datasheet's links and 8 us each; measure them"


def _rate(row: Row) -> str:
    return f"{row.together_tokens_per_s:,.0f}"


def _model(found: Answer) -> Iterator[str]:
    asked = found.table.question
    if asked.overheads.step_us or asked.overheads.row_us:
        over = asked.overheads
        yield (f"the engine's own time is an estimate, {over.step_us / 1e3:g} ms a step, {over.row_us:g} us a row, "
               f"{over.pass_us:g} us a draft pass: {over.source.partition(' (')[0]}; --overheads none leaves it "
               "out")  # fmt: skip
    if asked.model.uncertain:
        yield f"not confirmed of {asked.model.key}: {', '.join(asked.model.uncertain)}"
