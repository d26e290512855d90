"""One sweep: what is to be run, kept in the manifest; running it into a journal; finished rows from the journal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perfkit import results
from perfkit.cases import Group, is_plugin
from perfkit.child import Child, worker_argv, worker_env
from perfkit.derive import Row, derive
from perfkit.device import CLOCK_LOG, ClockLog
from perfkit.errors import InputError
from perfkit.method import Case
from perfkit.progress import Progress
from perfkit.runner import Limits, Record, Runner
from perfkit.trace import Trace

if TYPE_CHECKING:
    from perfkit.profiles import Gpu
    from perfkit.roofline import Roofs

JOURNAL = "cases.jsonl"
LOG = "worker.log"
#: How sampling stops, and what else decides a time; sent to the worker with every group.
SETTINGS = {"min_samples": 10, "max_samples": 200, "target_half_width": 0.005, "max_case_s": 20.0, "tune": True,
            "l2": "cold"}  # fmt: skip
_TIMES = ("time_us", "time_us_lo", "time_us_hi", "time_p99_us", "time_nonflush_us", "time_flush_us", "time_default_us",
          "time_warm_us")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that a run does, so that it can be resumed from its manifest alone.

    Attributes:
        mode: ``measure`` times on the GPU of this machine, ``predict`` computes and checks kernels in the interpreter.
        worker_mode: of the worker that runs the groups.
        model: the resolved model, with its ``key``.
        gpu: ``key`` (None for a GPU without a profile), ``name``, and of a GPU that is here ``uuid``, ``driver``, ….
        groups: in the order in which they run.
        settings: sent to the worker.
        case_timeout_s: a case that takes longer ends as ``timeout``.
        trace: whether the run writes a trace; no number depends on it.
    """

    mode: Literal["measure", "predict"]
    worker_mode: str
    model: Mapping[str, Any]
    gpu: Mapping[str, Any]
    groups: tuple[Group, ...]
    settings: Mapping[str, Any]
    case_timeout_s: float = 300.0
    trace: bool = False

    @property
    def source(self) -> str:
        """The column ``source`` of its rows."""
        return "measured" if self.mode == "measure" else "predicted"

    @property
    def cases(self) -> dict[str, Case]:
        """Every case by id, in order, those that are skipped included."""
        found: dict[str, Case] = {}
        for group in self.groups:
            found |= {case.id: case for case in group.cases}
            found |= {case.id: case for case, _ in group.skipped}
        return found

    @property
    def profile(self) -> Gpu | None:
        """The profile of its GPU."""
        from perfkit.profiles import load_gpu

        return load_gpu(self.gpu["key"]) if self.gpu.get("key") else None

    @property
    def roofs(self) -> Roofs | None:
        """The roofs of its GPU."""
        from perfkit.roofline import roofs_for

        profile = self.profile
        return roofs_for(profile) if profile is not None else None

    def hash(self) -> str:
        """Return the sha256 of what decides the meaning of its numbers on this installation."""
        return results.manifest_hash(
            model=dict(self.model), gpu=self.gpu.get("key"), gpu_uuid=self.gpu.get("uuid"),
            seed=int(self.settings["seed"]), timing=self.settings, case_ids=list(self.cases),
            kernels=results.kernels_digest(plugin_files(self.cases.values())),
        )  # fmt: skip

    def manifest(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the manifest of a run that starts now."""
        groups = [
            {"group_id": group.group_id, "cases": [case.to_dict() for case in group.cases],
             "skipped": [[case.to_dict(), reason] for case, reason in group.skipped]}
            for group in self.groups
        ]  # fmt: skip
        return results.environment(argv) | {
            "command": "sweep", "mode": self.mode, "worker_mode": self.worker_mode, "model": dict(self.model),
            "gpu": dict(self.gpu), "seed": self.settings["seed"], "settings": dict(self.settings),
            "case_timeout_s": self.case_timeout_s, "trace": self.trace, "case_ids": list(self.cases), "groups": groups,
            "hash": self.hash(),
        }  # fmt: skip


def plugin_files(cases: Any) -> list[str]:
    """Return the files of the methods that users wrote, each once, sorted."""
    return sorted({case.method.rpartition(":")[0] for case in cases if is_plugin(case.method)})


def from_manifest(run_dir: Path, command: str = "sweep") -> tuple[Sweep, dict[str, Any]]:
    """Return the plan of a run folder, and its manifest.

    Args:
        run_dir: the folder.
        command: that made it; ``profile`` plans as ``sweep`` does.

    Raises:
        InputError: not a run, of another command, a damaged field, or kernels or versions other than those it started
            with.
    """
    manifest = results.read_manifest(run_dir)
    file = run_dir / "manifest.json"
    if manifest.get("command") != command:
        raise InputError(f"is not the run of a {command}", file=file, field="command",
                         value=manifest.get("command"))  # fmt: skip
    try:
        groups = tuple(
            Group(item["group_id"], tuple(Case.from_dict(case) for case in item["cases"]),
                  tuple((Case.from_dict(case), str(reason)) for case, reason in item["skipped"]))
            for item in manifest["groups"]
        )  # fmt: skip
        sweep = Sweep(manifest["mode"], manifest["worker_mode"], manifest["model"], manifest["gpu"], groups,
                      manifest["settings"], float(manifest["case_timeout_s"]),
                      bool(manifest.get("trace")))  # fmt: skip
        seen = sweep.hash()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"damaged: {type(error).__name__}: {error}", file=file) from error
    if seen != manifest.get("hash"):
        raise InputError("kernels, torch, triton or the plan are not those that this run started with; start a new one",
                         file=file, field="hash", value=str(manifest.get("hash"))[:12])  # fmt: skip
    return sweep, manifest


def base_row(sweep: Sweep, case: Case, status: str, reason: str | None) -> Row:
    """Return a row with the columns that are known before anything ran."""
    return results.make_row(case, model=sweep.model.get("key"), gpu=sweep.gpu.get("key") or sweep.gpu.get("name"),
                            gpu_uuid=sweep.gpu.get("uuid"), source=sweep.source, status=status,
                            reason=reason)  # fmt: skip


def merge_row(row: Row, told: Mapping[str, Any]) -> Row:
    """Return the row with the columns that a worker told; what the schema does not know is left out.

    Only a kernel that is right has a time.
    """
    fixed = ("schema_version", "case_id", "group_id", "status", "reason", "source")
    out = dict(row)
    for name, value in told.items():
        if name not in results.SCHEMA or name in fixed:
            continue
        try:
            out[name] = results.coerce(name, value)
        except (ValueError, TypeError):
            continue
    if row["status"] not in ("ok", "throttled"):
        out |= dict.fromkeys(_TIMES)
    return out


def spawner(sweep: Sweep, run_dir: Path | None) -> Callable[[], Child]:
    """Return what starts a worker for this sweep."""
    log = run_dir / LOG if run_dir is not None else None
    mode = sweep.worker_mode
    visible = (sweep.gpu.get("visible") or sweep.gpu.get("uuid")) if mode == "cuda" else None
    return lambda: Child(worker_argv(mode), worker_env(mode, visible), log)


def finished_groups(sweep: Sweep, records: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the groups whose cases all have a result that a resumed run keeps."""

    def done(case: Case) -> bool:
        return case.id in records and records[case.id]["status"] in results.FINISHED

    return {group.group_id for group in sweep.groups if all(map(done, group.cases))}


def clock_log(run_dir: Path) -> Path:
    """Return where a run logs clocks and power."""
    return run_dir / "samples" / CLOCK_LOG


class Recorder:
    """Writes the records of groups to a run folder's journal, and their samples beside it."""

    def __init__(self, sweep: Sweep, run_dir: Path) -> None:
        self._sweep, self._run_dir = sweep, run_dir
        self._journal = results.Journal(run_dir / JOURNAL)
        self.records = self._journal.read()

    def write(self, case: Case, row: Row, started: str | None = None, ended: str | None = None) -> None:
        """Append the record of one case."""
        attempt = int((self.records.get(case.id) or {}).get("attempt") or 0) + 1
        now = results.utc_now()
        record = {"case_id": case.id, "group_id": case.group_id, "attempt": attempt, "status": row["status"],
                  "reason": row["reason"], "started": started or now, "ended": ended or now, "row": row}  # fmt: skip
        self._journal.append(record)
        self.records[case.id] = record

    def group(self, group: Group, records: Sequence[Record]) -> None:
        """Write what a runner returned for a group."""
        for case, record in zip(group.cases, records, strict=True):
            status = record["status"] if record["status"] in results.STATUSES else "error"
            row = merge_row(base_row(self._sweep, case, status, record["reason"]), record["row"])
            if record["samples"]:
                results.write_samples(self._run_dir, case.id, record["samples"])
            self.write(case, row, record["started"], record["ended"])

    def skipped(self) -> None:
        """Write the cases that cannot run, unless they are there already."""
        for group in self._sweep.groups:
            for case, reason in group.skipped:
                if case.id not in self.records:
                    self.write(case, base_row(self._sweep, case, "skipped", reason))

    def rows(self) -> list[Row]:
        """Return the journaled rows in the order of the sweep."""
        return [self._row(case, self.records[key]) for key, case in self._sweep.cases.items() if key in self.records]

    def _row(self, case: Case, record: Mapping[str, Any]) -> Row:
        return record["row"] or base_row(self._sweep, case, record["status"], record["reason"])


def measure(
    sweep: Sweep, run_dir: Path, progress: Progress, stop_at: float | None, trace: Trace | None = None
) -> dict[str, Any]:
    """Run every group that is not finished; return what the worker says of itself ({} if none was needed).

    Ranges of workers and cases go to ``trace``, if there is one.

    Raises:
        Interrupted, OutOfTime: the journal holds every group that ended before.
        DeviceError: no worker gets ready.
    """
    recorder = Recorder(sweep, run_dir)
    recorder.skipped()
    done = finished_groups(sweep, recorder.records)
    todo = [group for group in sweep.groups if group.group_id not in done]
    if not todo:
        return {}
    limits = Limits(case_s=sweep.case_timeout_s, stop_at=stop_at)
    progress.begin(sum(len(group.cases) for group in todo))
    try:
        with (
            Runner(spawner(sweep, run_dir), sweep.settings, limits, progress, trace=trace) as runner,
            ClockLog(str(sweep.gpu.get("uuid")), clock_log(run_dir), lambda: runner.pids, progress.note),
        ):
            runner.start()
            for group in todo:
                recorder.group(group, runner.run_group(group))
            return runner.info
    finally:
        progress.close()


def finish(sweep: Sweep, run_dir: Path, extra: Sequence[Row] = ()) -> list[Row]:
    """Write ``results.parquet`` and ``results.csv`` from the journal; return the finished rows.

    Args:
        sweep: what ran.
        run_dir: its folder.
        extra: rows that are not of this run (``recorded``), put at the end.
    """
    rows = derive([*Recorder(sweep, run_dir).rows(), *extra], sweep.cases, sweep.profile, sweep.roofs)
    finished = [results.check_row(row) for row in rows]
    results.write_frame(run_dir, finished)
    return finished


def resume_command(run_dir: Path, command: str = "sweep") -> str:
    """Return the command that goes on with a run."""
    program = Path(sys.argv[0]).name
    start = "perfkit" if program == "perfkit" else "python -m perfkit"
    return f"{start} {command} --resume {run_dir}"
