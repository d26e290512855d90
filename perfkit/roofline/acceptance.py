"""Acceptance: how many of a step's T tokens it commits, as a probability mass function over a = 1..T.

Three ways to say it, the same on every command line:

* ``n`` or ``T``: every step commits that many;
* ``mean:X`` or a decimal (``3.5``): each draft is accepted with the same probability, independently, until the first
  rejection; the probability is solved for so that a step commits X tokens on average;
* ``p:.88,.62,.40``: the rates that serving engines log per draft position, P(draft i is committed), unconditional.

A sweep takes several (:func:`acceptance_list`), and also ``T-1``, which :func:`resolve_acceptance` turns into its
number. Of a draft tree T is the longest path: an acceptance counts tokens of a path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError

FIELD = "accepted"
_ALLOWED = "a whole number 1..T, T, T-1, mean:X or a decimal between 1 and T, p:RATE,RATE,... with T - 1 rates"
_SUM_TOLERANCE = 1e-12
_NUMBER = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*")
#: What a sweep of verify steps takes where nothing else is asked: the least, fused recovery's dearest, the most.
DEFAULT_ACCEPTANCES = ("1", "T-1", "T")


def acceptance_pmf(text: str, draft_len: int) -> NDArray[np.float64]:
    """Return P(a = 1), ..., P(a = T) for an acceptance as a user writes it.

    Args:
        text: see the module's docstring.
        draft_len: T, positions per step; 1 is decode, where a = 1.

    Returns:
        [draft_len] float64, sums to 1; element i is P(a = i + 1).

    Raises:
        InputError: the text is none of the three forms, or its numbers are out of range.
    """
    if draft_len < 1:
        raise InputError("must be at least 1", field="draft", value=draft_len)
    text = text.strip()
    if text == "T":
        return constant_pmf(draft_len, draft_len)
    if re.fullmatch(r"[+-]?\d+", text):
        count = int(text)
        if not 1 <= count <= draft_len:
            raise InputError(f"out of range at T = {draft_len}", field=FIELD, value=count, allowed=f"1..{draft_len}")
        return constant_pmf(count, draft_len)
    if text.startswith("p:"):
        return rates_pmf(_rates(text, draft_len))
    mean = _number(text.removeprefix("mean:"), text)
    if not 1.0 <= mean <= draft_len:
        raise InputError(f"mean out of range at T = {draft_len}", field=FIELD, value=text, allowed=f"1..{draft_len}")
    return independent_pmf(mean, draft_len)


def acceptance_list(text: str) -> tuple[str, ...]:
    """Return the acceptances of a list: ``1,T-1,T``; with per-position rates in it, ``p:.88,.62;T``, ``;`` separates.

    Raises:
        InputError: an item that is an acceptance at no T.
    """
    items = tuple(item.strip() for item in text.split(";" if ";" in text or "p:" in text else ","))
    for item in items:
        if item in ("T", "T-1") or re.fullmatch(r"\d+", item):
            continue
        rates = item.startswith("p:")
        numbers = item.removeprefix("p:").split(",") if rates else [item.removeprefix("mean:")]
        if "p:" in item and (not rates or not all(map(_NUMBER.fullmatch, numbers))):
            raise InputError("not rates; a list with p: in it has ; between its items", field=FIELD, value=text,
                             allowed="such as 1;T-1;p:.88,.62,.40")  # fmt: skip
        values = [_number(number, item) for number in numbers]
        if rates:
            _rates(item, len(values) + 1)
    return tuple(dict.fromkeys(items))


def resolve_acceptance(text: str, draft_len: int) -> str:
    """Return an acceptance as a case of T positions has it: ``1``, ``3``, ``T``, ``mean:3.5``, ``p:.88,.62,.40``.

    ``T-1`` becomes its number and the number T ``T``, so that what is the same has one name.

    Raises:
        InputError: as :func:`acceptance_pmf`.
    """
    text = text.strip()
    if text == "T-1":
        if draft_len < 2:
            raise InputError("a step of one position commits it", field=FIELD, value=text, allowed="1")
        text = str(draft_len - 1)
    acceptance_pmf(text, draft_len)
    if re.fullmatch(r"\d+", text):
        return "T" if 1 < draft_len == int(text) else str(int(text))
    if text == "T" or text.startswith("p:"):
        return text
    return f"mean:{_number(text.removeprefix('mean:'), text):g}"


def resolve_acceptances(texts: Sequence[str], draft_len: int) -> tuple[str, ...]:
    """Return the acceptances at T positions, each once; per-position rates of another T are left out.

    Raises:
        InputError: one that is impossible at this T, or none is left.
    """
    found: dict[tuple[float, ...], str] = {}
    for text in texts:
        if text.startswith("p:") and text.count(",") + 2 != draft_len and len(texts) > 1:
            continue
        name = resolve_acceptance(text, draft_len)
        found.setdefault(tuple(acceptance_pmf(name, draft_len).round(9)), name)
    if not found:
        raise InputError(f"none is for T = {draft_len}", field=FIELD, value=";".join(texts), allowed=_ALLOWED)
    return tuple(found.values())


def short_acceptance(text: str) -> str:
    """Return an acceptance as names of cases show it: ``a1``, ``aT``, ``a3.5`` on average, ``a2.9p`` from rates."""
    if not text.startswith("p:"):
        return f"a{text.removeprefix('mean:')}"
    return f"a{1 + sum(_number(rate, text) for rate in text.removeprefix('p:').split(',')):.3g}p"


def mean_accepted(text: str, draft_len: int) -> float:
    """Return the mean number of tokens that a step commits; raises as :func:`acceptance_pmf` does."""
    return pmf_mean(acceptance_pmf(text, draft_len))


def pmf_mean(pmf: NDArray[np.float64]) -> float:
    """Return the mean of a probability mass function over a = 1..T."""
    return float(pmf @ np.arange(1, len(pmf) + 1))


def constant_pmf(accepted: int, draft_len: int) -> NDArray[np.float64]:
    """Return the mass function of a step that always commits ``accepted`` of ``draft_len`` tokens."""
    pmf = np.zeros(draft_len)
    pmf[accepted - 1] = 1.0
    return pmf


def rates_pmf(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mass function of unconditional per-position rates P(a >= i + 1), i = 1..T-1, non-increasing."""
    survival = np.concatenate(([1.0], rates, [0.0]))  # P(a >= 1) = 1: the last committed token is always an input
    return survival[:-1] - survival[1:]


