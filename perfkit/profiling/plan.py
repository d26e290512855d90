"""Which cases are counted: those of some axes that were asked for, or those of a run that the model predicts worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfkit import registry, results
from perfkit.cases import Group
from perfkit.errors import InputError
from perfkit.method import Case, Method, Point
from perfkit.nsight.steps import counted_steps, exact_step, range_name

Row = dict[str, Any]


def method_of(case: Case) -> Method:
    """Return the method of a case."""
    return registry.get_method(case.shape.family, case.method, case.phase)


def groups_of(cases: Iterable[Case]) -> tuple[Group, ...]:
    """Return cases by their group, in the order in which groups first appear; each case once."""
    found: dict[str, list[Case]] = {}
    for case in dict.fromkeys(cases):
        found.setdefault(case.group_id, []).append(case)
    return tuple(Group(group_id, tuple(members)) for group_id, members in found.items())


def asked_alone(groups: Iterable[Group], methods: Sequence[str], drafts: Sequence[int]) -> tuple[Group, ...]:
    """Return a sweep's groups without what it adds to compare with: controls, and the step that is the unit of time."""

    def asked(case: Case) -> bool:
        # A plug-in's key has become an absolute path.
        mine = any(case.method == key or (":" in key and case.method.endswith(key.lstrip("./"))) for key in methods)
        return case.draft_len in drafts and (mine or "all" in methods)

    kept = (
        replace(group, cases=tuple(filter(asked, group.cases)),
                skipped=tuple(pair for pair in group.skipped if asked(pair[0])))
        for group in groups
    )  # fmt: skip
    return tuple(group for group in kept if group.cases or group.skipped)


def worst(run_dir: Path, count: int) -> list[tuple[Case, Row]]:
    """Return the measured cases of a run that the model predicts worst, worst first, each with its row.

    Raises:
        InputError: not a sweep's run, or none of its rows has a measured time and a prediction.
    """
    manifest = results.read_manifest(run_dir)
    if manifest.get("command") != "sweep":
        raise InputError("is not the run of a sweep", file=run_dir / "manifest.json", field="command",
                         value=str(manifest.get("command")))  # fmt: skip
    cases = {case.id: case for group in manifest["groups"] for case in map(Case.from_dict, group["cases"])}
    frame = results.load_run(run_dir)
    frame = frame[(frame["source"] == "measured") & (frame["status"] == "ok") & frame["prediction_error"].notna()]
    frame = frame[frame["case_id"].isin(list(cases))].sort_values("prediction_error", key=abs, ascending=False)
    if frame.empty:
        raise InputError("has no row with a measured time and a prediction, so none is predicted worst", file=run_dir)
    return [(cases[row["case_id"]], row) for row in results.plain_rows(frame.head(count))]


def launches_planned(groups: Iterable[Group]) -> int:
    """Return how many launches the counted steps have, as methods declare them."""
    total = 0.0
    for case in (case for group in groups for case in group.cases):
        method = method_of(case)
        for step in counted_steps(case, method):
            counts = method.paper(case.shape, Point.of(case)) if step.kind == "mixed" else None
            total += float((counts or exact_step(case, method, step, 0)).launches)
    return round(total)


def distinct(cases: Sequence[Case]) -> list[Case]:
    """Return the cases, first come, first served, whose counted steps have ranges of their own names."""
    names: set[str] = set()
    found = []
    for case in cases:
        mine = {range_name(case, step.kind) for step in counted_steps(case, method_of(case))}
        if not mine & names:
            names |= mine
            found.append(case)
    return found
