"""Values into records: conversion by the rule of each field, and errors that name file, field, value and allowed."""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from perfkit.errors import InputError
from perfkit.profiles.schema import Rule
from perfkit.shape import dtype_name

Record = TypeVar("Record")

#: YAML 1.1, and so PyYAML, takes `4.8e12` for a string: only `4.8e+12` is a number there.
_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def suggest(word: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the closest option or options, or an empty string."""
    by_folded = {option.casefold(): option for option in options}
    wanted = word.casefold()
    close = difflib.get_close_matches(wanted, by_folded, n=1, cutoff=0.85) or difflib.get_close_matches(
        wanted, by_folded, n=3, cutoff=0.6
    )
    return f"; did you mean {' or '.join(by_folded[name] for name in close)}?" if close else ""


def number(value: Any, *, file: str | Path | None, field: str, minimum: float = 0) -> float:
    """Return a finite number, also from text such as ``4.8e12``.

    Raises:
        InputError: a boolean, not a number, not finite, or below ``minimum``.
    """
    result = value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        text = value.strip().replace("_", "")
        result = int(text) if text.lstrip("+-").isdigit() else float(text)
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise InputError("must be a number", file=file, field=field, value=_shown(value))
    if not math.isfinite(result):
        raise InputError("must be a finite number", file=file, field=field, value=_shown(value))
    if result < minimum:
        raise InputError(f"must be at least {minimum:g}", file=file, field=field, value=_shown(value))
    return result


def whole(value: Any, *, file: str | Path | None, field: str, minimum: float = 0) -> int:
    """Return a whole number; ``4096.0`` and ``"1e3"`` are whole.

    Raises:
        InputError: as :func:`number`, or the number has a fraction.
    """
    result = number(value, file=file, field=field, minimum=minimum)
    if result != int(result):
        raise InputError("must be a whole number", file=file, field=field, value=_shown(value))
    return int(result)


def text(value: Any, *, file: str | Path | None, field: str, allowed: tuple[str, ...] | None = None) -> str:
    """Return a text that is not empty.

    Raises:
        InputError: not a text, an empty one, or none of ``allowed``.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError("must be a text that is not empty", file=file, field=field, value=_shown(value))
    if allowed is not None and value not in allowed:
        raise InputError("unknown value", file=file, field=field, value=value, allowed=allowed)
    return " ".join(value.split())


def plain_text(value: Any, file: str | Path | None, field: str) -> str:
    """Return a text; what YAML reads as a date or a number without quotes (2026-11-29, 580.159) is one too.

    Raises:
        InputError: as :func:`text`.
    """
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return text(value, file=file, field=field)


def positive(value: Any, file: str | Path | None, field: str) -> float:
    """Return a number above 0.

    Raises:
        InputError: as :func:`number`, or the number is 0.
    """
    result = number(value, file=file, field=field)
    if result == 0:
        raise InputError("must be above 0", file=file, field=field, value=value)
    return float(result)


def refuse_unknown(data: Mapping[Any, Any], known: tuple[str, ...], file: str | Path | None, prefix: str) -> None:
    """Raise InputError if ``data`` has a field that is not known; ``prefix`` comes before its name."""
    for name in data:
        if name not in known:
            raise InputError(f"unknown field{suggest(str(name), known)}", file=file, field=f"{prefix}{name}",
                             allowed=known)  # fmt: skip


def mapping(data: Any, file: str | Path | None, field: str, known: tuple[str, ...] | None = None) -> Mapping[Any, Any]:
    """Return a mapping; ``known`` are the fields that it may have, for the message.

    Raises:
        InputError: it is none.
    """
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping", file=file, field=field, allowed=known)
    return data


def entry(
    data: Any, known: tuple[str, ...], file: str | Path | None, where: str, needed: tuple[str, ...] | None = None
) -> Mapping[str, Any]:
    """Return a mapping that has no other fields than ``known``, and those that are ``needed`` (default: all of them).

    Raises:
        InputError: it is none, or has an unknown field, or lacks one.
    """
    found = mapping(data, file, where, known)
    refuse_unknown(found, known, file, f"{where}.")
    for name in known if needed is None else needed:
        if found.get(name) is None:
            raise InputError("missing", file=file, field=f"{where}.{name}")
    return found


def items(value: Any, file: str | Path | None, field: str, what: str = "item") -> list[tuple[Any, str]]:
    """Return the items of a list that is not empty, each with its name.

    Raises:
        InputError: it is no list, or empty.
    """
    if not isinstance(value, list) or not value:
        raise InputError(f"must be a list of at least one {what}", file=file, field=field)
    return [(item, f"{field}[{index}]") for index, item in enumerate(value)]


def convert(value: Any, rule: Rule, *, file: str | Path | None, field: str) -> Any:
    """Return ``value`` as ``rule`` wants it.

    Raises:
        InputError: the value breaks the rule.
    """
    if value is None:
        if rule.optional:
            return {"texts": (), "text": "", "table": {}}.get(rule.kind)
        raise InputError("must not be empty", file=file, field=field)
    if rule.kind == "whole":
        return whole(value, file=file, field=field, minimum=rule.minimum)
    if rule.kind == "number":
        result = float(number(value, file=file, field=field, minimum=rule.minimum))
        if result == 0:
            raise InputError("must be above 0", file=file, field=field, value=_shown(value))
        return result
    if rule.kind == "flag":
        if not isinstance(value, bool):
            raise InputError("must be true or false", file=file, field=field, value=_shown(value))
        return value
    if rule.kind == "texts":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise InputError("must be a list of texts", file=file, field=field, value=_shown(value))
        return tuple(text(item, file=file, field=field) for item in items)
    if rule.kind == "table":
        if not isinstance(value, Mapping):
            raise InputError("must be a mapping of texts", file=file, field=field, value=_shown(value))
        return {str(key): text(item, file=file, field=f"{field}.{key}") for key, item in value.items()}
    if rule.kind == "text" and isinstance(value, list) and field in ("source", "notes"):
        return "; ".join(text(item, file=file, field=field) for item in value)
    result_text = text(value, file=file, field=field, allowed=rule.allowed if rule.kind == "text" else None)
    if rule.kind == "dtype":
        try:
            return dtype_name(result_text, allowed=rule.allowed)
        except InputError:
            raise InputError("unknown dtype", file=file, field=field, value=value, allowed=rule.allowed) from None
    return result_text


def record(cls: type[Record], data: Mapping[Any, Any], *, file: str | Path | None) -> Record:
    """Return the dataclass ``cls`` filled from ``data`` by the rules of its fields.

    Raises:
        InputError: an unknown or missing field, or a value that breaks its rule.
    """
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            hint = suggest(str(name), known)
            raise InputError(f"unknown field{hint}", file=file, field=str(name), allowed=None if hint else tuple(known))
    values = {}
    for name, item in known.items():
        rule: Rule = item.metadata["rule"]
        if name in data:
            values[name] = convert(data[name], rule, file=file, field=name)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise InputError("missing", file=file, field=name)
    return cls(**values)


def _shown(value: Any) -> Any:
    """What an error prints: InputError would drop a None."""
    return "null" if value is None else value
