"""What ``perfkit sweep`` does once its flags are read: plan, run or resume, write the results, say what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from perfkit import results
from perfkit.cases import build_groups, case_memory, fit_memory, label, parse_spec
from perfkit.cli.common import print_json, print_table, say
from perfkit.errors import DeviceError, ExitCode, InputError, PerfkitError, WriteError
from perfkit.progress import Progress, count, duration, make_progress
from perfkit.ranges import mark
from perfkit.runner import Interrupted, OutOfTime, signals_as_interrupts
from perfkit.sweep import (
    SETTINGS,
    Sweep,
    clock_log,
    finish,
    finished_groups,
    from_manifest,
    measure,
    resume_command,
)
from perfkit.trace import NAME as TRACE_FILE
from perfkit.trace import Trace

#: Without a GPU here, and none named, times are predicted for this one.
DEFAULT_GPU = "h200"
#: Set to ``fake`` by tests: the sweep then times the simulated GPU of :mod:`perfkit.fake`, with the settings (JSON) of
#: the second variable.
WORKER_MODE, FAKE_SETTINGS = "PERFKIT_WORKER_MODE", "PERFKIT_FAKE"
#: Rough cost of a case on a GPU (compile, check, tune, time), in seconds; only for the estimate of --dry-run.
CASE_S = 8.0
CHECK_S = 4.0


# -- plan ------------------------------------------------------------------------------------------------------------


def usable_gpu() -> tuple[dict[str, Any] | None, list[str]]:
    """Return this machine's GPU, None without one, and notes about it.

    The facts are those that a manifest holds, with the ``key`` of its profile. Notes are for stderr once nothing can be
    bad input any more: that is one line alone.
    """
    from perfkit import device
    from perfkit.profiles import find_gpu

    found = device.usable_gpu()
    if found is None:
        return None, []
    facts = found.to_dict()
    notes = []
    others = found.foreign()
    if others:
        notes.append(f"other processes use this GPU ({', '.join(map(str, others))}): times may suffer")
    profile = None if found.is_mig else find_gpu(found.name, found.memory_total_mib)
    if found.is_mig:
        notes.append(f"{found.name} is a MIG instance of {found.uuid}, a part of a GPU: it is timed, without roofs and "
                     "predictions")  # fmt: skip
    elif profile is None:
        notes.append(f"no profile for {found.name}: it is timed, without roofs and predictions")
    return {"key": profile.key if profile is not None else None, **facts}, notes


def choose_gpu(gpu: str) -> tuple[str, str, dict[str, Any], list[str]]:
    """Return the mode, the worker's mode, the GPU's facts for ``--gpu``, and notes for stderr.

    Raises:
        InputError: a GPU that no profile knows.
    """
    from perfkit.profiles import load_gpu

    wanted = load_gpu(gpu) if gpu != "auto" else None
    if os.environ.get(WORKER_MODE) == "fake":
        from perfkit import fake

        profile = wanted or load_gpu(DEFAULT_GPU)
        return "measure", "fake", {"key": profile.key, "name": fake.NAME, "uuid": fake.UUID, "driver": "fake"}, []
    here, notes = usable_gpu()
    if here is not None and (wanted is None or wanted.key == here["key"]):
        return "measure", "cuda", here, notes
    profile = wanted or load_gpu(DEFAULT_GPU)
    if wanted is None:
        note = f"no usable GPU here (perfkit doctor says why): predicting for {profile.name}; --gpu KEY for another"
    else:
        what = f"this machine has {here['name']}" if here is not None else "there is no usable GPU here"
        note = f"{what}: predicting for {profile.name}"
    return "predict", "interpret", {"key": profile.key, "name": profile.name}, [note]


def make_sweep(
    model: str | None, gpu: str, *, timeout: float, seed: int, flags: Mapping[str, Any], trace: bool = False
) -> tuple[Sweep, list[str]]:
    """Return the sweep that the flags describe, and notes for stderr; nothing is created on disk.

    Raises:
        InputError: names the flag, the value and what is allowed.
    """
    from perfkit.profiles import load_gpu, load_model
    from perfkit.profiles import to_dict as profile_dict

    if model is None:
        raise InputError("is missing", field="--model", allowed="a key of `perfkit list models`, or a config.json")
    profile = load_model(model)
    spec = parse_spec(**flags, model_state_dtype=profile.state_dtype)
    groups = build_groups(profile.shape, spec)
    mode, worker_mode, facts, notes = choose_gpu(gpu)
    if mode == "predict":  # a GPU that is here says itself what does not fit
        groups = fit_memory(groups, load_gpu(facts["key"]))
    settings = {**SETTINGS, "seed": seed, "self_check": spec.self_check}
    if worker_mode == "fake":
        from perfkit import fake

        settings |= fake.parse_settings(os.environ.get(FAKE_SETTINGS, ""), settings)
    plan = Sweep(mode, worker_mode, profile_dict(profile), facts, tuple(groups), settings, timeout, trace)  # type: ignore[arg-type]
    return plan, notes


def show_plan(plan: Sweep, notes: Sequence[str], *, as_json: bool) -> int:
    """Print what would run: groups, cases, memory and a rough time."""
    from perfkit.predict import checked_case

    for note in notes:
        say(note)
    groups: list[dict[str, Any]] = [
        {
            "group_id": group.group_id,
            "cases": [
                {"case_id": case.id, "case": label(case), "memory_bytes": case_memory(case)} for case in group.cases
            ],
            "skipped": [{"case_id": case.id, "case": label(case), "reason": reason} for case, reason in group.skipped],
        }
        for group in plan.groups
    ]
    cases = [case for group in groups for case in group["cases"]]
    checks = {checked_case(case) for group in plan.groups for case in group.cases}
    seconds = len(cases) * CASE_S if plan.mode == "measure" else len(checks) * CHECK_S
    skipped = sum(len(group["skipped"]) for group in groups)
    if as_json:
        print_json({"mode": plan.mode, "model": plan.model["key"], "gpu": plan.gpu, "n_groups": len(groups),
                    "n_cases": len(cases), "n_skipped": skipped, "estimate_s": seconds, "groups": groups})  # fmt: skip
        return ExitCode.OK
    rows = [[g["group_id"], c["case"], f"{c['memory_bytes'] / 1e9:.3f}", ""] for g in groups for c in g["cases"]]
    rows += [[g["group_id"], c["case"], "-", f"skipped: {c['reason']}"] for g in groups for c in g["skipped"]]
    print_table(["group", "case", "GB", "note"], rows)
    verb = "measure on" if plan.mode == "measure" else "predict for"
    print(f"{count(len(cases), 'case')} in {count(len(groups), 'group')}, {skipped} skipped: "
          f"{verb} {plan.gpu.get('name')}, about {duration(seconds)}")  # fmt: skip
    return ExitCode.OK


# -- run -------------------------------------------------------------------------------------------------------------


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
    if plan.worker_mode == "cuda":
        here, notes = usable_gpu()
        if here is None or here.get("uuid") != plan.gpu.get("uuid"):
            raise InputError(f"was measured on {plan.gpu.get('uuid')}; here is {here and here.get('uuid')}",
                             file=run_dir / "manifest.json", field="gpu.uuid")  # fmt: skip
        for note in notes:
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
