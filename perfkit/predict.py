"""A sweep without its GPU: times from bytes and roofs, kernels checked in the interpreter, recorded times beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfkit import results
from perfkit.checking import Check, describe, run_cases
from perfkit.derive import Row, model_case
from perfkit.errors import DeviceError
from perfkit.method import Case
from perfkit.progress import Progress, count
from perfkit.samples import small_case
from perfkit.sweep import LOG, Recorder, Sweep, base_row
from perfkit.trace import Trace


def checked_case(case: Case) -> Case:
    """Return the small case whose check stands for a case; acceptance and phase change no kernel.

    Checks of verify steps draw their acceptance at random.
    """
    return small_case(replace(case, acceptance="1" if case.phase == "decode" else "T", flush_phase="aligned"))


def check_kernels(
    sweep: Sweep, run_dir: Path | None, progress: Progress, stop_at: float | None, trace: Trace | None = None
) -> dict[Case, Check]:
    """Check every method of the sweep on its small case; return what came out, by small case.

    Without a worker that interprets (no Triton here) nothing is checked, and the reason is noted.
    """
    small = list(dict.fromkeys(checked_case(case) for group in sweep.groups for case in group.cases))
    progress.note(f"checking {count(len(small), 'kernel')} on small shapes in the interpreter")
    log = run_dir / LOG if run_dir is not None else None
    settings = {**sweep.settings, "quick": True}
    found: dict[Case, Check] = {}
    try:
        for case, record in run_cases(small, "interpret", settings, progress, log=log, stop_at=stop_at, trace=trace):
            found[case] = Check(record["status"], record["reason"], record["row"].get("rel_error"))
    except DeviceError as error:
        progress.note(f"kernels are not checked: {error}")
    return found


def predicted_row(sweep: Sweep, case: Case, check: Check | None) -> Row:
    """Return the row of one case: the predicted time as its time; no time where the kernel is known to be wrong."""
    status, reason, checked = "ok", None, check.checked if check is not None else "no"
    if check is not None and check.status == "incorrect":
        status, reason = "incorrect", check.reason
    elif check is not None and check.status != "ok":
        reason = f"not checked: {check.status}" + (f": {check.reason}" if check.reason else "")
    row = base_row(sweep, case, status, reason) | {"checked": checked}
    if check is not None:
        row["rel_error"] = check.rel_error
    if status == "ok":
        try:
            time = model_case(case, sweep.profile, sweep.roofs).time
        except Exception as error:  # a plug-in's byte model
            return row | {"status": "error", "reason": f"byte model: {type(error).__name__}: {error}"}
        if time is not None:
            row |= {"time_us": time.us, "time_us_lo": time.lo, "time_us_hi": time.hi}
    return row


def predict_all(
    sweep: Sweep, run_dir: Path, progress: Progress, stop_at: float | None, trace: Trace | None = None
) -> dict[Case, Check]:
    """Check the kernels, then write a predicted row for every case into the journal; return the checks.

    A resumed run predicts every case again, so that all its rows are of one model: fits and roofs may have changed
    since. Rows that come out the same are not written again.

    Raises:
        Interrupted, OutOfTime: the run can be resumed.
    """
    recorder = Recorder(sweep, run_dir)
    recorder.skipped()
    checks = check_kernels(sweep, run_dir, progress, stop_at, trace)
    for group in sweep.groups:
        for case in group.cases:
            old = recorder.records.get(case.id)
            row = predicted_row(sweep, case, checks.get(checked_case(case)))
            if old is None or old["row"] != results.clean(row):
                recorder.write(case, row)
    return checks


def recorded_rows(sweep: Sweep) -> list[Row]:
    """Return the shipped rows of this model and GPU that are about cases of the sweep, as they were recorded."""
    from perfkit.profiles import load_measured

    return match_recorded(load_measured(sweep.model.get("key"), sweep.gpu.get("key")), sweep.cases)


def match_recorded(rows: Iterable[Mapping[str, object]], cases: Mapping[str, Case]) -> list[Row]:
    """Return the recorded rows whose case_id is among ``cases``, in their order, with ``source`` recorded.

    Of several rows of a case, the one of the run that has most of the cases: a control then stands beside what it was
    timed with. Of runs that have as many, the last.
    """
    runs: dict[str, dict[str, Row]] = {}
    for row in rows:
        case_id = str(row.get("case_id"))
        if case_id in cases:
            manifest = row.get("manifest")
            run = str(manifest.get("hash")) if isinstance(manifest, Mapping) else ""
            known = {name: value for name, value in row.items() if name in results.SCHEMA}
            runs.setdefault(run, {})[case_id] = known | {"schema_version": results.SCHEMA_VERSION, "source": "recorded"}
    found: dict[str, Row] = {}
    for run_rows in sorted(runs.values(), key=len):  # a stable sort: the last wins
        found |= run_rows
    return [found[case_id] for case_id in cases if case_id in found]


def failed_checks(checks: Mapping[Case, Check]) -> Sequence[str]:
    """Return one line for each check that did not end as ok."""
    return [f"{describe(case)}: {check.status}: {check.reason or '-'}" for case, check in checks.items()
            if check.status != "ok"]  # fmt: skip
