"""What ``perfkit profile`` does once its flags are read: plan, count, write the tables, say what came out."""

from __future__ import annotations

import shlex
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfkit import results
from perfkit.cases import Group, build_groups, case_memory, label, parse_ints, parse_spec
from perfkit.cli.common import print_json, print_table, say
from perfkit.cli.sweep_plan import check_gpu, choose_gpu
from perfkit.errors import DeviceError, ExitCode, InputError, worst
from perfkit.method import Case, Config
from perfkit.nsight import table
from perfkit.nsight.command import CACHE_CONTROLS, CLOCK_CONTROL
from perfkit.nsight.failures import UnknownMetric
from perfkit.nsight.metrics import select
from perfkit.nsight.steps import counted_steps
from perfkit.nsight.tool import Tool, find_ncu, open_tool
from perfkit.nsight.verdict import contradicted
from perfkit.nsight.watch import Patience
from perfkit.profiling import Profiler, asked_alone, conclude, groups_of, launches_planned, method_of
from perfkit.profiling import worst as worst_cases
from perfkit.profiling.lines import explain, lines
from perfkit.progress import count, duration, make_progress
from perfkit.runner import Interrupted, OutOfTime, signals_as_interrupts
from perfkit.sweep import Sweep, from_manifest, resume_command

#: Draft lengths and acceptance where nobody says any: decode and two verify lengths, the dearest acceptance.
DRAFTS, ACCEPTED = "1,4,8", "T-1"
#: Rough cost of a start of ncu with torch and CUDA, of a case (allocate, compile, prime) and of a counted launch, in
#: seconds; only for the estimate of --dry-run.
START_S, CASE_S, LAUNCH_S = 25.0, 5.0, 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """How cases are counted, as the flags of the same names have it."""

    cache_control: str
    metrics: str
    seed: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is counted, notes for stderr, and of RUN's cases their measured rows by case_id."""

    sweep: Sweep
    notes: Sequence[str] = ()
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def refuse(given: Mapping[str, Any], reason: str) -> None:
    """Refuse flags that say something where nothing is to be said.

    Raises:
        InputError: names the first.
    """
    for flag, value in given.items():
        if value is not None:
            raise InputError(reason, field=flag)


# -- plan ------------------------------------------------------------------------------------------------------------


def plan_axes(model: str | None, flags: Mapping[str, Any], config: str | None, options: Options) -> Plan:
    """Return the plan that the flags describe; nothing is created on disk.

    Raises:
        InputError: names the flag, the value and what is allowed.
    """
    from perfkit.profiles import load_model
    from perfkit.profiles import to_dict as profile_dict

    if model is None:
        raise InputError("is missing", field="--model", allowed="a key of `perfkit list models`, a config.json; or RUN")
    profile = load_model(model)
    draft = flags["draft"] or (None if flags["tree"] else DRAFTS)
    verify = draft is None or set(parse_ints(draft, field="--draft")) != {1}
    accepted = flags["accepted"] or (ACCEPTED if verify else None)
    spec = parse_spec(**{**flags, "draft": draft, "accepted": accepted}, model_state_dtype=profile.state_dtype)
    groups = asked_alone(build_groups(profile.shape, spec), spec.methods, spec.drafts)
    cases = [case for group in groups for case in group.cases]
    configs = {case.id: _config(case, config) for case in cases} if config is not None else {}
    return _plan(profile_dict(profile), groups, configs, options)


def plan_worst(run: Path, number: int | None, options: Options) -> Plan:
    """Return the plan for the cases of a run that the model predicts worst, in the configurations that were timed.

    Raises:
        InputError: not such a run, or measured on another GPU than the one here.
    """
    if number is None:
        raise InputError("is missing: how many of the cases that the model predicts worst?", field="--worst")
    if number < 1:
        raise InputError("must be at least 1", field="--worst", value=number)
    chosen = worst_cases(run, number)
    manifest = results.read_manifest(run)
    configs = {case.id: row["launch_config"] for case, row in chosen if row.get("launch_config")}
    known = {case.id: row for case, row in chosen}
    plan = _plan(manifest["model"], groups_of(case for case, _ in chosen), configs, options, known)
    theirs, here = (manifest.get("gpu") or {}).get("key"), plan.sweep.gpu
    if plan.sweep.mode == "measure" and here.get("key") != theirs:
        raise InputError(f"was measured on {theirs}; here is {here.get('key') or here.get('name')}",
                         file=run / "manifest.json", field="gpu.key")  # fmt: skip
    return plan


