"""A sweep without its GPU: times from bytes and roofs, kernels checked in the interpreter, recorded times beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfkit import results
from perfkit.cases import Group, label
from perfkit.child import Child, worker_argv, worker_env
from perfkit.derive import Row, model_case
from perfkit.errors import DeviceError
from perfkit.method import Case
from perfkit.progress import Progress
from perfkit.runner import Limits, Runner
from perfkit.shape import Shape
from perfkit.sweep import LOG, Recorder, Sweep, base_row

#: What a check in the interpreter may take in all, in seconds; a case that takes longer is not checked.
CHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """What the interpreter says about one method at one pair of dtypes."""

    status: str  # ok, incorrect, error, skipped, …
    reason: str | None
    rel_error: float | None = None

    @property
    def checked(self) -> str:
        """The column ``checked``."""
        return "interpreter" if self.status in ("ok", "incorrect") else "no"


def small_case(case: Case) -> Case:
    """Return a small case that runs the same kernels: two heads of one group, a short window, three rows.

    The interpreter takes milliseconds a program. Its ``tl.dot`` on bfloat16 inputs is wrong, so those become float16.
    """
    shape = case.shape
    heads = 2 if shape.heads_per_group > 1 else 1
    small = Shape(shape.family, heads, 1, min(shape.d_v, 80), min(shape.d_k, 32))
    window = max(4, case.draft_len) if case.window is not None else None
    inputs = "float16" if case.input_dtype == "bfloat16" else case.input_dtype
    return replace(case, shape=small, batch=3, window=window, input_dtype=inputs, n_layers=1, options=())


def check_kernels(sweep: Sweep, run_dir: Path | None, progress: Progress, stop_at: float | None) -> dict[Case, Check]:
    """Check every method of the sweep on its small case; return what came out, by small case.

    Without a worker that interprets (no Triton here) nothing is checked, and the reason is noted.
    """
    small = list(dict.fromkeys(small_case(case) for group in sweep.groups for case in group.cases))
    progress.note(f"checking {len(small)} kernels on small shapes in the interpreter")
    progress.begin(len(small))
    log = run_dir / LOG if run_dir is not None else None
    settings = {**sweep.settings, "quick": True}
    limits = Limits(case_s=CHECK_S, start_s=60.0, stop_at=stop_at)
    found: dict[Case, Check] = {}
    try:
        spawn = lambda: Child(worker_argv("interpret"), worker_env("interpret"), log)  # noqa: E731
        with Runner(spawn, settings, limits, progress) as runner:
            for case in small:
                record = runner.run_group(Group(case.group_id, (case,)))[0]
                found[case] = Check(record["status"], record["reason"], record["row"].get("rel_error"))
    except DeviceError as error:
        progress.note(f"kernels are not checked: {error}")
    finally:
        progress.close()
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


def predict_all(sweep: Sweep, run_dir: Path, progress: Progress, stop_at: float | None) -> dict[Case, Check]:
    """Check the kernels, then write a predicted row for every case into the journal; return the checks.

    Raises:
        Interrupted, OutOfTime: the run can be resumed; checks are repeated, rows that are there are kept.
    """
    recorder = Recorder(sweep, run_dir)
    recorder.skipped()
    checks = check_kernels(sweep, run_dir, progress, stop_at)
    for group in sweep.groups:
        for case in group.cases:
            old = recorder.records.get(case.id)
            row = predicted_row(sweep, case, checks.get(small_case(case)))
            same = old is not None and old["status"] == row["status"] and old["row"]["checked"] == row["checked"]
            if not same:
                recorder.write(case, row)
    return checks


def recorded_rows(sweep: Sweep) -> list[Row]:
    """Return the shipped rows of this model and GPU that are about cases of the sweep, as they were recorded."""
    from perfkit.profiles import load_measured

    return match_recorded(load_measured(sweep.model.get("key"), sweep.gpu.get("key")), sweep.cases)


def match_recorded(rows: Iterable[Mapping[str, object]], cases: Mapping[str, Case]) -> list[Row]:
    """Return the recorded rows whose case_id is among ``cases``, with ``source`` recorded; of several the last."""
    found: dict[str, Row] = {}
    for row in rows:
        case_id = str(row.get("case_id"))
        if case_id in cases:
            known = {name: value for name, value in row.items() if name in results.SCHEMA}
            found[case_id] = known | {"schema_version": results.SCHEMA_VERSION, "source": "recorded"}
    return list(found.values())


def failed_checks(checks: Mapping[Case, Check]) -> Sequence[str]:
    """Return one line for each check that did not end as ok."""
    return [f"{label(case)}: {check.status}: {check.reason or '-'}" for case, check in checks.items()
            if check.status != "ok"]  # fmt: skip
