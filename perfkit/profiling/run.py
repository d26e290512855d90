"""A run that reads counters: one start of Nsight Compute for each group of cases, each case recorded exactly once.

It is planned, journaled and resumed as a sweep is. A case that crashes or hangs costs itself, and at most the counters
of the cases of its group that ran before it: what no report holds runs again in another start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfkit import results
from perfkit.cases import label
from perfkit.child import worker_env
from perfkit.method import Case
from perfkit.nsight import failures
from perfkit.nsight.command import Job, command, environment, write_plan
from perfkit.nsight.counted import Origin
from perfkit.nsight.outcome import End, Start
from perfkit.nsight.steps import counted_steps
from perfkit.nsight.tool import Tool
from perfkit.nsight.watch import Event, Patience, watch
from perfkit.nsight.watch import OutOfTime as StopNow
from perfkit.profiles.counters import case_columns, write_counters
from perfkit.profiling.plan import distinct, method_of
from perfkit.progress import Progress
from perfkit.runner import OutOfTime, now
from perfkit.sweep import Recorder, Sweep, base_row, finish, finished_groups, merge_row

Row = dict[str, Any]
#: Folders of a run: what each start of ``ncu`` left, and every launch of each case.
STARTS, DETAIL = "ncu", "counters"
#: A row for each counted step.
COUNTERS = "counters.csv"


@dataclass(frozen=True, slots=True)
class Profiler:
    """Runs a plan with one Nsight Compute.

    Attributes:
        plan: what runs; its settings have seed, cache_control, metrics and configs (case_id -> launch configuration).
        tool: the Nsight Compute.
        run_dir: the run's folder.
        progress: what the user sees.
        patience: timeouts.
        device: of the target: ``cuda``; tests without a GPU say ``cpu``.
    """

    plan: Sweep
    tool: Tool
    run_dir: Path
    progress: Progress = field(default_factory=Progress)
    patience: Patience = field(default_factory=Patience)
    device: str = "cuda"

    @property
    def origin(self) -> Origin:
        """What all rows share."""
        gpu, settings = self.plan.gpu, self.plan.settings
        return Origin(self.plan.model.get("key"), gpu.get("key") or gpu.get("name"), gpu.get("uuid"),
                      int(settings["seed"]), str(settings["cache_control"]), self.tool.version)  # fmt: skip

    def jobs(self) -> Iterator[tuple[Job, list[Case]]]:
        """Yield what a new run starts, if nothing goes wrong: a job for each group, more where range names collide."""
        number = 0
        for group in self.plan.groups:
            rest = list(group.cases)
            while rest:
                number += 1
                batch = distinct(rest)
                rest = [case for case in rest if case not in batch]
                yield Job(self.run_dir / STARTS, number), batch

    def command(self, job: Job) -> list[str]:
        """Return the command line of a job."""
        return command(self.tool, job, self.plan.settings["metrics"], str(self.plan.settings["cache_control"]))

    def run(self) -> None:
        """Run every case that is not finished; the journal has each as soon as its counters are there.

        Raises:
            DeviceError: nothing can be counted here; says why and what to do.
            perfkit.runner.Interrupted, perfkit.runner.OutOfTime: the run can be resumed.
        """
        recorder = Recorder(self.plan, self.run_dir)
        recorder.skipped()
        finished = {key for key, record in recorder.records.items() if record["status"] in results.FINISHED}
        done = finished_groups(self.plan, recorder.records)
        todo = [[case for case in group.cases if case.id not in finished]
                for group in self.plan.groups if group.group_id not in done]  # fmt: skip
        self.progress.begin(sum(map(len, todo)))
        (self.run_dir / STARTS).mkdir(exist_ok=True)
        try:
            for rest in todo:
                while rest:
                    ended = self._start(distinct(rest), recorder)
                    rest = [case for case in rest if case.id not in ended]
        finally:
            self.progress.close()

    def _start(self, cases: Sequence[Case], recorder: Recorder) -> set[str]:
        """Start Nsight Compute on some cases; record those that came to an end and return their ids: one at least."""
        numbers = [int(path.name.split(".")[0]) for path in (self.run_dir / STARTS).glob("[0-9]*.plan.json")]
        job = Job(self.run_dir / STARTS, max(numbers, default=0) + 1)
        configs = self.plan.settings.get("configs") or {}
        write_plan(job, [(case, configs.get(case.id)) for case in cases], self.device, self.origin.seed)
        visible = self.plan.gpu.get("visible") or self.plan.gpu.get("uuid")
        env = environment(worker_env("cuda" if self.device == "cuda" else "interpret", visible))
        started = now()
        self.progress.phase(label(cases[0]), "starting ncu", 0, 0)
        try:
            seen = watch(self.command(job), env, job, self.patience, lambda text: failures.fatal(text, self.tool),
                         self._teller(cases))  # fmt: skip
        except StopNow:
            raise OutOfTime("the time given with --max-time is over") from None
        ends = Start(self.tool, job, cases, self.plan.settings["metrics"], self.origin, seen).ends(method_of)
        for case in cases:
            if case.id in ends:
                self._record(case, ends[case.id], started, recorder)
        return set(ends)

    def _record(self, case: Case, end: End, started: str, recorder: Recorder) -> None:
        told: Row = {}
        if end.rows:
            folder = self.run_dir / DETAIL
            folder.mkdir(exist_ok=True)
            text = json.dumps(results.clean(end.detail), indent=1, allow_nan=False)
            results.write_text(folder / f"{case.id}.json", text + "\n")
            told = case_columns(end.rows) | {
                "registers": max((row["registers"] for row in end.rows if row["registers"] is not None), default=None),
                "launches": sum(row["share"] * row["launches"] for row in end.rows),
                "launch_config": end.rows[0]["launch_config"],
                "l2_state": "cold" if end.rows[0]["cache_control"] == "all" else None,
            }  # fmt: skip
        row = merge_row(base_row(self.plan, case, end.status, end.reason), told)
        recorder.write(case, row, started)
        self.progress.case_done(label(case), end.status, row, end.reason)

    def _teller(self, cases: Sequence[Case]) -> Callable[[Event], None]:
        """Return what shows the target's events as progress."""
        names = {case.id: label(case) for case in cases}
        steps = {case.id: len(counted_steps(case, method_of(case))) for case in cases}
        done: dict[str, int] = {}

        def tell(event: Event) -> None:
            key = str(event.get("case_id"))
            if key in names and event.get("event") in ("begin", "step"):
                done[key] = done.get(key, -1) + 1
                self.progress.phase(names[key], "count", done[key], steps[key])
            elif event.get("event") == "end":
                self.progress.phase(names[cases[-1].id], "writing the report", 0, 0)

        return tell


def conclude(plan: Sweep, run_dir: Path) -> tuple[list[Row], list[Row]]:
    """Write results.parquet, results.csv and counters.csv from what the run has; return the rows of both tables."""
    rows = finish(plan, run_dir)
    counters: list[Row] = []
    for row in rows:
        path = run_dir / DETAIL / f"{row['case_id']}.json"
        if row["status"] == "ok" and path.is_file():
            counters += json.loads(path.read_text(encoding="utf-8"))["rows"]
    with results.replacing(run_dir / COUNTERS) as temporary:
        write_counters(temporary, counters)
    return rows, counters
