"""What a watched start of Nsight Compute came to, case by case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfkit.errors import DeviceError
from perfkit.method import Case, Method
from perfkit.nsight import failures
from perfkit.nsight.command import Job
from perfkit.nsight.counted import Incomplete, Origin, Ran, by_range, case_rows, detail
from perfkit.nsight.report import Profiled, read_report
from perfkit.nsight.tool import Tool
from perfkit.nsight.watch import Watched

#: Statuses that the target may give a case.
_FAILED = ("oom", "error")


@dataclass(frozen=True, slots=True)
class End:
    """How a case ended.

    Attributes:
        status, reason: as in results.
        rows: of its counted steps, if they were counted.
        detail: every launch of theirs.
    """

    status: str
    reason: str | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of ``ncu`` that is over: its tool, files and cases, what was asked, and what was seen of it."""

    tool: Tool
    job: Job
    cases: Sequence[Case]
    metrics: Sequence[str]
    origin: Origin
    seen: Watched

    def ends(self, method_of: Callable[[Case], Method]) -> dict[str, End]:
        """Return how cases ended, by id: one at least. What has no end here has to run again.

        Raises:
            DeviceError: no case can be counted; says why and what to do.
        """
        ends = self._failed()
        ends |= self._counted([case for case in self.cases if case.id not in ends], method_of)
        if not ends and self.seen.code is None:
            raise failures.hung(self.job.log)
        if not ends:
            raise failures.nothing(self.seen.text, self.seen.output, self._nvtx, self.job.log)
        return ends

    @property
    def _nvtx(self) -> str | None:
        return str(self.seen.ready["nvtx"]) if self.seen.ready is not None else None

    @property
    def _disturbed(self) -> bool:
        """Whether something may have kept ncu from writing a whole report."""
        lost = any(event.get("fatal") for event in self.seen.events)
        return lost or self.seen.code is None or self.seen.hung is not None or self.seen.in_flight is not None

    def _failed(self) -> dict[str, End]:
        """Return the ends of cases that failed, hung, or were in flight when all ended.

        Raises:
            DeviceError: the target could not run anything.
        """
        ends = {}
        for event in self.seen.events:
            if event.get("event") == "error":
                raise DeviceError(str(event.get("reason")))
            if event.get("event") == "failed":
                status = str(event.get("status"))
                end = End(status if status in _FAILED else "error", str(event.get("reason")))
                ends[str(event.get("case_id"))] = end
        if self.seen.hung is not None:
            ends[self.seen.hung] = End("timeout", f"took too long under ncu, and was ended; see {self.job.log}")
        elif self.seen.in_flight is not None:
            reason = f"the program under ncu ended: {failures.last_line(self.seen.output)}"
            ends[self.seen.in_flight] = End("crashed", failures.of_kernel(self.seen.text) or reason)
        return {case.id: ends[case.id] for case in self.cases if case.id in ends}

    def _counted(self, cases: Sequence[Case], method_of: Callable[[Case], Method]) -> dict[str, End]:
        """Return the ends of cases that ran: their rows, or what their counters lack.

        A report that a crash or a hang kept from being written gives none.

        Raises:
            DeviceError: they ran undisturbed, and there is no report, or an empty one.
        """
        told = ran(self.seen)
        wanted = [case for case in cases if case.id in told]
        if not wanted:
            return {}
        launches, read_by = self._launches()
        found = by_range(launches, [told[case.id] for case in self.cases if case.id in told])
        if launches and not any(found.values()):
            raise failures.nothing("No kernels were profiled", self.seen.output, self._nvtx, self.job.log)
        ends = {}
        for case in wanted:
            try:
                rows = case_rows(case, method_of(case), self.origin, told[case.id], found, read_by)
                ends[case.id] = End("ok", None, rows, detail(case, rows, found))
            except Incomplete as error:
                if not self._disturbed:
                    ends[case.id] = End("error", str(error))
        return ends

    def _launches(self) -> tuple[list[Profiled], str]:
        """Return the launches of the report, none where something kept it from being written."""
        launches: list[Profiled] = []
        read_by, there = "", self.job.report.is_file()
        if there:
            try:
                launches, read_by = read_report(self.tool, self.job.report, self.metrics)
            except DeviceError:
                if not self._disturbed:
                    raise
        if not launches and not self._disturbed:
            if there:
                raise failures.empty(self.job.report, self.job.log)
            raise failures.nothing(self.seen.text, self.seen.output, self._nvtx, self.job.log)
        return launches, read_by


def ran(seen: Watched) -> dict[str, Ran]:
    """Return what the target told of the cases that it finished, by id, in order."""
    launches: dict[str, dict[str, int]] = {}
    whole: dict[str, set[str]] = {}
    found = {}
    l2_bytes = (seen.ready or {}).get("l2_bytes")
    for event in seen.events:
        key = str(event.get("case_id"))
        if event.get("event") == "step":
            name = str(event["range"])
            launches.setdefault(key, {})[name] = int(event["launches"])
            whole.setdefault(key, set()).update([name] if event.get("whole") else [])
        elif event.get("event") == "done":
            found[key] = Ran(launches.get(key, {}), frozenset(whole.get(key, ())), str(event.get("config")),
                             str(event.get("config_source")), int(l2_bytes) if l2_bytes else None)  # fmt: skip
    return found