def _plan(
    model: Mapping[str, Any],
    groups: Sequence[Group],
    configs: Mapping[str, str],
    options: Options,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    if options.cache_control not in CACHE_CONTROLS:
        raise InputError("unknown", field="--cache-control", value=options.cache_control, allowed=CACHE_CONTROLS)
    mode, worker_mode, facts, notes = choose_gpu("auto")
    settings = {"seed": options.seed, "cache_control": options.cache_control, "clock_control": CLOCK_CONTROL,
                "metrics": list(select(options.metrics)), "configs": dict(configs)}  # fmt: skip
    sweep = Sweep(mode, worker_mode, model, facts, tuple(groups), settings, options.timeout)  # type: ignore[arg-type]
    return Plan(sweep, notes if mode == "measure" else (), known or {})


def _config(case: Case, text: str) -> str:
    """Return a launch configuration as text, if the case's method takes one with these names."""
    default = method_of(case).configs(case)[0]
    try:
        names = [name for name, _ in Config.parse(text).values]
    except ValueError:
        names = []
    if sorted(names) != sorted(name for name, _ in default.values):
        raise InputError(f"is no launch configuration of {case.method} {case.phase}", field="--config", value=text,
                         allowed=f"numbers for the names of '{default}'")  # fmt: skip
    return text


def show(plan: Plan, ncu: str | None, out: Path | None, *, as_json: bool) -> int:
    """Print what would be counted, the command lines of ncu, and a rough time; nothing is created or started."""
    sweep = plan.sweep
    profiler = Profiler(sweep, Tool(ncu or find_ncu() or "ncu"), out or _run_dir(sweep))
    jobs = list(profiler.jobs())
    cases = [case for _, members in jobs for case in members]
    skipped = [pair for group in sweep.groups for pair in group.skipped]
    launches = launches_planned(sweep.groups)
    seconds = START_S * len(jobs) + CASE_S * len(cases) + LAUNCH_S * launches
    steps = {case.id: counted_steps(case, method_of(case)) for case in cases}
    commands = [profiler.command(job) for job, _ in jobs]
    n_steps = sum(map(len, steps.values()))
    if as_json:
        print_json({
            "model": sweep.model["key"], "gpu": sweep.gpu, "n_cases": len(cases), "n_steps": n_steps,
            "n_launches": launches, "estimate_s": seconds, "commands": commands,
            "cases": [{"case_id": case.id, "case": label(case), "memory_bytes": case_memory(case),
                       "steps": steps[case.id]} for case in cases],
            "skipped": [{"case_id": case.id, "case": label(case), "reason": reason} for case, reason in skipped],
        })  # fmt: skip
        return ExitCode.OK

    def words(case: Case) -> str:
        return ", ".join(step.kind if step.h is None else f"{step.kind} h={step.h}" for step in steps[case.id])

    rows = [[number, label(case), f"{case_memory(case) / 1e9:.3f}", words(case)]
            for number, (_, members) in enumerate(jobs, start=1) for case in members]  # fmt: skip
    rows += [["-", label(case), "-", f"skipped: {reason}"] for case, reason in skipped]
    print_table(["start", "case", "GB", "counted steps"], rows)
    for line in commands:
        print(shlex.join(line))
    print(f"{count(len(cases), 'case')}, {count(n_steps, 'step')}, {count(launches, 'launch', 'launches')} in "
          f"{count(len(jobs), 'start')} of ncu: about {duration(seconds)}")  # fmt: skip
    return ExitCode.OK


# -- run -------------------------------------------------------------------------------------------------------------


def start(plan: Plan, ncu: str | None, out: Path | None, *, max_time: float | None, as_json: bool) -> int:
    """Count a new plan in a new folder; notes are printed once the folder is there.

    Raises:
        DeviceError: no GPU or no Nsight Compute here, or it cannot count.
        InputError: ``out`` cannot be a run folder.
    """
    if plan.sweep.mode != "measure":
        raise DeviceError("no usable GPU here (perfkit doctor says why): counters are read where kernels run; "
                          "--dry-run shows what would be counted")  # fmt: skip
    tool = open_tool(ncu)
    with _holding(plan.sweep):
        there = out is not None and out.is_dir()
        run_dir = results.prepare_run_dir(out or _run_dir(plan.sweep))
        for text in plan.notes:
            say(text)
        manifest = plan.sweep.manifest() | {"command": "profile", "ncu": tool.version, "known": plan.known}
        results.write_manifest(run_dir, manifest)
        try:
            return _run(plan, tool, manifest, run_dir, max_time, as_json)
        except UnknownMetric:  # at the first launch of all, so nothing was counted
            shutil.rmtree(run_dir)
            if there:
                run_dir.mkdir()
            raise


def resume(run_dir: Path, ncu: str | None, *, max_time: float | None, as_json: bool) -> int:
    """Go on with a run; everything but the place of ncu comes from its manifest.

    Raises:
        InputError: not a run of profile, a damaged journal, or a GPU other than the one that it was counted on.
        DeviceError: see :func:`start`.
    """
    sweep, manifest = from_manifest(run_dir, "profile")
    results.Journal(run_dir / "cases.jsonl").read()  # a damaged journal is refused before anything changes
    check_gpu(sweep, run_dir, "counted")
    manifest = {**manifest, "resumed": results.utc_now(), "ended": None}
    tool = open_tool(ncu)
    with _holding(sweep):
        return _run(Plan(sweep, known=manifest.get("known") or {}), tool, manifest, run_dir, max_time, as_json)


@contextmanager
def _holding(sweep: Sweep) -> Iterator[None]:
    """Hold the GPU: what another run does meanwhile would be in the counters, and the profiler in its times."""
    from perfkit.device import gpu_lock

    with gpu_lock(str(sweep.gpu["uuid"])) if sweep.worker_mode == "cuda" else nullcontext():
        yield


def _run_dir(sweep: Sweep) -> Path:
    gpu = sweep.gpu.get("key") or sweep.gpu.get("name") or "gpu"
    return results.default_run_dir(str(sweep.model["key"]), f"{gpu}-counters")


def _run(
    plan: Plan, tool: Tool, manifest: Mapping[str, Any], run_dir: Path, max_time: float | None, as_json: bool
) -> int:
    sweep = plan.sweep
    stop_at = time.monotonic() + max_time if max_time is not None else None
    patience = Patience(case_s=sweep.case_timeout_s, stop_at=stop_at)
    profiler = Profiler(sweep, tool, run_dir, make_progress(), patience)
    with signals_as_interrupts(), results.writing(run_dir):
        try:
            results.discard_frame(run_dir)
            profiler.run()
            rows, counters = conclude(sweep, run_dir)
        except (Interrupted, OutOfTime) as error:
            go_on = resume_command(run_dir, "profile")
            raise type(error)(f"{error}; what was counted is kept; go on with: {go_on}") from None
        statuses = [row["status"] for row in rows]
        results.write_manifest(run_dir, {**manifest, "ended": results.utc_now(), "ncu": tool.version,
                                         "statuses": dict(Counter(statuses))})  # fmt: skip
    wrong = contradicted(counters)
    text = _last_lines(plan, tool, run_dir, rows, counters)
    if as_json:
        print_json({"run_dir": run_dir, "rows": rows, "counters": table.as_json(counters), "contradicted": wrong,
                    "lines": text})  # fmt: skip
    else:
        if counters:
            print_table(table.COLUMNS, table.lines(counters), title="Bytes of one step of the batch in one layer")
        print("\n".join(text))
    return worst(results.exit_code(statuses), ExitCode.FAILED if wrong else ExitCode.OK)


def _last_lines(
    plan: Plan, tool: Tool, run_dir: Path, rows: Sequence[Mapping[str, Any]], counters: Sequence[Mapping[str, Any]]
) -> list[str]:
    text = lines(rows, counters, plan.sweep.gpu, tool.version)
    cases = plan.sweep.cases
    text += [explain(cases[key], row, [one for one in counters if one["case_id"] == key])
             for key, row in plan.known.items()]  # fmt: skip
    steps = [f"rows {run_dir}/counters.csv", f"perfkit reproduce table3 {run_dir}"]
    if any(row["status"] in results.INCOMPLETE for row in rows):
        steps.append(f"resume {resume_command(run_dir, 'profile')}")
    return [*text, f"{'next':<9} " + "   ·   ".join(steps)]
