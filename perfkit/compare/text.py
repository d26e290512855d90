"""A comparison as a person reads it: a table of what is not the same, and the lines below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfkit.compare.comparison import ABSENT, Compared, Comparison, Control
from perfkit.compare.document import differences
from perfkit.compare.verdicts import SAME, VERDICTS
from perfkit.lastlines import us
from perfkit.progress import count

#: Of the table.
TITLE = "a case's time over its control's, BASE to NEW; 95 % intervals, wider by the floor"
COLUMNS = ("case", "verdict", "change", "interval", "BASE", "NEW", "absolute", "adj.p", "note")
#: Names that one line has at most.
MAX_NAMES = 8


def percent(share: float | None) -> str:
    """Return a change in percent with its sign: ``+4.1%``; ``-`` for none, ``…`` for one without bound."""
    if share is None:
        return "-"
    return f"{share:+.1%}" if abs(share) < float("inf") else "…"


def _interval(case: Compared) -> str:
    found = case.change
    return "-" if found is None else f"[{percent(found.lo)},{percent(found.hi)}]"


def _named(case: Compared) -> str:
    if case.change is None:
        return f"{case.name} ({case.new.status})"
    return f"{case.name} {percent(case.change.value)} {_interval(case)}"


def _p(value: float | None) -> str:
    return "-" if value is None else "<1e-6" if value < 1e-6 else f"{value:.2g}"


def _note(case: Compared) -> str:
    parts = [case.reason] if case.reason else []
    if case.verdict in ("slower", "faster") and case.base.config != case.new.config:
        parts.append("another launch configuration")
    return "; ".join(parts)


def _row(case: Compared) -> list[str]:
    ratios = [f"{side.evidence.ratio:.3f}" if side.evidence is not None else "-" for side in (case.base, case.new)]
    change = percent(case.change.value) if case.change is not None else "-"
    return [case.name, case.verdict, change, _interval(case), *ratios, percent(case.time_change), _p(case.p),
            _note(case)]  # fmt: skip


def folded(case: Compared) -> bool:
    """Say whether a case is counted and not shown: it is the same, or one of the runs was not asked for it."""
    return case.verdict == "same" or ABSENT in (case.base.status, case.new.status)


def rows(found: Comparison, *, everything: bool = False) -> list[list[str]]:
    """Return the rows of the table under :data:`COLUMNS`, worst first; ``everything`` folds none."""
    return [_row(case) for case in found.cases if everything or not folded(case)]


def lines(found: Comparison, *, everything: bool = False) -> list[str]:
    """Return the lines below the table; the last has the counts and the verdict."""
    out = [] if everything else _folded_lines(found)

    def say(name: str, text: str | None) -> None:
        if text:
            out.append(f"{name:<10} {text}")

    for text in found.overruled:
        say("forced", f"not comparable by {text}")
    say("intervals", _intervals_text(found))
    say("control", _control_text(found.controls))
    large = [control for control in found.controls if control.large]
    say("WARNING", _large_text(large, found.cases) if large else None)
    say("WARNING", _uncompared_text(found.uncompared))
    say("differs", _differences_text(found))
    say("floor", _floor_text(found))
    if found.undecided:
        say("undecided", f"{_names(found.undecided)}: may be above {found.fail_on:g}%")
    out.append(_last(found))
    return out


def _folded_lines(found: Comparison) -> list[str]:
    out = []
    same = [case.change.value for case in found.cases if case.verdict == "same" and case.change is not None]
    if same:
        out.append(f"{count(len(same), 'case')} the same, {percent(min(same))} to {percent(max(same))}")
    for name, other in (("BASE", "new"), ("NEW", "base")):
        alone = [case for case in found.cases if getattr(case, other).status == ABSENT]
        if alone:
            out.append(f"{count(len(alone), 'case')} in {name} alone")
    return out


def _intervals_text(found: Comparison) -> str | None:
    """Say where stored intervals stand in for samples."""
    parts = []
    for name, side in (("BASE", "base"), ("NEW", "new")):
        kinds = [getattr(case, side).evidence.kind for case in found.cases if case.change is not None]
        stored = kinds.count("intervals")
        if stored:
            parts.append(f"{name} ships no samples" + ("" if stored == len(kinds) else f" of {count(stored, 'case')}"))
    return f"{' and '.join(parts)}: stored 95 % intervals in their place" if parts else None


def _control_text(controls: Sequence[Control]) -> str | None:
    if not controls:
        return None
    first = controls[0]
    what = "" if len(controls) == 1 else f", the most of {len(controls)}"
    return (f"{first.name} {us(first.base_us)} -> {us(first.new_us)} us, {percent(first.change)}{what} "
            "(informational: absolute times move with GPU, clocks and driver)")  # fmt: skip


def _large_text(large: Sequence[Control], cases: Sequence[Compared]) -> str:
    names = _listed([f"{control.name} {percent(control.change)}" for control in large])
    tuned = sum(control.configs[0] != control.configs[1] for control in large)
    how = f" ({tuned} in another launch configuration)" if tuned else ""
    text = f"the control itself moved: {names}{how}; what moves all methods alike does not show in ratios"
    groups = {control.group_id for control in large}
    hidden = [case for case in cases if case.row["group_id"] in groups and case.verdict != "slower"
              and (case.time_change or 0.0) > SAME]  # fmt: skip
    if hidden:
        text += f": {count(len(hidden), 'case')} of these groups not slower by ratio but in absolute time"
    return text


def _uncompared_text(cases: Sequence[Compared]) -> str | None:
    """Name the cases that both runs have a time of and that could not be compared, by why."""
    if not cases:
        return None
    by_reason: dict[str | None, list[str]] = {}
    for case in cases:
        by_reason.setdefault(case.reason, []).append(case.name)
    parts = [f"{_listed(names)} ({reason})" for reason, names in by_reason.items()]
    return f"{count(len(cases), 'case')} not compared, though ok in both runs: {'; '.join(parts)}"


def _differences_text(found: Comparison) -> str | None:
    parts = [f"{name} {_short(base)} -> {_short(new)}" for name, (base, new) in
             differences(found.base, found.new).items()]  # fmt: skip
    return ", ".join(parts) or None


def _short(value: Any) -> str:
    text = "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text[:8] if text.startswith("GPU-") and "," not in text else text


def _floor_text(found: Comparison) -> str:
    higher = [case.change.floor for case in found.cases if case.change is not None and case.change.floor > found.floor]
    more = f", up to {max(higher):.1%} in {count(len(higher), 'case')} by their A/A difference" if higher else ""
    return f"{found.floor:.1%}{more}: what runs of one code may differ by unseen; intervals are wider by it"


def _names(cases: Sequence[Compared]) -> str:
    return _listed([_named(case) for case in cases])


def _listed(words: Sequence[str]) -> str:
    more = f", … {len(words) - MAX_NAMES} more" if len(words) > MAX_NAMES else ""
    return ", ".join(words[:MAX_NAMES]) + more


def _last(found: Comparison) -> str:
    counts = found.counts
    head = f"{count(len(found.cases), 'case')}: " + ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
    groups = list(found.groups.values())
    if not all(groups):
        head += f"; {groups.count(False)} of {count(len(groups), 'group')} not compared"
    if found.fail_on is None:
        return f"{head}; {found.verdict.upper()}"
    limit = f"{found.fail_on:g}%"
    if found.regressions:
        return f"{head}; REGRESSION (limit {limit}): {_names(found.regressions)}"
    return f"{head}; no regression above {limit}"


def markdown(found: Comparison, *, everything: bool = False) -> str:
    """Return the comparison for a pull request: the last line first, then the table, then the rest as a list."""
    body = rows(found, everything=everything)
    *rest, last = lines(found, everything=everything)
    out = [f"**{last}**", ""]
    if body:
        table = [COLUMNS, ["---"] * len(COLUMNS), *body]
        out += [f"{TITLE[0].upper()}{TITLE[1:]}:", ""]
        out += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
        out.append("")
    return "\n".join([*out, *(f"- {' '.join(line.split())}" for line in rest)])
