"""A comparison as data, for ``--json`` and for other people's scripts."""

from __future__ import annotations

from typing import Any

from perfkit.compare.comparison import Compared, Comparison, Side
from perfkit.compare.load import Run
from perfkit.compare.verdicts import ALPHA
from perfkit.stats import LEVEL

#: Columns that say which case it is.
_AXES = ("group_id", "model", "family", "method", "phase", "batch", "n_layers", "window", "draft_len", "acceptance",
         "tree", "flush_phase", "input_dtype", "state_dtype", "read_dtype")  # fmt: skip


def differences(base: Run, new: Run) -> dict[str, tuple[Any, Any]]:
    """Return what else differs between the runs and may explain a change: GPU, driver, clocks, versions, settings."""
    mine, others = base.facts(), new.facts()
    return {name: (mine.get(name), others.get(name)) for name in dict.fromkeys([*mine, *others])
            if mine.get(name) != others.get(name)}  # fmt: skip


def document(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data; changes are shares (0.04 is 4 % slower), times microseconds."""
    regressions = [case.case_id for case in found.regressions]
    undecided = [case.case_id for case in found.undecided]
    uncompared = [case.case_id for case in found.uncompared]
    return {
        "base": _run(found.base), "new": _run(found.new), "overruled": found.overruled,
        "differences": {name: {"base": pair[0], "new": pair[1]}
                        for name, pair in differences(found.base, found.new).items()},
        "settings": {"floor": found.floor, "alpha": ALPHA, "correction": "holm", "level": LEVEL,
                     "fail_on_regression": found.fail_on},
        "verdict": found.verdict, "counts": found.counts, "regressions": regressions, "undecided": undecided,
        "uncompared": uncompared, "uncompared_groups": [group for group, some in found.groups.items() if not some],
        "controls": found.controls,
        "cases": [_case(case) | {"regression": case.case_id in regressions, "undecided": case.case_id in undecided,
                                 "uncompared": case.case_id in uncompared}
                  for case in found.cases],
    }  # fmt: skip


def _run(run: Run) -> dict[str, Any]:
    return {"name": run.name, "gpus": run.gpus, "models": run.models, "schemas": run.schemas, "cases": len(run.rows),
            "samples": run.folder is not None, "started": run.manifest.get("started"),
            "facts": run.facts()}  # fmt: skip


def _case(case: Compared) -> dict[str, Any]:
    change = case.change
    return {
        "case_id": case.case_id, "case": case.name, **{name: case.row.get(name) for name in _AXES},
        "verdict": case.verdict, "reason": case.reason,
        "change": change and change.value, "change_lo": change and change.lo, "change_hi": change and change.hi,
        "floor": change and change.floor, "p": change and change.p, "p_adjusted": case.p,
        "time_change": case.time_change, "base": _side(case.base), "new": _side(case.new),
    }  # fmt: skip


def _side(side: Side) -> dict[str, Any]:
    seen = side.evidence
    return {"status": side.status, "reason": side.why, "time_us": side.time_us, "launch_config": side.config,
            "ratio": seen and seen.ratio, "n_samples": seen and seen.n, "evidence": seen and seen.kind}  # fmt: skip
