"""What a comparison of two runs holds: each case with its verdict, the controls, what fails the gate."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfkit.compare.evidence import Change, Evidence
from perfkit.compare.load import Row, Run
from perfkit.compare.verdicts import VERDICTS, Verdict, is_regression, may_be_regression

#: In place of a status: a case that a run was not asked for, and one that it did not get to.
ABSENT, UNFINISHED = "absent", "unfinished"


@dataclass(frozen=True, slots=True)
class Side:
    """A case in one of the runs.

    Attributes:
        status: of its row, or ``absent`` or ``unfinished`` where the run has none.
        why: the row's reason.
        time_us: informational; it is not compared.
        evidence: its time over the control's; None without both.
        config: launch configuration.
    """

    status: str
    why: str | None = None
    time_us: float | None = None
    evidence: Evidence | None = None
    config: str | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One case of either run.

    Attributes:
        case_id: of both runs.
        name: as result lines have it.
        row: the columns that say which case it is, of whichever run has it.
        base: the case in BASE.
        new: the case in NEW.
        verdict: slower, faster, same, ambiguous or missing.
        reason: why it is missing or ambiguous.
        change: None where it is missing.
        p: the change's, adjusted for the number of cases compared.
    """

    case_id: str
    name: str
    row: Row = field(repr=False)
    base: Side
    new: Side
    verdict: Verdict = "missing"
    reason: str | None = None
    change: Change | None = None
    p: float | None = None

    @property
    def broke(self) -> bool:
        """True where it was ok in BASE and NEW tried it and has no time: crashed, incorrect, skipped, unfinished, …."""
        return self.base.status == "ok" and self.new.status not in ("ok", ABSENT)

    @property
    def time_change(self) -> float | None:
        """Relative change of the time itself, clocks, driver and GPU included."""
        return relative(self.base.time_us, self.new.time_us)


@dataclass(frozen=True, slots=True)
class Control:
    """What ratios of a group are to; its own ratio is 1, so only its time can be looked at.

    Attributes:
        name: as result lines have it.
        group_id: of the group.
        base_us: time in BASE.
        new_us: time in NEW.
        change: relative.
        large: True where all verdicts of the group are to be read with it in mind.
        configs: launch configurations in BASE and NEW.
    """

    name: str
    group_id: str
    base_us: float
    new_us: float
    change: float
    large: bool
    configs: tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was found; ``fail_on`` is the limit of a regression in percent, None without a gate."""

    base: Run
    new: Run
    cases: tuple[Compared, ...]
    controls: tuple[Control, ...]
    overruled: tuple[str, ...]
    floor: float
    fail_on: float | None

    @property
    def counts(self) -> dict[str, int]:
        """Number of cases by verdict."""
        return {name: sum(case.verdict == name for case in self.cases) for name in VERDICTS}

    @property
    def regressions(self) -> tuple[Compared, ...]:
        """The cases that fail the gate, worst first; () without one."""
        limit = self.fail_on
        return () if limit is None else tuple(case for case in self.cases if fails(case, limit))

    @property
    def undecided(self) -> tuple[Compared, ...]:
        """The cases that may be above the limit and do not fail; () without a gate."""
        limit = self.fail_on
        if limit is None:
            return ()
        return tuple(case for case in self.cases
                     if case.change is not None and may_be_regression(case.change, case.verdict, limit))  # fmt: skip

    @property
    def uncompared(self) -> tuple[Compared, ...]:
        """The cases that are ok in both runs and have no ratio in one of them, as where their control is not there."""
        return tuple(case for case in self.cases
                     if case.change is None and case.base.status == case.new.status == "ok")  # fmt: skip

    @property
    def groups(self) -> dict[str, bool]:
        """Whether any case was compared, by the group_id of the groups that have cases which are ok in both runs."""
        found = dict.fromkeys((case.row["group_id"] for case in self.uncompared), False)
        return found | {case.row["group_id"]: True for case in self.cases if case.change is not None}

    @property
    def verdict(self) -> str:
        """One word for all of it: what most needs to be looked at."""
        counts = self.counts
        if self.regressions:
            return "regression"
        if any(case.broke for case in self.cases) or (self.uncompared and not counts["slower"]):
            return "missing"  # that the others are the same is no answer where one no longer runs or was not compared
        if counts["slower"] and counts["faster"]:
            return "mixed"
        return next((name for name in VERDICTS if counts[name] and name != "missing"), "missing")


def relative(base: float | None, new: float | None) -> float | None:
    """Return the change of a positive number as a share of it, None where one is absent."""
    return new / base - 1 if base and new else None


def fails(case: Compared, percent: float) -> bool:
    """Say whether a case fails the gate: slower by more than the limit, or no longer ok."""
    return case.broke or (case.change is not None and is_regression(case.change, case.verdict, percent))
