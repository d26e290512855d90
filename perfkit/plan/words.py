"""How a plan names rows, numbers and ratios."""

from __future__ import annotations

from perfkit.plan.answer import Answer, Ratio
from perfkit.plan.rows import Row

#: Full names are for files; people say FP16.
DTYPES = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16", "float8_e4m3fn": "FP8", "float4_e2m1": "FP4"}


def dtype(name: str) -> str:
    """Return a dtype as people say it."""
    return DTYPES.get(name, name)


def named(row: Row) -> str:
    """Return a row's choice: ``replay at T = 4, L = 16``; of decode without T."""
    return choice(row.method, row.draft_len, row.window)


def choice(method: str, draft_len: int, window: int | None = None) -> str:
    """Return a choice as :func:`named` does."""
    parts = [f"T = {draft_len}"] if draft_len > 1 else []
    parts += [f"L = {window}"] if window is not None else []
    if method == "conventional":
        return "conventional decode"
    return f"{method} {'decode ' if draft_len == 1 else ''}at {', '.join(parts)}" if parts else method


def short(row: Row) -> str:
    """Return a row's choice in tables: ``replay T=4 L=16``."""
    window = f" L={row.window}" if row.window is not None else ""
    return f"{row.method} T={row.draft_len}{window}"


def times(ratio: Ratio) -> str:
    """Return a ratio with its interval: ``1.74x [1.52, 1.99]``."""
    return f"{ratio.value:.2f}x [{ratio.lo:.2f}, {ratio.hi:.2f}]"


def brief(found: Answer) -> str:
    """Return an answer in a few words, for lists of what would flip it."""
    row = found.chosen
    if found.verdict == "over the limit":
        return "nothing keeps the limit"
    if found.verdict == "no change":
        return (
            short(row) if found.best is found.baseline else f"{short(row)}, {short(found.best)} only {_gained(found)}"
        )
    return f"{short(row)}, {_gained(found)}" + (" unproven" if found.verdict == "unproven" else "")


def _gained(found: Answer) -> str:
    return times(found.gain) if found.gain is not None else ""


def rate(tokens_per_s: float) -> str:
    """Return a throughput: ``21.4k``, ``830``."""
    return f"{tokens_per_s / 1e3:.1f}k" if tokens_per_s >= 9950 else f"{tokens_per_s:,.0f}"


def off(row: Row) -> str:
    """Return how far a row's throughput may be off: ``±25%``; of a bound how much less it may be."""
    down, up = 1 - row.tokens_lo / row.tokens_per_s, row.tokens_hi / row.tokens_per_s - 1
    return f"-{down:.0%}" if row.is_bound else f"±{max(down, up):.0%}"
