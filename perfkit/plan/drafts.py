"""Which draft lengths a plan compares, and what a step of each commits.

Rates by position are unconditional, as engines log them: P(draft i is committed). A shorter T uses the first of them,
so one list says the acceptance of every T up to its length and one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline import pmf_mean
from perfkit.roofline.acceptance import acceptance_probability, rates_pmf

FIELD = "--acceptance"
ALLOWED = "rates by draft position, such as .88,.62,.40, or mean:X with --draft"
#: Longest T of a plan: kernels verify no more.
MAX_DRAFT = 16
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)")


@dataclass(frozen=True, slots=True)
class Drafts:
    """Draft lengths and acceptance.

    Attributes:
        lengths: T, ascending.
        rates: P(draft i is committed), i = 1 .. largest T - 1; not rising.
    """

    lengths: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()

    def pmf(self, draft_len: int) -> NDArray[np.float64]:
        """Return P(a = 1), ..., P(a = T)."""
        return rates_pmf(np.array(self.rates[: draft_len - 1], dtype=np.float64))

    def accepted(self, draft_len: int) -> float:
        """Return the mean number of tokens that a step commits."""
        return pmf_mean(self.pmf(draft_len))

    def text(self, draft_len: int) -> str:
        """Return the acceptance as a :class:`perfkit.method.Case` has it."""
        used = self.rates[: draft_len - 1]
        if all(rate == 1.0 for rate in used):
            return "T" if used else "1"
        return "p:" + ",".join(f"{rate:.12g}" for rate in used)

    def with_rate(self, position: int, rate: float) -> Drafts:
        """Return the same with another rate at a draft position (1 is the first), and no higher one behind it."""
        kept = self.rates[: position - 1]
        return Drafts(self.lengths, (*kept, *(min(one, rate) for one in self.rates[position - 1 :])))


def parse_drafts(acceptance: str | None, lengths: Sequence[int] = ()) -> Drafts:
    """Return the draft lengths of a plan.

    Args:
        acceptance: ``.88,.62,.40`` (also ``p:.88,.62,.40``), rates by position; ``mean:X``: each draft is accepted
            with one probability, independently until the first rejection, X tokens on average at the largest T; ``T``:
            every draft is. None: no drafts.
        lengths: T to compare; without them 1 up to the number of rates and one.

    Raises:
        InputError: drafts without an acceptance, a T that has no rate, rates that rise or are none.
    """
    chosen = tuple(sorted(set(lengths)))
    most = chosen[-1] if chosen else None
    if most is not None and most > MAX_DRAFT:
        raise InputError("more positions than kernels verify", field="--draft", value=most, allowed=f"1..{MAX_DRAFT}")
    if acceptance is None:
        if most is not None and most > 1:
            raise InputError(f"T = {most} needs an acceptance", field="--draft", value=most,
                             allowed=f"{FIELD} with {ALLOWED}")  # fmt: skip
        return Drafts()
    text = acceptance.strip()
    if text == "T" or text.startswith("mean:"):
        if most is None:
            raise InputError("needs --draft: the largest T that it is about", field=FIELD, value=acceptance,
                             allowed=ALLOWED)  # fmt: skip
        rates = (1.0,) * (most - 1) if text == "T" else _of_mean(text, most)
    else:
        rates = _rates(text)
    if most is not None and most > len(rates) + 1:
        raise InputError(f"T = {most} drafts {most - 1}, and there are {len(rates)} rates", field="--draft", value=most,
                         allowed=f"1..{len(rates) + 1}")  # fmt: skip
    if len(rates) >= MAX_DRAFT:
        raise InputError(f"more than {MAX_DRAFT - 1} rates", field=FIELD, value=acceptance)
    return Drafts(chosen or tuple(range(1, len(rates) + 2)), rates)


def _of_mean(text: str, draft_len: int) -> tuple[float, ...]:
    (mean,) = _numbers([text.removeprefix("mean:")], text)
    if not 1 <= mean <= draft_len:
        raise InputError(f"mean out of range at T = {draft_len}", field=FIELD, value=text, allowed=f"1..{draft_len}")
    one = acceptance_probability(mean, draft_len)
    return tuple(one**position for position in range(1, draft_len))


def _rates(text: str) -> tuple[float, ...]:
    rates = _numbers(text.removeprefix("p:").split(","), text)
    if any(rate > 1 for rate in rates):
        raise InputError("a rate is not between 0 and 1", field=FIELD, value=text, allowed=ALLOWED)
    if any(later > rate for rate, later in pairwise(rates)):
        raise InputError("rates must not rise: they are P(draft i is committed), not conditional on draft i - 1",
                         field=FIELD, value=text)  # fmt: skip
    return rates


def _numbers(items: Sequence[str], text: str) -> tuple[float, ...]:
    if not all(map(_NUMBER.fullmatch, map(str.strip, items))):
        raise InputError("not an acceptance", field=FIELD, value=text, allowed=ALLOWED)
    return tuple(map(float, items))
