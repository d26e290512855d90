"""What would change the answer: the same question with one thing different, until the answer is another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from perfkit.errors import InputError
from perfkit.plan.answer import Answer, answer

What = Literal["state", "acceptance", "batch", "context"]
#: The longest context that is tried of a model whose own limit is not known, in tokens.
FARTHEST = 2**20
#: Larger loads are tried up to so many times the one asked for, and up to so many requests.
MOST_TIMES, MOST_REQUESTS = 4, 256
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
    return [flip for flip in (_state(found), _acceptance(found), *_batch(found), _context(found)) if flip is not None]


def differs(one: Answer, other: Answer) -> bool:
    """Say whether two answers are to run another method or T, or to change at all."""
    return one.choice.key != other.choice.key or one.verdict != other.verdict


def _state(found: Answer) -> Flip | None:
    asked = found.table.question
    if len(asked.state_dtypes) != 1:
        return None
    other = "float16" if asked.state_dtypes == ("float32",) else "float32"
    changed = _try(lambda: answer(asked.but(state_dtypes=(other,))))
    return Flip("state", "is", other, None, changed) if changed is not None and differs(found, changed) else None


def _acceptance(found: Answer) -> Flip | None:
    """Return the draft whose rate has least to fall, as a share, until another answer is better, and that rate.

    The last draft is tried first: it mostly is the one, and another is only searched if it flips before.
    """
    asked, closest = found.table.question, None
    share = 0.0  # of a rate, at which the closest flips
    for position in range(found.choice.draft_len - 1, 0, -1):
        have = asked.drafts.rates[position - 1]

        def at(step: int, position: int = position) -> Answer:
            return answer(asked.but(drafts=asked.drafts.with_rate(position, step * _RATE_STEP)))

        low, high = math.ceil(share * have / _RATE_STEP), int(have / _RATE_STEP)
        if low <= high and differs(found, at(low)):
            step, changed = _bisect(found, at, high + 1, low)
            share = (step + 1) * _RATE_STEP / have
            closest = Flip("acceptance", "below", (step + 1) * _RATE_STEP, position, changed)
    return closest


def _batch(found: Answer) -> Iterator[Flip | None]:
    asked = found.table.question

    def at(batch: int) -> Answer:
        return answer(asked.but(concurrency=batch))

    now = asked.concurrency
    lower = _first(found, at, now, (now >> shift for shift in range(1, now.bit_length())))
    yield Flip("batch", "below", lower[0] + 1, None, lower[1]) if lower is not None else None
    most = max(MOST_TIMES * now, MOST_REQUESTS)
    higher = _first(found, at, now, [now << shift for shift in range(1, most.bit_length()) if now << shift <= most])
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


def _bisect(found: Answer, at: Callable[[int], Answer], same: int, other: int, width: int = 1) -> tuple[int, Answer]:
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
