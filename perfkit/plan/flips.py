"""What would change the answer: the same question with one thing different, until the answer is another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from perfkit.errors import InputError
from perfkit.plan.answer import Answer, answer
from perfkit.plan.question import Question

What = Literal["state", "acceptance", "batch", "context"]
#: The longest context that is tried of a model whose own limit is not known, in tokens.
FARTHEST = 2**20
#: How many times the load asked for is tried.
MOST_LOAD = 4
#: Acceptances are told apart by this.
_RATE_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Flip:
    """A condition under which the answer is another.

    Attributes:
        what: state, acceptance, batch or context.
        side: below or above ``value``, or ``is``.
        value: the first value that was found with the other answer: a rate, requests, tokens, a dtype.
        position: of acceptance, which draft.
        answer: the other answer.
    """

    what: What
    side: Literal["below", "above", "is"]
    value: Any
    position: int | None
    answer: Answer


def flips(found: Answer) -> list[Flip]:
    """Return what flips an answer, each condition alone; acceptance by the draft that is closest to flip it."""
    asked = found.table.question
    closest = max(_acceptance(found), key=lambda flip: flip.value / _rate(asked, flip), default=None)
    return [flip for flip in (_state(found), closest, *_batch(found), _context(found)) if flip is not None]


def _rate(asked: Question, flip: Flip) -> float:
    return asked.drafts.rates[(flip.position or 1) - 1] or 1.0


def differs(one: Answer, other: Answer) -> bool:
    """Say whether two answers are to run another method or T, or to change at all."""
    return one.chosen.key != other.chosen.key or one.verdict != other.verdict


def _state(found: Answer) -> Flip | None:
    asked = found.table.question
    if len(asked.state_dtypes) != 1:
        return None
    other = "float16" if asked.state_dtypes == ("float32",) else "float32"
    changed = _try(lambda: answer(asked.but(state_dtypes=(other,))))
    return Flip("state", "is", other, None, changed) if changed is not None and differs(found, changed) else None


def _acceptance(found: Answer) -> Iterator[Flip]:
    """Yield for each draft of the choice the rate below which another answer is better."""
    asked = found.table.question
    for position in range(1, found.chosen.draft_len):
        have = asked.drafts.rates[position - 1]

        def at(step: int, position: int = position) -> Answer:
            return answer(asked.but(drafts=asked.drafts.with_rate(position, step * _RATE_STEP)))

        steps = int(have / _RATE_STEP)
        flipped = _bisect(found, at, steps + 1, 0) if steps and differs(found, at(0)) else None
        if flipped is not None:
            yield Flip("acceptance", "below", (flipped[0] + 1) * _RATE_STEP, position, flipped[1])


def _batch(found: Answer) -> Iterator[Flip | None]:
    asked = found.table.question

    def at(batch: int) -> Answer:
        return answer(asked.but(concurrency=batch))

    now = asked.concurrency
    lower = _first(found, at, now, (now >> shift for shift in range(1, now.bit_length())))
    yield Flip("batch", "below", lower[0] + 1, None, lower[1]) if lower is not None else None
    higher = _first(found, at, now, (now * factor for factor in (2, MOST_LOAD)))
    yield Flip("batch", "above", higher[0] - 1, None, higher[1]) if higher is not None else None


def _context(found: Answer) -> Flip | None:
    asked = found.table.question
    most = asked.model.max_context or FARTHEST

    def at(context: int) -> Answer:
        return answer(asked.but(context=context))

    now = asked.context
    tried = [now << shift for shift in range(1, 32) if now << shift < most]
    flipped = _first(found, at, now, [*tried, most] if most > now else [])
    return Flip("context", "above", flipped[0] - 1, None, flipped[1]) if flipped is not None else None


def _first(found: Answer, at: Callable[[int], Answer], now: int, tried: Iterable[int]) -> tuple[int, Answer] | None:
    """Return the value closest to ``now`` with another answer, between what is tried to 1 part in 16; None if none.

    A load that does not run at all ends the search.
    """
    last = now
    for value in tried:
        changed = _try(lambda value=value: at(value))  # type: ignore[misc]
        if changed is None:
            return None
        if differs(found, changed):
            return _bisect(found, at, last, value, max(1, abs(value - last) // 16))
        last = value
    return None


def _bisect(
    found: Answer, at: Callable[[int], Answer], same: int, other: int, width: int = 1
) -> tuple[int, Answer] | None:
    """Return the value with another answer next to one with the same."""
    there: Answer | None = None
    while abs(other - same) > width:
        middle = (same + other) // 2
        changed = at(middle)
        if differs(found, changed):
            other, there = middle, changed
        else:
            same = middle
    return other, there if there is not None else at(other)


def _try(ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer, None where that cannot run at all."""
    try:
        return ask()
    except InputError:
        return None
