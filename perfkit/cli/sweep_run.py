"""What ``perfkit sweep`` does with a plan: run it or go on with it, write the results, say what came out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from perfkit import results
from perfkit.cli.common import print_json, say
from perfkit.cli.sweep_plan import check_gpu
from perfkit.errors import DeviceError, InputError, PerfkitError, WriteError
from perfkit.progress import Progress, make_progress
from perfkit.ranges import mark
from perfkit.runner import Interrupted, OutOfTime, signals_as_interrupts
from perfkit.sweep import Sweep, clock_log, finish, finished_groups, from_manifest, measure, resume_command
from perfkit.trace import NAME as TRACE_FILE
from perfkit.trace import Trace


def start(
    plan: Sweep, notes: Sequence[str], out: Path | None, events: Trace, *, max_time: float | None, as_json: bool
) -> int:
    """Run a new sweep in a new folder; ``notes`` are printed once the folder is there.

    Raises:
        InputError: ``out`` cannot be a run folder.
        DeviceError: another run holds the GPU; nothing was made.
    """
    gpu = plan.gpu.get("key") or plan.gpu.get("name") or "gpu"
    with _holding(plan):
        run_dir = out or results.default_run_dir(str(plan.model["key"]), str(gpu))
        made = not run_dir.exists()
        results.prepare_run_dir(run_dir)
        manifest = plan.manifest()
        try:
            results.write_manifest(run_dir, manifest)
        except WriteError:
            if made:
                run_dir.rmdir()
            raise
        for note in notes:
            say(note)
        return _run(plan, manifest, run_dir, events, max_time, as_json)


def resume(run_dir: Path, events: Trace, *, max_time: float | None, as_json: bool) -> int:
    """Go on with a run; everything comes from its manifest.

    Raises:
        InputError: not a run, a damaged journal, or a GPU other than the one that it was measured on.
        DeviceError: another run holds the GPU.
    """
    with mark("plan"):
        plan, manifest = from_manifest(run_dir)
        results.Journal(run_dir / "cases.jsonl").read()  # a damaged journal is refused before anything changes
    for note in check_gpu(plan, run_dir, "measured"):
        say(note)
    manifest = {**manifest, "resumed": results.utc_now(), "ended": None}
    with _holding(plan):
        return _run(plan, manifest, run_dir, events, max_time, as_json)


@contextmanager
def _holding(plan: Sweep) -> Iterator[None]:
    """Hold the GPU that a sweep times: one run at a time. The worker must not take this lock again."""
    from perfkit.device import gpu_lock

    with ExitStack() as held:
        if plan.worker_mode == "cuda" or (plan.settings.get("fake") or {}).get("lock"):
            with mark("wait/gpu"):
                held.enter_context(gpu_lock(str(plan.gpu["uuid"])))
        yield


def _run(
    plan: Sweep, manifest: Mapping[str, Any], run_dir: Path, events: Trace, max_time: float | None, as_json: bool
) -> int:
    progress = make_progress()
    stop_at = time.monotonic() + max_time if max_time is not None else None
    extra: list[dict[str, Any]] = []
    with signals_as_interrupts(), results.writing(run_dir):
        try:
            results.discard_frame(run_dir)
            manifest = {**manifest, **_execute(plan, run_dir, progress, stop_at, extra, events)}
            with mark("results"):
                rows = finish(plan, run_dir, extra)
            report, summary = _conclude(plan, manifest, run_dir, rows)
        except (Interrupted, OutOfTime, DeviceError) as error:
            raise type(error)(f"{error}; {_left(plan, run_dir)}") from None
        except WriteError as error:  # a full disk is not bad input once cases have run
            raise PerfkitError(f"{error}; {_left(plan, run_dir)}") from None
        finally:
            progress.close()
            _save(plan, run_dir, events)
    own = [row["status"] for row in rows if row["source"] != "recorded"]
    if as_json:
        print_json({"run_dir": run_dir, "report": report, "summary": summary, "rows": rows})
    else:
        print("\n".join(summary["lines"]))
    return results.exit_code([*own, *(check["status"] for check in manifest.get("checks", ()))])


def _save(plan: Sweep, run_dir: Path, events: Trace) -> None:
    """Write the trace, if the run has one: of an interrupted run too."""
    if not plan.trace:
        return
    try:
        events.save(run_dir / TRACE_FILE)
    except InputError as error:  # the run is worth more than its trace
        say(f"no trace: {error}")


def _execute(
    plan: Sweep, run_dir: Path, progress: Progress, stop_at: float | None, extra: list[dict[str, Any]], events: Trace
) -> dict[str, Any]:
    """Run the cases; return what the manifest learns from it."""
    listener = events if plan.trace else None
    if plan.mode == "measure":
        worker = measure(plan, run_dir, progress, stop_at, listener)
        return {"worker": worker} if worker else {}
    from perfkit import predict
    from perfkit.checking import describe

    checks = predict.predict_all(plan, run_dir, progress, stop_at, listener)
    for line in predict.failed_checks(checks):
        say(f"check: {line}")
    extra += predict.recorded_rows(plan)
    return {"checks": [{"case": describe(case), "status": check.status, "reason": check.reason}
                       for case, check in checks.items()]}  # fmt: skip


def _left(plan: Sweep, run_dir: Path) -> str:
    """Return what is done, and how to go on."""
    done = len(finished_groups(plan, results.Journal(run_dir / "cases.jsonl").read()))
    return f"{done} of {len(plan.groups)} groups are done; go on with: {resume_command(run_dir)}"


def _conclude(
    plan: Sweep, manifest: Mapping[str, Any], run_dir: Path, rows: Sequence[dict[str, Any]]
) -> tuple[Path | None, dict[str, Any]]:
    """Write manifest and report; return the report's path and the summary with the last lines."""
    from perfkit import lastlines
    from perfkit import summary as summaries
    from perfkit.device import clock_summary

    found = summaries.summarize(rows, plan.cases, plan.profile, plan.roofs)
    found["clock"] = clock_summary(clock_log(run_dir))
    results.write_manifest(run_dir, {**manifest, "ended": results.utc_now(), "statuses": found["statuses"],
                                     "aa_floor": found["aa_floor"], "clock": found["clock"],
                                     "roofs": found["roofs"]})  # fmt: skip
    with mark("report"):
        report = _report(run_dir)
    clocks = [row["sm_clock_mhz"] for row in rows if row.get("sm_clock_mhz") and row["source"] == "measured"]
    gpu = {**plan.gpu, "sm_clock_mhz": median(clocks) if clocks else None}  # the driver's was that of an idle GPU
    tuned = plan.worker_mode == "cuda" and bool(plan.settings.get("tune"))
    lines = lastlines.lines(found, gpu, plan.roofs, tuned=tuned)
    steps = [f"report {report}" if report is not None else f"rows {run_dir}/results.csv"]
    if plan.mode == "measure" and any(row["prediction_error"] is not None for row in rows):
        steps.insert(0, f"perfkit profile {run_dir} --worst 3")
    if plan.trace:
        steps.append(f"trace {run_dir / TRACE_FILE} in ui.perfetto.dev")
    if any(status in results.INCOMPLETE for status in found["statuses"]):
        steps.append(f"resume {resume_command(run_dir)}")
    if plan.mode == "predict":
        steps.append(f"measure: the same command where there is {plan.gpu.get('name')}")
    lines.append(f"{'next':<9} " + "   ·   ".join(steps))
    return report, {**summaries.plain(found), "lines": lines}


def _report(run_dir: Path) -> Path | None:
    from perfkit.reports import build_report

    try:
        return build_report([run_dir], run_dir / "report.html")
    except Exception as error:  # the rows are safe; a page can be made later
        say(f"no report: {type(error).__name__}: {error}; perfkit report {run_dir} tries again")
        return None
