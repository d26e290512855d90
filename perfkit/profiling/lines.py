"""The last lines of a run that read counters, and what they say about cases that were predicted badly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.cases import label
from perfkit.lastlines import device_text
from perfkit.method import Case
from perfkit.nsight.verdict import contradicted, judge_read, judge_write
from perfkit.progress import count

Row = Mapping[str, Any]
#: Verdicts as they are counted.
_MANY = {"contradicts": "contradict"}


def lines(rows: Sequence[Row], counters: Sequence[Row], gpu: Mapping[str, Any], ncu: str | None) -> list[str]:
    """Return how many cases ended how, what counted them, how reads and writes agree, and what was contradicted."""
    out = [_statuses(rows)]
    if not counters:
        return out
    caches = {"all": "L2 flushed before each launch", "none": "L2 as the launch before left it"}
    settings = ", ".join(caches[one] for one in sorted({str(row["cache_control"]) for row in counters}))
    out.append(f"{'COUNTED':<9} {device_text(gpu, ())}, ncu {ncu or '?'}; {settings}; clocks left alone")
    out.append(f"{'read':<9} {_reads(counters)}")
    out.append(f"{'write':<9} {_writes(counters)}")
    sources = Counter(row["config_source"] for row in {row["case_id"]: row for row in counters}.values())
    words = ", ".join(f"{number} {source}" for source, number in sources.most_common())
    out.append(f"{'config':<9} {words}" + ("; perfkit sweep finds and keeps tuned ones" if sources["default"] else ""))
    out += [f"CONTRADICTED  {line}" for line in contradicted(counters)]
    return out


def explain(case: Case, known: Row, counters: Sequence[Row]) -> str:
    """Return what counters say about a case that the model predicts badly: is it the bytes, or how they are moved?

    Args:
        case: that was counted.
        known: its measured row.
        counters: rows of its counted steps; none if it was not counted.
    """
    text = (f"{label(case)}: predicted {known['predicted_us']:.4g} us, measured {known['time_us']:.4g} "
            f"({known['prediction_error']:+.0%})")  # fmt: skip
    if not counters:
        return f"{text}; not counted"
    wrong = contradicted(counters)
    if wrong:
        return f"{text}; the byte count is off: {'; '.join(wrong)}"
    slow = max(counters, key=lambda row: row["share"])
    what = [f"{name} {slow[column]:.0f}%" for name, column in
            (("DRAM", "dram_pct"), ("SM", "sm_pct"), ("occupancy", "occupancy_pct"), ("L2 hits", "l2_hit_pct"))
            if slow[column] is not None]  # fmt: skip
    tail = f": {', '.join(what)}" if what else ""
    return f"{text}; the bytes agree, so it is how they are moved{tail} in a {slow['step']} step"


def _statuses(rows: Sequence[Row]) -> str:
    statuses = Counter(row["status"] for row in rows)
    parts = [f"{statuses['ok']}/{len(rows)} cases counted"]
    for status, number in statuses.most_common():
        if status != "ok":
            reason = next(row["reason"] for row in rows if row["status"] == status)
            parts.append(f"{number} {status}" + (f" ({str(reason)[:160]})" if reason else ""))
    return ", ".join(parts)


def _agree(verdicts: Sequence[str]) -> str:
    found = Counter(verdicts)
    parts = [f"agrees in {found['agrees']} of {count(len(verdicts), 'step')}"]
    parts += [
        f"{number} {_MANY.get(verdict, verdict)}" for verdict, number in found.most_common() if verdict != "agrees"
    ]
    return ", ".join(parts)


def _reads(counters: Sequence[Row]) -> str:
    def off(row: Row) -> float:
        return float(row["bytes_read_dram"] / row["bytes_read_model"] - 1)

    worst = max((row for row in counters if row["bytes_read_model"]), key=lambda row: abs(off(row)), default=None)
    text = _agree([judge_read(row) for row in counters])
    return text if worst is None else f"{text}; off by {off(worst):+.2%} at most ({_step(worst)})"


def _writes(counters: Sequence[Row]) -> str:
    def short(row: Row) -> float:
        return float(row["bytes_write_model"] - row["bytes_write_dram"])

    most = max(counters, key=lambda row: abs(short(row)))
    l2 = f"; L2 holds {most['l2_capacity'] / 1e6:.0f} MB" if most["l2_capacity"] else ""
    over = "short" if short(most) >= 0 else "over"
    text = _agree([judge_write(row) for row in counters])
    return f"{text}; {over} by {abs(short(most)) / 1e6:.1f} MB at most ({_step(most)}){l2}"


def _step(row: Row) -> str:
    name = str(row["method"]).rsplit("/", 1)[-1]
    return f"{name} T={row['draft_len']} {row['step']}"
