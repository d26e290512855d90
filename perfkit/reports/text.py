"""Numbers and names as words: three significant digits, units, and never the word "nan"."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

from perfkit.progress import count as count

MISSING = "–"


def is_missing(value: Any) -> bool:
    """True for None, NaN, pandas' NA and NaT, and the infinities."""
    if value is None:
        return True
    if isinstance(value, str):
        return False
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return type(value).__name__ in ("NAType", "NaTType")


def number(value: Any, digits: int = 3) -> str:
    """Write a number with some significant digits and thousands separators."""
    if is_missing(value):
        return MISSING
    value = float(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and decimals > 2 else text


def integer(value: Any) -> str:
    """Write a count."""
    return MISSING if is_missing(value) else f"{round(float(value)):,}"


def microseconds(value: Any) -> str:
    """Write a time given in µs."""
    return MISSING if is_missing(value) else f"{number(value)} µs"


def times(value: Any) -> str:
    """Write a ratio as ``1.88×``."""
    return MISSING if is_missing(value) else f"{float(value):.2f}×"


def interval(low: Any, high: Any, write: Any = number) -> str:
    """Write ``[low, high]``, or nothing when one end is missing."""
    return "" if is_missing(low) or is_missing(high) else f"[{write(low)}, {write(high)}]"


def percent(value: Any, digits: int = 1) -> str:
    """Write a fraction as a percentage."""
    return MISSING if is_missing(value) else f"{100 * float(value):.{digits}f} %"


def window_text(window: Any) -> str:
    """Write a window, ``L = 16``; nothing for a method without one."""
    return "" if is_missing(window) else f"L = {round(float(window))}"


def method_text(method: str, window: Any = None) -> str:
    """Write a method and its window: ``replay at L = 16``."""
    return f"{method} at {window_text(window)}" if not is_missing(window) else method


def join(items: Iterable[str], last: str = "and") -> str:
    """Write a list: ``a, b and c``."""
    words = [item for item in items if item]
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def sentence(text: str) -> str:
    """Start with a capital letter."""
    return text[:1].upper() + text[1:]


def plot_text(text: str) -> str:
    """Escape text for Plotly, which reads a subset of HTML in titles, labels and hover boxes."""
    return html.escape(str(text), quote=False)
