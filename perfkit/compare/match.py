"""Two runs become one comparison: cases matched by id, a change and a verdict for each, the controls looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from perfkit.compare.comparison import ABSENT, UNFINISHED, Compared, Comparison, Control, Side, relative
from perfkit.compare.evidence import Change, change, from_row, from_samples
from perfkit.compare.load import Row, Run, check_comparable
from perfkit.compare.verdicts import FLOOR, holm, margin, verdict
from perfkit.derive import is_control
from perfkit.errors import InputError
from perfkit.lastlines import case_text
from perfkit.progress import count


def compare(
    base: Run, new: Run, *, force: bool = False, floor: float = FLOOR, fail_on: float | None = None
) -> Comparison:
    """Compare two runs by the ratio of each case to its control.

    Args:
        base: what is known.
        new: what is judged.
        force: compare runs of different GPUs or schema versions.
        floor: what runs of the same code may differ by, as a share; a larger A/A difference of a group counts instead.
        fail_on: slowdown in percent above which a case is a regression.

    Raises:
        InputError: different GPUs or schema versions, or no case with a control in both runs.
    """
    overruled = check_comparable(base, new, force=force)
    ids = dict.fromkeys([*base.rows, *new.rows])
    _check_overlap(base, new)
    matched = (_match(base, new, case_id, floor) for case_id in ids)
    found = [case for case in matched if case is not None]
    if not any(case.change is not None or case.broke for case in found):
        raise InputError(f"nothing to compare: {_why_nothing(found)}")
    adjusted = iter(holm([case.change.p for case in found if case.change is not None]))
    judged = [case if case.change is None else _judge(case, case.change, next(adjusted)) for case in found]
    judged.sort(key=_order)
    return Comparison(
        base, new, tuple(_told_apart(judged)), tuple(_controls(base, new, floor)), tuple(overruled), floor, fail_on
    )


def _check_overlap(base: Run, new: Run) -> None:
    mine, others = ({key for key, row in run.rows.items() if not is_control(row)} for run in (base, new))
    # A run that was cut short has planned what it has no row of.
    if (mine | base.planned) & others or mine & (others | new.planned):
        return
    shared = sorted(set(base.controls) & set(new.controls))
    if shared:
        text = "only controls are in both runs, whose ratio is 1 by definition"
    else:
        text = f"no case of one run is in the other: BASE has {_holds(base)}, NEW has {_holds(new)}"
    raise InputError(f"nothing to compare: {text}")


def _why_nothing(found: Sequence[Compared]) -> str:
    """Say why no case could be compared by the case that tells most: one that both runs have a time of."""
    if not found:
        return "no case has a time in either run: each is skipped, or is a control, whose ratio is 1 by definition"
    timed = [case for case in found if case.base.status == case.new.status == "ok"]
    first = (timed or found)[0]
    alike = sum(case.reason == first.reason for case in found) - 1
    more = f", and so of {count(alike, 'case')} more" if alike else ""
    return f"no case has a ratio in both runs; {first.name}: {first.reason}{more}"


def _holds(run: Run) -> str:
    """Return which cases a run has, in a few words."""
    words = []
    for letter, name in (("B", "batch"), ("T", "draft_len")):
        values = sorted(int(row[name]) for row in run.rows.values())
        words.append(f"{letter}={values[0]}" + ("" if values[0] == values[-1] else f"..{values[-1]}"))
    return f"{' and '.join(run.models)} at {', '.join(words)}"


def _match(base: Run, new: Run, case_id: str, floor: float) -> Compared | None:
    """Return a case of either run with its change; None for a control that is ok in both, its ratio being 1."""
    before, after = base.rows.get(case_id), new.rows.get(case_id)
    row = after or before
    assert row is not None
    group = row["group_id"]
    if is_control(row):
        # Under --self-check the control has another id, so it is found by its group, and under one id alone.
        before, after = base.controls.get(group), new.controls.get(group)
        if before and after and case_id != after["case_id"]:
            return None
        if before and after and before["status"] == after["status"] == "ok":
            return None
    sides = _side(base, before, case_id), _side(new, after, case_id)
    if all(side.status in (ABSENT, "skipped") for side in sides):
        return None  # nobody expects a time of it
    found = Compared(case_id, case_text(row), row, base=sides[0], new=sides[1])
    if is_control(row) or any(side.status != "ok" for side in sides):
        return replace(found, reason=_why_missing(sides))
    if sides[0].evidence is None or sides[1].evidence is None:
        return replace(found, reason=_why_no_ratio(base, new, group, sides))
    return replace(found, change=change(sides[0].evidence, sides[1].evidence, _floor(base, new, group, floor)))


def _floor(base: Run, new: Run, group: str, floor: float) -> float:
    """Return the floor of a group: the general one, or the larger A/A difference that either run saw there."""
    return max(floor, base.floor(group) or 0.0, new.floor(group) or 0.0)


def _side(run: Run, row: Row | None, case_id: str) -> Side:
    if row is None:
        return Side(UNFINISHED if case_id in run.planned else ABSENT)
    control = run.controls.get(row["group_id"])
    evidence = None
    if control is not None and control["status"] == row["status"] == "ok" and not is_control(row):
        evidence = from_samples(run.series(row["case_id"]), run.series(control["case_id"])) or from_row(row, control)
    return Side(row["status"], row.get("reason"), row.get("time_us"), evidence, row.get("launch_config"))


def _why_missing(sides: Sequence[Side]) -> str:
    words = [f"{side.status} in {name}" + (f" ({side.why})" if side.why else "")
             for side, name in zip(sides, ("BASE", "NEW"), strict=True) if side.status != "ok"]  # fmt: skip
    return ", ".join(words)


def _why_no_ratio(base: Run, new: Run, group: str, sides: Sequence[Side]) -> str:
    words, known = [], base.controls.get(group) or new.controls.get(group)
    for run, name, side in zip((base, new), ("BASE", "NEW"), sides, strict=True):
        if side.evidence is None:
            words.append(f"its control {_control_state(run, group, known)} in {name}")
    return ", ".join(words)


def _control_state(run: Run, group: str, known: Row | None) -> str:
    """Say what keeps a group's control in a run from being divided by; ``known`` is the group's in either run."""
    control = run.controls.get(group)
    if control is not None:
        return "has no time" if control["status"] == "ok" else f"is {control['status']}"
    return f"is {UNFINISHED if known is not None and known['case_id'] in run.planned else ABSENT}"


def _judge(case: Compared, found: Change, p_adjusted: float) -> Compared:
    judged = verdict(found, p_adjusted)
    reason = case.reason
    if judged == "ambiguous":
        few = [name for name, side in (("BASE", case.base), ("NEW", case.new))
               if side.evidence is not None and (side.evidence.n or 2) < 2]  # fmt: skip
        reason = f"one sample in {' and '.join(few)}" if few else "too few or too noisy samples"
    return replace(case, verdict=judged, p=p_adjusted, reason=reason)


def _told_apart(cases: Sequence[Compared]) -> Iterable[Compared]:
    """Yield the cases; where a name stands for several, as of runs of two input dtypes, each has its id beside it."""
    names = Counter(case.name for case in cases)
    for case in cases:
        yield case if names[case.name] == 1 else replace(case, name=f"{case.name} {case.case_id}")


def _order(case: Compared) -> tuple[Any, ...]:
    """Worst first: what broke, what is slower, what may be; then the rest, what could not be compared last."""
    ranks = {"slower": 1, "ambiguous": 2, "same": 3, "faster": 4, "missing": 5}
    slowdown = case.change.value if case.change is not None else 0.0
    return (0 if case.broke else ranks[case.verdict], -slowdown, case.name)


def _controls(base: Run, new: Run, floor: float) -> Iterable[Control]:
    """Yield the controls that have a time in both runs, the one that changed most first."""
    found = []
    others = new.controls
    for group, row in base.controls.items():
        other = others.get(group)
        moved = relative(row.get("time_us"), other.get("time_us")) if other else None
        if other is not None and moved is not None and row["status"] == other["status"] == "ok":
            limit = margin(_floor(base, new, group, floor))
            found.append(Control(case_text(row), group, row["time_us"], other["time_us"], moved, abs(moved) > limit,
                                 (row.get("launch_config"), other.get("launch_config"))))  # fmt: skip
    return sorted(found, key=lambda control: -abs(control.change))