def independent_pmf(mean: float, draft_len: int) -> NDArray[np.float64]:
    """Return the mass function of independent acceptance until the first rejection, truncated at T, with this mean."""
    probability = acceptance_probability(mean, draft_len)
    return rates_pmf(np.power(probability, np.arange(1, draft_len, dtype=np.float64)))


def acceptance_probability(mean: float, draft_len: int) -> float:
    """Solve 1 + p + ... + p^(T-1) = mean for the probability p that one draft is accepted.

    The sum rises from 1 at p = 0 to T at p = 1, so bisection always ends; 1 <= mean <= T is the caller's duty.
    """
    powers = np.arange(draft_len)
    low, high = 0.0, 1.0
    if mean >= draft_len:
        return 1.0
    for _ in range(64):
        middle = 0.5 * (low + high)
        if float(np.sum(middle**powers)) < mean:
            low = middle
        else:
            high = middle
    return 0.0 if mean <= 1.0 else 0.5 * (low + high)


def _rates(text: str, draft_len: int) -> NDArray[np.float64]:
    """Parse and check the rates of ``p:...``."""
    body = text.removeprefix("p:").strip()
    rates = np.array([_number(item, text) for item in body.split(",")] if body else [])
    if len(rates) != draft_len - 1:
        raise InputError(f"{len(rates)} rates, but T = {draft_len} has {draft_len - 1} drafts", field=FIELD, value=text)
    if np.any((rates < 0) | (rates > 1)):
        raise InputError("a rate is not between 0 and 1", field=FIELD, value=text)
    if np.any(np.diff(rates) > _SUM_TOLERANCE):
        raise InputError(
            "rates must not increase: they are P(draft i is committed), not conditional on draft i - 1",
            field=FIELD,
            value=text,
        )
    return np.minimum.accumulate(rates) if len(rates) else rates


def _number(item: str, text: str) -> float:
    """Parse a plain decimal; exponents, infinities and NaN are no acceptance."""
    if not _NUMBER.fullmatch(item):
        raise InputError("not an acceptance", field=FIELD, value=text, allowed=_ALLOWED)
    return float(item)
